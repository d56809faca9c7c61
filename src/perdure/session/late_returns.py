"""Tools that run on although nobody waits for them any more: a thread cannot be stopped.

What such a call returns late is posted under its effect's id, which settles the doubt. While it runs, its call is not
made again by this process.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from perdure.errors import PerdureError

if TYPE_CHECKING:
    from collections.abc import Callable

_living: dict[str, Attempt] = {}
"""Of effects whose tool runs on, by their ids."""


class Attempt:
    """One attempt at a call whose function cannot be stopped."""

    def __init__(self, effect: str, post: Callable[[Any], Any]) -> None:
        self._effect = effect
        self._post = post
        self._lock = threading.Lock()
        self._began = self._over = self._abandoned = False
        self._result: tuple[Any] | None = None
        self._raised: BaseException | None = None

    def watched(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function, so that its end is noticed whoever waits for it."""

        def run(**kwargs: Any) -> Any:
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
            if result is not None:
                self._post(result[0])
        except PerdureError as e:
            warn("effect %s has returned late, and that cannot be written down: %s", self._effect, e)
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
                _living[self._effect] = self
        return self._result


def warn(words: str, *values: Any) -> None:
    """Write something down for whoever reads logs; whoever has nothing to say does not pay for them."""
    import logging

    logging.getLogger("perdure.session").warning(words, *values)


def runs_on(effect: str) -> bool:
    """Whether an earlier attempt at a call is still under way in this process."""
    return effect in _living
