"""What a session's page shows of its past, read without a lease and without ever reading a whole history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perdure.agent.requests import AGENT, is_answer, request_of
from perdure.errors import NotFound, PerdureError, an, format_path
from perdure.history.checkpoint import Checkpoint, Reading
from perdure.history.expiry import living
from perdure.history.hydrate import load_at
from perdure.history.reader import change_of, history
from perdure.model import MAIN, Kind, Status
from perdure.server.console.rendering import is_tag
from perdure.session.calls.records import MISFIT, exception_of, is_tried_again
from perdure.session.tools.exceptions import in_short
from perdure.state.delta import APPEND, DEL, SET
from perdure.state.document import BOOK, STATE, plain
from perdure.state.values import same
from perdure.system.lease_holders import describe
from perdure.system.times import when

if TYPE_CHECKING:
    from perdure.agent.models import Request
    from perdure.kernel import Kernel
    from perdure.model import Head, SessionRow
    from perdure.protocols import Work
    from perdure.record.codec import Loaded

PAGE = 50
"""Steps that are listed together."""
SEARCHED = 300
"""How far back the newest problem is looked for."""
_ABSENT: Any = object()
MOST_EFFECTS = 200
EFFECT_TONES = {
    "in_doubt": "bad",
    "failed": "bad",
    "raised": "bad",
    "unknown": "bad",
    "started": "accent",
    "planned": "warn",
    "waiting": "calm",
}
EFFECT_WORDS = {
    "planned": "not started",
    "started": "under way",
    "done": "done",
    "failed": "did not happen",
    "raised": "raised: what it had changed is not known",
    "in_doubt": "in doubt",
    "waiting": "its result comes later",
    "unknown": "never found out",
}
OPEN = ("planned", "started", "in_doubt", "waiting")


class Spot(NamedTuple):
    """Where on which branch a page looks."""

    row: SessionRow
    branch: str
    head: Head
    step: int

    @property
    def id(self) -> str:
        """The session's id."""
        return self.row.id

    @property
    def page(self) -> int:
        """The page of steps it is on, from 0."""
        return (self.step - 1) // PAGE

    @property
    def is_head(self) -> bool:
        """Whether it is the newest step of its branch."""
        return self.step == self.head.step

    @property
    def branches(self) -> list[str]:
        """The session's branches, main first."""
        return self.row.branches


def find_spot(kernel: Kernel, session: str, branch: str, step: int | None) -> Spot:
    """What an address means; a step that is not there yet is the newest one."""
    row = living(kernel, session)
    heads = {h.branch: h for h in row.heads if not is_tag(h.branch)}
    name = branch or (MAIN if MAIN in heads else next(iter(heads), ""))
    if name not in heads:
        raise NotFound(f"session {session!r} has no branch {name!r}: it has {', '.join(heads) or 'none'}")
    head = heads[name]
    return Spot(row, name, head, min(max(step or head.step, 1), head.step))


class StepLine(NamedTuple):
    """One step in the list."""

    step: int
    kind: str
    at: int
    words: str
    tone: str
    """bad, warn, accent (an answer of the model) or quiet"""
    input: int
    output: int
    cost: float
    branch: str

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.input + self.output


def step_line(point: Checkpoint) -> StepLine:
    """What the list says of a step."""
    more = point.more
    usage: dict[str, Any] = more.get("usage") or {}
    return StepLine(
        point.step, point.kind, point.at, _words(point, more), tone_of(point), int(usage.get("input", 0)),
        int(usage.get("output", 0)), float(usage.get("cost", 0.0)), point.branch,
    )  # fmt: skip


def tone_of(point: Checkpoint) -> str:
    """How a step is coloured."""
    if point.kind in (Kind.FAILED, Kind.RAISED, Kind.IN_DOUBT) or point.more.get("error"):
        return "bad"
    if point.kind == Kind.APPROVAL or point.status == Status.WAITING_APPROVAL:
        return "warn"
    return "accent" if is_answer(point.more) else "quiet"


