"""Between JSON and the types a function declares: what is recorded is JSON, what a tool is given is what it asks for.

Dataclasses, enums, literals, datetimes, decimals, typed dictionaries, named tuples and msgspec's structs by msgspec;
pydantic's models by pydantic, which only those who use it need to have. A type that neither knows is left alone.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Values are of any type here: their types are looked at, not declared.
from __future__ import annotations

import functools
import inspect
import json
import operator
import typing
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from decimal import Decimal
from types import NoneType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import InvalidInput, an
from perdure.session.tools.answer_schema import misfit
from perdure.state.document import plain
from perdure.state.values import MAX_DEPTH, plain_tuples, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

_PLAIN: frozenset[Any] = frozenset({Any, str, int, float, bool, bytes, NoneType, object, dict, list})
_OF_PLAIN = (list, dict, typing.Union, UnionType)
_ATOMS = frozenset({str, int, float, bool, bytes, NoneType})
_BUILTIN = (bytes, bytearray)
"""What a state can keep although JSON cannot."""
MISFITS = (TypeError, ValueError, RecursionError, OverflowError)
"""What converting raises when a value does not fit, or is deeper or larger than anything that does."""
_STARS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
SAID = 300
"""Characters of what is told of a misfit."""


class TypedValue:
    """One declared type: its schema, and the way from JSON to it and back; ``TypeError`` when it has no schema."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.schema = schema_of(kind)
        info = msgspec.inspect.type_info(kind)
        self._sets = _has(info, (msgspec.inspect.SetType, msgspec.inspect.FrozenSetType), set())
        self.has_decimals = _has(info, (msgspec.inspect.DecimalType,), set())
        self._dataclasses = _has(info, (msgspec.inspect.DataclassType,), set())

    def from_json(self, value: Any) -> Any:
        """The typed value; one of ``MISFITS`` says what does not fit."""
        try:
            return self._converted(value, strict=True)
        except msgspec.ValidationError:
            # Models write numbers as text, now and then; what fits as it stands is kept as it stands.
            return self._leniently(value)

    def fitting_json(self, value: Any) -> Any:
        """JSON that fits, as it stands where it does so as it is; one of ``MISFITS`` says what does not."""
        read = plain(value)
        try:
            self._converted(read, strict=True)
        except msgspec.ValidationError:
            return self.as_json(self._leniently(read))
        return value

    def _leniently(self, value: Any) -> Any:
        try:
            return self._converted(value, strict=False)
        except msgspec.ValidationError as e:
            # Which values there are is not in its words, and whoever gave another one can choose among them.
            if choices := self._choices(value, e):
                raise msgspec.ValidationError(f"{e}: {choices}") from None
            raise

    def _choices(self, value: Any, error: BaseException) -> str:
        wrong = misfit(value, self.schema, "the value") if str(error).startswith("Invalid enum value") else ""
        return wrong if " is one of " in wrong else ""

    def said_of(self, value: Any, error: BaseException) -> str:
        """What one of ``MISFITS`` says of a value, without the value: that may be nobody's business who reads this."""
        if str(error).startswith(("Invalid enum value", "Invalid value")):
            # Followed by what was given.
            return self._choices(value, error) or "it is none of the values that there are"
        return in_short(error)

    def _converted(self, value: Any, *, strict: bool) -> Any:
        more: dict[str, Any] = {"builtin_types": _BUILTIN, "str_keys": True, "dec_hook": _from_json}
        found = msgspec.convert(value, self.kind, strict=strict, **more)
        if self._dataclasses:
            _fill_in(found)
        return found

    def as_json(self, value: Any) -> Any:
        """A value of this type as JSON; sets as sorted lists where the type has them."""
        if not self._sets:
            _refuse_sets(value)
        order = "deterministic" if self._sets else None
        more: dict[str, Any] = {"builtin_types": _BUILTIN, "str_keys": True, "order": order}
        return plain_tuples(msgspec.to_builtins(value, enc_hook=_exactly_as_json, **more))


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type, definitions of nested types at the top; ``TypeError`` when it has none."""
    try:
        schema = msgspec.json.schema(kind, schema_hook=_schema)
    except (NameError, RecursionError) as e:
        raise TypeError(str(e)) from None
    definitions: dict[str, Any] = dict(schema.pop("$defs", {}))
    _hoist(schema, definitions)
    for one in list(definitions.values()):
        _hoist(one, definitions)
    return {**schema, "$defs": definitions} if definitions else schema


def _hoist(schema: Any, definitions: dict[str, Any]) -> None:
    """Move what a part of a schema defines for itself to where its references look for it."""
    if isinstance(schema, dict):
        definitions |= schema.pop("$defs", {})
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _hoist(part, definitions)


def as_json(value: Any) -> Any:
    """A value of any of these types as JSON, bytes as they are; a bare set has no order, and is none.

    >>> from datetime import datetime, UTC
    >>> as_json({"at": datetime(2026, 1, 2, tzinfo=UTC)})
    {'at': '2026-01-02T00:00:00Z'}
    """
    _refuse_sets(value)
    # Classes may have sets in them, which they say.
    more: dict[str, Any] = {"builtin_types": _BUILTIN, "order": "deterministic"}
    return plain_tuples(msgspec.to_builtins(value, enc_hook=_as_json, **more))


def _refuse_sets(value: Any, depth: int = 0) -> None:
    if isinstance(value, set | frozenset):
        raise TypeError("a set is not JSON")
    if depth > MAX_DEPTH:
        raise RecursionError("it is nested too deep")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        _refuse_sets(part, depth + 1)


def refuse_no_number(value: Any, depth: int = 0) -> None:
    """Refuse a decimal that is no number, or infinite: no rule that compares amounts would hold for it."""
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValueError(f"{value} is no number that can be compared")
        return
    if isinstance(value, str | bytes | bytearray | int | float) or depth > MAX_DEPTH:
        return
    parts: Any = ()
    if isinstance(value, msgspec.Struct):
        parts = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif is_dataclass(value):
        parts = [getattr(value, field.name, None) for field in fields(value)]
    elif _is_pydantic(type(value)):
        # Of other objects, such as members of an enum, there is no end of what hangs on them.
        parts = vars(value).values()
    for part in parts:
        refuse_no_number(part, depth + 1)


def _fill_in(value: Any) -> None:
    """Give dataclasses their own fields where msgspec leaves them to the class: JSON is made of an object's own alone.

    It would lack the fields that are as their defaults, and mean something else once these are others.
    """
    if is_dataclass(value):
        own, names = getattr(value, "__dict__", None), [field.name for field in fields(value)]
        for name in names:
            if own is not None and name not in own and hasattr(value, name):
                object.__setattr__(value, name, getattr(value, name))
        parts: Any = [getattr(value, name, None) for name in names]
    elif isinstance(value, msgspec.Struct):
        parts = [getattr(value, name) for name in value.__struct_fields__]
    else:
        parts = value.values() if isinstance(value, dict) else value
    if not isinstance(parts, str | bytes | bytearray) and isinstance(parts, Iterable):
        for part in parts:
            _fill_in(part)


def _has(info: Any, kinds: tuple[Any, ...], seen: set[int]) -> bool:
    """Whether a type has one of these kinds of types anywhere in it."""
    if isinstance(info, kinds):
        return True
    if id(info) in seen:
        return False
    seen.add(id(info))
    if isinstance(info, tuple | list):
        return any(_has(part, kinds, seen) for part in info)
    if isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        return any(_has(getattr(info, name), kinds, seen) for name in info.__struct_fields__)
    return False


# -- pydantic: known by what its classes have, never imported ---------------------------------------------------------


def _is_pydantic(kind: Any) -> bool:
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate_json")


class MisplacedContext(TypeError):
    """A parameter that is declared as the context of a call, and is not the one that is given it."""


def _schema(kind: Any) -> dict[str, Any]:
    if not _is_pydantic(kind):
        own = getattr(kind, "__origin__", kind)
        if getattr(own, "__name__", "") == "Context" and getattr(own, "__module__", "").startswith("perdure."):
            raise MisplacedContext("a call's Context is given to the parameter that is called ctx: rename it")
        raise TypeError(f"{getattr(kind, '__name__', kind)} has no JSON schema")
    return kind.model_json_schema()


def _from_json(kind: Any, value: Any) -> Any:
    if not _is_pydantic(kind):
        raise TypeError(f"{getattr(kind, '__name__', kind)} cannot be made from JSON")
    if isinstance(value, kind):
        return value
    try:
        return kind.model_validate_json(json.dumps(value))
    except ValueError as e:
        errors: Callable[[], list[Any]] | None = getattr(e, "errors", None)
        if errors is None:
            raise
        # Its own words hold what was given, which may be a secret, and addresses of its documentation.
        said = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}".lstrip(": ") for one in errors()]
        raise ValueError("; ".join(said)) from None


def _as_json(value: Any) -> Any:
    if not _is_pydantic(type(value)):
        raise TypeError(f"{an(type(value).__name__)} is not JSON")
    options: dict[str, Any] = {"by_alias": True, "round_trip": True}
    return _in_order(value.model_dump(**options), value.model_dump(mode="json", **options))


def _exactly_as_json(value: Any) -> Any:
    """For arguments: what a tool is given comes from what is recorded, so nothing may be lost there."""
    found = _as_json(value)
    kind = type(value)
    try:
        kept = _from_json(kind, found) == value
    except MISFITS:
        kept = False
    if not kept:
        raise TypeError(f"{an(kind.__name__)} does not come back from its JSON as it was")
    return found


def _in_order(dumped: Any, found: Any) -> Any:
    """What pydantic made of a value, lists that were sets sorted: their order is another one in each process."""
    if isinstance(dumped, set | frozenset) and isinstance(found, list):
        return sorted(found, key=_canonical)
    if isinstance(dumped, dict) and isinstance(found, dict) and len(dumped) == len(found):
        return {k: _in_order(d, v) for d, (k, v) in zip(dumped.values(), found.items(), strict=True)}
    if isinstance(dumped, list | tuple) and isinstance(found, list) and len(dumped) == len(found):
        return [_in_order(d, v) for d, v in zip(dumped, found, strict=True)]
    return found


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


# -- functions --------------------------------------------------------------------------------------------------------


def is_plain(kind: Any) -> bool:
    """Whether values of a type are JSON as they are.

    >>> is_plain(dict[str, list[int]]), is_plain(str | None), is_plain(typing.Literal["a"]), is_plain(dict[int, str])
    (True, True, True, False)
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return is_plain(parts[0])
    if origin is typing.Literal:
        return all(type(one) in (str, int, bool, NoneType) for one in parts)
    if origin is dict and parts[0] not in (str, Any):
        return False
    if origin in _OF_PLAIN:
        return all(is_plain(part) for part in parts)
    try:
        return kind in _PLAIN
    except TypeError:
        return False


