"""Deduplicating writers and a collector at the same few contents in one bucket, each a process of its own.

Values come, go with their session, and come back, while the collector runs all the time. Every commit that returned
must read back at once. Time passes only between commits: no commit takes longer than the grace period, which is all
that is asked of one. ``python -m tests.blobs.race ROUNDS [naive]`` runs it for as long as you like.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import perdure
from perdure.blobs.object_storage import ObjectBlobs
from perdure.stores import open_store
from perdure.upkeep.blob_gc import collect
from tests.blobs.test_orders import Naive

HOUR = 3_600_000
WRITERS = 3
CONTENTS = 3


class SharedClock:
    """A clock that all processes see, and that moves only when the collector says so."""

    def __init__(self, now: Any) -> None:
        self._now = now

    def wall(self) -> int:
        """Milliseconds."""
        return self._now.value

    def monotonic(self) -> int:
        """The same."""
        return self._now.value

    def sleep(self, ms: int) -> None:
        """Nothing here waits."""

    async def sleep_async(self, ms: int) -> None:
        """Nothing here waits."""


class Shared(NamedTuple):
    """What the processes have in common."""

    url: str
    bucket: str
    config: dict[str, str]
    naive: bool
    now: Any
    committing: list[Any]
    read_back: Any
    deleted: Any
    stop: Any
    said: Any

    def open(self) -> perdure.Database:
        """The database, with a handle of this process on the bucket."""
        clock = SharedClock(self.now)
        store = open_store(self.url, clock=clock)
        blobs = (Naive if self.naive else ObjectBlobs)(self.bucket, store.id, clock=clock, config=self.config)
        store.close()
        return perdure.open(self.url, clock=clock, blobs=blobs, synchronous="normal", maintain=False)


class Outcome(NamedTuple):
    """What a race came to."""

    commits: int
    """Acknowledged, and read back."""
    deleted: int
    problems: list[str]


def value(n: int) -> str:
    """A text that is large enough to be a blob."""
    return f"value {n} " * 6000


def collector(shared: Shared) -> None:
    """Let an hour pass whenever nobody is in the middle of a commit, and collect."""
    try:
        with shared.open() as db:
            while not shared.stop.is_set():
                with contextlib.ExitStack() as stack:
                    for lock in shared.committing:
                        stack.enter_context(lock)
                    shared.now.value += HOUR + 1
                done = collect(db.kernel)
                with shared.deleted.get_lock():
                    shared.deleted.value += done.deleted
    except BaseException as e:
        shared.said.put(f"collector: {e!r}")


def writer(shared: Shared, me: int, rounds: int, seed: int) -> None:
    """Commit a value, read it back, and forget it."""
    rng = random.Random(f"{seed} {me}")
    try:
        with shared.open() as db:
            for n in range(rounds):
                id, wanted = f"w{me}-{n}", value(rng.randrange(CONTENTS))
                with db.session(id, ttl=None, lease=False) as s, shared.committing[me]:
                    s.vars["a"] = wanted
                    s.commit()
                if rng.random() < 0.5:
                    # As another machine would, which does not remember where in the bucket it was.
                    db.kernel.blobs._places.pop(hashlib.sha256(wanted.encode()).hexdigest(), None)  # type: ignore[attr-defined]
                if db.read(id).vars["a"] != wanted:
                    shared.said.put(f"{id}: another value")
                with shared.read_back.get_lock():
                    shared.read_back.value += 1
                db.kernel.store.drop(id, None, "deleted")
    except BaseException as e:
        shared.said.put(f"writer {me}: {e!r}")


def race(folder: Path, bucket: str, config: dict[str, str], rounds: int, *, naive: bool = False, seed: int) -> Outcome:
    """Run all of them; ``rounds`` is how many commits each writer makes."""
    # Not forked: the driver's threads do not survive that.
    processes = multiprocessing.get_context("spawn")
    shared = Shared(
        f"sqlite:///{folder}/race.db", bucket, config, naive, processes.Value("q", 1_700_000_000_000),
        [processes.Lock() for _ in range(WRITERS)], processes.Value("q", 0), processes.Value("q", 0),
        processes.Event(), processes.Queue(),
    )  # fmt: skip
    with shared.open():
        pass
    writers = [processes.Process(target=writer, args=(shared, n, rounds, seed)) for n in range(WRITERS)]
    cleaner = processes.Process(target=collector, args=(shared,))
    for process in (cleaner, *writers):
        process.start()
    for process in writers:
        process.join()
    shared.stop.set()
    cleaner.join()
    problems: list[str] = []
    while not shared.said.empty():
        problems.append(shared.said.get())
    problems += [f"process ended with {p.exitcode}" for p in (cleaner, *writers) if p.exitcode]
    return Outcome(shared.read_back.value, shared.deleted.value, problems)


def main(rounds: int, naive: bool) -> int:
    """A race on a server of its own."""
    from tests.blobs.places import bucket_url
    from tests.servers.objects import objects_options, start_objects
    from tests.servers.process import stop

    server = start_objects()
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            done = race(
                Path(folder), bucket_url("race", server), objects_options(server), rounds, naive=naive, seed=os.getpid()
            )
    finally:
        stop(server)
    print(f"seed {os.getpid()}: {done.commits} commits, {done.deleted} blobs deleted, {time.monotonic() - began:.0f} s")
    for problem in done.problems:
        print(problem)
    return bool(done.problems)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), "naive" in sys.argv[2:]))
