"""A life that is brought back, and what was posted while another one was in its place: nothing is lost, nothing is
given out twice, and nothing seems to be missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.errors import InvalidInput
from perdure.upkeep import expired_sessions
from tests.store_urls import STORES, url_of
from tests.upkeep.aging import killed_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from perdure.testing.clock import FakeClock

KEY = "a key of sixteen bytes"
DAY = 86_400_000


@pytest.fixture(params=STORES)
def db(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[perdure.Database]:
    with perdure.open(url_of(request.param, tmp_path), keys=KEY, clock=clock, maintain=False) as db:
        yield db


def end(db: perdure.Database) -> None:
    """Let the session's time run out. The time of a server cannot be moved ahead."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(expired_sessions, "expired", lambda *_: True)
        assert expired_sessions.expire(db.kernel, "s", None)


def live(db: perdure.Database, name: str, limit: int = 100) -> list[Any]:
    """Work on the session; what it is given, and takes."""
    with db.session("s", ttl=6000) as s:
        found = [message.body for message in s.take(limit)]
        s.vars["life"] = name
        s.vars.setdefault("took", [])
        s.vars["took"].extend(found)
        s.commit()
        return found


def assert_sound(db: perdure.Database, clock: FakeClock) -> None:
    assert db.verify().findings == ()
    assert db.verify("s").findings == ()
    with perdure.open("memory://", keys=KEY, clock=clock) as copy:
        copied = db.copy_to(copy)
        assert (copied.failed, copied.copied) == ([], 1)
        assert copy.verify().findings == ()


def test_what_the_other_life_took_is_not_missing(db: perdure.Database, clock: FakeClock):
    live(db, "A")
    end(db)
    db.post("s", "one")
    assert live(db, "B") == ["one"]
    db.revive("s")
    assert_sound(db, clock)
    assert live(db, "A") == [], "B has it, and B is set aside"
    db.post("s", "two")
    assert_sound(db, clock)
    assert live(db, "A") == ["two"]
    assert_sound(db, clock)
    db.revive("s")
    assert db.read("s").vars["took"] == ["one"]
    assert live(db, "B") == [], "A has the other one"
    assert_sound(db, clock)


def test_what_waits_is_for_the_one_that_is_brought_back_and_for_nobody_twice(db: perdure.Database, clock: FakeClock):
    live(db, "A")
    end(db)
    for n in range(4):
        db.post("s", n, key=f"m{n}")
    assert live(db, "B", 2) == [0, 1]
    db.revive("s")
    assert_sound(db, clock)
    assert live(db, "A", 1) == [2]
    assert_sound(db, clock)
    db.revive("s")
    assert live(db, "B") == [3]
    assert_sound(db, clock)
    db.revive("s")
    assert live(db, "A") == []
    assert db.read("s").vars["took"] == [2]
    assert_sound(db, clock)


def test_one_that_waits_while_a_later_one_was_taken_stays_for_whoever_is_there(db: perdure.Database, clock: FakeClock):
    live(db, "A")
    end(db)
    live(db, "B")
    db.wake("s", delay="1h", message="later", key="far off")
    db.post("s", "now")
    assert live(db, "B") == ["now"]
    db.revive("s")
    assert_sound(db, clock)
    clock.advance(3_600_001)
    assert live(db, "A") == ["later"]
    assert_sound(db, clock)
    db.revive("s")
    assert_sound(db, clock)
    assert live(db, "B") == []


def test_one_that_another_life_took_and_that_is_put_back_is_refused(db: perdure.Database):
    live(db, "A")
    end(db)
    db.post("s", "pay 100", key="m")
    (entry,) = db.kernel.store.inbox("s")
    assert live(db, "B") == ["pay 100"]
    db.revive("s")
    # Whoever can write the store puts the sealed entry back under its number.
    (row, *_) = (db.kernel.store.dump("s"),)
    db.kernel.store.drop("s", None, "")
    db.kernel.store.restore(row._replace(inbox=(*row.inbox, entry)))
    with db.session("s") as s, pytest.raises(perdure.Corrupted, match="a checkpoint has taken it"):
        s.take()


