"""The SQLite store on a disk that is full, fails or holds damage, and at its crash points."""

from __future__ import annotations

import random
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from perdure.errors import (
    Corrupted,
    InvalidInput,
    NotFound,
    PerdureError,
    Poisoned,
    StoreError,
    StoreFull,
)
from perdure.model import ANCHOR, Artifact, Landed, Rewrite, Span
from perdure.stores.sqlite.store import SqliteStore
from perdure.system import faults
from perdure.testing.sealed_rows import commit, entry, land, post, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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


# -- a full disk, a failing disk ---------------------------------------------------------------------


def test_a_full_disk_writes_nothing_and_is_forgiven_once_there_is_space(store: SqliteStore):
    first = write(store, count=1)[0]
    pages = store._file._cursor.execute("pragma page_count").fetchall()[0][0]
    store._file._cursor.execute(f"pragma max_page_count = {pages + 2}").fetchall()
    big = commit(step=1, expect=first.id, payload=b"x" * 100_000)
    with pytest.raises(StoreFull) as refused:
        land(store, big)
    assert "x" * 20 not in str(refused.value)
    assert store.load("s", 0).last == 0
    store._file._cursor.execute("pragma max_page_count = 1000000").fetchall()
    land(store, big)
    assert store.load("s", 0).last == 1


def test_one_item_too_large_for_the_disk_fails_nobody_else(store: SqliteStore):
    pages = store._file._cursor.execute("pragma page_count").fetchall()[0][0]
    store._file._cursor.execute(f"pragma max_page_count = {pages + 5}").fetchall()
    answers = store.append([commit("a"), commit("b", payload=b"x" * 100_000), commit("c")])
    assert [type(answer) for answer in answers] == [Landed, StoreFull, Landed]
    assert store.load("a", 0).last == store.load("c", 0).last == 0
    with pytest.raises(NotFound):
        store.load("b", 0)


USUAL = apsw.vfs_names()[0]


