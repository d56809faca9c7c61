"""Dicts and lists that remember what was changed in them, so that a commit never walks the history.

They are real ``dict`` and ``list`` objects: they print, compare and serialise as such. What you assign is
copied in; nested containers are wrapped the first time you look at them.

Threads may share a document: each edit is one step for all of them. Nor does an edit come apart when Ctrl-C hits it:
a signal is only looked at after a call and when a function or a round of a loop begins, so between a note of a change
and the change itself there are none of these, and what is noted without having been done is harmless.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Values are any JSON here: their types are looked at, not declared.
from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Never, SupportsIndex, cast, overload

from perdure.errors import LimitExceeded, Misuse, ReadOnly
from perdure.state.delta import APPEND, DEL, SET, SPLICE, Op, apply, diff
from perdure.state.values import MAX_DEPTH, TREE, UNREAD, BlobRef, copied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

STATE, BOOK = "s", "k"
"""Where a document keeps the user's state, and where the kernel keeps its own books."""


def genesis() -> dict[str, Any]:
    """The document every session begins with."""
    return {STATE: {"messages": [], "vars": {}, "facts": {}, "todos": [], "summary": ""}, BOOK: {}}


_MISSING: Any = object()
_STORED, _MOVED = 1, 2
_OWNED = (dict, list, tuple)


def own(value: Any, doc: Document, up: TrackedDict | TrackedList, depth: int = 0) -> Any:
    """A copy of a value whose containers belong to ``doc``; scalars pass through unchecked until the commit."""
    if isinstance(value, dict):
        node = TrackedDict(doc, (), up)
        if depth > MAX_DEPTH:
            _too_deep()
        put = dict.__setitem__
        for k, v in dict.items(value):
            put(node, k, v if type(v) is str or not isinstance(v, _OWNED) else own(v, doc, node, depth + 1))
        return node
    if isinstance(value, (list, tuple)):
        if depth > MAX_DEPTH:
            _too_deep()
        out = TrackedList(doc, (), up)
        walk = list.__iter__(value) if isinstance(value, list) else iter(value)
        for v in walk:
            list.append(out, own(v, doc, out, depth + 1) if isinstance(v, _OWNED) else v)
        return out
    return value


def _too_deep() -> Never:
    raise LimitExceeded(f"a value is nested more than {MAX_DEPTH} deep, or contains itself: flatten it")


def plain(value: Any) -> Any:
    """An ordinary copy of a tracked value, every blob in it read."""
    if isinstance(value, TrackedDict):
        return {k: v if type(v) is str else _below(value, k, v) for k, v in dict.items(value)}
    if isinstance(value, TrackedList):
        return value.plain()
    if isinstance(value, BlobRef):
        value = value.resolve()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [plain(v) for v in cast("list[Any]", value)]
    return value


def _below(node: Any, at: Any, value: Any) -> Any:
    """A copy of a part: what nobody has looked at yet is not wrapped for it, unless a blob is read, and kept."""
    if isinstance(value, _Node):
        if value.document is node.document:
            return plain(value)
        # Of the document that this one is a draft of: somebody may be changing it.
        with value.document.lock:
            return plain(value)
    copy = copied(value)
    return plain(node[at]) if copy is UNREAD else copy


