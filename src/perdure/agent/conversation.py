"""What is a message of a conversation: what may be said to an agent, and what cannot be sent to any model."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

import json
from typing import Any

from perdure.agent.models.parts import unpacked
from perdure.errors import InvalidInput
from perdure.system.wording import brief

USER = "user"
ROLES = (USER, "assistant", "system", "developer", "tool")
FORMS = (
    'a message is text, a dict such as {"role": "user", "content": "..."}, or a list of parts such as perdure.text(...)'
)


def check_message(message: Any) -> None:
    """Refuse what is no message before it is written anywhere.

    >>> check_message("Hello."), check_message({"role": "user", "content": [{"type": "text", "text": "Hello."}]})
    (None, None)
    >>> check_message({"role": "usr", "content": "Hello."})
    Traceback (most recent call last):
    perdure.errors.InvalidInput: nothing was said: the role of a message is one of user, assistant, system, developer, \
tool, not "usr"
    """
    said = {"role": USER, "content": message} if isinstance(message, str | list) else message
    if isinstance(said, dict):
        said = {"role": USER, **said}
    wrong = misfit(said)
    if not wrong and not said.get("tool_calls"):
        content = said.get("content")
        wrong = "the message is empty" if not content or (isinstance(content, str) and not content.strip()) else ""
    if wrong:
        raise InvalidInput(f"nothing was said: {wrong}")


def misfit(message: Any) -> str:
    """Why a model cannot be sent this as a message; "" when it can."""
    if not isinstance(message, dict):
        return f"{FORMS}, not {brief(message, 60)}"
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        return f"the role of a message is one of {', '.join(ROLES)}, not {brief(role, 40)}"
    if content is None and ("content" in message or role == "assistant"):
        # An answer that only calls tools says nothing.
        return "" if role == "assistant" else "the content of a message is text or a list of parts, not null"
    if isinstance(content, str):
        return ""
    if not isinstance(content, list):
        return f"{FORMS}, not {brief(message, 60)}"
    odd = next((part for part in content if not isinstance(part, dict) or not isinstance(part.get("type"), str)), None)
    if odd is None:
        return ""
    return f'a part of a message is a dict with a type, such as {{"type": "text", "text": "..."}}, not {brief(odd, 60)}'


def is_answer(message: Any) -> bool:
    """Whether an agent said it, in a list that may hold anything."""
    return isinstance(message, dict) and message.get("role") == "assistant"


def as_message(body: Any) -> dict[str, Any]:
    """What was posted as a message of the conversation: text is said by the user, and so is any other JSON, as text."""
    body = unpacked(body)
    said = {"role": USER, **body} if isinstance(body, dict) else {"role": USER, "content": body}
    if not misfit(said):
        return said
    return {
        "role": USER,
        "content": body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, default=str),
    }
