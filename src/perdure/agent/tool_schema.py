"""What a model is told of a tool: the JSON schema of its arguments, from its signature and docstring; and ``wake_me``.

Arguments that a model writes are checked against the schema. ``wake_me`` is a tool by which an agent has itself woken.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import InvalidInput
from perdure.session.tools import NotDone
from perdure.session.tools.context import Context
from perdure.session.tools.declaration import tool
from perdure.session.tools.typed_values import (
    MISFITS,
    MisplacedContext,
    TypedValue,
    hints_of,
    in_short,
    refuse_no_number,
)
from perdure.state.values import Wire
from perdure.system.times import when as in_words

if TYPE_CHECKING:
    from perdure.session.tools.declaration import Tool

_NOT_ARGUMENTS = ("ctx",)
_DEFINED = "#/$defs/"


class ToolSpec:
    """What the model is told of a tool, and how what it writes becomes arguments."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self.name = tool.name
        described, documented = _documented(tool.fn)
        self.description = described if tool.description is None else tool.description
        self._typed = None if tool.schema is not None else self._from_signature(documented)
        self.parameters = _inlined(self._typed.schema) if self._typed is not None else tool.schema or {}

    def _from_signature(self, documented: dict[str, str]) -> TypedValue:
        """The type of an object with the tool's parameters."""
        fields: list[Any] = []
        hints = hints_of(self.tool.fn)
        for name, p in inspect.signature(self.tool.fn).parameters.items():
            if name in _NOT_ARGUMENTS:
                continue
            if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
                stars = "**" if p.kind is p.VAR_KEYWORD else "*"
                raise InvalidInput(
                    f"tool {self.name} takes {stars}{name}, of which no model can be told: declare its parameters by "
                    f"name, or say what they are with tool({self.name}, schema={{...}})"
                )
            if name not in hints and p.annotation is not p.empty:
                raise InvalidInput(
                    f"tool {self.name}: the type {p.annotation!r:.60} of {name} cannot be found when it runs: import "
                    "it outside of `if TYPE_CHECKING`, or declare it before the tool"
                )
            kind = hints.get(name, Any)
            if text := documented.get(name):
                kind = typing.Annotated[kind, msgspec.Meta(description=text)]
            fields.append((name, kind) if p.default is p.empty else (name, kind, p.default))
        fields.sort(key=len)
        try:
            return TypedValue(
                msgspec.defstruct(f"{self.name}_arguments", fields, forbid_unknown_fields=True, kw_only=True)
            )
        except MisplacedContext as e:
            raise InvalidInput(f"tool {self.name}: {e}") from None
        except TypeError as e:
            raise InvalidInput(
                f"tool {self.name}: {in_short(e)}: declare its parameters with JSON types, dataclasses, enums, or "
                "models of msgspec or pydantic"
            ) from None

    def of(self, tool: Tool) -> ToolSpec:
        """The same for another tool of the same signature."""
        other = ToolSpec.__new__(ToolSpec)
        other.__dict__.update(self.__dict__)
        other.tool = tool
        return other

    def as_json(self) -> dict[str, Any]:
        """The form in which a request carries it."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def arguments(self, raw: str) -> dict[str, Any]:
        """The arguments that a model wrote, checked; ``InvalidInput`` says to the model what is wrong with them."""
        try:
            given = parsed(raw or "{}")
        except MISFITS as e:
            raise InvalidInput(f"the arguments of {self.name} are not JSON: {in_short(e)}") from None
        found = self.checked(given)
        if self._typed is None or not self._typed.has_decimals:
            return found
        # A decimal that was written as a number is read from its text, which no float is between.
        try:
            return _exactly(found, self._typed.as_json(self._typed.from_json(json.loads(raw, parse_float=str))))
        except MISFITS:
            return found

    def checked(self, given: Any) -> dict[str, Any]:
        """Arguments by name, defaults included, as JSON values of the declared types."""
        if not isinstance(given, dict):
            raise InvalidInput(f"the arguments of {self.name} must be an object")
        try:
            if self._typed is None:
                found = self.tool.bind((), typing.cast("dict[str, Any]", given))
            else:
                typed = self._typed.from_json(given)
                refuse_no_number(typed)
                found = self._typed.as_json(typed)
        except InvalidInput as e:
            raise InvalidInput(f"the arguments of {self.name} do not fit: {e}") from None
        except MISFITS as e:
            raise InvalidInput(f"the arguments of {self.name} do not fit: {in_short(e)}") from None
        try:
            Wire(lambda form, data: "").value(found, ("arguments",))
        except InvalidInput as e:
            raise InvalidInput(f"the arguments of {self.name} cannot be kept: {e}") from None
        return found


def parsed(text: str) -> Any:
    """What a model wrote as JSON; one of ``MISFITS`` when it is none, as NaN is."""
    return json.loads(text, parse_constant=_no_number)


def _exactly(found: Any, from_text: Any) -> Any:
    """Arguments as JSON, with the decimals of the same ones whose numbers were read as text; a decimal is text here."""
    if isinstance(found, dict) and isinstance(from_text, dict):
        given = typing.cast("dict[str, Any]", from_text)
        return {k: _exactly(v, given.get(k, v)) for k, v in typing.cast("dict[str, Any]", found).items()}
    if isinstance(found, list) and isinstance(from_text, list):
        pairs = zip(typing.cast("list[Any]", found), typing.cast("list[Any]", from_text), strict=False)
        return [_exactly(one, other) for one, other in pairs]
    is_text = isinstance(found, str) and isinstance(from_text, str)
    return from_text if is_text else typing.cast("Any", found)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


_OWN: dict[str, ToolSpec] = {}


def own_spec(tool: Tool) -> ToolSpec:
    """The spec of one of the runtime's own tools, which every run makes anew: what models are told is made once."""
    if tool.name not in _OWN:
        _OWN[tool.name] = ToolSpec(tool)
    return _OWN[tool.name].of(tool)


