"""Branches: fork, rewind, switch, tag and merge. Pointers move; nothing is copied and nothing is rewritten."""

# pyright: reportPrivateUsage=false
# The handle is one thing in several rooms: they share its inner parts.
from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

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
from perdure.record.commit import Loaded, Point, seal_commit
from perdure.session.journal import SessionCore
from perdure.state.delta import diff
from perdure.state.document import BOOK, STATE, edit, plain
from perdure.state.merge import Clash, merge
from perdure.system import faults
from perdure.system.flow import Do, Enter, Flow, Write
from perdure.system.names import check_branch, check_name

if TYPE_CHECKING:
    from collections.abc import Callable

_EMPTY: list[Any] = [[], None]


class Line(NamedTuple):
    """The sealed beginning of a line on its way into the store: until its fate is known, it is sent as it is."""

    item: Append
    point: Point
    left: Loaded | None
    """Where a rewind goes back to: once it has landed, that is where the handle stands."""
    unsure: bool = False
    """Whether it may have landed: some answer to it was lost."""


class Branching(SessionCore):
    """The flows of a handle that add and move branches."""

    _beginning: Line | None = None

    def _fork_flow(self, name: str, at: int | str | None = None) -> Flow[Checkpoint]:
        """Start a branch at a step (or tag, branch, id) of this one; None: at its head. This handle stays put."""
        return (yield from self._start_line(check_branch(name), at, Kind.FORK))

    def _tag_flow(self, name: str, at: int | str | None = None) -> Flow[Checkpoint]:
        """Give a checkpoint a name that never moves."""
        return (yield from self._start_line(TAG_PREFIX + check_name(name, "tag"), at, Kind.TAG))

    def _rewind_flow(self, at: int | str) -> Flow[Checkpoint]:
        """Go on from an earlier checkpoint. What was left stays in the history, under the tip's id."""
        asked = (Kind.REWIND, at)
        if (done := (yield from self._ready("rewind", asked))) is not None:
            return done
        tip = self._newest().envelope.id
        row, loaded = yield from self._locate(at)
        assert loaded.point is not None
        return (yield from self._append_line(self.branch, row, loaded.point, asked, {"leaves": tip}, tip, loaded))

    def _switch_flow(self, branch: str) -> Flow[Checkpoint | None]:
        """Move this handle to the head of another branch."""
        yield from self._ready("switch")
        row = yield Do(look, (self.kernel, self.id))
        loaded: Loaded = yield Do(load_head, (self.kernel, row, branch))
        self.branch = branch
        self._adopt(loaded)
        return self.head

    def _merge_flow(self, other: str, prefer: str | Callable[[Clash], Any] | None = None) -> Flow[Checkpoint]:
        """Bring what another branch (or tag, or step) changed since the two parted into this one, as one commit.

        Where both changed the same path, ``MergeConflict`` lists the paths and nothing is written; ``prefer``
        settles them: "ours", "theirs", "both" (lists that only grew), or a function of the clash.
        """
        asked = (Kind.MERGE, other, prefer)
        if (done := (yield from self._ready("merge", asked))) is not None:
            return done
        mine = self._newest().envelope
        row, theirs = yield from self._locate(other)
        assert theirs.point is not None
        if not any((h.branch, h.id) == (self.branch, mine.id) for h in row.heads):
            raise self._overtaken(row)
        base: Loaded = yield Do(self._common, (theirs.point, plain(theirs.doc[BOOK].get("merges", []))))
        merged, clashes = merge(plain(base.doc[STATE]), self.state.plain(), plain(theirs.doc[STATE]), prefer)
        if clashes:
            shown = ", ".join(str(c) for c in clashes[:5])
            msg = f"{len(clashes)} conflicting paths between {self.branch!r} and {other!r}: {shown}; pass prefer="
            raise MergeConflict(msg, clashes, self.head)
        edit(diff(self.state.plain(), merged), self.state)
        env = theirs.point.envelope
        self._book.setdefault("merges", []).append([env.line, env.step])
        return (yield from self._write(Kind.MERGE, x={"with": [env.line, env.step, env.id.hex()]}, asked=asked))

    def _ready(self, what: str, asked: tuple[Any, ...] = ()) -> Flow[Checkpoint | None]:
        """Before a handle moves: nothing of it may be left behind. Answers like :meth:`_again`."""
        self._usable()
        if self._run is not None:
            msg = f"{what} is not possible inside a run: end it first"
            raise Misuse(msg)
        if self.changed:
            msg = f"there are edits that are not committed: commit() or reload() before {what}"
            raise Misuse(msg)
        return (yield from self._again(asked))

    def _again(self, asked: tuple[Any, ...]) -> Flow[Checkpoint | None]:
        """Settle what we never learnt the fate of; its checkpoint if it is the very thing that is asked for now."""
        if self._pending is None:
            return None
        yield Enter(self._gate)
        try:
            # Another task of this handle may have settled it while we waited.
            pending: Any = self._pending
            if pending is None or self._asked != asked:
                yield from self._settle_pending()
                return None
            point: Point = pending[1]
            if self._beginning is not None and self._is_line_pending():
                yield from self._send_line(self._beginning)
            else:
                yield from self._settle_pending()
            return Checkpoint(point)
        finally:
            self._gate.release()

    def _is_line_pending(self) -> bool:
        return self._beginning is not None and self._pending is not None and self._pending[0] is self._beginning.item

    def _send(self) -> Flow[None]:
        if self._beginning is None or not self._is_line_pending():
            yield from super()._send()
        elif self._beginning.unsure:
            yield from self._send_line(self._beginning, settling=True)
        else:
            # The store said that nothing was written, and nobody asks for it any more.
            self._beginning = self._pending = None

    def _send_line(self, line: Line, *, settling: bool = False) -> Flow[None]:
        if line.unsure and self._lease is None and not (yield Do(self._stands, (line,))):
            # Only a lease keeps a session from ending meanwhile: no line starts from what is gone.
            self._beginning = self._pending = None
            raise self._overtaken((yield Do(self.kernel.store.look, (self.id,))))
        try:
            faults.point("branch.before_write")
            answer: Any = yield Write(line.item)
            faults.point("branch.after_write")
            if isinstance(answer, PerdureError):
                raise answer
        except (Conflict, LeaseError, InvalidInput):
            # Refused, and it had not landed before: that is looked at first.
            self._beginning = self._pending = None
            raise
        except Unavailable:
            raise
        except BaseException:
            self._beginning = line._replace(unsure=True)
            raise
        self._beginning = self._pending = None
        if self._on_point is not None:
            self._on_point(line.point)
        if line.left is None:
            return
        if settling and (self.document.collect() or self._taking):
            self._stale = Conflict(
                f"session {self.id!r}: the rewind whose answer was lost has landed, and the edits made since stand on "
                "what it left; reload() and make them again",
                self.head,
            )
            raise self._stale
        self._adopt(Loaded(line.left.doc, line.point, line.left.loose))

    def _stands(self, line: Line) -> bool:
        """Whether a line has landed, or what it starts from is still there."""
        env = line.point.envelope
        origin = env.x["from"]
        for place, step, digest in ((env.line, env.step, line.point.digest), origin):
            with contextlib.suppress(NotFound):
                if any(row.digest == digest for row in self.kernel.store.slice(self.id, place, step, step).rows):
                    return True
        return False

    def _overtaken(self, row: SessionRow | None) -> Conflict:
        head = next((h for h in row.heads if h.branch == self.branch), None) if row else None
        return Conflict(
            f"session {self.id!r}, branch {self.branch!r}: another writer was first, and this handle is behind; "
            "nothing was written; reload() and do it again",
            head,
        )

    def _newest(self) -> Point:
        if self._point is None:
            msg = f"session {self.id!r} has no checkpoint yet: commit() first"
            raise NotFound(msg)
        return self._point

    def _locate(self, at: int | str | None) -> Flow[tuple[SessionRow, Loaded]]:
        row: SessionRow = yield Do(look, (self.kernel, self.id))
        line, step = yield Do(locate, (self.kernel, row, at, self.branch))
        loaded: Loaded = yield Do(load, (self.kernel, self.id, line, step))
        return row, loaded

    def _start_line(self, name: str, at: int | str | None, kind: str) -> Flow[Checkpoint]:
        self._usable()
        asked = (kind, name, at)
        if (done := (yield from self._again(asked))) is not None:
            return done
        point = self._newest()
        if at is None or (type(at) is int and at == self.step):
            row: SessionRow = yield Do(look, (self.kernel, self.id))
            if not any(h.id == point.envelope.id for h in row.heads):
                # Others have moved on since, and retention may have dropped it, or the session has expired and
                # begun anew: no line starts from what is gone.
                there: Loaded = yield Do(load, (self.kernel, self.id, point.envelope.line, point.envelope.step))
                if there.point is None or there.point.digest != point.digest:
                    raise self._overtaken(row)
        else:
            row, loaded = yield from self._locate(at)
            assert loaded.point is not None
            point = loaded.point
        if any(h.branch == name for h in row.heads):
            what = "tag" if kind == Kind.TAG else "branch"
            msg = f"session {self.id!r} already has a {what} {name.removeprefix(TAG_PREFIX)!r}: choose another name"
            raise Conflict(msg, next(h for h in row.heads if h.branch == name))
        return (yield from self._append_line(name, row, point, asked, {}, None))

    def _append_line(
        self, branch: str, row: SessionRow, before: Point, asked: tuple[Any, ...], x: dict[str, Any],
        expect: bytes | None, left: Loaded | None = None,
    ) -> Flow[Checkpoint]:  # fmt: skip
        yield Enter(self._gate)
        try:
            yield from self._settle_pending()
            body = codec.encode(_EMPTY, self.kernel.form)
            # The branch stands where that checkpoint did; of the session only a rewind of main says so.
            item, point = seal_commit(
                self.kernel.keys, self.kernel.clock.wall(), self.id, branch, before, asked[0], body, x, self._settings,
                before.envelope.status, self.fence, line=row.lines, expect=expect,
            )  # fmt: skip
            self._beginning = Line(item, point, left)
            self._pending, self._asked = (item, point, {}), asked
            yield from self._send_line(self._beginning)
            return Checkpoint(point)
        finally:
            self._gate.release()

    def _common(self, theirs: Point, their_merges: list[list[int]]) -> Loaded:
        """The newest checkpoint that both sides stand on, earlier merges included.

        Of the checkpoints both stand on, those that another one of them stands on are not the newest. More than one
        may be left when two branches were merged into each other crosswise: then the one with more steps is taken.
        """
        assert self._point is not None
        ours = self._reach(self._point, plain(self._book.get("merges", [])))
        other = self._reach(theirs, their_merges)
        common = {line: min(ours[line], other[line]) for line in ours if line in other}
        found: dict[int, tuple[Loaded, dict[int, int]]] = {}
        for line, step in common.items():
            loaded = load(self.kernel, self.id, line, step)
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
        reach = ancestry(self.kernel, self.id, point.envelope.line, point.envelope.step)
        for line, step in merges:
            for k, v in ancestry(self.kernel, self.id, line, step).items():
                reach[k] = max(reach.get(k, 0), v)
        return reach
