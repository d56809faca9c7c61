"""Hints by way of Procrastinate, on PostgreSQL: jobs wake workers, in order of priority and at their time.

A job says that a session has something to do, or has it at a time; the board decides which session is taken, and the
lease who may write it. The database makes the jobs itself, in the transaction that puts the session into the queue or
sets its time, so whoever posts need not know of Procrastinate. Its tables lie in a schema of their own.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import logging
from contextlib import asynccontextmanager, suppress
from importlib import resources
from typing import TYPE_CHECKING, Any

from perdure.errors import InvalidInput, MissingExtra, PerdureError
from perdure.links.postgres import Link, packed, place_of, quoted, unpacked
from perdure.stores.postgres.board import make
from perdure.stores.postgres.tables import LOCK
from perdure.system.flow_async import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence

    from procrastinate.jobs import Job
    from psycopg import AsyncConnection

    from perdure.links.postgres import Connection

try:
    import procrastinate
    from procrastinate.exceptions import ConnectorException, ProcrastinateException
    from procrastinate.jobs import DeleteJobCondition, Status
    from procrastinate.manager import JobManager
    from procrastinate.schema import SchemaManager, migrations_path
    from psycopg import Error
    from psycopg_pool import AsyncConnectionPool, PoolTimeout
except ImportError as error:
    raise MissingExtra("procrastinate", "fleet", error) from None


log = logging.getLogger("perdure.fleet")

TASK = "perdure.wake"
POLL = 1.0
"""Seconds after which a job is seen at the latest: one whose time has come is not told of."""
CONNECT = 5.0
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
STALLED = 30.0
"""Seconds without a sign of life after which a worker's jobs are given to others."""


