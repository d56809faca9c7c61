"""What tools need is opened once per attempt and never stored; instructions and tools may be functions of ``ctx``."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, Context, ScriptedModel, handoff, tool
from perdure.agent.branching_off import run_on
from perdure.agent.models.scripted import calls
from perdure.agent.replay.replay import replay
from perdure.fleet.worker import Worker
from tests.agent.context.scene import Killed, killed_at
from tests.agent.working import by_turn, opened, play

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
    from pathlib import Path

    from perdure.agent.models import Request


class Shop:
    """What tools need: a client of something, which must be open."""

    def __init__(self, owner: str = "") -> None:
        self.owner = owner
        self.is_open = True
        self.secret = "sk-shop-secret"


class Doors:
    """Opens shops, and counts."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.open: list[Shop] = []
        self.errors: list[str] = []

    @asynccontextmanager
    async def shop(self, owner: str, session: str, context: Any) -> AsyncIterator[Shop]:
        self.told.append((owner, session, context))
        with self.blocking(owner) as found:
            yield found

    @contextmanager
    def blocking(self, owner: str) -> Iterator[Shop]:
        shop = Shop(owner)
        self.open.append(shop)
        try:
            yield shop
        except BaseException as e:
            self.errors.append(type(e).__name__)
            raise
        finally:
            shop.is_open = False


@tool(if_unsure="retry")
async def buy(n: int, ctx: Context[Shop]) -> str:
    """Buy, and count it."""
    assert ctx.deps.is_open
    ctx.state["vars"]["bought"] = ctx.state["vars"].get("bought", 0) + n
    return f"{ctx.deps.owner} bought {n}"


@tool(read=True)
def stock(ctx: Context[Shop]) -> str:
    """Look."""
    return f"open for {ctx.deps.owner}: {ctx.deps.is_open}, told {ctx.context}"


def agent(**options: Any) -> Agent:
    script = by_turn(
        calls(("buy", {"n": 1}), ("stock", {})), calls(("buy", {"n": 2})), "that is all", "you are welcome"
    )
    return Agent("desk", model=ScriptedModel(script), **{"tools": [buy, stock], **options})


async def told(db: perdure.AsyncDatabase, session: str = "s", branch: str = "main") -> list[str]:
    return [m["content"] for m in (await db.read(session, branch=branch)).messages.plain() if m["role"] == "tool"]


def test_what_tools_need_is_opened_once_per_attempt_and_only_its_type_is_recorded(tmp_path: Path) -> None:
    async def go() -> None:
        doors = Doors()
        async with opened(tmp_path) as db:
            one = agent(deps=doors.shop)
            result = await one.run(db, session="s", owner="ana", message="buy", context={"tier": 2})
            assert (result.status, result.text) == ("done", "that is all")
            assert await told(db) == ["ana bought 1", "open for ana: True, told {'tier': 2}", "ana bought 2"]
            reading = await db.read("s")
            assert reading.vars == {"bought": 3}
            assert reading.book["agent"]["setup"]["deps"] == "Shop"
            assert doors.told == [("ana", "s", {"tier": 2})]
            assert [shop.is_open for shop in doors.open] == [False]
            await one.run(db, session="s", message="thanks")
            assert [shop.owner for shop in doors.open] == ["ana", "ana"], "opened anew, for whom the session belongs to"

    play(go())
    assert all(b"sk-shop-secret" not in file.read_bytes() for file in tmp_path.iterdir())


