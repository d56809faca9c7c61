"""Sessions whose time has run out: ended, set aside for a while, brought back, and deleted for good.

One that has expired is kept under another id, where nobody reads it, so that a wrong clock destroys nothing: a copy is
restored there first, and then the session is dropped. Interrupted at any point, the next attempt goes on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from perdure.errors import Conflict, Corrupted, InvalidInput, NotFound, PerdureError
from perdure.history.expiry import expired
from perdure.history.hydrate import find, load_head, look
from perdure.history.lives import aside_id, end_session, life_of, of_aside
from perdure.kernel import Kernel
from perdure.model import Artifact, Kind, LeaseInfo, Status
from perdure.record.binding import Stamp
from perdure.record.codec import Settings, encode_commit, seal_commit
from perdure.session.calls.read_cache import PREFIX
from perdure.session.journal import OWN_TTL
from perdure.session.taken import TAKEN, Mark, marks_of, start, take
from perdure.state.document import BOOK
from perdure.stores.listing import each_session
from perdure.stores.memory.store import MemoryStore
from perdure.system import faults

if TYPE_CHECKING:
    from perdure.model import Dump, InboxEntry, SessionRow
    from perdure.record.codec import Loaded

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
    made_way: int | None = None
    """The life that was in its place when it was brought back, and is set aside itself now; None: there was none."""


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


def set_aside(kernel: Kernel, session: str | None = None) -> list[Aside]:
    """What has expired and can be brought back, of one session or of all, whether or not a sweep has come by.

    In order of sessions; of each the life that was set aside last comes last.
    """
    in_place: dict[tuple[int, str], Aside] = {}
    for row in each_session(kernel.store, expired=True, search=session):
        if session in (None, row.id) and not row.id.startswith(PREFIX) and expired(kernel, row):
            until, life = row.now + kernel.keep_expired, life_of(kernel, row.id)
            in_place[life, row.id] = Aside(row.id, row.created, row.updated, until, row.owner, life)
    found = [((id, 1, 0, 0), one) for (_, id), one in in_place.items()]
    for row in each_session(kernel.store, aside=True, search=session):
        kept = of_aside(row.id)
        # Of one that a sweep was interrupted at there is a copy already.
        if kept is not None and session in (None, kept[1]) and kept not in in_place:
            life, id = kept
            # Whoever sets a life aside holds the lease, and tokens only grow. Times would tell the order only while all
            # keep what has expired equally long.
            place = (id, 0, row.lease.token, life)
            found.append((place, Aside(id, row.created, row.updated, row.expires or 0, row.owner, life)))
    return [one for _, one in sorted(found)]


def choose_life(kernel: Kernel, session: str, life: int | None = None) -> Aside:
    """The one to be brought back: the one that was set aside last, unless it is named."""
    lives = set_aside(kernel, session)
    if not lives:
        raise NotFound(
            f"nothing of session {session!r} is set aside: it has not expired, or so long ago that it was deleted for "
            "good"
        )
    if life is None:
        return lives[-1]
    found = next((one for one in lives if one.life == life), None)
    if found is None:
        known = ", ".join(str(one.life) for one in lives)
        raise NotFound(f"life {life} of session {session!r} is not set aside; those that are: {known}")
    return found


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


def bring_back(kernel: Kernel, session: str, token: int, life: int | None = None) -> Aside:
    """Put an earlier life of a session in its place again, the one set aside last unless it is named.

    The one that has begun since is set aside. Inputs that it took are its own, and are told to nobody else; those that
    still wait are for the one that is brought back.
    """
    now = find(kernel, session)
    assert now is not None, "its lease is ours"
    if now.heads and expired(kernel, now):
        # No sweep has come by yet.
        _end(kernel, now, token, keep=True)
        now = now._replace(heads=())
    found = choose_life(kernel, session, life)
    id = aside_id(session, found.life)
    dump = kernel.store.dump(id)
    if now.heads and life_of(kernel, session) == found.life:
        # It is back already, and whoever brought it back was interrupted: what is set aside is an old copy.
        end_session(kernel, dump.row, None, "brought back")
        return found
    back = _revived(kernel, as_it_was(dump, session), now, token)
    if now.heads:
        found = found._replace(made_way=life_of(kernel, session))
        # Whatever is kept otherwise: that life has not expired, and it must be known where it went.
        _end(kernel, now, token, keep=True)
    faults.point("revive.before_restore")
    kernel.store.restore(back)
    faults.point("revive.after_restore")
    end_session(kernel, dump.row, None, "brought back")
    return found


def _revived(kernel: Kernel, was: Dump, now: SessionRow, token: int) -> Dump:
    """A life as it is to stand in its place again, with one more checkpoint: that it was brought back.

    From then on it lives for its time to live. That checkpoint says as well that whatever was posted since and does not
    wait any more was given to another life: otherwise it would seem to be lost. It comes with the rest, so nobody ever
    sees the one without the other.
    """
    session = was.row.id
    waiting = kernel.store.inbox(session, now.pending) if now.pending else []
    took = {entry.key: entry.digest for entry in was.inbox}
    for entry in waiting:
        if took.get(entry.key, entry.digest) != entry.digest:
            raise InvalidInput(
                f"session {session!r}: an input waits under the key {entry.key[:80]!r}, and the life to be brought "
                "back took another one of that key: let the session take what waits before it is brought back"
            )
    # What is set aside stands under another id than its checkpoints say: it is read in a place of its own.
    place = MemoryStore(clock=kernel.clock)
    place.id = kernel.store_id
    place.restore(was)
    there = Kernel(place, kernel.blobs, kernel.keys, kernel.clock, kernel.form)
    branch = was.row.branches[0]
    loaded = load_head(there, look(there, session), branch)
    assert loaded.point is not None
    env = loaded.point.envelope
    body, _ = encode_commit(_given_since(kernel, loaded, waiting, now.posts), {}, kernel.form)
    x = {name: env.x[name] for name in ("error", OWN_TTL) if name in env.x}
    item, _ = seal_commit(
        kernel.keys, kernel.store_id, kernel.clock.wall(), session, branch, loaded.point, Kind.REVIVED, body, x,
        Settings(was.row.owner, env.ttl, env.schema), env.status, token,
    )  # fmt: skip
    (landed,) = place.append([item._replace(token=None)])
    if isinstance(landed, PerdureError):
        raise landed
    whole = place.dump(session)
    return whole._replace(
        row=whole.row._replace(
            created=was.row.created,
            updated=now.now,
            expires=None if env.ttl is None else now.now + env.ttl * 1000,
            agent=was.row.agent,
            lease=was.row.lease,
        )
    )


def _given_since(kernel: Kernel, loaded: Loaded, waiting: list[InboxEntry], posts: int) -> list[list[Any]]:
    """The operations that mark as taken what was posted and is neither marked already nor waits."""
    marks = marks_of(loaded.doc)
    mark = marks.get(kernel.store_id, Mark(to=0, but={}))
    open = {*map(int, mark["but"]), *range(mark["to"] + 1, posts + 1)} - {entry.seq for entry in waiting}
    if not open:
        return []
    kept = TAKEN in loaded.doc[BOOK]
    stamps = (Stamp(kernel.store_id, number) for number in open)
    ops = take(marks, stamps, f"session {loaded.point.envelope.session!r}, inbox" if loaded.point else "inbox")
    return ops if kept else start(marks)


def delete_for_good(kernel: Kernel, batch: int) -> int:
    """Delete what was set aside long enough ago; how many that were."""
    deleted = 0
    for row in each_session(kernel.store, batch, aside=True, expired=True):
        end_session(kernel, row, None, Status.EXPIRED.value)
        deleted += 1
    return deleted
