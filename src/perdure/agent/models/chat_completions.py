"""Chat Completions: requests as bodies, answers and streams as messages, kept as the provider wrote them.

What a model sent is made fit for a session first: text without broken characters, JSON that can be stored, sound calls.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# What providers answer is any JSON: its types are looked at, not declared.
from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

from perdure.agent.models import OWN_FIELDS, Answer, Delta, Request, ToolCall, Usage
from perdure.agent.models.parts import for_chat

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DEPTH = 100
"""A message nested deeper than that is no message."""


class Unfit(Exception):
    """Something that no session can hold."""


def tidied(value: Any, depth: int = 0) -> Any:
    r"""A copy of a JSON value whose text has a UTF-8 form: halves of a character are joined or replaced.

    >>> tidied({"content": "a \ud83d\ude00 b"}) == {"content": "a 😀 b"}
    True
    """
    if isinstance(value, str):
        return value if value.isascii() else _whole(value)
    if isinstance(value, dict | list) and depth > MAX_DEPTH:
        raise Unfit("something nested too deep")
    if isinstance(value, dict):
        return {tidied(k): tidied(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [tidied(v, depth + 1) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise Unfit("a number that is none")
    return value


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class WholeCharacters:
    """Tells pieces on, holding half a character back until its other half has come."""

    def __init__(self, tell: Callable[[Delta], None]) -> None:
        self._tell = tell
        self._held: dict[tuple[str, int], str] = {}

    def __call__(self, delta: Delta) -> None:
        """The next piece."""
        fixed = {name: self._joined(name, delta.call, getattr(delta, name)) for name in _PIECES}
        self._tell(delta._replace(**fixed))

    def _joined(self, name: str, call: int, piece: str) -> str:
        if piece.isascii() and not self._held:
            return piece
        piece = self._held.pop((name, call), "") + piece
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            self._held[name, call] = piece[-1]
            piece = piece[:-1]
        return _whole(piece)


_PIECES = ("text", "reasoning", "arguments")


def sound_calls(message: dict[str, Any], response: str) -> tuple[ToolCall, ...]:
    """The calls of a message. Their text stays byte for byte; a missing or repeated id is replaced, in the message too.

    Each result is sent back under its call's id, so two calls of one answer must not share one.
    """
    listed = message.get("tool_calls")
    if listed is None:
        return ()
    if not isinstance(listed, list):
        raise Unfit("calls that are no list")
    found: list[ToolCall] = []
    seen: set[str] = set()
    for n, call in enumerate(listed):
        asked = call.get("function") if isinstance(call, dict) else None
        if not isinstance(asked, dict) or not isinstance(asked.get("name"), str) or not asked["name"]:
            raise Unfit("a call without a name")
        raw = asked.get("arguments")
        if not isinstance(raw, str):
            # Some servers give an object where the API has text, and take only text back.
            asked["arguments"] = raw = "" if raw is None else json.dumps(raw, ensure_ascii=False)
        name = call.get("id")
        if not isinstance(name, str) or not name or name in seen:
            place = f"{response}:{n}:{asked['name']}:{raw}"
            call["id"] = name = "call_" + hashlib.sha256(place.encode()).hexdigest()[:24]
        seen.add(name)
        found.append(ToolCall(name, asked["name"], raw))
    return tuple(found)


def count(value: Any) -> int:
    """A number of tokens; 0 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def short(value: Any) -> str:
    """A name that a provider gives: bounded, since checkpoints carry it in the clear."""
    return value[:200] if isinstance(value, str) else ""


PATH = "/chat/completions"
_JOINED = ("arguments", "text", "summary", "transcript", "data")
"""Text that comes in pieces wherever it stands in a delta; other text in there is a name."""
_NAMES = ("role", "name", "id", "type")
_NO_NULL = ("tool_calls", "function_call", "audio")
"""Some servers say null for what an answer has not, and refuse to be told so."""
_UNFINISHED = ("length", "content_filter")


