"""How the tests of boards put sessions there and look at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.protocols import Filter, NewWork, Rest, WorkerRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.protocols import Board, Work

NOW = 1_700_000_000_000
"""What the clock of the tests says at first."""


def put(board: Board, *sessions: str, agent: str = "a", owner: str = "ana", priority: int = 0) -> int:
    """Put sessions on the board."""
    return board.put([NewWork(session, agent, owner, priority) for session in sessions])


def claim(board: Board, count: int = 1, *, worker: str = "w", agents: Sequence[str] = ("a",), **how: Any) -> list[str]:
    """Claim sessions; which ones."""
    return [work.session for work in board.claim(worker, agents, count, how.pop("now", NOW), **how)]


def rest(board: Board, *sessions: str, worker: str = "w", now: int = NOW, step: int = 0, **how: Any) -> None:
    """Put sessions down."""
    board.rest(worker, [Rest(session, step, **how) for session in sessions], now)


def work_of(board: Board, session: str) -> Work:
    """What the board says of a session."""
    (work,) = board.works(Filter(sessions=(session,)))
    return work


def state_of(board: Board, session: str) -> str:
    """The state of a session by name: it is in one only, and each way of asking says the same."""
    states = [
        state
        for state in ("queued", "working", "waiting", "parked", "paused")
        if board.works(Filter(sessions=(session,), state=state))
    ]
    assert len(states) == 1
    return states[0]


def worker(id: str = "w", **fields: Any) -> WorkerRow:
    """A worker's row."""
    values: dict[str, Any] = {"host": "h", "pid": 1, "version": "v1", "agents": ("a",), "concurrency": 4}
    return WorkerRow(id, **{**values, **fields})