@pytest.mark.parametrize("way", ["override", "blocking", "open already", "class", "by name"])
def test_a_run_has_its_own_and_a_factory_takes_what_it_names(way: str) -> None:
    async def go() -> None:
        doors, mine = Doors(), Shop("mine")
        given: dict[str, Any] = {
            "override": doors.shop,
            "blocking": doors.blocking,
            "open already": mine,
            "class": functools.partial(nullcontext, Shop("partial")),
            "by name": lambda **about: nullcontext(Shop(f"{about['owner']} in {about['session']}")),
        }
        async with perdure.open_async("memory://") as db:
            # The agent's own is never opened.
            result = await agent(deps=lambda: 1 / 0).run(db, session="s", owner="bo", message="buy", deps=given[way])
            assert result.ok
            who = {"open already": "mine", "class": "partial", "by name": "bo in s"}.get(way, "bo")
            assert (await told(db))[0] == f"{who} bought 1"
        assert mine.is_open, "what is open already stays so"
        assert [shop.is_open for shop in doors.open] == [False] * len(doors.open)

    play(go())


def test_without_what_its_tools_need_nothing_is_written(tmp_path: Path) -> None:
    async def go() -> None:
        child = Agent("child", model=ScriptedModel([]), tools=[buy])
        boss = Agent("boss", model=ScriptedModel([]), tools=[child.as_tool()], deps=Doors().shop)
        asking = Agent("asking", model=ScriptedModel([]), instructions=_instructions)
        first = Agent("first", model=ScriptedModel([]), tools=[handoff(agent(), name="pass_on")])
        async with opened(tmp_path) as db:
            for one, what in ((agent(), "tool buy"), (boss, "tool buy"), (asking, "instructions"), (first, "tool buy")):
                with pytest.raises(perdure.Misuse, match=rf"{what}.* needs what its ctx: Context\[...\] declares"):
                    await one.run(db, session="s", message="buy", key="k")
                with pytest.raises(perdure.Misuse, match=r"deps="):
                    await perdure.submit_async(db, "s", "buy", agent=one)
                with pytest.raises(perdure.Misuse, match=r"deps="):
                    Worker(db, [one])
            assert not await db.sessions()
            assert not db.kernel.store.inbox("s", 10)
            assert await perdure.submit_async(db, "s", "buy", agent=agent(deps=Doors().shop))

    play(go())


def test_what_cannot_be_opened_is_told_before_the_message_is_kept() -> None:
    async def go() -> None:
        async with perdure.open_async("memory://") as db:
            with pytest.raises(ZeroDivisionError) as raised:
                await agent(deps=lambda: 1 / 0).run(db, session="s", message="buy")
            assert "while deps= of agent 'desk' were opened for session 's'" in raised.value.__notes__
            with pytest.raises(perdure.Misuse, match="returns a context manager, not Shop"):
                await agent(deps=Shop).run(db, session="s", message="buy")
            assert not db.kernel.store.inbox("s", 10), "refused before it was written"

    play(go())


async def _coroutine(owner: str) -> Shop:
    return Shop(owner)


async def _generator() -> AsyncIterator[Shop]:
    yield Shop()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"deps": Shop()}, "is a function that opens them for each run, not Shop"),
        ({"deps": _coroutine}, "returns no context manager: put @contextlib.asynccontextmanager above"),
        ({"deps": _generator}, "returns no context manager"),
        ({"deps": lambda url: nullcontext()}, "called with owner, session, context, by name, and it wants 'url'"),
        ({"tools": buy}, "tools= of agent 'desk' is a list of tools, or a function of one parameter ctx"),
        ({"tools": lambda: [buy]}, "is a list of tools, or a function"),
        ({"instructions": lambda: "be kind"}, "instructions= of agent 'desk' is text, or a function"),
    ],
)
def test_what_can_never_work_is_refused_when_the_agent_is_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(perdure.InvalidInput, match=said):
        agent(**options)


@pytest.mark.parametrize("gives", [(lambda ctx: 7, "gave int, not text"), (lambda ctx: 1 / 0, "division")])
def test_instructions_that_cannot_be_given_end_the_run_with_what_is_wrong(gives: Any) -> None:
    with pytest.raises((perdure.InvalidInput, ZeroDivisionError), match=gives[1]):
        Agent("a", model=ScriptedModel(["x"]), instructions=gives[0]).run_sync("memory://", session="s", message="hi")


