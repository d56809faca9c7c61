"""Stores on servers: commits, loads and sizes against plain clients of the same servers, in turns."""

from __future__ import annotations

import importlib
import os
import statistics
import sys
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import perdure
from perdure.bench.floors import PostgresFloor, RedisFloor, micros, take_turns, timed, touch
from perdure.bench.plan import raw_bytes
from perdure.bench.report import Result
from perdure.bench.saves import SESSION, beside_floor, compare_batching, compare_late, compared, saver, write_session
from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Generator

    from perdure.bench.plan import Plan

POSTGRES, REDIS = "PERDURE_BENCH_POSTGRES", "PERDURE_BENCH_REDIS"
"""Variables that name servers; what is written there is dropped afterwards."""


class Servers(NamedTuple):
    """Where to measure: URLs without a schema or prefix."""

    postgres: str
    redis: str

    def url(self, kind: str, name: str) -> str:
        """A store of its own on the servers."""
        sep = "&" if "?" in self.postgres else "?"
        postgres = f"{self.postgres}{sep}schema=bench_{name}"
        redis = f"{self.redis}{'&' if '?' in self.redis else '?'}prefix=bench_{name}"
        return {"postgres": postgres, "redis": redis, "tiered": f"tiered:{redis},{postgres}"}[kind]


@contextmanager
def find_servers() -> Generator[Servers]:
    """The servers that the environment names, or those a source checkout can start for its tests."""
    if POSTGRES in os.environ and REDIS in os.environ:
        yield Servers(os.environ[POSTGRES], os.environ[REDIS])
        return
    root = Path(perdure.__file__).resolve().parents[2]
    if not (root / "tests" / "servers").is_dir():
        raise InvalidInput(f"no servers to measure on: set {POSTGRES} and {REDIS} to the URLs of empty ones")
    sys.path.insert(0, str(root))
    start: Any = importlib.import_module("tests.servers.postgres")
    keep: Any = importlib.import_module("tests.servers.valkey")
    process: Any = importlib.import_module("tests.servers.process")
    with ExitStack() as running:
        postgres = start.start_postgres()
        running.callback(process.stop, postgres)
        redis = keep.start_valkey()
        running.callback(process.stop, redis)
        yield Servers(start.postgres_url(postgres), keep.redis_url(redis))


SEED_FIGURES = {"redis": {"save": 12, "load": 8}, "postgres": {"save": 45, "load": 38}}
"""Milliseconds that a plain checkpoint store was reported to take, to be shown beside ours."""
STORED = 10
"""Sessions whose weight is taken: space that packing frees is used by those that come after."""


def _beside(store: str, what: str, micros: float) -> dict[str, Any]:
    return {f"{what}_p50_ms": round(micros / 1000, 3), "reported_elsewhere_ms": SEED_FIGURES[store][what]}


def postgres_saves(servers: Servers, plan: Plan) -> list[Result]:
    """Blocking commits of one session against single INSERTs."""
    messages = plan.messages(plan.saves)
    floor = PostgresFloor(servers.postgres, messages)
    turns = beside_floor(servers.url("postgres", "saves"), floor, messages, plan)
    ours = micros(turns.ours[plan.warm :])
    return [compared("postgres.save_vs_floor", turns, plan.warm, **_beside("postgres", "save", ours))]


def redis_saves(servers: Servers, plan: Plan) -> list[Result]:
    """Blocking commits of one session against single SETs."""
    messages = plan.messages(plan.saves)
    floor = RedisFloor(servers.redis, messages)
    url = servers.url("redis", "saves")
    with closing(floor), perdure.open(url) as db:
        with db.session(SESSION, owner="ana") as s:
            turns = take_turns(floor.save, saver(s, messages), plan.saves, plan.block)
        loads = [timed(lambda: touch(db.read(SESSION).messages)) for _ in range(plan.loads)]
        sync = floor.appendfsync()
    ours = micros(turns.ours[plan.warm :])
    more = {"appendfsync": sync, **_beside("redis", "save", ours), "messages_loaded": plan.saves}
    more |= {"load_p50_ms": round(micros(loads) / 1000, 3), "load_reported_elsewhere_ms": 8}
    return [compared("redis.save_vs_floor", turns, plan.warm, **more)]


def tiered(servers: Servers, plan: Plan) -> list[Result]:
    """The same session on PostgreSQL alone and behind a hot tier, in turns: its commits, then its loads."""
    count = max(plan.session, 2 * plan.warm)
    messages = plan.messages(count)
    with (
        perdure.open(servers.url("postgres", "cold")) as cold,
        perdure.open(servers.url("tiered", "warm")) as warm,
    ):
        with cold.session(SESSION, owner="ana") as one, warm.session(SESSION, owner="ana") as two:
            turns = take_turns(saver(one, messages), saver(two, messages), count, plan.block)
        saved = compared("tiered.save_vs_postgres", turns, min(plan.warm, count // 2))
        loaded = _tiered_loads(cold, warm, plan)
    return [saved, loaded]


def _tiered_loads(cold: perdure.Database, warm: perdure.Database, plan: Plan) -> Result:
    messages = plan.messages(plan.session)
    for db in (cold, warm):
        write_session(db, "thousand", messages)
        # What a reader meets hours later: packed, and read once before.
        db.compact("thousand")
        touch(db.read("thousand").messages)
    slow: list[int] = []
    fast: list[int] = []
    for _ in range(plan.loads * 4):
        slow.append(timed(lambda: touch(cold.read("thousand").messages)))
        fast.append(timed(lambda: touch(warm.read("thousand").messages)))
    ratio = statistics.median(f / s for s, f in zip(slow, fast, strict=True))
    detail: dict[str, Any] = {"postgres_us": micros(slow), "tiered_us": micros(fast), "messages": plan.session}
    detail |= _beside("postgres", "load", micros(slow))
    return Result("tiered.load_vs_postgres", ratio, detail)


def postgres_late(servers: Servers, plan: Plan) -> list[Result]:
    """One long session: does a commit take longer when there is more behind it?"""
    messages = plan.messages(plan.steps)
    floor = PostgresFloor(servers.postgres, messages, "floor_late")
    turns = beside_floor(servers.url("postgres", "late"), floor, messages, plan)
    return compare_late("postgres", turns, plan)[:1]


def postgres_stored(servers: Servers, plan: Plan) -> list[Result]:
    """Bytes of all tables and indexes once sessions were written one after the other."""
    messages = plan.messages(plan.session)
    with perdure.open(servers.url("postgres", "stored")) as db:
        for n in range(STORED):
            write_session(db, f"session-{n}", messages)
            db.compact(f"session-{n}")
    with closing(PostgresFloor(servers.postgres, [], "floor_stored")) as floor:
        sizes = floor.size("bench_stored")
    raw = raw_bytes(messages) * STORED
    detail = {"sessions": STORED, "messages_each": len(messages), "raw_bytes": raw, "tables": sizes}
    return [Result("postgres.stored_vs_raw", sum(sizes.values()) / raw, detail)]


def postgres_fleet(servers: Servers, plan: Plan) -> list[Result]:
    """Saves per second of all sessions together, batched as usual and one by one on one connection, in turns."""
    return compare_batching("postgres", lambda name: servers.url("postgres", name), {"max_batch": 1, "pool": 1}, plan)


PARTS = {
    "postgres": postgres_saves,
    "redis": redis_saves,
    "tiered": tiered,
    "late": postgres_late,
    "stored": postgres_stored,
    "fleet": postgres_fleet,
}
