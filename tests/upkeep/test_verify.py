"""Verification: an intact store has no findings, every kind of damage has one, and a witness sees what is missing."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import perdure
from perdure.errors import Corrupted, KeyMismatch, NotFound, PerdureError
from perdure.history.lives import end_session
from perdure.upkeep.live_witness import LiveWitness
from perdure.upkeep.witness import read_witness
from tests.upkeep.pasts import write_past

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.system.flow import Flow
    from perdure.testing.clock import FakeClock

KEY = b"sixteen bytes or more"


def write(db: perdure.Database, session: str = "s", count: int = 5, **options: Any) -> None:
    with db.session(session, **{"ttl": None, **options}) as s:
        for _ in range(count):
            s.messages.append({"role": "user", "content": f"message {s.step}"})
            s.commit()


# -- the store itself -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_an_intact_store_has_no_findings(open_db: Callable[..., perdure.Database], seed: int):
    db = open_db(keys=KEY, maintain=False)
    write_past(db, "a", seed, count=200)
    write_past(db, "b", seed + 100, count=60)
    db.post("a", {"hello": 1})
    db.post("only-posted", {"hello": 1})
    told: list[str] = []
    report = db.verify(progress=lambda id, _: told.append(id))
    assert report.findings == ()
    assert report.ok
    assert told == ["a", "b", "only-posted"]
    assert report.sessions == 3
    assert report.checkpoints == db.kernel.store.usage().checkpoints
    assert report.blobs > 0
    db.prune("a", keep_last=20, keep_every=7)
    assert db.verify().findings == ()
    assert db.verify("b").sessions == 1


def test_a_session_that_is_not_there_is_not_found(db: perdure.Database):
    with pytest.raises(NotFound):
        db.verify("nobody")


DAMAGE = {
    "a payload": "update commits set payload = x'd501000110000000' where step = 38 and line = 0",
    "a payload of a packed row": "update commits set payload = x'd501000110000000' where step = 3 and line = 0",
    "an envelope": "update commits set envelope = cast(substr(envelope, 2) as blob) where step = 38",
    "a digest": "update commits set digest = randomblob(32) where step = 3 and line = 0",
    "a missing row": "delete from commits where step = 3 and line = 0",
    "a missing first row": "delete from commits where step = 1 and line = 0",
    "a missing last row": "delete from commits where step = 40 and line = 0",
    "a missing line": "delete from commits where line = 1",
    "swapped rows": "update commits set (envelope, payload, id, digest) = (select envelope, payload, id, digest"
    " from commits where step = 4 and line = 0) where step = 3 and line = 0",
    "a kind": "update commits set kind = 'done' where step = 3 and line = 0",
    "a status": "update sessions set status = 'failed'",
    "an error": "update sessions set error = 'TimeoutError'",
    "an owner": "update sessions set owner = 'eve'",
    "blob refs": "update commits set blobs = '' where blobs <> ''",
    "a pointer": "update sessions set step = 39, head = (select id from commits where step = 39 and line = 0)",
    "a missing pointer": "delete from branches where name = 'b'",
    "another branch's pointer": "update branches set (line, step, head) = (select line, step, id from commits"
    " where line = 0 and step = 39) where name = 'b'",
    "a pack": "update artifacts set body = cast(substr(body, 1, length(body) - 1) as blob) where kind = 'pack'",
    "a missing pack": "delete from artifacts where kind = 'pack'",
    "a snapshot": "update artifacts set body = cast(substr(body, 1, length(body) - 1) as blob) where kind = 'snapshot'",
    "a moved snapshot": "update artifacts set lo = 20, hi = 20 where kind = 'snapshot'",
    "a message": "update inbox set body = x'00d501000110000000' where taken is null",
    "a message's key": "update inbox set key = 'other' where taken is null",
    "a taken message": "update inbox set taken = null, body = x'00' where taken is not null",
}


def _damaged(tmp_path: Path, clock: FakeClock, *statements: str) -> perdure.Database:
    """A store with everything in it, and then something done to it behind its back."""
    url = f"sqlite:///{tmp_path}/a.db"
    with perdure.open(url, clock=clock, maintain=False) as db:
        write(db, "s", 20)
        db.post("s", "one", key="one")
        with db.session("s") as s:
            s.take()
            s.commit()
            s.vars["large"] = "large " * 10_000
            s.commit()
            s.fork("b", at=10)
        write(db, "s", 13)
        db.compact("s")
        write(db, "s", 5)
        db.post("s", "two", key="two")
        write(db, "t", 3)
        assert db.verify().findings == ()
        assert any(a.kind == "snapshot" for a in db.kernel.store.artifacts("s"))
    connection = apsw.Connection(f"{tmp_path}/a.db")
    for statement in statements:
        for _ in connection.execute(statement):
            pass
        assert connection.changes() > 0, "the test did no damage"
    connection.close()
    return perdure.open(url, clock=clock)


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_found_and_the_rest_is_looked_at_all_the_same(tmp_path: Path, clock: FakeClock, what: str):
    with _damaged(tmp_path, clock, DAMAGE[what].replace("step = 3 ", "step = 3 and no = 1 ")) as db:
        report = db.verify()
        assert report.findings
        assert {f.session for f in report.findings} <= {"s", "t", ""}
        assert report.sessions == 2
        assert "'s'" in str(report.findings[0])


@pytest.mark.parametrize("told", ["status = 'failed'", "label = 'approved by the board'", "label = ''"])
def test_a_session_that_is_said_to_stand_where_a_branch_does_is_found(tmp_path: Path, clock: FakeClock, told: str):
    url = f"sqlite:///{tmp_path}/a.db"
    with perdure.open(url, clock=clock) as db, db.session("s", owner="ana") as s:
        s.commit("waits", status="waiting_result", label="waiting for executive")
        s.fork("b")
        s.switch("b")
        s.commit("fails", status="failed", label="approved by the board")
        assert db.verify().ok
    connection = apsw.Connection(f"{tmp_path}/a.db")
    connection.execute(f"update sessions set {told}")
    connection.close()
    with perdure.open(url, clock=clock) as db:
        (finding,) = db.verify().findings
        assert finding.what == "the store says another status, error or label than its newest checkpoint of main"


def test_several_findings_are_reported_each_in_its_place(tmp_path: Path, clock: FakeClock):
    with _damaged(
        tmp_path,
        clock,
        "update commits set digest = randomblob(32) where no = 1 and line = 0 and step = 36",
        "update commits set digest = randomblob(32) where no = 1 and line = 0 and step = 39",
        "update commits set payload = x'00' where no = 2 and step = 2",
        DAMAGE["a message"],
    ) as db:
        found = [(f.kind, f.session, f.where.rpartition(", ")[2]) for f in db.verify().findings]
        # A wrong digest shows at its row, and at the row that stands on it.
        assert found == [
            ("corrupted", "s", "step 36"),
            ("corrupted", "s", "step 37"),
            ("corrupted", "s", "step 39"),
            ("corrupted", "s", "step 40"),
            ("inbox", "s", "inbox entry 'two'"),
            ("corrupted", "t", "step 2"),
        ]


def test_a_snapshot_of_another_state_is_found(open_db: Callable[..., perdure.Database]):
    """One that is sealed as it should be, and wrong."""
    from perdure.history.hydrate import load
    from perdure.model import Rewrite
    from perdure.record.packs import Skeleton, build_snapshot

    db = open_db(maintain=False)
    write(db, "s", 10)
    loaded = load(db.kernel, "s", 0, 8)
    assert loaded.point is not None
    loaded.doc["s"]["messages"][3]["content"] = "never said"
    db.kernel.store.rewrite(Rewrite("s", put=(build_snapshot(db.kernel, "s", loaded.point, Skeleton(loaded.doc, {})),)))
    (finding,) = db.verify().findings
    assert "another state" in finding.what
    assert "step 8" in finding.where


def test_an_anchor_of_another_state_or_place_is_found(open_db: Callable[..., perdure.Database]):
    from perdure.model import ANCHOR, Rewrite

    db = open_db(maintain=False)
    write(db, "s", 30)
    db.prune("s", keep_last=5, keep_every=10)
    anchors = [a for a in db.kernel.store.artifacts("s") if a.kind == ANCHOR]
    assert [a.hi for a in anchors] == [10, 20, 26]
    db.kernel.store.rewrite(Rewrite("s", discard=((ANCHOR, 0, anchors[1].lo),)))
    assert {f.where.rpartition(", ")[2] for f in db.verify().findings} >= {"step 20"}
    db.kernel.store.rewrite(Rewrite("s", put=(anchors[1]._replace(body=anchors[0].body),)))
    assert any("step 20" in f.where for f in db.verify().findings)
    with pytest.raises(Corrupted):
        db.read("s", 20)
    db.kernel.store.rewrite(Rewrite("s", put=(anchors[1],)))
    assert db.verify().ok


def test_missing_and_altered_blobs_are_found(tmp_path: Path, clock: FakeClock):
    with perdure.open(f"sqlite:///{tmp_path}/a.db", clock=clock) as db:
        with db.session("s", ttl=None) as s:
            s.vars["a"] = "large " * 10_000
            s.vars["b"] = "other " * 10_000
            s.commit()
            s.vars.clear()
            s.commit()
        one, two = (p for p in sorted((tmp_path / "a.db-blobs").rglob("*")) if p.is_file() and p.name != "lock")
        one.write_bytes(one.read_bytes()[:-1] + b"X")
        two.unlink()
        assert [f.kind for f in db.verify().findings] == ["blob", "blob"]


def test_without_the_key_nothing_can_be_told(open_db: Callable[..., perdure.Database]):
    db = open_db(keys=KEY)
    write(db)
    (finding,) = open_db().verify().findings
    assert "key" in finding.what


# -- against a witness ------------------------------------------------------------------------------------------


def test_nothing_is_lost_when_the_store_went_on(open_db: Callable[..., perdure.Database], tmp_path: Path):
    db = open_db(keys=KEY)
    write_past(db, "s", 1)
    write(db, "t")
    path = tmp_path / "witness"
    assert db.witness(path) == sum(len(row.heads) for row in db.sessions())
    write_past(db, "s", 2)
    db.prune("s", keep_last=2)
    with db.session("t") as s:
        s.rewind(2)
    report = db.verify(witness=path)
    assert report.findings == ()


LOSS = {
    "the last checkpoint": (
        "delete from commits where no = 1 and step = 5",
        "update sessions set step = 4, head = (select id from commits where no = 1 and step = 4) where no = 1",
    ),
    "a whole session": (
        "delete from commits where no = 1",
        "delete from sessions where no = 1",
    ),
    "a session for a tombstone that is older": (
        "delete from commits where no = 1",
        "update sessions set reason = 'deleted', lines = 0, updated = 5, line = null, step = null, head = null"
        " where no = 1",
    ),
    "a branch": (
        "delete from commits where no = 2 and line = 1",
        "delete from branches where no = 2",
        "update sessions set lines = 1 where no = 2",
    ),
}


@pytest.mark.parametrize("what", LOSS)
def test_what_the_witness_saw_and_is_gone_is_lost(tmp_path: Path, clock: FakeClock, what: str):
    url, path = f"sqlite:///{tmp_path}/a.db", tmp_path / "witness"
    with perdure.open(url, clock=clock) as db:
        write(db, "s")
        write(db, "t")
        with db.session("t") as s:
            s.fork("b", at=3)
        db.witness(path)
    connection = apsw.Connection(f"{tmp_path}/a.db")
    for statement in LOSS[what]:
        connection.execute(statement)
    connection.close()
    with perdure.open(url, clock=clock) as db:
        assert db.verify().findings == (), "no trace inside: this is what the witness is for"
        report = db.verify(witness=path)
        assert [f.session for f in report.lost] == ["t" if what == "a branch" else "s"]
        assert report.lost == report.findings


def test_a_session_that_ended_rightly_is_not_lost(db: perdure.Database, tmp_path: Path, clock: FakeClock):
    write(db, "expires", ttl=60)
    write(db, "again", ttl=60)
    write(db, "deleted")
    db.witness(tmp_path / "witness")
    clock.advance(61_000)
    db.sweep()
    end_session(db.kernel, db.look("deleted"), None, "deleted")
    write(db, "again", count=1)
    assert db.verify(witness=tmp_path / "witness").findings == ()


def test_another_past_under_the_same_name_is_lost(db: perdure.Database, tmp_path: Path, clock: FakeClock):
    """A store put back to an older copy, and written on from there."""
    write(db, "s", 3)
    db.backup(tmp_path / "old.bak")
    write(db, "s", 3)
    db.witness(tmp_path / "witness")
    clock.advance(1000)
    end_session(db.kernel, db.look("s"), None, "deleted")
    db.restore(tmp_path / "old.bak")
    assert len(db.verify(witness=tmp_path / "witness").lost) == 1
    write(db, "s", 3)
    report = db.verify(witness=tmp_path / "witness")
    assert "another checkpoint" in report.lost[0].what


def test_a_witness_of_another_store_says_so(db: perdure.Database, tmp_path: Path, clock: FakeClock):
    with perdure.open("memory://", clock=clock) as other:
        other.witness(tmp_path / "witness")
    assert "written for store" in db.verify(witness=tmp_path / "witness").lost[0].what


def test_a_witness_that_was_touched_is_refused(db: perdure.Database, tmp_path: Path, clock: FakeClock):
    rng = random.Random(3)
    path = tmp_path / "witness"
    with perdure.open("memory://", clock=clock, keys=KEY) as keyed:
        write(keyed)
        keyed.witness(path)
        good = path.read_bytes()
        for n in range(300):
            raw = bytearray(good)
            raw[rng.randrange(len(raw) - 1)] ^= 1 << rng.randrange(8)
            path.write_bytes(bytes(raw) if n else good[: len(good) // 2])
            with pytest.raises(PerdureError):
                keyed.verify(witness=path)
        # Somebody without the key writes one that looks right.
        lines = good.decode().splitlines()
        header = {**json.loads(lines[0]), "key": ""}
        path.write_text("\n".join([json.dumps(header), *lines[1:]]) + "\n")
        with pytest.raises(KeyMismatch):
            keyed.verify(witness=path)
        path.write_bytes(good)
        assert keyed.verify(witness=path).ok
    with pytest.raises(NotFound):
        db.verify(witness=tmp_path / "nothing")


# -- a live witness ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [None, KEY])
def test_a_live_witness_sees_every_commit(open_db: Callable[..., perdure.Database], tmp_path: Path, keys: bytes | None):
    path = tmp_path / "live"
    db = open_db(keys=keys, witness=path)
    write(db, "s", 5)
    with db.session("s") as s:
        s.tag("good", at=2)
        s.fork("b", at=3)
        s.rewind(4)
    seen = read_witness(db.kernel, path).seen
    assert {(one.line, one.branch, one.step) for one in seen.values()} == {
        (0, "main", 5), (1, "tags/good", 3), (2, "b", 4), (3, "main", 5),
    }  # fmt: skip
    assert db.verify(witness=path).ok
    db.close()
    db = open_db(keys=keys, witness=path)
    write(db, "s", 1)
    assert read_witness(db.kernel, path).seen["s", 0, 3].step == 6
    assert db.verify(witness=path).ok


def test_a_live_witness_finds_a_lost_tail(tmp_path: Path, clock: FakeClock):
    url, path = f"sqlite:///{tmp_path}/a.db", tmp_path / "live"
    with perdure.open(url, clock=clock, witness=path) as db:
        write(db, "s", 5)
    connection = apsw.Connection(f"{tmp_path}/a.db")
    for statement in LOSS["the last checkpoint"]:
        connection.execute(statement)
    connection.close()
    with perdure.open(url, clock=clock, witness=path) as db:
        assert [f.what for f in db.verify(witness=path).lost] == [
            "the witness saw step 5 of line 0, and line 0 ends at step 4"
        ]


def test_half_a_line_of_a_killed_process_is_passed_over(open_db: Callable[..., perdure.Database], tmp_path: Path):
    path = tmp_path / "live"
    db = open_db(witness=path)
    write(db, "s", 3)
    db.close()
    for cut in (1, 40, 100):
        path.write_bytes(path.read_bytes()[:-cut])
        db = open_db(witness=path)
        write(db, "s", 1)
        assert read_witness(db.kernel, path).seen["s", 0, 0].step == db.read("s").step
        assert db.verify(witness=path).ok
        db.close()


def test_a_live_witness_is_written_anew_when_it_has_grown(
    open_db: Callable[..., perdure.Database], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
):
    monkeypatch.setattr("perdure.upkeep.live_witness.COMPACT_FROM", 20)
    path = tmp_path / "live"
    db = open_db(witness=path, keys=KEY)
    write(db, "s", 50)
    write(db, "gone", 5, ttl=60)
    clock.advance(61_000)
    db.sweep()
    # While another process has it open it stays as it is: that one's lines would go nowhere.
    second = LiveWitness(db.kernel, path)
    assert read_witness(db.kernel, path).live == 55
    db.close()
    second.close()
    db = open_db(witness=path, keys=KEY)
    again = read_witness(db.kernel, path)
    assert again.live == 0
    assert set(again.seen) == {("s", 0, 0)}
    write(db, "s", 1)
    assert read_witness(db.kernel, path).seen["s", 0, 0].step == 51
    assert db.verify(witness=path).ok


class Told:
    """Passes what has landed on to a witness."""

    def __init__(self, witness: LiveWitness) -> None:
        self.landed = witness.note

    def committed(self, journal: object) -> None: ...

    def release(self, journal: object) -> Flow[None]:
        yield from ()


def test_a_witness_that_cannot_be_written_does_not_fail_the_commit(db: perdure.Database, tmp_path: Path):
    witness = LiveWitness(db.kernel, tmp_path / "live")
    with db.session("s", ttl=None) as s:
        s.journal.caretaker = Told(witness)
        witness.close()
        s.vars["n"] = 1
        assert s.commit() is not None
    assert db.read("s").vars["n"] == 1
