"""A loop in which a seed decides who comes first: what threads would do is done in it, after a time that is made up."""

from __future__ import annotations

import asyncio
import random
import selectors
import time
from typing import TYPE_CHECKING, Any

from perdure.errors import PerdureError

if TYPE_CHECKING:
    from collections.abc import Coroutine


class _Jump(selectors.DefaultSelector):
    """Nothing is waited for: the loop's time goes on to when something happens."""

    def __init__(self, loop: LoopBySeed) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everybody waits for ever"
        self._loop.now += max(0.0, timeout)
        return super().select(0)


class LoopBySeed(asyncio.SelectorEventLoop):
    """Whoever waits for a thread waits for a while that the seed decides, so every order comes about with some seed."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.chance = random.Random(seed)
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self.now

    def a_while(self) -> float:
        return self.chance.choice([0, 0.0001, 0.001, 0.01]) * self.chance.random()

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        future = self.create_future()
        asked: Any = getattr(func, "args", ())
        sleeps = bool(asked) and asked[0] is time.sleep

        def work() -> None:
            if future.done():
                return
            try:
                future.set_result(None if sleeps else func(*args))
            except BaseException as e:
                future.set_exception(e)

        self.call_later(self.a_while() + (asked[1] if sleeps else 0), work)
        return future


class Writer:
    """The writer's thread, as the loop has it: commits that wait are written together, and answered later."""

    def __init__(self, store: Any, *_: Any) -> None:
        self.store = store
        self._waiting: list[tuple[Any, Any]] = []

    def submit(self, *items: Any) -> list[Any]:
        loop: Any = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in items]
        self._waiting += zip(items, futures, strict=True)
        loop.call_later(loop.a_while(), self._write, loop)
        return futures

    def _write(self, loop: Any) -> None:
        batch, self._waiting = self._waiting, []
        try:
            answers = list(self.store.append([item for item, _ in batch])) if batch else []
        except PerdureError as e:
            answers = [e] * len(batch)
        loop.call_later(loop.a_while(), self._answer, batch, answers)

    def _answer(self, batch: list[tuple[Any, Any]], answers: list[Any]) -> None:
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)

    def close(self) -> None:
        pass


def play(main: Coroutine[Any, Any, None], seed: int) -> float:
    """Run to the end; how long it took, by the loop's time."""
    loop = LoopBySeed(seed)
    try:
        loop.run_until_complete(main)
        return loop.now
    finally:
        loop.close()
