"""What an error becomes on the wire: application/problem+json with a stable type, and never a stack trace."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import msgspec

from perdure import errors as e
from perdure.shapes.basics import ERROR_TYPE, Problem, error_class, error_name, error_type, readable

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("perdure.server")
MEDIA = "application/problem+json"

STATUSES: dict[type[Exception], int] = {
    e.Gone: 410,
    e.NotFound: 404,
    e.InvalidInput: 422,
    e.Conflict: 409,
    e.LeaseError: 409,
    e.CallError: 409,
    e.ApprovalError: 409,
    e.MessageTaken: 409,
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


class Refusal(Exception):
    """A request that is refused before anything of the library is asked."""

    def __init__(self, status: int, name: str, detail: str, **headers: str) -> None:
        self.problem = Problem(type=ERROR_TYPE + name, title=TITLES[name], status=status, detail=detail)
        self.headers = {k.replace("_", "-"): v for k, v in headers.items()}
        super().__init__(detail)


TITLES = {
    "unauthorized": "The token is missing or wrong",
    "token-in-address": "The token of an address is for browsers only",
    "forbidden-host": "This server is not known under that name",
    "forbidden-role": "Nobody may speak in that role here",
    "forbidden-form": "The request does not come from a page of this server",
    "no-such-path": "There is nothing at this path",
    "wrong-method": "This path has other methods",
    "wrong-media-type": "The body is of another kind than is read here",
    "not-json": "The body is not JSON",
    "repeated-header": "A header was sent more than once",
    "invalid-request": "The request does not fit the documented shape",
    "too-large": "The body is too large",
    "too-many": "Too many at once",
    "no-agent": "This server does not have that agent",
    "no-fleet": "This store has no board for a fleet",
    "internal": "Something unexpected went wrong; the server's log tells more",
}


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
        return Problem(type=ERROR_TYPE + "internal", title=TITLES["internal"], status=500), {}
    if status >= 500:
        log.warning("a request failed: %s", error)
    retry = {"Retry-After": "1"} if isinstance(error, e.Busy | e.Unavailable) else {}
    title, detail = _title(error_class(error)), readable(str(error))
    return Problem(type=error_type(error), title=title, status=status, detail=detail), retry


def encoded(problem: Problem) -> bytes:
    """The body of an answer."""
    return msgspec.json.encode(problem)


def _title(kind: type[BaseException]) -> str:
    line = (kind.__doc__ or kind.__name__).strip().partition("\n")[0].rstrip(".")
    first, *rest = re.split(r"[;:.] ", line)
    # What is said of attributes is for programs that have the error itself.
    return (first if any("``" in part for part in rest) else line).replace("``", "")


def catalogue() -> Iterator[tuple[str, int, str]]:
    """Every type a problem can have, with its usual status and title, for the documentation."""
    found: list[Any] = [v for v in vars(e).values() if isinstance(v, type) and issubclass(v, e.PerdureError)]
    for kind in sorted(found, key=error_name):
        status = next(STATUSES[one] for one in kind.__mro__ if one in STATUSES)
        yield ERROR_TYPE + error_name(kind), status, _title(kind)
