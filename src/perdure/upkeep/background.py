"""Who looks after an open database: leases are renewed, lines that have grown are packed, a witness is told.

Two threads do it in the background, each started when it is first needed. They end with the database, and when nobody
has it any more: its leases are given back with the next beat then.
"""

from __future__ import annotations

import queue
import sys
import threading
import weakref
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from perdure.errors import NotFound, PerdureError
from perdure.history.hydrate import load
from perdure.model import Lease
from perdure.system.flow import Do, Flow
from perdure.system.lease_holders import new_holder
from perdure.upkeep.snapshots import PACK_MIN, PACK_ROWS, compact

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from perdure.kernel import Kernel
    from perdure.record.codec import Point
    from perdure.session.journal import Called, Journal
    from perdure.system.flow import Dropped

QUIET = 0.02
"""Seconds without a commit after which the database counts as quiet."""
PATIENCE = 2.0
"""Seconds after which a line is packed although it is not."""
BACKLOG = 8
"""As often may a line have asked to be packed before it no longer waits."""


def _warn(words: str, *about: object) -> None:
    # Imported when there is something to say: a process that starts is not kept waiting for it.
    import logging

    logging.getLogger("perdure").warning(words, *about)


def _started(work: Callable[[], None], name: str) -> threading.Thread:
    """A thread that runs: an interrupt before it is known is better than one that is known and does not run."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as e:
        # A second interrupt hit while Python dealt with the first one: what comes of that is an interrupt all the same.
        if isinstance(e.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from e
        raise
    return thread


class Heartbeat:
    """Renews every lease this database holds, three times per lease period, and gives back what nobody has any more."""

    def __init__(self, kernel: Kernel, ttl: int, dropped: Dropped) -> None:
        self._kernel = kernel
        self._ttl = ttl
        self._dropped = dropped
        self._lock = threading.Lock()
        self._leases: dict[int, Lease] = {}
        self._holders: dict[int, weakref.ref[Journal]] = {}
        """Who writes under a lease: an interrupt may take a handle from whoever opened it."""
        self._leaving: dict[int, Lease] = {}
        """What is being given back: an interrupt may come before the store is told."""
        self._asked: dict[str, Claim] = {}
        """What the store was asked for, by the name it was asked under: an interrupt may come before its answer."""
        self._stop = threading.Event()
        self._soon = threading.Event()
        """Set when the next beat is not to be waited for."""
        self._thread: threading.Thread | None = None
        self.lost: set[int] = set()
        """Tokens that turned out to be no longer ours."""
        self._tell: Callable[[str, Lease | None], None] | None = None

    def listen(self, tell: Callable[[str, Lease | None], None]) -> None:
        """Have somebody told of leases that come ("+") and go ("-"), and of every beat (".")."""
        self._tell = tell

    def add(self, lease: Lease) -> None:
        """Keep a lease alive from now on."""
        with self._lock:
            self._leases[lease.token] = lease
            self._asked.pop(lease.holder, None)
            if self._tell is not None:
                self._tell("+", lease)
            if self._thread is None:
                self._thread = _started(self._beat, "perdure-heartbeat")

    def ask(self, claim: Claim) -> None:
        """The store is about to be asked for a lease."""
        self._asked[claim.holder] = claim

    def settle(self, claims: list[Claim]) -> None:
        """Give back what the store may have granted to somebody who never heard of it: their name is on it then."""
        for claim in claims:
            if self._asked.get(claim.holder) is None:
                continue
            with suppress(PerdureError):  # then it lapses
                row = self._kernel.store.look(claim.session)
                if row is not None and row.lease.holder == claim.holder:
                    self._kernel.store.release(Lease(claim.session, claim.holder, row.lease.token, row.lease.until))
                self.refused(claim)

    def refused(self, claim: Claim) -> None:
        """The store did not grant a lease."""
        self._asked.pop(claim.holder, None)

    def held_by(self, lease: Lease, journal: Journal) -> None:
        """Keep a lease alive for as long as somebody has this journal."""
        self._holders[lease.token] = weakref.ref(journal)

    def remove(self, lease: Lease) -> None:
        """No longer keep a lease alive: it is about to be given back, or has ended."""
        with self._lock:
            # In this order: an interrupt in between leaves it to the next beat.
            self._leaving[lease.token] = lease
            self._leases.pop(lease.token, None)
            self._holders.pop(lease.token, None)
            self._asked.pop(lease.holder, None)
            if self._tell is not None:
                self._tell("-", lease)

    def release(self, lease: Lease) -> None:
        """Give a lease back."""
        self.remove(lease)
        self._kernel.store.release(lease)
        self._leaving.pop(lease.token, None)

    def hurry(self) -> None:
        """Have the next beat now: somebody was interrupted who was giving a lease back."""
        self._soon.set()

    def _beat(self) -> None:
        while True:
            self._soon.wait(self._ttl / 3000)
            self._soon.clear()
            if self._stop.is_set():
                return
            if self._dropped:
                self._give_all_back()
                self._dropped.warn()
                return
            try:
                if self._tell is not None:
                    self._tell(".", None)
                self.renew()
            except Exception as e:  # whatever it is: without this thread every lease would lapse
                _warn("leases could not be renewed: %s: %s", type(e).__name__, e)

    def renew(self) -> None:
        """Renew all leases now, and give back those that nobody has any more."""
        with self._lock:
            leases = self._leases.copy()
            ownerless = [leases[t] for t, holder in self._holders.items() if holder() is None and t in leases]
            leaving = [*self._leaving.values(), *ownerless]
        self.settle([claim for claim in [*self._asked.values()] if not claim.wanted])
        for lease in leaving:
            leases.pop(lease.token, None)
            with suppress(PerdureError):  # then it lapses
                self.release(lease)
        if not leases:
            return
        try:
            kept = self._kernel.store.renew([*leases.values()], self._ttl)
        except PerdureError as e:
            # Commits fail with the same error where somebody waits for them; the next beat tries again.
            _warn("leases could not be renewed: %s", e)
            return
        for lease, ok in zip(leases.values(), kept, strict=True):
            with self._lock:
                # One that was given back meanwhile is not lost.
                gone = not ok and self._leases.pop(lease.token, None) is not None
            if gone:
                self.lost.add(lease.token)
                _warn("the lease of session %r was lost: its handle can no longer write", lease.session)

    def close(self) -> None:
        """Stop renewing, and give back what is left: no handle of this database can write any more."""
        self._stop.set()
        self._soon.set()
        if self._thread is not None:
            self._thread.join()
        self._give_all_back()

    def _give_all_back(self) -> None:
        self.settle([*self._asked.values()])
        for lease in [*self._leases.values(), *self._leaving.values()]:
            with suppress(PerdureError):  # then it lapses
                self.release(lease)


class Housekeeper:
    """Packs the rows of lines that have grown, one after the other, when the database is quiet.

    It shares the interpreter and the disk with whoever commits, so it waits for a pause between commits; a line
    with a long backlog, or a database that is never quiet, is served all the same.
    """

    def __init__(self, kernel: Kernel, dropped: Dropped) -> None:
        self._kernel = kernel
        self._dropped = dropped
        self._lock = threading.Lock()
        self._queued: dict[tuple[str, int], tuple[int, int]] = {}
        self._queue: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._stirred = 0.0
        dropped.wake(self._queue)

    def stir(self) -> None:
        """Somebody has just committed."""
        self._stirred = monotonic()

    def request(self, session: str, line: int, minimum: int) -> None:
        """Have a line packed soon; asking again while it waits adds no entry, so the queue is bounded by the lines."""
        with self._lock:
            key = (session, line)
            least, asked = self._queued.get(key, (minimum, 0))
            self._queued[key] = (min(minimum, least), asked + 1)
            if self._thread is None:
                self._thread = _started(self._work, "perdure-housekeeper")
        if not asked:
            self._queue.put(key)

    def _work(self) -> None:
        while (key := self._queue.get()) is not None:
            self._wait_for_quiet(key)
            with self._lock:
                minimum, _ = self._queued.pop(key, (PACK_MIN, 0))
            try:
                packed = compact(self._kernel, *key, minimum)
                if packed and self._kernel.cache is not None and self._kernel.cache.wants(*key):
                    # The cache has the same rows one by one: reading the line lets it have the state instead.
                    load(self._kernel, *key, None)
            except NotFound:
                pass  # it was deleted or has expired meanwhile
            except PerdureError as e:
                # Nothing is lost: the rows stay as they are, and whoever reads them meets the same error.
                _warn("session %r could not be compacted: %s", key[0], e)
            except Exception as e:  # whatever it is: without this thread nothing would ever be packed again
                _warn("session %r could not be compacted: %s: %s", key[0], type(e).__name__, e)
        # For another one, if an interrupt came between the start of this thread and its being known.
        self._queue.put(None)
        self._dropped.warn()

    def _wait_for_quiet(self, key: tuple[str, int]) -> None:
        patience = monotonic() + PATIENCE
        while (now := monotonic()) < patience and self._queued[key][1] < BACKLOG:
            rest = self._stirred + QUIET - now
            if rest <= 0 or self._closing.wait(rest):
                return

    def close(self) -> None:
        """Finish what is queued, then stop."""
        self._closing.set()
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()


class Claim:
    """A session's lease: asked for, kept alive, given back. Who is interrupted in between leaves nobody holding it."""

    def __init__(
        self, kernel: Kernel, heartbeat: Heartbeat, session: str, lease_ttl: int, before: Callable[[str], None]
    ) -> None:
        self.session = session
        self.holder = new_holder()
        """Under this name the store is asked, and only this once."""
        self.wanted = True
        self._store = kernel.store
        self._before = before
        self._heartbeat = heartbeat
        self._ttl = lease_ttl
        self._lock = threading.Lock()
        self.lease: Lease | None = None

    def acquire(self) -> Flow[Lease]:
        """Take the lease and keep it alive from now on; ``Busy`` when somebody else has it."""
        if self.lease is not None:
            self._heartbeat.remove(self.lease)
        lease: Lease = yield Do(self._take)
        self._heartbeat.add(lease)
        return lease

    def _take(self) -> Lease:
        self._before(self.session)
        self._heartbeat.ask(self)
        try:
            lease = self._store.acquire(self.session, self.holder, self._ttl)
        except PerdureError:
            self._heartbeat.refused(self)
            raise
        with self._lock:
            self.lease = lease
            wanted = self.wanted
        if not wanted:
            # In a thread that nobody waits for any more.
            self._store.release(lease)
            self._heartbeat.refused(self)
        return lease

    def give_up(self) -> Flow[None]:
        """Give the lease back, or see to it that it is as soon as it is granted."""
        with self._lock:
            self.wanted = False
            lease = self.lease
        if lease is not None:
            # At once: who is cancelled once more leaves the rest to the next beat.
            self._heartbeat.remove(lease)
        if isinstance(sys.exception(), GeneratorExit):
            # Nobody carries out any more what is asked for here.
            self._give_back(lease)
        else:
            yield Do(self._give_back, (lease,))

    def _give_back(self, lease: Lease | None) -> None:
        if lease is not None:
            self._heartbeat.release(lease)
            return
        # An interrupt came, maybe right after the store had granted it.
        self._heartbeat.settle([self])


