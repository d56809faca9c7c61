"""What the tests of retention share: a session that is filled, and its steps."""

from __future__ import annotations

from typing import Any

import perdure

HOUR = 3_600_000


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
