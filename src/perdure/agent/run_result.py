"""What a run of an agent ended with. Kept apart from where the session stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from perdure.history.expiry import Origin
    from perdure.session.approvals import Approval

DONE = "done"
WAITING_APPROVAL = "waiting_approval"
WAITING_RESULT = "waiting_result"
SLEEPING = "sleeping"
IN_DOUBT = "in_doubt"
MAX_TURNS = "max_turns"
BUDGET = "budget"
DEADLINE = "deadline"
CANCELLED = "cancelled"
INCOMPATIBLE = "incompatible"
FAILED = "failed"
STOPPED = "stopped"
"""Put down between two steps because its process is to end; another one goes on."""


class Doubt(NamedTuple):
    """An effect that was started and nobody knows whether it happened, as a person must be asked about it."""

    effect: str
    tool: str
    args: dict[str, Any]
    attempt: int
    question: str


class Child(NamedTuple):
    """An agent that works for another one in a session of its own."""

    effect: str
    """The call of the parent that waits for it."""
    tool: str
    session: str
    status: str
    """Where its session stands."""


class Spent(NamedTuple):
    """Tokens and money."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cost: float = 0.0
    """In the currency of the price table; 0 when the model's price is not known."""

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(
            self.input + other.input, self.output + other.output, self.cached + other.cached, self.cost + other.cost
        )


class RunResult(NamedTuple):
    """How a run ended, and what to do next."""

    status: str
    session: str
    text: str = ""
    """The last thing the agent said."""
    output: Any = None
    """The structured output, when one was asked for."""
    step: int = 0
    turns: int = 0
    spent: Spent = Spent()
    """By this run, over all its attempts."""
    approvals: tuple[Approval, ...] = ()
    in_doubt: tuple[Doubt, ...] = ()
    reason: str = ""
    """Why it ended as it did, in words, where that is not plain."""
    origin: Origin | None = None
    """Whether the session was created, resumed or restarted, and why."""
    notes: tuple[str, ...] = ()
    total: Spent = Spent()
    """By the whole session, over all its runs."""
    until: int | None = None
    """When the session is to be woken next, in ms since 1970."""
    children: tuple[Child, ...] = ()
    """Agents that were given work by this one and have not ended."""
    agent: str = ""
    """Who has the conversation: the agent that was run, or whom it was handed to."""

    @property
    def ok(self) -> bool:
        """Whether the agent finished what it was asked."""
        return self.status == DONE
