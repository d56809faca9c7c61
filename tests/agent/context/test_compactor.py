"""Long conversations: within the budget, nothing orphaned, caches warm, nothing lost, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.agent.agent import Agent
from perdure.agent.context.compactor import CUTS, Compactor
from perdure.agent.context.window import Window
from perdure.agent.models import Answer, Request, Usage
from perdure.errors import InvalidInput, ModelError
from tests.agent.context.checker import CheckingModel, extends, is_summary, tokens
from tests.agent.context.scene import Killed, answers, killed_at, look, opened, script, worker

if TYPE_CHECKING:
    from pathlib import Path

BUDGET = 4000


async def work(agent: Agent, db: Any, rounds: int, session: str = "s") -> Any:
    """Give the agent something to do, so many times."""
    result: Any = None
    for i in range(rounds):
        result = await agent.run(db, session=session, message=f"task {i}")
        assert result.ok, result
    return result


def test_hundreds_of_steps_stay_in_the_budget_and_nothing_is_lost():
    model = CheckingModel(lambda n, r: script(n, r) if n % 10 or n % 50 == 0 else [("look", {"n": n})])
    agent = worker(model, window=Window(BUDGET, low_water=1200), compactor=Compactor(max_tokens=200))

    async def main() -> None:
        async with perdure.open_async("memory://") as db:
            await work(agent, db, 10)
            reading = await db.read("s")
            said = reading.state.plain()["messages"]
            assert len(model.seen) == 500
            assert model.problems == []
            assert max(map(tokens, model.seen)) <= BUDGET
            warm = sum(extends(a, b) for a, b in pairwise(model.seen))
            assert warm >= 0.9 * (len(model.seen) - 1), warm
            assert len(model.summaries) > 25
            assert max(map(tokens, model.summaries)) <= BUDGET
            # All that was ever said is there, in order, though hardly any of it is shown.
            assert [m["content"] for m in said if m["role"] == "user"] == [f"task {i}" for i in range(10)]
            assert [json.loads(m["content"])["n"] for m in said if m["role"] == "tool" and "fact" in m["content"]] == [
                n for n in range(1, 501) if n % 50
            ]
            assert len(model.seen[-1].messages) < 100

    asyncio.run(main())


def test_the_summary_is_sent_with_the_instructions_and_its_cost_counts():
    model = CheckingModel(script)

    async def main() -> None:
        async with opened() as db:
            result = await work(worker(model), db, 3)
            notes = (await db.read("s")).summary
            assert notes.startswith("notes number")
            system = model.seen[-1].messages[0]["content"]
            assert system.startswith("Be brief.")
            assert notes in system
            asked = sum(map(tokens, [*model.seen, *model.summaries]))
            assert result.total.input == asked
            # The notes before are part of what the next notes are made from.
            assert model.summaries
            for before, after in pairwise(range(1, len(model.summaries) + 1)):
                assert f"notes number {before}," in model.summaries[after - 1].messages[1]["content"]

    asyncio.run(main())


def test_a_cut_takes_nothing_from_the_inbox_and_is_a_checkpoint_of_its_own():
    model = CheckingModel(script)

    async def main() -> None:
        async with opened() as db:
            # Long messages, so that it is they that fill the window.
            for i in range(6):
                await worker(model).run(db, session="s", message=f"task {i} " + "x" * 5000)
            commits = [c.more for c in await db.history("s", limit=1000)]
            cuts = [x for x in commits if "window" in x]
            assert any(x["window"]["waiting"] for x in cuts)
            assert all("takes" not in x and "effects" not in x for x in cuts)
            assert sum(len(x.get("takes", ())) for x in commits) == 6
            assert model.problems == []

    asyncio.run(main())


def test_a_provider_that_counts_little_of_calls_gets_no_summary_request_over_the_budget():
    def counted(request: Request) -> int:
        return sum(len(m.get("content") or "") for m in request.messages if m["role"] != "tool") // 3

    class Sparing(CheckingModel):
        async def answer(self, request: Request, on_delta: Any = None) -> Answer:
            answer = await super().answer(request, on_delta)
            return answer._replace(usage=Usage(counted(request) + len(request.messages), 5))

    model = Sparing(script)

    async def main() -> None:
        async with opened() as db:
            await work(worker(model, window=Window(1000, low_water=300), compactor=Compactor(max_tokens=100)), db, 25)
            assert len(model.summaries) > 1
            assert max(map(counted, model.summaries)) <= 1000

    asyncio.run(main())


def test_another_model_may_write_the_notes():
    own, cheap = CheckingModel(script), CheckingModel(script, name="cheap")

    async def main() -> None:
        async with opened() as db:
            await work(worker(own, compactor=Compactor(model=cheap)), db, 3)
            assert own.summaries == []
            assert {r.model for r in cheap.summaries} == {"cheap"}
            assert cheap.seen == []
            commits = [c.more for c in await db.history("s", limit=1000) if "window" in c.more]
            assert {c["model"]["name"] for c in commits} == {"cheap"}
            assert {c["model"]["use"] for c in commits} == {"summary"}

    asyncio.run(main())


def test_the_compactor_comes_every_so_many_turns_though_there_is_room():
    model = CheckingModel(script)
    agent = worker(model, window=Window(keep_recent=4), compactor=Compactor(every=5))

    async def main() -> None:
        async with opened() as db:
            await work(agent, db, 3)
            cuts = [c.more["window"]["why"] for c in await db.history("s", limit=1000) if "window" in c.more]
            assert cuts == ["every"] * 5
            cold = [i for i, (a, b) in enumerate(pairwise(model.seen), start=1) if not extends(a, b)]
            assert cold == [5, 10, 15, 20, 25]

    asyncio.run(main())


def test_without_a_compactor_the_window_is_cut_and_nobody_is_asked():
    model = CheckingModel(script)

    async def main() -> None:
        async with opened() as db:
            await work(worker(model, compactor=False), db, 5)
            assert model.summaries == []
            assert model.problems == []
            assert max(map(tokens, model.seen)) <= BUDGET
            assert (await db.read("s")).summary == ""

    asyncio.run(main())


def test_a_model_that_finds_the_request_too_long_gets_a_shorter_one_and_the_step_goes_on():
    model = CheckingModel(script, limit=2500)
    # Nobody told us of any budget.
    agent = worker(model, window=Window())

    async def main() -> None:
        async with opened() as db:
            await work(agent, db, 10)
            assert len(model.seen) == 100
            assert model.problems == []
            # What was refused once is not tried again and again.
            assert model.refused == 1
            assert [c.more["window"]["why"] for c in await db.history("s", limit=1000) if "window" in c.more][
                -1
            ] == "refused"

    asyncio.run(main())


def test_a_message_that_can_never_fit_fails_after_a_few_tries_and_the_session_goes_on_later():
    model = CheckingModel(script, limit=2500)

    async def main() -> None:
        async with opened() as db:
            await work(worker(model), db, 2)
            asked = model.refused
            result = await worker(model).run(db, session="s", message="x" * 20_000)
            assert result.status == "failed"
            assert "tokens are more than" in result.reason
            assert model.refused - asked <= 4
            model.limit = None
            assert (await worker(model).run(db, session="s")).ok
            assert sum("xxxx" in str(m.get("content")) for m in (await db.read("s")).messages) == 1

    asyncio.run(main())


def test_a_window_that_is_always_refused_is_cut_as_often_as_is_said_and_then_the_refusal_is_the_answer():
    model = CheckingModel(script)
    agent = worker(model, compactor=False)

    async def main() -> None:
        async with opened() as db:
            await work(agent, db, 10)
            model.limit = 0
            assert (await agent.run(db, session="s", message="one more")).status == "failed"
            cuts = [c.more["window"]["why"] for c in await db.history("s", limit=1000) if "window" in c.more]
            assert (cuts.count("refused"), model.refused) == (CUTS, CUTS + 1)

    asyncio.run(main())


def test_a_compactor_that_fails_does_not_stop_the_work():
    class Broken:
        name = "broken"

        async def answer(self, request: Request, on_delta: Any = None) -> Answer:
            raise ModelError("out of order")

        async def close(self) -> None:
            pass

    model = CheckingModel(script)

    async def main() -> None:
        async with opened() as db:
            result = await work(worker(model, compactor=Compactor(model=Broken())), db, 3)
            assert max(map(tokens, model.seen)) <= BUDGET
            assert model.problems == []
            assert "no summary could be written: out of order" in result.notes
            # Once it is repaired, what was left out is told, too.
            await work(worker(model), db, 4)
            assert "task 0" in model.summaries[0].messages[1]["content"]

    asyncio.run(main())


def test_a_summary_of_nothing_is_none():
    class Silent(CheckingModel):
        async def answer(self, request: Request, on_delta: Any = None) -> Answer:
            if is_summary(request):
                return Answer({"role": "assistant", "content": " "}, usage=Usage(1, 1))
            return await super().answer(request, on_delta)

    async def main() -> None:
        async with opened() as db:
            result = await work(worker(Silent(script)), db, 3)
            assert "no summary could be written: checking wrote an empty summary" in result.notes
            assert (await db.read("s")).summary == ""

    asyncio.run(main())


def test_pinned_messages_stay_and_no_provider_sees_how():
    model = CheckingModel(script)

    async def main() -> None:
        async with opened() as db:
            said = {"role": "user", "content": "Never fly on Sundays.", "pinned": True}
            await worker(model).run(db, session="s", message=said)
            await work(worker(model), db, 5)
            assert all("pinned" not in m for r in model.seen for m in r.messages)
            assert all(any(m["content"] == said["content"] for m in r.messages) for r in model.seen)
            assert (await db.read("s")).messages[0]["pinned"] is True

    asyncio.run(main())


def test_the_model_can_look_up_what_it_is_no_longer_shown():
    found: list[Any] = []

    def curious(n: int, request: Request) -> Any:
        last = request.messages[-1]
        if last["role"] == "user" and last["content"] == "what was fact 7?":
            return [("recall", {"query": "fact-7"})]
        if last["role"] == "tool" and "recall" in json.dumps(request.messages[-2].get("tool_calls")):
            found.append(json.loads(last["content"]))
            return "that one"
        return script(n, request)

    model = CheckingModel(curious)

    async def main() -> None:
        async with opened() as db:
            await work(worker(model), db, 6)
            # Only offered once there is something to look up.
            assert "recall" not in [t["name"] for t in model.seen[0].tools]
            assert "recall" in [t["name"] for t in model.seen[-1].tools]
            result = await worker(model).run(db, session="s", message="what was fact 7?")
            assert result.text == "that one"
            assert found[0][0]["text"].startswith('{"n": 7, ')
            assert (await worker(CheckingModel(script), window=Window(recall=False)).run(db, session="s")).ok

    asyncio.run(main())


@pytest.mark.parametrize(
    "point", ["agent.before_clean", "agent.after_clean", "agent.before_commit", "agent.after_commit"]
)
def test_a_process_that_ends_while_cleaning_is_followed_by_one_that_asks_the_same(tmp_path: Path, point: str):
    """However it is interrupted, the requests are those of an undisturbed run."""

    async def undisturbed() -> list[Request]:
        model = CheckingModel(script)
        async with opened() as db:
            await work(worker(model), db, 4)
        return model.seen

    async def disturbed() -> list[Request]:
        model = CheckingModel(script)
        kills = 0
        for i in range(4):
            posted = False
            for nth in (1, 2, None):
                async with opened(f"sqlite:///{tmp_path}/agents.db") as db:
                    if not posted:
                        await db.post("s", f"task {i}", key=f"task {i}")
                        posted = True
                    try:
                        if nth is None:
                            assert (await worker(model).run(db, session="s")).ok
                        else:
                            with killed_at(point, nth):
                                assert (await worker(model).run(db, session="s")).ok
                    except Killed:
                        kills += 1
                        done = len(await answers(db, "s")) if [r for r in await db.sessions() if r.heads] else 0
                        # What it was asked and nobody wrote down is asked again.
                        del model.seen[done:]
        assert kills
        return model.seen

    assert asyncio.run(disturbed()) == asyncio.run(undisturbed())


@pytest.mark.parametrize("options", [{"every": 0}, {"max_tokens": 0}])
def test_a_compactor_that_makes_no_sense_is_refused(options: dict[str, Any]):
    with pytest.raises(InvalidInput):
        Compactor(**options)


def test_an_agents_own_recall_is_left_alone():
    from perdure import tool

    @tool(read=True)
    def recall(what: str) -> str:
        """Something else."""
        return what

    agent = Agent("own", model=CheckingModel(script), tools=[recall, look])
    assert [t["name"] for t in agent.setup()["tools"]] == ["recall", "look"]

    async def main() -> None:
        async with opened() as db:
            model = CheckingModel(lambda n, r: "hello")
            agent.model, agent.window = model, Window(keep_recent=1)
            agent.compactor = Compactor(every=1)
            await work(agent, db, 3)
            assert [t["name"] for t in model.seen[-1].tools] == ["recall", "look"]
            assert "search them" not in model.seen[-1].messages[0]["content"]

    asyncio.run(main())
