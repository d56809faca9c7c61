"""An agent: a model, tools and instructions, and the ways to run it. What it does is durable; this object is not."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import hashlib
import inspect
import json
import logging
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from perdure.agent.answer_calls import QUEUE, WITHDRAW
from perdure.agent.checkpoint_policy import STEP, check_policy
from perdure.agent.children import AgentTool, registry, release
from perdure.agent.context.compactor import Compactor
from perdure.agent.context.window import Window
from perdure.agent.dependencies import check_deps, check_factory, provided
from perdure.agent.limits import Limits, check_limits
from perdure.agent.live_answers import Feed
from perdure.agent.loop import Loop
from perdure.agent.models import Answer, Request, message_digest, request_digest, text_of
from perdure.agent.models.named import as_models, provider_of
from perdure.agent.models.prices import Price, check_prices, price_of
from perdure.agent.notify import check_notify
from perdure.agent.requests import FORM
from perdure.agent.run_options import check_function, check_json, check_run
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
from perdure.session.tools.context import asked_outside, needs_deps, takes_context
from perdure.session.tools.declaration import Tool, as_tool, warn_of_undeclared
from perdure.session.tools.typed_values import MISFITS, TypedValue, in_short
from perdure.system.flow import used_awaited
from perdure.system.lease_holders import running_agent
from perdure.system.names import check_name
from perdure.system.options import check_fits, check_options, options_checked, refuse_misfit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Generator, Sequence

    from perdure.agent.checkpoint_policy import Policy
    from perdure.agent.dependencies import Factory
    from perdure.agent.models import ChatModel
    from perdure.agent.notify import Notify
    from perdure.aio import AsyncSession
    from perdure.session.tools.context import Context

    Tools = Sequence[Callable[..., Any] | Tool]

log = logging.getLogger("perdure.agent")
P = ParamSpec("P")
R = TypeVar("R")
_overridden: ContextVar[tuple[tuple[object, tuple[ChatModel, ...]], ...]] = ContextVar("perdure_overridden", default=())
"""Agents whose models are overridden here, the innermost first."""
OF_ITS_CALL = ("db", "session", "message", "key", "owner", "parent", "stop")
"""Options of a run that the call of an agent's tool says."""
NUDGE = "Go on."
MAX_NUDGE = 4000
"""Bytes of it."""
FIRST_LOOK, LONGEST_LOOK = 50, 1_000
"""Ms between two looks at a session that somebody else has, at first and at most."""
INTERRUPTED = 100
"""How often an interrupt may stop the loop of a run that is wound up: once for each task that it passes through."""
MADE = 1000
"""Tools of which is kept what models are told of them, where a function gives them."""


def _options_of_run(run: Callable[P, Coroutine[Any, Any, RunResult]]) -> Callable[P, Coroutine[Any, Any, RunResult]]:
    known = [name for name in inspect.signature(run).parameters if name not in ("self", "db")]

    @functools.wraps(run)
    def started(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, RunResult]:
        check_options("agent.run", kwargs, (*known, "db"))
        refuse_misfit(run, args, kwargs, "agent.run")
        check_run(kwargs)
        return run(*args, **kwargs)

    return started


def _takes_what_run_takes(fn: Callable[P, R]) -> Callable[P, R]:
    """Have a method that passes its options on to :meth:`Agent.run` say of those without a name what they are."""

    @functools.wraps(fn)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if len(args) != len(("self", "db")):
            refuse_misfit(Agent.run, args, kwargs, f"agent.{fn.__name__}")
        return fn(*args, **kwargs)

    return checked


