"""Sessions with a past: random commits, forks, rewinds, tags, merges, blobs and packing, from a seed."""

from __future__ import annotations

import random
from typing import Any

import perdure
from perdure.history.hydrate import load
from perdure.state.document import STATE, plain

Place = tuple[int, int]


def write_past(db: perdure.Database, session: str, seed: int, count: int = 120) -> None:
    """Write a session with ``count`` commits or so."""
    rng = random.Random(seed)
    branches = ["main"]
    for part in range(6):
        branch = rng.choice(branches)
        with db.session(session, branch=branch, ttl=None) as s:
            for _ in range(count // 6):
                _edit(s, rng)
                s.commit()
            if part and rng.random() < 0.6:
                s.fork(f"b{seed}-{part}", at=rng.randint(1, s.step))
                branches.append(f"b{seed}-{part}")
            if rng.random() < 0.5:
                s.tag(f"t{seed}-{part}", at=rng.randint(1, s.step))
            if rng.random() < 0.4:
                s.rewind(rng.randint(max(1, s.step - 30), s.step))
                _edit(s, rng)
                s.commit()
            if len(branches) > 1 and rng.random() < 0.4:
                s.merge(rng.choice([b for b in branches if b != branch]), prefer="ours")
        if rng.random() < 0.6:
            db.compact(session)


def _edit(s: perdure.Session, rng: random.Random) -> None:
    s.messages.append({"role": "user", "content": f"{s.step} " + "word " * rng.randint(0, 40)})
    match rng.randint(0, 9):
        case 0:
            s.vars["large"] = f"{rng.random()}" * 4000
        case 1:
            s.state["notes"] = [rng.randint(0, 9) for _ in range(20)]
        case 2 if len(s.messages) > 3:
            del s.messages[rng.randrange(len(s.messages))]
        case 3:
            s.vars.pop("large", None)
        case 4:
            s.state["photo"] = rng.randbytes(50)
        case _:
            s.vars[f"v{rng.randint(0, 5)}"] = {"n": rng.random(), "big": 2**70}


def all_states(db: perdure.Database, session: str, every: int = 1) -> dict[Place, Any]:
    """The whole document at every checkpoint that is there (or every so many), by line and step."""
    store = db.kernel.store
    row = store.look(session)
    assert row is not None
    found: dict[Place, Any] = {}
    for line in range(row.lines):
        for r in store.slice(session, line, 0, 2**53).rows:
            if r.step % every == 0:
                found[line, r.step] = plain(load(db.kernel, session, line, r.step).doc)
    return found


def state_of(document: Any) -> Any:
    """The user's part of a document."""
    return document[STATE]
