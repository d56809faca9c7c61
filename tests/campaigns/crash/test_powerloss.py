"""Power lost at every sync: the short form of ``make powerloss``, and proof that it would notice a missing sync."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure.stores.sqlite.store import SqliteStore
from perdure.system.disk import Disk
from tests.campaigns.crash.kills import STORES
from tests.campaigns.crash.powerloss import campaign, without

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SEED = 20260


@pytest.mark.parametrize("store", STORES)
def test_nothing_acknowledged_is_lost_with_the_power(store: str) -> None:
    losses = campaign(store, SEED, rounds=1, variants=1)
    print(losses)
    assert losses.ok, str(losses)
    assert losses.syncs > 100


def _file(ending: str) -> Callable[[str, str], bool]:
    return lambda what, path: what == "file" and path.endswith(ending)


def _folder(part: str) -> Callable[[str, str], bool]:
    return lambda what, path: what == "folder" and part in path


MISSING = {
    "sqlite: the log": ("sqlite", _file("-wal")),
    "sqlite: the main file": ("sqlite", _file("a.db")),
    "sqlite: the name of the log": ("sqlite", _folder("/disk")),
    "file: a session's log": ("file", _file("/log")),
    "file: a log that replaces another": ("file", _file("/log.new")),
    "file: the counter of tokens": ("file", _file("/token")),
    "file: who the store is": ("file", _file("/perdure.json.new")),
    "file: the names in a session's folder": ("file", lambda what, path: what == "folder" and path[-65:-64] == "/"),
    "file: the names of the sessions' folders": ("file", lambda what, path: path[-3:-2] == "/"),
    "file: the names of those folders": ("file", _folder("/sessions")),
    "blobs: a blob": ("file", lambda what, path: what == "file" and "/blobs/" in path),
    "blobs: its name": ("sqlite", _folder("/blobs")),
}


@pytest.mark.parametrize("missing", MISSING)
def test_with_one_sync_taken_out_losses_are_found(missing: str) -> None:
    store, deaf = MISSING[missing]
    losses = without(store, SEED, deaf)
    print(losses)
    assert losses.lost > 0


def test_with_synchronous_normal_losses_are_found() -> None:
    losses = without("sqlite", SEED, synchronous="normal")
    print(losses)
    assert losses.lost > 0


def test_the_name_of_a_new_database_and_of_its_folder_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's VFS does not see this: the file is made before it is opened."""
    synced: list[str] = []
    monkeypatch.setattr(Disk, "fsync_folder", lambda _, path: synced.append(path))
    SqliteStore(tmp_path / ".perdure" / "agents.db").close()
    assert synced == [str(tmp_path), str(tmp_path / ".perdure")]
