"""The window: which messages of a session a model is sent. Computed; the history itself stays whole.

Where it begins is part of the durable state and moves only when the window is cut, so that between two cuts every
request extends the one before it and a provider's prompt cache stays warm. What is cut off is summarised by a
compactor; what it asks a model for is a pure function of the old summary and some messages, as the window is.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from perdure.agent.models import Request, text_of
from perdure.errors import InvalidInput
from perdure.session.tools.declaration import must_be_awaited
from perdure.state.document import plain
from perdure.system.options import check_fits, is_number, options_checked

Counter = Callable[[Any], int]
"""Counts the tokens of a message, or of any other JSON value."""

BYTES_PER_TOKEN = 4
PER_MESSAGE = 4
"""What a provider adds around every message."""
ATTACHMENT = " " * (1000 * BYTES_PER_TOKEN)
"""Stands for an image or a file: what these cost has little to do with their size."""
MARGIN = 1.05
"""Guesses are held to be too small by so much."""
LEAST, MOST = 0.2, 5.0
"""A provider that counts further away from the guess than this is not believed."""
NOTICEABLE = 0.02
"""A correction that moves less than this is not worth writing down."""


def estimate(value: Any) -> int:
    """About as many tokens as a provider would count: four bytes of JSON each.

    >>> estimate({"role": "user", "content": "Where is my order?"})
    16
    """
    text = json.dumps(value, ensure_ascii=False, default=lambda _: ATTACHMENT)
    return len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN + PER_MESSAGE


def count_request(request: Request, count: Counter) -> int:
    """What a request has by that counter, its tools included."""
    return sum(count(m) for m in request.messages) + (count(request.tools) if request.tools else 0)


def corrected(scale: float, counted: int, reported: int) -> float:
    """Tokens of the provider per counted one, after an answer; the old figure where nothing is learnt.

    >>> corrected(1.0, 100, 150), corrected(1.0, 100, 101), corrected(1.0, 100, 0)
    (1.5, 1.0, 1.0)
    """
    if reported <= 0 or counted <= 0:
        return scale
    seen = round(min(max(reported / counted, LEAST), MOST), 3)
    return scale if abs(seen - scale) <= NOTICEABLE * scale else seen


PINNED = "pinned"
"""The field of a message that is the window's own: no provider sees it."""
STANDING = ("system", "developer")
"""Roles whose messages stay in the window whatever is cut."""
KEEP_RECENT = 8
LOW_WATER = 0.5
"""The part of the budget to which a cut goes, unless told otherwise."""


class Window:
    """How much of a conversation a model is sent.

    ``max_tokens`` is the budget of a request, its tools and instructions included (None: unknown, so that only a
    refusal by the model cuts). Once it is reached the window is cut to ``low_water`` tokens, not below the
    ``keep_recent`` newest messages unless the budget demands it. System messages, those with ``"pinned": True``, those
    that ``pinned(message)`` says yes to, and the newest user message stay. ``count`` counts the tokens of a message.
    ``recall`` offers the model a tool that searches what is no longer shown.

    >>> Window(max_tokens=8000).low_water
    4000
    """

    @options_checked("Window")
    def __init__(
        self,
        max_tokens: int | None = None,
        *,
        low_water: int | None = None,
        keep_recent: int = KEEP_RECENT,
        pinned: Callable[[dict[str, Any]], bool] | None = None,
        count: Counter = estimate,
        recall: bool = True,
    ) -> None:
        if max_tokens is not None and not (is_number(max_tokens) and max_tokens >= 1):
            raise InvalidInput(f"a window has a budget of at least one token, not {max_tokens!r:.40}")
        if low_water is not None and (max_tokens is None or not is_number(low_water) or not 0 < low_water < max_tokens):
            raise InvalidInput(f"low_water lies between 0 and max_tokens ({max_tokens}), not at {low_water!r:.40}")
        if not (is_number(keep_recent) and keep_recent >= 1):
            raise InvalidInput(f"keep_recent is at least 1, not {keep_recent!r:.40}: the model must be shown something")
        for option, fn, of in (("pinned", pinned, "says whether a message stays"), ("count", count, "counts tokens")):
            fits = (fn is None and option == "pinned") or (callable(fn) and not must_be_awaited(fn))
            check_fits("a Window", option, fn, fits, f"a plain function that {of}")
        offered: Any = recall
        check_fits("a Window", "recall", offered, isinstance(offered, bool), "True or False")
        self.max_tokens = max_tokens
        self._low_water = low_water
        self.keep_recent = keep_recent
        self.pinned = pinned
        self.count = count
        self.recall = recall

    @property
    def low_water(self) -> int | None:
        """To how many tokens a full window is cut."""
        return self.low_of(self.max_tokens) if self.max_tokens is not None else None

    def low_of(self, limit: int) -> int:
        """To how many tokens a window with that limit is cut."""
        low = int(limit * LOW_WATER)
        if self._low_water is None:
            return low
        return self._low_water if limit == self.max_tokens else min(low, self._low_water)

    def stays(self, message: dict[str, Any]) -> bool:
        """Whether a message is shown for ever."""
        return bool(
            message.get(PINNED) is True
            or message.get("role") in STANDING
            or (self.pinned is not None and self.pinned(message))
        )

    def as_json(self) -> dict[str, Any]:
        """What a session records of it; None for what only the program can know."""
        return {
            "max_tokens": self.max_tokens,
            "low_water": self._low_water,
            "keep_recent": self.keep_recent,
            "recall": self.recall,
            "own": self.count is not estimate or self.pinned is not None,
        }


