"""Rebuilding a document at any checkpoint from nothing but its session id, verifying every byte on the way."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.errors import Corrupted, Gone, InvalidInput, NotFound, Unavailable, an
from perdure.kernel import Kernel
from perdure.model import MAIN, TAG_PREFIX, Envelope, Head, Row, SessionRow
from perdure.record import codec, tombstones
from perdure.record.codec import ZERO, Body, Loaded, Point
from perdure.record.packs import PackReader, flesh_out, open_base, state_to_cache
from perdure.state.delta import apply
from perdure.state.document import genesis
from perdure.system.commands import asks_why

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.model import Bundle
    from perdure.protocols import Cached
    from perdure.record.packs import Base


R = TypeVar("R")
Origins = dict[int, tuple[int, tuple[int, int] | None, Envelope]]
LOOKS = 100
"""How often a session is looked at again because it was written to meanwhile."""
TRIES = 5
"""How often a reading is begun anew when retention works on the same rows at the same time."""
CACHED_ROWS = 64
"""So many rows after the state that a cache holds; when there are more, it gets the newer state."""


def where_is(session: str, line: int, step: int) -> str:
    """A place for people to read."""
    return f"session {session!r}, line {line}, step {step}"


def open_row(kernel: Kernel, session: str, row: Row, packs: PackReader, before: Point | None) -> tuple[Point, Body]:
    """Verify one row on top of the one before it (None: it starts a line)."""
    where = where_is(session, row.line, row.step)
    env_bytes, body = (row.envelope, None) if row.envelope else packs.row(row.line, row.step)
    env = codec.decode_envelope(env_bytes, where)
    if body is None:
        body = codec.open_payload(kernel.keys, env.key, kernel.store_id, env_bytes, row.payload, where)
    if (env.session, env.line, env.step, env.id) != (session, row.line, row.step, row.id):
        raise Corrupted(where, "the record is about another checkpoint")
    if before is None or (before.envelope.line != env.line):
        parent_id, parent_digest = _start_parent(env, where, before)
    else:
        parent_id, parent_digest = before.envelope.id, before.digest
        if env.step != before.envelope.step + 1:
            raise Corrupted(where, "a step is missing before it")
    if env.parent != parent_id:
        raise Corrupted(where, "it does not follow the checkpoint before it")
    found = codec.chain_digest(kernel.keys, env.key, parent_digest, env_bytes, body, where)
    if not hmac.compare_digest(found, row.digest):
        raise Corrupted(where, "the digest does not match")
    return Point(env, found), body


def _start_parent(env: Envelope, where: str, before: Point | None) -> tuple[bytes | None, bytes]:
    origin = env.x.get("from")
    if origin is None:
        if before is not None or env.parent is not None or env.step != 1:
            raise Corrupted(where, "a step is missing before it")
        return None, ZERO
    if before is not None and [before.envelope.line, before.envelope.step, before.digest] != origin:
        raise Corrupted(where, "the line starts from another checkpoint")
    return env.parent, origin[2]


def payload_of(kernel: Kernel, body: Body, point: Point) -> tuple[list[Any], dict[str, Any]]:
    """The operations of a verified row and what it carries beside them."""
    env = point.envelope
    ops, extra = kernel.decode(body, where_is(env.session, env.line, env.step))
    return ops, extra or {}


def load(kernel: Kernel, session: str, line: int, step: int | None) -> Loaded:
    """The document at a step of a line (None: its last), verified."""
    for _ in range(TRIES):
        loaded = _load(kernel, session, line, step)
        if loaded is not None:
            return loaded
    raise Corrupted(f"session {session!r}, line {line}", "an anchor stands on a checkpoint that is missing")


def _load(kernel: Kernel, session: str, line: int, step: int | None) -> Loaded | None:
    """None when it must be read again: retention moved something between two readings, or a cache was wrong."""
    bundle = kernel.store.load(session, line, step)
    read = [bundle]
    if kernel.cache is None:
        return _rebuild(kernel, session, line, step, read)
    try:
        loaded = _rebuild(kernel, session, line, step, read)
    except Exception:
        if not any(one.hot for one in read):
            raise
        # Whatever is wrong with it, the store itself is asked; if that says the same, it is raised.
        kernel.cache.doubt(session, line)
        return None
    # A line that starts from another one needs both as long as no state is kept for it.
    long_way = not bundle.hot or len(bundle.rows) > CACHED_ROWS or (bundle.base is None and line > 0)
    if loaded is not None and step is None and long_way:
        _keep(kernel.cache, kernel, session, loaded)
    return loaded


def _keep(cache: Cached, kernel: Kernel, session: str, loaded: Loaded) -> None:
    """Let the cache hold a state that was read the long way."""
    assert loaded.point is not None
    env = loaded.point.envelope
    if cache.wants(session, env.line):
        tip = Row(env.line, env.step, env.id, loaded.point.digest, b"", b"")
        cache.keep(session, env.branch, tip, state_to_cache(kernel, session, loaded.point, loaded.doc))


def _rebuild(kernel: Kernel, session: str, line: int, step: int | None, read: list[Bundle]) -> Loaded | None:
    """The document from what was read; what else is needed is read, too."""
    refs = kernel.decode.refs_made
    (bundle,) = read
    wanted = bundle.last if step is None else step
    where = where_is(session, line, wanted)
    levels = [(bundle, open_base(kernel, session, bundle.base) if bundle.base else None)]
    # An anchor may say only what changed since an earlier one: go down to one that says it all.
    while (base := levels[-1][1]) is not None and base.after is not None:
        try:
            bundle = kernel.store.load(session, line, base.after[0])
        except NotFound:
            return None
        read.append(bundle)
        levels.append((bundle, open_base(kernel, session, bundle.base) if bundle.base else None))
    doc: dict[str, Any] = {}
    point: Point | None = None
    loose = 0
    for bundle, base in reversed(levels):
        packs = PackReader(kernel, session, bundle.packs)
        if base is not None:
            doc = _on_base(base, doc, point, packs, where)
            point = base.point
        loose = 0
        for row in bundle.rows:
            before = point
            if point is None:
                doc, before = _from_parent(kernel, session, row, packs)
            point, body = open_row(kernel, session, row, packs, before)
            apply(payload_of(kernel, body, point)[0], doc)
            loose += bool(row.envelope)
    if point is None or point.envelope.step != wanted:
        raise Corrupted(where, "it is missing")
    if not levels[0][0].rows and not _is_stored(kernel, session, point, levels[0][0].tip):
        return None
    return Loaded(doc, point, loose, kernel.decode.refs_made != refs)


def _on_base(base: Base, doc: dict[str, Any], point: Point | None, packs: PackReader, where: str) -> dict[str, Any]:
    """The document of a snapshot or an anchor, on top of the one that an anchor says it changed."""
    if base.skeleton is not None:
        return flesh_out(base.skeleton, packs)
    assert base.after is not None
    assert base.ops is not None
    if point is None or point.digest != base.after[1]:
        raise Corrupted(where, "an anchor stands on another checkpoint")
    apply(base.ops, doc)
    return doc


def _is_stored(kernel: Kernel, session: str, point: Point, tip: Row | None) -> bool:
    """Whether the row is there that a snapshot or an anchor speaks for: no later row vouches for it here."""
    env = point.envelope
    rows = (tip,) if tip is not None else kernel.store.slice(session, env.line, env.step, env.step).rows
    if rows and (rows[0].id, rows[0].digest) != (env.id, point.digest):
        raise Corrupted(where_is(session, env.line, env.step), "the state is another checkpoint's")
    return bool(rows)


def _from_parent(kernel: Kernel, session: str, row: Row, packs: PackReader) -> tuple[dict[str, Any], Point | None]:
    """The document a line starts from."""
    where = where_is(session, row.line, row.step)
    env_bytes = row.envelope or packs.row(row.line, row.step).envelope
    origin = codec.decode_envelope(env_bytes, where).x.get("from")
    if origin is None:
        return genesis(), None
    if origin[0] >= row.line:
        raise Corrupted(where, "a line starts from a later line")
    parent = load(kernel, session, origin[0], origin[1])
    return parent.doc, parent.point


def head_of(kernel: Kernel, row: SessionRow, branch: str) -> Head:
    """The head of a branch, checked against the lines that were ever started under its name.

    The pointer is a projection: whoever moves it to an older line, or to another branch's, is found out here;
    whoever moves it along its line is found out when the line is loaded to its end.
    """
    head = next((h for h in row.heads if h.branch == branch), None)
    where = f"session {row.id!r}, branch {branch!r}"
    starts = kernel.store.starts(row.id, branch)
    if head is None:
        if starts:
            raise Corrupted(where, "its pointer is missing")
        known = ", ".join(h.branch for h in row.heads) or "none"
        raise NotFound(f"session {row.id!r} has no branch {branch!r}: it has {known}")
    newest = -1
    for start in starts:
        if _first_envelope(kernel, row.id, start).branch != branch:
            raise Corrupted(where, f"line {start.line} belongs to another branch")
        newest = max(newest, start.line)
    if head.line != newest:
        raise Corrupted(where, f"its pointer says line {head.line}, and its newest line is {newest}")
    return head


def steady(kernel: Kernel, row: SessionRow, view: Callable[[SessionRow], R]) -> R:
    """Look at a session that others may be writing: what does not fit together is looked at again if a head moved.

    A pointer and the line it points into are read at two moments. Only a misfit that stands still is corruption.
    """
    for _ in range(LOOKS):
        try:
            return view(row)
        except Corrupted:
            fresh = kernel.store.look(row.id)
            if fresh is None or fresh.heads == row.heads:
                raise
            row = fresh
    raise Unavailable(f"session {row.id!r} is written so fast that {LOOKS} looks did not fit together: read it again")


def load_head(kernel: Kernel, row: SessionRow, branch: str) -> Loaded:
    """The document at the head of a branch."""
    return steady(kernel, row, lambda r: _load_head(kernel, r, branch))


def _load_head(kernel: Kernel, row: SessionRow, branch: str) -> Loaded:
    head = head_of(kernel, row, branch)
    loaded = load(kernel, row.id, head.line, None)
    assert loaded.point is not None
    env = loaded.point.envelope
    if (env.step, env.id, env.branch) != (head.step, head.id, branch):
        raise Corrupted(f"session {row.id!r}, branch {branch!r}", "its pointer is not at the end of its line")
    return loaded


def load_at(kernel: Kernel, row: SessionRow, at: int | str | None, branch: str = MAIN) -> Loaded:
    """The document at what ``at`` means; see :func:`locate`."""
    if at is None:
        return load_head(kernel, row, branch)
    return steady(kernel, row, lambda r: load(kernel, r.id, *locate(kernel, r, at, branch)))


def load_remembered(kernel: Kernel, session: str, branch: str) -> Loaded | None:
    """A branch's head as the cache alone knows it, possibly old; None when it does not, or when its time is over."""
    found = kernel.cache.remembered(session, branch) if kernel.cache is not None else None
    if found is None:
        return None
    store, line = found
    alone = Kernel(store, kernel.blobs, kernel.keys, kernel.clock, kernel.form, kernel.schema, kernel.migrations)
    try:
        loaded = load(alone, session, line, None)
    except (NotFound, Corrupted):
        return None
    assert loaded.point is not None
    env = loaded.point.envelope
    over = env.ttl is not None and kernel.clock.wall() >= env.at + env.ttl * 1000
    return None if over or env.branch != branch else loaded


