"""Locks that belong to the open file, and whose they are; files removed or replaced under an open database."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import perdure
from perdure.cli.program import run as run_command
from perdure.errors import PerdureError, Poisoned
from perdure.stores.sqlite import own_locks, tables
from perdure.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NO_BEAT = 3600
"""Seconds of a lease: a beat that renews it would find out that a file is gone."""
VISIT = "import sys, perdure; perdure.open(sys.argv[1]).close()"
COMMIT = """
import sys, perdure
with perdure.open(sys.argv[1]) as db, db.session("another") as s:
    s.messages.append(1)
    s.commit()
"""


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


needs_own_locks = pytest.mark.skipif(bool(own_locks.WEAKNESS), reason=own_locks.WEAKNESS)


def visit(path: Path, *, refused: bool = False) -> str:
    """Another process opens the database and closes it again; what it says when that is refused."""
    command = [sys.executable, "-c", VISIT, url_of(path)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert bool(done.returncode) is refused, done.stderr
    return done.stderr


def commit(s: perdure.Session, *numbers: int) -> None:
    for n in numbers:
        s.messages.append(n)
        s.commit()


def stored(path: Path) -> list[int]:
    with perdure.open(url_of(path)) as db:
        return db.read("s").messages.plain()


def locks_of(path: Path) -> set[str]:
    """What kinds of locks are held on a file, by anybody."""
    inode = os.stat(path).st_ino
    with open("/proc/locks", encoding="ascii") as lines:
        return {line.split()[1] for line in lines if line.split()[5].endswith(f":{inode}")}


@pytest.mark.parametrize("gone", [("-wal",), ("-shm",), ("-wal", "-shm")], ids="".join)
def test_what_was_committed_is_saved_when_the_log_is_removed(tmp_path: Path, gone: tuple[str, ...]):
    path = tmp_path / "agents.db"
    db = perdure.open(url_of(path), maintain=False, lease_ttl=NO_BEAT)
    s = db.session("s")
    commit(s, 1, 2)
    for suffix in gone:
        os.unlink(f"{path}{suffix}")
    commit(s, 3)
    with pytest.raises(
        Poisoned, match=rf"agents.db{gone[0]} was removed .* moved into the database: close this handle"
    ):
        commit(s, 4)
    # As a kill would leave it.
    copy = tmp_path / "left.db"
    subprocess.run(["cp", path, copy], check=True)
    assert stored(copy) == [1, 2, 3]
    db.close()
    assert stored(path) == [1, 2, 3]


@needs_own_locks
@pytest.mark.parametrize(
    "statement", ["begin immediate", "vacuum", "pragma wal_checkpoint(truncate)", "pragma wal_checkpoint"]
)
def test_other_libraries_read_and_do_not_write_while_it_is_open(tmp_path: Path, statement: str):
    path = tmp_path / "agents.db"
    db = perdure.open(url_of(path), maintain=False, lease_ttl=NO_BEAT)
    s = db.session("s")
    commit(s, 1)
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
        assert other.execute("select count(*) from commits").fetchone() == (1,)
        with suppress(sqlite3.OperationalError):
            # A checkpoint answers that it was kept from it, instead of an error.
            assert other.execute(statement).fetchone()[0] == 1
            other.execute("begin immediate")
        assert not other.in_transaction
        with closing(sqlite3.connect(tmp_path / "backup.db")) as backup:
            other.backup(backup)
    # Processes of ours write it side by side all the while.
    subprocess.run([sys.executable, "-c", COMMIT, url_of(path)], check=True, timeout=60)
    commit(s, 2)
    s.release()
    db.close()
    assert stored(path) == [1, 2]
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
        other.execute(statement)


@needs_own_locks
@pytest.mark.parametrize("statement", ["vacuum", "pragma wal_checkpoint(truncate)"])
def test_nothing_is_lost_when_others_lose_their_locks(tmp_path: Path, statement: str):
    path = tmp_path / "agents.db"
    over, tried, done = threading.Event(), 0, 0

    def moves() -> None:
        nonlocal tried
        while not over.is_set():
            with closing(sqlite3.connect(path, timeout=0.01, isolation_level=None)) as other, suppress(sqlite3.Error):
                other.execute(statement).fetchall()
            tried += 1

    def copies() -> None:
        while not over.is_set():
            for suffix in own_locks.FILES:
                (tmp_path / f"agents.db{suffix}").read_bytes()

    with perdure.open(url_of(path), maintain=False) as db, db.session("s") as s:
        commit(s, -1)
        threads = [threading.Thread(target=work) for work in (moves, copies)]
        for thread in threads:
            thread.start()
        try:
            while tried < 40:
                commit(s, done)
                done += 1
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert db.verify().ok
    assert stored(path) == [-1, *range(done)]


@needs_own_locks
@pytest.mark.parametrize("gone", [("-wal",), ("-shm",), ("-wal", "-shm")], ids="".join)
@pytest.mark.parametrize("finds_out", ["writer", "reader"])
def test_nobody_goes_on_without_what_only_a_removed_log_has(tmp_path: Path, gone: tuple[str, ...], finds_out: str):
    path = tmp_path / "agents.db"
    db = perdure.open(url_of(path), maintain=False, lease_ttl=NO_BEAT)
    s = db.session("s")
    commit(s, 1)
    for suffix in gone:
        os.unlink(f"{path}{suffix}")
    for _ in range(2):
        assert f"removed or replaced while process {os.getpid()} had it open" in visit(path, refused=True)
    if finds_out == "writer":
        commit(s, 2)
    else:
        with pytest.raises(Poisoned, match="moved into the database"):
            db.read("s")
    # Before the one that has found it out is closed.
    visit(path)
    db.close()
    assert stored(path) == ([1, 2] if finds_out == "writer" else [1])
    assert not [*tmp_path.glob("agents.db.rescued-*")]


@needs_own_locks
def test_an_empty_log_in_the_place_of_ours_is_nobodys(tmp_path: Path):
    path = tmp_path / "agents.db"
    db = perdure.open(url_of(path), maintain=False, lease_ttl=NO_BEAT)
    s = db.session("s")
    commit(s, 1)
    os.unlink(f"{path}-wal")
    (tmp_path / "agents.db-wal").touch()
    commit(s, 2)
    with pytest.raises(Poisoned, match="moved into the database"):
        commit(s, 3)
    db.close()
    assert stored(path) == [1, 2]


@needs_own_locks
@pytest.mark.parametrize("gone", [("-wal",), ("-wal", "-shm")], ids="".join)
def test_closing_a_handle_that_lost_its_log_removes_nobody_elses(tmp_path: Path, gone: tuple[str, ...]):
    path = tmp_path / "agents.db"
    db = perdure.open(url_of(path), maintain=False, lease_ttl=NO_BEAT)
    s = db.session("s")
    commit(s, 1)
    for suffix in gone:
        os.unlink(f"{path}{suffix}")
    commit(s, 2)  # which finds it out
    with somebody_committing(path) as other:
        other.kill()
        other.wait()
    db.close()
    with perdure.open(url_of(path)) as db:
        assert db.read("other").messages == ["theirs"]
        assert db.verify().findings == ()
    assert stored(path) == [1, 2]


def test_a_log_that_was_replaced_by_somebody_elses_is_not_mixed_with_ours(tmp_path: Path):
    path = tmp_path / "agents.db"
    visit(path)
    db = perdure.open(url_of(path), maintain=False, lease_ttl=NO_BEAT)
    s = db.session("s")
    commit(s, 1, 2)
    os.unlink(f"{path}-wal")
    os.unlink(f"{path}-shm")
    found = pytest.raises(Poisoned, match=r"set aside in .*agents.db.rescued-\d+.* nothing of this was written")
    with somebody_writing(path), found:
        commit(s, 3)
    db.close()
    assert_theirs(path)
    (aside,) = tmp_path.glob("agents.db.rescued-*")
    assert stored(aside) == [1, 2]


@needs_own_locks
def test_what_was_moved_into_a_database_that_is_replaced_next_is_set_aside_when_it_is_closed(tmp_path: Path):
    path = tmp_path / "agents.db"
    visit(path)
    older = shutil.copy(path, tmp_path / "older.db")
    db = perdure.open(url_of(path), maintain=False, lease_ttl=NO_BEAT)
    s = db.session("s")
    commit(s, 1)
    os.unlink(f"{path}-wal")
    with pytest.raises(Poisoned, match="moved into the database"):
        commit(s, 2, 3)
    os.replace(older, path)
    with pytest.raises(Poisoned, match=r"agents.db was removed or replaced .* set aside in"):
        db.close()
    with pytest.raises(perdure.NotFound):
        stored(path)
    (aside,) = tmp_path.glob("agents.db.rescued-*")
    assert stored(aside) == [1, 2]


def test_what_others_committed_to_a_log_that_is_gone_as_well_is_not_written_over(tmp_path: Path):
    path = tmp_path / "agents.db"
    visit(path)
    db = perdure.open(url_of(path), maintain=False, lease_ttl=NO_BEAT)
    s = db.session("s")
    commit(s, 1)
    os.unlink(f"{path}-wal")
    os.unlink(f"{path}-shm")
    with somebody_writing(path, "pragma wal_checkpoint"):
        os.unlink(f"{path}-wal")
        with pytest.raises(Poisoned, match="set aside in"):
            commit(s, 2)
    db.close()
    assert_theirs(path)
    (aside,) = tmp_path.glob("agents.db.rescued-*")
    assert stored(aside) == [1]


def test_whoever_opens_a_log_whose_index_is_gone_has_nothing_written_over(tmp_path: Path):
    path = tmp_path / "agents.db"
    visit(path)
    db = perdure.open(url_of(path), maintain=False, lease_ttl=NO_BEAT)
    s = db.session("s")
    commit(s, 1)
    os.unlink(f"{path}-shm")
    with somebody_writing(path):
        with pytest.raises(Poisoned, match=r"before is in the database.* nothing of this was written"):
            commit(s, 2)
        db.close()
    assert_theirs(path)
    assert stored(path) == [1]
    assert not [*tmp_path.glob("agents.db.rescued-*")]


def test_what_others_committed_who_are_gone_again_is_not_written_over(tmp_path: Path):
    path = tmp_path / "agents.db"
    visit(path)
    db = perdure.open(url_of(path), maintain=False, lease_ttl=NO_BEAT)
    s = db.session("s")
    commit(s, 1)
    os.unlink(f"{path}-wal")
    os.unlink(f"{path}-shm")
    with somebody_writing(path, "pragma wal_checkpoint"):
        pass
    os.unlink(f"{path}-wal")
    os.unlink(f"{path}-shm")
    with pytest.raises(Poisoned, match=r"set aside in .* nothing of this was written"):
        commit(s, 2)
    db.close()
    assert_theirs(path)


WRITE = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as other:
    other.execute("insert or replace into meta (key, value) values ('theirs', 1)")
for statement in sys.argv[2:]:
    other.execute(statement).fetchall()
print("written", flush=True)
sys.stdin.readline()
other.close()
"""
COMMIT = """
import sys, perdure
with perdure.open(sys.argv[1]) as db, db.session("other") as s:
    s.messages.append("theirs")
    s.commit()
    print("written", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def _somebody(program: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    other = subprocess.Popen(
        [sys.executable, "-c", program, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "written\n"
        yield other
    finally:
        other.communicate("\n", timeout=60)
    assert other.returncode in (0, -signal.SIGKILL)


def somebody_writing(path: Path, *statements: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Another process, which knows SQLite alone, has written, and has the database open."""
    return _somebody(WRITE, str(path), *statements)