class Agent:
    """A persistent agent: started or resumed by a session's id, by any process, as often as it takes.

    ``model`` is a client, or the name of a model at a ``provider`` (holysheep, openai, deepseek, openrouter, ollama,
    vllm), whose default is asked when none is named, or a list of these: the next one is asked when one cannot answer.
    ``base_url`` is another address, ``api_key`` a key that is in no variable. ``prices`` are yours, by model, where the
    built-in table is not enough. ``tools`` are functions or :func:`perdure.tool` objects; ``params`` (temperature,
    top_p, seed, ...) go to the model; ``output`` is a type its last answer must fit (a dataclass, a model of msgspec or
    pydantic, ...), or it is asked again, twice at most (its JSON schema is sent as ``response_format``, unless
    ``params`` has another one or None); ``until`` a marker or predicate without which it goes on.
    ``version`` is that of your program: recorded with every answer, and a change is noted on resume; with
    ``goes_on_from`` a session that was left by a version that is not one of these is ``incompatible``, and untouched.
    ``window`` says how much of a long conversation is sent, ``compactor`` who summarises the rest (False: nobody).
    ``checkpoints`` says when its work becomes durable: every "step", reads only with the next "answer", or
    :class:`perdure.Every` so many answers and seconds; effects are journalled whatever it says.
    ``on_message`` says what becomes of an open request for approval when the user says something meanwhile: "queue",
    the message is answered afterwards, or "withdraw", the request is taken back. ``notify``, a URL or a function, is
    told when a run waits for a person or has failed.

    ``instructions`` and ``tools`` may be functions, also coroutine functions, of a :class:`perdure.Context`: they are
    asked before each answer, and what was sent is recorded as ever. ``deps`` opens what tools get as ``ctx.deps``: a
    function that returns a context manager, asynchronous or not, and takes what it names of ``owner``, ``session`` and
    ``context``. It is entered once per attempt at a run, and never stored.
    """

    @options_checked("Agent")
    def __init__(
        self,
        name: str,
        *,
        model: ChatModel | str | Sequence[ChatModel | str] | None = None,
        provider: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        prices: Mapping[str, Price] | None = None,
        tools: Tools | Callable[[Context[Any]], Tools | Awaitable[Tools]] = (),
        instructions: str | Callable[[Context[Any]], str | Awaitable[str]] = "",
        version: str = "1",
        goes_on_from: Collection[str] | None = None,
        params: dict[str, Any] | None = None,
        output: Any = None,
        until: str | Callable[[str], bool] | None = None,
        nudge: str = NUDGE,
        max_turns: int = 50,
        window: Window | None = None,
        compactor: Compactor | bool = True,
        checkpoints: Policy = STEP,
        on_message: str = QUEUE,
        notify: Notify | None = None,
        deps: Factory | None = None,
    ) -> None:
        self.name = check_name(name, "agent's name")
        check_factory(name, deps)
        self.deps = deps
        self._models = as_models(model, provider=provider, base_url=base_url, api_key=api_key)
        self._overridden_by = object()
        """Names it where its model is overridden, and copies of it that are run with other instructions."""
        check_asked(name, instructions=instructions, tools=tools)
        self.instruct = instructions if callable(instructions) else None
        """What gives its instructions, where they are no fixed text."""
        self.instructions = "" if callable(instructions) else instructions
        self.version = check_name(version, "version", empty=True)
        if isinstance(goes_on_from, str):
            raise InvalidInput(f"goes_on_from is a list of versions, such as ['1.0', '1.1'], not {goes_on_from!r:.60}")
        self.goes_on_from = None if goes_on_from is None else frozenset(check_name(v, "version") for v in goes_on_from)
        check_prices(f"agent {name!r}", prices)
        self.prices = prices
        check_kind(name, "params", params, dict | None, 'a dict such as {"temperature": 0}')
        check_json("params", params or {})
        self.params: dict[str, Any] = dict(params or {})
        self.output = output
        self._typed_output = _output_type(output)
        if until is not None and not isinstance(until, str):
            check_function("until", until, "a marker or a plain function of the answer's text")
        self.until = until
        check_name(nudge, "nudge", MAX_NUDGE, empty=True)
        self.nudge = nudge
        check_limits(max_turns=max_turns)
        self.max_turns = max_turns
        check_kind(name, "window", window, Window | None, "how much the model is sent, as in perdure.Window(8000)")
        self.window = window or Window()
        check_kind(name, "compactor", compactor, Compactor | bool, "perdure.Compactor(...), True or False")
        self._compactor = compactor if isinstance(compactor, Compactor) else Compactor() if compactor else None
        if on_message not in (QUEUE, WITHDRAW):
            raise InvalidInput(f"on_message is one of {QUEUE}, {WITHDRAW}, not {on_message!r:.40}")
        self.on_message = on_message
        self.checkpoints = check_policy(checkpoints)
        self.notify = check_notify(notify)
        self.tools: dict[str, Tool] = {}
        self.specs: dict[str, ToolSpec] = {}
        self._made: dict[Any, ToolSpec] = {}
        """Of tools that were chosen before, what models are told of them."""
        self.choose = tools if callable(tools) else None
        """What gives its tools, where they are not fixed."""
        if not callable(tools):
            self._have(tools)

    def _have(self, tools: Tools) -> None:
        """Have these tools and no others."""
        given: Any = tools
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise InvalidInput(f"tools= of agent {self.name!r} is a list of functions or tools, not {given!r:.60}")
        tools = [fn if callable(fn) else as_tool(fn) for fn in tools]
        undeclared = [fn for fn in tools if not isinstance(fn, Tool) and fn not in self._made]
        self.tools, self.specs = {}, {}
        for fn in tools:
            if fn not in self._made:
                if len(self._made) >= MADE:
                    self._made.clear()
                self._made[fn] = ToolSpec(as_tool(fn))
            spec = self._made[fn]
            if spec.name in self.tools:
                raise InvalidInput(f"agent {self.name!r} has two tools called {spec.name!r}: give one another name=")
            self.tools[spec.name] = spec.tool
            self.specs[spec.name] = spec
        warn_of_undeclared(undeclared, self, self.choose)

    @property
    def needs_deps(self) -> str:
        """What of it needs ``deps``, for people; "" when nothing does."""
        if needs_deps(self.instruct) or needs_deps(self.choose):
            return "what gives the instructions or tools"
        return next((f"tool {name}" for name, tool in self.tools.items() if tool.needs_deps), "")

    async def as_now(self, s: AsyncSession) -> Agent:
        """The agent with the instructions and tools that it has at this moment; the original stays as it is."""
        if self.instruct is None and self.choose is None:
            return self
        now = copy.copy(self)
        if self.instruct is not None:
            now.instructions = await self._asked(s, "instructions", self.instruct, str)
        if self.choose is not None:
            now._have(await self._asked(s, "tools", self.choose, (list, tuple)))
        return now

    async def _asked(self, s: AsyncSession, what: str, fn: Callable[..., Any], kind: Any) -> Any:
        try:
            found = await s.driver.drive(asked_outside(fn, s.contexts))
        except Exception as e:
            e.add_note(f"while agent {self.name!r} was asked for its {what}, for session {s.id!r}")
            raise
        if not isinstance(found, kind):
            wanted = "text" if kind is str else "a list of tools"
            raise InvalidInput(f"{what}= of agent {self.name!r} gave {type(found).__name__}, not {wanted}")
        return found

    # -- who is asked ---------------------------------------------------------------------------------------------

    @property
    def models(self) -> tuple[ChatModel, ...]:
        """Who is asked, in this order: the next one when one cannot answer."""
        return next((models for name, models in _overridden.get() if name is self._overridden_by), self._models)

    @property
    def model(self) -> ChatModel:
        """Who is asked first."""
        return self.models[0]

    @model.setter
    def model(self, model: ChatModel) -> None:
        self._models, self._overridden_by = (model,), object()

    @property
    def compactor(self) -> Compactor | None:
        """Who summarises what leaves the window; while the model is overridden, that one alone is asked."""
        own = self._compactor
        if own is None or own.model is None or self.models is self._models:
            return own
        return Compactor(every=own.every, max_tokens=own.max_tokens, instructions=own.instructions)

    @compactor.setter
    def compactor(self, compactor: Compactor | None) -> None:
        self._compactor = compactor

    def named(self, model: str) -> ChatModel:
        """The model of that name, if it is one of those that are asked; else the first."""
        return next((m for m in self.models if m.name == model), self.model)

    @contextmanager
    def override(self, *, model: ChatModel | str | Sequence[ChatModel | str]) -> Generator[None]:
        """Ask another model instead, for tests: in this task and what it starts, wherever this agent runs there.

        Others who use the agent meanwhile are not concerned. The compactor asks it, too.

        >>> from perdure import Agent, FunctionModel
        >>> agent = Agent("guide", model=FunctionModel(lambda request: "the real one"))
        >>> with agent.override(model=FunctionModel(lambda request: "Paris")):
        ...     print(agent.run_sync("memory://", session="s", message="Where to?").text)
        Paris
        """
        token = _overridden.set(((self._overridden_by, as_models(model)), *_overridden.get()))
        try:
            yield
        finally:
            _overridden.reset(token)

    # -- running --------------------------------------------------------------------------------------------------

    @used_awaited("agent.run", ", or agent.run_sync(url, ...) without asyncio")
    @_options_of_run
    async def run(
        self,
        db: AsyncDatabase | str | os.PathLike[str] | None,
        *,
        session: str,
        message: Any = None,
        key: str | None = None,
        owner: str = "",
        context: dict[str, Any] | None = None,
        objective: str | None = None,
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
        parent: dict[str, Any] | None = None,
        deps: Any = None,
        stop: asyncio.Event | None = None,
        wait: bool | float = False,
        claimed: bool = False,
        reopen: bool = False,
        by: str = "",
    ) -> RunResult:
        """Start or resume a session and work until it is done or must wait. Call it again to go on.

        ``message`` is put into the session's inbox, durably. With ``key`` that happens first, and once, however often
        this is called: a repetition gets the answer to *this* message, goes on with its run, or finds it answered
        (``repeated``); the key alone asks for the answer. Without one it is written only when nothing refuses it, such
        as ``Busy``, and each call says it anew, also where a program that was killed is run again: texts are never
        compared. Results and errors carry its ``message_key``. With ``wait`` (for so many seconds, or True for as
        long as it takes) whoever finds the session busy waits for the answer, or for the session. ``context`` is told
        to the model and is fresh with every run. ``objective`` is what the session is to achieve: it stays in its state
        with a status, is told to the model with the context, and is another one once another text is given. ``deps``
        are for this run, in place of the agent's own: a function that opens them, or what is open already and stays so.
        ``ttl`` is how many seconds the session lives after its last commit (None: for ever), as for ``db.session``.
        With ``live`` whoever reads along from another process gets answers while they are made. ``agents`` are others
        that may have the conversation, beside those it can be handed to from here; ``parent`` is set by
        :meth:`as_tool`, and ``claimed`` by a worker, which tells the board itself how it went. ``reopen`` goes on
        with a session that was closed, which is ``SessionClosed`` otherwise; its history says ``by`` whom, the agent
        if nobody is named. Once ``stop`` is set the run is put down after its current step, as "stopped": run it
        again to go on.
        """
        check_deps(self, deps)
        async with _opened(db, lambda: release(self, *agents)) as open_db:
            known = registry(self, agents)

            def output(name: str, text: str) -> Any:
                return known[name].parsed(text) if name in known and not known[name].misfit(text) else None

            said = Said(open_db, session, branch, message, key, owner, output)
            options: dict[str, Any] = {"owner": owner, "branch": branch, "ttl": ttl, "effects": effects}
            options |= {"reopen": reopen, "by": by or f"agent {self.name}"}
            try:
                await said.post_first(reopens=reopen)
                opened = await self._hold(open_db, said, wait, options)
                if isinstance(opened, RunResult):
                    return opened
                async with opened as s, provided(deps, owner=s.owner, session=s.id, context=context) as needed:
                    s.journal.check_open()
                    before = s.step
                    limits = Limits(
                        open_db.kernel.clock,
                        max_turns=self.max_turns if max_turns is None else max_turns,
                        max_tokens=max_tokens,
                        max_cost=max_cost,
                        deadline=deadline,
                    )
                    more: dict[str, Any] = {"db": open_db, "agents": agents, "parent": parent, "live": live}
                    more["deps"] = needed
                    loop = Loop(self, s, limits, context=context, tell=on_event, stop=stop, **more)

                    async def begin() -> None:
                        if objective is not None and (s.objective is None or s.objective["text"] != objective):
                            s.set_objective(objective)
                            await s.commit(note="an objective is set")
                        elif s.owner and s.head is None:
                            # Before anything else: it is theirs also when this is killed in the first answer.
                            await s.commit()
                        await said.post_last(anew=s.origin.kind == "restarted")

                    result = await said.result(await loop.go(begin), s, before)
            except BaseException as e:
                said.mark(e)
                raise
            if branch == MAIN and parent is None and not claimed:
                await open_db.driver.call(_ran_by_hand, open_db, result)
            return result

    async def _hold(
        self, db: AsyncDatabase, said: Said, wait: bool | float, options: dict[str, Any]
    ) -> AsyncSession | RunResult:
        """The session to work in, or what its message was answered with meanwhile, by whoever has it."""
        clock = db.kernel.clock
        until = clock.monotonic() + int(wait * 1000) if wait is not True and wait != math.inf else None
        pause = FIRST_LOOK
        while True:
            if not said.new and (answer := await said.answer()) is not None:
                return answer
            try:
                with running_agent():
                    return await db.session(said.session, **options)
            except Busy:
                if until is not None and clock.monotonic() >= until:
                    raise
            # From now on somebody else may answer what is there.
            said.new = not said.named
            await clock.sleep_async(pause)
            pause = min(LONGEST_LOOK, pause * 2)

    @_takes_what_run_takes
    def run_sync(self, db: str | os.PathLike[str] | None, **options: Any) -> RunResult:
        """The same as :meth:`run`, blocking; not for use inside an event loop."""
        if isinstance(db, AsyncDatabase):
            raise Misuse("run_sync has an event loop of its own: pass the URL, or `await agent.run(db, ...)`")
        with contextlib.suppress(RuntimeError):
            _ = asyncio.get_running_loop()
            raise Misuse(
                "an event loop runs here already, as it does in a notebook and in every coroutine, and run_sync has "
                "one of its own: write `result = await agent.run(...)`"
            )
        with asyncio.Runner() as runner:
            try:
                return runner.run(self.run(db, **options))
            except (KeyboardInterrupt, SystemExit):
                _wind_up(runner.get_loop())
                raise

    async def close(self) -> None:
        """Release the connections to its models and those of agents it can reach; a later run makes new ones."""
        await release(self)

    @_takes_what_run_takes
    async def stream(self, db: AsyncDatabase | str | os.PathLike[str] | None, **options: Any) -> AsyncGenerator[Event]:
        """Run, and give what happens as it happens; the last event is ``result`` and carries the result of the run."""
        if "on_event" in options:
            raise InvalidInput("agent.stream gives the events itself: leave on_event out, or use agent.run(...)")
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
        known = [name for name in inspect.signature(Agent.run).parameters if name not in (*OF_ITS_CALL, "self")]
        check_options(f"{self.name}.as_tool", options, ("name", "description", *known))
        check_run(options)
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

    def setup(self, model: ChatModel | None = None) -> dict[str, Any]:
        """All that a request to a model (the first) is made of besides the conversation, as a session records it."""
        model = model or self.model
        return {
            "form": FORM,
            "agent": self.name,
            "version": self.version,
            "model": model.name,
            "instructions": self.instructions,
            "params": self._params(model),
            "tools": [spec.as_json() for spec in self.specs.values()],
            "versions": {name: tool.version for name, tool in self.tools.items()},
            "window": self.window.as_json(),
            "compactor": self.compactor.as_json() if self.compactor is not None else None,
        }

    def _params(self, model: ChatModel) -> dict[str, Any]:
        # What the client sends with every request is part of it, so that what is recorded is what was sent.
        params: dict[str, Any] = {**getattr(model, "params", {}), **self.params}
        if self.output is None or "response_format" in params:
            return {k: v for k, v in params.items() if k != "response_format" or v is not None}
        assert self._typed_output is not None
        schema = output_schema(self._typed_output, strict=getattr(model, "strict_output", False))
        return {**params, "response_format": {"type": "json_schema", "json_schema": schema}}

    def about(
        self, answer: Answer, request: Request, *, use: str = "", asked: ChatModel | None = None
    ) -> dict[str, Any]:
        """What a checkpoint records of the model that was ``asked``: the agent's first one, unless another is named."""
        prompt = hashlib.sha256(self.instructions.encode()).hexdigest()[:16]
        model: dict[str, Any] = {"name": request.model, "version": answer.model, "prompt": prompt}
        model |= {"finish": answer.finish, "id": answer.id, "fingerprint": answer.fingerprint}
        model |= {"request": request_digest(request), "answer": message_digest(answer.message)}
        model |= {k: v for k, v in request.params.items() if k in ("temperature", "top_p", "seed")}
        if provider := provider_of(asked or self.model):
            model["provider"] = provider
        if use:
            model["use"] = use
        usage = {**answer.usage._asdict(), "cost": self.price(answer, asked=asked).cost}
        return {"model": model, "usage": usage, "tools": self.fingerprint(), "program": self.version}

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