_SAID = {
    Kind.STARTED: "{tool} starts",
    Kind.PLANNED: "{tool} may be tried again",
    Kind.DONE: "{tool} is done",
    Kind.FAILED: "{tool} failed",
    Kind.RAISED: "{tool} raised {error}",
    Kind.IN_DOUBT: "{tool} is in doubt",
    Kind.RETRYING: "{tool} got no answer ({error}), and is called again",
    Kind.WAITING: "{tool} answers later",
    Kind.APPROVAL: "{tool} needs agreement",
    Kind.PROGRESS: "{tool} gets on",
    Kind.RUN_STARTED: "run begins",
    Kind.RUN_LEFT: "run ends with {error}",
    Kind.RUN_ENDED: "run ends",
    Kind.FORK: "branch begins",
    Kind.REWIND: "went back to here",
    Kind.MERGE: "merged",
    Kind.MIGRATED: "migrated",
    Kind.CLOSED: "closed",
    Kind.REOPENED: "reopened",
    Kind.REVIVED: "brought back",
}


def _words(point: Checkpoint, more: dict[str, Any]) -> str:
    if point.kind in _SAID:
        said = _SAID[Kind(point.kind)].format(
            tool=more.get("tool") or "a call", error=more.get("error") or "an exception"
        )
        return f"{said}: {more['note']}" if more.get("note") else said
    if is_answer(more):
        calls = len(more.get("effects") or ())
        said = "the model answers" + (f", {calls} call{'s' if calls > 1 else ''}" if calls else "")
        return f"{said}: {more['note']}" if more.get("note") else said
    if "window" in more:
        return "the conversation is summed up"
    if more.get("error"):
        return f"{more['error']}: {more.get('note', '')}".rstrip(": ")
    if more.get("note"):
        return str(more["note"])
    return "begins" if point.step == 1 else point.status.replace("_", " ")


def steps_of(kernel: Kernel, spot: Spot, page: int) -> list[StepLine]:
    """A page of steps, newest first."""
    low = page * PAGE + 1
    points = history(kernel, spot.id, spot.branch, PAGE, min(low + PAGE, spot.head.step + 1))
    # Where retention has left gaps there come older ones, which belong to another page.
    return [step_line(Checkpoint(p)) for p in points if p.envelope.step >= low]


def newest_problem(kernel: Kernel, spot: Spot) -> int | None:
    """The newest step of the branch at which something went wrong."""
    points = [Checkpoint(p) for p in history(kernel, spot.id, spot.branch, SEARCHED, None)]
    bad = [p for p in points if tone_of(p) == "bad"]
    # A run that failed because a call did is told at the call: that is where to look.
    failed = next((p.step for p in bad if p.kind in (Kind.FAILED, Kind.RAISED, Kind.IN_DOUBT)), None)
    if not bad or (failed is not None and bad[0].step - failed <= 3):
        return failed
    return bad[0].step


def answer_at(kernel: Kernel, spot: Spot) -> int | None:
    """The newest answer of a model up to a step; None when there is none near."""
    points = history(kernel, spot.id, spot.branch, 100, spot.step + 1)
    return next((p.envelope.step for p in points if is_answer(p.envelope.x)), None)


def with_calls(kernel: Kernel, moment: Moment) -> Moment:
    """The moment itself, or the newest one before it whose book holds calls: an answer lets go of settled ones."""
    if moment.book.get("effects"):
        return moment
    points = history(kernel, moment.spot.id, moment.spot.branch, 100, moment.spot.step)
    step = next((p.envelope.step for p in points if p.envelope.x.get("effect")), None)
    return moment if step is None else open_moment(kernel, moment.spot._replace(step=step))


class Change(NamedTuple):
    """One thing that a step changed in the state."""

    path: str
    kind: str
    """added, removed or changed"""
    before: Any
    after: Any


class Moment(NamedTuple):
    """A session at one step."""

    spot: Spot
    loaded: Loaded
    reading: Reading
    book: dict[str, Any]

    @property
    def point(self) -> Checkpoint:
        """The checkpoint."""
        return self.reading.checkpoint

    @property
    def made(self) -> dict[str, Any]:
        """How the agent was made, as the session recorded it; empty when no agent has worked on it."""
        notes: dict[str, Any] = self.book.get(AGENT) or {}
        return notes.get("setup") or {}


