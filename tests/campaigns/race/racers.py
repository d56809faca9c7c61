"""What each racer does, in a process of its own (a thread for the store in memory): try to commit, and say what came.

In *lockstep* all racers build on the same head and are let go at the same moment: one may win, and the losers take
the next head from their ``Conflict``, so that a wrong one there would break the next round. *Freely* means sessions
as programs use them, each in its own time: read, edit, commit, and again.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import perdure
from perdure.errors import Busy, Conflict
from perdure.model import Landed
from perdure.stores import open_store
from perdure.testing.sealed_rows import commit

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.model import Append, Head
    from perdure.protocols import Store

LOCKSTEP, FREELY = "lockstep", "freely"
PATIENCE = 120
"""Seconds after which racers give up waiting for the others: one of them has failed."""


class Try(NamedTuple):
    """One try: on which round or step, by whom, and what became of it."""

    version: int
    racer: int
    won: str
    """The id of the commit that landed; "" when it did not."""
    head: str
    """The head that the refusal named."""
    refused: str = ""
    """The kind of refusal."""


class Start(NamedTuple):
    """What a racer is told."""

    url: str
    session: str
    racer: int
    tries: int


def lockstep(start: Start, wait: Callable[[float], Any]) -> list[Try]:
    """All at once on the same head, round after round, straight on the store."""
    store = open_store(start.url)
    try:
        return [*_rounds(store, start, wait)]
    finally:
        store.close()


def _rounds(store: Store, start: Start, wait: Callable[[float], Any]) -> list[Try]:
    tries: list[Try] = []
    on: bytes | None = None
    for version in range(start.tries):
        item = _item(start, version, on)
        wait(PATIENCE)
        (answer,) = store.append([item])
        if isinstance(answer, Landed):
            tries.append(Try(version, start.racer, answer.id.hex(), ""))
            on = answer.id
        elif isinstance(answer, Conflict):
            head: Head | None = answer.head
            shown = head.id.hex() if head and head.step == version else f"wrong: {head}"
            tries.append(Try(version, start.racer, "", shown, "Conflict"))
            on = head.id if head else None
        else:
            raise answer
        # Nobody begins the next round before everybody has ended this one.
        wait(PATIENCE)
    return tries


def _item(start: Start, version: int, on: bytes | None) -> Append:
    return commit(start.session, version, on, id=os.urandom(16), payload=b"racer %d" % start.racer)


def freely(start: Start, wait: Callable[[float], Any]) -> list[Try]:
    """As programs do it without a lease: read, edit, commit; what lost is thrown away and done anew."""
    tries: list[Try] = []
    with perdure.open(start.url) as db:
        wait(PATIENCE)
        s = db.session(start.session, lease=False)
        while len(tries) < start.tries:
            s.reload()
            # Somebody else's turn: a program thinks between reading and writing.
            os.sched_yield()
            version = s.step + 1
            s.messages.append({"racer": start.racer, "try": len(tries)})
            try:
                landed = s.commit()
            except (Conflict, Busy) as refusal:
                head: Head | None = getattr(refusal, "head", None)
                tries.append(Try(version, start.racer, "", head.id.hex() if head else "", type(refusal).__name__))
            else:
                assert landed.step == version
                tries.append(Try(version, start.racer, landed.id, ""))
        s.release()
    return tries


RACES = {LOCKSTEP: lockstep, FREELY: freely}
