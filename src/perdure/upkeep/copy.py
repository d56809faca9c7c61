"""Copying sessions from one store to another: sealed bytes as they are, one session at a time, checked on both sides.

A session that is in the destination and is behind gets the checkpoints it lacks, in the order they were written: cut
off anywhere, it is an earlier moment of the same session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from perdure.errors import Corrupted, InvalidInput, NotFound
from perdure.kernel import Kernel
from perdure.upkeep.copy_resume import CatchUp, Places
from perdure.upkeep.transfer import NAMED, StoreSink, check_blob, from_store, projected, refs_of, transfer
from perdure.upkeep.verify import Inspection

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.model import Dump
    from perdure.upkeep.each_session import Progress
    from perdure.upkeep.transfer import Source, Transferred

REMEMBERED = 100_000
"""Blobs that are known to be in the destination; beyond that they are looked at again."""


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
) -> Transferred:
    """Copy all sessions, those named, or those of an owner. What fails for one of them does not stop the others."""
    if (source.store.id, source.store.url) == (target.store.id, target.store.url):
        raise InvalidInput(f"{source.store.url} is both the source and the destination: name two stores")
    if sessions is not None and owner is not None:
        raise InvalidInput("copy the sessions that are named, or those of an owner, not both")
    sink = CopySink(source, target, holder, lease_ttl, options)

    def reach(id: str) -> None:
        source.store.look(id)
        target.store.look(id)

    return transfer(from_store(source, sessions, owner), sink, progress, reach)


class CopySink(StoreSink):
    """Writes sessions into a store that may have them already; what is read and what is written is verified."""

    def __init__(self, source: Kernel, target: Kernel, holder: str, lease_ttl: int, options: Options) -> None:
        super().__init__(target, dry_run=options.dry_run)
        self._holder, self._lease_ttl = holder, lease_ttl
        self._options = options
        # What is in the source is read with the destination's keys: those that will have to open the copy.
        self._reading = Kernel(source.store, source.blobs, target.keys, target.clock)
        self._known: set[str] = set()
        """Blobs that were read back in the destination when verifying."""

    def take(self, dump: Dump, source: Source) -> None:
        """Copy one session, or bring it up to date."""
        row = self.kernel.store.look(dump.row.id)
        if row is not None and row.reason and not self._options.revive:
            self.done.left.append((row.id, f"it has ended there: {row.reason}"))
            return
        envelopes = {}
        if self._options.verify:
            envelopes = _inspect(self._reading, dump, "the source is not intact, and nothing was copied").envelopes
        dump = projected(dump, envelopes)
        copied = updated = False
        if row is not None and row.lines:
            updated = self._bring_up_to_date(dump, source)
        elif not self.has_inputs(dump, row):
            # Also blobs that are there already: whoever names a blob renews it, or collection could take it.
            self.bring_blobs(refs_of(dump), source)
            self.write(dump)
            copied = True
        if self._options.verify and not self.dry_run:
            self._compare(dump)
        self.done.copied += copied
        self.done.updated += updated
        self.done.unchanged += not copied and not updated

    def lacks(self, ref: str) -> None:
        """A session is not copied without its blobs."""
        raise Corrupted(f"blob {ref}", "it is missing in the source, and the session was not copied")

    def _bring_up_to_date(self, dump: Dump, source: Source) -> bool:
        id, store = dump.row.id, self.kernel.store
        work = CatchUp(self._reading, self.kernel, dump, store.dump(id))
        if not work.missing and not work.unposted:
            return False
        work.check()
        self.bring_blobs(work.blobs(), source)
        self.count(work.missing, *(entry.body for entry in work.unposted))
        if self.dry_run:
            return True
        if work.missing:
            lease = store.acquire(id, self._holder, self._lease_ttl)
            try:
                # Now nobody else writes it: what is there is what the missing checkpoints are put on.
                work = CatchUp(self._reading, self.kernel, dump, store.dump(id))
                work.append(lease.token)
            finally:
                store.release(lease)
        work.post()
        return True

    def _compare(self, dump: Dump) -> None:
        """Read the copy back: it is, byte for byte, what was inspected, or is inspected itself and has all of it."""
        id = dump.row.id
        there = self.kernel.store.dump(id)
        if _comparable(there) != _comparable(dump):
            _inspect(self.kernel, there, "the copy is not intact")
            held = Places(there)
            for row, _ in dump.rows:
                if not held.has(row):
                    where = f"session {id!r}, line {row.line}, step {row.step}"
                    raise Corrupted(where, "the copy does not have it as it is in the source")
        for ref in sorted(refs_of(there) - self._known):
            try:
                check_blob(ref, self.kernel.blobs.get_stream(ref))
            except NotFound:
                raise Corrupted(f"blob {ref}", "it is missing in the destination") from None
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known.add(ref)


def _inspect(kernel: Kernel, dump: Dump, words: str) -> Inspection:
    inspection = Inspection(kernel, dump)
    findings = inspection.run()
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise Corrupted(findings[0].where, f"{findings[0].what}{more}; {words}")
    return inspection


def _comparable(dump: Dump) -> tuple[object, ...]:
    """What of a dump does not depend on the store it lies in: all but the lease, the times and the order of arrival."""
    row = dump.row
    rows = [(stored, {k: v for k, v in shown.items() if k not in NAMED}) for stored, shown in dump.rows]
    inbox = [entry._replace(seq=0) for entry in dump.inbox]
    return (row.owner, row.status, set(row.heads), row.lines, rows, sorted(dump.artifacts), inbox)
