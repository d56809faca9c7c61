"""What all shapes are made of: times, ids, pages of a list, what went wrong with a session, and problems."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from perdure import errors
from perdure.system.times import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S", bound="Shape")
ERROR_TYPE = "urn:perdure:error:"

Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""As :func:`perdure.system.times.timestamp` writes it."""
Id = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
"""Of a checkpoint."""
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Documented(msgspec.Struct):
    """Whatever is in the documentation of JSON, with what the lines below its fields say."""


class Shape(Documented, kw_only=True, forbid_unknown_fields=True):
    """What is told: these fields and no others; only those that are marked may be missing."""


def shaped(kind: type[S], thing: Any, /, **fields: Any) -> S:
    """A thing of the library in its shape: these fields, and the others as it has them under the same names.

    Times, which it has in ms, are written as JSON has them; those of them that are 0 or None are null.
    """
    for name in kind.__struct_fields__:
        if name not in fields and hasattr(thing, name):
            fields[name] = getattr(thing, name)
    for name, value in fields.items():
        if (name == "at" or name.endswith("_at")) and not isinstance(value, str):
            fields[name] = timestamp(value) if value else None
    return msgspec.convert(fields, kind)


class Page(Shape, Generic[T]):
    """Some things of a list."""

    items: list[T]
    next: str | None
    """What to pass on (as `after`; in a history as `before`) for those that follow; null when there are no more."""


def page(rows: Sequence[R], limit: int, make: Callable[[R], T], cursor: Callable[[R], Any]) -> Page[T]:
    """The first rows as a page. One row more than the limit tells that others follow."""
    following = str(cursor(rows[limit - 1])) if len(rows) > limit else None
    return Page(items=[make(row) for row in rows[:limit]], next=following)


class Failure(Shape):
    """A session that something could not be done to, and why."""

    session: str
    detail: str
    type: str | UnsetType = UNSET
    """The type of the problem, as HTTP has them, where it is known."""


def failures(pairs: Iterable[tuple[str, str]]) -> list[Failure]:
    """Sessions, each with what the library says of it."""
    return [Failure(session=session, detail=detail) for session, detail in pairs]


def failure(session: str, error: errors.PerdureError) -> Failure:
    """A session, and the error that was raised for it."""
    return Failure(session=session, detail=readable(str(error)), type=error_type(error))


class Problem(Documented, kw_only=True, omit_defaults=True):
    """Why a request was not done, as RFC 9457 has it. ``type`` never changes; ``detail`` is for people."""

    type: str
    title: str
    status: int
    detail: str = ""


def error_class(error: BaseException) -> type[BaseException]:
    """The public class of an error: names that other layers derive for themselves are not promised to anybody."""
    return next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)


def error_type(error: BaseException) -> str:
    """The ``type`` of the problem that an error of the library is."""
    return ERROR_TYPE + error_name(error_class(error))


def error_name(kind: type[BaseException]) -> str:
    """The name of an error class in a problem's type.

    >>> error_name(errors.NotFound), error_name(errors.NotJson), error_name(errors.InDoubt)
    ('not-found', 'not-json-value', 'in-doubt')
    """
    if kind is errors.NotJson:
        # "not-json" says that a body cannot be read at all.
        return "not-json-value"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()


def readable(text: str) -> str:
    """Text that can be encoded, of bounded length."""
    return text[:2000].encode("utf-8", "replace").decode()
