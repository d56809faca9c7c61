"""Responses: the conversation as input items and output items as messages. Nothing is kept at the provider.

An answer's items, reasoning included, are kept as they came under the message's own field and sent back as they are;
beside them the message says the same in the words of Chat Completions, for everybody else who reads it.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# What providers answer is any JSON: its types are looked at, not declared.
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.agent.models import OWN_FIELDS, Answer, Delta, Request
from perdure.agent.models.chat_completions import Unfit, short, sound_calls, tidied, usage_of
from perdure.agent.models.parts import for_chat, for_responses

if TYPE_CHECKING:
    from collections.abc import Callable

PATH = "/responses"
KEPT = "perdure"
"""The message's own field; its ``items`` are what the provider wrote."""
ENCRYPTED = "reasoning.encrypted_content"
_TEXT = "response.output_text.delta"
_REASONING = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
_ENDS = ("response.completed", "response.incomplete", "response.failed")


class Failed(Exception):
    """The provider says inside an answer that there is none; ``error`` is what it says."""

    def __init__(self, error: Any) -> None:
        self.error = error
        super().__init__()


def body(request: Request, *, encrypted: bool = True) -> dict[str, Any]:
    """What is sent, always in the same order."""
    out: dict[str, Any] = {"model": request.model, "input": [i for m in request.messages for i in _items(m)]}
    if request.tools:
        out["tools"] = [{"type": "function", "strict": False, **t} for t in request.tools]
    out |= dict(sorted(_params(request.params).items()))
    out["store"] = False
    if encrypted:
        out["include"] = [*out.get("include", []), ENCRYPTED]
    out["stream"] = True
    return out


