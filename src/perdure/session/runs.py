"""Runs: a pass of work by key. An unfinished one is resumed, a finished one returns its recorded result.

A resumed run is its function run again from the top, over what is recorded: recorded commits are skipped and recorded
calls return their outcome, until the record ends. Long because how a run is begun, repeated and left is one thing.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext, suppress
from functools import partial
from time import sleep
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from perdure.errors import Corrupted, Diverged, Gone, Misuse, PerdureError, format_path
from perdure.history.hydrate import ancestry, load, payload_of
from perdure.history.reader import read_rows
from perdure.model import Kind, Status
from perdure.session.calls.identity import is_unknown
from perdure.session.calls.records import ENDED_RUN, OPEN, is_ahead, is_asked_again, run_of
from perdure.session.inbox import Message
from perdure.session.journal import LEFT
from perdure.session.strands import BESIDE, TOOK, Strands
from perdure.session.tools.call_state import WRITES
from perdure.session.wakes import TOLD
from perdure.state.delta import APPEND, DEL, SET, SPLICE, apply, diff
from perdure.state.document import BOOK, STATE, edit, hold_as_edits, plain
from perdure.state.merge import merge
from perdure.state.values import same
from perdure.system import faults
from perdure.system.flow import Do, Flow, Invoke, entered
from perdure.system.names import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from perdure.kernel import Kernel
    from perdure.model import Envelope
    from perdure.record.codec import Loaded, Point
    from perdure.session.calls.calls import Calls
    from perdure.session.calls.identity import Asked
    from perdure.session.journal import Journal
    from perdure.session.strands import Got

R = TypeVar("R")
LOOKS, PAUSE = 15_000, 0.002
"""How often a task that catches up looks whether those beside it have done what was recorded before it, and seconds
between: they are given their turn, and a program that is another one is not waited for long."""
ASKS = 500
"""As often when it takes messages: that there are none yet is an answer, too."""
_CALLS = frozenset({Kind.STARTED, Kind.PLANNED, Kind.APPROVAL})
SAME_CALLS = (
    "A resumed run must make the same calls in the same order: what they depend on must be the same again, so put "
    "times, random numbers and what may change outside into s.vars, commit(), and read it from there"
)
"""What is said of a run that does not repeat itself."""


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
        if record is not None and (self._journal.changed or self._journal.takes):
            raise Misuse(
                f"run {key!r} is resumed, and there are edits or messages that were not committed before it: commit() "
                "keeps them, reload() throws them away; then the run goes on"
            )
        self._calls.of_run.begin(key)
        self._journal.strands = strands = Strands(self._calls)
        self._journal.document.told = strands.is_beside
        begun = False
        self._journal.run = key
        try:
            if record is None:
                yield from self._journal.write(
                    Kind.RUN_STARTED, status=Status.RUNNING, edit=partial(self._start_run, key)
                )
            else:
                yield from self._catch_up(key, (record["at"][0], record["at"][1]))
            faults.point("run.before_function")
            begun = True
            result = yield Invoke(fn, (self._handle, *args), kwargs)
            faults.point("run.after_function")
            if self._journal.catching_up is not None:
                yield from self._journal.catching_up.end()
            if self._journal.given_again:
                raise Diverged(
                    f"run {key!r} of session {self._journal.id!r} had taken messages that it has not asked for this "
                    f"time ({len(self._journal.given_again)}): have it take() them where it did"
                )
            yield from self._end_run(key, result)
        except BaseException as error:
            ended = self._journal.strands.let_out(error) if begun else []
            if self._journal.catching_up is not None and self._journal.catching_up.had_gone_on:
                # There is more in its record: it had gone on after whatever has ended it now.
                ended = [got._replace(again="") for got in ended]
            if self._journal.catching_up is not None or (begun and self._leaves_edits()):
                yield from self._left(key, error)
            if ended and isinstance(error, Exception):
                with suppress(PerdureError):
                    yield from self._note_ended(key, ended)
            raise
        finally:
            self._journal.document.told = None
            self._journal.run = None
            self._journal.catching_up = None
            self._journal.given_again.clear()
        return result

    def _leaves_edits(self) -> bool:
        """Whether a run that is left has edits or messages that no commit has taken, nor is to take any more."""
        journal = self._journal
        return journal.stale is None and journal.pending is None and (journal.changed or bool(journal.takes))

    def _left(self, key: str, error: BaseException) -> Flow[None]:
        """A run was left before its end: the handle goes to the head.

        It may stand somewhere in the run's past; and what was edited since the last commit is edited again when the
        run is resumed, so it must not be committed by whoever goes on with the handle.
        """
        self._journal.stale = Misuse(
            f"run {key!r} of session {self._journal.id!r} was left before its end, and what it had not committed is "
            "made again when it is resumed: reload() the handle, or open the session again, before you go on"
        )
        # Whoever is interrupted or cancelled wants no more work done.
        if isinstance(error, Exception):
            with suppress(PerdureError):
                yield from self._journal.reload()

    def _note_ended(self, key: str, ended: list[Got]) -> Flow[None]:
        """Write down which calls have ended the run: without that, it may as well have caught what they raised."""
        effects: Any = self._journal.book.get("effects", {})
        run = self._journal.book["runs"][key]
        marks = {
            got.place: {"run": key, "again": got.again}
            for got in ended
            if got.place in effects and effects[got.place]["id"] == got.effect
        }
        if not marks or (LEFT in run and all(plain(effects[place].get(ENDED_RUN)) == marks[place] for place in marks)):
            return
        x = {"effects": [effects[place]["id"] for place in marks], "error": effects[list(marks)[-1]]["error"]}

        def edit() -> None:
            for place, mark in marks.items():
                effects[place][ENDED_RUN] = mark
            run[LEFT] = True

        faults.point("run.before_left")
        yield from self._journal.write(Kind.RUN_LEFT, x=x, edit=edit)
        faults.point("run.after_left")

    def _catch_up(self, key: str, base: tuple[int, int]) -> Flow[None]:
        assert self._journal.point is not None
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
        yield from self._journal.catching_up.begin()

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
            # The whole key: another run's may begin with it.
            self._calls.effects.retire(lambda slot: run_of(slot) == key)

        yield from self._journal.write(Kind.RUN_ENDED, status=self._calls.effects.session_status, edit=edit)


class _Told(NamedTuple):
    """A message that a run had taken: in which row it says so, and whether somebody beside the run itself had."""

    row: int
    message: Message
    beside: bool


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
        for point, body, _ in read_rows(kernel, session, line, first, last, before):
            if body is None:
                what = (
                    f"session {session!r}: steps before {point.envelope.step} of line {line} were dropped by retention"
                )
                raise Gone(f"{what}, so a run that began before them cannot be caught up with", "retention")
            out.append(Recorded(point, *payload_of(kernel, body, point)))
            before = point
    return out


class CatchUp:
    """A run being caught up with: it follows its own turns in the record, and sees what others wrote between them.

    A turn is what the function did and does again: a commit, a call, or a read whose answer is kept. All other rows,
    of other runs and of whoever else wrote, are nothing to repeat: after a turn the run stands right before its next
    one, and after the last one at the head.
    """

    def __init__(
        self, journal: Journal, run: str, record: list[Recorded], book: dict[str, Any],
        upgrade: Callable[[Loaded], Loaded] | None,
    ) -> None:  # fmt: skip
        self._journal = journal
        self._run = run
        self._what = f"run {run!r} of session {journal.id!r}"
        self._record = record
        self.book = book
        """What the books say at the head."""
        self._upgrade = upgrade
        self._writes = list(_writes_in(record, journal.book.get("effects", {})))
        """What calls have written into the state: in which row, of which place, and whether it was done ahead of it."""
        self._told = list(self._taken())
        """The messages that the run had taken and was not given again."""
        self._given = -1
        """The last row that has taken one of those that were."""
        self._called: set[str] = set()
        self._passed: set[bytes] = set()
        """Recorded commits that were made again before turns that stand ahead of them."""
        self._at = 0
        self._gate = type(journal.gate)()
        """One task or thread at a time catches up."""
        self._due: list[int] = []
        """Where the outcomes stand of the calls that wait for their turn to have them."""
        self._joined = 0
        """Behind all outcomes that were given."""
        self._apart = False
        """Whether the state is what the function has made again, and not what was recorded where it stands."""
        self._edited = False
        """Whether some of that was edited since the last commit."""

    def _is_own(self, row: Recorded) -> bool:
        return row.point.envelope.x.get("run") == self._run

    def _is_turn(self, row: Recorded, *, must: bool = False) -> bool:
        """Whether a row begins a turn; with ``must`` one that the function has to repeat: a commit or a call."""
        env = row.point.envelope
        if not self._is_own(row) or env.id in self._passed:
            return False
        if "effect" in env.x:
            # What begins with its outcome was made elsewhere, and its result taken.
            return env.x["effect"] not in self._called and (not must or env.kind in _CALLS)
        return env.kind == Kind.COMMIT or (not must and _is_read(env))

    def _is_call(self, row: Recorded) -> bool:
        """Whether a row begins a call that was not made again yet."""
        return not _is_commit(row) and self._is_turn(row, must=True)

    def _next(self, *, must: bool = False) -> int | None:
        """The place of the next turn."""
        return self._find(lambda row: self._is_turn(row, must=must))

    def _find(self, wanted: Callable[[Recorded], bool], after: int = -1) -> int | None:
        return next((i for i in range(max(self._at, after + 1), len(self._record)) if wanted(self._record[i])), None)

    @property
    def _is_left(self) -> bool:
        """Whether a call that is recorded was not made again yet."""
        return self._find(self._is_call) is not None

    @property
    def had_gone_on(self) -> bool:
        """Whether the run itself has done more than it has done again. What others did beside it says nothing of that:
        they may have gone on while it was about to end."""
        return self._find(lambda row: self._is_turn(row, must=True) and not _is_beside(row)) is not None

    @property
    def _is_over(self) -> bool:
        """Whether somebody beside has left the record behind."""
        return self._journal.catching_up is not self

    def _is_beside(self) -> bool:
        """Whether calls go on side by side: now, or where they are recorded and were not made again yet."""
        if self._journal.strands.are_several():
            return True
        return self._find(lambda row: BESIDE in row.extra and self._is_turn(row)) is not None

    def _alone(self, flow: Flow[R], instead: R) -> Flow[R]:
        with (yield from entered(self._gate)):
            return instead if self._is_over else (yield from flow)

    def _wait(self, ready: Callable[[], bool], looks: int | None = None) -> Flow[None]:
        """Let those beside go on until it is so; not for ever."""
        for _ in range(LOOKS if looks is None else looks):
            if self._is_over or ready():
                break
            yield Do(sleep, (PAUSE,))

    def begin(self) -> Flow[None]:
        """Stand where the first turn was made; where none was, at the head."""
        yield from self._stand(self._next())

    def took(self, limit: int) -> Flow[list[Message] | None]:
        """What the run had taken from the inbox by its next turn, as far as it was not given again yet.

        None when somebody beside has left the record behind meanwhile.
        """
        # Where others have begun while this was waited for, they do again.
        yield Do(sleep, (0,))
        given = yield from self._alone(self._take(limit), instead=None)
        if given is None:
            # Nothing was done after it: what is given now is new, once those beside have done what is recorded. They
            # may wait for whoever asks, so that is not insisted on.
            yield from self._wait(lambda: not self._is_left, ASKS)
            if not self._is_over and not self._is_left:
                yield from self.end()
            return None if self._is_over else []
        return given

    def _take(self, limit: int) -> Flow[list[Message] | None]:
        yield from ()
        strands = self._journal.strands
        beside = strands.is_beside()
        # Of several who take beside the run itself, nobody knows who was who: they are given what there is.
        of_several = beside and strands.at_work() > 1
        following = None if of_several else self._find(lambda row: self._is_turn(row) and _is_beside(row) == beside)
        mine = [t for t in self._told if t.beside == beside and (following is None or t.row <= following)][:limit]
        self._told = [t for t in self._told if t not in mine]
        self._given = max([self._given, *(t.row for t in mine)])
        if not mine and self._find(lambda row: self._is_turn(row) and _is_beside(row) == beside) is None:
            return None
        return [t.message for t in mine]

    def _taken(self) -> Iterator[_Told]:
        for i, row in enumerate(self._record):
            beside = row.extra.get(TOOK, ())
            for e in row.extra.get("took", ()) if self._is_own(row) else ():
                if e[1] in TOLD:
                    yield _Told(i, Message(*e), e[0] in beside)

    def commit(self, *, empty: bool) -> Flow[bool]:
        """Skip a recorded commit; False when none is left and this one is new. An ``empty`` one left no record."""
        yield Do(sleep, (0,))
        beside = self._is_beside()
        if not (yield from self._alone(self._commit(beside=beside, empty=empty), instead=False)):
            yield from self.end()
            return False
        return True

    def _commit(self, *, beside: bool, empty: bool) -> Flow[bool]:
        empty = empty and not self._edited
        if self._apart and not beside:
            # Those beside have ended: what they committed stands before the last of their outcomes.
            self._passed.update(r.point.envelope.id for r in self._record[: self._joined] if _is_commit(r))
        i = self._next(must=True)
        if i is None:
            return False
        if beside:
            by_other = self._journal.strands.is_beside()
            i = self._find(lambda row: _is_commit(row) and self._is_turn(row) and _is_beside(row) == by_other)
        if i is not None and _is_commit(self._record[i]) and (self._given >= self._at or not empty):
            self._edited = False
            yield from self._pass_by(i, beside=beside)
        return True

    def read(self, tool: str) -> Flow[None]:
        """A read is made whose answer is kept: its recorded answer is there again, if it was made at this place."""
        yield from self._alone(self._read(tool, beside=self._is_beside()), instead=None)

    def _read(self, tool: str, *, beside: bool) -> Flow[None]:
        before = self._next(must=True)
        i = self._find(lambda row: self._is_turn(row) and _is_read(row.point.envelope, tool))
        if i is not None and (before is None or i < before):
            yield from self._pass_by(i, beside=beside)

    def call(self, slot: str, asked: Asked) -> Flow[bool]:
        """Check a call against the record, and catch up to it; whether its recorded outcome is to be given."""
        recorded = self.book.get("effects", {}).get(slot)
        if recorded is None:
            yield from self.end()
            return False
        tool = asked.tool
        if not (asked.is_same(recorded) if is_unknown(recorded) else asked.is_of(recorded)):
            raise Diverged(
                f"{self._what}: call {slot.rpartition(':')[2]} was {recorded['tool']} with other "
                f"arguments than this call of {tool.name}. {SAME_CALLS}"
            )
        beside, is_open = self._is_beside(), recorded["status"] in OPEN or is_asked_again(recorded, tool)
        self._called.update(_ids(recorded))
        where = [len(self._record)] if is_open else self._outcome(recorded)
        if where and beside:
            # Outcomes are given in the order in which they came: what those beside did in between comes first.
            self._due.append(where[0])
            try:
                yield from self._wait(lambda: self._is_due(where[0]))
                yield from self._alone(self._call(slot, recorded, where, beside=beside, is_open=is_open), instead=None)
            finally:
                self._due.remove(where[0])
        else:
            yield from self._alone(self._call(slot, recorded, where, beside=beside, is_open=is_open), instead=None)
        if is_open:
            yield from self.end()
        return any(self._is_own(row) and row.point.envelope.x.get("effect") in _ids(recorded) for row in self._record)

    def _outcome(self, recorded: dict[str, Any]) -> list[int]:
        """The place of the outcome of a call, when it is in the record."""
        where = recorded.get("where")
        places = enumerate((row.point.envelope.line, row.point.envelope.step) for row in self._record)
        return [i for i, place in places if where is not None and place == tuple(where)]

    def _is_due(self, where: int) -> bool:
        known = self.book["effects"].values()
        times = Counter(r["digest"] for r in known)
        # Nor equal calls: any of them may have been made in place of that one.
        later = {id for r in known if is_ahead(r) or times[r["digest"]] > 1 for id in _ids(r)}
        # No commits: which of those beside finds something to commit may differ.
        before = self._find(lambda r: self._is_call(r) and r.point.envelope.x.get("effect") not in later)
        return (before is None or before > where) and min(self._due) == where

    def _call(
        self, slot: str, recorded: dict[str, Any], where: list[int], *, beside: bool, is_open: bool
    ) -> Flow[None]:
        ids = _ids(recorded)
        i = self._find(lambda row: self._is_own(row) and row.point.envelope.x.get("effect") in ids)
        if is_open:
            # It must be settled before anything else, and settling it is written on top of all that is recorded.
            if i is not None and not beside:
                yield from self._advance(i, beside=beside)
            known = self.book["effects"].values()
            self._called.update(id for r in known if not beside or is_ahead(r) for id in _ids(r))
            if not beside and (ahead := self._next(must=True)) is not None:
                raise self._gone_on(recorded, ahead)
            return
        if i is not None:
            ahead = self._find(lambda row: self._is_turn(row, must=True), i)
            if not beside and ahead is not None and where and ahead < where[0]:
                raise self._gone_on(recorded, ahead)
            yield from self._pass_by(i, beside=beside)
        self._joined = max([self._joined, *(one + 1 for one in where)])
        # The outcome may stand further on in the record; the caller needs it now.
        root = self._journal.document.root
        if "effects" not in root[BOOK]:
            apply([[SET, [BOOK, "effects"], {}]], root)
        apply([[SET, [BOOK, "effects", slot], recorded]], root)
        self._write_ahead(slot)

    def _gone_on(self, recorded: dict[str, Any], ahead: int) -> Diverged:
        has = "has no outcome yet" if recorded["status"] in OPEN else "had no outcome at first"
        return Diverged(
            f"{self._what}: {recorded['tool']} (effect {recorded['id']}) {has}, and the recorded "
            f"run had gone on without it (to step {self._record[ahead].point.envelope.step}), which cannot be "
            "repeated: a run has to let ApprovalNeeded, InDoubt and ResultPending out of its function, or "
            "commit nothing after them"
        )

    def _write_ahead(self, slot: str) -> None:
        """Write what a call has written further on in the record: whoever made it sees it from now on."""
        for written in self._writes:
            if not written.ahead and slot in ("", written.slot):
                written.ahead = True
                self._write(written)

    def _write(self, written: _Written) -> None:
        # Of an older schema: what is loaded at the next commit has it.
        with suppress(Corrupted) if self._upgrade is not None else nullcontext():
            apply(plain(written.ops), self._journal.document.root)

    def end(self) -> Flow[None]:
        """Leave the record behind: every turn in it must have been repeated by now, and from here on things happen."""
        beside = self._is_beside()
        if beside:
            yield from self._wait(lambda: not self._is_left)
        yield from self._alone(self._end(beside=beside), instead=None)

    def _end(self, *, beside: bool) -> Flow[None]:
        left = (row.point.envelope for row in self._record[self._at :] if self._is_turn(row, must=True))
        # Which of those beside has committed what the others had edited may differ: the state is made again as a whole.
        wanted = (Kind.STARTED,) if beside or self._apart else (Kind.COMMIT, Kind.STARTED)
        missed = [env for env in left if env.kind in wanted]
        if missed:
            raise Diverged(
                f"{self._what}: the recorded run had done {len(missed)} more commits or calls "
                f"(the next at step {missed[0].step}). {SAME_CALLS}"
            )
        mine = self._journal.document.root[STATE].plain() if self._journal.changed else None
        before = self._journal.point
        was_apart = beside or self._apart
        yield from self._leave(beside=was_apart)
        if mine is not None and not was_apart and before is not None and self._journal.point is not None:
            # A read was recorded here that the function makes no more: what it has edited since goes on top of that.
            base = yield from self._stored(before)
            state = self._journal.document.root[STATE]
            edit(diff(state.plain(), merge(plain(base), mine, state.plain(), "ours")[0]), state)

    def _leave(self, *, beside: bool) -> Flow[None]:
        if self._at < len(self._record):
            yield from self._advance(len(self._record) - 1, beside=beside)
        if self._apart and self._journal.point is not None:
            # What the function has made again stands as edits on top of what was recorded.
            there = plain((yield from self._stored(self._journal.point)))
            with self._journal.document.lock:
                self._write_ahead("")
                hold_as_edits(there, self._journal.document.root[STATE])
        self._journal.given_again.extend(t.message for t in self._told)
        self._journal.catching_up = None

    def _pass_by(self, i: int, *, beside: bool) -> Flow[None]:
        """Stand after the turn ``i``; what others wrote before the next one is seen from here on."""
        if _is_commit(self._record[i]) or _is_read(self._record[i].point.envelope):
            self._passed.add(self._record[i].point.envelope.id)
        yield from self._stand(self._find(self._is_turn, -1 if beside else i), beside=beside)

    def _stand(self, following: int | None, *, beside: bool = False) -> Flow[None]:
        """Stand right before a turn; where there is none, at the head."""
        if following is None:
            yield from self._leave(beside=beside)
        elif following > self._at:
            yield from self._advance(following - 1, beside=beside)

    def _stored(self, point: Point) -> Flow[Any]:
        """The state at a checkpoint, in this program's schema."""
        env = point.envelope
        loaded: Loaded = yield Do(load, (self._journal.kernel, self._journal.id, env.line, env.step))
        return (self._upgrade(loaded) if self._upgrade is not None else loaded).doc[STATE]

    def _advance(self, i: int, *, beside: bool) -> Flow[None]:
        """Move to the recorded row ``i``; what the function edited gives way to what was recorded.

        Not beside others: what they had edited by then may not be made again yet, or be made again already. There the
        state stays as the function makes it, and what others than the run have written is added.
        """
        rows = self._record[self._at : i + 1]
        again, done = beside or self._is_other_part(rows), False
        while not done:
            state = None
            if again:
                yield from self._check_others(rows)
            elif not self._is_exact(rows):
                state = yield from self._stored(rows[-1].point)
            with self._journal.document.lock:
                # Somebody beside may have begun while it was loaded.
                done = again or self._journal.strands.mark() is None
                if done:
                    self._move(i, rows, state, again=again)
            again = True

    def _move(self, i: int, rows: list[Recorded], state: Any, *, again: bool) -> None:
        document = self._journal.document
        if again:
            self._edited = self._edited or self._journal.changed
            self._apart = self._apart or not self._is_exact(rows)
            others = [op for r in rows if not self._is_own(r) for op in r.ops if op[1][0] == STATE]
            if self._apart:
                apply([plain(op) for op in others], document.root)
        elif state is not None:
            apply(diff(document.root[STATE], state, (STATE,)), document.root)
            self._apart = self._edited = False
        for written in self._writes:
            if written.row <= i and (not self._apart or not self._is_own(self._record[written.row])):
                written.ahead = True
            elif written.ahead and state is not None:
                self._write(written)
        for r in rows:
            apply([op for op in r.ops if op[1][0] == BOOK], document.root)
        document.settle()
        self._journal.strands.written()
        self._journal.point = rows[-1].point
        self._at = i + 1

    def _edits(self) -> list[Any]:
        return [plain(op) for op in self._journal.document.collect() if op[1][0] == STATE]

    def _recorded(self, rows: list[Recorded], *, own: bool) -> list[Any]:
        """What rows say was edited; without what is in the state ahead of them, and for ``own`` by the function."""
        ops = [plain(op) for r in rows if self._is_own(r) or not own for op in r.ops if op[1][0] == STATE]
        for op in (op for w in self._writes if (own or w.ahead) and self._record[w.row] in rows for op in w.ops):
            # Where it stands there together with something else, the state is loaded.
            with suppress(ValueError):
                ops.remove(op)
        return ops

    def _is_exact(self, rows: list[Recorded]) -> bool:
        """Whether the state is, as it is, the one that was recorded after these rows."""
        if self._upgrade is not None or self._apart:
            return False
        return same(self._edits(), self._recorded(rows, own=False))

    def _is_other_part(self, rows: list[Recorded]) -> bool:
        """Whether calls took along more, or less, than was edited so far: there is somebody beside, not seen yet."""
        if self._upgrade is not None or any(self._is_own(r) and _is_commit(r) for r in rows):
            return False
        mine, theirs = _single(self._edits()), _single(self._recorded(rows, own=True))
        return mine != theirs and (mine <= theirs or theirs <= mine)

    def _check_others(self, rows: list[Recorded]) -> Flow[None]:
        """Refuse what others have written at places of a list which may be somewhere else as the function made it."""
        before = self._journal.point
        for row in rows:
            if not self._is_own(row):
                for op in row.ops:
                    if op[1][0] == STATE and (self._upgrade is not None or not (yield from self._fits(op, before))):
                        raise Diverged(
                            f"{self._what} was making calls side by side when others changed "
                            f"{format_path(op[1][1:])} at step {row.point.envelope.step}, and that cannot be put "
                            "together with what it edits there: have others only add to what such a run edits"
                        )
            before = row.point

    def _fits(self, op: Any, before: Point | None) -> Flow[bool]:
        path, root = op[1], self._journal.document.root
        of = path if op[0] in (APPEND, SPLICE) else path[:-1]
        if _at(root, of) is _NOTHING:
            return False
        places = [n for n, part in enumerate(path) if isinstance(part, int)]
        if op[0] != SPLICE and not places:
            return op[0] != DEL or path[-1] in _at(root, of)
        assert before is not None
        there = yield from self._stored(before)
        list_at = path[: places[0]] if places else path
        return same(plain(_at(root, list_at)), plain(_at({STATE: there}, list_at)))