def _documented(fn: Any) -> tuple[str, dict[str, str]]:
    """What a docstring says of a function and of each of its parameters (lines such as ``name: text`` after Args)."""
    text = inspect.getdoc(fn) or ""
    head, *rest = re.split(r"(?m)^(?:Args|Arguments|Parameters):\s*$", text, maxsplit=1)
    lines = re.finditer(r"(?m)^\s+(\w+)(?:\s*\([^)]*\))?:\s*(.+)$", "".join(rest))
    return head.strip(), {match[1]: match[2].strip() for match in lines}


_STRICT_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
_NOT_STRICT = ("default", "uniqueItems", "minLength", "maxLength", "contentEncoding", "discriminator", "examples")
"""Words of a schema that strict providers refuse, and that the answer is checked by afterwards anyway."""


def output_schema(output: TypedValue, *, strict: bool) -> dict[str, Any]:
    """What a provider is sent of a structured output: by strict rules where it has such and they can say it.

    OpenAI's: every object has all its fields and no others, and every part has a type.
    """
    schema = _inlined(output.schema)
    wanted: dict[str, Any] = {"name": "output", "schema": schema}
    if strict and schema.get("type") == "object":
        try:
            return {**wanted, "schema": _strict(schema), "strict": True}
        except TypeError:
            # Such as an object with any fields: it is sent as it is, and the answer is checked here.
            pass
    return wanted


def _strict(schema: dict[str, Any] | None) -> dict[str, Any]:
    """A schema by strict rules; ``TypeError`` when they cannot say it."""
    if not schema or "prefixItems" in schema or "allOf" in schema:
        raise TypeError
    out: dict[str, Any] = {k: v for k, v in schema.items() if k not in _NOT_STRICT}
    if "$ref" in out:
        return {"$ref": out["$ref"]}
    if out.get("format", "") not in ("", *_STRICT_FORMATS):
        del out["format"]
    if "oneOf" in out:
        out["anyOf"] = out.pop("oneOf")
    if "anyOf" in out:
        out["anyOf"] = [_strict(part) for part in out["anyOf"]]
    elif "type" not in out and "enum" not in out and "const" not in out:
        raise TypeError
    if out.get("type") == "array":
        out["items"] = _strict(out.get("items"))
    if out.get("type") == "object":
        if "properties" not in out or out.get("additionalProperties"):
            raise TypeError
        out["properties"] = {name: _strict(part) for name, part in out["properties"].items()}
        out |= {"required": list(out["properties"]), "additionalProperties": False}
    if "$defs" in out:
        out["$defs"] = {name: _strict(part) for name, part in out["$defs"].items()}
    return out


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The object's own schema at the top, as models are used to it; definitions of nested types beside it."""
    definitions: dict[str, Any] = schema.get("$defs", {})
    top = schema.get("$ref", "").rpartition("/")[2]
    if top not in definitions:
        return schema
    own = {k: v for k, v in definitions[top].items() if k != "title"}
    if f'{_DEFINED}{top}"' not in json.dumps(schema["$defs"]):
        # One that refers to itself is needed there, too.
        definitions = {name: one for name, one in definitions.items() if name != top}
    own["additionalProperties"] = False
    return {**own, "$defs": definitions} if definitions else own


@tool(if_unsure="retry")
async def wake_me(
    message: str, ctx: Context, at: str = "", delay: str = "", cron: str = "", time_zone: str = "UTC"
) -> str:
    """Be woken later: the message is then given to you. Say when in exactly one way.

    Args:
        message: what you want to be told then
        at: a time such as 2026-11-30T09:00:00+01:00
        delay: how long from now, such as 90s, 45m, 2h, 7d
        cron: again and again, such as 0 9 * * 1-5
        time_zone: whose clocks cron means, such as Europe/Berlin
    """
    try:
        moment = datetime.fromisoformat(at) if at else None
        when = {"delay": delay or None, "cron": cron or None, "zone": time_zone}
        await ctx.wake(moment, message=message, **when)
    except (InvalidInput, ValueError) as e:
        # Nothing was posted, and the model can say it better.
        raise NotDone(str(e)) from None
    return "you will be woken" if moment is None else f"you will be woken at {in_words(int(moment.timestamp() * 1000))}"
