"""On the command line an identical message that is not answered yet is gone on with; --again says it once more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

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
    with perdure.open("sqlite:///a.db") as db, db.session("s"):
        assert "kept" not in command(*run).err
        assert waiting() == 0
        assert "kept" in command(*run, "--key", "k1").err
        assert waiting() == 1


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
