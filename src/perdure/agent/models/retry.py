"""Patience with a provider: what is tried again, how long is waited between, and when to give up."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from perdure.errors import ModelError, ModelUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

T = TypeVar("T")


class Retry(NamedTuple):
    """How often and how long a provider is tried."""

    attempts: int = 6
    """In all, the first one included."""
    first: float = 0.5
    """Seconds before the second attempt; doubled each time, and shortened at random by up to a half."""
    most: float = 30.0
    """The longest wait of our own choice."""
    total: float = 900.0
    """Seconds for everything together. A provider that asks to wait beyond that is not waited for."""
    garbage: int = 3
    """Attempts when what comes back is no answer."""

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
        self, error: ModelError, *, again: bool = False, after: float | None = None, garbage: bool = False
    ) -> None:
        self.error = error
        self.again = again
        self.after = after
        self.garbage = garbage
        super().__init__(str(error))


class Waiting(NamedTuple):
    """Time and chance, to be replaced in tests."""

    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    monotonic: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random


async def patiently(
    attempt: Callable[[], Awaitable[T]], retry: Retry, waiting: Waiting, again: Callable[[], None] | None = None
) -> T:
    """Make attempts until one succeeds or patience ends; ``again`` is called before each further one."""
    began = waiting.monotonic()
    made = spoilt = 0
    while True:
        trouble: Trouble
        bound = asyncio.timeout(max(0.001, retry.total - (waiting.monotonic() - began)))
        try:
            async with bound:
                return await attempt()
        except Trouble as e:
            trouble = e
        except TimeoutError:
            if not bound.expired():
                raise
            trouble = Trouble(ModelUnavailable(f"no answer within {retry.total:g} seconds"))
        made += 1
        spoilt += trouble.garbage
        pause = retry.wait(made, trouble.after, waiting.chance())
        left = retry.total - (waiting.monotonic() - began)
        # Raised out here, where no other exception is being handled: the driver's holds headers with the key.
        if not trouble.again or made >= retry.attempts or spoilt >= retry.garbage or pause >= left:
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
