"""Several handles, threads and processes on one store."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import multiprocessing
import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from perdure.errors import (
    Conflict,
    CursorExpired,
    ForkedProcess,
    HandleClosed,
    Unavailable,
)
from perdure.model import ANCHOR, Artifact, Landed, Rewrite, Span
from perdure.stores.file import session_folder as pool
from perdure.stores.file.store import FileStore
from perdure.system import disk as disk_module
from perdure.system.disk import Disk
from perdure.testing.sealed_rows import commit, entry, write
from tests.stores.file.filing import grow, steps

if TYPE_CHECKING:
    from pathlib import Path


from tests.stores.file.filing import log_of


def test_another_handle_reads_only_what_is_new(root: Path):
    class Counting(Disk):
        read_bytes = 0

        def read(self, fd: int, size: int, offset: int) -> bytes:
            data = super().read(fd, size, offset)
            self.read_bytes += len(data)
            return data

    one, disk = FileStore(root), Counting()
    two = FileStore(root, disk=disk)
    grow(one, 200, size=1000)
    assert two.look("s") is not None
    before = disk.read_bytes
    write(one)
    row = two.look("s")
    assert row is not None
    assert row.heads[0].step == 200
    assert disk.read_bytes - before < 3000
    one.close()
    two.close()


def test_another_handle_notices_that_a_log_was_replaced(root: Path):
    one, two = FileStore(root), FileStore(root)
    grow(one, 20, size=20_000)
    assert steps(two) == list(range(20))
    one.rewrite(Rewrite("s", put=(Artifact(ANCHOR, 0, 0, 17, b""),), drop=(Span(0, 0, 17),)))
    assert log_of(root).stat().st_size < 100_000
    assert steps(two) == [18, 19]
    write(two)
    write(one)
    assert steps(one) == steps(two) == [18, 19, 20, 21]
    two.drop("s", None, "deleted")
    row = one.look("s")
    assert row is not None
    assert row.reason == "deleted"
    one.close()
    two.close()


def add_until(root: str, name: str, count: int) -> None:
    """In a process of its own: add commits on whatever head there is."""
    store = FileStore(root)
    done = 0
    while done < count:
        row = store.look("s")
        head = row.heads[0] if row and row.heads else None
        step = head.step + 1 if head else 0
        item = commit(step=step, expect=head.id if head else None, id=f"{name}-{done}".encode())
        (answer,) = store.append([item])
        if isinstance(answer, Landed):
            done += 1
        elif not isinstance(answer, Conflict):
            raise answer
    store.close()


def test_processes_that_race_for_a_head_each_land_all_their_commits(root: Path):
    context = multiprocessing.get_context("spawn")
    names = ["a", "b", "c"]
    workers = [context.Process(target=add_until, args=(str(root), name, 30)) for name in names]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    store = FileStore(root)
    ids = [row.id.decode() for row in store.load("s", 0).rows]
    assert len(ids) == 90
    for name in names:
        assert [id for id in ids if id.startswith(name)] == [f"{name}-{n}" for n in range(30)]
    store.close()


def commit_forever(root: str) -> None:
    """In a process of its own: commits, and prints each step that has landed."""
    store = FileStore(root)
    while True:
        write(store, payload=os.urandom(20_000))
        row = store.look("s")
        assert row is not None
        os.write(1, f"{row.heads[0].step}\n".encode())


def test_a_killed_process_loses_nothing_that_it_said_had_landed(root: Path, tmp_path: Path, quiet: None):
    context = multiprocessing.get_context("spawn")
    said = tmp_path / "said"
    for turn in range(4):
        worker = context.Process(target=_to_file, args=(str(root), str(said)))
        worker.start()
        while not said.exists() or len(said.read_bytes().splitlines()) < 5 * (turn + 1):
            assert worker.is_alive()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        last = int(said.read_bytes().split(b"\n")[-2])
        store = FileStore(root)
        assert steps(store)[: last + 1] == list(range(last + 1))
        store.close()


def _to_file(root: str, said: str) -> None:
    os.dup2(os.open(said, os.O_CREAT | os.O_APPEND | os.O_WRONLY), 1)
    commit_forever(root)


def test_a_process_that_was_stopped_while_it_writes_stops_nobody_for_good(
    store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch
):
    write(store)
    monkeypatch.setattr(disk_module, "PATIENCE", 0.05)
    with log_of(root).with_name("lease").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="held the lock"):
            store.look("s")
        with pytest.raises(Unavailable, match="held the lock"):
            write(store)
    write(store)
    assert steps(store) == [0, 1]


def test_threads_may_share_a_handle(root: Path):
    store = FileStore(root)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(30):
                write(store, f"own {number}")
                store.post([entry(f"{number}-{step}", "shared")])
                store.look("shared")
                store.sessions(limit=3)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(item.seq for item in store.inbox("shared", 1000)) == list(range(1, 181))
    assert all(steps(store, f"own {number}") == list(range(30)) for number in range(6))
    store.close()


def test_few_files_are_open_however_many_sessions_there_are(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool, "OPEN", 8)
    monkeypatch.setattr(pool, "KEPT", 20)
    monkeypatch.setattr(pool, "ROWS", 60)
    store = FileStore(root)
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(3):
        for number in range(50):
            write(store, f"s{number}", count=2)
            assert store.look(f"s{(number * 7) % 50}") is not None or not turn
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * 9
    assert all(steps(store, f"s{number}") == list(range(6)) for number in range(50))
    before = len(os.listdir("/proc/self/fd"))
    store.close()
    assert len(os.listdir("/proc/self/fd")) < before - 8


def test_a_handle_from_before_a_fork_is_refused(store: FileStore):
    write(store)
    pid = os.fork()
    if not pid:
        try:
            store.look("s")
        except ForkedProcess:
            store.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert steps(store) == [0]


def test_a_closed_handle_is_refused(root: Path):
    store = FileStore(root)
    store.close()
    store.close()
    with pytest.raises(HandleClosed):
        store.look("s")
    with pytest.raises(HandleClosed):
        list(store.blob_refs())


def test_another_handle_sees_a_new_epoch_when_it_asks_for_changes(root: Path):
    one, two = FileStore(root), FileStore(root)
    write(one)
    cursor = two.changes().cursor
    one.renew_epoch()
    with pytest.raises(CursorExpired):
        two.changes(cursor)
    assert two.epoch == one.epoch
    one.close()
    two.close()


def test_a_close_that_is_interrupted_closes_nobody_elses_file_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Interrupted(Disk):
        armed = False

        def close(self, fd: int) -> None:
            super().close(fd)
            if self.armed:
                self.armed = False
                raise KeyboardInterrupt

    monkeypatch.setattr(pool, "OPEN", 8)
    disk = Interrupted()
    store = FileStore(tmp_path / "store", disk=disk)
    names = [f"s{n}" for n in range(24)]
    for name in names:
        grow(store, 2, name)
    interrupts = 0
    theirs: list[tuple[int, int]] = []
    for turn in range(60):
        disk.armed = True
        try:
            store.look(names[turn % len(names)])
        except KeyboardInterrupt:
            interrupts += 1
            # The number that was closed is given to the next file that anybody opens.
            fd = os.open(tmp_path / f"theirs {turn}", os.O_CREAT | os.O_RDWR)
            theirs.append((fd, os.fstat(fd).st_ino))
    disk.armed = False
    assert interrupts > 5
    for name in names:
        assert steps(store, name) == [0, 1]
        grow(store, 1, name)
    store.close()
    assert all(os.fstat(fd).st_ino == inode for fd, inode in theirs)
    for fd, _ in theirs:
        os.close(fd)
    again = FileStore(tmp_path / "store")
    assert [steps(again, name) for name in names] == [[0, 1, 2]] * len(names)
    again.close()


def _opened() -> set[int]:
    """The descriptors that this process has open."""
    gc.collect()
    found: set[int] = set()
    for fd in range(1024):
        with contextlib.suppress(OSError):
            os.fstat(fd)
            found.add(fd)
    return found


@pytest.mark.parametrize("method", ["open", "close"])
def test_an_interrupt_while_files_are_opened_or_closed_leaves_none_open(tmp_path: Path, method: str):
    class Interrupted(Disk):
        """Interrupts one call: an open that has succeeded, a close that has not begun."""

        left = -1

        def _step(self) -> None:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

        def open(self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = True) -> int:
            fd = super().open(path, create=create, exclusive=exclusive, write=write)
            if method == "open":
                self._step()
            return fd

        def close(self, fd: int) -> None:
            if method == "close":
                self._step()
            super().close(fd)

    interrupts, before = 0, _opened()
    for turn in range(1, 40):
        disk = Interrupted()
        disk.left = turn
        try:
            store = FileStore(tmp_path / f"store {turn}", disk=disk)
            grow(store, 2, "s")
            store.acquire("s", "me", 1000)
            store.close()
            break
        except KeyboardInterrupt:
            interrupts += 1
        finally:
            store = None
        assert _opened() == before
    assert interrupts > 5
    assert _opened() == before
