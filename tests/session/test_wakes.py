"""Being woken later: durable without the lease, given when the time has come, repeated by cron, taken back by key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import perdure
from perdure import tool
from perdure.errors import InvalidInput
from perdure.system import faults
from perdure.testing.clock import FakeClock

Open = Callable[..., perdure.Database]
HOUR, DAY = 3_600_000, 24 * 3_600_000


def taken(db: perdure.Database) -> list[Any]:
    """What is given by now, taken by a commit."""
    with db.session("s") as s:
        said = [m.body for m in s.take()]
        s.vars["n"] = s.vars.get("n", 0) + 1
        s.commit()
        return said


def test_a_wake_is_given_when_its_time_has_come_and_once(open_db: Open, clock: FakeClock):
    db = open_db()
    assert db.wake("s", delay="2h", message="tea")
    at = datetime.fromtimestamp(clock.wall() / 1000 + 3600, UTC)
    assert db.wake("s", at, message={"role": "system", "content": "x"})
    db.post("s", "hello")
    assert taken(db) == ["hello"]
    clock.advance(HOUR)
    assert taken(db) == [{"role": "system", "content": "x"}]
    assert taken(db) == []
    clock.advance(HOUR)
    assert taken(db) == ["tea"]
    assert db.look("s").pending == 0


def test_many_that_are_not_due_do_not_hide_a_message(open_db: Open, clock: FakeClock):
    db = open_db()
    for i in range(150):
        db.wake("s", delay=3600 + i, key=f"w{i}")
    db.post("s", "hello")
    assert taken(db) == ["hello"]
    clock.advance(HOUR)
    assert len(taken(db)) == 1


def test_a_session_with_a_wake_ahead_is_kept(open_db: Open, clock: FakeClock):
    db = open_db()
    with db.session("s", ttl=3600) as s:
        s.vars["kept"] = True
        s.commit()
    db.wake("s", delay="30d", message="here")
    clock.advance(30 * DAY)
    db.sweep()
    with db.session("s") as s:
        assert s.vars["kept"]
        assert [m.body for m in s.take()] == ["here"]
        s.commit()


def test_the_same_key_is_the_same_wake(open_db: Open, clock: FakeClock):
    db = open_db()
    at = clock.wall() + HOUR
    assert db.wake("s", at, key="tea")
    assert not db.wake("s", at, key="tea")
    with pytest.raises(InvalidInput, match="at another time"):
        db.wake("s", at + 1, key="tea")
    assert db.wake("s", delay="1h", key="cake")
    clock.advance(1000)
    assert not db.wake("s", delay="1h", key="cake")
    clock.advance(HOUR)
    assert len(taken(db)) == 2


def test_cron_comes_again_and_what_was_missed_is_made_up_for_once(open_db: Open, clock: FakeClock):
    db = open_db()
    # The clock of the test stands at 22:13:20 UTC.
    assert db.wake("s", cron="0 9 * * *", zone="Europe/Berlin", message="good morning", key="m")
    clock.advance(9 * HOUR)
    assert taken(db) == []
    clock.advance(HOUR)
    assert taken(db) == ["good morning"]
    assert db.look("s").pending == 1
    clock.advance(5 * DAY)
    assert taken(db) == ["good morning"]
    assert taken(db) == []
    clock.advance(DAY)
    assert taken(db) == ["good morning"]


def test_a_wake_is_taken_back_by_its_key(open_db: Open, clock: FakeClock):
    db = open_db()
    db.wake("s", cron="0 * * * *", key="hourly", message="tick")
    db.wake("s", delay="1h", key="other", message="other")
    clock.advance(HOUR)
    assert sorted(taken(db)) == ["other", "tick"]
    db.cancel_wake("s", "hourly")
    clock.advance(DAY)
    assert taken(db) == []
    assert db.look("s").pending == 0
    # What is taken back can be asked for anew.
    assert db.wake("s", delay="1h", key="hourly-2", message="again")
    clock.advance(HOUR)
    assert taken(db) == ["again"]


def test_a_kill_between_the_next_time_and_the_taking_loses_and_doubles_nothing(open_db: Open, clock: FakeClock):
    db = open_db()
    db.wake("s", cron="0 * * * *", message="tick", key="t")
    clock.advance(HOUR)

    def die(name: str) -> None:
        if name == "wake.after_repost":
            raise KeyboardInterrupt

    for _ in range(4):
        faults.hook = die
        try:
            with db.session("s") as s, pytest.raises(KeyboardInterrupt):
                s.take()
        finally:
            faults.hook = None
        # Time goes on while nobody is there, past the next time, too.
        clock.advance(20 * 60_000)
    assert taken(db) == ["tick"]
    assert db.look("s").pending == 1
    clock.advance(HOUR)
    assert taken(db) == ["tick"]
    assert db.look("s").pending == 1


def test_a_tool_has_its_session_woken_once_however_often_it_is_made(open_db: Open, clock: FakeClock):
    @tool(if_unsure="retry")
    def remind(text: str, ctx: perdure.Context) -> str:
        ctx.wake(delay="1h", message=text)
        if ctx.attempt < 3:
            clock.advance(1000)
            raise ConnectionError
        return "ok"

    db = open_db()
    with db.session("s") as s:
        assert s.call(remind, "tea") == "ok"
        assert s.status == "sleeping"
    clock.advance(HOUR)
    assert taken(db) == ["tea"]
    assert taken(db) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "exactly one way"),
        ({"delay": 5, "cron": "* * * * *"}, "exactly one way"),
        ({"at": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001 - that is the mistake
        ({"at": "tomorrow"}, "datetime"),
        ({"at": -5}, "100 years"),
        ({"at": 10**18}, "100 years"),
        ({"delay": "soon"}, "duration"),
        ({"cron": "every day"}, "cron expression"),
        ({"cron": "0 0 31 2 *"}, "names no time"),
        ({"cron": "0 9 * * *", "zone": "Moon/Sea"}, "no time zone"),
        ({"cron": "0 9 * * *", "zone": "../../etc/passwd"}, "no time zone"),
        ({"delay": 5, "key": ""}, "empty"),
    ],
)
def test_a_time_that_is_none_is_refused(options: dict[str, Any], said: str):
    with perdure.open("memory://") as db:
        with pytest.raises(InvalidInput, match=said):
            db.wake("s", **options)
        assert db.sessions() == []
