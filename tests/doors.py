"""The doors through which a tool is called: a session's and an agent's, with plain and with asynchronous functions.

Whoever calls through one is told the same words of what came of a call, whichever it is.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, ScriptedModel, Unknown, tool
from perdure.agent.models.scripted import calls
from perdure.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from perdure.agent.models import Request

DOORS = ("session-sync", "session-async", "agent-sync", "agent-async")
DECLARED: dict[str, dict[str, Any]] = {
    "read": {"read": True},
    "retry": {"if_unsure": "retry", "key_valid_for": "24h"},
    "function": {},
    "ask": {},
    "report": {"if_unsure": "report"},
}
"""The columns of the table: what a tool declares."""
EFFECTS = tuple(name for name in DECLARED if name != "read")
UNFINISHED = ("in_doubt", "waiting_approval", "running")
LEASE = 120_000
"""Ms after which a session is free whose process has died."""
ENDS = (Exception, asyncio.CancelledError)
"""What a call may end with; a tool may well be cancelled inside."""
_NUMBERS = count()


class World:
    """A provider whose answers are planned: what a call of ``pay`` raises or returns, by turns, and then "paid"."""

    def __init__(self, *plan: Any, declared: str, finds: Any = None, **options: Any) -> None:
        self._plan = list(plan)
        self.ids: list[str] = []
        """Of the calls that were made: their effects."""
        self.asked_about = 0
        self.finds = finds if finds is not None else Unknown()
        """What the tool's own function finds out."""
        self.inside = threading.Event()
        """Somebody is inside a call that was planned to take for ever."""
        self.let_go = threading.Event()
        options = DECLARED[declared] | options
        if declared == "function":
            options["if_unsure"] = self._find_out

        @tool(**options)
        def pay(amount: int, ctx: perdure.Context) -> str:
            result = self._pay(ctx)
            if result == "for ever":
                self.inside.set()
                self.let_go.wait(60)
                raise RuntimeError("nobody waits for this any more")
            return result

        @tool(name="pay", **options)
        async def pay_async(amount: int, ctx: perdure.Context) -> str:
            result = self._pay(ctx)
            if result == "for ever":
                self.inside.set()
                await asyncio.Event().wait()
            return result

        self.tools = {"sync": pay, "async": pay_async}

    def _pay(self, ctx: perdure.Context) -> str:
        self.ids.append(ctx.effect_id)
        next = self._plan.pop(0) if self._plan else "paid"
        if isinstance(next, BaseException):
            raise next
        return next

    def _find_out(self, amount: int) -> Any:
        self.asked_about += 1
        return self.finds() if inspect.isfunction(self.finds) else self.finds


