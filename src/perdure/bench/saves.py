"""How long a commit takes: against the floor, awaited, on files, and late in a long session against early in it."""

from __future__ import annotations

import asyncio
from contextlib import closing
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import perdure
from perdure.bench.floor import FileFloor, SqliteFloor
from perdure.bench.goals import Result
from perdure.bench.timing import micros, percentile, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure.bench.plan import Plan
    from perdure.bench.timing import Round

SESSION = "trip-42"


def saver(session: perdure.Session, messages: list[dict[str, Any]]) -> Callable[[int], Round]:
    """A function that commits the next messages one by one and says how long each took."""
    rest = iter(messages)

    def save(count: int) -> Round:
        spent: Round = []
        for _ in range(count):
            message = next(rest)
            start = perf_counter_ns()
            session.messages.append(message)
            session.commit()
            spent.append(perf_counter_ns() - start)
        return spent

    return save


def sync_saves(folder: Path, plan: Plan) -> list[Result]:
    """One session, blocking commits."""
    messages = plan.messages(plan.saves)
    url = f"sqlite:///{folder / 'ours.db'}"
    floor = SqliteFloor(folder / "floor.db", messages)
    with closing(floor), perdure.open(url) as db, db.session(SESSION, owner="ana") as s:
        turns = take_turns(floor.save, saver(s, messages), plan.rounds, plan.round_size)
    detail = turns.detail(plan.warm_rounds)
    if plan.warm_rounds:
        # Until SQLite's log has been filled once, every commit makes the file longer, on both sides.
        detail["while_the_log_grows"] = round(turns.ratio(0, plan.warm_rounds), 3)
    return [Result("sqlite.save_vs_floor.sync", turns.ratio(plan.warm_rounds), detail)]


def async_saves(folder: Path, plan: Plan) -> list[Result]:
    """One session, one task, awaited commits."""
    messages = plan.messages(plan.saves)
    rest = iter(messages)

    async def awaited(session: perdure.AsyncSession, count: int) -> Round:
        spent: Round = []
        for _ in range(count):
            message = next(rest)
            start = perf_counter_ns()
            session.messages.append(message)
            await session.commit()
            spent.append(perf_counter_ns() - start)
        return spent

    async def opened() -> tuple[perdure.AsyncDatabase, perdure.AsyncSession]:
        db = perdure.open_async(f"sqlite:///{folder / 'ours.db'}")
        return db, await db.session(SESSION, owner="ana")

    async def shut(db: perdure.AsyncDatabase, session: perdure.AsyncSession) -> None:
        await session.release()
        await db.close()

    with closing(SqliteFloor(folder / "floor.db", messages)) as floor, asyncio.Runner() as runner:
        db, s = runner.run(opened())
        turns = take_turns(floor.save, lambda count: runner.run(awaited(s, count)), plan.rounds, plan.round_size)
        runner.run(shut(db, s))
    return [Result("sqlite.save_vs_floor.async", turns.ratio(plan.warm_rounds), turns.detail(plan.warm_rounds))]


def file_saves(folder: Path, plan: Plan) -> list[Result]:
    """One session in the file store."""
    messages = plan.messages(plan.saves)
    floor = FileFloor(folder / "floor.jsonl", messages)
    with closing(floor), perdure.open(f"file://{folder / 'ours'}") as db, db.session(SESSION, owner="ana") as s:
        turns = take_turns(floor.save, saver(s, messages), plan.rounds, plan.round_size)
    return [Result("file.save_vs_floor", turns.ratio(plan.warm_rounds), turns.detail(plan.warm_rounds))]


def late_saves(folder: Path, plan: Plan) -> list[Result]:
    """One long session: does a commit take longer when there is more behind it?

    The floor takes turns all along: when the disk itself gets slower meanwhile, its p50 shows by how much.
    """
    messages = plan.messages(plan.steps)
    size = plan.round_size
    url = f"sqlite:///{folder / 'ours.db'}"
    floor = SqliteFloor(folder / "floor.db", messages)
    with closing(floor), perdure.open(url) as db, db.session(SESSION, owner="ana") as s:
        turns = take_turns(floor.save, saver(s, messages), plan.steps // size, size)
    floors = [t for r in turns.floor for t in r]
    ours = [t for r in turns.ours for t in r]
    early, late = slice(plan.early, plan.early + plan.window), slice(-plan.window, None)
    drift = percentile(floors[late], 0.5) / percentile(floors[early], 0.5)
    p50 = percentile(ours[late], 0.5) / percentile(ours[early], 0.5)
    windows = {"early": f"steps {plan.early + 1}-{plan.early + plan.window}", "late": f"the last {plan.window}"}
    shown = {
        name: {"early": micros(times[early], q), "late": micros(times[late], q)}
        for name, times, q in (
            ("ours_p50_us", ours, 0.5),
            ("floor_p50_us", floors, 0.5),
            ("ours_p99_us", ours, 0.99),
            ("floor_p99_us", floors, 0.99),
        )
    }
    common = {"steps": len(ours), **windows}
    return [
        Result(
            "sqlite.late_vs_early",
            p50 / drift,
            {**common, **_part(shown, "p50"), "before_correction": round(p50, 3), "drift": round(drift, 3)},
        ),
        Result(
            "sqlite.late_vs_early.p99",
            percentile(ours[late], 0.99) / percentile(ours[early], 0.99),
            {**common, **_part(shown, "p99")},
        ),
    ]


def _part(shown: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in shown.items() if name in key}
