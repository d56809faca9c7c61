"""A plain function whose time is over lives on in its thread: its call is not made a second time meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import perdure
from perdure import Agent, NotDone, ScriptedModel, Unknown, tool
from perdure.agent.models.scripted import calls
from perdure.state.document import plain
from perdure.testing import FakeClock
from tests.agent.working import play
from tests.doors import DECLARED, DOORS, Door

NEVER = 1_000_000


class Patience(FakeClock):
    """A clock on which the thread comes to its end while somebody waits for the so manieth time."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0
        self.slow: Slow | None = None

    def sleep(self, ms: int) -> None:
        self._look()
        super().sleep(ms)

    async def sleep_async(self, ms: int) -> None:
        self._look()
        await super().sleep_async(ms)

    def _look(self) -> None:
        if self.slow is not None and self.slow.threads:
            self.waits += 1
            if self.waits == self.slow.ends_at:
                self.slow.end()


class Slow:
    """A tool whose first call outlives its time, until it is let go."""

    def __init__(self, declared: str, *, ends_at: int, finds: Any = None, **more: Any) -> None:
        self.ends_at = ends_at
        self.threads: list[threading.Thread] = []
        self.most = 0
        self._go_on = threading.Event()
        options = DECLARED[declared] | more
        if declared == "retry":
            options["key_valid_for"] = "10m"
        if declared == "function":
            options["if_unsure"] = lambda amount: finds

        @tool(timeout=0.05, **options)
        def pay(amount: int) -> str:
            self.threads.append(threading.current_thread())
            self.most = max(self.most, sum(one.is_alive() for one in self.threads))
            if len(self.threads) == 1:
                self._go_on.wait(60)
                return "late"
            return "again"

        self.tools = {"sync": pay, "async": pay}

    def end(self) -> None:
        """Let the thread return, and wait until it has."""
        self._go_on.set()
        self.threads[0].join()


def begun(name: str, declared: str, *, ends_at: int = NEVER, finds: Any = None) -> tuple[Door, Any]:
    clock = Patience()
    slow = clock.slow = Slow(declared, ends_at=ends_at, finds=finds)
    return Door(name, clock), slow


@pytest.mark.parametrize("name", DOORS)
@pytest.mark.parametrize("declared", ["read", "retry"])
def test_what_it_returns_late_is_taken_while_somebody_waits(name: str, declared: str) -> None:
    door, slow = begun(name, declared, ends_at=3)
    assert door.call(slow) == ["late"]
    assert len(slow.threads) == 1
    assert door.waiting() == 0
    door.close()


@pytest.mark.parametrize("name", DOORS)
def test_a_read_that_lives_on_has_failed_after_a_while(name: str) -> None:
    door, slow = begun(name, "read")
    assert door.call(slow) == ["failed"]
    assert len(slow.threads) == 1
    if door.is_agent:
        assert door.status == "idle", "nobody is asked about a read"
        assert "longer than 0.05 s" in door.told()[-1]
    slow.end()
    door.close()


def test_what_a_read_returns_that_has_failed_by_then_waits_for_nobody() -> None:
    clock = Patience()
    slow = clock.slow = Slow("read", ends_at=NEVER)
    agent = Agent("desk", model=ScriptedModel([calls(("pay", {"amount": 5})), "I see"]), tools=[slow.tools["sync"]])

    async def work() -> None:
        async with perdure.open_async("memory://", clock=clock, maintain=False) as db:
            assert (await agent.run(db, session="s", message="look")).status == "done"
            slow.end()
            assert db.kernel.store.inbox("s", 10) == []

    play(work())


@pytest.mark.parametrize("name", DOORS)
def test_a_call_that_lives_on_longer_than_its_key_asks_a_person(name: str) -> None:
    door, slow = begun(name, "retry")
    assert door.call(slow) == ["parked"]
    assert len(slow.threads) == 1
    slow.end()
    door.close()


@pytest.mark.parametrize("name", DOORS)
@pytest.mark.parametrize("finds", [NotDone, Unknown()], ids=["not-done", "unknown"])
def test_while_it_lives_nobody_can_say_that_it_does_not_happen(name: str, finds: Any) -> None:
    door, slow = begun(name, "function", finds=finds)
    assert door.call(slow) == ["parked"]
    assert len(slow.threads) == 1
    slow.end()
    assert door.call(slow) == (["again"] if finds is NotDone else ["parked"])
    door.close()


@pytest.mark.parametrize("name", DOORS)
def test_nor_does_a_person_have_it_made_again(name: str) -> None:
    door, slow = begun(name, "ask")
    assert door.call(slow) == ["parked"]
    door.resolve(retry=True)
    assert door.call(slow) == ["parked"]
    assert len(slow.threads) == 1
    slow.end()
    door.resolve(retry=True)
    assert door.call(slow) == ["again"]
    door.close()


SHARED: dict[str, Any] = {"cache": "1h", "cache_scope": "shared"}


@pytest.mark.parametrize("more", [{}, SHARED], ids=["own", "shared"])
def test_what_a_call_returns_late_settles_it_though_it_was_reported_as_unknown(more: dict[str, Any]) -> None:
    slow = Slow("report", ends_at=NEVER, **more)
    pay = slow.tools["sync"]
    with perdure.open("memory://", clock=FakeClock(), maintain=False) as db:
        with db.session("s", owner="ana") as s:
            unknown = s.call(pay, amount=5)
            assert isinstance(unknown, Unknown)
            slow.end()
            for said in ({"retry": True}, {"abort": True}):
                with pytest.raises(perdure.CallError, match='was done: it has returned "late" when nobody waited'):
                    s.resolve(unknown.effect, **said)  # pyright: ignore[reportArgumentType]
            assert s.call(pay, amount=5) == "late"
            assert [(one["id"], one["status"]) for one in s.effects()] == [(unknown.effect, "done")]
        if more:
            with db.session("w", owner="ana") as s:
                assert s.call(pay, amount=5) == "late"
        assert (len(slow.threads), db.look("s").pending) == (1, 0)


@pytest.mark.parametrize("more", [{}, SHARED], ids=["own", "shared"])
def test_so_it_does_for_an_agent_whose_model_repeats_it(more: dict[str, Any]) -> None:
    slow = Slow("report", ends_at=NEVER, **more)

    def answer(request: Any) -> Any:
        return "I see" if request.messages[-1]["role"] == "tool" else calls(("pay", {"amount": 5}))

    desk = Agent("desk", model=ScriptedModel(answer), tools=[slow.tools["sync"]])

    async def work() -> None:
        async with perdure.open_async("memory://", clock=FakeClock(), maintain=False) as db:
            await desk.run(db, session="s", owner="ana", message="pay")
            slow.end()
            end = await desk.run(db, session="s", message="again")
            assert end.status == "done"
            assert [m["content"] for m in await told(db) if m["role"] == "tool"][-1] == "late"
            if more:
                await desk.run(db, session="w", owner="ana", message="pay")
                assert [m["content"] for m in await told(db, "w") if m["role"] == "tool"] == ["late"]
            assert (len(slow.threads), (await db.look("s")).pending) == (1, 0)
            # It is given once: whoever asks for it after that means another one.
            if not more:
                await desk.run(db, session="s", message="once more")
                assert [m["content"] for m in await told(db) if m["role"] == "tool"][-1] == "again"

    async def told(db: perdure.AsyncDatabase, session: str = "s") -> list[Any]:
        return plain((await db.read(session)).messages)

    play(work())