class _Node:
    """What tracked dicts and lists share: whose they are, whether they are new, and what was changed in them."""

    __slots__ = ()
    _doc: Document
    _up: TrackedDict | TrackedList | None
    _at: Any
    _born: int
    _noted: int
    """The age of the document to which the two below belong: those of an earlier one were committed."""
    _changes: Any
    """What was changed; None: nothing."""
    _touched: dict[int, TrackedDict | TrackedList] | None
    """Those below in which something was changed."""

    @property
    def document(self) -> Document:
        """The document it is a part of."""
        return self._doc

    def _change(self) -> bool:
        """Call before a change; False when the container is new, so that its parent carries it whole."""
        doc = self._doc
        if doc.told is not None:
            doc.told()
        doc.edits += 1
        if doc.readonly:
            raise ReadOnly(doc.readonly if isinstance(doc.readonly, str) else _FOR_READING)
        if self._born == doc.age:
            return False
        if self._born < doc.since:
            raise Misuse(
                "this part of the state was taken before the session moved (reload, rewind, switch): fetch it again "
                "from the session; where that move was interrupted, reload() the session first"
            )
        self._note(doc.age)
        return True

    def _note(self, age: int) -> None:
        """Make this container ready for notes, and have it found from the root."""
        if self._noted != age:
            self._changes = self._touched = None
            self._noted = age
        up = self._up
        if up is not None and (up._noted != age or up._touched is None or id(self) not in up._touched):
            # From the root downwards: what is noted is always found, even if an interrupt ends this half-way.
            up._note(age)
            if up._touched is None:
                up._touched = {}
            up._touched[id(self)] = cast("TrackedDict | TrackedList", self)

    def _adopt(self, value: Any, at: Any) -> Any:
        """Wrap a raw container, or read a blob, the first time somebody looks at it."""
        if type(value) is BlobRef:
            found = self._doc.resolve(value)
            if value.form != TREE:
                return found
            value = found
        if isinstance(value, TrackedDict | TrackedList):
            # A draft begins with what its original holds, and copies a container when it is looked at.
            with value.document.lock:
                value = dict(dict.items(value)) if isinstance(value, TrackedDict) else list.__getitem__(value, _ALL)
        me = cast("TrackedDict | TrackedList", self)
        node: Any = TrackedDict(self._doc, value, me) if type(value) is dict else TrackedList(self._doc, value, me)
        node._at = at
        node._born = self._born
        return node

    def __reduce__(self) -> Never:
        raise TypeError("a tracked state is never pickled: use .plain()")

    def __copy__(self) -> Any:
        return plain(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return plain(self)

    def _is_strange(self, value: Any) -> bool:
        """Whether a part has to become one of this document before it is given out."""
        return type(value) in _RAW or (isinstance(value, TrackedDict | TrackedList) and value._doc is not self._doc)


_RAW = (dict, list, BlobRef)
_ALL = slice(None)
_FOR_READING = "this state was opened for reading: open the session with db.session(...) to change it"


class TrackedDict(_Node, dict[str, Any]):
    """A dict that remembers which keys were changed."""

    __slots__ = ("_at", "_born", "_changes", "_doc", "_noted", "_touched", "_up")

    def __init__(self, doc: Document, raw: Any = (), up: TrackedDict | TrackedList | None = None) -> None:
        dict.__init__(self, raw)
        self._doc = doc
        self._up = up
        self._at = None
        self._born = self._noted = doc.age
        # key -> _STORED if it stood in the store before, | _MOVED if it was removed since (its place is new)
        self._changes: dict[str, int] | None = None
        self._touched = None

    def plain(self) -> dict[str, Any]:
        """An ordinary copy, every blob in it read."""
        return plain(self)

    def collect(self, path: tuple[str | int, ...], out: list[Op]) -> None:
        """Append the operations of this container and of those below it."""
        if self._noted != self._doc.age:
            return
        if self._changes:
            for k, flags in self._changes.items():
                if flags & _MOVED:
                    out.append([DEL, [*path, k]])
                if k in self:
                    out.append([SET, [*path, k], dict.__getitem__(self, k)])
        if self._touched:
            for child in self._touched.values():
                if dict.get(self, child._at) is child and child._born != self._doc.age:
                    child.collect((*path, child._at), out)

    def refill(self, raw: dict[str, Any]) -> None:
        """Hold another content under the same keys, as stored."""
        dict.update(self, raw)
        self._born = self._doc.age

    def _look(self, k: str, v: Any) -> Any:
        if self._is_strange(v):
            with self._doc.lock:
                # Another thread may have been first: two wrappers of one container would not know of each other.
                v = dict.get(self, k, v)
                if self._is_strange(v):
                    v = self._adopt(v, k)
                    dict.__setitem__(self, k, v)
        elif isinstance(v, TrackedDict | TrackedList):
            v._at = k
        return v

    def __getitem__(self, k: str) -> Any:
        v = dict.__getitem__(self, k)
        t = type(v)
        if t is str or t is int:
            return v
        if (t is TrackedList or t is TrackedDict) and v._doc is self._doc:
            v._at = k
            return v
        return self._look(k, v)

    def get(self, k: str, default: Any = None) -> Any:
        v = dict.get(self, k, _MISSING)
        return default if v is _MISSING else self._look(k, v)

    def __setitem__(self, k: str, v: Any) -> None:
        v = own(v, self._doc, self)
        if isinstance(v, TrackedDict | TrackedList):
            v._at = k
        with self._doc.lock:
            if self._change():
                if self._changes is None:
                    self._changes = {}
                flags = self._changes.get(k, 0 if k not in self else _STORED)
                if k not in self and k in self._changes:
                    # Goes to the end of the order, now as in every later replay.
                    del self._changes[k]
                self._changes[k] = flags
            dict.__setitem__(self, k, v)

    def put_back(self, k: str, value: Any) -> None:
        """Hold a value here as an edit; a container of this document itself, for those who have it in their hands."""
        with self._doc.lock:
            if not isinstance(value, TrackedDict | TrackedList):
                self[k] = value
                return
            self[k] = None
            value._at = k
            value._born = self._doc.age
            dict.__setitem__(self, k, value)

    def __delitem__(self, k: str) -> None:
        with self._doc.lock:
            if k not in self:
                raise KeyError(k)
            if self._change():
                if self._changes is None:
                    self._changes = {}
                flags = self._changes.get(k, _STORED)
                if flags & _STORED:
                    self._changes[k] = flags | _MOVED
                else:
                    del self._changes[k]
            dict.__delitem__(self, k)

    def __iter__(self) -> Iterator[str]:
        # Overridden so that dict(x), {**x} and json.dumps go through the methods below.
        return dict.__iter__(self)

    def items(self) -> Any:
        return _Items(self)

    def values(self) -> Any:
        return _Values(self)

    def pop(self, k: str, default: Any = _MISSING) -> Any:
        if k not in self:
            if default is _MISSING:
                raise KeyError(k)
            return default
        with self._doc.lock:
            v = plain(self[k])
            del self[k]
        return v

    def popitem(self) -> tuple[str, Any]:
        with self._doc.lock:
            k = next(reversed(self))
            return k, self.pop(k)

    def clear(self) -> None:
        for k in list(self):
            del self[k]

    def setdefault(self, k: str, default: Any = None) -> Any:
        with self._doc.lock:
            if k not in self:
                self[k] = default
            return self[k]

    def update(self, *args: Any, **kwargs: Any) -> None:
        for k, v in dict[str, Any](*args, **kwargs).items():
            self[k] = v

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def __or__(self, other: Any) -> dict[str, Any]:
        return {**self, **other}

    def copy(self) -> dict[str, Any]:
        return plain(self)


class _Items:
    """A view of a tracked dict's items; values are wrapped as they are looked at."""

    def __init__(self, of: TrackedDict) -> None:
        self._of = of

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        of = self._of
        return ((k, of[k]) for k in list(dict.keys(of)))

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, item: object) -> bool:
        return item in list(self)

    def __repr__(self) -> str:
        return repr(list(self))


