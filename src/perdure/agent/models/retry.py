"""A provider's failures: what they mean, what is tried again, how long is waited between, and when to give up.

Its words are told without secrets.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# What providers answer is any JSON: its types are looked at, not declared.
from __future__ import annotations

import asyncio
import random
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from perdure.errors import AccessRefused, ContextTooLong, ModelError, ModelUnavailable, RequestRefused
from perdure.system.options import check_fits, is_amount, is_number

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

T = TypeVar("T")


@dataclass(frozen=True)
class Retry:
    """How often and how long a provider is tried."""

    attempts: int = 6
    """In all, the first one included."""
    first: float = 0.5
    """Seconds before the second attempt; doubled each time, and shortened at random by up to a half."""
    most: float = 30.0
    """The longest wait of our own choice."""
    total: float = 900.0
    """Seconds without any answer, for everything together: what is being answered is not cut off. A provider that asks
    to wait beyond that is not waited for."""
    garbage: int = 3
    """Attempts when what comes back is no answer."""
    silent: int = 2
    """Attempts when the server says nothing for too long: each takes that long, and may be paid for."""

    def __post_init__(self) -> None:
        for name in ("attempts", "garbage", "silent"):
            value: Any = getattr(self, name)
            check_fits("a Retry", name, value, is_number(value) and value >= 1, "a number of attempts, at least 1")
        for name in ("first", "most"):
            value = getattr(self, name)
            check_fits("a Retry", name, value, is_amount(value) and value >= 0, "a time in seconds, such as 0.5")
        positive = is_amount(self.total) and self.total > 0
        check_fits("a Retry", "total", self.total, positive, "a time in seconds above 0")

    def wait(self, attempt: int, after: float | None, chance: float) -> float:
        """Seconds to wait after a failed attempt (1 is the first); ``after`` is what the provider asked for.

        >>> Retry().wait(1, None, 1.0), Retry().wait(3, None, 1.0), Retry().wait(1, 7.0, 0.0)
        (0.5, 2.0, 7.0)
        """
        own = min(self.most, self.first * 2 ** min(attempt - 1, 30)) * (0.5 + 0.5 * chance)
        # Those who were sent away together should not come back together, so nobody comes exactly when told.
        return own if after is None else max(own, after + own * 0.2 * chance)


class Trouble(Exception):
    """An attempt that failed: what is to be told, and whether another may help. Never leaves the clients."""

    def __init__(
        self, error: ModelError, *, again: bool = False, after: float | None = None, garbage: bool = False,
        silent: bool = False,
    ) -> None:  # fmt: skip
        self.error = error
        self.again = again
        self.after = after
        self.garbage = garbage
        self.silent = silent
        super().__init__(str(error))


class Waiting(NamedTuple):
    """Time and chance, to be replaced in tests."""

    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    monotonic: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random


async def patiently(
    attempt: Callable[[Callable[[], None]], Awaitable[T]], retry: Retry, waiting: Waiting,
    again: Callable[[], None] | None = None,
) -> T:  # fmt: skip
    """Make attempts until one succeeds or patience ends; ``again`` is called before each further one.

    An attempt calls what it is given when its answer begins: from there on it takes as long as it takes.
    """
    began = waiting.monotonic()
    made = spoilt = silent = 0
    while True:
        trouble: Trouble
        bound = asyncio.timeout(max(0.001, retry.total - (waiting.monotonic() - began)))
        answering = False

        def answers(bound: asyncio.Timeout = bound) -> None:
            nonlocal answering
            if not answering and not bound.expired():
                answering = True
                bound.reschedule(None)

        try:
            async with bound:
                return await attempt(answers)
        except Trouble as e:
            trouble = e
        except TimeoutError:
            if not bound.expired():
                raise
            trouble = Trouble(ModelUnavailable(f"no answer within {retry.total:g} seconds"))
        made += 1
        spoilt += trouble.garbage
        silent += trouble.silent
        pause = retry.wait(made, trouble.after, waiting.chance())
        if answering:
            # What was answered and broke off is no time without an answer.
            began = waiting.monotonic()
        left = retry.total - (waiting.monotonic() - began)
        # Raised out here, where no other exception is being handled: the driver's holds headers with the key.
        over = made >= retry.attempts or spoilt >= retry.garbage or silent >= retry.silent
        if not trouble.again or over or pause >= left:
            error = trouble.error
            raise error if made == 1 and not trouble.again else _told(error, made, trouble.after, pause >= left)
        await waiting.sleep(pause)
        if again is not None:
            again()


def _told(error: ModelError, made: int, after: float | None, over: bool) -> ModelError:
    """The error with how hard it was tried."""
    asked = f", which asks to wait {after:g} seconds" if over and after is not None else ""
    tries = f"{made} attempts" if made > 1 else "one attempt"
    return type(error)(f"{error} (after {tries}{asked}): run again later")


def asked_to_wait(headers: Mapping[str, str]) -> float | None:
    """The seconds that ``Retry-After-Ms`` or ``Retry-After`` ask for; None when they say nothing that can be read.

    >>> [asked_to_wait({name: value}) for name, value in (("retry-after", "3"), ("retry-after-ms", "250"), ("a", "b"))]
    [3.0, 0.25, None]
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            seconds = _until(value) if name == "retry-after" else -1.0
        if 0 <= seconds < float("inf"):
            return seconds
    return None


def _until(date: str) -> float:
    """Seconds until an HTTP date, by our clock; below zero when it cannot be read."""
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return -1.0


