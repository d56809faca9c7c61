"""Copies: a session is dumped at one instant and put into another store as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure.errors import Conflict, InvalidInput, NotFound
from perdure.model import PACK, SNAPSHOT, Artifact, Dump, LeaseInfo, Rewrite, Span
from perdure.testing.sealed_rows import commit, entry, land, post, write
from perdure.testing.store_contract.contract import Contract, known

if TYPE_CHECKING:
    from perdure.protocols import Store
    from perdure.testing.clock import FakeClock
    from perdure.testing.store_contract.contract import MakeStore


def full_session(store: Store) -> None:
    """A session with everything a session can have."""
    store.post([entry("taken"), entry("waiting"), entry("also waiting")])
    lease = store.acquire("s", "me", 1000)
    token = lease.token
    first = commit(token=token, blobs=("aa", "bb"), takes=("taken",), kind="started", tool="search", ttl=60)
    second = commit(step=1, expect=first.id, token=token, error="Timeout", status="failed", ttl=60)
    fork = commit(step=1, branch="b", line=1, starts=True, token=token, kind="fork", ttl=60)
    third = commit(step=2, expect=second.id, token=token, owner="bob", ttl=60)
    for item in (first, second, fork, third):
        land(store, item)
    put = (Artifact(PACK, 0, 1, 1, b"pack"), Artifact(SNAPSHOT, 0, 2, 2, b"", (Span(0, 1, 1),), ("cc",)))
    assert store.rewrite(Rewrite("s", put=put, thin=(Span(0, 1, 1),)))


def comparable(dump: Dump) -> Dump:
    """A dump without what belongs to the store it came from: the lease and the numbers of arrival."""
    return dump._replace(
        row=dump.row._replace(lease=LeaseInfo("", 0, 0)),
        artifacts=tuple(sorted(dump.artifacts)),
        inbox=tuple(item._replace(seq=0) for item in dump.inbox),
    )


class DumpContract(Contract):
    """Copies: a session is dumped at one instant and put into another store as it was."""

    def test_a_dump_has_rows_with_their_projections_in_the_order_they_were_written(self, store: Store):
        full_session(store)
        dump = store.dump("s")
        assert dump.row == known(store)._replace(now=0)
        assert [(row.line, row.step) for row, _ in dump.rows] == [(0, 0), (0, 1), (1, 1), (0, 2)]
        first, second, fork, _ = [shown for _, shown in dump.rows]
        assert first == {
            "branch": "main",
            "kind": "started",
            "status": "idle",
            "at": 1_690_000_000_000,
            "tool": "search",
            "error": "",
            "takes": ("taken",),
            "blobs": ("aa", "bb"),
            "starts": True,
        }
        assert (second["error"], second["status"], second["starts"]) == ("Timeout", "failed", False)
        assert (fork["branch"], fork["kind"], fork["starts"]) == ("b", "fork", True)
        assert [(item.key, item.taken) for item in dump.inbox] == [
            ("taken", dump.rows[0][0].id),
            ("waiting", b""),
            ("also waiting", b""),
        ]

    def test_a_restored_session_is_the_same_in_another_store(self, store: Store, make_store: MakeStore):
        full_session(store)
        dump = store.dump("s")
        other = make_store("two")
        write(other, "already there", count=2)
        other.restore(dump)
        other.close()
        again = make_store("two")
        assert comparable(again.dump("s")) == comparable(dump)
        assert again.load("s", 0) == store.load("s", 0)
        assert again.starts("s", None) == store.starts("s", None)
        assert set(again.blob_refs()) == {"aa", "bb", "cc"}
        assert [item.key for item in again.inbox("s")] == ["waiting", "also waiting"]
        assert [row.id for row in again.sessions(owner="bob")] == ["s"]

    def test_a_restored_session_goes_on(self, store: Store, make_store: MakeStore):
        full_session(store)
        other = make_store("two")
        other.restore(store.dump("s"))
        write(other, count=1)
        assert other.load("s", 0).last == 3
        assert post(other, entry("taken")) is False
        land(other, commit(step=3, branch="c", line=2, starts=True))

    def test_a_restored_session_shows_in_the_changes(self, store: Store, make_store: MakeStore):
        full_session(store)
        other = make_store("two")
        cursor = other.changes().cursor
        other.restore(store.dump("s"))
        changes = other.changes(cursor).items
        assert {(c.line, c.step) for c in changes} == {(0, 0), (0, 1), (1, 1), (0, 2)}
        assert [c.step for c in changes if c.line == 0] == [0, 1, 2]

    def test_a_restore_brings_no_lease_and_tokens_go_on_behind_the_old_ones(self, store: Store, make_store: MakeStore):
        for _ in range(5):
            store.release(store.acquire("t", "me", 1000))
        full_session(store)
        token = known(store).lease.token
        other = make_store("two")
        other.restore(store.dump("s"))
        assert other.look("s").lease.holder == ""  # type: ignore[union-attr]
        assert other.acquire("s", "me", 1000).token > token

    def test_a_session_with_checkpoints_is_not_written_over(self, store: Store, make_store: MakeStore):
        full_session(store)
        dump = store.dump("s")
        other = make_store("two")
        write(other, "s", count=1, payload=b"mine")
        with pytest.raises(Conflict):
            other.restore(dump)
        assert [row.payload for row in other.load("s", 0).rows] == [b"mine"]
        with pytest.raises(Conflict):
            store.restore(dump)
        assert store.dump("s") == dump

    def test_a_session_can_be_restored_where_it_was_dropped(self, store: Store, clock: FakeClock):
        full_session(store)
        dump = store.dump("s")
        token = dump.row.lease.token
        store.drop("s", token, "deleted")
        store.restore(dump)
        assert comparable(store.dump("s")) == comparable(dump)
        assert store.acquire("s", "me", 1000).token > token

    def test_what_was_posted_before_a_restore_is_not_lost(self, store: Store, make_store: MakeStore):
        full_session(store)
        other = make_store("two")
        other.post([entry("early"), entry("taken"), entry("waiting")])
        other.restore(store.dump("s"))
        assert {item.key for item in other.inbox("s")} == {"early", "waiting", "also waiting"}

    @pytest.mark.parametrize("key", ["taken", "waiting"])
    def test_a_restore_over_another_input_of_the_same_key_is_refused(
        self, store: Store, make_store: MakeStore, key: str
    ):
        full_session(store)
        other = make_store("two")
        other.post([entry("early"), entry(key, digest=b"o" * 32)])
        before = other.dump("s")
        with pytest.raises(InvalidInput, match=f"{key!r}"):
            other.restore(store.dump("s"))
        assert comparable(other.dump("s")) == comparable(before)
        assert [item.digest for item in other.inbox("s", key=key)] == [b"o" * 32]

    def test_a_session_that_was_only_posted_to_can_be_copied(self, store: Store, make_store: MakeStore):
        post(store, entry("k"))
        other = make_store("two")
        other.restore(store.dump("s"))
        assert [item.key for item in other.inbox("s")] == ["k"]
        write(other, count=1)

    def test_what_never_was_cannot_be_dumped(self, store: Store):
        with pytest.raises(NotFound):
            store.dump("nobody")

    def test_a_dump_is_not_changed_by_what_comes_after(self, store: Store):
        full_session(store)
        dump = store.dump("s")
        before = comparable(dump)
        land(store, commit(step=3, expect=dump.row.heads[1].id, token=dump.row.lease.token))
        store.drop("s", dump.row.lease.token, "deleted")
        assert comparable(dump) == before
