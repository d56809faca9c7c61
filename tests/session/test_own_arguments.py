"""Whatever a function does to its arguments, each attempt, and all that its tool declares, gets what is recorded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, ApprovalNeeded, Context, NotDone, ScriptedModel, tool
from perdure.agent.models.scripted import calls
from perdure.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

CART = [100, 20, [3]]


class Till:
    """A tool that uses up what it is given and then loses its first answer, and what it was given."""

    def __init__(self, **declared: Any) -> None:
        self.seen: list[tuple[str, list[Any]]] = []

        def pay(items: list[Any], ctx: Context) -> int:
            """Pay."""
            self.seen.append((ctx.effect_id, [[*one] if isinstance(one, list) else one for one in items]))
            consume(items)
            if ctx.attempt == 1:
                raise TimeoutError
            return len(self.seen)

        options: dict[str, Any] = {"if_unsure": "retry", **declared}
        self.pay = tool(**options)(pay)

    def check(self) -> None:
        assert [given for _, given in self.seen] == [CART, CART]
        assert len({effect for effect, _ in self.seen}) == 1


def consume(items: list[Any]) -> int:
    items.pop().clear()
    items.clear()
    return 0


@pytest.fixture
def db() -> Any:
    with perdure.open("memory://", clock=FakeClock()) as db:
        yield db


@pytest.mark.parametrize("how", ["directly", "in a run", "from the state", "in a tuple"])
def test_a_retry_is_made_with_what_is_recorded(db: perdure.Database, how: str) -> None:
    till, cart = Till(), [100, 20, [3]]
    with db.session("s") as s:
        s.vars["cart"] = CART
        s.commit()
        given: dict[str, Callable[[], Any]] = {
            "directly": lambda: s.call(till.pay, cart),
            "in a run": lambda: s.run("r", lambda s: s.call(till.pay, cart)),
            "from the state": lambda: s.call(till.pay, s.vars["cart"]),
            "in a tuple": lambda: s.call(till.pay, (100, 20, cart[2])),
        }
        assert given[how]() == 2
        assert how == "in a run" or s.effects()[-1]["args"] == {"items": CART}
        assert s.vars["cart"] == CART
    till.check()
    assert cart == CART


def test_awaited_handles_and_agents_do_the_same() -> None:
    till, agents = Till(), Till()

    async def main() -> None:
        async with perdure.open_async("memory://", clock=FakeClock()) as db:
            async with db.session("s") as s:
                cart = [100, 20, [3]]
                assert await s.call(till.pay, cart) == 2
                assert cart == CART
            agent = Agent("a", model=ScriptedModel([calls(("pay", {"items": CART})), "ok"]), tools=[agents.pay])
            assert (await agent.run(db, session="t", message="go")).status == "done"

    asyncio.run(main())
    till.check()
    agents.check()


def test_what_a_tool_declares_cannot_change_what_is_made(db: perdure.Database) -> None:
    till = Till(
        if_unsure=lambda items, ctx: NotDone if consume(items) == 0 else None,
        approve=lambda a: consume(a["items"]) == 0,
        facts=lambda items: [*items, consume(items)],
        recheck=lambda then, now: then == now and consume(now[:-1]) == 0 and now.pop() == 0,
    )
    with db.session("s") as s:
        with pytest.raises(ApprovalNeeded) as asked:
            s.call(till.pay, [100, 20, [3]])
        assert asked.value.approval.args == {"items": CART}
        db.approve("s", asked.value.approval.id, by="ana")
        assert s.call(till.pay, [100, 20, [3]]) == 2
        assert s.effects()[-1]["args"] == {"items": CART}
    till.check()


def test_a_read_is_tried_again_with_the_same_and_a_default_stays_one(db: perdure.Database) -> None:
    seen: list[Any] = []

    @tool(read=True)
    def look(ids: list[int] = [1, 2]) -> int:  # noqa: B006
        seen.append([*ids])
        ids.clear()
        if len(seen) == 1:
            raise TimeoutError
        return len(seen)

    with db.session("s") as s:
        assert (s.call(look), s.call(look)) == (2, 3)
    assert seen == [[1, 2]] * 3


@dataclass
class Order:
    number: str
    more: dict[str, Any] = field(default_factory=dict[str, Any])


def test_parts_of_typed_arguments_are_their_own_as_well(db: perdure.Database) -> None:
    seen: list[Any] = []

    @tool(if_unsure="retry")
    def pay(order: Order, ctx: Context) -> None:
        seen.append(dict(order.more))
        order.more.clear()
        if ctx.attempt == 1:
            raise TimeoutError

    with db.session("s") as s:
        s.call(pay, order := Order("1", {"tip": [1]}))
    assert seen == [{"tip": [1]}] * 2
    assert order.more == {"tip": [1]}
