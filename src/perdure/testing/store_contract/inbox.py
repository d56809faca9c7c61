"""The inbox: anyone may post, each key counts once, and entries are taken by the commit that answers them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from perdure.errors import Conflict, InvalidInput
from perdure.model import Head, Outrun
from perdure.testing.sealed_rows import commit, entry, land, post, write
from perdure.testing.store_contract.contract import Contract, known

if TYPE_CHECKING:
    from perdure.protocols import Store
    from perdure.testing.store_contract.contract import MakeStore


def keys(store: Store, session: str = "s", limit: int = 100) -> list[str]:
    return [waiting.key for waiting in store.inbox(session, limit)]


class InboxContract(Contract):
    """The inbox: anyone may post, each key counts once, and entries are taken by the commit that answers them."""

    def test_entries_wait_in_order_of_arrival_and_outlive_the_handle(self, store: Store, make_store: MakeStore):
        posted = [entry(key, body=key.encode(), at=at) for key, at in (("z", 3), ("a", 2), ("m", 1))]
        assert store.post(posted) == [True, True, True]
        store.close()
        waiting = make_store().inbox("s")
        assert [item._replace(seq=0) for item in waiting] == posted
        seqs = [item.seq for item in waiting]
        assert seqs == sorted(set(seqs))

    def test_entries_of_a_session_are_numbered_without_gaps(self, store: Store):
        assert store.post([entry("a"), entry("b", "t"), entry("b"), entry("a"), entry("c")]) == [
            True, True, True, False, True
        ]  # fmt: skip
        land(store, commit("s", takes=("b",)))
        post(store, entry("d"))
        assert [(item.key, item.seq) for item in store.inbox("s")] == [("a", 1), ("c", 3), ("d", 4)]
        assert [item.seq for item in store.inbox("t")] == [1]
        assert known(store).posts == 4

    def test_whoever_names_another_number_than_the_next_is_told_and_writes_nothing(self, store: Store):
        assert store.post([entry("a", seq=1), entry("b", seq=1), entry("b", seq=2)]) == [True, Outrun(2), True]
        assert store.post([entry("c", seq=2), entry("d", seq=4), entry("e", seq=3)]) == [Outrun(3), Outrun(3), True]
        assert [(item.key, item.seq) for item in store.inbox("s")] == [("a", 1), ("b", 2), ("e", 3)]
        # What is there already is there under whatever number.
        assert store.post([entry("a", seq=9)]) == [False]

    def test_numbers_go_on_when_a_session_ends_and_begins_anew(self, store: Store, make_store: MakeStore):
        store.post([entry("a"), entry("b")])
        store.drop("s", None, "expired")
        assert known(store).posts == 2
        assert make_store().post([entry("a", seq=1), entry("a", seq=3)]) == [Outrun(3), True]
        row = known(store)
        assert (row.posts, row.pending) == (3, 1)

    def test_many_who_post_at_once_get_a_number_each(self, store: Store, make_store: MakeStore):
        def say(name: str) -> None:
            other = make_store()
            for n in range(8):
                number: int | Outrun = 1
                while True:
                    (answer,) = other.post([entry(f"{name}{n}", seq=number)])
                    if not isinstance(answer, Outrun):
                        assert answer is True
                        break
                    number = answer.next

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(say, "abcd"))
        assert [item.seq for item in store.inbox("s")] == list(range(1, 33))

    def test_a_session_need_not_exist_and_becomes_known(self, store: Store):
        assert store.inbox("s") == []
        post(store, entry())
        row = store.look("s")
        assert row is not None
        assert (row.heads, row.pending) == ((), 1)
        assert [row.id for row in store.sessions()] == ["s"]

    def test_posting_needs_no_lease(self, store: Store):
        store.acquire("s", "me", 1000)
        assert post(store, entry())

    def test_a_key_counts_once(self, store: Store):
        assert post(store, entry("k")) is True
        assert post(store, entry("k", at=5, kind="other")) is False
        assert store.post([entry("new"), entry("new")]) == [True, False]
        assert keys(store) == ["k", "new"]

    def test_the_same_key_for_another_content_is_refused_and_fails_nobody_else(self, store: Store):
        post(store, entry("k"))
        answers = store.post([entry("a"), entry("k", body=b"something else"), entry("b")])
        assert [answers[0], answers[2]] == [True, True]
        assert isinstance(answers[1], InvalidInput)
        assert "something else" not in str(answers[1])
        assert keys(store) == ["k", "a", "b"]

    def test_the_same_key_in_another_session_is_another_entry(self, store: Store):
        assert post(store, entry("k", "s"))
        assert post(store, entry("k", "t"))

    def test_only_so_many_entries_are_given_as_were_asked_for(self, store: Store):
        store.post([entry(f"k{n}") for n in range(5)])
        assert keys(store, limit=2) == ["k0", "k1"]

    def test_one_entry_is_found_by_its_key_while_it_waits(self, store: Store):
        store.post([entry("a"), entry("b")])
        assert [found.key for found in store.inbox("s", key="b")] == ["b"]
        assert store.inbox("s", key="c") == []
        land(store, commit(takes=("b",)))
        assert store.inbox("s", key="b") == []

    def test_a_commit_takes_the_entries_it_answers(self, store: Store, make_store: MakeStore):
        store.post([entry("a"), entry("b"), entry("c")])
        land(store, commit(takes=("c", "a")))
        assert keys(store) == ["b"]
        assert known(store).pending == 1
        store.close()
        assert keys(make_store()) == ["b"]

    def test_the_key_of_a_taken_entry_goes_on_being_known(self, store: Store):
        post(store, entry("k"))
        land(store, commit(takes=("k",)))
        assert post(store, entry("k")) is False
        with pytest.raises(InvalidInput):
            post(store, entry("k", body=b"something else"))
        assert keys(store) == []

    def test_an_entry_is_taken_only_once(self, store: Store):
        post(store, entry("k"))
        first = commit(takes=("k",))
        land(store, first)
        with pytest.raises(Conflict) as refused:
            land(store, commit(step=1, expect=first.id, takes=("k",)))
        assert refused.value.head == Head("main", 0, 0, first.id)
        assert store.load("s", 0).last == 0

    @pytest.mark.parametrize("takes", [("never posted",), ("k", "never posted"), ("k", "k")])
    def test_a_commit_that_takes_what_does_not_wait_takes_nothing(self, store: Store, takes: tuple[str, ...]):
        first = write(store, count=1)[0]
        post(store, entry("k"))
        with pytest.raises(Conflict):
            land(store, commit(step=1, expect=first.id, takes=takes))
        assert keys(store) == ["k"]
        assert store.load("s", 0).last == 0

    def test_a_commit_takes_nothing_from_another_session(self, store: Store):
        post(store, entry("k", "other"))
        with pytest.raises(Conflict):
            land(store, commit("s", takes=("k",)))
        assert keys(store, "other") == ["k"]

    def test_a_refused_commit_takes_nothing(self, store: Store):
        write(store, count=1)
        post(store, entry("k"))
        with pytest.raises(Conflict):
            land(store, commit(step=1, expect=b"wrong", takes=("k",)))
        assert keys(store) == ["k"]

    def test_a_retried_commit_is_not_in_conflict_over_what_it_took_itself(self, store: Store):
        post(store, entry("k"))
        item = commit(takes=("k",))
        land(store, item)
        assert land(store, item).again

    def test_two_commits_of_one_batch_cannot_take_the_same_entry(self, store: Store):
        post(store, entry("k"))
        first = commit(takes=("k",))
        answers = store.append([first, commit(step=1, expect=first.id, takes=("k",))])
        assert isinstance(answers[1], Conflict)

    def test_the_body_of_a_taken_entry_is_not_kept(self, store: Store):
        post(store, entry("k", body=b"secret"))
        item = commit(takes=("k",))
        land(store, item)
        (kept,) = store.dump("s").inbox
        assert (kept.body, kept.taken) == (b"", item.id)

    def test_no_posts_no_answers(self, store: Store):
        assert store.post([]) == []
