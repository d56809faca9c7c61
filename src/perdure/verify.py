"""Verifying what is stored: every session, against its own digests, against its blobs, and against a witness."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from perdure.errors import Corrupted, NotFound
from perdure.hydrate import look
from perdure.inspection import Finding, Inspection
from perdure.witness import Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perdure.kernel import Kernel
    from perdure.model import Row
    from perdure.witness import Waited, Witness

    Progress = Callable[[str, int], None]

PAGE = 100


class Report(NamedTuple):
    """What was looked at, and everything that is not as it was written."""

    sessions: int
    checkpoints: int
    blobs: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is as it was written."""
        return not self.findings

    @property
    def lost(self) -> tuple[Finding, ...]:
        """What the witness saw and the store has no more."""
        return tuple(f for f in self.findings if f.kind == "lost")


def verify(
    kernel: Kernel,
    session: str | None = None,
    witness: Witness | None = None,
    progress: Progress | None = None,
    copied: bool = False,
) -> Report:
    """Read everything (or one session) and report whatever is not intact. Nothing is changed.

    With a witness, checkpoints that it saw and that are no longer there are reported as lost; those that retention
    dropped, and sessions that expired or were deleted after it saw them, are not. ``copied`` says that the witness is
    of the store that this one was copied from.
    """
    return _Verifier(kernel, witness, copied).run(session, progress)


class _Verifier:
    def __init__(self, kernel: Kernel, witness: Witness | None, copied: bool) -> None:
        self._kernel = kernel
        self._findings: list[Finding] = []
        self._blobs: dict[str, str] = {}
        """Ref -> what is wrong with it; "" when nothing is."""
        self._checkpoints = 0
        self._witness = witness
        self._copied = copied
        self._seen: dict[str, list[Seen | Waited]] = {}
        for one in witness.seen.values() if witness else ():
            self._seen.setdefault(one.session, []).append(one)
        for entry in witness.waited if witness else ():
            self._seen.setdefault(entry.session, []).append(entry)

    def run(self, session: str | None, progress: Progress | None) -> Report:
        if self._witness is not None and self._witness.store != self._kernel.store.id and not self._copied:
            what = f"it was written for store {self._witness.store}, and this is {self._kernel.store.id}"
            self._findings.append(Finding("lost", "", f"witness {self._witness.path}", what))
        done = 0
        if session is not None:
            self._seen = {k: v for k, v in self._seen.items() if k == session}
            if session not in self._seen:
                look(self._kernel, session)
        for id in [session] if session is not None else self._ids():
            if self._session(id):
                done += 1
                if progress is not None:
                    progress(id, done)
        # Those that are left the witness saw, and no listing has shown.
        for id in list(self._seen):
            done += self._session(id)
        return Report(done, self._checkpoints, len(self._blobs), tuple(self._findings))

    def _ids(self) -> Iterator[str]:
        after: str | None = None
        try:
            while rows := self._kernel.store.sessions(after=after, limit=PAGE):
                after = rows[-1].id
                yield from [row.id for row in rows]
        except Corrupted as e:
            self._findings.append(Finding("corrupted", "", e.where, e.what))

    def _session(self, id: str) -> bool:
        """Inspect one session; False when there is none."""
        seen = self._seen.pop(id, [])
        try:
            listed = self._waiting(id)
            dump = self._kernel.store.dump(id)
        except NotFound:
            self._vanished(id, seen)
            return False
        except Corrupted as e:
            self._findings.append(Finding("corrupted", id, e.where, e.what))
            return True
        inspection = Inspection(self._kernel, dump)
        self._findings.extend(inspection.run())
        # An index may be older than its table. Somebody may also just have posted: then the list changes, too.
        if listed != [e.key for e in dump.inbox if not e.taken] and listed == self._waiting(id):
            self._blame_inbox(id, "the store lists other inputs than those it holds")
        self._checkpoints += len(inspection.rows)
        for ref in sorted(inspection.blobs):
            if what := self._blob(ref):
                self._findings.append(Finding("blob", id, f"session {id!r}, blob {ref}", what))
        since = {one.line: one.step for one in seen if isinstance(one, Seen)}
        for one in seen:
            self._compare(one, inspection, since)
        order = [one.key for one in seen if not isinstance(one, Seen) and one.key in listed]
        if order != [key for key in listed if key in order]:
            self._blame_inbox(id, "its inputs wait in another order than the witness saw")
        return True

    def _blame_inbox(self, id: str, what: str) -> None:
        self._findings.append(Finding("inbox", id, f"session {id!r}, inbox", what))

    def _compare(self, one: Seen | Waited, inspection: Inspection, since: dict[int, int]) -> None:
        # Another life of the session began after it was seen: the one that was seen had ended before.
        if inspection.born > one.at:
            return
        if isinstance(one, Seen):
            self._compare_head(one, inspection)
        elif what := inspection.input(one.key, one.digest, since):
            self._lost(one, f"the witness saw input {one.key!r:.60} waiting, and {what}")

    def _waiting(self, id: str) -> list[str]:
        return [entry.key for entry in self._kernel.store.inbox(id, 1 << 31)]

    def _blob(self, ref: str) -> str:
        if ref not in self._blobs:
            self._blobs[ref] = ""
            try:
                data = self._kernel.blobs.get(ref)
            except NotFound:
                self._blobs[ref] = "it is missing"
            except Corrupted as e:
                self._blobs[ref] = e.what
            else:
                if hashlib.sha256(data).hexdigest() != ref:
                    self._blobs[ref] = "the content does not match its name"
        return self._blobs[ref]

    def _compare_head(self, one: Seen, inspection: Inspection) -> None:
        row: Row | None = inspection.rows.get((one.line, one.step))
        if row is not None and (row.id.hex(), row.digest.hex()) == (one.id, one.digest):
            return
        if row is not None:
            self._lost(one, f"step {one.step} of line {one.line} is another checkpoint than the witness saw")
        elif not inspection.covers(one.line, one.step):
            steps = [step for line, step in inspection.rows if line == one.line]
            now = f"line {one.line} ends at step {max(steps)}" if steps else f"there is no line {one.line}"
            self._lost(one, f"the witness saw step {one.step} of line {one.line}, and {now}")

    def _vanished(self, id: str, seen: list[Seen | Waited]) -> None:
        row = self._kernel.store.look(id) if seen else None
        for one in seen:
            if row is None or not row.reason or row.updated < one.at:
                saw = f"step {one.step} of line {one.line}" if isinstance(one, Seen) else f"input {one.key!r:.60}"
                self._lost(one, f"the witness saw {saw}, and there is no such session")

    def _lost(self, one: Seen | Waited, what: str) -> None:
        where = f"session {one.session!r}, " + (f"branch {one.branch!r}" if isinstance(one, Seen) else "inbox")
        self._findings.append(Finding("lost", one.session, where, what))
