"""What a session is to achieve, and what became of it: in its state, told to the model, seen by whoever looks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, ScriptedModel, end_objective
from perdure.agent.models.scripted import calls
from perdure.agent.replay.replay import replay
from tests.agent.working import by_turn, opened, play

if TYPE_CHECKING:
    from pathlib import Path

GOAL = "Have the headphones arrive or the money back"


def test_it_is_open_until_somebody_says_what_became_of_it():
    with perdure.open("memory://") as db:
        with db.session("s") as s:
            assert s.objective is None
            with pytest.raises(perdure.InvalidInput, match=r"set one with s\.set_objective"):
                s.end_objective("reached")
            for wrong in ("", " ", 3):
                with pytest.raises(perdure.InvalidInput, match="a session's objective"):
                    s.set_objective(wrong)  # pyright: ignore[reportArgumentType]
            s.set_objective(GOAL)
            with pytest.raises(perdure.InvalidInput, match="open, reached, given_up"):
                s.end_objective("done")
            s.commit()
        assert (db.read("s").objective["text"], db.read("s").objective["status"]) == (GOAL, "open")
        with db.session("s") as s:
            s.end_objective("given_up", "the shop is closed")
            s.commit()
        assert db.read("s", at=1).objective["status"] == "open"
        found = perdure.why(db, "s").objective
        assert found is not None
        assert (found["status"], found["note"]) == ("given_up", "the shop is closed")


def test_what_a_program_keeps_under_the_same_name_is_its_own():
    with perdure.open("memory://") as db:
        with db.session("s") as s:
            s.state["objective"] = {"text": "mine", "status": "whatever"}
            s.commit()
            assert s.objective is None
        assert perdure.why(db, "s").objective is None


@pytest.mark.parametrize("policy", ["step", "answer", perdure.Every(3)], ids=str)
def test_an_agent_is_told_of_it_and_says_when_it_is_reached(tmp_path: Path, policy: Any):
    told: list[Any] = []

    def ends(request: Any) -> Any:
        told.append(request.messages[0]["content"])
        return calls(("end_objective", {"status": "reached", "note": "refunded"}))

    def thanks(request: Any) -> str:
        told.append(request.messages[0]["content"])
        return "it is done"

    agent = Agent("desk", model=ScriptedModel(by_turn("who are you?", ends, thanks)), tools=[end_objective],
                  checkpoints=policy)  # fmt: skip

    async def work() -> None:
        async with opened(tmp_path) as db:
            assert (await agent.run(db, session="s", message="hello", objective=GOAL, context={"a": 1})).ok
            assert (await db.read("s")).objective["status"] == "open"
            # It stays, whoever runs the session on, and setting the same again changes nothing.
            assert (await agent.run(db, session="s", message="me", objective=GOAL)).text == "it is done"
            assert [c.more.get("note") for c in await db.history("s")].count("an objective is set") == 1
            found = (await perdure.why_async(db, "s")).objective
            assert found is not None
            assert (found["status"], found["note"]) == ("reached", "refunded")
            for whose in (None, agent):
                replayed = await replay(db, "s", agent=whose)
                assert replayed.identical, replayed
            # Another one is open again.
            again = Agent("desk", model=ScriptedModel(lambda _: "hm"), tools=[end_objective])
            assert (await again.run(db, session="s", message="and now?", objective="A better pair")).ok
            assert (await db.read("s")).objective["status"] == "open"

    play(work())
    contexts = [json.loads(text.partition("\n")[2])["objective"] for text in told]
    assert contexts == [{"text": GOAL, "status": "open"}, {"text": GOAL, "status": "reached", "note": "refunded"}]


def test_a_model_without_an_objective_is_told_so(tmp_path: Path):
    ends = calls(("end_objective", {"status": "reached"}))
    agent = Agent("desk", model=ScriptedModel(by_turn(ends, "ok")), tools=[end_objective])

    async def work() -> None:
        async with opened(tmp_path) as db:
            assert (await agent.run(db, session="s", message="hello")).ok
            assert "no objective" in (await db.read("s")).messages[2]["content"]

    play(work())