def somebody_committing(path: Path) -> AbstractContextManager[subprocess.Popen[str]]:
    """Another process of ours has committed, and has the database open."""
    return _somebody(COMMIT, url_of(path))


def assert_theirs(path: Path) -> None:
    """What somebody has written is there, and nothing is damaged."""
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("select value from meta where key = 'theirs'").fetchall() == [(1,)]
        assert other.execute("pragma integrity_check").fetchall() == [("ok",)]
    with perdure.open(url_of(path)) as db:
        assert db.verify().findings == ()


def test_what_was_committed_is_set_aside_when_the_database_itself_is_replaced(tmp_path: Path):
    path, older = tmp_path / "agents.db", tmp_path / "older.db"
    db = perdure.open(url_of(path), maintain=False, lease_ttl=NO_BEAT)
    s = db.session("s")
    commit(s, 1)
    perdure.open(url_of(older)).close()
    os.replace(older, path)
    with pytest.raises(Poisoned, match=r"agents.db was removed or replaced .* set aside in .*rescued-\d+") as told:
        commit(s, 2)
    db.close()
    (aside,) = tmp_path.glob("agents.db.rescued-*")
    assert stored(aside) == [1]
    # What it says to do brings it back.
    (typed,) = re.findall(r"`perdure (.*?)`", str(told.value))
    assert run_command(shlex.split(typed)) == 0
    assert stored(path) == [1]


