"""The workers on the board, and the places they share. Inside the caller's transactions.

Who is dead is told by the monotonic clock of the boot, which all processes that use the file share; what was written
in another boot is dead at once, since nothing of that boot runs any more.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from perdure.protocols import WorkerRow
from perdure.stores.sqlite.driver import value_of
from perdure.stores.sqlite.read import Checks
from perdure.system.clock import boot_id

if TYPE_CHECKING:
    from perdure.protocols import Clock, Work
    from perdure.stores.sqlite.board_queue import Queue
    from perdure.stores.sqlite.driver import Cursor

_BEAT = (
    "insert into fleet_workers (id, host, pid, version, agents, concurrency, busy, started, done, recovered, seen,"
    " boot) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (id) do update set host = excluded.host,"
    " pid = excluded.pid, version = excluded.version, agents = excluded.agents, concurrency = excluded.concurrency,"
    " busy = excluded.busy, started = excluded.started, done = excluded.done, recovered = excluded.recovered,"
    " seen = excluded.seen, boot = excluded.boot"
)
_WORKERS = (
    "select id, host, pid, version, agents, concurrency, busy, started, wish, done, recovered, seen, boot"
    " from fleet_workers order by id"
)
_KNOWN = "select agents, wish from fleet_workers where id = ?"
_LIVING = "boot = ? and seen >= ?"
# Whoever claims is known from then on, so what has a worker that is not known was left behind. From each worker that
# has something to the next: that is quick however much they have.
_LOST = (
    "with recursive have (worker) as (select min(worker) from fleet_work where worker <> ''"
    " union all select (select min(w.worker) from fleet_work w where w.worker <> '' and w.worker > have.worker)"
    " from have where have.worker is not null)"
    f" select worker from have where worker not in (select id from fleet_workers where {_LIVING})"
)
_HELD_PLACE = "boot = ? and until > ?"


class Workers(Checks):
    """The workers."""

    def __init__(self, path: str, clock: Clock, queue: Queue) -> None:
        super().__init__(path)
        self._clock = clock
        self._queue = queue

    def known(self, cursor: Cursor, worker: str) -> None:
        """Make sure that a worker is known, and will be told dead one day; it has been heard of just now."""
        cursor.execute(
            "insert or ignore into fleet_workers (id, seen, boot) values (?, ?, ?)",
            (worker, self._clock.monotonic(), boot_id()),
        )

    def beat(self, cursor: Cursor, row: WorkerRow) -> str:
        """Write a worker's row; what is wished of it."""
        agents = json.dumps(row.agents) if row.agents else ""
        ((before, wish),) = cursor.execute(_KNOWN, (row.id,)).fetchall() or [(None, "")]
        if agents != before:
            served = {agent for other in self.workers(cursor) for agent in other.agents}
            for agent in set(row.agents) - served:
                self._queue.catch_up(cursor, agent)
        cursor.execute(
            _BEAT,
            (
                row.id, row.host, row.pid, row.version, agents, row.concurrency, row.busy, row.started, row.done,
                row.recovered, self._clock.monotonic(), boot_id(),
            ),
        )  # fmt: skip
        return self.text(wish)

    def leave(self, cursor: Cursor, worker: str) -> None:
        """Remove a worker; what it had is queued first."""
        cursor.execute("delete from fleet_workers where id = ?", (worker,))
        self._queue.free(cursor, worker)

    def has_dead(self, cursor: Cursor, dead_after: int) -> bool:
        """Whether there is somebody to forget, or something that nobody known has."""
        living = self._living(dead_after)
        dead = f"select 1 from fleet_workers where not ({_LIVING}) limit 1"
        return value_of(cursor, dead, living) is not None or value_of(cursor, _LOST, living) is not None

    def reap(self, cursor: Cursor, dead_after: int) -> list[Work]:
        """Forget workers that are silent for so long; what they had is queued first."""
        living = self._living(dead_after)
        lost = [worker for (worker,) in cursor.execute(_LOST, living).fetchall()]
        cursor.execute(f"delete from fleet_workers where not ({_LIVING})", living)
        return [work for worker in lost for work in self._queue.free(cursor, worker)]

    def _living(self, dead_after: int) -> tuple[str, int]:
        return boot_id(), self._clock.monotonic() - dead_after

    def workers(self, cursor: Cursor) -> list[WorkerRow]:
        """All workers that are known."""
        rows: list[WorkerRow] = []
        now, boot = self._clock.monotonic(), boot_id()
        for id, host, pid, version, agents, size, busy, started, wish, done, recovered, seen, where in cursor.execute(
            _WORKERS
        ).fetchall():
            # Clocks of two boots say nothing about each other: it is at least as long ago as this boot.
            age = max(0, now - self.whole(seen)) if where == boot else now
            rows.append(
                WorkerRow(
                    self.text(id), self.text(host), self.whole(pid), self.text(version), self.names(agents),
                    self.whole(size), self.whole(busy), self.whole(started), age, self.text(wish),
                    self.whole(done), self.whole(recovered),
                )
            )  # fmt: skip
        return rows

    def wish(self, cursor: Cursor, worker: str | None, wish: str) -> int:
        """Say what is wanted of a worker, or of all."""
        sql = "update fleet_workers set wish = ?1 where id = ?2 or ?2 is null returning 1"
        return len(cursor.execute(sql, (wish, worker)).fetchall())

    # -- places ----------------------------------------------------------------------------------------------------

    def is_full(self, cursor: Cursor, name: str, holder: str, most: int) -> bool:
        """Whether others have all places."""
        sql = f"select count(*) from fleet_slots where name = ? and holder <> ? and {_HELD_PLACE}"
        return value_of(cursor, sql, (name, holder, boot_id(), self._clock.monotonic())) >= most

    def slot(self, cursor: Cursor, name: str, holder: str, most: int, ttl: int) -> bool:
        """Take or renew a place, if there is one."""
        now, boot = self._clock.monotonic(), boot_id()
        cursor.execute(f"delete from fleet_slots where name = ? and not ({_HELD_PLACE})", (name, boot, now))
        if self.is_full(cursor, name, holder, most):
            return False
        cursor.execute("insert or replace into fleet_slots values (?, ?, ?, ?)", (name, holder, now + ttl, boot))
        return True

    def unslot(self, cursor: Cursor, name: str, holder: str) -> None:
        """Give a place back."""
        cursor.execute("delete from fleet_slots where name = ? and holder = ?", (name, holder))
