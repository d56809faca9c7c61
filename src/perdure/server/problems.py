"""What an error becomes on the wire: application/problem+json with a stable type, and never a stack trace."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import msgspec

from perdure import errors as e

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("perdure.server")
MEDIA = "application/problem+json"
TYPE = "urn:perdure:error:"
LONGEST = 2000
"""Characters of an error's text that are told."""

STATUSES: dict[type[Exception], int] = {
    e.Gone: 410,
    e.NotFound: 404,
    e.InvalidInput: 422,
    e.Conflict: 409,
    e.LeaseError: 409,
    e.CallError: 409,
    e.ApprovalError: 409,
    e.Incompatible: 409,
    e.CursorExpired: 410,
    e.Unavailable: 503,
    e.OutcomeUnknown: 503,
    e.StoreError: 500,
    e.ModelError: 502,
    e.MissingExtra: 501,
    e.HandleClosed: 503,
    e.Misuse: 409,
    e.PerdureError: 500,
}
"""The status of an error: that of the first of its classes, from the most special on, that is listed here."""


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why a request was not done, as RFC 9457 has it. ``type`` never changes; ``detail`` is for people."""

    type: str
    title: str
    status: int
    detail: str = ""


class Refusal(Exception):
    """A request that is refused before anything of the library is asked."""

    def __init__(self, status: int, name: str, detail: str, **headers: str) -> None:
        self.problem = Problem(type=TYPE + name, title=TITLES[name], status=status, detail=detail)
        self.headers = {k.replace("_", "-"): v for k, v in headers.items()}
        super().__init__(detail)


TITLES = {
    "unauthorized": "The token is missing or wrong",
    "forbidden-host": "This server is not known under that name",
    "forbidden-form": "The request does not come from a page of this server",
    "no-such-path": "There is nothing at this path",
    "wrong-method": "This path has other methods",
    "wrong-media-type": "The body is of another kind than is read here",
    "not-json": "The body is not JSON",
    "invalid-request": "The request does not fit the documented shape",
    "too-large": "The body is too large",
    "too-many": "Too many at once",
    "no-agent": "This server does not have that agent",
    "no-fleet": "This store has no board for a fleet",
    "internal": "Something unexpected went wrong; the server's log tells more",
}


def name_of(kind: type[BaseException]) -> str:
    """The name of an error class in a problem's type.

    >>> name_of(e.NotFound), name_of(e.NotJson), name_of(e.InDoubt)
    ('not-found', 'not-json-value', 'in-doubt')
    """
    if kind is e.NotJson:
        # "not-json" says that a body cannot be read at all.
        return "not-json-value"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()


def status_of(error: Exception) -> int:
    """The HTTP status of an error.

    >>> status_of(e.NotFound("x")), status_of(e.Gone("x")), status_of(e.Busy("s", "h", 1)), status_of(KeyError())
    (404, 410, 409, 500)
    """
    return next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 500)


def problem_of(error: Exception) -> tuple[Problem, dict[str, str]]:
    """The problem and the headers that an error is answered with; one that nobody expected is logged instead."""
    if isinstance(error, Refusal):
        return error.problem, error.headers
    status = status_of(error)
    if not isinstance(error, e.PerdureError):
        log.error("a request failed", exc_info=error)
        return Problem(type=TYPE + "internal", title=TITLES["internal"], status=500), {}
    if status >= 500:
        log.warning("a request failed: %s", error)
    # Names of classes that other layers derive for themselves are not promised to anybody.
    known = next(kind for kind in type(error).__mro__ if kind.__module__ == e.__name__)
    retry = {"Retry-After": "1"} if isinstance(error, e.Busy | e.Unavailable) else {}
    return Problem(type=TYPE + name_of(known), title=_title(known), status=status, detail=clean(str(error))), retry


def encoded(problem: Problem) -> bytes:
    """The body of an answer."""
    return msgspec.json.encode(problem)


def clean(text: str) -> str:
    """Text that can be encoded, of bounded length."""
    return text[:LONGEST].encode("utf-8", "replace").decode()


def _title(kind: type[BaseException]) -> str:
    line = (kind.__doc__ or kind.__name__).strip().partition("\n")[0].rstrip(".")
    first, *rest = re.split(r"[;:.] ", line)
    # What is said of attributes is for programs that have the error itself.
    return (first if any("``" in part for part in rest) else line).replace("``", "")


def catalogue() -> Iterator[tuple[str, int, str]]:
    """Every type a problem can have, with its usual status and title, for the documentation."""
    found: list[Any] = [v for v in vars(e).values() if isinstance(v, type) and issubclass(v, e.PerdureError)]
    for kind in sorted(found, key=name_of):
        status = next(STATUSES[one] for one in kind.__mro__ if one in STATUSES)
        yield TYPE + name_of(kind), status, _title(kind)