def find(kernel: Kernel, session: str) -> SessionRow | None:
    """What the store knows of a session, its end included; ``Corrupted`` when that end is forged.

    Whoever does anything by the word of the row asks here: what is said to a session that only seems to have ended
    would lie where nobody takes it.
    """
    row = kernel.store.look(session)
    if row is not None and row.reason:
        if row.heads:
            raise Corrupted(f"session {session!r}", "the store says that it has ended, and it has checkpoints")
        if kernel.keys.current:
            # Whoever can write the store can say that a session has ended: without the key it is not believed.
            tombstones.read(kernel.keys, kernel.store_id, session, row.reason)
    return row


def known(kernel: Kernel, session: str) -> SessionRow:
    """The row of a session that is there, also before its first checkpoint: it is worked on then, or has messages.

    Whoever steers a session, or says something to it, asks here; ``NotFound`` or ``Gone`` when it is not there.
    """
    row = find(kernel, session)
    if row is None:
        raise NotFound(f"there is no session {session!r} in {kernel.store.url}")
    if row.reason:
        raise Gone(f"session {session!r} is gone: {row.why_gone}", row.why_gone)
    return row


def look(kernel: Kernel, session: str) -> SessionRow:
    """The same of a session that has something to read: before its first checkpoint it is ``NotFound``."""
    row = known(kernel, session)
    if not row.heads:
        asks = asks_why(session, kernel.store.url)
        raise NotFound(f"session {session!r} has no checkpoint yet: {asks} tells what it waits for, or who is on it")
    return row


