"""How many tokens something has, guessed before anybody is asked, and corrected by what the provider counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.agent.models import Request

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
