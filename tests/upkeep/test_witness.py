"""A witness forgets nothing: a store that was put back, or a deletion that nobody signed, shows against it for good.

What is rightly gone (expired, set aside, brought back, pruned, rewound) never looks like a loss.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import perdure
from perdure import Agent, ScriptedModel, tool
from perdure.agent.models.scripted import calls
from perdure.errors import BehindWitness, Corrupted, Gone, InDoubt, Misuse, ResultPending
from perdure.fleet.why.reading import why
from perdure.history.lives import end_session, life_of
from perdure.record.codec import Point
from perdure.testing.clock import FakeClock
from perdure.upkeep import live_witness
from perdure.upkeep.witness import read_witness
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure import RunResult

KEY = b"sixteen bytes or more"


def write(db: perdure.Database, session: str = "s", count: int = 3, **options: Any) -> None:
    with db.session(session, **{"ttl": None, **options}) as s:
        for _ in range(count):
            s.vars["n"] = s.step
            s.commit()


class Put:
    """A store in files that can be put back to what it was."""

    def __init__(self, kind: str, folder: Path, clock: FakeClock, keys: bytes | None = KEY) -> None:
        self.folder, self.clock, self.keys = folder, clock, keys
        self.url = url_of(kind, folder / "now")
        (folder / "now").mkdir()
        self.witness = folder / "witness"

    def open(self, **options: Any) -> perdure.Database:
        return perdure.open(self.url, **{"clock": self.clock, "keys": self.keys, "witness": self.witness, **options})

    def write(self, *args: Any, **options: Any) -> None:
        with self.open() as db:
            write(db, *args, **options)

    def save(self) -> None:
        shutil.rmtree(self.folder / "old", ignore_errors=True)
        shutil.copytree(self.folder / "now", self.folder / "old")

    def put_back(self) -> None:
        shutil.rmtree(self.folder / "now")
        shutil.copytree(self.folder / "old", self.folder / "now")


@pytest.fixture(params=["sqlite", "file"])
def put(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Put:
    return Put(request.param, tmp_path, clock)


def rolled_back(put: Put, kept: int = 2, lost: int = 3) -> None:
    put.write(count=kept)
    put.save()
    put.write(count=lost)
    put.put_back()
    put.clock.advance(1000)


# -- what was seen is not forgotten -----------------------------------------------------------------------------------


def test_a_store_that_was_put_back_is_read_and_not_written(put: Put):
    rolled_back(put)
    with put.open() as db:
        assert db.read("s").step == 2
        writes: list[Callable[[], object]] = [
            lambda: db.session("s"),
            lambda: db.session("s", lease=False),
            lambda: db.session("another"),
            lambda: db.post("s", "hello"),
            lambda: db.wake("s", delay="1h"),
            lambda: db.cancel("s"),
            lambda: db.prune("s", keep_last=1),
            lambda: db.create("new", agent="a"),
            db.sweep,
            db.collect,
            lambda: db.witness(put.witness),
        ]
        for do in writes:
            with pytest.raises(BehindWitness, match=r"step 5 of line 0, and line 0 ends at step 2.*--accept-loss"):
                do()
        assert db.read("s").step == 2
    with put.open() as db:
        assert [f.session for f in db.verify(witness=put.witness).lost] == ["s"]


@pytest.mark.parametrize("more", [1, 3, 9])
def test_a_store_that_was_put_back_and_went_on_unwitnessed_is_found(put: Put, more: int):
    rolled_back(put)
    with put.open(witness=None) as db:
        write(db, count=more)
    with put.open() as db:
        with pytest.raises(BehindWitness):
            db.session("s")
        assert len(db.verify(witness=put.witness).lost) == 1


@pytest.mark.parametrize("more", [1, 2, 3, 9])
def test_what_is_noted_of_another_past_replaces_nothing(put: Put, more: int, monkeypatch: pytest.MonkeyPatch):
    """Whoever notes without asking (an older process, another machine) hides nothing: what was seen stands beside."""
    rolled_back(put)
    with monkeypatch.context() as patch:
        patch.setattr(live_witness, "find_lost", lambda *_: [])
        patch.setattr("perdure.upkeep.witness.find_lost", lambda *_: [])
        put.write(count=more)
    with put.open() as db:
        assert [f.session for f in db.verify(witness=put.witness).lost] == ["s"]
        with pytest.raises(BehindWitness):
            db.session("s")


def test_and_it_is_still_known_when_the_file_was_written_anew(put: Put, monkeypatch: pytest.MonkeyPatch):
    rolled_back(put)
    with monkeypatch.context() as patch:
        patch.setattr(live_witness, "find_lost", lambda *_: [])
        patch.setattr("perdure.upkeep.witness.Witness.find_lost", lambda *_: [])
        put.write(count=9)
    monkeypatch.setattr(live_witness, "COMPACT_FROM", 1)
    for _ in range(2):
        with put.open() as db:
            assert read_witness(db.kernel, put.witness).live == 0
            assert [f.session for f in db.verify(witness=put.witness).lost] == ["s"]


def test_a_session_that_was_put_back_is_found_when_it_is_first_used(put: Put, monkeypatch: pytest.MonkeyPatch):
    """At open only the newest are compared: the cost does not grow with the number of sessions."""
    monkeypatch.setattr(live_witness, "AT_OPEN", 2)
    with put.open() as db:
        write(db, "s", 2)
    put.save()
    with put.open() as db:
        write(db, "s", 1)
    put.put_back()
    for n in range(3):
        # Those were there already when it was put back.
        with put.open(witness=None) as db:
            write(db, f"t{n}", 1)
            with put.witness.open("ab") as file:
                (one,) = (o for o in read_after(db, put, f"t{n}"))
                file.write(one)
    with put.open() as db:
        write(db, "t2", 1)
        with pytest.raises(BehindWitness):
            db.session("s")
        with pytest.raises(BehindWitness):
            db.session("t2")


def read_after(db: perdure.Database, put: Put, session: str) -> list[bytes]:
    from perdure.upkeep.witness import Seen, see_store, signed_line

    found = [one for one in see_store(db.kernel) if isinstance(one, Seen) and one.session == session]
    return [signed_line(db.kernel, one) for one in found]


def test_notes_that_come_late_are_no_loss(put: Put):
    with put.open() as db:
        write(db, count=2)
        one = LateNotes(db)
        write(db, count=3)
        one.tell()
        assert read_witness(db.kernel, put.witness).seen["s", 0, 0].step == 6
        assert len(read_witness(db.kernel, put.witness).beside) == 2
        assert db.verify(witness=put.witness).ok
    put.write(count=1)


class LateNotes:
    """Another process that tells the witness of its commits later than others do of theirs."""

    def __init__(self, db: perdure.Database) -> None:
        self._db = db
        self._points: list[Point] = []
        with db.session("s") as s:
            s.vars["late"] = 1
            caretaker, s.journal.caretaker = s.journal.caretaker, None
            s.commit()
            s.journal.caretaker = caretaker
            assert s.journal.point is not None
            self._points.append(s.journal.point)

    def tell(self) -> None:
        for point in self._points:
            self._db.caretaker.landed(point, {})


# -- what is rightly gone ---------------------------------------------------------------------------------------------


def test_no_life_of_a_session_is_taken_for_another(
    open_db: Callable[..., perdure.Database], tmp_path: Path, clock: FakeClock
):
    path = tmp_path / "witness"
    db = open_db(keys=KEY, witness=path)
    lives: list[int] = []

    def sound() -> None:
        assert db.verify(witness=path).findings == ()
        with open_db(keys=KEY, witness=path) as again, again.session("s", ttl=60) as s:
            s.vars["sound"] = clock.wall()
            s.commit()
        lives.append(life_of(db.kernel, "s"))

    write(db, count=9, ttl=60)
    sound()
    clock.advance(61_000)
    db.sweep()
    assert db.verify(witness=path).findings == ()
    sound()
    write(db, count=2, ttl=60)
    sound()
    db.revive("s")
    sound()
    with db.session("s") as s:
        s.rewind(4)
        s.fork("b", at=2)
    sound()
    db.revive("s")
    sound()
    clock.advance(61_000)
    write(db, count=1, ttl=60)
    sound()
    db.prune("s", keep_last=1)
    sound()
    for _ in range(2):
        clock.advance(8 * 86_400_000)
        db.sweep()
    assert not db.set_aside()
    assert db.verify(witness=path).findings == ()
    sound()
    assert lives[0] == lives[3] == lives[4] == 0
    assert lives[1] == lives[2] == lives[5]
    assert lives == sorted(lives[:3]) + lives[3:]
    assert len({*lives}) == 4


def test_an_end_in_the_same_millisecond_is_another_life(db: perdure.Database, tmp_path: Path):
    for _ in range(3):
        write(db, count=5)
        db.witness(tmp_path / "witness")
        end_session(db.kernel, db.look("s"), None, "deleted")
    write(db, count=2)
    assert db.verify(witness=tmp_path / "witness").findings == ()


def test_a_life_that_was_set_aside_and_is_gone_is_lost(
    open_db: Callable[..., perdure.Database], tmp_path: Path, clock: FakeClock
):
    path = tmp_path / "witness"
    db = open_db(keys=KEY)
    write(db, count=2, ttl=60)
    clock.advance(61_000)
    write(db, count=4, ttl=60)
    second = life_of(db.kernel, "s")
    db.witness(path)
    db.revive("s")
    assert db.verify(witness=path).ok
    db.kernel.store.drop(f"perdure:expired:{second}:s", None, "deleted")
    (finding,) = db.verify(witness=path).lost
    assert "that life of the session was deleted: it is not signed" in finding.what


# -- deletions --------------------------------------------------------------------------------------------------------


FORGED = {
    "unsigned": "expired",
    "signed by nobody": "expired; signed lQABgQAFoA==",
}


@pytest.mark.parametrize("reason", FORGED.values(), ids=FORGED)
@pytest.mark.parametrize("keys", [KEY, None], ids=["keyed", "unkeyed"])
def test_a_deletion_that_nobody_signed_is_not_believed(
    open_db: Callable[..., perdure.Database], tmp_path: Path, reason: str, keys: bytes | None
):
    db = open_db(keys=keys)
    write(db)
    db.witness(tmp_path / "witness")
    db.kernel.store.drop("s", None, reason)
    (finding,) = db.verify(witness=tmp_path / "witness").lost
    assert "deleted by a tombstone that is not believed" in finding.what
    if keys:
        with pytest.raises(Corrupted):
            db.read("s")
        with pytest.raises(Corrupted):
            db.session("s")


def test_an_older_tombstone_put_back_ends_no_newer_life(
    open_db: Callable[..., perdure.Database], tmp_path: Path, clock: FakeClock
):
    path = tmp_path / "witness"
    db = open_db(keys=KEY, witness=path)
    write(db, count=2, ttl=60)
    clock.advance(61_000)
    db.sweep()
    row = db.kernel.store.look("s")
    assert row is not None
    db.revive("s")
    write(db, count=2)
    # The end of the same life, of before it was brought back and went on.
    db.kernel.store.drop("s", None, row.reason)
    (finding,) = db.verify(witness=path).lost
    assert "had ended before that" in finding.what
    with pytest.raises(BehindWitness):
        open_db(keys=KEY, witness=path).session("s")


def test_a_tombstone_of_another_session_or_store_is_not_believed(db: perdure.Database, clock: FakeClock):
    with (
        perdure.open("memory://", keys=KEY, clock=clock) as one,
        perdure.open("memory://", keys=KEY, clock=clock) as two,
    ):
        for there in (one, two):
            write(there, "s")
            write(there, "t")
        end_session(one.kernel, one.look("s"), None, "deleted")
        row = one.kernel.store.look("s")
        assert row is not None
        with pytest.raises(Gone) as gone:
            one.read("s")
        assert gone.value.reason == "deleted"
        one.kernel.store.drop("t", None, row.reason)
        two.kernel.store.drop("s", None, row.reason)
        for there, id in ((one, "t"), (two, "s")):
            with pytest.raises(Corrupted, match="signature does not match"):
                there.read(id)


# -- accepting a loss -------------------------------------------------------------------------------------------------


@tool(if_unsure="ask")
def refund(order: str) -> str:
    """Pay."""
    PAID.append(order)
    return f"paid {order}"


PAID: list[str] = []


def test_a_loss_that_was_accepted_is_asked_for_no_more(put: Put):
    rolled_back(put)
    with put.open() as live:
        with pytest.raises(BehindWitness):
            live.session("s")
        with pytest.raises(Misuse):
            live.accept_loss(put.witness)
        with put.open(witness=None) as db:
            epoch = db.kernel.store.epoch
            accepted = db.accept_loss(put.witness)
            assert ([f.session for f in accepted.lost], accepted.in_doubt, accepted.branches) == (["s"], (), 1)
            assert db.kernel.store.epoch != epoch
        # Whoever had it open goes on without being started anew.
        write(live)
    put.write()
    with put.open() as db:
        assert db.verify(witness=put.witness).ok


def test_an_effect_that_only_the_witness_knows_of_is_not_made_again(put: Put):
    PAID.clear()
    put.write(count=1)
    with put.open() as db, db.session("s") as s:
        s.call(refund, order="before")
    put.save()
    with put.open() as db:
        with db.session("s") as s:
            s.call(refund, order="after")
        with db.session("new", ttl=None) as s:
            s.call(refund.options(key="k"), order="new")
        assert len(read_witness(db.kernel, put.witness).effects) == 3
    put.put_back()
    with put.open(witness=None) as db:
        accepted = db.accept_loss(put.witness)
        assert sorted((session, tool) for session, _, tool in accepted.in_doubt) == [("new", "refund"), ("s", "refund")]
    with put.open() as db:
        assert {row.id: row.status for row in db.sessions()} == {"s": "in_doubt", "new": "in_doubt"}
        # Whoever has to find out is told what there is to find it by.
        effect = next(effect for session, effect, _ in accepted.in_doubt if session == "s")
        told = why(db, "s")
        assert told.line.startswith(
            "refund(…) was started and nobody knows whether it happened. The witness saw it done"
        )
        assert "its arguments were lost" in told.line
        assert f"by its id {effect} or that time" in told.next
        with db.session("s") as s:
            assert s.call(refund, order="before") == "paid before"
            with pytest.raises(InDoubt) as doubt:
                s.call(refund, order="after")
            s.resolve(doubt.value.effect, done="paid after")
            assert s.call(refund, order="after") == "paid after"
        with db.session("new") as s, pytest.raises(InDoubt):
            s.call(refund.options(key="k"), order="new")
        assert db.verify(witness=put.witness).ok
    assert PAID == ["before", "after", "new"]


@pytest.mark.parametrize("whole", [True, False], ids=["lost as a whole", "there before"])
@pytest.mark.parametrize("verdict", ["done", "abort"])
def test_a_shared_call_that_was_lost_is_still_claimed(put: Put, *, whole: bool, verdict: str):
    PAID.clear()
    shared = tool(if_unsure="ask", cache="7d", cache_scope="shared", name="refund")(refund.fn)
    put.write("other", 1, owner="ana")
    if not whole:
        put.write("payer", 1, owner="ana")
    put.save()
    with put.open() as db:
        for session in ("payer", "taker"):
            with db.session(session, owner="ana", ttl=None) as s:
                assert s.run("monday", lambda r: r.call(shared, order="1")) == "paid 1"
    put.put_back()
    with put.open(witness=None) as db:
        ((session, effect, _),) = db.accept_loss(put.witness).in_doubt
        assert session == "payer", "who took its result has made nothing"
    with put.open() as db:
        assert db.look("payer").owner == "ana"
        for session in ("other", "new"):
            with db.session(session, owner="ana", ttl=None) as s, pytest.raises(ResultPending) as pending:
                s.call(shared, order="1")
            assert pending.value.effect == effect
        with db.session("stranger", owner="bob", ttl=None) as s:
            assert s.call(shared, order="1") == "paid 1"
        with db.session("payer", owner="ana") as s:
            with pytest.raises(InDoubt) as doubt:
                s.run("friday", lambda r: r.call(shared, order="1"))
            assert doubt.value.effect == effect
            options: dict[str, Any] = {"done": "paid then"} if verdict == "done" else {"abort": True}
            s.resolve(effect, **options)
        with db.session("other") as s:
            assert s.call(shared, order="1") == ("paid then" if verdict == "done" else "paid 1")
        assert db.verify(witness=put.witness).ok
    assert len(PAID) == (2 if verdict == "done" else 3)


def test_an_approved_refund_is_not_paid_again_from_a_backup(put: Put, tmp_path: Path):
    PAID.clear()
    asked = tool(if_unsure="ask", approve=True, name="refund")(refund.fn)
    with put.open() as db:
        with db.session("s", ttl=None) as s:
            with pytest.raises(perdure.ApprovalNeeded) as needed:
                s.call(asked, order="1")
            db.approve("s", needed.value.approval.id, by="ana")
        db.backup(tmp_path / "backup")
        with db.session("s") as s:
            assert s.call(asked, order="1") == "paid 1"
    shutil.rmtree(put.folder / "now")
    (put.folder / "now").mkdir()
    with put.open(witness=None) as db:
        done = db.restore(tmp_path / "backup", witness=put.witness)
        assert [(session, name) for session, _, name in done.in_doubt] == [("s", "refund")]
    with put.open() as db, db.session("s") as s, pytest.raises(InDoubt):
        s.call(asked, order="1")
    assert PAID == ["1"]


def test_an_agent_that_does_it_all_again_does_not_pay_again(put: Put):
    PAID.clear()

    def clerk() -> Agent:
        script = [calls(("refund", {"order": "7"}), ("look", {})), "Refunded."]
        return Agent("clerk", model=ScriptedModel(script), tools=[refund, look])

    async def run() -> RunResult:
        async with perdure.open_async(put.url, keys=KEY, witness=put.witness) as db:
            return await clerk().run(db, session="s", message="Refund order 7")

    put.write("t", 1)
    put.save()
    assert asyncio.run(run()).text == "Refunded."
    put.put_back()
    with put.open(witness=None, clock=None) as db:
        ((session, effect, name),) = db.accept_loss(put.witness).in_doubt
        assert (session, name) == ("s", "refund"), "nobody need find out about a read"
        assert db.look("s").status == "in_doubt"
    again = asyncio.run(run())
    assert [doubt.effect for doubt in again.in_doubt] == [effect]
    with put.open(clock=None) as db:
        assert "was begun before the store was put back" in str(db.read("s").plain())
        assert db.verify(witness=put.witness).ok
    assert PAID == ["7"]


@tool(read=True)
def look() -> str:
    """Look."""
    return "seen"


# -- the file ---------------------------------------------------------------------------------------------------------


def test_a_line_that_cannot_be_read_is_told_with_its_number(put: Put, caplog: pytest.LogCaptureFixture):
    put.write(count=3)
    lines = put.witness.read_bytes().splitlines(keepends=True)
    changed = lines[3].replace(b'"main"', b'"mein"')
    put.witness.write_bytes(b"".join([*lines[:3], changed, *lines[4:]]))
    for _ in range(2):
        with put.open() as db:
            (finding,) = db.verify(witness=put.witness).findings
            assert (finding.kind, finding.where) == ("witness", f"witness {put.witness}, line 4")
            with pytest.raises(BehindWitness, match="line 4: it cannot be read"):
                db.witness(put.witness)
            write(db, count=1)
    assert "line 4 was changed: what it said is lost" in caplog.text
    with put.open(witness=None) as db:
        db.accept_loss(put.witness)
        assert db.verify(witness=put.witness).ok


@pytest.mark.parametrize("left", [1, 3, 8, 14, 16, 30, 80, 140, -1])
def test_a_line_that_a_crash_cut_short_is_read_from_the_store_again(
    put: Put, left: int, caplog: pytest.LogCaptureFixture
):
    put.write(count=2)
    put.write("t", count=3)
    *whole, last = put.witness.read_bytes().splitlines(keepends=True)
    put.witness.write_bytes(b"".join(whole) + last[:left])
    with put.open() as db:
        known = read_witness(db.kernel, put.witness)
        assert (known.unread, known.seen["t", 0, 0].step) == ({}, 3)
        assert db.verify(witness=put.witness).ok
    assert left == -1 or f"line {len(whole) + 1} was cut short" in caplog.text
    put.write("t", count=1)


def test_half_a_line_before_anothers_is_told_apart(put: Put):
    with put.open() as db:
        write(db, "s", 1)
        with put.open() as other:
            with put.witness.open("ab") as file:
                file.write(b'[["x","main",0,1,"')
            write(other, "t", 2)
        known = read_witness(db.kernel, put.witness)
        assert known.seen["t", 0, 0].step == 2
        assert list(known.unread.values()) == [b'[["x","main",0,1,"']


def test_a_full_disk_tears_no_line_and_what_was_to_be_written_comes_later(
    put: Put, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    real, room = os.write, [10_000]

    def write_less(fd: int, data: bytes) -> int:
        if not os.path.samestat(os.fstat(fd), put.witness.stat()):
            return real(fd, data)
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(fd, data[: room[0]])
        room[0] -= done
        return done

    with put.open() as db:
        monkeypatch.setattr(os, "write", write_less)
        write(db, "s", 2)
        room[0] = 50
        write(db, "s", 2)
        write(db, "t", 1)
        known = read_witness(db.kernel, put.witness)
        assert known.seen["s", 0, 0].step == 2
        assert len(known.unread) == 1
        room[0] = 10_000
        write(db, "t", 1)
        known = read_witness(db.kernel, put.witness)
        assert (known.unread, known.seen["s", 0, 0].step, known.seen["t", 0, 0].step) == ({}, 4, 2)
        assert db.verify(witness=put.witness).ok
        room[0] = 0
        write(db, "t", 1)
    assert caplog.text.count("could not be written: ") == 2
    assert "was not told of 1 commits" in caplog.text


def test_a_witness_that_others_write_is_appended_to_and_not_replaced(put: Put):
    with put.open() as live:
        write(live, "s", 2)
        with put.open(witness=None) as db:
            write(db, "t", 2)
            assert db.witness(put.witness) == 2
        write(live, "s", 2)
        assert read_witness(live.kernel, put.witness).seen["s", 0, 0].step == 4
        assert read_witness(live.kernel, put.witness).seen["t", 0, 0].step == 2


WRITER = """
import sys, perdure
db = perdure.open(sys.argv[1], keys=b"sixteen bytes or more", witness=sys.argv[2])
s = db.session("s", ttl=None)
while True:
    s.vars["n"] = s.step
    s.commit()
    print(s.step, flush=True)
