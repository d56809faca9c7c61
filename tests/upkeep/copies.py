"""What the tests of copying share: a session with everything a session can have, and what of it must be equal."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure.session.inbox import open_entry
from perdure.state.document import plain
from tests.upkeep.pasts import all_states, write_past


@perdure.tool
def wire(amount: int) -> str:
    """Sometimes nobody knows whether it happened."""
    if amount > 5:
        raise TimeoutError
    return f"sent {amount}"


@perdure.tool(approve=lambda a: True)
def book(flight: str) -> str:
    """Somebody has to agree first."""
    return f"booked {flight}"


def write_everything(db: perdure.Database, session: str, seed: int = 1, count: int = 60) -> None:
    """Forks, tags, rewinds, merges, blobs, packs, effects, a run, an approval, and inputs taken and waiting."""
    write_past(db, session, seed, count)
    for n in range(3):
        db.post(session, {"n": n}, key=f"k{n}")
    with db.session(session, owner="ana") as s:
        s.messages.append(s.take(1)[0].body)
        s.commit("took one")
        assert s.call(wire, 3) == "sent 3"
        s.run("july", lambda s: s.call(wire, 4))
        with pytest.raises(perdure.InDoubt):
            s.call(wire, 7)
        with pytest.raises(perdure.ApprovalNeeded):
            s.call(book, "BA1")


def everything(db: perdure.Database, session: str, every: int = 7) -> dict[str, Any]:
    """All of a session that must be the same wherever it lies."""
    row = db.look(session)
    store = db.kernel.store
    rows = [r for line in range(row.lines) for r in store.slice(session, line, 0, 2**53).rows]
    return {
        "row": (row.owner, row.status, sorted(row.heads), row.lines, row.pending),
        "digests": {(r.line, r.step): (r.id, r.digest) for r in rows},
        "states": all_states(db, session, every),
        "history": {
            h.branch: [(c.id, c.digest, c.kind, c.at) for c in db.history(session, branch=h.branch, limit=10_000)]
            for h in row.heads
        },
        "inbox": [(e.at, e.digest, open_entry(db.kernel, e)) for e in store.inbox(session, 100)],
        "document": plain(db.read(session).document.root),
    }


def small(db: perdure.Database, *names: str, **options: Any) -> None:
    """Sessions of one commit each, with a blob."""
    for name in names:
        with db.session(name, **{"ttl": None, **options}) as s:
            s.vars["name"] = name
            s.vars["large"] = f"{name} " * 20_000
            s.commit()