class Cut(NamedTuple):
    """Where a window is to begin, and which earlier messages stay in it."""

    start: int
    kept: list[int]


class Room(NamedTuple):
    """How much a cut window may hold, as our counter counts."""

    low: int
    """What a cut aims at."""
    most: int
    """What it may not exceed if that can be had at all."""
    fixed: int
    """What is sent besides messages of the conversation."""


def system_text(instructions: str, context: dict[str, Any] | None, summary: str, hidden: int, recall: bool) -> str:
    """The system prompt: instructions, what is true for this run, and what happened before the window."""
    parts = [instructions] if instructions else []
    if context:
        parts.append(f"Context:\n{json.dumps(context, ensure_ascii=False, sort_keys=True)}")
    if hidden:
        how = "; search them with recall" if recall else ""
        parts.append(f"{hidden} earlier messages are no longer shown{how}. What happened in them:\n{summary or '-'}")
    return "\n\n".join(parts).strip()


def sendable(message: dict[str, Any]) -> dict[str, Any]:
    """A message without the field that is the window's own."""
    return {k: v for k, v in message.items() if k != PINNED} if PINNED in message else message


def units(messages: Sequence[dict[str, Any]], start: int = 0) -> list[range]:
    """The pieces between which a conversation may be cut: calls and their results belong together.

    >>> called = {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]}
    >>> said = [{"role": "user"}, called, {"role": "tool", "tool_call_id": "a"}, {"role": "tool", "tool_call_id": "b"}]
    >>> units(said)
    [range(0, 1), range(1, 4)]
    """
    found: list[range] = []
    at = start
    while at < len(messages):
        end = _end_of_unit(messages, at)
        found.append(range(at, end))
        at = end
    return found


def _end_of_unit(messages: Sequence[dict[str, Any]], at: int) -> int:
    """One past the last result of the calls that a message makes; results of no call stay with what is before them."""
    waited = {c.get("id") for c in messages[at].get("tool_calls") or ()}
    end = at + 1
    i = end
    while i < len(messages) and (waited or messages[i].get("role") == "tool"):
        message = messages[i]
        if message.get("role") == "tool":
            waited.discard(message.get("tool_call_id"))
            end = i + 1
        elif message.get("role") == "assistant":
            break
        i += 1
    return end


def cut(messages: Sequence[dict[str, Any]], window: Window, now: Cut, room: Room, *, scheduled: bool = False) -> Cut:
    """Where the window is to begin so that it has room again; ``now`` when nothing can be cut.

    ``scheduled`` cuts to the newest messages however much room there is.
    """
    pieces = units(messages, now.start)
    if len(pieces) < 2:
        return now
    costs = {i: window.count(sendable(messages[i])) for i in (*now.kept, *range(now.start, len(messages)))}
    tails = [0] * (len(pieces) + 1)
    for n in range(len(pieces) - 1, -1, -1):
        tails[n] = tails[n + 1] + sum(costs[i] for i in pieces[n])
    # The newest piece is always shown, and so are the newest messages if that can be had.
    recent = len(messages) - window.keep_recent
    soft = max((n for n, piece in enumerate(pieces) if piece.start <= recent), default=0)
    best = now
    for with_user in (True, False):
        user = _last_of_user(messages, costs) if with_user else None

        def kept(n: int, user: int | None = user) -> list[int]:
            return _kept(messages, window, now.kept, pieces[:n], user)

        def size(n: int, kept: Callable[[int], list[int]] = kept) -> int:
            return room.fixed + sum(costs[i] for i in kept(n)) + tails[n]

        first = soft if scheduled else next((n for n in range(soft + 1) if size(n) <= room.low), soft)
        while first < len(pieces) - 1 and size(first) > room.most:
            first += 1
        best = Cut(pieces[first].start, kept(first)) if first else now
        if size(first) <= room.most:
            break
    return best


def _last_of_user(messages: Sequence[dict[str, Any]], among: dict[int, int]) -> int | None:
    """What the user asked for last: a model must be shown it, and some refuse a conversation without any."""
    return max((i for i in among if messages[i].get("role") == "user"), default=None)


def _kept(
    messages: Sequence[dict[str, Any]], window: Window, before: list[int], gone: list[range], user: int | None
) -> list[int]:
    """Which messages before the cut stay: pinned ones with all of their piece, and the user's last."""
    # One that was kept as the user's last word gives way once there is a newer one.
    kept = {i for i in before if messages[i].get("role") != "user" or window.stays(messages[i])}
    for piece in gone:
        if any(window.stays(messages[i]) for i in piece):
            kept.update(piece)
    if user is not None and (user in before or any(user in piece for piece in gone)):
        kept.add(user)
    return sorted(kept)


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
