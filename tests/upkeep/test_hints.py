"""Columns that decide something before anything is opened: verify reports each that is not as the checkpoints say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw
import pytest

import perdure
from perdure.fleet.board import board_of, submit
from perdure.protocols import NewWork, Rest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from perdure.testing.clock import FakeClock

KEY = "a key of sixteen bytes"
DAY = 86_400_000


@pytest.fixture
def at(tmp_path: Path, clock: FakeClock) -> Iterator[Callable[[], perdure.Database]]:
    opened: list[perdure.Database] = []

    def open_at() -> perdure.Database:
        opened.append(perdure.open(f"sqlite:///{tmp_path}/a.db", keys=KEY, clock=clock))
        return opened[-1]

    yield open_at
    for db in opened:
        db.close()


def findings(db: perdure.Database) -> list[str]:
    return [finding.what for finding in db.verify().findings]


def change(folder: Path, sql: str, *values: Any) -> None:
    connection = apsw.Connection(f"{folder}/a.db")
    connection.execute(sql, values)
    assert connection.changes() == 1
    connection.close()


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("update sessions set agent = 'mine'", "another agent"),
        ("update sessions set agent = ''", "another agent"),
        ("update sessions set expires = null", "another end of its time"),
        (f"update sessions set expires = expires + {2 * DAY}", "another end of its time"),
        ("update sessions set owner = 'eve'", "another owner"),
        ("update sessions set token = 0", "an older lease"),
        ("update sessions set status = 'closed'", "another status"),
        ("update sessions set posts = posts + 1", "number 4 was never taken, and not there"),
        ("update sessions set posts = 1", "says that 1 inputs were posted, and there is a number 3"),
        ("delete from inbox where key = 'm3'", "number 3 was never taken, and not there"),
        ("delete from inbox where key = 'wake::m1'", "number 1 was never taken, and not there"),
        ("update inbox set taken = x'00', body = x'' where key = 'm3'", "no checkpoint took it"),
        ("update inbox set taken = null where key = 'm2'", "body is missing"),
    ],
)
def test_a_column_that_differs_is_reported(at: Callable[[], perdure.Database], tmp_path: Path, sql: str, what: str):
    db = at()
    submit(db, "s", agent="support", owner="ana", ttl=7 * 86_400)
    db.wake("s", delay="2d", key="m1")
    db.post("s", "two", key="m2")
    with db.session("s") as s:
        s.take()
        s.commit()
    db.post("s", "three", key="m3")
    assert findings(db) == []
    change(tmp_path, sql)
    found = findings(db)
    assert any(what in one for one in found), found


def test_whoever_wrote_under_a_lease_that_was_lost_is_named(at: Callable[[], perdure.Database], tmp_path: Path):
    db = at()
    stale = db.session("s")
    stale.vars["n"] = 1
    stale.commit()
    old = stale.fence
    # Somebody takes the lease away from it by hand, another writer comes, and then it is given back by hand.
    change(tmp_path, "update sessions set holder = ''")
    with db.session("s") as s:
        s.vars["n"] = 2
        s.commit()
    assert findings(db) == []
    change(tmp_path, "update sessions set holder = 'me', token = ?", old)
    stale.reload()
    stale.vars["n"] = 3
    stale.commit()
    assert "it was written under an older lease than the checkpoint before it" in findings(db)


def test_a_session_that_has_ended_by_one_column_alone_is_reported(
    at: Callable[[], perdure.Database], tmp_path: Path, clock: FakeClock
):
    db = at()
    with db.session("s") as s:
        s.commit()
    db.witness(tmp_path / "witness")
    clock.advance(1000)
    change(tmp_path, "update sessions set reason = 'expired', updated = ?", clock.wall())
    for witness in (tmp_path / "witness", None):
        (finding,) = db.verify(witness=witness).findings
        assert finding.what == "the store says that it has ended, and it has checkpoints"
    for look in (db.read, db.look, db.session, db.history):
        with pytest.raises(perdure.Corrupted, match="says that it has ended, and it has checkpoints"):
            look("s")


def test_a_tombstone_that_nobody_signed_is_found_without_a_witness(
    at: Callable[[], perdure.Database], tmp_path: Path, clock: FakeClock
):
    db = at()
    with db.session("s", ttl=60) as s:
        s.commit()
    clock.advance(61_000)
    assert db.sweep().removed == 1
    assert findings(db) == []
    change(tmp_path, "update sessions set reason = 'deleted' where id = 's'")
    assert findings(db) == ["it is not signed: the session was not deleted by Perdure"]


def test_a_tombstone_that_somebody_added_to_is_found_without_a_witness(
    at: Callable[[], perdure.Database], tmp_path: Path, clock: FakeClock
):
    db = at()
    with db.session("s", ttl=60) as s:
        s.commit()
    clock.advance(61_000)
    assert db.sweep().removed == 1
    change(tmp_path, "update sessions set reason = reason || '!?' where id = 's'")
    assert findings(db) == ["its signature cannot be read"]


def test_a_counter_of_leases_that_was_put_to_its_end_is_told_of(at: Callable[[], perdure.Database], tmp_path: Path):
    db = at()
    with db.session("s") as s:
        s.commit()
    change(tmp_path, "update meta set value = 9223372036854775807 where key = 'token'")
    with pytest.raises(perdure.Corrupted, match="the store's token is not what was written"):
        db.session("s")
    assert db.read("s").step == 1


def test_a_session_without_an_end_has_none(at: Callable[[], perdure.Database], tmp_path: Path):
    db = at()
    with db.session("s", ttl=None) as s:
        s.commit()
    assert findings(db) == []
    change(tmp_path, "update sessions set expires = 5")
    assert "another end" in findings(db)[0]


@pytest.mark.parametrize(("sql", "what"), [("agent = 'mine'", "another agent"), ("owner = 'eve'", "another owner")])
def test_so_is_what_the_board_says_of_a_session_that_nobody_works_on(
    at: Callable[[], perdure.Database], tmp_path: Path, clock: FakeClock, sql: str, what: str
):
    db = at()
    assert not db.kernel.store.has_board()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    with db.session("other") as s:
        s.commit()
    assert findings(db) == []
    assert not db.kernel.store.has_board(), "verify makes nothing"  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    submit(db, "s", agent="support", owner="ana")
    board = board_of(db)
    assert [work.session for work in board.claim("w", ["support"], 1, clock.wall())] == ["s"]
    board.rest("w", [Rest("s", 1)], clock.wall())
    assert findings(db) == []
    change(tmp_path, f"update fleet_work set {sql}")
    assert findings(db) == [f"it says {what}"]
    # Given to another agent on purpose it is queued, and its checkpoints say so later.
    board.put([NewWork("s", "sales", "ana")])
    assert findings(db) == []
