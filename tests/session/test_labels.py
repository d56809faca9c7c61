"""A word of the program's own for where a session stands: kept until changed, listed, and no status of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure import InvalidInput, LimitExceeded, Status, tool, why

if TYPE_CHECKING:
    import perdure

WAITS = "waiting for executive"


@tool
def stamp(paper: str) -> str:
    """Stamp a paper."""
    return paper


def test_a_label_is_kept_until_it_is_changed_and_cleared(db: perdure.Database):
    with db.session("s") as s:
        assert s.label == ""
        s.commit(label=WAITS)
        s.vars["n"] = 1
        s.commit()
        s.call(stamp, "p")
        assert s.label == WAITS
    assert db.look("s").label == WAITS
    assert [row.id for row in db.sessions(label=WAITS)] == ["s"]
    assert db.sessions(label="other") == []
    assert WAITS in why(db, "s").line
    with db.session("s") as s:
        assert s.label == WAITS, "a handle that is opened later knows it"
        step = s.step
        assert s.commit(label=WAITS).step == step, "nothing has changed"
        s.commit(label="")
        assert (s.label, s.step) == ("", step + 1)
    assert db.look("s").label == ""
    assert "label" not in db.history("s")[0].more


def test_a_label_is_of_the_place_where_the_session_stands(db: perdure.Database):
    with db.session("s") as s:
        s.commit(label="first")
        s.vars["n"] = 1
        s.commit(label="second")
        s.fork("b", at=1)
        assert db.look("s").label == "second"
        s.rewind(1)
        assert s.label == "first"
        assert db.look("s").label == "first"
        s.switch("b")
        s.commit(label="third")
    assert db.look("s").label == "first", "a branch has spoken for main"
    assert "Its label: third." in why(db, "s", branch="b").line


def test_a_status_of_ones_own_is_refused_and_pointed_to_the_label(db: perdure.Database):
    with db.session("s") as s:
        s.vars["n"] = 1
        with pytest.raises(InvalidInput) as refused:
            s.commit(status="WAITING_FOR_EXECUTIVE")
        assert "'WAITING_FOR_EXECUTIVE'" in str(refused.value)
        assert "commit(label=...)" in str(refused.value)
        assert all(status in str(refused.value) for status in Status)
        assert s.step == 0, "it was written all the same"
        s.commit(status=Status.FAILED)
        s.commit(status="idle", label=WAITS)
    assert (db.look("s").status, db.look("s").label) == ("idle", WAITS)


@pytest.mark.parametrize("label", [7, "a\0b", "\ud800", "x" * 201])
def test_a_label_that_cannot_be_one_is_refused(db: perdure.Database, label: object):
    with db.session("s") as s, pytest.raises((InvalidInput, LimitExceeded), match="label"):
        s.commit(label=label)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