def body(request: Request) -> dict[str, Any]:
    """What is sent, always in the same order."""
    out: dict[str, Any] = {"model": request.model, "messages": _conversation(request.messages)}
    if request.tools:
        out["tools"] = [{"type": "function", "function": t} for t in request.tools]
    out |= dict(sorted(request.params.items()))
    return out | {"stream": True, "stream_options": {"include_usage": True}}


def _conversation(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All messages; pictures and files that tools returned are shown by the user, who alone may, after all results."""
    out: list[dict[str, Any]] = []
    returned: list[Any] = []
    for message in messages:
        sent = _sent(message)
        if sent.get("role") == "tool":
            if isinstance(sent.get("content"), list):
                sent["content"], shown = _text_apart(sent["content"])
                if shown:
                    returned += [{"type": "text", "text": f"Returned by the call {sent.get('tool_call_id')}:"}, *shown]
        elif returned:
            out.append({"role": "user", "content": returned})
            returned = []
        out.append(sent)
    return [*out, {"role": "user", "content": returned}] if returned else out


def _text_apart(parts: list[Any]) -> tuple[str, list[Any]]:
    """The text of parts, and the parts that are none."""
    others = [p for p in parts if not _is_text(p)]
    said = "\n".join(p["text"] for p in parts if _is_text(p))
    return said or f"({len(others)} attached, in the message that follows)", others


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _sent(message: dict[str, Any]) -> dict[str, Any]:
    sent = {k: v for k, v in message.items() if k not in OWN_FIELDS and not (v is None and k in _NO_NULL)}
    content: Any = sent.get("content")
    if isinstance(content, list):
        sent["content"] = [for_chat(p) for p in content]
    return sent


def answer_of(response: Any) -> Answer:
    """The answer in a response; ``Unfit`` when there is none in it."""
    if not isinstance(response, dict):
        raise Unfit("something that is not JSON")
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Unfit("no choice")
    choice = choices[0]
    return _answer(choice.get("message"), choice.get("finish_reason"), response)


def _answer(message: Any, finish: Any, response: dict[str, Any]) -> Answer:
    if not isinstance(message, dict):
        raise Unfit("an empty choice")
    message = tidied(message)
    message.setdefault("role", "assistant")
    message.setdefault("content", None)
    response_id = short(response.get("id"))
    calls = sound_calls(message, response_id)
    if not calls and not message["content"] and not message.get("refusal") and finish not in _UNFINISHED:
        raise Unfit("nothing")
    if message["role"] != "assistant":
        raise Unfit("in the name of somebody else")
    finish = finish if isinstance(finish, str) and finish else "tool_calls" if calls else "stop"
    return Answer(
        message, calls, short(finish), usage_of(response.get("usage")), short(response.get("model")), response_id,
        short(response.get("system_fingerprint")),
    )  # fmt: skip


def usage_of(usage: Any, input: str = "prompt_tokens", output: str = "completion_tokens") -> Usage:
    """Tokens as the provider counts them, where it says, under the names that its API has for what comes in and out."""
    if not isinstance(usage, dict):
        return Usage()
    sent, written = usage.get(f"{input}_details"), usage.get(f"{output}_details")
    cached = sent.get("cached_tokens") if isinstance(sent, dict) else usage.get("prompt_cache_hit_tokens")
    reasoning = written.get("reasoning_tokens") if isinstance(written, dict) else 0
    return Usage(count(usage.get(input)), count(usage.get(output)), count(cached), count(reasoning))


class Assembly:
    """The pieces of a streamed answer, put together to what the same answer would be in one piece."""

    def __init__(self, tell: Callable[[Delta], None]) -> None:
        self._tell = tell
        self._message: dict[str, Any] = {}
        self._calls: list[dict[str, Any]] = []
        self._places: dict[Any, int] = {}
        self._finish: str | None = None
        self._about: dict[str, Any] = {}

    def add(self, chunk: Any) -> None:
        """Take the next chunk."""
        if not isinstance(chunk, dict):
            raise Unfit("a chunk that is none")
        for name in ("id", "model", "system_fingerprint", "usage"):
            if chunk.get(name):
                self._about[name] = chunk[name]
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            return
        choice = choices[0]
        if not isinstance(choice, dict):
            raise Unfit("a chunk that is none")
        delta = choice.get("delta")
        if isinstance(delta, dict):
            self._take(delta)
        if choice.get("finish_reason"):
            self._finish = str(choice["finish_reason"])

    @property
    def begun(self) -> bool:
        """Whether the model has said anything."""
        return bool(self._message or self._calls or self.finished)

    @property
    def finished(self) -> bool:
        """Whether the model has said its last word."""
        return self._finish is not None

    def answer(self) -> Answer:
        """The whole answer."""
        message = {"role": "assistant", "content": None, **self._message}
        if self._calls:
            message["tool_calls"] = self._calls
            # In one piece a message that only calls has no content; the first piece of a stream may say "".
            message["content"] = message["content"] or None
        return _answer(message, self._finish, self._about)

    def _take(self, delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if key == "tool_calls":
                for piece in value if isinstance(value, list) else ():
                    self._call(piece)
            elif isinstance(value, str) and key not in _NAMES:
                self._message[key] = (self._message.get(key) or "") + value
                if value and key == "content":
                    self._tell(Delta(text=value))
                elif value and key in ("reasoning_content", "reasoning"):
                    self._tell(Delta(reasoning=value))
            else:
                self._message[key] = joined(self._message.get(key), value)

    def _call(self, piece: Any) -> None:
        if not isinstance(piece, dict):
            raise Unfit("a call that is none")
        n = self._place(piece)
        new = n == len(self._calls)
        if new:
            self._calls.append({})
        call = self._calls[n]
        rest = {k: v for k, v in piece.items() if k != "index"}
        told = rest.pop("function", None)
        for key, value in rest.items():
            if key not in _NAMES or not call.get(key):
                call[key] = joined(call.get(key), value, key)
        asked = call.setdefault("function", {"name": "", "arguments": ""})
        if not isinstance(told, dict):
            return
        for key, value in told.items():
            # Some providers repeat the name with every piece of the arguments.
            if key != "name" or not asked["name"]:
                asked[key] = joined(asked.get(key), value, key)
        arguments = told.get("arguments")
        name = told.get("name")
        self._tell(
            Delta(
                call=n,
                name=name if new and isinstance(name, str) else "",
                arguments=arguments if isinstance(arguments, str) else "",
            )
        )

    def _place(self, piece: dict[str, Any]) -> int:
        """Which call a piece belongs to: by its index; else a new id begins a new call."""
        index, name = piece.get("index"), piece.get("id")
        place = ("index", index) if isinstance(index, int) else ("id", name) if name else None
        if place is None:
            return max(len(self._calls) - 1, 0)
        return self._places.setdefault(place, len(self._calls))


def joined(old: Any, new: Any, key: str = "") -> Any:
    """A value with its next piece: pieces of text are put together, parts of a list by their index.

    >>> joined([{"index": 0, "text": "a"}], [{"index": 0, "text": "b", "signature": "s"}])
    [{'index': 0, 'text': 'ab', 'signature': 's'}]
    """
    if new is None:
        return old
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{k: joined(old.get(k), v, k) for k, v in new.items()}}
    if isinstance(old, list) and isinstance(new, list):
        out = list(old)
        for item in new:
            at = _same(out, item)
            if at is None:
                out.append(item)
            else:
                out[at] = joined(out[at], item)
        return out
    if isinstance(old, str) and isinstance(new, str) and key in _JOINED:
        return old + new
    return new


def _same(items: list[Any], item: Any) -> int | None:
    if not isinstance(item, dict) or not isinstance(item.get("index"), int):
        return None
    return next((i for i, o in enumerate(items) if isinstance(o, dict) and o.get("index") == item["index"]), None)
