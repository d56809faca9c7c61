"""The keeper's pipe: whoever tells it waits for nobody, and a keeper that does not listen is done without."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from perdure.fleet import keeper
from perdure.fleet.keeper import Keeper
from perdure.model import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Beats:
    """What a keeper needs of a database: somebody who tells it of leases."""

    def __init__(self) -> None:
        self.caretaker = self.heartbeat = self
        self.tell: Callable[[str, Lease | None], None] = lambda what, lease: None

    def listen(self, told: Callable[[str, Lease | None], None]) -> None:
        self.tell = told


@pytest.fixture
def beats(tmp_path: Path) -> Iterator[tuple[Beats, Keeper, int]]:
    beats = Beats()
    kept = Keeper(cast("Any", beats), 60_000, f"sqlite:///{tmp_path}/a.db")
    # Whatever the tests themselves need for starting programs is there before.
    subprocess.run([sys.executable, "-c", "import perdure"], check=True)
    before = children()
    kept.start()
    (pid,) = children() - before
    yield beats, kept, pid
    kept.close()
    assert not os.path.exists(f"/proc/{pid}")


def children() -> set[int]:
    """Processes of ours."""
    with open(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children", encoding="ascii") as file:
        return set(map(int, file.read().split()))


def within(seconds: float, do: Callable[[], object]) -> bool:
    """Whether something ends by itself."""
    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def test_a_keeper_that_is_stopped_keeps_nobody_waiting_and_hears_all_when_it_goes_on(
    beats: tuple[Beats, Keeper, int], caplog: pytest.LogCaptureFixture
):
    told, _, pid = beats
    os.kill(pid, signal.SIGSTOP)
    lease = Lease("s", "me" * 50, 1, 0)

    def tell() -> None:
        for _ in range(2_000):
            told.tell("+", lease)

    assert within(20, tell), "more than a pipe holds"
    os.kill(pid, signal.SIGCONT)
    assert within(20, lambda: [told.tell("beat", None) for _ in range(200)])
    assert caplog.text == ""


def test_a_keeper_that_never_listens_is_given_up(
    beats: tuple[Beats, Keeper, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    told, _, pid = beats
    monkeypatch.setattr(keeper, "UNHEARD", 10_000)
    os.kill(pid, signal.SIGSTOP)
    with caplog.at_level(logging.WARNING):
        assert within(20, lambda: [told.tell("beat", None) for _ in range(50_000)])
    assert caplog.messages == ["the keeper does not listen: a tool that blocks the whole process may lose its lease"]
    assert not os.path.exists(f"/proc/{pid}")
