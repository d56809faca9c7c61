"""The calls of a session at one step as people want to see them: what, how often, how long, and how they stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.history.lineage import history
from perdure.system.lease_holders import describe

if TYPE_CHECKING:
    from perdure.kernel import Kernel
    from perdure.protocols import Work
    from perdure.server.console.session_past import Moment

MOST = 200
TONES = {
    "in_doubt": "bad",
    "failed": "bad",
    "unknown": "bad",
    "started": "accent",
    "planned": "warn",
    "waiting": "calm",
}
WORDS = {
    "planned": "not started",
    "started": "under way",
    "done": "done",
    "failed": "did not happen",
    "in_doubt": "in doubt",
    "waiting": "its result comes later",
    "unknown": "never found out",
}
OPEN = ("planned", "started", "in_doubt", "waiting")


class EffectLine(NamedTuple):
    """One call."""

    id: str
    tool: str
    args: dict[str, Any]
    status: str
    words: str
    tone: str
    attempt: int
    at: int
    elapsed: int | None
    """Milliseconds, so far or in all; None when that is not known."""
    progress: Any
    error: str
    result: Any
    notes: list[str]


class Where(NamedTuple):
    """By whom and with what a session is worked on."""

    holder: str
    version: str
    model: str
    retry: int | None
    """When it is tried again by itself."""
    tries: int


def effects_of(kernel: Kernel, moment: Moment, now: int) -> list[EffectLine]:
    """The calls that a session's book holds at a step, newest first."""
    records: list[dict[str, Any]] = list(moment.book.get("effects", {}).values())
    approvals: dict[str, Any] = moment.book.get("approvals", {})
    lines = [_line(kernel, moment, r, approvals.get(r.get("approval", "")), now) for r in records[-MOST:]]
    return sorted(lines, key=lambda e: e.at, reverse=True)


def _line(kernel: Kernel, moment: Moment, r: dict[str, Any], request: dict[str, Any] | None, now: int) -> EffectLine:
    status = str(r["status"])
    return EffectLine(
        r["id"], r["tool"], r["args"], status, WORDS.get(status, status), TONES.get(status, "quiet"), r["attempt"],
        r["at"], _elapsed(kernel, moment, r, now), r.get("progress"), str(r.get("error") or ""), r.get("result"),
        _notes(r, request),
    )  # fmt: skip


def _elapsed(kernel: Kernel, moment: Moment, r: dict[str, Any], now: int) -> int | None:
    if r["status"] in OPEN:
        return now - r["at"] if moment.spot.is_head else moment.point.at - r["at"]
    where = r.get("where")
    if not where:
        return None
    if where[1] == moment.spot.step:
        return moment.point.at - r["at"]
    points = history(kernel, moment.spot.id, moment.spot.branch, 1, where[1] + 1)
    return points[0].envelope.at - r["at"] if points else None


def _notes(r: dict[str, Any], request: dict[str, Any] | None) -> list[str]:
    said: list[str] = []
    if r.get("reused") == "cache":
        said.append("from the cache")
    elif r.get("reused"):
        said.append(f"reused from another branch ({r['reused']})")
    if r.get("edited"):
        said.append("a person changed the arguments")
    if r.get("resolved_by"):
        said.append(f"settled by {r['resolved_by']}")
    if request is not None:
        by = f" by {request['by']}" if request.get("by") else ""
        why = f": {request['reason']}" if request.get("reason") else ""
        said.append(f"approval {request['status']}{by}{why}")
    if r.get("problem"):
        said.append(f"its result could not be kept: it is a {r['problem']}")
    return said


def where_of(moment: Moment, work: Work | None) -> Where:
    """By whom and with what a session is worked on at a step."""
    holder = moment.spot.row.lease.holder
    made = moment.made
    version = str(made.get("version", ""))
    return Where(
        describe(holder) if holder else "",
        version,
        str(made.get("model", "")),
        work.due if work is not None and work.tries else None,
        work.tries if work is not None else 0,
    )
