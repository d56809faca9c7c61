"""Tools: functions with a declared answer to "what if we do not know whether it happened?". Declarations only."""

from __future__ import annotations

import contextvars
import functools
import hashlib
import inspect
import re
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypedDict, Unpack, overload

import msgspec

from perdure.errors import ApprovalRuleFailed, InvalidInput, LimitExceeded, Misuse, PerdureError
from perdure.session.typed_values import TypedCall
from perdure.state.values import Wire
from perdure.system.wording import call_words, one_line

POLICIES = ("retry", "ask", "report")
SCOPES = ("session", "shared")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class Done(NamedTuple):
    """A reconciler's answer: it happened, and this was its result."""

    result: Any = None


class NotDone(Exception):
    """It certainly did not happen: a reconciler returns it, a tool raises it."""


class ToolError(NotDone):
    """A tool raises it when it cannot do what was asked, and has done nothing: the model is told why."""


class ModelRetry(NotDone):
    """A tool raises it when it was asked wrongly, and has done nothing: the model is told how to ask instead.

    After the second time in a row it is told to leave it.
    """


class Unknown(NamedTuple):
    """Nobody knows whether it happened: a reconciler's answer, or the outcome of an ``if_unsure="report"`` call."""

    effect: str = ""


class UndeclaredTool(UserWarning):
    """A plain function was given to an agent, and what happens when the process dies during a call was not said."""


class Later(NamedTuple):
    """What a tool returns when its result comes later: ``handle`` is what the outside world calls the work.

    It is completed by ``db.post_outcome(session, effect, result)``, or by the tool's ``poll`` function.
    """

    handle: Any = None


def seconds(text: str | float) -> float:
    """A duration.

    >>> seconds("24h"), seconds("7d"), seconds(90)
    (86400.0, 604800.0, 90.0)
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", str(text))
    if not match:
        raise InvalidInput(f'a duration is a number of seconds or text such as "90s", "24h", "7d", not {text!r:.40}')
    return float(match[1]) * _UNITS[match[2]]


class ToolOptions(TypedDict, total=False):
    """What a tool may declare; :func:`tool` says what it means."""

    name: str | None
    """What models and the journal call it; the function's name, unless said otherwise."""
    description: str | None
    """What models are told of it; the function's docstring, unless said otherwise."""
    schema: dict[str, Any] | None
    """A JSON schema of an object that its arguments must fit; models are told it in place of the signature."""
    read: bool
    cache: str | float | None
    cache_scope: str
    if_unsure: str | Callable[..., Any] | None
    key_valid_for: str | float | None
    approve: bool | Callable[[dict[str, Any]], bool]
    facts: Callable[..., Any] | None
    recheck: Callable[[Any, Any], bool] | None
    approval_valid_for: str | float | None
    version: str
    timeout: str | float | None
    poll: Callable[..., Any] | None
    limit: int | None
    lost: type[BaseException] | tuple[type[BaseException], ...]
    """Classes of exceptions that mean a lost answer."""


