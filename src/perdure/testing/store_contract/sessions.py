"""Sessions: what a store says of them without opening anything, how they are listed, expire and end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from perdure.errors import Busy, ForkedProcess, Gone, HandleClosed, LeaseLost, NotFound
from perdure.model import ASIDE, Artifact, Head, Rewrite
from perdure.protocols import Boarded, Cached, Talking
from perdure.system.urls import shown
from perdure.testing.sealed_rows import commit, entry, land, post, write
from perdure.testing.store_contract.contract import BOARD, CACHE, LIVE, Contract, known

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.protocols import Store
    from perdure.testing.clock import FakeClock
    from perdure.testing.store_contract.contract import MakeStore


def ids(store: Store, **filters: object) -> list[str]:
    return [row.id for row in store.sessions(**filters)]  # type: ignore[arg-type]


def calls(lease: Any, dump: Any) -> dict[str, Callable[[Store], object]]:
    """A use of every method that a handle has."""
    return {
        "append": lambda store: store.append([commit()]),
        "look": lambda store: store.look("s"),
        "starts": lambda store: store.starts("s", None),
        "load": lambda store: store.load("s", 0),
        "slice": lambda store: store.slice("s", 0, 0, 1),
        "artifacts": lambda store: store.artifacts("s"),
        "rewrite": lambda store: store.rewrite(Rewrite("s")),
        "post": lambda store: store.post([entry()]),
        "inbox": lambda store: store.inbox("s"),
        "acquire": lambda store: store.acquire("s", "me", 1000),
        "renew": lambda store: store.renew([lease], 1000),
        "release": lambda store: store.release(lease),
        "sessions": lambda store: store.sessions(),
        "changes": lambda store: store.changes(),
        "drop": lambda store: store.drop("s", None, "deleted"),
        "blob_refs": lambda store: list(store.blob_refs()),
        "dump": lambda store: store.dump("s"),
        "restore": lambda store: store.restore(dump),
        "renew_epoch": lambda store: store.renew_epoch(),
        "usage": lambda store: store.usage(),
    }


NAMES = sorted(calls(None, None))


class SessionsContract(Contract):
    """Sessions: what a store says of them without opening anything, how they are listed, expire and end."""

    def test_nothing_is_known_of_a_session_that_never_was(self, store: Store):
        assert store.look("nobody") is None

    def test_the_row_shows_the_newest_commit_by_the_stores_own_time(self, store: Store, clock: FakeClock):
        created = clock.wall()
        first = write(store, count=1, owner="ana", status="running", ttl=60)[0]
        clock.advance(5000)
        second = commit(step=1, expect=first.id, owner="bob", status="paused", ttl=10)
        land(store, second)
        row = store.look("s")
        assert row is not None
        assert (row.id, row.owner, row.status, row.reason) == ("s", "bob", "paused", "")
        assert (row.created, row.updated, row.expires) == (created, created + 5000, created + 15_000)
        assert row.heads == (Head("main", 0, 1, second.id),)
        assert (row.pending, row.lines) == (0, 1)

    def test_a_session_without_a_ttl_never_expires(self, store: Store, clock: FakeClock):
        item = write(store, count=1, ttl=60)[0]
        land(store, commit(step=1, expect=item.id, ttl=None))
        assert known(store).expires is None
        clock.advance(10**12)
        assert ids(store, expired=True) == []

    def test_the_ttl_slides_with_each_commit(self, store: Store, clock: FakeClock):
        write(store, count=1, ttl=60)
        clock.advance(59_000)
        write(store, count=1, ttl=60)
        clock.advance(59_000)
        assert ids(store, expired=True) == []
        clock.advance(1_000)
        assert ids(store, expired=True) == ["s"]

    def test_a_retried_commit_does_not_let_the_ttl_slide(self, store: Store, clock: FakeClock):
        (item,) = write(store, count=1, ttl=60)
        expires = known(store).expires
        clock.advance(1000)
        assert land(store, item).again
        assert known(store).expires == expires

    def test_a_row_tells_the_stores_own_time(self, store: Store, clock: FakeClock):
        write(store, count=1, ttl=60)
        assert (known(store).now, known(store).over) == (clock.wall(), False)
        clock.advance(60_000)
        assert (known(store).now, known(store).over) == (clock.wall(), True)
        assert [row.now for row in store.sessions()] == [clock.wall()]

    def test_an_error_that_somebody_keeps_holds_no_reader_in_the_past(self, store: Store):
        write(store, "here", count=2, blobs=("aa",))
        refused: dict[str, Callable[[], object]] = {
            "load": lambda: store.load("gone", 0),
            "slice": lambda: store.slice("gone", 0, 0, 9),
            "no line": lambda: store.slice("here", 7, 0, 9),
            "no step": lambda: store.load("here", 0, 9),
            "dump": lambda: store.dump("gone"),
        }
        kept: list[BaseException] = []
        for name, refuse in refused.items():
            write(store, "gone", count=1)
            store.drop("gone", None, "deleted")
            store.inbox("here")
            with pytest.raises(NotFound) as error:
                refuse()
            kept.append(error.value)
            write(store, name, count=1, blobs=(name,))
            post(store, entry(session=name))
            assert store.dump(name).rows, name
            assert name in ids(store)
            assert len(store.inbox(name)) == 1, name
            assert name in set(store.blob_refs())
            assert store.slice(name, 0, 0, 0).last == 0

    def test_what_is_set_aside_is_listed_and_counted_only_for_who_asks(self, store: Store):
        for name in ("a", "z", f"{ASIDE}5:a"):
            write(store, name)
        assert ids(store) == ["a", "z"]
        assert sorted(ids(store, newest=True)) == ["a", "z"]
        assert ids(store, aside=True) == [f"{ASIDE}5:a"]
        assert sum(number for *_, number in store.counts()) == 2

    def test_a_dropped_session_keeps_what_waits_in_its_inbox_if_it_is_to(self, store: Store):
        item = write(store, count=1)[0]
        for key in ("taken", "one", "two"):
            post(store, entry(key=key))
        land(store, commit(step=1, expect=item.id, takes=("taken",)))
        before = store.inbox("s")
        store.drop("s", None, "expired", keep_waiting=True)
        assert known(store).reason == "expired"
        assert known(store).pending == 2
        assert [(e.key, e.body, e.digest) for e in store.inbox("s")] == [(e.key, e.body, e.digest) for e in before]
        post(store, entry(key="three"))
        land(store, commit(takes=("two", "one")))
        assert [e.key for e in store.inbox("s")] == ["three"]
        assert post(store, entry(key="taken")), "of the life before nothing is known"
        store.drop("s", None, "deleted")
        assert store.inbox("s") == []

    def test_sessions_are_listed_in_order_of_id_page_by_page(self, store: Store):
        names = ["b", "a", "ä", "B", "a/1", "z", "𝔷", "\uffff"]
        for name in names:
            write(store, name)
        assert ids(store) == sorted(names)
        pages: list[str] = []
        after = None
        while page := ids(store, after=after, limit=3):
            assert len(page) <= 3
            pages += page
            after = page[-1]
        assert pages == sorted(names)
        assert ids(store, after="a") == [name for name in sorted(names) if name > "a"]

    def test_sessions_are_filtered_by_owner_status_and_expiry_together(self, store: Store, clock: FakeClock):
        for number, (owner, status, ttl) in enumerate(
            [
                ("ana", "idle", 10),
                ("ana", "paused", 10),
                ("bob", "idle", 10),
                ("ana", "idle", 99),
                ("ana", "idle", None),
            ]
        ):
            write(store, f"s{number}", owner=owner, status=status, ttl=ttl)
        assert ids(store, owner="ana") == ["s0", "s1", "s3", "s4"]
        assert ids(store, status="idle") == ["s0", "s2", "s3", "s4"]
        clock.advance(9_999)
        assert ids(store, expired=True) == []
        clock.advance(1)
        assert ids(store, expired=True) == ["s0", "s1", "s2"]
        assert ids(store, owner="ana", status="idle", expired=True) == ["s0"]
        assert ids(store, owner="ana", after="s0", limit=2) == ["s1", "s3"]
        assert ids(store, owner="nobody") == []

    def test_sessions_that_have_ended_are_listed_when_they_are_asked_for(self, store: Store):
        for number in range(5):
            write(store, f"s{number}", owner="ana")
        for session in ("s1", "s3", "s4"):
            store.drop(session, None, "deleted")
        write(store, "s4")
        assert ids(store) == ["s0", "s2", "s4"]
        assert ids(store, ended=True) == ["s1", "s3"]
        assert ids(store, ended=True, limit=1) == ["s1"]
        assert ids(store, ended=True, after="s1") == ["s3"]
        assert ids(store, ended=True, search="3") == ["s3"]
        assert store.sessions(ended=True, limit=1) == [store.look("s1")]

    def test_a_listed_row_is_the_row_one_would_look_at(self, store: Store):
        write(store, count=2, ttl=5)
        land(store, commit(step=1, branch="b", line=1, starts=True))
        post(store, entry())
        store.acquire("s", "me", 1000)
        assert store.sessions() == [store.look("s")]

    def test_an_owner_who_changes_is_found_under_the_new_name_only(self, store: Store):
        write(store, owner="ana")
        write(store, owner="bob")
        assert ids(store, owner="ana") == []
        assert ids(store, owner="bob") == ["s"]

    # -- the end of a session ----------------------------------------------------------------------------

    def test_a_dropped_session_leaves_a_tombstone_with_its_token_and_reason(self, store: Store, make_store: MakeStore):
        lease = store.acquire("s", "me", 1000)
        write(store, count=3, token=lease.token, ttl=5)
        post(store, entry())
        assert store.rewrite(Rewrite("s", put=(Artifact("snapshot", 0, 1, 1, b"state"),)))
        store.drop("s", lease.token, "expired")
        store.close()
        again = make_store()
        row = again.look("s")
        assert row is not None
        assert (row.reason, row.heads, row.expires, row.pending) == ("expired", (), None, 0)
        assert (row.lease.token, row.lease.holder) == (lease.token, "")
        assert again.inbox("s") == []
        assert again.starts("s", None) == []
        assert again.artifacts("s") == []
        assert again.changes().items == ()
        assert again.usage().checkpoints == 0

    def test_reading_a_tombstone_says_why_the_session_is_gone(self, store: Store):
        write(store, count=2)
        store.drop("s", None, "asked to forget")
        for read in (lambda: store.load("s", 0), lambda: store.slice("s", 0, 0, 1), lambda: store.dump("s")):
            with pytest.raises(Gone) as refused:
                read()
            assert refused.value.reason == "asked to forget"

    def test_tombstones_are_not_listed(self, store: Store):
        write(store, "a")
        write(store, "b")
        store.drop("a", None, "deleted")
        assert ids(store) == ["b"]
        assert store.usage().sessions == 1

    def test_dropping_is_fenced_like_a_commit(self, store: Store, clock: FakeClock):
        mine = store.acquire("s", "me", 1000)
        write(store, count=1, token=mine.token)
        with pytest.raises(Busy):
            store.drop("s", None, "deleted")
        clock.advance(1000)
        yours = store.acquire("s", "you", 1000)
        with pytest.raises(LeaseLost):
            store.drop("s", mine.token, "deleted")
        assert store.load("s", 0).last == 0
        store.drop("s", yours.token, "deleted")

    def test_a_session_that_never_was_cannot_be_dropped(self, store: Store):
        with pytest.raises(NotFound):
            store.drop("nobody", None, "deleted")
        assert store.look("nobody") is None

    def test_the_writer_of_a_dropped_session_has_lost_its_lease(self, store: Store):
        lease = store.acquire("s", "me", 1000)
        item = write(store, count=1, token=lease.token)[0]
        store.drop("s", lease.token, "deleted")
        with pytest.raises(LeaseLost):
            land(store, commit(step=1, expect=item.id, token=lease.token))
        assert store.renew([lease], 1000) == [False]

    def test_a_tombstone_can_be_acquired_and_tokens_go_on(self, store: Store):
        first = store.acquire("s", "me", 1000)
        write(store, count=3, token=first.token)
        store.drop("s", first.token, "deleted")
        second = store.acquire("s", "me", 1000)
        assert second.token > first.token
        assert known(store).reason == "deleted"

    def test_the_first_commit_after_a_drop_begins_a_new_life(self, store: Store, clock: FakeClock):
        write(store, count=3, owner="ana")
        land(store, commit(step=3, branch="b", line=1, starts=True))
        store.drop("s", None, "deleted")
        clock.advance(1000)
        lease = store.acquire("s", "me", 1000)
        item = commit(token=lease.token, owner="bob", payload=b"new life")
        land(store, item)
        row = store.look("s")
        assert row is not None
        assert (row.reason, row.owner, row.created, row.lines) == ("", "bob", clock.wall(), 1)
        assert row.heads == (Head("main", 0, 0, item.id),)
        assert [r.payload for r in store.load("s", 0).rows] == [b"new life"]
        assert ids(store) == ["s"]

    def test_one_may_post_to_a_tombstone_and_it_stays_one(self, store: Store):
        write(store)
        store.drop("s", None, "deleted")
        assert post(store, entry("k"))
        row = store.look("s")
        assert row is not None
        assert (row.reason, row.pending) == ("deleted", 1)

    def test_sizes_count_sessions_and_checkpoints(self, store: Store):
        assert (store.usage().sessions, store.usage().checkpoints) == (0, 0)
        write(store, "a", count=3)
        write(store, "b", count=2)
        usage = store.usage()
        assert (usage.sessions, usage.checkpoints) == (2, 5)
        assert usage.bytes > 0

    # -- the handle --------------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", NAMES)
    def test_a_closed_handle_refuses_everything_but_being_closed_again(self, store: Store, name: str):
        lease = store.acquire("t", "me", 1000)
        dump = store.dump("t")
        store.close()
        store.close()
        with pytest.raises(HandleClosed):
            calls(lease, dump)[name](store)

    def test_a_handle_refuses_to_work_in_a_forked_child(self, store: Store, monkeypatch: pytest.MonkeyPatch):
        lease = store.acquire("t", "me", 1000)
        write(store, count=1)
        dump = store.dump("s")
        parent = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: parent + 1)
        for call in calls(lease, dump).values():
            with pytest.raises(ForkedProcess):
                call(store)
        store.close()
        monkeypatch.undo()
        assert store.load("s", 0).last == 0

    def test_the_promise_is_made_in_code_and_in_words(self, store: Store):
        promised = (store.promise.process_crash, store.promise.power_loss)
        assert promised == (self.survives_process_crash, self.survives_power_loss), "declared otherwise in the test"
        assert len(store.promise.words.split()) > 10

    def test_the_url_names_the_store_and_has_no_secret_in_it(self, store: Store):
        assert store.url.startswith(self.scheme)
        assert shown(store.url) == store.url

    def test_what_the_store_offers_beside_its_contract_is_what_is_declared(self, store: Store):
        protocols = {BOARD: Boarded, LIVE: Talking, CACHE: Cached}
        assert {name for name, kind in protocols.items() if isinstance(store, kind)} == self.offers & set(protocols)
