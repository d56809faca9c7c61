"""A store in JSON: how much it holds and promises, whether it is intact, and what upkeep and copies did to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from perdure.shapes.basics import Failure, Shape, Time, failures, shaped
from perdure.shapes.work import Fleet, fleet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.database import DatabaseHandle
    from perdure.upkeep import blob_gc, expired_sessions, flows, retention, transfer, verify
    from perdure.upkeep.lost_effects import AcceptedLoss


class Promise(Shape):
    """What survives when a commit has returned."""

    words: str
    process_crash: bool
    power_loss: bool


class Count(Shape):
    """How many sessions there are of a kind."""

    status: str
    agent: str
    error: str
    sessions: int


class Store(Shape):
    """How much a store holds, what it promises, and how its sessions stand."""

    url: str
    promise: Promise
    sessions: int
    """Those that are set aside among them."""
    set_aside: int
    """Have expired and can be brought back: they are neither listed nor counted below."""
    checkpoints: int
    bytes: int
    statuses: dict[str, int]
    """Sessions by status."""
    agents: dict[str, int]
    errors: dict[str, int]
    counts: list[Count]
    """Sessions by status, agent and error together."""
    fleet: Fleet


def store(db: DatabaseHandle, counts: Iterable[tuple[str, str, str, int]]) -> Store:
    """A store, with the sessions that were counted in it. Blocks while it reads."""
    kept = db.kernel.store
    counted = [Count(status=s, agent=a, error=e, sessions=n) for s, a, e, n in counts]
    by: dict[str, dict[str, int]] = {"status": {}, "agent": {}, "error": {}}
    for one in counted:
        for kind, numbers in by.items():
            if name := getattr(one, kind):
                numbers[name] = numbers.get(name, 0) + one.sessions
    statuses, agents, errors = (dict(sorted(n.items(), key=lambda item: (-item[1], item[0]))) for n in by.values())
    usage = kept.usage()
    # One may have begun between the two counts.
    aside = max(0, usage.sessions - sum(one.sessions for one in counted))
    return shaped(
        Store, usage, set_aside=aside, url=kept.url, promise=shaped(Promise, kept.promise), statuses=statuses,
        agents=agents, errors=errors, counts=counted, fleet=fleet(db),
    )  # fmt: skip


class Damage(Shape):
    """Something that is not as it was written."""

    kind: Literal["corrupted", "blob", "inbox", "board", "lost", "witness"]
    session: str
    place: str
    detail: str


class Doubt(Shape):
    """An effect that a witness saw and the store has forgotten: in doubt now."""

    session: str
    effect: str
    tool: str


def doubts(in_doubt: Iterable[tuple[str, str, str]]) -> list[Doubt]:
    """Session, effect and tool of each."""
    return [Doubt(session=session, effect=effect, tool=tool) for session, effect, tool in in_doubt]


class Witness(Shape):
    """The file that was compared with."""

    file: str
    updated: int
    """Branches it now knows; 0 when it was not written anew."""
    accepted: bool
    """Whether what is lost was accepted with --accept-loss."""
    in_doubt: list[Doubt]
    """Effects among it."""


class Verified(Shape):
    """What was read, and everything that is not as it was written."""

    ok: bool
    sessions: int
    """Those that are set aside among them."""
    set_aside: int
    """Have expired and can be brought back."""
    checkpoints: int
    blobs: int
    findings: list[Damage]
    witness: Witness | None


def verified(
    report: verify.Report, witness: str | None, updated: int, accepted: AcceptedLoss | None = None
) -> Verified:
    """The report of a verification."""
    findings = [shaped(Damage, f, place=f.where, detail=f.what) for f in report.findings]
    found = doubts(accepted.in_doubt) if accepted is not None else []
    compared = (
        None
        if witness is None
        else Witness(file=witness, updated=updated, accepted=accepted is not None, in_doubt=found)
    )
    return shaped(Verified, report, findings=findings, witness=compared)


class Collected(Shape):
    """What became of blobs that nothing refers to."""

    deleted: int
    kept: int
    """Referred to."""
    waiting: int
    """Too young to tell."""


class Swept(Shape):
    """What a sweep removed."""

    removed: int
    """Their time has run out: they can be brought back for a while."""
    deleted: int
    """They had expired long enough ago, and are gone for good."""
    busy: list[str]
    """Being written: left for the next time."""
    failed: list[Failure]
    blobs: Collected


def swept(done: retention.Swept, collected: blob_gc.Collected) -> Swept:
    """What the library removed."""
    return shaped(Swept, done, failed=failures(done.failed), blobs=shaped(Collected, collected))


class Aside(Shape):
    """A session that has expired and can be brought back."""

    session: str
    owner: str
    created_at: Time
    updated_at: Time
    deleted_at: Time
    """When it is deleted for good, by the next sweep after that."""
    life: int
    """Which of the session's lives it is: 0 for the first, later ones by when they began (ms). `--life` names one."""
    made_way: int | None
    """The life that was in its place when it was brought back, and is set aside itself now."""


def aside(life: expired_sessions.Aside) -> Aside:
    """One that can be brought back."""
    return shaped(Aside, life, created_at=life.created, updated_at=life.updated, deleted_at=life.until)


class Pruned(Shape):
    """Old checkpoints that were dropped."""

    dropped: int
    kept: int
    busy: list[str]
    """Sessions that were being written: left alone."""


class Migrated(Shape):
    """Branches that were brought to a schema version."""

    migrated: int
    current: int
    """Those that had it already."""
    skipped: list[Failure]
    failed: list[Failure]


def migrated(done: flows.Migrated) -> Migrated:
    """What the library migrated."""
    return shaped(Migrated, done, skipped=failures(done.skipped), failed=failures(done.failed))


class Transferred(Shape):
    """What copy, backup, restore, export or import did, or with --dry-run would do."""

    ok: bool
    source: str
    destination: str
    copied: int
    updated: int
    unchanged: int
    skipped: list[Failure]
    """Sessions that have ended in the destination: they stay so without --revive."""
    failed: list[Failure]
    missing: list[str]
    """Blobs that are referred to and were not there."""
    in_doubt: list[Doubt]
    """Effects that the witness of a restore saw since the backup was made."""
    checkpoints: int
    blobs: int
    bytes: int
    duration_seconds: float
    verified: bool
    dry_run: bool


def transferred(done: transfer.Transferred, **more: Any) -> Transferred:
    """What the library transferred; beside what it says, where, how long it took and how."""
    return shaped(
        Transferred,
        done,
        skipped=failures(done.left),
        failed=failures(done.failed),
        in_doubt=doubts(done.in_doubt),
        **more,
    )


class Table(Shape):
    """What a question in SQL was answered."""

    columns: list[str]
    rows: list[dict[str, Any]]
    """One object a row, with the columns as keys."""
    more: bool
    """Whether there are more rows than --limit."""
