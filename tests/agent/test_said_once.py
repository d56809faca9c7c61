"""A message is said once: whoever says it again gets its answer, and what is refused leaves nothing behind."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import perdure
from perdure import Agent, ScriptedModel, tool
from perdure.agent import said_once
from perdure.agent.children import handoff
from perdure.agent.models import text_of
from perdure.agent.models.scripted import calls
from perdure.agent.requests import AGENT
from perdure.agent.said_once import answer_of
from perdure.errors import Busy, Gone, InvalidInput, ModelError, NotFound, PerdureError, SessionClosed
from perdure.model import MAIN
from perdure.session.tools.exceptions import LetThrough
from perdure.system import faults
from perdure.testing.clock import FakeClock
from tests.agent.working import by_turn, opened, play

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from perdure.agent.models import Request


def echo(request: Request) -> str:
    """Answers whatever was said since the last answer, by name."""
    last = max((i for i, m in enumerate(request.messages) if m["role"] == "assistant"), default=-1)
    return "re: " + ", ".join(text_of(m) for m in request.messages[last + 1 :] if m["role"] == "user")


def desk(script: Any = echo, **more: Any) -> Agent:
    return Agent("desk", model=ScriptedModel(script), compactor=False, **more)


async def said(db: perdure.AsyncDatabase, session: str = "s", branch: str = MAIN) -> list[str]:
    """What users have said in the conversation, and what waits to be."""
    waiting = [f"waits: {e.key}" for e in await asyncio.to_thread(db.kernel.store.inbox, session, 100)]
    try:
        reading = await db.read(session, branch=branch)
    except NotFound:
        return waiting
    return [text_of(m) for m in reading.plain()["messages"] if m["role"] == "user"] + waiting


@asynccontextmanager
async def held(db: perdure.AsyncDatabase, session: str = "s") -> AsyncIterator[None]:
    """Somebody else has the session."""
    async with db.session(session):
        yield


# -- without a key ----------------------------------------------------------------------------------------------------


def test_a_retry_loop_without_a_key_says_one_message_per_success_and_none_for_busy(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:
            async with held(db):
                for _ in range(3):
                    with pytest.raises(Busy) as refused:
                        await desk().run(db, session="s", message="pay 5")
                    assert (refused.value.kept, refused.value.message_key) == (False, "")
                    assert "another handle of this very process has it: close that one first" in str(refused.value)
                    assert "The message is not kept" in str(refused.value)
            assert await said(db) == []
            end = await desk().run(db, session="s", message="pay 5")
            assert (end.text, end.repeated) == ("re: pay 5", False)
            assert await said(db) == ["pay 5"]
            again = await desk().run(db, session="s", message="pay 5", key=end.message_key)
            assert (again.text, again.repeated, again.message_key) == ("re: pay 5", True, end.message_key)
            assert await said(db) == ["pay 5"]

    play(work())


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (InvalidInput, {"owner": "bob"}),
        (SessionClosed, {"session": "closed"}),
        (NotFound, {"branch": "nowhere"}),
        (InvalidInput, {"effects": "often"}),
        (InvalidInput, {"ttl": -1}),
        (InvalidInput, {"session": ""}),
        (InvalidInput, {"owner": "a\nb"}),
        (InvalidInput, {"wait": -1}),
        (PerdureError, {"message": {"role": "user", "content": object()}}),
        (InvalidInput, {"message": "x" * 2_000_000}),
    ],
)
@pytest.mark.parametrize("key", [None, "k1"])
def test_what_is_refused_leaves_nothing_behind(
    tmp_path: Path, error: type[PerdureError], options: dict[str, Any], key: str | None
):
    async def work() -> None:
        async with opened(tmp_path) as db:
            for session in ("s", "closed"):
                await desk().run(db, session=session, owner="ana", message="first")
            async with db.session("closed") as s:
                await s.close()
            given = {"session": "s", "message": "again", **options}
            with pytest.raises(error) as refused:
                await desk().run(db, key=key, **given)
            assert not refused.value.kept
            assert await said(db) == await said(db, "closed") == ["first"]

    play(work())


class Broken(Exception):
    """An error that is none of ours."""


def breaks(ctx: Any) -> Any:
    raise Broken("boom")


@asynccontextmanager
async def no_deps() -> AsyncIterator[None]:
    raise Broken("boom")
    yield


def own_agent(where: str) -> Agent:
    """An agent whose program is broken somewhere."""
    match where:
        case "model":
            return desk(breaks)
        case "until":
            return desk(until=breaks)
        case "instructions":
            return desk(instructions=breaks)
        case "tools":
            return desk(tools=breaks)
        case "deps":

            @tool(read=True)
            def look(ctx: perdure.Context[int]) -> int:
                return 1

            return desk(tools=[look], deps=no_deps)
        case _:
            return desk()


@pytest.mark.parametrize("where", ["instructions", "tools", "deps"])
def test_what_a_program_gives_for_a_run_is_asked_for_before_the_message_is_written(tmp_path: Path, where: str):
    async def work() -> None:
        async with opened(tmp_path) as db:
            await desk().run(db, session="s", message="first")
            for session in ("s", "new"):
                for _ in range(3):
                    with pytest.raises(Broken) as broken:
                        await own_agent(where).run(db, session=session, message="pay 5")
                    assert (getattr(broken.value, "kept", None), getattr(broken.value, "message_key", None)) == (
                        False,
                        "",
                    )
            assert (await said(db), await said(db, "new")) == (["first"], [])

    play(work())


@pytest.mark.parametrize("where", ["model", "until", "on_event"])
def test_an_error_of_the_program_itself_says_that_the_message_is_kept_and_a_loop_goes_on_with_its_key(
    tmp_path: Path, where: str
):
    """What a retry loop without a key of its own does: it takes the one that the error carries."""

    async def work() -> None:
        async with opened(tmp_path) as db:
            key, keys = None, set[str]()
            for _ in range(3):
                options: dict[str, Any] = {"on_event": breaks} if where == "on_event" else {}
                with pytest.raises(Broken, match="boom") as broken:
                    await own_agent(where).run(db, session="s", message="pay 5", key=key, **options)
                assert broken.value.kept  # pyright: ignore[reportAttributeAccessIssue]
                key = broken.value.message_key  # pyright: ignore[reportAttributeAccessIssue]
                keys.add(key)
                (note,) = broken.value.__notes__
                assert "The message is kept in session 's'" in note
                assert f"say it again with key={key!r}" in note
            assert len(keys) == 1
            end = await desk().run(db, session="s", message="pay 5", key=key)
            assert (end.text, await said(db)) == ("re: pay 5", ["pay 5"])

    play(work())


def test_the_same_error_raised_again_speaks_of_the_message_at_hand(tmp_path: Path):
    error = Broken("always the same one")

    def fail(ctx: Any) -> str:
        raise error

    async def work() -> None:
        async with opened(tmp_path) as db:
            with pytest.raises(Broken):
                await desk(fail).run(db, session="s", message="one", key="k1")
            assert vars(error) == {"kept": True, "message_key": "k1", "__notes__": error.__notes__}
            with pytest.raises(Broken):
                await desk(instructions=fail).run(db, session="t", message="two")
            assert (vars(error)["kept"], vars(error)["message_key"]) == (False, "")

    play(work())


def test_a_run_that_is_given_up_on_says_where_its_message_is(tmp_path: Path):
    class Slow(ScriptedModel):
        async def answer(self, request: Any, *args: Any, **more: Any) -> Any:
            await asyncio.Event().wait()

    async def work() -> None:
        async with opened(tmp_path) as db:
            slow = Agent("desk", model=Slow(echo), compactor=False)
            with pytest.raises(TimeoutError) as late:
                async with asyncio.timeout(0.2):
                    await slow.run(db, session="s", message="one")
            cancelled = late.value.__cause__ or late.value.__context__  # the latter in early 3.11
            assert isinstance(cancelled, asyncio.CancelledError)
            key = vars(cancelled)["message_key"]
            assert (await desk().run(db, session="s", message="one", key=key)).text == "re: one"
            assert await said(db) == ["one"]

    play(work())


# -- where nothing can be said ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "k1"])
def test_a_branch_that_is_not_there_is_refused_before_anything_is_written(tmp_path: Path, key: str | None):
    clock = FakeClock()

    async def work() -> None:
        async with opened(tmp_path, clock) as db:
            await desk().run(db, session="old", message="first")
            await desk().run(db, session="over", message="first", ttl=60)
            clock.advance(61_000)
            for session in ("new", "old", "over"):
                with pytest.raises(NotFound, match=f"session '{session}' has no branch 'typo'") as refused:
                    await desk().run(db, session=session, message="again", key=key, branch="typo")
                assert not refused.value.kept
                with pytest.raises(NotFound, match="no branch 'typo'"):
                    await db.session(session, branch="typo")
                with pytest.raises(NotFound, match="no branch 'typo'"):
                    await db.update(session, lambda s: s.vars.update(n=1), branch="typo")
            assert await asyncio.to_thread(db.kernel.store.look, "new") is None, "not even a lease"
            assert await said(db, "new") == []
            assert (await desk().run(db, session="new", message="hello")).text == "re: hello"
            assert await said(db, "old") == ["first"]

    play(work())


@pytest.mark.parametrize("key", [None, "k1"])
@pytest.mark.parametrize("point", ["agent.before_model", "agent.after_model", "agent.before_commit"])
def test_whose_a_new_session_is_stands_there_when_it_is_killed_in_its_first_answer(
    tmp_path: Path, point: str, key: str | None
):
    class Killed(BaseException):
        pass

    def kill(name: str) -> None:
        if name == point:
            raise Killed

    async def work() -> None:
        async with opened(tmp_path) as db:
            faults.hook = kill
            try:
                with pytest.raises(Killed):
                    await desk().run(db, session="s", owner="ana", message="mine", key=key)
            finally:
                faults.hook = None
            row = await db.look("s")
            assert (row.owner, row.agent) == ("ana", "desk")
            with pytest.raises(InvalidInput, match="belongs to another owner"):
                await desk().run(db, session="s", owner="bob", message="mine")
            end = await desk().run(db, session="s")
            assert (end.text, end.origin and end.origin.kind) == ("re: mine", "resumed")

    play(work())


# -- with a key -------------------------------------------------------------------------------------------------------


def test_a_key_that_is_repeated_after_another_one_returns_its_own_answer(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:
            first = await desk().run(db, session="s", message="one", key="k1")
            second = await desk().run(db, session="s", message="two", key="k2")
            for key, message, made in (("k1", "one", first), ("k2", "two", second)):
                again = await desk().run(db, session="s", message=message, key=key)
                assert (again.text, again.step, again.turns, again.repeated) == (made.text, made.step, 1, True)
                assert (made.text, made.repeated, made.message_key) == (f"re: {message}", False, key)
                assert (await desk().run(db, session="s", key=key)).text == made.text, "the key alone finds it"
            assert await said(db) == ["one", "two"]

    play(work())


def test_the_same_key_with_another_message_is_refused(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:
            await desk().run(db, session="s", message="one", key="k1")
            for _ in range(2):
                with pytest.raises(InvalidInput, match="'k1' was used before for another content; use a new key") as no:
                    await desk().run(db, session="s", message="two", key="k1")
                assert not no.value.kept
            assert await said(db) == ["one"]

    play(work())


def test_three_callers_at_once_each_get_the_answer_to_their_own_message(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:

            async def one(n: int) -> perdure.RunResult:
                return await desk().run(db, session="s", message=f"m{n}", key=f"k{n}", wait=True)

            ends = await asyncio.gather(*map(one, range(3)))
            for n, end in enumerate(ends):
                assert end.status == "done"
                assert f"m{n}" in end.text
            assert sorted(await said(db)) == ["m0", "m1", "m2"]

    play(work())


def test_callers_who_repeat_after_busy_get_the_answer_to_their_own_message(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:
            async with held(db):
                for n in range(3):
                    with pytest.raises(Busy, match=f"The message is kept: say it again with key='k{n}'") as busy:
                        await desk().run(db, session="s", message=f"m{n}", key=f"k{n}")
                    assert (busy.value.kept, busy.value.message_key) == (True, f"k{n}")
            for n in range(3):
                end = await desk().run(db, session="s", message=f"m{n}", key=f"k{n}")
                assert (end.text, end.repeated) == ("re: m0, m1, m2", n > 0)
            assert await said(db) == ["m0", "m1", "m2"]

    play(work())


def test_whoever_waits_gets_the_answer_that_the_holder_gave_and_another_that_was_given_then(tmp_path: Path):
    started, go_on = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedModel):
        async def answer(self, request: Any, *args: Any, **more: Any) -> Any:
            started.set()
            await go_on.wait()
            return await super().answer(request, *args, **more)

    async def work() -> None:
        async with opened(tmp_path) as db:
            slow = Agent("desk", model=Slow(echo), compactor=False)
            holder = asyncio.create_task(slow.run(db, session="s", message="one", key="k1"))
            await started.wait()
            again = asyncio.create_task(desk().run(db, session="s", message="one", key="k1", wait=True))
            other = asyncio.create_task(desk().run(db, session="s", message="two", key="k2", wait=True))
            with pytest.raises(Busy) as busy:
                await desk().run(db, session="s", message="one", key="k1", wait=0.01)
            assert busy.value.kept
            go_on.set()
            one, same, two = await asyncio.gather(holder, again, other)
            assert (one.text, one.repeated) == ("re: one", False)
            assert (same.text, same.repeated, same.message_key) == ("re: one", True, "k1")
            assert two.text == "re: two"
            assert await said(db) == ["one", "two"]

    play(work())


def test_whoever_waits_takes_over_when_the_holder_dies(tmp_path: Path):
    clock = FakeClock()

    async def work() -> None:
        async with opened(tmp_path, clock) as db:
            store = db.kernel.store
            await asyncio.to_thread(store.acquire, "s", "a process that died", 60_000)
            # The clock goes on while it waits.
            end = await desk().run(db, session="s", message="one", key="k1", wait=True)
            assert (end.text, end.repeated) == ("re: one", False)
            await asyncio.to_thread(store.acquire, "t", "a process that lives", 600_000)
            with pytest.raises(Busy):
                await desk().run(db, session="t", message="one", wait=5)
            assert await said(db, "t") == []

    play(work())


@pytest.mark.parametrize(
    "point", ["agent.before_model", "agent.after_model", "agent.before_commit", "agent.after_commit"]
)
def test_a_killed_caller_repeats_and_its_run_goes_on_said_once(tmp_path: Path, point: str):
    """Whatever was reached: after the post, after the answer, after the commit."""
    rung: list[str] = []

    @tool(read=True)
    def ring() -> str:
        """Ring."""
        rung.append("ring")
        return "rang"

    agent = desk(by_turn(calls(("ring", {})), "It rang."), tools=[ring])

    class Killed(LetThrough):
        pass

    def kill(name: str) -> None:
        if name == point:
            raise Killed

    async def work() -> None:
        async with opened(tmp_path) as db:
            faults.hook = kill
            try:
                await agent.run(db, session="s", message="ring", key="k1")
            except Killed:
                pass
            finally:
                faults.hook = None
        async with opened(tmp_path) as db:
            end = await agent.run(db, session="s", message="ring", key="k1", wait=True)
            assert (end.text, end.message_key) == ("It rang.", "k1")
            assert await said(db) == ["ring"]

    play(work())


def test_after_a_run_that_failed_the_same_key_goes_on(tmp_path: Path):
    def fail(_: Request) -> str:
        raise ModelError("no")

    async def work() -> None:
        async with opened(tmp_path) as db:
            end = await desk(fail).run(db, session="s", message="one", key="k1")
            assert (end.status, end.message_key, end.repeated) == ("failed", "k1", False)
            end = await desk().run(db, session="s", message="one", key="k1")
            assert (end.status, end.text, end.repeated) == ("done", "re: one", False)
            assert await said(db) == ["one"]

    play(work())


def test_a_repeat_while_it_waits_for_approval_returns_what_it_waits_for_and_then_its_answer(tmp_path: Path):
    paid: list[int] = []

    @tool(approve=True)
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    agent = desk(by_turn(calls(("pay", {"amount": 5})), "Paid, and hello."), tools=[pay])

    async def work() -> None:
        async with opened(tmp_path) as db:
            end = await agent.run(db, session="s", message="pay 5", key="k1")
            for _ in range(2):
                assert (end.status, len(end.approvals), end.message_key) == ("waiting_approval", 1, "k1")
                end = await agent.run(db, session="s", message="pay 5", key="k1")
            other = await agent.run(db, session="s", message="hello", key="k2")
            assert (other.status, other.message_key) == ("waiting_approval", "k2")
            await db.approve("s", end.approvals[0], by="ana")
            end = await agent.run(db, session="s", message="pay 5", key="k1")
            assert (end.status, end.text, end.repeated, end.approvals) == ("done", "Paid, and hello.", False, ())
            assert (await agent.run(db, session="s", message="hello", key="k2")).text == "Paid, and hello."
            assert (await agent.run(db, session="s", message="pay 5", key="k1")).text == "Paid, and hello."
            assert (paid, await said(db)) == ([5], ["pay 5", "hello"])

    play(work())


def test_a_message_that_was_cancelled_says_so_also_after_others_were_answered(tmp_path: Path):
    @tool(approve=True)
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    agent = desk(by_turn(calls(("pay", {"amount": 5})), "Hello."), tools=[pay])

    async def work() -> None:
        async with opened(tmp_path) as db:
            await agent.run(db, session="s", message="pay 5", key="k1")
            await db.post("s", "really", key="k2")
            await db.cancel("s", by="ana", reason="too much")
            end = await agent.run(db, session="s", message="pay 5", key="k1")
            assert (end.status, end.reason) == ("cancelled", "cancelled by ana: too much")
            assert (await agent.run(db, session="s", message="hello", key="k3")).text == "Hello."
            for key, message in (("k1", "pay 5"), ("k2", "really")):
                end = await agent.run(db, session="s", message=message, key=key)
                assert (end.status, end.reason, end.text) == ("cancelled", "cancelled by ana: too much", ""), key
                assert end.repeated

    play(work())


def test_answers_older_than_the_newest_are_found_in_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(said_once, "KEPT", 3)
    monkeypatch.setattr(said_once, "LISTED", 2)

    async def work() -> None:
        async with opened(tmp_path) as db:
            made = [await desk().run(db, session="s", message=f"m{n}", key=f"k{9 - n}") for n in range(8)]
            kept = (await db.read("s")).book[AGENT]["answered"]
            assert sorted(kept) == ["k2", "k3", "k4"], "the newest, whatever their names"
            for n, end in enumerate(made):
                again = await desk().run(db, session="s", message=f"m{n}", key=f"k{9 - n}")
                assert (again.text, again.step, again.repeated) == (f"re: m{n}", end.step, True)

    play(work())


def test_an_answer_that_nothing_has_any_more_is_not_made_up(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:
            await desk().run(db, session="s", message="one", key="k1")
            await desk().run(db, session="s", message="two", key="k2")
            async with db.session("s") as s:
                await s.rewind(1)
            with pytest.raises(Gone, match=r"message 'k2' of session 's' gets no answer: .* was rewound") as gone:
                await desk().run(db, session="s", message="two", key="k2")
            # Under this one nobody ever answers it.
            assert str(gone.value).endswith("to have it answered, say it again under another key")
            assert (await desk().run(db, session="s", message="one", key="k1")).text == "re: one"
            with pytest.raises(Gone, match="'k9'"):
                await desk().run(db, session="s", key="k9")

    play(work())


def test_a_conversation_whose_messages_were_edited_still_finds_the_answer(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:
            await desk().run(db, session="s", message="one", key="k1")
            async with db.session("s") as s:
                s.messages.clear()
                await s.commit()
            assert (await desk().run(db, session="s", message="one", key="k1")).text == "re: one"

    play(work())


def test_of_a_session_that_has_expired_no_key_is_known(tmp_path: Path):
    clock = FakeClock()

    async def work() -> None:
        async with opened(tmp_path, clock) as db:
            await desk().run(db, session="s", message="one", key="k1", ttl=60)
            clock.advance(61_000)
            end = await desk().run(db, session="s", message="one", key="k1", ttl=60)
            assert (end.text, end.repeated, end.origin and end.origin.kind) == ("re: one", False, "restarted")
            assert await said(db) == ["one"]
            assert (await desk().run(db, session="s", message="one", key="k1")).repeated

    play(work())


def test_a_closed_session_gives_the_answers_it_has(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:
            await desk().run(db, session="s", message="one", key="k1")
            async with db.session("s") as s:
                await s.close()
            assert (await desk().run(db, session="s", message="one", key="k1")).text == "re: one"
            with pytest.raises(SessionClosed) as no:
                await desk().run(db, session="s", message="two", key="k2")
            assert not no.value.kept
            assert await said(db) == ["one"]

    play(work())


# -- every way to say it ----------------------------------------------------------------------------------------------


def test_a_conversation_that_was_handed_over_gives_the_answer_with_who_gave_it(tmp_path: Path):
    class Bill(msgspec.Struct):
        total: int

    billing = Agent("billing", model=ScriptedModel(lambda _: '{"total": 7}'), output=Bill)
    front = Agent(
        "front",
        model=ScriptedModel(by_turn(calls(("hand_to_billing", {"reason": "a bill"})))),
        tools=[handoff(billing)],
    )

    async def work() -> None:
        async with opened(tmp_path) as db:
            made = await front.run(db, session="s", message="my bill", key="k1")
            again = await front.run(db, session="s", message="my bill", key="k1")
            assert (made.agent, made.output) == ("billing", Bill(7))
            assert (again.agent, again.output, again.repeated) == ("billing", Bill(7), True)
            # Whoever does not know that agent gets the text.
            alone = await desk(output=Bill).run(db, session="s", message="my bill", key="k1")
            assert (alone.text, alone.output) == ('{"total": 7}', None)

    play(work())


def test_structured_output_is_given_again_and_is_none_where_the_type_has_changed(tmp_path: Path):
    class One(msgspec.Struct):
        n: int

    class Other(msgspec.Struct):
        text: str

    async def work() -> None:
        async with opened(tmp_path) as db:
            for repeated in (False, True):
                end = await desk(lambda _: '{"n": 1}', output=One).run(db, session="s", message="one", key="k1")
                assert (end.output, end.repeated) == (One(1), repeated)
            end = await desk(output=Other).run(db, session="s", message="one", key="k1")
            assert (end.output, end.text) == (None, '{"n": 1}')

    play(work())


def test_a_message_is_said_once_over_all_branches(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:
            await desk().run(db, session="s", message="one", key="k1")
            async with db.session("s") as s:
                await s.fork("side")
            made = await desk().run(db, session="s", message="two", key="k2", branch="side")
            assert made.text == "re: two"
            for branch in (MAIN, "side"):
                assert (await desk().run(db, session="s", message="one", key="k1", branch=branch)).text == "re: one"
                assert (await desk().run(db, session="s", message="two", key="k2", branch=branch)).text == "re: two"
            assert await said(db) == ["one"]
            assert await said(db, branch="side") == ["one", "two"]
            found = answer_of(db.kernel, "s", "k2", MAIN)
            assert found is not None
            assert found.branch == "side"

    play(work())


def test_stream_and_run_sync_say_once_too(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:
            for repeated in (False, True):
                events = [e async for e in desk().stream(db, session="s", message="one", key="k1")]
                end = events[-1].data["result"]
                assert (end.text, end.repeated, len(events) == 1) == ("re: one", repeated, repeated)

    play(work())
    url = f"sqlite:///{tmp_path}/agents.db"
    end = desk().run_sync(url, session="s", message="one", key="k1")
    assert (end.text, end.repeated) == ("re: one", True)


def test_what_a_fleet_was_given_is_answered_by_key(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:
            assert await perdure.submit_async(db, "s", "one", agent="desk", key="k1")
            assert not await perdure.submit_async(db, "s", "one", agent="desk", key="k1")
            with pytest.raises(InvalidInput, match="'k1' was used before for another content"):
                await perdure.submit_async(db, "s", "two", agent="desk", key="k1")
            assert answer_of(db.kernel, "s", "k1", MAIN) is None
            # As a worker runs it: with nothing to say.
            await desk().run(db, session="s")
            assert not await perdure.submit_async(db, "s", "one", agent="desk", key="k1")
            assert not await db.post("s", "one", key="k1")
            with pytest.raises(InvalidInput, match="'k1' was used before for another content"):
                await db.post("s", "two", key="k1")
            end = await desk().run(db, session="s", message="one", key="k1")
            assert (end.text, end.repeated) == ("re: one", True)
            assert await said(db) == ["one"]

    play(work())


def test_the_words_of_an_error_that_kept_a_message_help(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:
            async with held(db):
                with pytest.raises(Busy) as busy:
                    await desk().run(db, session="s", message="one", key="it's mine")
            told = re.search(r"key=(.*) to get its answer", str(busy.value))
            assert told is not None
            end = await desk().run(db, session="s", message="one", key=busy.value.message_key)
            assert (end.text, repr(end.message_key)) == ("re: one", told[1])

    play(work())
