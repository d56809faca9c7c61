"""What commands print as JSON about a store, a machine and a fleet: counts, checks, reports of what was done."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from perdure.cli.shapes.sessions import Ms, Shape


class States(Shape):
    """What a fleet does, in numbers."""

    workers: int
    busy: int
    concurrency: int
    states: dict[str, int]
    unserved: Annotated[list[str], Meta(description="Agents with work that no worker serves.")]
    held: Annotated[list[str], Meta(description="Agents whose sessions no worker takes.")]


class Stats(Shape):
    """How much a store holds, and how its sessions stand."""

    store: str
    promise: Annotated[str, Meta(description="What survives when a commit has returned.")]
    sessions: int
    checkpoints: int
    bytes: int
    status: dict[str, int]
    agents: dict[str, int]
    errors: dict[str, int]
    fleet: Annotated[States | None, Meta(description="Null where no fleet can be.")]


class Damage(Shape):
    """Something that is not as it was written."""

    kind: Literal["corrupted", "blob", "inbox", "lost"]
    session: str
    where: str
    what: str


class Witness(Shape):
    """The file that was compared with."""

    file: str
    updated: Annotated[int, Meta(description="Branches it now knows; 0 when it was not written anew.")]


class Verified(Shape):
    """What was read, and everything that is not as it was written."""

    ok: bool
    sessions: int
    checkpoints: int
    blobs: int
    findings: list[Damage]
    witness: Witness | None


class Finding(Shape):
    """One thing that was looked at."""

    name: str
    verdict: Literal["ok", "note", "fail"]
    words: str
    where: Annotated[str, Meta(description="FILE:LINE of your program; empty when that is not known.")]


class Checked(Shape):
    """What the doctor found."""

    ok: bool
    findings: list[Finding]


class Collected(Shape):
    """What became of blobs that nothing refers to."""

    deleted: int
    kept: int
    waiting: int


class Problem(Shape):
    """A session, and what went wrong with it."""

    session: str
    problem: str


class Reason(Shape):
    """A session, and why it was left as it is."""

    session: str
    reason: str


class Swept(Shape):
    """What a sweep removed."""

    removed: int
    busy: Annotated[list[str], Meta(description="Being written: left for the next time.")]
    failed: list[Problem]
    blobs: Collected


class Pruned(Shape):
    """Old checkpoints that were dropped."""

    dropped: int
    kept: int
    busy: list[str]


class Migrated(Shape):
    """Branches that were brought to a schema version."""

    migrated: int
    current: Annotated[int, Meta(description="Those that had it already.")]
    skipped: list[Reason]
    failed: list[Reason]


class Transferred(Shape):
    """What a copy, a backup or an export wrote, or a restore or an import; or with --dry-run would write."""

    ok: bool
    source: Annotated[str, Meta(description="A database or a file, and so is the destination.")]
    destination: str
    copied: Annotated[int, Meta(description="Sessions that are new in the destination.")]
    updated: Annotated[int, Meta(description="Sessions that were there and were brought up to date.")]
    unchanged: Annotated[int, Meta(description="Sessions that were there already.")]
    left: list[Reason]
    failed: list[Problem]
    missing: Annotated[list[str], Meta(description="Blobs that are referred to and were not in the source.")]
    checkpoints: int
    blobs: int
    bytes: int
    seconds: float
    verified: Annotated[bool, Meta(description="Whether sessions were checked before and after they were written.")]
    dry_run: bool


class Answer(Shape):
    """What a question in SQL was answered."""

    columns: list[str]
    rows: Annotated[list[dict[str, Any]], Meta(description="One object a row, with the columns as keys.")]
    more: Annotated[bool, Meta(description="Whether there are more rows than --limit.")]


class New(Shape):
    """A first agent that was written."""

    folder: str
    files: list[str]
    agent: Annotated[str, Meta(description="What to give to perdure chat and run, inside the folder.")]


class Submitted(Shape):
    """What was given to a fleet."""

    session: str
    agent: str
    new: Annotated[bool, Meta(description="False when its key was there already.")]


class Worker(Shape):
    """A process that runs sessions."""

    id: str
    host: str
    pid: int
    version: str
    agents: list[str]
    concurrency: int
    busy: int
    started: Ms
    age: Annotated[int, Meta(description="Milliseconds since it was last heard of.")]
    wish: Literal["", "drain"]
    done: int
    recovered: Annotated[int, Meta(description="Sessions it took over from dead workers.")]


class Fleet(Shape):
    """Workers, and what is queued."""

    workers: list[Worker]
    agents: Annotated[
        dict[str, dict[str, int]],
        Meta(description="Agent to state to number; queued, working, waiting, parked or paused."),
    ]
    unserved: list[str]
    held: list[str]


class Drained(Shape):
    """Workers that were told to go."""

    told: int
    left: Annotated[int, Meta(description="Those that were still there after --wait.")]


class LogLine(msgspec.Struct, kw_only=True):
    """One line of a worker's log, on stderr; some lines have fields of their own beside these."""

    time: Annotated[str, Meta(description="ISO 8601, in UTC.")]
    level: Literal["debug", "info", "warning", "error", "critical"]
    logger: str
    message: str
    session: str | UnsetType = UNSET
    agent: str | UnsetType = UNSET
    worker: str | UnsetType = UNSET
    step: int | UnsetType = UNSET
    error: Annotated[str, Meta(description="The class of the error it tells of.")] | UnsetType = UNSET
    trace: str | UnsetType = UNSET


class Serving(Shape):
    """Where a server listens; printed once it does."""

    url: str
    token: Annotated[
        str | None, Meta(description="The one that was made at this start; null when it was given, or there is none.")
    ]
    store: str


class Counted(Shape):
    """Everything that was read back after the demo."""

    sessions: int
    checkpoints: int


class Night(Shape):
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
    recovery_p50_s: float | None
    recovery_max_s: float | None
    tokens_saved_pct: float
    tokens: int
    messages: int
    turns: int
    refunds: int
    exchanges: int
    approvals: int
    saves: int
    saves_per_s: float
    verified: Counted
    seed: int
    workers: int
    factor: float
    lease_s: float
    store: str
    problems: list[str]
    seconds: float


class Measure(Shape):
    """One figure, and the goal it is held against."""

    name: str
    value: float | None
    goal: str
    ok: bool
    steady: Annotated[bool, Meta(description="False when somebody else used the disk.")]
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
