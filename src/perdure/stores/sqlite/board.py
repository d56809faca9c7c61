"""The board of a fleet in the SQLite store: transactions around what its two rooms do.

What workers say many times a second (claims, rests, beats, places) is written without waiting for the disk: it
survives the end of any process, and a loss of power ends all workers of the file at once, so nothing of it would
matter any more. What people say (put, change, hold, wish) is as durable as the store's commits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.errors import UnsupportedFormat
from perdure.protocols import EVERY
from perdure.stores.sqlite.board_queue import Queue, pick
from perdure.stores.sqlite.board_workers import Workers
from perdure.stores.sqlite.driver import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.protocols import Clock, Filter, NewWork, Rest, Work, WorkerRow
    from perdure.stores.lease_clock import LeaseJudge
    from perdure.stores.sqlite.driver import Cursor
    from perdure.stores.sqlite.file import SqliteFile

VERSION = 1
_VERSION = "select value from meta where key = 'board'"


class SqliteBoard:
    """Implements :class:`perdure.protocols.Board`; ``number`` gives a session's number, making it known if need be."""

    def __init__(self, file: SqliteFile, clock: Clock, judge: LeaseJudge, number: Callable[[Cursor, str], int]) -> None:
        self._file = file
        self._queue = Queue(file.path, clock, judge, number)
        self._workers = Workers(file.path, clock, self._queue)
        with file.read(brief=True) as cursor:
            found = value_of(cursor, _VERSION)
        if found is None:
            file.write("board.make", _make)
        elif found > VERSION:
            raise UnsupportedFormat(
                f"{file.path}: its board has format {found} and this Perdure knows up to {VERSION}: "
                "upgrade this process"
            )

    # -- what there is to do ---------------------------------------------------------------------------------------

    def put(self, items: Sequence[NewWork], *, most: int | None = None) -> int:
        """Put sessions on the board, or change their agent and priority, and queue them; how many were new."""
        return self._file.write("board.put", lambda cursor: self._queue.put(cursor, items, most))

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
        """Take up to ``count`` queued sessions of these agents; see the protocol for the order."""
        asked = (tuple(agents), count, per_owner, version)
        # Idle workers look often: only when there is something to take does anybody wait for the writer's lock.
        with self._file.read(brief=True) as cursor:
            if not self._queue.has_due(cursor, now) and not pick(cursor, *asked):
                return []

        def take(cursor: Cursor) -> list[Work]:
            self._queue.promote(cursor, now)
            picked = pick(cursor, *asked)
            if picked:
                self._workers.known(cursor, worker)
            return self._queue.take(cursor, worker, picked, now)

        return self._file.write("board.claim", take, synced=False)

    def rest(self, worker: str, items: Sequence[Rest], now: int) -> None:
        """Put sessions down that this worker still has."""
        if items:
            self._file.write("board.rest", lambda cursor: self._queue.rest(cursor, worker, items), synced=False)

    def got(self, worker: str, session: str, step: int) -> int:
        """Say how far a claimed session has come; how many tries it has had there, this one included."""
        return self._file.write(
            "board.got", lambda cursor: self._queue.got(cursor, worker, session, step), synced=False
        )

    def adopt(self, limit: int = 1000) -> int:
        """Queue sessions that have something to do while nobody knows; how many."""
        with self._file.read() as cursor:
            found = self._queue.strays(cursor, limit)
        return self._file.write("board.adopt", lambda cursor: self._queue.adopt(cursor, found)) if found else 0

    # -- workers ---------------------------------------------------------------------------------------------------

    def beat(self, row: WorkerRow) -> str:
        """Say that a worker lives; what a person wishes of it."""
        return self._file.write("board.beat", lambda cursor: self._workers.beat(cursor, row), synced=False)

    def leave(self, worker: str) -> None:
        """A worker goes: its row is removed, and what it still had is queued again, before all else."""
        self._file.write("board.leave", lambda cursor: self._workers.leave(cursor, worker), synced=False)

    def reap(self, dead_after: int) -> list[Work]:
        """Queue what silent workers had, before all else, and forget those workers; what they had."""
        with self._file.read(brief=True) as cursor:
            if not self._workers.has_dead(cursor, dead_after):
                return []
        return self._file.write("board.reap", lambda cursor: self._workers.reap(cursor, dead_after), synced=False)

    def workers(self) -> list[WorkerRow]:
        """All workers that are known."""
        with self._file.read(brief=True) as cursor:
            return self._workers.workers(cursor)

    def wish(self, worker: str | None, wish: str) -> int:
        """Tell a worker (None: all) what is wanted of it; how many were told."""
        return self._file.write("board.wish", lambda cursor: self._workers.wish(cursor, worker, wish))

    # -- looking and steering --------------------------------------------------------------------------------------

    def works(self, which: Filter = EVERY, *, after: str | None = None, limit: int = 100) -> list[Work]:
        """Sessions on the board in order of id, after an id."""
        with self._file.read() as cursor:
            return self._queue.works(cursor, which, after, limit)

    def counts(self) -> dict[tuple[str, str], int]:
        """How many sessions there are by agent and state."""
        with self._file.read() as cursor:
            return self._queue.counts(cursor)

    def change(self, which: Filter, do: str, now: int) -> int:
        """Do something to sessions: "pause", "unpause", "retry", "forget"; how many."""
        return self._file.write("board.change", lambda cursor: self._queue.change(cursor, which, do))

    def hold(self, agent: str, on: bool) -> None:
        """Let no worker take sessions of an agent any more; or let them again."""
        self._file.write("board.hold", lambda cursor: self._queue.hold(cursor, agent, on))

    def held(self) -> list[str]:
        """Agents whose sessions no worker takes."""
        with self._file.read(brief=True) as cursor:
            return self._queue.held(cursor)

    def mark(self) -> str:
        """Something that differs when anything in the file was changed since, by whomever."""
        return str(self._file.changed())

    # -- places ----------------------------------------------------------------------------------------------------

    def slot(self, name: str, holder: str, most: int, ttl: int) -> bool:
        """Take or renew one of ``most`` places of that name, for ``ttl`` ms."""
        # Many may wait for a place, asking again and again: they do not take the writer's lock to hear no.
        with self._file.read(brief=True) as cursor:
            if self._workers.is_full(cursor, name, holder, most):
                return False
        return self._file.write(
            "board.slot", lambda cursor: self._workers.slot(cursor, name, holder, most, ttl), synced=False
        )

    def unslot(self, name: str, holder: str) -> None:
        """Give a place back."""
        self._file.write("board.unslot", lambda cursor: self._workers.unslot(cursor, name, holder), synced=False)


def _make(cursor: Cursor) -> None:
    from importlib import resources

    cursor.execute((resources.files("perdure.stores.sqlite") / "sql" / "board.sql").read_text("utf-8"))
