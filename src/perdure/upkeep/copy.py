"""Copying sessions from one store to another: sealed bytes as they are, one session at a time, checked on both sides.

A session is dumped at one instant; two dumps of it at most are in memory. Its blobs go piece by piece and are durable
in the destination before the session that names them, and a new session appears there whole or not at all. One that
is there and is behind gets the checkpoints it lacks, in the order they were written: cut off anywhere, it is an
earlier moment of the same session. So a copy may be interrupted at any point and run again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import (
    Corrupted,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    PerdureError,
    Poisoned,
    StoreFull,
    Unavailable,
    UnsupportedFormat,
)
from perdure.kernel import Kernel
from perdure.record import codec
from perdure.system import faults
from perdure.upkeep.copy_resume import CatchUp, Places
from perdure.upkeep.verify import Inspection

if TYPE_CHECKING:
    from perdure.model import Dump, Envelope, Row, SessionRow

Progress = Callable[[str, int], None]
PAGE = 100
NAMED = ("run", "effect", "approval")
"""What a store may project from envelopes, and need not: a dump has these only where its store keeps them."""
REMEMBERED = 100_000
"""Blobs that are known to be in the destination; beyond that they are looked at again."""


class Copied(NamedTuple):
    """What a copy did, or with ``dry_run`` would do."""

    copied: int = 0
    """Sessions that are new in the destination."""
    updated: int = 0
    """Sessions that were there and were brought up to date."""
    unchanged: int = 0
    """Sessions that were there already with everything the source has."""
    left: tuple[tuple[str, str], ...] = ()
    """Sessions that have ended in the destination, and why: they stay so unless ``revive`` is given."""
    failed: tuple[tuple[str, str], ...] = ()
    """Session and what went wrong with it; running the copy again tries these again."""
    checkpoints: int = 0
    blobs: int = 0
    bytes: int = 0
    """How much was written: envelopes, payloads, artifacts, inputs and blobs."""

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failed


class Options(NamedTuple):
    """How to copy."""

    verify: bool = True
    dry_run: bool = False
    revive: bool = False


def copy(
    source: Kernel,
    target: Kernel,
    holder: str,
    lease_ttl: int,
    sessions: Iterable[str] | None = None,
    owner: str | None = None,
    options: Options = Options(),  # noqa: B008 - immutable
    progress: Progress | None = None,
) -> Copied:
    """Copy all sessions, those named, or those of an owner. What fails for one of them does not stop the others."""
    if (source.store.id, source.store.url) == (target.store.id, target.store.url):
        raise InvalidInput(f"{source.store.url} is both the source and the destination: name two stores")
    if sessions is not None and owner is not None:
        raise InvalidInput("copy the sessions that are named, or those of an owner, not both")
    work = _Copier(source, target, holder, lease_ttl, options)
    ids = _listed(source, owner) if sessions is None else list(dict.fromkeys(sessions))
    for done, id in enumerate(ids, start=1):
        work.session(id, named=sessions is not None)
        if progress is not None:
            progress(id, done)
    return work.result()


def _listed(source: Kernel, owner: str | None) -> Iterator[str]:
    after: str | None = None
    while rows := source.store.sessions(owner=owner, after=after, limit=PAGE):
        after = rows[-1].id
        yield from [row.id for row in rows]


class _Copier:
    def __init__(self, source: Kernel, target: Kernel, holder: str, lease_ttl: int, options: Options) -> None:
        self._source = source
        self._target = target
        self._holder, self._lease_ttl = holder, lease_ttl
        self._options = options
        # What is in the source is read with the destination's keys: those that will have to open the copy.
        self._reading = Kernel(source.store, source.blobs, target.keys, target.clock)
        self._counts = dict.fromkeys(("copied", "updated", "unchanged"), 0)
        self._left: list[tuple[str, str]] = []
        self._failed: list[tuple[str, str]] = []
        self._checkpoints = self._blobs = self._bytes = 0
        self._known: set[str] = set()
        """Blobs that are in the destination, and were read back there when verifying."""

    def result(self) -> Copied:
        return Copied(
            **self._counts, left=tuple(self._left), failed=tuple(self._failed), checkpoints=self._checkpoints,
            blobs=self._blobs, bytes=self._bytes,
        )  # fmt: skip

    def session(self, id: str, *, named: bool) -> None:
        """Copy one session and write down what became of it."""
        try:
            dump = self._source.store.dump(id)
        except NotFound as e:
            # One that was listed has ended since, and that is nobody's fault.
            if named:
                self._failed.append((id, str(e)))
            return
        except Corrupted as e:
            self._failed.append((id, str(e)))
            return
        try:
            outcome = self._copy(dump)
        except (StoreFull, Poisoned):
            # No other session would fare better.
            raise
        except PerdureError as e:
            if isinstance(e, Unavailable | OutcomeUnknown):
                # Whether only this session is out of reach, or a whole store: then this raises, too.
                self._source.store.look(id)
                self._target.store.look(id)
            self._failed.append((id, str(e)))
            return
        if outcome in self._counts:
            self._counts[outcome] += 1
        else:
            self._left.append((id, outcome))

    def _copy(self, dump: Dump) -> str:
        row = self._target.store.look(dump.row.id)
        if row is not None and row.reason and not self._options.revive:
            return f"it has ended there: {row.reason}"
        if self._options.verify:
            words = "the source is not intact, and nothing was copied"
            dump = named(dump, self._inspect(self._reading, dump, words).envelopes)
        else:
            dump = named(dump, {})
        outcome = self._bring_up_to_date(dump) if row is not None and row.lines else self._bring(dump, row)
        if self._options.verify and not self._options.dry_run:
            self._compare(dump)
        return outcome

    # -- a session that is not there ----------------------------------------------------------------------------

    def _bring(self, dump: Dump, row: SessionRow | None) -> str:
        if not dump.rows:
            # It was only posted to: that may have been copied before, or be posted there, too.
            there = self._target.store.dump(dump.row.id) if row is not None and not row.reason else None
            if there is not None and {e.key for e in dump.inbox} <= {e.key for e in there.inbox}:
                return "unchanged"
        self._bring_blobs(refs_of(dump))
        self._count(dump)
        if not self._options.dry_run:
            faults.point("copy.before_session")
            self._target.store.restore(dump)
            faults.point("copy.after_session")
        return "copied"

    def _count(self, dump: Dump) -> None:
        self._checkpoints += len(dump.rows)
        self._bytes += sum(len(row.envelope) + len(row.payload) for row, _ in dump.rows)
        self._bytes += sum(len(artifact.body) for artifact in dump.artifacts)
        self._bytes += sum(len(entry.body) for entry in dump.inbox)

    def _bring_blobs(self, refs: Iterable[str]) -> None:
        for ref in sorted(refs):
            # Also where it is there already: whoever names a blob renews it, or collection could take it.
            chunks = self._read_blob(ref)
            if self._options.dry_run:
                deque(chunks, maxlen=0)
            else:
                faults.point("copy.before_blob")
                self._target.blobs.put_stream(chunks)
            self._blobs += 1

    def _read_blob(self, ref: str) -> Iterator[bytes]:
        try:
            for chunk in self._source.blobs.get_stream(ref):
                self._bytes += len(chunk)
                yield chunk
        except NotFound:
            raise Corrupted(f"blob {ref}", "it is missing in the source, and the session was not copied") from None

    # -- a session that is there --------------------------------------------------------------------------------

    def _bring_up_to_date(self, dump: Dump) -> str:
        id, store = dump.row.id, self._target.store
        work = CatchUp(self._reading, self._target, dump, store.dump(id))
        if not work.missing and not work.unposted:
            return "unchanged"
        work.check()
        self._bring_blobs(work.blobs())
        self._checkpoints += len(work.missing)
        self._bytes += work.size
        if self._options.dry_run:
            return "updated"
        if work.missing:
            lease = store.acquire(id, self._holder, self._lease_ttl)
            try:
                # Now nobody else writes it: what is there is what the missing checkpoints are put on.
                work = CatchUp(self._reading, self._target, dump, store.dump(id))
                work.append(lease.token)
            finally:
                store.release(lease)
        work.post()
        return "updated"

    # -- checking -----------------------------------------------------------------------------------------------

    def _inspect(self, kernel: Kernel, dump: Dump, words: str) -> Inspection:
        inspection = Inspection(kernel, dump)
        findings = inspection.run()
        if findings:
            more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
            raise Corrupted(findings[0].where, f"{findings[0].what}{more}; {words}")
        return inspection

    def _compare(self, dump: Dump) -> None:
        """Read the copy back: it is, byte for byte, what was inspected, or is inspected itself and has all of it."""
        id = dump.row.id
        there = self._target.store.dump(id)
        if comparable(there) != comparable(dump):
            self._inspect(self._target, there, "the copy is not intact")
            held = Places(there)
            for row, _ in dump.rows:
                if not held.has(row):
                    where = f"session {id!r}, line {row.line}, step {row.step}"
                    raise Corrupted(where, "the copy does not have it as it is in the source")
        for ref in sorted(refs_of(there) - self._known):
            try:
                deque(self._target.blobs.get_stream(ref), maxlen=0)
            except NotFound:
                raise Corrupted(f"blob {ref}", "it is missing in the destination") from None
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known.add(ref)


def refs_of(dump: Dump) -> set[str]:
    """All blobs that a session names."""
    refs = {ref for _, shown in dump.rows for ref in shown["blobs"]}
    return refs.union(*(artifact.blobs for artifact in dump.artifacts))


def comparable(dump: Dump) -> tuple[object, ...]:
    """What of a dump does not depend on the store it lies in: all but the lease, the times and the order of arrival."""
    row = dump.row
    rows = [(stored, {k: v for k, v in shown.items() if k not in NAMED}) for stored, shown in dump.rows]
    inbox = [entry._replace(seq=0) for entry in dump.inbox]
    return (row.owner, row.status, set(row.heads), row.lines, rows, sorted(dump.artifacts), inbox)


def named(dump: Dump, envelopes: dict[tuple[int, int], Envelope]) -> Dump:
    """The dump with all that a destination may project, also when the source does not keep it.

    Rows whose envelopes were not opened speak for themselves, unless they lie in a pack.
    """

    def told(env: Envelope | None, shown: dict[str, Any]) -> dict[str, Any]:
        return {**shown, **{name: str(env.x[name]) for name in NAMED if env.x.get(name)}} if env else shown

    def own(row: Row) -> Envelope | None:
        try:
            return codec.decode_envelope(row.envelope, "") if row.envelope else None
        except (Corrupted, UnsupportedFormat):
            # Carried over as it is: nobody asked for a check.
            return None

    rows = [(row, told(envelopes.get((row.line, row.step)) or own(row), shown)) for row, shown in dump.rows]
    return dump._replace(rows=tuple(rows))
