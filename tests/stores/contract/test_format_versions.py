"""Stores of an earlier version are brought up to date when they are opened, and lose nothing by it."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from importlib import resources
from typing import TYPE_CHECKING, Any

import apsw
import msgspec
import psycopg
import pytest

from perdure.links.redis import pack
from perdure.model import Head
from perdure.stores import open_store
from perdure.stores.file.index import Place, SessionIndex
from perdure.stores.file.records import COMMIT, STATE, Commit, State, decode
from perdure.stores.postgres import tables
from perdure.stores.redis.store import RedisStore
from perdure.stores.sqlite import tables as sqlite_tables
from perdure.testing.sealed_rows import commit, entry, land, post, write
from tests.servers import postgres
from tests.servers.postgres import postgres_url
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from perdure.model import Append

FOLDER = resources.files("perdure.stores.sqlite") / "sql"

FIRST = commit("s", owner="ana", tool="search", ttl=60)
SECOND = commit("s", 1, FIRST.id, owner="ana", status="failed", error="TimeoutError")
FORK = commit("s", 1, None, branch="b", line=1, starts=True, owner="ana")
LATER = commit("s", 2, FORK.id, branch="b", line=1, owner="ana", status="running", error="Refused")
ALONE = commit("z", branch="b", owner="bob", status="paused", error="Refused")
FINE = commit("t", owner="bob")


def the_same_as_ever(url: str) -> None:
    """What the older version wrote is there, and the two things that are new work with it."""
    store = open_store(url)
    try:
        row = store.look("s")
        assert row is not None
        assert (row.owner, row.status, row.lines) == ("ana", "failed", 2)
        assert {head.branch: head.id for head in row.heads} == {"main": SECOND.id, "b": LATER.id}
        # Version 1 let the newest commit of any branch say where a session stands.
        assert (row.agent, row.error) == ("", "TimeoutError")
        assert [r.id for r in store.load("s", 0).rows] == [FIRST.id, SECOND.id]
        assert store.counts() == [("failed", "", "TimeoutError", 1), ("idle", "", "", 1)]
        land(store, commit("s", 2, SECOND.id, owner="ana", agent="support"))
        write(store, "new", agent="billing", error="TimeoutError")
        assert store.counts() == [
            ("idle", "", "", 1),
            ("idle", "billing", "TimeoutError", 1),
            ("idle", "support", "", 1),
        ]
        assert post(store, entry())
    finally:
        store.close()


OPEN = (
    "import sys; from perdure.stores import open_store; print('ready', flush=True); sys.stdin.readline();"
    "store = open_store(sys.argv[1]); print(store.id, store.look('s').error); store.close()"
)


def open_ten_times_at_once(url: str, meanwhile: Callable[[], None] = lambda: None) -> set[str]:
    """What ten processes say of the store that all of them find in its older version."""
    children = [
        subprocess.Popen([sys.executable, "-c", OPEN, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(10)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    meanwhile()
    answers = {child.communicate(timeout=60)[0] for child in children}
    assert [child.returncode for child in children] == [0] * 10
    return answers


# -- SQLite ------------------------------------------------------------------------------------------


def put(connection: apsw.Connection, no: int, item: Append) -> None:
    """A commit as version 1 wrote it."""
    connection.execute(
        "insert into commits (no, line, step, id, digest, kind, branch, status, at, starts, tool, error, takes, blobs,"
        " envelope, payload) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', '', ?, ?)",
        (
            no, item.line, item.step, item.id, item.digest, item.kind, item.branch, item.status, item.at, item.starts,
            item.tool, item.error, item.envelope, item.payload,
        ),
    )  # fmt: skip
    connection.execute("update sessions set status = ? where no = ?", (item.status, no))
    if item.branch == "main":
        sql = "update sessions set line = ?, step = ?, head = ?, lines = max(lines, 1) where no = ?"
        connection.execute(sql, (item.line, item.step, item.id, no))
    else:
        sql = "insert or replace into branches (no, name, line, step, head) values (?, ?, ?, ?, ?)"
        connection.execute(sql, (no, item.branch, item.line, item.step, item.id))
        connection.execute("update sessions set lines = 2 where no = ?", (no,))


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    """A database as version 1 left it."""
    path = tmp_path / "agents.db"
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("pragma auto_vacuum = incremental")
        connection.execute("pragma journal_mode = wal")
        connection.execute((FOLDER / "v1.sql").read_text("utf-8"))
        connection.execute(f"pragma application_id = {sqlite_tables.APPLICATION}")
        meta = {"schema": 1, "id": "ab" * 16, "epoch": "cd" * 8, "token": 3, "trimmed": 0}
        connection.executemany("insert into meta values (?, ?)", list(meta.items()))
        for no, session, owner in ((1, "s", "ana"), (2, "t", "bob")):
            sql = "insert into sessions (no, id, owner, status, created, updated) values (?, ?, ?, 'idle', 1, 2)"
            connection.execute(sql, (no, session, owner))
        # The newest of its heads is another one than that of main.
        for no, item in ((1, FIRST), (1, FORK), (1, SECOND), (1, LATER), (2, FINE)):
            put(connection, no, item)
        assert connection.execute("select status from sessions where no = 1").fetchall() == [("running",)]
    return path


def test_a_file_of_version_1_is_brought_up_to_date(old_file: Path):
    the_same_as_ever(f"sqlite:///{old_file}")
    with closing(apsw.Connection(str(old_file))) as connection:
        assert connection.execute("select value from meta where key = 'schema'").fetchall() == [
            (sqlite_tables.VERSION,)
        ]
        old = "sqlite_autoindex_sessions_1", "sessions_by_owner"
        found = {name for (name,) in connection.execute("select name from sqlite_schema where tbl_name = 'sessions'")}
        assert found >= {"sessions", *old}


def test_a_session_without_main_stands_at_its_newest_checkpoint_in_a_file(old_file: Path):
    with closing(apsw.Connection(str(old_file))) as connection:
        sql = "insert into sessions (no, id, owner, status, created, updated) values (3, 'z', 'bob', 'idle', 1, 2)"
        connection.execute(sql)
        put(connection, 3, commit("z", branch="a", line=1))
        put(connection, 3, ALONE)
    store = open_store(f"sqlite:///{old_file}")
    row = store.look("z")
    assert row is not None
    assert (row.status, row.error) == ("paused", "Refused")
    store.close()


def test_a_process_of_version_1_that_has_the_file_open_goes_on(old_file: Path):
    with closing(apsw.Connection(str(old_file))) as old:
        look = "select no, owner, lines, reason, line, step, head from sessions where id = 't'"
        assert old.execute(look).fetchall()[0][1] == "bob"
        the_same_as_ever(f"sqlite:///{old_file}")
        assert old.execute(look).fetchall()[0][1] == "bob"
        put(old, 2, commit("t", 1, FINE.id))
    store = open_store(f"sqlite:///{old_file}")
    assert [row.step for row in store.load("t", 0).rows] == [0, 1]
    store.close()


def test_ten_processes_may_bring_one_file_up_to_date_at_once(old_file: Path):
    (answer,) = open_ten_times_at_once(f"sqlite:///{old_file}")
    assert answer.split() == ["ab" * 16, "TimeoutError"]
    the_same_as_ever(f"sqlite:///{old_file}")


def test_an_upgrade_that_is_cut_off_changes_nothing(old_file: Path, monkeypatch: pytest.MonkeyPatch):
    script = sqlite_tables._script
    monkeypatch.setattr(sqlite_tables, "_script", lambda version: f"{script(version)}; select no_such_function();")
    with pytest.raises(Exception, match="no_such_function"):
        open_store(f"sqlite:///{old_file}")
    monkeypatch.undo()
    the_same_as_ever(f"sqlite:///{old_file}")


# -- PostgreSQL --------------------------------------------------------------------------------------

V1_CALL = f"select code from perdure_append_one(%s{', %s' * 26})"


def append(connection: Any, item: Append) -> str:
    """A commit as version 1 sent it; its answer."""
    values = [None if value in ((), "") and n > 15 else value for n, value in enumerate(item[:23])]
    return connection.execute(V1_CALL, (0, None, None, [], *values)).fetchone()[0]


@pytest.fixture
def old_schema(tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """Tables as version 1 left them, and a process of that version that has them open."""
    url = url_of("postgres", tmp_path)
    schema = url.partition("?schema=")[2]
    with psycopg.connect(postgres_url(postgres()), autocommit=True) as connection:
        connection.execute(f"create schema {schema}")  # type: ignore[arg-type]
        connection.execute(f"set search_path = {schema}")  # type: ignore[arg-type]
        connection.execute(tables._script(1, schema))  # type: ignore[arg-type]
        cluster, timeline = connection.execute(tables._HERE).fetchone()  # type: ignore[misc]
        connection.execute(
            "insert into perdure_meta (version, id, epoch, cluster, timeline) values (1, %s, %s, %s, %s)",
            ("ab" * 16, "cd" * 8, cluster, timeline),
        )
        for item in (FIRST, SECOND, FORK, LATER, FINE):
            assert append(connection, item) == "l"
        assert connection.execute("select status from perdure_session where id = 's'").fetchone() == ("running",)
        yield url, connection


def test_tables_of_version_1_are_brought_up_to_date(old_schema: tuple[str, Any]):
    url, connection = old_schema
    the_same_as_ever(url)
    assert connection.execute("select version from perdure_meta").fetchone() == (tables.VERSION,)
    shown = connection.execute("select session, agent, error from perdure_sessions order by session").fetchall()
    assert shown == [("new", "billing", "TimeoutError"), ("s", "support", ""), ("t", "", "")]


def test_a_session_without_main_stands_at_its_newest_checkpoint_in_tables(old_schema: tuple[str, Any]):
    url, connection = old_schema
    assert append(connection, ALONE) == "l"
    assert append(connection, commit("z", 1, None, branch="a", line=1, starts=True, status="failed")) == "l"
    store = open_store(url)
    row = store.look("z")
    assert row is not None
    assert (row.status, row.error) == ("failed", "")
    store.close()


def test_a_process_of_version_1_that_has_the_tables_open_goes_on(old_schema: tuple[str, Any]):
    url, connection = old_schema
    assert connection.execute("select count(*) from perdure_sessions").fetchone() == (2,)
    the_same_as_ever(url)
    (tip,) = connection.execute("select head from perdure_session where id = 's'").fetchone()
    assert append(connection, commit("s", 3, tip, owner="ana", error="TimeoutError")) == "l"
    fork = commit("t", 1, None, branch="b", line=1, starts=True, error="Refused")
    assert append(connection, fork) == "l"
    assert connection.execute("select count(*) from perdure_sessions").fetchone() == (3,)
    store = open_store(url)
    # What it writes on another branch does not speak for the session any more, either.
    assert [(row.agent, row.error) for row in store.sessions()][1:] == [("support", "TimeoutError"), ("", "")]
    store.drop("s", None, "deleted")
    assert store.look("s").agent == ""  # type: ignore[union-attr]
    store.close()


def test_ten_processes_may_bring_the_tables_up_to_date_at_once(old_schema: tuple[str, Any]):
    url, connection = old_schema
    # One is in the middle of a commit, and looks through the view: the upgrade waits for it.
    connection.execute("begin")
    assert append(connection, commit("u")) == "l"
    assert connection.execute("select count(*) from perdure_sessions").fetchone() == (3,)

    def end_it_once_somebody_waits() -> None:
        waiting = "select count(*) from pg_locks where not granted and relation = 'perdure_sessions'::regclass"
        deadline = time.monotonic() + 60
        while connection.execute(waiting).fetchone() == (0,):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        connection.execute("commit")

    (answer,) = open_ten_times_at_once(url, end_it_once_somebody_waits)
    assert answer.split() == ["ab" * 16, "TimeoutError"]
    assert connection.execute("select count(*) from perdure_sessions where agent = ''").fetchone() == (3,)


def test_what_people_built_on_the_view_stays(old_schema: tuple[str, Any]):
    url, connection = old_schema
    connection.execute("create view mine as select session, owner from perdure_sessions")
    open_store(url).close()
    assert connection.execute("select owner from mine order by session").fetchall() == [("ana",), ("bob",)]


# -- files and Redis, whose forms have room for more ---------------------------------------------------


def test_records_of_a_log_that_was_written_before_there_were_agents_can_be_read():
    commit_record = Commit(
        1, "main", 0, 0, b"i", b"d", True, "ana", "idle", "commit", 1, 2, None, (), (), "", "Refused", b"e", b"p", "x"
    )
    state = State("ana", "idle", 1, 2, None, (), "", 3, 1, 1, 0, 0, "x", "Refused")
    for kind, record, fewer in ((COMMIT, commit_record, 1), (STATE, state, 2)):
        values = msgspec.msgpack.decode(msgspec.msgpack.encode(record))
        read = decode(kind, msgspec.msgpack.encode(values[:-fewer]), "a log")
        assert isinstance(read, Commit | State)
        assert read.agent == ""
        assert decode(kind, msgspec.msgpack.encode(values), "a log") == record


def test_a_log_that_was_rewritten_when_any_branch_said_where_a_session_stands():
    index = SessionIndex()
    heads: list[Head] = []
    for number, item in enumerate((FIRST, SECOND, FORK, LATER), 1):
        said = Commit(
            number, item.branch, item.line, item.step, item.id, item.digest, item.starts, "ana", item.status, "commit",
            1, 2, None, (), (), "", item.error, b"e", b"p",
        )  # fmt: skip
        index.apply(said, Place(number * 100, 100))
        heads.append(Head(item.branch, item.line, item.step, item.id))
    state = State("ana", "running", 1, 2, None, (heads[1], heads[3]), "", 3, 2, 4, 0, 0, "", "Refused")
    index.apply(state, Place(500, 100))
    assert (index.status, index.error) == ("failed", "TimeoutError")
    # One that has no main, and a tombstone, stand where they were said to.
    index.apply(msgspec.structs.replace(state, heads=(heads[3],)), Place(600, 100))
    assert (index.status, index.error) == ("running", "Refused")


def test_a_session_in_redis_that_was_written_before_there_were_agents_can_be_read_and_written(tmp_path: Path):
    store = open_store(url_of("redis", tmp_path))
    assert isinstance(store, RedisStore)
    write(store, agent="support", error="TimeoutError")
    key = b"%b:s:s" % store._desk.prefix
    assert store._desk.link.one(pack(b"HDEL", key, b"agent", b"error")) == 2
    row = store.look("s")
    assert row is not None
    assert (row.agent, row.error) == ("", "")
    assert store.counts() == [("idle", "", "", 1)]
    write(store, agent="billing")
    assert store.counts() == [("idle", "billing", "", 1)]
    store.close()
