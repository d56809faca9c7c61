"""What a model is told of a tool's exception, and a person of its repetition.

What it means for the call is in ``tests/agent/test_what_a_call_means.py``.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, Done, ModelRetry, NotDone, ScriptedModel, Unknown, tool
from perdure.agent.models.scripted import calls
from perdure.testing import FakeClock
from tests.doors import DECLARED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import RunResult

WAYS = ["sync", "async"]


class Desk:
    """An agent whose model calls ``pay`` so many times, one after the other, and then says what it was told."""

    def __init__(self, way: str, declared: str, plan: Sequence[Any], *, times: int = 1, finds: Any = None) -> None:
        self._plan = list(plan)
        self.ids: list[str] = []
        self.clock = FakeClock()
        options = dict(DECLARED[declared])
        if declared == "function":
            options["if_unsure"] = lambda amount: finds if finds is not None else Unknown()

        def act(ctx: perdure.Context) -> str:
            self.ids.append(ctx.effect_id)
            next = self._plan.pop(0) if self._plan else "paid"
            if isinstance(next, BaseException):
                raise next
            return next

        if way == "sync":

            @tool(**options)
            def pay(amount: int, ctx: perdure.Context) -> str:
                return act(ctx)
        else:

            @tool(**options)
            async def pay(amount: int, ctx: perdure.Context) -> str:
                return act(ctx)

        script = [*[calls(("pay", {"amount": 5}))] * times, "that is all"]
        self.agent = Agent("desk", model=ScriptedModel(script), tools=[pay])
        self.db = perdure.open_async("memory://", clock=self.clock, maintain=False)

    async def run(self, message: str | None = "pay") -> RunResult:
        return await self.agent.run(self.db, session="s", message=message)

    async def told(self) -> list[Any]:
        """What the model was told of its calls."""
        read = await self.db.read("s")
        return [_json(m["content"]) for m in read.messages.plain() if m["role"] == "tool"]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


async def _gone_through(desk: Desk) -> tuple[str, list[Any]]:
    async with desk.db:
        result = await desk.run()
        return result.status, await desk.told()


def go(desk: Desk) -> tuple[str, list[Any]]:
    import asyncio

    return asyncio.run(_gone_through(desk))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("declared", DECLARED)
def test_any_other_exception_is_told_to_the_model(way: str, declared: str, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(way, declared, [KeyError("id")])
    with caplog.at_level(logging.WARNING):
        status, (told,) = go(desk)
    assert status == "done"
    assert "KeyError: 'id'" in told["error"]
    assert ("What it had changed by then is not known" in told["error"]) == (declared != "read")
    assert "in act" in caplog.text, "whoever wrote the tool finds where it came from"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("finds", [Done("paid before"), NotDone])
def test_who_can_be_asked_about_a_call_that_raised_is_asked(way: str, finds: Any) -> None:
    desk = Desk(way, "function", [KeyError("id")], finds=finds)
    status, (told,) = go(desk)
    assert status == "done"
    assert told == "paid before" if isinstance(finds, Done) else "KeyError" in told["error"]


def test_a_tool_that_keeps_asking_to_be_called_otherwise_is_left_after_the_second_time() -> None:
    desk = Desk("sync", "ask", [ModelRetry("in cents")] * 3, times=3)
    _, told = go(desk)
    assert [one["error"] for one in told[:2]] == ["in cents"] * 2
    assert "do not call it again" in told[2]["error"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("declared", DECLARED)
def test_once_it_was_done_it_may_do_so_anew(way: str, declared: str) -> None:
    asks = ModelRetry("in cents")
    desk = Desk(way, declared, [asks, asks, "paid", asks, asks], times=5)
    _, told = go(desk)
    assert [one if one == "paid" else one["error"] for one in told] == [
        "in cents",
        "in cents",
        "paid",
        *["in cents"] * 2,
    ]


def test_an_approved_repetition_is_made() -> None:
    import asyncio

    desk = Desk("async", "ask", [KeyError("id")], times=2)

    async def work() -> tuple[str, list[Any]]:
        async with desk.db:
            result = await desk.run()
            (request,) = result.approvals
            assert "ended with KeyError" in request.because
            assert "What it had changed by then is not known" in (await perdure.why_async(desk.db, "s")).line
            await desk.db.approve("s", request, by="ana")
            ended = await desk.run(None)
            (raised,) = ended.raised
            assert (raised.effect, raised.again) == tuple(desk.ids)
            found = (await perdure.why_async(desk.db, "s")).line
            assert found.endswith("raised KeyError: 'id'. The same call was made again since, and was done.")
            return ended.status, await desk.told()

    status, told = asyncio.run(work())
    assert status == "done"
    assert told[-1] == "paid"
    assert len(desk.ids) == 2
