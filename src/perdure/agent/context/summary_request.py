"""What a compactor asks a model: a pure function of the old summary and some messages."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.agent.context.window import BYTES_PER_TOKEN, estimate
from perdure.agent.models import Request, text_of
from perdure.state.document import plain


class Plain(Sequence[dict[str, Any]]):
    """Messages of a session as ordinary ones, each copied when it is first looked at."""

    def __init__(self, held: Any) -> None:
        self._held = held
        self._seen: dict[int, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __getitem__(self, i: Any) -> Any:
        if i not in self._seen:
            self._seen[i] = plain(self._held[i])
        return self._seen[i]


def piece_of(messages: Sequence[dict[str, Any]], start: int, end: int, piece: int) -> int:
    """Up to which message one request can tell of them; at least one."""
    upto, size = start, 0
    while upto < end:
        size += estimate(rendered(upto, messages[upto], piece))
        if upto > start and size > piece:
            break
        upto += 1
    return upto


def summary_request(
    compactor: dict[str, Any], model: str, summary: str, messages: Sequence[dict[str, Any]], part: tuple[int, int, int]
) -> Request:
    """The request for new notes from the old ones and some messages: a pure function, as that of a turn."""
    start, upto, piece = part
    said = "\n\n".join(rendered(i, messages[i], piece) for i in range(start, upto))
    words = max(20, compactor["max_tokens"] * 2 // 3)
    system = f"{compactor['instructions']}\n\nAt most {words} words."
    user = f"The old notes:\n{summary or '(none)'}\n\nThe messages:\n\n{said}"
    asked = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return Request(model, asked, [], {})


def rendered(i: int, message: dict[str, Any], piece: int) -> str:
    """A message as the compactor reads it; a long one without its middle."""
    text = with_calls(message, "-> ")
    most = piece * BYTES_PER_TOKEN // 2
    if len(text) > most:
        text = f"{text[: most // 2]} [...] {text[-most // 2 :]}"
    return f"[{i}] {message.get('role')}: {text}"


def with_calls(message: dict[str, Any], mark: str = "") -> str:
    """What a message says, and the calls that it makes, each on a line of its own after a mark."""
    text = text_of(message)
    for call in message.get("tool_calls") or ():
        asked = call.get("function") or {}
        text += f"\n{mark}{asked.get('name')}({asked.get('arguments')})"
    return text


def shortened(text: str, most: int) -> str:
    """A summary that got too long, cut at its end."""
    size = most * BYTES_PER_TOKEN
    return text if len(text.encode()) <= size else text.encode()[: size - 4].decode("utf-8", "ignore") + "..."
