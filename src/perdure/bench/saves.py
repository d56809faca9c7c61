"""The embedded stores: commits against the floor and late in a session, loads, sizes, and many sessions at once."""

from __future__ import annotations

import asyncio
import random
import statistics
from contextlib import closing
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import perdure
from perdure.bench.floors import FileFloor, Floor, SqliteFloor, Turns, micros, percentile, take_turns, timed, touch
from perdure.bench.plan import SEED, raw_bytes, zstd_ratio
from perdure.bench.report import Result

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure.bench.plan import Plan

SESSION = "trip-42"


def saver(session: perdure.Session, messages: list[dict[str, Any]]) -> Callable[[], int]:
    """A function that commits the next message and says how many nanoseconds that took."""
    rest = iter(messages)

    def save() -> int:
        message = next(rest)
        start = perf_counter_ns()
        session.messages.append(message)
        session.commit()
        return perf_counter_ns() - start

    return save


def write_session(db: perdure.Database, name: str, messages: list[dict[str, Any]]) -> None:
    """Write a session, one commit per message."""
    with db.session(name, owner="ana") as s:
        save = saver(s, messages)
        for _ in messages:
            save()


def beside_floor(url: str, floor: Floor, messages: list[dict[str, Any]], plan: Plan) -> Turns:
    """Blocking commits of one session, in turns with the floor's writes of the same messages."""
    with closing(floor), perdure.open(url) as db, db.session(SESSION, owner="ana") as s:
        return take_turns(floor.save, saver(s, messages), len(messages), plan.block)


def compared(name: str, turns: Turns, warm: int, **more: Any) -> Result:
    """Commits against the floor, from where both are warm."""
    return Result(name, turns.ratio(warm), {**turns.detail(warm), **more}, turns.steady(warm))


def _beside_sqlite(folder: Path, messages: list[dict[str, Any]], plan: Plan) -> Turns:
    return beside_floor(f"sqlite:///{folder / 'ours.db'}", SqliteFloor(folder / "floor.db", messages), messages, plan)


def sync_saves(folder: Path, plan: Plan) -> list[Result]:
    """One session, blocking commits."""
    messages = plan.messages(plan.saves)
    turns = _beside_sqlite(folder, messages, plan)
    result = compared("sqlite.save_vs_floor.sync", turns, plan.warm)
    # Until SQLite's log has been filled once, every commit makes the file longer, on both sides.
    result.detail["while_the_log_grows"] = round(turns.ratio(0, plan.warm), 3)
    return [result]


def async_saves(folder: Path, plan: Plan) -> list[Result]:
    """One session, one task, awaited commits."""
    messages = plan.messages(plan.saves)
    turns = Turns(plan.block)
    floor = SqliteFloor(folder / "floor.db", messages)

    async def ours(session: perdure.AsyncSession, message: dict[str, Any]) -> None:
        start = perf_counter_ns()
        session.messages.append(message)
        await session.commit()
        turns.ours.append(perf_counter_ns() - start)

    async def work() -> None:
        async with perdure.open_async(f"sqlite:///{folder / 'ours.db'}") as db, db.session(SESSION, owner="ana") as s:
            for turn, message in enumerate(messages):
                if turn % 2:
                    await ours(s, message)
                turns.floor.append(floor.save())
                if not turn % 2:
                    await ours(s, message)

    with closing(floor):
        asyncio.run(work())
    return [compared("sqlite.save_vs_floor.async", turns, plan.warm)]


def file_saves(folder: Path, plan: Plan) -> list[Result]:
    """One session in the file store."""
    messages = plan.messages(plan.saves)
    turns = beside_floor(f"file://{folder / 'ours'}", FileFloor(folder / "floor.jsonl", messages), messages, plan)
    return [compared("file.save_vs_floor", turns, plan.warm)]


def late_saves(folder: Path, plan: Plan) -> list[Result]:
    """One long session: does a commit take longer when there is more behind it?

    The floor takes turns all along: when the disk itself gets slower meanwhile, its p50 shows by how much.
    """
    messages = plan.messages(plan.steps)
    return compare_late("sqlite", _beside_sqlite(folder, messages, plan), plan)


def compare_late(store: str, turns: Turns, plan: Plan) -> list[Result]:
    """A long session's late commits against its early ones."""
    early, late = slice(plan.early, plan.early + plan.window), slice(-plan.window, None)

    def change(times: list[int], q: float) -> float:
        return percentile(times[late], q) / percentile(times[early], q)

    def detail(name: str, q: float) -> dict[str, Any]:
        sides = (("ours", turns.ours), ("floor", turns.floor))
        return {
            "steps": len(turns.ours),
            "early": f"steps {plan.early + 1}-{plan.early + plan.window}",
            "late": f"the last {plan.window}",
            **{f"{who}_{name}_us": {"early": micros(t[early], q), "late": micros(t[late], q)} for who, t in sides},
            "ours_changed": round(change(turns.ours, q), 3),
            "floor_changed": round(change(turns.floor, q), 3),
        }

    steady = turns.steady(plan.early)
    p50 = change(turns.ours, 0.5) / change(turns.floor, 0.5)
    return [
        Result(f"{store}.late_vs_early", p50, detail("p50", 0.5), steady),
        Result(f"{store}.late_vs_early.p99", change(turns.ours, 0.99), detail("p99", 0.99), steady),
    ]


