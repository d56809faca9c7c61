"""Carrying out what was said to do, literally, by each door: the library, the command line, HTTP."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import time
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import perdure
from perdure.cli.program import run as run_command
from perdure.fleet.board import board_of
from perdure.fleet.status import steer
from perdure.protocols import WorkerRow
from perdure.system.clock import SystemClock
from tests.campaigns.statements.desk import desk
from tests.campaigns.statements.world import WORKER, take_up
from tests.server.asking import API, BEARER, TOKEN

if TYPE_CHECKING:
    from perdure.session.actions import Action
    from tests.campaigns.statements.world import World

DOORS = ("library", "command", "http")
APP = "tests.campaigns.statements.desk:desk"
FILLED = {"APP": APP, "VALUE": "red", "RESULT": '"it is there"', "MESSAGE": "hello"}
BODIES: dict[str, Any] = {
    "approve": {"status": "resolved", "payload": {"approved": True}, "by": "eve"},
    "answer": {"status": "resolved", "payload": {"answer": "red"}, "by": "eve"},
    "resolve": {"verdict": "done", "result": "it is there", "by": "eve"},
    "message": {"message": "hello"},
    "outcome": {"result": "it is there"},
    "withdraw": {"by": "eve"},
    "run": {},
    "reopen": {"agent": "desk", "reopen": True},
}


class Refused(Exception):
    """What was said to do cannot be done."""


def offers(action: Action, door: str) -> bool:
    """Whether an action can be carried out by a door, as it says itself."""
    return bool({"library": action.library, "command": action.command, "http": action.http}[door])


def carry_out(w: World, action: Action, door: str) -> None:
    """Do it; ``Refused`` says why it could not be done."""
    if action.name == "worker":
        # A process of its own, by whichever door: here it is the one that works as time passes.
        row = w.row(action.session)
        agents = {"desk", *((row.agent,) if row is not None and row.agent else ())}
        board_of(w.db).beat(WorkerRow(WORKER, "host", 1, "v", tuple(sorted(agents)), 10))
        return
    try:
        {"library": _by_library, "command": _by_command, "http": _by_http}[door](w, action)
    except perdure.PerdureError as e:
        raise Refused(f"{door}: {type(e).__name__}: {e}") from e


def _by_library(w: World, a: Action) -> None:
    db = w.db
    match a.name.value:
        case "approve":
            db.approve(a.session, a.argument, by="eve")
        case "answer":
            db.answer(a.session, a.argument, "red", by="eve")
        case "resolve":
            with db.session(a.session) as s:
                s.resolve(a.argument, done="it is there", by="eve")
        case "retry" | "unpause":
            if not steer(db, [a.session], a.name.value):
                raise Refused(f"{a.name.value} changed nothing")
        case "unhold":
            board_of(db).hold(a.argument, False)
        case "run" | "start":
            w.run(a.session)
        case "message":
            db.post(a.session, "hello")
        case "withdraw":
            db.withdraw(a.session, a.argument, by="eve")
        case "submit":
            perdure.submit(db, a.session, agent=a.argument)
        case "outcome":
            db.post_outcome(a.session, a.argument, "it is there")
        case "reopen" | "program_reopens":
            with db.session(a.session, reopen=True) as s:
                s.commit()
        case "program":
            take_up(w)
        case name:
            raise Refused(f"nobody knows how to {name}")


def _by_command(w: World, a: Action) -> None:
    typed = re.sub(r" \(or .*\)$", "", a.command)
    words = [FILLED.get(word, word) for word in shlex.split(typed)[1:]]
    if a.name.value in ("approve", "answer", "resolve", "withdraw"):
        words += ["--by", "eve"]
    out, err = io.StringIO(), io.StringIO()
    with _time(w), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command([*words, "--store", w.url])
    if code != 0 and not (a.name.value in ("run", "start", "reopen") and code == 1):
        # A run that ends by waiting for somebody is no refusal.
        raise Refused(f"{typed}: {code} {err.getvalue()[-300:]}")
    if a.name.value in ("retry", "unpause") and ": 1 of 1" not in out.getvalue():
        raise Refused(f"{typed}: {out.getvalue()}")


@contextlib.contextmanager
def _time(w: World) -> Any:
    """Commands have the clock of the world."""
    with (
        patch.object(SystemClock, "wall", lambda _: w.clock.wall()),
        patch.object(SystemClock, "monotonic", lambda _: w.clock.monotonic()),
    ):
        yield


def _by_http(w: World, a: Action) -> None:
    import asyncio

    from starlette.testclient import TestClient

    from perdure.server.app import create_app

    method, path = a.http.split(" ", 1)
    assert path.startswith(API)
    body: Any = {
        "submit": a.body,
        "unhold": {"agent": a.argument, "on": False},
        "start": {"id": a.session, "agent": "desk"},
    }.get(a.name.value, BODIES.get(a.name.value))
    served = perdure.open_async(w.url, maintain=False, clock=w.clock)
    app = create_app(served, token=TOKEN, agents=[desk])
    try:
        with TestClient(app, base_url="http://127.0.0.1", headers=BEARER, raise_server_exceptions=False) as http:
            answer = http.request(method, path, json=body)
            if answer.status_code >= 300:
                raise Refused(f"{a.http}: {answer.status_code} {answer.text[:300]}")
            if "changed" in answer.json() and not answer.json()["changed"]:
                raise Refused(f"{a.http}: it changed nothing")
            end = time.monotonic() + 30
            while app.state.ctx.runs.branches(a.session) and time.monotonic() < end:
                time.sleep(0.005)
    finally:
        asyncio.run(served.close())