class _Values(_Items):
    """A view of a tracked dict's values."""

    def __iter__(self) -> Iterator[Any]:
        of = self._of
        return (of[k] for k in list(dict.keys(of)))


class TrackedList(_Node, list[Any]):
    """A list that remembers what was appended, cut and replaced."""

    __slots__ = ("_at", "_born", "_changes", "_doc", "_noted", "_touched", "_up")

    def __init__(self, doc: Document, raw: Iterable[Any] = (), up: TrackedDict | TrackedList | None = None) -> None:
        list.__init__(self, raw)
        self._doc = doc
        self._up = up
        self._at = None
        self._born = self._noted = doc.age
        # [start, how many removed, what was put there]: in order, each in the coordinates of its moment
        self._changes: list[tuple[int, int, list[Any]]] | None = None
        self._touched = None

    def plain(self, start: int = 0, stop: int | None = None) -> list[Any]:
        """An ordinary copy, of a part when told so, every blob in it read."""
        held = list.__getitem__(self, slice(start, stop))
        return [v if type(v) is str else _below(self, i, v) for i, v in enumerate(held, start)]

    def unread(self, start: int = 0) -> list[Any]:
        """What it holds from a place on, for looking at only: not wrapped, and blobs not read."""
        return list.__getitem__(self, slice(start, None))

    def collect(self, path: tuple[str | int, ...], out: list[Op]) -> None:
        """Append the operations of this container and of those below it."""
        if self._noted != self._doc.age:
            return
        if self._changes:
            size = len(self)
            for _, gone, values in self._changes:
                size -= len(values) - gone
            for start, gone, values in self._changes:
                if start == size and not gone:
                    if values:
                        out.append([APPEND, list(path), list(values)])
                elif gone or values:
                    out.append([SPLICE, list(path), start, gone, list(values)])
                size += len(values) - gone
        if self._touched:
            for child in self._touched.values():
                at = self._index_of(child)
                if at is not None and child._born != self._doc.age:
                    child.collect((*path, at), out)

    def _index_of(self, child: TrackedDict | TrackedList) -> int | None:
        hint = child._at
        if isinstance(hint, int) and hint < len(self) and list.__getitem__(self, hint) is child:
            return hint
        for i, v in enumerate(list.__iter__(self)):
            if v is child:
                return i
        return None

    def _look(self, i: int, v: Any) -> Any:
        if self._is_strange(v):
            with self._doc.lock:
                if i >= len(self) or list.__getitem__(self, i) is not v:
                    # Another thread was first: it has wrapped it, or moved it elsewhere.
                    return self[i]
                v = self._adopt(v, i)
                list.__setitem__(self, i, v)
        elif isinstance(v, TrackedDict | TrackedList):
            v._at = i
        return v

    def _splice(self, start: int, gone: int, values: list[Any]) -> None:
        """Have ``gone`` values at ``start`` give way to ``values``; inside the document's lock."""
        where, own_copy = slice(start, start + gone), list(values)
        if self._change():
            if self._changes is None:
                self._changes = []
            notes = self._changes
            end = len(notes)
            s, g, v = notes[-1] if notes else (0, 0, [])
            inside = end and s <= start and start + gone <= s + len(v)
            # From here on no calls: an interrupt must not come between the note and what it is of.
            if inside:
                v[start - s : start - s + gone] = own_copy
            elif end and start == s and not v and not own_copy:
                notes[-1] = (s, g + gone, v)
            else:
                notes[end:] = [(start, gone, own_copy)]
        list.__setitem__(self, where, values)

    def _fresh(self, values: Iterable[Any]) -> list[Any]:
        return [own(v, self._doc, self) for v in values]

    @overload
    def __getitem__(self, i: SupportsIndex, /) -> Any: ...
    @overload
    def __getitem__(self, i: slice, /) -> list[Any]: ...
    def __getitem__(self, i: Any, /) -> Any:
        if isinstance(i, slice):
            if self._doc.bare:
                return list.__getitem__(self, i)
            return [self._look(k, list.__getitem__(self, k)) for k in range(*i.indices(len(self)))]
        v = list.__getitem__(self, i)
        if type(v) is str or self._doc.bare:
            return v
        at = i.__index__()
        return self._look(at if at >= 0 else at + len(self), v)

    def __iter__(self) -> Iterator[Any]:
        if self._doc.bare:
            return list.__iter__(self)
        return self._walk()

    def _walk(self) -> Iterator[Any]:
        i = 0
        while i < len(self):
            v = list.__getitem__(self, i)
            yield v if type(v) is str else self._look(i, v)
            i += 1

    def __reversed__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self) - 1, -1, -1))

    def __setitem__(self, i: Any, v: Any, /) -> None:
        with self._doc.lock:
            if not isinstance(i, slice):
                self._splice(range(len(self))[i], 1, [own(v, self._doc, self)])
                return
            start, stop, step = i.indices(len(self))
            if step != 1:
                whole = list(self)
                whole[i] = v
                start, stop, v = 0, len(self), whole
            self._splice(start, max(start, stop) - start, self._fresh(v))

    def __delitem__(self, i: Any, /) -> None:
        with self._doc.lock:
            if not isinstance(i, slice):
                self._splice(range(len(self))[i], 1, [])
                return
            start, stop, step = i.indices(len(self))
            if step == 1:
                if stop > start:
                    self._splice(start, stop - start, [])
                return
            for k in sorted(range(start, stop, step), reverse=True):
                del self[k]

    def append(self, v: Any, /) -> None:
        value = own(v, self._doc, self)
        with self._doc.lock:
            self._splice(len(self), 0, [value])

    def extend(self, values: Iterable[Any], /) -> None:
        new = self._fresh(values)
        with self._doc.lock:
            self._splice(len(self), 0, new)

    def insert(self, i: SupportsIndex, v: Any, /) -> None:
        value = own(v, self._doc, self)
        with self._doc.lock:
            size, at = len(self), i.__index__()
            self._splice(max(0, at + size) if at < 0 else min(at, size), 0, [value])

    def pop(self, i: SupportsIndex = -1, /) -> Any:
        with self._doc.lock:
            v = plain(self[i])
            del self[i]
        return v

    def remove(self, v: Any, /) -> None:
        with self._doc.lock:
            del self[self.index(v)]

    def index(self, v: Any, *where: Any) -> int:
        return list(self).index(v, *where)

    def __contains__(self, v: object) -> bool:
        return any(x == v for x in self)

    def clear(self) -> None:
        del self[:]

    def reverse(self) -> None:
        with self._doc.lock:
            self[:] = list(self)[::-1]

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        with self._doc.lock:
            self[:] = sorted(self, key=key, reverse=reverse)

    def __iadd__(self, values: Iterable[Any]) -> Any:
        self.extend(values)
        return self

    def __imul__(self, n: SupportsIndex) -> Any:
        with self._doc.lock:
            self[:] = list(self) * n
        return self

    def __add__(self, other: Any) -> list[Any]:
        return list(self) + list(other)

    def copy(self) -> list[Any]:
        return plain(self)


