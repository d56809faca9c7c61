"""Stores on servers: commits, loads and sizes against plain clients of the same servers, in turns."""

from __future__ import annotations

import asyncio
import statistics
from contextlib import closing
from typing import TYPE_CHECKING, Any

import perdure
from perdure.bench.floor import touch
from perdure.bench.goals import Result
from perdure.bench.many_sessions import rate
from perdure.bench.messages import raw_bytes
from perdure.bench.saves import SESSION, compare_late, saver
from perdure.bench.servers import PostgresFloor, RedisFloor, Servers
from perdure.bench.timing import micros, take_turns, timed

if TYPE_CHECKING:
    from perdure.bench.plan import Plan
    from perdure.bench.timing import Turns

SEED_FIGURES = {"redis": {"save": 12, "load": 8}, "postgres": {"save": 45, "load": 38}}
"""Milliseconds that a plain checkpoint store was reported to take, to be shown beside ours."""
STORED = 10
"""Sessions whose weight is taken: space that packing frees is used by those that come after."""


def _result(name: str, turns: Turns, warm: int, **more: Any) -> Result:
    return Result(name, turns.ratio(warm), {**turns.detail(warm), **more}, turns.steady(warm))


def _beside(store: str, what: str, micros: float) -> dict[str, Any]:
    return {f"{what}_p50_ms": round(micros / 1000, 3), "reported_elsewhere_ms": SEED_FIGURES[store][what]}


def postgres_saves(servers: Servers, plan: Plan) -> list[Result]:
    """Blocking commits of one session against single INSERTs."""
    messages = plan.messages(plan.saves)
    floor = PostgresFloor(servers.postgres, messages)
    url = servers.url("postgres", "saves")
    with closing(floor), perdure.open(url) as db, db.session(SESSION, owner="ana") as s:
        turns = take_turns(floor.save, saver(s, messages), plan.saves, plan.block)
    ours = micros(turns.ours[plan.warm :])
    return [_result("postgres.save_vs_floor", turns, plan.warm, **_beside("postgres", "save", ours))]


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
    return [_result("redis.save_vs_floor", turns, plan.warm, **more)]


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
        saved = _result("tiered.save_vs_postgres", turns, min(plan.warm, count // 2))
        loaded = _tiered_loads(cold, warm, plan)
    return [saved, loaded]


def _tiered_loads(cold: perdure.Database, warm: perdure.Database, plan: Plan) -> Result:
    messages = plan.messages(plan.session)
    for db in (cold, warm):
        with db.session("thousand", owner="ana") as s:
            save = saver(s, messages)
            for _ in messages:
                save()
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
    url = servers.url("postgres", "late")
    with closing(floor), perdure.open(url) as db, db.session(SESSION, owner="ana") as s:
        turns = take_turns(floor.save, saver(s, messages), plan.steps, plan.block)
    return compare_late("postgres", turns, plan)[:1]


def postgres_stored(servers: Servers, plan: Plan) -> list[Result]:
    """Bytes of all tables and indexes once sessions were written one after the other."""
    messages = plan.messages(plan.session)
    with perdure.open(servers.url("postgres", "stored")) as db:
        for n in range(STORED):
            with db.session(f"session-{n}", owner="ana") as s:
                save = saver(s, messages)
                for _ in messages:
                    save()
            db.compact(f"session-{n}")
    with closing(PostgresFloor(servers.postgres, [], "floor_stored")) as floor:
        sizes = floor.size("bench_stored")
    raw = raw_bytes(messages) * STORED
    detail = {"sessions": STORED, "messages_each": len(messages), "raw_bytes": raw, "tables": sizes}
    return [Result("postgres.stored_vs_raw", sum(sizes.values()) / raw, detail)]


def postgres_fleet(servers: Servers, plan: Plan) -> list[Result]:
    """Saves per second of all sessions together, batched as usual and one by one, in turns."""
    messages = plan.messages(plan.session)
    batched: list[float] = []
    single: list[float] = []
    for i in range(plan.fleets):
        for rates, name, options in ((single, "single", {"max_batch": 1, "pool": 1}), (batched, "batched", {})):
            url = servers.url("postgres", f"{name}{i}")
            rates.append(asyncio.run(rate(url, plan, messages, options)))
    ratio = statistics.median(b / s for b, s in zip(batched, single, strict=True))
    detail = {
        "sessions": plan.sessions,
        "saves_each": plan.each,
        "batched_per_s": round(statistics.median(batched)),
        "unbatched_per_s": round(statistics.median(single)),
        "rounds": plan.fleets,
    }
    return [Result("postgres.fleet_vs_unbatched", ratio, detail)]