class Door:
    """A session in memory and a way to call ``pay(5)`` in it; what came of each call, in a word."""

    def __init__(self, name: str, clock: FakeClock | None = None) -> None:
        self.kind, self.way = name.split("-")
        self.clock = clock if clock is not None else FakeClock()
        self.url = f"memory://doors-{next(_NUMBERS)}"
        self._keep = perdure.open(self.url, clock=self.clock, maintain=False)
        self._told = 0
        """Calls that an agent's model was told of, and so were we."""
        self._until = 0
        self._is_begun = False
        self._amount: Any = 5

    @property
    def is_agent(self) -> bool:
        return self.kind == "agent"

    def ends(self, world: World, end: type[BaseException]) -> None:
        """Call, and have the process end while it is inside the tool; its lease runs out."""
        with pytest.raises(end):
            self.call(world)
        self.clock.advance(LEASE)

    def cancelled(self, world: World) -> None:
        """Call, and have our own task cancelled while it is inside the tool."""

        async def work() -> None:
            task = asyncio.create_task(
                self._ask_agent(world, 1, 5) if self.is_agent else self._call_awaited(world, 1, 5, ())
            )
            try:
                assert await asyncio.to_thread(world.inside.wait, 60)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            finally:
                world.let_go.set()

        asyncio.run(work())

    def call(self, world: World, times: int = 1, amount: Any = 5) -> list[str]:
        """Call so many times, one after the other, through a handle of its own; of an agent, as far as it goes."""
        if self.is_agent:
            return _to_its_end(self._ask_agent(world, times, amount))
        if self.way == "async":
            return asyncio.run(self._call_awaited(world, times, amount))
        found: list[str] = []
        with perdure.open(self.url, clock=self.clock, maintain=False) as db, db.session("s") as s:
            for _ in range(times):
                try:
                    found.append(_result(s.call(world.tools["sync"], amount)))
                except ENDS as e:
                    found.append(_word(e, world.tools["sync"].read))
        return found

    async def _call_awaited(
        self, world: World, times: int, amount: Any, caught: tuple[type[BaseException], ...] = ENDS
    ) -> list[str]:
        found: list[str] = []
        async with perdure.open_async(self.url, clock=self.clock, maintain=False) as db, db.session("s") as s:
            for _ in range(times):
                try:
                    found.append(_result(await s.call(world.tools["async"], amount)))
                except caught as e:
                    found.append(_word(e, world.tools["async"].read))
        return found

    async def _ask_agent(self, world: World, times: int, amount: Any) -> list[str]:
        """The model makes the call, and the identical one again, whatever it is told."""
        goes_on = self._is_begun and self.status in UNFINISHED
        self._is_begun = True
        self._until = times + (len(_said_since(self._messages())) if goes_on else 0)
        self._amount = amount
        agent = Agent("desk", model=ScriptedModel(self._say), tools=[world.tools[self.way]])
        async with perdure.open_async(self.url, clock=self.clock, maintain=False) as db:
            try:
                result = await agent.run(db, session="s", message=None if goes_on else "pay")
            except perdure.PerdureError as e:
                return [type(e).__name__]
        said = self.told()
        new, self._told = said[self._told :], len(said)
        waits = {"in_doubt": ["parked"], "waiting_approval": ["asks"], "done": []}[result.status]
        return [*map(_in_a_word, new), *waits]

    def _say(self, request: Request) -> Any:
        made = len(_said_since(request.messages))
        return calls(("pay", {"amount": self._amount})) if made < self._until else "that is all"

    def decide(self, approved: bool) -> None:
        """What a person says to the call that waits for one."""
        requests = self._keep.read("s").book["approvals"].plain().values()
        (request,) = [one["id"] for one in requests if one["status"] == "pending"]
        (self._keep.approve if approved else self._keep.reject)("s", request, by="ana")

    def resolve(self, **said: Any) -> None:
        """What a person says of the call that is in doubt, or raised."""
        with perdure.open(self.url, clock=self.clock, maintain=False) as db, db.session("s") as s:
            s.resolve(self.effects()[-1]["id"], by="ana", **said)

    def report_failure(self, why: str) -> None:
        """What somebody posts who knows that the newest call has not happened."""
        self._keep.post_outcome("s", self.effects()[-1]["id"], failed=why)

    def effects(self) -> list[dict[str, Any]]:
        """The calls that the journal holds."""
        try:
            return list(self._keep.read("s").book.plain().get("effects", {}).values())
        except perdure.NotFound:
            return []

    def told(self) -> list[str]:
        """What an agent's model was told of its calls."""
        return [m["content"] for m in self._messages() if m["role"] == "tool"]

    def waiting(self) -> int:
        """How many entries wait in the inbox."""
        return len(self._keep.kernel.store.inbox("s", 10))

    def _messages(self) -> list[dict[str, Any]]:
        return self._keep.read("s").messages.plain()

    @property
    def status(self) -> str:
        return self._keep.look("s").status

    def close(self) -> None:
        self._keep.close()


def _to_its_end(work: Coroutine[Any, Any, list[str]]) -> list[str]:
    """Run it in an event loop, until all is given back even when a task in it ends with what stops the loop."""
    with asyncio.Runner() as runner:
        task = runner.get_loop().create_task(work)
        while True:
            try:
                return runner.get_loop().run_until_complete(task)
            except (KeyboardInterrupt, SystemExit):
                if task.done():
                    raise


def _said_since(messages: Any) -> list[Any]:
    """What the model was told of calls since somebody has asked it for something."""
    last = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
    return [m for m in messages[last + 1 :] if m["role"] == "tool"]


def _result(result: Any) -> str:
    return "unknown" if isinstance(result, Unknown) else result


def _word(error: BaseException, is_read: bool) -> str:
    if is_read and not isinstance(error, perdure.PerdureError):
        # A read gives its own exception.
        return "failed"
    names = {
        perdure.EffectFailed: "failed", perdure.EffectRaised: "raised", perdure.InDoubt: "parked",
        perdure.ApprovalNeeded: "asks", perdure.errors.InvalidInput: "failed",
    }  # fmt: skip
    return names.get(type(error), type(error).__name__)


def _in_a_word(said: str) -> str:
    """What a model was told of a call."""
    try:
        told = json.loads(said)
    except ValueError:
        return said
    for words, word in (("it ended with", "raised"), ("nobody knows whether this was done", "unknown")):
        if told["error"].startswith(words):
            return word
    return "failed"
