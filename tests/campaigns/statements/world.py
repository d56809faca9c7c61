"""A small world: one session, a board, perhaps a worker, a clock that is told; and what can be done to them in public.

Nothing here imports what the campaign tests. A situation is a database file and a time, so that every one that was
reached can be gone on from in many ways.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import perdure
from perdure import EffectFailed, EffectRaised, InDoubt, PerdureError, ToolError, Unknown
from perdure.errors import ApprovalNeeded, CallError
from perdure.fleet.board import board_of, submit
from perdure.fleet.status import steer
from perdure.fleet.worker import after_error, after_run, place_of
from perdure.model import Lease
from perdure.protocols import Filter, Rest, WorkerRow
from perdure.session.tools.exceptions import LetThrough
from perdure.state.document import plain
from perdure.system import faults
from perdure.testing.clock import FakeClock
from tests.campaigns.statements.desk import Cause, desk, refund, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.model import InboxEntry, SessionRow
    from perdure.protocols import Board, Work

S = "s"
HOUR, MINUTE = 3_600_000, 60_000
WORKER, OTHER, READER = "w", "elsewhere-agent", "a reader"
"""The worker; somebody who goes on with what he has; and who merely has a session open."""
MOST_TRIES = 5
LOOKS = (1, 1, 3, 5, 10, 20, 20)
"""After how many minutes of an hour a worker looks; really it does many times a second, which comes to the same."""


class Skip(Exception):
    """It cannot be done in this situation."""


class Killed(LetThrough):
    """The process ends here."""


class Snapshot(NamedTuple):
    """A situation to go on from."""

    data: bytes
    wall: int
    monotonic: int
    path: tuple[str, ...]


class World:
    """A situation that is open."""

    def __init__(self, folder: Path, found: Snapshot | None = None) -> None:
        self.path = folder / f"{os.urandom(6).hex()}.db"
        if found is not None:
            self.path.write_bytes(found.data)
        self.clock = FakeClock(found.wall, found.monotonic) if found is not None else FakeClock()
        self.url = f"sqlite:///{self.path}"
        self.db = perdure.open(self.url, clock=self.clock, maintain=False)

    def board(self) -> Board:
        """The board."""
        return board_of(self.db)

    def keep(self, path: tuple[str, ...]) -> Snapshot:
        """The situation as it is; this world ends with it."""
        self.close(remove=False)
        data = self.path.read_bytes()
        self._remove()
        return Snapshot(data, self.clock.wall(), self.clock.monotonic(), path)

    def close(self, *, remove: bool = True) -> None:
        """The end of this world."""
        self.db.close()
        if remove:
            self._remove()

    def _remove(self) -> None:
        for file in self.path.parent.glob(f"{self.path.name}*"):
            if file.is_file():
                file.unlink()

    # -- looking ---------------------------------------------------------------------------------------------------

    def row(self, session: str = S) -> SessionRow | None:
        """The session's row."""
        return self.db.kernel.store.look(session)

    def inbox(self, session: str = S) -> list[InboxEntry]:
        """What waits."""
        return self.db.kernel.store.inbox(session, 100)

    def work(self) -> Work | None:
        """Its place on the board."""
        return next(iter(self.board().works(Filter(sessions=(S,)))), None)

    def book(self, session: str = S) -> dict[str, Any]:
        """Its effects and approvals."""
        row = self.row(session)
        if row is None or not row.heads:
            return {}
        return plain(self.db.read(session, migrate=False).book)

    def served(self) -> bool:
        """Whether a worker that lives has the agent."""
        return any(w.age < MINUTE and "desk" in w.agents for w in self.board().workers())

    def child(self) -> str:
        """The session that works for this one; "" when none does."""
        for effect in self.book().get("effects", {}).values():
            handle = effect.get("handle")
            if isinstance(handle, dict) and "session" in handle:
                return str(handle["session"])
        return ""

    def signature(self) -> tuple[str, ...]:
        """The situation by its dimensions."""
        row, work, now, book = self.row(), self.work(), self.clock.wall(), self.book()
        child = self.child()
        below = self.row(child) if child else None
        effects = book.get("effects", {}).values()
        said = {e.key.partition("-")[0] for e in self.inbox() if e.kind == "message"}
        return (
            f"status {'none' if row is None or not row.heads else 'expired' if _is_over(row, now) else row.status}",
            f"agent {'yes' if row is not None and row.agent else 'no'}",
            f"board {_place(work, now)}",
            f"served {'yes' if self.served() else 'no'}",
            f"held {'yes' if 'desk' in self.board().held() else 'no'}",
            f"lease {_held_for(row)}",
            f"tries {min(work.tries, 3) if work is not None else 0}",
            f"inbox {' '.join(sorted({_kind(e, now) for e in self.inbox()})) or 'empty'}",
            f"effects {' '.join(sorted({e['status'] for e in effects if _open(e)})) or 'none'}",
            f"approvals {self._approvals(book, now)}",
            f"runs {' '.join(sorted(self._runs(book))) or 'none'}",
            f"child {' '.join([below.status, *{e.kind for e in self.inbox(child)}]) if below is not None else 'none'}",
            f"said {' '.join(sorted(said)) or 'nothing'}",
        )

    def _approvals(self, book: dict[str, Any], now: int) -> str:
        decided = {e.key for e in self.inbox() if e.kind == "decision"}
        found = {
            "decided" if f"decision:{a['id']}" in decided
            else "expired" if a["expires"] <= now
            else "question" if a.get("question") else "pending"
            for a in book.get("approvals", {}).values() if a["status"] == "pending"
        }  # fmt: skip
        return " ".join(sorted(found)) or "none"

    def _runs(self, book: dict[str, Any]) -> set[str]:
        """What the open runs have ended with."""
        left = {
            r["ended_run"]["run"]: r["ended_run"]["again"] for r in book.get("effects", {}).values() if "ended_run" in r
        }
        runs = book.get("runs", {}).items()
        return {left.get(key, "open") or "again" for key, run in runs if run["status"] == "open"}

    def mark(self) -> tuple[Any, ...]:
        """Differs when anything has got further."""
        row, work, child = self.row(), self.work(), self.child()
        below = self.row(child) if child else None
        return (
            row.heads if row is not None else (), tuple(e.key for e in self.inbox()),
            (work.tries, work.parked) if work is not None else (), below.heads if below is not None else (),
        )  # fmt: skip

    # -- time --------------------------------------------------------------------------------------------------------

    def run(self, session: str = S, **options: Any) -> Any:
        """Run the agent on a session, as anybody may who has its program."""

        async def work() -> Any:
            async with perdure.open_async(self.url, clock=self.clock, maintain=False) as db:
                return await desk.run(db, session=session, **options)

        return asyncio.run(work())

    def pass_time(self, hours: float = 1.0) -> None:
        """Let time pass: workers that live work, whoever holds the lease goes on, results that were to come arrive."""
        worker = next((w.id for w in self.board().workers() if w.age < MINUTE and "desk" in w.agents), None)
        row = self.row()
        if row is not None and row.lease.holder:
            self.db.kernel.store.release(Lease(S, row.lease.holder, row.lease.token, row.lease.until))
            self.clock.advance(1000)
            if row.status == "closed":
                with self.db.session(S, reopen=True):
                    pass
            if not row.agent:
                take_up(self)
            elif row.lease.holder != READER:
                self._by_hand()
        for effect in list(self.book().get("effects", {}).values()):
            if effect["status"] == "waiting" and not self.child():
                self.db.post_outcome(S, effect["id"], "it is there")
        for minutes in LOOKS:
            self.clock.advance(int(minutes * hours * MINUTE))
            if worker is not None:
                self._turn(worker)

    def _by_hand(self) -> None:
        try:
            self.run()
        except PerdureError:
            return

    def _turn(self, worker: str) -> None:
        """What a worker and its supervisor do when they look."""
        board, now = self.board(), self.clock.wall()
        agents = next((w.agents for w in board.workers() if w.id == worker), ("desk",))
        board.beat(_row(worker)._replace(agents=agents))
        board.reap(30_000)
        board.adopt()
        mine = [w for w in board.works(Filter(state="working")) if w.worker == worker]
        for work in mine or board.claim(worker, agents, 10, now):
            rest = self._one(worker, work)
            if rest is not None:
                board.rest(worker, [rest], self.clock.wall())

    def _one(self, worker: str, work: Work) -> Rest | None:
        def counted(tries: int) -> Work:
            place = place_of(self.db, work.session)
            return work._replace(tries=self.board().got(worker, work.session, place, tries), step=place)

        row = self.row()
        there = row is not None and bool(row.heads)
        if work.tries > 1 and there:
            work = counted(2)
            if work.tries > MOST_TRIES:
                return Rest(work.session, work.step, failed=True, park="its worker died or failed too often")
        try:
            result = self.run(work.session, claimed=True)
            if result.status == "failed":
                work = counted(1)
        except Exception as e:
            return after_error(work, e, self.clock.wall(), most=MOST_TRIES, span=30_000, version="v")
        return after_run([desk], work, result, self.clock.wall(), most=MOST_TRIES, version="v")


