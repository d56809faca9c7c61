"""How long a commit takes: against the floor, awaited, on files, and late in a long session against early in it."""

from __future__ import annotations

import asyncio
from contextlib import closing
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import perdure
from perdure.bench.floor import FileFloor, SqliteFloor
from perdure.bench.goals import Result
from perdure.bench.timing import Turns, micros, percentile, take_turns

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


def _result(name: str, turns: Turns, warm: int) -> Result:
    return Result(name, turns.ratio(warm), turns.detail(warm), turns.steady(warm))


def sync_saves(folder: Path, plan: Plan) -> list[Result]:
    """One session, blocking commits."""
    messages = plan.messages(plan.saves)
    url = f"sqlite:///{folder / 'ours.db'}"
    floor = SqliteFloor(folder / "floor.db", messages)
    with closing(floor), perdure.open(url) as db, db.session(SESSION, owner="ana") as s:
        turns = take_turns(floor.save, saver(s, messages), plan.saves, plan.block)
    result = _result("sqlite.save_vs_floor.sync", turns, plan.warm)
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
    return [_result("sqlite.save_vs_floor.async", turns, plan.warm)]


def file_saves(folder: Path, plan: Plan) -> list[Result]:
    """One session in the file store."""
    messages = plan.messages(plan.saves)
    floor = FileFloor(folder / "floor.jsonl", messages)
    with closing(floor), perdure.open(f"file://{folder / 'ours'}") as db, db.session(SESSION, owner="ana") as s:
        turns = take_turns(floor.save, saver(s, messages), plan.saves, plan.block)
    return [_result("file.save_vs_floor", turns, plan.warm)]


def late_saves(folder: Path, plan: Plan) -> list[Result]:
    """One long session: does a commit take longer when there is more behind it?

    The floor takes turns all along: when the disk itself gets slower meanwhile, its p50 shows by how much.
    """
    messages = plan.messages(plan.steps)
    url = f"sqlite:///{folder / 'ours.db'}"
    floor = SqliteFloor(folder / "floor.db", messages)
    with closing(floor), perdure.open(url) as db, db.session(SESSION, owner="ana") as s:
        turns = take_turns(floor.save, saver(s, messages), plan.steps, plan.block)
    return compare_late("sqlite", turns, plan)


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
