"""Jobs of Procrastinate as hints: whoever posts makes them, and a waiting engine hears of it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from perdure.errors import InvalidInput, PerdureError
from perdure.fleet import procrastinate
from perdure.fleet.procrastinate import MOST, SOON, ProcrastinateEngine, jobs_schema, make_jobs, queue_of
from perdure.links.postgres import Link, place_of
from perdure.protocols import Filter, NewWork, Rest
from perdure.stores.postgres.store import PostgresStore
from perdure.testing.sealed_rows import entry, write
from tests.fleet.harness import LIMIT
from tests.servers import postgres
from tests.servers.pgbouncer import pgbouncer
from tests.servers.postgres import postgres_url, start_postgres
from tests.servers.process import kill, stop
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Listening:
    """An engine at work in a thread, and what it heard."""

    def __init__(self, url: str, **options: Any) -> None:
        self.heard: list[str] = []
        self.engine = ProcrastinateEngine(url, **{"poll": 0.2, **options})
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(LIMIT)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        # When that cannot be done now, the engine tries again by itself.
        with contextlib.suppress(PerdureError):
            await self.engine.install()
        self._ready.set()

        async def hear(session: str) -> None:
            self.heard.append(session)

        await self.engine.run(hear, self._stop)
        await self.engine.close()

    def tidy(self) -> None:
        """Do what a worker does now and then."""
        asyncio.run_coroutine_threadsafe(self.engine.tidy(), self._loop).result(LIMIT)

    def close(self) -> None:
        """Stop it; it must end soon."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()