class ProcrastinateEngine:
    """Implements :class:`perdure.fleet.worker.Engine`.

    ``dsn`` is the URL of the store, and ``schema`` its schema where that does not say so. Only hints for ``agents`` are
    taken, and only while there is ``room``: what a full worker took, an idle one would miss. Through PgBouncer nobody
    can be notified: with ``direct_url``, which leads past it, everything goes there; without, jobs are looked for every
    ``poll`` seconds.
    """

    def __init__(
        self,
        dsn: str,
        schema: str = "",
        *,
        agents: Sequence[str] | None = None,
        direct_url: str | None = None,
        poll: float = POLL,
        room: Callable[[], bool] | None = None,
    ) -> None:
        self._wanted = schema.strip('"') or place_of(dsn).schema
        self._place = place_of(direct_url or dsn)
        self._link = Link(self._place, size=1, patience=2.0)
        self._agents = agents
        self._poll = poll
        self._room = room
        self._jobs = ""
        """The schema of the jobs, once they are there."""
        self._app: procrastinate.App | None = None

    def __repr__(self) -> str:
        return f"ProcrastinateEngine({self._place.url!r})"

    # -- tables --------------------------------------------------------------------------------------------------

    async def install(self) -> None:
        """Make Procrastinate's tables and what makes the jobs, unless they are there."""
        await in_thread(self._link.do, "install", self._install)

    def _install(self, connection: Connection) -> None:
        name = self._wanted or connection.ask("select current_schema()")[0][0]
        jobs = jobs_schema(name)
        make(connection, quoted(name), self._place.url)
        make_jobs(connection, name, jobs)
        self._jobs = jobs

    # -- hints ---------------------------------------------------------------------------------------------------

    async def run(self, on_hint: Callable[[str], Awaitable[None]], stop: asyncio.Event) -> None:
        """Call ``on_hint`` for each job, until ``stop`` is set; again and again while the server cannot be reached."""
        pause = FIRST_PAUSE
        while not stop.is_set():
            began = asyncio.get_running_loop().time()
            try:
                # Also to find out whether the server is there: its own pool of connections makes more noise about it.
                await self.install()
                await self._work(on_hint, stop)
            except (PerdureError, ProcrastinateException, Error, OSError) as e:
                log.warning("no hints for %.1f s: %s", pause, _line(e))
            except Exception:
                log.exception("no hints for %.1f s", pause)
            if asyncio.get_running_loop().time() - began > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stop.wait()
            pause = min(LONGEST_PAUSE, pause * 2)

    async def _work(self, on_hint: Callable[[str], Awaitable[None]], stop: asyncio.Event) -> None:
        """Run one worker of Procrastinate, until it ends or is to end."""
        pooled = bool(self._link.pooled)
        async with self._opened(pooled) as pool:
            app = self._app_for(on_hint)
            await app.open_async(pool)
            self._app = app
            options: dict[str, Any] = {
                "concurrency": 1,
                "fetch_job_polling_interval": self._poll,
                "listen_notify": not pooled,
                "delete_jobs": DeleteJobCondition.ALWAYS,
                "install_signal_handlers": False,
                "stalled_worker_timeout": STALLED,
            }
            if self._agents is not None:
                options["queues"] = [queue_of(self._jobs, agent) for agent in self._agents]
            work = asyncio.create_task(app.run_worker_async(**options))
            stopped = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._app = None
                stopped.cancel()
                await _end(work)
            if work.done() and not work.cancelled() and (error := work.exception()) is not None:
                raise error

    def _app_for(self, on_hint: Callable[[str], Awaitable[None]]) -> procrastinate.App:
        app = procrastinate.App(connector=procrastinate.PsycopgConnector())
        app.job_manager = _Choosy(app.connector, self._room)

        async def wake(session: str) -> None:
            try:
                await on_hint(unpacked(session))
            except Exception:
                log.exception("a hint was not heeded")

        app.task(name=TASK)(wake)
        return app

    @asynccontextmanager
    async def _opened(self, pooled: bool) -> AsyncGenerator[AsyncConnectionPool[Any]]:
        """A few connections whose names mean the tables of the jobs."""
        path = quoted(self._jobs)
        parameters = dict(self._place.parameters)
        if pooled:
            # What is set for one transaction holds for no other, whoever gets the server's connection then.
            pool = _PathPool(path, kwargs={**parameters, "prepare_threshold": None}, **_SIZE)
        else:
            # A hint that a crash of the server brings back costs nothing: nobody waits for the disk.
            ours = "-c search_path=" + path.replace(" ", "\\ ") + " -c synchronous_commit=off"
            parameters["options"] = f"{parameters.get('options') or ''} {ours}".strip()
            pool = AsyncConnectionPool[Any](kwargs=parameters, configure=_at_once, **_SIZE)
        try:
            await pool.open(wait=True, timeout=CONNECT)
            yield pool
        finally:
            await pool.close(timeout=CONNECT)

    async def tidy(self) -> None:
        """Give the jobs that killed workers had to others, and make those of times that are no longer far off."""
        app = self._app
        if app is None:
            return
        with suppress(ProcrastinateException, PoolTimeout):
            await app.connector.execute_query_async(query="select perdure_fleet_soon()")
            await app.job_manager.prune_stalled_workers(STALLED)
            for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=STALLED):
                await _again(app.job_manager, job)

    async def close(self) -> None:
        """Release everything."""
        self._link.close()


class _Choosy(JobManager):
    """Takes jobs only while there is room for what they bring."""

    def __init__(self, connector: Any, room: Callable[[], bool] | None) -> None:
        super().__init__(connector)
        self._has_room = room

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        """The next job; None while there is no room."""
        if self._has_room is not None and not self._has_room():
            return None
        return await super().fetch_job(queues, worker_id)


class _PathPool(AsyncConnectionPool[Any]):
    """Connections that a pooler lends out for one transaction, which is told first where names are looked up."""

    def __init__(self, path: str, **options: Any) -> None:
        super().__init__(**options)
        self._path = path

    @asynccontextmanager
    async def connection(self, timeout: float | None = None) -> AsyncGenerator[Any]:  # noqa: ASYNC109 - as it is there
        """A connection in a transaction that knows the path."""
        async with super().connection(timeout) as connection:
            await connection.execute("select set_config('search_path', %s, true)", (self._path,))
            yield connection


_SIZE: dict[str, Any] = {"min_size": 1, "max_size": 3, "timeout": CONNECT, "open": False, "reconnect_timeout": CONNECT}


async def _at_once(connection: AsyncConnection[Any]) -> None:
    await connection.set_autocommit(True)


async def _again(manager: JobManager, job: Job) -> None:
    """Let somebody else take a job; drop it when there is another one like it."""
    try:
        await manager.retry_job(job, retry_at=datetime.datetime.now(datetime.UTC))
    except ConnectorException:
        await manager.finish_job(job, status=Status.FAILED, delete_job=True)