def hints_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """The types that a function declares, each by itself: one that cannot be found here does not hide the others."""
    fn = inspect.unwrap(fn)
    if not inspect.isroutine(fn):
        fn = type(fn).__call__
    names: dict[str, Any] = getattr(fn, "__globals__", {})
    around: dict[str, Any] | None = None
    found: dict[str, Any] = {}
    for name, declared in getattr(fn, "__annotations__", {}).items():
        alone = SimpleNamespace(__annotations__={name: declared})
        for _ in range(2):
            try:
                found |= typing.get_type_hints(alone, names, around, include_extras=True)
                break
            except NameError:
                # Declared in the function that this one is declared in; or imported for type checkers alone.
                if around is not None:
                    break
                around = _names_around(names) if "<locals>" in getattr(fn, "__qualname__", "") else {}
            except (TypeError, SyntaxError, AttributeError):
                break
    return found


def _names_around(names: dict[str, Any]) -> dict[str, Any]:
    """The variables of the functions that are running now in one module, inner ones first."""
    # Annotations that are text have no other way to their scope.
    frame = inspect.currentframe()
    found: dict[str, Any] = {}
    while frame is not None:
        if frame.f_globals is names:
            found = {**frame.f_locals, **found}
        frame = frame.f_back
    return found


def _typed(kind: Any) -> TypedValue | None:
    """The type as one that is converted; None when its values are JSON, or nobody knows how to."""
    if is_plain(kind):
        return None
    try:
        return TypedValue(kind)
    except TypeError:
        return None