class FailingFile(apsw.VFSFile):
    """A file whose syncs or writes fail while the test says so."""

    failing = ""

    def __init__(self, filename: Any, flags: Any) -> None:
        super().__init__(USUAL, filename, flags)
        self.name = str(filename.filename() if isinstance(filename, apsw.URIFilename) else filename)

    def xSync(self, flags: int) -> None:
        if FailingFile.failing == "sync" and self.name.endswith("-wal"):
            error = apsw.IOError("injected")
            error.extendedresult = apsw.SQLITE_IOERR_FSYNC  # type: ignore[attr-defined]
            raise error
        super().xSync(flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        if FailingFile.failing == "full" and self.name.endswith("-wal"):
            raise apsw.FullError("injected")
        if FailingFile.failing == "full main file" and self.name.endswith(".db"):
            raise apsw.FullError("injected")
        if FailingFile.failing == "write" and self.name.endswith("-wal"):
            error = apsw.IOError("injected")
            error.extendedresult = apsw.SQLITE_IOERR_WRITE  # type: ignore[attr-defined]
            raise error
        super().xWrite(data, offset)


class FailingVfs(apsw.VFS):
    """The usual files, through :class:`FailingFile`."""

    def __init__(self) -> None:
        super().__init__("failing", USUAL, makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> FailingFile:
        return FailingFile(name, flags)


@contextmanager
def failing_disk() -> Iterator[None]:
    vfs = FailingVfs()
    try:
        yield
    finally:
        FailingFile.failing = ""
        vfs.unregister()
        apsw.set_default_vfs(USUAL)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_log_that_cannot_be_moved_for_want_of_space_fails_no_commit(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("perdure.stores.sqlite.file.CHECKPOINT_PAGES", 1)
    with failing_disk():
        store = SqliteStore(path)
        first = write(store, count=1)[0]
        FailingFile.failing = "full main file"
        land(store, commit(step=1, expect=first.id))
        assert store.load("s", 0).last == 1
        FailingFile.failing = ""
        land(store, commit("other"))
        store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("failing", ["sync", "write"])
def test_a_commit_that_the_disk_could_not_sync_poisons_the_handle(path: Path, failing: str):
    with failing_disk():
        store = SqliteStore(path)
        first = write(store, count=1)[0]
        FailingFile.failing = failing
        items = [commit(step=1, expect=first.id), commit("other")]
        with pytest.raises(Poisoned) as refused:
            store.append(items)
        for item in items:
            assert item.id.hex() in str(refused.value)
        FailingFile.failing = ""
        for use in (
            lambda: store.append([commit("new")]),
            lambda: store.look("s"),
            store.usage,
            store.changes,
        ):
            with pytest.raises(Poisoned):
                use()
        store.close()
        again = SqliteStore(path)
        assert again.load("s", 0).last in (0, 1)
        again.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_disk_that_is_full_at_the_commit_itself_is_no_poison(path: Path):
    with failing_disk():
        store = SqliteStore(path)
        first = write(store, count=1)[0]
        FailingFile.failing = "full"
        with pytest.raises(StoreFull):
            land(store, commit(step=1, expect=first.id))
        assert store.load("s", 0).last == 0
        FailingFile.failing = ""
        land(store, commit(step=1, expect=first.id))
        store.close()


# -- crash points ------------------------------------------------------------------------------------


class Crash(BaseException):
    """Stands for the end of the process at a point."""


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def crash_at(point: str) -> None:
        def hook(name: str) -> None:
            if name == point:
                raise Crash(name)

        monkeypatch.setattr(faults, "hook", hook)

    return crash_at


OPERATIONS: dict[str, Callable[[SqliteStore], Any]] = {
    "append": lambda store: land(store, commit("new")),
    "post": lambda store: post(store, entry("new")),
    "acquire": lambda store: store.acquire("new", "me", 1000),
    "rewrite": lambda store: store.rewrite(
        Rewrite("s", put=(Artifact(ANCHOR, 0, 0, 1, b""),), thin=(Span(0, 2, 2),), drop=(Span(0, 0, 1),))
    ),
    "drop": lambda store: store.drop("s", None, "deleted"),
}
POINTS = ["before_begin", "after_begin", "before_insert", "after_insert", "before_commit", "after_commit"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_interrupted_operation_was_done_wholly_or_not_at_all(
    store: SqliteStore, path: Path, crash_at: Callable[[str], None], operation: str, point: str
):
    write(store, count=4)
    before = store.dump("s"), store.look("new"), store.inbox("s")
    crash_at(f"sqlite.{operation}.{point}")
    with pytest.raises(Crash):
        OPERATIONS[operation](store)
    faults.hook = None
    again = SqliteStore(path)
    row = again.look("s")
    gone = row is not None and row.reason != ""
    after = None if gone else again.dump("s"), again.look("new"), again.inbox("s")
    assert (after == before) == (point != "after_commit")
    write(again, "goes on", count=1)
    write(store, "goes on", count=1)
    again.close()


# -- damage ------------------------------------------------------------------------------------------

DAMAGE = [
    ("update commits set step = -1 where step = 1", lambda store: store.dump("s")),
    ("update commits set line = -1 where step = 1", lambda store: store.dump("s")),
    ("update sessions set lines = -1", lambda store: store.look("s")),
    ("update sessions set token = -5, holder = 'x'", lambda store: store.look("s")),
    ("update commits set blobs = '[1]'", lambda store: list(store.blob_refs())),
    ("update commits set blobs = '[', takes = '{}'", lambda store: store.dump("s")),
    ("update artifacts set refs = '[[1,2]]'", lambda store: store.artifacts("s")),
    ("update artifacts set refs = 'nonsense'", lambda store: store.load("s", 0)),
    ("update meta set value = 'x' where key = 'trimmed'", lambda store: store.changes()),
    ("delete from meta where key = 'epoch'", lambda store: store.changes()),
    ("drop table branches", lambda store: store.look("s")),
]


@pytest.mark.parametrize(("sql", "read"), DAMAGE, ids=[sql for sql, _ in DAMAGE])
def test_a_value_that_cannot_have_been_written_is_corruption(
    store: SqliteStore, path: Path, sql: str, read: Callable[[SqliteStore], Any]
):
    expect = write(store, count=3, blobs=("aa",))[-1].id
    store.rewrite(Rewrite("s", put=(Artifact("snapshot", 0, 1, 1, b"", (Span(0, 0, 0),)),)))
    alter(path, sql)
    with pytest.raises(Corrupted) as refused:
        read(store)
    assert str(path) in refused.value.where
    # Writing on top of it may meet the damage or not; either way it is answered.
    assert len(store.append([commit(step=3, expect=expect)])) == 1


@pytest.mark.parametrize("column", ["line", "step", "id", "digest", "envelope", "payload", "branch", "kind", "at"])
def test_a_value_of_another_type_is_corruption(store: SqliteStore, path: Path, column: str):
    write(store, count=3)
    store.close()
    # STRICT keeps us from writing it, but a damaged page may say anything: so the tables are made lax.
    with closing(apsw.Connection(str(path))) as lax:
        lax.execute("pragma writable_schema = 1")
        lax.execute("update sqlite_schema set sql = replace(sql, 'strict', '') where name = 'commits'")
        lax.execute("update sqlite_schema set sql = replace(sql, ')  ', ')') where name = 'commits'")
        lax.execute("pragma writable_schema = 0")
        lax.execute("pragma schema_version = 99")
    with closing(apsw.Connection(str(path))) as lax:
        (was,) = lax.execute(f"select typeof({column}) from commits where seq = 2").fetchall()[0]
        other = b"bytes" if was == "text" else "text"
        lax.execute(f"update commits set {column} = ? where seq = 2", (other,))
    again = SqliteStore(path)
    with pytest.raises(Corrupted):
        again.dump("s")
    again.close()


def test_text_that_is_not_utf8_is_corruption(store: SqliteStore, path: Path):
    write(store, count=1)
    alter(path, "update sessions set status = cast(x'ff41' as text)")
    with pytest.raises(Corrupted):
        store.look("s")


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bits_give_the_original_or_an_error_of_ours(tmp_path: Path, seed: int):
    """Payloads are verified above the store; here nothing but our own errors may come out, and no hang."""
    path = tmp_path / "agents.db"
    store = SqliteStore(path)
    for session in ("a", "b", "c"):
        write(store, session, count=10, payload=b"p" * 500)
    store.close()
    original = path.read_bytes()
    dice = random.Random(seed)
    for _ in range(40):
        damaged = bytearray(original)
        place = dice.randrange(len(damaged)) if dice.random() < 0.7 else dice.randrange(200)
        damaged[place] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        for suffix in ("-wal", "-shm"):
            (tmp_path / f"agents.db{suffix}").unlink(missing_ok=True)
        try:
            store = SqliteStore(path)
        except (StoreError, InvalidInput):
            continue
        reads: list[Callable[[], Any]] = [
            store.sessions,
            store.changes,
            store.usage,
            lambda: store.load("a", 0),  # noqa: B023
            lambda: store.dump("b"),  # noqa: B023
            lambda: store.append([commit("d")]),  # noqa: B023
            lambda: store.acquire("c", "me", 1000),  # noqa: B023
        ]
        for read in reads:
            try:
                read()
            except PerdureError as error:
                told = str(error)
                assert "pppp" not in told, (seed, place)
        store.close()