class Document:
    """One tracked tree: its root, its age, and where its blobs come from."""

    __slots__ = ("age", "bare", "edits", "lock", "readonly", "resolve", "root", "since", "told")

    def __init__(
        self, raw: dict[str, Any], resolve: Callable[[BlobRef], Any], *, readonly: bool | str = False,
        bare: bool = False,
    ) -> None:  # fmt: skip
        self.age = 0
        """How often its changes were set apart: notes and containers of an earlier age are in the store."""
        self.edits = 0
        """How many there were: whoever needs to know that there was none meanwhile compares."""
        self.told: Callable[[], object] | None = None
        """Called before each edit."""
        self.lock = threading.RLock()
        """Held for an edit, and while edits are collected and set apart."""
        self.bare = bare
        """Nothing inside lists has to be wrapped: the tree is only read, and no blob stands in it."""
        self.since = 0
        self.readonly = readonly
        """Whether nothing may be changed in it; what whoever tries is told, where that is not the usual."""
        self.resolve = resolve
        self.root = TrackedDict(self, raw)
        self.age = 1

    def collect(self) -> list[Op]:
        """The operations since the last :meth:`settle`; values are the live containers themselves."""
        out: list[Op] = []
        with self.lock:
            self.root.collect((), out)
        return out

    def settle(self) -> None:
        """Forget the changes: they are on their way into the store."""
        self.age += 1

    def replace(self, raw: dict[str, Any]) -> None:
        """Put another tree in place of this one, as stored; handles on the root stay valid."""
        with self.lock:
            # Containers taken out before this belong to a tree that is gone: editing them is refused.
            self.since = self.age
            self.root.refill(raw)
            self.age += 1


