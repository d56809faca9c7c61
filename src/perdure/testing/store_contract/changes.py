"""The list of changes: every commit at least once, in order within a session, after an opaque cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure.errors import CursorExpired, InvalidInput
from perdure.model import ANCHOR, PACK, Artifact, Change, Rewrite, Span
from perdure.testing.sealed_rows import commit, entry, land, post, write
from perdure.testing.store_contract.contract import Contract

if TYPE_CHECKING:
    from perdure.protocols import Store
    from perdure.testing.store_contract.contract import MakeStore


def follow(store: Store, after: str | None = None, limit: int = 1000) -> tuple[list[Change], str]:
    """All changes after a cursor, page by page, and the cursor behind them."""
    items: list[Change] = []
    while True:
        page = store.changes(after, limit)
        items += page.items
        after = page.cursor
        if not page.items:
            return items, after


class ChangesContract(Contract):
    """The list of changes: every commit at least once, in order within a session, after an opaque cursor."""

    def test_every_commit_is_a_change_with_the_time_and_words_of_its_row(self, store: Store):
        first = commit("a", kind="started", status="running", at=123)
        fork = commit("a", 1, branch="b", line=1, starts=True, at=7)
        land(store, first)
        land(store, fork)
        items, _ = follow(store)
        assert items == [
            Change("a", "main", 0, 0, first.id, "started", "running", 123),
            Change("a", "b", 1, 1, fork.id, "commit", "idle", 7),
        ]

    def test_an_empty_store_gives_a_cursor_to_wait_with(self, store: Store):
        page = store.changes()
        assert page.items == ()
        write(store, count=1)
        assert [change.step for change in store.changes(page.cursor).items] == [0]

    @pytest.mark.parametrize("limit", [1, 2, 3, 100])
    def test_pages_miss_nothing_and_keep_the_order_within_each_session(self, store: Store, limit: int):
        for _ in range(4):
            for session in ("a", "b", "c"):
                write(store, session)
        items, cursor = follow(store, limit=limit)
        for session in ("a", "b", "c"):
            steps = [change.step for change in items if change.session == session]
            assert list(dict.fromkeys(steps)) == [0, 1, 2, 3]
        assert all(len(store.changes(None, n).items) <= n for n in (1, 5))
        assert store.changes(cursor).items == ()

    def test_a_follower_gets_what_came_after_its_cursor(self, store: Store, make_store: MakeStore):
        write(store, "a", count=3)
        _, cursor = follow(store)
        other = make_store()
        write(other, "b")
        write(other, "a")
        items, _ = follow(store, cursor)
        assert sorted((change.session, change.step) for change in items) == [("a", 3), ("b", 0)]

    def test_a_cursor_survives_the_handle(self, store: Store, make_store: MakeStore):
        write(store, count=2)
        _, cursor = follow(store)
        write(store, count=1)
        store.close()
        items, _ = follow(make_store(), cursor)
        assert [change.step for change in items] == [2]

    def test_retries_refusals_posts_leases_and_thinning_are_no_changes(self, store: Store):
        items = write(store, count=2)
        _, cursor = follow(store)
        store.append([items[0], commit(step=9, expect=b"wrong")])
        post(store, entry())
        store.acquire("s", "me", 1000)
        store.rewrite(Rewrite("s", put=(Artifact(PACK, 0, 0, 0, b""),), thin=(Span(0, 0, 0),)))
        assert follow(store, cursor)[0] == []
        assert [change.step for change in follow(store)[0]] == [0, 1]

    @pytest.mark.parametrize("garbage", ["", "x", "0", "....", "1.2.3.4.5.6", "-1", "\0", "𝟙", "' or 1", "9" * 400])
    def test_garbage_is_no_cursor(self, store: Store, garbage: str):
        write(store, count=1)
        with pytest.raises((InvalidInput, CursorExpired)):
            store.changes(garbage)

    def test_a_cursor_of_another_store_is_refused(self, store: Store, make_store: MakeStore):
        other = make_store("two")
        write(other, count=3)
        _, cursor = follow(other)
        write(store, count=5)
        with pytest.raises((InvalidInput, CursorExpired)):
            store.changes(cursor)

    def test_a_new_epoch_ends_every_cursor(self, store: Store, make_store: MakeStore):
        write(store, count=2)
        _, cursor = follow(store)
        epoch, other = store.epoch, make_store()
        store.renew_epoch()
        assert store.epoch != epoch
        for handle in (store, other, make_store()):
            with pytest.raises(CursorExpired):
                handle.changes(cursor)
        assert make_store().epoch == store.epoch
        assert [change.step for change in follow(store)[0]] == [0, 1]

    def test_a_new_epoch_ends_every_lease_and_tokens_go_on_far_behind_the_old_ones(self, store: Store):
        from perdure.errors import LeaseLost

        lease = store.acquire("s", "me", 10**6)
        store.renew_epoch()
        with pytest.raises(LeaseLost):
            land(store, commit(token=lease.token))
        # A backup may be older than the last tokens that were handed out.
        assert store.acquire("s", "you", 1000).token > lease.token + 1_000_000

    def test_a_follower_that_missed_dropped_changes_is_told(self, store: Store):
        write(store, "a", count=2)
        _, cursor = follow(store)
        write(store, "a", count=2)
        store.drop("a", None, "deleted")
        with pytest.raises(CursorExpired):
            store.changes(cursor)

    def test_a_follower_that_missed_rows_dropped_by_retention_is_told(self, store: Store):
        write(store, count=2)
        _, cursor = follow(store)
        write(store, count=4)
        store.rewrite(Rewrite("s", put=(Artifact(ANCHOR, 0, 0, 3, b""),), drop=(Span(0, 0, 3),)))
        with pytest.raises(CursorExpired):
            store.changes(cursor)

    def test_a_follower_that_had_read_them_goes_on(self, store: Store):
        write(store, "a", count=3)
        write(store, "b", count=1)
        _, cursor = follow(store)
        store.drop("a", None, "deleted")
        write(store, "b", count=1)
        write(store, "a", count=1)
        items, _ = follow(store, cursor)
        assert sorted((change.session, change.step) for change in items) == [("a", 0), ("b", 1)]

    def test_changes_after_the_newest_rows_were_dropped_are_not_missed(self, store: Store, make_store: MakeStore):
        """The places of dropped rows must not be given to new ones, not even after a restart."""
        write(store, "a", count=1)
        write(store, "b", count=5)
        _, cursor = follow(store)
        store.drop("b", None, "deleted")
        store.close()
        again = make_store()
        write(again, "a", count=2)
        items, _ = follow(again, cursor)
        assert [(change.session, change.step) for change in items] == [("a", 1), ("a", 2)]

    @pytest.mark.parametrize("limit", [1, 2, 1000])
    def test_a_scan_from_the_beginning_gets_through_whatever_was_dropped_before(self, store: Store, limit: int):
        write(store, "a", count=3)
        write(store, "b", count=3)
        write(store, "c", count=3)
        store.drop("b", None, "deleted")
        items, cursor = follow(store, limit=limit)
        assert sorted((change.session, change.step) for change in items) == [(s, n) for s in "ac" for n in range(3)]
        write(store, "c", count=1)
        assert [change.step for change in follow(store, cursor)[0]] == [3]
