"""The databases of the session tests, on the embedded stores: what all do alike is shown in the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.places import EMBEDDED, url_of
from tests.session.conftest import clock, db, open_db

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["clock", "db", "open_db", "url"]


@pytest.fixture(params=EMBEDDED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    return url_of(request.param, tmp_path)
