"""The board in PostgreSQL while others write: nothing posted is missed, nothing is given out twice or left behind."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from perdure.errors import InvalidInput, LimitExceeded, OutcomeUnknown
from perdure.links.postgres import Connection
from perdure.protocols import Filter, NewWork, Rest
from perdure.stores import open_store
from perdure.stores.postgres.store import PostgresStore
from perdure.testing.sealed_rows import entry, write
from tests.fleet.boarding import claim, put, rest, state_of, work_of
from tests.fleet.harness import LIMIT
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PostgresStore]:
    made = PostgresStore(url_of("postgres", tmp_path), pool=16)
    yield made
    made.close()


class Posting:
    """A post that somebody has begun and not finished."""

    def __init__(self, store: PostgresStore, url: str, session: str, kind: str = "message", at: int = 1) -> None:
        self._connection = psycopg.connect(url.partition("?")[0])
        self._connection.execute(
            f"select * from {store.schema}.perdure_post(0, 1, %s, %s, %s, %s::bigint[], %s, %s, array[0])",  # type: ignore[arg-type]
            ([session], ["k"], [kind], [at], [b"d" * 32], [b"x"]),
        )
        self.pid = self._connection.info.backend_pid

    def finish(self) -> None:
        """Let it be seen."""
        self._connection.commit()
        self._connection.close()


def meanwhile(store: PostgresStore, posting: Posting, do: Callable[[], Any]) -> None:
    """Begin something that has to wait for the post, and finish the post when it does."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(do)
        deadline = time.monotonic() + LIMIT
        waits = "select count(*) from pg_stat_activity where %s = any (pg_blocking_pids(pid))"
        while store._link.ask("waits", waits, (posting.pid,)) == [(0,)]:
            assert not done.done(), "it did not wait"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        posting.finish()
        done.result(LIMIT)


class TestAPostUnderWay:
    def test_keeps_a_queued_session_from_being_claimed_before_it_can_be_seen(
        self, store: PostgresStore, tmp_path: Path
    ):
        board = store.board()
        put(board, "s1")
        posting = Posting(store, url_of("postgres", tmp_path), "s1")
        assert claim(board) == []
        posting.finish()
        assert claim(board) == ["s1"]

    def test_is_seen_by_whoever_puts_the_session_down(self, store: PostgresStore, tmp_path: Path):
        board = store.board()
        put(board, "s1")
        claim(board)
        posting = Posting(store, url_of("postgres", tmp_path), "s1")
        meanwhile(store, posting, lambda: rest(board, "s1"))
        assert claim(board) == ["s1"]

    def test_of_a_second_message_is_seen_too(self, store: PostgresStore, tmp_path: Path):
        board = store.board()
        put(board, "s1")
        claim(board)
        store.post([entry("first", session="s1")])
        posting = Posting(store, url_of("postgres", tmp_path), "s1")
        meanwhile(store, posting, lambda: rest(board, "s1"))
        assert claim(board) == ["s1"]

    def test_of_a_timer_sets_the_time_of_a_session_that_is_put_down(self, store: PostgresStore, tmp_path: Path):
        board = store.board()
        put(board, "s1")
        store.post([entry("earlier", session="s1", kind="wake", at=5)])
        claim(board, now=10)
        posting = Posting(store, url_of("postgres", tmp_path), "s1", "wake", 700)
        meanwhile(store, posting, lambda: rest(board, "s1"))
        assert work_of(board, "s1").due == 700


def at_once(number: int, do: Callable[[int], Any]) -> list[Any]:
    """Do something in several threads that begin together."""
    barrier = threading.Barrier(number)

    def begin(n: int) -> Any:
        barrier.wait(LIMIT)
        return do(n)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(begin, range(number)))


def test_ten_handles_that_ask_for_it_at_once_make_one_board(tmp_path: Path):
    stores = [PostgresStore(url_of("postgres", tmp_path)) for _ in range(10)]
    boards = at_once(10, lambda n: stores[n].board())
    put(boards[0], "s1")
    assert [claim(board) for board in boards] == [["s1"]] + [[]] * 9
    for store in stores:
        store.close()


def test_each_session_is_claimed_once_however_many_claim(store: PostgresStore):
    board = store.board()
    board.put([NewWork(f"s{n:04}", "a", f"o{n % 7}", n % 3) for n in range(600)])

    def all_there_is(n: int) -> list[str]:
        mine: list[str] = []
        while board.works(Filter(state="queued"), limit=1):
            mine += claim(board, 1 + n, worker=f"w{n}")
        return mine

    taken = Counter(session for mine in at_once(6, all_there_is) for session in mine)
    assert len(taken) == 600
    assert set(taken.values()) == {1}