_NOTHING: Any = object()


def _at(value: Any, path: Sequence[Any]) -> Any:
    """What stands at a path."""
    try:
        for part in path:
            value = value[part]
    except (LookupError, TypeError):
        return _NOTHING
    return value


def _single(ops: list[Any]) -> Counter[str]:
    """Edits, each by itself."""
    return Counter(repr(one) for op in ops for one in ([[*op[:2], v] for v in op[2]] if op[0] == APPEND else [op]))


def _is_commit(row: Recorded) -> bool:
    return row.point.envelope.kind == Kind.COMMIT


def _is_beside(row: Recorded) -> bool:
    """Whether another one than the run itself has written a row."""
    return bool(row.extra.get(BESIDE))


def _is_read(env: Envelope, tool: str = "") -> bool:
    """Whether a row records the answer to a read that is kept: it is no effect, so it names none."""
    return env.kind == Kind.DONE and "effect" not in env.x and tool in ("", env.x.get("tool"))


class _Written:
    """What one row of the record says that a call has written into the state."""

    def __init__(self, row: int, slot: str, ops: list[Any]) -> None:
        self.row = row
        self.slot = slot
        self.ops = ops
        self.ahead = False
        """Whether it is in the state already, before its row."""


def _writes_in(record: list[Recorded], effects: Any) -> Iterator[_Written]:
    known = {slot: len(r.get(WRITES, ())) for slot, r in effects.items()}
    for i, row in enumerate(record):
        for op in row.ops:
            if op[0] != SET or op[1][:2] != [BOOK, "effects"]:
                continue
            at, value = op[1][2:], plain(op[2])
            if at[1:] == [WRITES]:
                found = {at[0]: value}
            elif len(at) < 2:
                # A record that is new, or the first of them.
                found = {slot: r.get(WRITES, []) for slot, r in ({at[0]: value} if at else value).items()}
            else:
                continue
            for slot, writes in found.items():
                if new := writes[known.get(slot, 0) :]:
                    yield _Written(i, slot, [[op[0], [STATE, *op[1]], *op[2:]] for op in new])
                known[slot] = len(writes)


def _ids(record: dict[str, Any]) -> list[str]:
    """The ids an effect has gone by: it gets another one where a line goes on with what it found begun."""
    return [record["id"], *record.get("was", ())]
