"""The tool with which a model looks into messages that its window no longer shows."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from perdure.agent.context.summary_request import with_calls
from perdure.agent.tool_schema import own_spec
from perdure.session.tools import Tool
from perdure.state.document import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.agent.tool_schema import ToolSpec

NAME = "recall"
MOST = 20
"""Messages that one search gives at most."""
LONGEST = 2000
"""Characters of a message that are given."""


def recall_spec(hidden: Callable[[], tuple[Any, range, list[int]]]) -> ToolSpec:
    """The tool, over what ``hidden`` gives: all messages, which of them are not shown, and which of these are."""

    async def recall(query: str, limit: int = 5) -> list[dict[str, Any]]:
        """Search earlier messages of this conversation that are no longer shown, by words.

        Args:
            query: words that the messages contain
            limit: how many messages to give at most
        """
        messages, span, kept = hidden()
        return search(messages, [i for i in span if i not in kept], query, min(max(limit, 1), MOST))

    return own_spec(Tool(recall, name=NAME, read=True))


def search(messages: Any, among: list[int], query: str, limit: int) -> list[dict[str, Any]]:
    """The messages with most of the words, in the order in which they were said.

    >>> said = [{"role": "user", "content": "red bike"}, {"role": "user", "content": "a red car, very red"}]
    >>> search(said, [0, 1], "the red car", 1)
    [{'message': 1, 'role': 'user', 'text': 'a red car, very red'}]
    """
    wanted = _words(query)
    found: list[tuple[int, int, str]] = []
    for i in among:
        text = with_calls(plain(messages[i])).strip()
        if hits := len(wanted & _words(text)):
            found.append((hits, i, text))
    best = sorted(found, reverse=True)[:limit]
    return [
        {"message": i, "role": messages[i].get("role"), "text": text[:LONGEST]}
        for _, i, text in sorted(best, key=lambda f: f[1])
    ]


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))