class Place:
    """A store, its board, and engines that listen to it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = PostgresStore(url)
        self.board = self.store.board()
        self.jobs = jobs_schema(self.store.schema.strip('"'))
        self._listening: list[Listening] = []

    def listen(self, **options: Any) -> Listening:
        """Another engine."""
        self._listening.append(Listening(options.pop("url", self.url), **options))
        return self._listening[-1]

    def notified(self, **options: Any) -> Listening:
        """An engine that is being notified by now; looking by itself would take longer than any test waits."""
        name = f"listening-{len(self._listening)}-{self.jobs}"[:63]
        direct = f"{options.pop('direct_url', self.url)}&application_name={name}"
        listening = self.listen(direct_url=direct, poll=3600.0, **options)
        sql = f"select count(*) from pg_stat_activity where application_name = '{name}' and query like 'LISTEN%%'"
        until(lambda: self.ask(sql) == [1])
        return listening

    def install(self) -> None:
        """Make the tables, and let nobody listen."""

        async def made() -> None:
            engine = ProcrastinateEngine(self.url)
            try:
                await engine.install()
            finally:
                await engine.close()

        asyncio.run(made())

    def ask(self, sql: str) -> list[Any]:
        """What the database says."""
        return [row[0] for row in self.store._link.ask("ask", sql.replace("$jobs", f'"{self.jobs}"'))]

    def waiting(self) -> list[str]:
        """The sessions of jobs that nobody has taken."""
        return self.ask("select args ->> 'session' from $jobs.procrastinate_jobs where status = 'todo' order by id")

    def close(self) -> None:
        """Stop everything."""
        for one in self._listening:
            one.close()
        self.store.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(url_of("postgres", tmp_path))
    yield made
    made.close()


def until(true: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def put(place: Place, *sessions: str, agent: str = "a", priority: int = 0) -> None:
    """Queue sessions."""
    place.board.put([NewWork(session, agent, priority=priority) for session in sessions])


def laid_down(place: Place, session: str, **how: Any) -> None:
    """Let a session be worked on and put down."""
    put(place, session)
    place.board.claim("w", ["a"], 100, 0)
    place.board.rest("w", [Rest(session, 1, **how)], 0)


def test_a_post_of_a_process_that_knows_nothing_of_it_wakes_an_engine(place: Place):
    place.install()
    laid_down(place, "s1")
    listening = place.notified()
    until(lambda: listening.heard == ["s1"])  # it has caught up
    listening.heard.clear()
    script = (
        "import sys; from perdure.stores import open_store; from perdure.model import InboxEntry;"
        "store = open_store(sys.argv[1]); store.post([InboxEntry('s1', 'k', 'message', 1, b'd' * 32, b'x')]);"
        "store.close(); assert 'procrastinate' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, place.url], check=True, timeout=LIMIT)
    until(lambda: "s1" in listening.heard)
    until(lambda: place.waiting() == [])
    assert [work.session for work in place.board.works(Filter(state="queued"))] == ["s1"]


def test_a_timer_fires_at_its_time_and_not_before(place: Place):
    listening = place.listen()
    laid_down(place, "s1")
    until(lambda: "s1" in listening.heard)
    listening.heard.clear()
    due = time.time_ns() // 1_000_000 + 1_500
    place.store.post([entry(session="s1", kind="wake", at=due)])
    until(lambda: "s1" in listening.heard)
    # The server's clock is this machine's; a job is never given out before its time.
    assert time.time_ns() // 1_000_000 >= due
    assert [work.session for work in place.board.claim("w", ["a"], 5, due)] == ["s1"]


def test_a_retry_has_a_job_of_its_own(place: Place):
    place.install()
    due = time.time_ns() // 1_000_000 + SOON // 2
    laid_down(place, "s1", failed=True, due=due)
    sql = "select (extract(epoch from scheduled_at) * 1000)::bigint from $jobs.procrastinate_jobs"
    assert place.ask(f"{sql} where scheduled_at is not null") == [due]


def test_a_time_that_is_far_off_gets_its_job_when_it_comes_near(place: Place):
    listening = place.listen()
    laid_down(place, "s1", due=2_000_000_000_000)
    until(lambda: listening.heard == ["s1"])
    until(lambda: place.ask("select count(*) from $jobs.procrastinate_jobs") == [0])
    listening.tidy()
    assert place.waiting() == []
    # As if that much time had passed: what is on the board is due, and nothing was said when it was changed.
    work = f"{place.store.schema}.perdure_fleet_work"
    place.ask(f"alter table {work} disable trigger user")
    place.ask(f"update {work} set due = 1000")
    place.ask(f"alter table {work} enable trigger user")
    listening.tidy()
    until(lambda: listening.heard == ["s1", "s1"])


def test_jobs_carry_the_priority_and_an_engine_hears_them_in_its_order(place: Place):
    place.install()
    put(place, "low", priority=-5)
    put(place, "high", priority=7)
    put(place, "middle")
    listening = place.listen()
    until(lambda: len(listening.heard) == 3)
    assert listening.heard == ["high", "middle", "low"]


def test_duplicates_do_not_pile_up(place: Place):
    place.install()
    put(place, "s1")
    later = time.time_ns() // 1_000_000 + SOON // 2
    for n in range(20):
        put(place, "s1")
        place.store.post([entry(f"k{n}", session="s1")])
        place.store.post([entry(f"w{n}", session="s1", kind="wake", at=later)])
    assert place.waiting() == ["s1"]
    laid_down(place, "s1")
    for n in range(20, 40):
        place.store.post([entry(f"w{n}", session="s1", kind="wake", at=later)])
    assert len(place.waiting()) == 2  # one for now, one for then


def test_a_large_batch_makes_a_few_jobs_and_queues_all(place: Place):
    place.install()
    put(place, *[f"s{n:04}" for n in range(MOST + 300)])
    assert len(place.waiting()) == MOST
    assert place.board.counts() == {("a", "queued"): MOST + 300}


def test_what_was_claimed_leaves_no_jobs_behind(place: Place):
    listening = place.listen()
    for n in range(10):
        laid_down(place, f"s{n}")
    until(lambda: place.ask("select count(*) from $jobs.procrastinate_jobs") == [0])
    assert set(listening.heard) == {f"s{n}" for n in range(10)}
    assert place.ask("select count(*) from $jobs.procrastinate_events") == [0]


def test_an_engine_hears_of_its_agents_only(place: Place):
    ours, theirs = place.listen(agents=["a", "b"]), place.listen(agents=["c"])
    put(place, "s1")
    put(place, "s2", agent="c")
    put(place, "s3", agent="b")
    until(lambda: len(ours.heard) == 2 and len(theirs.heard) == 1)
    assert (sorted(ours.heard), theirs.heard) == (["s1", "s3"], ["s2"])


def test_a_full_worker_takes_no_hint(place: Place):
    full = place.listen(room=lambda: False)
    put(place, "s1")
    idle = place.listen()
    until(lambda: idle.heard == ["s1"])
    assert full.heard == []


def test_names_of_any_kind_arrive_as_they_are(place: Place):
    listening = place.listen(agents=["größe 'x' " * 20])
    put(place, "né\0 'quoted' %s", agent="größe 'x' " * 20)
    until(lambda: listening.heard == ["né\0 'quoted' %s"])


def test_ten_installations_at_once_make_one(place: Place):
    async def all_at_once() -> None:
        engines = [ProcrastinateEngine(place.url) for _ in range(10)]
        await asyncio.gather(*(engine.install() for engine in engines))
        for engine in engines:
            await engine.close()

    asyncio.run(all_at_once())
    put(place, "s1")
    assert place.waiting() == ["s1"]


def test_older_tables_are_brought_up_to_date(place: Place, monkeypatch: pytest.MonkeyPatch):
    from procrastinate.schema import migrations_path

    from perdure.fleet import procrastinate as tables

    names = sorted(path.stem for path in migrations_path.glob("*.sql"))
    older = names[: names.index("03.02.00_50_post_batch_defer_jobs") + 1]
    with monkeypatch.context() as patch:
        script = "\n".join((migrations_path / f"{name}.sql").read_text("utf-8") for name in older)
        patch.setattr(tables.SchemaManager, "get_schema", lambda: script)
        patch.setattr(tables, "_migrations", lambda: older)
        place.install()
    missing = "select count(*) from pg_proc where proname = 'procrastinate_retry_job_v2' and pronamespace = "
    namespace = f"to_regnamespace('\"{place.jobs}\"')"
    assert place.ask(missing + namespace) == [0]
    put(place, "s1")
    listening = place.listen()
    until(lambda: "s1" in listening.heard)
    assert place.ask(missing + namespace) == [1]


def test_the_jobs_of_somebody_else_are_left_alone(place: Place):
    link = Link(place_of(place.url), size=1)
    link.do("make", lambda c: make_jobs(c, place.store.schema.strip('"'), place.jobs))
    place.ask("comment on schema $jobs is 'mine'")
    place.ask(f"drop trigger perdure_fleet_hint on {place.store.schema}.perdure_fleet_work")
    with pytest.raises(InvalidInput, match="holds another Procrastinate"):
        place.install()
    link.close()


def test_a_post_goes_through_when_no_job_can_be_made(place: Place):
    place.install()
    laid_down(place, "s1")
    place.ask("alter table $jobs.procrastinate_jobs rename to elsewhere")
    assert place.store.post([entry(session="s1")]) == [True]
    assert [work.session for work in place.board.claim("w", ["a"], 5, 0)] == ["s1"]


def test_what_a_killed_worker_was_told_is_told_to_another(place: Place):
    place.install()
    put(place, "s1", "s2")
    fetched = "select (f).id from (select $jobs.procrastinate_fetch_job_v2(null, 1) as f) x"
    with psycopg.connect(place.url.partition("?")[0], autocommit=True) as dead:
        dead.execute("select set_config('search_path', %s, false)", (f'"{place.jobs}"',))
        dead.execute(
            "insert into procrastinate_workers (id, last_heartbeat) overriding system value values (1, '2020-01-01')"
        )
        for _ in range(2):
            dead.execute(fetched.replace("$jobs", f'"{place.jobs}"'))  # type: ignore[arg-type]
    put(place, "s2")  # this one has another job by now
    assert place.waiting() == ["s2"]
    listening = place.listen()
    until(lambda: "s2" in listening.heard)
    put(place, "probe")
    until(lambda: "probe" in listening.heard)
    assert "s1" not in listening.heard
    listening.tidy()
    until(lambda: "s1" in listening.heard)
    until(lambda: place.ask("select count(*) from $jobs.procrastinate_jobs") == [0])


def test_through_pgbouncer_it_looks_by_itself_or_goes_past_it(place: Place, tmp_path: Path):
    through = url_of("postgres", tmp_path).replace(f":{postgres().port}/", f":{pgbouncer().port}/")
    polling = place.listen(url=through, agents=["a"])
    put(place, "s1")
    until(lambda: "s1" in polling.heard)
    assert polling.engine._link.pooled is True
    direct = place.notified(url=through, agents=["b"])
    for session in ("first", "second"):
        put(place, session, agent="b")
        until(lambda session=session: session in direct.heard)


def test_after_a_restart_of_the_server_hints_come_again(caplog: pytest.LogCaptureFixture):
    running = start_postgres()
    place = Place(f"{postgres_url(running)}?schema=shop")
    try:
        listening = place.listen()
        put(place, "before")
        until(lambda: "before" in listening.heard)
        # Its job is done: one that cannot be finished any more Procrastinate complains of whenever it is collected.
        until(lambda: place.ask("select count(*) from $jobs.procrastinate_jobs") == [0])
        kill(running)
        until(lambda: any("no hints" in record.message for record in caplog.records))
        running = start_postgres(folder=running.folder, port=running.port)
        put(place, "after")
        until(lambda: "after" in listening.heard)
        write(place.store, "s")
    finally:
        place.close()
        stop(running)


def test_an_engine_whose_server_is_not_there_still_ends(caplog: pytest.LogCaptureFixture):
    listening = Listening("postgresql://ana:s3cr3t@127.0.0.1:1/none?schema=shop")
    until(lambda: any("no hints" in record.message for record in caplog.records))
    listening.close()
    assert listening.heard == []
    assert "s3cr3t" not in caplog.text + repr(listening.engine)


def test_the_queue_of_an_agent_is_the_one_that_the_database_names(place: Place):
    place.install()
    put(place, "s1", agent="a\0b")
    assert place.ask("select queue_name from $jobs.procrastinate_jobs") == [queue_of(place.jobs, "a\0b")]


def test_long_names_of_schemas_stay_apart():
    names = {jobs_schema("é" * 30 + end) for end in ("a", "b", "")}
    assert len(names) == 3
    assert all(len(name.encode()) <= 63 for name in names)


def test_without_procrastinate_it_says_what_to_install():
    script = """
import sys
sys.modules["procrastinate"] = None
from perdure.errors import MissingExtra
try:
    import perdure.fleet.procrastinate
except MissingExtra as e:
    print(e)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=LIMIT)
    assert done.stdout == 'procrastinate is not installed: pip install "perdure[fleet]"\n'
    assert procrastinate.TASK == "perdure.wake"
