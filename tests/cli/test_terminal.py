"""The command line for people who look: bars while long work is under way, and an agent's words as it says them."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import perdure

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 90.0
MIGRATIONS = 'from perdure import migration\n\n\n@migration("1.0.0", "2.0.0")\ndef up(state):\n    return state\n'
LONG = {
    "backing up": ("backup", "all.backup"),
    "restoring": ("restore", "all.backup", "--store", "restored.db"),
    "exporting": ("export", "s0", "one.file"),
    "importing": ("import", "one.file", "--store", "imported.db"),
    "copying": ("copy", "agents.db", "copy.db"),
    "verifying": ("verify", "--all"),
    "pruning": ("prune", "--all", "--keep-last", "1"),
    "sweeping": ("sweep",),
    "migrating": ("migrate", "changes", "--schema", "2.0.0"),
}
"""What a bar says, and the command that has it; in an order in which each finds what it needs."""
SPEAKER = """
import asyncio, os
from pathlib import Path
from perdure import Agent
from perdure.agent.models import Answer, Delta

class Model:
    name = "slow"

    async def answer(self, request, on_delta=None):
        assert on_delta is not None, "nobody hears it while it speaks"
        on_delta(Delta(text="first words, "))
        while not Path("go").exists():
            await asyncio.sleep(0.02)
        on_delta(Delta(text="and last ones"))
        return Answer({"role": "assistant", "content": "first words, and last ones"})

    async def close(self):
        pass

agent = Agent("speaker", model=Model())
"""


def shop(folder: Path) -> Path:
    """A folder with a database of a few sessions, and a module with a migration."""
    folder.mkdir()
    with perdure.open(f"sqlite:///{folder}/agents.db", schema="1.0.0") as db:
        for i in range(3):
            with db.session(f"s{i}") as s:
                s.vars["n"] = i
                s.commit()
    (folder / "changes.py").write_text(MIGRATIONS)
    return folder


def environment() -> dict[str, str]:
    """Without settings of ours but the store's, and in a terminal of a common kind."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
    return {**plain, "TERM": "xterm", "COLUMNS": "120", "PERDURE_STORE": "agents.db"}


def in_terminal(folder: Path, *argv: str) -> tuple[int, str]:
    """How a command ends in a terminal, and all that is to be seen there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure.cli", *argv],
        cwd=folder, env=environment(), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    seen, end = b"", time.monotonic() + PATIENCE
    try:
        while True:
            ready, _, _ = select.select([ours], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{argv} never ended: {seen!r}"
            try:
                piece = os.read(ours, 65536)
            except OSError:
                # The other side has closed it: the command is over.
                break
            if not piece:
                break
            seen += piece
        return process.wait(PATIENCE), seen.decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_long_work_has_a_bar_in_a_terminal(tmp_path: Path):
    folder = shop(tmp_path / "shop")
    for words, argv in LONG.items():
        code, seen = in_terminal(folder, *argv)
        assert (code, words in seen) == (0, True), seen
        assert "Traceback" not in seen
    code, seen = in_terminal(folder, "verify", "--all", "--json")
    assert (code, "verifying" in seen) == (0, False), seen


def test_long_work_is_silent_in_a_pipe(tmp_path: Path):
    folder = shop(tmp_path / "shop")
    for words, argv in LONG.items():
        plain = subprocess.run(
            [sys.executable, "-m", "perdure.cli", *argv],
            cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
        assert (plain.returncode, plain.stderr) == (0, ""), plain.stderr
        assert words not in plain.stdout


def test_an_agent_on_a_branch_is_heard_while_it_speaks(tmp_path: Path):
    (tmp_path / "app.py").write_text(SPEAKER)
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db, db.session("s") as s:
        s.messages.append({"role": "user", "content": "speak"})
        s.commit()
        s.fork("b")
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure.cli", "run", "app", "s", "--branch", "b"],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        heard, end = b"", time.monotonic() + PATIENCE
        while b"first words" not in heard:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"nothing was heard while it spoke: {heard!r}"
            piece = os.read(process.stdout.fileno(), 65536)
            assert piece, f"it ended: {heard!r}"
            heard += piece
        assert b"last" not in heard
        (tmp_path / "go").touch()
        heard += process.stdout.read()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    said, ended = heard.decode().splitlines()
    assert (said, ended.partition(" ")[0]) == ("first words, and last ones", "done")