def _row(worker: str) -> WorkerRow:
    return WorkerRow(worker, "host", 1, "v", ("desk",), 10)


def _open(effect: dict[str, Any]) -> bool:
    return effect["status"] in ("planned", "started", "waiting", "in_doubt")


def _is_over(row: SessionRow, now: int) -> bool:
    return row.expires is not None and row.expires <= now


def _kind(entry: InboxEntry, now: int) -> str:
    if entry.kind in ("wake", "cron"):
        return "timer-due" if entry.at <= now else "timer"
    return entry.kind


def _place(work: Work | None, now: int) -> str:
    if work is None:
        return "none"
    if work.parked or work.paused:
        return "parked" if work.parked else "paused"
    if work.worker or work.queued:
        return "claimed" if work.worker else "queued"
    return "resting" if work.due is None else "due" if work.due <= now else "later"


# -- what can be done ----------------------------------------------------------------------------------------------


def _need(fine: object) -> None:
    if not fine:
        raise Skip


def _say(word: str) -> Callable[[World], None]:
    def say(w: World) -> None:
        _need(not w.inbox())
        w.db.post(S, word, key=f"{word}-{os.urandom(4).hex()}")

    return say


def _run(w: World) -> None:
    row = w.row()
    _need(row is None or not row.lease.holder)
    w.run()


