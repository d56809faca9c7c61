"""What only the SQLite store can get wrong: its file, its locks, its size."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import threading
import warnings
from contextlib import closing
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from perdure.errors import (
    InvalidInput,
    PerdureError,
    Unavailable,
    UnsupportedFormat,
)
from perdure.stores.listing import Asked
from perdure.stores.sqlite.file import cursor_of, use_log
from perdure.stores.sqlite.store import SqliteStore
from perdure.stores.sqlite.tables import VERSION
from perdure.testing.sealed_rows import commit, land, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agents.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path, busy_timeout=0.2)
    yield store
    store.close()


def alter(path: Path, sql: str, *values: Any) -> None:
    """Change the file behind the store's back."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(sql, values)


# -- the file ----------------------------------------------------------------------------------------


def test_the_log_is_synced_with_each_commit_unless_that_is_given_up(path: Path, store: SqliteStore):
    def synchronous(store: SqliteStore) -> Any:
        return store._file.write("look", lambda cursor: cursor.execute("pragma synchronous").fetchall())

    assert synchronous(store) == [(2,)]
    assert store.promise.power_loss
    normal = SqliteStore(path, synchronous="normal")
    assert synchronous(normal) == [(1,)]
    assert normal.promise.process_crash
    assert not normal.promise.power_loss
    assert normal.promise.words != store.promise.words
    normal.close()


def _open_and_write(path: str, number: int, gate: Any, answers: Any) -> None:
    gate.wait()
    try:
        store = SqliteStore(path)
        land(store, commit(f"s{number}"))
        answers.put(store.id)
        store.close()
    except PerdureError as error:
        answers.put(error)


def test_ten_processes_can_make_the_same_file_at_the_same_moment(path: Path):
    context = multiprocessing.get_context("spawn")
    gate, answers = context.Barrier(10), context.Queue()
    processes = [
        context.Process(target=_open_and_write, args=(str(path), number, gate, answers)) for number in range(10)
    ]
    for process in processes:
        process.start()
    ids = {answers.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert len(ids) == 1
    store = SqliteStore(path)
    assert {store.id} == ids
    assert store.usage().sessions == 10
    assert store._file.write("look", lambda cursor: cursor.execute("pragma auto_vacuum").fetchall()) == [(2,)]
    store.close()


def test_making_a_file_waits_for_somebody_who_is_making_it(path: Path):
    """SQLite itself does not wait where the switch to a log meets a lock."""
    path.touch()
    with closing(apsw.Connection(str(path))) as other, closing(apsw.Connection(str(path))) as ours:
        other.execute("begin immediate")
        release = threading.Timer(0.2, other.execute, ("rollback",))
        release.start()
        use_log(cursor_of(ours), str(path), patience=10)
        release.join()


def test_a_file_of_a_newer_format_is_refused(path: Path, store: SqliteStore):
    store.close()
    alter(path, "update meta set value = ? where key = 'schema'", VERSION + 1)
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        SqliteStore(path)


def test_a_list_of_ended_sessions_does_not_look_at_the_living(path: Path):
    SqliteStore(path).close()
    tests, values, order = Asked(ended=True, after="a").sql("", "?", "instr", "0")
    with sqlite3.connect(path) as raw:
        sql = f"explain query plan select * from sessions where {' and '.join(tests)} order by {order} limit 10"
        plan = [str(row[3]) for row in raw.execute(sql, values)]
    raw.close()
    assert any("sessions_ended" in line for line in plan), plan


def test_a_database_of_another_program_is_refused_and_left_alone(path: Path):
    with sqlite3.connect(path) as other:
        other.execute("create table sessions (id text)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(InvalidInput, match="another program"):
        SqliteStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"just some text, long enough to be looked at\n" * 100, b"\0" * 5000])
def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path, content: bytes):
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="not a SQLite database"):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_a_folder_is_no_file(tmp_path: Path):
    with pytest.raises(InvalidInput, match="folder"):
        SqliteStore(tmp_path)


def test_an_empty_file_is_made_into_a_store(path: Path):
    path.touch()
    SqliteStore(path).close()
    SqliteStore(path).close()


