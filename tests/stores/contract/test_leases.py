"""Leases: who may write, for how long, and how a stale writer is kept out."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from perdure.errors import Busy, LeaseLost
from perdure.model import LeaseInfo
from perdure.system.clock import SystemClock
from perdure.system.lease_holders import describe, new_holder
from tests.store_urls import EMBEDDED
from tests.stores.contract.writing import commit, land, write

if TYPE_CHECKING:
    from perdure.protocols import Store
    from tests.clock import FakeClock
    from tests.stores.conftest import MakeStore


def test_a_lease_is_granted_for_a_while_to_one_holder(store: Store, make_store: MakeStore, clock: FakeClock):
    lease = store.acquire("s", "me", 1000)
    assert (lease.session, lease.holder, lease.until) == ("s", "me", clock.wall() + 1000)
    with pytest.raises(Busy) as refused:
        make_store().acquire("s", "you", 1000)
    assert (refused.value.session, refused.value.holder) == ("s", "me")
    assert refused.value.until == clock.wall() + 1000


def test_acquiring_makes_the_session_known(store: Store, clock: FakeClock):
    assert store.look("s") is None
    lease = store.acquire("s", "me", 1000)
    row = store.look("s")
    assert row is not None
    assert row.heads == ()
    assert row.lease == LeaseInfo("me", lease.token, clock.wall() + 1000)


def test_the_same_holder_cannot_take_its_own_lease_again(store: Store):
    store.acquire("s", "me", 1000)
    with pytest.raises(Busy):
        store.acquire("s", "me", 1000)


def test_busy_names_the_process_for_people_to_read(store: Store):
    holder = new_holder()
    store.acquire("s", holder, 1000)
    with pytest.raises(Busy) as refused:
        store.acquire("s", "you", 1000)
    assert refused.value.holder == describe(holder)
    assert f"process {os.getpid()}" in str(refused.value)


def test_a_lease_that_has_run_out_can_be_taken_and_not_a_moment_before(store: Store, clock: FakeClock):
    first = store.acquire("s", "me", 1000)
    clock.advance(999)
    with pytest.raises(Busy):
        store.acquire("s", "you", 1000)
    clock.advance(1)
    assert store.look("s").lease == LeaseInfo("", first.token, 0)  # type: ignore[union-attr]
    assert store.acquire("s", "you", 1000).token > first.token


def test_setting_the_wall_clock_neither_ends_nor_extends_a_lease(store: Store, clock: FakeClock):
    store.acquire("s", "me", 1000)
    clock.set_wall(clock.wall() + 10**9)
    with pytest.raises(Busy):
        store.acquire("s", "you", 1000)
    clock.set_wall(0)
    clock.advance(1000)
    store.acquire("s", "you", 1000)


def test_a_lease_of_a_process_that_was_killed_is_free_at_once(store: Store):
    script = "from perdure.system.lease_holders import new_holder; print(new_holder())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    dead = done.stdout.strip()
    store.acquire("s", dead, 3_600_000)
    assert store.look("s").lease.holder == ""  # type: ignore[union-attr]
    store.acquire("s", "you", 1000)


def test_tokens_grow_across_sessions_releases_and_handles(store: Store, make_store: MakeStore):
    tokens = [store.acquire("a", "me", 1000).token, store.acquire("b", "me", 1000).token]
    lease = store.acquire("c", "me", 1000)
    store.release(lease)
    store.close()
    again = make_store()
    tokens += [lease.token, again.acquire("c", "me", 1000).token, again.acquire("d", "me", 1000).token]
    assert tokens == sorted(set(tokens))


def test_a_writer_whose_lease_was_taken_cannot_write(store: Store, clock: FakeClock):
    mine = store.acquire("s", "me", 1000)
    first = commit(token=mine.token)
    land(store, first)
    clock.advance(1000)
    yours = store.acquire("s", "you", 1000)
    with pytest.raises(LeaseLost):
        land(store, commit(step=1, expect=first.id, token=mine.token))
    land(store, commit(step=1, expect=first.id, token=yours.token))


def test_a_lease_that_ran_out_still_counts_until_somebody_takes_it(store: Store, clock: FakeClock):
    lease = store.acquire("s", "me", 1000)
    clock.advance(5000)
    land(store, commit(token=lease.token))


def test_each_commit_lets_the_lease_slide(store: Store, clock: FakeClock):
    lease = store.acquire("s", "me", 1000)
    clock.advance(900)
    land(store, commit(token=lease.token))
    clock.advance(900)
    assert store.look("s").lease == LeaseInfo("me", lease.token, clock.wall() + 100)  # type: ignore[union-attr]
    with pytest.raises(Busy):
        store.acquire("s", "you", 1000)
    clock.advance(100)
    store.acquire("s", "you", 1000)


def test_an_optimistic_commit_leaves_the_lease_as_it_is(store: Store, clock: FakeClock):
    lease = store.acquire("s", "me", 1000)
    clock.advance(1000)
    land(store, commit())
    assert store.look("s").lease == LeaseInfo("", lease.token, 0)  # type: ignore[union-attr]


def test_a_renewed_lease_lasts_for_the_new_time(store: Store, clock: FakeClock):
    lease = store.acquire("s", "me", 1000)
    clock.advance(900)
    assert store.renew([lease], 2000) == [True]
    clock.advance(1999)
    with pytest.raises(Busy):
        store.acquire("s", "you", 1000)
    clock.advance(1)
    store.acquire("s", "you", 1000)


def test_a_commit_after_a_renewal_slides_by_the_new_time(store: Store, clock: FakeClock):
    lease = store.acquire("s", "me", 1000)
    store.renew([lease], 5000)
    land(store, commit(token=lease.token))
    clock.advance(4999)
    with pytest.raises(Busy):
        store.acquire("s", "you", 1000)


def test_renewing_says_which_leases_were_lost(store: Store, clock: FakeClock):
    lost = store.acquire("lost", "me", 1000)
    clock.advance(1000)
    store.acquire("lost", "you", 1000)
    kept, released = store.acquire("kept", "me", 1000), store.acquire("released", "me", 1000)
    store.release(released)
    nowhere = kept._replace(session="nobody")
    assert store.renew([lost, kept, released, nowhere], 1000) == [False, True, False, False]
    assert store.look("lost").lease.holder == "you"  # type: ignore[union-attr]
    assert store.look("nobody") is None
    assert store.renew([], 1000) == []


def test_a_lease_that_ran_out_can_be_renewed_while_nobody_took_it(store: Store, clock: FakeClock):
    lease = store.acquire("s", "me", 1000)
    clock.advance(5000)
    assert store.renew([lease], 1000) == [True]
    with pytest.raises(Busy):
        store.acquire("s", "you", 1000)


def test_a_lease_that_was_given_back_is_free_and_no_longer_writes(store: Store):
    lease = store.acquire("s", "me", 1000)
    store.release(lease)
    with pytest.raises(LeaseLost):
        land(store, commit(token=lease.token))
    assert store.look("s").lease == LeaseInfo("", lease.token, 0)  # type: ignore[union-attr]
    store.acquire("s", "you", 1000)


def test_giving_back_a_lost_lease_takes_nothing_from_the_new_holder(store: Store, clock: FakeClock):
    mine = store.acquire("s", "me", 1000)
    clock.advance(1000)
    yours = store.acquire("s", "you", 1000)
    store.release(mine)
    store.release(mine._replace(session="nobody"))
    assert store.look("s").lease.holder == "you"  # type: ignore[union-attr]
    land(store, commit(token=yours.token))


def test_a_lease_survives_its_handle(store: Store, make_store: MakeStore):
    lease = store.acquire("s", "me", 1000)
    store.close()
    again = make_store()
    with pytest.raises(Busy):
        again.acquire("s", "you", 1000)
    land(again, commit(token=lease.token))


@pytest.mark.parametrize("make_store", EMBEDDED, indirect=True)
class TestALeaseFromAnotherBoot:
    """Its times mean nothing here: only having watched it for its whole span shows that it has ended.

    Stores on a server go by the server's clock, which has no such moment.
    """

    @pytest.fixture
    def store(self, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Store:
        monkeypatch.setattr("perdure.stores.lease_clock.boot_id", lambda: "that boot")
        make_store().acquire("s", "me", 1000)
        monkeypatch.setattr("perdure.stores.lease_clock.boot_id", lambda: "this boot")
        return make_store()

    def test_is_not_judged_by_our_own_clock(self, store: Store, clock: FakeClock):
        clock.advance(10**6)
        with pytest.raises(Busy) as refused:
            store.acquire("s", "you", 1000)
        assert refused.value.until == clock.wall() + 1000

    def test_is_over_once_it_was_watched_unchanged_for_its_span(self, store: Store, clock: FakeClock):
        with pytest.raises(Busy):
            store.acquire("s", "you", 1000)
        clock.advance(999)
        with pytest.raises(Busy):
            store.acquire("s", "you", 1000)
        clock.advance(1)
        store.acquire("s", "you", 1000)

    def test_is_watched_anew_whenever_it_changes(
        self, store: Store, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
    ):
        with pytest.raises(Busy):
            store.acquire("s", "you", 1000)
        clock.advance(600)
        row = store.look("s")
        assert row is not None
        monkeypatch.setattr("perdure.stores.lease_clock.boot_id", lambda: "that boot")
        land(make_store(), commit(token=row.lease.token))
        monkeypatch.setattr("perdure.stores.lease_clock.boot_id", lambda: "this boot")
        with pytest.raises(Busy):
            store.acquire("s", "you", 1000)
        clock.advance(999)
        with pytest.raises(Busy):
            store.acquire("s", "you", 1000)
        clock.advance(1)
        store.acquire("s", "you", 1000)

    def test_keeps_optimistic_writers_out_in_the_same_way(self, store: Store, clock: FakeClock):
        with pytest.raises(Busy):
            land(store, commit())
        clock.advance(1000)
        land(store, commit())


def test_the_system_clock_serves_as_well(make_store: MakeStore):
    store = make_store(clock=SystemClock())
    lease = store.acquire("s", new_holder(), 60_000)
    write(store, token=lease.token)
    with pytest.raises(Busy):
        store.acquire("s", "you", 1000)