def test_one_whose_key_the_life_has_used_for_another_content_is_not_lost(db: perdure.Database):
    db.post("s", "first", key="m")
    assert live(db, "A") == ["first"]
    end(db)
    db.post("s", "second", key="m")
    with pytest.raises(InvalidInput, match="waits under the key 'm'"):
        db.revive("s")
    assert live(db, "B") == ["second"], "what it says helps"
    db.revive("s")
    assert db.read("s").vars["took"] == ["first"]
    assert db.verify().findings == ()


def test_one_that_the_life_took_and_that_was_posted_again_is_not_taken_twice(db: perdure.Database, clock: FakeClock):
    db.post("s", "first", key="m")
    assert live(db, "A") == ["first"]
    end(db)
    db.post("s", "first", key="m")
    db.revive("s")
    assert live(db, "A") == []
    assert_sound(db, clock)


def test_a_witness_that_saw_it_waiting_misses_nothing(db: perdure.Database, tmp_path: Path):
    live(db, "A")
    end(db)
    db.post("s", "one", key="m1")
    witness = tmp_path / "witness"
    db.revive("s")
    db.witness(witness)
    end(db)
    assert live(db, "B") == ["one"]
    db.revive("s")
    assert db.verify(witness=witness).findings == ()
    live(db, "A")
    assert db.verify(witness=witness).findings == ()
    db.witness(witness)


def test_one_that_was_deleted_after_the_revival_is_missing(db: perdure.Database):
    live(db, "A")
    end(db)
    db.post("s", "one")
    live(db, "B")
    db.revive("s")
    db.post("s", "two")
    dump = db.kernel.store.dump("s")
    db.kernel.store.drop("s", None, "")
    db.kernel.store.restore(dump._replace(inbox=()))
    assert [f.what for f in db.verify().findings] == ["input number 2 was never taken, and not there"]


@pytest.mark.parametrize(
    "point", ["sweep.after_aside", "sweep.after_drop", "revive.before_restore", "revive.after_restore"]
)
def test_interrupted_anywhere_nothing_seems_to_be_missing(db: perdure.Database, clock: FakeClock, point: str):
    live(db, "A")
    end(db)
    for n in range(2):
        db.post("s", n)
    assert live(db, "B", 1) == [0]
    with killed_at(point):
        db.revive("s")
    assert db.verify().findings == ()
    db.revive("s", life=0)
    assert live(db, "A") == [1]
    assert_sound(db, clock)


# -- as it was ---------------------------------------------------------------------------------------------------------


def test_it_is_as_it_was_and_its_history_says_that_it_was_brought_back(db: perdure.Database):
    with db.session("s", ttl=60, owner="ana") as s:
        s.journal.settings.agent = "clerk"
        s.vars["n"] = 1
        s.commit(label="half done")
        s.fork("b")
        s.tag("t")
        s.close()
    before, row = db.read("s").plain(), db.look("s")
    end(db)
    db.revive("s")
    again = db.look("s")
    assert db.read("s").plain() == before
    assert again[:3] == row[:3]
    assert (again.agent, again.error, again.label, again.created) == (row.agent, row.error, row.label, row.created)
    assert db.history("s")[0].kind == "revived"
    assert [h for h in again.heads if h.branch != "main"] == [h for h in row.heads if h.branch != "main"]
    assert db.verify().findings == ()


def test_the_time_to_live_does_not_grow_with_the_time_it_was_set_aside(clock: FakeClock):
    with perdure.open("memory://", clock=clock, maintain=False) as db:
        with db.session("s", ttl=60) as s:
            s.commit()
        for _ in range(3):
            clock.advance(2 * DAY)
            db.sweep()
            db.revive("s")
            assert (db.look("s").expires or 0) - clock.wall() == 60_000
            assert db.verify().findings == ()


def test_one_that_cannot_be_read_stays_where_it_is(db: perdure.Database):
    live(db, "A")
    end(db)
    live(db, "B")
    (kept,) = db.set_aside("s")
    id = f"perdure:expired:{kept.life}:s"
    dump = db.kernel.store.dump(id)
    row, shown = dump.rows[-1]
    db.kernel.store.drop(id, None, "")
    worse = row._replace(payload=row.payload[:-1] + bytes([row.payload[-1] ^ 1]))
    db.kernel.store.restore(dump._replace(rows=(*dump.rows[:-1], (worse, shown))))
    with pytest.raises(perdure.Corrupted):
        db.revive("s")
    assert db.read("s").vars["life"] == "B", "and the one that is there was not put away for it"
