"""The few connections of one handle to a server: made by whoever needs one, kept while idle, noticed when they died.

The drivers' own pools were measured in turns with this one. psycopg_pool commits as fast, but connects in threads of
its own: the reason why there is no connection goes to the log, and the caller hears after the whole time-out that there
was none (a wrong password: explained after 0.03 s here; not explained, after all of it, there). redis-py's pool costs
27 microseconds for each command, a quarter of a round trip: a look at a session took 1.29 times as long, a load 1.07.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from perdure.errors import Unavailable
from perdure.system.flow import HandleGuard

if TYPE_CHECKING:
    from collections.abc import Callable


class Closable(Protocol):
    """What a pool must know of a connection."""

    @property
    def closed(self) -> bool:
        """Whether it can no longer be used."""
        ...

    def is_quiet(self) -> bool:
        """Whether nothing came in while it was idle: a server that speaks unasked says that it ends."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


C = TypeVar("C", bound=Closable)


class Pool(Generic[C]):
    """Connections to one place. May be used from any thread, by the process that made it."""

    def __init__(self, url: str, make: Callable[[], C], *, size: int, wait: float, advice: str) -> None:
        """``wait`` is how many seconds to wait for one of ``size`` connections; then ``advice`` says what to do."""
        self._url = url
        self._make = make
        self._size = size
        self._wait = wait
        self._advice = advice
        self._guard = HandleGuard(f"{url}: this handle")
        self.check = self._guard.check
        """Refuses to work on a handle that is closed or from another process."""
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._idle: list[C] = []
        self._out: dict[object, int] = {}
        """The connections in use, and the places of those being made, each with the thread that has it."""

    def take(self) -> C:
        """A connection that was idle and is alive, or a new one; errors of making it are the caller's."""
        # Before any lock: in a forked child somebody may hold it for ever.
        self.check()
        place, me = object(), threading.get_ident()
        connection: C | None = None
        try:
            with self._lock:
                if len(self._out) >= self._size and not self._freed.wait_for(self._has_room, self._wait):
                    raise Unavailable(
                        f"{self._url}: all {self._size} connections were in use for {self._wait:g} seconds; nothing "
                        f"was written: {self._advice}"
                    )
                self._out[place] = me
            while True:
                with self._lock:
                    if self._guard.closed:
                        self.check()
                    connection = self._idle.pop() if self._idle else None
                if connection is None:
                    connection = self._make()
                elif connection.closed or not connection.is_quiet():
                    # The server has said good-bye, or worse. Nothing was sent over this one: another's turn.
                    connection.close()
                    continue
                with self._lock:
                    self._out[connection] = me
                    del self._out[place]
                return connection
        except BaseException:
            # An interrupt, too, leaves neither a place taken nor a connection that nobody has.
            if connection is not None:
                connection.close()
            with self._lock:
                for taken in (place, connection):
                    self._out.pop(taken, None)
                self._freed.notify()
            raise

    def _has_room(self) -> bool:
        return len(self._out) < self._size

    def has(self, connection: C) -> bool:
        """Whether this thread has taken a connection, and not given it back."""
        return self._out.get(connection) == threading.get_ident()

    def give_back(self, connection: C) -> None:
        """Keep a connection that was used, unless it or the handle was closed; again: nothing happens.

        So whoever is interrupted here gives it back once more.
        """
        with self._lock:
            if self.has(connection):
                keeps = not self._guard.closed and not connection.closed
                rest = {one: who for one, who in self._out.items() if one is not connection}
                # At once: no interrupt comes between.
                self._idle, self._out = [*self._idle, connection] if keeps else self._idle, rest
            self._freed.notify()
        if self._guard.closed:
            connection.close()

    def lose(self, connection: C) -> None:
        """Close one that was lost. It rarely goes alone: the idle ones are made anew, too."""
        connection.close()
        self.forget()
        self.give_back(connection)

    def forget(self) -> None:
        """Close the connections that nobody uses at the moment."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close all connections; those in use are closed when they are given back. Again: no error."""
        # In a forked child the connections belong to the parent: they are left alone, not closed.
        if self._guard.forked:
            return
        with self._lock:
            self._guard.closed = True
        self.forget()
