"""Branches: fork, rewind, switch, tag and merge. Pointers move; nothing is copied and nothing is rewritten."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.errors import (
    Conflict,
    InvalidInput,
    LeaseError,
    MergeConflict,
    Misuse,
    NotFound,
    PerdureError,
    Unavailable,
)
from perdure.history.checkpoint import Checkpoint
from perdure.history.hydrate import ancestry, load, load_head, locate, look
from perdure.model import TAG_PREFIX, Append, Kind, SessionRow
from perdure.record import codec
from perdure.record.codec import Loaded, Point, seal_commit
from perdure.session.calls.left_behind import carried, status_with
from perdure.session.calls.other_branches import done_elsewhere
from perdure.session.journal import Pending, sent, still_unknown, whose
from perdure.session.taken import marks_of, start
from perdure.session.waiting_messages import UNSAID, left_behind
from perdure.state.delta import apply, diff
from perdure.state.document import BOOK, STATE, edit, plain
from perdure.state.merge import Clash, merge
from perdure.state.values import same
from perdure.system import faults
from perdure.system.flow import Do, Flow, Write
from perdure.system.names import check_branch, check_name
from perdure.system.wording import count

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.session.journal import Journal

R = TypeVar("R")
_ADVICE = {"both": 'both sides can be kept of lists that only grew: pass prefer="ours" or "theirs"'}
"""What is said of a conflict, by what was preferred."""


class Line:
    """The sealed beginning of a line on its way into the store: until its fate is known, it is sent as it is."""

    def __init__(self, item: Append, point: Point, left: Loaded | None) -> None:
        self.item = item
        self.point = point
        self.left = left
        """Where a rewind goes back to: once it has landed, that is where the handle stands."""
        self.unsure = False
        """Whether it may have landed: some answer to it was lost."""


class Branches:
    """The branches of a session: added, moved and merged through its handle."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._beginning: Line | None = None

    def fork(self, name: str, at: int | str | None = None) -> Flow[Checkpoint]:
        """Start a branch at a step (or tag, branch, id) of this one; None: at its head. This handle stays put."""
        return (yield from self._alone(self._start_line(check_branch(name), at, Kind.FORK)))

    def tag(self, name: str, at: int | str | None = None) -> Flow[Checkpoint]:
        """Give a checkpoint a name that never moves."""
        return (yield from self._alone(self._start_line(TAG_PREFIX + check_name(name, "tag"), at, Kind.TAG)))

    def rewind(self, at: int | str) -> Flow[Checkpoint]:
        """Go on from an earlier checkpoint. What was left stays in the history, under the tip's id."""
        return (yield from self._alone(self._rewind(at)))

    def _rewind(self, at: int | str) -> Flow[Checkpoint]:
        asked = (Kind.REWIND, at)
        if (done := (yield from self._ready("rewind", asked))) is not None:
            return done
        tip = self._newest().envelope.id
        row, loaded = yield from self._locate(at)
        assert loaded.point is not None
        self._movable("rewind")
        branch, x = self._journal.branch, dict[str, Any](leaves=tip)
        if unsaid := (yield Do(left_behind, (self._journal.kernel, row, branch, loaded.point.envelope))):
            # They stay taken: whoever says one of them again is told so, and not that its answer is to come.
            x[UNSAID] = unsaid
        return (yield from self._append_line(branch, row, loaded.point, asked, x, tip, loaded))

    def switch(self, branch: str) -> Flow[Checkpoint | None]:
        """Move this handle to the head of another branch."""
        return (yield from self._alone(self._switch(branch)))

    def _switch(self, branch: str) -> Flow[Checkpoint | None]:
        yield from self._ready("switch")
        row = yield Do(look, (self._journal.kernel, self._journal.id))
        loaded: Loaded = yield Do(load_head, (self._journal.kernel, row, branch))
        self._movable("switch")
        self._journal.branch = branch
        self._journal.adopt(loaded)
        return self._journal.head

    def merge(self, other: str, prefer: str | Callable[[Clash], Any] | None = None) -> Flow[Checkpoint]:
        """Bring what another branch (or tag, or step) changed since the two parted into this one, as one commit.

        Where there is nothing that this one does not have, nothing is written, and its head is answered as it was.
        Where both changed the same path, ``MergeConflict`` lists the paths and nothing is written; ``prefer``
        settles them: "ours", "theirs", "both" (lists that only grew), or a function of the clash.
        """
        return (yield from self._alone(self._merge(other, prefer)))

    def _merge(self, other: str, prefer: str | Callable[[Clash], Any] | None) -> Flow[Checkpoint]:
        asked = (Kind.MERGE, other, prefer)
        if (done := (yield from self._ready("merge", asked))) is not None:
            return done
        mine = self._newest().envelope
        row, theirs = yield from self._locate(other)
        assert theirs.point is not None
        if not any((h.branch, h.id) == (self._journal.branch, mine.id) for h in row.heads):
            raise whose(self._overtaken(row))
        base: Loaded = yield Do(self._common, (theirs.point, plain(theirs.doc[BOOK].get("merges", []))))
        state = self._journal.document.root[STATE]
        if same(plain(base.doc[STATE]), plain(theirs.doc[STATE])):
            return Checkpoint(self._newest())
        merged, clashes = merge(plain(base.doc[STATE]), state.plain(), plain(theirs.doc[STATE]), prefer)
        if clashes:
            shown = ", ".join(str(c) for c in clashes[:5])
            sides = f"between {self._journal.branch!r} and {other!r}"
            found = count(len(clashes), "conflicting path")
            msg = f"{found} {sides}: {shown}; {_ADVICE.get(str(prefer), 'pass prefer=')}"
            raise MergeConflict(msg, clashes, self._journal.head)
        edit(diff(state.plain(), merged), state)
        env = theirs.point.envelope
        self._journal.book.setdefault("merges", []).append([env.line, env.step])
        x = {"with": [env.line, env.step, env.id.hex()]}
        return (yield from self._journal.write_inside(Kind.MERGE, x=x, asked=asked))

    def _alone(self, flow: Flow[R]) -> Flow[R]:
        """From the first look to the last write inside the gate: no other task or thread of this handle comes between
        the head that was looked at and what is built on it."""
        self._journal.guard.check()
        return (yield from self._journal.within(flow))

    def _ready(self, what: str, asked: tuple[Any, ...] = ()) -> Flow[Checkpoint | None]:
        """Before a handle moves: nothing of it may be left behind. Answers like :meth:`_again`."""
        self._movable(what)
        return (yield from self._again(asked))

    def _movable(self, what: str) -> None:
        if self._journal.run is not None:
            raise Misuse(f"{what} is not possible inside a run: end it first")
        if self._journal.changed:
            raise Misuse(f"there are edits that are not committed: commit() or reload() before {what}")

    def _again(self, asked: tuple[Any, ...]) -> Flow[Checkpoint | None]:
        """Settle what we never learnt the fate of; its checkpoint if it is the very thing that is asked for now."""
        journal = self._journal
        pending = journal.pending
        if pending is None:
            if journal.held:
                yield from journal.settle()
            return None
        if pending.asked != asked:
            yield from journal.settle()
            return None
        if pending.settle is not None and self._beginning is not None:
            yield from self._send(self._beginning)
        else:
            yield from journal.settle()
        return Checkpoint(pending.point)

    def _settle(self) -> Flow[None]:
        """Find out what became of the beginning of a line that nobody asks for any more."""
        assert self._beginning is not None
        if self._beginning.unsure:
            yield from self._send(self._beginning, settling=True)
        else:
            # The store said that nothing was written.
            self._forget()

    def _forget(self) -> None:
        # In this order: what is pending asks for its beginning.
        self._journal.pending = None
        self._beginning = None

    def _send(self, line: Line, *, settling: bool = False) -> Flow[None]:
        journal = self._journal
        if line.unsure and journal.lease is None and not (yield Do(self._stands, (line,))):
            # Only a lease keeps a session from ending meanwhile: no line starts from what is gone.
            self._forget()
            raise whose(self._overtaken((yield Do(journal.kernel.store.look, (journal.id,)))))
        try:
            faults.point("branch.before_write")
            sent.append(line.item.id)
            answer: Any = yield Write(line.item)
            faults.point("branch.after_write")
            if isinstance(answer, PerdureError):
                raise whose(answer)
        except (Conflict, LeaseError, InvalidInput):
            # Refused, and it had not landed before: that is looked at first.
            self._forget()
            raise
        except Unavailable as error:
            if line.unsure:
                raise still_unknown(line.item, error) from error
            raise
        except BaseException:
            line.unsure = True
            raise
        self._forget()
        if journal.caretaker is not None:
            journal.caretaker.landed(line.point, journal.calls)
        if line.left is None:
            return
        if journal.changed or (settling and (journal.document.collect() or journal.takes)):
            journal.stale = Conflict(
                f"session {journal.id!r}: the rewind has landed, and the edits made since it was asked for stand "
                "on what it left; reload() and make them again",
                journal.head,
            )
            raise journal.stale
        journal.adopt(Loaded(line.left.doc, line.point, line.left.loose))

    def _stands(self, line: Line) -> bool:
        """Whether a line has landed, or what it starts from is still there."""
        env = line.point.envelope
        origin = env.x["from"]
        for place, step, digest in ((env.line, env.step, line.point.digest), origin):
            with contextlib.suppress(NotFound):
                if any(
                    row.digest == digest
                    for row in self._journal.kernel.store.slice(self._journal.id, place, step, step).rows
                ):
                    return True
        return False

    def _overtaken(self, row: SessionRow | None) -> Conflict:
        head = next((h for h in row.heads if h.branch == self._journal.branch), None) if row else None
        return Conflict(
            f"session {self._journal.id!r}, branch {self._journal.branch!r}: the head has moved, and this handle "
            "is behind; nothing was written; reload() and do it again",
            head,
        )

    def _newest(self) -> Point:
        if self._journal.point is None:
            raise NotFound(f"session {self._journal.id!r} has no checkpoint yet: commit() first")
        return self._journal.point

    def _locate(self, at: int | str | None) -> Flow[tuple[SessionRow, Loaded]]:
        row: SessionRow = yield Do(look, (self._journal.kernel, self._journal.id))
        line, step = yield Do(locate, (self._journal.kernel, row, at, self._journal.branch))
        loaded: Loaded = yield Do(load, (self._journal.kernel, self._journal.id, line, step))
        return row, loaded

    def _start_line(self, name: str, at: int | str | None, kind: str) -> Flow[Checkpoint]:
        asked = (kind, name, at)
        if (done := (yield from self._again(asked))) is not None:
            return done
        point = self._newest()
        if at is None or (type(at) is int and at == self._journal.step):
            row: SessionRow = yield Do(look, (self._journal.kernel, self._journal.id))
            if not any(h.id == point.envelope.id for h in row.heads):
                # Others have moved on since, and retention may have dropped it, or the session has expired and
                # begun anew: no line starts from what is gone.
                there: Loaded = yield Do(
                    load, (self._journal.kernel, self._journal.id, point.envelope.line, point.envelope.step)
                )
                if there.point is None or there.point.digest != point.digest:
                    raise whose(self._overtaken(row))
        else:
            row, loaded = yield from self._locate(at)
            assert loaded.point is not None
            point = loaded.point
        if any(h.branch == name for h in row.heads):
            what = "tag" if kind == Kind.TAG else "branch"
            named = f"a {what} {name.removeprefix(TAG_PREFIX)!r}"
            msg = f"session {self._journal.id!r} already has {named}: choose another name"
            raise Conflict(msg, next(h for h in row.heads if h.branch == name))
        return (yield from self._append_line(name, row, point, asked, {}, None))

    def _append_line(
        self, branch: str, row: SessionRow, before: Point, asked: tuple[Any, ...], x: dict[str, Any],
        expect: bytes | None, left: Loaded | None = None,
    ) -> Flow[Checkpoint]:  # fmt: skip
        journal = self._journal
        ops: list[Any] = []
        status = before.envelope.status
        if left is not None:
            # All goes back to what it was, but inputs that were taken stay taken, and what nobody knows stays open.
            at = (journal.line, journal.step)
            known = yield Do(done_elsewhere, (journal.kernel, journal.id, at, journal.book))
            ops = carried(journal.book, left.doc[BOOK], known)
            status = status_with(status, ops)
            if (taken := marks_of(journal.document.root)) != marks_of(left.doc):
                ops += start(taken)

        yield from journal.settle()
        body, blobs = codec.encode_commit(ops, {}, journal.kernel.form)
        if left is not None:
            apply(ops, left.doc)
        if blobs:
            x["blobs"] = sorted(blobs)
            for ref, held in blobs.items():
                yield Do(journal.kernel.keep, (ref, held))
        # The branch stands where that checkpoint did, unless a call is in doubt that was made since; of the session
        # only a rewind of main says so.
        item, point = seal_commit(
            journal.kernel.keys, journal.kernel.store_id, journal.kernel.clock.wall(), journal.id, branch, before,
            asked[0], body, x, journal.lasting(status, x), status, journal.fence,
            line=row.lines, expect=expect,
        )  # fmt: skip
        self._beginning = Line(item, point, left)
        journal.pending = Pending(item, point, blobs, asked, self._settle)
        yield from self._send(self._beginning)
        return Checkpoint(point)

    def _common(self, theirs: Point, their_merges: list[list[int]]) -> Loaded:
        """The newest checkpoint that both sides stand on, earlier merges included.

        Of the checkpoints both stand on, those that another one of them stands on are not the newest. More than one
        may be left when two branches were merged into each other crosswise: then the one with more steps is taken.
        """
        assert self._journal.point is not None
        ours = self._reach(self._journal.point, plain(self._journal.book.get("merges", [])))
        other = self._reach(theirs, their_merges)
        common = {line: min(ours[line], other[line]) for line in ours if line in other}
        found: dict[int, tuple[Loaded, dict[int, int]]] = {}
        for line, step in common.items():
            loaded = load(self._journal.kernel, self._journal.id, line, step)
            assert loaded.point is not None
            found[line] = (loaded, self._reach(loaded.point, plain(loaded.doc[BOOK].get("merges", []))))
        newest = [
            line
            for line, step in common.items()
            if not any(reach.get(line, 0) >= step for other, (_, reach) in found.items() if other != line)
        ]
        return found[max(newest, key=lambda line: (common[line], line))][0]

    def _reach(self, point: Point, merges: list[list[int]]) -> dict[int, int]:
        """The lines whose changes are in a checkpoint, each with the last step of it that is."""
        reach = ancestry(self._journal.kernel, self._journal.id, point.envelope.line, point.envelope.step)
        for line, step in merges:
            for k, v in ancestry(self._journal.kernel, self._journal.id, line, step).items():
                reach[k] = max(reach.get(k, 0), v)
        return reach
