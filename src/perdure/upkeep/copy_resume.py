"""Bringing a copy of a session up to date: the checkpoints and inputs it lacks are added, in the order they came.

Nothing is decided on times or numbers of steps, only on the digests of checkpoints: either all that the copy has is in
the source, too, or the two have gone separate ways, and nothing is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import Conflict, PerdureError
from perdure.history.hydrate import where_is
from perdure.model import ANCHOR, Append
from perdure.record import codec
from perdure.record.packs import PackReader
from perdure.system import faults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.kernel import Kernel
    from perdure.model import Dump, InboxEntry, Row

BATCH = 100
"""Checkpoints that are added at once, at most."""
BATCH_BYTES = 8 << 20


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
        known = {entry.key for entry in there.inbox}
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
        packs = PackReader(self._reading, self._id, self._dump.artifacts)
        heads = {head.branch: head.id for head in self._there.row.heads}
        batch: list[Append] = []
        size = 0
        for row, shown in self.missing:
            item = self._item(row, shown, packs, heads.get(shown["branch"]), token)
            heads[item.branch] = item.id
            batch.append(item)
            size += len(item.envelope) + len(item.payload)
            if len(batch) >= BATCH or size >= BATCH_BYTES:
                self._land(batch)
                batch, size = [], 0
        if batch:
            self._land(batch)

    def _item(
        self, row: Row, shown: dict[str, Any], packs: PackReader, expect: bytes | None, token: int
    ) -> Append:  # fmt: skip
        envelope, payload = row.envelope, row.payload
        if not envelope:
            envelope, body = packs.row(row.line, row.step)
            payload = codec.seal(body)
        env = codec.decode_envelope(envelope, where_is(self._id, row.line, row.step))
        return Append(
            self._id, shown["branch"], row.line, row.step, row.id, expect, row.digest, envelope, payload, token,
            shown["starts"], env.owner, shown["status"], shown["kind"], shown["at"], self._ttl(),
            tuple(shown["takes"]), tuple(shown["blobs"]), shown["tool"], shown["error"],
            *(str(env.x.get(name, "")) for name in ("run", "effect", "approval", "agent")),
        )  # fmt: skip

    def _ttl(self) -> int | None:
        """A copy lives as long as the original: being copied is no commit, and its time does not slide."""
        expires = self._dump.row.expires
        return None if expires is None else max(0, -((self._target.clock.wall() - expires) // 1000))

    def _land(self, batch: list[Append]) -> None:
        # An input that was taken has no body any more, but its key must be known: it comes and goes with its taker.
        self._post([self._taken.pop(key) for item in batch for key in item.takes if key in self._taken])
        faults.point("copy.before_append")
        for answer in self._target.store.append(batch):
            if isinstance(answer, PerdureError):
                raise answer
        faults.point("copy.after_append")

    def post(self) -> None:
        """Add the inputs that wait in the source and never came to the copy."""
        self._post(self.unposted)

    def _post(self, entries: Sequence[InboxEntry]) -> None:
        for answer in self._target.store.post(entries) if entries else ():
            if isinstance(answer, PerdureError):
                raise answer
