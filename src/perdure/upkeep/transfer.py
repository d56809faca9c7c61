"""Sessions on the move: dumped from a source, one after the other, and written into a sink, each after its blobs.

A source and a sink are a store or a file. ``copy`` goes from store to store, ``backup`` and ``export`` from a store
into a file, ``restore`` and ``import`` from a file into a store. What moves are the sealed bytes: digests stay. In a
store they are bound to it anew, which takes the key.

A session is dumped at one instant and is in memory as a whole; its blobs go piece by piece. All that a session names is
durable before the session itself, which appears whole or not at all: so a transfer may be interrupted at any point and
run again.
"""

from __future__ import annotations

import contextlib
import hashlib
from abc import ABC, abstractmethod
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from perdure import errors
from perdure.record import codec
from perdure.record.binding import rebind
from perdure.stores.listing import each_session
from perdure.system import faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from perdure.kernel import Kernel
    from perdure.model import Dump, Envelope, Row, SessionRow
    from perdure.stores.listing import Progress

T = TypeVar("T")
NAMED = ("run", "effect", "approval")
"""What a store may project from envelopes, and need not: a dump has these only where its store keeps them."""


class Transferred(msgspec.Struct):
    """What a transfer did, or with ``dry_run`` would do."""

    copied: int = 0
    """Sessions that are new in the destination."""
    updated: int = 0
    """Sessions that were there and were brought up to date."""
    unchanged: int = 0
    """Sessions that were there already with everything the source has."""
    left: list[tuple[str, str]] = []
    """Sessions that have ended in the destination, and why: they stay so unless ``revive`` is given."""
    failed: list[tuple[str, str]] = []
    """Session and what went wrong with it; running the copy again tries these again."""
    missing: list[str] = []
    """Blobs that are referred to and were not in the source: it is damaged, run verify."""
    in_doubt: list[tuple[str, str, str]] = []
    """Session, effect and tool of what a witness saw since a backup was made: find out whether it happened."""
    checkpoints: int = 0
    blobs: int = 0
    bytes: int = 0
    """How much was written: envelopes, payloads, artifacts, inputs and blobs; of a file, its size."""

    @property
    def ok(self) -> bool:
        """Whether nothing failed, and nothing was missing."""
        return not self.failed and not self.missing


class Source(NamedTuple):
    """Where sessions are read from."""

    ids: Iterable[str]
    dump: Callable[[str], Dump]
    """One session at one instant, or ``NotFound``."""
    blob: Callable[[str], Iterator[bytes]]
    """The pieces of a blob; ``NotFound`` instead of the first one when it is not there."""
    store: str
    """The id of the store that they come from, and that what is stored of them is bound to."""
    named: bool = False
    """Whether somebody asked for each of these sessions: then one that is not there is an error."""


def from_store(kernel: Kernel, sessions: Iterable[str] | None = None, owner: str | None = None) -> Source:
    """All sessions of a store, those named, or those of an owner."""
    if sessions is None:
        ids = (row.id for row in each_session(kernel.store, owner=owner))
        return Source(ids, kernel.store.dump, kernel.blobs.get_stream, kernel.store_id)
    return Source(dict.fromkeys(sessions), kernel.store.dump, kernel.blobs.get_stream, kernel.store_id, named=True)


class Sink(ABC):
    """Where sessions are written to."""

    def __init__(self) -> None:
        self.done = Transferred()
        self._looked_for: set[str] = set()

    @abstractmethod
    def take(self, dump: Dump, source: Source) -> None:
        """Write one session."""

    @abstractmethod
    def put_blob(self, ref: str, pieces: Iterator[bytes]) -> None:
        """Write one blob."""

    def bring_new_blobs(self, dump: Dump, source: Source) -> None:
        """Bring the blobs of a session that no session before it has named."""
        refs = refs_of(dump) - self._looked_for
        self._looked_for |= refs
        self.bring_blobs(refs, source)

    def bring_blobs(self, refs: Iterable[str], source: Source) -> None:
        """Read blobs from the source and write them here."""
        for ref in sorted(refs):
            pieces = source.blob(ref)
            try:
                first = next(pieces, b"")
            except errors.NotFound:
                self.lacks(ref)
                continue
            self.put_blob(ref, chain([first], pieces))
            self.done.blobs += 1

    def lacks(self, ref: str) -> None:
        """A blob is not in the source: it is noted, and the others are brought."""
        self.done.missing.append(ref)