def _run_to_limit(w: World) -> None:
    _need(w.inbox())
    w.run(max_turns=0)


def _run_killed(w: World) -> None:
    """The process dies right after the answer was committed, in mid-run."""

    def die(name: str) -> None:
        if name == "agent.after_commit":
            faults.hook = None
            raise Killed

    faults.hook = die
    try:
        w.run()
    except (Killed, BaseExceptionGroup) as e:
        # Killed in a child of the run it comes in a group.
        if isinstance(e, BaseExceptionGroup) and e.split(Killed)[1] is not None:
            raise
        return
    finally:
        faults.hook = None
    raise Skip


def _serve(w: World) -> None:
    _need(not w.served())
    w.board().beat(_row(WORKER))


def _unserve(w: World) -> None:
    _need(w.served())
    w.board().leave(WORKER)


def _claim(w: World) -> None:
    _need(w.served() and w.board().claim(WORKER, ["desk"], 1, w.clock.wall()))


def _crash(w: World) -> None:
    """A worker claims it, and dies."""
    board = w.board()
    board.beat(_row("v"))
    claimed = board.claim("v", ["desk"], 1, w.clock.wall())
    board.leave("v")
    _need(claimed)


def _rest(**how: Any) -> Callable[[World], None]:
    def rest(w: World) -> None:
        work = w.work()
        _need(work is not None and work.worker == WORKER)
        due = w.clock.wall() + how["wait"] if "wait" in how else None
        more = {k: v for k, v in how.items() if k != "wait"}
        w.board().rest(WORKER, [Rest(S, 1, due=due, **more)], w.clock.wall())

    return rest


def _steer(do: str) -> Callable[[World], None]:
    def steered(w: World) -> None:
        _need(w.row() is not None and steer(w.db, [S], do))

    return steered


