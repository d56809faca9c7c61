"""A session tried another way: from any step, with other instructions, another message or another state."""

# Reading a small file in between is fine here.
# ruff: noqa: ASYNC240
from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.agent.branching_off import branch_off, run_on
from perdure.errors import InvalidInput
from perdure.server.console.branches import changed, compare, draft_of
from perdure.server.console.session_past import changes_of, find_spot, newest_problem, open_moment
from tests.server.browser import app

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.aio import AsyncDatabase


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    app.LEDGER = str(tmp_path / "ledger")
    return tmp_path / "ledger"


def on(work: Callable[[AsyncDatabase], Awaitable[None]]) -> None:
    async def go() -> None:
        async with perdure.open_async("memory://") as db:
            await app.support.run(db, session="s", message="Where is 8847?")
            await work(db)

    asyncio.run(go())


def test_before_an_answer_the_model_is_asked_again_and_nothing_outside_changes(ledger: Path) -> None:
    async def work(db: AsyncDatabase) -> None:
        done = ledger.read_text()
        await branch_off(db, "s", "better", at=1, before=True, instructions=app.BETTER)
        result = await run_on(db, app.support, "s", "better")
        assert result.text == "Your order is shipped with Northway and comes on Friday."
        assert ledger.read_text() == done
        assert app.support.instructions == app.INSTRUCTIONS
        # It went well on the branch; on main it is as it was.
        assert (await db.read("s", branch="better")).checkpoint.status == "idle"
        assert (await db.look("s")).status == "failed"

    on(work)


def test_a_new_call_is_refused_unless_it_is_allowed(ledger: Path) -> None:
    async def work(db: AsyncDatabase) -> None:
        done = ledger.read_text()
        await branch_off(db, "s", "other", at=1, before=True, said="Where is 1111?")
        await run_on(db, app.support, "s", "other")
        assert ledger.read_text() == done, "the default changed the world"
        await branch_off(db, "s", "really", at=1, before=True, said="Where is 2222?")
        await run_on(db, app.support, "s", "really", effects="reuse")
        assert "case 2222" in ledger.read_text()

    on(work)


def test_what_waits_in_the_inbox_is_not_taken_by_a_branch(ledger: Path) -> None:
    async def work(db: AsyncDatabase) -> None:
        await db.post("s", "for the main branch")
        pending = (await db.look("s")).pending
        await branch_off(db, "s", "better", at=3, before=True, instructions=app.BETTER)
        result = await run_on(db, app.support, "s", "better")
        assert result.ok
        assert (await db.look("s")).pending == pending

    on(work)


def test_a_state_is_changed_on_the_branch_alone(ledger: Path) -> None:
    async def work(db: AsyncDatabase) -> None:
        state = {"vars": {"tier": "gold"}, "facts": {}, "todos": [], "summary": "", "extra": [1]}
        await branch_off(db, "s", "gold", at=2, state=state)
        branch = (await db.read("s", branch="gold")).plain()
        assert (branch["vars"], branch["extra"]) == ({"tier": "gold"}, [1])
        assert branch["messages"] == (await db.read("s", 2)).plain()["messages"]
        assert "extra" not in (await db.read("s")).plain()

    on(work)


def test_a_session_without_an_agent_has_no_instructions(ledger: Path) -> None:
    async def work(db: AsyncDatabase) -> None:
        async with db.session("plain") as s:
            s.vars["n"] = 1
            await s.commit()
        with pytest.raises(InvalidInput, match="no instructions"):
            await branch_off(db, "plain", "b", at=1, instructions="x")
        await branch_off(db, "plain", "c", at=1, state={"vars": {"n": 2}})
        assert (await db.read("plain", branch="c")).vars["n"] == 2

    on(work)


def test_a_branch_does_not_make_a_session_look_as_if_it_ran(ledger: Path) -> None:
    async def work(db: AsyncDatabase) -> None:
        # Step 3 stood at running: a worker must not take the session up because of that.
        await branch_off(db, "s", "idle", at=3)
        assert (await db.look("s")).status == "failed"

    on(work)


def test_a_draft_says_what_was_and_what_is_left_alone_stays_exactly(ledger: Path) -> None:
    async def work(db: AsyncDatabase) -> None:
        kernel = db.kernel
        spot = find_spot(kernel, "s", "main", 4)
        draft = draft_of(kernel, spot, before=True)
        assert (draft.at, draft.instructions, draft.name) == (3, app.INSTRUCTIONS, "try-3-1")
        first = draft_of(kernel, find_spot(kernel, "s", "main", 1), before=True)
        assert first.said == "Where is 8847?"
        odd = first._replace(instructions="a\r\n\u202eb\n")
        assert changed(odd, "a⟨CR⟩\r\n⟨U+202E⟩b\r\n", "Where is 8847?", odd.state or "") == {}
        assert changed(odd, "c", "d", '{"vars": 1}') == {"instructions": "c", "said": "d", "state": {"vars": 1}}
        for bad in ("{", "[1]", '{"messages": []}'):
            with pytest.raises(InvalidInput):
                changed(odd, "a", "b", bad)

    on(work)


def test_the_failing_step_and_its_changes_are_found(ledger: Path) -> None:
    async def work(db: AsyncDatabase) -> None:
        spot = find_spot(db.kernel, "s", "", None)
        assert newest_problem(db.kernel, spot) == 4
        found, added = changes_of(db.kernel, open_moment(db.kernel, spot._replace(step=4)))
        assert added == 1
        assert [c.path for c in found] == ["state.messages[+]"]
        async with db.session("s") as s:
            s.vars["a"] = 1
            await s.commit()
            s.vars["a"] = 2
            s.vars["gone"] = [1, 2, 3]
            await s.commit()
            del s.vars["gone"][1]
            await s.commit()
        spot = find_spot(db.kernel, "s", "", None)
        found, _ = changes_of(db.kernel, open_moment(db.kernel, spot._replace(step=spot.step - 1)))
        assert ("state.vars.a", "changed", 1, 2) in found
        found, _ = changes_of(db.kernel, open_moment(db.kernel, spot))
        assert ("state.vars.gone[1]", "removed", 2, None) in found

    on(work)


def test_two_branches_are_compared_from_where_they_parted(ledger: Path) -> None:
    async def work(db: AsyncDatabase) -> None:
        await branch_off(db, "s", "better", at=3, before=True, instructions=app.BETTER)
        await run_on(db, app.support, "s", "better")
        found = compare(db.kernel, find_spot(db.kernel, "s", "main", None), find_spot(db.kernel, "s", "better", None))
        assert (found.parted, found.skipped) == (2, 3)
        assert found.left[-1].error
        assert found.right[-1].text.startswith("Your order is shipped")
        assert found.differences == []

    on(work)
