"""The board of a fleet in the SQLite store: the sessions there, who may take which, the workers and their places.

What workers say many times a second (claims, rests, beats, places) is written without waiting for the disk: it
survives the end of any process, and a loss of power ends all workers of the file at once, so nothing of it would
matter any more. What people say (put, change, hold, wish) is as durable as the store's commits.

How a session gets its place in the queue is a trigger of the tables (see sql/board.sql): here a session is only
touched, and stands in the queue as soon as nothing is against it. Which ones are next is decided by ``pick``.

Who is dead is told by the monotonic clock of the boot, which all processes that use the file share; what was written
in another boot is dead at once, since nothing of that boot runs any more.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import InvalidInput, LimitExceeded, UnsupportedFormat
from perdure.model import Status
from perdure.protocols import EVERY, Work, WorkerRow
from perdure.stores.listing import board_tests
from perdure.stores.sqlite.file import Damaged, lease_of, names, text, value_of, whole
from perdure.system.clock import boot_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from perdure.protocols import Clock, Filter, NewWork, Rest
    from perdure.stores.rules import LeaseJudge
    from perdure.stores.sqlite.file import Cursor, SqliteFile

VERSION = 1
_VERSION = "select value from meta where key = 'board'"
AT_ONCE = 1000
"""Timers that one claim puts into the queue at most; the next claim goes on."""
APART = 100
"""By how many places lanes may run apart: less is not worth the moving of a whole lane."""
SOON = 600_000
"""Sessions that are looked at by themselves within so many ms are not adopted: they wait for a retry."""

_WORK = (
    "select session, agent, owner, priority, rank is not null, due, worker, since, tries, step, parked, paused,"
    " avoid_version from fleet_work"
)
_STATE = (
    "case when parked <> '' then 'parked' when paused then 'paused' when worker <> '' then 'working'"
    " when rank is not null then 'queued' else 'waiting' end"
)
# A session that changes its lane leaves the queue there, and is queued anew.
_PUT = (
    "insert into fleet_work (no, session, agent, owner, priority) values (?, ?, ?, ?, ?)"
    " on conflict (no) do update set agent = excluded.agent, priority = excluded.priority,"
    " owner = iif(excluded.owner = '', owner, excluded.owner),"
    " rank = iif(agent = excluded.agent and priority = excluded.priority"
    " and excluded.owner in ('', owner), rank, null), touched = 1"
)
_DUE = "due <= ? and rank is null and worker = '' and parked = '' and paused = 0"
_TAKE = (
    "update fleet_work set worker = ?, since = ?, tries = tries + 1, touched = 0, rank = null, due = null,"
    " avoid_version = '' where no = ?"
)
_NEVER = (1 << 63) - 1
# What fell due during the run and still waits is due at once; what had fallen due before it was seen and left.
_REST = (
    "update fleet_work set worker = '', since = 0, step = max(step, ?), parked = ?, avoid_version = ?,"
    " tries = case ? when 0 then 0 when 1 then tries else max(tries - 1, 0) end,"
    f" touched = touched or ?, due = nullif(min(coalesce(?, {_NEVER}), coalesce(due, {_NEVER}),"
    f" coalesce((select min(at) from inbox where inbox.no = fleet_work.no and taken is null"
    f" and kind in ('wake', 'cron') and at > since), {_NEVER})), {_NEVER})"
    " where session = ? and worker = ?"
)
# Named in words, not bound: only so does SQLite use the index of those that run.
_LEFT = (
    "select s.no, s.id, s.holder, s.token, s.until, s.span, s.boot from sessions s"
    f" where s.status = '{Status.RUNNING.value}' and s.reason = '' and s.agent <> ''"
    " and not exists (select 1 from fleet_work w"
    " where w.no = s.no and (w.rank is not null or w.worker <> '' or w.parked <> '' or w.paused or w.due <= ?))"
)
_UNHEARD = (
    "select distinct i.no from inbox i where i.taken is null and not exists (select 1 from fleet_work w"
    " where w.no = i.no) and exists (select 1 from inbox e where e.no = i.no and e.taken is null"
    " and (e.kind not in ('wake', 'cron') or e.at <= ?)) and exists (select 1 from sessions s where s.no = i.no"
    " and s.reason = '' and s.agent <> '') limit ?"
)
_ADOPT = (
    "insert into fleet_work (no, session, agent, owner, priority)"
    " select no, id, agent, owner, 0 from sessions where no = ? and reason = ''"
    " on conflict (no) do update set touched = 1"
    " where rank is null and worker = '' and parked = '' and paused = 0 returning 1"
)
_CHANGES = {
    "pause": "update fleet_work set paused = 1, touched = touched or rank is not null, rank = null where paused = 0",
    "unpause": "update fleet_work set paused = 0 where paused <> 0",
    # What a version cannot go on with stands in a lane of its own, which it leaves.
    "retry": (
        "update fleet_work set parked = '', tries = 0, avoid_version = '', rank = null, touched = 1"
        " where (parked <> '' or avoid_version <> '')"
    ),
    "forget": "delete from fleet_work where true",
}
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


class SqliteBoard:
    """Implements :class:`perdure.protocols.Board`; ``number`` gives a session's number, making it known if need be."""

    def __init__(self, file: SqliteFile, clock: Clock, judge: LeaseJudge, number: Callable[[Cursor, str], int]) -> None:
        self._file = file
        self._clock = clock
        self._judge = judge
        self._number = number
        found = file.glance(lambda cursor: value_of(cursor, _VERSION))
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

        def write(cursor: Cursor) -> int:
            new = 0
            for item in items:
                no = self._number(cursor, item.session)
                new += value_of(cursor, "select 1 from fleet_work where no = ?", (no,)) is None
                cursor.execute(_PUT, (no, *item))
            if most is not None:
                queued = value_of(cursor, "select count(*) from fleet_work where rank is not null")
                if queued > most:
                    raise LimitExceeded(
                        f"{self._file.path}: {queued} sessions would be queued, over the limit of {most}: "
                        "nothing was put; wait until some are done, start more workers, or raise the limit"
                    )
            return new

        return self._file.write("board.put", write)

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
        due = f"select 1 from fleet_work where {_DUE} limit 1"
        if not self._file.glance(lambda c: value_of(c, due, (now,)) is not None or bool(pick(c, *asked))):
            return []

        def take(cursor: Cursor) -> list[Work]:
            # What is due by now is queued, the oldest first.
            sql = f"select no from fleet_work where {_DUE} order by due limit ?"
            found = cursor.execute(sql, (now, AT_ONCE)).fetchall()
            cursor.executemany("update fleet_work set touched = 1 where no = ?", found)
            picked = pick(cursor, *asked)
            if not picked:
                return []
            # Whoever claims is known from then on, and will be told dead one day; it was heard of just now.
            cursor.execute(
                "insert or ignore into fleet_workers (id, seen, boot) values (?, ?, ?)",
                (worker, self._clock.monotonic(), boot_id()),
            )
            cursor.executemany(_TAKE, [(worker, now, one.no) for one in picked])
            reached = max(one.rank for one in picked)
            cursor.execute("update fleet_place set reached = ? where reached < ?", (reached, reached))
            return [work for one in picked for work in self._works(cursor.execute(f"{_WORK} where no = ?", (one.no,)))]

        return self._file.write("board.claim", take, synced=False)

    def rest(self, worker: str, items: Sequence[Rest], now: int) -> None:
        """Put sessions down that this worker still has."""
        values = [
            (i.step, i.park, i.avoid_version, 2 if i.uncounted else int(i.failed), i.again, i.due, i.session, worker)
            for i in items
        ]
        if values:
            self._file.write("board.rest", lambda cursor: cursor.executemany(_REST, values), synced=False)

    def got(self, worker: str, session: str, step: int, tries: int = 1) -> int:
        """Say at which place a claimed session stands; how many tries it has had there, this one included."""

        def write(cursor: Cursor) -> int:
            sql = "update fleet_work set step = ?, tries = ? where session = ? and worker = ? and step <> ?"
            cursor.execute(sql, (step, tries, session, worker, step))
            return whole(value_of(cursor, "select tries from fleet_work where session = ?", (session,)) or 0)

        return self._file.write("board.got", write, synced=False)

    def adopt(self, limit: int = 1000) -> int:
        """Queue sessions that have something to do while nobody knows; how many."""
        with self._file.read() as cursor:
            strays = self._strays(cursor, limit)
        if not strays:
            return 0
        # Those of them that are not there by now.
        return self._file.write(
            "board.adopt", lambda cursor: sum(value_of(cursor, _ADOPT, (no,)) is not None for no in strays)
        )

    def _strays(self, cursor: Cursor, limit: int) -> list[int]:
        wall = self._clock.wall()
        found: dict[int, None] = {}
        for (no,) in cursor.execute(_UNHEARD, (wall, limit)).fetchall():
            found[whole(no)] = None
        for no, session, *lease in cursor.execute(_LEFT, (wall + SOON,)).fetchall():
            if len(found) >= limit:
                break
            if not self._judge.left(text(session), lease_of(*lease)):
                found[whole(no)] = None
        return list(found)

    # -- workers ---------------------------------------------------------------------------------------------------

    def beat(self, row: WorkerRow) -> str:
        """Say that a worker lives; what a person wishes of it."""
        agents = json.dumps(row.agents) if row.agents else ""

        def write(cursor: Cursor) -> str:
            ((before, wish),) = cursor.execute(_KNOWN, (row.id,)).fetchall() or [(None, "")]
            if agents != before:
                served = {agent for other in self._workers(cursor) for agent in other.agents}
                for agent in set(row.agents) - served:
                    self._catch_up(cursor, agent)
            cursor.execute(
                _BEAT,
                (
                    row.id, row.host, row.pid, row.version, agents, row.concurrency, row.busy, row.started, row.done,
                    row.recovered, self._clock.monotonic(), boot_id(),
                ),
            )  # fmt: skip
            return text(wish)

        return self._file.write("board.beat", write, synced=False)

    def leave(self, worker: str) -> None:
        """A worker goes: its row is removed, and what it still had is queued again, before all else."""

        def write(cursor: Cursor) -> None:
            cursor.execute("delete from fleet_workers where id = ?", (worker,))
            self._free(cursor, worker)

        self._file.write("board.leave", write, synced=False)

    def reap(self, dead_after: int) -> list[Work]:
        """Queue what silent workers had, before all else, and forget those workers; what they had."""
        dead, living = f"select 1 from fleet_workers where not ({_LIVING}) limit 1", self._living(dead_after)
        if self._file.glance(lambda c: value_of(c, dead, living) is None and value_of(c, _LOST, living) is None):
            return []

        def write(cursor: Cursor) -> list[Work]:
            living = self._living(dead_after)
            lost = [worker for (worker,) in cursor.execute(_LOST, living).fetchall()]
            cursor.execute(f"delete from fleet_workers where not ({_LIVING})", living)
            return [work for worker in lost for work in self._free(cursor, worker)]

        return self._file.write("board.reap", write, synced=False)

    def _living(self, dead_after: int) -> tuple[str, int]:
        return boot_id(), self._clock.monotonic() - dead_after

    def _free(self, cursor: Cursor, worker: str) -> list[Work]:
        """Take all sessions from a worker and queue them before all others of their lanes; how they were."""
        works = self._works(cursor.execute(f"{_WORK} where worker = ? and worker <> '' order by no", (worker,)))
        fronts: dict[tuple[str, int], int] = {}
        for work in works:
            lane = (work.agent, work.priority)
            if lane not in fronts:
                fronts[lane] = self._front(cursor, *lane) - 1
        cursor.executemany(
            "update fleet_work set worker = '', since = 0, touched = paused, rank = iif(paused, null, ?)"
            " where session = ?",
            [(fronts[work.agent, work.priority], work.session) for work in works],
        )
        return works

    def _front(self, cursor: Cursor, agent: str, priority: int) -> int:
        sql = (
            "select rank from fleet_work where agent = ? and avoid_version = '' and priority = ? and rank is not null"
            " order by rank limit 1"
        )
        front = value_of(cursor, sql, (agent, priority))
        return value_of(cursor, "select reached from fleet_place") + 1 if front is None else front

    def workers(self) -> list[WorkerRow]:
        """All workers that are known."""
        return self._file.glance(self._workers)

    def _workers(self, cursor: Cursor) -> list[WorkerRow]:
        rows: list[WorkerRow] = []
        now, boot = self._clock.monotonic(), boot_id()
        for id, host, pid, version, agents, size, busy, started, wish, done, recovered, seen, where in cursor.execute(
            _WORKERS
        ).fetchall():
            # Clocks of two boots say nothing about each other: it is at least as long ago as this boot.
            age = max(0, now - whole(seen)) if where == boot else now
            rows.append(
                WorkerRow(
                    text(id), text(host), whole(pid), text(version), names(agents),
                    whole(size), whole(busy), whole(started), age, text(wish),
                    whole(done), whole(recovered),
                )
            )  # fmt: skip
        return rows

    def wish(self, worker: str | None, wish: str) -> int:
        """Tell a worker (None: all) what is wanted of it; how many were told."""
        sql = "update fleet_workers set wish = ?1 where id = ?2 or ?2 is null returning 1"
        return self._file.write("board.wish", lambda cursor: len(cursor.execute(sql, (wish, worker)).fetchall()))

    # -- looking and steering --------------------------------------------------------------------------------------

    def works(self, which: Filter = EVERY, *, after: str | None = None, limit: int = 100) -> list[Work]:
        """Sessions on the board in order of id, after an id."""
        where, values = _where(which)
        if after is not None:
            where, values = f"{where} and session > ?", [*values, after]
        with self._file.read() as cursor:
            return self._works(cursor.execute(f"{_WORK} where {where} order by session limit ?", (*values, limit)))

    def counts(self) -> dict[tuple[str, str], int]:
        """How many sessions there are by agent and state."""
        with self._file.read() as cursor:
            found = cursor.execute(f"select agent, {_STATE}, count(*) from fleet_work group by 1, 2").fetchall()
            return {(text(agent), text(state)): whole(number) for agent, state, number in found}

    def change(self, which: Filter, do: str, now: int) -> int:
        """Do something to sessions: "pause", "unpause", "retry", "forget"; how many."""
        if do not in _CHANGES:
            raise InvalidInput(f"sessions can be told {', '.join(_CHANGES)}, not {do!r:.40}")
        where, values = _where(which)
        # Triggers change rows on their own account: what is counted are the rows of this statement.
        sql = f"{_CHANGES[do]} and {where} returning 1"
        return self._file.write("board.change", lambda cursor: len(cursor.execute(sql, values).fetchall()))

    def hold(self, agent: str, on: bool) -> None:
        """Let no worker take sessions of an agent any more; or let them again."""

        def write(cursor: Cursor) -> None:
            if on:
                cursor.execute("insert or ignore into fleet_holds values (?)", (agent,))
                return
            cursor.execute("delete from fleet_holds where agent = ?", (agent,))
            self._catch_up(cursor, agent)

        self._file.write("board.hold", write)

    def held(self) -> list[str]:
        """Agents whose sessions no worker takes."""
        return self._file.glance(lambda cursor: [text(agent) for (agent,) in cursor.execute(_HELD).fetchall()])

    def mark(self) -> str:
        """Something that differs when anything in the file was changed since, by whomever."""
        return str(self._file.changed())

    def _catch_up(self, cursor: Cursor, agent: str) -> None:
        """Move the lanes of an agent that was not served for a while to where the others are by now.

        Otherwise all that had gathered there would go before everybody else, whoever owns it.
        """
        reached = value_of(cursor, "select reached from fleet_place")
        sql = (
            "select avoid_version, priority, min(rank) from fleet_work where agent = ? and rank is not null"
            " group by 1, 2"
        )
        for avoid_version, priority, front in cursor.execute(sql, (agent,)).fetchall():
            if reached - front > APART:
                cursor.execute(
                    "update fleet_work set rank = rank + ? where agent = ? and avoid_version = ? and priority = ?"
                    " and rank is not null",
                    (reached - front, agent, avoid_version, priority),
                )

    def _works(self, found: Iterable[Any]) -> list[Work]:
        works: list[Work] = []
        for session, agent, owner, priority, queued, due, worker, since, tries, step, parked, paused, avoid in found:
            if type(priority) is not int or type(since) is not int or type(due) not in (int, type(None)):
                raise Damaged("a row of the board")
            works.append(
                Work(
                    text(session), text(agent), text(owner), priority, bool(queued), due,
                    text(worker), since, whole(tries), whole(step), text(parked), bool(paused), text(avoid),
                )
            )  # fmt: skip
        return works

    # -- places ----------------------------------------------------------------------------------------------------

    def slot(self, name: str, holder: str, most: int, ttl: int) -> bool:
        """Take or renew one of ``most`` places of that name, for ``ttl`` ms."""
        # Many may wait for a place, asking again and again: they do not take the writer's lock to hear no.
        if self._file.glance(lambda cursor: self._is_full(cursor, name, holder, most)):
            return False

        def write(cursor: Cursor) -> bool:
            now, boot = self._clock.monotonic(), boot_id()
            cursor.execute(f"delete from fleet_slots where name = ? and not ({_HELD_PLACE})", (name, boot, now))
            if self._is_full(cursor, name, holder, most):
                return False
            cursor.execute("insert or replace into fleet_slots values (?, ?, ?, ?)", (name, holder, now + ttl, boot))
            return True

        return self._file.write("board.slot", write, synced=False)

    def _is_full(self, cursor: Cursor, name: str, holder: str, most: int) -> bool:
        """Whether others have all places."""
        sql = f"select count(*) from fleet_slots where name = ? and holder <> ? and {_HELD_PLACE}"
        return value_of(cursor, sql, (name, holder, boot_id(), self._clock.monotonic())) >= most

    def unslot(self, name: str, holder: str) -> None:
        """Give a place back."""
        sql = "delete from fleet_slots where name = ? and holder = ?"
        self._file.write("board.unslot", lambda cursor: cursor.execute(sql, (name, holder)), synced=False)


