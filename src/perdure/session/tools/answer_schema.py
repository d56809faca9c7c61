"""Whether JSON fits a schema, such as what a person answers or a model writes: the common part of JSON Schema."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Answers are any JSON: their types are looked at, not declared.
from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from perdure.state.values import same

if TYPE_CHECKING:
    from collections.abc import Callable

DEEPEST = 100
"""How deep a value is looked into; a schema that refers to itself alone ends there, too."""
_KINDS: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str | bytes),
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "array": lambda v: isinstance(v, list | tuple),
    "object": lambda v: isinstance(v, dict),
    "null": lambda v: v is None,
}


def misfit(value: Any, schema: Any, what: str = "the answer") -> str:
    """What is wrong with a value; "" when it fits. Words of a schema that are not known here ask for nothing.

    >>> misfit("aisle", {"enum": ["window", "aisle"]}), misfit(3, {"type": "integer", "maximum": 2})
    ('', 'the answer is at most 2')
    """
    definitions = schema.get("$defs") if isinstance(schema, dict) else None
    return _Checker(definitions if isinstance(definitions, dict) else {}).misfit(value, schema, what, 0)


class _Checker:
    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions

    def misfit(self, value: Any, schema: Any, what: str, depth: int) -> str:
        if not isinstance(schema, dict):
            return f"{what} may not be there" if schema is False else ""
        if depth > DEEPEST:
            return f"{what} is nested too deep"
        if wrong := self._combined(value, schema, what, depth + 1):
            return wrong
        kinds = schema.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if schema.get("format") == "decimal" and _KINDS["number"](value):
            # What is written as text is read from a number as well.
            return ""
        if kinds and not any(_KINDS.get(kind, lambda _: True)(value) for kind in kinds):
            return f"{what} must be {' or '.join(map(str, kinds))}, not {value!r:.60}"
        if "const" in schema and not same(value, schema["const"]):
            return f"{what} is {schema['const']!r:.60}"
        if "enum" in schema and not any(same(value, one) for one in schema["enum"]):
            return f"{what} is one of {', '.join(map(repr, schema['enum'])):.300}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _bounds(value, schema, what, "minimum", "maximum", "") or _beyond(value, schema, what)
        if isinstance(value, str):
            if "pattern" in schema and not re.search(schema["pattern"], value):
                return f"{what} is text like {schema['pattern']!r:.60}"
            return _bounds(len(value), schema, what, "minLength", "maxLength", " characters long")
        if isinstance(value, list | tuple):
            first, rest = schema.get("prefixItems", []), schema.get("items")
            kinds = [first[i] if i < len(first) else rest for i in range(len(value))]
            each = (self.misfit(v, kinds[i], f"item {i} of {what}", depth + 1) for i, v in enumerate(value))
            wrong = _bounds(len(value), schema, what, "minItems", "maxItems", " items long")
            return wrong or next(filter(None, each), "")
        return self._fields(value, schema, what, depth) if isinstance(value, dict) else ""

    def _combined(self, value: Any, schema: dict[str, Any], what: str, depth: int) -> str:
        """What is wrong by the words of a schema that refer to other schemas."""
        if isinstance(named := schema.get("$ref"), str):
            found = self._definitions.get(named.removeprefix("#/$defs/"))
            if wrong := self.misfit(value, found, what, depth):
                return wrong
        for part in schema.get("allOf", ()):
            if wrong := self.misfit(value, part, what, depth):
                return wrong
        for word in ("anyOf", "oneOf"):
            said = [self.misfit(value, part, what, depth) for part in schema.get(word, ())]
            if said and all(said):
                return said[0] if len(set(said)) == 1 else f"{what} fits none of what it may be: {'; '.join(said):.200}"
        return ""

    def _fields(self, value: dict[str, Any], schema: dict[str, Any], what: str, depth: int) -> str:
        known: dict[str, Any] = schema.get("properties", {})
        others = schema.get("additionalProperties")
        for name in schema.get("required", ()):
            if name not in value:
                return f"{what} has no {name}"
        for name, one in value.items():
            if name not in known and others is False:
                return f"{what} has an unknown {name!r:.60}: it has {', '.join(known) or 'nothing'}"
            if wrong := self.misfit(one, known.get(name, others), f"{name} of {what}", depth + 1):
                return wrong
        return ""


def _bounds(size: float, schema: dict[str, Any], what: str, least: str, most: str, unit: str) -> str:
    if least in schema and size < schema[least]:
        return f"{what} is at least {schema[least]}{unit}"
    return f"{what} is at most {schema[most]}{unit}" if most in schema and size > schema[most] else ""


def _beyond(value: float, schema: dict[str, Any], what: str) -> str:
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        return f"{what} is more than {schema['exclusiveMinimum']}"
    if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
        return f"{what} is less than {schema['exclusiveMaximum']}"
    return ""
