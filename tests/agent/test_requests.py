"""Any old checkpoint gives the exact request back whose answer it holds."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import tool
from perdure.agent.agent import Agent
from perdure.agent.context.compactor import Compactor
from perdure.agent.context.window import Window
from perdure.agent.models import Request, request_digest
from perdure.agent.requests import rebuild
from perdure.errors import InvalidInput
from tests.agent.context.checker import CheckingModel
from tests.agent.context.scene import act, answers, look, opened, script, worker

ROOT = Path(__file__).resolve().parents[2]


def as_bytes(request: Request) -> bytes:
    """All of a request, the order of its keys included."""
    return json.dumps(request, ensure_ascii=False).encode()


@tool(approve=lambda a: a["amount"] > 100)
def refund(order: str, amount: int) -> dict[str, Any]:
    """Give money back."""
    return {"order": order, "amount": amount}


def test_every_request_of_a_long_session_comes_back_byte_for_byte():
    def shop(n: int, request: Request) -> Any:
        if n % 7 == 0:
            return [("refund", {"order": f"o{n}", "amount": 500}), ("look", {"n": n})]
        return script(n, request)

    model = CheckingModel(shop)

    async def main() -> None:
        async with perdure.open_async("memory://") as db:
            for i in range(12):
                # The instructions, the context and the tools change on the way.
                tools = [look, refund] if i < 6 else [look, refund, act]
                agent = Agent(
                    "shop", model=model, tools=tools,
                    instructions=f"Rules of day {i // 4}", params={"temperature": 0.1 * (i // 5), "seed": i // 5},
                    window=Window(4000, low_water=1500), compactor=Compactor(max_tokens=150), max_turns=1000,
                )  # fmt: skip
                context = {"day": i // 2, "who": "Ünï"} if i % 3 else None
                result = await agent.run(db, session="s", message=f"task {i}", context=context)
                while result.status == "waiting_approval":
                    for n, approval in enumerate(result.approvals):
                        edited = {**approval.args, "amount": 101} if n % 2 else None
                        if i % 4 == 3:
                            await db.reject("s", approval.id, by="bob", reason="no")
                        else:
                            await db.approve("s", approval.id, by="bob", args=edited)
                    result = await agent.run(db, session="s", context=context)
                assert result.ok, result
                # What is true for this run is told, and what was true for another is not.
                told = model.seen[-1].messages[0]["content"]
                assert ('{"day": ' in told) == (context is not None)
                assert context is None or json.dumps(context, ensure_ascii=False, sort_keys=True) in told
            steps = await answers(db, "s")
            assert len(steps) == len(model.seen)
            assert model.problems == []
            for step, seen in zip(steps, model.seen, strict=True):
                again = await asyncio.to_thread(rebuild, db, "s", step)
                assert as_bytes(again) == as_bytes(seen), step
            # Those of the compactor, too.
            cleaned = [
                c.step for c in reversed(await db.history("s", limit=10_000)) if c.more.get("model", {}).get("use")
            ]
            assert len(cleaned) == len(model.summaries) > 3
            for step, seen in zip(cleaned, model.summaries, strict=True):
                assert as_bytes(rebuild(db, "s", step)) == as_bytes(seen), step

    asyncio.run(main())


def test_a_branch_gives_back_its_own_requests():
    model = CheckingModel(script)

    async def main() -> None:
        async with opened() as db:
            await worker(model).run(db, session="s", message="task")
            steps = await answers(db, "s")
            async with db.session("s") as s:
                await s.fork("other", at=steps[4])
            await worker(model).run(db, session="s", branch="other")
            branched = await answers(db, "s", "other")
            assert branched[:5] == steps[:5]
            for step, seen in zip(branched[5:], model.seen[10:], strict=True):
                assert as_bytes(rebuild(db, "s", step, branch="other")) == as_bytes(seen)

    asyncio.run(main())


def test_a_step_that_answers_nothing_has_no_request():
    async def main() -> None:
        async with opened() as db:
            await worker(CheckingModel(script)).run(db, session="s", message="task")
            with pytest.raises(InvalidInput, match="step 2 of session 's' holds no answer"):
                rebuild(db, "s", 2)

    asyncio.run(main())


def test_a_session_that_was_killed_again_and_again_gives_its_requests_back(tmp_path: Path):
    """A real process, really killed; it writes down what it sends before it is answered."""
    log = tmp_path / "sent.jsonl"
    command = [sys.executable, "-m", "tests.campaigns.long_conversation.victim", str(tmp_path / "agents.db"), str(log)]
    kills = 0
    # After so many requests of its own each life ends; the last one is left alone.
    for life in [3, 1, 4, 9, 2, 6, 5, 3, 0]:
        ended = subprocess.run([*command, str(life)], cwd=ROOT, timeout=120, check=False)
        kills += ended.returncode == -signal.SIGKILL
        if not life:
            assert ended.returncode == 0
    assert kills == 8
    sent = {line["digest"]: line["request"] for line in map(json.loads, log.read_text().splitlines())}

    async def main() -> None:
        async with opened(f"sqlite:///{tmp_path}/agents.db") as db:
            steps = await answers(db, "s")
            assert len(steps) == 40
            for step in steps:
                again = rebuild(db, "s", step)
                assert json.dumps(again, ensure_ascii=False) == sent[request_digest(again)]

    asyncio.run(main())


def test_every_answer_names_what_it_depends_on():
    async def more(**options: Any) -> dict[str, Any]:
        version = options.pop("tool_version", "1")
        agent = Agent(
            "a", model=CheckingModel(lambda n, r: "yes"), tools=[tool(version=version, read=True)(look.fn)],
            params={"temperature": 0.3, "top_p": 0.9, "seed": 11, "max_tokens": 50}, **options,
        )  # fmt: skip
        async with opened() as db:
            await agent.run(db, session="s", message="hi")
            assert request_digest(rebuild(db, "s", 1)) == (await db.history("s"))[0].more["model"]["request"]
            return (await db.history("s"))[0].more

    async def main() -> None:
        base, other, newer = await more(), await more(instructions="Be kind."), await more(tool_version="2")
        model = base["model"]
        assert (model["name"], model["version"]) == ("checking", "checking-1")
        assert (model["temperature"], model["top_p"], model["seed"]) == (0.3, 0.9, 11)
        assert other["model"]["prompt"] != model["prompt"]
        assert other["tools"] == base["tools"] != newer["tools"]
        assert newer["model"]["prompt"] == model["prompt"]
        assert base["usage"]["output"] == 10

    asyncio.run(main())
