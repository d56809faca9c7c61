"""The board of a fleet: what wakes a session, and what does not, on every store that has one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure.errors import InvalidInput
from perdure.protocols import Filter, NewWork, Work
from perdure.testing.sealed_rows import entry, write
from tests.fleet.boarding import NOW, claim, put, rest, state_of, work_of
from tests.fleet.conftest import ALL_KINDS

if TYPE_CHECKING:
    from perdure.protocols import Board, Store
    from tests.fleet.conftest import Boards

TIMERS = ("wake", "cron")


@pytest.fixture
def idle(board: Board) -> str:
    """A session on the board that has nothing to do."""
    put(board, "s")
    claim(board)
    rest(board, "s")
    assert state_of(board, "s") == "waiting"
    return "s"


@pytest.mark.parametrize("boards", ALL_KINDS, indirect=True)
class TestAPost:
    def test_queues_a_session_that_waits(self, board: Board, boards: Boards, idle: str):
        assert boards.open().post([entry(session=idle)]) == [True]
        assert state_of(board, idle) == "queued"
        assert claim(board) == [idle]

    @pytest.mark.parametrize("kind", ["message", "decision", "outcome", "cancel", "unwake"])
    def test_of_any_kind_does(self, board: Board, store: Store, idle: str, kind: str):
        store.post([entry(session=idle, kind=kind)])
        assert claim(board) == [idle]

    def test_that_was_there_already_does_not(self, board: Board, store: Store, idle: str):
        store.post([entry(session=idle)])
        claim(board)
        rest(board, idle)
        assert store.post([entry(session=idle)]) == [False]
        assert claim(board) == []

    def test_in_a_batch_wakes_each_session_that_is_meant(self, board: Board, store: Store):
        names = [f"s{n}" for n in range(20)]
        put(board, *names)
        claim(board, 20)
        rest(board, *names)
        meant = names[::3]
        entries = [entry(f"k{n}", session=name) for name in [*meant, "stranger"] for n in range(2)]
        assert store.post(entries) == [True] * len(entries)
        assert sorted(claim(board, 20)) == sorted(meant)

    def test_to_one_at_work_queues_it_when_it_is_put_down(self, board: Board, store: Store):
        put(board, "s")
        claim(board)
        store.post([entry(session="s")])
        assert claim(board, worker="other") == []
        rest(board, "s", due=NOW + 500)
        assert claim(board, worker="other") == ["s"]

    def test_that_the_claim_could_see_does_not_queue_it_again(self, board: Board, store: Store):
        put(board, "s")
        store.post([entry(session="s")])
        claim(board)
        rest(board, "s")
        assert claim(board) == []

    def test_to_a_session_that_is_not_on_the_board_puts_nothing_there(self, board: Board, store: Store):
        store.post([entry(session="stranger")])
        assert board.works() == []


class TestATimer:
    @pytest.mark.parametrize("kind", TIMERS)
    def test_queues_a_session_when_it_is_due(self, board: Board, store: Store, idle: str, kind: str):
        store.post([entry(session=idle, kind=kind, at=NOW + 1000)])
        assert work_of(board, idle).due == NOW + 1000
        assert state_of(board, idle) == "waiting"
        assert claim(board, now=NOW + 999) == []
        assert claim(board, now=NOW + 1000) == [idle]

    def test_the_earliest_counts(self, board: Board, store: Store, idle: str):
        store.post([entry(f"k{at}", session=idle, kind="wake", at=NOW + at) for at in (500, 200, 900)])
        assert claim(board, now=NOW + 199) == []
        assert claim(board, now=NOW + 200) == [idle]
        rest(board, idle, now=NOW + 210)
        assert work_of(board, idle).due == NOW + 500

    def test_set_during_the_run_is_kept(self, board: Board, store: Store):
        put(board, "s")
        claim(board)
        store.post([entry(session="s", kind="wake", at=NOW + 1000)])
        rest(board, "s", now=NOW + 10)
        assert claim(board, now=NOW + 20) == []
        assert claim(board, now=NOW + 1000) == ["s"]

    def test_of_the_past_that_is_set_during_the_run_wakes_at_once(self, board: Board, store: Store):
        put(board, "s")
        claim(board)
        store.post([entry(session="s", kind="wake", at=NOW - 1000)])
        rest(board, "s", now=NOW + 10)
        assert claim(board, now=NOW + 20) == ["s"]

    def test_that_fell_due_during_the_run_and_was_not_taken_wakes_at_once(self, board: Board, store: Store, idle: str):
        store.post([entry(session=idle, kind="wake", at=NOW + 50), entry("k2", session=idle)])
        assert claim(board) == [idle]
        rest(board, idle, now=NOW + 100)
        assert claim(board, now=NOW + 100) == [idle]

    def test_that_was_due_and_is_left_lying_does_not_make_it_spin(self, board: Board, store: Store, idle: str):
        store.post([entry(session=idle, kind="wake", at=NOW + 50)])
        assert claim(board, now=NOW + 60) == [idle]
        rest(board, idle, now=NOW + 70)
        assert work_of(board, idle).due is None
        assert claim(board, now=NOW + 10**9) == []

    def test_that_was_taken_counts_no_more(self, board: Board, store: Store):
        write(store, "s", agent="a")
        put(board, "s")
        claim(board)
        store.post([entry(session="s", kind="wake", at=NOW + 50)])
        rest(board, "s", now=NOW + 10)
        claim(board, now=NOW + 50)
        store.post([entry("next", session="s", kind="wake", at=NOW + 900)])
        write(store, "s", takes=("k",))
        rest(board, "s", now=NOW + 60)
        assert work_of(board, "s").due == NOW + 900

    def test_many_that_are_due_at_once_are_all_queued(self, board: Board, store: Store):
        names = [f"s{n:04}" for n in range(1500)]
        put(board, *names)
        claim(board, len(names))
        rest(board, *names, due=NOW + 5)
        claimed: list[str] = []
        while found := claim(board, 400, now=NOW + 5):
            claimed += found
        assert sorted(claimed) == names


class TestRest:
    def test_says_when_to_look_again(self, board: Board, idle: str, store: Store):
        store.post([entry(session=idle)])
        claim(board)
        rest(board, idle, due=NOW + 300)
        assert work_of(board, idle) == Work(idle, "a", "ana", due=NOW + 300)
        assert claim(board, now=NOW + 299) == []
        assert claim(board, now=NOW + 300) == [idle]

    def test_whichever_comes_first_counts(self, board: Board, store: Store):
        put(board, "s")
        claim(board)
        store.post([entry(session="s", kind="wake", at=NOW + 100)])
        rest(board, "s", due=NOW + 300)
        assert work_of(board, "s").due == NOW + 100

    def test_in_mid_run_queues_it_again(self, board: Board):
        put(board, "s")
        claim(board)
        rest(board, "s", again=True, step=4)
        assert work_of(board, "s") == Work("s", "a", "ana", queued=True, step=4)

    def test_of_what_another_has_meanwhile_changes_nothing(self, board: Board):
        put(board, "s")
        claim(board)
        board.leave("w")
        claim(board, worker="other")
        before = work_of(board, "s")
        rest(board, "s", "unknown", park="no", step=9)
        assert work_of(board, "s") == before

    def test_of_many_treats_each_alone(self, board: Board):
        put(board, "s1", "s2", "s3")
        claim(board, 2)
        rest(board, "s1", "s2", "s3")
        assert [state_of(board, s) for s in ("s1", "s2", "s3")] == ["waiting", "waiting", "queued"]
        board.rest("w", [], NOW)


class TestTries:
    def test_count_claims_that_failed(self, board: Board):
        put(board, "s")
        for tries in (1, 2, 3):
            (work,) = board.claim("w", ["a"], 1, NOW)
            assert work.tries == tries
            rest(board, "s", failed=True, again=True)

    def test_start_anew_when_one_did_not_fail(self, board: Board):
        put(board, "s")
        claim(board)
        rest(board, "s", failed=True, again=True)
        claim(board)
        rest(board, "s", again=True)
        assert board.claim("w", ["a"], 1, NOW)[0].tries == 1

    def test_leave_out_a_claim_that_did_nothing(self, board: Board):
        put(board, "s")
        claim(board)
        rest(board, "s", failed=True, again=True)
        claim(board)
        rest(board, "s", uncounted=True, again=True)
        assert board.claim("w", ["a"], 1, NOW)[0].tries == 2

    def test_start_anew_at_another_place(self, board: Board):
        put(board, "s")
        claim(board)
        assert board.got("w", "s", 5) == 1
        board.leave("w")
        claim(board)
        assert board.got("w", "s", 5) == 2
        board.leave("w")
        claim(board)
        assert board.got("w", "s", 5) == 3
        assert board.got("w", "s", 6) == 1
        assert work_of(board, "s").step == 6

    def test_start_anew_where_it_was_rewound_to(self, board: Board):
        put(board, "s")
        claim(board)
        board.got("w", "s", 5)
        board.leave("w")
        claim(board)
        assert board.got("w", "s", 4) == 1
        assert work_of(board, "s").step == 4

    def test_begin_with_those_that_were_made_there_already(self, board: Board):
        put(board, "s")
        claim(board)
        board.leave("w")
        claim(board)
        assert board.got("w", "s", 5, 2) == 2
        assert board.got("w", "s", 5, 2) == 2
        board.leave("w")
        claim(board)
        assert board.got("w", "s", 5, 2) == 3

    def test_are_not_changed_by_one_who_does_not_have_it(self, board: Board):
        put(board, "s")
        claim(board)
        board.leave("w")
        claim(board, worker="other")
        board.got("w", "s", 7)
        assert work_of(board, "s")[7:10] == (NOW, 2, 0)

    def test_a_session_that_kills_its_workers_is_known_by_them(self, board: Board):
        put(board, "s")
        for number in range(1, 6):
            (work,) = board.claim(f"w{number}", ["a"], 1, NOW)
            assert work.tries == number
            assert [w.session for w in board.reap(-1)] == ["s"]


class TestParked:
    @pytest.fixture
    def parked(self, board: Board) -> str:
        put(board, "s")
        claim(board)
        rest(board, "s", park="it failed 5 times", failed=True)
        return "s"

    def test_is_claimed_by_nobody_whatever_is_posted(self, board: Board, store: Store, parked: str):
        store.post([entry(session=parked), entry("k2", session=parked, kind="wake", at=NOW - 5)])
        put(board, parked)
        assert claim(board, now=NOW + 10) == []
        assert state_of(board, parked) == "parked"
        assert work_of(board, parked).parked == "it failed 5 times"

    def test_is_queued_anew_by_a_retry(self, board: Board, parked: str):
        put(board, "other")
        assert board.change(Filter(), "retry", NOW) == 1
        assert work_of(board, parked)[7:] == (0, 0, 0, "", False, "")
        assert sorted(claim(board, 9)) == ["other", parked]


class TestPause:
    def test_leaves_a_session_until_it_is_taken_back(self, board: Board, boards: Boards):
        put(board, "s1", "s2")
        assert board.change(Filter(sessions=("s1",)), "pause", NOW) == 1
        assert board.change(Filter(sessions=("s1",)), "pause", NOW) == 0
        assert state_of(board, "s1") == "paused"
        assert work_of(board, "s1").paused
        other = boards.another()
        assert claim(other, 9) == ["s2"]
        assert other.change(Filter(), "unpause", NOW) == 1
        assert claim(board, 9) == ["s1"]

    def test_of_one_with_nothing_to_do_queues_it_afterwards_only_if_something_was_posted(
        self, board: Board, store: Store, idle: str
    ):
        board.change(Filter(), "pause", NOW)
        board.change(Filter(), "unpause", NOW)
        assert state_of(board, idle) == "waiting"
        board.change(Filter(), "pause", NOW)
        store.post([entry(session=idle)])
        assert claim(board) == []
        board.change(Filter(), "unpause", NOW)
        assert claim(board) == [idle]

    def test_of_one_at_work_counts_when_it_is_put_down(self, board: Board):
        put(board, "s")
        claim(board)
        board.change(Filter(), "pause", NOW)
        rest(board, "s", again=True)
        assert claim(board) == []
        board.change(Filter(state="paused"), "unpause", NOW)
        assert claim(board) == ["s"]

    def test_lets_a_timer_pass_until_it_is_taken_back(self, board: Board, store: Store, idle: str):
        store.post([entry(session=idle, kind="wake", at=NOW + 5)])
        board.change(Filter(), "pause", NOW)
        assert claim(board, now=NOW + 10) == []
        board.change(Filter(), "unpause", NOW)
        assert claim(board, now=NOW + 10) == [idle]


@pytest.mark.parametrize("boards", ALL_KINDS, indirect=True)
class TestForget:
    def test_takes_sessions_from_the_board(self, board: Board, store: Store):
        put(board, "s1", "s2")
        claim(board)
        assert board.change(Filter(sessions=("s1",)), "forget", NOW) == 1
        rest(board, "s1", again=True)
        store.post([entry(session="s1")])
        assert [work.session for work in board.works()] == ["s2"]
        assert board.put([NewWork("s1", "a")]) == 1

    def test_a_session_that_is_deleted_is_forgotten(self, board: Board, store: Store):
        write(store, "s1", agent="a")
        put(board, "s1", "s2")
        store.drop("s1", None, "deleted")
        assert [work.session for work in board.works()] == ["s2"]


def test_what_cannot_be_done_to_sessions_is_refused(board: Board):
    with pytest.raises(InvalidInput, match="pause, unpause, retry, forget"):
        board.change(Filter(), "praise", NOW)
