"""``perdure new`` and ``perdure chat`` as people use them: in a terminal, through a pipe, and after a SIGKILL."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

import perdure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Command

PATIENCE = 60.0

APP = """
import os, time
from pathlib import Path
from perdure import Agent, ScriptedModel, tool
from perdure.agent.models import text_of
from perdure.agent.models.scripted import calls

@tool
def pay(order: str) -> str:
    with open("paid", "a") as file:
        file.write(order + "\\n")
    if os.environ.get("HANG"):
        time.sleep(600)
    return "paid " + order

@tool(approve=True)
def book(seat: str) -> str:
    return "booked " + seat

@tool
def ask_back(ctx) -> str:
    return "a size " + str(ctx.ask("Which size?", {"type": "integer", "maximum": 50})) + " shoe"

def script(request):
    last = request.messages[-1]
    said = text_of(last)
    if last["role"] == "tool":
        return "It says: " + said
    name, _, rest = said.partition(" ")
    if name == "pay":
        return calls(("pay", {"order": rest}))
    if name == "book":
        return calls(("book", {"seat": rest}))
    if name == "shoe":
        return calls(("ask_back", {}))
    return "You said \\x1b[31m" + said + ", and here are many more words to stream one after the other"

model = ScriptedModel(script, delay=float(os.environ.get("DELAY", "0")))
agent = Agent("echo", model=model, tools=[pay, book, ask_back])
other = Agent("other", model=ScriptedModel(["I am the other one"]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_") and k != "HOLYSHEEP_API_KEY"}
    return {**plain, "TERM": "dumb", "COLUMNS": "200", **more}


class Terminal:
    """A chat in a terminal of its own."""

    def __init__(self, folder: Path, *words: str, **more: str) -> None:
        self._ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "perdure.cli", "chat", *words]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(**more),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = ""

    def interrupt(self) -> None:
        """Press Ctrl-C, and once more when nothing happens: one between the prompt and the read is seen by neither."""
        ready: list[int] = []
        while not ready:
            self.process.send_signal(signal.SIGINT)
            ready, _, _ = select.select([self._ours], [], [], 5.0)

    def until(self, pattern: str) -> str:
        """Wait until something is to be read; everything up to there."""
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"waited for {pattern!r} and saw: {self.seen}"
            try:
                self.seen += os.read(self._ours, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"it ended, waiting for {pattern!r}: {self.seen}") from None
        passed, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return passed

    def type(self, line: str) -> None:
        os.write(self._ours, line.encode() + b"\n")

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> int:
        try:
            return self.process.wait(PATIENCE)
        finally:
            os.close(self._ours)


@pytest.fixture
def open_terminal(folder: Path) -> Callable[..., Terminal]:
    return lambda *words, **more: Terminal(folder, *(words or ("app",)), **more)


def conversation(folder: Path, session: str = "echo") -> list[tuple[str, str]]:
    with perdure.open(f"sqlite:///{folder}/.perdure/agents.db") as db:
        return [(m["role"], m["content"]) for m in db.read(session).plain()["messages"]]


def piped(folder: Path, *words: str, said: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perdure.cli", "chat", *words]
    env = environment(**more)
    return subprocess.run(
        command, cwd=folder, env=env, input=said, capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def test_killed_in_the_middle_of_an_answer_the_same_command_shows_the_question_and_answers_it(
    folder: Path, open_terminal: Callable[..., Terminal]
) -> None:
    first = open_terminal(DELAY="30")
    first.until("new")
    first.until("> ")
    first.type("hello there")
    first.until("You said ")
    first.kill()
    second = open_terminal()
    shown = second.until("stream one after the other")
    assert "hello there   (not answered yet)" in shown
    second.until("> ")
    second.type("/quit")
    assert second.close() == 0
    assert [role for role, _ in conversation(folder)] == ["user", "assistant"]


def test_what_an_agent_says_cannot_steer_the_terminal(open_terminal: Callable[..., Terminal]) -> None:
    terminal = open_terminal()
    terminal.until("> ")
    terminal.type("hi")
    said = terminal.until("one after the other")
    assert "You said \\x1b[31mhi" in said
    assert "\x1b[31m" not in said
    terminal.type("/quit")
    assert terminal.close() == 0


def test_killed_inside_a_tool_the_same_command_asks_what_became_of_it(
    folder: Path, open_terminal: Callable[..., Terminal]
) -> None:
    first = open_terminal(HANG="1")
    first.until("> ")
    first.type("pay A7")
    deadline = time.monotonic() + PATIENCE
    while not (folder / "paid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.kill()
    second = open_terminal()
    assert "Did pay(order='A7') happen?" in second.until("or later: ")
    second.type("done")
    second.until("JSON or text: ")
    second.type("paid A7, says the bank")
    second.until("It says: paid A7, says the bank")
    second.type("/quit")
    assert second.close() == 0
    assert (folder / "paid").read_text() == "A7\n"


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (["yes"], "It says: booked 12A"),
        (["what?", "no", "too dear"], "too dear"),
        (["edit", "nonsense", "edit", '{"seat": "14C"}'], "booked 14C"),
        (["edit", "{}", "edit", '{"seat": "14C"}'], "booked 14C"),
        (["later"], "It stays open"),
    ],
)
def test_an_approval_is_decided_in_the_chat(answers: list[str], told: str, folder: Path) -> None:
    done = piped(folder, "app", said="\n".join(["book 12A", *answers]) + "\n")
    assert done.returncode == 0, done.stderr
    assert 'May I? book {"seat": "12A"}' in done.stdout
    assert told in done.stdout


def test_what_is_asked_for_is_shown_whole(folder: Path) -> None:
    seat = f"12A {'by the window ' * 40}and nowhere else"
    said = piped(folder, "app", said=f"book {seat}\nedit\n{{}}\nlater\n").stdout
    assert f'May I? book\n{{\n  "seat": "{seat}"\n}}\n' in said


def test_an_approval_that_was_left_open_is_asked_again_by_the_same_command(folder: Path) -> None:
    assert "May I?" in piped(folder, "app", said="book 12A\nlater\n").stdout
    again = piped(folder, "app", said="y\n").stdout
    assert "waiting_approval" in again
    assert "It says: booked 12A" in again


def test_a_question_of_a_tool_is_answered_in_the_chat(folder: Path) -> None:
    said = piped(folder, "app", said="shoe\nlarge\n430\n43\n").stdout
    assert "The answer must be integer, not 'large'." in said
    assert "The answer is at most 50." in said
    assert "It says: a size 43 shoe" in said


def test_an_interrupt_stops_it_and_the_same_command_goes_on(
    folder: Path, open_terminal: Callable[..., Terminal]
) -> None:
    first = open_terminal(DELAY="30")
    first.until("> ")
    first.type("hello there")
    first.until("You said ")
    first.process.send_signal(signal.SIGINT)
    first.until("goes on from here")
    assert first.close() == 130
    assert "one after the other" in piped(folder, "app").stdout
    assert [role for role, _ in conversation(folder)] == ["user", "assistant"]


def test_an_interrupt_at_a_question_stops_it_too(open_terminal: Callable[..., Terminal]) -> None:
    first = open_terminal()
    first.until("> ")
    first.type("book 12A")
    first.until("or later: ")
    first.interrupt()
    first.until("goes on from here")
    assert first.close() == 130


def test_agents_are_found_by_name_and_file_and_sessions_are_kept_apart(folder: Path) -> None:
    assert "I am the other one" in piped(folder, "app:other", said="hi\n").stdout
    assert "You said" in piped(folder, str(folder / "app.py"), "--session", "two", said="hi\n").stdout
    assert "You said" in piped(folder, "app.py:agent", "--store", "else.db", said="hi\n/help\n").stdout
    assert (folder / "else.db").exists()
    assert conversation(folder, "other")[0] == ("user", "hi")
    assert conversation(folder, "two")[0] == ("user", "hi")


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("nothing", "cannot be imported"),
        ("nothing.py", "there is no file nothing.py"),
        ("app:nobody", "has no 'nobody'"),
        ("app:APP", "has no 'APP'"),
        ("app:pay", "has a Tool there"),
        ("..", "no name of a module"),
    ],
)
def test_an_app_that_is_not_there_is_one_line(app: str, said: str, folder: Path) -> None:
    done = piped(folder, app)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_session_that_another_process_works_on_is_one_line(folder: Path) -> None:
    with perdure.open(f"sqlite:///{folder}/.perdure/agents.db") as db, db.session("echo") as s:
        s.commit()
        done = piped(folder, "app", said="hi\n")
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1


def test_a_first_agent_runs_at_once_and_goes_on_after_a_kill(command: Command, tmp_path: Path) -> None:
    said = command("new", "groceries")
    assert said.code == 0
    assert "perdure chat app" in said.out
    folder = tmp_path / "groceries"
    assert sorted(p.name for p in folder.iterdir()) == [".gitignore", "README.md", "app.py"]
    assert all("myagent" not in p.read_text() for p in folder.iterdir())
    done = piped(folder, "app", said="hello\nadd milk\nshow\norder\n")
    assert done.returncode == 0, done.stderr
    assert 'Say "add milk"' in done.stdout
    assert 'May I? order {} (["milk"])' in done.stdout
    assert "ordered: milk" in piped(folder, "app", said="yes\n").stdout
    assert (folder / "list.txt").read_text() == ""


@pytest.mark.parametrize("name", ["", "../up", "a/b", "1st", "-x", "x" * 80])
def test_a_name_that_is_none_is_refused(name: str, command: Command, tmp_path: Path) -> None:
    assert command("new", "--", name).code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_left_alone(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "app.py").write_text("precious")
    said = command("new", "mine")
    assert said.code == 2
    assert "not empty" in said.err
    assert (tmp_path / "mine" / "app.py").read_text() == "precious"
