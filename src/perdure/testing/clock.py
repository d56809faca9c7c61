"""A clock that moves only when told."""

from __future__ import annotations


class FakeClock:
    """Implements :class:`perdure.protocols.Clock`; both clocks stand still between calls of ``advance``.

    >>> clock = FakeClock()
    >>> before = clock.wall()
    >>> clock.advance(1500)
    >>> clock.wall() - before
    1500
    """

    def __init__(self, wall: int = 1_700_000_000_000, monotonic: int = 5_000_000) -> None:
        self._wall = wall
        self._monotonic = monotonic

    def wall(self) -> int:
        """Milliseconds since the epoch."""
        return self._wall

    def monotonic(self) -> int:
        """Milliseconds since some moment; never goes back."""
        return self._monotonic

    def advance(self, ms: int) -> None:
        """Let time pass on both clocks."""
        self._wall += ms
        self._monotonic += ms

    def sleep(self, ms: int) -> None:
        """Nobody waits: the time has passed."""
        self.advance(ms)

    async def sleep_async(self, ms: int) -> None:
        """Nobody waits here either, but others have their turn."""
        import asyncio

        self.advance(ms)
        await asyncio.sleep(0)

    def set_wall(self, ms: int) -> None:
        """Somebody sets the wall clock; the monotonic one does not notice."""
        self._wall = ms