def _params(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters under the names that Responses has for them."""
    out = dict(params)
    for name in ("max_tokens", "max_completion_tokens"):
        if name in out:
            out["max_output_tokens"] = out.pop(name)
    if "reasoning_effort" in out:
        out["reasoning"] = {**out.get("reasoning", {}), "effort": out.pop("reasoning_effort")}
    wanted = out.pop("response_format", None)
    if isinstance(wanted, dict):
        inner = wanted.get("json_schema")
        form = {"type": "json_schema", **inner} if isinstance(inner, dict) else wanted
        out["text"] = {**out.get("text", {}), "format": form}
    choice = out.get("tool_choice")
    if isinstance(choice, dict) and isinstance(choice.get("function"), dict):
        out["tool_choice"] = {"type": "function", **choice["function"]}
    return out


def _items(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A message as input items; one that came from Responses as the very items it came as."""
    role, content = message.get("role"), message.get("content")
    kept = message.get(KEPT)
    if role == "assistant" and isinstance(kept, dict) and isinstance(kept.get("items"), list):
        return kept["items"]
    if role == "tool":
        said = [for_responses(p) for p in content] if isinstance(content, list) else content
        return [{"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": said}]
    if role == "assistant":
        return _said_before(message)
    rest = {k: v for k, v in message.items() if k not in OWN_FIELDS and k not in ("role", "content", "name")}
    parts = [for_responses(p) for p in content] if isinstance(content, list) else content
    return [{"role": role, "content": parts, **rest}]


def _said_before(message: dict[str, Any]) -> list[dict[str, Any]]:
    """What another client's model said."""
    items: list[dict[str, Any]] = []
    content = message.get("content")
    if isinstance(content, list):
        shown = [for_chat(p) for p in content]
        content = "".join(p.get("text", "") for p in shown if isinstance(p, dict))
    if content:
        items.append({"role": "assistant", "content": content})
    for call in message.get("tool_calls") or []:
        asked = call["function"]
        items.append(
            {
                "type": "function_call",
                "call_id": call["id"],
                "name": asked["name"],
                "arguments": asked["arguments"],
            }
        )
    return items


def answer_of(response: Any) -> Answer:
    """The answer in a response; ``Unfit`` when there is none in it, ``Failed`` when it says why not."""
    if not isinstance(response, dict):
        raise Unfit("something that is not JSON")
    if response.get("status") == "failed" or response.get("error"):
        raise Failed(response.get("error"))
    output = response.get("output")
    if not isinstance(output, list):
        raise Unfit("no output")
    items: list[Any] = tidied(output)
    if not all(isinstance(i, dict) for i in items):
        raise Unfit("output that is none")
    message: dict[str, Any] = {"role": "assistant", "content": _joined(items, "output_text", "text") or None}
    if refusal := _joined(items, "refusal", "refusal"):
        message["refusal"] = refusal
    asked = [i for i in items if i.get("type") == "function_call"]
    if asked:
        message["tool_calls"] = [
            {
                "id": i.get("call_id"),
                "type": "function",
                "function": {"name": i.get("name"), "arguments": i.get("arguments")},
            }
            for i in asked
        ]
    calls = sound_calls(message, short(response.get("id")))
    for item, call in zip(asked, calls, strict=True):
        # Where an id had to be mended, the items must agree with it.
        item["call_id"], item["arguments"] = call.id, call.arguments
    finish = _finish(response, bool(calls))
    if not calls and not message["content"] and not refusal and finish == "stop":
        raise Unfit("nothing")
    message[KEPT] = {"items": items}
    usage = usage_of(response.get("usage"), "input_tokens", "output_tokens")
    named = [short(response.get(name)) for name in ("model", "id", "system_fingerprint")]
    return Answer(message, calls, finish, usage, *named)


def _joined(items: list[dict[str, Any]], kind: str, key: str) -> str:
    said: list[str] = []
    for item in items:
        parts = item.get("content") if item.get("type") == "message" else None
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and part.get("type") == kind and isinstance(part.get(key), str):
                said.append(part[key])
    return "".join(said)


def _finish(response: dict[str, Any], calls: bool) -> str:
    why = response.get("incomplete_details")
    if response.get("status") == "incomplete" and isinstance(why, dict):
        reason = short(why.get("reason"))
        return "length" if reason == "max_output_tokens" else reason or "length"
    return "tool_calls" if calls else "stop"


class Assembly:
    """A stream's events: pieces are told as they come, and its last event holds the whole answer."""

    def __init__(self, tell: Callable[[Delta], None]) -> None:
        self._tell = tell
        self._calls: dict[Any, int] = {}
        self._done: dict[int, Any] = {}
        self._response: dict[str, Any] | None = None
        self.begun = False
        """Whether an answer was begun."""

    def add(self, event: Any) -> None:
        """Take the next event."""
        if not isinstance(event, dict):
            raise Unfit("an event that is none")
        kind, piece = event.get("type"), event.get("delta")
        place = event.get("output_index")
        if kind == "error":
            raise Failed(event)
        self.begun = self.begun or (isinstance(kind, str) and kind.startswith("response."))
        if kind == _TEXT and isinstance(piece, str):
            self._tell(Delta(text=piece))
        elif kind in _REASONING and isinstance(piece, str):
            self._tell(Delta(reasoning=piece))
        elif kind == "response.function_call_arguments.delta" and isinstance(piece, str):
            self._tell(Delta(call=self._calls.setdefault(place, len(self._calls)), arguments=piece))
        elif kind == "response.output_item.added":
            item = event.get("item")
            if isinstance(item, dict) and item.get("type") == "function_call":
                n = self._calls.setdefault(place, len(self._calls))
                self._tell(Delta(call=n, name=short(item.get("name"))))
        elif kind == "response.output_item.done" and isinstance(place, int):
            self._done[place] = event.get("item")
        elif kind in _ENDS:
            response = event.get("response")
            if not isinstance(response, dict):
                raise Unfit("an end without an answer")
            self._response = response

    @property
    def finished(self) -> bool:
        """Whether the last event has come."""
        return self._response is not None

    def answer(self) -> Answer:
        """The whole answer."""
        assert self._response is not None
        if self._done and not self._response.get("output"):
            # Some servers leave out at the end what they have sent item by item.
            return answer_of({**self._response, "output": [self._done[n] for n in sorted(self._done)]})
        return answer_of(self._response)
