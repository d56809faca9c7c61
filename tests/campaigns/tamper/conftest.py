"""Where copies are made: in memory where the machine allows it, because thousands of copies wear out patience."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers.place import memory

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder."""
    made = Path(tempfile.mkdtemp(prefix="perdure-tamper-", dir=memory()))
    yield made
    shutil.rmtree(made, ignore_errors=True)
