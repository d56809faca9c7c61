"""An agent: a model, tools and instructions, and the ways to run it. What it does is durable; this object is not."""

# pyright: reportPrivateUsage=false
# The loop is the session's inner part that asks models: it works with the journal itself.
from __future__ import annotations

import asyncio
import hashlib
import json
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.agent.limits import Limits
from perdure.agent.loop import Loop
from perdure.agent.models import Answer, Request, text_of
from perdure.agent.outcome import RunResult, Spent
from perdure.agent.schema import ToolSpec
from perdure.bridge import AsyncDatabase
from perdure.errors import InvalidInput
from perdure.names import check_name
from perdure.tools import Tool, as_tool
from perdure.tracked import plain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    from perdure.agent.models import ChatModel
    from perdure.agent.stream import Event
    from perdure.bridge import AsyncSession

NUDGE = "Go on."


class Agent:
    """A persistent agent: started or resumed by a session's id, by any process, as often as it takes.

    ``tools`` are functions or :func:`perdure.tool` objects; ``params`` (temperature, top_p, seed, ...) go to the
    model; ``output`` is a type its last answer must fit; ``until`` a marker or predicate without which it goes on.
    """

    def __init__(
        self,
        name: str,
        *,
        model: ChatModel,
        tools: Sequence[Callable[..., Any] | Tool] = (),
        instructions: str = "",
        version: str = "1",
        params: dict[str, Any] | None = None,
        output: Any = None,
        until: str | Callable[[str], bool] | None = None,
        nudge: str = NUDGE,
        max_turns: int = 50,
    ) -> None:
        self.name = check_name(name, "agent")
        self.model = model
        self.instructions = instructions
        self.version = version
        self.params = dict(params or {})
        self.output = output
        self.until = until
        self.nudge = nudge
        self.max_turns = max_turns
        self.tools: dict[str, Tool] = {}
        self._specs: dict[str, ToolSpec] = {}
        for fn in tools:
            tool = as_tool(fn)
            if tool.name in self.tools:
                raise InvalidInput(f"agent {name!r} has two tools called {tool.name!r}: give one another name=")
            self.tools[tool.name] = tool
            self._specs[tool.name] = ToolSpec(tool)

    # -- running --------------------------------------------------------------------------------------------------

    async def run(
        self,
        db: AsyncDatabase | str | None,
        *,
        session: str,
        message: Any = None,
        key: str | None = None,
        owner: str = "",
        context: dict[str, Any] | None = None,
        effects: str = "reuse",
        branch: str = "main",
        max_turns: int | None = None,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        deadline: float | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> RunResult:
        """Start or resume a session and work until it is done or must wait. Call it again to go on.

        ``message`` is put into the session's inbox first, durably; with ``key`` it is put there only once, however
        often this is called. ``context`` is told to the model and is fresh with every run.
        """
        async with _opened(db) as open_db:
            if message is not None:
                await open_db.post(session, message, key=key or os.urandom(12).hex())
            async with open_db.session(session, owner=owner, branch=branch, effects=effects) as s:
                limits = Limits(
                    open_db.kernel.clock,
                    max_turns=self.max_turns if max_turns is None else max_turns,
                    max_tokens=max_tokens,
                    max_cost=max_cost,
                    deadline=deadline,
                )
                return await Loop(self, s, limits, context=context, tell=on_event).go()

    def run_sync(self, db: str | None, **options: Any) -> RunResult:
        """The same as :meth:`run`, blocking; not for use inside an event loop."""
        return asyncio.run(self.run(db, **options))

    async def stream(self, db: AsyncDatabase | str | None, **options: Any) -> AsyncIterator[Event]:
        """Run, and give what happens as it happens; the last event is ``ended`` and carries the result."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue()

        async def work() -> RunResult:
            try:
                return await self.run(db, on_event=queue.put_nowait, **options)
            finally:
                queue.put_nowait(None)

        task = asyncio.create_task(work())
        try:
            while (event := await queue.get()) is not None:
                yield event
            result = await task
            from perdure.agent.stream import Event as _Event

            yield _Event("result", result.session, result.step, {"result": result})
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    # -- what the loop asks ---------------------------------------------------------------------------------------

    def tool(self, name: str) -> Tool:
        """The tool of that name; ``InvalidInput`` says to the model which there are."""
        found = self.tools.get(name)
        if found is None:
            known = ", ".join(sorted(self.tools)) or "none"
            raise InvalidInput(f"there is no tool {name!r:.60}: there are {known}")
        return found

    def spec(self, name: str) -> ToolSpec:
        """How the arguments of a tool are checked."""
        self.tool(name)
        return self._specs[name]

    def system(self, context: dict[str, Any] | None) -> str:
        """The system prompt."""
        if not context:
            return self.instructions
        return f"{self.instructions}\n\nContext:\n{json.dumps(context, ensure_ascii=False, sort_keys=True)}".strip()

    async def request(self, s: AsyncSession, context: dict[str, Any] | None) -> Request:
        """What the model is to be sent now."""
        messages: list[dict[str, Any]] = plain(s.messages)
        system = self.system(context)
        if system:
            messages.insert(0, {"role": "system", "content": system})
        return Request(self.model.name, messages, [spec.as_json() for spec in self._specs.values()], dict(self.params))

    def about(self, answer: Answer, request: Request) -> dict[str, Any]:
        """What a checkpoint records of the model."""
        prompt = hashlib.sha256(self.instructions.encode()).hexdigest()[:16]
        model = {"name": request.model, "version": answer.model, "prompt": prompt}
        model |= {k: v for k, v in self.params.items() if k in ("temperature", "top_p", "seed")}
        return {"model": model, "usage": answer.usage._asdict(), "tools": self.fingerprint()}

    def fingerprint(self) -> str:
        """Names the tools as the model sees them."""
        specs = [[t.version, self._specs[n].as_json()] for n, t in sorted(self.tools.items())]
        return hashlib.sha256(json.dumps(specs, sort_keys=True).encode()).hexdigest()[:16]

    def price(self, answer: Answer) -> Spent:
        """What an answer cost."""
        return Spent(answer.usage.input, answer.usage.output, answer.usage.cached)

    def is_done(self, answer: Answer, s: AsyncSession) -> bool:
        """Whether an answer without calls ends the run."""
        text = text_of(answer.message)
        if isinstance(self.until, str):
            return self.until in text
        return self.until(text) if self.until is not None else True

    def parsed(self, text: str) -> Any:
        """The structured output; None when none was asked for."""
        if self.output is None:
            return None
        return msgspec.json.decode(text.encode(), type=self.output)


@asynccontextmanager
async def _opened(db: AsyncDatabase | str | None) -> AsyncGenerator[AsyncDatabase]:
    """A database that was passed stays open; one that was named is closed again."""
    if isinstance(db, AsyncDatabase):
        yield db
        return
    from perdure.opening import open_async

    async with open_async(db) as opened:
        yield opened
