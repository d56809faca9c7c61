"""What all tests share: databases with a clock that moves when told, how hypothesis searches, servers that end."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import perdure
from perdure.testing.clock import FakeClock
from tests import quick_start
from tests.servers import shared
from tests.store_urls import url_of

# Disks and shared cores make single examples slow at times, so no deadline; a failure prints its blob.
settings.register_profile("perdure", deadline=None, print_blob=True)
settings.load_profile("perdure")


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of the run before test processes are started."""
    # A run in the background of a script is born deaf to interrupts, and so would be all that it starts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    shared.begin(in_memory=True)
    quick_start.install()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers once the last test process is done."""
    shared.end()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among what is collected, neither meanwhile nor later: all of it stays, and it is much."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


STAYS = (
    *(str(Path(__file__).parent.parent / own) for own in ("src", "tests")),
    sys.prefix,
    sys.base_prefix,
)
"""Where modules lie that are the same for all tests."""
staying = set[str]()
"""The modules that are known to lie there."""


@pytest.fixture(autouse=True)
def _programs_are_forgotten() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """No test finds a program of another one (most are called ``app``) where it looks for its own."""
    yield
    for name in sys.modules.keys() - staying:
        file = getattr(sys.modules[name], "__file__", None)
        if file is None or file.startswith(STAYS):
            staying.add(name)
        else:
            del sys.modules[name]


@pytest.fixture
def clock() -> FakeClock:
    """The time of the test."""
    return FakeClock()


@pytest.fixture(params=("memory", "sqlite"))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store. What every kind of store must do is in the contract suite."""
    return url_of(request.param, tmp_path)


@pytest.fixture
def open_db(url: str, clock: FakeClock) -> Iterator[Callable[..., perdure.Database]]:
    """Opens the store again and again; what a test leaves open is closed after it."""
    opened: list[perdure.Database] = []

    def again(**options: Any) -> perdure.Database:
        db = perdure.open(url, clock=clock, **options)
        opened.append(db)
        return db

    yield again
    for db in opened:
        db.close()


@pytest.fixture
def db(open_db: Callable[..., perdure.Database]) -> perdure.Database:
    """An empty database."""
    return open_db()
