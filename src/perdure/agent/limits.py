"""What one run may use: turns, tokens and money over all its attempts, and a deadline for this one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from perdure.agent import run_result as ended
from perdure.agent.run_result import Spent
from perdure.errors import InvalidInput
from perdure.system.wording import count

if TYPE_CHECKING:
    from perdure.protocols import Clock


class Over(Exception):
    """A run must end while something is waited for that is none of its rounds."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def check_limits(
    *, max_turns: object = None, max_tokens: object = None, max_cost: object = None, deadline: object = None
) -> None:
    """Refuse a limit that nothing can be compared with; None is none.

    >>> check_limits(max_turns=5, max_cost=0.5, deadline=600)
    >>> check_limits(max_turns="5")
    Traceback (most recent call last):
    perdure.errors.InvalidInput: max_turns is a number of answers of the model, such as max_turns=20, not '5'
    """
    for name, value, what in (
        ("max_turns", max_turns, "a number of answers of the model, such as max_turns=20"),
        ("max_tokens", max_tokens, "a number of tokens, such as max_tokens=100_000"),
    ):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise InvalidInput(f"{name} is {what}, not {value!r:.40}")
    for name, value, what in (
        ("max_cost", max_cost, "an amount of money, such as max_cost=0.5"),
        ("deadline", deadline, "a number of seconds from now, such as deadline=600"),
    ):
        if value is not None and (
            not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value)
        ):
            raise InvalidInput(f"{name} is {what}, not {value!r:.40}")


class Limits:
    """What one run may use."""

    def __init__(
        self,
        clock: Clock,
        *,
        max_turns: int = 50,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        deadline: float | None = None,
    ) -> None:
        check_limits(max_turns=max_turns, max_tokens=max_tokens, max_cost=max_cost, deadline=deadline)
        self.clock = clock
        self.max_turns = max_turns
        self.max_tokens = max_tokens
        self.max_cost = max_cost
        self._until = None if deadline is None else clock.monotonic() + int(deadline * 1000)
        self.turns = 0
        self.spent = Spent()
        """What the run had used when it was last looked at: a run that has ended keeps no books."""

    def reached(self, run: Any) -> tuple[str, str] | None:
        """Which limit the run has reached, and what to do; None while it may go on."""
        self.note(run)
        spent = self.spent
        if self.turns >= self.max_turns:
            taken = f"{count(self.turns, 'turn')} {'was' if self.turns == 1 else 'were'} taken"
            return ended.MAX_TURNS, f"{taken}: raise max_turns, or give a new message"
        if self.max_tokens is not None and spent.input + spent.output >= self.max_tokens:
            return ended.BUDGET, f"{spent.input + spent.output} tokens were used, {self.max_tokens} are allowed"
        if self.max_cost is not None and spent.cost >= self.max_cost:
            return ended.BUDGET, f"{spent.cost:.4f} was spent, {self.max_cost} is allowed"
        if self.late():
            return ended.DEADLINE, "the deadline has passed: run again to go on"
        return None

    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self._until is not None and self.clock.monotonic() >= self._until

    def wait_at_most(self, seconds: float) -> float:
        """So many seconds, or fewer when the deadline comes first."""
        if self._until is None:
            return seconds
        return max(0.0, min(seconds, (self._until - self.clock.monotonic()) / 1000))

    def note(self, run: Any) -> None:
        """Remember what a run has used."""
        if run is not None:
            self.turns, self.spent = run["turns"], Spent(*run["spent"])
