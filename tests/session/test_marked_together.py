"""What belongs into one commit is in that commit: a mark "started", an agreement used up, an outcome's place."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import tool
from perdure.agent.agent import Agent
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.errors import Unavailable
from perdure.system import faults

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    faults.hook = None


def test_an_agreement_is_not_used_up_by_a_call_that_could_not_be_started(db: perdure.Database) -> None:
    booked: list[str] = []

    @tool(approve=True)
    def book(flight: str) -> str:
        booked.append(flight)
        return f"booked {flight}"

    with db.session("s") as s:
        with pytest.raises(perdure.ApprovalNeeded) as needed:
            s.call(book, "BA1")
        db.approve("s", needed.value.approval.id, by="ana")

        def fails(point: str) -> None:
            if point == "commit.before_write":
                faults.hook = None
                raise Unavailable("the store is away")

        faults.hook = fails
        with pytest.raises(Unavailable):
            s.call(book, "BA1")
        assert booked == []
        assert s.call(book, "BA1") == "booked BA1"
        assert booked == ["BA1"]
        assert [a.status for a in s.approvals(None)] == ["used"]


def test_a_commit_never_says_that_a_sibling_has_started_whose_turn_has_not_come(tmp_path: Path) -> None:
    """Three calls are agreed to and started side by side: each commit marks one of them, its own."""

    @tool(approve=True)
    def book(flight: str) -> str:
        return f"booked {flight}"

    flights = ["BA1", "BA2", "BA3", "BA4"]
    model = ScriptedModel([calls(*(("book", {"flight": f}) for f in flights)), "Booked."])
    agent = Agent("travel", model=model, tools=[book])

    async def scene() -> list[tuple[str, int]]:
        async with perdure.open_async(f"sqlite:///{tmp_path}/a.db") as db:
            for approval in (await agent.run(db, session="s", message="go")).approvals:
                await db.approve("s", approval.id, by="ana")
            assert (await agent.run(db, session="s")).status == "done"
            marked: list[tuple[str, int]] = []
            for point in reversed(await db.history("s")):
                if point.kind == "started":
                    await _check(db, point, marked)
            return marked

    async def _check(db: Any, point: Any, marked: list[tuple[str, int]]) -> None:
        async with db.session("s") as s:
            await s.fork(f"look-{point.step}", at=point.step)
            await s.switch(f"look-{point.step}")
            begun = [r for r in s.effects() if r["attempt"]]
            marked.append((point.more["effect"], len(begun)))
            assert point.more["effect"] in [r["id"] for r in begun]

    assert [n for _, n in asyncio.run(scene())] == [1, 2, 3, 4]
