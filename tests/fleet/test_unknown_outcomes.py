"""Calls of which nobody knows what they did, in a session that has answered: told until a person has settled them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, FunctionModel, calls, tool
from perdure.cli.program import run
from perdure.fleet.status import settle

if TYPE_CHECKING:
    from pathlib import Path


@tool(if_unsure="ask")
def ask(n: str) -> str:
    raise ValueError("a slip")


@tool(if_unsure="report")
def report(n: str) -> str:
    raise ValueError("a slip")


def answers(request: Any) -> Any:
    last = request.messages[-1]
    said = last["content"]
    return calls((said.split()[0], {"n": "1"})) if last["role"] == "user" and " " in said else f"done: {said}"


lab = Agent("lab", model=FunctionModel(answers, name="m"), tools=[ask, report])


@pytest.mark.parametrize("name", ["ask", "report"])
def test_a_call_that_raised_is_named_after_the_next_message_too_until_it_is_settled(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    url = f"sqlite:///{tmp_path}/agents.db"

    def listed(*options: str) -> str:
        assert run(["resolve", "s", *options, "--store", url]) == 0
        return capsys.readouterr().out

    (raised,) = lab.run_sync(url, session="s", message=f"{name} 1").raised
    for word in ("thanks", "bye"):
        lab.run_sync(url, session="s", message=word)
        with perdure.open(url) as db:
            found = perdure.why(db, "s")
        assert found.severity == "ok"
        assert f'{name}(n="1") raised ValueError: a slip. What it had changed by then is not known.' in found.line
        for out in (listed(), listed("--list")):
            assert f"perdure resolve s {raised.effect} --done RESULT" in out
    assert run(["resolve", "s", raised.effect, "--done", '"x"', "--store", url]) == 0
    capsys.readouterr()
    assert raised.effect not in listed() or "(done)" in listed()
    with perdure.open(url) as db:
        assert "not known" not in perdure.why(db, "s").line


@pytest.mark.parametrize(
    ("verdict", "becomes"), [("done", "This result is given"), ("retry", "It is made"), ("abort", "It is made")]
)
def test_who_settles_a_call_of_a_session_that_has_answered_is_told_when_that_counts(
    verdict: str, becomes: str, tmp_path: Path
):
    async def work() -> None:
        async with perdure.open_async(f"sqlite:///{tmp_path}/agents.db") as db:
            (raised,) = (await lab.run(db, session="s", message="ask 1")).raised
            _, handed = await settle(db, "s", raised.effect, "main", by="eve", verdict=verdict, result="R")
            assert (handed.to, handed.unserved) == ("nobody", False)
            answered = "The session has answered: nobody goes on with it for that."
            asks = "when agent lab asks for the same call again (perdure post s MESSAGE"
            assert handed.words.startswith(f"{answered} {becomes} {asks}")
            assert not (await lab.run(db, session="s")).raised
            again = (await lab.run(db, session="s", message="ask 1")).text
            assert again == ("done: R" if verdict == "done" else again)
            assert ("a slip" in again) == (verdict != "done")

    asyncio.run(work())
