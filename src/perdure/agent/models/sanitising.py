"""What a model sent, made fit for a session: text without broken characters, JSON that can be stored, sound calls."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# What providers answer is any JSON: its types are looked at, not declared.
from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

from perdure.agent.models import Delta, ToolCall

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
    if isinstance(value, dict):
        if depth > MAX_DEPTH:
            raise Unfit("something nested too deep")
        return {tidied(k): tidied(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        if depth > MAX_DEPTH:
            raise Unfit("something nested too deep")
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
