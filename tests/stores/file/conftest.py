"""A store in a folder, one on a disk that fails, and hooks that end a process at a named point."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

from perdure.stores.file.store import FileStore, TornTail
from perdure.system import faults
from perdure.testing.clock import FakeClock
from perdure.testing.sealed_rows import write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


from tests.stores.file.filing import FailingDisk, PowerGone


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the store is."""
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> Iterator[FileStore]:
    """A handle of it."""
    handle = FileStore(root, clock=FakeClock())
    yield handle
    handle.close()


@pytest.fixture
def disk() -> FailingDisk:
    """A disk that fails on demand."""
    return FailingDisk()


@pytest.fixture
def failing(root: Path, disk: FailingDisk) -> Iterator[FileStore]:
    """A store on it, with two commits."""
    handle = FileStore(root, disk=disk, clock=FakeClock())
    write(handle, count=2)
    yield handle
    handle.close()


@pytest.fixture
def quiet() -> Iterator[None]:
    """Torn tails are expected here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TornTail)
        yield


@pytest.fixture
def crash_at() -> Iterator[Callable[[str, int], None]]:
    """Ends what runs when it passes a point for the n-th time."""

    def install(name: str, times: int = 1) -> None:
        left = [times]

        def hook(passed: str) -> None:
            if passed == name:
                left[0] -= 1
                if not left[0]:
                    raise PowerGone(name)

        faults.hook = hook

    yield install
    faults.hook = None