async def _end(work: asyncio.Task[None]) -> None:
    """End a worker of Procrastinate: in its own way first, and at once when the server does not let it."""
    for seconds in (CONNECT, CONNECT):
        work.cancel()
        done, _ = await asyncio.wait((work,), timeout=seconds)
        if done:
            return


def _line(error: BaseException) -> str:
    """An error in one line, with what it was made from."""
    cause = error.__cause__
    text = str(error) if cause is None else f"{error} ({cause})"
    return " ".join(text.split())[:300] or type(error).__name__


VERSION = 1
"""Of what lies beside Procrastinate's own tables."""
MOST = 200
"""Jobs that one transaction makes of sessions it queues."""
SOON = 600_000
"""Times further off than so many ms have no job yet: with 50,000 of them each look for one took 30 ms."""


def jobs_schema(schema: str) -> str:
    """The name of the schema that holds the jobs of a store.

    >>> jobs_schema("shop")
    'shop_jobs'
    """
    name = f"{schema}_jobs"
    if len(name.encode()) <= 63:
        return name
    return f"{schema.encode()[:40].decode(errors='ignore')}_{hashlib.md5(schema.encode()).hexdigest()[:12]}_jobs"


def queue_of(jobs: str, agent: str) -> str:
    """The queue of an agent's jobs. Its name is part of a channel's, which must not be long.

    >>> queue_of("shop_jobs", "support")
    'perdure:61d221b78dde3f53'
    """
    return "perdure:" + hashlib.md5(f"{jobs}/{packed(agent)}".encode()).hexdigest()[:16]


def _migrations() -> list[str]:
    return sorted(path.stem for path in migrations_path.glob("*.sql"))


def _mark() -> str:
    return f"perdure {VERSION} {_migrations()[-1]}"


def _is_up_to_date(connection: Connection, schema: str, jobs: str) -> bool:
    # From the catalogs themselves, which are never out of date.
    rows = connection.ask(
        "select obj_description(n.oid, 'pg_namespace') from pg_namespace n where n.nspname = %s and exists ("
        "select from pg_trigger t where t.tgrelid = to_regclass(%s) and t.tgname = 'perdure_fleet_hint')",
        (jobs, f"{quoted(schema)}.perdure_fleet_work"),
    )
    # A newer one is left as it is: this process is of the last deploy.
    return bool(rows and rows[0][0]) and rows[0][0] >= _mark()


def make_jobs(connection: Connection, schema: str, jobs: str) -> None:
    """Make the tables, or bring older ones up to date; safe when many processes do so at the same moment."""
    if _is_up_to_date(connection, schema, jobs):
        return
    with connection.transaction():
        connection.ask("select pg_advisory_xact_lock(%s)", (LOCK,))
        if not _is_up_to_date(connection, schema, jobs):
            _make(connection, schema, jobs)


def _make(connection: Connection, schema: str, jobs: str) -> None:
    connection.run(f"create schema if not exists {quoted(jobs)}; set local search_path = {quoted(jobs)}")
    ((there, note),) = connection.ask(
        "select to_regclass(%s) is not null, obj_description(to_regnamespace(%s), 'pg_namespace')",
        (f"{quoted(jobs)}.procrastinate_jobs", quoted(jobs)),
    )
    known = (note or "").split()
    if not there:
        connection.run(SchemaManager.get_schema())
    elif len(known) != 3 or known[0] != "perdure":
        raise InvalidInput(f"schema {jobs} holds another Procrastinate: the jobs of {schema} have no place there")
    else:
        for name in _migrations():
            if name > known[2]:
                connection.run((migrations_path / f"{name}.sql").read_text("utf-8"))
    script = (resources.files("perdure.stores.postgres") / "sql" / "board_hints.sql").read_text("utf-8")
    words = {
        "$schema": quoted(schema),
        "$jobs": quoted(jobs),
        "$name": jobs.replace("'", "''"),
        "$most": str(MOST),
        "$soon": str(SOON),
    }
    for word, value in words.items():
        script = script.replace(word, value)
    connection.run(f"{script}; comment on schema {quoted(jobs)} is '{_mark()}'")
