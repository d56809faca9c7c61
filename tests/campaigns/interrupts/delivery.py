"""Starts a program, sends it SIGINT at random moments until it has had enough, and takes what it has seen."""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import random
import signal
import time
import traceback
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from perdure.session.journal import Journal, Pending
from tests.campaigns.interrupts.awaiting import Stage
from tests.campaigns.interrupts.blocking import Prompt
from tests.campaigns.interrupts.seen import ENOUGH, Seen, Stuck

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from perdure.system.flow import Flow

KINDS = ("handle", "threads", "crowd", "tasks")
STORES = ("memory", "sqlite", "file")
HANGS = 60
"""Seconds without a word after which a program hangs."""
PAUSES = (0.0005, 0.002, 0.01, 0.03)
"""Seconds between two interrupts, at the most; each is a random part of one of these."""
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    [
        "tests.campaigns.interrupts.delivery",
        "perdure.database",
        "perdure.aio",
        "perdure.stores.memory.store",
        "perdure.stores.file.store",
        "perdure.stores.sqlite.store",
    ]
)


class Outcome:
    """What became of one kind of program on one store."""

    def __init__(self, kind: str, store: str, seen: dict[str, Any]) -> None:
        self.kind = kind
        self.store = store
        self.sent = 0
        self.seen = seen

    @property
    def problems(self) -> list[str]:
        """Everything that is not as it must be."""
        return self.seen["problems"]

    def __add__(self, other: Outcome) -> Outcome:
        """Both together."""
        both = Outcome(self.kind, self.store, {name: value + other.seen[name] for name, value in self.seen.items()})
        both.sent = self.sent + other.sent
        return both

    def __str__(self) -> str:
        seen = self.seen
        refused = ", ".join(f"{kind} {count}" for kind, count in sorted(seen["refused"].items())) or "none"
        return (
            f"{self.store:7}{self.kind:8} sent {self.sent:6}   in a turn {seen['interrupts']:5}   "
            f"in our code {seen['inside']:5}   acknowledged {seen['acknowledged']:6}   calls {seen['calls']:5}   "
            f"lost {seen['lost']}   doubled {seen['doubled']}   hung {seen['hung']}   leases held {seen['held']}   "
            f"handles left behind {len(seen['left_behind'])}   "
            f"otherwise wrong {seen['wrong']}\n{'':15} refusals: {refused}"
        )


def run(kind: str, url: str, wanted: int, seed: int, sabotage: str, pipe: Connection) -> None:
    """The program, in a process of its own."""
    warnings.simplefilter("ignore")
    logging.disable()
    faulthandler.register(signal.SIGUSR1)
    SABOTAGE[sabotage]()
    # Whatever comes before the loop has begun is not meant.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if kind == "tasks":
        form: Any = Stage(url, wanted, seed, pipe)
    else:
        form = Prompt(url, wanted, seed, pipe, kind)
    try:
        form.run()
    except (Stuck, TimeoutError) as error:
        form.seen.problem("hung", f"{error}; interrupted last at {form.seen.places[-5:]}")
    except BaseException:
        form.seen.problem("wrong", traceback.format_exc())
    pipe.send(form.seen.as_dict())
    # What hangs in some thread shall not be waited for.
    os._exit(0)


def interrupt(kind: str, store: str, url: str, wanted: int, seed: int, sabotage: str = "") -> Outcome:
    """Send interrupts until the program has had so many in its turns."""
    rng = random.Random(f"{seed}/{kind}/{store}")
    here, there = _processes.Pipe()
    process = _processes.Process(target=run, args=(kind, url, wanted, rng.randrange(1 << 30), sabotage, there))
    process.start()
    there.close()
    outcome = Outcome(kind, store, Seen().as_dict())
    try:
        _deliver(process.pid or 0, here, rng, outcome)
    except TimeoutError as error:
        # It says on the standard error where its threads are.
        os.kill(process.pid or 0, signal.SIGUSR1)
        time.sleep(1)
        outcome.seen["hung"] += 1
        outcome.problems.append(f"hung: {error}")
    except EOFError:
        process.join()
        outcome.seen["wrong"] += 1
        outcome.problems.append(f"wrong: the program ended with {process.exitcode}")
    process.kill()
    process.join()
    return outcome


def _deliver(pid: int, pipe: Any, rng: random.Random, outcome: Outcome) -> None:
    heard = time.monotonic()
    up, sending = False, True
    while True:
        if pipe.poll(0 if up else HANGS):
            said = pipe.recv()
            heard = time.monotonic()
            up = True
            if isinstance(said, dict):
                outcome.seen = said
                return
            if said == ENOUGH:
                pipe.send(ENOUGH)
                sending = False
        elif time.monotonic() - heard > HANGS:
            raise TimeoutError(f"nothing was heard of the program for {HANGS} s")
        time.sleep(rng.random() * rng.choice(PAUSES))
        if not sending:
            continue
        with suppress(ProcessLookupError):  # it has just ended, and said so
            os.kill(pid, signal.SIGINT)
        outcome.sent += 1


# -- sabotage, to show that it would be noticed ---------------------------------------------------------------------


def _hasty() -> None:
    """Edits are set apart before the commit that has them is sealed, not by one step after it."""
    journal: Any = Journal

    def set_apart(
        self: Any, kind: str, x: Any, extra: Any, status: str | None, asked: tuple[Any, ...], *, empty: bool
    ) -> Pending | None:
        document = self.document
        with document.lock:
            ops = document.collect()
            if self.point is not None and not ops and not empty:
                return None
            document.age += 1
            item, point, blobs = self.seal(kind, ops, {**(x or {})}, {**(extra or {})}, status)
            self.pending = Pending(item, point, blobs, asked, None, document.age, None)
            return self.pending

    journal._set_apart = set_apart


def _open_gate() -> None:
    """A commit that is interrupted does not leave the gate."""
    journal: Any = Journal

    def within(self: Any, flow: Flow[Any]) -> Flow[Any]:
        self.gate.acquire()
        result = yield from flow
        self.gate.release()
        return result

    journal.within = within


def _forgetful() -> None:
    """What was on its way to the store when an interrupt came is forgotten."""
    journal: Any = Journal
    honest = Journal.send

    def send(self: Journal, pending: Pending) -> Flow[None]:
        try:
            yield from honest(self, pending)
        except KeyboardInterrupt:
            self.pending = None
            raise

    journal.send = send


SABOTAGE: dict[str, Callable[[], None]] = {
    "": lambda: None,
    "hasty": _hasty,
    "open gate": _open_gate,
    "forgetful": _forgetful,
}