def check_kind(agent: str, option: str, given: object, kind: Any, what: str) -> None:
    """Refuse an option of an agent that is something else than it uses: every run would fail over it."""
    check_fits(f"agent {agent!r}", option, given, isinstance(given, kind), what)


def check_asked(agent: str, **given: Any) -> None:
    """Refuse a function that cannot be asked for instructions or tools, such as a tool that stands alone."""
    said = given.get("instructions", "")
    if not callable(said) and not isinstance(said, str):
        raise InvalidInput(f"instructions= of agent {agent!r} is text, or a function that gives it, not {said!r:.60}")
    for what, fn in given.items():
        if callable(fn) and (isinstance(fn, Tool) or not takes_context(fn)):
            usual = "text" if what == "instructions" else "a list of tools"
            name = getattr(fn, "__name__", type(fn).__name__)
            raise InvalidInput(
                f"{what}= of agent {agent!r} is {usual}, or a function of one parameter ctx that gives it, and {name} "
                "is neither"
            )


def _output_type(output: Any) -> TypedValue | None:
    try:
        return None if output is None else TypedValue(output)
    except TypeError as e:
        raise InvalidInput(
            f"output= is a type that JSON can be made into, such as a dataclass or a model of msgspec or pydantic: "
            f"{in_short(e)}"
        ) from None


def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    """Have all tasks of a loop end that an interrupt has stopped: what they hold is given back.

    Such an exception stops the loop in each task that it passes through, while those that await it are not over yet.
    """
    told: set[asyncio.Task[Any]] = set()
    for _ in range(INTERRUPTED):
        if not (tasks := asyncio.all_tasks(loop)):
            break
        # Once each: to end, a task may have to wait.
        for task in tasks - told:
            task.cancel()
        told |= tasks
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            loop.run_until_complete(asyncio.wait(tasks))
    for task in told:
        # It is the same one that goes to the caller: not to be told of once more.
        if task.done() and not task.cancelled():
            task.exception()


@asynccontextmanager
async def _opened(
    db: AsyncDatabase | str | os.PathLike[str] | None, release: Callable[[], Awaitable[None]]
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
    if not isinstance(given, str | os.PathLike | None):
        raise Misuse(
            f"an agent runs on a database of perdure.open_async(...), or on its URL, not on {type(given).__name__}: "
            "agent.run(db, session=..., message=...)"
        )
    async with open_async(db) as opened:
        try:
            yield opened
        finally:
            await release()