def test_owners_keep_to_their_limit_however_many_claim(store: PostgresStore):
    board = store.board()
    board.put([NewWork(f"s{n:03}", "a", f"o{n % 3}") for n in range(90)])
    at_once(8, lambda n: [claim(board, 2, worker=f"w{n}", per_owner=4) for _ in range(10)])
    assert Counter(work.owner for work in board.works(Filter(state="working"))) == {"o0": 4, "o1": 4, "o2": 4}


def test_the_queue_keeps_to_its_limit_however_many_put(store: PostgresStore):
    board = store.board()

    def fill(n: int) -> None:
        for m in range(20):
            try:
                board.put([NewWork(f"s{n}-{m}", "a")], most=50)
            except LimitExceeded:
                return

    at_once(8, fill)
    assert board.counts() == {("a", "queued"): 50}


def test_batches_in_opposite_order_do_not_wait_for_each_other(store: PostgresStore):
    board = store.board()
    names = [f"s{n:02}" for n in range(30)]
    put(board, *names)
    sql = "select deadlocks from pg_stat_database where datname = current_database()"
    ((before,),) = store._link.ask("deadlocks", sql)

    def write_batches(n: int) -> None:
        order = names if n % 2 else names[::-1]
        for m in range(15):
            match n // 2:
                case 0:
                    assert store.post([entry(f"{n}-{m}", session=name) for name in order]) == [True] * 30
                case 1:
                    board.put([NewWork(name, "a", priority=m) for name in order])
                case _:
                    mine = board.claim(f"w{n}", ["a"], 20, 1)
                    board.rest(f"w{n}", [Rest(work.session, 1, again=True) for work in mine[:: n * 2 - 9]], 2)

    at_once(6, write_batches)
    assert store._link.ask("deadlocks", sql) == [(before,)]
    assert board.counts() == {("a", "queued"): 30}


def test_a_claim_whose_answer_was_lost_is_given_again(store: PostgresStore, monkeypatch: pytest.MonkeyPatch):
    board = store.board()
    put(board, "s1", "s2", "s3", "s4")
    real, lost = Connection.ask, [1]

    def ask(self: Connection, sql: str, *values: Any) -> Any:
        found = real(self, sql, *values)
        if "perdure_fleet_claim" in sql and lost[0]:
            lost[0] -= 1
            self.pgconn.finish()
            raise psycopg.OperationalError("the connection went")
        return found

    monkeypatch.setattr(Connection, "ask", ask)
    assert claim(board, 2) == ["s1", "s2"]
    # Nor is it forgotten by who was told that nobody knows.
    store._link._patience = 0
    lost[0] = 1
    with pytest.raises(OutcomeUnknown):
        claim(board)
    assert state_of(board, "s3") == "working"
    assert claim(board, worker="other") == ["s4"]
    assert claim(board) == ["s3"]
    assert claim(board) == []


def test_looking_for_work_in_vain_writes_nothing(store: PostgresStore):
    board = store.board()
    put(board, "held", agent="b")
    board.hold("b", True)
    call = f"{store.schema}.perdure_fleet_claim(null, 'w', %s, 5, 1, null, '', 1, '{{}}')"

    def wrote(connection: Connection, agent: str) -> bool:
        with connection.transaction():
            connection.ask(f"select * from {call}", ([agent],))
            return connection.ask("select pg_current_xact_id_if_assigned() is not null")[0][0]

    # What had written something would change the mark, and all others would look because of it.
    assert not store._link.do("claim", lambda connection: wrote(connection, "a"))
    assert not store._link.do("claim", lambda connection: wrote(connection, "b"))
    board.hold("b", False)
    mark = board.mark()
    assert store._link.do("claim", lambda connection: wrote(connection, "b"))
    assert board.mark() != mark


def test_a_hot_tier_before_a_store_without_a_board_says_so(tmp_path: Path):
    redis, _, _ = url_of("tiered", tmp_path).removeprefix("tiered:").partition(",")
    store = open_store(f"tiered:{redis},file://{tmp_path}/cold")
    with pytest.raises(InvalidInput, match="cold store has no board"):
        store.board()  # type: ignore[attr-defined]
    write(store)
    store.close()
