"""When an agent's work becomes durable: what may be lost with a process, and asked for again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.protocols import Clock
    from perdure.session.journal import Journal

STEP, ANSWER = "step", "answer"
"""After every call, too; or reads only together with the next answer."""
MOST = 100
"""Answers that may wait at most: they go into the store as one batch."""


@dataclass(frozen=True)
class Every:
    """Checkpoints by every so many ``answers``, and at least every so many ``seconds``: with what lies between, a kill
    costs at most that much.

    Only what can be asked for again without harm waits: answers that call nothing but reads that are not paid for, and
    the outcomes of those. The answer to a message, one that calls anything else, and the last one of a run are durable
    at once, as are effects.

    >>> Every(5)
    Every(answers=5, seconds=30.0)
    """

    answers: int
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if type(self.answers) is not int or not 1 <= self.answers <= MOST:
            raise InvalidInput(f"Every(answers) is a number of answers from 1 to {MOST}, not {self.answers!r:.40}")
        if type(self.seconds) not in (int, float) or not self.seconds > 0:
            raise InvalidInput(f"Every(seconds=) is a time in seconds, more than 0, not {self.seconds!r:.40}")


Policy = str | Every


def check_policy(policy: Policy) -> Policy:
    """One of the policies there are."""
    if policy not in (STEP, ANSWER) and not isinstance(policy, Every):
        raise InvalidInput(
            f"checkpoints is one of {STEP}, {ANSWER}, or perdure.Every(answers, seconds=...), not {policy!r:.40}"
        )
    return policy


class Waiting:
    """Which answers of a run may wait to become durable, and for how long those that do still may."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._since = 0

    def may_wait(self, policy: Policy, all_free: Callable[[], bool]) -> bool:
        """Whether an answer may wait for those after it: nothing is lost with it that cannot be asked for again.

        Of one that takes messages, begins a session, or calls what is not ``all_free``, something would be.
        """
        if not isinstance(policy, Every) or self._journal.takes or self._journal.point is None:
            return False
        return len(self._journal.held) + 1 < policy.answers and self.seconds_left(policy) > 0 and all_free()

    def begin(self) -> None:
        """An answer is about to be held: the time runs from the first of them."""
        if not self._journal.held:
            self._since = self._clock.monotonic()

    def seconds_left(self, policy: Policy) -> float:
        """For how long what is held may still wait, or might if it were held now; for ever without a limit."""
        if not isinstance(policy, Every):
            return math.inf
        if not self._journal.held:
            return policy.seconds
        return policy.seconds - (self._clock.monotonic() - self._since) / 1000
