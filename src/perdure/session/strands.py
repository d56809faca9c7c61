"""Which tasks and threads a run works in: whether it does one thing after another, or several side by side.

And which exceptions of calls each of them has got, and whether it has gone on since: one that leaves the run ends it.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

BESIDE = "beside"
"""Marks what was written while several were at work: the record of a call; and in a checkpoint, whether another one
than the run itself has written it."""
TOOK = "took_beside"
"""Names what others than the run itself have taken of the inputs that a checkpoint takes."""
under_way: ContextVar[frozenset[tuple[int, str]]] = ContextVar("perdure_under_way", default=frozenset())
"""The calls that the code which runs now is inside of."""


class Got(NamedTuple):
    """The exception of a call, as somebody has got it."""

    place: str
    """Where the call has its place in the journal."""
    effect: str
    again: str
    """What its tool declares of a repetition; "" when there is to be none, as after whatever was recorded since."""


class Strands:
    """The task or thread of a run itself, and those that edit, take, call and commit beside it."""

    def __init__(self, calls: object) -> None:
        self._own = _current()
        self._calls = id(calls)
        self._beside: set[Any] = set()
        self._got: list[tuple[Any, Got]] = []
        self.took: set[str] = set()
        """What others than the run itself have taken of the inbox, by keys."""
        self.numbered: set[int] = set()
        """The calls whose number is not simply the next one: they were made beside others, or after such ones."""

    def is_beside(self) -> bool:
        """Whether what is done now is done by another one than the run itself; whoever it is will be remembered.

        What a tool does while it is called belongs to the call, in whatever thread.
        """
        me = _current()
        if me is self._own:
            return False
        if me not in self._beside:
            if any(calls == self._calls for calls, _ in under_way.get()):
                return False
            self._beside.add(me)
        return True

    def are_several(self) -> bool:
        """Whether what is done now is done by another one than the run's own, or while another one is at work."""
        return self.is_beside() or self.at_work() > 0

    def at_work(self) -> int:
        """How many are at work beside the run itself."""
        return sum(map(_is_at_work, list(self._beside)))

    def mark(self) -> bool | None:
        """Whether another one than the run itself writes a checkpoint now; None: nobody has done anything beside it."""
        return self.is_beside() if self._beside or self.is_beside() else None

    def written(self) -> None:
        """All that was done by now is set apart: those that have ended are nobody's concern any more."""
        self._beside = {strand for strand in list(self._beside) if _is_at_work(strand)}

    def get(self, got: Got) -> None:
        """Whoever calls now gets the exception of a call."""
        self._got = [*self._got, (_current(), got)]

    def go_on(self) -> None:
        """Whoever calls now does something that is recorded: whatever it had got has not ended it.

        The run's own task or thread has what all others have got: it may have waited for them.
        """
        if self._got:
            me = _current()
            own = me is self._own
            self._got = [(who, got._replace(again="") if own or who is me else got) for who, got in self._got]

    def let_out(self, error: BaseException) -> list[Got]:
        """The calls whose exceptions leave the run with this one: it is one, comes from them or has them in it."""
        effects = {getattr(one, "effect", None) for one in _whole(error)}
        return [got for _, got in self._got if got.effect in effects]


def _whole(error: BaseException) -> list[BaseException]:
    """An exception, those it came from, and those it has in it."""
    found: list[BaseException] = [error]
    seen = {id(error)}
    # Grows while it is gone through.
    for one in found:
        others = [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            others += cast("BaseExceptionGroup[BaseException]", one).exceptions
        for other in others:
            if other is not None and id(other) not in seen:
                seen.add(id(other))
                found.append(other)
    return found


def _current() -> Any:
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        with suppress(RuntimeError):
            if (task := asyncio.current_task()) is not None:
                return task
    return threading.current_thread()


def _is_at_work(strand: Any) -> bool:
    return strand.is_alive() if isinstance(strand, threading.Thread) else not strand.done()
