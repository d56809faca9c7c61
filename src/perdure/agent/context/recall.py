"""Tools with which a model reads what it is not shown: earlier messages, and the rest of a large result.

The state keeps a large result as a whole, under the id of its effect, and the model is shown a digest of it. What a
result is to a model is text: text as it is, anything else as JSON.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

from perdure.agent.context.window import with_calls
from perdure.agent.tool_schema import own_spec
from perdure.errors import InvalidInput
from perdure.session.tools.declaration import Tool
from perdure.state.document import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.agent.tool_schema import ToolSpec
    from perdure.session.handle import SessionHandle

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


LARGE_OVER = 16 * 1024
"""Characters of a result from which on a model is shown a digest of it."""
HEAD, TAIL = 3000, 1000
"""Characters of its beginning and of its end that a digest shows."""
PIECE = 8000
"""Characters that one reading gives at most."""
FOUND, AROUND = 10, 150
"""How many places a search gives at most, and the characters on each side of one."""
RESULTS = "results"
"""Where the state keeps them."""
READER = "read_result"


def as_text(result: Any) -> str:
    """What a model reads of a result: text as it is, anything else as JSON.

    >>> as_text("a"), as_text({"a": [1, None]}), as_text(b"ab")
    ('a', '{"a": [1, null]}', '{"$bytes": "YWI="}')
    """
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=_bytes)


def _bytes(value: Any) -> Any:
    """Bytes have no JSON form of their own."""
    return {"$bytes": base64.b64encode(value).decode("ascii")}


def kind_of(result: Any) -> str:
    """What a result is, in a word or two.

    >>> kind_of([1, 2]), kind_of({"b": 1, "a": 2}), kind_of("text")
    ('list of 2', 'object with the keys b, a', 'text')
    """
    if isinstance(result, list):
        return f"list of {len(result)}"  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(result, dict):
        keys = ", ".join(str(k) for k in result)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return f"object with the keys {keys:.200}"
    return "binary data" if isinstance(result, bytes) else "text"


def shown(s: SessionHandle, effect: str, result: Any, over: int = LARGE_OVER) -> str:
    """What the model is told of a result; a large one goes into the state as a whole, to be read on from there."""
    text = as_text(result)
    if len(text) <= over:
        return text
    kept = s.state.setdefault(RESULTS, {})
    kept[effect] = text
    digest = {
        "large_result": effect,
        "kind": kind_of(result),
        "characters": len(text),
        "begins": text[:HEAD],
        "ends": text[-TAIL:],
        "more": f"{READER}(ref={effect!r}, offset=..., limit=...) reads on, {READER}(ref=..., search=...) finds words",
    }
    return json.dumps(digest, ensure_ascii=False)


def reader(s: SessionHandle) -> ToolSpec:
    """The tool that reads on, bound to a session."""

    def read_result(ref: str, offset: int = 0, limit: int = PIECE, search: str = "") -> dict[str, Any]:
        """Read more of a large result, or find words in it.

        Args:
            ref: the large_result to read
            offset: from which character on
            limit: how many characters, 8000 at most
            search: words to find instead; gives the places where they stand
        """
        text = s.state.get(RESULTS, {}).get(ref)
        if text is None:
            known = ", ".join(sorted(s.state.get(RESULTS, {}))) or "none"
            raise InvalidInput(f"there is no large result {ref!r:.60}: there are {known:.400}")
        return _found(text, search) if search else _piece(text, offset, limit)

    return own_spec(Tool(read_result, read=True))


def _piece(text: str, offset: int, limit: int) -> dict[str, Any]:
    """Characters of a text, and where they go on."""
    begin = min(max(offset, 0), len(text))
    end = min(begin + min(max(limit, 1), PIECE), len(text))
    next_offset = end if end < len(text) else None
    return {"offset": begin, "characters": len(text), "text": text[begin:end], "next_offset": next_offset}


def _found(text: str, search: str) -> dict[str, Any]:
    """The first places where words stand, in any case of letters, each with what is around it."""
    places: list[dict[str, Any]] = []
    total = 0
    for match in re.finditer(re.escape(search), text, re.IGNORECASE):
        total += 1
        if len(places) < FOUND:
            begin = max(match.start() - AROUND, 0)
            places.append({"offset": match.start(), "text": text[begin : match.end() + AROUND]})
    return {"search": search[:200], "found": total, "places": places}
