"""What has expired and is set aside may be brought back: it is verified like everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import pytest

import perdure
from perdure.errors import Corrupted
from perdure.history.lives import aside_id
from perdure.upkeep import expired_sessions
from tests.store_urls import EMBEDDED, STORES, url_of
from tests.tampering import forge_end
from tests.upkeep.copies import write_everything

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.testing.clock import FakeClock

KEY = "a key of sixteen bytes"
ASIDE = aside_id("s", 0)
OF_IT = f"no = (select no from sessions where id = '{ASIDE}')"
DAMAGE = {
    "a payload": f"update commits set payload = x'd501000110000000' where step = 3 and {OF_IT}",
    "a missing row": f"delete from commits where step = 3 and {OF_IT}",
    "a status": f"update sessions set status = 'failed' where {OF_IT}",
    "an owner": f"update sessions set owner = 'eve' where {OF_IT}",
    "a missing note": f"delete from artifacts where kind = 'set aside' and {OF_IT}",
    "another agent": f"""update artifacts set body = cast('{{"agent":"eve","ttl":60000}}' as blob)
        where kind = 'set aside' and {OF_IT}""",
    "another time to live": f"""update artifacts set body = cast('{{"agent":"","ttl":999999999999}}' as blob)
        where kind = 'set aside' and {OF_IT}""",
    "a note of another line": f"update artifacts set line = 7 where kind = 'set aside' and {OF_IT}",
    "a note of a later step": f"update artifacts set hi = 7 where kind = 'set aside' and {OF_IT}",
    "a note of an earlier step": f"update artifacts set lo = 7 where kind = 'set aside' and {OF_IT}",
    "an agent": f"update sessions set agent = 'eve' where {OF_IT}",
    "a taken message": f"delete from inbox where taken is not null and {OF_IT}",
    "another life": f"update sessions set id = '{aside_id('s', 5)}' where {OF_IT}",
    "another session": f"update sessions set id = '{aside_id('t', 0)}' where {OF_IT}",
    "no session": f"update sessions set id = 'perdure:expired:x' where {OF_IT}",
}


def _expired(url: str, clock: FakeClock) -> perdure.Database:
    """A store in which a session with everything in it is set aside, and another one lives."""
    db = perdure.open(url, keys=KEY, clock=clock, maintain=False)
    with db.session("s", owner="ana", ttl=60) as s:
        s.vars["n"] = 0
        s.commit()
    write_everything(db, "s")
    db.compact("s")
    with db.session("s") as s:
        s.take()
        s.commit()
    with db.session("live") as s:
        s.commit()
    db.post("s", "too late for it", key="late")
    with pytest.MonkeyPatch.context() as patched:
        # The time of a server cannot be moved ahead.
        patched.setattr(expired_sessions, "expired", lambda *_: True)
        assert expired_sessions.expire(db.kernel, "s", None)
    return db


@pytest.mark.parametrize("kind", STORES)
def test_one_that_is_intact_is_found_intact_before_and_after_it_came_back(tmp_path: Path, clock: FakeClock, kind: str):
    with _expired(url_of(kind, tmp_path), clock) as db:
        report = db.verify()
        assert report.findings == ()
        assert (report.sessions, report.set_aside) == (2, 1)
        assert db.verify("s").checkpoints == report.checkpoints - 1
        db.revive("s")
        assert db.verify().findings == ()


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_to_it_is_found(tmp_path: Path, clock: FakeClock, what: str):
    url = url_of("sqlite", tmp_path)
    _expired(url, clock).close()
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.cursor().execute(DAMAGE[what]).fetchall()
    assert connection.changes() > 0, "the test did no damage"
    connection.close()
    with perdure.open(url, keys=KEY, clock=clock, maintain=False) as db:
        found = db.verify().findings
        assert found
        assert {f.session for f in found} & {"s", "t", "perdure:expired:x"}
        assert "set aside" in str(found)


@pytest.mark.parametrize("kind", STORES)
def test_bytes_of_it_that_were_changed_are_found_on_every_store(tmp_path: Path, clock: FakeClock, kind: str):
    with _expired(url_of(kind, tmp_path), clock) as db:
        dump = db.kernel.store.dump(ASIDE)
        row, shown = dump.rows[-1]
        worse = dump._replace(rows=(*dump.rows[:-1], (row._replace(payload=row.payload[:-1] + b"x"), shown)))
        db.kernel.store.drop(ASIDE, None, "")
        db.kernel.store.restore(worse)
        assert {f.session for f in db.verify().findings} == {"s"}


def test_a_forged_end_of_it_is_found(tmp_path: Path, clock: FakeClock):
    url = url_of("sqlite", tmp_path)
    _expired(url, clock).close()
    forge_end("sqlite", tmp_path, ASIDE)
    with perdure.open(url, keys=KEY, clock=clock, maintain=False) as db:
        assert [f.session for f in db.verify().findings] == [ASIDE]


def test_one_without_its_note_is_not_brought_back_as_something_else(tmp_path: Path, clock: FakeClock):
    url = url_of("sqlite", tmp_path)
    _expired(url, clock).close()
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.cursor().execute(DAMAGE["a missing note"]).fetchall()
    connection.close()
    with perdure.open(url, keys=KEY, clock=clock) as db, pytest.raises(Corrupted, match="set aside"):
        db.revive("s")


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_life_without_an_end_that_made_way_comes_back_without_one(tmp_path: Path, clock: FakeClock, kind: str):
    with perdure.open(url_of(kind, tmp_path), keys=KEY, clock=clock, maintain=False) as db:
        for ttl in (60, None):
            with db.session("s", ttl=ttl) as s:
                s.commit()
            clock.advance(61_000)
        for life in ("first", "second"):
            db.revive("s")
            assert db.verify().findings == (), life
        assert db.look("s").expires is None
