"""Between JSON and the types a function declares: what is recorded is JSON, what a tool is given is what it asks for.

Dataclasses, enums, literals, datetimes, decimals, typed dictionaries, named tuples and msgspec's structs by msgspec;
pydantic's models by pydantic, which only those who use it need to have.
"""

from __future__ import annotations

import inspect
import typing
from types import NoneType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import InvalidInput
from perdure.state.values import refusal

if TYPE_CHECKING:
    from collections.abc import Callable

_PLAIN: frozenset[Any] = frozenset({Any, str, int, float, bool, bytes, NoneType, object, dict, list})
_OF_PLAIN = (list, dict, typing.Union, UnionType)
_BUILTIN = (bytes, bytearray)
"""What a state can keep although JSON cannot."""


class TypedValue:
    """One declared type: its schema, and the way from JSON to it."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def schema(self) -> dict[str, Any]:
        """Its JSON schema; ``TypeError`` when it has none."""
        return schema_of(self.kind)

    def from_json(self, value: Any) -> Any:
        """The typed value; ``ValueError`` says what does not fit."""
        return msgspec.convert(value, self.kind, strict=False, builtin_types=_BUILTIN, dec_hook=_pydantic_from_json)


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type, definitions of nested types at the top; ``TypeError`` when it has none."""
    schema = msgspec.json.schema(kind, schema_hook=_pydantic_schema)
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
    """A value of any of these types as JSON, bytes as they are.

    >>> from datetime import datetime, UTC
    >>> as_json({"at": datetime(2026, 1, 2, tzinfo=UTC)})
    {'at': '2026-01-02T00:00:00Z'}
    """
    return msgspec.to_builtins(value, builtin_types=_BUILTIN, enc_hook=_pydantic_as_json)


def _is_pydantic(kind: Any) -> bool:
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate")


def _pydantic_schema(kind: Any) -> dict[str, Any]:
    if not _is_pydantic(kind):
        msg = f"{getattr(kind, '__name__', kind)} has no JSON schema"
        raise TypeError(msg)
    return kind.model_json_schema()


def _pydantic_from_json(kind: Any, value: Any) -> Any:
    if not _is_pydantic(kind):
        msg = f"{getattr(kind, '__name__', kind)} cannot be made from JSON"
        raise TypeError(msg)
    return kind.model_validate(value)


def _pydantic_as_json(value: Any) -> Any:
    if not _is_pydantic(type(value)):
        msg = f"a {type(value).__name__} is not JSON"
        raise TypeError(msg)
    return value.model_dump(mode="json")


def is_plain(kind: Any) -> bool:
    """Whether values of a type are JSON as they are.

    >>> is_plain(dict[str, list[int]]), is_plain(str | None), is_plain(typing.Literal["a"])
    (True, True, True)
    """
    if typing.get_origin(kind) is typing.Annotated:
        return is_plain(typing.get_args(kind)[0])
    if typing.get_origin(kind) is typing.Literal:
        return all(isinstance(one, str | int | bool | None) for one in typing.get_args(kind))
    if typing.get_origin(kind) in _OF_PLAIN:
        return all(is_plain(part) for part in typing.get_args(kind))
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
    try:
        inside = dict(inspect.getclosurevars(fn).nonlocals)
    except (TypeError, ValueError):
        inside = {}
    found: dict[str, Any] = {}
    for name, declared in getattr(fn, "__annotations__", {}).items():
        alone = SimpleNamespace(__annotations__={name: declared})
        try:
            found |= typing.get_type_hints(alone, names, inside, include_extras=True)
        except (NameError, TypeError, SyntaxError, AttributeError):
            # Imported for type checkers alone, for instance.
            continue
    return found


class TypedCall:
    """The types of a tool's parameters and of its result."""

    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        self._name = name
        hints = hints_of(fn)
        returned = hints.pop("return", Any)
        self._parameters = {
            parameter: TypedValue(kind)
            for parameter, kind in hints.items()
            if parameter != "ctx" and not is_plain(kind)
        }
        self._result = None if is_plain(returned) else TypedValue(returned)

    def arguments_as_json(self, bound: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call as they are recorded; ``InvalidInput`` when one is not what its parameter says."""
        for name in self._parameters.keys() & bound.keys():
            try:
                bound[name] = as_json(bound[name])
            except (TypeError, ValueError) as e:
                raise InvalidInput(f"{self._name}: {name} cannot be recorded: {e}") from None
        self.arguments(bound)
        return bound

    def arguments(self, bound: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call as its function wants them."""
        if not self._parameters:
            return bound
        typed = dict(bound)
        for name in self._parameters.keys() & bound.keys():
            try:
                typed[name] = self._parameters[name].from_json(bound[name])
            except (TypeError, ValueError) as e:
                said = "; ".join(line.strip() for line in str(e).splitlines() if line.strip())
                raise InvalidInput(f"{self._name}: {name} does not fit: {said:.300}") from None
        return typed

    def result_as_json(self, result: Any) -> Any:
        """What a call returned as it is recorded; what has no JSON stays as it is, to be refused with its place."""
        if not refusal(result):
            return result
        try:
            return as_json(result)
        except (TypeError, ValueError, RecursionError):
            return result

    def result(self, recorded: Any) -> Any:
        """What a call returned as its function declares it; as it is recorded where that does not fit."""
        if self._result is None:
            return recorded
        try:
            return self._result.from_json(recorded)
        except (TypeError, ValueError):
            return recorded
