"""What was said, as spans tell it when that is opted in: JSON in the form that OpenTelemetry describes."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

import json
from typing import Any

MOST = 32_768
"""Characters of one attribute: collectors refuse spans that are too large."""


def as_text(value: Any) -> str:
    """Any value as JSON text; what is not JSON is named by its type.

    >>> as_text({"amount": 5, "proof": b"..."})
    '{"amount": 5, "proof": "(bytes)"}'
    """
    text = json.dumps(value, ensure_ascii=False, default=lambda v: f"({type(v).__name__})")
    return text if len(text) <= MOST else text[: MOST - 1] + "…"


def messages_as_text(messages: list[dict[str, Any]]) -> str:
    """Messages as roles and parts.

    >>> messages_as_text([{"role": "user", "content": "Hi"}])
    '[{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]'
    """
    return as_text([{"role": m.get("role", ""), "parts": _parts(m)} for m in messages])


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    if message.get("role") == "tool":
        return [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}]
    parts: list[dict[str, Any]] = []
    if isinstance(content, str) and content:
        parts.append({"type": "text", "content": content})
    for part in content if isinstance(content, list) else ():
        told = isinstance(part, dict) and isinstance(part.get("text"), str)
        # Pictures and sounds are named, not repeated.
        parts.append({"type": "text", "content": part["text"]} if told else {"type": "blob"})
    for call in message.get("tool_calls") or ():
        asked = call.get("function", {})
        parts.append(
            {"type": "tool_call", "id": call.get("id"), "name": asked.get("name"), "arguments": asked.get("arguments")}
        )
    return parts
