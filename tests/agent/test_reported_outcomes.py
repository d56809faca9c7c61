"""An outcome that was reported, or a decision taken in time, before anybody goes on with an agent's session."""

from __future__ import annotations

import asyncio
from typing import Any

import perdure
from perdure import Agent, ScriptedModel, tool
from perdure.agent.models.scripted import calls
from perdure.testing.clock import FakeClock


def _desk(wire: perdure.Tool) -> Agent:
    return Agent("desk", model=ScriptedModel([calls(("wire", {"job": "j"})), "fin"]), tools=[wire])


def _retried(url: Any, made: list[str]) -> tuple[Agent, str]:
    """A call whose answer was lost, and that somebody wants to have made again."""

    @tool
    def wire(job: str) -> str:
        made.append(job)
        raise TimeoutError("the answer was lost")

    agent = _desk(wire)
    assert agent.run_sync(url, session="s", message="go").status == "in_doubt"
    with perdure.open(url) as db, db.session("s") as s:
        effect = s.effects()[0]["id"]
        s.resolve(effect, retry=True, by="ana")
    return agent, effect


def test_an_outcome_that_comes_after_a_retry_was_ordered_is_what_the_model_is_told(tmp_path: Any) -> None:
    url, made = f"sqlite:///{tmp_path}/x.db", list[str]()
    agent, effect = _retried(url, made)
    with perdure.open(url) as db:
        assert db.post_outcome("s", effect, "it had happened")
        assert 'the outcome of wire(job="j") has arrived' in str(perdure.why(db, "s"))
    assert agent.run_sync(url, session="s").status == "done"
    with perdure.open(url) as db:
        assert [m["content"] for m in db.read("s").messages if m["role"] == "tool"] == ["it had happened"]
    assert made == ["j"]


def test_an_outcome_that_has_come_is_not_given_up_by_a_cancel(tmp_path: Any) -> None:
    url, made = f"sqlite:///{tmp_path}/x.db", list[str]()
    agent, effect = _retried(url, made)
    with perdure.open(url) as db:
        assert db.post_outcome("s", effect, "it had happened")
        db.cancel("s", by="ana")
    assert agent.run_sync(url, session="s").status == "cancelled"
    with perdure.open(url) as db:
        assert [m["content"] for m in db.read("s").messages if m["role"] == "tool"] == ["it had happened"]
        assert db.look("s").pending == 0
    assert made == ["j"]


def test_a_decision_in_time_counts_for_an_agent_that_goes_on_later(clock: FakeClock) -> None:
    made: list[str] = []

    @tool(approve=True, approval_valid_for="2s")
    def wire(job: str) -> str:
        made.append(job)
        return "wired"

    async def main() -> None:
        agent = _desk(wire)
        async with perdure.open_async("memory://", clock=clock) as db:
            waiting = await agent.run(db, session="s", message="go")
            await db.approve("s", waiting.approvals[0], by="boss")
            clock.advance(5_000)
            assert (await agent.run(db, session="s")).status == "done"

    asyncio.run(main())
    assert made == ["j"]
