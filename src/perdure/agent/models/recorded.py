"""A model that says again what was recorded: a session's answers from its checkpoints, with no network."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

from perdure.agent.models import Answer, Delta, Request, ToolCall, Usage, message_digest, request_digest, text_of
from perdure.errors import NotFound, RequestDiffers
from perdure.state.document import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.aio import AsyncDatabase
    from perdure.history.checkpoint import Checkpoint

_PAGE = 500
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
    async def of(cls, db: AsyncDatabase, session: str, *, branch: str = "main", upto: int | None = None) -> Self:
        """The answers of a session's branch, oldest first, up to a step when one is named."""
        said: dict[str, dict[str, Any]] = {}
        head = await db.read(session, branch=branch)
        for message in plain(head.messages):
            if message.get("role") == "assistant":
                said.setdefault(message_digest(message), message)
        found: list[Recorded] = []
        for point in await _history(db, session, branch):
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


async def _history(db: AsyncDatabase, session: str, branch: str) -> list[Checkpoint]:
    """All checkpoints of a branch."""
    found: list[Checkpoint] = []
    before: int | None = None
    while page := await db.history(session, branch=branch, limit=_PAGE, before=before):
        found += page
        before = page[-1].step
    return found


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
