"""Deltas: the few operations that turn one document into the next, how to apply them, and how to find them.

A document is a plain tree of dicts and lists. An operation is a list:

``[APPEND, path, values]``, ``[SET, path, value]``, ``[DEL, path]``,
``[SPLICE, path, start, count, values]``; a path is a list of keys and indexes.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Values are any JSON here: their types are looked at, not declared.
from __future__ import annotations

from typing import Any, cast

from perdure.errors import Corrupted, format_path
from perdure.state.values import BlobRef, same

Op = list[Any]
Doc = dict[str, Any]

APPEND, SET, DEL, SPLICE = 0, 1, 2, 3


def apply(ops: list[Op], doc: Doc) -> None:
    """Carry stored operations out on a document, in place; a tracked one does not take them for edits.

    >>> doc = {"a": [1], "b": {}}
    >>> apply([[APPEND, ["a"], [2]], [SET, ["b", "c"], 3], [SPLICE, ["a"], 0, 1, []]], doc)
    >>> doc
    {'a': [2], 'b': {'c': 3}}
    """
    try:
        for op in ops:
            _apply_one(op, doc)
    except (LookupError, TypeError, ValueError) as e:
        # Deltas are verified before they are applied, so this is a fault of the writer, not of the disk.
        raise Corrupted("delta", f"an operation does not fit the state it is applied to ({type(e).__name__})") from e


def _apply_one(op: Op, doc: Doc) -> None:
    code: int = op[0]
    path: list[str | int] = op[1]
    if code == APPEND:
        target = _reach(doc, path)
        list.extend(target, op[2])
        return
    if code == SPLICE:
        target = _reach(doc, path)
        start, count, values = cast("tuple[int, int, list[Any]]", (op[2], op[3], op[4]))
        if start < 0 or count < 0 or start + count > len(target):
            raise IndexError("splice outside the list")
        list.__setitem__(target, slice(start, start + count), values)
        return
    target = _reach(doc, path[:-1])
    of: Any = dict if isinstance(target, dict) else list
    if code == SET:
        of.__setitem__(target, path[-1], op[2])
    elif code == DEL:
        of.__delitem__(target, path[-1])
    else:
        raise ValueError("unknown operation")


def _reach(doc: Doc, path: list[str | int]) -> Any:
    """The container at a path; a large one that was kept as a blob is brought in, for it is about to change."""
    target: Any = doc
    for part in path:
        value = target[part]
        if type(value) is BlobRef:
            value = value.resolve()
            of: Any = dict if isinstance(target, dict) else list
            of.__setitem__(target, part, value)
        target = value
    return target


def diff(old: Any, new: Any, path: tuple[str | int, ...] = ()) -> list[Op]:
    """The operations that turn ``old`` into ``new``.

    >>> diff({"a": [1, 2], "b": 1}, {"a": [1, 2, 3], "c": 1})
    [[2, ['b']], [0, ['a'], [3]], [1, ['c'], 1]]
    """
    ops: list[Op] = []
    _diff(old, new, path, ops)
    return ops


def _diff(old: Any, new: Any, path: tuple[str | int, ...], ops: list[Op]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        _diff_objects(cast("Doc", old), cast("Doc", new), path, ops)
    elif isinstance(old, list) and isinstance(new, list):
        _diff_lists(cast("list[Any]", old), cast("list[Any]", new), path, ops)
    elif not same(old, new):
        ops.append([SET, list(path), new])


def _diff_objects(old: Doc, new: Doc, path: tuple[str | int, ...], ops: list[Op]) -> None:
    ops.extend([DEL, [*path, k]] for k in dict.keys(old) if k not in new)
    kept = [k for k in dict.keys(old) if k in new]
    # Key order is part of a state: where it differs, the moved keys are set anew.
    in_order = kept == [k for k in dict.keys(new) if k in old] and list(dict.keys(new))[: len(kept)] == kept
    for k, v in dict.items(new):
        if k not in old:
            ops.append([SET, [*path, k], v])
        elif in_order:
            _diff(dict.__getitem__(old, k), v, (*path, k), ops)
        else:
            ops.append([DEL, [*path, k]])
            ops.append([SET, [*path, k], v])


def _diff_lists(old: list[Any], new: list[Any], path: tuple[str | int, ...], ops: list[Op]) -> None:
    head = 0
    limit = min(len(old), len(new))
    while head < limit and same(old[head], new[head]):
        head += 1
    tail = 0
    while tail < limit - head and same(old[-1 - tail], new[-1 - tail]):
        tail += 1
    gone, come = len(old) - head - tail, len(new) - head - tail
    if not gone and not come:
        return
    if gone == come:
        for i in range(head, head + gone):
            if isinstance(old[i], dict | list) and type(old[i]) is type(new[i]):
                _diff(old[i], new[i], (*path, i), ops)
            elif not same(old[i], new[i]):
                ops.append([SET, [*path, i], new[i]])
    elif not gone and not tail:
        ops.append([APPEND, list(path), new[head:]])
    else:
        ops.append([SPLICE, list(path), head, gone, new[head : head + come]])


def describe(op: Op) -> str:
    """One operation in words.

    >>> describe([APPEND, ["messages"], [1, 2]])
    'state.messages: 2 appended'
    """
    where = format_path(op[1])
    if op[0] == APPEND:
        return f"{where}: {len(op[2])} appended"
    if op[0] == SET:
        return f"{where} set"
    if op[0] == DEL:
        return f"{where} removed"
    return f"{where}[{op[2]}:{op[2] + op[3]}]: {op[3]} out, {len(op[4])} in"
