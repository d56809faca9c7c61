"""The interfaces between layers: Store, Blobs, Clock. Small on purpose; implement these to add a backend.

A store carries envelopes and sealed bytes; it knows nothing of codecs, deltas or keys.
Every method is synchronous and may be called from any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from perdure.errors import PerdureError
    from perdure.model import (
        Append,
        Artifact,
        Bundle,
        ChangePage,
        Dump,
        InboxEntry,
        Landed,
        Lease,
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

    def post(self, entries: Sequence[InboxEntry]) -> list[bool | PerdureError]:
        """Put entries into inboxes, durably; True when new, False when the key was there already.

        The same key with another digest is an ``InvalidInput``. A session need not exist.
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

    def sessions(
        self,
        *,
        owner: str | None = None,
        status: str | None = None,
        agent: str | None = None,
        error: str | None = None,
        search: str | None = None,
        since: int | None = None,
        before: int | None = None,
        expired_at: int | None = None,
        newest: bool = False,
        after: str | None = None,
        limit: int = 100,
    ) -> list[SessionRow]:
        """Sessions in order of id, after an id, tombstones left out.

        ``search`` is a part of the id or of the owner, as it is written; ``since`` and ``before`` bound the time of
        the last commit (the first is included, the second is not); ``expired_at`` keeps those whose TTL had run out
        by then. With ``newest`` those that were written last come first, those of the same millisecond in order of
        id, and ``after`` is the ``cursor`` of the last row seen.
        """
        ...

    def counts(self) -> list[tuple[str, str, str, int]]:
        """How many sessions there are by status, agent and error, tombstones left out."""
        ...

    def changes(self, after: str | None = None, limit: int = 1000) -> ChangePage:
        """Commits after a cursor (None: from the beginning): at least once, in order within a session."""
        ...

    def drop(self, session: str, token: int | None, reason: str) -> None:
        """Delete a session and leave a tombstone that keeps token and reason; fenced like a commit."""
        ...

    def blob_refs(self) -> Iterator[str]:
        """Every blob that any row or artifact refers to (repeats allowed)."""
        ...

    def dump(self, session: str) -> Dump:
        """A whole session as stored, at one instant."""
        ...

    def restore(self, dump: Dump) -> None:
        """Put a dumped session into this store; ``Conflict`` if one with this id has checkpoints."""
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

    def say(self, session: str, piece: bytes) -> None:
        """Add a piece; what is too much is lost. Only the holder of the lease does this."""
        ...

    def hear(self, session: str, after: str) -> tuple[list[bytes], str]:
        """The pieces after a cursor ("" from the first that is there), and the cursor to ask with next time."""
        ...

    def hush(self, session: str) -> None:
        """Forget what was said: the answer was committed, or will not be."""
        ...


@runtime_checkable
class Talking(Protocol):
    """What a store offers beside :class:`Store` when pieces of answers may be carried through it."""

    def live(self) -> Live:
        """The way there."""
        ...
