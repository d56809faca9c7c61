"""What a developer sees of exceptions in tools: in the result of the run, the log, and a warning beforehand."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import Agent, ScriptedModel, UndeclaredTool, tool
from perdure.agent.models.scripted import calls
from perdure.testing import FakeClock
from tests.agent.working import by_turn, opened, play


@tool
def charge(order: str) -> str:
    """Charge an order."""
    return {"o1": "fine"}[order]


@tool(read=True)
def price(order: str) -> int:
    """Look a price up."""
    return 1 // 0


def desk(*answers: Any, tools: list[Any] | None = None) -> Agent:
    return Agent("desk", model=ScriptedModel(by_turn(*answers)), tools=tools or [charge, price])


def test_a_run_lists_the_calls_that_raised_with_where_that_came_from(tmp_path: Path) -> None:
    asked = calls(("charge", {"order": "o2"}), ("price", {"order": "o1"}), ("charge", {"order": "o1"}))

    async def work() -> None:
        async with opened(tmp_path) as db:
            agent = desk(asked, "I see")
            end = await agent.run(db, session="s", message="go")
            by_tool = {one.tool: one for one in end.raised}
            charged, looked = by_tool["charge"], by_tool["price"]
            assert len(end.raised) == 2
            assert (charged.status, charged.error, charged.message) == ("raised", "KeyError", "'o2'")
            assert str(charged) == "charge(order=\"o2\") raised KeyError: 'o2'"
            assert 'return {"o1": "fine"}[order]' in charged.traceback
            assert (looked.status, looked.error) == ("failed", "ZeroDivisionError"), "a read has changed nothing"
            assert (await agent.run(db, session="s")).raised == (), "nothing was done"
            quiet = Agent("desk", model=ScriptedModel(lambda _: "hello"), tools=[charge, price])
            assert (await quiet.run(db, session="s", message="again")).raised == ()

    play(work())


def test_a_run_that_goes_on_in_another_process_still_lists_them(tmp_path: Path) -> None:
    @tool(approve=True)
    def wire() -> str:
        return "wired"

    agent = desk(calls(("charge", {"order": "o2"}), ("wire", {})), "I see", tools=[charge, wire])

    async def begin() -> None:
        async with opened(tmp_path) as db:
            end = await agent.run(db, session="s", message="go")
            assert (end.status, len(end.raised)) == ("waiting_approval", 1)
            await db.approve("s", end.approvals[0], by="ana")

    async def go_on() -> None:
        async with opened(tmp_path) as db:
            end = await agent.run(db, session="s")
            assert (end.status, [one.tool for one in end.raised]) == ("done", ["charge"])

    play(begin())
    play(go_on())


def test_no_more_than_the_newest_are_listed(tmp_path: Path) -> None:
    many = calls(*(("charge", {"order": f"x{i}"}) for i in range(25)))

    async def work() -> None:
        async with opened(tmp_path) as db:
            end = await desk(many, "I see").run(db, session="s", message="go")
            assert len(end.raised) == 20

    play(work())


def test_secrets_do_not_get_into_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "hunter2-hunter2")

    @tool
    def pay() -> str:
        raise RuntimeError("401 for hunter2-hunter2 at https://ana:pass@shop.example")

    async def work() -> None:
        async with opened(tmp_path) as db:
            (one,) = (await desk(calls(("pay", {})), "I see", tools=[pay]).run(db, session="s", message="go")).raised
            assert one.message == "401 for (SHOP_API_KEY) at https://(secret)@shop.example"
            assert "hunter2" not in one.traceback

    play(work())


class Watched(FakeClock):
    """A clock that looks around while somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.look: Any = None
        self.seen: list[perdure.Why] = []

    async def sleep_async(self, ms: int) -> None:
        if self.look is not None:
            self.seen.append(self.look())
        await super().sleep_async(ms)


def test_why_says_of_a_call_that_is_tried_again_since_when_how_often_with_what_error_and_when_next(
    tmp_path: Path,
) -> None:
    clock = Watched()
    url = f"sqlite:///{tmp_path}/agents.db"
    answers = [TimeoutError("no word from the bank")] * 3

    @tool(if_unsure="retry")
    def wire(amount: int) -> str:
        if answers:
            raise answers.pop()
        return "wired"

    with perdure.open(url, clock=clock, maintain=False) as other:
        clock.look = lambda: perdure.why(other, "s")

        async def work() -> None:
            async with perdure.open_async(url, clock=clock, maintain=False) as db:
                agent = desk(calls(("wire", {"amount": 5})), "I see", tools=[wire])
                end = await agent.run(db, session="s", message="go")
                assert (end.status, end.raised) == ("done", ())

        play(work())
        kinds = [c.kind for c in other.history("s")]
    assert kinds.count("retrying") == 3
    assert [found.severity for found in clock.seen] == ["wait", "wait", "failing"]
    last = clock.seen[-1]
    assert last.line == (
        "wire(amount=5) has got no answer for 3 s, in 3 attempts, the last time with TimeoutError: no word from the "
        "bank. It is tried again in 4 s, under the same id."
    )
    assert last.next == "Mend what it fails of, if that is yours: it goes on by itself when it is answered."
    assert last.error is not None
    assert "in wire" in last.error["traceback"]


def test_why_tells_of_the_exception_after_the_run_is_over(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as db:
            await desk(calls(("charge", {"order": "o2"})), "I see").run(db, session="s", message="go")
            found = await perdure.why_async(db, "s")
            assert found.severity == "ok"
            said = "raised KeyError: 'o2'. What it had changed by then is not known."
            assert found.line == f'It has answered everything. charge(order="o2") {said}'
            assert found.error is not None
            assert "in charge" in found.error["traceback"]

    play(work())


# -- plain functions -----------------------------------------------------------------------------------------------


def test_an_agent_says_once_what_a_crash_means_for_functions_that_do_not() -> None:
    def pay(order: str) -> str:
        return order

    def look(order: str) -> str:
        return order

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        desk("hello", tools=[pay, charge, look])
    (one,) = caught
    assert one.category is UndeclaredTool
    assert one.filename == __file__
    said = str(one.message)
    assert said.startswith("pay, look do not say what a crash means: ")
    assert "@perdure.tool(read=True)" in said


def test_the_warning_is_of_the_line_that_makes_the_agent_or_chooses_its_tools() -> None:
    def pay(order: str) -> str:
        return order

    class Desk(Agent):
        def __init__(self, name: str, **options: Any) -> None:
            super().__init__(name, model=ScriptedModel(["hello"]), **options)

    def choose(ctx: Any) -> Any:
        return [pay]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Agent("a", model=ScriptedModel(["hello"]), tools=[pay])
        Desk("b", tools=[pay])
        Desk("c", tools=choose).run_sync("memory://", session="s", message="hi")
    lines = Path(__file__).read_text("utf-8").splitlines()
    said = [lines[w.lineno - 1].strip() for w in caught if w.category is UndeclaredTool and w.filename == __file__]
    assert said == [
        'Agent("a", model=ScriptedModel(["hello"]), tools=[pay])',
        'Desk("b", tools=[pay])',
        "def choose(ctx: Any) -> Any:",
    ]


def test_an_agent_is_quiet_about_declared_tools() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        desk("hello", tools=[charge, price, desk("hi").as_tool()])
