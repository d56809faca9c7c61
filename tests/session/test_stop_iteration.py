"""A plain function that raises StopIteration, as ``next()`` does where nothing is found: an exception like any other.

No future of asyncio can carry it, so whoever awaited such a function in a thread would wait for ever.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

import perdure
from perdure import Agent, ApprovalRuleFailed, Context, EffectRaised, ScriptedModel, calls, tool
from perdure.system.flow_async import in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LONG = 20
"""Seconds after which somebody waits for ever."""


def find(order: int) -> str:
    return next(o for o in ["a"] if o == order)


def nothing(*_: Any, **__: Any) -> Any:
    return next(iter(()))


async def nowhere(order: int) -> str:
    return nothing(order)


async def no_more(order: int) -> str:
    raise StopAsyncIteration(order)


def ends(order: int) -> str:
    raise TimeoutError


def put(work: Callable[[perdure.AsyncSession], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with perdure.open_async("memory://") as db, db.session("s") as s:
            return await asyncio.wait_for(work(s), LONG)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (find, "find raised StopIteration "),
        (nowhere, "coroutine raised StopIteration"),
        (no_more, "StopAsyncIteration: 9"),
    ],
)
def test_a_call_ends_as_with_any_other_exception(fn: Any, said: str) -> None:
    with pytest.raises(EffectRaised, match=said):
        put(lambda s: s.call(tool(fn), 9))


def test_a_handle_that_blocks_says_the_same() -> None:
    with (
        perdure.open("memory://") as db,
        db.session("s") as s,
        pytest.raises(EffectRaised, match="raised StopIteration "),
    ):
        s.call(tool(find), 9)


@pytest.mark.parametrize(
    "how", [lambda s: s.call(tool(read=True)(find), 9), lambda s: s.run("k", nothing)], ids=["read", "run"]
)
def test_what_is_passed_on_is_told_as_python_tells_one_of_a_coroutine(how: Any) -> None:
    with pytest.raises(RuntimeError, match="raised StopIteration") as error:
        put(how)
    assert isinstance(error.value.__cause__, StopIteration)


@pytest.mark.parametrize(
    "declared", [{"approve": nothing}, {"approve": True, "facts": nothing}], ids=["approve", "facts"]
)
def test_a_rule_for_agreement_that_ends_so_has_failed(declared: dict[str, Any]) -> None:
    with pytest.raises(ApprovalRuleFailed, match="StopIteration"):
        put(lambda s: s.call(tool(**declared)(find), 9))


def test_who_is_asked_what_became_of_a_call_has_found_out_nothing() -> None:
    with pytest.raises(perdure.InDoubt, match="StopIteration"):
        put(lambda s: s.call(tool(if_unsure=nothing)(ends), 9))


def test_who_is_asked_for_a_result_that_comes_later_has_nothing_to_say_yet() -> None:
    @tool(poll=nothing)
    def order(item: int) -> Any:
        return perdure.Later("job")

    with pytest.raises(perdure.ResultPending, match="StopIteration"):
        put(lambda s: s.call(order, 9))


@pytest.mark.parametrize("declared", [{}, {"read": True}, {"timeout": 1.0}], ids=["effect", "read", "timeout"])
def test_an_agent_tells_its_model(declared: dict[str, Any]) -> None:
    agent = Agent("x", model=ScriptedModel([calls(("find", {"order": 9})), "done"]), tools=[tool(**declared)(find)])

    async def main() -> Any:
        async with perdure.open_async("memory://") as db:
            result = await asyncio.wait_for(agent.run(db, session="s", message="go"), LONG)
            assert result.text == "done"
            return [m["content"] for m in (await db.read("s")).messages.plain() if m["role"] == "tool"]

    (told,) = asyncio.run(main())
    assert "StopIteration" in told


class Held:
    """Dependencies that fail while they are opened, or while they are left."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> Self:
        return nothing() if self._where == "entered" else self

    def __exit__(self, *_: object) -> None:
        nothing()


def _instructed(ctx: Context) -> str:
    return nothing()


@pytest.mark.parametrize(
    "made",
    [{"instructions": _instructed}, {"deps": lambda: Held("entered")}, {"deps": lambda: Held("left")}],
    ids=["instructions", "entered", "left"],
)
def test_a_run_ends_with_it_where_an_agent_is_made_of_such_a_function(made: dict[str, Any]) -> None:
    @tool(read=True)
    def look(order: int, ctx: Context) -> str:
        return str(ctx.deps)

    async def main() -> Any:
        agent = Agent("x", model=ScriptedModel([calls(("look", {"order": 9})), "done"]), tools=[look], **made)
        async with perdure.open_async("memory://") as db:
            return await asyncio.wait_for(agent.run(db, session="s", message="go"), LONG)

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        asyncio.run(main())


def test_a_thread_carries_it() -> None:
    async def main() -> Any:
        return await asyncio.wait_for(in_thread(nothing), LONG)

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        asyncio.run(main())


def test_one_place_hands_functions_to_the_threads_of_an_event_loop() -> None:
    source = Path(perdure.__file__).parent
    by_itself = re.compile(r"to_thread\(|asyncio\.to_thread|run_in_executor\(")
    found = [p.relative_to(source).as_posix() for p in source.rglob("*.py") if by_itself.search(p.read_text())]
    assert sorted(found) == ["system/flow_async.py"], "await system.flow_async.in_thread there"
