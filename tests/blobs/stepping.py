"""Runs several parties request by request in every possible order, on a real server, and says which orders failed.

Each party is a thread that stops before each of its requests and goes on when it is its turn. A run follows given
choices as far as they go; what could have been chosen instead leads to the next runs, until all were made.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perdure.blobs.object_storage import ObjectBlobs

REQUESTS = ("list", "read", "write", "create", "delete")


class Turns:
    """Lets one party at a time make one request."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: set[int] = set()
        self._running: set[int] = set()
        self._turn: int | None = None

    def wait(self, me: int) -> None:
        """Stop here until it is my turn."""
        with self._changed:
            self._waiting.add(me)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._turn == me)
            self._turn = None
            self._waiting.discard(me)

    def run(self, parties: list[Callable[[], Any]], choose: Callable[[list[int]], int]) -> list[Any]:
        """Run all parties to their end; what each returned or raised."""
        results: list[Any] = [None] * len(parties)
        self._running = set(range(len(parties)))

        def work(me: int) -> None:
            try:
                results[me] = parties[me]()
            except BaseException as e:
                results[me] = e
            with self._changed:
                self._running.discard(me)
                self._changed.notify_all()

        threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(len(parties))]
        for thread in threads:
            thread.start()
        while True:
            with self._changed:
                # Everybody stands before a request, or is done: only then does the choice mean anything.
                assert self._changed.wait_for(lambda: self._turn is None and self._waiting == self._running, 60)
                if not self._running:
                    break
                self._turn = choose(sorted(self._waiting))
                self._changed.notify_all()
        for thread in threads:
            thread.join()
        return results


class Stepped:
    """A bucket's client that waits for its turn before each request."""

    def __init__(self, client: Any, turns: Turns, me: int) -> None:
        self._client = client
        self._turns = turns
        self._me = me

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name not in REQUESTS:
            return found

        def request(*args: Any) -> Any:
            if name == "delete":
                for path in args[0]:
                    self._turns.wait(self._me)
                    found([path])
                return None
            self._turns.wait(self._me)
            # A listing is one request: it is made now, not when somebody looks at it.
            return iter(list(found(*args))) if name == "list" else found(*args)

        return request


def step(blobs: ObjectBlobs, turns: Turns, me: int) -> ObjectBlobs:
    """The same handle, request by request."""
    blobs._client = Stepped(blobs._client, turns, me)  # type: ignore[assignment]
    return blobs


def orders(most: int, seed: int | None = None) -> Iterator[Callable[[list[int]], int]]:
    """Ways to choose, up to ``most``: every order there is, one after the other, or random ones with a seed."""
    if seed is not None:
        rng = random.Random(seed)
        for _ in range(most):
            yield rng.choice
        return
    todo: list[list[int]] = [[]]
    for _ in range(most):
        if not todo:
            return
        prefix = todo.pop()
        made: list[int] = []

        def choose(options: list[int], prefix: list[int] = prefix, made: list[int] = made) -> int:
            at = len(made)
            if at < len(prefix):
                choice = prefix[at]
                assert choice in options, "the same choices led somewhere else this time"
            else:
                choice = options[0]
                todo.extend([*made, other] for other in options[1:])
            made.append(choice)
            return choice

        yield choose
    assert not todo, f"there are more than {most} orders"
