"""Power lost at every sync of a workload: what survives is opened again and compared with what was promised.

A workload runs once, with a trace of all that reaches the disk. Then, for each sync in it, the disk is put
together as a loss of power just before that sync could have left it (everything acknowledged by then included),
and the store is opened on that. The next workload goes on from one of the losses.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import warnings
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from perdure.blobs.local import LocalBlobs
from perdure.stores import rules
from perdure.system import lease_holders
from perdure.testing.clock import FakeClock
from tests.campaigns.crash import plans
from tests.campaigns.crash.journal import Journal
from tests.campaigns.crash.lossy import TracedDisk, TracedVFS
from tests.campaigns.crash.oracle import Oracle, Problem
from tests.campaigns.crash.platter import MODES, Platter, Trace, write_tree
from tests.campaigns.crash.worker import Worker, small_thresholds
from tests.servers.place import memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LEASE = 60
"""Seconds: longer than any workload takes, so that no heartbeat comes between."""
WORKLOAD = (
    "commit", "call:ask", "call:retry", "call:approved", "fork", "post", "gather", "compact", "commit", "run", "post",
    "answer", "migrate", "tag", "sweep", "revive", "rewind", "merge", "compact", "call:reconcile", "call:cached",
    "prune", "collect", "recall", "commit",
)  # fmt: skip
BRIEF = ("commit", "call:ask", "sweep", "compact", "commit", "prune", "gather", "post")
"""A workload that has something of everything that is synced; its fifth plan makes a blob."""


class TracedJournal(Journal):
    """An account that is kept in the order of the disk's own."""

    def __init__(self, trace: Trace, events: list[dict[str, Any]]) -> None:
        super().__init__(events)
        self._trace = trace

    def keep(self, event: dict[str, Any]) -> None:
        self._trace.note(event)


class Losses:
    """What a campaign has seen on one kind of store."""

    def __init__(self, store: str, seed: int) -> None:
        self.store = store
        self.seed = seed
        self.cuts = 0
        self.syncs = 0
        self.acknowledged = 0
        """Commits and messages, each counted at every loss it had to survive."""
        self.torn = 0
        self.modes: Counter[str] = Counter()
        self.problems: list[Problem] = []

    @property
    def ok(self) -> bool:
        """Whether nothing was lost."""
        return not self.problems

    @property
    def lost(self) -> int:
        """Acknowledged, and not there afterwards."""
        return sum(p.kind == "lost" for p in self.problems)

    def __str__(self) -> str:
        text = (
            f"{self.store:7} power losses {self.cuts:6}   sync points {self.syncs:5}   "
            f"acknowledged {self.acknowledged:8}   lost {self.lost}   "
            f"other problems {len(self.problems) - self.lost}   torn tails {self.torn}"
        )
        return "\n".join([text, *(f"  {p.kind}: {p.what}" for p in self.problems[:10])])

    def as_dict(self) -> dict[str, Any]:
        """For reports."""
        return {
            "store": self.store, "losses": self.cuts, "syncs": self.syncs, "acknowledged": self.acknowledged,
            "lost": self.lost, "problems": [p._asdict() for p in self.problems[:100]], "torn": self.torn,
            "modes": dict(self.modes),
        }  # fmt: skip


@contextmanager
def boot(name: str) -> Iterator[None]:
    """Another boot of the machine: no lease of an earlier one counts as that of a living process."""
    modules: tuple[Any, ...] = (rules, lease_holders)
    before = [module.boot_id for module in modules]
    for module in modules:
        module.boot_id = lambda: name
    try:
        yield
    finally:
        for module, old in zip(modules, before, strict=True):
            module.boot_id = old


