"""Runs: a pass of work by key. An unfinished one is resumed, a finished one returns its recorded result.

A resumed run is its function run again from the top, over what is recorded: recorded commits are skipped and recorded
calls return their outcome, until the record ends.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import Diverged, Gone, Misuse, PerdureError
from perdure.history.hydrate import ancestry, load, payload_of
from perdure.history.reader import read_rows
from perdure.model import Kind, Status
from perdure.session.inbox import Message
from perdure.state.delta import SET, apply, diff
from perdure.state.document import BOOK, STATE, plain
from perdure.state.values import same
from perdure.system import faults
from perdure.system.flow import Do, Flow, Invoke
from perdure.system.names import check_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.kernel import Kernel
    from perdure.model import Envelope
    from perdure.record.codec import Loaded, Point
    from perdure.session.effects import Calls
    from perdure.session.journal import Journal

_CALLS = frozenset({Kind.STARTED, Kind.PLANNED, Kind.APPROVAL})


class Runs:
    """Functions run durably through a handle."""

    def __init__(self, journal: Journal, calls: Calls, handle: Any) -> None:
        self._journal = journal
        self._calls = calls
        self._handle = handle
        """What the function is given."""

    def run(self, key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Flow[Any]:
        """Run ``fn(session, ...)`` to its end, however often the process dies: call this again with the same key.

        The function is started from the top each time; calls it already made return their recorded outcome and
        commits it already made are skipped. It must make the same non-read calls in the same order until it has
        caught up, or ``Diverged`` is raised before anything happens.
        """
        self._journal.guard.check()
        check_name(key, "run key")
        if self._journal.run is not None:
            msg = f"run {self._journal.run!r} is under way on this handle: a run inside a run is a session of its own"
            raise Misuse(msg)
        yield from self._journal.resend()
        record = self._journal.book.get("runs", {}).get(key)
        if record is not None and record["status"] == "ended":
            return plain(record["result"])
        self._calls.number = 0
        self._journal.run = key
        try:
            if record is None:
                yield from self._journal.write(
                    Kind.RUN_STARTED, status=Status.RUNNING, edit=partial(self._start_run, key)
                )
            else:
                yield from self._catch_up(key, (record["at"][0], record["at"][1]))
            faults.point("run.before_function")
            result = yield Invoke(fn, (self._handle, *args), kwargs)
            faults.point("run.after_function")
            if self._journal.catching_up is not None:
                self._journal.catching_up.end()
            yield from self._end_run(key, result)
        except BaseException as error:
            if self._journal.catching_up is not None:
                yield from self._left(key, error)
            raise
        finally:
            self._journal.run = None
            self._journal.catching_up = None
        return result

    def _left(self, key: str, error: BaseException) -> Flow[None]:
        """A run has ended before it had caught up: the handle stands somewhere in its past, and goes to the head."""
        self._journal.stale = Misuse(
            f"run {key!r} of session {self._journal.id!r} was left before it had caught up with what it had recorded: "
            "reload() the handle, or open the session again, before you go on"
        )
        # Whoever is interrupted or cancelled wants no more work done.
        if isinstance(error, Exception):
            with suppress(PerdureError):
                yield from self._journal.reload()

    def _catch_up(self, key: str, base: tuple[int, int]) -> Flow[None]:
        assert self._journal.point is not None
        if self._journal.changed:
            raise Misuse(f"run {key!r} is resumed from its beginning: commit() or reload() the edits made before it")
        book = plain(self._journal.book)
        record = yield Do(read_record, (self._journal.kernel, self._journal.id, base, self._journal.point))
        loaded: Loaded = yield Do(load, (self._journal.kernel, self._journal.id, *base))
        assert loaded.point is not None
        # A run begun under an older schema is caught up with in the new one, step by step.
        older = loaded.point.envelope.schema != self._journal.settings.schema
        loose, upgrade = self._journal.unpacked, self._journal.kernel.upgrade if older else None
        self._journal.adopt(upgrade(loaded) if upgrade else loaded)
        self._journal.unpacked = loose
        self._journal.catching_up = CatchUp(self._journal, key, record, book, upgrade)

    def _start_run(self, key: str) -> None:
        at = [self._journal.line, self._journal.step + 1]
        self._journal.book.setdefault("runs", {})[key] = {"status": "open", "at": at}

    def _end_run(self, key: str, result: Any) -> Flow[None]:
        """Record the result. The run's calls will not be asked for again: only digests are kept, and what is open."""

        def edit() -> None:
            record = self._journal.book.get("runs", {}).get(key)
            if record is None:
                raise Misuse(f"run {key!r} was begun elsewhere than this handle stands: it was moved meanwhile")
            record.update(status="ended", result=result)
            self._calls.effects.retire(f"r:{key}:")

        yield from self._journal.write(Kind.RUN_ENDED, status=self._calls.effects.session_status, edit=edit)


class Recorded(NamedTuple):
    """One row of the record."""

    point: Point
    ops: list[Any]
    extra: dict[str, Any]


