"""Whether what a person answers fits what was asked: the part of JSON Schema that a question to a person needs."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Answers are any JSON: their types are looked at, not declared.
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.state.values import same

if TYPE_CHECKING:
    from collections.abc import Callable

_KINDS: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "array": lambda v: isinstance(v, list | tuple),
    "object": lambda v: isinstance(v, dict),
    "null": lambda v: v is None,
}


def misfit(value: Any, schema: Any, what: str = "the answer") -> str:
    """What is wrong with an answer; "" when it fits. Words of a schema that are not known here ask for nothing.

    >>> misfit("aisle", {"enum": ["window", "aisle"]}), misfit(3, {"type": "integer", "maximum": 2})
    ('', 'the answer is at most 2')
    """
    if not isinstance(schema, dict):
        return ""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_KINDS.get(kind, lambda _: True)(value) for kind in kinds):
        return f"{what} is {' or '.join(map(str, kinds))}, not {value!r:.60}"
    if "const" in schema and not same(value, schema["const"]):
        return f"{what} is {schema['const']!r:.60}"
    if "enum" in schema and not any(same(value, one) for one in schema["enum"]):
        return f"{what} is one of {', '.join(map(repr, schema['enum'])):.300}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _bounds(value, schema, what, "minimum", "maximum", "")
    if isinstance(value, str):
        return _bounds(len(value), schema, what, "minLength", "maxLength", " characters long")
    if isinstance(value, list | tuple):
        each = (misfit(v, schema.get("items"), f"item {i} of {what}") for i, v in enumerate(value))
        return _bounds(len(value), schema, what, "minItems", "maxItems", " items long") or next(filter(None, each), "")
    return _fields(value, schema, what) if isinstance(value, dict) else ""


def _bounds(size: float, schema: dict[str, Any], what: str, least: str, most: str, unit: str) -> str:
    if least in schema and size < schema[least]:
        return f"{what} is at least {schema[least]}{unit}"
    return f"{what} is at most {schema[most]}{unit}" if most in schema and size > schema[most] else ""


def _fields(value: dict[str, Any], schema: dict[str, Any], what: str) -> str:
    known: dict[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{what} has no {name}"
    for name, one in value.items():
        if name not in known and schema.get("additionalProperties") is False:
            return f"{what} has an unknown {name!r:.60}: it has {', '.join(known) or 'nothing'}"
        if wrong := misfit(one, known.get(name), f"{name} of {what}"):
            return wrong
    return ""
