"""Going back to before a refund and on from there: the ledger of the shop, in another process, tells what happened."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.agent.agent import Agent
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.session.tools.declaration import tool
from tests.shop.client import open_shop
from tests.shop.server import receipt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from perdure.agent.run_result import RunResult
    from tests.shop.client import Shop


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with open_shop() as shop:
        yield shop


class Past:
    """A session that refunded an order at its second message, and what it takes to go on from before."""

    def __init__(self, shop: Shop, url: str, order: str, amounts: tuple[int, ...] = (10,)) -> None:
        self.shop, self.url, self.order = shop, url, order

        @tool(if_unsure="retry")
        def refund(order: str, amount: int, ctx: Any) -> dict[str, Any]:
            """Refund an order."""
            return shop.charge(order, ctx.effect_id)

        wanted = [("refund", {"order": order, "amount": amount}) for amount in amounts]
        self.agent = Agent("support", model=ScriptedModel(["Hello.", calls(*wanted), "Refunded."]), tools=[refund])
        self.run(message="Hi")
        self.run(message="Refund it")
        with perdure.open(url) as db, db.session("s") as s:
            s.fork("again", at=1)

    def run(self, **options: Any) -> RunResult:
        return self.agent.run_sync(self.url, session="s", **options)

    def again(self, **options: Any) -> RunResult:
        """Ask for the refund once more, on the branch from before it."""
        return self.run(branch="again", message="Refund it", **options)

    @property
    def charges(self) -> int:
        return self.shop.order(self.order)["charges"]

    def told(self, branch: str = "again") -> str:
        with perdure.open(self.url) as db:
            return next(m["content"] for m in db.read("s", branch=branch).plain()["messages"] if m["role"] == "tool")


def test_the_ledger_does_not_change_and_the_model_is_told_what_it_was_told_then(shop: Shop, tmp_path: Path) -> None:
    past = Past(shop, f"sqlite:///{tmp_path}/a.db", "default")
    assert past.charges == 1
    result = past.again()
    assert (result.status, result.text) == ("done", "Refunded.")
    assert shop.order("default") == {"order": "default", "charges": 1, "seen": 1}
    assert past.told() == past.told("main")
    assert receipt("default")["receipt"] in past.told()


def test_a_second_refund_that_only_the_new_branch_makes_is_made(shop: Shop, tmp_path: Path) -> None:
    # The same call twice in one answer, where the past knows it once: the first is known, the second is new.
    past = Past(shop, f"sqlite:///{tmp_path}/a.db", "second")
    past.agent.model = ScriptedModel(["Hello.", *[calls(("refund", {"order": "second", "amount": 10}))] * 2, "Twice."])
    assert past.again().text == "Twice."
    assert past.charges == 2


def test_live_asks_first_and_does_it_when_somebody_agrees(shop: Shop, tmp_path: Path) -> None:
    past = Past(shop, f"sqlite:///{tmp_path}/a.db", "live")
    waiting = past.again(effects="live")
    assert waiting.status == "waiting_approval"
    assert "done on another branch" in waiting.approvals[0].because
    assert past.charges == 1
    with perdure.open(past.url) as db:
        db.approve("s", waiting.approvals[0].id, by="ana")
    assert past.run(branch="again", effects="live").text == "Refunded."
    assert past.charges == 2


def test_live_does_nothing_when_somebody_refuses(shop: Shop, tmp_path: Path) -> None:
    past = Past(shop, f"sqlite:///{tmp_path}/a.db", "refused")
    waiting = past.again(effects="live")
    with perdure.open(past.url) as db:
        db.reject("s", waiting.approvals[0].id, by="ana", reason="once is enough")
    assert past.run(branch="again", effects="live").status == "done"
    assert past.charges == 1
    assert "once is enough" in past.told()


def test_live_asks_before_it_makes_what_was_under_way_where_the_branch_parts_and_is_done_since(
    shop: Shop, tmp_path: Path
) -> None:
    past = Past(shop, f"sqlite:///{tmp_path}/a.db", "under-way")
    with perdure.open(past.url) as db:
        begun = next(c.step for c in db.history("s") if "effects" in c.more)
        with db.session("s") as s:
            s.fork("live", at=begun)
        (done,) = (e["id"] for e in db.read("s", at=begun).book["effects"].values())
    result = past.run(branch="live", effects="live")
    assert (result.status, past.charges) == ("waiting_approval", 1)
    assert result.approvals[0].because == f"the same was done on another branch (effect {done})"
    assert past.run(branch="live", effects="live").status == "waiting_approval"
    with perdure.open(past.url) as db:
        db.approve("s", result.approvals[0].id, by="ana")
    assert (past.run(branch="live", effects="live").status, past.charges) == ("done", 2)


def test_dry_calls_nothing_and_says_so(shop: Shop, tmp_path: Path) -> None:
    past = Past(shop, f"sqlite:///{tmp_path}/a.db", "dry")
    past.agent.model = ScriptedModel(["Hello.", calls(("refund", {"order": "dry", "amount": 11})), "Tried."])
    assert past.again(effects="dry").status == "done"
    assert past.charges == 1
    assert "dry run" in past.told()


def test_of_parallel_refunds_each_is_known_by_the_other_branch(shop: Shop, tmp_path: Path) -> None:
    past = Past(shop, f"sqlite:///{tmp_path}/a.db", "parallel", amounts=(1, 2, 3, 4))
    assert past.charges == 4
    past.run(message="Thanks")
    assert past.again().text == "Refunded."
    assert past.charges == 4


def test_a_refund_nobody_knows_about_is_not_made_on_another_branch(shop: Shop, tmp_path: Path) -> None:
    @tool(if_unsure="report")
    def refund(order: str) -> dict[str, Any]:
        return shop.charge(order)

    shop.drop("unknown")
    model = ScriptedModel(["Hello.", calls(("refund", {"order": "unknown"})), "I do not know."])
    agent = Agent("support", model=model, tools=[refund])

    async def scene() -> None:
        async with perdure.open_async(f"sqlite:///{tmp_path}/a.db") as db:
            for message in ("Hi", "Refund it", "Thanks"):
                assert (await agent.run(db, session="s", message=message)).status == "done"
            async with db.session("s") as s:
                await s.fork("again", at=1)
            assert (await agent.run(db, session="s", branch="again", message="Refund it")).status == "done"
            messages = (await db.read("s", branch="again")).plain()["messages"]
            said = next(m["content"] for m in messages if m["role"] == "tool")
            assert "was begun on another branch" in said
            assert "nobody knows whether it was done" in said

    asyncio.run(scene())
    assert shop.order("unknown")["seen"] == 1
