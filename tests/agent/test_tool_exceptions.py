"""What a tool's exception means when a model has called it: the cells of the table, gone through by an agent."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, Done, ModelRetry, NotDone, ScriptedModel, ToolError, Unknown, tool
from perdure.agent.models.scripted import calls
from perdure.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import RunResult

DECLARED: dict[str, dict[str, Any]] = {
    "read": {"read": True},
    "retry": {"if_unsure": "retry", "key_valid_for": "24h"},
    "function": {},
    "ask": {},
    "report": {"if_unsure": "report"},
}
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
@pytest.mark.parametrize("error", [NotDone("sold out"), ToolError("sold out"), ModelRetry("sold out")], ids=repr)
def test_what_says_that_nothing_happened_is_told_to_the_model(way: str, declared: str, error: Exception) -> None:
    desk = Desk(way, declared, [error])
    assert go(desk) == ("done", [{"error": "sold out"}])


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
@pytest.mark.parametrize(
    ("declared", "status", "last", "made", "ids"),
    [
        ("read", "done", "paid", 2, 2),
        ("retry", "done", "paid", 2, 1),
        ("function", "in_doubt", None, 1, 1),
        ("ask", "waiting_approval", None, 1, 1),
        ("report", "done", {"error"}, 1, 1),
    ],
)
def test_a_model_that_repeats_a_call_that_raised(
    way: str, declared: str, status: str, last: Any, made: int, ids: int
) -> None:
    desk = Desk(way, declared, [KeyError("id")], times=2)
    found, told = go(desk)
    assert found == status
    assert (len(desk.ids), len(set(desk.ids))) == (made, ids)
    if last is not None:
        assert (set(told[-1]) if isinstance(last, set) else told[-1]) == last


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("finds", [Done("paid before"), NotDone])
def test_who_can_be_asked_about_a_call_that_raised_is_asked(way: str, finds: Any) -> None:
    desk = Desk(way, "function", [KeyError("id")], finds=finds)
    status, (told,) = go(desk)
    assert status == "done"
    assert told == "paid before" if isinstance(finds, Done) else "KeyError" in told["error"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("declared", "status", "made"),
    [
        ("read", "done", 2),
        ("retry", "done", 2),
        ("function", "in_doubt", 1),
        ("ask", "in_doubt", 1),
        ("report", "done", 1),
    ],
)
def test_a_lost_answer(way: str, declared: str, status: str, made: int) -> None:
    desk = Desk(way, declared, [TimeoutError()])
    found, told = go(desk)
    assert found == status
    assert (len(desk.ids), len(set(desk.ids))) == (made, 1)
    if declared == "report":
        assert "nobody knows" in told[0]["error"]


@pytest.mark.parametrize("way", WAYS)
def test_a_read_whose_answer_stays_lost_has_failed(way: str) -> None:
    desk = Desk(way, "read", [TimeoutError()] * 3)
    status, (told,) = go(desk)
    assert status == "done"
    assert "TimeoutError" in told["error"]
    assert len(desk.ids) == 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("declared", [name for name in DECLARED if name != "read"])
def test_an_error_of_our_own_store_ends_the_run_and_the_call_stays_started(way: str, declared: str) -> None:
    import asyncio

    desk = Desk(way, declared, [perdure.LeaseLost("lost")])

    async def work() -> None:
        async with desk.db:
            with pytest.raises(perdure.LeaseLost):
                await desk.run()
            effects = (await desk.db.read("s")).book["effects"].plain()
            assert [effect["status"] for effect in effects.values()] == ["started"]

    asyncio.run(work())


def test_a_tool_that_keeps_asking_to_be_called_otherwise_is_left_after_the_second_time() -> None:
    desk = Desk("sync", "ask", [ModelRetry("in cents")] * 3, times=3)
    _, told = go(desk)
    assert [one["error"] for one in told[:2]] == ["in cents"] * 2
    assert "do not call it again" in told[2]["error"]


def test_an_approved_repetition_is_made() -> None:
    import asyncio

    desk = Desk("async", "ask", [KeyError("id")], times=2)

    async def work() -> tuple[str, list[Any]]:
        async with desk.db:
            result = await desk.run()
            (request,) = result.approvals
            assert "ended with KeyError" in request.because
            await desk.db.approve("s", request, by="ana")
            return (await desk.run(None)).status, await desk.told()

    status, told = asyncio.run(work())
    assert status == "done"
    assert told[-1] == "paid"
    assert len(desk.ids) == 2