class Caretaker:
    """The background work of one database; its handles tell it what they do."""

    def __init__(
        self,
        kernel: Kernel,
        lease_ttl: int,
        dropped: Dropped,
        *,
        maintain: bool,
        witness: str | os.PathLike[str] | None,
    ) -> None:
        self.lease_ttl = lease_ttl
        """Milliseconds a lease lives without being renewed."""
        self._kernel = kernel
        self.heartbeat = Heartbeat(kernel, lease_ttl, dropped)
        self._housekeeper = Housekeeper(kernel, dropped)
        self._maintain = maintain
        self._closed = False
        self._witness = None
        if witness is not None:
            from perdure.upkeep.live_witness import LiveWitness

            self._witness = LiveWitness(kernel, witness)

    def claim(self, session: str) -> Claim:
        """Somebody wants a session's lease."""
        return Claim(self._kernel, self.heartbeat, session, self.lease_ttl, self.before_write)

    @property
    def witnessed(self) -> bool:
        """Whether there is a live witness."""
        return self._witness is not None

    def before_write(self, session: str | None = None) -> None:
        """Somebody is about to write, to this session or somewhere: refused when the store is behind its witness."""
        if self._witness is not None:
            self._witness.check(session)

    def landed(self, point: Point, calls: Mapping[str, Called]) -> None:
        """A checkpoint is durable; ``calls`` has those it may speak of."""
        if self._witness is not None:
            self._witness.note(point, calls)

    def committed(self, journal: Journal) -> None:
        """A commit is durable: its line may have grown enough to be packed."""
        if not self._maintain:
            return
        self._housekeeper.stir()
        if journal.unpacked >= PACK_ROWS and journal.point is not None:
            journal.unpacked = 0
            self._housekeeper.request(journal.id, journal.line, PACK_ROWS)

    def release(self, journal: Journal) -> Flow[None]:
        """A handle is done with its session: its lease is given back, and its line packed."""
        lease = journal.lease
        if lease is not None:
            # At once: who is cancelled before the store was asked leaves that to the next beat.
            self.heartbeat.remove(lease)
            try:
                yield Do(self.heartbeat.release, (lease,))
            except BaseException:
                self.heartbeat.hurry()
                raise
            journal.lease = None
        if self._maintain and journal.unpacked >= PACK_MIN and journal.point is not None and not self._closed:
            self._housekeeper.request(journal.id, journal.line, PACK_MIN)

    def close(self) -> None:
        """Finish packing, let leases go."""
        self._closed = True
        self.heartbeat.close()
        self._housekeeper.close()
        if self._witness is not None:
            self._witness.close()
