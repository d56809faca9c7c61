"""On the command line an identical message that is not answered yet is gone on with; --again says it once more."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import perdure

if TYPE_CHECKING:
    from tests.cli.conftest import Command

APP = """
from perdure import Agent, ScriptedModel, tool
from perdure.agent.models.scripted import calls

@tool(approve=True)
def pay(amount: int) -> str:
    "Pay."
    return "paid"

def script(request):
    said = request.messages[-1]
    if said["role"] == "user" and "pay" in said["content"]:
        return calls(("pay", {"amount": 5}))
    return "an answer"

agent = Agent("desk", model=ScriptedModel(script), tools=[pay], compactor=False)
"""

NEEDY = """
from perdure import Agent, Context, ScriptedModel, tool

@tool(read=True)
def look(ctx: Context[int]) -> int:
    "Look."
    return 1

agent = Agent("needy", model=ScriptedModel(lambda _: "an answer"), tools=[look])
"""


def waiting(session: str = "s") -> int:
    with perdure.open("sqlite:///a.db") as db:
        return len(list(db.kernel.store.inbox(session, 10)))


def test_run_goes_on_with_an_identical_message_that_was_taken(command: Command):
    Path("app.py").write_text(APP)
    run = ("run", "app", "s", "pay 5", "--store", "sqlite:///a.db", "--json")
    first = json.loads(command(*run).out)
    assert (first["status"], first["repeated"], first["notes"]) == ("waiting_approval", False, [])
    again = json.loads(command(*run).out)
    assert (again["status"], again["message_key"]) == ("waiting_approval", first["message_key"])
    assert "--again" in again["notes"][0]
    assert waiting() == 0
    command(*run, "--again")
    assert waiting() == 1
    told = command("run", "app", "s", "hello", "--key", "k1", "--again", "--store", "sqlite:///a.db")
    assert (told.code, "--again" in told.err) == (2, True)


def test_run_tells_the_answer_of_a_key_that_is_repeated(command: Command):
    Path("app.py").write_text(APP)
    run = ("run", "app", "s", "hello", "--key", "k1", "--store", "sqlite:///a.db")
    assert "an answer" in command(*run).out
    assert "It had been answered before: an answer" in command(*run).out
    told = json.loads(command(*run, "--json", "--wait", "1").out)
    assert (told["text"], told["repeated"], told["message_key"]) == ("an answer", True, "k1")


def test_run_that_finds_the_session_busy_says_whether_the_message_is_kept(command: Command):
    Path("app.py").write_text(APP)
    run = ("run", "app", "s", "hello", "--store", "sqlite:///a.db")
    with perdure.open("sqlite:///a.db") as db, db.session("s") as s:
        s.commit()
        assert "The message is not kept" in command(*run).err
        assert waiting() == 0
        told = command(*run, "--key", "it's mine").err
        assert waiting() == 1
        suggested = re.findall(r"\((perdure [^)]+)\)", told)
        assert [shlex.split(line)[1] for line in suggested] == ["post", "show"]
        assert command(*shlex.split(suggested[0].replace("MESSAGE", "more"))[1:]).code == 0
        assert waiting() == 2
    # What it says to type, typed.
    found = re.search(r"The message is kept: say it again with (--key .*) to get its answer$", told)
    assert found is not None
    end = json.loads(command(*run, *shlex.split(found[1]), "--json").out)
    assert (end["text"], end["message_key"], waiting()) == ("an answer", "it's mine", 0)


def test_post_does_not_say_an_identical_message_twice(command: Command):
    Path("app.py").write_text(APP)
    with perdure.open("sqlite:///a.db") as db:
        db.create("s", agent="desk")
    post = ("post", "s", "hello", "--store", "sqlite:///a.db")
    first = json.loads(command(*post, "--json").out)
    assert (first["new"], first["kept"], first["answer"]) == (True, True, None)
    assert "was there already, and is not answered yet (--again says it once more)" in command(*post).out
    assert waiting() == 1
    assert json.loads(command(*post, "--again", "--json").out)["new"]
    assert waiting() == 2
    command("run", "app", "s", "--store", "sqlite:///a.db")
    told = json.loads(command(*post, "--key", first["message_key"], "--json").out)
    assert (told["new"], told["answer"]["text"]) == (False, "an answer")


def test_what_is_said_again_after_a_stop_is_said(command: Command):
    Path("app.py").write_text(APP)
    with perdure.open("sqlite:///a.db") as db:
        db.create("s", agent="desk")
    post = ("post", "s", "hello", "--store", "sqlite:///a.db", "--json")
    command(*post)
    assert command("cancel", "s", "--store", "sqlite:///a.db").code == 0
    assert json.loads(command(*post).out)["new"]
    assert waiting() == 3


@pytest.mark.parametrize(
    "words",
    [
        ("run", "app", "new", "pay 5", "--branch", "typo"),
        ("run", "app", "s", "pay 5", "--branch", "typo"),
        ("resume", "app", "new", "--branch", "typo"),
        ("resume", "app", "s", "--branch", "typo"),
        ("run", "app", "new", "pay 5", "--effects", "often"),
        ("run", "app", "new", "pay 5", "--objective", " "),
        ("run", "app", "new", "pay 5", "--max-turns", "0"),
        ("run", "app", "new", "pay 5", "--max-turns", "many"),
        ("run", "app", "new", "pay 5", "--wait", "a"),
        ("run", "app", "new", "pay 5", "--wait", "-1"),
        ("run", "app", "new", "pay 5", "--key", "k" * 300),
        ("run", "app", "new", "pay 5", "--owner", "o" * 300),
        ("run", "app", "new", "pay 5", "--reopen", "--by", "b" * 300),
        ("run", "app", "new", "x" * 1_100_000, "--owner", "ana"),
        ("run", "app", "new", "  ", "--owner", "ana"),
        ("run", "needy", "new", "pay 5", "--owner", "ana"),
        ("run", "needy", "s", "pay 5", "--branch", "side"),
        ("submit", "new", "pay 5", "--agent", "desk", "--priority", "many"),
        ("submit", "new", "x" * 1_100_000, "--agent", "desk"),
        ("submit", "new", "pay 5", "--agent", "desk", "--key", "k" * 300),
        ("submit", "new", "pay 5", "--agent", "d" * 300),
        ("post", "s", "x" * 1_100_000),
        ("post", "s", "pay 5", "--key", "k" * 300),
    ],
    ids=lambda words: " ".join(word[:12] for word in words),
)
def test_what_is_refused_leaves_nothing_behind(command: Command, words: tuple[str, ...]):
    Path("app.py").write_text(APP)
    Path("needy.py").write_text(NEEDY)
    with perdure.open("sqlite:///a.db") as db, db.session("s") as s:
        s.messages.append({"role": "user", "content": "first"})
        s.commit()
        s.fork("side")
    for _ in range(3):
        told = command(*words, "--store", "sqlite:///a.db")
        assert told.code in (1, 2), told.out
    assert waiting("new") == waiting() == 0
    with perdure.open("sqlite:///a.db") as db:
        assert [row.id for row in db.sessions()] == ["s"]
        assert sorted(head.step for head in db.look("s").heads) == [1, 2], "as it was forked"
