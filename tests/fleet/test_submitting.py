"""Giving work to a fleet: what is told of a message that was said before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.errors import Gone
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path


def test_a_withdrawn_message_is_not_taken_up_when_it_is_said_once_more(tmp_path: Path) -> None:
    with perdure.open(url_of("sqlite", tmp_path)) as db:
        assert perdure.submit(db, "s", "pay O-1", agent="desk", key="k")
        assert not perdure.submit(db, "s", "pay O-1", agent="desk", key="k")
        db.withdraw("s", "k", by="eve")
        with pytest.raises(Gone, match="eve withdrew it"):
            perdure.submit(db, "s", "pay O-1", agent="desk", key="k")
        assert perdure.submit(db, "s", "pay O-2", agent="desk", key="k2")
