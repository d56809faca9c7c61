"""A worker: claims sessions with something to do, runs their agents side by side, and goes without leaving a trace.

The board says which sessions to look at; the lease of a session alone says who may write it. A worker that is killed
leaves claims behind, which the others see by its silence (or at once, on the same machine) and take over.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from perdure import telemetry
from perdure.agent import run_result as ended
from perdure.agent.children import registry
from perdure.agent.dependencies import check_deps
from perdure.agent.run_result import DONE, FAILED, INCOMPATIBLE
from perdure.errors import (
    BehindWitness,
    Busy,
    Gone,
    Incompatible,
    LeaseLost,
    Misuse,
    NotFound,
    OutcomeUnknown,
    PerdureError,
    Poisoned,
    SessionClosed,
    StoreError,
    Unavailable,
)
from perdure.fleet.board import board_of
from perdure.fleet.keeper import Keeper
from perdure.fleet.supervisor import Supervisor
from perdure.fleet.why.decision import MOST_TRIES
from perdure.fleet.why.facts import place_in
from perdure.fleet.why.lists import stuck
from perdure.fleet.why.reading import PARKED
from perdure.history.hydrate import load_head, look
from perdure.model import MAIN, Kind, Status
from perdure.opening import open_async
from perdure.protocols import NewWork, Rest, WorkerRow
from perdure.session.tools.exceptions import is_of_the_call, words_of
from perdure.session.tools.migrations import declared
from perdure.state.document import BOOK
from perdure.stores import DEFAULT_PATH
from perdure.system.flow import check_awaited
from perdure.system.flow_async import in_thread
from perdure.system.lease_holders import new_holder
from perdure.system.wording import count
from perdure.telemetry import logs
from perdure.telemetry.sampling import Sampler

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from perdure.agent.agent import Agent
    from perdure.agent.run_result import RunResult
    from perdure.aio import AsyncDatabase
    from perdure.database import DatabaseHandle
    from perdure.kernel import Kernel
    from perdure.protocols import Board, Work


class Engine(Protocol):
    """Brings hints. A hint that is lost costs time, never work: the worker also looks by itself."""

    async def run(self, on_hint: Callable[[str], Awaitable[None]], stop: asyncio.Event) -> None:
        """Call ``on_hint`` with a session's id (or "") whenever something may be to do, until ``stop`` is set."""
        ...

    async def tidy(self) -> None:
        """Remove what killed workers left."""
        ...

    async def close(self) -> None:
        """Release everything."""
        ...


POLL = 5_000
"""Milliseconds between looks at results that come later and can be asked for."""
FIRST, LONGEST = 1_000, 300_000
"""How long to wait before a failed run is tried again, at first and at most, in ms."""


def wait_before(tries: int) -> int:
    """How long to wait before the next try: doubled each time, and never the same for two sessions at once."""
    return min(LONGEST, int(FIRST * 2 ** (max(tries, 1) - 1) * random.uniform(0.75, 1.25)))


def after_run(
    agents: Iterable[Agent], work: Work, result: RunResult, now: int, *, most: int, version: str, going: bool = False
) -> Rest:
    """How to put a session down after a run that ended with a result.

    ``agents`` are all that may have its conversation now; ``going``: the worker was told to go.
    """
    rest = Rest(work.session, work.step)
    match result.status:
        case ended.STOPPED:
            return rest._replace(again=True)
        case ended.FAILED:
            if work.tries >= most:
                return rest._replace(failed=True, park=_given_up(work.tries, result.reason))
            return rest._replace(failed=True, due=now + wait_before(work.tries))
        case ended.INCOMPATIBLE:
            return rest._replace(again=True, avoid_version=version)
        case ended.WAITING_APPROVAL:
            # An expired request is an outcome, and somebody must notice.
            return rest._replace(due=min((a.expires for a in result.approvals), default=None))
        case ended.WAITING_RESULT if going:
            # What it waits for may be a child that was put down between two steps, as this worker goes.
            return rest._replace(again=True)
        case ended.WAITING_RESULT if any(
            # Which tools a function gives then, nobody knows here.
            agent.choose is not None
            or any(t.poll is not None or t.cache_scope == "shared" for t in agent.tools.values())
            for agent in agents
        ):
            return rest._replace(due=now + POLL)
        case _:
            return rest._replace(due=result.until)


