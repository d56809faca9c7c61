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
from perdure.session.tools import Context, NotDone, tool
from perdure.session.typed_values import TypedValue, as_json, hints_of
from perdure.system.times import when as in_words

if TYPE_CHECKING:
    from perdure.session.tools import Tool

_NOT_ARGUMENTS = ("ctx",)


class ToolSpec:
    """What the model is told of a tool, and how what it writes becomes arguments."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self.name = tool.name
        self.description, documented = _documented(tool.fn)
        fields: list[Any] = []
        hints = hints_of(tool.fn)
        for name, p in inspect.signature(tool.fn).parameters.items():
            if name in _NOT_ARGUMENTS or p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
                continue
            kind = hints.get(name, Any)
            if text := documented.get(name):
                kind = typing.Annotated[kind, msgspec.Meta(description=text)]
            fields.append((name, kind) if p.default is p.empty else (name, kind, p.default))
        fields.sort(key=len)
        try:
            self._type = msgspec.defstruct(f"{tool.name}_arguments", fields, forbid_unknown_fields=True, kw_only=True)
            self._typed = TypedValue(self._type)
            self.parameters = _inlined(self._typed.schema())
        except TypeError as e:
            raise InvalidInput(f"tool {tool.name}: {e}: declare its parameters with JSON types") from None

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
            given = json.loads(raw or "{}")
        except ValueError as e:
            raise InvalidInput(f"the arguments of {self.name} are not JSON: {e}") from None
        return self.checked(given)

    def checked(self, given: Any) -> dict[str, Any]:
        """Arguments by name, defaults included, as JSON values of the declared types."""
        if not isinstance(given, dict):
            raise InvalidInput(f"the arguments of {self.name} must be an object")
        try:
            value = self._typed.from_json(given)
        except ValueError as e:
            said = "; ".join(line.strip() for line in str(e).splitlines() if line.strip())
            raise InvalidInput(f"the arguments of {self.name} do not fit: {said}") from None
        return as_json(value)


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


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The object's own schema at the top, as models are used to it; definitions of nested types beside it."""
    definitions: dict[str, Any] = schema.get("$defs", {})
    top = schema.get("$ref", "").rpartition("/")[2]
    if top not in definitions:
        return schema
    own = {k: v for k, v in definitions.pop(top).items() if k != "title"}
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
