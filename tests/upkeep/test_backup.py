"""Backup and restore: one file, from any store into any store, with unchanged digests; a damaged one is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.errors import Conflict, Corrupted, CursorExpired, InvalidInput, NotFound, PerdureError, UnsupportedFormat
from perdure.system import faults
from tests.upkeep.aging import killed_at
from tests.upkeep.pasts import all_states, write_past

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perdure.testing.clock import FakeClock

KEY = b"sixteen bytes or more"


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    """No test leaves its hook behind."""
    yield
    faults.hook = None


def elsewhere(kind: str, folder: Path, clock: FakeClock, **options: Any) -> perdure.Database:
    url = {"memory": "memory://", "sqlite": f"sqlite:///{folder}/other.db", "file": f"file://{folder}/other"}[kind]
    return perdure.open(url, clock=clock, **options)


def digests(db: perdure.Database, session: str) -> dict[str, list[str]]:
    return {
        h.branch: [c.digest for c in db.history(session, branch=h.branch, limit=10_000)] for h in db.look(session).heads
    }


@pytest.mark.parametrize("kind", ["memory", "sqlite", "file"])
def test_everything_comes_back_with_the_same_digests_in_any_store(
    open_db: Callable[..., perdure.Database], kind: str, tmp_path: Path, clock: FakeClock
):
    db = open_db(keys=KEY)
    write_past(db, "one", 1)
    write_past(db, "two/../x", 2, count=60)
    db.prune("one", keep_last=20, keep_every=10)
    db.post("one", {"hello": 1}, key="k1")
    db.post("one", {"hello": 2}, key="k2")
    with db.session("one") as s:
        assert s.take(1)[0].body == {"hello": 1}
        s.commit("took one")
    db.post("later", {"before": "the session"})
    told: list[tuple[str, int]] = []
    backed = db.backup(tmp_path / "all.bak", progress=lambda id, n: told.append((id, n)))
    assert told == [("later", 1), ("one", 2), ("two/../x", 3)]
    assert (backed.copied, backed.missing) == (3, [])
    assert backed.bytes == (tmp_path / "all.bak").stat().st_size
    with elsewhere(kind, tmp_path, clock, keys=KEY) as other:
        restored = other.restore(tmp_path / "all.bak")
        assert (restored.copied, restored.unchanged, restored.blobs) == (3, 0, backed.blobs)
        for id in ("one", "two/../x"):
            assert digests(other, id) == digests(db, id)
            assert all_states(other, id, 7) == all_states(db, id, 7)
        assert other.verify().findings == ()
        with other.session("one") as s:
            assert [m.body for m in s.take()] == [{"hello": 2}]
            s.commit()
        with other.session("later") as s:
            assert [m.body for m in s.take()] == [{"before": "the session"}]


def test_a_backup_is_taken_while_sessions_are_written(db: perdure.Database, tmp_path: Path, clock: FakeClock):
    with db.session("a", ttl=None) as a, db.session("b", ttl=None) as b:
        for n in range(10):
            a.vars["n"] = b.vars["n"] = n
            a.commit()
            b.commit()

        def write(id: str, done: int) -> None:
            a.vars["n"] = b.vars["n"] = f"after {id}"
            a.commit()
            b.commit()

        db.backup(tmp_path / "all.bak", progress=write)
    with elsewhere("memory", tmp_path, clock) as other:
        other.restore(tmp_path / "all.bak")
        assert (other.read("a").vars["n"], other.read("b").vars["n"]) == (9, "after a")
        assert other.verify().ok


def test_a_restored_store_has_a_new_epoch_and_no_lease(db: perdure.Database, tmp_path: Path, clock: FakeClock):
    with db.session("a", ttl=None) as s:
        s.vars["n"] = 1
        s.commit()
        db.backup(tmp_path / "all.bak")
        token = s.fence
    with elsewhere("sqlite", tmp_path, clock) as other:
        epoch = other.kernel.store.epoch
        cursor = other.changes().cursor
        other.restore(tmp_path / "all.bak")
        assert other.kernel.store.epoch != epoch
        with pytest.raises(CursorExpired):
            other.changes(cursor)
        with other.session("a") as s:
            assert s.fence is not None
            assert token is not None
            assert s.fence > token


def test_any_damage_is_refused_before_anything_is_written(tmp_path: Path, clock: FakeClock):
    rng = random.Random(7)
    with elsewhere("memory", tmp_path, clock) as db:
        write_past(db, "s", 4, count=40)
        db.backup(tmp_path / "good.bak")
    good = (tmp_path / "good.bak").read_bytes()
    damaged = [good[:n] for n in (0, 5, len(good) // 2, len(good) - 1, len(good) - 33)] + [good + b"x", good * 2]
    for _ in range(300):
        raw = bytearray(good)
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        damaged.append(bytes(raw))
    bad = tmp_path / "bad.bak"
    with elsewhere("memory", tmp_path, clock) as other:
        epoch = other.kernel.store.epoch
        for raw in damaged:
            bad.write_bytes(raw)
            with pytest.raises((Corrupted, UnsupportedFormat)):
                other.restore(bad)
        assert other.sessions() == []
        assert other.kernel.store.epoch == epoch
        assert list(other.kernel.blobs.refs()) == []
        bad.write_bytes(good)
        assert other.restore(bad).copied == 1


def test_a_session_that_is_there_and_differs_stops_it_before_anything_is_written(
    db: perdure.Database, tmp_path: Path, clock: FakeClock
):
    for id in ("a", "b"):
        with db.session(id, ttl=None) as s:
            s.vars["n"] = 1
            s.commit()
    db.backup(tmp_path / "all.bak")
    with elsewhere("memory", tmp_path, clock) as other:
        with other.session("b", ttl=None) as s:
            s.vars["mine"] = True
            s.commit()
        with pytest.raises(Conflict, match="'b'"):
            other.restore(tmp_path / "all.bak")
        assert [row.id for row in other.sessions()] == ["b"]


def test_an_interrupted_restore_goes_on(db: perdure.Database, tmp_path: Path, clock: FakeClock):
    for n in range(5):
        with db.session(f"s{n}", ttl=None) as s:
            s.vars["n"] = n
            s.commit()
    db.backup(tmp_path / "all.bak")

    class Killed(BaseException):
        pass

    passed: list[str] = []

    def kill(name: str) -> None:
        passed.append(name)
        if passed.count("transfer.before_session") == 3:
            raise Killed

    with elsewhere("memory", tmp_path, clock) as other:
        faults.hook = kill
        with pytest.raises(Killed):
            other.restore(tmp_path / "all.bak")
        faults.hook = None
        again = other.restore(tmp_path / "all.bak")
        assert (again.copied, again.unchanged, again.blobs) == (3, 2, 0)
        assert [other.read(f"s{n}").vars["n"] for n in range(5)] == list(range(5))


@pytest.mark.parametrize("point", ["whole_file.before_fsync", "whole_file.before_rename"])
def test_an_interrupted_backup_leaves_the_old_one(db: perdure.Database, tmp_path: Path, clock: FakeClock, point: str):
    path = tmp_path / "all.bak"
    with db.session("s", ttl=None) as s:
        s.vars["n"] = 1
        s.commit()
        db.backup(path)
        old = path.read_bytes()
        s.vars["n"] = 2
        s.commit()

    with killed_at(point):
        db.backup(path)
    assert path.read_bytes() == old


def test_a_missing_blob_is_named_and_the_rest_is_backed_up(db: perdure.Database, tmp_path: Path, clock: FakeClock):
    with db.session("s", ttl=None) as s:
        s.vars["a"] = "large " * 10_000
        s.commit()
    ((ref, _),) = db.kernel.blobs.refs()
    db.kernel.blobs.delete(ref, 2**60)
    assert db.backup(tmp_path / "all.bak").missing == [ref]
    with elsewhere("memory", tmp_path, clock) as other:
        other.restore(tmp_path / "all.bak")
        assert [f.kind for f in other.verify().findings] == ["blob"]


def test_places_that_cannot_be_used_are_refused_clearly(db: perdure.Database, tmp_path: Path):
    with pytest.raises(PerdureError, match="nowhere"):
        db.backup(tmp_path / "nowhere" / "all.bak")
    with pytest.raises(NotFound, match=r"nothing\.bak"):
        db.restore(tmp_path / "nothing.bak")
    with pytest.raises(PerdureError):
        db.restore(tmp_path)
    (tmp_path / "text").write_text("this is not a backup, it is a letter")
    with pytest.raises(UnsupportedFormat):
        db.restore(tmp_path / "text")
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("ending", ["", "-wal", "-journal", "-blobs", "-blobs/new", "-live/new", "link", "hard"])
@pytest.mark.parametrize("write", ["backup", "export"])
def test_a_backup_is_not_written_over_the_database_it_is_of(tmp_path: Path, ending: str, write: str):
    path = tmp_path / "agents.db"
    link, hard, linked = tmp_path / "agents.dblink", tmp_path / "agents.dbhard", tmp_path / "linked.db"
    linked.symlink_to(path)
    perdure.open(path).close()
    link.symlink_to(path)
    hard.hardlink_to(path)
    for opened in (path, linked):
        with perdure.open(opened) as db, db.session("s") as s:
            s.vars["a"] = "large " * 10_000
            s.commit()
            with pytest.raises(InvalidInput, match="belongs to the store"):
                _ = db.backup(f"{path}{ending}") if write == "backup" else db.export_session("s", f"{path}{ending}")
            with pytest.raises(InvalidInput, match="belongs to the store"):
                db.witness(f"{path}{ending}")
    with perdure.open(path) as db:
        assert len(db.read("s").vars["a"]) == 60_000
        assert db.verify().ok


@pytest.mark.parametrize("name", ["perdure.json", "lock", "new", "blobs/new"])
def test_a_backup_is_not_written_into_the_folder_it_is_of(tmp_path: Path, name: str):
    with perdure.open(f"file://{tmp_path}/store") as db, pytest.raises(InvalidInput, match="belongs to the store"):
        db.backup(tmp_path / "store" / name)


def test_a_backup_is_not_written_among_blobs_that_lie_elsewhere(tmp_path: Path):
    with (
        perdure.open(tmp_path / "a.db", blobs=f"file://{tmp_path}/large") as db,
        pytest.raises(InvalidInput, match="belongs to the store"),
    ):
        db.backup(tmp_path / "large" / "all.bak")


def test_a_backup_replaces_an_earlier_one_and_nothing_else(db: perdure.Database, tmp_path: Path):
    path = tmp_path / "all.bak"
    path.touch()
    db.backup(path)
    db.backup(path)
    with perdure.open(tmp_path / "other.db"), pytest.raises(InvalidInput, match="is no backup"):
        db.backup(tmp_path / "other.db")
    (tmp_path / "notes").write_text("by hand")
    with pytest.raises(InvalidInput, match="is no backup"):
        db.backup(tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "by hand"
    with pytest.raises(InvalidInput, match="is no backup"):
        db.backup(tmp_path)


def test_a_backup_through_a_link_replaces_the_file_that_it_names(db: perdure.Database, tmp_path: Path):
    (tmp_path / "link.bak").symlink_to(tmp_path / "all.bak")
    db.backup(tmp_path / "link.bak")
    db.backup(tmp_path / "link.bak")
    assert (tmp_path / "link.bak").is_symlink()
    assert (tmp_path / "all.bak").read_bytes().startswith(b"perdure backup")
