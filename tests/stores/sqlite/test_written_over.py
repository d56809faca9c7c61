"""Files that are cut or written over in place under an open database, and a log that is taken away from a young one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.errors import BehindWitness, Poisoned
from perdure.stores.sqlite import own_locks, tables
from perdure.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable

NO_BEAT = 3600
"""Seconds of a lease: a beat that renews it would find out."""
needs_own_locks = pytest.mark.skipif(bool(own_locks.WEAKNESS), reason=own_locks.WEAKNESS)
KILLED = """
import os, sys, perdure
with perdure.open(sys.argv[1], witness=sys.argv[2]) as db, db.session("s") as s:
    for n in range(3):
        s.messages.append(n)
        s.commit()
    os._exit(9)
"""


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def commit(s: perdure.Session, *numbers: int) -> None:
    for n in numbers:
        s.messages.append(n)
        s.commit()


def _cut(path: Path) -> None:
    os.truncate(log_of(path), 0)


def _cut_short(path: Path) -> None:
    os.truncate(log_of(path), 32 + 24 + 4096)


def _text(path: Path) -> None:
    with log_of(path).open("r+b") as file:
        file.write(b"x" * file.seek(0, os.SEEK_END))
        file.seek(0)
        file.write(b"some other text" * 100)


def _another_log(path: Path) -> None:
    other = path.with_name("other.db")
    store = SqliteStore(other)
    store._file.write("t", lambda cursor: [cursor.execute("create table t (x)")])  # pyright: ignore
    copied = log_of(other).read_bytes() * 50
    store.close()
    with log_of(path).open("r+b") as file:
        file.write(copied)


def _older_log(path: Path) -> None:
    shutil.copyfile(path.with_name("older-wal"), log_of(path))


IN_THE_LOG: dict[str, Callable[[Path], None]] = {
    "cut": _cut, "cut short": _cut_short, "text": _text, "another log": _another_log, "an older one": _older_log
}  # fmt: skip


@needs_own_locks
@pytest.mark.parametrize("finds_out", ["commit", "read"])
@pytest.mark.parametrize("how", IN_THE_LOG)
def test_no_commit_returns_into_a_log_that_was_changed_in_place(tmp_path: Path, how: str, finds_out: str) -> None:
    path = tmp_path / "agents.db"
    with perdure.open(f"sqlite:///{path}", lease_ttl=NO_BEAT, maintain=False) as db:
        s = db.session("s")
        commit(s, 1)
        shutil.copyfile(log_of(path), tmp_path / "older-wal")
        commit(s, 2, 3)
        IN_THE_LOG[how](path)
        look: Callable[[], object] = (lambda: commit(s, 4)) if finds_out == "commit" else (lambda: db.read("s"))
        with pytest.raises(Poisoned, match="-wal was cut or written over in place"):
            look()
        with pytest.raises(Poisoned):
            commit(s, 5)
    with perdure.open(f"sqlite:///{path}") as db:
        assert all(finding.kind == "lost" for finding in db.verify().findings)


def _cut_database(path: Path) -> None:
    os.truncate(path, 0)


def _older_database(path: Path) -> None:
    shutil.copyfile(path.with_name("older"), path)


@needs_own_locks
@pytest.mark.parametrize("how", [_cut_database, _older_database])
def test_no_commit_returns_into_a_database_that_was_written_over_in_place(
    tmp_path: Path, how: Callable[[Path], None]
) -> None:
    path = tmp_path / "agents.db"
    with perdure.open(f"sqlite:///{path}", maintain=False) as db, db.session("s") as s:
        commit(s, 1)
    shutil.copyfile(path, tmp_path / "older")
    with perdure.open(f"sqlite:///{path}", maintain=False) as db, db.session("s") as s:
        commit(s, 2)
    with perdure.open(f"sqlite:///{path}", lease_ttl=NO_BEAT, maintain=False) as db:
        s = db.session("s")
        commit(s, 3)
        shutil.copyfile(path, tmp_path / "copy.db")
        how(path)
        with pytest.raises(Poisoned, match=r"agents\.db was cut or written over in place") as told:
            commit(s, 4)
    # What was set aside is for a copy of what was there, and for nothing else.
    (aside,) = tmp_path.glob("agents.db.log-*")
    assert f"log is set aside in {aside}: keep it, for nothing else has what was committed" in str(told.value)
    aside.rename(tmp_path / "copy.db-wal")
    with perdure.open(f"sqlite:///{tmp_path / 'copy.db'}") as db:
        assert db.read("s").messages.plain() == [1, 2, 3]
    assert not log_of(path).exists(), "what was put there is nobody's to be mixed with our log"
    if how is _older_database:
        assert path.read_bytes() == (tmp_path / "older").read_bytes()
        with perdure.open(f"sqlite:///{path}") as db:
            assert db.read("s").messages.plain() == [1]
            assert db.verify().findings == ()


@needs_own_locks
def test_what_others_do_rightly_is_no_damage(tmp_path: Path) -> None:
    """Another process moves the log, begins it anew, and lets the database grow and shrink."""
    path = tmp_path / "agents.db"
    work = (
        "import sys, perdure, apsw\n"
        "with perdure.open(sys.argv[1], maintain=False) as db, db.session(sys.argv[2]) as s:\n"
        "    for n in range(30):\n"
        "        s.vars['n'] = 'x' * 3000 * n\n"
        "        s.commit()\n"
        "        db.kernel.store._file._empty_log()\n"
    )
    with perdure.open(f"sqlite:///{path}", maintain=False) as db, db.session("s") as s:
        others = [subprocess.Popen([sys.executable, "-c", work, f"sqlite:///{path}", f"t{n}"]) for n in range(2)]
        n = 0
        while any(other.poll() is None for other in others):
            commit(s, n := n + 1)
            db.read("s")
        assert [other.returncode for other in others] == [0, 0]
        assert s.messages.plain() == list(range(1, n + 1))
        assert db.verify().findings == ()


def _killed(path: Path) -> Path:
    witness = path.with_name("witness")
    done = subprocess.run([sys.executable, "-c", KILLED, f"sqlite:///{path}", str(witness)], timeout=60, check=False)
    assert done.returncode == 9
    return witness


def test_a_young_database_whose_log_is_taken_away_stays_the_same_store(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    with perdure.open(f"sqlite:///{path}") as db:
        id = db.kernel.store.id
        copy = tmp_path / "copy.db"
        subprocess.run(["cp", path, copy], check=True)
    with perdure.open(f"sqlite:///{copy}") as db:
        assert db.kernel.store.id == id, "the database without its log"


def test_a_witness_knows_what_went_with_the_log(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    witness = _killed(path)
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink()
    with perdure.open(f"sqlite:///{path}", witness=witness) as db:
        assert [f.kind for f in db.verify(witness=witness).findings] == ["lost"]
        with pytest.raises(BehindWitness, match="step 3"):
            db.session("s")


def test_what_was_killed_before_its_tables_were_moved_has_them_moved_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "agents.db"
    monkeypatch.setattr(tables, "YOUNG", -1)
    young = SqliteStore(path)
    for suffix in ("", "-wal"):
        subprocess.run(["cp", f"{path}{suffix}", tmp_path / f"copy.db{suffix}"], check=True)
    young.close()
    monkeypatch.undo()
    assert (tmp_path / "copy.db").stat().st_size <= tables.YOUNG
    with perdure.open(f"sqlite:///{tmp_path}/copy.db") as db:
        assert (tmp_path / "copy.db").stat().st_size > tables.YOUNG
        assert db.kernel.store.id == young.id


def _index_put_back(path: Path) -> None:
    index = path.with_name(path.name + "-shm")
    with path.with_name("older-shm").open("rb") as older, index.open("r+b") as file:
        file.write(older.read())


@needs_own_locks
@pytest.mark.parametrize("finds_out", ["commit", "read", "close"])
def test_an_index_that_is_put_back_takes_nothing_along(tmp_path: Path, finds_out: str) -> None:
    path = tmp_path / "agents.db"
    url = f"sqlite:///{path}"
    db = perdure.open(url, maintain=False, lease_ttl=NO_BEAT)
    s = db.session("s", lease=False)
    commit(s, *range(10))
    shutil.copyfile(f"{path}-shm", tmp_path / "older-shm")
    commit(s, *range(10, 20))
    _index_put_back(path)
    if finds_out != "close":
        s.messages.append(20)
        with pytest.raises(Poisoned, match="open a new one, which reads the log from its beginning"):
            db.read("s") if finds_out == "read" else s.commit()
        db.close()
    else:
        with pytest.raises(Poisoned, match=r"agents\.db-shm was cut or written over in place"):
            db.close()
    with perdure.open(url, maintain=False) as db:
        assert db.read("s").messages.plain() == list(range(20))
        assert db.verify().ok


@needs_own_locks
@pytest.mark.parametrize("how", ["cut log", "another database", "no database"])
def test_whoever_closes_is_told_what_nobody_was_told_before(tmp_path: Path, how: str) -> None:
    path = tmp_path / "agents.db"
    db = perdure.open(f"sqlite:///{path}", maintain=False, lease_ttl=NO_BEAT)
    commit(db.session("s", lease=False), *range(3))
    if how == "cut log":
        _cut(path)
    elif how == "another database":
        with path.open("r+b") as file:
            file.write(b"x" * 4096)
    else:
        path.unlink()
    with pytest.raises(Poisoned, match="while it was open"):
        db.close()
    db.close()
    assert db.guard.closed


@needs_own_locks
@pytest.mark.parametrize("moved", [0, 1, 3])
def test_a_time_that_is_set_is_no_change(tmp_path: Path, moved: int) -> None:
    path = tmp_path / "agents.db"
    with perdure.open(f"sqlite:///{path}", lease_ttl=NO_BEAT, maintain=False) as db:
        s = db.session("s")
        commit(s, 0)
        for _ in range(moved):
            db.kernel.store._file._checkpoint()  # pyright: ignore
            commit(s, 0)
        for n in range(3):
            os.utime(path, ns=(n, n))
            commit(s, n)
            os.utime(path, ns=(n, n + 1))
            assert db.read("s").step == s.step
    with perdure.open(f"sqlite:///{path}") as db:
        assert db.read("s").messages.plain()[-3:] == [0, 1, 2]
    assert [p.name for p in tmp_path.iterdir()] == ["agents.db"]


COMMITS = """
import sys, perdure
with perdure.open(sys.argv[1], maintain=False) as db, db.session("other") as s:
    for n in range(30):
        s.messages.append("x" * 300)
        s.commit()