class StoreSink(Sink):
    """Writes sessions into a store; one that is there already must be exactly the same."""

    def __init__(self, kernel: Kernel, *, dry_run: bool = False) -> None:
        super().__init__()
        self.kernel = kernel
        self.dry_run = dry_run

    def take(self, dump: Dump, source: Source) -> None:
        """Write one session, unless it is there."""
        there = self.has(dump)
        # Also where it is there already: a blob may have been lost since.
        self.bring_new_blobs(dump, source)
        if not there:
            self.write(rebind(self.kernel.keys, projected(dump, {}), source.store, self.kernel.store_id))
        self.done.copied += not there
        self.done.unchanged += there

    def has(self, dump: Dump) -> bool:
        """Whether the store has this very session already; ``Conflict`` when it has another under this id."""
        row = self.kernel.store.look(dump.row.id)
        if row is None or not row.lines:
            return self.has_inputs(dump, row)
        if row.heads != dump.row.heads:
            msg = f"session {row.id!r} is in {self.kernel.store.url} already, and differs: restore into another store"
            raise errors.Conflict(msg, next(iter(row.heads), None))
        return True

    def has_inputs(self, dump: Dump, row: SessionRow | None) -> bool:
        """Whether this is a session that was only posted to, and all of that is in the store already."""
        if dump.rows or row is None or row.reason:
            return False
        return {e.key for e in dump.inbox} <= {e.key for e in self.kernel.store.dump(row.id).inbox}

    def write(self, dump: Dump) -> None:
        """Write a session that is not there; its blobs are."""
        self.count(dump.rows, *(a.body for a in dump.artifacts), *(e.body for e in dump.inbox))
        if not self.dry_run:
            faults.point("transfer.before_session")
            self.kernel.store.restore(dump)
            faults.point("transfer.after_session")

    def count(self, rows: Sequence[tuple[Row, Any]], *bodies: bytes) -> None:
        """Add to what was written."""
        self.done.checkpoints += len(rows)
        self.done.bytes += sum(len(row.envelope) + len(row.payload) for row, _ in rows) + sum(map(len, bodies))

    def put_blob(self, ref: str, pieces: Iterator[bytes]) -> None:
        """Make a blob durable; what comes must be what its name says."""

        def counted() -> Iterator[bytes]:
            for piece in pieces:
                self.done.bytes += len(piece)
                yield piece

        if self.dry_run:
            check_blob(ref, counted())
            return
        faults.point("transfer.before_blob")
        if self.kernel.blobs.put_stream(counted()) != ref:
            raise errors.Corrupted(f"blob {ref}", "the content does not match its name")


def transfer(
    source: Source, sink: Sink, progress: Progress | None = None, reach: Callable[[str], object] | None = None
) -> Transferred:
    """Write every session of a source into a sink.

    What goes wrong with a session is raised. With ``reach``, which asks both sides for a session and raises when one of
    them cannot be reached at all, it is written down, and the others are transferred all the same.
    """
    for number, id in enumerate(source.ids, start=1):
        try:
            if (dump := _dump(source, id)) is not None:
                sink.take(dump, source)
        except errors.PerdureError as e:
            # Where a store is full or poisoned, no other session would fare better.
            if reach is None or isinstance(e, errors.StoreFull | errors.Poisoned):
                raise
            if isinstance(e, errors.Unavailable | errors.OutcomeUnknown):
                reach(id)
            sink.done.failed.append((id, str(e)))
        if progress is not None:
            progress(id, number)
    return sink.done


def _dump(source: Source, id: str) -> Dump | None:
    try:
        return source.dump(id)
    except errors.NotFound:
        if source.named:
            raise
        # It was listed and has ended since, and that is nobody's fault.
        return None


def in_batches(items: Iterable[tuple[T, int]], most: int, most_bytes: int) -> Iterator[list[T]]:
    """Items, each of which comes with its size, so many at a time, or as many as come to so many bytes."""
    batch: list[T] = []
    size = 0
    for item, weight in items:
        batch.append(item)
        size += weight
        if len(batch) >= most or size >= most_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def refs_of(dump: Dump) -> set[str]:
    """All blobs that a session names."""
    refs = {ref for _, shown in dump.rows for ref in shown["blobs"]}
    return refs.union(*(artifact.blobs for artifact in dump.artifacts))


def projected(dump: Dump, envelopes: dict[tuple[int, int], Envelope]) -> Dump:
    """The dump with all that a destination may project, also when the source does not keep it.

    Rows whose envelopes were not opened speak for themselves, unless they lie in a pack.
    """

    def told(row: Row, shown: dict[str, Any]) -> dict[str, Any]:
        env = envelopes.get((row.line, row.step))
        if env is None and row.envelope:
            # One that cannot be read is carried over as it is: nobody asked for a check.
            with contextlib.suppress(errors.Corrupted, errors.UnsupportedFormat):
                env = codec.decode_envelope(row.envelope, "")
        return {**shown, **{name: str(env.x[name]) for name in NAMED if env.x.get(name)}} if env else shown

    return dump._replace(rows=tuple((row, told(row, shown)) for row, shown in dump.rows))


def check_blob(ref: str, pieces: Iterable[bytes]) -> None:
    """Read a blob to its end: ``Corrupted`` unless it is what its name says."""
    content = hashlib.sha256()
    for piece in pieces:
        content.update(piece)
    if content.hexdigest() != ref:
        raise errors.Corrupted(f"blob {ref}", "the content does not match its name")