def _make(cursor: Cursor) -> None:
    from importlib import resources

    cursor.execute((resources.files("perdure.stores.sqlite") / "sql" / "board.sql").read_text("utf-8"))


def _where(which: Filter) -> tuple[str, list[Any]]:
    """The condition that a filter stands for."""
    tests = board_tests(which, _STATE, "?")
    if which.sessions is not None:
        tests["session in (select value from json_each(?))"] = json.dumps(which.sessions)
    return " and ".join(["true", *tests]), list(tests.values())


NEAR = 64
"""How far into a lane is looked past owners who have enough, before each owner's first one is looked up instead."""
_LOWEST = -(1 << 63)

_HELD = "select agent from fleet_holds order by 1"
_FIRST_LANE = "select min(avoid_version) from fleet_work where agent = ? and rank is not null"
_NEXT_LANE = f"{_FIRST_LANE} and avoid_version > ?"
_FIRST = (
    "select -priority, rank, no, owner from fleet_work where agent = ? and avoid_version = ? and rank is not null"
    " order by priority desc, rank limit ?"
)
_NEXT_OWNER = (
    "select priority, owner from fleet_work where agent = ? and avoid_version = ? and rank is not null"
    " and (priority, owner) > (?, ?) order by priority, owner limit 1"
)
_OF_OWNER = (
    "select -priority, rank, no, owner from fleet_work where agent = ? and avoid_version = ? and priority = ?"
    " and owner = ? and rank is not null order by rank limit ?"
)


