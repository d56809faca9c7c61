"""Tools: functions with a declared answer to "what if we do not know whether it happened?".

Declarations only: what a call of one runs is in ``running``.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypedDict, Unpack, overload

import msgspec

from perdure.errors import InvalidInput
from perdure.session.tools import Later, UndeclaredTool
from perdure.session.tools.context import needs_deps, takes_context
from perdure.session.tools.typed_values import MISFITS, TypedCall
from perdure.state.values import Wire, same
from perdure.system.options import check_fits, check_options, is_number

POLICIES = ("retry", "ask", "report")
SCOPES = ("session", "shared")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


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


def _time(who: str, option: str, given: str | float | None) -> float | None:
    """How long something of a tool takes or holds, in seconds."""
    found = None if given is None else seconds(given)
    check_fits(who, option, given, found is None or found > 0, 'more than 0 seconds, as a number or text such as "90s"')
    return found


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
    approve: bool | Callable[..., bool | Awaitable[bool]]
    facts: Callable[..., Any] | None
    recheck: Callable[..., bool | Awaitable[bool]] | None
    approval_valid_for: str | float | None
    version: str
    timeout: str | float | None
    poll: Callable[..., Any] | None
    limit: int | None
    lost: type[BaseException] | tuple[type[BaseException], ...]
    """Classes of exceptions that mean a lost answer."""


def _wrapped(name: str) -> str:
    """What to do about a function that cannot be called by name."""
    return f"write a function of your own, with a name for each argument, that calls {name}, and use that one"


def _signature_of(name: str, fn: Callable[..., Any]) -> inspect.Signature:
    """What a function takes; one that cannot be called by name is refused, since that is how calls are recorded."""
    try:
        found = inspect.signature(fn)
    except (TypeError, ValueError):
        # Some that are not written in Python do not say.
        raise InvalidInput(f"tool {name}: it does not say what it takes: {_wrapped(name)}") from None
    if (nameless := next((p for p in found.parameters.values() if p.kind is p.POSITIONAL_ONLY), None)) is not None:
        raise InvalidInput(
            f"tool {name}: {nameless.name} is taken by its position only, and arguments are recorded and passed by "
            f"name: {_wrapped(name)}"
        )
    return found


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


_ASKED = ("approve", "facts", "recheck", "if_unsure", "poll")
"""The functions that a tool may declare beside its own."""


def must_be_awaited(fn: Any) -> bool:
    """Whether a function, or an object that is called like one, is asynchronous."""
    if not callable(fn) or isinstance(fn, type):
        return False
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


class Tool:
    """A function with its declarations; calling it calls the function, without any journal."""

    def __init__(self, fn: Callable[..., Any], /, **declared: Unpack[ToolOptions]) -> None:
        if not callable(fn):
            raise InvalidInput(f"a tool is a function, not {fn!r:.60}: write @tool above one, or tool(function, ...)")
        check_options("tool", declared, ToolOptions.__annotations__)
        if_unsure: Any = declared.get("if_unsure")
        read: Any = declared.get("read", False)
        approve: Any = declared.get("approve", False)
        cache, cache_scope = declared.get("cache"), declared.get("cache_scope", "session")
        key_valid_for, facts = declared.get("key_valid_for"), declared.get("facts")
        recheck, approval_valid_for = declared.get("recheck"), declared.get("approval_valid_for")
        timeout, poll, limit = declared.get("timeout"), declared.get("poll"), declared.get("limit")
        lost, schema = declared.get("lost", ()), declared.get("schema")
        self.fn = fn
        self.name = declared.get("name") or getattr(fn, "__name__", "tool")
        who = f"tool {self.name}"
        for option, function in (("facts", facts), ("recheck", recheck), ("poll", poll)):
            check_fits(who, option, function, function is None or callable(function), "a function")
        check_fits(who, "read", read, isinstance(read, bool), "True or False")
        asks = isinstance(approve, bool) or callable(approve)
        check_fits(who, "approve", approve, asks, "True, False or a function of the arguments")
        policy = if_unsure is None or if_unsure in POLICIES or callable(if_unsure)
        check_fits(who, "if_unsure", if_unsure, policy, f"one of {', '.join(POLICIES)} or a function that finds out")
        check_fits(who, "limit", limit, limit is None or (is_number(limit) and limit > 0), "a whole number, 1 or more")
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
        self.description = declared.get("description")
        self.read = read
        if cache_scope not in SCOPES:
            raise InvalidInput(f"cache_scope is one of {', '.join(SCOPES)}, not {cache_scope!r:.40}")
        if cache is None and cache_scope != "session":
            raise InvalidInput("cache_scope says who shares what is kept: say with cache= for how long, too")
        self.cache = _time(who, "cache", cache)
        self.cache_scope = cache_scope
        self.if_unsure: str | Callable[..., Any] = if_unsure if if_unsure is not None else "ask"
        if key_valid_for is not None and if_unsure != "retry":
            raise InvalidInput('key_valid_for is for how long a call may be retried: it goes with if_unsure="retry"')
        self.key_valid_for = _time(who, "key_valid_for", key_valid_for)
        self.approve = approve
        self.facts = facts
        self.recheck = recheck
        self.approval_valid_for = _time(who, "approval_valid_for", approval_valid_for)
        self.version = declared.get("version", "1")
        self.key: str | None = None
        self.timeout = _time(who, "timeout", timeout)
        self.poll = poll
        self.limit = limit
        named: Any = lost if isinstance(lost, tuple) else (lost,)
        self.lost: tuple[type[BaseException], ...] = named
        if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in named):
            raise InvalidInput(f"lost= names classes of exceptions that mean a lost answer, not {lost!r:.60}")
        self._signature = _signature_of(self.name, fn)
        self.wants_context = takes_context(fn)
        self.schema = None if schema is None else _checked_schema(self.name, schema, self._signature)
        asked = {"if_unsure": if_unsure, "approve": approve, "facts": facts, "recheck": recheck}
        _check_asked(self.name, asked, self._signature)
        functools.update_wrapper(self, fn)
        if "<locals>" in getattr(fn, "__qualname__", ""):
            # Types that are declared beside it can be found now, and hardly later.
            _ = self.types, self.needs_deps

    @functools.cached_property
    def needs_deps(self) -> bool:
        """Whether it, or a function that it declares, needs ``ctx.deps``: it says so by ``ctx: Context[...]``."""
        return any(map(needs_deps, (self.fn, self.approve, self.facts, self.recheck, self.if_unsure, self.poll)))

    @functools.cached_property
    def asynchronous(self) -> str:
        """What of it must be awaited, for people: its function, or one that it declares; "" when nothing must."""
        if must_be_awaited(self.fn):
            return self.name
        return next(
            (f"the {name} function of {self.name}" for name in _ASKED if must_be_awaited(getattr(self, name))), ""
        )

    @functools.cached_property
    def types(self) -> TypedCall:
        """What its parameters and its result are declared as."""
        return TypedCall(self.name, self.fn, self.schema, later=Later)

    @functools.cached_property
    def result_schema(self) -> dict[str, Any] | None:
        """What a result of it must fit that somebody else reports; None where it declares nothing that says so."""
        return self.types.result_schema()

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

    @functools.cached_property
    def defaults(self) -> dict[str, Any]:
        """The defaults of its parameters, as calls record them."""
        found: dict[str, Any] = {}
        for name, p in self._signature.parameters.items():
            if p.default is not p.empty and name != "ctx":
                # Of one that cannot be recorded no call has it.
                with suppress(*MISFITS):
                    found[name] = self.types.default_as_json(name, p.default)
        return found

    def by_default(self, args: dict[str, Any]) -> list[str]:
        """Those of recorded arguments that are as their parameters' defaults."""
        return [name for name, value in self.defaults.items() if name in args and same(args[name], value)]

    def edited(self, args: dict[str, Any]) -> dict[str, Any]:
        """Arguments that a person wrote, checked against the types of all parameters, as they are recorded."""
        return self.bind((), args)

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
            elif p.kind is p.VAR_POSITIONAL and flat.pop(p.name, None):
                raise InvalidInput(
                    f"{self.name}: what it takes as *{p.name} has no name, and arguments are recorded and passed by "
                    f"name: {_wrapped(self.name)}"
                )
        return self.types.arguments_as_json(flat)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"


