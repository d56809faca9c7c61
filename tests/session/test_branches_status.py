"""Where a session stands does not change when a place of its past gets a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import perdure
from tests.places import EMBEDDED, url_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_fork_or_tag_at_a_running_step_leaves_the_session_idle(kind: str, tmp_path: Path):
    def work(s: perdure.Session) -> None:
        s.vars["a"] = 1
        s.commit()

    with perdure.open(url_of(kind, tmp_path)) as db, db.session("s") as s:
        s.run("r", work)
        assert db.history("s")[1].status == "running"
        assert db.look("s").status == "idle"
        s.fork("again", at=2)
        assert db.look("s").status == "idle"
        s.tag("there", at=2)
        assert db.look("s").status == "idle"
    with perdure.open(url_of(kind, tmp_path)) as db:
        assert kind == "memory" or db.verify().ok
