"""A model that checks every request as a strict provider would, and counts in its own way."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from perdure.agent.models import Answer, Request, ToolCall, Usage
from perdure.errors import ContextTooLong

if TYPE_CHECKING:
    from collections.abc import Callable


def tokens(request: Request) -> int:
    """Tokens as this provider counts them: not at all as we guess."""
    return sum(1 + len(json.dumps(m, ensure_ascii=False)) // 3 for m in [*request.messages, *request.tools])


def orphans(messages: list[dict[str, Any]]) -> list[str]:
    """What is wrong with calls and results in a conversation, as a provider would complain."""
    wrong: list[str] = []
    waited: dict[str, int] = {}
    for i, m in enumerate(messages):
        if m["role"] == "tool":
            if waited.pop(m["tool_call_id"], None) is None:
                wrong.append(f"message {i} answers no call")
            continue
        wrong.extend(f"call {id} of message {at} has no result" for id, at in waited.items())
        waited = {c["id"]: i for c in m.get("tool_calls") or ()}
    wrong.extend(f"call {id} of message {at} has no result" for id, at in waited.items())
    return wrong


def extends(before: Request, after: Request) -> bool:
    """Whether a prompt cache that has seen one request helps with the next."""
    same = before.messages == after.messages[: len(before.messages)]
    return same and (before.model, before.tools, before.params) == (after.model, after.tools, after.params)


class CheckingModel:
    """Answers by a script, after having looked at the request; keeps all it saw."""

    def __init__(
        self, script: Callable[[int, Request], Any], *, limit: int | None = None, name: str = "checking"
    ) -> None:
        self.name = name
        self.limit = limit
        """More tokens than this are refused, as a provider refuses them."""
        self.seen: list[Request] = []
        self.refused = 0
        self.summaries: list[Request] = []
        self.problems: list[str] = []
        self._script = script

    async def answer(self, request: Request, on_delta: Any = None) -> Answer:
        size = tokens(request)
        if self.limit is not None and size > self.limit:
            self.refused += 1
            raise ContextTooLong(f"{size} tokens are more than {self.limit}")
        if is_summary(request):
            self.summaries.append(request)
            # The same notes from the same request, however often it is asked.
            read = request.messages[1]["content"]
            before = re.search(r"notes number (\d+)", read)
            text = f"notes number {int(before[1]) + 1 if before else 1}, made of {len(read)} characters"
            return Answer({"role": "assistant", "content": text}, usage=Usage(size, 20), model=self.name + "-1")
        self.problems += [f"request {len(self.seen)}: {what}" for what in orphans(request.messages)]
        self.seen.append(request)
        said = self._script(len(self.seen), request)
        calls: list[tuple[str, dict[str, Any]]] = [] if isinstance(said, str) else said
        message: dict[str, Any] = {"role": "assistant", "content": said if isinstance(said, str) else None}
        asked = tuple(ToolCall(f"c{len(self.seen)}-{i}", n, json.dumps(a)) for i, (n, a) in enumerate(calls))
        if asked:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in asked
            ]
        return Answer(message, asked, "tool_calls" if asked else "stop", Usage(size, 10), self.name + "-1")

    async def close(self) -> None:
        pass


def is_summary(request: Request) -> bool:
    """Whether it is the compactor who asks."""
    return request.messages[0]["content"].startswith("You keep the notes")
