"""What a stored session weighs and how long it takes to get it back: whole, and at any step."""

from __future__ import annotations

import random
import statistics
from contextlib import closing
from typing import TYPE_CHECKING, Any

import perdure
from perdure.bench.floor import SqliteFloor, touch
from perdure.bench.goals import Result
from perdure.bench.messages import SEED, raw_bytes, zstd_ratio
from perdure.bench.saves import SESSION, saver
from perdure.bench.timing import micros, timed

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.bench.plan import Plan


def store_session(folder: Path, messages: list[dict[str, Any]]) -> str:
    """Write a session, one commit per message, and close; returns its database's URL."""
    url = f"sqlite:///{folder / 'ours.db'}"
    with perdure.open(url) as db, db.session(SESSION, owner="ana") as s:
        save = saver(s, messages)
        for _ in messages:
            save()
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
        msg = "the session does not say what the floor says"
        raise AssertionError(msg)
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
