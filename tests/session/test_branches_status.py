"""Where a session stands is where main stands, whatever happens on its branches and whatever gets a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import perdure
from perdure import tool
from tests.store_urls import EMBEDDED, url_of

if TYPE_CHECKING:
    from pathlib import Path


@tool(approve=True)
def refund(amount: int) -> int:
    return amount


@tool
def wire(amount: int) -> None:
    raise TimeoutError


def work(s: perdure.Session) -> None:
    s.vars["a"] = 1
    s.commit()


def ask(s: perdure.Session) -> None:
    with pytest.raises(perdure.ApprovalNeeded):
        s.call(refund, 5)


def verified(kind: str, folder: Path) -> None:
    with perdure.open(url_of(kind, folder)) as db:
        assert kind == "memory" or db.verify().ok


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_fork_or_tag_at_a_running_step_leaves_the_session_idle(kind: str, tmp_path: Path):
    with perdure.open(url_of(kind, tmp_path)) as db, db.session("s") as s:
        s.run("r", work)
        assert db.history("s")[1].status == "running"
        assert db.look("s").status == "idle"
        s.fork("again", at=2)
        assert db.look("s").status == "idle"
        s.tag("there", at=2)
        assert db.look("s").status == "idle"
        s.switch("again")
        assert s.status == "running"
    verified(kind, tmp_path)


@pytest.mark.parametrize("kind", EMBEDDED)
def test_what_waits_on_main_is_not_hidden_by_a_branch(kind: str, tmp_path: Path):
    with perdure.open(url_of(kind, tmp_path)) as db, db.session("s") as s:
        s.commit("begun")
        ask(s)
        s.fork("b", at=1)
        s.switch("b")
        s.run("r", work)
        assert (s.status, db.look("s").status) == ("idle", "waiting_approval")
        with pytest.raises(perdure.InDoubt):
            s.call(wire, 7)
        row = db.look("s")
        assert (s.status, row.status, row.error) == ("in_doubt", "waiting_approval", "")
        s.switch("main")
        db.approve("s", s.approvals()[0].id, by="eve")
        assert s.call(refund, 5) == 5
        assert db.look("s").status == "idle"
    verified(kind, tmp_path)


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_rewind_of_main_stands_where_it_goes_back_to(kind: str, tmp_path: Path):
    with perdure.open(url_of(kind, tmp_path)) as db, db.session("s") as s:
        s.commit("begun")
        ask(s)
        waits = s.step
        db.approve("s", s.approvals()[0].id, by="eve")
        s.call(refund, 5)
        s.run("r", work)
        assert db.look("s").status == "idle"
        s.rewind(s.step - 1)
        assert db.look("s").status == "running"
        s.rewind(waits)
        assert db.look("s").status == "waiting_approval"
        s.rewind(1)
        assert db.look("s").status == "idle"
        s.fork("b")
        s.switch("b")
        s.commit("on", status="paused")
        assert db.look("s").status == "idle"
        s.rewind(1)
        assert db.look("s").status == "idle"
    verified(kind, tmp_path)


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_merge_leaves_main_waiting(kind: str, tmp_path: Path):
    with perdure.open(url_of(kind, tmp_path)) as db, db.session("s") as s:
        s.commit("begun")
        s.fork("b")
        ask(s)
        s.switch("b")
        work(s)
        s.commit("over", status="paused")
        s.switch("main")
        s.merge("b")
        assert (s.vars["a"], s.status) == (1, "waiting_approval")
        assert db.look("s").status == "waiting_approval"
        # The other way round nothing of main changes.
        s.switch("b")
        s.merge("main")
        assert (s.status, db.look("s").status) == ("paused", "waiting_approval")
    verified(kind, tmp_path)


def test_a_closed_session_stays_closed_whatever_is_tried_on_a_branch(tmp_path: Path):
    with perdure.open(url_of("sqlite", tmp_path)) as db:
        with db.session("s") as s:
            s.commit("begun")
            s.close()
        with db.session("s") as s:
            s.fork("b", at=1)
            s.switch("b")
            work(s)
            assert (s.status, db.look("s").status) == ("idle", "closed")
    verified("sqlite", tmp_path)