def _decide(do: str) -> Callable[[World], None]:
    def decide(w: World) -> None:
        pending = [a for a in w.book().get("approvals", {}).values() if a["status"] == "pending"]
        _need(pending)
        first = pending[0]
        if do == "reject":
            w.db.reject(S, first["id"], by="eve")
        elif first.get("question"):
            w.db.answer(S, first["id"], "red", by="eve")
        else:
            w.db.approve(S, first["id"], by="eve")

    return decide


def _approve_below(w: World) -> None:
    """Agree to what the session asks for that works for this one."""
    child = w.child()
    pending = [a for a in w.book(child).get("approvals", {}).values() if a["status"] == "pending"] if child else []
    _need(pending)
    w.db.approve(child, pending[0]["id"], by="eve")


def _outcome(w: World) -> None:
    effects = [e for e in w.book().get("effects", {}).values() if e["status"] in ("waiting", "in_doubt")]
    _need(effects)
    w.db.post_outcome(S, effects[0]["id"], "it is there")


def _resolve(w: World) -> None:
    effects = [e for e in w.book().get("effects", {}).values() if e["status"] == "in_doubt"]
    _need(effects)
    with w.db.session(S) as s:
        s.resolve(effects[0]["id"], abort=True, by="eve")


def _hold(on: bool) -> Callable[[World], None]:
    def hold(w: World) -> None:
        _need(("desk" in w.board().held()) != on)
        w.board().hold("desk", on)

    return hold


def _lease(w: World) -> None:
    row = w.row()
    _need(row is not None and row.heads and not row.lease.holder)
    w.db.kernel.store.acquire(S, OTHER, 8 * HOUR)


def _open_only(w: World) -> None:
    row = w.row()
    _need(row is not None and row.heads and not row.lease.holder)
    w.db.kernel.store.acquire(S, READER, 8 * HOUR)


def _held_for(row: SessionRow | None) -> str:
    """Whether a session is held, by whoever goes on with it or by whom merely has it open."""
    holder = "" if row is None else row.lease.holder
    return "open" if holder == READER else "held" if holder else "free"


def _release(w: World) -> None:
    row = w.row()
    _need(row is not None and row.lease.holder)
    assert row is not None
    w.db.kernel.store.release(Lease(S, row.lease.holder, row.lease.token, row.lease.until))


def _close(w: World) -> None:
    _need(w.row() is not None)
    with w.db.session(S) as s:
        s.close()


def _tick(ms: int) -> Callable[[World], None]:
    return lambda w: w.clock.advance(ms)


AGENTS: dict[str, Callable[[World], Any]] = {
    "create": lambda w: w.db.create(S, agent="desk", ttl=None),
    "create for a week": lambda w: w.db.create(S, agent="desk"),
    **{
        f"say {word}": _say(word)
        for word in ("hello", "refund", "send", "render", "choose", "fail", "reject", "delegate")
    },
    "run": _run,
    "run to a limit": _run_to_limit,
    "run, killed": _run_killed,
    "submit": lambda w: submit(w.db, S, None, agent="desk", ttl=None),
    "submit to a slip": lambda w: submit(w.db, S, None, agent="dsek", ttl=None),
    "worker starts": _serve,
    "worker leaves": _unserve,
    "worker claims": _claim,
    "worker crashes": _crash,
    "put down": _rest(),
    "put down as failed": _rest(failed=True, wait=30_000),
    "put down, more to do": _rest(again=True),
    "parked": _rest(failed=True, park="failed 5 times: broken"),
    **{do: _steer(do) for do in ("pause", "unpause", "retry")},
    "hold": _hold(True),
    "let go": _hold(False),
    "approve": _decide("approve"),
    "reject": _decide("reject"),
    "approve below": _approve_below,
    "outcome": _outcome,
    "resolve": _resolve,
    "wake in 2 h": lambda w: w.db.wake(S, delay="2h", key="t"),
    "cancel": lambda w: w.db.cancel(S, by="eve"),
    "lease taken": _lease,
    "session opened": _open_only,
    "lease given back": _release,
    "close": _close,
    "3 hours": _tick(3 * HOUR),
    "8 days": _tick(8 * 24 * HOUR),
}
"""What can be done to a session of an agent."""


