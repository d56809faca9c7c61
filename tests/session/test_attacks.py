"""Attacks on what a commit promises: other users of the file in the process, forks, interrupts, threads.

What is attacked runs in processes of its own, see :mod:`tests.session.attacked`.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from tests.session.attacked import DOINGS, EDITS, HANGS, HOME, MOVES, PATIENCE, url_of
from tests.store_urls import url_of as store_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHILDREN = 40
"""So many are forked while a thread commits: about every second one meets a transaction."""


@pytest.fixture(params=["our locks", "SQLite's locks"])
def weak(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With perdure as it is here, and as it is where no compiler was."""
    if weak := request.param == "SQLite's locks":
        shutil.copytree(HOME, tmp_path / "installed" / "perdure", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "installed"), os.getcwd()]))
    return weak


@pytest.fixture
def database(tmp_path: Path) -> str:
    """Where the file of the attacked database is, in a folder of its own."""
    (tmp_path / "data").mkdir()
    return str(tmp_path / "data" / "agents.db")


def command(name: str, database: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "tests.session.attacked", name, database, *more]


def outcome(name: str, database: str, *more: str) -> list[Any]:
    """All that a program says."""
    done = subprocess.run(command(name, database, *more), stdout=subprocess.PIPE, timeout=PATIENCE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def places(name: str, database: str, *more: str) -> list[Any]:
    """What a program says of each place of a commit."""
    said = outcome(name, database, *more)
    if len(said) < 50:
        raise RuntimeError(f"only {len(said)} places of a commit were seen: does this Python trace it differently?")
    return said


class Victim:
    """A running program that waits to be told to go on, and is killed in the end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def hear(self, *last: str) -> list[Any]:
        """What it says, up to one of these words, or a refusal."""
        assert self._process.stdout is not None
        said: list[Any] = []
        for line in self._process.stdout:
            said.append(json.loads(line))
            if said[-1] in last or str(said[-1]).startswith("refused"):
                return said
        raise RuntimeError(f"the program ended after saying {said}")

    def go_on(self) -> None:
        """Have it go on."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()


@contextmanager
def victim(name: str, database: str, *more: str) -> Iterator[Victim]:
    """A program, killed by SIGKILL when the block is left."""
    with subprocess.Popen(command(name, database, *more), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield Victim(process)
        finally:
            process.kill()


def stored(database: str, session: str) -> list[Any]:
    """The messages of a session, as a new process of the same program would find them."""
    with perdure.open(url_of(database)) as db:
        return db.read(session).messages.plain()


# -- another SQLite library, or none, opens the file in the same process --------------------------------------------


LOOK = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1])
other.execute("select count(*) from sqlite_schema").fetchone()
other.close()
"""


def visit(database: str) -> None:
    """Another process comes and goes: with nobody's locks in its way, it takes the log along."""
    perdure.open(url_of(database)).close()


def look(database: str) -> None:
    """The same, a process that knows SQLite alone."""
    subprocess.run([sys.executable, "-c", LOOK, database], timeout=PATIENCE, check=True)


def acknowledged_and_stored(database: str, touch: str, visit: Callable[[str], None]) -> tuple[list[int], list[int]]:
    """What a program was told is durable while its file was touched from within, and what is there after its kill."""
    with victim("touched", database, touch) as program:
        said = program.hear("touched")
        visit(database)
        program.go_on()
        said += program.hear("done")
    return [n for n in said if isinstance(n, int)], stored(database, "s")


@pytest.mark.usefixtures("weak")
def test_commits_survive_a_second_sqlite_library_that_reads_the_file_in_this_process(database: str) -> None:
    acknowledged, found = acknowledged_and_stored(database, "sqlite3", visit)
    assert found[: len(acknowledged)] == acknowledged, f"acknowledged {acknowledged}, stored {found}"


@pytest.mark.usefixtures("weak")
def test_commits_survive_a_copy_of_the_folder_made_in_this_process(database: str) -> None:
    acknowledged, found = acknowledged_and_stored(database, "backup", visit)
    assert found[: len(acknowledged)] == acknowledged, f"acknowledged {acknowledged}, stored {found}"