def store_session(folder: Path, messages: list[dict[str, Any]]) -> str:
    """Write a session, one commit per message, and close; returns its database's URL."""
    url = f"sqlite:///{folder / 'ours.db'}"
    with perdure.open(url) as db:
        write_session(db, SESSION, messages)
    return url


def reads(folder: Path, plan: Plan) -> list[Result]:
    """One session of plan.session messages: its weight, its load, and the opening of its steps."""
    messages = plan.messages(plan.session)
    room = folder / "store"
    room.mkdir()
    url = store_session(room, messages)
    stored = _stored(room, messages)
    with closing(SqliteFloor(folder / "floor.db", messages)) as floor:
        for _ in messages:
            floor.save()
    return [stored, _load(url, floor, plan), _steps(url, plan)]


def _stored(room: Path, messages: list[dict[str, Any]]) -> Result:
    files = {str(p.relative_to(room)): p.stat().st_size for p in sorted(room.rglob("*")) if p.is_file()}
    raw = raw_bytes(messages)
    detail = {"files": files, "raw_bytes": raw, "messages": len(messages), "whole_zstd": round(zstd_ratio(messages), 3)}
    return Result("sqlite.stored_vs_raw", sum(files.values()) / raw, detail)


def _load(url: str, floor: SqliteFloor, plan: Plan) -> Result:
    opened: list[perdure.Database] = []

    def ours() -> perdure.Reading:
        opened.append(perdure.open(url))
        reading = opened[-1].read(SESSION)
        touch(reading.messages)
        return reading

    if touch(floor.load()[1]) != touch(ours().messages):
        raise AssertionError("the session does not say what the floor says")
    floors: list[int] = []
    times: list[int] = []
    for _ in range(plan.loads):
        floors.append(timed(floor.load))
        times.append(timed(ours))
        opened.pop().close()
    opened.pop().close()
    ratio = statistics.median(o / f for f, o in zip(floors, times, strict=True))
    detail = {"floor_us": micros(floors), "ours_us": micros(times), "rounds": plan.loads}
    return Result("sqlite.load_vs_floor", ratio, detail)


def _steps(url: str, plan: Plan) -> Result:
    picks = random.Random(SEED).choices(range(1, plan.session + 1), k=plan.picks)
    heads: list[float] = []
    times: list[tuple[float, int]] = []
    with perdure.open(url) as db:

        def read(step: int | None) -> float:
            return statistics.median(timed(lambda: touch(db.read(SESSION, step).messages)) for _ in range(3))

        for step in picks:
            heads.append(read(None))
            times.append((read(step), step))
    head = statistics.median(heads)
    spent = [t for t, _ in times]
    slowest = max(times)
    detail = {
        "head_us": micros(heads),
        "step_us": micros(spent),
        "slowest": {"step": slowest[1], "us": round(slowest[0] / 1000, 1), "ratio": round(slowest[0] / head, 2)},
        "steps": len(picks),
    }
    return Result("sqlite.open_step_vs_head", statistics.median(spent) / head, detail)


def fleet(folder: Path, plan: Plan) -> list[Result]:
    """Saves per second of all sessions together, batched as usual and one by one, in turns."""
    return compare_batching("sqlite", lambda name: f"sqlite:///{folder}/{name}.db", {"max_batch": 1}, plan)


def compare_batching(store: str, url: Callable[[str], str], unbatched: dict[str, Any], plan: Plan) -> list[Result]:
    """What group commit gains: many sessions at once in one process, batched as usual and not, in turns."""
    messages = plan.messages(plan.session)
    batched: list[float] = []
    single: list[float] = []
    for i in range(plan.fleets):
        for rates, name, options in ((single, "single", unbatched), (batched, "batched", {})):
            rates.append(asyncio.run(rate(url(f"{name}{i}"), plan, messages, options)))
    ratio = statistics.median(b / s for b, s in zip(batched, single, strict=True))
    detail = {
        "sessions": plan.sessions,
        "saves_each": plan.each,
        "batched_per_s": round(statistics.median(batched)),
        "unbatched_per_s": round(statistics.median(single)),
        "rounds": plan.fleets,
    }
    return [Result(f"{store}.fleet_vs_unbatched", ratio, detail)]


async def rate(url: str, plan: Plan, messages: list[dict[str, Any]], options: dict[str, Any]) -> float:
    """Saves per second of many sessions at once."""
    async with perdure.open_async(url, **options) as db:
        sessions = [await db.session(f"session-{n}", owner="ana") for n in range(plan.sessions)]

        async def work(n: int, session: perdure.AsyncSession) -> None:
            for i in range(plan.each):
                session.messages.append(messages[(n * plan.each + i) % len(messages)])
                await session.commit()

        start = perf_counter_ns()
        await asyncio.gather(*(work(n, s) for n, s in enumerate(sessions)))
        spent = perf_counter_ns() - start
        for session in sessions:
            await session.release()
    return plan.sessions * plan.each / spent * 1e9


PARTS = {
    "sync": sync_saves,
    "async": async_saves,
    "late": late_saves,
    "reads": reads,
    "fleet": fleet,
    "file": file_saves,
}
