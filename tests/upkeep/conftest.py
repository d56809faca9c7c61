"""Upkeep is tested on every embedded store: each keeps its rows in another way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.store_urls import EMBEDDED, url_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=EMBEDDED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    return url_of(request.param, tmp_path)