SHORTEST_ID = 6
"""Characters of an id that name a checkpoint, if no other id of the session begins with them."""


def locate(kernel: Kernel, row: SessionRow, at: int | str | None, branch: str = MAIN) -> tuple[int, int]:
    """The (line, step) that ``at`` means: a step of the branch, or a branch, a tag, or (the beginning of) an id.

    In a text, as people type it, a name that somebody has given goes first, then a step.
    """
    if isinstance(at, bool) or not isinstance(at, int | str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"a place is a step, a branch, a tag or a checkpoint id, not {an(type(at).__name__)}")
    names = {h.branch: h for h in row.heads}
    if isinstance(at, str):
        if at in names:
            head = head_of(kernel, row, at)
            return head.line, head.step
        if TAG_PREFIX + at in names:
            head = head_of(kernel, row, TAG_PREFIX + at)
            start = kernel.store.starts(row.id, TAG_PREFIX + at)[-1]
            origin = _first_envelope(kernel, row.id, start).x["from"]
            return (origin[0], origin[1]) if start.step == head.step else (head.line, head.step)
        if not (at.isascii() and at.isdigit()):
            return _by_id(kernel, row, at)
        if len(at) >= SHORTEST_ID and int(at[:18]) > head_of(kernel, row, branch).step:
            # A number that is no step may be the beginning of an id that happens to have no letters.
            return _by_id(kernel, row, at)
        at = int(at[:18])
    head = head_of(kernel, row, branch)
    if at is None or at == head.step:
        return head.line, head.step
    if at < 1 or at > head.step:
        raise NotFound(f"session {row.id!r} has steps 1 to {head.step} on branch {branch!r}, and no {at!r}")
    return _ancestor(kernel, row.id, head.line, at)


