"""What may enter a state: JSON's types, and bytes. Checks values, and stands in for large ones.

A value over 32 KiB is kept outside as a blob; a :class:`BlobRef` stands in its place until somebody looks.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Values are any JSON here: their types are looked at, not declared.
from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from perdure.errors import LimitExceeded, NotJson, format_path

if TYPE_CHECKING:
    from collections.abc import Callable

    Path = tuple[str | int, ...]

MAX_DEPTH = 256
"""How deep a state may be nested."""
BLOB_OVER = 32 * 1024
"""A value larger than this many bytes is stored as a blob."""
MAX_VALUE = 256 * 1024 * 1024
"""The largest single value."""
MAX_BITS = 14_000
"""The largest integer, a little below the 4300 digits that Python is willing to write or read."""

STR, BYTES, TREE = 0, 1, 2
"""What a blob holds: text, bytes, or an encoded list or object."""

EXT_INT, EXT_BLOB = 1, 2
LONG_AGO = -(1 << 62)
"""Before any time that a monotonic clock shows."""

_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1
_WIRED = 1 << 62


class BlobRef:
    """Stands for a value that is kept as a blob; looks it up when compared or printed."""

    __slots__ = ("form", "put_at", "ref", "resolver", "size")

    def __init__(
        self,
        form: int,
        ref: str,
        size: int,
        resolver: Callable[[BlobRef], Any] | None = None,
        put_at: int | None = None,
    ) -> None:
        self.form = form
        self.ref = ref
        self.size = size
        self.resolver = resolver
        self.put_at = put_at
        """When it was last put (ms, monotonic), where no checkpoint names it yet; None: one does."""

    def resolve(self) -> Any:
        """The value itself."""
        if self.resolver is None:
            raise LookupError(f"blob {self.ref} has no blob folder to be read from")
        return self.resolver(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, BlobRef):
            return self.ref == other.ref and self.form == other.form
        return self.resolver is not None and self.resolve() == other

    def __hash__(self) -> int:
        return hash(self.ref)

    def __repr__(self) -> str:
        return f"<blob {self.ref[:12]} {self.size} bytes>"


class Wire:
    """Turns values into what the encoders take, putting large ones aside.

    ``offload`` is called with (form, bytes) and answers the blob's ref; the blobs it was given are collected by
    the caller. Without it nothing is put aside and bytes are refused. With ``big_ints`` an integer over 64 bits
    becomes an extension value (msgpack); without, it stays (JSON has no limit).
    """

    def __init__(self, offload: Callable[[int, bytes], str] | None, *, big_ints: bool = True) -> None:
        self._offload = offload
        self._big_ints = big_ints
        self._trail: list[str | int] = []
        self.refs: list[BlobRef] = []
        """Those that stood in the values already."""

    def value(self, value: Any, path: Path) -> Any:
        """One value, checked and ready for the encoder; a large list or object becomes a blob as a whole."""
        self._trail = list(path)
        # Where a value goes counts, too: or a state would get too deep to be read, a little with each commit.
        wired = self._walk(value, len(path))
        if self._offload is not None and isinstance(wired, dict | list) and (size := _rough_size(wired)) > BLOB_OVER:
            # A blob is msgpack whatever the form of the checkpoint, so its large integers are always wired.
            tree = wired if self._big_ints else wire_ints(wired)
            encoded = msgspec.msgpack.encode(tree, enc_hook=wire_ref)
            if len(encoded) > BLOB_OVER:
                if size > MAX_VALUE:
                    self._refuse_size(size)
                return BlobRef(TREE, self._offload(TREE, encoded), len(encoded))
        return wired

    def _walk(self, v: Any, depth: int) -> Any:
        t = type(v)
        if t is str:
            if len(v) * 4 <= BLOB_OVER and v.isascii():
                return v
            return self._text(v)
        if v is None or t is bool:
            return v
        if t is int:
            if _MIN_INT <= v <= _MAX_INT:
                return v
            if v.bit_length() > MAX_BITS:
                path = format_path(self._trail)
                raise LimitExceeded(f"{path} has over 4,200 digits, more than anybody reads from JSON: keep it as text")
            return _big(v) if self._big_ints else v
        if t is float:
            if not math.isfinite(v):
                self._refuse(f"float {v}", "JSON has no NaN or infinity: use None or a string")
            return v
        if isinstance(v, dict):
            return self._object(v, depth)
        if isinstance(v, list):
            return self._array(v, depth)
        if t is BlobRef:
            if self._offload is None:
                return self._walk(v.resolve(), depth)
            self.refs.append(v)
            return v
        if isinstance(v, bytes) and self._offload is not None:
            if len(v) > MAX_VALUE:
                self._refuse_size(len(v))
            return BlobRef(BYTES, self._offload(BYTES, bytes(v)), len(v))
        self._refuse(t.__name__, "it was not awaited: write `await` before the call" if inspect.isawaitable(v) else "")

    def _object(self, v: dict[Any, Any], depth: int) -> dict[str, Any]:
        self._deeper(depth)
        out: dict[str, Any] = {}
        for k, item in dict.items(v):
            if type(k) is not str:
                self._refuse(f"key of type {type(k).__name__} ({k!r:.40})", "keys of an object must be strings")
            if not k.isascii():
                self._encodable(k, "key")
            if len(k) > BLOB_OVER:
                self._refuse(f"key of {len(k)} characters", f"keys may have up to {BLOB_OVER}")
            self._trail.append(k)
            out[k] = self._walk(item, depth + 1)
            self._trail.pop()
        return out

    def _array(self, v: list[Any], depth: int) -> list[Any]:
        self._deeper(depth)
        out: list[Any] = []
        for i, item in enumerate(list.__iter__(v)):
            self._trail.append(i)
            out.append(self._walk(item, depth + 1))
            self._trail.pop()
        return out

    def _text(self, v: str) -> Any:
        raw = self._encodable(v, "str")
        if len(raw) <= BLOB_OVER or self._offload is None:
            return v
        if len(raw) > MAX_VALUE:
            self._refuse_size(len(raw))
        return BlobRef(STR, self._offload(STR, raw), len(raw))

    def _encodable(self, v: str, what: str) -> bytes:
        try:
            return v.encode()
        except UnicodeEncodeError:
            self._refuse(
                f"{what} with a lone surrogate", "it has no UTF-8 form: replace it, e.g. with errors='replace'"
            )

    def _deeper(self, depth: int) -> None:
        if depth >= MAX_DEPTH:
            path = format_path(self._trail[:3])
            raise LimitExceeded(f"{path}… is nested more than {MAX_DEPTH} deep, or contains itself: flatten it")

    def _refuse(self, what: str, hint: str = "") -> NoReturn:
        raise NotJson(tuple(self._trail), what, hint)

    def _refuse_size(self, size: int) -> NoReturn:
        path = format_path(self._trail)
        msg = f"{path} has {size} bytes, over the limit of {MAX_VALUE} for one value: split it, or keep it elsewhere"
        raise LimitExceeded(msg)


def refusal(value: Any) -> str:
    """What a value is that no state can hold, in a few words; "" when one can.

    >>> refusal({"a": [1, b"x"]}), refusal({"a": {1}}), refusal([float("inf")])
    ('', 'set', 'float inf')
    """
    if isinstance(value, dict | list) and is_plain(value, 0):
        return ""
    try:
        Wire(lambda form, data: "").value(plain_tuples(value), ("result",))
    except NotJson as e:
        return e.what
    except LimitExceeded:
        return "value that is too large or too deeply nested"
    return ""


def plain_tuples(value: Any, depth: int = 0) -> Any:
    """A value with its tuples as lists, which is what a state makes of them."""
    if isinstance(value, dict) and depth <= MAX_DEPTH:
        return {k: plain_tuples(v, depth + 1) for k, v in dict.items(value)}
    if isinstance(value, list | tuple) and depth <= MAX_DEPTH:
        return [plain_tuples(v, depth + 1) for v in value]
    return value


def is_plain(value: Any, depth: int) -> bool:
    """Whether a value certainly needs no wiring: JSON throughout, small as a whole, nothing to put aside.

    Most of what is said is, and looking is much cheaper than wiring. Text is not tried: the encoder does that.
    """
    return _bytes_at_most(value, depth) <= BLOB_OVER


def _bytes_at_most(value: Any, depth: int) -> int:
    """No fewer bytes than a list or object takes when encoded; beyond all limits when it has to be wired."""
    if depth >= MAX_DEPTH:
        return _WIRED
    size = 5
    if isinstance(value, dict):
        for k in dict.keys(value):
            if type(k) is not str:
                return _WIRED
            size += 4 * len(k) + 5
        items: Any = dict.values(value)
    else:
        items = list.__iter__(value)
    for v in items:
        t = type(v)
        if t is str:
            size += 4 * len(v) + 5
        elif v is None or t is bool or (t is int and _MIN_INT <= v <= _MAX_INT) or (t is float and v - v == 0):
            size += 9
        elif isinstance(v, (dict, list)) and size <= BLOB_OVER:
            size += _bytes_at_most(v, depth + 1)
        else:
            return _WIRED
    return size


def _rough_size(v: Any) -> int:
    """A lower bound of the encoded size, cheap for the common small value."""
    if isinstance(v, str):
        return len(v)
    if isinstance(v, dict):
        return sum(len(k) + _rough_size(x) for k, x in v.items()) + 1
    if isinstance(v, list):
        return sum(_rough_size(x) for x in v) + 1
    return 1


def wire_ref(value: Any) -> Any:
    """What stands for a blob ref in msgpack."""
    if isinstance(value, BlobRef):
        ref = msgspec.msgpack.encode((value.form, bytes.fromhex(value.ref), value.size))
        return msgspec.msgpack.Ext(EXT_BLOB, ref)
    raise TypeError(f"cannot encode {type(value).__name__}")


def wire_ints(value: Any) -> Any:
    """A copy of a value with integers over 64 bits made ready for msgpack."""
    if isinstance(value, dict):
        return {k: wire_ints(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [wire_ints(v) for v in value]
    return _big(value) if type(value) is int and not _MIN_INT <= value <= _MAX_INT else value


def _big(v: int) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(EXT_INT, v.to_bytes(v.bit_length() // 8 + 1, "big", signed=True))


def same(a: Any, b: Any) -> bool:
    """Equality that tells ``1``, ``1.0`` and ``True`` apart, at any depth.

    >>> same({"a": [1]}, {"a": [1]}), same({"a": [1]}, {"a": [1.0]}), same(1, True)
    (True, False, False)
    """
    if isinstance(a, dict):
        if not isinstance(b, dict) or len(a) != len(b):
            return False
        return all(k in b and same(v, dict.__getitem__(b, k)) for k, v in dict.items(a))
    if isinstance(a, list):
        if not isinstance(b, list) or len(a) != len(b):
            return False
        return all(same(x, y) for x, y in zip(list.__iter__(a), list.__iter__(b), strict=True))
    if isinstance(a, BlobRef) or isinstance(b, BlobRef):
        return a == b
    return type(a) is type(b) and a == b


class _Blob(Exception):
    """There is a blob in it."""


UNREAD: Any = object()
"""In place of a copy, where a blob would have to be read for it."""


def copied(raw: Any) -> Any:
    """A copy of a value as it was decoded; :data:`UNREAD` when there is a blob in it."""
    try:
        return _copied(raw)
    except _Blob:
        return UNREAD


def _copied(raw: Any) -> Any:
    t: Any = type(raw)
    if t is dict:
        found: dict[str, Any] = raw
        return {k: v if type(v) is str else _copied(v) for k, v in found.items()}
    if t is list:
        items: list[Any] = raw
        return [v if type(v) is str else _copied(v) for v in items]
    if t is BlobRef:
        raise _Blob
    return raw
