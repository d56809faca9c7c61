"""A rolling deploy under load. Exits 1 unless every session came through it.

Workers of version 1 are replaced one by one by version 2, which renames a tool, adds one, removes one and changes one,
while sessions are at work and people have not decided yet about calls of all of them.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import perdure
from perdure.cli.session_at import open_matters, open_place
from perdure.errors import ApprovalError
from perdure.fleet.board import submit
from perdure.protocols import Filter
from tests.fleet.harness import Fleet, answered, board, fleet, is_idle, until
from tests.servers import shared
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Callable

STORES = ("sqlite", "postgres")
WORKERS = 3
KINDS = ("refund", "send", "book")
"""What is asked for while approvals are open: by a tool that is renamed, one that goes, one that changes."""
EACH = 3
"""Approvals of each kind: decided during the deploy, agreed to after it, refused after it."""


class Outcome(NamedTuple):
    """What came of it."""

    sessions: int
    finished: int
    failed: list[str]
    incompatible: list[str]
    """Calls that were made by a version they were not meant for, or not exactly once."""
    open: int
    """Approvals that were open when the deploy began."""
    fates: dict[str, int]
    """What became of those approvals."""
    kept: list[str]
    """Sessions that stood untouched in the queue while no worker of their version was there."""

    @property
    def ok(self) -> bool:
        """Whether nothing failed, and nothing was done by the wrong version."""
        return self.finished == self.sessions and not self.failed and not self.incompatible and len(self.kept) == 2


class Deploy:
    """Two fleets on one store, and the person who decides."""

    def __init__(self, db: perdure.Database, old: Fleet, new: Fleet) -> None:
        self._db = db
        self._old = old
        self._new = new
        self._numbers = itertools.count()
        self.asking = [f"{kind}{i}" for i in range(EACH) for kind in KINDS]
        self.working: list[str] = []
        self.orders: list[str] = []
        """What is to be charged, once each."""
        self.fates: dict[str, int] = {}
        self.kept: list[str] = []

    # -- load -----------------------------------------------------------------------------------------------------

    def load(self, number: int) -> None:
        """More sessions that charge, and more messages in those that are there."""
        for i in range(number):
            name = f"w{next(self._numbers):03}"
            submit(self._db, name, f"charge {name}-a {name}-b", agent="desk", key="1")
            self.working.append(name)
            earlier = self.working[i // 2]
            self._db.post(earlier, f"charge {earlier}-{name}", key=name)
            self.orders += [f"{name}-a", f"{name}-b", f"{earlier}-{name}"]

    def ask(self) -> None:
        """Have requests made that stay open."""
        for name in self.asking:
            words = f"{name[:-1]} {name}" + (" 5" if name.startswith("refund") else "")
            submit(self._db, name, words, agent="desk", key="1")
        until(lambda: all(self._requests(name) for name in self.asking), self._old)

    def _requests(self, name: str) -> list[str]:
        return [r["id"] for r in open_matters(self._db, open_place(self._db, f"{name}@")).approvals]

    def decide(self, name: str, agree: bool = True) -> None:
        """Agree to, or refuse, whatever a session asks now."""
        for request in self._requests(name):
            decide = self._db.approve if agree else self._db.reject
            try:
                decide(name, request, by="bob")
            except ApprovalError:
                # It was migrated in this very moment, and is asked for again.
                continue

    # -- the deploy -----------------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Replace the workers one by one; in the middle of it a person decides about one request of each kind."""
        board_ = board(self._db)
        for i, worker in enumerate(list(self._old.workers)):
            (fresh,) = self._new.start()
            until(lambda pid=fresh.pid: any(w.pid == pid for w in board_.workers()), self._new)
            self.load(4)
            if i == 1:
                early = [name for name in self.asking if name.endswith("0")]
                self.settle(early, "while both versions were there")
            worker.send_signal(signal.SIGTERM)
            worker.wait(60)
            assert worker.returncode == 0, (worker.returncode, self._old.said())
        assert not any(w.version == "one" for w in board_.workers())

    def settle(self, names: list[str], when: str) -> None:
        """Agree to requests, again where they are asked for again, until their sessions are done."""

        def done() -> bool:
            for name in names:
                self.decide(name)
            return is_idle(self._db, names)

        until(done, self._new)
        for name in names:
            self._note(f"{name[:-1]}: agreed to {when}: {answered(self._db, name)[-1].split(maxsplit=1)[1]}", name)

    def refuse(self) -> None:
        """What is turned down needs no tool: the model is told, by whatever version."""
        names = [name for name in self.asking if name.endswith("2")]
        for name in names:
            self.decide(name, agree=False)
        until(lambda: is_idle(self._db, names), self._new)
        for name in names:
            told = [m["content"] for m in self._db.read(name).plain()["messages"] if m["role"] == "tool"]
            self._note(f"{name[:-1]}: refused after it: the model was told {told[-1]}", name)

    def keep(self) -> None:
        """What version 2 has no tool for waits for version 1, and nothing in it is touched."""
        waiting = [name for name in self.asking if name[:-1] != "refund" and name.endswith("1")]
        steps = {name: self._db.look(name).heads[0].step for name in waiting}
        for name in waiting:
            self.decide(name)
        until(lambda: self._queued() >= set(waiting), self._new)
        # Workers of version 2 go on with everything else meanwhile, and leave these alone.
        self.load(4)
        until(lambda: is_idle(self._db, self.working), self._new)
        for name in waiting:
            row = self._db.look(name)
            if row.status == "waiting_approval" and row.heads[0].step == steps[name] and name in self._queued():
                self.kept.append(name)
        self._old.start(1, "--version", "one")
        until(lambda: is_idle(self._db, waiting), self._old)
        for name in waiting:
            last = answered(self._db, name)[-1].split(maxsplit=1)[1]
            self._note(f"{name[:-1]}: agreed to after it: kept until a worker of version 1 was there: {last}", name)

    def _queued(self) -> set[str]:
        return {w.session for w in board(self._db).works(Filter(state="queued"), limit=10_000)}

    def _note(self, fate: str, name: str) -> None:
        said = fate.replace(name, "an order")
        self.fates[said] = self.fates.get(said, 0) + 1


