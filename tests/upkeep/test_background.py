"""The thread that keeps leases alive: what it calls lost was lost."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import perdure

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
