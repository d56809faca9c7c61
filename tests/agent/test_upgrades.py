"""An agent that has changed meets a session that its older self left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure import NotDone, Tool, tool
from perdure.agent.agent import Agent
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.errors import InvalidInput
from perdure.session.tools import migrations
from perdure.session.tools.migrations import tool_migration
from tests.agent.context.scene import Killed, killed_at, opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure.aio import AsyncDatabase

made: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the migrations or the calls of another, nor takes away what other modules have declared."""
    made.clear()
    for registry in ("of_arguments", "of_results", "renamings"):
        monkeypatch.setattr(migrations, registry, {})


def old_refund(**declared: Any) -> Tool:
    """The tool as it was."""

    @tool(if_unsure="retry", approve=lambda a: a["amount"] > 100, **declared)
    def refund(order: str, amount: float) -> dict[str, Any]:
        """Give money back."""
        made.append(("old", order, amount))
        return {"paid": amount}

    return refund


def new_refund(**declared: Any) -> Tool:
    """The tool as it is: cents instead of an amount."""
    declared = {"version": "2", **declared}

    @tool(if_unsure="retry", approve=lambda a: a["cents"] > 10_000, **declared)
    def refund(order: str, cents: int) -> dict[str, Any]:
        """Give money back."""
        made.append(("new", order, cents))
        return {"paid_cents": cents}

    return refund


@tool(read=True)
def status(order: str) -> dict[str, Any]:
    """Look at an order."""
    return {"order": order, "old": True}


WORK = [calls(("refund", {"order": "7", "amount": 450}), ("status", {"order": "1"})), "Done"]


def agent(*tools: Any, script: Any = WORK, **options: Any) -> Agent:
    """An agent with these tools."""
    options.setdefault("instructions", "Be kind.")
    return Agent("shop", model=ScriptedModel(script), tools=tools, **options)


async def waiting(db: AsyncDatabase) -> Any:
    """Leave a session with a call that waits for a person and one that is done, and its approval."""
    result = await agent(old_refund(), status).run(db, session="s", message="refund 7")
    assert result.status == "waiting_approval"
    return result.approvals[0]


def test_what_has_not_changed_goes_on_without_a_word():
    async def main() -> None:
        async with opened() as db:
            approval = await waiting(db)
            await db.approve("s", approval.id, by="bob")
            result = await agent(old_refund(), status).run(db, session="s")
            assert result.ok
            assert result.notes == ()
            assert made == [("old", "7", 450.0)]

    asyncio.run(main())


def optional() -> list[Any]:
    @tool(if_unsure="retry", approve=lambda a: a["amount"] > 100)
    def refund(order: str, amount: float, why: str = "none") -> dict[str, Any]:
        """Give money back."""
        made.append(("optional", order, amount, why))
        return {}

    return [refund, status]


def described() -> list[Any]:
    @tool(if_unsure="retry", approve=lambda a: a["amount"] > 100)
    def refund(order: str, amount: float) -> dict[str, Any]:
        """Pay back what somebody paid."""
        made.append(("described", order, amount))
        return {}

    return [refund, status]


def added() -> list[Any]:
    @tool(read=True)
    def weather(city: str) -> str:
        """Look out of the window."""
        return "rain"

    return [old_refund(), status, weather]


@pytest.mark.parametrize(
    ("tools", "options", "said"),
    [
        (lambda: [old_refund(), status], {"instructions": "Be stern."}, "the instructions have changed"),
        (lambda: [old_refund(), status], {"version": "2"}, "the agent version was '1' and is '2'"),
        (lambda: [old_refund(), status], {"params": {"seed": 4}}, "the model's parameters have changed: seed"),
        (added, {}, "the tool weather is new"),
        (optional, {}, "the parameters of the tool refund have changed: why is new"),
        (described, {}, "the tool refund is described in other words"),
        (lambda: [old_refund()], {}, "the tool status is gone"),
    ],
)
def test_what_harms_no_open_call_goes_on_with_a_note(
    tools: Callable[[], list[Any]], options: dict[str, Any], said: str
):
    async def main() -> None:
        async with opened() as db:
            approval = await waiting(db)
            await db.approve("s", approval.id, by="bob")
            result = await agent(*tools(), **options).run(db, session="s")
            assert result.ok, result
            assert list(result.notes) == [said]
            assert len(made) == 1
            assert made[0][1:3] == ("7", 450.0)
            # The checkpoint of the next answer says so, too, and later ones do not.
            notes = [c.more.get("note") for c in await db.history("s")]
            assert notes[0] == said
            assert (
                await agent(*tools(), script=["", "", "Hi"], **options).run(db, session="s", message="x")
            ).notes == ()

    asyncio.run(main())


