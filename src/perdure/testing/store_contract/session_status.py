"""Where a session stands is what its branch main says: nothing on another branch hides what waits there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.testing.sealed_rows import commit, land, write
from perdure.testing.store_contract.contract import Contract

if TYPE_CHECKING:
    from perdure.model import Append
    from perdure.protocols import Store
    from perdure.testing.clock import FakeClock
    from perdure.testing.store_contract.contract import MakeStore
WAITS: dict[str, Any] = {"status": "waiting_approval", "error": "TimeoutError", "agent": "support"}
STANDS = ("waiting_approval", "TimeoutError", "support")


def standing(store: Store, session: str = "s") -> tuple[str, str, str]:
    """Status, error and agent, as ``look``, the listings and the counts tell alike."""
    row = store.look(session)
    assert row is not None
    assert row.reason or row in store.sessions(status=row.status, error=row.error, agent=row.agent)
    if not row.reason and len(store.sessions()) == 1:
        assert store.counts() == [(row.status, row.agent, row.error, 1)]
    return row.status, row.error, row.agent


def fork(store: Store, step: int = 1, line: int = 1, branch: str = "b", **fields: Any) -> Append:
    """Start a branch."""
    item = commit(step=step, branch=branch, line=line, **dict[str, Any](kind="fork", starts=True) | fields)
    land(store, item)
    return item


class StatusContract(Contract):
    """Where a session stands is what its branch main says: nothing on another branch hides what waits there."""

    def test_a_run_on_another_branch_leaves_it_alone(self, store: Store, make_store: MakeStore):
        write(store, **WAITS)
        start = fork(store, status="idle")
        assert standing(store) == STANDS
        land(
            store,
            commit(step=2, branch="b", line=1, expect=start.id, status="running", agent="billing", error="Refused"),
        )
        assert standing(store) == STANDS
        assert standing(make_store()) == STANDS
        assert not store.sessions(status="running")
        assert not store.sessions(agent="billing")

    def test_a_tag_leaves_it_alone(self, store: Store):
        write(store, **WAITS)
        fork(store, branch="tags/there", kind="tag", status="running")
        assert standing(store) == STANDS

    def test_main_goes_on_saying_it(self, store: Store, make_store: MakeStore):
        write(store, **WAITS)
        fork(store, status="failed", error="Refused", agent="billing")
        write(store, status="running")
        assert standing(store) == ("running", "", "support")
        assert standing(make_store()) == ("running", "", "support")

    def test_a_rewind_of_main_says_where_it_went_back_to(self, store: Store, make_store: MakeStore):
        first, second = write(store, status="running", agent="support"), write(store, status="failed", error="Refused")
        fork(store, step=2, status="paused")
        back = commit(step=1, line=2, starts=True, expect=second[0].id, status=first[0].status, kind="rewind")
        land(store, back)
        assert standing(store) == ("running", "", "support")
        land(store, commit(step=2, line=2, expect=back.id, status="idle", error="TimeoutError"))
        assert standing(make_store()) == ("idle", "TimeoutError", "support")

    def test_a_rewind_of_another_branch_leaves_it_alone(self, store: Store):
        write(store, **WAITS)
        start = fork(store, status="idle")
        fork(store, step=2, line=2, expect=start.id, kind="rewind", status="running")
        assert standing(store) == STANDS

    def test_a_batch_and_a_lease_make_no_difference_to_where_it_stands(self, store: Store):
        lease = store.acquire("s", "me", 1000)
        first = commit(token=lease.token, **WAITS)
        start = commit(step=1, branch="b", line=1, starts=True, token=lease.token, status="idle")
        run = commit(step=2, branch="b", line=1, expect=start.id, token=lease.token, status="failed", error="Refused")
        store.append([first, start, run, commit("t", status="running")])
        assert standing(store) == STANDS
        assert standing(store, "t") == ("running", "", "")
        store.append(
            [commit(step=3, branch="b", line=1, expect=run.id, token=lease.token, agent="billing"), commit("u")]
        )
        assert standing(store) == STANDS

    def test_every_branch_moves_owner_and_times(self, store: Store, clock: FakeClock):
        write(store, ttl=60, **WAITS)
        before = store.look("s")
        assert before is not None
        clock.advance(5_000)
        fork(store, status="idle", ttl=60, owner="bob")
        after = store.look("s")
        assert after is not None
        assert before.expires is not None
        assert (after.updated, after.expires, after.owner) == (before.updated + 5_000, before.expires + 5_000, "bob")
        assert [row.id for row in store.sessions(since=after.updated)] == ["s"]

    def test_without_main_the_newest_commit_says_it(self, store: Store, make_store: MakeStore):
        start = fork(store, step=0, line=0, status="running", agent="support")
        assert standing(store) == ("running", "", "support")
        land(store, commit(step=1, branch="b", expect=start.id, status="failed", error="Refused"))
        assert standing(make_store()) == ("failed", "Refused", "support")
        main = commit(step=1, line=1, starts=True, **WAITS)
        land(store, main)
        assert standing(store) == STANDS
        fork(store, step=1, line=2, branch="c", status="idle")
        assert standing(make_store()) == STANDS

    def test_a_new_life_on_another_branch_does_not_stand_at_its_tombstone(self, store: Store):
        write(store, **WAITS)
        store.drop("s", None, "expired")
        fork(store, step=0, line=0, status="idle")
        assert standing(store) == ("idle", "", "")
        fork(store, step=1, line=1, branch="c", status="running")
        assert standing(store) == ("running", "", "")

    def test_a_copy_stands_where_the_original_does(self, store: Store, make_store: MakeStore):
        write(store, **WAITS)
        fork(store, status="running", error="Refused", agent="billing")
        dump = store.dump("s")
        make_store("two").restore(dump)
        assert standing(make_store("two")) == STANDS
        # As an earlier version told it: of the newest commit of any branch.
        make_store("three").restore(dump._replace(row=dump.row._replace(status="running", error="Refused")))
        again = make_store("three")
        assert standing(again) == STANDS
        land(again, commit(step=2, branch="b", line=1, expect=dump.rows[-1][0].id, status="idle"))
        assert standing(again) == STANDS

    def test_a_copy_without_main_stands_at_its_newest_commit(self, store: Store, make_store: MakeStore):
        fork(store, step=0, line=0, status="paused", error="Refused", agent="support")
        dump = store.dump("s")
        make_store("two").restore(dump._replace(row=dump.row._replace(status="idle", error="")))
        assert standing(make_store("two")) == ("paused", "Refused", "support")
