"""Between JSON and the types a function declares: what is recorded is JSON, what a tool is given is what it asks for.

Dataclasses, enums, literals, datetimes, decimals, typed dictionaries, named tuples and msgspec's structs by msgspec;
pydantic's models by pydantic, which only those who use it need to have. A type that neither knows is left alone.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Values are of any type here: their types are looked at, not declared.
from __future__ import annotations

import inspect
import json
import typing
from types import NoneType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import InvalidInput
from perdure.session.answer_schema import misfit
from perdure.state.values import MAX_DEPTH, plain_tuples, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

_PLAIN: frozenset[Any] = frozenset({Any, str, int, float, bool, bytes, NoneType, object, dict, list})
_OF_PLAIN = (list, dict, typing.Union, UnionType)
_BUILTIN = (bytes, bytearray)
"""What a state can keep although JSON cannot."""
MISFITS = (TypeError, ValueError, RecursionError, OverflowError)
"""What converting raises when a value does not fit, or is deeper or larger than anything that does."""
SAID = 300
"""Characters of what is told of a misfit."""


class TypedValue:
    """One declared type: its schema, and the way from JSON to it and back; ``TypeError`` when it has no schema."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.schema = schema_of(kind)
        self._sets = _declares_set(msgspec.inspect.type_info(kind), set())

    def from_json(self, value: Any) -> Any:
        """The typed value; one of ``MISFITS`` says what does not fit."""
        try:
            return self._converted(value, strict=True)
        except msgspec.ValidationError:
            # Models write numbers as text, now and then; what fits as it stands is kept as it stands.
            return self._converted(value, strict=False)

    def _converted(self, value: Any, *, strict: bool) -> Any:
        more: dict[str, Any] = {"builtin_types": _BUILTIN, "str_keys": True, "dec_hook": _from_json}
        return msgspec.convert(value, self.kind, strict=strict, **more)

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


def _declares_set(info: Any, seen: set[int]) -> bool:
    """Whether a type has a set anywhere in it."""
    if isinstance(info, msgspec.inspect.SetType | msgspec.inspect.FrozenSetType):
        return True
    if id(info) in seen:
        return False
    seen.add(id(info))
    if isinstance(info, tuple | list):
        return any(_declares_set(part, seen) for part in info)
    if isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        return any(_declares_set(getattr(info, name), seen) for name in info.__struct_fields__)
    return False


# -- pydantic: known by what its classes have, never imported ---------------------------------------------------------


def _is_pydantic(kind: Any) -> bool:
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate_json")


def _schema(kind: Any) -> dict[str, Any]:
    if not _is_pydantic(kind):
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
        raise TypeError(f"a {type(value).__name__} is not JSON")
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
        raise TypeError(f"a {kind.__name__} does not come back from its JSON as it was")
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


class TypedCall:
    """The types of a tool's parameters and of its result, or the JSON schema it was given for its arguments."""

    def __init__(self, name: str, fn: Callable[..., Any], schema: dict[str, Any] | None = None) -> None:
        self._name = name
        self._schema = schema
        self._hints = {k: v for k, v in hints_of(fn).items() if k != "ctx"}
        self._result = _typed(self._hints.pop("return", Any))
        found = {parameter: _typed(kind) for parameter, kind in self._hints.items()}
        self._parameters = {parameter: typed for parameter, typed in found.items() if typed is not None}

    def arguments_as_json(self, bound: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call as they are recorded; ``InvalidInput`` when one is not what its parameter says."""
        if self._parameters:
            for name in self._parameters.keys() & bound.keys():
                try:
                    bound[name] = self._parameters[name].as_json(bound[name])
                except MISFITS as e:
                    raise InvalidInput(f"{self._name}: {name} cannot be recorded: {in_short(e)}") from None
            self.arguments(bound)
        if self._schema is not None and (wrong := misfit(bound, self._schema, f"the input of {self._name}")):
            raise InvalidInput(wrong)
        return bound

    def arguments(self, bound: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call as its function wants them."""
        if not self._parameters:
            return bound
        typed = dict(bound)
        for name in self._parameters.keys() & bound.keys():
            typed[name] = self._fitting(name, self._parameters[name], bound[name])
        return typed

    def check(self, bound: dict[str, Any]) -> dict[str, Any]:
        """Arguments that a person wrote, as they are recorded: simple types are checked, too."""
        checked = dict(bound)
        for name, kind in self._hints.items():
            if name not in bound or name in self._parameters:
                continue
            try:
                typed = TypedValue(kind)
            except TypeError:
                continue
            checked[name] = typed.as_json(self._fitting(name, typed, bound[name]))
        return checked

    def _fitting(self, name: str, typed: TypedValue, value: Any) -> Any:
        try:
            return typed.from_json(value)
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

    def as_declared(self, result: Any) -> Any:
        """What a call returned that is not recorded, as its function declares it."""
        return result if self._result is None else self.result(self.result_as_json(result))

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
