"""Functions that a tool declares may be asynchronous: they are awaited, or refused before anything has happened."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import tool

prices = {"BA1": 100}
bought: list[int] = []


async def _price(flight: str) -> int:
    return prices[flight]


async def _no_dearer(then: int, now: int) -> bool:
    return now <= then


async def _dear(args: dict[str, Any]) -> bool:
    return prices[args["flight"]] > 50


async def _found(flight: str) -> perdure.Done:
    return perdure.Done(f"found {flight}")


async def _arrived(handle: str) -> perdure.Done:
    return perdure.Done(f"{handle} arrived")


def make(ends: Any = None, **declared: Any) -> perdure.Tool:
    @tool(**declared)
    def buy(flight: str) -> Any:
        bought.append(prices[flight])
        if isinstance(ends, BaseException):
            raise ends
        return ends or f"bought for {prices[flight]}"

    return buy


@pytest.fixture(autouse=True)
def _fresh() -> None:
    prices["BA1"] = 100
    bought.clear()


def test_they_are_awaited_and_their_word_counts():
    async def call(db: perdure.AsyncDatabase, session: str, buy: perdure.Tool) -> Any:
        async with db.session(session) as s:
            try:
                return await s.call(buy, "BA1")
            except perdure.ApprovalNeeded as e:
                return e.approval

    async def main() -> None:
        async with perdure.open_async("memory://") as db:
            careful = make(if_unsure="retry", approve=_dear, facts=_price, recheck=_no_dearer)
            asked = await call(db, "s", careful)
            assert asked.facts == 100
            await db.approve("s", asked.id, by="ana")
            prices["BA1"] = 9999
            again = await call(db, "s", careful)
            assert (again.facts, again.because) == (9999, "what the agreement rested on has changed")
            assert bought == []
            await db.approve("s", again.id, by="ana")
            prices["BA1"] = 9000
            assert await call(db, "s", careful) == "bought for 9000"
            prices["BA1"] = 10
            assert await call(db, "cheap", careful) == "bought for 10"
            assert await call(db, "unsure", make(TimeoutError(), if_unsure=_found)) == "found BA1"
            assert await call(db, "later", make(perdure.Later("job-1"), poll=_arrived)) == "job-1 arrived"

    asyncio.run(main())


class _Rule:
    async def __call__(self, args: dict[str, Any]) -> bool:
        return False


@pytest.mark.parametrize(
    ("option", "declared"),
    [
        ("approve", {"approve": _dear}),
        ("approve", {"approve": _Rule()}),
        ("facts", {"approve": True, "facts": _price}),
        ("recheck", {"approve": True, "facts": lambda flight: prices[flight], "recheck": _no_dearer}),
        ("if_unsure", {"if_unsure": _found}),
        ("poll", {"poll": _arrived}),
    ],
)
def test_a_session_that_blocks_refuses_them_and_nothing_has_happened(option: str, declared: dict[str, Any]):
    buy = make(**declared)
    with perdure.open("memory://") as db, db.session("s") as s:
        for _ in range(2):
            with pytest.raises(
                perdure.Misuse, match=rf"buy was not called: the {option} function of buy is asynchronous.*open_async"
            ):
                s.call(buy, "BA1")
        assert (s.effects(), s.approvals(None), bought) == ([], [], [])


def test_a_tool_that_is_asynchronous_itself_is_refused_by_it_too():
    @tool(if_unsure="ask")
    async def buy(flight: str) -> None:
        bought.append(1)

    with perdure.open("memory://") as db, db.session("s") as s:
        with pytest.raises(perdure.Misuse, match="buy was not called: buy is asynchronous"):
            s.call(buy, "BA1")
        assert s.effects() == []


def test_an_open_call_of_one_stays_as_it_was_and_takes_what_was_reported():
    """Begun where functions are awaited, and gone on with where they cannot be."""
    url = "memory://begun_awaited"
    buy = make(perdure.Later("job-1"), poll=lambda handle: None)
    with perdure.open(url) as db:
        with db.session("s") as s, pytest.raises(perdure.ResultPending) as pending:
            s.call(buy, "BA1")
        awaited = make(poll=_arrived)
        with db.session("s") as s, pytest.raises(perdure.Misuse, match="the poll function of buy is asynchronous"):
            s.call(awaited, "BA1")
        db.post_outcome("s", pending.value.effect, "there")
        with db.session("s") as s:
            assert s.call(awaited, "BA1") == "there"


def test_what_ends_a_run_is_no_asynchronous_function():
    async def until(text: str) -> bool:
        return False

    with pytest.raises(perdure.InvalidInput, match="until is a marker or a plain function"):
        perdure.Agent("a", model=perdure.FunctionModel(lambda r: "hello"), until=until)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("answer", [None, "false", 0])
@pytest.mark.parametrize("option", ["approve", "recheck"])
def test_a_rule_that_says_neither_yes_nor_no_is_no_agreement(option: str, answer: object) -> None:
    made: list[int] = []
    rules: dict[str, Any] = {"approve": True, "facts": lambda amount: amount, option: lambda *_: answer}

    @perdure.tool(**rules)
    def pay(amount: int) -> None:
        made.append(amount)

    with perdure.open("memory://") as db, db.session("s") as s:
        if option == "recheck":
            with pytest.raises(perdure.ApprovalNeeded) as asked:
                s.call(pay, 5)
            db.approve("s", asked.value.approval.id, by="ana")
        with pytest.raises(perdure.ApprovalRuleFailed, match=f"{option} raised TypeError.*must return True or False"):
            s.call(pay, 5)
    assert made == []
