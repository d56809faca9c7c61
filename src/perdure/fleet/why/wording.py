"""Words that all sentences of ``why`` share: how they end, and times and errors in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.system import times
from perdure.system.wording import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping


def full_stop(text: str) -> str:
    """What is told in one line, as a whole sentence."""
    text = one_line(text, 300)
    return text if text.endswith((".", "…", "!", "?")) else f"{text}."


def gap_of(ms: int) -> str:
    """A span of time that has passed."""
    return times.gap(ms) or "a moment"


def ahead_of(ms: int) -> str:
    """A span of time that is to come."""
    return times.ahead(ms) or "a moment"


def messages_wait(number: int) -> str:
    """How many messages wait."""
    return "1 message waits" if number == 1 else f"{number} messages wait"


def error_in(x: Mapping[str, Any]) -> str:
    """The error that a checkpoint tells of, in one line."""
    return one_line(": ".join(str(x[k]) for k in ("error", "note") if x.get(k)), 200)