def test_a_place_that_cannot_be_written_is_unavailable(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="cannot be made"):
        SqliteStore(tmp_path / "file" / "agents.db")
    with pytest.raises(Unavailable):
        SqliteStore("/proc/agents.db")


def test_a_file_that_may_only_be_read_is_unavailable(path: Path, store: SqliteStore):
    # Permissions do not stop root, so SQLite itself is told that it may only read.
    store._file._cursor.execute("pragma query_only = 1")
    with pytest.raises(Unavailable, match="permission"):
        land(store, commit())
    assert store.look("s") is None


def test_a_network_filesystem_is_warned_about(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("perdure.system.disk.network_filesystem", lambda path: "nfs4")
    with pytest.warns(UserWarning, match="nfs4"):
        SqliteStore(path).close()


def test_a_local_filesystem_is_not(path: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SqliteStore(path).close()


# -- several at once ---------------------------------------------------------------------------------


def test_a_writer_waits_for_another_and_then_says_what_to_do(path: Path, store: SqliteStore):
    with closing(apsw.Connection(str(path))) as other:
        other.execute("begin immediate")
        with pytest.raises(Unavailable, match="busy_timeout"):
            store.append([commit()])
        with pytest.raises(Unavailable):
            store.acquire("s", "me", 1000)
        assert store.look("s") is None
        other.execute("rollback")
    land(store, commit())


def test_reading_does_not_wait_for_a_writer(path: Path, store: SqliteStore):
    write(store, count=3)
    with closing(apsw.Connection(str(path))) as other:
        other.execute("begin immediate")
        other.execute("delete from commits")
        assert store.load("s", 0).last == 2
        assert store.usage().checkpoints == 3
        other.execute("rollback")


def test_many_threads_write_and_read_through_one_handle(store: SqliteStore):
    failures: list[BaseException] = []

    def work(session: str) -> None:
        try:
            for n in range(30):
                write(store, session)
                assert store.load(session, 0).last == n
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(f"s{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert store.usage().checkpoints == 240


def test_a_read_in_flight_survives_the_closing_of_the_handle(store: SqliteStore):
    write(store, count=1)
    with store._file.read() as cursor:
        store.close()
        assert cursor.execute("select count(*) from commits").fetchall() == [(1,)]


def test_a_real_fork_is_noticed(store: SqliteStore):
    write(store, count=1)
    child = os.fork()
    if not child:
        try:
            store.look("s")
        except PerdureError as error:
            os._exit(7 if type(error).__name__ == "ForkedProcess" else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    write(store, count=1)


# -- space -------------------------------------------------------------------------------------------


def test_the_file_gets_smaller_when_half_of_it_is_dropped(store: SqliteStore, path: Path):
    for n in range(40):
        write(store, f"s{n:02}", count=4, payload=b"x" * 10_000)
    store._file._empty_log()
    full = path.stat().st_size
    for n in range(20):
        store.drop(f"s{n:02}", None, "expired")
    assert path.stat().st_size < full * 0.7
    assert store.usage().bytes < full * 0.75
    assert store.load("s39", 0).last == 3


def test_a_file_that_cannot_shrink_is_left_as_it_is(store: SqliteStore, path: Path):
    write(store, count=20, payload=b"x" * 50_000)
    store.close()
    with closing(apsw.Connection(str(path))) as other:
        other.execute("pragma journal_mode = delete").fetchall()
        other.execute("pragma auto_vacuum = none")
        other.execute("vacuum")
    again = SqliteStore(path)
    again.drop("s", None, "expired")
    assert path.stat().st_size > 900_000
    write(again, count=1)
    again.close()


def test_reads_go_on_while_the_file_shrinks(store: SqliteStore, path: Path):
    for n in range(10):
        write(store, f"s{n}", count=4, payload=b"x" * 50_000)
    with store._file.read() as cursor:
        cursor.execute("select count(*) from commits").fetchall()
        store.drop("s0", None, "expired")
        assert cursor.execute("select count(*) from commits").fetchall() == [(40,)]
    assert store.usage().checkpoints == 36