def _first_envelope(kernel: Kernel, session: str, start: Row) -> Envelope:
    """The verified envelope of the first row of a line; it is never packed."""
    return open_row(kernel, session, start, PackReader(kernel, session, ()), None)[0].envelope


def origins(kernel: Kernel, session: str) -> Origins:
    """For every line: its first step, the (line, step) it starts from, and its first envelope."""
    found: Origins = {}
    for start in kernel.store.starts(session, None):
        env = _first_envelope(kernel, session, start)
        origin = env.x.get("from")
        if origin is not None and origin[0] >= start.line:
            raise Corrupted(where_is(session, start.line, start.step), "a line starts from a later line")
        found[start.line] = (start.step, (origin[0], origin[1]) if origin else None, env)
    return found


def ancestry(kernel: Kernel, session: str, line: int, step: int, known: Origins | None = None) -> dict[int, int]:
    """The lines a checkpoint stands on, each with the last step of it that belongs to its past."""
    known = origins(kernel, session) if known is None else known
    reach = {line: step}
    while True:
        if line not in known:
            raise Corrupted(where_is(session, line, step), "its line has no beginning")
        origin = known[line][1]
        if origin is None:
            return reach
        line, step = origin
        reach[line] = step


def _ancestor(kernel: Kernel, session: str, line: int, step: int) -> tuple[int, int]:
    known = origins(kernel, session)
    while line in known and step < known[line][0]:
        origin = known[line][1]
        if origin is None:
            break
        line = origin[0]
    return line, step


def _by_id(kernel: Kernel, row: SessionRow, text: str) -> tuple[int, int]:
    """Find a checkpoint by id or by the beginning of one."""
    found: list[tuple[int, int]] = []
    if len(text) >= SHORTEST_ID and all(c in "0123456789abcdef" for c in text):
        for line in range(row.lines):
            bundle = kernel.store.slice(row.id, line, 1, 2**53)
            found.extend((r.line, r.step) for r in bundle.rows if r.id.hex().startswith(text))
    if len(found) > 1:
        raise NotFound(
            f"{text!r} is the beginning of {len(found)} checkpoint ids of session {row.id!r}: give more of it"
        )
    if not found:
        known = ", ".join(sorted(h.branch for h in row.heads))[:200]
        raise NotFound(
            f"session {row.id!r} has no branch, tag or checkpoint {text[:80]!r}; its branches and tags: {known}"
        )
    return found[0]