def _check_asked(name: str, declared: Mapping[str, Any], signature: inspect.Signature) -> None:
    """Refuse functions of a tool that cannot be called as they are: they are needed when a model waits for the call, or
    when something else has gone wrong already."""
    parameters = [p for p in signature.parameters.values() if p.name != "ctx"]
    open_ended = [p for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    names = [p.name for p in parameters if p not in open_ended]
    by_name = f"the tool's arguments by name ({', '.join(names)})"
    for option, fn in declared.items():
        named = option in ("if_unsure", "facts")
        given, positional = (names, 0) if named else ([], 2 if option == "recheck" else 1)
        what = {"approve": "the tool's arguments as one dict", "recheck": "the facts then and the facts now"}
        if callable(fn) and (wrong := _misfit(fn, given, positional, more=named and bool(open_ended))):
            raise InvalidInput(
                f"{name}: the function in {option} is called with {what.get(option, by_name)}, and with ctx where it "
                f"takes one: {wrong}"
            )


def _misfit(fn: Callable[..., Any], names: Sequence[str], positional: int, *, more: bool) -> str:
    """Why a function cannot be called with these; "" when it can, or where nobody can tell."""
    try:
        takes = inspect.signature(fn)
    except (TypeError, ValueError):
        # Some that are not written in Python do not say.
        return ""
    given = [*names, "ctx"] if takes_context(fn) else names
    try:
        (takes.bind_partial if more else takes.bind)(*[None] * positional, **dict.fromkeys(given))
    except TypeError as e:
        return str(e)
    return ""


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


def warn_of_undeclared(
    functions: Sequence[Callable[..., Any]], agent: object, choose: Callable[..., Any] | None = None
) -> None:
    """Say what a crash means for functions that were given to an agent as they are.

    It is said of the line that makes the agent, or of the function that chooses its tools.
    """
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
    code = getattr(choose, "__code__", None)
    if choose is not None and code is not None:
        module: dict[str, Any] = getattr(choose, "__globals__", {})
        where = (code.co_filename, code.co_firstlineno, module.get("__name__"))
        warnings.warn_explicit(msg, UndeclaredTool, *where, module.setdefault("__warningregistry__", {}))
    else:
        warnings.warn(msg, UndeclaredTool, stacklevel=_made_by(agent))


def _made_by(made: object) -> int:
    """How far up the line is that makes an object: above this library and the classes in between."""
    frame, level = inspect.currentframe(), 0
    while frame is not None:
        code = frame.f_code
        own = code.co_argcount and frame.f_locals.get(code.co_varnames[0]) is made and code.co_name == "__init__"
        if not own and not str(frame.f_globals.get("__name__", "")).startswith("perdure."):
            return level
        frame, level = frame.f_back, level + 1
    return 1


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
