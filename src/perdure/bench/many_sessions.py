"""Many sessions at once in one process: what group commit gains."""

from __future__ import annotations

import asyncio
import statistics
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import perdure
from perdure.bench.goals import Result

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.bench.plan import Plan


def fleet(folder: Path, plan: Plan) -> list[Result]:
    """Saves per second of all sessions together, batched as usual and one by one, in turns."""
    messages = plan.messages(plan.session)
    batched: list[float] = []
    single: list[float] = []
    for i in range(plan.fleets):
        single.append(asyncio.run(rate(f"sqlite:///{folder}/single-{i}.db", plan, messages, {"max_batch": 1})))
        batched.append(asyncio.run(rate(f"sqlite:///{folder}/batched-{i}.db", plan, messages, {})))
    ratio = statistics.median(b / s for b, s in zip(batched, single, strict=True))
    detail = {
        "sessions": plan.sessions,
        "saves_each": plan.each,
        "batched_per_s": round(statistics.median(batched)),
        "unbatched_per_s": round(statistics.median(single)),
        "rounds": plan.fleets,
    }
    return [Result("sqlite.fleet_vs_unbatched", ratio, detail)]


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
