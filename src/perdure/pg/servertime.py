"""Whose time counts: the server's own, unless a test brought a clock that stands in for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.clock import SystemClock

if TYPE_CHECKING:
    from perdure.protocols import Clock


SERVER_NOW = "(extract(epoch from clock_timestamp()) * 1000)::bigint"
"""The server's time in ms, in SQL."""


class Time:
    """Wall and lease time to pass to the server; None means that it takes its own."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = None if clock is None or isinstance(clock, SystemClock) else clock

    def now(self) -> tuple[int | None, int | None]:
        """The wall clock and the clock that leases run by."""
        return (None, None) if self._clock is None else (self._clock.wall(), self._clock.monotonic())
