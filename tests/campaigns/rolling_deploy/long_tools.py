"""A tool that computes for 90 s under a lease of 1 s, and a timer whose worker is killed.

Exits 1 when somebody took over or the timer did not fire exactly once. The tool blocks its whole worker, once in Python
and once in one call of C that lets no other thread run, while another worker stands by. This
module is the program of those workers, too.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import perdure
from perdure import Agent, tool, wake_me
from perdure.agent.models import Request, text_of
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.fleet.board import submit
from perdure.session.tools.context import Context
from tests.fleet.app import note
from tests.fleet.harness import Fleet, answered, board, fleet, is_idle, until, working

if TYPE_CHECKING:
    from collections.abc import Callable

LEASE = 1.0
MARGIN = 1.15
"""Processors do not always run at the speed they were measured at."""
DELAY = 3


@tool(if_unsure="retry")
def in_python(seconds: float, ctx: Context) -> str:
    """Compute in Python, in the thread of a plain tool."""
    began = time.monotonic()
    note("enter", "python", ctx.effect_id)
    while time.monotonic() - began < seconds:
        sum(n * n for n in range(1000))
    note("leave", "python", round(time.monotonic() - began, 1))
    return "computed"


@tool(if_unsure="retry")
def in_c(seconds: float, ctx: Context) -> str:
    """Compute in one call of C that never lets another thread run, for so much processor time."""
    note("enter", "c", ctx.effect_id)
    sample = 10_000_000
    used = time.thread_time()
    sum(range(sample))
    rate = sample / (time.thread_time() - used)
    began = time.monotonic()
    sum(range(int(rate * seconds * MARGIN)))
    note("leave", "c", round(time.monotonic() - began, 1))
    return "computed"


async def _script(request: Request) -> object:
    await asyncio.sleep(0.05)
    last = request.messages[-1]
    verb, _, word = text_of(last).partition(" ")
    if last["role"] == "tool":
        return "done"
    if verb == "remind":
        return calls(("wake_me", {"message": "it is time", "delay": f"{word}s"}))
    if verb in ("in_python", "in_c"):
        return calls((verb, {"seconds": float(word)}))
    return f"heard: {verb} {word}"


heavy = Agent("heavy", model=ScriptedModel(_script), tools=[in_python, in_c, wake_me])


class Held(NamedTuple):
    """How a long call went."""

    variant: str
    seconds: float
    """How long the tool took."""
    entries: int
    """How often it was entered."""
    tokens: int
    """Leases that the session had while the tool ran."""
    looks: int
    """How often the lease was looked at."""
    answers: int

    @property
    def ok(self) -> bool:
        """Whether nobody took over."""
        return (self.entries, self.tokens, self.answers) == (1, 1, 1)


class Woken(NamedTuple):
    """How often a timer fired whose worker was killed before."""

    fired: int
    answers: int

    @property
    def ok(self) -> bool:
        """Whether it fired once."""
        return (self.fired, self.answers) == (1, 1)


def hold(db: perdure.Database, workers: Fleet, variant: str, seconds: float) -> Held:
    """Have one worker compute while another one stands by."""
    name = f"long-{variant}"
    submit(db, name, f"in_{variant} {seconds:g}", agent="heavy", key="1")

    def lines(first: str) -> list[list[str]]:
        return [words for words in workers.lines(first) if words[1] == variant]

    until(lambda: lines("enter"), workers)
    tokens: set[tuple[int, str]] = set()
    looks = 0

    def left() -> bool:
        nonlocal looks
        lease = db.look(name).lease
        if not lines("leave"):
            looks += 1
            tokens.add((lease.token, lease.holder))
        time.sleep(0.1)
        return bool(lines("leave"))

    until(left, workers, seconds * 10 + 120)
    until(lambda: is_idle(db, [name]), workers)
    took = float(lines("leave")[0][2])
    return Held(variant, took, len(lines("enter")), len(tokens), looks, len(answered(db, name)))


def wake(db: perdure.Database, workers: Fleet) -> Woken:
    """Have a session set a timer, kill every worker that is there, and count how often it fires."""
    submit(db, "timer", f"remind {DELAY}", agent="heavy", key="1")
    until(lambda: db.look("timer").status == "sleeping" and not working(board(db)), workers)
    for worker in list(workers.workers):
        workers.kill(worker)
    workers.workers.clear()
    workers.start(2)
    until(lambda: "heard: it is time" in answered(db, "timer") and is_idle(db, ["timer"]), workers)
    # A second one would come within as long again.
    end = time.monotonic() + DELAY
    until(lambda: time.monotonic() > end, workers)
    messages = db.read("timer").plain()["messages"]
    fired = sum(m["role"] == "user" and m["content"] == "it is time" for m in messages)
    return Woken(fired, answered(db, "timer").count("heard: it is time"))


def campaign(seconds: float, say: Callable[[str], None]) -> tuple[list[str], bool]:
    """All of it on SQLite, with two workers; what to print, and whether all was well."""
    lines, fine = list[str](), True
    with tempfile.TemporaryDirectory(prefix="perdure-holding-") as scratch:
        url = f"sqlite:///{scratch}/holding.db"
        with (
            perdure.open(url) as db,
            fleet(url, Path(scratch), app="tests.campaigns.rolling_deploy.long_tools", lease=LEASE) as workers,
        ):
            workers.start(2)
            until(lambda: len(board(db).workers()) == 2, workers)
            for variant in ("python", "c"):
                held = hold(db, workers, variant, seconds)
                lines.append(
                    f"a tool that computes in {variant} for {held.seconds:.0f} s, lease {LEASE:g} s, 2 workers: "
                    f"entered {held.entries} time, leases {held.tokens} in {held.looks} looks, answers {held.answers}"
                )
                say(lines[-1])
                fine = fine and held.ok and held.seconds >= seconds
            woken = wake(db, workers)
            lines.append(
                f"a timer set before all workers were killed: fired {woken.fired} time, answers {woken.answers}"
            )
            fine = fine and woken.ok
    return lines, fine


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.rolling_deploy.long_tools", description=__doc__)
    parser.add_argument("--seconds", type=float, default=90.0, help="how long the tool computes")
    args = parser.parse_args()
    lines, fine = campaign(args.seconds, lambda text: print(text, file=sys.stderr, flush=True))
    print("\n".join([*lines, "ok" if fine else "FAILED"]))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
