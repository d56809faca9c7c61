"""The interfaces between layers: Store, Blobs, Clock. Small on purpose; implement these to add a backend.

A store carries envelopes and sealed bytes; it knows nothing of codecs, deltas or keys.
Every method is synchronous and may be called from any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypedDict, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Unpack

    from perdure.errors import Corrupted, PerdureError
    from perdure.model import (
        Append,
        Artifact,
        Bundle,
        ChangePage,
        Dump,
        InboxEntry,
        Landed,
        Lease,
        Outrun,
        Promise,
        Rewrite,
        Row,
        SessionRow,
        Usage,
    )


class Clock(Protocol):
    """Where time comes from; injected so that tests never sleep."""

    def wall(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def monotonic(self) -> int:
        """Milliseconds of a clock that never goes back, the same for all processes of this boot."""
        ...

    def sleep(self, ms: int) -> None:
        """Let so many milliseconds pass."""
        ...

    async def sleep_async(self, ms: int) -> None:
        """The same in an event loop, while others go on."""
        ...


class Wanted(TypedDict, total=False):
    """Which sessions :meth:`Store.sessions` lists; what is None or not given does not matter, and ``limit`` is 100."""

    owner: str | None
    status: str | None
    agent: str | None
    error: str | None
    label: str | None
    search: str | None
    since: int | None
    before: int | None
    expired: bool
    aside: bool
    ended: bool
    newest: bool
    after: str | None
    limit: int


class Store(Protocol):
    """Appends sealed commits with compare-and-swap, and gives them back."""

    id: str
    """Made once when the store is created."""
    epoch: str
    """Changes when the store's past may have changed (a restore, a promotion)."""
    url: str
    """How it was opened, without any secret."""
    promise: Promise

    def append(self, batch: Sequence[Append]) -> list[Landed | PerdureError]:
        """Make a batch durable together; answer each item on its own, in order.

        For each item, in this order: a row with the same session, line, step and id has
        already landed (``Landed(again=True)``; with another digest: ``Corrupted``); the
        token is not the session's current one (``LeaseLost``), or there is none while
        somebody holds the lease (``Busy``); the branch's head is not ``expect``, or the
        line and step are taken, or an inbox entry in ``takes`` is not waiting (``Conflict`` with the head).
        An item may build on an earlier one of the batch; one item's error never fails another.
        """
        ...

    def look(self, session: str) -> SessionRow | None:
        """What is known of a session (a tombstone included), with its lease and all its heads."""
        ...

    def starts(self, session: str, branch: str | None) -> list[Row]:
        """The first rows of all lines that were ever written under this branch name (None: any), by line."""
        ...

    def load(self, session: str, line: int, step: int | None = None, *, refs: bool = True) -> Bundle:
        """What is needed to rebuild a line at ``step`` (None: its last), at one instant.

        Without ``refs`` the packs that the base refers to are left out: whoever does not need the values of long
        lists does not read them.
        """
        ...

    def slice(self, session: str, line: int, lo: int, hi: int) -> Bundle:
        """Rows lo..hi of a line and the packs and anchors that hold the thin ones; ``base`` is None."""
        ...

    def artifacts(self, session: str) -> list[Artifact]:
        """All artifacts of a session."""
        ...

    def rewrite(self, change: Rewrite) -> bool:
        """Do maintenance in one transaction; False when it no longer applies."""
        ...

    def post(self, entries: Sequence[InboxEntry]) -> list[bool | Outrun | PerdureError]:
        """Put entries into inboxes, durably; True when new, False when the key was there already.

        The same key with another digest is an ``InvalidInput``. A session need not exist. A new entry gets the number
        after the newest one of its session, which goes on counting when the session ends and begins anew. When it
        says another number itself, nothing is written and ``Outrun`` tells the right one.
        """
        ...

    def inbox(self, session: str, limit: int = 100, key: str | None = None) -> list[InboxEntry]:
        """Waiting entries in order of arrival; with ``key`` only the one of that key."""
        ...

    def acquire(self, session: str, holder: str, ttl: int) -> Lease:
        """Take the lease for ``ttl`` ms, or raise ``Busy``; creates the session's row if need be.

        Tokens are store-wide and only ever grow.
        """
        ...

    def renew(self, leases: Sequence[Lease], ttl: int) -> list[bool]:
        """Extend leases; False where the token is no longer the current one."""
        ...

    def release(self, lease: Lease) -> None:
        """Give a lease back; no error when it was lost already."""
        ...

    def sessions(self, **wanted: Unpack[Wanted]) -> list[SessionRow]:
        """Sessions in order of id, after an id, tombstones left out.

        ``search`` is a part of the id or of the owner, as it is written; ``since`` and ``before`` bound the time of
        the last commit (the first is included, the second is not); ``expired`` keeps those whose TTL has run out by
        the store's own time; ``aside`` those that have expired and are kept for a while
        (:data:`perdure.model.ASIDE`), which are left out otherwise; ``ended`` shows tombstones instead of sessions.
        With ``newest`` those that were written last come first, those of the same millisecond in order of id, and
        ``after`` is the ``cursor`` of the last row seen.
        """
        ...

    def counts(self) -> list[tuple[str, str, str, int]]:
        """How many sessions there are by status, agent and error; tombstones, and what is set aside, left out."""
        ...

    def changes(self, after: str | None = None, limit: int = 1000) -> ChangePage:
        """Commits after a cursor (None: from the beginning): at least once, in order within a session."""
        ...

    def drop(self, session: str, token: int | None, reason: str, *, keep_waiting: bool = False) -> None:
        """Delete a session and leave a tombstone that keeps token and reason; fenced like a commit.

        With ``keep_waiting`` the entries stay that wait in its inbox: they are for whoever begins anew under its id.
        """
        ...

    def blob_refs(self) -> Iterator[str]:
        """Every blob that any row or artifact refers to (repeats allowed)."""
        ...

    def dump(self, session: str) -> Dump:
        """A whole session as stored, at one instant."""
        ...

    def restore(self, dump: Dump) -> None:
        """Put a dumped session into this store; ``Conflict`` if one with this id has checkpoints.

        Inputs that were posted here meanwhile stay, and those that the dump has taken count as taken. ``InvalidInput``,
        and nothing is written, when one that waits here has the key of another one in the dump.
        """
        ...

    def renew_epoch(self) -> None:
        """Give the store a new epoch: its past may differ from what cursors and tokens knew."""
        ...

    def usage(self) -> Usage:
        """Sizes."""
        ...

    def close(self) -> None:
        """Release everything; the store cannot be used afterwards."""
        ...