def run(url: str, folder: Path, say: Callable[[str], None]) -> Outcome:
    """Deploy version 2 while version 1 is at work."""
    options = {"FLEET_PAUSE": "0.1"}
    with (
        perdure.open(url) as db,
        fleet(url, folder, app="tests.campaigns.rolling_deploy.app_v1", **options) as old,
        fleet(url, folder, app="tests.campaigns.rolling_deploy.app_v2", **options) as new,
    ):
        for _ in range(WORKERS):
            old.start(1, "--version", "one")
        # One that is still starting does not hear a signal.
        until(lambda: len(board(db).workers()) == WORKERS, old)
        deploy = Deploy(db, old, new)
        deploy.load(6)
        deploy.ask()
        say(f"{len(deploy.asking)} approvals are open")
        deploy.roll()
        say("all workers are of version 2")
        deploy.settle(["refund1"], "after it")
        deploy.refuse()
        deploy.keep()
        every = deploy.working + deploy.asking
        until(lambda: is_idle(db, every), new)
        return _judge(db, old, deploy, every)


def _judge(db: perdure.Database, fleet: Fleet, deploy: Deploy, every: list[str]) -> Outcome:
    parked = {w.session: w.parked for w in board(db).works(Filter(state="parked"))}
    failed = [f"{name}: {parked.get(name, 'failed')}" for name in every if name in parked or _has_failed(db, name)]
    finished = sum(bool(answered(db, name)) for name in every)
    charges = fleet.charges()
    wrong = [f"charge {order}: {n} times" for order, n in charges.items() if n != 1]
    wrong += [f"charge {order}: never" for order in deploy.orders if not charges[order]]
    calls = [words for words in fleet.lines() if words[0] in ("v1", "v2")]
    for name in deploy.asking:
        made = {tuple(words[:-2]) for words in calls if words[2] == name}
        # What was refused is not done at all.
        if not made <= _right(name) or len(made) != (not name.endswith("2")):
            wrong.append(f"{name}: {sorted(made)}")
    return Outcome(len(every), finished, failed, wrong, len(deploy.asking), deploy.fates, deploy.kept)


def _right(name: str) -> set[tuple[str, ...]]:
    """The calls that are in order for a session: its tool of version 1, or what that is called in version 2."""
    match name[:-1]:
        case "refund":
            later = ("v2", "give_back", name, "500")
            return {later, ("v1", "refund", name, "5.0")} if name.endswith("0") else {later}
        case "send":
            return {("v1", "fax", name)}
        case _:
            return {("v1", "book", name)}


def _has_failed(db: perdure.Database, name: str) -> bool:
    return any(point.status == "failed" for point in db.history(name))


def lines_of(kind: str, found: Outcome) -> list[str]:
    """The outcome for people."""
    return [
        f"rolling deploy on {kind}: sessions {found.sessions}, finished {found.finished}, failed {len(found.failed)}, "
        f"ran on an incompatible version {len(found.incompatible)}",
        f"  approvals open during the deploy {found.open}:",
        *(f"    {n} x {fate}" for fate, n in sorted(found.fates.items())),
        f"  untouched in the queue while no worker of version 1 was there: {len(found.kept)}",
        *(f"  ! {text}" for text in [*found.failed, *found.incompatible][:10]),
    ]


def campaign(say: Callable[[str], None], stores: tuple[str, ...] = STORES) -> tuple[list[str], bool]:
    """Deploy on every store; what to print, and whether all was well."""
    lines, fine = list[str](), True
    for kind in stores:
        with tempfile.TemporaryDirectory(prefix="perdure-deploy-") as scratch:
            found = run(url_of(kind, Path(scratch), "deploy"), Path(scratch), say)
        lines += lines_of(kind, found)
        fine = fine and found.ok
    return lines, fine


def main() -> int:
    """Deploy on every store."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.rolling_deploy.deploy", description=__doc__)
    parser.add_argument("--store", choices=STORES, action="append", help="only this kind of store")
    args = parser.parse_args()
    shared.begin()
    try:
        lines, fine = campaign(lambda text: print(text, file=sys.stderr, flush=True), tuple(args.store or STORES))
    finally:
        shared.end()
    print("\n".join([*lines, "ok" if fine else "FAILED"]))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