def test_an_error_of_the_run_reaches_what_was_opened_and_is_not_swallowed() -> None:
    class Swallows(contextlib.AbstractContextManager[Shop]):
        seen: Any = None

        def __enter__(self) -> Shop:
            return Shop()

        def __exit__(self, kind: Any, *_: Any) -> bool:
            self.seen = kind
            return True

    door = Swallows()

    def boom(ctx: Context[Shop]) -> str:
        raise LookupError("no prompt")

    one = Agent("a", model=ScriptedModel(["x"]), instructions=boom, deps=lambda: door)
    with pytest.raises(LookupError, match="no prompt"):
        one.run_sync("memory://", session="s", message="hi")
    assert door.seen is LookupError


@pytest.mark.parametrize(
    "point", ["call.before_outcome", "call.after_outcome", "agent.before_commit", "agent.after_commit"]
)
@pytest.mark.parametrize("nth", [1, 2])
def test_after_a_kill_what_tools_need_is_opened_anew_and_writes_are_there_once(
    tmp_path: Path, point: str, nth: int
) -> None:
    async def go() -> None:
        doors = Doors()
        one = agent(deps=doors.shop)
        async with opened(tmp_path) as db:
            with _killed_at(point, nth):
                await one.run(db, session="s", owner="ana", message="buy")
        async with opened(tmp_path) as db:
            assert (await one.run(db, session="s", owner="ana", wait=20)).text == "that is all"
            assert (await db.read("s")).vars == {"bought": 3}
            assert [e for e in await told(db) if "bought" in e] == ["ana bought 1", "ana bought 2"]
            await db.verify("s")
        assert len(doors.open) == 2
        assert not any(shop.is_open for shop in doors.open)

    play(go())


@contextmanager
def _killed_at(point: str, nth: int) -> Iterator[None]:
    """Killed there, alone or with what was done side by side."""
    with killed_at(point, nth):
        try:
            yield
        except* Killed:
            return_to_life.append(point)
    assert return_to_life.pop() == point, "it was never passed"


return_to_life: list[str] = []
"""Where a process was killed last."""


both_wrote = asyncio.Barrier(2)


@tool(if_unsure="retry")
async def collect(n: int, ctx: Context) -> int:
    """Write the same place as its siblings."""
    ctx.state["vars"]["last"] = n
    await both_wrote.wait()
    return n


