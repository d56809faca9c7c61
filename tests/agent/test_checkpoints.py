"""When an agent's work becomes durable: after every step, or reads only with the next answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure import tool
from perdure.agent.agent import Agent
from perdure.agent.context.compactor import Compactor
from perdure.agent.context.window import Window
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.agent.replay.replay import replay
from perdure.errors import InvalidInput
from perdure.system import faults
from tests.agent.context.checker import CheckingModel
from tests.agent.context.scene import Killed, killed_at, script, worker
from tests.agent.working import by_turn, opened, play

if TYPE_CHECKING:
    from pathlib import Path

made: list[str] = []


@tool(read=True)
def look(what: str) -> str:
    """Look something up."""
    made.append(f"look {what}")
    return f"{what} is fine"


@tool(read=True, cache="1h")
def buy_report(what: str) -> str:
    """A read that somebody pays for."""
    made.append(f"buy {what}")
    return f"report on {what}"


@tool(if_unsure="retry")
def act(what: str) -> str:
    """Do something."""
    made.append(f"act {what}")
    return f"{what} done"


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    made.clear()


LOOKS = calls(("look", {"what": "a"}), ("look", {"what": "b"}), ("look", {"what": "c"}))


def agent_of(*answers: Any, **options: Any) -> Agent:
    return Agent("a", model=ScriptedModel(by_turn(*answers)), tools=[look, buy_report, act], **options)


@pytest.mark.parametrize(
    ("policy", "kinds"), [("step", ["commit", "done", "done", "done", "commit"]), ("answer", ["commit", "commit"])]
)
def test_reads_are_written_down_each_or_with_the_next_answer(tmp_path: Path, policy: str, kinds: list[str]):
    async def work() -> None:
        async with opened(tmp_path) as db:
            assert (await agent_of(LOOKS, "all fine", checkpoints=policy).run(db, session="s", message="go")).ok
            assert [c.kind for c in reversed(await db.history("s"))] == kinds
            said = (await db.read("s")).plain()["messages"]
            assert [m["content"] for m in said if m["role"] == "tool"] == ["a is fine", "b is fine", "c is fine"]
            assert (await replay(db, "s")).identical

    play(work())


def test_effects_and_paid_reads_are_durable_when_they_return_whatever_is_wished(tmp_path: Path):
    mixed = calls(("act", {"what": "x"}), ("buy_report", {"what": "y"}))

    async def work() -> None:
        async with opened(tmp_path) as db:
            await agent_of(mixed, "fine", checkpoints="answer").run(db, session="s", message="go")
            assert [c.kind for c in reversed(await db.history("s"))] == ["commit", "done", "done", "commit"]

    play(work())


@pytest.mark.parametrize("point", ["agent.before_model", "agent.after_model", "agent.before_commit"])
def test_reads_that_died_with_the_process_run_again_and_effects_do_not(tmp_path: Path, point: str):
    mixed = calls(("act", {"what": "x"}), ("look", {"what": "a"}))

    async def once() -> Any:
        async with opened(tmp_path) as db:
            return await agent_of(mixed, LOOKS, "fine", checkpoints="answer").run(
                db, session="s", message="go", key="m"
            )

    with killed_at(point, 3), pytest.raises(Killed):
        play(once())
    assert play(once()).text == "fine"
    assert made.count("act x") == 1
    assert made.count("look b") == 2

    async def said() -> list[str]:
        async with opened(tmp_path) as db:
            assert (await replay(db, "s")).identical
            return [m["content"] for m in (await db.read("s")).plain()["messages"] if m["role"] == "tool"]

    assert play(said()) == ["x done", "a is fine", "a is fine", "b is fine", "c is fine"]


def test_a_run_that_ends_before_the_next_answer_leaves_the_reads_to_the_next_one(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:
            agent = agent_of(LOOKS, "fine", checkpoints="answer")
            ended = await agent.run(db, session="s", message="go", max_turns=1)
            assert (ended.status, len(made)) == ("max_turns", 3)
            assert (await agent.run(db, session="s")).text == "fine"
            stop = asyncio.Event()
            stop.set()
            put_down = await agent_of(LOOKS, "fine", checkpoints="answer").run(db, session="t", message="go", stop=stop)
            assert put_down.status == "stopped"

    play(work())


def test_reads_beside_a_call_that_waits_are_written_when_the_process_may_go(tmp_path: Path):
    asked = tool(if_unsure="retry", approve=True, name="act")(act.fn)
    both = calls(("look", {"what": "a"}), ("act", {"what": "x"}))

    async def work() -> None:
        agent = Agent("a", model=ScriptedModel(by_turn(both, "fine")), tools=[look, asked], checkpoints="answer")
        async with opened(tmp_path) as db:
            waiting = await agent.run(db, session="s", message="go")
            assert waiting.status == "waiting_approval"
            assert made == ["look a"]
            # A process that died right after the answer finds both open, in a session that already waits.
            assert (await agent.run(db, session="s")).status == "waiting_approval"
        async with opened(tmp_path) as db:
            await db.approve("s", waiting.approvals[0].id, by="ana")
            assert (await agent.run(db, session="s")).text == "fine"

    play(work())
    assert made == ["look a", "act x"]


def test_a_long_session_is_cut_and_replayed_all_the_same(tmp_path: Path):
    model = CheckingModel(script)
    agent = worker(model, window=Window(2500, low_water=800), compactor=Compactor(max_tokens=100), checkpoints="answer")

    async def work() -> None:
        async with opened(tmp_path) as db:
            for i in range(6):
                assert (await agent.run(db, session="s", message=f"task {i}")).ok
            assert model.summaries
            assert model.problems == []
            found = await replay(db, "s", agent=agent)
            assert found.identical, found
            found = await replay(db, "s")
            assert found.identical, found

    play(work())


def test_a_policy_is_one_of_two_words():
    with pytest.raises(InvalidInput, match="step, answer"):
        agent_of("x", checkpoints="never")
    assert faults.hook is None


@pytest.mark.parametrize("policy", ["step", "answer"])
def test_of_reads_that_are_over_nothing_stays_in_the_session(tmp_path: Path, policy: str):
    def again(request: Any) -> Any:
        return LOOKS if request.messages[-1]["role"] == "user" else "all fine"

    agent = Agent("a", model=ScriptedModel(again), tools=[look, act], checkpoints=policy)

    async def work() -> None:
        async with opened(tmp_path) as db:
            sizes: list[int] = []
            for turn in range(4):
                assert (await agent.run(db, session="s", message=f"turn {turn}")).ok
                book = (await db.read("s")).book
                sizes.append(len(book.get("effects", {})) + sum(map(len, book.get("done", {}).values())))
            assert len(set(sizes)) == 1

    play(work())