def test_what_was_committed_is_set_aside_as_often_as_need_be_in_one_process(tmp_path: Path):
    path = tmp_path / "agents.db"
    visit(path)
    for n in (1, 2):
        db = perdure.open(url_of(path), maintain=False, lease_ttl=NO_BEAT)
        s = db.session(f"s{n}")
        commit(s, n)
        os.unlink(f"{path}-wal")
        os.unlink(f"{path}-shm")
        with somebody_writing(path):
            with pytest.raises(Poisoned, match="set aside in"):
                commit(s, n + 10)
            db.close()
    assert len([*tmp_path.glob("agents.db.rescued-*")]) == 2


def test_a_database_that_was_replaced_is_found_out_although_the_new_one_was_opened_since(tmp_path: Path):
    path, older = tmp_path / "agents.db", tmp_path / "older.db"
    db = perdure.open(url_of(path), maintain=False, lease_ttl=NO_BEAT)
    s = db.session("s")
    commit(s, 1)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("vacuum into ?", (str(older),))
    commit(s, 2)
    os.unlink(f"{path}-wal")
    os.unlink(f"{path}-shm")
    os.replace(older, path)
    with pytest.raises(Poisoned, match=r"agents.db was removed or replaced .* set aside in"):
        db.verify()  # through a connection that would be opened now
    with pytest.raises(Poisoned, match=r"agents.db was removed or replaced .* set aside in"):
        commit(s, 3)
    db.close()
    (aside,) = tmp_path.glob("agents.db.rescued-*")
    assert (stored(path), stored(aside)) == ([1], [1, 2])


