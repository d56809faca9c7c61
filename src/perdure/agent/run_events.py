"""What happens in a run, as it happens, for whoever listens. Deltas are provisional until committed or retracted."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple


class Event(NamedTuple):
    """One thing that happened.

    ``delta``: a piece of an answer, with ``step``, ``attempt``, ``offset`` and ``text``, provisional until the step is
    ``committed`` (with the whole ``text``) or the attempt ``retracted``; ``call`` and ``outcome`` of a tool;
    ``waiting`` for somebody; ``ended``. Readers in other processes get ``step`` for commits that hold no answer.
    """

    kind: str
    session: str
    step: int
    data: dict[str, Any]


class Feed:
    """Events for one listener, who may be slow: deltas that wait for it are put together."""

    MANY = 256
    """Events that wait before deltas are put together."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._some = asyncio.Event()
        self._over = False

    def put(self, event: Event) -> None:
        """Add an event; never waits."""
        last = self._events[-1] if len(self._events) >= self.MANY else None
        if last is not None and last.kind == event.kind == "delta" and _follows(last, event):
            joined = last.data["text"] + event.data["text"]
            self._events[-1] = last._replace(data={**last.data, "text": joined, "delta": None})
        else:
            self._events.append(event)
        self._some.set()

    def end(self) -> None:
        """Nothing more will come."""
        self._over = True
        self._some.set()

    async def get(self) -> Event | None:
        """The next event; None when there will be none."""
        while not self._events:
            if self._over:
                return None
            self._some.clear()
            await self._some.wait()
        return self._events.popleft()


def _follows(last: Event, event: Event) -> bool:
    a, b = last.data, event.data
    return (a["step"], a["attempt"]) == (b["step"], b["attempt"]) and a["offset"] + len(a["text"]) == b["offset"]
