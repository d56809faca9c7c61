"""A model that says what it was told to say: for tests, examples and demonstrations without a network."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
from typing import TYPE_CHECKING, Any

from perdure.agent.models import Answer, Delta, Request, ToolCall, Usage, text_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Script = Callable[[Request], "Answer | str | dict[str, Any] | Awaitable[Any]"]


class ScriptedModel:
    """Answers from a function of the request, or from a list by the number of answers in the conversation so far.

    Both give the same answer to the same request, however often the process died in between.

    >>> model = ScriptedModel(["Hello", calls(("add", {"a": 1, "b": 2})), "3"])
    """

    def __init__(self, script: Script | Sequence[Any], *, name: str = "scripted", delay: float = 0.0) -> None:
        self.name = name
        self.asked = 0
        """How often this object was asked."""
        self._script = script
        self._delay = delay

    async def answer(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Answer:
        """The next answer of the script."""
        self.asked += 1
        said: Any
        if callable(self._script):
            said = self._script(request)
            if inspect.isawaitable(said):
                said = await said
        else:
            at = sum(m.get("role") == "assistant" for m in request.messages)
            said = self._script[at] if at < len(self._script) else "(the script has ended)"
            if callable(said):
                said = said(request)
        answer = _as_answer(said, request)
        pieces = text_of(answer.message).split(" ") if on_delta is not None else []
        for i, piece in enumerate(pieces):
            if self._delay:
                await asyncio.sleep(self._delay / len(pieces))
            if on_delta is not None and piece:
                on_delta(Delta(text=piece if i == len(pieces) - 1 else piece + " "))
        if not pieces and self._delay:
            await asyncio.sleep(self._delay)
        return answer

    async def close(self) -> None:
        """Nothing to release."""


def calls(*wanted: tuple[str, dict[str, Any] | str], text: str | None = None) -> dict[str, Any]:
    """What a script says to have tools called: (name, arguments) each."""
    return {"text": text, "calls": list(wanted)}


def _as_answer(said: Any, request: Request) -> Answer:
    if isinstance(said, Answer):
        return said
    if isinstance(said, str):
        said = {"text": said, "calls": []}
    asked: list[ToolCall] = []
    for i, (name, arguments) in enumerate(said.get("calls", ())):
        raw = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        asked.append(ToolCall(_call_id(request, i), name, raw))
    message: dict[str, Any] = {"role": "assistant", "content": said.get("text")}
    if asked:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in asked
        ]
    usage = Usage(_tokens(request.messages), _tokens([message]))
    return Answer(message, tuple(asked), "tool_calls" if asked else "stop", usage, request.model or "scripted-1")


def _call_id(request: Request, n: int) -> str:
    # The same for the same place of the same conversation: whoever asks again gets the same answer.
    place = f"{len(request.messages)}:{n}:{text_of(request.messages[-1]) if request.messages else ''}"
    return "call_" + hashlib.sha256(place.encode()).hexdigest()[:16]


def _tokens(messages: list[dict[str, Any]]) -> int:
    """About as many tokens as a provider would count: four characters each; what is seen or heard counts for little."""
    return sum(len(json.dumps(m, ensure_ascii=False, default=lambda _: "bytes")) for m in messages) // 4
