"""Which queued sessions are next: higher priority first, then owners in turns. Reads only.

The queue is in lanes: what the same workers can claim, in order of priority and rank. So looking for the next ones
costs the same however many sessions wait, and however many of them are held, or are for other workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.stores._sqlite_cursor import value_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from perdure.stores._sqlite_cursor import Cursor

NEAR = 64
"""How far into a lane is looked past owners who have enough, before each owner's first one is looked up instead."""
_LOWEST = -(1 << 63)

HELD = "select agent from fleet_holds order by 1"
_FIRST_LANE = "select min(shun) from fleet_work where agent = ? and rank is not null"
_NEXT_LANE = f"{_FIRST_LANE} and shun > ?"
_FIRST = (
    "select -priority, rank, no, owner from fleet_work where agent = ? and shun = ? and rank is not null"
    " order by priority desc, rank limit ?"
)
_NEXT_OWNER = (
    "select priority, owner from fleet_work where agent = ? and shun = ? and rank is not null"
    " and (priority, owner) > (?, ?) order by priority, owner limit 1"
)
_OF_OWNER = (
    "select -priority, rank, no, owner from fleet_work where agent = ? and shun = ? and priority = ? and owner = ?"
    " and rank is not null order by rank limit ?"
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
    held = {agent for (agent,) in cursor.execute(HELD).fetchall()}
    found: list[Picked] = []
    for agent in set(agents) - held:
        for shun in _shuns(cursor, agent):
            if not shun or shun != version:
                found += _first_of(cursor, (agent, shun), count, room)
    return room.admitted(sorted(found), count)


def _shuns(cursor: Cursor, agent: str) -> Iterator[str]:
    """What the lanes of an agent shun; "" is nothing, and nearly always the only one."""
    shun = value_of(cursor, _FIRST_LANE, (agent,))
    while shun is not None:
        yield shun
        shun = value_of(cursor, _NEXT_LANE, (agent, shun))


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