"""


@needs_own_locks
@pytest.mark.parametrize("finds_out", ["commit", "close"])
def test_a_database_does_not_become_older_by_a_log_that_was_cut(tmp_path: Path, finds_out: str) -> None:
    path = tmp_path / "agents.db"
    url = f"sqlite:///{path}"
    db = perdure.open(url, lease_ttl=NO_BEAT, maintain=False)
    s = db.session("s", lease=False)
    commit(s, *range(30))
    # Whoever closes moves all of the log into the database.
    subprocess.run([sys.executable, "-c", COMMITS, url], check=True, timeout=60)
    os.truncate(log_of(path), log_of(path).stat().st_size * 2 // 5)
    if finds_out == "commit":
        with pytest.raises(Poisoned, match="all that was committed before is in the database, and what is left of the"):
            commit(s, 30)
    db.close()
    assert not log_of(path).exists()
    assert len(list(tmp_path.glob("agents.db.log-*"))) == 1
    with perdure.open(url) as db:
        assert db.read("s").messages.plain() == list(range(30))
        assert db.read("other").step == 30
        assert db.verify().ok


@needs_own_locks
def test_what_is_left_of_a_log_is_read_when_the_database_has_less(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    url = f"sqlite:///{path}"
    db = perdure.open(url, lease_ttl=NO_BEAT, maintain=False)
    s = db.session("s", lease=False)
    commit(s, *range(20))
    size = log_of(path).stat().st_size
    commit(s, *range(20, 40))
    os.truncate(log_of(path), size)
    with pytest.raises(Poisoned, match="is neither in it any more nor in the database"):
        commit(s, 40)
    db.close()
    with perdure.open(url) as db:
        assert db.read("s").messages.plain() == list(range(20))
        assert db.verify().ok


@needs_own_locks
def test_two_who_find_the_log_cut_take_nothing_back(tmp_path: Path) -> None:
    """The second one finds that the log is gone, and moves none of what it has of it."""
    path = tmp_path / "agents.db"
    url = f"sqlite:///{path}"
    one, two = (perdure.open(url, lease_ttl=NO_BEAT, maintain=False) for _ in range(2))
    s = one.session("s", lease=False)
    commit(s, *range(30))
    one.kernel.store._file._checkpoint()  # pyright: ignore
    os.truncate(log_of(path), log_of(path).stat().st_size * 2 // 5)
    for db in (one, two):
        with pytest.raises(Poisoned, match="cut or written over in place"):
            db.read("s")
    one.close()
    two.close()
    with perdure.open(url) as db:
        assert db.read("s").messages.plain() == list(range(30))
        assert db.verify().ok