def open_moment(kernel: Kernel, spot: Spot) -> Moment:
    """Read a session at a step, as it was stored: a page does not have the program's migrations."""
    loaded = load_at(kernel, spot.row, spot.step, spot.branch)
    return Moment(spot, loaded, Reading(kernel, loaded), plain(loaded.doc[BOOK]))


def changes_of(kernel: Kernel, moment: Moment) -> tuple[list[Change], int]:
    """What a step changed in the state, and how many messages it added to the conversation."""
    assert moment.loaded.point is not None
    env = moment.loaded.point.envelope
    change = change_of(kernel, env)
    ops = [op for op in change[0] if op[1][:1] == [STATE]] if change is not None else []
    old: Any = None
    if any(op[0] != APPEND for op in ops):
        try:
            old = load_at(kernel, moment.spot.row, env.step - 1, moment.spot.branch).doc if env.step > 1 else None
        except PerdureError:
            old = None
    found: list[Change] = []
    for op in ops:
        found += _changes(op, old)
    added = sum(len(op[2]) for op in ops if op[0] == APPEND and op[1] == [STATE, "messages"])
    return found, added


def _changes(op: Any, old: Any) -> list[Change]:
    code, path = op[0], list(op[1])
    words = format_path(path[1:])
    if code == APPEND:
        return [Change(f"{words}[+]", "added", None, plain(v)) for v in op[2]]
    before = _at(old, path)
    if code == SET:
        if before is not _ABSENT and same(plain(before), plain(op[2])):
            # Set to what it was.
            return []
        kind = "added" if before is _ABSENT else "changed"
        return [Change(words, kind, None if before is _ABSENT else plain(before), plain(op[2]))]
    if code == DEL:
        return [Change(words, "removed", None if before is _ABSENT else plain(before), None)]
    start, count = op[2], op[3]
    held = cast("list[Any]", before) if isinstance(before, list) else []
    gone: list[Any] = [plain(v) for v in held[start : start + count]] or [None] * count
    found = [Change(f"{words}[{start + i}]", "removed", v, None) for i, v in enumerate(gone)]
    return found + [Change(f"{words}[{start + i}]", "added", None, plain(v)) for i, v in enumerate(op[4])]


def _at(value: Any, path: list[Any]) -> Any:
    for part in path:
        try:
            value = value[part]
        except (LookupError, TypeError):
            return _ABSENT
    return value


def request_at(kernel: Kernel, spot: Spot) -> tuple[Request | None, int | None]:
    """The request that a step's answer was given to, and the step it belongs to: that of the newest answer."""
    moment = open_moment(kernel, spot)
    request = request_of(moment.loaded, kernel)
    if request is not None:
        return request, spot.step
    step = answer_at(kernel, spot)
    if step is None:
        return None, None
    return request_of(open_moment(kernel, spot._replace(step=step)).loaded, kernel), step


# -- calls -------------------------------------------------------------------------------------------------------------


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
    traceback: str
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
    lines = [
        _effect_line(kernel, moment, r, approvals.get(r.get("approval", "")), now) for r in records[-MOST_EFFECTS:]
    ]
    return sorted(lines, key=lambda e: e.at, reverse=True)


def _effect_line(
    kernel: Kernel, moment: Moment, r: dict[str, Any], request: dict[str, Any] | None, now: int
) -> EffectLine:
    status = str(r["status"])
    told = exception_of(r)
    words = "got no answer, and is to be made again" if is_tried_again(r) else EFFECT_WORDS.get(status, status)
    error = in_short(told) if told is not None else str(r.get("error") or "")
    return EffectLine(
        r["id"], r["tool"], r["args"], status, words, EFFECT_TONES.get(status, "quiet"), r["attempt"], r["at"],
        _elapsed(kernel, moment, r, now), r.get("progress"), error, told["traceback"] if told is not None else "",
        r.get("result"), _notes(r, request),
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
    if is_tried_again(r):
        again = f", not before {when(r['retry_at'])}" if "retry_at" in r else ""
        said.append(f"without an answer since {when(r['lost_since'])}, to be made again under the same id{again}")
    if r.get("problem"):
        said.append(f"its result could not be kept: it is {an(r['problem'])}")
    if r.get(MISFIT):
        said.append(f"its result does not fit what its tool declares: {r[MISFIT]}")
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
