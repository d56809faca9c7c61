"""An agent's tools that return what they do not declare: in the run's notes, the history and the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, InvalidInput, Later, ScriptedModel, tool
from perdure.agent.models.scripted import calls
from perdure.agent.replay.replay import replay
from tests.agent.working import by_turn, opened, play

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Receipt:
    """What was paid."""

    number: int


@tool
def pay() -> Receipt:
    """Pay."""
    return {"number": "nope"}  # type: ignore[return-value]


@tool(read=True)
async def count() -> int:
    """Count."""
    return "abc"  # type: ignore[return-value]


@tool(read=True, cache="1h")
def price() -> int:
    """Look a price up."""
    return "dear"  # type: ignore[return-value]


@tool
def ship() -> int | Later:
    """Ship; the number comes later."""
    return Later("s-1")


@tool(approve=True)
def wire() -> str:
    """Send money."""
    return "wired"


SAID = "its result does not fit what it declares to return"


def desk(*answers: Any) -> Agent:
    return Agent("desk", model=ScriptedModel(by_turn(*answers)), tools=[pay, count, price, ship, wire])


def told_to_the_model(state: dict[str, Any]) -> list[str]:
    return [m["content"] for m in state["messages"] if m["role"] == "tool"]


def test_it_is_told_in_notes_history_and_log_and_the_model_gets_what_was_returned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = calls(("pay", {}), ("count", {}), ("price", {}))

    async def work() -> None:
        async with opened(tmp_path) as db:
            agent = desk(asked, calls(("price", {})), "done")
            end = await agent.run(db, session="s", message="go")
            assert end.status == "done"
            assert sorted(note.split()[0] for note in end.notes if SAID in note) == ["count", "pay", "price", "price"]
            assert any("Expected `int`, got `str` - at `$.number`" in note for note in end.notes)
            assert sum(SAID in r.getMessage() for r in caplog.records if r.levelno == logging.WARNING) == 4
            assert told_to_the_model((await db.read("s")).plain()) == ['{"number": "nope"}', "abc", "dear", "dear"]
            points = await db.history("s")
            assert {p.more["tool"] for p in points if "misfit" in p.more} == {"pay", "count", "price"}
            assert any(SAID in p.more.get("note", "") for p in points), "with the next answer"
            assert (await replay(db, "s", agent=agent)).identical
            quiet = Agent("desk", model=ScriptedModel(lambda _: "hello"), tools=[pay, count, price, ship, wire])
            assert (await quiet.run(db, session="s", message="again")).notes == (), "another run has its own"

    play(work())


def test_a_run_that_goes_on_in_another_process_still_tells_it(tmp_path: Path) -> None:
    async def begin() -> None:
        async with opened(tmp_path) as db:
            end = await desk(calls(("pay", {}), ("wire", {})), "done").run(db, session="s", message="go")
            assert end.status == "waiting_approval"
            assert len(end.notes) == 1
            await db.approve("s", end.approvals[0], by="ana")

    async def go_on() -> None:
        async with opened(tmp_path) as db:
            end = await desk(calls(("pay", {}), ("wire", {})), "done").run(db, session="s")
            assert end.status == "done"
            assert [note.split()[0] for note in end.notes] == ["pay"]
            assert told_to_the_model((await db.read("s")).plain()) == ['{"number": "nope"}', "wired"]

    play(begin())
    play(go_on())


def test_a_result_that_comes_later_is_checked_where_it_is_said(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as db:
            agent = desk(calls(("ship", {})), "done")
            end = await agent.run(db, session="s", message="go")
            assert end.status == "waiting_result"
            effect = (await db.read("s")).book["agent"]["calls"][0]["slot"]
            id = (await db.read("s")).book["effects"][effect]["id"]
            with pytest.raises(InvalidInput, match="the result of ship must be integer, not 'soon'"):
                await db.post_outcome("s", id, "soon")
            await db.post_outcome("s", id, 7)
            end = await agent.run(db, session="s")
            assert (end.status, end.notes) == ("done", ())
            assert told_to_the_model((await db.read("s")).plain()) == ["7"]

    play(work())