def test_siblings_that_write_one_path_are_told_to_the_model_and_in_the_notes(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        script = by_turn(calls(("collect", {"n": 1}), ("collect", {"n": 2})), "done")
        async with perdure.open_async("memory://") as db:
            result = await Agent("a", model=ScriptedModel(script), tools=[collect]).run(db, session="s", message="go")
            results = [json.loads(said) for said in await told(db)]
            (refused,) = [one for one in results if isinstance(one, dict)]
            assert "was not kept: state.vars.last was written meanwhile by collect" in refused["state"]
            kept = next(one for one in results if isinstance(one, int))
            assert {kept, int(refused["result"])} == {1, 2}, "both outcomes are there"
            assert (await db.read("s")).vars == {"last": kept}
            assert any("what it wrote to ctx.state was not kept" in note for note in result.notes)
        assert "state.vars.last was written meanwhile" in caplog.text

    play(go())


def test_the_conversation_is_the_agents_own() -> None:
    @tool(if_unsure="report")
    def meddle(ctx: Context) -> str:
        ctx.state["messages"].append({"role": "user", "content": "I never said that"})
        return "fine"

    async def go() -> None:
        async with perdure.open_async("memory://") as db:
            one = Agent("a", model=ScriptedModel([calls(("meddle", {})), "done"]), tools=[meddle])
            await one.run(db, session="s", message="go")
            assert "state.messages is the agent's own" in (await told(db))[0]
            assert [m["role"] for m in (await db.read("s")).messages] == ["user", "assistant", "tool", "assistant"]

    play(go())


def _instructions(ctx: Context[Shop]) -> str:
    return f"You serve {ctx.owner} of {ctx.deps.owner}, who has {ctx.state['vars'].get('bought', 0)}, {ctx.context}."


async def _tools(ctx: Context[Shop]) -> list[Any]:
    with pytest.raises(perdure.ReadOnly):
        ctx.state["vars"]["n"] = 1
    return [buy, stock] if ctx.state["vars"].get("bought", 0) < 3 else []


def test_instructions_and_tools_are_asked_before_each_answer_and_recorded_as_sent(tmp_path: Path) -> None:
    async def go() -> None:
        sent: list[tuple[str, list[str]]] = []
        plan = by_turn(calls(("buy", {"n": 1}), ("stock", {})), calls(("buy", {"n": 2})), "that is all")

        def script(request: Request) -> Any:
            sent.append((request.messages[0]["content"], [t["name"] for t in request.tools]))
            return plan(request)

        def made() -> Agent:
            return Agent(
                "desk", model=ScriptedModel(script), tools=_tools, instructions=_instructions, deps=Doors().shop
            )

        async with opened(tmp_path) as db:
            with _killed_at("call.before_outcome", 3):
                await made().run(db, session="s", owner="ana", message="buy", context={"tier": 2})
        async with opened(tmp_path) as db:
            result = await made().run(db, session="s", context={"tier": 2}, wait=20)
            assert (result.text, result.notes) == ("that is all", ())
            assert [words.split(", {")[0] for words, _ in sent] == [
                f"You serve ana of ana, who has {n}" for n in (0, 1, 3)
            ]
            assert [names for _, names in sent] == [["buy", "stock"], ["buy", "stock"], []]
            for given in (None, made()):
                assert (await replay(db, "s", agent=given)).identical

    play(go())


def test_in_a_dry_run_reads_have_what_they_need_and_nothing_is_written() -> None:
    async def go() -> None:
        doors = Doors()
        one = agent(deps=doors.shop)
        async with perdure.open_async("memory://") as db:
            await one.run(db, session="s", owner="ana", message="buy")
            async with db.session("s") as s:
                await s.rewind(2)
                await s.fork("other", at=2)
            result = await run_on(db, one, "s", "other")
            assert result.ok
            # The first call is of the line it came from; what it had written comes with its outcome.
            assert (await told(db, branch="other"))[:2] == ["ana bought 1", "open for ana: True, told None"]
            before = len(doors.open)
            with pytest.raises(perdure.Misuse, match="deps="):
                await run_on(db, agent(), "s", "other")
            assert len(doors.open) == before

    play(go())


def test_whoever_gets_the_conversation_has_its_own() -> None:
    async def go() -> None:
        doors, others = Doors(), Doors()
        sales = Agent(
            "sales", model=ScriptedModel(by_turn("", calls(("buy", {"n": 5})), "sold")), tools=[buy], deps=others.shop
        )
        first = Agent(
            "first", model=ScriptedModel([calls(("pass_on", {}))]), tools=[handoff(sales, name="pass_on")],
            deps=doors.shop,
        )  # fmt: skip
        async with perdure.open_async("memory://") as db:
            assert (await first.run(db, session="s", owner="ana", message="sell me")).text == "sold"
        assert [len(doors.open), len(others.open)] == [1, 1]
        assert not any(shop.is_open for shop in doors.open + others.open)

    play(go())


LONG = 1000


def _hanging(at: str, left: list[str]) -> Any:
    """Dependencies that hang for ever while they are opened, or closed; or that take a while, in a thread."""

    @asynccontextmanager
    async def awaited() -> AsyncGenerator[int]:
        if at == "opened":
            await asyncio.sleep(LONG)
        yield 1
        if at == "closed":
            await asyncio.sleep(LONG)

    @contextmanager
    def blocking() -> Generator[int]:
        time.sleep(0.5)
        yield 1
        left.append("left")

    return blocking if at == "in a thread" else awaited


@tool(read=True)
def look(ctx: Context[int]) -> str:
    """Look."""
    return str(ctx.deps)


@pytest.mark.parametrize("at", ["opened", "closed", "in a thread"])
def test_a_run_ends_at_its_deadline_whatever_its_dependencies_do(tmp_path: Path, at: str) -> None:
    left: list[str] = []

    async def go() -> None:
        one = Agent("x", model=ScriptedModel(["fine"]), tools=[look], deps=_hanging(at, left))
        async with perdure.open_async(f"sqlite:///{tmp_path}/a.db", maintain=False) as db:
            result = await asyncio.wait_for(one.run(db, session="s", message="go", key="k", deadline=0.2), 30)
            assert result.status == ("done" if at == "closed" else "deadline")
            again = Agent("x", model=ScriptedModel(["fine"]), tools=[look], deps=lambda: nullcontext(1))
            assert (await again.run(db, session="s")).text == "fine", "what was said is answered by the next run"

    asyncio.run(go())
    assert left == ["left"] * (at == "in a thread"), "nobody waited for it, and it is closed all the same"


@pytest.mark.parametrize("at", ["opened", "closed", "instructed"])
def test_who_cancels_a_run_reaches_it_there(tmp_path: Path, at: str) -> None:
    begun = asyncio.Event()

    async def instructed(ctx: Context[int]) -> str:
        if at == "instructed":
            begun.set()
            await asyncio.sleep(LONG)
        return ""

    @asynccontextmanager
    async def dep() -> AsyncGenerator[int]:
        if at == "opened":
            begun.set()
            await asyncio.sleep(LONG)
        yield 1
        if at == "closed":
            begun.set()
            await asyncio.sleep(LONG)

    async def go() -> None:
        one = Agent("x", model=ScriptedModel(["fine"]), tools=[look], deps=dep, instructions=instructed)
        async with perdure.open_async(f"sqlite:///{tmp_path}/a.db", maintain=False) as db:
            run = asyncio.create_task(one.run(db, session="s", message="go", key="k"))
            await begun.wait()
            assert await db.cancel("s", by="ana")
            result = await asyncio.wait_for(run, 30)
            assert result.status == ("done" if at == "closed" else "cancelled")
            assert (await db.look("s")).lease.holder == ""

    asyncio.run(go())


def test_what_was_opened_is_closed_in_the_task_that_opened_it(tmp_path: Path) -> None:
    tasks: list[Any] = []

    @asynccontextmanager
    async def dep() -> AsyncGenerator[int]:
        tasks.append(asyncio.current_task())
        async with asyncio.timeout(LONG):
            yield 1
        tasks.append(asyncio.current_task())

    async def go() -> None:
        one = Agent("x", model=ScriptedModel(["fine"]), tools=[look], deps=dep)
        async with perdure.open_async(f"sqlite:///{tmp_path}/a.db", maintain=False) as db:
            assert (await one.run(db, session="s", message="go", deadline=60)).ok

    asyncio.run(go())
    assert len(set(tasks)) == 1


@pytest.mark.parametrize("option", ["instructions", "tools", "deps"])
def test_an_error_of_the_program_before_an_answer_leaves_no_message_and_no_checkpoint(
    option: str, tmp_path: Path
) -> None:
    def fails(ctx: Any = None) -> Any:
        raise RuntimeError("out of order")

    def fails_to_open() -> Any:
        raise RuntimeError("out of order")

    wrong: Any = {option: fails_to_open if option == "deps" else fails}
    url = f"sqlite:///{tmp_path}/a.db"
    with pytest.raises(RuntimeError, match="out of order") as e:
        Agent("a", model=ScriptedModel(["hello"]), **wrong).run_sync(url, session="s", message="hi")
    assert vars(e.value)["kept"] is False
    with perdure.open(url) as db:
        # The lease has made its row, as for whoever opens a session and commits nothing.
        assert [(row.id, row.heads, db.inbox("s")) for row in db.sessions()] == [("s", (), [])]
