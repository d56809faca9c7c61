"""An agent: a model, tools and instructions, and the ways to run it. What it does is durable; this object is not."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

from perdure.agent.answer_calls import ANSWER, QUEUE, STEP, WITHDRAW
from perdure.agent.children import AgentTool, registry, release
from perdure.agent.context.compactor import Compactor
from perdure.agent.context.window import Window
from perdure.agent.live_answers import Feed
from perdure.agent.loop import Limits, Loop
from perdure.agent.models import Answer, Request, message_digest, request_digest, text_of
from perdure.agent.models.prices import Price, price_of
from perdure.agent.notify import check_notify
from perdure.agent.requests import FORM
from perdure.agent.run_result import (
    FAILED,
    INCOMPATIBLE,
    SLEEPING,
    STOPPED,
    WAITING_APPROVAL,
    WAITING_RESULT,
    RunResult,
    Spent,
)
from perdure.agent.said_once import Said
from perdure.agent.session_stream import Event
from perdure.agent.tool_schema import ToolSpec, output_schema
from perdure.agent.tool_schema import parsed as from_text
from perdure.aio import AsyncDatabase
from perdure.database import DatabaseHandle
from perdure.errors import Busy, InvalidInput, Misuse, PerdureError
from perdure.model import MAIN
from perdure.opening import open_async
from perdure.session.handover import gone_on_with
from perdure.session.tools import Tool, as_tool, warn_of_undeclared
from perdure.session.typed_values import MISFITS, TypedValue, in_short
from perdure.system.flow import Unawaited
from perdure.system.names import check_name

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence

    from perdure.agent.models import ChatModel
    from perdure.agent.notify import Notify
    from perdure.aio import AsyncSession

log = logging.getLogger("perdure.agent")
P = ParamSpec("P")
NUDGE = "Go on."
FIRST_LOOK, LONGEST_LOOK = 50, 1_000
"""Ms between two looks at a session that somebody else has, at first and at most."""


def _used_awaited(run: Callable[P, Coroutine[Any, Any, RunResult]]) -> Callable[P, Coroutine[Any, Any, RunResult]]:
    @functools.wraps(run)
    def started(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, RunResult]:
        return Unawaited(
            run(*args, **kwargs), "write `result = await agent.run(...)`, or agent.run_sync(url, ...) without asyncio"
        )

    return started


class Agent:
    """A persistent agent: started or resumed by a session's id, by any process, as often as it takes.

    ``model`` is a client, or the name of a model at a ``provider`` (holysheep, openai, deepseek, openrouter, ollama,
    vllm), whose default is asked when none is named. ``prices`` are yours, by model, where the built-in table is not
    enough. ``tools`` are functions or :func:`perdure.tool` objects; ``params`` (temperature, top_p, seed, ...) go to
    the model; ``output`` is a type its last answer must fit (a dataclass, a model of msgspec or pydantic, ...), or it
    is asked again, twice at most (its JSON schema is sent as ``response_format``, unless ``params`` has another one or
    None); ``until`` a marker or predicate without which it
    goes on.
    ``window`` says how much of a long conversation is sent, ``compactor`` who summarises the rest (False: nobody).
    ``checkpoints`` says when its work becomes durable: every "step", or reads only with the next "answer".
    ``on_message`` says what becomes of an open request for approval when the user says something meanwhile: "queue",
    the message is answered afterwards, or "withdraw", the request is taken back. ``notify``, a URL or a function, is
    told when a run waits for a person or has failed.
    """

    def __init__(
        self,
        name: str,
        *,
        model: ChatModel | str | None = None,
        provider: str | None = None,
        prices: Mapping[str, Price] | None = None,
        tools: Sequence[Callable[..., Any] | Tool] = (),
        instructions: str = "",
        version: str = "1",
        params: dict[str, Any] | None = None,
        output: Any = None,
        until: str | Callable[[str], bool] | None = None,
        nudge: str = NUDGE,
        max_turns: int = 50,
        window: Window | None = None,
        compactor: Compactor | bool = True,
        checkpoints: str = STEP,
        on_message: str = QUEUE,
        notify: Notify | None = None,
    ) -> None:
        self.name = check_name(name, "agent")
        self.model: ChatModel = as_model(model, provider)
        self.instructions = instructions
        self.version = version
        self.prices = prices
        # What the client sends with every request is part of it, so that what is recorded is what was sent.
        self.params: dict[str, Any] = {**getattr(self.model, "params", {}), **(params or {})}
        self.output = output
        self._typed_output = _output_type(output)
        self.until = until
        self.nudge = nudge
        self.max_turns = max_turns
        self.window = window or Window()
        self.compactor = compactor if isinstance(compactor, Compactor) else Compactor() if compactor else None
        if on_message not in (QUEUE, WITHDRAW):
            raise InvalidInput(f"on_message is one of {QUEUE}, {WITHDRAW}, not {on_message!r:.40}")
        self.on_message = on_message
        if checkpoints not in (STEP, ANSWER):
            raise InvalidInput(f"checkpoints is one of {STEP}, {ANSWER}, not {checkpoints!r:.40}")
        self.checkpoints = checkpoints
        self.notify = check_notify(notify)
        self.tools: dict[str, Tool] = {}
        self.specs: dict[str, ToolSpec] = {}
        warn_of_undeclared([fn for fn in tools if not isinstance(fn, Tool)])
        for fn in tools:
            tool = as_tool(fn)
            if tool.name in self.tools:
                raise InvalidInput(f"agent {name!r} has two tools called {tool.name!r}: give one another name=")
            self.tools[tool.name] = tool
            self.specs[tool.name] = ToolSpec(tool)

    # -- running --------------------------------------------------------------------------------------------------

    @_used_awaited
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
        ttl: int | Literal["default"] | None = "default",
        on_event: Callable[[Event], None] | None = None,
        live: bool = False,
        agents: Sequence[Agent] = (),
        parent: dict[str, str] | None = None,
        stop: asyncio.Event | None = None,
        wait: bool | float = False,
        claimed: bool = False,
    ) -> RunResult:
        """Start or resume a session and work until it is done or must wait. Call it again to go on.

        ``message`` is put into the session's inbox, durably. With ``key`` that happens first, and once, however often
        this is called: a repetition gets the answer to *this* message, goes on with its run, or finds it answered
        (``repeated``); the key alone asks for the answer. Without one it is written only when nothing refuses it, such
        as ``Busy``. Results and errors carry its ``message_key``. With ``wait`` (for so many seconds, or True for as
        long as it takes) whoever finds the session busy waits for the answer, or for the session. ``context`` is told
        to the model and is fresh with every run. ``ttl`` is how many seconds the session lives after its last commit
        (None: for ever), as for ``db.session``. With ``live`` whoever reads along from another process gets answers
        while they are made. ``agents`` are others that may have the conversation, beside those it can be handed to from
        here; ``parent`` is set by :meth:`as_tool`, and ``claimed`` by a worker, which tells the board itself how it
        went. Once ``stop`` is set the run is put down after its current step, as "stopped": run it again to go on.
        """
        async with _opened(db, lambda: release(self, *agents)) as open_db:
            known = registry(self, agents)

            def output(name: str, text: str) -> Any:
                return known[name].parsed(text) if name in known and not known[name].misfit(text) else None

            said = Said(open_db, session, branch, message, key, owner, output)
            options: dict[str, Any] = {"owner": owner, "branch": branch, "ttl": ttl, "effects": effects}
            try:
                await said.post_first()
                opened = await self._hold(open_db, said, wait, options)
                if isinstance(opened, RunResult):
                    return opened
                async with opened as s:
                    s.journal.check_open()
                    before = s.step
                    await said.post_last(anew=s.origin.kind == "restarted")
                    limits = Limits(
                        open_db.kernel.clock,
                        max_turns=self.max_turns if max_turns is None else max_turns,
                        max_tokens=max_tokens,
                        max_cost=max_cost,
                        deadline=deadline,
                    )
                    more: dict[str, Any] = {"db": open_db, "agents": agents, "parent": parent, "live": live}
                    loop = Loop(self, s, limits, context=context, tell=on_event, stop=stop, **more)
                    result = await said.result(await loop.go(), s, before)
            except PerdureError as e:
                said.mark(e)
                raise
            if branch == MAIN and parent is None and not claimed:
                await open_db.driver.call(_ran_by_hand, open_db, result)
            return result

    async def _hold(
        self, db: AsyncDatabase, said: Said, wait: bool | float, options: dict[str, Any]
    ) -> AsyncSession | RunResult:
        """The session to work in, or what its message was answered with meanwhile, by whoever has it."""
        if wait is not True and not wait >= 0:
            raise InvalidInput(f"wait is how many seconds to wait, or True for as long as it takes, not {wait!r:.40}")
        clock = db.kernel.clock
        until = clock.monotonic() + int(wait * 1000) if wait is not True else None
        pause = FIRST_LOOK
        while True:
            if not said.new and (answer := await said.answer()) is not None:
                return answer
            try:
                return await db.session(said.session, **options)
            except Busy:
                if until is not None and clock.monotonic() >= until:
                    raise
            # From now on somebody else may answer what is there.
            said.new = not said.named
            await clock.sleep_async(pause)
            pause = min(LONGEST_LOOK, pause * 2)

    def run_sync(self, db: str | None, **options: Any) -> RunResult:
        """The same as :meth:`run`, blocking; not for use inside an event loop."""
        if isinstance(db, AsyncDatabase):
            raise Misuse("run_sync has an event loop of its own: pass the URL, or `await agent.run(db, ...)`")
        return asyncio.run(self.run(db, **options))

    async def close(self) -> None:
        """Release the connections to its models and those of agents it can reach; a later run makes new ones."""
        await release(self)

    async def stream(self, db: AsyncDatabase | str | None, **options: Any) -> AsyncGenerator[Event]:
        """Run, and give what happens as it happens; the last event is ``result`` and carries the result of the run."""
        feed = Feed()
        options.setdefault("live", True)

        async def work() -> RunResult:
            try:
                return await self.run(db, on_event=feed.put, **options)
            finally:
                feed.end()

        task = asyncio.create_task(work())
        try:
            while (event := await feed.get()) is not None:
                yield event
            result = await task
            yield Event("result", result.session, result.step, {"result": result})
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def as_tool(self, *, name: str | None = None, description: str | None = None, **options: Any) -> Tool:
        """This agent as a tool of another one: each call is a session of its own, whose answer is the call's result.

        A kill of either loses nothing, cancelling reaches it, and while it waits for a person the other one waits for
        it. ``options`` are those of :meth:`run`, such as ``max_turns``.
        """
        return AgentTool(self, name or self.name, description or f"Have {self.name} do something.", options)

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
        return self.specs[name]

    def setup(self) -> dict[str, Any]:
        """All that a request is made of besides the conversation, as a session records it whenever it changes."""
        return {
            "form": FORM,
            "agent": self.name,
            "version": self.version,
            "model": self.model.name,
            "instructions": self.instructions,
            "params": self._params(),
            "tools": [spec.as_json() for spec in self.specs.values()],
            "versions": {name: tool.version for name, tool in self.tools.items()},
            "window": self.window.as_json(),
            "compactor": self.compactor.as_json() if self.compactor is not None else None,
        }

    def _params(self) -> dict[str, Any]:
        if self.output is None or "response_format" in self.params:
            return {k: v for k, v in self.params.items() if k != "response_format" or v is not None}
        assert self._typed_output is not None
        schema = output_schema(self._typed_output, strict=getattr(self.model, "strict_output", False))
        return {**self.params, "response_format": {"type": "json_schema", "json_schema": schema}}

    def about(
        self, answer: Answer, request: Request, *, use: str = "", asked: ChatModel | None = None
    ) -> dict[str, Any]:
        """What a checkpoint records of the model that was ``asked``: the agent's own, unless another is named."""
        prompt = hashlib.sha256(self.instructions.encode()).hexdigest()[:16]
        model: dict[str, Any] = {"name": request.model, "version": answer.model, "prompt": prompt}
        model |= {"finish": answer.finish, "id": answer.id, "fingerprint": answer.fingerprint}
        model |= {"request": request_digest(request), "answer": message_digest(answer.message)}
        model |= {k: v for k, v in self.params.items() if k in ("temperature", "top_p", "seed")}
        if use:
            model["use"] = use
        usage = {**answer.usage._asdict(), "cost": self.price(answer, asked=asked).cost}
        return {"model": model, "usage": usage, "tools": self.fingerprint()}

    def fingerprint(self) -> str:
        """Names the tools as the model sees them."""
        specs = [[t.version, self.specs[n].as_json()] for n, t in sorted(self.tools.items())]
        return hashlib.sha256(json.dumps(specs, sort_keys=True).encode()).hexdigest()[:16]

    def price(self, answer: Answer, notes: list[str] | None = None, *, asked: ChatModel | None = None) -> Spent:
        """What an answer cost. A model that is paid for at a price nobody told us costs 0, which is noted once."""
        model = asked or self.model
        usage, price = answer.usage, self._price(model, answer.model)
        if price is None and notes is not None and hasattr(model, "price"):
            said = f"the price of {model.name} is not known: its cost counts as 0; pass prices= to count it"
            if said not in notes:
                notes.append(said)
        return Spent(usage.input, usage.output, usage.cached, 0.0 if price is None else round(price.of(usage), 12))

    def _price(self, model: ChatModel, version: str) -> Price | None:
        own = price_of("", model.name, self.prices) or price_of("", version, self.prices)
        if own is not None:
            return own
        known: Callable[[str], Price | None] | None = getattr(model, "price", None)
        return known(version) if known is not None else None

    def is_done(self, answer: Answer, s: AsyncSession) -> bool:
        """Whether an answer without calls ends the run."""
        text = text_of(answer.message)
        if isinstance(self.until, str):
            return self.until in text
        return self.until(text) if self.until is not None else True

    def parsed(self, text: str) -> Any:
        """The structured output; None when none was asked for."""
        return None if self._typed_output is None else self._typed_output.from_json(from_text(text))

    def misfit(self, text: str) -> str:
        """What is wrong with a last answer that should be structured; "" when nothing is."""
        try:
            self.parsed(text)
        except MISFITS as e:
            return in_short(e)
        return ""


