"""Messages that nobody has answered: listed, taken back, changed; by a program, on a store that has no board or has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Busy, InvalidInput, MessageTaken, NotFound
from tests.store_urls import STORES, url_of

if TYPE_CHECKING:
    from pathlib import Path


def told(db: perdure.Database, session: str = "s") -> list[Any]:
    """What a program is given that goes on with a session."""
    with db.session(session) as s:
        found = [m.body for m in s.take()]
        s.commit()
        return found


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
@pytest.mark.parametrize("store", STORES)
def test_one_is_taken_back_and_another_changed_in_its_place(store: str, tmp_path: Path, begun: bool):
    with perdure.open(url_of(store, tmp_path)) as db:
        if begun:
            told(db)
        for key in ("a", "b", "c"):
            db.post("s", f"message {key}", key=key)
        assert db.withdraw("s", "a", by="eve", reason="rude").new
        assert db.edit("s", "b", "first", by="eve").new
        assert db.edit("s", "b", {"role": "user", "content": "better"}, by="ann").new
        # Said again it is the same: nothing is new.
        assert not db.withdraw("s", "a", by="mallory").new
        assert not db.edit("s", "b", {"role": "user", "content": "better"}, by="mallory").new
        waiting = [(m.key, m.body, m.edited_by) for m in db.inbox("s")]
        assert waiting == [("b", {"role": "user", "content": "better"}, "ann"), ("c", "message c", "")]
        assert told(db) == [{"role": "user", "content": "better"}, "message c"]
        assert told(db) == []
        assert db.inbox("s") == []
        assert db.look("s").pending == 0
        # Who did it stands in the history, and the history is whole.
        assert db.verify("s").findings == ()
        assert ("eve withdrew message 'a': rude" in [c.more.get("note") for c in db.history("s")]) == begun
        # What was taken back does not come back by its key, and what was taken up is not taken back any more.
        assert not db.post("s", "message a", key="a")
        assert told(db) == []
        for change in (lambda: db.edit("s", "a", "x", by="eve"), lambda: db.withdraw("s", "b", by="eve")):
            with pytest.raises(MessageTaken):
                change()


def test_whoever_may_be_answering_it_is_not_interrupted(tmp_path: Path):
    with perdure.open(f"sqlite:///{tmp_path}/a.db") as db:
        told(db)
        db.post("s", "hello", key="k")
        with db.session("s") as s:
            taken = s.take()
            for change in (lambda: db.withdraw("s", "k", by="eve"), lambda: db.edit("s", "k", "x", by="eve")):
                with pytest.raises(Busy, match="who may be answering message 'k'"):
                    change()
            s.commit()
        assert [m.body for m in taken] == ["hello"]
        with pytest.raises(MessageTaken, match="step 2"):
            db.withdraw("s", "k", by="eve")
        # Who writes without a lease loses, reads again, and is not told it.
        db.post("s", "again", key="k2")
        with db.session("s", lease=False) as s:
            assert [m.body for m in s.take()] == ["again"]
            assert db.withdraw("s", "k2", by="eve").new
            s.vars["x"] = 1
            with pytest.raises(perdure.Conflict):
                s.commit()
            s.reload()
            assert s.take() == []


def test_what_cannot_be_taken_back_is_said(tmp_path: Path):
    with perdure.open(f"sqlite:///{tmp_path}/a.db") as db:
        for change in (lambda: db.withdraw("s", "k", by="eve"), lambda: db.inbox("s")):
            with pytest.raises(NotFound, match="there is no session 's'"):
                change()
        told(db)
        db.wake("s", delay="2h", key="w")
        (timer,) = db.inbox("s")
        assert (timer.kind, timer.body["message"]) == ("wake", None)
        with pytest.raises(InvalidInput, match=r"no message but a wake; db\.cancel_wake"):
            db.withdraw("s", timer.key, by="eve")
        with pytest.raises(NotFound, match="no message 'other'"):
            db.withdraw("s", "other", by="eve")
        for bad in (None, ""):
            with pytest.raises(InvalidInput, match="empty"):
                db.edit("s", "k", bad, by="eve")
        with pytest.raises(InvalidInput, match="name"):
            db.withdraw("s", "k", by="")


def test_a_resumed_run_is_told_the_same(tmp_path: Path):
    """What was taken back goes along with what was told, and is not told to whoever runs it again either."""
    heard: list[list[Any]] = []
    with perdure.open(f"sqlite:///{tmp_path}/a.db") as db:
        for key in ("a", "b"):
            db.post("s", f"message {key}", key=key)
        db.withdraw("s", "a", by="eve")
        db.edit("s", "b", "changed", by="eve")

        def work(s: perdure.Session) -> str:
            heard.append([m.body for m in s.take()])
            s.vars["n"] = 1
            s.commit()
            if len(heard) == 1:
                raise RuntimeError
            return "done"

        for _ in range(2):
            with db.session("s") as s:
                try:
                    s.run("r", work)
                except RuntimeError:
                    continue
    assert heard == [["changed"], ["changed"]]