def _without(one: Any, kind: Any) -> Any:
    """A type without one of those it may be; any, when it was that alone.

    >>> _without(bytes, int | bytes), _without(bytes, bytes), _without(None, int | None)
    (<class 'int'>, typing.Any, int | None)
    """
    parts = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, UnionType) else (kind,)
    left = [part for part in parts if part is not one]
    if len(left) == len(parts):
        return kind
    return functools.reduce(operator.or_, left) if left else Any


def _own(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value if type(value) in _ATOMS else _copied(value) for name, value in arguments.items()}


def _copied(value: Any, depth: int = 0) -> Any:
    """Containers of one's own, also of what is in a state, and lists for tuples, as they are recorded.

    >>> _copied({"a": [(1, 2)]})
    {'a': [[1, 2]]}
    """
    if depth > MAX_DEPTH:
        # Refused, with its place, where it is written down.
        return value
    if type(value) is dict:
        return {k: _copied(v, depth + 1) for k, v in value.items()}
    if type(value) is list or isinstance(value, tuple):
        return [_copied(v, depth + 1) for v in value]
    return plain(value)


class TypedCall:
    """The types of a tool's parameters and of its result, or the JSON schema it was given for its arguments."""

    def __init__(
        self, name: str, fn: Callable[..., Any], schema: dict[str, Any] | None = None, *, later: Any = None
    ) -> None:
        self._name = name
        self._fn = fn
        self._schema = schema
        self._hints = {k: v for k, v in hints_of(fn).items() if k != "ctx"}
        # What it returns in place of a result that comes later is none.
        self._returns = _without(later, self._hints.pop("return", Any))
        self._result = _typed(self._returns)
        found = {parameter: _typed(kind) for parameter, kind in self._hints.items()}
        self._parameters = {parameter: typed for parameter, typed in found.items() if typed is not None}

    def arguments_as_json(self, bound: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call as they are recorded; ``InvalidInput`` when one is not what its parameter says."""
        for name in self._parameters.keys() & bound.keys():
            try:
                refuse_no_number(bound[name])
                bound[name] = self._parameters[name].as_json(bound[name])
            except MISFITS as e:
                raise InvalidInput(f"{self._name}: {name} cannot be recorded: {in_short(e)}") from None
            self._fitting(name, self._parameters[name].from_json, bound[name])
        for name in self._simple.keys() & bound.keys():
            typed, default = self._simple[name]
            # One may be declared as what its default is not: n: int = None.
            if bound[name] is default:
                continue
            try:
                bound[name] = self._fitting(name, typed.fitting_json, bound[name])
            except InvalidInput:
                # What has no JSON at all is refused as such, with its place.
                if not refusal(bound[name]):
                    raise
        if self._schema is not None and (wrong := misfit(bound, self._schema, f"the input of {self._name}")):
            raise InvalidInput(wrong)
        # Whoever calls may go on with what he gave, and a default is every call's.
        return _own(bound)

    def default_as_json(self, name: str, value: Any) -> Any:
        """A parameter's default as calls record it; one of ``MISFITS`` when it cannot be recorded."""
        typed = self._parameters.get(name)
        return _own({name: value if typed is None else typed.as_json(value)})[name]

    def arguments(self, bound: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call as its function wants them, and may change them: the next attempt gets them anew."""
        typed = _own(bound)
        for name in self._parameters.keys() & bound.keys():
            typed[name] = self._fitting(name, self._parameters[name].from_json, bound[name])
        return typed

    @functools.cached_property
    def _simple(self) -> dict[str, tuple[TypedValue, Any]]:
        """The parameters whose values are JSON as they are, and not any: their types, with their defaults."""
        defaults = {
            name: p.default for name, p in inspect.signature(self._fn).parameters.items() if p.kind not in _STARS
        }
        found: dict[str, tuple[TypedValue, Any]] = {}
        for name in self._hints.keys() & defaults.keys() - self._parameters.keys():
            if self._hints[name] not in (Any, object) and is_plain(self._hints[name]):
                found[name] = TypedValue(self._hints[name]), defaults[name]
        return found

    def _fitting(self, name: str, convert: Callable[[Any], Any], value: Any) -> Any:
        try:
            return convert(value)
        except MISFITS as e:
            raise InvalidInput(f"{self._name}: {name} does not fit: {in_short(e)}") from None

    def result_as_json(self, result: Any) -> Any:
        """What a call returned as it is recorded; what has no JSON stays as it is, to be refused with its place."""
        if not refusal(result):
            return result
        try:
            return as_json(result) if self._result is None else self._result.as_json(result)
        except MISFITS:
            pass
        try:
            return as_json(result)
        except MISFITS:
            return result

    def result(self, recorded: Any) -> Any:
        """What a call returned as its function declares it; as it is recorded where that does not fit."""
        if self._result is None:
            return recorded
        try:
            return self._result.from_json(recorded)
        except MISFITS:
            return recorded

    def fitting_result(self, recorded: Any) -> tuple[Any, str]:
        """What a call returned as JSON, as its type has it where it can be read so, and what does not fit, or "".

        What does not fit stays as it is: a call that was made is not lost for that.
        """
        if self._declared is None:
            return recorded, ""
        try:
            found = self._declared.fitting_json(recorded)
        except MISFITS as e:
            return recorded, self._declared.said_of(recorded, e)
        # Text may be read as a number that no JSON has.
        return (recorded, "it is not JSON") if found is not recorded and refusal(found) else (found, "")

    @functools.cached_property
    def _declared(self) -> TypedValue | None:
        """The type of what it returns; None when any value will do, or nobody knows what fits."""
        if self._result is not None or self._returns in (Any, object):
            return self._result
        try:
            return TypedValue(self._returns)
        except TypeError:
            return None

    def result_schema(self) -> dict[str, Any] | None:
        """The JSON schema of what it returns; None when any value will do."""
        if self._returns is Any:
            return None
        try:
            return schema_of(self._returns) or None
        except TypeError:
            return None

    @functools.cached_property
    def arguments_schema(self) -> dict[str, Any] | None:
        """The JSON schema of its arguments by name; None when nobody can say what fits."""
        if self._schema is not None:
            return self._schema
        properties: dict[str, Any] = {}
        definitions: dict[str, Any] = {}
        parameters = {name: p for name, p in inspect.signature(self._fn).parameters.items() if name != "ctx"}
        if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
            return None
        named = {name: p for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
        for name, p in named.items():
            try:
                schema = schema_of(self._hints.get(name, Any))
            except TypeError:
                schema = dict[str, Any]()
            for one, said in schema.pop("$defs", {}).items():
                if definitions.setdefault(one, said) != said:
                    # Two classes of one name.
                    return None
            properties[name] = {"anyOf": [schema, {"type": "null"}]} if p.default is None and schema else schema
        required = [name for name, p in named.items() if p.default is p.empty]
        return {
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": len(named) < len(parameters), "$defs": definitions,
        }  # fmt: skip

    def as_declared(self, result: Any) -> tuple[Any, str]:
        """What a call returned that is not recorded, as its function declares it, and what does not fit, or ""."""
        if self._result is None:
            # What is no JSON is nobody's business but of who called: nothing is recorded.
            return (result, "") if refusal(result) else self.fitting_result(result)
        found, wrong = self.fitting_result(self.result_as_json(result))
        return self.result(found), wrong

    def first_argument(self, value: Any) -> Any:
        """The only argument of a function, as it wants it."""
        name = next(iter(self._hints), "")
        return self.arguments({name: value})[name] if name else value


def in_short(error: BaseException) -> str:
    """What a misfit says, on one line.

    >>> in_short(ValueError("one\\n  two"))
    'one; two'
    """
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())[:SAID]