@runtime_checkable
class Cached(Protocol):
    """What a store offers beside :class:`Store` when a cache in front of it holds states. Nothing in it is believed."""

    def wants(self, session: str, line: int) -> bool:
        """Whether a state of this line would be kept."""
        ...

    def keep(self, session: str, branch: str, tip: Row, make: Callable[[], Artifact]) -> None:
        """Hold a state at ``tip``, the newest row of a branch; ``make`` seals it and may be called in another thread.

        It is a snapshot without refs, and what ``load`` gives back as the base.
        """
        ...

    def doubt(self, session: str, line: int) -> None:
        """What the cache gave of this line does not verify: from now on ask the store itself."""
        ...

    def remembered(self, session: str, branch: str) -> tuple[Store, int] | None:
        """A view of what the cache alone knows, possibly old, and the branch's line in it; only lines can be loaded."""
        ...


@runtime_checkable
class Logged(Protocol):
    """What a store offers beside :class:`Store` when it keeps each session in a log whose end can be damaged."""

    def damaged(self) -> list[Corrupted]:
        """What is to be said of each log whose last record is damaged: its loss may be accepted."""
        ...

    def unreadable(self) -> list[Corrupted]:
        """What is to be said of each log that cannot be read; not even whose it is may be known."""
        ...

    def accept_loss(self, session: str) -> str | None:
        """Set a damaged last record aside and go on from the one before; the file it is in, None when there is none."""
        ...

    def kept(self) -> list[str]:
        """The files with what was cut off or set aside."""
        ...


@runtime_checkable
class SetsAside(Protocol):
    """What a store offers beside :class:`Store` when it sets commits aside because its files were taken away."""

    def left_beside(self) -> list[str]:
        """The files in which they are, until somebody has removed these."""
        ...


