"""An outcome that was reported, or a decision taken in time, before anybody goes on with an agent's session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

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


@pytest.mark.parametrize("failed", [None, "no money"])
def test_an_outcome_that_is_reported_while_its_call_returns_its_own_waits_for_nobody(
    tmp_path: Any, failed: str | None
) -> None:
    async def main() -> None:
        async with perdure.open_async(f"sqlite:///{tmp_path}/x.db") as db:

            @tool
            async def wire(job: str, ctx: perdure.Context) -> str:
                assert await db.post_outcome("s", ctx.effect_id, None if failed else "from outside", failed=failed)
                return "its own"

            end = await _desk(wire).run(db, session="s", message="go")
            assert end.status == "done"
            assert [m["content"] for m in (await db.read("s")).messages if m["role"] == "tool"] == ["its own"]
            assert ((await db.look("s")).pending, await db.inbox("s")) == (0, [])

    asyncio.run(main())


def test_where_no_loop_takes_it_along_nothing_is_said_to_wait_and_the_session_expires(tmp_path: Any) -> None:
    clock = FakeClock()
    with perdure.open(f"sqlite:///{tmp_path}/x.db", clock=clock) as db:

        @tool
        def wire(job: str, ctx: perdure.Context) -> str:
            assert db.post_outcome("s", ctx.effect_id, "from outside")
            return "its own"

        with db.session("s", ttl=60) as s:
            assert s.call(wire, "j") == "its own"
        assert (db.look("s").pending, db.inbox("s")) == (1, [])
        assert "outcome" not in str(perdure.why(db, "s"))
        # One that somebody waits for is told, and keeps the session.
        db.post("s", "hello", key="m1")
        assert [m.key for m in db.inbox("s")] == ["m1"]
        with db.session("s") as s:
            assert [m.key for m in s.take()] == ["m1"]
            s.commit()
        assert db.look("s").pending == 0
        with db.session("s") as s:
            s.call(wire, "k")
        clock.advance(61_000)
        with pytest.raises(perdure.Gone):
            db.read("s")


def test_an_outcome_that_another_branch_waits_for_is_left_there(tmp_path: Any) -> None:
    with perdure.open(f"sqlite:///{tmp_path}/x.db") as db:

        @tool
        def wire(job: str) -> str:
            raise TimeoutError("the answer was lost")

        with db.session("s") as s:
            with pytest.raises(perdure.InDoubt):
                s.call(wire, "j")
            (effect,) = [record["id"] for record in s.effects()]
            s.fork("side")
            s.resolve(effect, done="known to ana", by="ana")
        assert db.post_outcome("s", effect, "wired"), "side waits for it"
        with db.session("s") as s:
            assert s.take() == []
            s.vars["went"] = "on"
            s.commit()
        assert [m.key for m in db.inbox("s")] == [f"outcome:{effect}"]
        with db.session("s", branch="side") as s:
            assert s.call(wire, "j") == "known to ana", "what the session knew already"
        assert db.inbox("s") == [], "now nobody waits for it"
        with db.session("s") as s:
            s.take()
            s.commit()
        assert db.look("s").pending == 0
