"""The board in the SQLite store: what it costs, what it leaves alone, and what another boot left behind."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from perdure.errors import UnsupportedFormat
from perdure.protocols import Filter
from perdure.stores.sqlite.file import value_of
from perdure.stores.sqlite.store import SqliteStore
from perdure.testing.sealed_rows import entry, write
from tests.fleet.boarding import NOW, claim, put, rest, state_of, worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from perdure.stores.sqlite.board import SqliteBoard

LONG = 3_600_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """A store without a board yet."""
    store = SqliteStore(tmp_path / "agents.db")
    yield store
    store.close()


class Steps:
    """Counts the steps of SQLite's machine, triggers included: what a question costs, on any machine alike."""

    def __init__(self, store: SqliteStore) -> None:
        self._connection = store._file._writer

    def of(self, work: Callable[[], object]) -> int:
        """The steps of all statements that the work ran on the writing connection."""
        total = 0

        def add(event: dict[str, Any]) -> None:
            nonlocal total
            total += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

        self._connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, add, id=self)
        try:
            work()
        finally:
            self._connection.trace_v2(0, None, id=self)
        return total


def crowd(board: SqliteBoard, number: int) -> None:
    """Many sessions on the board, in all states, of many owners."""
    for owner in range(20):
        names = [f"crowd{owner:02}-{n:05}" for n in range(number // 20)]
        put(board, *names, owner=f"o{owner}", agent="crowd")
    claimed = claim(board, number // 2, worker="crowd", agents=["crowd"])
    waiting, working, timed = claimed[::3], claimed[1::3], claimed[2::3]
    rest(board, *waiting, worker="crowd")
    rest(board, *timed, worker="crowd", due=NOW + LONG)
    board.change(Filter(sessions=tuple(waiting[::2])), "pause", NOW)
    put(board, *[f"queued{n:05}" for n in range(number)], owner="ana")
    board.beat(worker("crowd"))
    assert working


OPERATIONS = ("put", "claim", "claim per owner", "rest", "got", "promote", "post", "idle claim", "leave", "reap")


def costs(store: SqliteStore, board: SqliteBoard) -> dict[str, int]:
    """What each thing costs that a fleet does all the time."""
    steps = Steps(store)
    put(board, "one", owner="bob", priority=1)
    claim(board, worker="w")
    rest(board, "one", worker="w")
    costs = {
        "put": steps.of(lambda: put(board, "one", owner="bob", priority=1)),
        "claim": steps.of(lambda: claim(board)),
        "got": steps.of(lambda: board.got("w", "one", 1)),
        "rest": steps.of(lambda: rest(board, "one", due=NOW + 1)),
        "promote": steps.of(lambda: claim(board, now=NOW + 1)),
        "leave": steps.of(lambda: board.leave("w")),
        "claim per owner": steps.of(lambda: claim(board, per_owner=2)),
        "idle claim": steps.of(lambda: claim(board, agents=["nobody's"])),
    }
    rest(board, "one")
    costs["post"] = steps.of(lambda: store.post([entry("first", session="one")]))
    claim(board, worker="dead")
    costs["reap"] = steps.of(lambda: reap_one(board))
    assert sorted(costs) == sorted(OPERATIONS)
    return costs


def reap_one(board: SqliteBoard) -> None:
    board._file.write("test", lambda c: c.execute("update fleet_workers set boot = 'old' where id = 'dead'"))
    assert [work.session for work in board.reap(LONG)] == ["one"]


@contextmanager
def another_boot(name: str) -> Iterator[None]:
    """The machine is started anew: what its clock said before means nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perdure.stores.sqlite.board.boot_id", lambda: name)
        yield


def test_what_a_fleet_does_all_the_time_does_not_cost_more_with_many_sessions(tmp_path: Path):
    found: dict[int, dict[str, int]] = {}
    for number in (200, 4000):
        store = SqliteStore(tmp_path / f"{number}.db", synchronous="normal")
        crowd(store.board(), number)
        found[number] = costs(store, store.board())
        store.close()
    few, many = found[200], found[4000]
    assert not {what: (few[what], steps) for what, steps in many.items() if steps > 1.3 * few[what]}
    assert max(many.values()) < 2000


def test_a_post_to_a_session_that_is_not_on_the_board_costs_next_to_nothing_more(store: SqliteStore):
    steps = Steps(store)
    write(store)
    store.post([entry("first")])
    before = steps.of(lambda: store.post([entry("second")]))
    put(store.board(), "other")
    store.post([entry("third")])
    after = steps.of(lambda: store.post([entry("fourth")]))
    assert before < after < before + 30


def test_commits_cost_the_same_with_a_board_as_without(store: SqliteStore):
    steps = Steps(store)
    write(store, count=2)
    before = steps.of(lambda: write(store))
    put(store.board(), "s")
    write(store)
    assert steps.of(lambda: write(store)) == before


def test_a_process_that_was_there_before_the_board_and_knows_nothing_of_it_wakes_sessions(
    store: SqliteStore, tmp_path: Path
):
    old = SqliteStore(tmp_path / "agents.db")
    write(old)
    board = store.board()
    put(board, "s")
    claim(board)
    rest(board, "s")
    old.post([entry()])
    assert state_of(board, "s") == "queued"
    old.close()


def test_a_store_without_a_fleet_has_no_board(store: SqliteStore):
    write(store)
    with store._file.read() as cursor:
        assert value_of(cursor, "select count(*) from sqlite_schema where name like 'fleet%'") == 0


class TestWaitingForTheDisk:
    """What workers say all the time waits for no disk; commits do, whatever came before them."""

    FULL, NORMAL = 2, 1

    def asked(self, store: SqliteStore, *, synced: bool = True) -> int:
        return store._file.write("test", lambda cursor: value_of(cursor, "pragma synchronous"), synced=synced)

    def test_is_left_out_only_where_it_is_said(self, store: SqliteStore):
        assert self.asked(store) == self.FULL
        assert self.asked(store, synced=False) == self.NORMAL
        assert self.asked(store, synced=False) == self.NORMAL
        assert self.asked(store) == self.FULL

    def test_is_done_by_the_next_commit_when_the_board_failed_in_between(self, store: SqliteStore):
        def fail(_: object) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store._file.write("test", fail, synced=False)
        assert self.asked(store) == self.FULL

    def test_is_set_anew_when_an_interrupt_came_while_it_was_set(self, store: SqliteStore):
        assert self.asked(store, synced=False) == self.NORMAL
        original = store._file._cursor

        class Interrupted:
            def execute(self, *_: object) -> None:
                raise KeyboardInterrupt

        store._file._cursor = Interrupted()  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            store._file._wait_for_disk(True)
        store._file._cursor = original
        assert self.asked(store) == self.FULL

    def test_a_store_that_never_does_stays_so(self, tmp_path: Path):
        store = SqliteStore(tmp_path / "quick.db", synchronous="normal")
        assert [self.asked(store), self.asked(store, synced=False), self.asked(store)] == [self.NORMAL] * 3
        store.close()

    def test_what_workers_say_does_not_wait_and_what_people_say_does(self, store: SqliteStore):
        board = store.board()

        def does_wait(do: Callable[[], object]) -> bool:
            modes: list[int] = []

            def note(event: dict[str, Any]) -> None:
                if event["sql"] == "commit":
                    modes.append(store._file._writer.pragma("synchronous"))

            store._file._writer.trace_v2(apsw.SQLITE_TRACE_STMT, note, id=self)
            do()
            store._file._writer.trace_v2(0, None, id=self)
            return modes[-1] == self.FULL

        everything: dict[str, Callable[[], object]] = {
            "put": lambda: put(board, "s"), "claim": lambda: claim(board), "got": lambda: board.got("w", "s", 1),
            "rest": lambda: rest(board, "s"), "beat": lambda: board.beat(worker()),
            "slot": lambda: board.slot("n", "h", 1, 5), "unslot": lambda: board.unslot("n", "h"),
            "leave": lambda: board.leave("w"), "hold": lambda: board.hold("a", True),
            "pause": lambda: board.change(Filter(), "pause", NOW), "commit": lambda: write(store),
            "wish": lambda: board.wish(None, "drain"),
        }  # fmt: skip
        waited = {name for name, do in everything.items() if does_wait(do)}
        assert waited == {"put", "hold", "pause", "commit", "wish"}


def test_what_gathered_while_nobody_served_an_agent_does_not_go_before_everybody_else(store: SqliteStore):
    board = store.board()
    board.beat(worker("first", agents=("b",)))
    put(board, *[f"a{n:03}" for n in range(300)], owner="ana", agent="a")
    put(board, *[f"b{n:03}" for n in range(300)], owner="bob", agent="b")
    assert len(claim(board, 200, agents=["b"])) == 200
    board.beat(worker("second", agents=("a", "b")))
    claimed = claim(board, 20, agents=["a", "b"])
    assert 8 <= sum(s[0] == "a" for s in claimed) <= 12


class TestAnotherBoot:
    def test_its_workers_are_dead_at_once(self, store: SqliteStore):
        board = store.board()
        put(board, "s1", "s2")
        claim(board, worker="old")
        with another_boot("the next"):
            claim(board, worker="new")
            ages = {row.id: row.age for row in board.workers()}
            assert ages["old"] > ages["new"]
            assert [work.session for work in board.reap(LONG)] == ["s1"]
            assert [row.id for row in board.workers()] == ["new"]
            assert state_of(board, "s2") == "working"

    def test_its_places_are_free(self, store: SqliteStore):
        board = store.board()
        assert board.slot("mail", "old", 1, LONG)
        assert not board.slot("mail", "new", 1, LONG)
        with another_boot("the next"):
            assert board.slot("mail", "new", 1, LONG)


def test_what_has_no_worker_that_is_known_is_reaped(store: SqliteStore):
    board = store.board()
    put(board, "s")
    claim(board, worker="w")
    store._file.write("test", lambda cursor: cursor.execute("delete from fleet_workers"))
    assert [work.session for work in board.reap(LONG)] == ["s"]


def test_a_board_of_a_later_version_is_refused(store: SqliteStore):
    store.board()
    store._file.write("test", lambda cursor: cursor.execute("update meta set value = 99 where key = 'board'"))
    with pytest.raises(UnsupportedFormat, match="upgrade this process"):
        store.board()


def test_closing_leaves_nothing_open(tmp_path: Path):
    store = SqliteStore(tmp_path / "agents.db")
    board = store.board()
    put(board, "s")
    board.mark()
    store.close()
    assert os.listdir(tmp_path) == ["agents.db"]