def _program(work: Callable[[Any], Any]) -> Callable[[World], None]:
    def do(w: World) -> None:
        try:
            with w.db.session(S, ttl=None) as s:
                work(s)
        except (ApprovalNeeded, InDoubt, EffectFailed, CallError):
            return

    return do


def _edit(s: Any) -> None:
    s.vars["n"] = s.step
    s.commit()


def _killed_call(s: Any) -> None:
    """A call whose process dies in it."""

    def die(name: str) -> None:
        if name == "call.before_outcome":
            faults.hook = None
            raise Killed

    faults.hook = die
    try:
        s.call(stamp, paper="p")
    except Killed:
        return
    finally:
        faults.hook = None


@perdure.tool
def stamp(paper: str) -> str:
    """Stamp a paper."""
    return paper


def _press(how: str) -> Any:
    """A tool that has a bug, as long as nobody has mended it; what it declares of a repetition."""
    policy: Any = {"function": lambda paper: Unknown(), "failed": "retry", "again": "retry"}.get(how, how)

    @perdure.tool(name=f"press_{how}", if_unsure=policy)
    def press(paper: str) -> str:
        if Cause.broken:
            raise ToolError("out of ink") if how == "failed" else KeyError("ink")
        return paper

    return press


PRESSES = {how: _press(how) for how in ("retry", "function", "ask", "report", "failed", "again")}
"""By what a run is named that calls them: "again" has a function that goes on after what it has got."""


def _print(how: str) -> Callable[[Any], str]:
    """The function of a run; mended, it goes on after what a person has decided, or it had gone on after before."""

    def work(s: Any) -> str:
        try:
            return s.call(PRESSES[how], paper="p")
        except EffectFailed:
            if Cause.broken:
                raise
        except EffectRaised:
            if how != "again":
                raise
            s.vars["failed"] = True
            s.commit()
            if Cause.broken:
                raise
        return "went on"

    return work


PROGRAMS: dict[str, Callable[[World], Any]] = {
    "commit": _program(_edit),
    "commit as failed": _program(lambda s: s.commit(status="failed")),
    "commit as paused": _program(lambda s: s.commit(status="paused")),
    "call that needs agreement": _program(lambda s: s.call(refund, order="A-1")),
    "call in doubt": _program(lambda s: s.call(send, parcel="P-1")),
    "call, killed": _program(_killed_call),
    **{f"run, ended: {how}": _program(lambda s, how=how: s.run(how, _print(how))) for how in PRESSES},
    "post": _say("hello"),
    "approve": _decide("approve"),
    "reject": _decide("reject"),
    "outcome": _outcome,
    "resolve": _resolve,
    "wake in 2 h": lambda w: w.db.wake(S, delay="2h", key="t"),
    "lease taken": _lease,
    "lease given back": _release,
    "close": _close,
    "3 hours": _tick(3 * HOUR),
    "8 days": _tick(8 * 24 * HOUR),
}
"""What can be done to a session of a program that is no agent."""


def take_up(w: World) -> None:
    """What a program does that is started again: it takes its inbox, and makes its open calls once more."""
    tools: dict[str, Any] = {"refund": (refund, "order"), "send": (send, "parcel"), "stamp": (stamp, "paper")}
    with w.db.session(S, ttl=None) as s:
        s.take()
        s.vars["taken up"] = s.step
        runs = [key for key, run in w.book().get("runs", {}).items() if run["status"] == "open"]
        s.commit(status="idle" if not (runs or [e for e in s.effects() if _open(e)]) else None)
        for key in runs:
            with suppress(ApprovalNeeded, InDoubt, CallError):
                s.run(key, _print(key))
        for effect in s.effects():
            if _open(effect) and effect["tool"] in tools:
                fn, _ = tools[effect["tool"]]
                try:
                    s.call(fn, **effect["args"])
                except (ApprovalNeeded, InDoubt, EffectFailed, CallError):
                    continue
