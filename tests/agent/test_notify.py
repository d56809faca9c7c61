"""Notifications: somebody is told once that a session waits, and whatever goes wrong there is not the run's matter."""

from __future__ import annotations

import http.server
import json
import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from perdure import tool
from perdure.agent import notify
from perdure.agent.agent import Agent
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.errors import InvalidInput, ModelUnavailable
from tests.agent.working import by_turn, opened, play

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@tool(approve=True)
def refund(amount: int) -> str:
    """Refund money."""
    return "done"


@tool
def wire(amount: int) -> str:
    """Wire money."""
    raise ConnectionError


class Desk:
    """Somebody who is told, and may be out of order."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.headers: list[Any] = []
        self.answers: list[int] = []
        self.url = ""


@contextmanager
def desk() -> Iterator[Desk]:
    found = Desk()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            found.headers.append(self.headers)
            self.send_response(found.answers.pop(0) if found.answers else 204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    found.url = f"http://ana:s3cret@127.0.0.1:{server.server_port}/hook?token=s3cret"
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def wait() -> None:
    """For whoever is being told."""
    for thread in threading.enumerate():
        if thread.name == "perdure-notify":
            thread.join()


def test_somebody_is_told_once_of_each_thing_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notify, "PAUSE", 0.01)
    script = by_turn(calls(("refund", {"amount": 5})), calls(("wire", {"amount": 7})), "bye")

    async def work(there: Desk) -> None:
        agent = Agent("clerk", model=ScriptedModel(script), tools=[refund, wire], notify=there.url)
        async with opened(tmp_path) as db:
            there.answers = [500, 302]
            waits = await agent.run(db, session="s", message="go")
            wait()
            assert len(there.told) == 3
            (asked,) = there.told[2]["interrupts"]
            request = waits.approvals[0]
            assert list(asked) == [
                "id", "reason", "message", "toolCallId", "responseSchema", "expiresAt", "metadata",
            ]  # fmt: skip
            assert (asked["id"], asked["toolCallId"]) == (request.id, request.effect)
            assert asked["metadata"]["args"] == {"amount": 5}
            assert there.headers[0]["Authorization"].startswith("Basic ")
            # Still waiting is no news.
            await agent.run(db, session="s")
            wait()
            assert len(there.told) == 3
            await db.approve("s", request.id, by="bob")
            assert (await agent.run(db, session="s")).status == "in_doubt"
            wait()
            assert [i["reason"] for i in there.told[3]["interrupts"]] == ["in_doubt"]
            assert "Did wire" in there.told[3]["interrupts"][0]["message"]

    with desk() as there:
        play(work(there))


def test_a_run_that_failed_is_told(tmp_path: Path):
    def fail(request: Any) -> Any:
        raise ModelUnavailable("gone")

    told: list[Any] = []

    async def listener(body: Any) -> None:
        told.append(body)

    async def work() -> None:
        async with opened(tmp_path) as db:
            agent = Agent("a", model=ScriptedModel(fail), notify=listener)
            assert (await agent.run(db, session="s", message="x")).status == "failed"
            wait()

    play(work())
    assert [(t["status"], t["reason"], t["interrupts"]) for t in told] == [("failed", "gone", [])]


@pytest.mark.parametrize("kind", ["nobody there", "a function that raises"])
def test_nobody_to_tell_fails_nothing_and_no_secret_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
):
    monkeypatch.setattr(notify, "PAUSE", 0.01)

    def raises(body: Any) -> None:
        raise ValueError("s3cret")

    with desk() as there:
        gone = there.url
    agent = Agent(
        "clerk", model=ScriptedModel(by_turn(calls(("refund", {"amount": 5})))), tools=[refund],
        notify=gone if kind == "nobody there" else raises,
    )  # fmt: skip

    async def work() -> None:
        async with opened(tmp_path) as db:
            assert (await agent.run(db, session="s", message="go")).status == "waiting_approval"
            wait()

    with caplog.at_level(logging.DEBUG):
        play(work())
    assert "could not be told that session 's' is waiting_approval" in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("wrong", ["ftp://x/y", "hook", "https://"])
def test_an_address_that_is_none_is_refused(wrong: str):
    with pytest.raises(InvalidInput, match="https"):
        Agent("a", model=ScriptedModel([]), notify=wrong)


def test_as_many_as_wait_are_bounded_and_whoever_is_not_told_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(notify, "WAITING", 3)
    go, told = threading.Event(), []
    began = threading.Semaphore(0)

    def slow(body: Any) -> None:
        began.release()
        go.wait()
        told.append(body["session"])

    for n in range(notify.TELLERS):
        notify.tell(slow, {"session": f"s{n}", "status": "failed"})
        began.acquire()
    for n in range(4):
        notify.tell(slow, {"session": f"later{n}", "status": "failed"})
    assert sum(thread.name == "perdure-notify" for thread in threading.enumerate()) == notify.TELLERS
    assert "3 notifications wait already" in caplog.text
    assert "'later3' is failed" in caplog.text
    go.set()
    wait()
    assert sorted(told) == sorted([f"s{n}" for n in range(notify.TELLERS)] + ["later0", "later1", "later2"])
