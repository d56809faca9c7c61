"""A recorded session: read from its beginning, in order, and a model that says its answers again, with no network."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

from perdure.agent.context.recall import RESULTS
from perdure.agent.context.window import Plain
from perdure.agent.model_versions import VersionChange, between, versions_in
from perdure.agent.models import Answer, Delta, Request, ToolCall, Usage, message_digest, request_digest, text_of
from perdure.agent.requests import AGENT, build, compactors_request, is_answer
from perdure.errors import InvalidInput, NotFound, RequestDiffers
from perdure.history.hydrate import ancestry, head_of, look, payload_of
from perdure.history.reader import read_rows
from perdure.kernel import Kernel
from perdure.model import Kind
from perdure.record.codec import Point
from perdure.state.delta import APPEND, apply
from perdure.state.document import BOOK, STATE, Document, genesis, plain
from perdure.system.flow import check_awaited, used_awaited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from perdure.aio import AsyncDatabase
    from perdure.model import Envelope
    from perdure.state.delta import Op

SUMMARY = "summary"
"""The use of an answer that went into the state's summary and not into the conversation."""


class Recorded(NamedTuple):
    """One recorded answer, and the request it answered."""

    step: int
    name: str
    request: str
    """The digest of the request."""
    answer: Answer


class RecordedModel:
    """Answers the n-th request with the n-th recorded answer, verbatim, when the request is the recorded one.

    Any other request raises :class:`perdure.errors.RequestDiffers`, which says at which step they part.
    """

    def __init__(self, answers: Sequence[Recorded], session: str = "") -> None:
        self.answers = tuple(answers)
        self.session = session
        self.asked = 0
        """How many answers were given."""

    @classmethod
    @used_awaited("RecordedModel.of")
    async def of(cls, db: AsyncDatabase, session: str, *, branch: str = "main", upto: int | None = None) -> Self:
        """The answers of a session's branch, oldest first, up to a step when one is named."""
        check_awaited(db, "RecordedModel.of")
        said: dict[str, dict[str, Any]] = {}
        head = await db.read(session, branch=branch)
        for message in plain(head.messages):
            if message.get("role") == "assistant":
                said.setdefault(message_digest(message), message)
        found: list[Recorded] = []
        for point in await db.history(session, branch=branch, limit=head.step):
            about = point.more.get("model")
            if not isinstance(about, dict) or "request" not in about or (upto is not None and point.step > upto):
                continue
            message = said.get(about["answer"])
            if message is None:
                message = await _said_at(db, session, point.step, branch, about)
            found.append(Recorded(point.step, about["name"], about["request"], answer_of(point.more, message)))
        found.sort(key=lambda r: r.step)
        return cls(found, session)

    @property
    def name(self) -> str:
        """The name of the model that gave the next answer: requests carry it."""
        if not self.answers:
            return "recorded"
        return self.answers[min(self.asked, len(self.answers) - 1)].name

    async def answer(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Answer:
        """The recorded answer to this very request."""
        digest = request_digest(request)
        if self.asked >= len(self.answers):
            last = self.answers[-1].step if self.answers else 0
            raise RequestDiffers(self.session, last, "", digest)
        recorded = self.answers[self.asked]
        if recorded.request != digest:
            raise RequestDiffers(self.session, recorded.step, recorded.request, digest)
        self.asked += 1
        if on_delta is not None and (text := text_of(recorded.answer.message)):
            on_delta(Delta(text=text))
        return recorded.answer

    async def close(self) -> None:
        """Nothing to release."""


async def _said_at(db: AsyncDatabase, session: str, step: int, branch: str, about: dict[str, Any]) -> dict[str, Any]:
    """An answer that is no longer in the conversation as it was said: looked up where it was committed."""
    then = await db.read(session, at=step, branch=branch)
    if about.get("use") == SUMMARY:
        return {"role": "assistant", "content": then.summary}
    for message in reversed(plain(then.messages)):
        if message.get("role") == "assistant" and message_digest(message) == about["answer"]:
            return message
    raise NotFound(f"session {session!r}, step {step}: the model's answer is not in its messages: it was edited since")


def answer_of(x: dict[str, Any], message: dict[str, Any]) -> Answer:
    """An answer from its message and what its checkpoint says of it."""
    about, usage = x["model"], x.get("usage", {})
    calls = tuple(
        ToolCall(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()
    )
    counted = Usage(**{k: v for k, v in usage.items() if k in Usage._fields})
    return Answer(
        message, calls, about.get("finish", ""), counted, about.get("version", ""), about.get("id", ""),
        about.get("fingerprint", ""),
    )  # fmt: skip


BY_THE_JOURNAL = (
    Kind.PLANNED, Kind.STARTED, Kind.DONE, Kind.FAILED, Kind.IN_DOUBT, Kind.APPROVAL, Kind.RUN_STARTED, Kind.RUN_LEFT,
    Kind.RUN_ENDED,
)  # fmt: skip
"""Checkpoints in which only the runtime itself writes into the conversation, and tools into the rest of the state."""


class Turn(NamedTuple):
    """An answer of the model, and all that it rests on."""

    step: int
    setup: dict[str, Any]
    context: dict[str, Any] | None
    request: Request
    answer: Answer
    took: list[tuple[str, Any]]
    """What the answer's commit took from the inbox: key and body."""
    window: dict[str, Any]
    """The window as the commit left it."""
    done: bool
    """Whether the run ended with it."""
    nudge: str | None
    """What was said to the model because it was not done."""
    reads: bool
    """Whether the model was offered to read large results."""
    outcomes: dict[str, Any]
    """What the model was told of its calls, by their ids; found out from later checkpoints."""


class Cleaned(NamedTuple):
    """One checkpoint of the compactor."""

    step: int
    setup: dict[str, Any]
    about: dict[str, Any]
    """Why, from where on the window shows messages, which ones were summarised."""
    request: Request | None
    """None when the window was cut without asking a model."""
    answer: Answer | None
    window: dict[str, Any]


class Edited(NamedTuple):
    """A change of the state by somebody else than the loop."""

    step: int
    ops: list[Op]
    settled: bool
    """Whether the model had been told the outcomes of all its calls by then."""


Event = Turn | Cleaned | Edited


class Recording(NamedTuple):
    """What happened in a session, and what it came to."""

    session: str
    branch: str
    events: list[Event]
    messages: list[dict[str, Any]]
    versions: tuple[VersionChange, ...]
    """Where a provider's model became another one."""


def read_recording(kernel: Kernel, session: str, branch: str) -> Recording:
    """Read a branch of a session from its beginning."""
    events: list[Event] = []
    doc = genesis()
    last: Turn | None = None
    seen: dict[str, dict[str, str]] = {}
    versions: list[VersionChange] = []
    for point, ops, extra in _rows(kernel, session, branch):
        env = point.envelope
        before = plain(doc[STATE]["summary"])
        unanswered = plain(plain(doc[BOOK].get(AGENT) or {}).get("unanswered", []))
        apply(ops, doc)
        root = Document(doc, kernel.resolve, readonly=True).root
        book = root[BOOK].get(AGENT)
        if book and (now := versions_in(root[BOOK])) != seen:
            versions += [change._replace(step=env.step) for change in between(seen, now)]
            seen = now
        if is_answer(env.x) and book and "setup" in book:
            _tell_outcomes(last, root[STATE]["messages"], book["sent"])
            last = _turn(env, root, book, extra, unanswered if "unanswered" not in book else [])
            events.append(last)
        elif "window" in env.x and book:
            events.append(_cleaned(env, root, book, before))
        elif changed := _of_state(ops, last, beside_the_conversation=env.kind in BY_THE_JOURNAL):
            events.append(Edited(env.step, changed, not book or not book["calls"]))
    root = Document(doc, kernel.resolve, readonly=True).root
    messages = plain(root[STATE]["messages"])
    _tell_outcomes(last, messages, len(messages))
    return Recording(session, branch, events, messages, tuple(versions))


def _rows(kernel: Kernel, session: str, branch: str) -> Iterator[tuple[Point, list[Op], dict[str, Any]]]:
    """All checkpoints of a branch, oldest first, verified, with what they changed."""
    head = head_of(kernel, look(kernel, session), branch)
    before: Point | None = None
    for line, end in sorted(ancestry(kernel, session, head.line, head.step).items()):
        for point, body, _ in read_rows(kernel, session, line, 1, end, before):
            if body is None:
                step = point.envelope.step
                msg = f"session {session!r} was pruned up to step {step}: its beginning is not there to replay"
                raise InvalidInput(msg)
            yield point, *payload_of(kernel, body, point)
            before = point


def _turn(env: Envelope, root: Any, book: Any, extra: dict[str, Any], unanswered: list[Any]) -> Turn:
    messages = root[STATE]["messages"]
    sent = book["sent"]
    message = plain(messages[sent])
    after = plain(messages[sent + 1]) if len(messages) > sent + 1 else {}
    return Turn(
        env.step,
        plain(book["setup"]),
        plain(book.get("context")),
        build(root[STATE], book),
        answer_of(env.x, message),
        # What was cancelled before it was answered is said again with what is said next.
        [(f"unanswered-{env.step}-{i}", body) for i, body in enumerate(unanswered)]
        + [(key, plain(body)) for key, kind, body in extra.get("took", ()) if kind == "message"],
        plain(book.get("window") or {}),
        book["run"] is None,
        after.get("content") if after.get("role") == "user" else None,
        bool(book.get("reads")),
        {},
    )


def _cleaned(env: Envelope, root: Any, book: Any, before: str) -> Cleaned:
    setup, window = plain(book["setup"]), plain(book["window"])
    if "model" not in env.x:
        return Cleaned(env.step, setup, env.x["window"], None, None, window)
    request = compactors_request(env.x, setup, before, Plain(root[STATE]["messages"]))
    said = {"role": "assistant", "content": plain(root[STATE]["summary"])}
    return Cleaned(env.step, setup, env.x["window"], request, answer_of(env.x, said), window)


def _tell_outcomes(turn: Turn | None, messages: Any, end: int) -> None:
    """What the model was told of its calls stands after its answer."""
    if turn is None:
        return
    wanted = {c.id for c in turn.answer.calls}
    for i in range(end - 1, -1, -1):
        if not wanted:
            return
        message = messages[i]
        if message.get("role") == "tool" and message.get("tool_call_id") in wanted:
            wanted.discard(message["tool_call_id"])
            turn.outcomes[message["tool_call_id"]] = plain(message["content"])
        elif message.get("role") == "assistant":
            return


def _of_state(ops: list[Op], last: Turn | None, *, beside_the_conversation: bool) -> list[Op]:
    """The part of a change that is the state's, and not what the runtime itself says of calls."""
    told = {c.id for c in last.answer.calls} if last is not None else set[str]()
    found: list[Op] = []
    for op in ops:
        if not op[1] or op[1][0] != STATE or op[1][1:2] == [RESULTS]:
            continue
        if beside_the_conversation and op[1][1:2] == ["messages"]:
            continue
        rest = [plain(part) for part in op[2:]]
        if op[0] == APPEND and op[1][1:] == ["messages"]:
            rest = [[m for m in rest[0] if m.get("role") != "tool" or m.get("tool_call_id") not in told]]
            if not rest[0]:
                continue
        found.append([op[0], list(op[1][1:]), *rest])
    return found