"""


def test_a_killed_process_leaves_a_witness_that_knows_what_it_said(tmp_path: Path):
    url, path = f"sqlite:///{tmp_path}/a.db", tmp_path / "witness"
    said = 0
    for turn in range(3):
        process = subprocess.Popen([sys.executable, "-c", WRITER, url, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(20 + turn):
            said = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with perdure.open(url, keys=KEY, lease_ttl=1) as db:
            known = read_witness(db.kernel, path)
            # A commit is durable first, and told to the witness then: it is ahead of nobody.
            assert said <= known.seen["s", 0, 0].step <= db.read("s").step <= known.seen["s", 0, 0].step + 1
            assert db.verify(witness=path).ok
        if not turn:
            shutil.copy(tmp_path / "a.db", tmp_path / "old.db")
    for file in tmp_path.glob("a.db*"):
        if file.is_file():
            file.unlink()
    shutil.copy(tmp_path / "old.db", tmp_path / "a.db")
    process = subprocess.run(
        [sys.executable, "-c", WRITER, url, str(path)], capture_output=True, text=True, check=False
    )
    assert "BehindWitness" in process.stderr
    assert not process.stdout


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_a_session_of_a_server_that_was_put_back_is_found(kind: str, tmp_path: Path):
    url, path = url_of(kind, tmp_path), tmp_path / "witness"
    with perdure.open(url, keys=KEY, witness=path) as db:
        write(db, "s", 2)
        old = db.kernel.store.dump("s")
        write(db, "s", 3)
        db.kernel.store.drop("s", None, "to be put back")
        db.kernel.store.restore(old)
    with perdure.open(url, keys=KEY, witness=path) as db:
        assert db.read("s").step == 2
        with pytest.raises(BehindWitness, match="step 5 of line 0"):
            db.session("s")
    with perdure.open(url, keys=KEY) as db:
        db.accept_loss(path)
    with perdure.open(url, keys=KEY, witness=path) as db:
        write(db, "s", 1)
        assert db.verify(witness=path).ok


def test_a_tombstone_by_hand_is_found_in_sqlite(tmp_path: Path, clock: FakeClock):
    put = Put("sqlite", tmp_path, clock)
    put.write()
    database = next((tmp_path / "now").glob("*.db"))
    connection = apsw.Connection(str(database))
    connection.execute("delete from commits")
    connection.execute(
        "update sessions set reason = 'expired', lines = 0, updated = 99999999999999, line = null, step = null,"
        " head = null"
    )
    connection.close()
    with put.open() as db:
        with pytest.raises(BehindWitness, match="not signed"):
            db.session("s")
        with pytest.raises(Corrupted, match="not signed"):
            db.read("s")
