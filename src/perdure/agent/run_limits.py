"""When a run must stop: turns, tokens, money, time. Counted over all its attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.agent import run_result as ended
from perdure.agent.run_result import Spent

if TYPE_CHECKING:
    from perdure.protocols import Clock


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
        self._clock = clock
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
            return ended.MAX_TURNS, f"{self.turns} turns were taken: raise max_turns, or give a new message"
        if self.max_tokens is not None and spent.input + spent.output >= self.max_tokens:
            return ended.BUDGET, f"{spent.input + spent.output} tokens were used, {self.max_tokens} are allowed"
        if self.max_cost is not None and spent.cost >= self.max_cost:
            return ended.BUDGET, f"{spent.cost:.4f} was spent, {self.max_cost} is allowed"
        if self.late():
            return ended.DEADLINE, "the deadline has passed: run again to go on"
        return None

    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self._until is not None and self._clock.monotonic() >= self._until

    def wait_at_most(self, seconds: float) -> float:
        """So many seconds, or fewer when the deadline comes first."""
        if self._until is None:
            return seconds
        return max(0.0, min(seconds, (self._until - self._clock.monotonic()) / 1000))

    def note(self, run: Any) -> None:
        """Remember what a run has used."""
        if run is not None:
            self.turns, self.spent = run["turns"], Spent(*run["spent"])
