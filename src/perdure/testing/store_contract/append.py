"""Commits: what lands, what is refused and in which order the rules apply."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from perdure.errors import Busy, Conflict, Corrupted, LeaseLost, NotFound, PerdureError
from perdure.model import Head, Kind, Landed, Row, Status
from perdure.testing.sealed_rows import HOUR, commit, entry, land, post, write
from perdure.testing.store_contract.contract import Contract, known

if TYPE_CHECKING:
    from perdure.model import Append
    from perdure.protocols import Store
    from perdure.testing.clock import FakeClock
    from perdure.testing.store_contract.contract import MakeStore


def row_of(item: Append) -> Row:
    return Row(item.line, item.step, item.id, item.digest, item.envelope, item.payload)


ODD_IDS = [
    "../../etc/passwd", "'; drop table commits; --", "a/b\\c", ".", "..", " ", "%2e%2e", "CON", "name\nline",
    "nul\0inside", "ünï/cødé", "ab", "AB", "é", "e\u0301", "🜁" * 128, "x" * 512,
]  # fmt: skip


class AppendContract(Contract):
    """Commits: what lands, what is refused and in which order the rules apply."""

    def test_a_commit_that_landed_is_given_back_byte_for_byte(self, store: Store):
        items = write(store, count=3)
        bundle = store.load("s", 0)
        assert bundle.rows == tuple(row_of(item) for item in items)
        assert (bundle.base, bundle.packs, bundle.last) == (None, (), 2)

    def test_a_commit_outlives_its_handle(self, store: Store, make_store: MakeStore):
        items = write(store, count=2)
        store.close()
        again = make_store()
        assert again.id == store.id
        assert again.load("s", 0).rows == tuple(row_of(item) for item in items)

    def test_another_handle_sees_a_commit_at_once(self, store: Store, make_store: MakeStore):
        other = make_store()
        items = write(store, count=1)
        assert other.load("s", 0).rows == (row_of(items[0]),)
        more = write(other, count=1)
        assert store.load("s", 0).rows[1:] == (row_of(more[0]),)

    def test_a_line_is_loaded_up_to_the_step_that_was_asked_for(self, store: Store):
        items = write(store, count=5)
        bundle = store.load("s", 0, 2)
        assert [row.step for row in bundle.rows] == [0, 1, 2]
        assert bundle.last == 4
        assert store.load("s", 0, 0).rows == (row_of(items[0]),)

    def test_a_slice_has_the_rows_between_two_steps_and_no_base(self, store: Store):
        write(store, count=5)
        bundle = store.slice("s", 0, 1, 3)
        assert [row.step for row in bundle.rows] == [1, 2, 3]
        assert (bundle.base, bundle.last) == (None, 4)
        assert [row.step for row in store.slice("s", 0, 3, 2**53).rows] == [3, 4]
        assert store.slice("s", 0, 7, 9).rows == ()

    @pytest.mark.parametrize(("session", "line", "step"), [("nobody", 0, None), ("s", 1, None), ("s", 0, 9)])
    def test_what_was_never_written_is_not_found(self, store: Store, session: str, line: int, step: int | None):
        write(store, count=2)
        with pytest.raises(NotFound):
            store.load(session, line, step)

    def test_a_session_that_was_only_leased_or_posted_to_has_nothing_to_load(self, store: Store):
        store.acquire("leased", "me", HOUR)
        post(store, entry(session="posted"))
        for session in ("leased", "posted"):
            with pytest.raises(NotFound):
                store.load(session, 0)

    def test_a_commit_builds_on_the_head_it_names(self, store: Store):
        first = write(store, count=1)[0]
        with pytest.raises(Conflict) as refused:
            land(store, commit(step=1, expect=b"somebody else's!"))
        assert refused.value.head == Head("main", 0, 0, first.id)
        assert store.load("s", 0).last == 0

    def test_a_branch_that_must_not_exist_yet_does_not(self, store: Store):
        first = write(store, count=1)[0]
        with pytest.raises(Conflict) as refused:
            land(store, commit(step=1, expect=None))
        assert refused.value.head == Head("main", 0, 0, first.id)

    def test_a_branch_that_is_built_upon_must_exist(self, store: Store):
        first = write(store, count=1)[0]
        with pytest.raises(Conflict) as refused:
            land(store, commit(step=1, expect=first.id, branch="other", line=1))
        assert refused.value.head is None

    def test_a_refused_commit_leaves_no_session_behind(self, store: Store):
        with pytest.raises(Conflict):
            land(store, commit("new", 1, b"not there"))
        row = store.look("new")
        assert row is None or row.heads == ()
        assert store.changes().items == ()

    def test_the_same_commit_again_has_landed_already(self, store: Store):
        item = commit()
        assert land(store, item) == Landed(item.id, again=False)
        assert land(store, item) == Landed(item.id, again=True)
        assert len(store.changes().items) == 1

    def test_a_retry_is_known_even_when_the_branch_has_moved_on(self, store: Store):
        items = write(store, count=3)
        assert land(store, items[0]).again
        assert land(store, items[1]).again
        assert [head.step for head in known(store).heads] == [2]

    def test_a_retry_is_known_even_when_the_lease_was_lost(self, store: Store, clock: FakeClock):
        lease = store.acquire("s", "me", 1000)
        item = commit(token=lease.token)
        land(store, item)
        clock.advance(1000)
        store.acquire("s", "you", 1000)
        assert land(store, item) == Landed(item.id, again=True)
        with pytest.raises(LeaseLost):
            land(store, commit(step=1, expect=item.id, token=lease.token))

    def test_a_retry_is_known_even_when_the_row_was_thinned(self, store: Store):
        from perdure.model import Artifact, Rewrite, Span

        items = write(store, count=2)
        assert store.rewrite(Rewrite("s", put=(Artifact("pack", 0, 0, 1, b"x"),), thin=(Span(0, 0, 1),)))
        assert land(store, items[0]) == Landed(items[0].id, again=True)

    def test_the_same_id_with_another_digest_is_corruption(self, store: Store):
        items = write(store, count=2)
        for item in items:
            with pytest.raises(Corrupted):
                land(store, item._replace(digest=b"another digest"))

    def test_a_stale_token_is_refused_before_the_head_is_looked_at(self, store: Store):
        write(store, count=1)
        with pytest.raises(LeaseLost):
            land(store, commit(step=5, expect=b"wrong head", token=77))
        assert store.load("s", 0).last == 0

    def test_a_token_for_a_session_that_nobody_ever_leased_is_refused(self, store: Store):
        with pytest.raises(LeaseLost):
            land(store, commit("new", token=1))

    def test_an_optimistic_writer_is_refused_while_somebody_holds_the_lease(self, store: Store, clock: FakeClock):
        store.acquire("s", "me", 1000)
        with pytest.raises(Busy) as refused:
            land(store, commit())
        assert refused.value.holder == "me"
        assert refused.value.until == clock.wall() + 1000
        clock.advance(1000)
        land(store, commit())

    def test_an_optimistic_writer_with_a_wrong_head_is_told_about_the_lease_first(self, store: Store):
        write(store, count=1)
        store.acquire("s", "me", 1000)
        with pytest.raises(Busy):
            land(store, commit(step=5, expect=b"wrong head"))

    def test_a_place_that_is_taken_by_another_commit_is_a_conflict(self, store: Store):
        items = write(store, count=2)
        with pytest.raises(Conflict) as refused:
            land(store, commit(step=1, expect=items[1].id, id=b"an intruder"))
        assert refused.value.head == Head("main", 0, 1, items[1].id)
        assert store.load("s", 0).rows == tuple(row_of(item) for item in items)

    def test_two_forks_cannot_start_the_same_line(self, store: Store):
        write(store, count=3)
        land(store, commit(step=2, branch="a", line=1, starts=True))
        with pytest.raises(Conflict) as refused:
            land(store, commit(step=3, branch="b", line=1, starts=True))
        assert refused.value.head is None
        assert [head.branch for head in known(store).heads] == ["a", "main"]

    def test_one_of_many_racing_writers_wins_each_head(self, make_store: MakeStore):
        stores = [make_store() for _ in range(4)]
        first = write(stores[0], count=1)[0]
        answers: list[Landed | PerdureError] = []
        gate = threading.Barrier(4)

        def race(number: int) -> None:
            gate.wait()
            answers.extend(stores[number].append([commit(step=1, expect=first.id, id=b"racer %d" % number)]))

        threads = [threading.Thread(target=race, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [answer for answer in answers if isinstance(answer, Landed)]
        assert len(winners) == 1
        losers = [answer for answer in answers if isinstance(answer, Conflict)]
        assert [loser.head for loser in losers] == [Head("main", 0, 1, winners[0].id)] * 3

    def test_a_batch_answers_in_order_and_an_item_may_build_on_an_earlier_one(self, store: Store):
        a, b = commit("a"), commit("b")
        a2 = commit("a", 1, a.id)
        assert store.append([a, b, a2]) == [Landed(a.id), Landed(b.id), Landed(a2.id)]
        assert store.load("a", 0).last == 1

    def test_an_item_and_its_copy_in_one_batch_land_once(self, store: Store):
        item = commit()
        assert store.append([item, item]) == [Landed(item.id), Landed(item.id, again=True)]

    def test_an_empty_batch_has_no_answers(self, store: Store):
        assert store.append([]) == []

    def test_one_conflict_in_a_batch_fails_nobody_else(self, store: Store):
        good, bad, other = commit("good"), commit("bad", 1, b"wrong"), commit("other")
        answers = store.append([good, bad, other, commit("bad")])
        assert [type(answer) for answer in answers] == [Landed, Conflict, Landed, Landed]

    def test_an_item_that_cannot_be_stored_fails_nobody_else(self, store: Store):
        # Half of a surrogate pair is no text: no store can write it down.
        answers = store.append([commit("good"), commit("b\ud800d", id=b"bad"), commit("other")])
        assert isinstance(answers[0], Landed)
        assert isinstance(answers[2], Landed)
        assert store.load("good", 0).last == 0
        assert store.load("other", 0).last == 0

    def test_a_batch_larger_than_any_transaction_lands_whole(self, store: Store):
        items = [commit(f"s{n:04}") for n in range(1100)]
        assert store.append(items) == [Landed(item.id) for item in items]
        assert store.usage().sessions == 1100

    def test_kinds_and_statuses_may_be_members_of_their_enumerations(self, store: Store):
        land(store, commit(kind=Kind.DONE, status=Status.RUNNING))
        assert known(store).status == "running"
        (change,) = store.changes().items
        assert (change.kind, change.status) == ("done", "running")

    def test_empty_and_large_payloads_are_kept(self, store: Store):
        first = commit(payload=b"")
        second = commit(step=1, expect=first.id, payload=bytes(range(256)) * 4096)
        store.append([first, second])
        assert [row.payload for row in store.load("s", 0).rows] == [b"", second.payload]

    def test_any_text_is_a_session_id_and_no_two_are_mixed_up(self, store: Store, make_store: MakeStore):
        store.append([commit(id_, payload=id_.encode()) for id_ in ODD_IDS])
        store.close()
        again = make_store()
        for id_ in ODD_IDS:
            assert [row.payload for row in again.load(id_, 0).rows] == [id_.encode()], id_
        assert [row.id for row in again.sessions()] == sorted(ODD_IDS)

    def test_a_fork_adds_a_branch_and_a_rewind_moves_one(self, store: Store):
        items = write(store, count=3)
        fork = commit(step=2, branch="cheaper", line=1, starts=True, kind="fork")
        rewind = commit(step=1, expect=items[2].id, line=2, starts=True, kind="rewind")
        land(store, fork)
        land(store, rewind)
        row = store.look("s")
        assert row is not None
        assert row.heads == (Head("cheaper", 1, 2, fork.id), Head("main", 2, 1, rewind.id))
        assert row.lines == 3
        assert [r.step for r in store.load("s", 0).rows] == [0, 1, 2]
        assert [r.id for r in store.load("s", 2).rows] == [rewind.id]

    def test_starts_are_the_first_rows_of_all_lines_of_a_branch(self, store: Store):
        items = write(store, count=3)
        fork = commit(step=2, branch="other", line=1, starts=True)
        rewind = commit(step=1, expect=items[2].id, line=2, starts=True)
        for item in (fork, rewind, commit(step=2, expect=rewind.id, line=2)):
            land(store, item)
        assert store.starts("s", "main") == [row_of(items[0]), row_of(rewind)]
        assert store.starts("s", "other") == [row_of(fork)]
        assert store.starts("s", None) == [row_of(items[0]), row_of(fork), row_of(rewind)]
        assert store.starts("s", "no such branch") == []
        assert store.starts("nobody", None) == []
