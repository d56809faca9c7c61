"""Random JSON documents and random edits of them, which do the same to a tracked and to a plain document."""

from __future__ import annotations

import copy
import json
from typing import Any, NamedTuple

from hypothesis import strategies as st

KEYS = ("a", "b", "c", "messages", "vars", "ä/b", "")
LONG = "a long text that no row should carry along, " * 12

scalars = st.one_of(
    st.sampled_from([None, True, False, 0, 1, 1.0, -0.0, 0.0, 2**70, -(2**63), 2**64, "", "x", "\u2028é\0", LONG]),
    st.integers(-3, 3),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=4),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)
values_and_bytes = st.one_of(values, values, values, st.binary(max_size=5), st.just([b"\0raw"]))
documents = st.dictionaries(st.sampled_from(KEYS), values, max_size=4)


class Edit(NamedTuple):
    """One edit of one container; which one, and what of the rest is used, depends on what is there."""

    pick: int
    how: str
    at: int
    size: int
    key: str
    values: list[Any]


_LIST = ("append", "append", "append", "insert", "pop", "set", "splice", "cut", "reverse", "extend", "stride", "sort")
_DICT = ("set", "set", "set", "delete", "pop", "clear", "update", "setdefault", "popitem", "move")
edits = st.builds(
    Edit,
    st.integers(0, 40),
    st.sampled_from([*_LIST, *_DICT]),
    st.integers(-4, 6),
    st.integers(0, 3),
    st.sampled_from(KEYS),
    st.lists(values_and_bytes, min_size=1, max_size=3),
)
plain_edits = st.builds(
    Edit,
    st.integers(0, 40),
    st.sampled_from([*_LIST, *_DICT]),
    st.integers(-4, 6),
    st.integers(0, 3),
    st.sampled_from(KEYS),
    st.lists(values, min_size=1, max_size=3),
)


def containers(value: Any) -> list[Any]:
    """A container and all those inside it, in reading order."""
    found = [value]
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            found.extend(containers(inner))
    return found


def carry_out(edit: Edit, root: Any) -> None:
    """Do an edit to a document."""
    # A plain document would take the values themselves in, and two places would share one list.
    edit = edit._replace(values=[copy.deepcopy(value) for value in edit.values])
    found = containers(root)
    target = found[edit.pick % len(found)]
    if isinstance(target, dict):
        _edit_object(edit, target)
    else:
        _edit_list(edit, target)


def _edit_object(edit: Edit, target: Any) -> None:
    key, value = edit.key, edit.values[0]
    match edit.how:
        case "delete" | "cut":
            if key in target:
                del target[key]
        case "pop":
            target.pop(key, None)
        case "clear" if edit.at == 0:
            target.clear()
        case "update" | "extend":
            target.update({key: value, "b": copy.deepcopy(edit.values[-1])})
        case "setdefault":
            target.setdefault(key, value)
        case "popitem" if target:
            target.popitem()
        case "move" | "reverse" if key in target:
            # Goes to the end of the order of keys.
            target[key] = target.pop(key)
        case _:
            target[key] = value


def _edit_list(edit: Edit, target: Any) -> None:
    at, values = edit.at, edit.values
    match edit.how:
        case "insert" | "setdefault":
            target.insert(at, values[0])
        case "pop" | "delete" if target:
            target.pop(at % len(target))
        case "set" if target:
            target[at % len(target)] = values[0]
        case "splice" | "update":
            target[max(at, 0) : max(at, 0) + edit.size] = values
        case "cut":
            del target[max(at, 0) : max(at, 0) + edit.size]
        case "reverse":
            target.reverse()
        case "extend":
            target.extend(values)
        case "stride" if target:
            target[::2] = [copy.deepcopy(values[0]) for _ in target[::2]]
        case "sort":
            target.sort(key=exact)
        case "move" if target:
            target.insert(edit.size, target.pop(at % len(target)))
        case "clear" if at == 0:
            target.clear()
        case _:
            target.append(values[0])


def exact(value: Any) -> str:
    """A text that two values share only if they are the same, order of keys and type of numbers included.

    >>> exact({"b": 1, "a": 1.0}) == exact({"a": 1.0, "b": 1})
    False
    """
    return json.dumps(value, default=_bytes)


def _bytes(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    msg = f"no part of a state: {value!r}"
    raise TypeError(msg)
