"""When an agent's work becomes durable: after every step, or reads only with the next answer."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import tool
from perdure.agent.agent import Agent
from perdure.agent.context.compactor import Compactor
from perdure.agent.context.window import Window
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.agent.replay.replay import replay
from perdure.errors import InvalidInput
from perdure.system import faults
from tests.agent.checkpoint_worker import EFFECT, LAST, PAYING
from tests.agent.context.checker import CheckingModel
from tests.agent.context.scene import Killed, killed_at, script, worker
from tests.agent.working import by_turn, opened, play

ROOT = Path(__file__).parents[2]

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


@pytest.mark.parametrize(
    ("policy", "die_at", "asked_twice", "looked_twice"),
    [
        ("step", 5, [5], []),
        ("answer", 5, [5], [4]),
        # The answer to the message is durable at once; what came after it, within the number, is asked for again.
        ("every 2", 5, [4, 5], [3, 4]),
        ("every 10", 5, [2, 3, 4, 5], [1, 2, 3, 4]),
        # The time was over while the model took its own: its answers are there, the outcome of the last read is not.
        ("every 10 or 0.1 s", 5, [5], [4]),
        # An effect makes everything before it durable, and is never made twice.
        ("every 10", EFFECT + 1, [EFFECT + 1], []),
        # It was written down before it was made: it is made again under its key, and nothing is asked for again.
        ("every 10", PAYING, [], []),
    ],
)
def test_what_a_kill_costs(tmp_path: Path, policy: str, die_at: int, asked_twice: list[int], looked_twice: list[int]):
    def life(die_at: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.agent.checkpoint_worker", str(tmp_path), policy, str(die_at)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    killed = life(die_at)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert life(0).stdout.strip() == "all done"
    happened = Counter((tmp_path / "log").read_text().splitlines())
    assert len(set((tmp_path / "keys").read_text().split())) == 1, "nobody is paid under two keys"
    assert happened.pop(f"pay {EFFECT}") == (2 if die_at == PAYING else 1)
    twice = sorted(what for what, times in happened.items() if times > 1)
    assert twice == sorted([f"ask {n}" for n in asked_twice] + [f"look {n}" for n in looked_twice])
    assert max(happened.values()) == (2 if twice else 1)
    assert len(happened) == 2 * LAST - 2, "every answer was asked for, and every call made"

    async def check() -> None:
        async with opened(tmp_path) as db:
            assert (await replay(db, "s")).identical

    play(check())


def test_answers_that_may_wait_are_checkpoints_of_their_own_in_one_batch(tmp_path: Path):
    told: list[tuple[str, int]] = []

    async def work() -> None:
        async with opened(tmp_path) as db:
            batches: list[int] = []
            append = db.kernel.store.append
            db.kernel.store.append = lambda batch: (batches.append(len(batch)), append(batch))[1]
            agent = agent_of(LOOKS, LOOKS, LOOKS, LOOKS, LOOKS, "fine", checkpoints=perdure.Every(3))
            result = await agent.run(
                db, session="s", message="go", on_event=lambda e: told.append((e.kind, e.step)) or None
            )
            assert (result.text, result.step) == ("fine", 6)
            # The answer to the message, three, and the rest with the last one.
            assert batches == [1, 3, 2]
            assert [c.step for c in reversed(await db.history("s"))] == [1, 2, 3, 4, 5, 6]
            assert [step for kind, step in told if kind == "committed"] == [1, 2, 3, 4, 5, 6]
            assert told.index(("committed", 2)) > max(i for i, e in enumerate(told) if e == ("call", 3))
            found = await replay(db, "s", agent=agent)
            assert found.identical, found

    play(work())


@pytest.mark.parametrize("ending", ["raises", "is cancelled"])
def test_what_waits_is_written_when_a_run_ends_otherwise(tmp_path: Path, ending: str):
    def broken(_: Any) -> Any:
        raise RuntimeError("a bug")

    async def work() -> None:
        async with opened(tmp_path) as db:
            reached = asyncio.Event()

            async def waits(_: Any) -> Any:
                reached.set()
                await asyncio.sleep(60)

            last = broken if ending == "raises" else waits
            agent = agent_of(LOOKS, LOOKS, LOOKS, last, checkpoints=perdure.Every(10))
            running = asyncio.create_task(agent.run(db, session="s", message="go"))
            if ending == "raises":
                with pytest.raises(RuntimeError):
                    await running
            else:
                await reached.wait()
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            assert (await db.look("s")).heads[0].step == 3

    play(work())


@pytest.mark.parametrize("wrong", ["never", 3, None, ("step",)])
def test_a_policy_is_one_of_two_words_or_a_number_of_answers(wrong: Any):
    with pytest.raises(InvalidInput, match=r"step, answer, or perdure\.Every"):
        agent_of("x", checkpoints=wrong)
    assert faults.hook is None


@pytest.mark.parametrize("wrong", [{"answers": 0}, {"answers": 2.5}, {"answers": True}, {"answers": 101},
                                   {"answers": 3, "seconds": 0}, {"answers": 3, "seconds": "5"}], ids=str)  # fmt: skip
def test_a_number_of_answers_is_a_sensible_one(wrong: dict[str, Any]):
    with pytest.raises(InvalidInput, match="Every"):
        perdure.Every(**wrong)


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