def draft_of(part: TrackedDict, *, readonly: bool | str = False) -> Document:
    """A document that begins as a part of another one stands, and whose changes stay its own.

    >>> state = Document(genesis(), lambda blob: blob).root[STATE]
    >>> draft = draft_of(state)
    >>> draft.root["vars"]["budget"] = 12
    >>> draft.collect(), state["vars"]
    ([[1, ['vars', 'budget'], 12]], {})
    """
    of = part.document
    with of.lock:
        return Document(dict(dict.items(part)), of.resolve, readonly=readonly)


def edit(ops: list[Op], target: Any) -> None:
    """Carry operations out as edits, so that the next commit takes them."""
    for op in ops:
        code, path = op[0], op[1]
        at = target
        for part in path if code in (APPEND, SPLICE) else path[:-1]:
            at = at[part]
        if code == APPEND:
            at.extend(op[2])
        elif code == SPLICE:
            at[op[2] : op[2] + op[3]] = op[4]
        elif code == SET:
            at[path[-1]] = op[2]
        else:
            del at[path[-1]]


def hold_as_edits(there: dict[str, Any], target: TrackedDict) -> None:
    """Have what a part of a document holds stand there as edits of another content, ``there``, which is stored.

    Containers stay the same ones: whoever has one in his hands goes on with it.

    >>> state = Document(genesis(), lambda blob: blob).root[STATE]
    >>> results = state["vars"].setdefault("results", [])
    >>> hold_as_edits({**genesis()[STATE], "vars": {"n": 1}}, state)
    >>> results.append(2)
    >>> state.document.collect()
    [[2, ['s', 'vars', 'n']], [1, ['s', 'vars', 'results'], [2]]]
    """
    document = target.document
    with document.lock:
        document.settle()
        ops = [(op, _holders(target, op)) for op in diff(there, target.plain())]
        reset: set[int] = set()
        for op, (parent, within, value) in ops:
            if within is not None:
                if id(within[0]) not in reset:
                    reset.add(id(within[0]))
                    list.__setitem__(within[0], _ALL, _of(there, op[1][: within[1]]))
                edit([op], target)
            elif op[0] == DEL:
                apply([[SET, [op[1][-1]], None]], parent)
                del parent[op[1][-1]]
            else:
                if op[1][-1] in parent and op[1][-1] not in _of(there, op[1][:-1]):
                    apply([[DEL, [op[1][-1]]]], parent)
                parent.put_back(op[1][-1], value)


def _holders(target: Any, op: Op) -> tuple[Any, tuple[TrackedList, int] | None, Any]:
    """What an operation changes: the container that holds it, the first list on the way with its depth, the value."""
    for depth, part in enumerate(op[1]):
        if isinstance(target, TrackedList):
            return None, (target, depth), None
        parent, target = target, target.get(part)
    if op[0] in (APPEND, SPLICE):
        return None, (target, len(op[1])), None
    return parent, None, target  # pyright: ignore[reportPossiblyUnboundVariable]


def _of(value: Any, path: list[Any]) -> Any:
    for part in path:
        value = value[part]
    return value