@needs_own_locks
def test_what_was_set_aside_has_its_large_values_and_is_named_until_it_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "agents.db"
    db = perdure.open(url_of(path), maintain=False, lease_ttl=NO_BEAT)
    s = db.session("s", lease=False)
    s.vars["large"] = b"z" * 40_000
    s.commit()
    for suffix in own_locks.FILES:
        os.unlink(f"{path}{suffix}")
    visit(path)
    with pytest.raises(Poisoned) as told:
        db.read("s")
    db.close()
    (aside,) = (p for p in tmp_path.glob("agents.db.rescued-*") if p.is_file())
    for blob in tmp_path.glob("agents.db-blobs/*/*"):
        os.utime(blob, (1, 1))
    with perdure.open(url_of(path)) as db:
        assert db.collect().deleted == 0
    for command in (["verify", "--all"], ["doctor"]):
        run_command([*command, "--store", str(path)])
        assert aside.name in capsys.readouterr().out.replace("\n", "")
    (command,) = re.findall(r"`perdure (copy .*?)`", str(told.value))
    assert run_command(shlex.split(command)) == 0
    aside.unlink()
    run_command(["verify", "--all", "--store", str(path)])
    assert "rescued" not in capsys.readouterr().out
    with perdure.open(url_of(path)) as db:
        assert db.read("s").vars["large"] == b"z" * 40_000


@needs_own_locks
@pytest.mark.parametrize("in_its_place", [False, True])
@pytest.mark.parametrize("finds_out", ["commit", "read", "close"])
def test_a_database_whose_folder_was_renamed_is_where_it_is(tmp_path: Path, finds_out: str, in_its_place: bool):
    path, there = tmp_path / "before" / "agents.db", tmp_path / "after" / "agents.db"
    path.parent.mkdir()
    db = perdure.open(url_of(path), maintain=False, lease_ttl=NO_BEAT)
    s = db.session("s", lease=False)
    commit(s, 1, 2)
    path.parent.rename(there.parent)
    if in_its_place:
        perdure.open(url_of(tmp_path / "another.db")).close()
        path.parent.mkdir()
        (tmp_path / "another.db").rename(path)
    if finds_out != "close":
        with pytest.raises(Poisoned, match=f"all that was committed through it is in {there}"):
            db.read("s") if finds_out == "read" else commit(s, 3)
    db.close()
    assert stored(there) == [1, 2]
    assert not in_its_place or [p.name for p in path.parent.iterdir()] == ["agents.db"]


def test_a_database_that_is_removed_while_it_is_opened_is_told_in_our_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "agents.db"
    value_of = tables.value_of

    def removed(cursor: Any, sql: str) -> Any:
        found = value_of(cursor, sql)
        if "schema'" in sql:
            path.unlink()
        return found

    monkeypatch.setattr(tables, "value_of", removed)
    with pytest.raises(PerdureError, match="was removed while it was being opened"):
        perdure.open(url_of(path))


