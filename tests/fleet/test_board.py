"""The board of a fleet: sessions are queued, claimed and put down, on every store that has one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure.errors import InvalidInput, LimitExceeded
from perdure.protocols import Boarded, Filter, NewWork, Work
from perdure.testing.sealed_rows import entry, write
from tests.fleet.boarding import NOW, claim, put, rest, state_of, work_of

if TYPE_CHECKING:
    from perdure.protocols import Board, Store
    from tests.fleet.conftest import Boards


class TestPut:
    def test_queues_sessions_and_says_how_many_were_new(self, board: Board):
        assert put(board, "s1", "s2") == 2
        assert put(board, "s2", "s3") == 1
        assert board.put([]) == 0
        assert work_of(board, "s1") == Work("s1", "a", "ana", queued=True)

    def test_counts_a_session_named_twice_once(self, board: Board):
        assert put(board, "s1", "s1") == 1
        assert claim(board, 5) == ["s1"]

    def test_changes_agent_and_priority(self, board: Board):
        put(board, "s1", "s2")
        put(board, "s2", agent="b", priority=3)
        work = work_of(board, "s2")
        assert (work.agent, work.priority, work.owner, work.queued) == ("b", 3, "ana", True)
        assert claim(board, 5) == ["s1"]
        assert claim(board, 5, agents=["b"]) == ["s2"]

    def test_keeps_the_owner_when_none_is_named(self, board: Board):
        put(board, "s1", owner="ana")
        put(board, "s1", owner="")
        assert work_of(board, "s1").owner == "ana"

    def test_queues_one_that_waits(self, board: Board):
        put(board, "s1")
        claim(board)
        rest(board, "s1")
        assert state_of(board, "s1") == "waiting"
        assert put(board, "s1") == 0
        assert claim(board) == ["s1"]

    def test_of_one_at_work_queues_it_when_it_is_put_down(self, board: Board):
        put(board, "s1")
        claim(board)
        put(board, "s1")
        assert claim(board, worker="other") == []
        rest(board, "s1")
        assert claim(board, worker="other") == ["s1"]

    def test_of_one_that_is_queued_queues_it_once(self, board: Board):
        put(board, "s1")
        put(board, "s1")
        assert claim(board, 5) == ["s1"]
        rest(board, "s1")
        assert claim(board, 5) == []

    def test_refuses_as_a_whole_what_makes_the_queue_too_long(self, board: Board):
        put(board, "s1", "s2")
        new = [NewWork("s3", "a"), NewWork("s4", "a")]
        with pytest.raises(LimitExceeded, match="over the limit of 3"):
            board.put(new, most=3)
        assert [work.session for work in board.works()] == ["s1", "s2"]
        assert board.put(new, most=4) == 2

    def test_of_a_session_that_nobody_knows_yet_makes_it_no_obstacle(self, board: Board, store: Store):
        put(board, "s1")
        write(store, "s1", agent="a")
        row = store.look("s1")
        assert row is not None
        assert row.agent == "a"


class TestClaim:
    def test_gives_each_session_to_one_worker(self, board: Board, boards: Boards):
        put(board, "s1", "s2", "s3")
        assert claim(board, 2) == ["s1", "s2"]
        assert claim(boards.another(), 2, worker="other") == ["s3"]
        assert claim(board, 2) == []

    def test_says_what_was_claimed(self, board: Board):
        put(board, "s1", priority=7)
        (work,) = board.claim("w", ["a"], 1, NOW)
        assert work == Work("s1", "a", "ana", 7, worker="w", since=NOW, tries=1)
        assert work == work_of(board, "s1")
        assert state_of(board, "s1") == "working"

    def test_of_none_gives_none(self, board: Board):
        put(board, "s1")
        assert claim(board, 0) == []
        assert claim(board, 5, agents=[]) == []

    def test_gives_only_sessions_of_the_agents_named(self, board: Board):
        put(board, "s1", agent="b")
        put(board, "s2", agent="c")
        put(board, "s3", agent="a")
        assert claim(board, 5, agents=["a", "c"]) == ["s2", "s3"]
        assert claim(board, 5, agents=["a", "c"]) == []
        assert claim(board, 5, agents=["b", "b"]) == ["s1"]

    def test_gives_higher_priority_first_whatever_the_agent(self, board: Board):
        put(board, "low", priority=-1)
        put(board, "normal", agent="b")
        put(board, "high", agent="c", priority=5)
        assert claim(board, 3, agents=["a", "b", "c"]) == ["high", "normal", "low"]

    def test_gives_an_owner_the_oldest_first(self, board: Board):
        names = ["s2", "s9", "s1", "s5"]
        for name in names:
            put(board, name)
        assert claim(board, 9) == names


class TestTurns:
    def test_an_owner_with_one_session_does_not_stand_behind_a_thousand_of_another(self, board: Board):
        put(board, *[f"a{n:04}" for n in range(1000)], owner="ana")
        claim(board, 10)
        put(board, "b", owner="bob")
        assert "b" in claim(board, 3)

    def test_owners_with_many_sessions_take_turns(self, board: Board):
        put(board, *[f"a{n:02}" for n in range(30)], owner="ana")
        put(board, *[f"b{n:02}" for n in range(30)], owner="bob")
        put(board, *[f"c{n:02}" for n in range(5)], owner="cy")
        claimed = claim(board, 15)
        assert all(4 <= sum(s[0] == owner for s in claimed) <= 6 for owner in "abc")
        claimed = claim(board, 21)
        assert all(9 <= sum(s[0] == owner for s in claimed) <= 11 for owner in "ab")

    def test_one_that_always_has_more_to_do_does_not_keep_the_others_waiting(self, board: Board):
        put(board, *[f"a{n}" for n in range(9)], owner="ana")
        put(board, "busy", owner="bob")
        claimed: list[str] = []
        for _ in range(12):
            (session,) = claim(board)
            claimed.append(session)
            rest(board, session, again=session == "busy")
        assert claimed.count("busy") <= 7

    def test_an_owner_who_was_served_alone_is_not_made_to_pay_for_it(self, board: Board):
        put(board, *[f"a{n:02}" for n in range(40)], owner="ana")
        claim(board, 20)
        put(board, *[f"b{n:02}" for n in range(40)], owner="bob")
        claimed = claim(board, 10)
        assert 4 <= sum(s[0] == "a" for s in claimed) <= 6

    def test_turns_are_taken_within_a_priority(self, board: Board):
        put(board, "a1", "a2", owner="ana", priority=1)
        put(board, "b1", "b2", owner="bob")
        assert claim(board, 4) == ["a1", "a2", "b1", "b2"]

    def test_what_gathered_while_an_agent_was_held_does_not_go_before_everybody_else(self, board: Board):
        board.hold("a", True)
        put(board, *[f"a{n:03}" for n in range(300)], owner="ana", agent="a")
        put(board, *[f"b{n:03}" for n in range(300)], owner="bob", agent="b")
        both = ["a", "b"]
        assert len(claim(board, 200, agents=both)) == 200
        board.hold("a", False)
        claimed = claim(board, 20, agents=both)
        assert 8 <= sum(s[0] == "a" for s in claimed) <= 12

    def test_a_new_owner_begins_at_the_front_also_where_nobody_serves(self, board: Board):
        put(board, *[f"a{n:03}" for n in range(300)], owner="ana", agent="idle")
        put(board, *[f"c{n:03}" for n in range(300)], owner="cy", agent="a")
        claim(board, 200)
        put(board, "b", owner="bob", agent="idle")
        assert "b" in claim(board, 3, agents=["idle"])


class TestPerOwner:
    def test_an_owner_gets_no_more_than_that_at_work(self, board: Board, boards: Boards):
        put(board, "a1", "a2", "a3", owner="ana")
        put(board, "b1", owner="bob")
        assert sorted(claim(board, 9, per_owner=2)) == ["a1", "a2", "b1"]
        assert claim(boards.another(), 9, worker="other", per_owner=2) == []
        rest(board, "a1")
        assert claim(board, 9, per_owner=2) == ["a3"]

    def test_sessions_of_all_agents_count(self, board: Board):
        put(board, "a1", owner="ana", agent="a")
        put(board, "a2", owner="ana", agent="b")
        assert len(claim(board, 9, agents=["a", "b"], per_owner=1)) == 1
        assert claim(board, 9, agents=["a", "b"], per_owner=1) == []

    def test_hundreds_of_an_owner_who_has_enough_do_not_hide_the_others(self, board: Board):
        put(board, *[f"a{n:03}" for n in range(300)], owner="ana")
        put(board, *[f"b{n:03}" for n in range(300)], owner="bob")
        # Bob's are far behind what Ana has left.
        assert len(claim(board, 1, per_owner=1)) == 1
        for _ in range(250):
            (session,) = claim(board, 1, per_owner=1)
            assert session[0] == "b"
            rest(board, session)
        assert claim(board, 9, per_owner=3)[0][0] == "a"


class TestHold:
    def test_leaves_the_sessions_of_an_agent_new_ones_included(self, board: Board, boards: Boards):
        put(board, "s1")
        put(board, "s2", agent="b")
        board.hold("a", True)
        board.hold("a", True)
        put(board, "s3")
        other = boards.another()
        assert other.held() == ["a"]
        assert claim(other, 9, agents=["a", "b"]) == ["s2"]
        other.hold("a", False)
        assert board.held() == []
        assert claim(board, 9, agents=["a", "b"]) == ["s1", "s3"]

    def test_says_which_are_held_in_order(self, board: Board):
        for agent in ("c", "a", "b"):
            board.hold(agent, True)
        assert board.held() == ["a", "b", "c"]
        board.hold("nobody", False)


class TestShunning:
    def test_one_that_avoids_a_version_is_claimed_by_others_only(self, board: Board):
        put(board, "s1", "s2")
        claim(board, 1, version="v1")
        rest(board, "s1", again=True, avoid_version="v1")
        assert claim(board, 9, version="v1") == ["s2"]
        assert work_of(board, "s1").queued
        assert claim(board, 9, version="v2") == ["s1"]

    def test_once_another_has_had_it_the_version_may_again(self, board: Board):
        put(board, "s1")
        claim(board, version="v1")
        rest(board, "s1", again=True, avoid_version="v1")
        claim(board, version="v2")
        rest(board, "s1", again=True)
        assert claim(board, version="v1") == ["s1"]

    def test_one_whose_next_worker_died_may_be_claimed_by_all(self, board: Board):
        put(board, "s1")
        claim(board, version="v1")
        rest(board, "s1", again=True, avoid_version="v1")
        claim(board, version="v2", worker="dies")
        board.leave("dies")
        assert claim(board, version="v1") == ["s1"]

    def test_without_a_version_nothing_is_left(self, board: Board):
        put(board, "s1")
        claim(board)
        rest(board, "s1", again=True, avoid_version="v1")
        assert claim(board) == ["s1"]

    def test_one_that_is_retried_may_be_claimed_by_all(self, board: Board):
        put(board, "s1", "s2")
        claim(board, version="v1")
        rest(board, "s1", again=True, avoid_version="v1")
        assert board.change(Filter(sessions=("s1", "s2")), "retry", NOW) == 1
        assert claim(board, 9, version="v1") == ["s2", "s1"]

    @pytest.mark.parametrize("again", [True, False])
    def test_one_that_somebody_has_decided_on_may_be_claimed_by_all(self, board: Board, store: Store, again: bool):
        put(board, "s1")
        claim(board, version="v1")
        rest(board, "s1", again=again, avoid_version="v1")
        store.post([entry("hello", session="s1")])
        assert claim(board, version="v1") == []
        store.post([entry("yes", session="s1", kind="decision")])
        assert claim(board, version="v1") == ["s1"]

    def test_stays_when_it_waits_in_between(self, board: Board, store: Store):
        put(board, "s1")
        claim(board, version="v1")
        rest(board, "s1", avoid_version="v1")
        store.post([entry(session="s1")])
        assert claim(board, version="v1") == []
        assert claim(board, version="v2") == ["s1"]


class TestLooking:
    def test_lists_in_order_of_id_in_pages(self, board: Board):
        put(board, "s3", "s1", "s2")
        assert [work.session for work in board.works(limit=2)] == ["s1", "s2"]
        assert [work.session for work in board.works(after="s2", limit=2)] == ["s3"]
        assert board.works(after="s3") == []

    def test_filters(self, board: Board):
        put(board, "s1", "s2", owner="ana")
        put(board, "s3", owner="bob")
        put(board, "s4", agent="b", owner="bob")

        def found(**which: object) -> list[str]:
            return [work.session for work in board.works(Filter(**which))]  # type: ignore[arg-type]

        assert found(agent="b") == ["s4"]
        assert found(owner="bob") == ["s3", "s4"]
        assert found(owner="bob", agent="a") == ["s3"]
        assert found(agent="", owner="", state="") == ["s1", "s2", "s3", "s4"]
        assert found(sessions=("s4", "s1", "none")) == ["s1", "s4"]
        assert found(sessions=()) == []
        assert claim(board) == ["s1"]
        assert found(state="working") == ["s1"]
        assert found(state="queued", owner="ana") == ["s2"]
        rest(board, "s1", failed=True, again=True)
        assert sorted(claim(board, 5)) == ["s1", "s2", "s3"]
        assert (found(tries=1), found(tries=2), found(tries=3)) == (["s1", "s2", "s3"], ["s1"], [])

    def test_refuses_a_state_that_there_is_not(self, board: Board):
        with pytest.raises(InvalidInput, match="queued, working, waiting, parked, paused"):
            board.works(Filter(state="happy"))

    def test_counts_by_agent_and_state(self, board: Board):
        assert board.counts() == {}
        put(board, "s1", "s2", "s3", "s4", "s5")
        put(board, "b1", agent="b")
        claim(board, 3)
        rest(board, "s2")
        rest(board, "s3", park="it does not work")
        board.change(Filter(sessions=("s5",)), "pause", NOW)
        assert board.counts() == {
            ("a", "queued"): 1, ("a", "working"): 1, ("a", "waiting"): 1, ("a", "parked"): 1, ("a", "paused"): 1,
            ("b", "queued"): 1,
        }  # fmt: skip


def test_the_store_says_that_it_has_a_board(store: Store):
    assert isinstance(store, Boarded)