class Machine:
    """A disk, and a clock that goes on through losses of power."""

    def __init__(self, store: str, seed: int) -> None:
        self.store = store
        self.folder = tempfile.mkdtemp(prefix="perdure-power-", dir=memory())
        self.root = f"{self.folder}/disk"
        os.mkdir(self.root)
        self.clock = FakeClock()
        self.rng = random.Random(f"{seed}/{store}")
        self.events: list[dict[str, Any]] = []
        self._boots = 0

    def close(self) -> None:
        """Throw the disk away."""
        shutil.rmtree(self.folder)

    def worker(self, root: str, journal: Journal, **options: Any) -> Worker:
        """A program on the store that lies below a folder."""
        url = f"sqlite:///{root}/a.db" if self.store == "sqlite" else f"file://{root}/store"
        return Worker(url, journal, self.rng, clock=self.clock, lease_ttl=LEASE, **options)

    def record(
        self, workload: tuple[str, ...], deaf: Callable[[str, str], bool] | None = None, **options: Any
    ) -> Trace:
        """Run a workload with a trace of what reaches the disk, and what is acknowledged in between."""
        self._boots += 1
        trace = Trace(self.root, deaf)
        journal = TracedJournal(trace, self.events)
        disk = TracedDisk(trace)

        def blobs() -> LocalBlobs:
            return LocalBlobs(f"{self.root}/blobs", clock=self.clock, disk=disk)

        name = f"traced-{id(trace)}"
        vfs = TracedVFS(name, trace)
        options.update({"vfs": name} if self.store == "sqlite" else {"disk": disk})
        try:
            with boot(f"boot-{self._boots}"), small_thresholds():
                w = self.worker(self.root, journal, blobs=blobs, **options)
                self.wait_out(w)
                plans.take_up(w)
                for op in workload:
                    plans.perform(w, op)
                w.close()
        finally:
            vfs.unregister()
        return trace

    def wait_out(self, w: Worker) -> None:
        """Nobody knows whether the holders of another boot live on: watch their leases until they end."""
        held: list[str] = []
        for session in sorted({t.session for t in w.history.tries.values()} | w.history.touched):
            row = w.store.look(session)
            if row is not None and row.lease.holder:
                held.append(session)
        self.clock.advance(1000 * LEASE + 1)
        for session in held:
            w.store.release(w.store.acquire(session, lease_holders.new_holder(), 1000))

    def lose_power(self, trace: Trace, losses: Losses, variants: int, *, finish: int = 3) -> None:
        """Check every loss of power that the trace allows for; every ``finish``-th time work goes on after it.

        One of them becomes the disk and the account that the next workload begins with. Ends early when something
        was lost.
        """
        platter = Platter(trace)
        events = list(self.events)
        syncs = [i for i, op in enumerate(trace.ops) if op.what.startswith("sync")]
        chosen = self.rng.choice(syncs or [0])
        kept: tuple[dict[str, bytes | None], list[dict[str, Any]]] | None = None
        for i, op in enumerate(trace.ops):
            if losses.lost:
                return
            if op.what.startswith("sync"):
                losses.syncs += 1
                for mode in self._modes(variants):
                    found = platter.survivors(self.rng, mode)
                    goes_on = losses.cuts % finish == 0
                    self._check(found, events, losses, mode, goes_on=goes_on)
                    if i == chosen:
                        kept = (found, list(events))
            elif op.what == "note":
                events.append(op.event)
            platter.do(op)
        self._check(platter.survivors(self.rng, "drop"), events, losses, "drop", goes_on=False)
        if kept is not None:
            old, self.root = self.root, tempfile.mkdtemp(dir=self.folder)
            write_tree(kept[0], old, self.root)
            self.events = kept[1]
            shutil.rmtree(old)

    def _modes(self, variants: int) -> list[str]:
        if variants >= len(MODES):
            return [*MODES, *(self.rng.choice(MODES) for _ in range(variants - len(MODES)))]
        if variants == 1:
            return [self.rng.choice(MODES)]
        return ["drop", *self.rng.sample(MODES[1:], variants - 1)]

    def _check(
        self, found: dict[str, bytes | None], events: list[dict[str, Any]], losses: Losses, mode: str, *, goes_on: bool
    ) -> None:
        root = tempfile.mkdtemp(dir=self.folder)
        write_tree(found, self.root, root)
        journal = Journal(events)
        history = journal.history
        losses.cuts += 1
        losses.modes[mode] += 1
        losses.acknowledged += len(history.acked) + sum(history.posted.values())
        try:
            with boot("after"), small_thresholds(), warnings.catch_warnings(record=True) as torn:
                warnings.simplefilter("always")
                w = self.worker(root, journal, blobs=lambda: LocalBlobs(f"{root}/blobs", clock=self.clock))
                oracle = Oracle(w.db, history)
                problems = [*oracle.check()]
                if goes_on and not problems:
                    self.wait_out(w)
                    plans.take_up(w)
                    plans.perform(w, "commit")
                    problems += [*oracle.check()]
                w.close()
            losses.torn += sum("interrupted" in str(w.message) for w in torn)
        except Exception as error:
            # Whatever it is: somebody who comes back after a power loss cannot go on.
            said = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            problems = [Problem("lost", f"the store cannot be used: {type(said).__name__}: {said}")]
        problems += [Problem(p["kind"], p["what"]) for p in history.problems]
        losses.problems += [Problem(p.kind, f"[{mode}, loss {losses.cuts}] {p.what}") for p in problems]
        shutil.rmtree(root)


def campaign(
    store: str, seed: int, rounds: int, variants: int, say: Callable[[str], None] = lambda text: None
) -> Losses:
    """Workload after workload, each on what a loss of power has left of the one before."""
    losses = Losses(store, seed)
    machine = Machine(store, seed)
    try:
        for number in range(rounds):
            order = tuple(machine.rng.sample(WORKLOAD, len(WORKLOAD)))
            machine.lose_power(machine.record(order), losses, variants)
            say(f"{store}: round {number + 1}, {losses.cuts} losses of power, {len(losses.problems)} problems")
            if not losses.ok:
                break
    finally:
        machine.close()
    return losses


def without(store: str, seed: int, deaf: Callable[[str, str], bool] | None = None, **options: Any) -> Losses:
    """A brief workload with a sync taken out: the losses that are then found."""
    losses = Losses(store, seed)
    machine = Machine(store, seed)
    try:
        machine.lose_power(machine.record(BRIEF, deaf, **options), losses, 2)
    finally:
        machine.close()
    return losses