def _ran_by_hand(db: AsyncDatabase, result: RunResult) -> None:
    """Somebody has run a session himself, not a worker: the board learns of it. Blocks."""
    if result.status in (FAILED, INCOMPATIBLE, STOPPED):
        return
    # Nobody but a worker notices that a request expires, or asks for a result that comes later.
    looked_at = result.status in (WAITING_APPROVAL, WAITING_RESULT, SLEEPING)
    try:
        gone_on_with(db.kernel, result.session, looked_at=looked_at)
    except PerdureError as e:
        # What came of the run is durable: whoever asked for it gets it.
        log.warning("session %r was run, and the board of the fleet could not be told: %s", result.session, e)


def _output_type(output: Any) -> TypedValue | None:
    try:
        return None if output is None else TypedValue(output)
    except TypeError as e:
        raise InvalidInput(
            f"output= is a type that JSON can be made into, such as a dataclass or a model of msgspec or pydantic: "
            f"{in_short(e)}"
        ) from None


def as_model(model: ChatModel | str | None, provider: str | None) -> ChatModel:
    """A client as it is; a name, or a provider alone, as a client of that provider."""
    if model is None or isinstance(model, str):
        if model is None and provider is None:
            raise InvalidInput("an agent needs a model: pass model=, or provider= to ask its default one")
        from perdure.agent.models.openai import OpenAIModel

        return OpenAIModel(model, provider=provider)
    if isinstance(model, list | tuple):
        raise InvalidInput(
            "model= is one model, not a list: there are no models to fall back to yet. Pass the first one, and how "
            "patiently it is asked in OpenAIModel(..., retry=Retry(...))"
        )
    if provider is not None:
        raise InvalidInput("provider= goes with the name of a model; a client has its own")
    if not callable(getattr(model, "answer", None)) or isinstance(model, type):
        raise InvalidInput(
            f'model= is the name of a model, such as model="gpt-4.1-mini", or a client with an answer() of its own, '
            f"not {model!r:.60}"
        )
    return model


@asynccontextmanager
async def _opened(
    db: AsyncDatabase | str | None, release: Callable[[], Awaitable[None]]
) -> AsyncGenerator[AsyncDatabase]:
    """A database that was passed stays open, and connections with it; one that was named is closed again."""
    if isinstance(db, AsyncDatabase):
        yield db
        return
    if isinstance(db, DatabaseHandle):
        raise Misuse(
            "an agent awaits its database, and this one blocks: open it with "
            "`async with perdure.open_async(...) as db`, or pass its URL"
        )
    given: Any = db
    if not isinstance(given, str | None):
        raise Misuse(
            f"an agent runs on a database of perdure.open_async(...), or on its URL, not on {type(given).__name__}: "
            "agent.run(db, session=..., message=...)"
        )
    async with open_async(db) as opened:
        try:
            yield opened
        finally:
            await release()
