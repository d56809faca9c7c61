"""The threads beside an open database: what is called lost was lost, and no error ends them."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import perdure
from perdure.upkeep.snapshots import PACK_MIN

if TYPE_CHECKING:
    import pytest


def test_a_lease_that_is_given_back_while_it_is_renewed_was_not_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with perdure.open("memory://") as db:
        s = db.session("s")
        renew = db.kernel.store.renew

        def late(leases: Any, ttl: int) -> Any:
            s.release()
            return renew(leases, ttl)

        monkeypatch.setattr(db.kernel.store, "renew", late)
        db.caretaker.heartbeat.renew()
        assert db.caretaker.heartbeat.lost == set()
    assert "was lost" not in caplog.text


def test_a_lease_that_somebody_else_has_taken_was_lost(caplog: pytest.LogCaptureFixture) -> None:
    with perdure.open("memory://") as db:
        s = db.session("s")
        assert s.journal.lease is not None
        db.kernel.store.release(s.journal.lease)
        db.caretaker.heartbeat.renew()
        assert db.caretaker.heartbeat.lost == {s.journal.lease.token}
        s.release()
    assert "the lease of session 's' was lost" in caplog.text


def test_leases_are_renewed_after_an_error_that_nobody_expected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with perdure.open("memory://", lease_ttl=0.3) as db:
        renew, renewed, calls = db.kernel.store.renew, threading.Event(), 0

        def broken_once(leases: Any, ttl: int) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise ZeroDivisionError("a bug")
            renewed.set()
            return renew(leases, ttl)

        monkeypatch.setattr(db.kernel.store, "renew", broken_once)
        with db.session("s"):
            assert renewed.wait(30)
    assert "leases could not be renewed: ZeroDivisionError: a bug" in caplog.text


def test_lines_are_packed_after_an_error_that_nobody_expected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    packed = threading.Event()

    def broken_once(kernel: Any, session: str, *_: Any) -> bool:
        if session == "first":
            raise ZeroDivisionError("a bug")
        packed.set()
        return False

    monkeypatch.setattr("perdure.upkeep.background.compact", broken_once)
    with perdure.open("memory://") as db:
        for session in ("first", "second"):
            with db.session(session) as s:
                for n in range(PACK_MIN):
                    s.vars["n"] = n
                    s.commit()
        assert packed.wait(30)
    assert "session 'first' could not be compacted: ZeroDivisionError: a bug" in caplog.text


def test_a_session_that_was_deleted_before_it_was_packed_is_no_problem(caplog: pytest.LogCaptureFixture) -> None:
    with perdure.open("memory://") as db:
        with db.session("s") as s:
            for n in range(PACK_MIN + 1):
                s.vars["n"] = n
                s.commit()
        db.kernel.store.drop("s", None, "deleted")
    assert caplog.text == ""
