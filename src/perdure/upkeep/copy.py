"""Copying sessions from one store to another: sealed bytes as they are, bound to where they lie, one session at a time,
checked on both sides.

A session that is in the destination and is behind gets the checkpoints it lacks, in the order they were written: cut
off anywhere, it is an earlier moment of the same session. Nothing is decided on times or numbers of steps, only on the
digests of checkpoints: either all that the copy has is in the source, too, or the two have gone separate ways, and
nothing is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import Conflict, Corrupted, InvalidInput, NotFound, PerdureError
from perdure.history.hydrate import find, where_is
from perdure.kernel import Kernel
from perdure.model import ANCHOR, Append, Outrun
from perdure.record import codec
from perdure.record.binding import rebind, rebind_entry, rebind_row
from perdure.record.packs import PackReader
from perdure.system import faults
from perdure.system.urls import is_one_place
from perdure.upkeep.transfer import NAMED, StoreSink, check_blob, from_store, in_batches, projected, refs_of, transfer
from perdure.upkeep.verify import Inspection

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from perdure.model import Dump, InboxEntry, Row
    from perdure.stores.listing import Progress
    from perdure.upkeep.transfer import Source, Transferred

BATCH = 100
"""Checkpoints that are added at once, at most."""
BATCH_BYTES = 8 << 20
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
    if source.store.id == target.store.id and is_one_place(source.store.url, target.store.url):
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
            # An end that was forged is not believed, and said; to bring the session back over it is what helps.
            find(self.kernel, row.id)
            self.done.left.append((row.id, f"it has ended there: {row.why_gone}"))
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
            self.write(self._bound(dump))
            copied = True
        if self._options.verify and not self.dry_run:
            self._compare(self._bound(dump))
        self.done.copied += copied
        self.done.updated += updated
        self.done.unchanged += not copied and not updated

    def _bound(self, dump: Dump) -> Dump:
        return rebind(self.kernel.keys, dump, self._reading.store_id, self.kernel.store_id)

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
        work.post(work.unposted)
        return True

    def _compare(self, dump: Dump) -> None:
        """Read the copy back: it is, byte for byte, what was inspected and is bound to this store, or is inspected
        itself and has all of it."""
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


class Places:
    """Which checkpoints a session has, or had until retention dropped them."""

    def __init__(self, dump: Dump) -> None:
        self.digests = {(row.line, row.step): row.digest for row, _ in dump.rows}
        self._anchors = [(a.line, a.lo, a.hi) for a in dump.artifacts if a.kind == ANCHOR]

    def has(self, row: Row) -> bool:
        """Whether this very checkpoint is there, or an anchor stands for it."""
        known = self.digests.get((row.line, row.step))
        if known is not None:
            return known == row.digest
        return any(line == row.line and lo <= row.step < hi for line, lo, hi in self._anchors)


class CatchUp:
    """What a copy (``there``) lacks of a session (``dump``), both as they were at one instant.

    Raises ``Conflict`` when the two have gone separate ways.
    """

    def __init__(self, reading: Kernel, target: Kernel, dump: Dump, there: Dump) -> None:
        self._reading = reading
        self._target = target
        self._dump = dump
        self._there = there
        self._id = dump.row.id
        ours, theirs = Places(dump), Places(there)
        for row, _ in dump.rows:
            if theirs.digests.get((row.line, row.step), row.digest) != row.digest:
                raise self._apart(f"step {row.step} of line {row.line} is another checkpoint there")
        self.missing = [(row, shown) for row, shown in dump.rows if not theirs.has(row)]
        if self.missing and (ahead := next((row for row, _ in there.rows if not ours.has(row)), None)):
            raise self._apart(f"both have gone on since, there with step {ahead.step} of line {ahead.line}")
        known = {entry.key: entry.digest for entry in there.inbox}
        for entry in dump.inbox:
            if known.get(entry.key, entry.digest) != entry.digest:
                raise self._apart(f"the key {entry.key[:80]!r} stands for another input there")
        new = [entry for entry in dump.inbox if entry.key not in known]
        self.unposted = [entry for entry in new if not entry.taken]
        self._taken = {entry.key: entry for entry in new if entry.taken}

    def _apart(self, what: str) -> Conflict:
        msg = f"session {self._id!r} differs in {self._target.store.url}: {what}; nothing was written"
        return Conflict(msg, next(iter(self._there.row.heads), None))

    def blobs(self) -> set[str]:
        """The blobs that the missing checkpoints name."""
        return {ref for _, shown in self.missing for ref in shown["blobs"]}

    def check(self) -> None:
        """Refuse to add what would stand on nothing: retention may have dropped what is between."""
        held = set(Places(self._there).digests)
        anchored = {(a.line, a.hi) for a in self._dump.artifacts if a.kind == ANCHOR}
        for row, shown in self.missing:
            before = (row.line, row.step - 1)
            if shown["starts"]:
                env = codec.decode_envelope(row.envelope, where_is(self._id, row.line, row.step))
                origin = env.x.get("from")
                before = (origin[0], origin[1]) if origin else None
            thin = not row.envelope and (row.line, row.step) in anchored
            if thin or (before is not None and before not in held):
                what = f"retention has dropped checkpoints before step {row.step} of line {row.line} that it never got"
                raise self._apart(f"{what}; delete it there and copy it again with revive")
            held.add((row.line, row.step))

    def append(self, token: int) -> None:
        """Add the missing checkpoints under a lease. Cut off in the middle, what is there is an earlier moment."""
        self.check()
        for batch in in_batches(self._items(token), BATCH, BATCH_BYTES):
            self._land(batch)

    def _items(self, token: int) -> Iterator[tuple[Append, int]]:
        packs = PackReader(self._reading, self._id, self._dump.artifacts)
        heads = {head.branch: head.id for head in self._there.row.heads}
        for row, shown in self.missing:
            item = self._item(row, shown, packs, heads.get(shown["branch"]), token)
            heads[item.branch] = item.id
            yield item, len(item.envelope) + len(item.payload)

    def _item(
        self, row: Row, shown: dict[str, Any], packs: PackReader, expect: bytes | None, token: int
    ) -> Append:  # fmt: skip
        where, target = where_is(self._id, row.line, row.step), self._target
        bound = rebind_row(target.keys, row, self._reading.store_id, target.store_id)
        envelope, payload = bound.envelope, bound.payload
        env = codec.decode_envelope(envelope or packs.row(row.line, row.step).envelope, where)
        if not envelope:
            envelope, body = packs.row(row.line, row.step)
            payload = codec.bind_payload(target.keys, env.key, target.store_id, envelope, codec.seal(body), where)
        return Append(
            self._id, shown["branch"], row.line, row.step, row.id, expect, row.digest, envelope, payload, token,
            shown["starts"], env.owner, shown["status"], shown["kind"], shown["at"], self._ttl(),
            tuple(shown["takes"]), tuple(shown["blobs"]), shown["tool"], shown["error"],
            *(str(env.x.get(name, "")) for name in ("run", "effect", "approval", "agent", "label")),
        )  # fmt: skip

    def _ttl(self) -> int | None:
        """A copy lives as long as the original: being copied is no commit, and its time does not slide."""
        expires = self._dump.row.expires
        return None if expires is None else max(0, -((self._target.clock.wall() - expires) // 1000))

    def _land(self, batch: list[Append]) -> None:
        # An input that was taken has no body any more, but its key must be known: it comes and goes with its taker.
        self.post([self._taken.pop(key) for item in batch for key in item.takes if key in self._taken])
        faults.point("copy.before_append")
        for answer in self._target.store.append(batch):
            if isinstance(answer, PerdureError):
                raise answer
        faults.point("copy.after_append")

    def post(self, entries: Sequence[InboxEntry]) -> None:
        """Add inputs that are in the source to the copy."""
        old, target = self._reading.store_id, self._target
        bound = [rebind_entry(target.keys, entry, old, target.store_id) for entry in entries]
        for answer in target.store.post(bound) if bound else ():
            if isinstance(answer, PerdureError):
                raise answer
            if isinstance(answer, Outrun):
                raise self._apart("an input that was posted there once, and is not there now, has lost its place")


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
