"""The board of a fleet in PostgreSQL: its tables, made when first asked for, and what is asked of them.

No statement needs the same server connection as the one before it, so it also works through PgBouncer.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from perdure.errors import InvalidInput, LimitExceeded, StoreError, UnsupportedFormat
from perdure.links.postgres import packed, unpacked
from perdure.protocols import EVERY, Filter, NewWork, Rest, Work, WorkerRow
from perdure.stores.listing import board_tests
from perdure.stores.postgres.rows import columns_of, new_claim
from perdure.stores.postgres.tables import LOCK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.links.postgres import Connection, Link, Rows, Time

VERSION = 1
PARTS = ("", "_work")

_WORK = (
    "session, agent, owner, priority, rank is not null, due, worker, since, tries, step, parked, paused, avoid_version"
)
_ROW = "id, host, pid, version, agents, concurrency, busy, started, {now} - seen, wish, done, recovered"
_CHANGES = {
    "pause": (
        "update {work} w set paused = true, touched = w.touched or w.rank is not null, rank = null"
        " where not w.paused and w.session = any (%s)"
    ),
    "unpause": "update {work} w set paused = false where w.paused and w.session = any (%s)",
    "retry": (
        "update {work} w set parked = '', tries = 0, avoid_version = '', rank = null, touched = true"
        " where (w.parked <> '' or w.avoid_version <> '') and w.session = any (%s)"
    ),
    "forget": "delete from {work} w where w.session = any (%s)",
}


class PostgresBoard:
    """Implements :class:`perdure.protocols.Board` in the tables ``perdure_fleet_…`` of a store's schema."""

    def __init__(self, link: Link, schema: str, time: Time) -> None:
        self._link = link
        self._schema = schema
        self._time = time
        self._work = f"{schema}.perdure_fleet_work"
        self._worker = f"{schema}.perdure_fleet_worker"
        self._now = f"coalesce(%s, {schema}.perdure_now())"
        self._lock = threading.Lock()
        self._unsure: dict[str, list[int]] = {}
        """Of each worker the claims that may have been made although nobody heard the answer."""
        link.do("board", lambda connection: make(connection, schema, link.url))

    def put(self, items: Sequence[NewWork], *, most: int | None = None) -> int:
        """Put sessions on the board and queue them; how many were new."""
        last = {item.session: item for item in items}
        rows = [(packed(i.session), packed(i.agent), packed(i.owner), i.priority) for i in last.values()]
        if not rows and most is None:
            return 0
        sql = f"select {self._schema}.perdure_fleet_put(%s, %s, %s, %s, %s)"

        def put(connection: Connection) -> int:
            with connection.transaction():
                ((new,),) = connection.ask(sql, (*columns_of(rows, 4), most))
                if new is None:
                    raise LimitExceeded(
                        f"{self._link.url}: sessions queued would be over the limit of {most}: nothing was put; "
                        "wait until some are done, start more workers, or raise the limit"
                    )
                return new

        return self._link.do("put", put)

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
        """Take up to ``count`` queued sessions of these agents."""
        if count < 1 or not agents:
            return []
        with self._lock:
            unsure = self._unsure.pop(worker, [])
        claim, tries = new_claim(), 0
        sql = f"select {_WORK} from {self._schema}.perdure_fleet_claim(%s{', %s' * 8})"
        asked = (packed(worker), [packed(a) for a in dict.fromkeys(agents)], count, now, per_owner, packed(version))

        def ask(connection: Connection) -> Rows:
            nonlocal tries
            tries += 1
            known = [*unsure, claim] if tries > 1 else unsure
            return connection.ask(sql, (self._time.now()[1], *asked, claim, known))

        try:
            return _works(self._link.do("claim", ask))
        except StoreError:
            with self._lock:
                self._unsure.setdefault(worker, []).extend([*unsure, claim])
            raise

    def rest(self, worker: str, items: Sequence[Rest], now: int) -> None:
        """Put sessions down."""
        rows = [
            (packed(r.session), r.step, r.again, r.due, _counts(r), packed(r.avoid_version), packed(r.park))
            for r in {item.session: item for item in items}.values()
        ]
        if rows:
            sql = f"select {self._schema}.perdure_fleet_rest(%s{', %s' * 7})"
            self._link.ask("rest", sql, (packed(worker), *columns_of(rows)))

    def got(self, worker: str, session: str, step: int, tries: int = 1) -> int:
        """Say at which place a claimed session stands; how many tries it has had there."""
        rows = self._link.ask(
            "got",
            f"update {self._work} w set tries = case when w.worker = %s and w.step <> %s then %s else w.tries end,"
            " step = case when w.worker = %s then %s else w.step end"
            " where w.session = %s returning w.tries",
            (packed(worker), step, tries, packed(worker), step, packed(session)),
        )
        return rows[0][0] if rows else 0

    # -- workers -----------------------------------------------------------------------------------

    def beat(self, row: WorkerRow) -> str:
        """Say that a worker lives; what a person wishes of it."""
        values = (
            packed(row.id), packed(row.host), row.pid, packed(row.version), [packed(a) for a in row.agents],
            row.concurrency, row.busy, row.started, row.done, row.recovered,
        )  # fmt: skip
        sql = f"select {self._schema}.perdure_fleet_beat(%s{', %s' * 10})"
        ((wish,),) = self._link.ask("beat", sql, (self._time.now()[1], *values))
        return unpacked(wish)

    def leave(self, worker: str) -> None:
        """A worker goes: what it still had is queued again."""
        self._link.ask("leave", f"select {self._schema}.perdure_fleet_leave(%s)", (packed(worker),))

    def reap(self, dead_after: int) -> list[Work]:
        """Queue what workers had that were not heard of for so long, and forget those workers."""
        sql = f"select {_WORK} from {self._schema}.perdure_fleet_reap(%s, %s)"
        return _works(self._link.ask("reap", sql, (self._time.now()[1], dead_after)))

    def workers(self) -> list[WorkerRow]:
        """All workers that are known."""
        sql = f"select {_ROW.format(now=self._now)} from {self._worker} order by id"
        rows = self._link.ask("workers", sql, (self._time.now()[1],), writes=False)
        return [
            WorkerRow(
                unpacked(id), unpacked(host), pid, unpacked(version), tuple(map(unpacked, agents)), size, busy,
                started, age, unpacked(wish), done, recovered,
            )
            for id, host, pid, version, agents, size, busy, started, age, wish, done, recovered in rows
        ]  # fmt: skip

    def wish(self, worker: str | None, wish: str) -> int:
        """Tell a worker (None: all) what is wanted of it; how many were told."""
        which = "" if worker is None else " where id = %s"
        values = (packed(wish),) if worker is None else (packed(wish), packed(worker))
        return len(self._link.ask("wish", f"update {self._worker} set wish = %s{which} returning 1", values))

    # -- looking and changing ----------------------------------------------------------------------

    def adopt(self, limit: int = 1000) -> int:
        """Queue sessions that have something to do while nobody knows; how many."""
        sql = f"select {self._schema}.perdure_fleet_adopt(%s, %s, %s)"
        ((found,),) = self._link.ask("adopt", sql, (*self._time.now(), limit))
        return found

    def works(self, which: Filter = EVERY, *, after: str | None = None, limit: int = 100) -> list[Work]:
        """Sessions on the board in order of id, after an id."""
        where, values = self._where(which)
        if after is not None:
            where, values = f"{where} and w.session > %s", [*values, packed(after)]
        sql = f"select {_WORK} from {self._work} w where {where} order by w.session limit %s"
        return _works(self._link.ask("works", sql, (*values, limit), writes=False))

    def counts(self) -> dict[tuple[str, str], int]:
        """How many sessions there are by agent and state."""
        state = f"{self._schema}.perdure_fleet_state(w)"
        sql = f"select w.agent, {state}, count(*) from {self._work} w group by 1, 2 order by 1, 2"
        return {(unpacked(agent), name): n for agent, name, n in self._link.ask("counts", sql, writes=False)}

    def change(self, which: Filter, do: str, now: int) -> int:
        """Do something to sessions: "pause", "unpause", "retry" or "forget"; how many."""
        if do not in _CHANGES:
            raise InvalidInput(f"{do!r:.40} cannot be done to sessions: use one of {', '.join(_CHANGES)}")
        where, values = self._where(which)
        sql = _CHANGES[do].format(work=self._work, schema=self._schema)

        def change(connection: Connection) -> int:
            with connection.transaction():
                found = connection.ask(
                    f"select w.session from {self._work} w where {where} order by w.session for update", values
                )
                return len(connection.ask(f"{sql} returning 1", ([session for (session,) in found],)))

        return self._link.do("change", change)

    def _where(self, which: Filter) -> tuple[str, list[Any]]:
        """The condition that a filter stands for."""
        tests = board_tests(which, f"{self._schema}.perdure_fleet_state(w)", "%s", packed)
        if which.sessions is not None:
            tests["w.session = any (%s)"] = [packed(session) for session in which.sessions]
        return " and ".join(["true", *tests]), list(tests.values())

    def hold(self, agent: str, on: bool) -> None:
        """Let no worker take sessions of an agent any more; or let them again."""
        self._link.ask("hold", f"select {self._schema}.perdure_fleet_hold(%s, %s)", (packed(agent), on))

    def held(self) -> list[str]:
        """Agents whose sessions no worker takes."""
        sql = f"select agent from {self._schema}.perdure_fleet_held order by agent"
        return [unpacked(agent) for (agent,) in self._link.ask("held", sql, writes=False)]

    def mark(self) -> str:
        """Which transactions can be seen: another text when any was committed that wrote something."""
        ((seen,),) = self._link.ask("mark", "select pg_current_snapshot()::text", writes=False)
        return seen

    # -- places ------------------------------------------------------------------------------------

    def slot(self, name: str, holder: str, most: int, ttl: int) -> bool:
        """Take or renew one of ``most`` places of that name for ``ttl`` ms of the server's clock."""
        ((taken,),) = self._link.ask(
            "slot",
            f"select {self._schema}.perdure_fleet_take_slot(%s, %s, %s, %s, %s)",
            (self._time.now()[1], packed(name), packed(holder), most, ttl),
        )
        return taken

    def unslot(self, name: str, holder: str) -> None:
        """Give a place back."""
        sql = f"delete from {self._schema}.perdure_fleet_slot where name = %s and holder = %s"
        self._link.ask("unslot", sql, (packed(name), packed(holder)))