def test_open_calls_go_through_the_migrations_and_the_approval_is_asked_for_again():
    @tool_migration("refund", "1", "1.5")
    def rename(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"order": arguments["order"], "euros": arguments["amount"]}

    @tool_migration("refund", "1.5", "2")
    def in_cents(arguments: dict[str, Any]) -> None:
        arguments["cents"] = round(arguments.pop("euros") * 100)

    async def main() -> None:
        async with opened() as db:
            approval = await waiting(db)
            # Agreed to what it was then, which is not what it is now.
            await db.approve("s", approval.id, by="bob")
            result = await agent(new_refund(), status).run(db, session="s")
            assert result.status == "waiting_approval", result
            assert made == []
            (asked,) = result.approvals
            assert asked.id != approval.id
            assert asked.args == {"order": "7", "cents": 45_000}
            assert any("brought from version 1 to 2" in note for note in result.notes)
            assert [c.kind for c in await db.history("s")].count("migrated") == 1
            await db.approve("s", asked.id, by="bob")
            result = await agent(new_refund(), status).run(db, session="s")
            assert result.ok
            assert made == [("new", "7", 45_000)]
            assert result.notes == ()

    asyncio.run(main())


def test_a_process_that_ends_in_the_middle_of_an_upgrade_is_followed_by_one_that_finishes_it(tmp_path: Path):
    @tool_migration("refund", "1", "2")
    def in_cents(arguments: dict[str, Any]) -> None:
        arguments["cents"] = round(arguments.pop("amount") * 100)

    async def main(point: str) -> None:
        url = f"sqlite:///{tmp_path}/{point}.db"
        async with opened(url) as db:
            await waiting(db)
            with pytest.raises(Killed), killed_at(point):
                await agent(new_refund(), status).run(db, session="s")
        async with opened(url) as db:
            result = await agent(new_refund(), status).run(db, session="s")
            assert result.status == "waiting_approval"
            assert [a.args for a in result.approvals] == [{"order": "7", "cents": 45_000}]

    for point in ("agent.before_upgrade", "agent.after_upgrade"):
        asyncio.run(main(point))


def test_results_that_the_model_was_not_told_yet_are_migrated():
    newer = Tool(status.fn, read=True, version="2")

    @tool_migration("status", "1", "2", results=lambda r: {**r, "old": False})
    def same(arguments: dict[str, Any]) -> None:
        """The arguments are as they were."""

    async def main() -> None:
        async with opened() as db:
            approval = await waiting(db)
            await db.approve("s", approval.id, by="bob")
            result = await agent(old_refund(), newer).run(db, session="s")
            assert result.ok
            told = [m["content"] for m in (await db.read("s")).messages if m["role"] == "tool"]
            assert told[1] == '{"order": "1", "old": false}'

    asyncio.run(main())


