"""Locks that belong to the open file, and whose they are; files removed or replaced under an open database."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import apsw
import pytest

import perdure
from perdure.errors import Poisoned
from perdure.stores.sqlite import own_locks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VISIT = "import sys, perdure; perdure.open(sys.argv[1]).close()"


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def visit(path: Path) -> None:
    """Another process opens the database and closes it again."""
    subprocess.run([sys.executable, "-c", VISIT, url_of(path)], check=True, timeout=60)


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
    db = perdure.open(url_of(path), maintain=False)
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


def test_a_log_that_was_replaced_by_somebody_elses_is_not_mixed_with_ours(tmp_path: Path):
    path = tmp_path / "agents.db"
    db = perdure.open(url_of(path), maintain=False)
    s = db.session("s")
    commit(s, 1)
    visit(path)
    commit(s, 2)
    os.unlink(f"{path}-wal")
    os.unlink(f"{path}-shm")
    found = pytest.raises(Poisoned, match=r"set aside in .*agents.db.rescued-\d+.* nothing of this was written")
    with somebody_writing(path), found:
        commit(s, 3)
    db.close()
    with perdure.open(url_of(path)) as db:
        assert db.read("other").messages == ["theirs"]
        assert db.verify().findings == ()
    (aside,) = tmp_path.glob("agents.db.rescued-*")
    assert stored(aside) == [1, 2]


def test_what_others_committed_to_a_log_that_is_gone_as_well_is_not_written_over(tmp_path: Path):
    path = tmp_path / "agents.db"
    db = perdure.open(url_of(path), maintain=False)
    s = db.session("s")
    commit(s, 1)
    os.unlink(f"{path}-wal")
    os.unlink(f"{path}-shm")
    with somebody_writing(path):
        os.unlink(f"{path}-wal")
        with pytest.raises(Poisoned, match="set aside in"):
            commit(s, 2)
    db.close()
    with perdure.open(url_of(path)) as db:
        assert db.read("other").messages == ["theirs"]
        assert db.verify().findings == ()
    (aside,) = tmp_path.glob("agents.db.rescued-*")
    assert stored(aside) == [1]


def test_whoever_opens_a_log_whose_index_is_gone_has_nothing_written_over(tmp_path: Path):
    path = tmp_path / "agents.db"
    db = perdure.open(url_of(path), maintain=False)
    s = db.session("s")
    commit(s, 1)
    os.unlink(f"{path}-shm")
    with somebody_writing(path):
        with pytest.raises(Poisoned, match=r"before is in the database.* nothing of this was written"):
            commit(s, 2)
        db.close()
    with perdure.open(url_of(path)) as db:
        assert db.read("other").messages == ["theirs"]
        assert db.verify().findings == ()
    assert stored(path) == [1]
    assert not [*tmp_path.glob("agents.db.rescued-*")]


def test_what_others_committed_who_are_gone_again_is_not_written_over(tmp_path: Path):
    path = tmp_path / "agents.db"
    db = perdure.open(url_of(path), maintain=False)
    s = db.session("s")
    commit(s, 1)
    os.unlink(f"{path}-wal")
    os.unlink(f"{path}-shm")
    # Whoever closes the database has moved what it wrote into it.
    subprocess.run([sys.executable, "-c", WRITE, url_of(path)], input="\n", text=True, check=True, timeout=60)
    os.unlink(f"{path}-wal")
    os.unlink(f"{path}-shm")
    with pytest.raises(Poisoned, match=r"set aside in .* nothing of this was written"):
        commit(s, 2)
    db.close()
    with perdure.open(url_of(path)) as db:
        assert db.read("other").messages == ["theirs"]
        assert db.verify().findings == ()
    (aside,) = tmp_path.glob("agents.db.rescued-*")
    assert stored(aside) == [1]


WRITE = """
import sys, perdure
with perdure.open(sys.argv[1]) as db, db.session("other") as s:
    s.messages.append("theirs")
    s.commit()
    print("written", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def somebody_writing(path: Path) -> Iterator[None]:
    """Another process has committed, and has the database open."""
    other = subprocess.Popen(
        [sys.executable, "-c", WRITE, url_of(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "written\n"
        yield
    finally:
        other.communicate("\n", timeout=60)
    assert other.returncode == 0


def test_what_was_committed_is_set_aside_when_the_database_itself_is_replaced(tmp_path: Path):
    path, older = tmp_path / "agents.db", tmp_path / "older.db"
    db = perdure.open(url_of(path), maintain=False)
    s = db.session("s")
    commit(s, 1)
    perdure.open(url_of(older)).close()
    os.replace(older, path)
    with pytest.raises(Poisoned, match=r"agents.db was removed or replaced .* set aside in .*rescued-\d+"):
        commit(s, 2)
    db.close()
    (aside,) = tmp_path.glob("agents.db.rescued-*")
    assert stored(aside) == [1]


def test_what_was_committed_is_set_aside_as_often_as_need_be_in_one_process(tmp_path: Path):
    path = tmp_path / "agents.db"
    for n in (1, 2):
        db = perdure.open(url_of(path), maintain=False)
        s = db.session(f"s{n}")
        commit(s, n)
        os.unlink(f"{path}-wal")
        (tmp_path / "agents.db-wal").touch()
        with pytest.raises(Poisoned, match="set aside in"):
            commit(s, n + 10)
        db.close()
    assert len([*tmp_path.glob("agents.db.rescued-*")]) == 2


def test_a_database_that_was_replaced_is_found_out_although_the_new_one_was_opened_since(tmp_path: Path):
    path, older = tmp_path / "agents.db", tmp_path / "older.db"
    db = perdure.open(url_of(path), maintain=False)
    s = db.session("s")
    commit(s, 1)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("vacuum into ?", (str(older),))
    commit(s, 2)
    os.unlink(f"{path}-wal")
    os.unlink(f"{path}-shm")
    os.replace(older, path)
    db.verify()  # through a connection that is opened now
    with pytest.raises(Poisoned, match=r"agents.db was removed or replaced .* set aside in"):
        commit(s, 3)
    db.close()
    (aside,) = tmp_path.glob("agents.db.rescued-*")
    assert (stored(path), stored(aside)) == ([1], [1, 2])


@pytest.mark.skipif(bool(own_locks.WEAKNESS), reason=own_locks.WEAKNESS)
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
