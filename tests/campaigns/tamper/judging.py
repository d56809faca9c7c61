"""What a reader gets from a store that was tampered with, and whether that is an outcome we accept.

``original``: every recorded state, exactly. ``corrupted``: an error that says so, and no other state beside it.
``lost``: something older or nothing where something was, and comparing with the witness says so. ``other``: all else.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from perdure.errors import InvalidInput, LeaseError, NotFound, PerdureError, StoreError
from perdure.record.codec import MAX_ROW
from perdure.stores.file.store import TornTail
from perdure.testing.clock import FakeClock
from perdure.upkeep.verify import verify
from perdure.upkeep.witness import read_witness
from tests.campaigns.tamper.building import Original, inbox, open_store, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from perdure.database import Database

T = TypeVar("T")
ORIGINAL, CORRUPTED, LOST, OTHER = "original", "corrupted", "lost", "other"
PATIENCE = 30
"""Seconds after which a reader counts as hanging."""
MEMORY = 4 * MAX_ROW
"""Bytes that reading may take at most: a few times what one checkpoint may inflate to, by an explicit limit."""


class Verdict(NamedTuple):
    """An outcome and what led to it."""

    outcome: str
    why: str = ""


class Hangs(BaseException):
    """No answer in time; no handler for ordinary errors takes it for one."""


@contextmanager
def limits() -> Iterator[None]:
    """Neither hang nor eat all memory: both count as an outcome that must not be."""

    def stop(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_used() + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _used() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


class _Reader:
    """Reads everything that was recorded and keeps what was not as recorded."""

    def __init__(self, original: Original, db: Database) -> None:
        self._original = original
        self._db = db
        self.refused: list[str] = []
        self.missing: list[str] = []
        self.older: list[str] = []
        self.wrong: list[str] = []

    def states(self) -> None:
        for place, recorded in self._original.states.items():
            found = self._try(f"{place}", lambda place=place: read(self._db, place))
            if found is not None and found != recorded:
                known = found in self._original.ever[place[0]]
                (self.older if known else self.wrong).append(f"{place}: {found[:200]}")

    def inboxes(self) -> None:
        for session, recorded in self._original.inboxes.items():
            found = self._try(f"inbox of {session}", lambda session=session: inbox(self._db, session))
            if found is None or found == recorded:
                continue
            what = f"inbox of {session}: {[e[:20] for e in found]} for {[e[:20] for e in recorded]}"
            known = set(found) <= self._original.posted[session] and len(set(found)) == len(found)
            (self.older if known else self.wrong).append(what)

    def _try(self, what: str, do: Callable[[], T]) -> T | None:
        try:
            return do()
        except (StoreError, LeaseError) as e:
            self.refused.append(f"{what}: {type(e).__name__}: {e}")
        except NotFound as e:
            self.missing.append(f"{what}: {type(e).__name__}: {e}")
        return None

    def verdict(self) -> Verdict:
        if self.wrong:
            return Verdict(OTHER, "another state: " + self.wrong[0])
        if self.missing or self.older:
            return self._against_witness()
        if self.refused:
            return Verdict(CORRUPTED, self.refused[0])
        return Verdict(ORIGINAL)

    def _against_witness(self) -> Verdict:
        """Nobody who only reads can see this; whoever compares with the witness must."""
        what = (self.missing + self.older)[0]
        try:
            report = verify(self._db.kernel, None, read_witness(self._db.kernel, self._original.witness))
        except StoreError as e:
            return Verdict(CORRUPTED, f"{what}; verify: {e}")
        if report.lost:
            return Verdict(LOST, f"{what}; {report.lost[0]}")
        if report.findings:
            return Verdict(CORRUPTED, f"{what}; {report.findings[0]}")
        return Verdict(OTHER, f"not reported: {what}")


def judge(original: Original, folder: Path, when_open: Callable[[], None] | None = None) -> Verdict:
    """Open the store in a folder with its key and read all that was recorded of it."""
    try:
        with limits():
            return _judge(original, folder, when_open)
    except Hangs:
        return Verdict(OTHER, "it hangs")
    except PerdureError as e:
        # A store that cannot be opened gives no state at all, and says why.
        if isinstance(e, StoreError | InvalidInput):
            return Verdict(CORRUPTED, f"open: {type(e).__name__}: {e}")
        return Verdict(OTHER, f"open: {type(e).__name__}: {e}")
    except MemoryError:
        gc.collect()
        return Verdict(OTHER, "it takes too much memory")
    except Exception as e:
        return Verdict(OTHER, f"{type(e).__name__}: {e}")


def _judge(original: Original, folder: Path, when_open: Callable[[], None] | None) -> Verdict:
    with open_store(original.kind, original.codec, folder, FakeClock(original.now)) as db:
        if when_open is not None:
            db.kernel.store.sessions()
            when_open()
        reader = _Reader(original, db)
        reader.states()
        with warnings.catch_warnings():
            # Whoever is about to write cuts a torn tail off, and says so.
            warnings.simplefilter("ignore", TornTail)
            reader.inboxes()
        return reader.verdict()