class Picked(NamedTuple):
    """A queued session; sorts as they are claimed."""

    low: int
    """Its priority, negated."""
    rank: int
    no: int
    owner: str


def pick(cursor: Cursor, agents: Sequence[str], count: int, per_owner: int | None, version: str) -> list[Picked]:
    """The sessions that are next, in order."""
    if count <= 0:
        return []
    room = _Room(cursor, per_owner)
    held = {agent for (agent,) in cursor.execute(_HELD).fetchall()}
    found: list[Picked] = []
    for agent in set(agents) - held:
        for avoid_version in _avoided_versions(cursor, agent):
            if not avoid_version or avoid_version != version:
                found += _first_of(cursor, (agent, avoid_version), count, room)
    return room.admitted(sorted(found), count)


def _avoided_versions(cursor: Cursor, agent: str) -> Iterator[str]:
    """The versions that lanes of an agent avoid; "" is none, and nearly always the only one."""
    avoid_version = value_of(cursor, _FIRST_LANE, (agent,))
    while avoid_version is not None:
        yield avoid_version
        avoid_version = value_of(cursor, _NEXT_LANE, (agent, avoid_version))


class _Room:
    """How many more sessions each owner may have at work."""

    def __init__(self, cursor: Cursor, per_owner: int | None) -> None:
        self._cursor = cursor
        self.per_owner = per_owner
        self._busy: dict[str, int] = {}

    def left(self, owner: str) -> int:
        """How many more this owner may have."""
        assert self.per_owner is not None
        if owner not in self._busy:
            sql = "select count(*) from fleet_work where owner = ? and worker <> ''"
            self._busy[owner] = value_of(self._cursor, sql, (owner,))
        return self.per_owner - self._busy[owner]

    def admitted(self, found: Iterable[Picked], count: int) -> list[Picked]:
        """The first so many for which there is room."""
        picked: list[Picked] = []
        taken: dict[str, int] = {}
        for one in found:
            if len(picked) == count:
                break
            if self.per_owner is not None:
                already = taken.get(one.owner, 0)
                if self.left(one.owner) <= already:
                    continue
                taken[one.owner] = already + 1
            picked.append(one)
        return picked


def _first_of(cursor: Cursor, lane: tuple[str, str], count: int, room: _Room) -> list[Picked]:
    """The first sessions of a lane for which there is room, in order."""
    if room.per_owner is None:
        return _ask(cursor, _FIRST, (*lane, count))
    reach = count + NEAR
    near = _ask(cursor, _FIRST, (*lane, reach))
    admitted = room.admitted(near, count)
    if len(admitted) == count or len(near) < reach:
        return admitted
    # An owner who has enough stands there with hundreds: those of the others are looked up owner by owner.
    found: list[Picked] = []
    place: tuple[Any, ...] = (_LOWEST, "")
    while rows := cursor.execute(_NEXT_OWNER, (*lane, *place)).fetchall():
        place = rows[0]
        if (left := room.left(place[1])) > 0:
            found += _ask(cursor, _OF_OWNER, (*lane, *place, min(left, count)))
    return sorted(found)


def _ask(cursor: Cursor, sql: str, values: Sequence[Any]) -> list[Picked]:
    return [Picked(*row) for row in cursor.execute(sql, values).fetchall()]
