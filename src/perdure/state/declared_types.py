"""Declared state types: msgspec Structs, pydantic models, dataclasses or TypedDicts, checked when a commit is made.

Only what changed is checked: the fields an edit touched, and of a list that grew only the new items.
"""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import InvalidInput, InvalidState, format_path
from perdure.state.delta import APPEND
from perdure.state.document import STATE, plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.state.document import TrackedDict

    Check = Callable[[Any], None]


def validator(declared: Any) -> Callable[[TrackedDict, list[Any]], None]:
    """The function that checks a commit's operations against a declared type."""
    fields = _fields(declared)
    # A pydantic model with validators over several fields is checked as a whole, too.
    whole = _is_pydantic(declared) and bool(declared.__pydantic_decorators__.model_validators)
    checks: dict[Any, Check] = {}

    def check(kind: Any, value: Any, path: tuple[str | int, ...]) -> None:
        try:
            key = repr(kind)
            if key not in checks:
                checks[key] = _check(kind)
            checks[key](value)
        except (msgspec.ValidationError, ValueError, TypeError) as e:
            name = getattr(declared, "__name__", "the declared type")
            said = "; ".join(line.strip() for line in str(e).splitlines() if line.strip())
            raise InvalidState(f"{format_path(path)} does not fit {name}: {said:.300}") from None

    def validate(state: TrackedDict, ops: list[Any]) -> None:
        touched: set[str] = set()
        for op in ops:
            path = op[1]
            if path[0] != STATE or len(path) < 2 or path[1] not in fields:
                continue
            name: str = path[1]
            item = _item_type(fields[name])
            if op[0] == APPEND and len(path) == 2 and item is not None:
                start = len(state[name]) - len(op[2])
                for i, v in enumerate(op[2]):
                    check(item, plain(v), (name, start + i))
            else:
                touched.add(name)
        for name in sorted(touched):
            if name in state:
                check(fields[name], plain(state[name]), (name,))
            elif name in _required(declared):
                raise InvalidState(f"{format_path((name,))} is required by {declared.__name__} and was removed")
        if whole and touched:
            check(declared, plain(state), ())

    return validate


def _fields(declared: Any) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(declared, include_extras=True)
    except TypeError:
        hints = {}
    if not hints:
        raise InvalidInput(
            "a state type is a msgspec Struct, a pydantic model, a dataclass or a TypedDict with annotated fields, "
            f"not {declared!r:.60}"
        )
    return {k: v for k, v in hints.items() if not k.startswith("__") and typing.get_origin(v) is not typing.ClassVar}


def _required(declared: Any) -> frozenset[str]:
    keys = getattr(declared, "__required_keys__", None)
    if keys is not None:
        return frozenset(keys)
    if _is_pydantic(declared):
        return frozenset(k for k, f in declared.model_fields.items() if f.is_required())
    if isinstance(declared, type) and issubclass(declared, msgspec.Struct):
        return frozenset(f.name for f in msgspec.structs.fields(declared) if f.required)
    return frozenset()


def _is_pydantic(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_fields")


def _uses_pydantic(kind: Any) -> bool:
    return _is_pydantic(kind) or any(_uses_pydantic(a) for a in typing.get_args(kind))


def _check(kind: Any) -> Check:
    if _uses_pydantic(kind):
        from pydantic import TypeAdapter

        adapter: Any = TypeAdapter(kind)
        return adapter.validate_python
    return lambda v: msgspec.convert(v, kind)


def _item_type(kind: Any) -> Any:
    args = typing.get_args(kind)
    return args[0] if typing.get_origin(kind) is list and args else None
