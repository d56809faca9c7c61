"""What the loop asks of a language model: one request, one answer. Clients implement :class:`ChatModel`."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from perdure.errors import an

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

OWN_FIELDS = ("pinned", "perdure")
"""Fields of a message that are between the session and its clients: no provider is sent them."""


class Request(NamedTuple):
    """Everything a model is sent. Messages are those of Chat Completions; clients of other APIs translate them."""

    model: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    """Functions the model may call: name, description, parameters (a JSON schema)."""
    params: dict[str, Any]
    """temperature, top_p, seed, max_tokens, response_format, ... as given by the user."""


class Usage(NamedTuple):
    """Tokens of one answer, as the provider counts them."""

    input: int = 0
    output: int = 0
    cached: int = 0
    """Of the input: read from the provider's cache."""
    reasoning: int = 0
    """Of the output: never shown."""


class ToolCall(NamedTuple):
    """A call the model wants made; ``arguments`` is the raw text it wrote, JSON or not."""

    id: str
    name: str
    arguments: str


class Answer(NamedTuple):
    """What came back. ``message`` is kept verbatim in the session, unknown fields included."""

    message: dict[str, Any]
    calls: tuple[ToolCall, ...] = ()
    finish: str = "stop"
    """stop, tool_calls, length, content_filter, ... in the words of Chat Completions"""
    usage: Usage = Usage()
    model: str = ""
    """The exact version that answered."""
    id: str = ""
    fingerprint: str = ""


class Delta(NamedTuple):
    """A piece of an answer on its way: provisional until the answer is committed."""

    text: str = ""
    reasoning: str = ""
    call: int = -1
    """Which call of the answer this piece belongs to; -1: none."""
    name: str = ""
    arguments: str = ""
    restart: bool = False
    """What was told so far is void: the answer was lost on its way, and the model is asked once more."""


class ChatModel(Protocol):
    """A model client. Raises :class:`perdure.errors.ModelError` when no answer can be had."""

    name: str

    async def answer(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Answer:
        """Ask once, retrying as the client sees fit; with ``on_delta`` pieces are told as they arrive."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


around: Callable[[ChatModel, Request, Callable[[Delta], None] | None], Awaitable[Answer]] | None = None
"""Where a test, or the doctor, stands between agents and all models: asked in place of a model."""


async def ask(model: ChatModel, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Answer:
    """Ask a model once; this is how agents and their compactors do it."""
    if around is not None:
        return await around(model, request, on_delta)
    return await model.answer(request, on_delta)


def text_of(message: dict[str, Any]) -> str:
    """What a message says, its parts joined.

    >>> text_of({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})
    'ab'
    """
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts: list[Any] = content
        return "".join(p.get("text", "") for p in parts if isinstance(p, dict) and isinstance(p.get("text"), str))
    return ""


def request_digest(request: Request) -> str:
    """The digest of everything a model is sent, in the order in which it is sent.

    >>> from perdure.agent.models import Request
    >>> one = Request("m", [{"role": "user", "content": "hi"}], [], {"seed": 1})
    >>> request_digest(one) == request_digest(one._replace(params={"seed": 2}))
    False
    """
    return _digest([request.model, request.messages, request.tools, dict(sorted(request.params.items()))])


def message_digest(message: dict[str, Any]) -> str:
    """The digest of one message."""
    return _digest(message)


def _digest(value: Any) -> str:
    # The order of keys counts: it is part of the bytes that are sent. Escapes stand for lone surrogates, too.
    text = json.dumps(value, separators=(",", ":"), default=_named)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _named(value: Any) -> Any:
    """Bytes go by their hash: they may be a film."""
    if isinstance(value, bytes):
        return {"$bytes": hashlib.sha256(value).hexdigest(), "size": len(value)}
    raise TypeError(f"{an(type(value).__name__)} cannot be sent to a model")