def make(connection: Connection, schema: str, url: str) -> None:
    """Make the tables of the board when there are none; safe when many processes do so at the same moment."""
    if not version(connection, schema):
        with connection.transaction():
            connection.ask("select pg_advisory_xact_lock(%s)", (LOCK,))
            if not version(connection, schema):
                connection.run(_script(schema))
    if (found := version(connection, schema)) > VERSION:
        raise UnsupportedFormat(
            f"{url}: the board has version {found} and this Perdure knows up to {VERSION}: upgrade this process"
        )


def version(connection: Connection, schema: str) -> int:
    """The version of the board's tables; 0 when there are none."""
    # From the catalog itself: what to_regclass has not found it may go on not finding until the transaction ends.
    ((there,),) = connection.ask(
        "select exists (select from pg_class c"
        " where c.relname = 'perdure_fleet_meta' and c.relnamespace = to_regnamespace(%s))",
        (schema,),
    )
    return connection.ask(f"select version from {schema}.perdure_fleet_meta")[0][0] if there else 0


def _script(schema: str) -> str:
    from importlib import resources

    folder = resources.files("perdure.stores.postgres") / "sql"
    parts = [(folder / f"board{part}.sql").read_text("utf-8") for part in PARTS]
    return "\n".join(parts).replace("$schema", schema)


def _works(rows: Rows) -> list[Work]:
    return [
        Work(
            unpacked(session), unpacked(agent), unpacked(owner), priority, queued, due, unpacked(worker), since,
            tries, step, unpacked(parked), paused, unpacked(avoid),
        )
        for session, agent, owner, priority, queued, due, worker, since, tries, step, parked, paused, avoid in rows
    ]  # fmt: skip


def _counts(rest: Rest) -> bool | None:
    """Whether the tries of a session go on being counted; None when the last one does not count."""
    return None if rest.uncounted else rest.failed
