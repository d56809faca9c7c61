"""Sessions whose time has run out: ended, set aside for a while, brought back, and deleted for good.

One that has expired is kept under another id, where nobody reads it, so that a wrong clock destroys nothing: a copy is
restored there first, and then the session is dropped. Interrupted at any point, the next attempt goes on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from perdure.errors import Conflict, Corrupted, NotFound
from perdure.history.expiry import expired
from perdure.history.hydrate import find, look
from perdure.history.lives import aside_id, end_session, life_of, of_aside
from perdure.model import Artifact, LeaseInfo, Status
from perdure.session.read_cache import PREFIX
from perdure.stores.listing import each_session
from perdure.system import faults

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.kernel import Kernel
    from perdure.model import Dump, SessionRow

_NOTE = "set aside"
"""The kind of the artifact that says what the row of a session that is set aside does not."""


class _Said(msgspec.Struct):
    agent: str
    ttl: int | None
    """Milliseconds; None of one that lives for ever, and made way for an earlier life."""


class Aside(NamedTuple):
    """A session that has expired and can be brought back."""

    session: str
    created: int
    """When it had begun (ms)."""
    updated: int
    """When it was last written to (ms)."""
    until: int
    """When it is deleted for good (ms), by the next sweep after that."""
    owner: str = ""
    life: int = 0
    """Which of the session's lives it is: 0 for the first, later ones by when they began (ms)."""


def expire(kernel: Kernel, session: str, token: int | None) -> bool:
    """End a session whose time has run out, by the verified word of its newest checkpoints; leaves a tombstone.

    What waits in its inbox came too late for it, and stays for whoever begins anew.
    """
    row = look(kernel, session)
    if not expired(kernel, row):
        return False
    _end(kernel, row, token, keep=bool(kernel.keep_expired) and not row.id.startswith(PREFIX))
    return True


def _end(kernel: Kernel, row: SessionRow, token: int | None, *, keep: bool) -> None:
    if keep:
        _set_aside(kernel, row)
    faults.point("sweep.before_drop")
    end_session(kernel, row, token, Status.EXPIRED.value, keep_waiting=True)
    faults.point("sweep.after_drop")


def _set_aside(kernel: Kernel, row: SessionRow) -> None:
    dump, id = kernel.store.dump(row.id), aside_id(row.id, life_of(kernel, row.id))
    said = _Said(row.agent, row.expires - row.updated if row.expires is not None else None)
    note = Artifact(_NOTE, 0, 0, 0, msgspec.json.encode(said))
    # Nobody works on it there: neither an agent nor whoever held it.
    there = dump.row._replace(
        id=id, agent="", lease=LeaseInfo("", row.lease.token, 0), expires=row.now + kernel.keep_expired
    )
    taken = tuple(entry for entry in dump.inbox if entry.taken)
    faults.point("sweep.before_aside")
    copied = dump._replace(row=there, inbox=taken, artifacts=(*dump.artifacts, note))
    try:
        kernel.store.restore(copied)
    except Conflict:
        # An earlier attempt has put it there. If somebody went on with the session since, that copy is old.
        if (found := kernel.store.look(id)) is not None and found.heads != row.heads:
            end_session(kernel, found, None, Status.EXPIRED.value)
            kernel.store.restore(copied)
    faults.point("sweep.after_aside")


def set_aside(kernel: Kernel, session: str | None = None) -> Iterator[Aside]:
    """What has expired and can be brought back, of one session or of all, whether or not a sweep has come by."""
    in_place: dict[tuple[int, str], Aside] = {}
    for row in each_session(kernel.store, expired=True, search=session):
        if session in (None, row.id) and not row.id.startswith(PREFIX) and expired(kernel, row):
            until, life = row.now + kernel.keep_expired, life_of(kernel, row.id)
            in_place[life, row.id] = Aside(row.id, row.created, row.updated, until, row.owner, life)
    for row in each_session(kernel.store, aside=True, search=session):
        kept = of_aside(row.id)
        # Of one that a sweep was interrupted at there is a copy already.
        if kept is not None and session in (None, kept[1]) and kept not in in_place:
            yield Aside(kept[1], row.created, row.updated, row.expires or 0, row.owner, kept[0])
    yield from in_place.values()


def newest_life(kernel: Kernel, session: str) -> Aside:
    """The one to be brought back."""
    lives = sorted(set_aside(kernel, session), key=lambda found: found.created)
    if not lives:
        raise NotFound(
            f"nothing of session {session!r} is set aside: it has not expired, or so long ago that it was deleted for "
            "good"
        )
    return lives[-1]


def as_it_was(dump: Dump, session: str) -> Dump:
    """A session that is set aside, as it was in its own place when its time had run out."""
    where = f"session {session!r}, which is set aside"
    notes = [artifact for artifact in dump.artifacts if artifact.kind == _NOTE]
    try:
        said = msgspec.json.decode(notes[0].body if notes else b"", type=_Said)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise Corrupted(where, "the note of its agent and its time to live cannot be read") from e
    if notes != [Artifact(_NOTE, 0, 0, 0, notes[0].body)] or dump.row.agent:
        raise Corrupted(where, "it does not stand there as it was put")
    expires = dump.row.updated + said.ttl if said.ttl is not None else None
    row = dump.row._replace(id=session, agent=said.agent, expires=expires)
    return dump._replace(row=row, artifacts=tuple(one for one in dump.artifacts if one.kind != _NOTE))


def bring_back(kernel: Kernel, session: str, token: int) -> Aside:
    """Put the newest of a session's earlier lives in its place again; the one that has begun since is set aside."""
    now = find(kernel, session)
    assert now is not None, "its lease is ours"
    if now.heads and expired(kernel, now):
        # No sweep has come by yet.
        _end(kernel, now, token, keep=True)
        now = now._replace(heads=())
    found = newest_life(kernel, session)
    id = aside_id(session, found.life)
    dump = kernel.store.dump(id)
    was = as_it_was(dump, session)
    if now.heads:
        # Whatever is kept otherwise: that life has not expired, and it must be known where it went.
        _end(kernel, now, token, keep=True)
    # It lives for its time to live from now on.
    expires = was.row.expires and was.row.expires + now.now - was.row.updated
    faults.point("revive.before_restore")
    kernel.store.restore(was._replace(row=was.row._replace(expires=expires)))
    faults.point("revive.after_restore")
    end_session(kernel, dump.row, None, "brought back")
    return found


def delete_for_good(kernel: Kernel, batch: int) -> int:
    """Delete what was set aside long enough ago; how many that were."""
    deleted = 0
    for row in each_session(kernel.store, batch, aside=True, expired=True):
        end_session(kernel, row, None, Status.EXPIRED.value)
        deleted += 1
    return deleted