def test_open_calls_of_a_tool_that_has_another_name_now_go_there():
    @tool(if_unsure="retry", approve=lambda a: a["cents"] > 10_000, version="3")
    def give_back(order: str, cents: int, why: str) -> dict[str, Any]:
        """Give money back."""
        made.append(("renamed", order, cents, why))
        return {"paid_cents": cents}

    @tool(read=True, version="2")
    def state_of(order: str) -> dict[str, Any]:
        """Look at an order."""
        return {"order": order}

    @tool_migration("refund", "1", "2", renamed="give_back")
    def in_cents(arguments: dict[str, Any]) -> None:
        arguments["cents"] = round(arguments.pop("amount") * 100)

    @tool_migration("give_back", "2", "3")
    def with_a_reason(arguments: dict[str, Any]) -> None:
        arguments["why"] = "not said"

    @tool_migration("status", "1", "2", renamed="state_of", results=lambda r: {**r, "old": False})
    def same(arguments: dict[str, Any]) -> None:
        """The arguments are as they were."""

    async def main() -> None:
        async with opened() as db:
            await waiting(db)
            result = await agent(give_back, state_of).run(db, session="s")
            assert result.status == "waiting_approval", result
            (asked,) = result.approvals
            assert (asked.tool, asked.args) == ("give_back", {"order": "7", "cents": 45_000, "why": "not said"})
            assert any("of refund was brought from version 1 to 3 of give_back" in note for note in result.notes)
            await db.approve("s", asked.id, by="bob")
            assert (await agent(give_back, state_of).run(db, session="s")).ok
            assert made == [("renamed", "7", 45_000, "not said")]
            told = [m["content"] for m in (await db.read("s")).messages if m["role"] == "tool"]
            assert told == ['{"paid_cents": 45000}', '{"order": "1", "old": false}']

    asyncio.run(main())


def required() -> list[Any]:
    @tool(if_unsure="retry", approve=lambda a: a["amount"] > 100)
    def refund(order: str, amount: float, why: str) -> dict[str, Any]:
        """Give money back."""
        made.append("required")
        return {}

    return [refund, status]


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        (lambda: [status], "is waiting, and the agent has no tool refund any more"),
        (lambda: [new_refund(), status], "is waiting by version 1 of the tool, and no migration leads to version 2"),
        (required, "the arguments of refund do not fit: Object missing required field `why`"),
    ],
)
def test_what_cannot_be_carried_over_is_told_and_nothing_is_touched(tools: Callable[[], list[Any]], reason: str):
    async def main() -> None:
        async with opened() as db:
            approval = await waiting(db)
            await db.approve("s", approval.id, by="bob")
            before = await db.look("s")
            changed = agent(*tools())
            result = await changed.run(db, session="s")
            assert result.status == "incompatible"
            assert not result.ok
            assert reason in result.reason
            # It was decided on: to reject it now would be refused, and nobody is told to.
            assert result.notes[-1].endswith("or declare @tool_migration")
            assert result.approvals == ()
            assert made == []
            assert (await db.look("s")).heads == before.heads
            # The program that left it can still go on.
            assert (await agent(old_refund(), status).run(db, session="s")).ok
            assert made == [("old", "7", 450.0)]

    asyncio.run(main())


def test_the_ways_out_name_what_they_are_about():
    async def main() -> None:
        async with opened() as db:
            approval = await waiting(db)
            result = await agent(status).run(db, session="s")
            assert result.status == "incompatible"
            assert result.notes[-1].endswith(f"or reject the approval ({approval.id})")

    asyncio.run(main())


def test_a_migration_that_fails_or_makes_nonsense_is_told():
    async def main(said: str) -> None:
        async with opened() as db:
            await waiting(db)
            result = await agent(new_refund(), status).run(db, session="s")
            assert result.status == "incompatible"
            assert said in result.reason

    @tool_migration("refund", "1", "2")
    def broken(arguments: dict[str, Any]) -> None:
        raise KeyError("cents")

    asyncio.run(main("a migration raised KeyError: 'cents'"))
    migrations.of_arguments.clear()

    @tool_migration("refund", "1", "2")
    def nonsense(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"order": 5}

    asyncio.run(main("the arguments of refund do not fit"))


