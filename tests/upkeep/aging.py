"""What the tests of upkeep share: a session that is filled, its steps, and an end at a named point."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.session.tools.exceptions import LetThrough
from perdure.system import faults

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUR = 3_600_000


class Killed(LetThrough):
    """Stands for the end of the process."""


@contextmanager
def killed_at(point: str) -> Iterator[None]:
    """What is done inside ends at a named point."""

    def kill(name: str) -> None:
        if name == point:
            raise Killed

    faults.hook = kill
    try:
        with pytest.raises(Killed):
            yield
    finally:
        faults.hook = None


def fill(db: perdure.Database, session: str = "s", count: int = 100, **options: Any) -> None:
    """Write some messages."""
    with db.session(session, **{"ttl": None, **options}) as s:
        for _ in range(count):
            s.messages.append({"role": "user", "content": f"message {s.step} " + "word " * 40})
            s.vars["n"] = s.step
            s.commit()


def steps(db: perdure.Database, session: str = "s", **options: Any) -> list[int]:
    return [c.step for c in db.history(session, limit=10_000, **options)][::-1]


def steps_there(db: perdure.Database) -> list[int]:
    return [row.step for row in db.kernel.store.slice("s", 0, 0, 1000).rows]