@pytest.mark.skipif(sqlite3.sqlite_version_info >= (3, 51), reason="it sees by the log's index that we are there")
@pytest.mark.usefixtures("weak")
def test_commits_survive_a_copy_of_the_file_made_in_this_process(database: str) -> None:
    acknowledged, found = acknowledged_and_stored(database, "copy", look)
    assert found[: len(acknowledged)] == acknowledged, f"acknowledged {acknowledged}, stored {found}"


# -- forks ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("weak")
def test_a_forked_child_that_opens_the_database_keeps_its_commits_or_is_refused(database: str) -> None:
    said = outcome("forked", database)
    if said.pop() != {"child ended with": 0}:
        raise RuntimeError(f"the child broke after saying {said}")
    acknowledged = [n for n in said if isinstance(n, int)]
    found = stored(database, "child") if acknowledged else []
    assert found[: len(acknowledged)] == acknowledged, (
        f"{len(acknowledged)} commits acknowledged, {len(found)} stored: {found}"
    )


@pytest.mark.usefixtures("weak")
def test_a_child_forked_while_a_thread_commits_does_not_hang(database: str) -> None:
    ended = outcome("forked_while_committing", database, str(CHILDREN))
    if broken := set(ended) - {0, "hangs"}:
        raise RuntimeError(f"children ended with {broken}")
    assert "hangs" not in ended, f"child {len(ended)} of {CHILDREN} hangs"


# -- Ctrl-C ---------------------------------------------------------------------------------------------------------


def test_a_commit_interrupted_anywhere_stores_each_edit_once(database: str) -> None:
    # Whether it hangs is not asked here, so it is not waited for.
    found = places("interrupted", database, "0.5")
    wrong = [(place, messages) for place, messages in found if messages not in ([1, 2, 3], "hangs")]
    assert not wrong, f"{len(wrong)} of {len(found)} places: {wrong}"


def test_a_commit_interrupted_anywhere_does_not_make_the_next_one_hang(database: str) -> None:
    found = places("interrupted", database, str(HANGS))
    hangs = [place for place, messages in found if messages == "hangs"]
    assert not hangs, f"{len(hangs)} of {len(found)} places: {hangs}"


def test_an_edit_interrupted_anywhere_is_stored_as_the_handle_shows_it(database: str) -> None:
    found = places("edited", database)
    wrong = [(edit, place, shown, stored) for edit, place, shown, stored in found if shown != stored]
    assert not wrong, f"{len(wrong)} of {len(found)} places, first {wrong[0]}"
    assert {edit for edit, *_ in found} == set(EDITS)


def test_whatever_is_interrupted_anywhere_the_handle_goes_on_and_shows_what_is_stored(database: str) -> None:
    found = places("moved", database, "9")
    wrong = [(what, place, shown, stored) for what, place, shown, stored in found if shown != stored]
    assert not wrong, f"{len(wrong)} of {len(found)} places, first {wrong[0]}"
    assert not [what for what, _, shown, _ in found if shown == "hangs"]
    assert {what for what, *_ in found} == set(MOVES)


STORES: dict[str, tuple[int, dict[str, Any]]] = {
    "sqlite": (3, {"synchronous": "normal"}),
    "file": (5, {}),
    "postgres": (7, {"pool": 1, "timeout": 1}),
    "redis": (13, {"socket_timeout": 1, "retry_for": 0.5}),
    "tiered": (7, {"hot_timeout": 1}),
}
"""At every how many places it is interrupted, and how it is opened."""


@pytest.mark.parametrize("kind", STORES)
def test_whatever_is_interrupted_anywhere_no_lock_is_held_and_no_connection_lost(tmp_path: Path, kind: str) -> None:
    stride, options = STORES[kind]
    found = places("held", store_url(kind, tmp_path), str(stride), json.dumps(options))
    stuck = [(what, place, who) for what, place, who in found if who]
    assert not stuck, f"{len(stuck)} of {len(found)} places: {stuck}"
    assert {what for what, *_ in found} == set(DOINGS)


# -- threads --------------------------------------------------------------------------------------------------------


def test_what_two_threads_commit_through_one_handle_is_stored_or_refused(database: str) -> None:
    found = places("shared", database)
    lost = [(place, returned, kept) for place, returned, kept in found if not set(returned) <= set(kept)]
    assert not lost, f"{len(lost)} of {len(found)} places, first {lost[0]}"
