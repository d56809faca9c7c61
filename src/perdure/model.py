"""The nouns that travel between layers: sessions, heads, rows, leases, changes. No behaviour, no I/O.

All are immutable. Times are milliseconds since the epoch unless a name says otherwise.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

MAIN = "main"
TAG_PREFIX = "tags/"
DEFAULT_TTL = 7 * 24 * 3600
"""Seconds a session lives after its last commit, unless told otherwise."""


ASIDE = "perdure:expired:"
"""Begins the ids under which expired sessions are kept for a while; no session of anybody's own begins so."""
INTERNAL = "perdure:cache:"
"""Begins the ids of sessions that hold the answer to a call that others share: nobody works in them."""
SIGNED = "; signed "
"""Stands between the reason of a tombstone and the signature of whoever ended the session."""


def plain_reason(reason: str) -> str:
    """The reason of a tombstone, for people."""
    return reason.partition(SIGNED)[0]


class Status(StrEnum):
    """Where a session stands; kept apart from the outcome of any one run."""

    IDLE = "idle"
    RUNNING = "running"
    SLEEPING = "sleeping"
    WAITING_APPROVAL = "waiting_approval"
    WAITING_RESULT = "waiting_result"
    IN_DOUBT = "in_doubt"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    FAILED = "failed"
    CLOSED = "closed"
    EXPIRED = "expired"


class Kind(StrEnum):
    """What a checkpoint records."""

    COMMIT = "commit"
    PLANNED = "planned"
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"
    RAISED = "raised"
    IN_DOUBT = "in_doubt"
    RETRYING = "retrying"
    APPROVAL = "approval"
    WAITING = "waiting"
    PROGRESS = "progress"
    RUN_STARTED = "run_started"
    RUN_LEFT = "run_left"
    RUN_ENDED = "run_ended"
    FORK = "fork"
    REWIND = "rewind"
    MERGE = "merge"
    TAG = "tag"
    MIGRATED = "migrated"
    CLOSED = "closed"
    REOPENED = "reopened"
    REVIVED = "revived"


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """The clear, authenticated part of a checkpoint: what stores and queries need to know of it.

    ``x`` holds what only some checkpoints have: ``from`` (line, step and digest of the parent,
    where a line starts), ``leaves`` (the tip a rewind left), ``with`` (the other side of a merge),
    ``run``, ``effect``, ``tool``, ``error``, ``agent``, ``label`` (the program's own word for where it stands,
    carried on until it is changed), ``takes``, ``blobs``, ``note``, ``tools``, ``model``, ``usage``.
    """

    v: int
    session: str
    id: bytes
    parent: bytes | None
    line: int
    step: int
    branch: str
    kind: str
    at: int
    owner: str
    status: str
    ttl: int | None
    schema: str
    key: str
    """Names the key of the digest chain; "" when it is not keyed."""
    x: dict[str, Any]


class Head(NamedTuple):
    """The newest checkpoint of a branch, as the store's pointer says."""

    branch: str
    line: int
    step: int
    id: bytes


class LeaseInfo(NamedTuple):
    """Who holds a session, by which token, until when (store time); ``holder`` "" means nobody."""

    holder: str
    token: int
    until: int


class Lease(NamedTuple):
    """A granted lease. ``token`` fences: a smaller one can no longer write."""

    session: str
    holder: str
    token: int
    until: int


class SessionRow(NamedTuple):
    """What a store knows of a session without opening anything: projections of its envelopes.

    Where it stands (``status``, ``error``, ``agent``, ``label``) is what commits on the branch ``main`` say, so that
    nothing that happens on another branch hides what waits there; while there is no ``main``, the newest commit of any
    branch says it. Every commit, of whatever branch, moves ``owner``, ``updated`` and ``expires``.
    """

    id: str
    owner: str
    status: str
    created: int
    updated: int
    expires: int | None
    lease: LeaseInfo
    heads: tuple[Head, ...]
    reason: str = ""
    """Set on a tombstone: why the session is gone, signed by whoever ended it. A tombstone has no heads."""
    pending: int = 0
    """Entries waiting in the inbox."""
    lines: int = 0
    """The number of the next line to be started."""
    agent: str = ""
    """Who works on it, as the newest commit of ``main`` that named an agent says."""
    error: str = ""
    """The error class of the newest checkpoint of ``main``; "" when it has none."""
    label: str = ""
    """Where it stands in the program's own words, as the newest checkpoint of ``main`` says; "" when it has none."""
    posts: int = 0
    """The newest number that was given to an inbox entry. Numbers go on when the session has ended and begins anew."""
    now: int = 0
    """The store's own time when this was read (ms): whether the session has expired is judged by it alone."""

    @property
    def over(self) -> bool:
        """Whether its time has run out by the store's clock; what its checkpoints say of it is still to be asked."""
        return self.expires is not None and self.now >= self.expires

    @property
    def why_gone(self) -> str:
        """The reason of a tombstone, for people."""
        return plain_reason(self.reason)

    @property
    def cursor(self) -> str:
        """Where a list that shows the newest first goes on after this session."""
        return f"{self.updated}:{self.id}"

    @property
    def branches(self) -> list[str]:
        """Where something may wait, ``main`` first. Not tags: nothing waits there, and what they name may be gone."""
        names = (head.branch for head in self.heads if not head.branch.startswith(TAG_PREFIX))
        return sorted(names, key=lambda name: (name != MAIN, name))


class Row(NamedTuple):
    """One checkpoint as stored. A thin row (``payload`` and ``envelope`` empty) lives in a pack."""

    line: int
    step: int
    id: bytes
    digest: bytes
    envelope: bytes
    payload: bytes


