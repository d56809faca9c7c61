"""One life of a caller, or of the server that some of them speak to, in a process of its own that may be killed.

Run as ``python -m tests.campaigns.said_once.life``: a zygote like that of :mod:`tests.campaigns.crash.zygote`, a job
per line.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
import signal
import time
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import uvicorn

from perdure.agent import said_once
from perdure.cli import agents as agent_commands
from perdure.cli import program
from perdure.errors import PerdureError
from perdure.opening import open_async
from perdure.server import app as server_app
from perdure.server import console as server_console
from perdure.stores.postgres import store as postgres_store
from perdure.stores.sqlite import store as sqlite_store
from perdure.system import faults
from tests.campaigns.agent_kills.log import Log
from tests.campaigns.crash.zygote import BROKE, PATIENCE, serve
from tests.campaigns.said_once.app import agent

if TYPE_CHECKING:
    from perdure.agent.run_result import RunResult

PRELOADED = (uvicorn, server_app, server_console, sqlite_store, postgres_store)
"""Imported before the fork: a life is about what is said, not about importing."""
APP = "tests.campaigns.said_once.app"
FOR_AN_ANSWER = 30
"""Seconds that a caller over HTTP asks on."""
LIBRARY, COMMAND, HTTP = DOORS = ("library", "command", "http")


def die_at(hit: int, log: Log, wanted: str | None) -> None:
    """Have this process killed the ``hit``-th time it passes a point; None: any point."""
    left = hit

    def hook(point: str) -> None:
        nonlocal left
        left -= wanted in (None, point)
        if left == 0:
            log.note("killed", point=point)
            os.kill(os.getpid(), signal.SIGKILL)

    faults.hook = hook


# -- the doors --------------------------------------------------------------------------------------------------------


async def call_library(job: dict[str, Any], log: Log) -> None:
    """Say it with ``agent.run``."""
    async with open_async(job["url"], maintain=False) as db:
        try:
            end = await agent.run(
                db, session=job["session"], message=job["message"], key=job["key"], wait=job["wait"]
            )  # fmt: skip
        except PerdureError as e:
            log.note("refused", error=type(e).__name__, words=str(e))
        else:
            log.note("told", status=end.status, text=end.text, key=end.message_key, repeated=end.repeated)


def call_command(job: dict[str, Any], log: Log) -> None:
    """Say it with ``perdure run``."""
    argv = ["run", APP, job["session"], job["message"], "--store", job["url"], "--json", "--wait", str(job["wait"])]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = program.run([*argv, *(("--key", job["key"]) if job["key"] else ())])
    if code:
        log.note("refused", error=f"exit code {code}", words=err.getvalue())
        return
    end = json.loads(out.getvalue())
    log.note("told", status=end["status"], text=end["text"], key=end["message_key"], repeated=end["repeated"])


def call_http(job: dict[str, Any], log: Log) -> None:
    """Say it with ``POST .../runs``, and ask again with its key until there is an answer."""
    key, until = job["key"], time.monotonic() + FOR_AN_ANSWER
    while time.monotonic() < until:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", job["port"], timeout=FOR_AN_ANSWER)
            connection.connect()
        except OSError:
            # Nothing was sent: the server is being started again.
            time.sleep(0.02)
            continue
        headers = {"Content-Type": "application/json", **({"Idempotency-Key": key} if key else {})}
        path = f"/api/v1/sessions/{quote(job['session'])}/runs"
        try:
            faults.point("http.before_request")
            connection.request("POST", path, json.dumps({"message": job["message"]}), headers)
            faults.point("http.after_request")
            response = connection.getresponse()
            told = json.loads(response.read())
        except (OSError, http.client.HTTPException):
            if key is None:
                log.note("unheard")
                return
            continue
        finally:
            connection.close()
        faults.point("http.after_answer")
        if response.status != 202:
            log.note("refused", error=f"status {response.status}", words=told["detail"])
            return
        if key is None:
            log.note("accepted", key=told["message_key"])
        key = told["message_key"]
        if (end := told["answer"]) is not None:
            log.note("told", status=end["status"], text=end["text"], key=key, repeated=end["repeated"])
            return
        time.sleep(0.01)
    log.note("refused", error="no answer", words=f"nothing within {FOR_AN_ANSWER} s")


def be_server(job: dict[str, Any]) -> int:
    """Serve with ``perdure serve`` until ended or killed."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    return program.run(["serve", APP, "--store", job["url"], "--port", str(job["port"]), "--no-token"])


# -- breaking it on purpose -------------------------------------------------------------------------------------------


def _sabotage(how: str | None) -> None:
    """Break what keeps a message from being said twice: whoever judges must see it."""
    said: Any = said_once.Said
    commands: Any = agent_commands
    post = said._post

    async def forgets(self: Any) -> None:
        """A key that nobody has heard of before, each time."""
        self.key = os.urandom(8).hex()
        await post(self)

    async def promises(self: Any) -> None:
        """Says that it is kept."""
        self.kept = True

    async def newest(self: Any, result: RunResult, s: Any, before: int) -> RunResult:
        """However the run ended, whoever asked."""
        return result._replace(message_key=self.key)

    match how:
        case "keys":
            said._post = forgets
        case "kept":
            said._post = promises
        case "answers":
            said.result = newest
            said.answer = _nothing
        case "command":
            commands.same_unanswered = lambda *_: None


async def _nothing(_: Any) -> None:
    """No answer is ever found."""


def _child(job: dict[str, Any], ready: int) -> int:
    log = Log(job["log"])
    try:
        warnings.simplefilter("ignore")
        signal.alarm(0 if job["door"] == "server" else PATIENCE)
        _sabotage(job.get("sabotage"))
        log.note("begins", pid=os.getpid(), key=job.get("key"))
        if job.get("hit"):
            die_at(job["hit"], log, job.get("point"))
        if job["door"] == "server":
            return be_server(job)
        if job["door"] == LIBRARY:
            asyncio.run(call_library(job, log))
        elif job["door"] == COMMAND:
            call_command(job, log)
        else:
            call_http(job, log)
        return 0
    except BaseException:
        log.note("problem", trace=traceback.format_exc())
        return BROKE


if __name__ == "__main__":
    serve(_child)