def read_record(kernel: Kernel, session: str, base: tuple[int, int], head: Point) -> list[Recorded]:
    """The rows after ``base`` up to ``head``, in order, across the lines between them."""
    env = head.envelope
    past = sorted(ancestry(kernel, session, env.line, env.step).items())
    out: list[Recorded] = []
    before: Point | None = load(kernel, session, *base).point
    for line, last in past:
        if line < base[0]:
            continue
        first = base[1] + 1 if line == base[0] else 1
        for point, body in read_rows(kernel, session, line, first, last, before):
            if body is None:
                what = (
                    f"session {session!r}: steps before {point.envelope.step} of line {line} were dropped by retention"
                )
                raise Gone(f"{what}, so a run that began before them cannot be caught up with", "retention")
            out.append(Recorded(point, *payload_of(kernel, body, point)))
            before = point
    return out


class CatchUp:
    """A run being caught up with."""

    def __init__(
        self, journal: Journal, run: str, record: list[Recorded], book: dict[str, Any],
        upgrade: Callable[[Loaded], Loaded] | None,
    ) -> None:  # fmt: skip
        self._journal = journal
        self._what = f"run {run!r} of session {journal.id!r}"
        self._record = record
        self._book = book
        self._upgrade = upgrade
        self._called: set[str] = set()
        self._given = False
        """Whether the next commit takes messages."""
        self._at = 0

    def _next(self) -> tuple[int | None, bool]:
        """The place of the next recorded commit, unless a call comes first; whether anything is left to follow."""
        for i in range(self._at, len(self._record)):
            env = self._record[i].point.envelope
            if env.kind == Kind.COMMIT:
                return i, True
            if env.kind in _CALLS and env.x.get("effect") not in self._called:
                return None, True
        return None, False

    def _find(self, wanted: Callable[[Envelope], bool]) -> int | None:
        return next((i for i in range(self._at, len(self._record)) if wanted(self._record[i].point.envelope)), None)

    def took(self) -> list[Message] | None:
        """What the next recorded commit took from the inbox; None when there is none left to follow."""
        i, left = self._next()
        took = [Message(*e) for e in self._record[i].extra.get("took", ())] if i is not None else []
        self._given = self._given or bool(took)
        return took if left else None

    def commit(self, *, empty: bool) -> Flow[bool]:
        """Skip a recorded commit; False when none is left and this one is new. An ``empty`` one left no record."""
        i, left = self._next()
        if not left:
            self.end()
            return False
        if i is not None and (self._given or not empty):
            yield from self._advance(i)
            self._given = False
        return True

    def call(self, slot: str, tool: str, digest: str) -> Flow[None]:
        """Check a call against the record; nothing happens here but catching up to it."""
        recorded = self._book.get("effects", {}).get(slot)
        if recorded is None:
            self.end()
            return
        if recorded.get("asked", recorded["digest"]) != digest:
            raise Diverged(
                f"{self._what}: call {slot.rpartition(':')[2]} was {recorded['tool']} with other "
                f"arguments than this call of {tool}. A resumed run must make the same calls in the same order"
            )
        self._called.update(_ids(recorded))
        i = self._find(lambda e: e.kind in _CALLS and e.x.get("effect") == recorded["id"])
        if i is not None:
            yield from self._advance(i)
        if recorded["status"] not in ("done", "failed", "raised", "unknown"):
            # It must be settled before anything else, and settling it is written on top of all that is recorded.
            self._called.update(id for r in self._book["effects"].values() for id in _ids(r))
            self.end()
            return
        # The outcome may stand further on in the record; the caller needs it now.
        root = self._journal.document.root
        if "effects" not in root[BOOK]:
            apply([[SET, [BOOK, "effects"], {}]], root)
        apply([[SET, [BOOK, "effects", slot], recorded]], root)

    def end(self) -> None:
        """Leave the record behind: everything in it must have been repeated by now, and from here on things happen."""
        left = [r.point.envelope for r in self._record[self._at :]]
        missed = [
            e
            for e in left
            if e.kind == Kind.COMMIT or (e.kind == Kind.STARTED and e.x.get("effect") not in self._called)
        ]
        if missed:
            raise Diverged(
                f"{self._what}: the recorded run had done {len(missed)} more commits or calls "
                f"(the next at step {missed[0].step}). A resumed run must make the same calls in the same order"
            )
        for entry in self._record[self._at :]:
            apply([op for op in entry.ops if op[1][0] == BOOK], self._journal.document.root)
            self._journal.point = entry.point
        self._at = len(self._record)
        self._journal.catching_up = None

    def _advance(self, i: int) -> Flow[None]:
        """Move to the recorded row ``i``; what the function edited gives way to what was recorded."""
        rows = self._record[self._at : i + 1]
        mine = [plain(op) for op in self._journal.document.collect() if op[1][0] == STATE]
        theirs = [plain(op) for r in rows for op in r.ops if op[1][0] == STATE]
        if self._upgrade is not None or not same(mine, theirs):
            env = rows[-1].point.envelope
            loaded: Loaded = yield Do(load, (self._journal.kernel, self._journal.id, env.line, env.step))
            if self._upgrade is not None:
                loaded = self._upgrade(loaded)
            apply(diff(self._journal.document.root[STATE], loaded.doc[STATE], (STATE,)), self._journal.document.root)
        for r in rows:
            apply([op for op in r.ops if op[1][0] == BOOK], self._journal.document.root)
        self._journal.document.settle()
        self._journal.point = rows[-1].point
        self._at = i + 1


def _ids(record: dict[str, Any]) -> list[str]:
    """The ids an effect has gone by: it gets another one where a line goes on with what it found begun."""
    return [record["id"], *record.get("was", ())]
