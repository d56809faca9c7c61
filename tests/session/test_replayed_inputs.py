"""An input that a checkpoint has taken is never given out again, whatever somebody writes into the inbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.errors import Corrupted
from perdure.history.lives import end_session
from perdure.session.taken import marks_of
from tests.store_urls import url_of
from tests.tampering import RAW, Box, box_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from perdure.testing.clock import FakeClock

KEY = "a key of sixteen bytes"
BACK = "a checkpoint has taken it"


@pytest.fixture(params=RAW)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def box(kind: str, tmp_path: Path) -> Box:
    return box_of(kind, tmp_path, "s")


@pytest.fixture
def again(kind: str, tmp_path: Path, clock: FakeClock) -> Iterator[Callable[..., perdure.Database]]:
    """Opens the store anew; the handle before it is closed, so that nobody writes to an open file behind its back."""
    opened: list[perdure.Database] = []

    def close() -> None:
        for db in opened:
            db.close()
        opened.clear()

    def reopen(keys: Any = KEY) -> perdure.Database:
        close()
        opened.append(perdure.open(url_of(kind, tmp_path), keys=keys, clock=clock))
        return opened[-1]

    yield reopen
    close()


def take(db: perdure.Database, branch: str = "main") -> list[Any]:
    """What a session is given, and takes."""
    with db.session("s", branch=branch) as s:
        found = [message.body for message in s.take()]
        s.vars["took"] = found
        s.commit()
        return found


def assert_refused(db: perdure.Database, branch: str = "main") -> None:
    with db.session("s", branch=branch) as s, pytest.raises(Corrupted, match=BACK):
        s.take()
    assert [f for f in db.verify("s").findings if f.kind == "inbox"], "verify reports it, too"


@pytest.mark.parametrize("keys", [KEY, None], ids=["keyed", "unkeyed"])
def test_a_message_that_was_taken_and_is_put_back_is_refused(again: Any, box: Box, keys: str | None):
    db = again(keys)
    db.post("s", "pay 100", key="m1")
    box.keep()
    assert take(db) == ["pay 100"]
    db.close()
    box.put_back()
    assert_refused(again(keys))


def test_so_is_one_on_a_branch_that_did_not_take_it(again: Any, box: Box):
    db = again()
    with db.session("s") as s:
        s.commit()
        s.fork("other")
    db.post("s", "pay 100", key="m1")
    box.keep()
    assert take(db) == ["pay 100"]
    db.close()
    box.put_back()
    assert_refused(again(), "other")


def test_so_is_one_when_the_branch_was_rewound_to_where_it_had_not_come(again: Any, box: Box):
    db = again()
    with db.session("s") as s:
        s.commit()
    db.post("s", "pay 100", key="m1")
    box.keep()
    assert take(db) == ["pay 100"]
    with db.session("s") as s:
        s.rewind(1)
        s.vars["again"] = 1
        s.commit()
    db.close()
    box.put_back()
    assert_refused(again())


def test_so_is_one_of_an_earlier_session_of_this_name(again: Any, box: Box):
    db = again()
    db.post("s", "pay 100", key="m1")
    box.keep()
    assert take(db) == ["pay 100"]
    end_session(db.kernel, db.look("s"), None, "deleted")
    with db.session("s") as s:
        s.commit()
    db.close()
    box.put_back()
    db = again()
    with db.session("s") as s, pytest.raises(Corrupted, match=BACK):
        s.take()


def test_a_session_that_begins_anew_takes_what_came_since_and_nothing_is_missing(again: Any, clock: FakeClock):
    db = again()
    with db.session("s", ttl=60) as s:
        s.commit()
    for key in ("m1", "m2"):
        db.post("s", key, key=key)
    assert take(db) == ["m1", "m2"]
    clock.advance(100_000)
    with db.session("s", ttl=60) as s:
        assert s.origin.kind == "restarted"
        s.commit()
    db.post("s", "m3", key="m1")
    assert db.verify("s").findings == ()
    assert take(db) == ["m3"]
    with db.session("s") as s:
        assert marks_of(s.journal.document.root) == {db.kernel.store_id: {"to": 3, "but": {}}}
    assert db.verify("s").findings == ()


def test_so_is_a_decision(again: Any, box: Box):
    made: list[int] = []

    @perdure.tool(approve=lambda a: True)
    def pay(amount: int) -> int:
        """Pays."""
        made.append(amount)
        return amount

    db = again()
    with db.session("s") as s, pytest.raises(perdure.ApprovalNeeded) as asked:
        s.call(pay, 5)
    db.approve("s", asked.value.approval.id, by="ana")
    box.keep()
    with db.session("s") as s:
        assert s.call(pay, 5) == 5
    db.close()
    box.put_back()
    db = again()
    assert [f for f in db.verify("s").findings if f.kind == "inbox"]
    with db.session("s") as s, pytest.raises(Corrupted, match=BACK):
        s.take()
    assert made == [5]


def test_what_came_in_later_is_taken_in_order_and_by_key_and_the_book_grows_with_what_waits_alone(again: Any):
    db = again()
    db.wake("s", delay="30d", key="far off")
    for n in range(40):
        db.post("s", n, key=f"a{n}")
        db.post("s", n, key=f"b{n}")
        assert take(db) == [n, n]
        assert db.post("s", n, key=f"a{n}") is False, "what was taken is known all the same"
    with db.session("s") as s:
        (mark,) = marks_of(s.journal.document.root).values()
    assert mark == {"to": 81, "but": {"1": 0}}
    assert db.verify("s").findings == ()


# -- what the seal of an input covers --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize(
    "change", [{"at": 5}, {"kind": "cancel"}, {"key": "m3"}, {"seq": 9}, {"digest": b"d" * 32}, {"body": b""}], ids=repr
)
def test_a_changed_column_is_corrupted(again: Any, box: Box, change: dict[str, Any]):
    db = again()
    db.post("s", "one", key="m1")
    db.post("s", "two", key="m2")
    db.close()
    box.alter("m2", **change)
    db = again()
    with db.session("s") as s, pytest.raises(Corrupted, match="inbox entry"):
        s.take()
    assert [f for f in db.verify().findings if f.kind == "inbox"]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"], indirect=True)
def test_inputs_cannot_trade_places(again: Any, box: Box):
    db = again()
    for key in ("m1", "m2"):
        db.post("s", key, key=key)
    db.close()
    for key, number in (("m1", 9), ("m2", 1), ("m1", 2)):
        box.alter(key, seq=number)
    with again().session("s") as s, pytest.raises(Corrupted, match="number"):
        s.take()


# -- honest ways -------------------------------------------------------------------------------------------------------


def test_a_copy_knows_what_was_taken_where_it_comes_from(again: Any, tmp_path: Path, clock: FakeClock):
    db = again()
    db.wake("s", delay="30d", key="far off")
    for key in ("m1", "m2"):
        db.post("s", key, key=key)
    with db.session("s") as s:
        assert [m.body for m in s.take(1)] == ["m1"]
        s.commit()
    with perdure.open(url_of("sqlite", tmp_path, "copy"), keys=KEY, clock=clock) as copy:
        copy.post("s", "came first", key="early")
        assert db.copy_to(copy).failed == []
        copy.post("s", "posted there", key="m3")
        assert take(copy) == ["came first", "m2", "posted there"]
        assert copy.verify().findings == ()
        with copy.session("s") as s:
            assert s.take() == []
            assert len(marks_of(s.journal.document.root)) == 2


def test_a_backup_of_a_keyed_store_is_restored_under_another_store_and_goes_on(
    again: Any, tmp_path: Path, clock: FakeClock
):
    db = again()
    for key in ("m1", "m2"):
        db.post("s", key, key=key)
    with db.session("s") as s:
        s.take(1)
        s.commit()
    db.backup(tmp_path / "file")
    with perdure.open(url_of("sqlite", tmp_path, "restored"), keys=KEY, clock=clock) as other:
        other.restore(tmp_path / "file")
        assert other.verify().findings == ()
        assert take(other) == ["m2"]
        assert other.verify().findings == ()
    with perdure.open(url_of("sqlite", tmp_path, "no key"), clock=clock) as blind:
        with pytest.raises(perdure.PerdureError, match="key"):
            blind.restore(tmp_path / "file")
        assert blind.sessions() == []