class Append(NamedTuple):
    """One sealed commit on its way into a store.

    ``expect`` is the id of the branch's head this builds on; ``None`` means the
    branch must not exist yet. ``token`` is the fencing token of the writer's lease;
    ``None`` means an optimistic writer, which is refused while anyone holds the lease.
    Everything from ``owner`` on is projected from the envelope, for queries only.
    """

    session: str
    branch: str
    line: int
    step: int
    id: bytes
    expect: bytes | None
    digest: bytes
    envelope: bytes
    payload: bytes
    token: int | None
    starts: bool
    owner: str
    status: str
    kind: str
    at: int
    ttl: int | None
    takes: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    tool: str = ""
    error: str = ""
    run: str = ""
    effect: str = ""
    approval: str = ""
    agent: str = ""
    """Whom the session belongs to from now on; "" leaves that as it is. Like status and error it counts on ``main``."""
    label: str = ""
    """What the program calls the place where it stands; each commit of ``main`` says it anew, as it does the error."""


class Landed(NamedTuple):
    """The commit is durable. ``again`` is true when it had already landed before."""

    id: bytes
    again: bool = False


class Span(NamedTuple):
    """Steps lo..hi (both included) of a line."""

    line: int
    lo: int
    hi: int


class Artifact(NamedTuple):
    """Derived, sealed bytes beside the rows, keyed by (session, kind, line, lo).

    ``pack``: the rows lo..hi of a line, compressed together; ``snapshot``: a state at
    step lo (= hi); ``anchor``: a state that stands for the dropped rows lo..hi of a line
    and for the row hi itself; ``dict``: a compression dictionary. ``refs`` are spans of rows
    whose packs a snapshot needs: a load gives back every pack that overlaps one of them.
    """

    kind: str
    line: int
    lo: int
    hi: int
    body: bytes
    refs: tuple[Span, ...] = ()
    blobs: tuple[str, ...] = ()
    """Blobs named inside, which must be kept while the artifact is."""


PACK = "pack"
SNAPSHOT = "snapshot"
ANCHOR = "anchor"


class Rewrite(NamedTuple):
    """Maintenance of one session in one transaction: says nothing new, only stores it otherwise.

    ``put`` adds artifacts (replacing one with the same key), ``thin`` empties rows that a
    pack or an anchor now holds, ``drop`` deletes rows and with them every snapshot at one of
    them or with a ref to one, ``discard`` deletes artifacts by (kind, line, lo); all in the order
    discard, put, thin, drop. With ``token`` it is fenced like a commit. If a row in ``thin`` is
    missing or thin already, or a row in ``needs`` is missing, nothing at all is done.
    """

    session: str
    token: int | None = None
    put: tuple[Artifact, ...] = ()
    thin: tuple[Span, ...] = ()
    drop: tuple[Span, ...] = ()
    discard: tuple[tuple[str, int, int], ...] = ()
    needs: tuple[Span, ...] = ()
    """Rows that must be there: those that a snapshot in ``put`` refers to."""


class Bundle(NamedTuple):
    """What is needed to rebuild a line up to a step, read at one instant.

    ``base`` is the newest snapshot or anchor at or before the step (None: none on this
    line); ``rows`` are those after it, in order; ``packs`` hold the thin ones among them
    and those that ``base`` refers to (of any line), and among them is every anchor whose ``hi``
    is one of the thin rows. ``last`` is the line's last step.
    """

    base: Artifact | None
    rows: tuple[Row, ...]
    packs: tuple[Artifact, ...]
    last: int
    tip: Row | None = None
    """The row at the step, as stored, when the store has it at hand: a base at that step speaks for it."""
    hot: bool = False
    """Whether a cache gave some of it: if it does not verify, the store is to be asked again."""


class InboxEntry(NamedTuple):
    """A posted input. ``key`` is the poster's idempotency key; ``digest`` is the same whenever the same is posted;
    ``body`` is sealed, and the seal covers the number too."""

    session: str
    key: str
    kind: str
    at: int
    digest: bytes
    body: bytes
    seq: int = 0
    """Its number within the session, by order of arrival: 1, 2, 3, ... When it is posted, the number that its poster
    has sealed it with; 0 for whichever is next."""
    taken: bytes = b""
    """Id of the checkpoint that took it; empty while it waits."""


class Outrun(NamedTuple):
    """Others have posted to the session since a poster chose a number: nothing was written."""

    next: int
    """The number to seal it with now."""


class Change(NamedTuple):
    """One commit in the list of changes."""

    session: str
    branch: str
    line: int
    step: int
    id: bytes
    kind: str
    status: str
    at: int


class ChangePage(NamedTuple):
    """Changes after a cursor, and the cursor to ask with next time."""

    items: tuple[Change, ...]
    cursor: str


class Promise(NamedTuple):
    """What a store promises once ``append`` has returned, in code and in words."""

    process_crash: bool
    power_loss: bool
    words: str


class Dump(NamedTuple):
    """A whole session as stored, for copies and backups."""

    row: SessionRow
    """Without ``now``: two dumps of the same session are the same."""
    rows: tuple[tuple[Row, dict[str, Any]], ...]
    """Each row with its projections: branch, kind, status, at, tool, error, takes, blobs, starts; where the store keeps
    them and the row has them also run, effect and approval."""
    artifacts: tuple[Artifact, ...]
    inbox: tuple[InboxEntry, ...]


class Usage(NamedTuple):
    """How much a store holds."""

    sessions: int
    checkpoints: int
    bytes: int
