"""Several writers: leases, conflicts, the inbox. No message is lost."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

import perdure
from perdure.testing.clock import FakeClock


def test_a_second_handle_finds_the_session_busy(db: perdure.Database, open_db: Any) -> None:
    with db.session("s") as s:
        with pytest.raises(perdure.Busy) as busy:
            open_db().session("s")
        assert "process" in busy.value.holder
        assert busy.value.own
        assert "another handle of this very process has it: close that one first" in str(busy.value)
        s.vars["a"] = 1
        s.commit()
    with open_db().session("s") as s:
        assert s.vars["a"] == 1


def test_a_writer_that_lost_its_lease_cannot_write(db: perdure.Database, open_db: Any, clock: FakeClock) -> None:
    s = db.session("s")
    s.vars["a"] = 1
    s.commit()
    clock.advance(60_000)
    with open_db().session("s") as other:
        assert other.fence > s.fence
        other.vars["a"] = 2
        other.commit()
        s.vars["a"] = 3
        with pytest.raises(perdure.LeaseLost):
            s.commit()
        # Neither commits nor a reload bring this handle's lease back.
        with pytest.warns(perdure.UncommittedEdits, match="its lease was lost, so open the session again"):
            s.__exit__(None, None, None)
    assert db.read("s").vars["a"] == 2


def test_an_optimistic_writer_loses_with_the_new_head(db: perdure.Database) -> None:
    one, two = db.session("s", lease=False), db.session("s", lease=False)
    one.vars["a"] = 1
    one.commit()
    two.vars["a"] = 2
    with pytest.raises(perdure.Conflict) as conflict:
        two.commit()
    assert conflict.value.head.step == 1
    with pytest.raises(perdure.Conflict):
        two.commit()
    two.reload()
    assert two.vars["a"] == 1
    two.vars["a"] = 2
    two.commit()
    assert db.read("s").vars["a"] == 2


def test_an_optimistic_writer_is_refused_while_somebody_holds_the_lease(db: perdure.Database) -> None:
    free = db.session("s", lease=False)
    free.vars["a"] = 1
    with db.session("s"), pytest.raises(perdure.Busy):
        free.commit()


def test_update_replays_the_input_on_the_new_head(db: perdure.Database) -> None:
    def add(name: str) -> Any:
        return lambda s: s.messages.append(name)

    threads = [threading.Thread(target=lambda n=n: db.update("s", add(f"m{n}"), tries=500)) for n in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(db.read("s").messages) == sorted(f"m{n}" for n in range(12))
    assert db.read("s").step == 12


def test_messages_are_posted_without_the_lease_and_taken_by_a_commit(db: perdure.Database) -> None:
    with db.session("s") as s:
        assert db.post("s", {"text": "one"}, key="a")
        assert db.post("s", {"text": "two"}, key="b")
        assert not db.post("s", {"text": "one"}, key="a")
        assert [m.body["text"] for m in s.take()] == ["one", "two"]
        assert s.take() == []
        s.reload()
        taken = s.take(limit=1)
        s.messages.append(taken[0].body)
        s.commit()
        assert [m.body["text"] for m in s.take()] == ["two"]
        s.commit()
    assert not db.post("s", {"text": "one"}, key="a")
    with db.session("s") as s:
        assert s.take() == []
    with pytest.raises(perdure.InvalidInput, match="a"):
        db.post("s", {"text": "other"}, key="a")


def test_changes_tell_of_every_commit_in_order(db: perdure.Database) -> None:
    page = db.changes()
    with db.session("s") as s, db.session("t") as t:
        for i in range(3):
            s.vars["i"] = t.vars["i"] = i
            s.commit()
            t.commit()
    seen: list[Any] = []
    while (page := db.changes(page.cursor, limit=2)).items:
        seen.extend(page.items)
    assert [c.step for c in seen if c.session == "s"] == [1, 2, 3]
    assert [c.step for c in seen if c.session == "t"] == [1, 2, 3]


def test_watch_gives_changes_as_they_happen(db: perdure.Database) -> None:
    stop, seen = threading.Event(), []

    def watch() -> None:
        for change in db.watch(poll=0.01, stop=stop):
            seen.append(change.step)
            if len(seen) == 3:
                stop.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    with db.session("s") as s:
        for i in range(3):
            s.vars["i"] = i
            s.commit()
    watcher.join(timeout=30)
    assert seen == [1, 2, 3]


def test_a_handle_that_nobody_has_any_more_lets_its_session_go(url: str) -> None:
    with perdure.open(url) as db, perdure.open(url) as other:
        kept = db.session("kept")
        db.session("s")
        gc.collect()
        with pytest.raises(perdure.Busy):
            other.session("s")
        db.caretaker.heartbeat.renew()
        other.session("s").release()
        with pytest.raises(perdure.Busy):
            other.session("kept")
        kept.vars["n"] = 1
        kept.commit()
        kept.release()


def test_a_database_that_is_closed_holds_no_session(url: str) -> None:
    with perdure.open(url, lease_ttl=3600) as other:
        db = perdure.open(url, lease_ttl=3600)
        s = db.session("s")
        db.close()
        with other.session("s") as theirs:
            theirs.commit()
        with pytest.raises(perdure.PerdureError):
            s.commit()


@pytest.mark.parametrize("what", ["acquire", "release"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lease_is_given_back_whenever_an_interrupt_comes(
    url: str, what: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with perdure.open(url, lease_ttl=3600) as db, perdure.open(url, lease_ttl=3600) as other:
        work = getattr(db.kernel.store, what)

        def interrupted(*args: Any) -> None:
            monkeypatch.undo()
            if when == "after":
                work(*args)
            raise KeyboardInterrupt

        monkeypatch.setattr(db.kernel.store, what, interrupted)
        with pytest.raises(KeyboardInterrupt):
            db.session("s").release()
        if what == "release":
            db.caretaker.heartbeat.renew()
        with other.session("s") as s:
            s.commit()


@pytest.mark.parametrize("seen_to", ["next beat", "close"])
def test_a_lease_is_given_back_although_its_giving_back_is_interrupted(
    url: str, seen_to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with perdure.open(url, lease_ttl=3600) as other:
        db = perdure.open(url, lease_ttl=3600)
        acquire = db.kernel.store.acquire

        def granted(*args: Any) -> None:
            monkeypatch.undo()
            acquire(*args)
            monkeypatch.setattr(db.kernel.store, "look", interrupted)
            raise KeyboardInterrupt

        def interrupted(*_: Any) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(db.kernel.store, "acquire", granted)
        with pytest.raises(KeyboardInterrupt):
            db.session("s")
        with pytest.raises(perdure.Busy):
            other.session("s")
        if seen_to == "close":
            db.close()
        else:
            db.caretaker.heartbeat.renew()
        with other.session("s") as s:
            s.commit()
        db.close()


def test_a_lease_whose_giving_back_is_interrupted_is_given_back_at_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with perdure.open(url, lease_ttl=3600) as db:
        s, release, given_back = db.session("s"), db.kernel.store.release, threading.Event()

        def interrupted(*_: Any) -> None:
            monkeypatch.setattr(db.kernel.store, "release", noted)
            raise KeyboardInterrupt

        def noted(*args: Any) -> None:
            release(*args)
            given_back.set()

        monkeypatch.setattr(db.kernel.store, "release", interrupted)
        with pytest.raises(KeyboardInterrupt):
            s.release()
        # The next beat would be in twenty minutes.
        assert given_back.wait(20)
        with perdure.open(url) as other, other.session("s") as s:
            s.commit()


def test_two_interrupts_while_a_thread_is_started_are_an_interrupt(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        monkeypatch.undo()
        start(thread)
        try:
            raise KeyboardInterrupt
        finally:
            # As the lock does that Python waits with for the thread.
            raise RuntimeError("cannot release un-acquired lock")

    with perdure.open(url) as db:
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            db.session("s")
        with db.session("s") as s:
            s.commit()