_AGAIN = (408, 409, 425, 429)
_TOO_LONG_CODES = ("context_length_exceeded", "context_window_exceeded", "exceed_context_size_error", "string_too_long")
_TOO_LONG = re.compile(
    r"maximum context length|context[ _-]?(length|window|size|limit)[^.]{0,60}(exceed|reach|too|smaller|over)"
    r"|exceed\w*[^.]{0,60}context|(prompt|input|request|conversation)[^.]{0,40} (is|are|was) too (long|large)"
    r"|input token count|too many (input )?tokens|reduce the length of|maximum number of tokens allowed"
    r"|larger than the (model's )?context",
    re.IGNORECASE,
)
_NEVER_AGAIN = ("insufficient_quota", "billing_hard_limit_reached", "account_deactivated")
_REFUSED_TYPES = ("invalid_request_error", "authentication_error", "permission_error", "not_found_error")
_OF_CONTENTS = (400, 415, 422)
"""Statuses that speak of what was sent, and not of who sent it or where to."""
_TO_CHANGE = {
    401: " (change the key)",
    403: " (change the key, or what it may use)",
    404: " (change the model's name or base_url)",
}
_FORBIDDEN = ("content_filter", "content_policy_violation", "moderation_blocked", "invalid_prompt")
_SECRETS = re.compile(r"\b(sk|pk|rk|key|hs|gsk|xai)-[A-Za-z0-9_*.…-]{4,}|(?<=[Bb]earer )\S+")
MOST_WORDS = 400


class Failures:
    """Makes one provider's failures into trouble; knows its name and the key that must not be told."""

    def __init__(self, who: str, where: str, key: str) -> None:
        self._who = who
        self._where = where
        self._key = key

    def words(self, said: Any) -> str:
        """What somebody else said, on one line, bounded, without keys."""
        text = said if isinstance(said, str) else str(said)
        if len(self._key) > 6:
            text = text.replace(self._key, "…")
        return " ".join(_SECRETS.sub("…", text[: 4 * MOST_WORDS]).split())[:MOST_WORDS]

    def status(self, status: int, body: Any, headers: Any) -> Trouble:
        """An HTTP status that is no answer."""
        code, kind, message = _said(body)
        # Words in a page of a proxy say little; those in a JSON error are the provider's own.
        said = self.words(message) if message else "nothing more"
        told = f"{self._who} answered {status}: {said}"
        if status < 500 and status != 429 and self._is_too_long(status, code, message):
            return Trouble(ContextTooLong(told))
        wants = str(headers.get("x-should-retry", "")).lower()
        if (status in _AGAIN or status >= 500 or wants == "true") and wants != "false":
            if code in _NEVER_AGAIN or kind in _NEVER_AGAIN:
                return Trouble(AccessRefused(f"{told} (nothing left to spend: look at the account)"))
            return Trouble(ModelUnavailable(told), again=True, after=asked_to_wait(headers))
        contents = status in _OF_CONTENTS or code in _FORBIDDEN or kind in _FORBIDDEN
        return Trouble(RequestRefused(told) if contents else AccessRefused(f"{told}{_TO_CHANGE.get(status, '')}"))

    def told(self, body: Any) -> Trouble:
        """An error inside an answer that had begun well."""
        code, kind, message = _said(body)
        told = f"{self._who} broke off: {self.words(message or code or 'no reason given')}"
        if self._is_too_long(int(code) if code.isdecimal() else 400, code, message):
            return Trouble(ContextTooLong(told))
        if code in _FORBIDDEN or (kind == "invalid_request_error" and not code.startswith(("4", "5"))):
            return Trouble(RequestRefused(told))
        if code in _NEVER_AGAIN or (kind in _REFUSED_TYPES and not code.startswith(("4", "5"))):
            return Trouble(AccessRefused(told))
        if code.isdigit() and 400 <= int(code) < 500 and int(code) not in _AGAIN:
            return Trouble(RequestRefused(told) if int(code) in _OF_CONTENTS else AccessRefused(told))
        return Trouble(ModelUnavailable(told), again=True)

    def unreachable(self, why: str) -> Trouble:
        """No connection, or it was lost."""
        return Trouble(ModelUnavailable(f"{self._who} at {self._where} cannot be reached: {why}"), again=True)

    def silent(self, seconds: float) -> Trouble:
        """A connection on which nothing came."""
        said = f"{self._who} at {self._where} said nothing for {seconds:g} seconds"
        how = "OpenAIModel(..., timeout=) waits longer"
        return Trouble(ModelUnavailable(f"{said} ({how})"), again=True, silent=True)

    def cut(self) -> Trouble:
        """A stream that ended before the answer did."""
        return Trouble(ModelUnavailable(f"{self._who} cut the answer off in the middle"), again=True)

    def garbage(self, what: str) -> Trouble:
        """Something came back that is no answer."""
        return Trouble(ModelError(f"{self._who} answered {what}"), again=True, garbage=True)

    def _is_too_long(self, status: int, code: str, message: str) -> bool:
        return code in _TOO_LONG_CODES or status == 413 or bool(_TOO_LONG.search(message))


def _said(body: Any) -> tuple[str, str, str]:
    """The code, type and message of an error in one of the shapes that providers use."""
    if isinstance(body, dict) and isinstance(body.get("error"), dict | str):
        body = body["error"]
    if isinstance(body, str):
        return "", "", "" if body.lstrip().startswith("<") else body
    if not isinstance(body, dict):
        return "", "", ""
    message = body.get("message") or body.get("detail") or body.get("msg") or ""
    code, kind = body.get("code"), body.get("type")
    return str(code) if code is not None else "", str(kind or ""), message if isinstance(message, str) else str(message)