def check_options(what: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse an option that there is not, and name the nearest one.

    >>> check_options("tool", {"if_unsur": 1}, {"if_unsure": 1, "read": 1})
    Traceback (most recent call last):
    perdure.errors.InvalidInput: tool has no option 'if_unsur': did you mean if_unsure? It has if_unsure, read
    """
    for name in given:
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, 1)
            hint = f" did you mean {near[0]}?" if near else ""
            raise InvalidInput(f"{what} has no option {name!r:.40}:{hint} It has {', '.join(known)}")


def _checked_schema(name: str, schema: dict[str, Any], signature: inspect.Signature) -> dict[str, Any]:
    """A schema whose arguments the function can be given."""
    if dict(schema).get("type") != "object":
        raise InvalidInput(f'tool {name}: schema= is the JSON schema of an object: {{"type": "object", ...}}')
    takes = signature.parameters.values()
    if not any(p.kind is p.VAR_KEYWORD for p in takes):
        known = [p.name for p in takes if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "ctx"]
        if lacking := [one for one in schema.get("properties", {}) if one not in known]:
            raise InvalidInput(
                f"tool {name}: its schema has {lacking[0]!r:.60}, and its function takes "
                f"{', '.join(known) or 'nothing'}: arguments are passed by name, so give it that parameter, or **kwargs"
            )
    return schema


def _nothing() -> None: ...


class Tool:
    """A function with its declarations; calling it calls the function, without any journal."""

    def __init__(self, fn: Callable[..., Any], /, **declared: Unpack[ToolOptions]) -> None:
        if not callable(fn):
            raise InvalidInput(f"a tool is a function, not {fn!r:.60}: write @tool above one, or tool(function, ...)")
        check_options("tool", declared, ToolOptions.__annotations__)
        if_unsure, read, approve = (
            declared.get("if_unsure"),
            declared.get("read", False),
            declared.get("approve", False),
        )
        cache, cache_scope = declared.get("cache"), declared.get("cache_scope", "session")
        key_valid_for, facts = declared.get("key_valid_for"), declared.get("facts")
        recheck, approval_valid_for = declared.get("recheck"), declared.get("approval_valid_for")
        timeout, poll, limit = declared.get("timeout"), declared.get("poll"), declared.get("limit")
        lost, schema = declared.get("lost", ()), declared.get("schema")
        if isinstance(if_unsure, str) and if_unsure not in POLICIES:
            msg = f"if_unsure is one of {', '.join(POLICIES)} or a function that finds out, not {if_unsure!r:.40}"
            raise InvalidInput(msg)
        if read:
            only = {
                "if_unsure": if_unsure, "key_valid_for": key_valid_for, "approve": approve or None, "facts": facts,
                "recheck": recheck, "approval_valid_for": approval_valid_for, "poll": poll,
            }  # fmt: skip
            if said := [option for option, value in only.items() if value is not None]:
                raise InvalidInput(
                    f"a read is made whenever it is asked for, and again when the process died in it, so {said[0]} "
                    "would not hold: leave read=True out (cache= keeps the result of any call)"
                )
        self.fn = fn
        self.name = declared.get("name") or getattr(fn, "__name__", "tool")
        self.description = declared.get("description")
        self.read = read
        if cache_scope not in SCOPES:
            raise InvalidInput(f"cache_scope is one of {', '.join(SCOPES)}, not {cache_scope!r:.40}")
        if cache is None and cache_scope != "session":
            raise InvalidInput("cache_scope says who shares what is kept: say with cache= for how long, too")
        self.cache = None if cache is None else seconds(cache)
        if self.cache is not None and not self.cache > 0:
            raise InvalidInput(f"cache is for how long a result is kept, more than 0 seconds, not {cache!r:.40}")
        self.cache_scope = cache_scope
        self.if_unsure: str | Callable[..., Any] = if_unsure if if_unsure is not None else "ask"
        if key_valid_for is not None and if_unsure != "retry":
            raise InvalidInput('key_valid_for is for how long a call may be retried: it goes with if_unsure="retry"')
        self.key_valid_for = None if key_valid_for is None else seconds(key_valid_for)
        self.approve = approve
        self.facts = facts
        self.recheck = recheck
        self.approval_valid_for = None if approval_valid_for is None else seconds(approval_valid_for)
        self.version = declared.get("version", "1")
        self.key: str | None = None
        self.timeout = None if timeout is None else seconds(timeout)
        self.poll = poll
        if limit is not None and limit < 1:
            raise InvalidInput(f"limit is how many calls may be made at once, 1 or more, not {limit}")
        self.limit = limit
        named: Any = lost if isinstance(lost, tuple) else (lost,)
        self.lost: tuple[type[BaseException], ...] = named
        if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in named):
            raise InvalidInput(f"lost= names classes of exceptions that mean a lost answer, not {lost!r:.60}")
        self._signature = inspect.signature(fn)
        self.wants_context = "ctx" in self._signature.parameters
        self.schema = None if schema is None else _checked_schema(self.name, schema, self._signature)
        if callable(if_unsure):
            _check_lookup(self.name, if_unsure, self._signature)
        functools.update_wrapper(self, fn)
        if "<locals>" in getattr(fn, "__qualname__", ""):
            # Types that are declared beside it can be found now, and hardly later.
            _ = self.types

    @functools.cached_property
    def types(self) -> TypedCall:
        """What its parameters and its result are declared as."""
        return TypedCall(self.name, self.fn, self.schema)

    @functools.cached_property
    def facts_types(self) -> TypedCall:
        """What its ``facts`` are declared as."""
        return TypedCall(f"facts of {self.name}", self.facts if self.facts is not None else _nothing)

    @functools.cached_property
    def poll_types(self) -> TypedCall:
        """What its ``poll`` is given."""
        return TypedCall(f"poll of {self.name}", self.poll if self.poll is not None else _nothing)

    def options(self, *, key: str | None = None) -> Tool:
        """The same tool with options for one call; ``key`` tells calls with the same arguments apart."""
        other = Tool.__new__(Tool)
        other.__dict__.update(self.__dict__)
        other.key = key
        return other

    def needs_approval(self, args: dict[str, Any]) -> bool:
        """Whether a person must agree to this call."""
        if not callable(self.approve):
            return bool(self.approve)
        with rule("approve", self, args):
            return bool(self.approve(self.types.arguments(args)))

    def edited(self, args: dict[str, Any]) -> dict[str, Any]:
        """Arguments that a person wrote, checked against the types of all parameters, as they are recorded."""
        return self.types.check(self.bind((), args))

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The call's arguments by name as they are recorded, defaults included, without ``ctx``."""
        try:
            given = {**kwargs, "ctx": None} if self.wants_context else kwargs
            bound = self._signature.bind(*args, **given)
        except TypeError as e:
            raise InvalidInput(f"{self.name}: {e}") from None
        bound.apply_defaults()
        flat = dict(bound.arguments)
        flat.pop("ctx", None)
        for p in self._signature.parameters.values():
            if p.kind is p.VAR_KEYWORD:
                flat.update(flat.pop(p.name, {}))
            elif p.kind is p.VAR_POSITIONAL and not flat.get(p.name):
                flat.pop(p.name, None)
        return self.types.arguments_as_json(flat)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"


def _check_lookup(name: str, find: Callable[..., Any], signature: inspect.Signature) -> None:
    """Refuse a function that cannot be asked: it is needed when something else has gone wrong already."""
    parameters = [p for p in signature.parameters.values() if p.name != "ctx"]
    open_ended = [p for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    names = [p.name for p in parameters if p not in open_ended]
    try:
        takes = inspect.signature(find)
    except (TypeError, ValueError):
        # Some that are not written in Python do not say.
        return
    try:
        (takes.bind_partial if open_ended else takes.bind)(**dict.fromkeys(names))
    except TypeError as e:
        raise InvalidInput(
            f"{name}: the function in if_unsure is called with the tool's arguments by name ({', '.join(names)}): {e}"
        ) from None


@contextmanager
def rule(option: str, tool: Tool, args: dict[str, Any]) -> Generator[None]:
    """Ask a function that a tool has for approvals; where it raises, the call can neither be asked for nor made."""
    try:
        yield
    except PerdureError:
        raise
    except Exception as e:
        raise ApprovalRuleFailed(
            f"{call_words(tool.name, args, 90, 40)} was not called: what its tool has as {option} raised "
            f"{type(e).__name__}: {one_line(str(e), 200)}. Mend that, then run the session again"
        ) from e


@overload
def tool(fn: Callable[..., Any], /, **declared: Unpack[ToolOptions]) -> Tool: ...
@overload
def tool(**declared: Unpack[ToolOptions]) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(fn: Callable[..., Any] | None = None, /, **declared: Unpack[ToolOptions]) -> Any:
    """Declare a tool.

    ``read=True``: no side effect, may run again, and does whenever the process dies inside it, cached or not. With
    ``cache="7d"`` what a call returned is given again for so long, on every branch of its session or, with
    ``cache_scope="shared"``, in all sessions of the same owner; of those that ask for a shared effect at once, one
    makes the call and the others get ``ResultPending``. A call that costs money is no read: declare
    ``cache`` with ``if_unsure``, and it is neither made twice nor repeated silently. ``if_unsure`` says what happens
    when a call was started and its outcome is unknown: ``"retry"`` with the same effect id (while the provider's key is
    valid, ``key_valid_for``), a function that asks the outside world, ``"ask"`` a human (the default), or ``"report"``
    it as unknown. ``lost`` names exceptions that mean a lost answer, beside time-outs and broken connections; any other
    one has ended the call. ``timeout`` ends a call whose outcome is then unknown; ``poll(handle)`` looks after what
    returned :class:`Later`. ``limit`` is how many calls of it agents make at once, over all workers of a fleet.
    Arguments are converted to the types that the function declares; ``tool(function, name=..., description=...,
    schema={...})`` checks them against a JSON schema, too. All options are in :class:`ToolOptions`.

    >>> @tool(read=True)
    ... def add(a: int, b: int = 1) -> int:
    ...     return a + b
    >>> add(1), add.bind((1,), {})
    (2, {'a': 1, 'b': 1})
    """

    check_options("tool", declared, ToolOptions.__annotations__)

    def declare(f: Callable[..., Any]) -> Tool:
        return Tool(f, **declared)

    return declare(fn) if fn is not None else declare


def as_tool(fn: Callable[..., Any] | Tool) -> Tool:
    """A plain function is a tool with the default declarations."""
    return fn if isinstance(fn, Tool) else Tool(fn)


def warn_of_undeclared(functions: Sequence[Callable[..., Any]]) -> None:
    """Say what a crash means for functions that were given to an agent as they are."""
    if not functions:
        return
    names = ", ".join(getattr(fn, "__name__", "tool") for fn in functions)
    does = "does" if len(functions) == 1 else "do"
    msg = (
        f"{names} {does} not say what a crash means: if the process dies during a call, or its answer is lost, the "
        "session waits until a person says whether it happened. Write @perdure.tool(read=True) above a function that "
        'changes nothing: it is called again. Write if_unsure="retry" where the call takes an idempotency key '
        "(ctx.effect_id), if_unsure=function where one can find out, and @perdure.tool alone where a person should be "
        "asked"
    )
    warnings.warn(msg, UndeclaredTool, stacklevel=3)


def call_digest(name: str, version: str, args: dict[str, Any]) -> str:
    """Names a call by tool, version and canonical arguments.

    >>> call_digest("f", "1", {"a": 1, "b": 2}) == call_digest("f", "1", {"b": 2, "a": 1})
    True
    >>> call_digest("f", "1", {"a": 1}) == call_digest("f", "1", {"a": 1.0})
    False
    """
    checked = Wire(lambda _, data: hashlib.sha256(data).hexdigest(), big_ints=False).value(args, ("arguments",))
    canonical = msgspec.json.encode([name, version, checked], order="sorted", enc_hook=lambda v: v.ref)
    return hashlib.sha256(canonical).hexdigest()[:32]


around: Callable[[Tool], Callable[..., Any]] | None = None
"""Where a test, or the doctor, stands between the journal and all tools: gives what is called in place of a tool's
function, of the same kind (a coroutine function for one)."""


DEEPEST = 32
"""How many calls may be made inside each other."""
_depth: contextvars.ContextVar[int] = contextvars.ContextVar("perdure_calls", default=0)


def check_depth(tool: Tool) -> None:
    """Refuse a call inside a call inside a call: a tool that calls itself without end would only end with the stack."""
    if _depth.get() >= DEEPEST:
        raise LimitExceeded(f"{tool.name} was not called: {DEEPEST} calls are made inside each other already")


def runnable(
    tool: Tool, watched: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
) -> Callable[..., Any]:
    """What a call of a tool runs: its function, within its time; ``watched`` sees the end of what cannot be stopped."""
    fn = _deeper(tool.fn if around is None else around(tool))
    if watched is not None and not inspect.iscoroutinefunction(fn):
        fn = watched(fn)
    return in_time(fn, tool.timeout)


def _deeper(fn: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(fn):

        async def awaited(**kwargs: Any) -> Any:
            before = _depth.set(_depth.get() + 1)
            try:
                return await fn(**kwargs)
            finally:
                _depth.reset(before)

        return awaited

    def blocking(**kwargs: Any) -> Any:
        before = _depth.set(_depth.get() + 1)
        try:
            return fn(**kwargs)
        finally:
            _depth.reset(before)

    return blocking


def in_time(fn: Callable[..., Any], limit: float | None) -> Callable[..., Any]:
    """A function that raises ``TimeoutError`` when it takes longer than that many seconds.

    A plain function cannot be stopped: it goes on in a thread of its own, see ``late_returns``.
    """
    if limit is None:
        return fn
    if inspect.iscoroutinefunction(fn):
        import asyncio

        async def awaited(**kwargs: Any) -> Any:
            async with asyncio.timeout(limit):
                return await fn(**kwargs)

        return awaited

    # Few tools have a limit, and whoever only opens a database shall not wait for these.
    import queue
    import threading

    def blocking(**kwargs: Any) -> Any:
        ended: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

        def work() -> None:
            try:
                ended.put((True, fn(**kwargs)))
            except BaseException as e:
                ended.put((False, e))

        threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True).start()
        try:
            fine, result = ended.get(timeout=limit)
        except queue.Empty:
            raise TimeoutError(f"the tool took longer than {limit:g} s") from None
        if not fine:
            raise result
        return result

    return blocking


class Asking(Exception):
    """A tool cannot go on before somebody has answered; raised by :meth:`Context.ask`, recorded by the journal."""

    def __init__(self, question: str, schema: dict[str, Any] | None) -> None:
        self.question = question
        self.schema = schema
        super().__init__(question)


class Context:
    """What a tool with a ``ctx`` parameter is given."""

    __slots__ = ("_answers", "_asked", "_wake", "_write", "attempt", "effect_id", "fence", "last_progress", "session")

    def __init__(
        self,
        effect_id: str,
        fence: int | None,
        session: str,
        attempt: int,
        *,
        last_progress: Any = None,
        answers: tuple[Any, ...] = (),
        write: Callable[[Any], Any] | None = None,
        wake: Callable[..., Any] | None = None,
    ) -> None:
        self.effect_id = effect_id
        """The same for every attempt: send it as the provider's idempotency key."""
        self.fence = fence
        """The fencing token of the writer's lease, for tools that can refuse an older one."""
        self.session = session
        self.attempt = attempt
        self.last_progress = last_progress
        """What an earlier attempt, or this one, last said of its progress."""
        self._answers = answers
        self._asked = 0
        self._write = write
        self._wake = wake

    def progress(self, data: Any) -> Any:
        """Write down how far the call got, durably; the next attempt finds it in ``last_progress``.

        Blocks in a plain function; in a coroutine function await what it returns.
        """
        self.last_progress = data
        return self._write(data) if self._write is not None else None

    def wake(self, at: Any = None, **options: Any) -> Any:
        """Have the session woken later, as :meth:`perdure.Database.wake` does; once, however often the call is made.

        Blocks in a plain function; in a coroutine function await what it returns.
        """
        if self._wake is None:
            raise Misuse("a tool that only reads has no effect of its own: it cannot have the session woken")
        return self._wake(at, **options)

    def ask(self, question: str, schema: dict[str, Any] | None = None) -> Any:
        """The answer of a person to a question; until there is one, the call is put aside and the process may go.

        Once answered, the tool is run again from its beginning, and each question that was answered returns its
        answer: so ask before anything is done. ``schema`` is a JSON schema that the answer must fit.
        """
        if self._asked < len(self._answers):
            self._asked += 1
            return self._answers[self._asked - 1]
        raise Asking(question, schema)

    def __repr__(self) -> str:
        return f"<Context of {self.effect_id}, attempt {self.attempt}>"