class Blobs(Protocol):
    """Content-addressed bytes. A ref is the sha256 of the content in hex."""

    def put(self, ref: str, data: bytes) -> None:
        """Make the content durable under its ref; when it is there already, renew it instead."""
        ...

    def get(self, ref: str) -> bytes:
        """The content, verified; ``NotFound`` when missing, ``Corrupted`` when altered."""
        ...

    def put_stream(self, chunks: Iterable[bytes]) -> str:
        """The same for a content that comes in pieces and need not fit into memory; its ref."""
        ...

    def get_stream(self, ref: str) -> Iterator[bytes]:
        """The content in pieces; ``Corrupted`` before the last one is given out when they are not what was put."""
        ...

    def refs(self) -> Iterator[tuple[str, int]]:
        """All refs with the time (ms) each was last put or renewed."""
        ...

    def delete(self, ref: str, unless_renewed_since: int) -> bool:
        """Delete unless it was renewed at or after that time (ms); True when deleted."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class Live(Protocol):
    """Carries pieces of an answer on their way to whoever reads along. Nothing in it is durable, or believed."""

    def publish(self, session: str, piece: bytes) -> None:
        """Add a piece; what is too much is lost. Only the holder of the lease does this."""
        ...

    def poll(self, session: str, after: str) -> tuple[list[bytes], str]:
        """The pieces after a cursor ("" from the first that is there), and the cursor to ask with next time."""
        ...

    def clear(self, session: str) -> None:
        """Forget what was published: the answer was committed, or will not be."""
        ...


@runtime_checkable
class Talking(Protocol):
    """What a store offers beside :class:`Store` when pieces of answers may be carried through it."""

    def live(self) -> Live:
        """The way there."""
        ...


class Work(NamedTuple):
    """A session as the fleet sees it."""

    session: str
    agent: str
    owner: str = ""
    priority: int = 0
    """Larger goes first."""
    queued: bool = False
    """Whether it has something to do now and waits for a worker."""
    due: int | None = None
    """When it is to be looked at again by itself: a timer, or a retry."""
    worker: str = ""
    """Who works on it; "" when nobody does."""
    since: int = 0
    """When that worker claimed it."""
    tries: int = 0
    """Claims, this one included, at the place where it was last seen to fail or to be taken over."""
    step: int = 0
    """That place, as a number; see :meth:`Board.got`."""
    parked: str = ""
    """Why no worker takes it any more; "" when they do."""
    paused: bool = False
    """Whether a person has stopped it."""
    avoid_version: str = ""
    """The version of a program that could not go on with it; "" when none was there that could not."""


class NewWork(NamedTuple):
    """A session to be put on the board."""

    session: str
    agent: str
    owner: str = ""
    priority: int = 0


class Rest(NamedTuple):
    """How a worker puts a session down."""

    session: str
    step: int
    """How far it had come when it was claimed."""
    again: bool = False
    """Whether there is more to do at once: it was put down in mid-run."""
    due: int | None = None
    """When to look at it again although nobody posts anything: a timer, a result to be asked for, a retry."""
    failed: bool = False
    """Whether this claim goes on counting among the ``tries``; otherwise they start anew."""
    uncounted: bool = False
    """Whether this claim does not count at all: it was put down before anything was done with it."""
    avoid_version: str = ""
    """The version that cannot go on with it: workers of that version do not claim it before others have."""
    park: str = ""
    """Why nobody should try again; "" when somebody should."""


class WorkerRow(NamedTuple):
    """One worker: a process that runs sessions."""

    id: str
    host: str
    pid: int
    version: str
    """Of the program it runs, as the person who started it says."""
    agents: tuple[str, ...]
    concurrency: int
    busy: int = 0
    started: int = 0
    """By its own clock."""
    age: int = 0
    """Milliseconds since it was last heard of, by the store's clock; nothing when it is written."""
    wish: str = ""
    """What a person wants of it: "drain" means finish and go."""
    done: int = 0
    """Runs that it has ended so far, those that failed included."""
    recovered: int = 0
    """Sessions it took over from dead workers so far."""


class Filter(NamedTuple):
    """Which sessions of the board are meant; what is None or "" does not matter."""

    agent: str | None = None
    owner: str | None = None
    state: str | None = None
    """queued, working, waiting (for a timer or for somebody), parked or paused."""
    sessions: tuple[str, ...] | None = None
    tries: int = 0
    """At least so many claims since it last got any further."""


