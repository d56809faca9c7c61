"""The board of a fleet: which sessions have something to do, who works on which, and which workers there are.

It is beside the store, in the same database, and decides nothing about the past: the lease alone says who may write a
session, and what is to be done in it is in the session itself. A board that was lost is made again from both.
Times are milliseconds since the epoch by the caller's clock (``now``) where they are compared with times that people
named, and by the store's own clock where a worker is told dead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence


class Work(NamedTuple):
    """A session as the fleet sees it."""

    session: str
    agent: str
    owner: str = ""
    priority: int = 0
    """Larger goes first."""
    queued: bool = False
    """Whether it has something to do now and waits for a worker."""
    due: int | None = None
    """When it is to be looked at again by itself: a timer, or a retry."""
    worker: str = ""
    """Who works on it; "" when nobody does."""
    since: int = 0
    """When that worker claimed it."""
    tries: int = 0
    """Claims, this one included, since it last got any further."""
    step: int = 0
    """How far it had come when it was last taken over from a dead worker; see :meth:`Board.got`."""
    parked: str = ""
    """Why no worker takes it any more; "" when they do."""
    paused: bool = False
    """Whether a person has stopped it."""


class NewWork(NamedTuple):
    """A session to be put on the board."""

    session: str
    agent: str
    owner: str = ""
    priority: int = 0


class Rest(NamedTuple):
    """How a worker puts a session down."""

    session: str
    step: int
    """How far it had come when it was claimed."""
    again: bool = False
    """Whether there is more to do at once: it was put down in mid-run."""
    due: int | None = None
    """When to look at it again although nobody posts anything: a timer, a result to be asked for, a retry."""
    failed: bool = False
    """Whether this claim goes on counting among the ``tries``; otherwise they start anew."""
    uncounted: bool = False
    """Whether this claim does not count at all: it was put down before anything was done with it."""
    shun: str = ""
    """The version that cannot go on with it: workers of that version do not claim it before others have."""
    park: str = ""
    """Why nobody should try again; "" when somebody should."""


class WorkerRow(NamedTuple):
    """One worker: a process that runs sessions."""

    id: str
    host: str
    pid: int
    version: str
    """Of the program it runs, as the person who started it says."""
    agents: tuple[str, ...]
    concurrency: int
    busy: int = 0
    started: int = 0
    """By its own clock."""
    age: int = 0
    """Milliseconds since it was last heard of, by the store's clock; nothing when it is written."""
    wish: str = ""
    """What a person wants of it: "drain" means finish and go."""
    done: int = 0
    """Sessions it has put down so far."""
    recovered: int = 0
    """Sessions it took over from dead workers so far."""


class Filter(NamedTuple):
    """Which sessions of the board are meant; what is None or "" does not matter."""

    agent: str | None = None
    owner: str | None = None
    state: str | None = None
    """queued, working, waiting (for a timer or for somebody), parked or paused."""
    sessions: tuple[str, ...] | None = None


EVERY = Filter()


class Board(Protocol):
    """Who does what. Every method is one transaction, and may be called from any thread."""

    def put(self, items: Sequence[NewWork], *, most: int | None = None) -> int:
        """Put sessions on the board, or change their agent and priority, and queue them; how many were new.

        With ``most`` nothing is put and ``LimitExceeded`` is raised when so many would be queued afterwards.
        """
        ...

    def claim(
        self,
        worker: str,
        agents: Sequence[str],
        count: int,
        now: int,
        *,
        per_owner: int | None = None,
        version: str = "",
    ) -> list[Work]:
        """Take up to ``count`` queued sessions of these agents: higher priority first, then owners in turns.

        What was due by ``now`` is queued first. Owners in turns: each owner's sessions are numbered from the place the
        queue has reached, so that one with ten thousand of them does not stand before one with a single one. What is
        parked or paused, belongs to an agent that is held, or shuns this ``version``, is left. An owner with
        ``per_owner`` sessions at work gets no more.
        """
        ...

    def rest(self, worker: str, items: Sequence[Rest], now: int) -> None:
        """Put sessions down. One that something was posted to since it was claimed is queued again.

        What another worker has claimed meanwhile is left alone.
        """
        ...

    def got(self, worker: str, session: str, step: int) -> int:
        """Say how far a claimed session has come, as a number that grows; its tries there, this one included."""
        ...

    def beat(self, row: WorkerRow) -> str:
        """Say that a worker lives; what a person wishes of it."""
        ...

    def leave(self, worker: str) -> None:
        """A worker goes: its row is removed, and what it still had is queued again."""
        ...

    def reap(self, dead_after: int) -> list[Work]:
        """Queue what workers had that were not heard of for so many ms, and forget those workers; what they had."""
        ...

    def adopt(self, limit: int = 1000) -> int:
        """Queue sessions that have something to do while nobody knows: neither queued nor at work; how many.

        Those are sessions that name an agent and stand at ``running`` while nobody holds their lease, and sessions
        that name an agent, are not on the board at all, and have a waiting entry in their inbox that is no timer of
        later. Parked and paused ones are left.
        """
        ...

    def works(self, which: Filter = EVERY, *, after: str | None = None, limit: int = 100) -> list[Work]:
        """Sessions on the board in order of id, after an id."""
        ...

    def counts(self) -> dict[tuple[str, str], int]:
        """How many sessions there are by agent and state (see :class:`Filter`)."""
        ...

    def change(self, which: Filter, do: str, now: int) -> int:
        """Do something to sessions: "pause", "unpause", "retry", "forget"; how many.

        To be retried are those that are parked, and those that shun a version: any may claim them again.
        """
        ...

    def hold(self, agent: str, on: bool) -> None:
        """Let no worker take sessions of an agent any more, new ones included; or let them again."""
        ...

    def held(self) -> list[str]:
        """Agents whose sessions no worker takes."""
        ...

    def workers(self) -> list[WorkerRow]:
        """All workers that are known, the dead ones not yet reaped among them."""
        ...

    def wish(self, worker: str | None, wish: str) -> int:
        """Tell a worker (None: all) what is wanted of it; how many were told."""
        ...

    def mark(self) -> str:
        """Something that differs when the board may have changed since: cheap to ask for, and often."""
        ...

    def slot(self, name: str, holder: str, most: int, ttl: int) -> bool:
        """Take or renew one of ``most`` places of that name in the whole fleet, for ``ttl`` ms of the store's clock."""
        ...

    def unslot(self, name: str, holder: str) -> None:
        """Give a place back."""
        ...


@runtime_checkable
class Boarded(Protocol):
    """What a store offers beside :class:`perdure.protocols.Store` when a fleet can work on it."""

    def board(self) -> Board:
        """Its board, which is made when it is first asked for."""
        ...
