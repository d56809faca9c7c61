"""Verifying what is stored: every session, against its own digests, and against its blobs.

What a witness saw is compared in :mod:`perdure.upkeep.witness`.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import Corrupted, KeyMismatch, NotFound, PerdureError, UnsupportedFormat
from perdure.history.hydrate import look, open_row, payload_of, where_is
from perdure.history.lives import of_aside, tombstone_of
from perdure.kernel import Kernel
from perdure.model import (
    ANCHOR,
    ASIDE,
    MAIN,
    PACK,
    SNAPSHOT,
    TAG_PREFIX,
    Artifact,
    Dump,
    Envelope,
    Head,
    InboxEntry,
    Kind,
    Row,
)
from perdure.protocols import Boarded, Filter, Logged
from perdure.record import codec
from perdure.record.binding import Stamp, where_entry
from perdure.record.codec import Body, Point
from perdure.record.packs import PackReader, flesh_out, open_base
from perdure.record.tombstones import LIFE
from perdure.session.inbox import open_entry
from perdure.session.taken import Mark, Marks, is_taken, marks_of
from perdure.state.delta import apply
from perdure.state.document import genesis
from perdure.state.values import BlobRef
from perdure.stores.listing import each_session
from perdure.stores.rules import sets_session_status
from perdure.upkeep.expired_sessions import as_it_was, set_aside
from perdure.upkeep.transfer import check_blob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.stores.listing import Progress
    from perdure.upkeep.witness import Witness


class Report(NamedTuple):
    """What was looked at, and everything that is not as it was written."""

    sessions: int
    checkpoints: int
    blobs: int
    findings: tuple[Finding, ...]
    set_aside: int = 0
    """How many of the sessions have expired and can be brought back."""

    @property
    def ok(self) -> bool:
        """Whether everything is as it was written."""
        return not self.findings

    @property
    def lost(self) -> tuple[Finding, ...]:
        """What the witness saw and the store has no more."""
        return tuple(f for f in self.findings if f.kind == "lost")

    @property
    def only_lost(self) -> bool:
        """Whether what is there is as it was written: at most something is missing, or the witness is damaged."""
        return all(f.kind in ("lost", "witness") for f in self.findings)


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
        self._set_aside = 0
        store = kernel.store
        self._board = store.board() if isinstance(store, Boarded) and store.has_board() else None
        self._seen = witness.by_session() if witness is not None else {}
        if witness is not None:
            self._findings.extend(witness.compare_file(kernel.store.id, copied=copied))

    def run(self, session: str | None, progress: Progress | None) -> Report:
        done = 0
        if session is not None:
            self._seen = {k: v for k, v in self._seen.items() if k == session}
            if session not in self._seen:
                try:
                    look(self._kernel, session)
                except Corrupted:
                    pass  # which is found below
                except NotFound:
                    if not set_aside(self._kernel, session):
                        raise
        for id in self._ids(session):
            if self._session(id):
                done += 1
                if progress is not None:
                    progress(id, done)
        # Those that are left the witness saw, and no listing has shown.
        for id in list(self._seen):
            done += self._session(id)
        return Report(done, self._checkpoints, len(self._blobs), tuple(self._findings), self._set_aside)

    def _ids(self, session: str | None) -> Iterator[str]:
        """One session, or all: those that live, those that are set aside, and those that only left a tombstone."""
        if session is not None:
            yield session
        for aside, ended in product((False, True), repeat=2) if session is None else product((True,), (False, True)):
            try:
                for row in each_session(self._kernel.store, ended=ended, aside=aside, search=session):
                    if session is None or (kept := of_aside(row.id)) is None or kept[1] == session:
                        yield row.id
            except Corrupted as e:
                self._findings.append(Finding("corrupted", "", e.where, e.what))
        if session is None and isinstance(self._kernel.store, Logged):
            for e in self._kernel.store.unreadable():
                self._findings.append(Finding("corrupted", "", e.where, e.what))

    def _session(self, id: str) -> bool:
        """Inspect one session; False when there is none."""
        seen = self._seen.pop(id, None)
        try:
            listed = self._waiting(id)
            dump = self._kernel.store.dump(id)
        except NotFound:
            row = self._kernel.store.look(id)
            if row is not None and row.reason and row.heads:
                what = "the store says that it has ended, and it has checkpoints"
                self._findings.append(Finding("corrupted", id, f"session {id!r}", what))
            elif seen is not None:
                self._findings.extend(seen.compare_ended(self._kernel, row))
            elif row is not None and row.reason and self._kernel.keys.current:
                wrong = tombstone_of(self._kernel, row)
                if isinstance(wrong, str):
                    self._findings.append(Finding("corrupted", id, f"session {id!r}, tombstone", wrong))
            return False
        except Corrupted as e:
            self._findings.append(Finding("corrupted", id, e.where, e.what))
            return True
        if id.startswith(ASIDE):
            self._set_aside += 1
            self._aside(dump)
            return True
        inspection = self._inspected(dump)
        # An index may be older than its table. Somebody may also just have posted: then the list changes, too.
        if listed != [e.key for e in dump.inbox if not e.taken] and listed == self._waiting(id):
            what = "the store lists other inputs than those it holds"
            self._findings.append(Finding("inbox", id, f"session {id!r}, inbox", what))
        self._on_board(id, inspection)
        if seen is not None:
            self._findings.extend(seen.compare(self._kernel, inspection, listed))
        return True

    def _inspected(self, dump: Dump, suffix: str = "") -> Inspection:
        inspection, id = Inspection(self._kernel, dump, aside=bool(suffix)), dump.row.id
        found = inspection.run()
        self._checkpoints += len(inspection.rows)
        for ref in sorted(inspection.blobs):
            if what := self._blob(ref):
                found.append(Finding("blob", id, f"session {id!r}, blob {ref}", what))
        self._findings.extend(one._replace(where=one.where + suffix) for one in found)
        return inspection

    def _aside(self, dump: Dump) -> None:
        """One that has expired and may be brought back: all of it must be as it would be then."""
        kept = of_aside(dump.row.id)
        life, session = kept if kept is not None else (None, dump.row.id)
        where = f"session {session!r}"
        try:
            if kept is None:
                raise Corrupted(where, "nothing is set aside under such an id")
            was = as_it_was(dump, session)
        except Corrupted as e:
            self._findings.append(Finding("corrupted", session, e.where, e.what))
            return
        inspection = self._inspected(was, SET_ASIDE)
        if inspection.life not in (None, life):
            what = "it is another life of the session than the one it is kept as"
            self._findings.append(Finding("corrupted", session, where + SET_ASIDE, what))

    def _on_board(self, id: str, inspection: Inspection) -> None:
        """What the board of a fleet says of a session that nobody works on must be what its checkpoints say."""
        works = self._board.works(Filter(sessions=(id,))) if self._board is not None else ()
        for work in works:
            if work.owner and inspection.owner is not None and work.owner != inspection.owner:
                self._findings.append(Finding("board", id, f"session {id!r}, board", "it says another owner"))
            # One that was just given to another agent says so before the first checkpoint of that agent does.
            idle = not (work.queued or work.worker or work.tries or work.due or work.parked or work.paused)
            if idle and inspection.agent is not None and work.agent != inspection.agent:
                self._findings.append(Finding("board", id, f"session {id!r}, board", "it says another agent"))

    def _waiting(self, id: str) -> list[str]:
        return [entry.key for entry in self._kernel.store.inbox(id, 1 << 31)]

    def _blob(self, ref: str) -> str:
        if ref not in self._blobs:
            self._blobs[ref] = ""
            try:
                check_blob(ref, self._kernel.blobs.get_stream(ref))
            except NotFound:
                self._blobs[ref] = "it is missing"
            except Corrupted as e:
                self._blobs[ref] = e.what
        return self._blobs[ref]


SET_ASIDE = " (expired, and set aside)"
Place = tuple[int, int]
_PROJECTED = ("branch", "kind", "status", "at", "tool", "error", "takes", "blobs", "starts")


class Finding(NamedTuple):
    """One thing that is not as it was written."""

    kind: str
    """"corrupted", "blob" (missing or altered), "inbox", "board" (of a fleet), "lost" (the witness saw it, the store
    has it no more), or "witness" (a line of its file cannot be read)."""
    session: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.what}"


class Inspection:
    """One session under inspection. ``rows`` and ``blobs`` say afterwards what was found in it."""

    def __init__(self, kernel: Kernel, dump: Dump, *, aside: bool = False) -> None:
        self._kernel = kernel
        self._dump = dump
        self._aside = aside
        """Whether it is set aside: what it had not taken was left to whoever came after it."""
        self._id = dump.row.id
        self._packs = PackReader(kernel, self._id, dump.artifacts)
        self._bases = {(a.kind, a.line, a.hi): a for a in dump.artifacts if a.kind in (SNAPSHOT, ANCHOR)}
        self._lines: dict[int, list[tuple[Row, dict[str, Any]]]] = {}
        for row, shown in sorted(dump.rows, key=lambda r: r[0][:2]):
            self._lines.setdefault(row.line, []).append((row, shown))
        self._wanted = self._forks()
        self._kept: dict[Place, tuple[Point, bytes]] = {}
        self.envelopes: dict[Place, Envelope] = {}
        """The verified envelopes of all checkpoints that are intact, those in packs and anchors included."""
        self.findings: dict[tuple[str, str], Finding] = {}
        self.rows: dict[Place, Row] = {(row.line, row.step): row for row, _ in dump.rows}
        self.blobs: set[str] = set()
        self.life: int | None = None
        """Which of the session's lives it is in, as its first checkpoint says; None when that is not there."""
        self.owner: str | None = None
        self.agent: str | None = None
        """Whose it is and who works on it, as its checkpoints say; None when that is not known for certain."""
        self._tokens: dict[int, int] = {}
        """The highest token of a lease that each line was written under."""
        self._marks: list[Marks] = []
        """What its lines say at their ends of inputs that were taken."""

    def run(self) -> list[Finding]:
        """Inspect everything; the findings, each once."""
        try:
            count = max(self._lines, default=-1) + 1
            if self._dump.row.lines < count:
                self._note(
                    f"session {self._id!r}", f"the store says {self._dump.row.lines} lines, and there are {count}"
                )
            for line in range(max(self._dump.row.lines, count)):
                if line in self._lines:
                    self._line(line)
                else:
                    self._note(f"session {self._id!r}, line {line}", "it is missing")
            for artifact in self._dump.artifacts:
                self._artifact(artifact)
            self._pointers()
            self._named()
            self._inbox()
        except KeyMismatch as e:
            # Without the key nothing can be told, and saying so once for each row tells nothing more.
            self._note(f"session {self._id!r}", str(e))
        return list(self.findings.values())

    def covers(self, line: int, step: int) -> bool:
        """Whether retention has dropped a step, by the word of an anchor."""
        anchors = (a for a in self._bases.values() if a.kind == ANCHOR and a.line == line)
        return any(a.lo <= step < a.hi for a in anchors)

    def input(self, key: str, digest: str, since: dict[int, int], at: int) -> str:
        """What is wrong with an input that waited once; "" when it still does, or when a checkpoint took it.

        It waited at that time (ms); ``since`` says how far each branch's line went then.
        """
        entry = next((e for e in self._dump.inbox if e.key == key), None)
        if entry is None and any(e.kind == Kind.REVIVED and e.at >= at for e in self.envelopes.values()):
            # Another life took it meanwhile; the numbers tell whether any is missing since this one is back.
            return ""
        if entry is None:
            return "it is not there"
        if entry.digest.hex() != digest:
            return "it is another one"
        took = any(e.id == entry.taken and key in e.x.get("takes", ()) for e in self.envelopes.values())
        # Where retention dropped checkpoints made since, the one that took it may be among them. A line that was
        # no branch's then had been left before: nothing was added to it since.
        newest = max(since, default=-1)
        dropped = any(
            hi - 1 > since.get(line, hi if line < newest else 0) for kind, line, hi in self._bases if kind == ANCHOR
        )
        return "" if not entry.taken or took or dropped else "no checkpoint took it, as the store says"

    def _blame(self, error: PerdureError, where: str, kind: str = "corrupted") -> None:
        self._note(getattr(error, "where", where), getattr(error, "what", str(error)), kind)

    def _note(self, where: str, what: str, kind: str = "corrupted") -> None:
        self.findings.setdefault((where, what), Finding(kind, self._id, where, what))

    def _forks(self) -> dict[Place, bool]:
        """The checkpoints that lines start from; True where the state is needed there, not only the digest."""
        found: dict[Place, bool] = {}
        for rows in self._lines.values():
            try:
                env = codec.decode_envelope(rows[0][0].envelope, "")
            except PerdureError:
                continue
            if origin := env.x.get("from"):
                place = (origin[0], origin[1])
                found[place] = found.get(place, False) or env.kind != Kind.TAG
        return found

    # -- rows ---------------------------------------------------------------------------------------------------

    def _line(self, line: int) -> None:
        rows = self._lines[line]
        before, doc = self._start(rows[0][0])
        expected = rows[0][0].step
        for row, shown in rows:
            where = where_is(self._id, line, row.step)
            anchor = self._bases.get((ANCHOR, line, row.step)) if not row.envelope else None
            if row.step != (expected if anchor is None else row.step) or (anchor and anchor.lo != expected):
                self._note(where, f"step {expected} and what follows are missing before it")
                before, doc = None, None
            expected = row.step + 1
            if bool(row.envelope) != bool(row.payload):
                self._note(where, "half of it is missing")
            try:
                if anchor is not None:
                    point, doc = self._anchored(row, anchor, before, doc, where)
                elif before is None and row is not rows[0][0]:
                    # What it stands on is not there; the row after it vouches for this one.
                    before = _claim(self._id, row)
                    continue
                else:
                    point, body = open_row(self._kernel, self._id, row, self._packs, before)
                    self._take(body, point, doc)
                doc = self._snapshot(point, doc, where)
                self._projections(point.envelope, row is rows[0][0], shown, where)
            except KeyMismatch:
                raise
            except (Corrupted, UnsupportedFormat) as e:
                self._blame(e, where)
                before, doc = _claim(self._id, row), None
                continue
            before = point
            self._fence(row, where)
            self.envelopes[line, row.step] = point.envelope
            self._keep(point, doc)
        if doc is not None:
            self._marks.append(marks_of(doc))
        if line == 0 and (first := self.envelopes.get((0, rows[0][0].step))) is not None:
            self.life = first.x.get(LIFE, 0)

    def _fence(self, row: Row, where: str) -> None:
        """Tokens of leases only grow: whoever wrote under an older one than was used before had lost the session."""
        token = codec.token_of(row.payload)
        if token and token < self._tokens.get(row.line, 0):
            self._note(where, "it was written under an older lease than the checkpoint before it")
        self._tokens[row.line] = max(token, self._tokens.get(row.line, 0))

    def _start(self, row: Row) -> tuple[Point | None, dict[str, Any] | None]:
        """The checkpoint that a line starts from and its state, as far as they are known."""
        where = where_is(self._id, row.line, row.step)
        try:
            env = codec.decode_envelope(row.envelope, where)
        except PerdureError:
            return None, None
        origin = env.x.get("from")
        if origin is None:
            return None, genesis()
        place = (origin[0], origin[1])
        if place in self._kept:
            point, sealed = self._kept[place]
            return point, self._kernel.decode(codec.unseal(sealed, where), where) if sealed else None
        # A tag may outlive what it names, if that was asked for.
        if place not in self.rows and not (env.kind == Kind.TAG and self.covers(*place)):
            self._note(where, f"step {place[1]} of line {place[0]}, where its line starts from, is missing")
        return None, None

    def _keep(self, point: Point, doc: dict[str, Any] | None) -> None:
        place = (point.envelope.line, point.envelope.step)
        if place in self._wanted:
            sealed = codec.seal(codec.encode(doc)) if doc is not None and self._wanted[place] else b""
            self._kept[place] = (point, sealed)

    def _take(self, body: Body, point: Point, doc: dict[str, Any] | None) -> None:
        made = self._kernel.decode.refs_made
        ops, extra = payload_of(self._kernel, body, point)
        if self._kernel.decode.refs_made != made:
            self.blobs.update(_refs([ops, extra]))
        self.blobs.update(point.envelope.x.get("blobs", ()))
        if doc is not None:
            apply(ops, doc)

    def _anchored(
        self, row: Row, anchor: Artifact, before: Point | None, doc: dict[str, Any] | None, where: str
    ) -> tuple[Point, dict[str, Any] | None]:
        base = open_base(self._kernel, self._id, anchor)
        if (base.point.envelope.id, base.point.digest) != (row.id, row.digest):
            raise Corrupted(where, "its anchor is about another checkpoint")
        self.blobs.update(anchor.blobs)
        if base.skeleton is not None:
            return base.point, flesh_out(base.skeleton, self._packs)
        assert base.after is not None
        assert base.ops is not None
        if before is not None and (before.envelope.step, before.digest) != base.after:
            raise Corrupted(where, "its anchor stands on another checkpoint")
        if doc is not None:
            apply(base.ops, doc)
        return base.point, doc

    def _snapshot(self, point: Point, doc: dict[str, Any] | None, where: str) -> dict[str, Any] | None:
        """Compare the snapshot at a checkpoint, if there is one, with the state that the rows add up to."""
        snapshot = self._bases.get((SNAPSHOT, point.envelope.line, point.envelope.step))
        if snapshot is None:
            return doc
        try:
            base = open_base(self._kernel, self._id, snapshot)
            assert base.skeleton is not None
            said = flesh_out(base.skeleton, self._packs)
            same_place = (base.point.envelope.id, base.point.digest) == (point.envelope.id, point.digest)
            if not same_place or (doc is not None and codec.encode(said) != codec.encode(doc)):
                raise Corrupted(where, "the snapshot says another state than the checkpoints")
        except Corrupted as e:
            self._note(e.where, e.what)
            return doc
        return said if doc is None else doc

    def _projections(self, env: Envelope, starts: bool, shown: dict[str, Any], where: str) -> None:
        """What the store tells of a row without opening it must be what its envelope says."""
        x = env.x
        said = (env.branch, env.kind, env.status, env.at, str(x.get("tool", "")), str(x.get("error", "")),
                tuple(x.get("takes", ())), tuple(x.get("blobs", ())), starts)  # fmt: skip
        for name, value in zip(_PROJECTED, said, strict=True):
            told = tuple(shown[name]) if isinstance(value, tuple) else shown[name]
            if told != value:
                self._note(where, f"the store says another {name} than the checkpoint")

    # -- what is beside the rows --------------------------------------------------------------------------------

    def _artifact(self, artifact: Artifact) -> None:
        where = f"session {self._id!r}, {artifact.kind} of line {artifact.line}, steps {artifact.lo}-{artifact.hi}"
        try:
            if artifact.kind == PACK:
                self._packs.row(artifact.line, artifact.lo)
            elif artifact.kind in (SNAPSHOT, ANCHOR):
                row = self.rows.get((artifact.line, artifact.hi))
                if row is None or (artifact.kind == ANCHOR and row.envelope):
                    self._note(where, "it stands at no checkpoint")
                open_base(self._kernel, self._id, artifact)
        except (Corrupted, UnsupportedFormat) as e:
            self._blame(e, where)

    def _pointers(self) -> None:
        newest: dict[str, int] = {}
        for line, rows in self._lines.items():
            if (env := self.envelopes.get((line, rows[0][0].step))) is not None:
                newest[env.branch] = max(newest.get(env.branch, -1), line)
        heads = {h.branch: h for h in self._dump.row.heads}
        for branch in newest.keys() | heads.keys():
            name = f"tag {branch.removeprefix(TAG_PREFIX)!r}" if branch.startswith(TAG_PREFIX) else f"branch {branch!r}"
            where, head = f"session {self._id!r}, {name}", heads.get(branch)
            if head is None:
                self._note(where, "its pointer is missing")
            elif head.line != newest.get(branch, head.line):
                self._note(where, f"its pointer says line {head.line}, and its newest line is {newest[branch]}")
            else:
                rows = self._lines.get(head.line)
                if not rows or (rows[-1][0].step, rows[-1][0].id) != (head.step, head.id):
                    self._note(where, "its pointer is not at the end of its line")
        if self._dump.rows:
            self._standing(heads.get(MAIN))

    def _standing(self, main: Head | None) -> None:
        """What the store tells of the session must be what its checkpoints say."""
        last, row, where = self._dump.rows[-1][0], self._dump.row, f"session {self._id!r}"
        newest = self.envelopes.get((last.line, last.step))
        if newest is not None:
            self.owner = newest.owner
            if newest.owner != row.owner:
                self._note(where, "the store says another owner than its newest checkpoint")
            if not _same_end(row.expires, newest, self._kernel.clock.wall()):
                self._note(where, "the store says another end of its time than its newest checkpoint")
        if max(self._tokens.values(), default=0) > row.lease.token:
            self._note(where, "the store says an older lease than it was written under")
        self.agent = self._worked_on()
        if self.agent is not None and self.agent != row.agent:
            self._note(where, "the store says another agent than its checkpoints")
        # Where it stands is what main says; only without it, any branch does.
        env = self.envelopes.get((main.line, main.step)) if main is not None else newest
        if env is None:
            return
        said = (env.status, str(env.x.get("error", "")), str(env.x.get("label", "")))
        if said != (row.status, row.error, row.label):
            of = " of main" if main is not None else ""
            self._note(where, f"the store says another status, error or label than its newest checkpoint{of}")

    def _worked_on(self) -> str | None:
        """Who works on it, by the newest checkpoint that says so; None when the one that does may have been dropped."""
        found, has_main = "", False
        for row, _ in self._dump.rows:
            env = self.envelopes.get((row.line, row.step))
            if env is None:
                return None
            has_main = has_main or env.branch == MAIN
            if sets_session_status(env.branch, has_main):
                found = str(env.x.get("agent", "")) or found
        return found if found or not any(kind == ANCHOR for kind, _, _ in self._bases) else None

    def _named(self) -> None:
        """Checkpoints that others name, and that nothing else need stand on: retention keeps those, too."""
        ends = {rows[-1][0].id for rows in self._lines.values()}
        for (line, step), env in self.envelopes.items():
            if "leaves" in env.x and env.x["leaves"] not in ends:
                self._note(where_is(self._id, line, step), "the checkpoint that this rewind left is missing")
            if "with" in env.x:
                other = self.rows.get((env.x["with"][0], env.x["with"][1]))
                if other is None or other.id.hex() != env.x["with"][2]:
                    self._note(where_is(self._id, line, step), "the checkpoint that was merged here is missing")

    def _was_taken(self, entry: InboxEntry) -> bool:
        """Whether a checkpoint that retention has dropped may have taken it."""
        if not any(kind == ANCHOR for kind, _, _ in self._bases):
            return False
        stamp = Stamp(self._kernel.store_id, entry.seq)
        # In a copy its number is another one.
        others = any(origin != stamp.origin for marks in self._marks for origin in marks)
        return others or not self._marks or any(is_taken(marks, stamp) for marks in self._marks)

    def _numbers(self) -> None:
        """Inputs are numbered without gaps: one that is not there was deleted."""
        if not self._marks or self._aside:
            return
        ours = [marks.get(self._kernel.store_id, Mark(to=0, but={})) for marks in self._marks]
        there = {entry.seq for entry in self._dump.inbox}
        taken = max(mark["to"] for mark in ours)
        # What waits by the word of all lines: the one that took most knows of all others.
        wait = {int(number) for number in max(ours, key=lambda mark: mark["to"])["but"]}
        for mark in ours:
            wait = {number for number in wait if number > mark["to"] or str(number) in mark["but"]}
        gone = [(number, number) for number in sorted(wait - there)]
        later = sorted({taken, *(number for number in there if number > taken), max(taken, self._dump.row.posts) + 1})
        gone += [(one + 1, other - 1) for one, other in pairwise(later) if other - one > 1]
        if (last := max([taken, *there])) > self._dump.row.posts:
            what = f"the store says that {self._dump.row.posts} inputs were posted, and there is a number {last}"
            self._note(f"session {self._id!r}, inbox", what, "inbox")
        for first, last in gone:
            what = f"input number {first} was" if first == last else f"inputs number {first} to {last} were"
            self._note(f"session {self._id!r}, inbox", f"{what} never taken, and not there", "inbox")

    def _inbox(self) -> None:
        entries = {e.key: e for e in self._dump.inbox}
        highest: dict[str, int] = {}
        for entry in entries.values():
            if entry.taken:
                continue
            where = where_entry(entry)
            try:
                stamp = open_entry(self._kernel, entry).stamp
            except (Corrupted, UnsupportedFormat) as e:
                self._blame(e, where, "inbox")
                continue
            if any(is_taken(marks, stamp) for marks in self._marks):
                self._note(where, "a checkpoint has taken it, and the store says that it waits", "inbox")
            if stamp.number <= highest.get(stamp.origin, 0):
                self._note(where, "it does not stand where it came in", "inbox")
            highest[stamp.origin] = max(stamp.number, highest.get(stamp.origin, 0))
        self._numbers()
        takers = {env.id: env for env in self.envelopes.values()}
        for entry in entries.values():
            taker = takers.get(entry.taken) if entry.taken else None
            if (
                entry.taken
                and (taker is None or entry.key not in taker.x.get("takes", ()))
                and not self._was_taken(entry)
            ):
                self._note(where_entry(entry), "no checkpoint took it, as the store says", "inbox")
        for (line, step), env in self.envelopes.items():
            for key in env.x.get("takes", ()):
                entry = entries.get(key)
                if entry is None or entry.taken != env.id:
                    what = f"the inbox does not know that it took {key!r:.60}"
                    self._note(where_is(self._id, line, step), what, "inbox")


DAY = 86_400_000


def _same_end(expires: int | None, env: Envelope, now: int) -> bool:
    """Whether a session's time ends when its newest checkpoint says; the store's clock may differ from its writer's."""
    if expires is None or env.ttl is None:
        return expires == env.ttl
    end = env.at + env.ttl * 1000
    return abs(end - expires) <= DAY or max(end, expires) <= now


def _claim(session: str, row: Row) -> Point:
    """What a row says of itself: enough to see whether the row after it stands on it."""
    env = Envelope(1, session, row.id, None, row.line, row.step, "", "", 0, "", "", None, "", "", {})
    return Point(env, row.digest)


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, BlobRef):
        yield value.ref
    elif isinstance(value, dict | list):
        parts: Any = value.values() if isinstance(value, dict) else value  # pyright: ignore
        for part in parts:
            yield from _refs(part)
