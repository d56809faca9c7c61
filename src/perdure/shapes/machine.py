"""What commands say, in JSON, of this machine and this program: checks, a server, its log, the demo, measurements."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from perdure.shapes.basics import Documented, Shape, Time


class NewAgent(Shape):
    """A first agent that was written."""

    folder: str
    files: list[str]
    agent: str
    """What to give to perdure chat and run, inside the folder."""


class Check(Shape):
    """One thing that the doctor looked at."""

    name: str
    verdict: Literal["ok", "note", "fail"]
    detail: str
    place: str
    """FILE:LINE of your program; empty when that is not known."""


class Doctor(Shape):
    """What the doctor found."""

    ok: bool
    checks: list[Check]


class Serving(Shape):
    """Where a server listens; printed once it does."""

    url: str
    token: str | None
    """The one that was made at this start; null when it was given, or there is none."""
    store: str


class LogLine(Documented, kw_only=True):
    """One line of a worker's log, on stderr; some lines have fields of their own beside these."""

    time: Time
    level: Literal["debug", "info", "warning", "error", "critical"]
    logger: str
    message: str
    session: str | UnsetType = UNSET
    agent: str | UnsetType = UNSET
    worker: str | UnsetType = UNSET
    step: int | UnsetType = UNSET
    error: str | UnsetType = UNSET
    """The class of the error it tells of."""
    trace: str | UnsetType = UNSET


class ReadBack(Shape):
    """Everything that was read back after the demo."""

    sessions: int
    checkpoints: int


class Demo(Shape):
    """What became of the demo's night; docs/howto/demo.md says what each is."""

    ok: bool
    sessions: int
    finished: int
    kills: int
    evictions: int
    freezes: int
    sessions_hit: int
    hits: int
    resumes: int
    lost_messages: int
    duplicate_effects: int
    missing_effects: int
    repeated_requests: int
    recovery_p50_seconds: float | None
    recovery_max_seconds: float | None
    tokens_saved_percent: float
    tokens: int
    messages: int
    turns: int
    refunds: int
    exchanges: int
    approvals: int
    saves: int
    saves_per_second: float
    verified: ReadBack
    seed: int
    workers: int
    factor: float
    lease_seconds: float
    store: str
    problems: list[str]
    duration_seconds: float


class Measure(Shape):
    """One figure, and the goal it is held against."""

    name: str
    value: float | None
    goal: str
    ok: bool
    steady: bool
    """False when somebody else used the disk."""
    what: str
    detail: dict[str, Any]
    impossible: str | UnsetType = UNSET


class Bench(Shape):
    """What was measured, on what and where."""

    suite: str
    plan: str
    results: list[Measure]
    messages: dict[str, Any]
    machine: dict[str, Any]
