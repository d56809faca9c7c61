"""Who is called dead has certainly ended: what cannot be seen proves nothing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from perdure.system import lease_holders
from perdure.system.lease_holders import is_dead, new_holder

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "from perdure.system.lease_holders import new_holder; print(new_holder(), flush=True); input()"


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process, and its name."""
    with subprocess.Popen(
        [sys.executable, "-c", NAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.kill()


def test_a_process_is_dead_once_it_has_ended_whether_or_not_its_parent_has_noticed(
    other: tuple[subprocess.Popen[str], str],
) -> None:
    process, name = other
    assert not is_dead(name)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(name)
    process.wait()
    assert is_dead(name)


def test_a_number_that_was_given_again_is_another_process(other: tuple[subprocess.Popen[str], str]) -> None:
    parts = other[1].split("/")
    assert is_dead("/".join([*parts[:2], str(int(parts[2]) - 1), *parts[3:]]))


def test_a_living_one_is_not_dead_when_no_more_files_can_be_opened(other: tuple[subprocess.Popen[str], str]) -> None:
    name = other[1]
    with contextlib.ExitStack() as files:
        with contextlib.suppress(OSError):
            while True:
                files.enter_context(open(os.devnull, "rb"))
        assert not is_dead(name)


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_a_living_one_is_not_dead_when_it_is_hidden(
    other: tuple[subprocess.Popen[str], str], monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    def hidden(*_: Any, **__: Any) -> Any:
        raise error("/proc is mounted with hidepid")

    monkeypatch.setattr(lease_holders, "open", hidden, raising=False)
    assert not is_dead(other[1])


@pytest.mark.parametrize(("pid", "dead"), [("0", False), ("-1", False), ("x", False), ("99999999999999999999", True)])
def test_a_name_that_was_made_up_breaks_nothing(pid: str, dead: bool) -> None:
    parts = new_holder().split("/")
    assert is_dead("/".join([parts[0], pid, *parts[2:]])) is dead
