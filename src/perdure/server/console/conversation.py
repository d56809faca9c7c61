"""A conversation as people read one: who said what, which tools were called, and what came of it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Messages are any JSON, written by anybody: their types are looked at, not declared.
from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.server.console.rendering import as_json
from perdure.state.document import plain
from perdure.system.wording import brief, size

if TYPE_CHECKING:
    from collections.abc import Sequence

SHOWN = 30
"""Messages that are shown at once."""
ROLES = {"user": "User", "assistant": "Agent", "system": "System", "tool": "Tool"}


class Call(NamedTuple):
    """A tool that the model wants called."""

    name: str
    args: str
    id: str


class Said(NamedTuple):
    """One message."""

    number: int
    role: str
    """user, assistant, tool, system or other"""
    who: str
    text: str
    calls: tuple[Call, ...]
    error: bool
    fresh: bool
    """Whether the step that is shown has added it."""


class Conversation(NamedTuple):
    """A part of a conversation."""

    said: list[Said]
    first: int
    """The number of the first message shown."""
    total: int


def conversation_of(messages: Sequence[Any], added: int, until: int | None = None) -> Conversation:
    """The end of a conversation, or what comes before message ``until``."""
    total = len(messages)
    end = total if until is None else max(0, min(until, total))
    first = max(0, end - SHOWN)
    names: dict[str, str] = {}
    said: list[Said] = []
    for i in range(first, end):
        one = said_of(plain(messages[i]), i, names)
        said.append(one._replace(fresh=i >= total - added and until is None))
    return Conversation(said, first, total)


def said_of(message: Any, index: int = 0, names: dict[str, str] | None = None) -> Said:
    """One message, whatever it looks like."""
    names = names if names is not None else {}
    if not isinstance(message, dict):
        return Said(index, "other", "?", brief(message, 4000), (), False, False)
    role = str(message.get("role", "?"))
    calls = tuple(_calls(message.get("tool_calls")))
    names.update((c.id, c.name) for c in calls)
    text = text_of_content(message.get("content"))
    who, error = ROLES.get(role, role[:40]), False
    if role == "tool":
        who = names.get(str(message.get("tool_call_id", "")), "Tool")
        text, error = _result(text)
    return Said(index, role if role in ROLES else "other", who, text, calls, error, False)


def text_of_content(content: Any) -> str:
    """What a message says; parts that are no text are named."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        return "\n".join(_part(p) for p in content[:50])
    return as_json(content, 20_000)


def _part(part: Any) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return part["text"]
    if isinstance(part, dict) and isinstance(part.get("type"), str):
        data = next((v for v in part.values() if isinstance(v, bytes)), None)
        return f"[{part['type'][:60]}{', ' + size(len(data)) if data is not None else ''}]"
    return brief(part, 2000)


def _calls(calls: Any) -> list[Call]:
    found: list[Call] = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            found.append(
                Call(str(function.get("name", "?")), _pretty(function.get("arguments")), str(call.get("id", "")))
            )
    return found


def _pretty(arguments: Any) -> str:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return arguments
    if isinstance(arguments, dict):
        return ", ".join(f"{k}={brief(v, 300)}" for k, v in arguments.items())
    return brief(arguments, 1000)


def _result(text: str) -> tuple[str, bool]:
    """A tool's result, readable; and whether it is an error."""
    try:
        value = json.loads(text) if len(text) < 20_000 else None
    except ValueError:
        return text, False
    if isinstance(value, dict) and list(value) == ["error"]:
        return str(value["error"]), True
    return (as_json(value, 20_000), False) if isinstance(value, dict | list) else (text, False)
