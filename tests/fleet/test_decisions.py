"""A decision by any door, library, command line, HTTP or console, wakes its session: a real worker goes on with it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.fleet.board import submit
from perdure.protocols import Filter
from tests.fleet.app import desk
from tests.fleet.harness import Fleet, answered, board, fleet, is_idle, until
from tests.server.asking import asking
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GOES_ON = "It is handed to the fleet at once: 1 worker has agent desk."


def by_library(url: str, approval: str, folder: Path) -> None:
    with perdure.open(url) as db:
        assert db.approve("s", approval, by="eve") == ("worker", GOES_ON, False)


def by_library_awaited(url: str, approval: str, folder: Path) -> None:
    async def decide() -> None:
        async with perdure.open_async(url) as db:
            assert await db.approve("s", approval, by="eve") == ("worker", GOES_ON, False)

    asyncio.run(decide())


def by_command_line(url: str, approval: str, folder: Path) -> None:
    command = [sys.executable, "-m", "perdure.cli", "approve", "s", approval, "--store", url, "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    expected = {"session": "s", "id": approval, "decision": "approved", "woken": "worker", "next": GOES_ON}
    assert json.loads(told) == expected


def by_http(url: str, approval: str, folder: Path) -> None:
    with asking(folder) as api:
        told = api.post(f"/sessions/s/approvals/{approval}", {"status": "resolved", "payload": {"approved": True}})
        assert (told["woken"], told["next"]) == ("worker", GOES_ON)


def by_console(url: str, approval: str, folder: Path) -> None:
    # The server has the agent as well: a worker goes first, so that it is not run twice.
    with asking(folder, agents=[desk]) as api:
        form = {"session": "s", "approval": approval, "by": "eve", "do": "approve"}
        assert GOES_ON in api.http.post("/approvals", data=form).text


DOORS = [by_library, by_library_awaited, by_command_line, by_http, by_console]


@pytest.mark.parametrize("door", DOORS)
def test_a_decision_queues_its_session_at_once_and_a_worker_goes_on(
    door: Callable[[str, str, Path], None], tmp_path: Path
):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path, lease=30.0) as workers:
        frozen = freeze(db, workers)
        result = desk.run_sync(url, session="s", message="refund A")
        (approval,) = result.approvals
        assert works(db) == []
        door(url, approval.id, tmp_path)
        # No worker has looked for it: whoever decided has put it there.
        assert [(w.session, w.queued) for w in works(db)] == [("s", True)]
        frozen.send_signal(signal.SIGCONT)
        until(lambda: is_idle(db, ["s"]), workers)
        assert answered(db, "s")[-1] == "done: refunded A"
        assert workers.charges("refund") == {"A": 1}


def test_what_was_submitted_keeps_its_priority(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path) as workers:
        workers.start()
        submit(db, "s", "refund A", agent="desk", priority=7)
        until(lambda: db.look("s").status == "waiting_approval" and not db.look("s").lease.holder, workers)
        by_console(url, next(iter(db.read("s").book["approvals"])), tmp_path)
        until(lambda: is_idle(db, ["s"]), workers)
        assert [w.priority for w in works(db)] == [7]


def test_who_goes_on_himself_sends_no_worker(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path, lease=30.0) as workers:
        freeze(db, workers)
        (approval,) = desk.run_sync(url, session="s", message="refund A").approvals
        assert db.reject("s", approval.id, by="eve", wake=False).to == "caller"
        assert works(db) == []
        assert desk.run_sync(url, session="s").status == "done"


@pytest.mark.parametrize("do", ["pause", "hold"])
def test_what_keeps_workers_from_a_session_is_said(do: str, tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path) as workers:
        workers.start()
        submit(db, "s", "refund A", agent="desk")
        until(lambda: db.look("s").status == "waiting_approval" and not db.look("s").lease.holder, workers)
        if do == "pause":
            board(db).change(Filter(sessions=("s",)), "pause", 0)
        else:
            board(db).hold("desk", True)
        handed = db.approve("s", next(iter(db.read("s").book["approvals"])), by="eve")
        assert handed.to == "nobody"
        assert ("paused" if do == "pause" else "held") in handed.words


def test_without_a_worker_it_is_said_who_could_go_on_and_no_board_is_filled(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    (approval,) = desk.run_sync(url, session="s", message="refund A").approvals
    with perdure.open(url) as db:
        handed = db.approve("s", approval.id, by="eve")
        at = f"--store {url}"
        told = f"Nobody runs agent desk: go on with perdure resume APP s {at}, or start perdure worker APP {at}."
        assert handed == ("nobody", told, True)
        assert works(db) == []


def test_a_decision_stands_when_the_board_cannot_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    url = url_of("sqlite", tmp_path)
    (approval,) = desk.run_sync(url, session="s", message="refund A").approvals
    with perdure.open(url) as db:

        def broken() -> None:
            raise perdure.Unavailable("no board today")

        with monkeypatch.context() as patched:
            patched.setattr(db.kernel.store, "has_board", broken)
            handed = db.reject("s", approval.id, by="eve")
        assert (handed.to, "no board today" in handed.words) == ("nobody", True)
        assert [e.kind for e in db.kernel.store.inbox("s", 10)] == ["decision"]
    assert desk.run_sync(url, session="s").status == "done"


def freeze(db: perdure.Database, workers: Fleet) -> Any:
    """A worker that is known, and stopped so that it looks at nothing."""
    (worker,) = workers.start()
    until(lambda: board(db).workers(), workers)
    worker.send_signal(signal.SIGSTOP)
    return worker


def works(db: perdure.Database) -> list[Any]:
    """The sessions on the board."""
    return board(db).works()