EVERY = Filter()


class Board(Protocol):
    """Who does what. Every method is one transaction, and may be called from any thread."""

    def put(self, items: Sequence[NewWork], *, most: int | None = None) -> int:
        """Put sessions on the board, or change their agent and priority, and queue them; how many were new.

        With ``most`` nothing is put and ``LimitExceeded`` is raised when more would be queued afterwards; with no
        items that is whether more are now.
        """
        ...

    def claim(
        self,
        worker: str,
        agents: Sequence[str],
        count: int,
        now: int,
        *,
        per_owner: int | None = None,
        version: str = "",
    ) -> list[Work]:
        """Take up to ``count`` queued sessions of these agents: higher priority first, then owners in turns.

        What was due by ``now`` is queued first. Owners in turns: each owner's sessions are numbered from the place the
        queue has reached, so that one with ten thousand of them does not stand before one with a single one. What is
        parked or paused, belongs to an agent that is held, or avoids this ``version``, is left. An owner with
        ``per_owner`` sessions at work gets no more.
        """
        ...

    def rest(self, worker: str, items: Sequence[Rest], now: int) -> None:
        """Put sessions down. One that something was posted to since it was claimed is queued again.

        What another worker has claimed meanwhile is left alone.
        """
        ...

    def got(self, worker: str, session: str, step: int, tries: int = 1) -> int:
        """Say at which place a claimed session stands; its tries there, this one included.

        Where that is another place than was said last, so many ``tries`` were made there: with those of a worker that
        died there before it could say so.
        """
        ...

    def beat(self, row: WorkerRow) -> str:
        """Say that a worker lives; what a person wishes of it."""
        ...

    def leave(self, worker: str) -> None:
        """A worker goes: its row is removed, and what it still had is queued again."""
        ...

    def reap(self, dead_after: int) -> list[Work]:
        """Queue what workers had that were not heard of for so many ms, and forget those workers; what they had."""
        ...

    def adopt(self, limit: int = 1000) -> int:
        """Queue sessions that have something to do while nobody knows: neither queued nor at work; how many.

        Those are sessions that name an agent and stand at ``running`` while nobody holds their lease, and sessions
        that name an agent, are not on the board at all, and have a waiting entry in their inbox that is no timer of
        later. Parked and paused ones are left.
        """
        ...

    def works(self, which: Filter = EVERY, *, after: str | None = None, limit: int = 100) -> list[Work]:
        """Sessions on the board in order of id, after an id."""
        ...

    def counts(self) -> dict[tuple[str, str], int]:
        """How many sessions there are by agent and state (see :class:`Filter`)."""
        ...

    def change(self, which: Filter, do: str, now: int) -> int:
        """Do something to sessions: "pause", "unpause", "retry", "forget"; how many.

        To be retried are those that are parked, and those that avoid a version: any may claim them again.
        """
        ...

    def hold(self, agent: str, on: bool) -> None:
        """Let no worker take sessions of an agent any more, new ones included; or let them again."""
        ...

    def held(self) -> list[str]:
        """Agents whose sessions no worker takes."""
        ...

    def workers(self) -> list[WorkerRow]:
        """All workers that are known, the dead ones not yet reaped among them."""
        ...

    def wish(self, worker: str | None, wish: str) -> int:
        """Tell a worker (None: all) what is wanted of it; how many were told."""
        ...

    def mark(self) -> str:
        """Something that differs when the board may have changed since: cheap to ask for, and often."""
        ...

    def slot(self, name: str, holder: str, most: int, ttl: int) -> bool:
        """Take or renew one of ``most`` places of that name in the whole fleet, for ``ttl`` ms of the store's clock."""
        ...

    def unslot(self, name: str, holder: str) -> None:
        """Give a place back."""
        ...


@runtime_checkable
class Boarded(Protocol):
    """What a store offers beside :class:`perdure.protocols.Store` when a fleet can work on it."""

    def has_board(self) -> bool:
        """Whether its board was made."""
        ...

    def board(self) -> Board:
        """Its board, which is made when it is first asked for."""
        ...