def place_of(db: DatabaseHandle, session: str) -> int:
    """The place at which a session stands; see :func:`perdure.fleet.why.facts.place_in`. Blocks while it reads."""
    row = look(db.kernel, session)
    return place_in(load_head(db.kernel, row, MAIN).doc[BOOK]) if any(h.branch == MAIN for h in row.heads) else 0


def after_error(work: Work, error: BaseException, now: int, *, most: int, span: int, version: str) -> Rest | None:
    """How to put a session down that could not be run; None when it is nobody's business any more."""
    rest = Rest(work.session, work.step)
    if isinstance(error, LeaseLost):
        # Another one has it, and the board knows, or will as soon as that one's lease ends.
        return rest._replace(due=now + span)
    if isinstance(error, Busy):
        # A person talks to it, or a worker that was thought dead is alive after all.
        return rest._replace(uncounted=True, due=now + max(50, span // 4))
    if isinstance(error, (Gone, NotFound, SessionClosed)):
        return rest
    if isinstance(error, Incompatible):
        # Another version of the program has brought it to a schema that this one does not know: it is theirs.
        return rest._replace(again=True, avoid_version=version)
    if isinstance(error, (Unavailable, OutcomeUnknown, BehindWitness)):
        # The store is down, full or put back, which is not the session's doing: it is not suspected, nor ever parked.
        return rest._replace(uncounted=True, due=now + wait_before(1))
    if work.tries >= most:
        return rest._replace(failed=True, park=_given_up(work.tries, f"{type(error).__name__}: {words_of(error)}"))
    return rest._replace(failed=True, due=now + wait_before(work.tries))


def _given_up(times: int, error: str = "") -> str:
    """Why a session is parked: workers that died of it count like those that failed with an error."""
    if error:
        return f"it was tried {count(times, 'time')} at the same place, and failed at last with {error}"[:500]
    return f"its worker died or failed {count(times, 'time')} at the same place"


log = logging.getLogger("perdure.fleet")

RETRY_STORE = (0.2, 5.0)
"""Seconds to wait while the store cannot be reached, at first and at most."""


LOOK, LOOK_HINTED = 0.02, 0.25
"""Seconds between looks at the board, without an engine and with one."""
TIDY = 30.0
"""Seconds between two tidyings of the engine."""
NO_PROGRAM = "no program that came by can go on with it"
"""Why a session is parked that workers of several versions have left to each other."""
UNFIT = 10_000
"""Sessions that a worker remembers to have left to others."""
SUSPECT = 3
"""From this try on a session may be what its workers died of.

A worker has one of these at a time at first, and twice as many whenever one has done no harm: those that merely stood
beside the culprit soon show that they are not.
"""
ASTRAY = 300_000
"""Milliseconds until a session that stands at running with nothing to do is looked at again."""
WAIT = 200
"""Milliseconds until another worker may have a suspect that this one has no place for."""


TOOLS = "perdure-tool"
"""Begins the names of the threads that tools block."""
HELD_UP = 1.0
"""Seconds that threads have to end once the worker has."""


class Settings(NamedTuple):
    """How a worker works."""

    concurrency: int = 20
    """Sessions at once."""
    grace: float = 25.0
    """Seconds that steps under way may take to end once the worker is told to go."""
    per_owner: int | None = None
    """Sessions of one owner at once, in the whole fleet."""
    most_tries: int = MOST_TRIES
    """As often may a session fail, or kill its worker, at the same place before it is parked."""
    version: str = ""
    """Names what this worker runs; made from its agents when not given."""
    live: bool = True
    """Whether answers can be read along by other processes while they are made."""


class Worker:
    """Runs the sessions of some agents on one database, until it is told to stop."""

    def __init__(
        self,
        db: AsyncDatabase,
        agents: Sequence[Agent],
        settings: Settings | None = None,
        *,
        url: str | None = None,
    ) -> None:
        check_awaited(db, "a worker")
        self.db = db
        for agent in agents:
            # Nobody could pass it anything later.
            check_deps(agent)
        self.agents = {agent.name: agent for agent in agents}
        self.settings = settings or Settings()
        self.version = self.settings.version or version_of(agents, db.kernel)
        self.id = new_holder()
        self._url = url
        """By which another process can open the same store; without it nobody keeps leases for one that computes."""
        self.engine: Engine | None = None
        """What brings hints; without one the board is looked at often."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._rests: list[Rest] = []
        self._suspects: set[str] = set()
        self._trust = 1
        """How many suspects it takes at once."""
        self._twice: set[str] = set()
        """Sessions that were claimed again while they were still at work here."""
        self._unfit: dict[str, tuple[int, int]] = {}
        """Sessions that its program could not go on with: where they stood, and how often it found them there."""
        self._stir = asyncio.Event()
        self._stopping = asyncio.Event()
        self._park = asyncio.Event()
        self.done = 0
        self.recovered = 0

    # -- life -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until :meth:`stop`; then let steps under way end, put the rest down, and go."""
        loop = asyncio.get_running_loop()
        logs.know(worker=self.id)
        # A tool that blocks has a thread of its own: the usual pool is a handful.
        self._threads = ThreadPoolExecutor(self.settings.concurrency + 8, TOOLS)
        loop.set_default_executor(self._threads)
        board = await in_thread(board_of, self.db)
        ttl, self._started = self.db.lease_ttl, self.db.kernel.clock.wall()
        supervisor = Supervisor(Keeper(self.db, ttl, self._url), board, self._row, self._heard(loop), ttl)
        supervisor.sample = Sampler(self.db.kernel.store, stuck=partial(stuck, self.db)).sample_now_and_then
        if not await self._patiently(partial(in_thread, supervisor.start)):
            return
        hints = asyncio.create_task(self._hints())
        try:
            await self._serve(board)
        finally:
            await self._wind_up(board)
            hints.cancel()
            await asyncio.gather(hints, return_exceptions=True)
            await in_thread(supervisor.close)
            # Only now: a last sign of life would bring its row back, for good when nobody else is there to see it.
            await self._leave(board)
            for agent in self.agents.values():
                await agent.close()

    def is_held_up(self) -> bool:
        """Whether, after it has run, a tool still blocks a thread: only the end of its process ends that one.

        Blocks for a moment; no tool can be called afterwards.
        """
        if self._threads is None:
            return False
        self._threads.shutdown(wait=False, cancel_futures=True)
        end = monotonic() + HELD_UP
        ours = [thread for thread in threading.enumerate() if thread.name.startswith(TOOLS)]
        for thread in ours:
            thread.join(max(0.0, end - monotonic()))
        return any(thread.is_alive() for thread in ours)

    def has_room(self) -> bool:
        """Whether it could take another session."""
        return len(self._tasks) < self.settings.concurrency and not self._stopping.is_set()

    def stop(self) -> None:
        """Claim nothing more, finish the steps under way, then end. May be called from a signal handler."""
        telemetry.health.going()
        self._stopping.set()
        self._park.set()
        self._stir.set()

    def _heard(self, loop: asyncio.AbstractEventLoop) -> Callable[[str], None]:
        """What the supervisor calls, from its own thread, when something may be to do."""

        def heard(wish: str) -> None:
            loop.call_soon_threadsafe(self.stop if wish == "drain" else self._stir.set)

        return heard

    def _row(self) -> WorkerRow:
        host, pid = os.uname().nodename, os.getpid()
        agents, most = tuple(sorted(self.agents)), self.settings.concurrency
        row = WorkerRow(self.id, host, pid, self.version, agents, most, len(self._tasks), self._started)
        return row._replace(done=self.done, recovered=self.recovered)

    _started = 0
    _threads: ThreadPoolExecutor | None = None

    # -- claiming -------------------------------------------------------------------------------------------------

    async def _serve(self, board: Board) -> None:
        async def turn() -> None:
            if not await self._turn(board):
                await self._wait_for_work(board)

        while await self._patiently(turn):
            pass

    async def _patiently(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do something that needs the board, again and again while that cannot be reached; False when told to stop."""
        wait, longest = RETRY_STORE
        while not self._stopping.is_set():
            telemetry.health.turned()
            self._stir.clear()
            try:
                await work()
                return True
            except (Poisoned, BehindWitness):
                # This handle is of no use any more: whoever started this process starts another one.
                raise
            except StoreError as e:
                log.warning("the board cannot be reached, trying again in %.1f s: %s", wait, e)
                await self._pause(wait)
                wait = min(longest, wait * 2)
        return False

    async def _turn(self, board: Board) -> bool:
        """Put down what has ended and claim what there is room for; whether something was claimed."""
        await self._put_down(board)
        # A session may have shown it since.
        await self._do(self.db.caretaker.before_write)
        free = self.settings.concurrency - len(self._tasks)
        if free <= 0:
            return False
        ask = {"per_owner": self.settings.per_owner, "version": self.version}
        now = self.db.kernel.clock.wall()
        works: list[Work] = await self._do(board.claim, self.id, tuple(self.agents), free, now, **ask)
        # What another one put down as ours, because we were not heard of for too long, we may get back: what we were
        # about to say of the earlier claim says nothing of this one.
        again = {work.session for work in works}
        self._rests = [rest for rest in self._rests if rest.session not in again]
        for work in works:
            if work.session in self._tasks:
                # Still at work on it. Whether that has seen what it was queued for nobody knows.
                self._twice.add(work.session)
                continue
            task = asyncio.create_task(self._one(board, work), name=f"session {work.session}")
            self._tasks[work.session] = task
        return bool(works)

    async def _put_down(self, board: Board) -> None:
        rests, self._rests = self._rests, []
        if rests:
            try:
                await self._do(board.rest, self.id, rests, self.db.kernel.clock.wall())
            except StoreError:
                # They stay ours, and are put down when the store is there again.
                self._rests = rests + self._rests
                raise

    async def _wait_for_work(self, board: Board) -> None:
        """Until a run ends, a hint comes, or the board has changed; a full worker waits for its own runs only."""
        mark = ""
        while not self._stir.is_set():
            full = len(self._tasks) >= self.settings.concurrency
            await self._pause(1.0 if full else LOOK_HINTED if self.engine is not None else LOOK)
            if full or self._stir.is_set():
                return
            now = await self._do(board.mark)
            if mark and now != mark:
                return
            mark = now
            if self._ticks():
                return

    _looked = 0.0

    def _ticks(self) -> bool:
        """Whether it is time to look at the board although it has not changed: a timer may be due."""
        now = asyncio.get_running_loop().time()
        if now - self._looked < 0.25:
            return False
        self._looked = now
        return True

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stir.wait()
        except TimeoutError:
            pass

    async def _hints(self) -> None:
        if self.engine is None:
            return

        async def hinted(_: str) -> None:
            self._stir.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(self.engine.run(hinted, self._stopping))
            group.create_task(self._tidy(self.engine))

    async def _tidy(self, engine: Engine) -> None:
        while True:
            await asyncio.sleep(TIDY)
            await engine.tidy()

    async def _do(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return await self.db.driver.call(fn, *args, **options)

    # -- one session ----------------------------------------------------------------------------------------------

    async def _one(self, board: Board, work: Work) -> None:
        """Run one session as far as it goes, and say how to put it down."""
        most, clock = self.settings.most_tries, self.db.kernel.clock
        rest: Rest | None = Rest(work.session, work.step, again=True)
        left = put_back = False
        try:
            if work.tries > most + 1:
                # Whoever counts reads the session first: the last ones died of that.
                rest = Rest(work.session, work.step, uncounted=True, park=_given_up(work.tries - 1))
                return
            if work.tries > 1:
                left = await self._is_left(work)
                # The last claim ended where it stands now.
                work = await self._counted(board, work, 2)
                if work.tries > most:
                    rest = await self._give_up(work)
                    return
                if not self._is_trusted(work):
                    put_back, rest = True, Rest(work.session, work.step, due=clock.wall() + WAIT, uncounted=True)
                    return
            agent = self.agents[work.agent]
            options: dict[str, Any] = {"agents": tuple(self.agents.values()), "live": self.settings.live}
            options |= {"stop": self._park, "claimed": True}
            result = await agent.run(self.db, session=work.session, owner=work.owner, **options)
            self.recovered += left
            going = self._park.is_set()
            # Any of these may have the conversation by now.
            able = registry(agent, options["agents"])
            if result.status == INCOMPATIBLE and result.agent not in able:
                # It was handed to one that other workers have: theirs it is from now on.
                await self._do(board.put, [NewWork(work.session, result.agent, work.owner, work.priority)])
                return
            if result.agent != work.agent and result.agent in self.agents:
                # It was handed to another one: a hold of that one is a hold of this session from now on.
                await self._do(board.put, [NewWork(work.session, result.agent, work.owner, work.priority)])
            if result.status == FAILED:
                work = await self._counted(board, work, 1)
            rest = after_run(able.values(), work, result, clock.wall(), most=most, version=self.version, going=going)
            if result.status == DONE and not result.turns and await self._has_no_agent_here(work):
                rest = rest._replace(due=clock.wall() + ASTRAY)
            if rest.avoid_version:
                log.warning("session %r is left to workers of another version: %s", work.session, result.reason)
                rest = await self._left_to_others(work, rest, result.reason)
            if rest.park:
                log.warning("session %r is parked: %s", work.session, rest.park)
        except BaseException as e:
            if not is_of_the_call(e):
                raise
            told: dict[str, Any] = {"most": most, "span": self.db.lease_ttl, "version": self.version}
            rest = after_error(work, e, clock.wall(), **told)
            if rest is not None and rest.failed:
                rest = after_error(await self._counted_if_readable(board, work), e, clock.wall(), **told)
                await self._mark_failed(work, type(e).__name__, words_of(e))
            if rest is not None and rest.avoid_version:
                rest = await self._left_to_others(work, rest, words_of(e))
            if isinstance(e, PerdureError):
                log.info("session %r was put down: %s", work.session, e)
            else:
                log.exception("session %r failed with an error of its program", work.session)
        finally:
            telemetry.let_go(work.session)
            self._tasks.pop(work.session, None)
            if work.session in self._suspects:
                self._suspects.discard(work.session)
                self._trust = min(self._trust * 2, self.settings.concurrency)
            self.done += not put_back and not (rest is not None and rest.avoid_version)
            if rest is not None and work.session in self._twice:
                self._twice.discard(work.session)
                rest = rest._replace(again=True)
            if rest is not None:
                self._rests.append(rest)
            self._stir.set()

    async def _left_to_others(self, work: Work, rest: Rest, reason: str) -> Rest:
        """How to put down what this program cannot go on with: another version may have it at once.

        One that comes back from there as it was is left ever longer, and given up in the end: nobody can go on with it.
        """
        try:
            place: int = await self._do(place_of, self.db, work.session)
        except PerdureError as e:
            log.info("where session %r stands cannot be told: %s", work.session, e)
            place = work.step
        before, times = self._unfit.pop(work.session, (place, 0))
        times = times + 1 if before == place else 1
        if times > self.settings.most_tries:
            return rest._replace(again=False, avoid_version="", park=f"{NO_PROGRAM}: {reason}"[:500])
        self._unfit[work.session] = place, times
        if len(self._unfit) > UNFIT:
            del self._unfit[next(iter(self._unfit))]
        if times == 1:
            return rest
        return rest._replace(again=False, due=self.db.kernel.clock.wall() + wait_before(times))

    async def _has_no_agent_here(self, work: Work) -> bool:
        """Whether a session stands at running although there is nothing to do for its agent: other code has a run open.

        It would be adopted at once, again and again.
        """
        return (await self.db.look(work.session)).status == Status.RUNNING

    async def _is_left(self, work: Work) -> bool:
        """Whether a worker died of it or beside it: what failed was put down, and is merely tried again."""
        row = await self.db.look(work.session)
        if row.status == Status.RUNNING:
            telemetry.took_over(work.session, max(0, self.db.kernel.clock.wall() - row.updated) / 1000)
        return row.status != Status.FAILED

    async def _counted(self, board: Board, work: Work, tries: int) -> Work:
        """How often it was tried at the place where it stands: so many ``tries`` where it was not seen there before."""
        place: int = await self._do(place_of, self.db, work.session)
        tries = await self._do(board.got, self.id, work.session, place, tries)
        return work._replace(tries=tries, step=place)

    async def _counted_if_readable(self, board: Board, work: Work) -> Work:
        """The same after an error, which may be that it cannot be read."""
        try:
            return await self._counted(board, work, 1)
        except PerdureError as e:
            log.info("where session %r failed cannot be told: %s", work.session, e)
            return work

    def _is_trusted(self, work: Work) -> bool:
        """Whether it may be run now; a suspect only while there is a place for one."""
        if work.tries < SUSPECT:
            return True
        if len(self._suspects) >= self._trust:
            return False
        self._suspects.add(work.session)
        return True

    async def _give_up(self, work: Work) -> Rest:
        reason = _given_up(work.tries - 1)
        log.error("session %r is parked: %s", work.session, reason)
        await self._mark_failed(work, PARKED, reason)
        return Rest(work.session, work.step, uncounted=True, park=reason)

    async def _mark_failed(self, work: Work, error: str, note: str) -> None:
        """Write down in the session itself that it failed, and of what: nobody reads the logs of all workers."""
        try:
            async with self.db.session(work.session, create=False) as s:
                x = {"note": note[:500], "error": error}
                await self.db.driver.drive(s.journal.write(Kind.COMMIT, x=x, status=Status.FAILED))
        except Exception as e:
            # Of whatever kind: a program that fails may do so as soon as its session is opened.
            log.warning("session %r could not be marked: %s", work.session, e)

    # -- the end --------------------------------------------------------------------------------------------------

    async def _wind_up(self, board: Board) -> None:
        """Let steps end within the grace period, cancel what does not, put everything down."""
        self._park.set()
        if self._tasks:
            log.info("going: %d sessions end their step", len(self._tasks))
            await asyncio.wait(set(self._tasks.values()), timeout=self.settings.grace)
        left = set(self._tasks.values())
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=5.0)
        try:
            await self._put_down(board)
        except StoreError as e:
            log.warning("sessions cannot be put down one by one: %s", e)

    async def _leave(self, board: Board) -> None:
        try:
            await self._do(board.leave, self.id)
        except StoreError as e:
            log.warning("the board cannot be told that this worker goes: %s", e)


def version_of(agents: Sequence[Agent], kernel: Kernel) -> str:
    """A name for what a program can go on with: another prompt, tool, schema or migration gives another one."""
    parts = sorted(
        [a.name, a.version, sorted(a.goes_on_from or ()), a.fingerprint(), a.instructions, _given_by(a), a.model.name]
        for a in agents
    )
    states = kernel.migrations.steps() if kernel.migrations is not None else []
    return hashlib.sha256(repr((parts, kernel.schema, states, declared())).encode()).hexdigest()[:12]


def _given_by(agent: Agent) -> str:
    """Names the functions that give an agent's instructions and tools."""
    return " ".join(getattr(fn, "__qualname__", "") for fn in (agent.instruct, agent.choose) if fn is not None)


async def start_worker(
    agents: Sequence[Agent],
    store: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    *,
    blobs: str | None = None,
    lease: float = 10.0,
    schema: str = "1.0.0",
    direct: str | None = None,
    witness: str | None = None,
    ready: Callable[[Worker], None] | None = None,
) -> None:
    """Run a worker in this process until it is told to stop; ``ready`` is given it once it is about to begin.

    ``schema`` is the version of the state that the program writes, and ``witness`` a file outside the store, as for
    :func:`perdure.open`. A worker whose store is behind its witness ends with ``BehindWitness``: it can write nothing.
    """
    given: Any = store
    if not isinstance(given, str | os.PathLike | None):
        raise Misuse(f"a worker opens its database itself: pass start_worker its URL, not {type(given).__name__}")
    url = os.fspath(store or default_store())
    async with open_async(url, lease_ttl=lease, blobs=blobs, schema=schema, witness=witness) as db:
        # Before anybody is told that it serves: behind its witness, or where there is no board, it cannot.
        await db.driver.call(db.caretaker.before_write)
        await db.driver.call(board_of, db)
        worker = Worker(db, agents, settings, url=url)
        engine = worker.engine = engine_for(url, worker, direct)
        if ready is not None:
            ready(worker)
        try:
            await worker.run()
        finally:
            if engine is not None:
                await engine.close()


def default_store() -> str:
    """Where a program without a word about it keeps its sessions; absolute, for other processes open it too."""
    return f"sqlite:///{os.path.abspath(DEFAULT_PATH)}"


def engine_for(url: str, worker: Worker, direct: str | None = None) -> Engine | None:
    """Notifications where there is a server that sends them; a file is looked at instead."""
    from perdure.system.urls import TIERED, tiers

    truth = tiers(url)[1] if url.startswith(TIERED) else url
    if not truth.startswith(("postgresql://", "postgres://")):
        return None
    from perdure.fleet.procrastinate import ProcrastinateEngine

    return ProcrastinateEngine(truth, agents=tuple(worker.agents), direct_url=direct, room=worker.has_room)
