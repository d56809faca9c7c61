"""Compaction of logs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from perdure.errors import (
    CursorExpired,
    PerdureError,
)
from perdure.model import ANCHOR, PACK, Artifact, Rewrite, Span
from perdure.stores.file.store import FileStore
from perdure.system.disk import Disk
from perdure.testing.clock import FakeClock
from perdure.testing.sealed_rows import commit, entry, land, write

if TYPE_CHECKING:
    from pathlib import Path


from tests.stores.file.filing import grow, log_of, make, steps


def test_rewriting_costs_in_proportion_to_what_was_written(root: Path):
    class Counting(Disk):
        written = 0

        def write(self, fd: int, data: bytes, offset: int) -> int:
            self.written += len(data)
            return super().write(fd, data, offset)

    disk = Counting()
    store = FileStore(root, disk=disk)
    asked = 0
    for turn in range(60):
        grow(store, 8, size=4000)
        asked += 8 * 4300
        lo, hi = turn * 8, turn * 8 + 7
        pack = Artifact(PACK, 0, lo, hi, bytes(2000))
        assert store.rewrite(Rewrite("s", put=(pack,), thin=(Span(0, lo, hi),)))
        asked += 2100
    assert disk.written < 3.2 * asked
    assert log_of(root).stat().st_size < 60 * (8 * 400 + 2100) + 2 * 64 * 1024
    store.close()
    again = FileStore(root)
    bundle = again.load("s", 0)
    assert [row.step for row in bundle.rows] == list(range(480))
    assert len(bundle.packs) == 60
    again.close()


def test_a_rewritten_log_is_the_same_session(root: Path):
    clock = FakeClock()
    store = FileStore(root, clock=clock)
    lease = store.acquire("s", "me", 50_000)
    store.post([entry("a"), entry("b"), entry("c", body=bytes(1000))])
    grow_fenced(store, lease.token)
    land(store, commit(step=20, expect=commit(step=19).id, token=lease.token, takes=("b",), ttl=60))
    clock.advance(10)
    fork = commit(step=1, branch="other", line=1, starts=True, token=lease.token, blobs=("aa",))
    land(store, fork)
    put = (Artifact(PACK, 0, 5, 9, b"pack", (Span(0, 1, 2),), ("bb",)), Artifact(ANCHOR, 0, 0, 4, b"anchor"))
    store.rewrite(Rewrite("s", put=put, thin=(Span(0, 5, 9),)))
    cursor = store.changes().cursor
    before = (store.look("s"), store.dump("s"), store.load("s", 1), store.artifacts("s"))
    inode = log_of(root).stat().st_ino
    with (held := store._handle.known("s", exclusive=True)).mutex, held as file:
        assert file is not None
        file.compact()
    assert log_of(root).stat().st_ino != inode
    for handle in (store, FileStore(root, clock=clock)):
        assert (handle.look("s"), handle.dump("s"), handle.load("s", 1), handle.artifacts("s")) == before
        assert handle.changes(cursor).items == ()
        assert set(handle.blob_refs()) == {"aa", "bb"}
        (answer,) = handle.post([entry("b")])
        assert answer is False
    land(store, commit(step=2, expect=fork.id, branch="other", line=1, token=lease.token))
    assert [change.step for change in store.changes(cursor).items] == [2]
    store.close()


def test_a_rewritten_log_remembers_that_something_was_dropped(root: Path):
    store = FileStore(root)
    write(store, count=2)
    cursor = store.changes().cursor
    grow(store, 20, size=20_000)
    store.rewrite(Rewrite("s", put=(Artifact(ANCHOR, 0, 0, 19, b""),), drop=(Span(0, 0, 19),)))
    store.close()
    again = FileStore(root)
    with pytest.raises(CursorExpired):
        again.changes(cursor)
    page = again.changes()
    assert [change.step for change in page.items] == [20, 21]
    assert again.changes(page.cursor).items == ()
    again.close()


def grow_fenced(store: FileStore, token: int) -> None:
    """Twenty commits under a lease."""
    expect = None
    for step in range(20):
        item = commit(step=step, expect=expect, token=token, payload=os.urandom(1000))
        land(store, item)
        expect = item.id


def test_leftovers_of_an_interrupted_rewrite_are_removed(root: Path):
    make(root, 2)
    left = log_of(root).with_name("log.new")
    left.write_bytes(b"half a log")
    store = FileStore(root)
    write(store)
    assert not left.exists()
    assert steps(store) == [0, 1, 2]
    store.close()


def test_an_error_of_the_store_reads_as_advice(store: FileStore):
    with pytest.raises(PerdureError, match="there is no session"):
        store.load("nobody", 0)
