"""Another SQLite library in the same process: whatever we open and close, it keeps its locks, and we respect them."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.errors import Unavailable
from perdure.stores.sqlite import own_locks
from tests.stores.sqlite.test_own_locks import commit, locks_of, somebody_committing, stored, url_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(bool(own_locks.WEAKNESS), reason=own_locks.WEAKNESS)


def theirs(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=0, isolation_level=None)


def descriptors(path: Path) -> int:
    """How many of a database's files are open, those that are gone included."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{fd}").startswith(str(path))
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "agents.db"
    with perdure.open(url_of(path)) as db, db.session("s") as s:
        commit(s, 0)
    return path


def test_nothing_is_committed_while_another_library_of_this_process_is_writing(path: Path):
    with closing(theirs(path)) as other:
        other.execute("create table theirs (x)")
        other.execute("begin immediate")
        other.execute("insert into theirs values (1)")
        with (
            perdure.open(url_of(path), busy_timeout=0, maintain=False) as db,
            pytest.raises(Unavailable, match="locked"),
        ):
            commit(db.session("s"), 1)
        other.execute("insert into theirs values (2)")
        other.execute("commit")
        with perdure.open(url_of(path), maintain=False) as db, db.session("s") as s:
            commit(s, 2)
        assert other.execute("select count(*) from theirs").fetchone() == (2,)
        assert other.execute("pragma integrity_check").fetchone() == ("ok",)
    assert stored(path) == [0, 2]


def test_what_another_library_of_this_process_reads_stays_what_it_is(path: Path):
    with perdure.open(url_of(path)) as db, db.session("s") as s:
        commit(s, *range(1, 100))
    with closing(theirs(path)) as other:
        other.execute("pragma cache_size = 1")
        other.execute("begin")
        before = other.execute("select id from commits order by id").fetchall()
        for n in range(100, 103):
            with perdure.open(url_of(path)) as db:
                with db.session("s") as s:
                    commit(s, n)
                db.compact("s")
                db.prune("s", keep_last=1)
            assert other.execute("select id from commits order by id").fetchall() == before
            assert other.execute("pragma integrity_check").fetchone() == ("ok",)


def test_a_backup_of_another_library_of_this_process_is_whole(path: Path, tmp_path: Path):
    with perdure.open(url_of(path)) as db, db.session("s") as s:
        commit(s, *range(1, 100))

    pauses = iter(range(40))

    def meanwhile(_status: int, _remaining: int, _total: int) -> None:
        # A backup begins anew with each change, so that there must be an end to them.
        if next(pauses, 1) % 5 == 0:
            with perdure.open(url_of(path)) as db:
                with db.session("s") as s:
                    commit(s, 1)
                db.compact("s")

    with closing(theirs(path)) as other, closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        other.backup(copy, pages=1, progress=meanwhile)
        assert copy.execute("pragma integrity_check").fetchone() == ("ok",)
    with perdure.open(url_of(tmp_path / "copy.db")) as db:
        assert db.verify().ok


def test_locks_of_another_library_outlive_our_handles(path: Path):
    with closing(theirs(path)) as other:
        other.execute("begin")
        other.execute("select * from meta").fetchall()
        with perdure.open(url_of(path)) as db:
            db.read("s")
        for suffix in ("", "-shm"):
            assert "POSIX" in locks_of(path.with_name(path.name + suffix))


@pytest.mark.parametrize("who", ["this process", "another process"])
def test_so_many_descriptors_are_kept_as_were_open_at_once(path: Path, who: str):
    def visit() -> int:
        with perdure.open(url_of(path), maintain=False) as db, db.session("s", lease=False) as s:
            commit(s, 1)
        return descriptors(path)

    if who == "this process":
        with closing(theirs(path)) as other:
            other.execute("select * from meta").fetchall()
            kept = [visit() for _ in range(20)]
    else:
        with somebody_committing(path):
            kept = [visit() for _ in range(20)]
    assert kept[0] == kept[-1]
    # What had to be kept is closed with the next file that is.
    assert not visit()


def test_what_is_kept_of_one_database_is_closed_when_another_one_is(path: Path, tmp_path: Path):
    with closing(theirs(path)) as other:
        other.execute("select * from meta").fetchall()
        stored(path)
    assert descriptors(path)
    for n in range(4):
        perdure.open(url_of(tmp_path / f"other{n}.db")).close()
    assert not descriptors(path)


def test_a_descriptor_that_somebody_has_closed_is_not_taken_for_ours(path: Path, tmp_path: Path):
    before = set(os.listdir("/proc/self/fd"))
    with closing(theirs(path)) as other:
        other.execute("select * from meta").fetchall()
        stored(path)
        kept = {
            int(fd)
            for fd in set(os.listdir("/proc/self/fd")) - before
            if os.path.exists(f"/proc/self/fd/{fd}") and os.readlink(f"/proc/self/fd/{fd}") == str(path)
        }
    for fd in kept:
        os.close(fd)
    taken = [os.open(tmp_path / f"file{n}", os.O_CREAT | os.O_RDWR) for n in range(8)]
    with perdure.open(url_of(path)) as db, db.session("s") as s:
        commit(s, 1)
    assert [os.fstat(fd).st_size for fd in taken] == [0] * len(taken)
    for fd in taken:
        os.close(fd)
    assert stored(path) == [0, 1]


LOW = """
import os, sqlite3, sys, perdure
url = "sqlite:///" + sys.argv[1]
other = sqlite3.connect(sys.argv[1], isolation_level=None)
other.execute("begin immediate")
other.execute("insert into meta values ('theirs', 1)")
os.close(0)
db = perdure.open(url, busy_timeout=0, maintain=False)
try:
    with db.session("s") as s:
        s.messages.append(1)
        s.commit()
except perdure.Unavailable:
    other.execute("commit")
    os._exit(9)
"""


def test_nor_are_locks_dropped_where_a_standard_stream_is_closed(path: Path):
    done = subprocess.run([sys.executable, "-c", LOW, str(path)], timeout=60, check=False)
    assert done.returncode == 9
    assert stored(path) == [0]
