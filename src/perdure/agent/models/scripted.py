"""Models that say what they were told to say: for tests, examples and demonstrations without a network."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# What a function answers is any value: its type is looked at, not declared.
from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perdure.agent.models import Answer, Delta, Request, ToolCall, Usage, text_of
from perdure.errors import InvalidInput
from perdure.system.options import check_fits, is_amount, options_checked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Script = Callable[[Request], "Answer | str | dict[str, Any] | Awaitable[Any]"]


class FunctionModel:
    """Has a function answer: it is given the :class:`Request`, and may be a coroutine function.

    It returns text, what :func:`calls` makes of calls, or an :class:`Answer`; for no answer it raises a
    :class:`perdure.ModelError`. ``name`` is what is recorded; ``delay`` is how many seconds an answer takes.

    >>> def answer(request):
    ...     asked = request.messages[-1]
    ...     return calls(("add", {"a": 1, "b": 2})) if asked["role"] == "user" else f"It is {asked['content']}."
    >>> model = FunctionModel(answer)
    """

    @options_checked("FunctionModel")
    def __init__(self, function: Script, *, name: str = "function", delay: float = 0.0) -> None:
        given: Any = name
        check_fits("a model", "name", name, isinstance(given, str), "the name that is recorded")
        check_fits("a model", "delay", delay, is_amount(delay) and delay >= 0, "how many seconds an answer takes")
        self.name = name
        self.asked = 0
        """How often this object was asked."""
        self._function = function
        self._delay = delay
        if not callable(function):
            raise InvalidInput(
                f"a FunctionModel is given the function that answers, as in FunctionModel(lambda request: 'Hello'), "
                f"not {function!r:.60}"
            )

    async def answer(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Answer:
        """What the function answers."""
        self.asked += 1
        said: Any = self._function(request)
        if inspect.isawaitable(said):
            said = await said
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


class ScriptedModel(FunctionModel):
    """Answers from a list, by the number of answers in the conversation so far, or from a function of the request.

    Both give the same answer to the same request, however often the process died in between.

    >>> model = ScriptedModel(["Hello", calls(("add", {"a": 1, "b": 2})), "3"])
    """

    @options_checked("ScriptedModel")
    def __init__(self, script: Script | Sequence[Any], *, name: str = "scripted", delay: float = 0.0) -> None:
        in_order = isinstance(script, Sequence) and not isinstance(script, str | bytes)
        answers = "a list of answers or a function of the request"
        check_fits("a ScriptedModel", "script", script, callable(script) or in_order, answers)
        super().__init__(script if callable(script) else _in_order(script), name=name, delay=delay)


def _in_order(script: Sequence[Any]) -> Script:
    def next_one(request: Request) -> Any:
        at = sum(m.get("role") == "assistant" for m in request.messages)
        said = script[at] if at < len(script) else "(the script has ended)"
        return said(request) if callable(said) else said

    return next_one


def calls(*wanted: tuple[str, dict[str, Any] | str], text: str | None = None) -> dict[str, Any]:
    """What a script says to have tools called: (name, arguments) each."""
    given: tuple[Any, ...] = wanted
    if wrong := next((c for c in given if not (isinstance(c, tuple) and len(c) == 2)), None):
        raise InvalidInput(
            f"calls(...) takes a pair for each call, calls((name, arguments), (name, arguments)), not {wrong!r:.60}"
        )
    return {"text": text, "calls": list(wanted)}


def _as_answer(said: Any, request: Request) -> Answer:
    if isinstance(said, Answer):
        return said
    if isinstance(said, str):
        said = {"text": said, "calls": []}
    if not isinstance(said, dict) or not said.keys() & {"text", "calls"}:
        raise InvalidInput(
            f"the function of a model answers with text, calls((name, arguments), ...) or an Answer, not {said!r:.60}"
        )
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
    whole = json.dumps(messages, ensure_ascii=False, default=lambda _: "bytes")
    return (len(whole) - 2 * max(len(messages), 1)) // 4  # without the list around them, ", " between each two