@pytest.mark.parametrize("changes", [True, False])
@pytest.mark.parametrize("agreed", [True, False])
@pytest.mark.parametrize("if_unsure", ["ask", "retry", "report", "function"])
def test_a_call_that_was_begun_is_asked_about_where_a_migration_changes_what_is_made(
    if_unsure: str, agreed: bool, changes: bool
):
    """Nobody has agreed to that, and a provider that knows keys is sent no other arguments under one it may know."""

    @tool_migration("refund", "1", "2")
    def in_cents(arguments: dict[str, Any]) -> None:
        if changes:
            arguments["amount"] *= 100

    ids: list[str] = []
    entered = asyncio.Event()

    @tool(if_unsure="retry", approve=agreed)
    async def refund(order: str, amount: float, ctx: Any) -> None:
        """Give money back."""
        ids.append(ctx.effect_id)
        entered.set()
        await asyncio.Event().wait()

    looked: list[float] = []

    def look(order: str, amount: float) -> Any:
        looked.append(amount)
        return NotDone

    @tool(name="refund", if_unsure=look if if_unsure == "function" else if_unsure, version="2")  # type: ignore[arg-type]
    async def refund_again(order: str, amount: float, ctx: Any) -> dict[str, Any]:
        """Give money back."""
        ids.append(ctx.effect_id)
        return {"amount": amount}

    async def main() -> None:
        async with opened() as db:
            if agreed:
                asked = await agent(refund, status).run(db, session="s", message="refund 7")
                await db.approve("s", asked.approvals[0], by="bob")
            message = None if agreed else "refund 7"
            running = asyncio.create_task(agent(refund, status).run(db, session="s", message=message))
            await entered.wait()
            running.cancel()
            await asyncio.wait([running])
            result = await agent(refund_again, status).run(db, session="s")
            if not changes:
                assert len(set(ids)) == 1, "it is the same call"
                assert not result.approvals
                return
            assert (result.status, len(ids), looked) == ("waiting_approval", 1, [])
            (again,) = result.approvals
            assert again.args == {"order": "7", "amount": 45_000}
            was = "agreed to and started" if agreed else "started"
            assert f'refund(order="7", amount=450.0) (effect {ids[0]}) was {was}, and nobody knows' in again.because
            assert 'it would be refund(order="7", amount=45000.0) now' in again.because
            await db.approve("s", again, by="bob")
            result = await agent(refund_again, status).run(db, session="s")
            assert result.ok, result
            assert len(set(ids)) == 2, "another call, with an id of its own"

    asyncio.run(main())


def test_a_tool_that_changed_while_nothing_was_open_is_only_noted():
    async def main() -> None:
        async with opened() as db:
            small = [calls(("refund", {"order": "7", "amount": 5})), "Done", "Again"]
            assert (await agent(old_refund(), script=small).run(db, session="s", message="x")).ok
            result = await agent(new_refund(), script=small).run(db, session="s", message="y")
            assert result.ok
            assert result.notes == ("the tool refund was version 1 and is version 2",)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("version", "goes_on_from", "goes"),
    [
        ("1.0", ["0.9"], True),
        ("1.1", None, True),
        ("1.1", ["1.0"], True),
        ("1.1", {"0.9", "1.0"}, True),
        ("2.0", ["1.1", "1.2"], False),
        ("2.0", [], False),
    ],
)
def test_the_version_of_the_program_is_recorded_and_checked(version: str, goes_on_from: Any, goes: bool):
    script = ["one", "two", "three"]

    async def main() -> None:
        async with opened() as db:
            assert (await agent(script=script, version="1.0").run(db, session="s", message="x")).ok
            before = await db.history("s")
            assert before[0].more["program"] == "1.0"
            newer = agent(script=script, version=version, goes_on_from=goes_on_from)
            result = await newer.run(db, session="s", message="y")
            if goes:
                changed = (f"the agent version was '1.0' and is '{version}'",) if version != "1.0" else ()
                assert (result.text, result.notes) == ("two", changed)
                assert (await db.history("s"))[0].more["program"] == version
                return
            assert result.status == "incompatible"
            which = ", ".join(goes_on_from) or "no other"
            assert f"was left by version '1.0' of agent 'shop', and version '2.0' goes on from {which}" in result.reason
            assert await db.history("s") == before
            # What it says helps: the message is still there, for the version that may go on.
            assert (await agent(script=script, version="1.0").run(db, session="s")).text == "two"

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [{"goes_on_from": "1.0"}, {"goes_on_from": [1]}, {"version": 2}], ids=str)
def test_versions_are_texts(wrong: dict[str, Any]):
    with pytest.raises(InvalidInput, match="version"):
        agent(**wrong)
