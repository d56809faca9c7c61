"""Tokens and leases of the file store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure.errors import (
    Corrupted,
    InvalidInput,
    LeaseLost,
)
from perdure.stores.file.store import FileStore
from perdure.testing.clock import FakeClock
from perdure.testing.sealed_rows import commit, land
from tests.blobs.durable_disk import DurableDisk

if TYPE_CHECKING:
    from pathlib import Path


from tests.stores.file.filing import log_of


def test_a_damaged_slot_of_the_token_counter_never_makes_a_token_appear_twice(root: Path):
    given: list[int] = []
    for turn in range(8):
        store = FileStore(root, clock=FakeClock())
        given.append(store.acquire(f"s{turn}", "me", 1000).token)
        store.close()
        with (root / "token").open("r+b") as counter:
            counter.seek(4096 * (turn % 2) + turn)
            counter.write(b"!")
    assert given == sorted(set(given))


def test_a_lost_token_counter_is_damage(store: FileStore, root: Path):
    (root / "token").write_bytes(b"")
    with pytest.raises(Corrupted, match="token"):
        store.acquire("s", "me", 1000)


def test_a_lease_that_cannot_be_read_is_nobodys_and_its_holder_is_fenced(store: FileStore, root: Path):
    lease = store.acquire("s", "me", 10_000)
    log_of(root).with_name("lease").write_bytes(b"damaged")
    (answer,) = store.append([commit(token=lease.token)])
    assert isinstance(answer, LeaseLost)
    assert store.acquire("s", "you", 1000).token > lease.token


def test_no_flipped_bit_makes_another_lease(store: FileStore, root: Path):
    lease = store.acquire("s", "me", 10_000)
    path = log_of(root).with_name("lease")
    whole = path.read_bytes()
    used = len(whole.rstrip(b"\0"))
    for bit in range(used * 8):
        raw = bytearray(whole)
        raw[bit // 8] ^= 1 << bit % 8
        path.write_bytes(raw)
        row = store.look("s")
        assert row is not None
        assert row.lease.holder == "", bit
    path.write_bytes(whole)
    row = store.look("s")
    assert row is not None
    assert (row.lease.holder, row.lease.token) == ("me", lease.token)


def test_a_tombstone_keeps_its_token_when_the_lease_file_is_lost(store: FileStore, root: Path):
    lease = store.acquire("s", "me", 10_000)
    land(store, commit(token=lease.token))
    store.drop("s", lease.token, "deleted")
    log_of(root).with_name("lease").write_bytes(b"")
    row = store.look("s")
    assert row is not None
    assert row.lease.token == lease.token


def test_commits_in_quick_succession_prolong_the_lease_without_writing_it(root: Path):
    clock = FakeClock()
    disk = DurableDisk(root)
    store = FileStore(root, clock=clock, disk=disk)
    lease = store.acquire("s", "me", 32_000)
    disk.log.clear()
    expect = None
    for step in range(100):
        item = commit(step=step, expect=expect, token=lease.token)
        land(store, item)
        expect = item.id
        clock.advance(100)
    assert 5 <= disk.log.count("write lease") <= 10
    row = store.look("s")
    assert row is not None
    assert row.lease.until - clock.wall() >= 32_000 - 1100
    store.close()


def test_a_holders_name_that_does_not_fit_is_refused(store: FileStore):
    with pytest.raises(InvalidInput):
        store.acquire("s", "x" * 5000, 1000)