@needs_own_locks
def test_only_our_own_files_are_locked_in_our_way(tmp_path: Path):
    ours, theirs = tmp_path / "agents.db", tmp_path / "theirs.db"
    with perdure.open(url_of(ours)) as db, closing(apsw.Connection(str(theirs))) as connection:
        connection.execute("pragma journal_mode = wal; create table t (x); begin; select * from t").fetchall()
        commit(db.session("s"), 1)
        assert locks_of(ours) == {"OFDLCK"}
        assert locks_of(theirs) == {"POSIX"}


def test_two_handles_on_one_file_leave_each_others_locks_alone(tmp_path: Path):
    path = tmp_path / "agents.db"
    one, two = perdure.open(url_of(path)), perdure.open(url_of(path))
    with one.session("s") as s:
        commit(s, 1)
    with two.session("s") as s:
        one.close()
        visit(path)
        commit(s, 2)
        visit(path)
        assert stored(path) == [1, 2]
    two.close()
    assert [p.name for p in tmp_path.iterdir()] == ["agents.db"]


@needs_own_locks
def test_nobody_opens_a_database_with_the_log_of_the_one_it_replaced(tmp_path: Path):
    path, older = tmp_path / "agents.db", tmp_path / "older.db"
    db = perdure.open(url_of(path), maintain=False, lease_ttl=NO_BEAT)
    s = db.session("s")
    commit(s, 1)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("vacuum into ?", (str(older),))
    commit(s, 2)
    os.replace(older, path)
    assert f"removed or replaced while process {os.getpid()} had it open" in visit(path, refused=True)
    with pytest.raises(Poisoned, match=r"agents.db was removed or replaced .* set aside in"):
        db.read("s")
    visit(path)
    db.close()
    (aside,) = tmp_path.glob("agents.db.rescued-*")
    assert (stored(path), stored(aside)) == ([1], [1, 2])
    for one in (path, aside):
        with perdure.open(url_of(one)) as db:
            assert db.verify().findings == ()


LEAVE = """
import sys, perdure
db = perdure.open(sys.argv[1], maintain=False)
s = db.session("s")
s.messages.append(1)
s.commit()
print("written", flush=True)
sys.stdin.readline()
"""


@needs_own_locks
def test_a_program_that_ends_without_closing_saves_what_only_its_log_has(tmp_path: Path):
    path = tmp_path / "agents.db"
    with _somebody(LEAVE, url_of(path)):
        os.unlink(f"{path}-wal")
        os.unlink(f"{path}-shm")
    assert stored(path) == [1]


DIE = """
import os, signal, sys, time, perdure
db = perdure.open(sys.argv[1], maintain=False)
s = db.session("s")
s.messages.append(1)
s.commit()

def die(cursor):
    child = os.fork()
    if not child:
        os.close(1)
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

db.kernel.store._file.write("dying", die)
"""


@needs_own_locks
def test_the_child_of_a_fork_keeps_no_lock_of_a_parent_that_was_killed(tmp_path: Path):
    path = tmp_path / "agents.db"
    command = [sys.executable, "-c", DIE, url_of(path)]
    child = int(subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False).stdout)
    try:
        store = SqliteStore(path, busy_timeout=2)
        with closing(store):
            store.renew_epoch()
        assert stored(path) == [1]
    finally:
        os.kill(child, signal.SIGKILL)


WITHOUT = """
import os, pathlib, sqlite3, sys, perdure
from perdure.stores.sqlite import own_locks
own_locks._library, own_locks.WEAKNESS = None, "not built"
folder, path = sys.argv[1:]
os.symlink(path, folder + "/link")
uri = pathlib.Path(path).as_uri()
ways = (
    lambda: sqlite3.connect(path),
    lambda: sqlite3.connect(pathlib.Path(path)),
    lambda: sqlite3.connect(uri + "?mode=ro", uri=True),
    lambda: sqlite3.connect(uri.replace("///", "//localhost/"), uri=True),
    lambda: open(folder + "/link", "rb"),
    lambda: open(path + "-shm", "rb"),
)
with perdure.open(path) as db:
    for way in ways:
        try:
            way()
        except perdure.errors.Misuse:
            print("refused")
    open(folder + "/other", "w").close()
"""


def test_what_python_opens_by_its_path_is_refused_where_locks_are_the_weaker_ones(tmp_path: Path):
    path = tmp_path / "my agents.db"
    command = [sys.executable, "-c", WITHOUT, str(tmp_path), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stderr, done.stdout) == ("", "refused\n" * 6)
