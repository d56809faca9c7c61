"""Tools that run on although nobody waits for them any more: a thread cannot be stopped.

What such a call returns late is posted under its effect's id, which settles the doubt. While it runs, its call is not
made again by this process.
"""

from __future__ import annotations

import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

from perdure.errors import HandleClosed, PerdureError

if TYPE_CHECKING:
    from collections.abc import Callable

_RECORDED = {
    "done": "The call is recorded as done already",
    "failed": "The call is recorded as not done: see whether that is so",
    "raised": "The call is recorded as raised, and what it had changed as not known: this says that it came to its end",
    "unknown": "Whoever called was told that nobody knows whether it was done: this says that it was",
}
"""What is said of a late return that cannot be posted, by what is recorded of its call."""
_living: dict[str, Attempt] = {}
"""Of effects whose tool runs on, by their ids."""


class Attempt:
    """One attempt at a call whose function cannot be stopped."""

    def __init__(self, effect: str, post: Callable[[Any], Any], left: Callable[[], str]) -> None:
        self._effect = effect
        self._post = post
        self._left = left
        """What becomes of the call where what it returned late cannot be posted, for people."""
        self.outcome = ""
        """How the call was recorded since, or that whoever called was told that nobody knows; "" while it is open."""
        self._lock = threading.Lock()
        self._began = self._over = self._abandoned = False
        self.is_wanted = True
        """Whether anybody will ask for what it returns late."""
        self._result: tuple[Any] | None = None
        self._raised: BaseException | None = None
        self._thread = 0
        self.hangs_at: list[traceback.FrameSummary] = []
        """Where it was when it was abandoned, the innermost frame last."""

    def watched(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function, so that its end is noticed whoever waits for it."""

        def run(**kwargs: Any) -> Any:
            self._thread = threading.get_ident()
            self._began = True
            try:
                result = fn(**kwargs)
            except BaseException as e:
                self._raised = e
                self._end(None)
                raise
            self._end((result,))
            return result

        return run

    def _end(self, result: tuple[Any] | None) -> None:
        with self._lock:
            self._over, self._result = True, result
        if not self._abandoned:
            return
        try:
            if result is not None and self.is_wanted:
                self._post(result[0])
        except PerdureError as e:
            # Whoever closed the database, as Ctrl-C does, cannot open it anew for a thread that is left behind.
            why = "its database was closed meanwhile" if isinstance(e, HandleClosed) else str(e)
            words = "effect %s has returned late, and that cannot be written down: %s. %s"
            warn(words, self._effect, why, _RECORDED.get(self.outcome) or self._left())
        finally:
            _living.pop(self._effect, None)

    def as_raised(self, error: BaseException) -> BaseException:
        """The exception as the function raised it: an event loop passes on a copy of some, which came from nowhere."""
        return self._raised if type(self._raised) is type(error) and self._raised is not None else error

    def abandon(self) -> tuple[Any] | None:
        """Wait no longer: what it returns from now on is posted. What it has returned meanwhile, if it has."""
        with self._lock:
            if self._began and not self._over:
                self._abandoned = True
                # It cannot end meanwhile, so the thread is still its own.
                frame = sys._current_frames().get(self._thread)  # pyright: ignore[reportPrivateUsage]
                self.hangs_at = list(traceback.extract_stack(frame)) if frame is not None else []
                _living[self._effect] = self
        return self._result


def warn(words: str, *values: Any) -> None:
    """Write something down for whoever reads logs; whoever has nothing to say does not pay for them."""
    import logging

    logging.getLogger("perdure.session").warning(words, *values)


def runs_on(effect: str) -> bool:
    """Whether an earlier attempt at a call is still under way in this process."""
    return effect in _living


def has_outcome(effect: str, status: str) -> None:
    """A call is recorded with an outcome, while an attempt at it may still be under way."""
    if (attempt := _living.get(effect)) is not None:
        attempt.outcome = status


def give_up(effect: str) -> None:
    """A call has another outcome by now: what it returns late is not posted."""
    if (attempt := _living.get(effect)) is not None:
        attempt.is_wanted = False
