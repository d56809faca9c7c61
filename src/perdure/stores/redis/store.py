"""The Redis store: one Redis or Valkey server, any number of machines. The handle; its parts lie beside it."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from perdure.errors import InvalidInput, UnsupportedFormat
from perdure.links.redis import Link, check_server, prefix_of, server_info
from perdure.model import Promise
from perdure.stores.listing import Asked
from perdure.stores.redis import scripts
from perdure.stores.redis.live import RedisLive
from perdure.stores.redis.read import Reader
from perdure.stores.redis.scripts import ScriptRunner
from perdure.stores.redis.write import BATCH, Writer, restore
from perdure.system.clock import SystemClock
from perdure.system.urls import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Unpack

    from perdure.errors import PerdureError
    from perdure.links.redis import Ask, Server
    from perdure.model import (
        Append,
        Artifact,
        Bundle,
        ChangePage,
        Dump,
        InboxEntry,
        Landed,
        Lease,
        Rewrite,
        Row,
        SessionRow,
        Usage,
    )
    from perdure.protocols import Clock
    from perdure.stores.listing import Count, Wanted

FORMAT = b"1"
OPENING = 2.0
"""Seconds for which a server that cannot be reached is tried again when a store is opened."""


class RedisStore:
    """Implements :class:`perdure.protocols.Store` on a Redis or Valkey server.

    The URL's own parameter ``prefix`` begins every key: one server may hold many stores. ``changes_kept`` is about
    how many commits the list of changes goes back. ``wait_replicas`` makes each commit wait for so many replicas.
    ``retry_for`` is for how many seconds a lost connection is tried again, ``socket_timeout`` for how many the
    server may stay silent.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        changes_kept: int = 100_000,
        wait_replicas: int = 0,
        retry_for: float = 10.0,
        socket_timeout: float = 5.0,
    ) -> None:
        self.url = shown(url)
        plain, prefix = prefix_of(url)
        if changes_kept < 1 or wait_replicas < 0 or retry_for < 0 or not socket_timeout > 0:
            raise InvalidInput("changes_kept is at least 1, wait_replicas and retry_for 0, socket_timeout more than 0")
        self._link = Link(
            plain,
            name=self.url,
            scripts=scripts.ALL,
            retry_for=retry_for,
            socket_timeout=socket_timeout,
            on_connect=self._on_connect,
        )
        self._runner = ScriptRunner(self._link, prefix, clock or SystemClock(), changes_kept)
        self._reader = Reader(self._runner)
        self._writer = Writer(self._runner, wait_replicas, socket_timeout)
        self._server: Server | None = None
        self.id = self.epoch = ""
        try:
            self._link.one((b"PING",), patience=min(retry_for, OPENING))
        except BaseException:
            self._link.close()
            raise
        assert self._server is not None
        self.promise = promise_of(self._server, wait_replicas)
        warn_if_nothing_is_kept(self._server, self.url)

    def _on_connect(self, ask: Ask) -> None:
        """On each new connection: is this a server to rely on, and still the store that was opened?"""
        server = server_info(ask)
        check_server(server, self.url)
        prefix = self._runner.prefix
        if not self.id:
            id, epoch = os.urandom(16).hex().encode(), os.urandom(8).hex().encode()
            format, self._runner.id = ask(scripts.OPEN.call(None, prefix, id, epoch))
            if format != FORMAT:
                raise UnsupportedFormat(f"{self.url}: this store was written by a newer Perdure: upgrade this process")
        epoch = ask(
            scripts.LINEAGE.call(
                None,
                prefix,
                self._runner.id,
                server.life.encode(),
                server.process.encode(),
                b"1" if kept_by(server) == "always" else b"0",
                b"1" if server.promoted else b"0",
                b"%d" % server.replicas,
                os.urandom(8).hex().encode(),
            )
        )
        if type(epoch) is list:
            raise self._runner.replaced()
        self.id, self.epoch, self._server = self._runner.id.decode(), epoch.decode(), server

    def live(self) -> RedisLive:
        """Carries pieces of answers on their way, in streams of their own."""
        return RedisLive(self._runner)

    # -- commits and inbox -------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> list[Landed | PerdureError]:
        """Make a batch durable in one round trip; see the protocol for the rules."""
        if len(batch) <= BATCH and batch:
            return self._writer.append(batch)
        self._link.check()
        answers: list[Landed | PerdureError] = []
        for start in range(0, len(batch), BATCH):
            answers += self._writer.append(batch[start : start + BATCH])
        return answers

    def post(self, entries: Sequence[InboxEntry]) -> list[bool | PerdureError]:
        """Put entries into inboxes in one round trip."""
        self._link.check()
        return self._writer.post(entries)

    def inbox(self, session: str, limit: int = 100, key: str | None = None) -> list[InboxEntry]:
        """Waiting entries in order of arrival; with ``key`` only the one of that key."""
        return self._reader.inbox(session, limit, key)

    # -- looking -----------------------------------------------------------------------------------

    def look(self, session: str) -> SessionRow | None:
        """What is known of a session, a tombstone included."""
        return self._reader.look(session)

    def starts(self, session: str, branch: str | None) -> list[Row]:
        """The first rows of all lines of a branch (None: of all branches)."""
        return self._reader.starts(session, branch)

    def load(self, session: str, line: int, step: int | None = None, *, refs: bool = True) -> Bundle:
        """What is needed to rebuild a line at a step (None: its last)."""
        return self._reader.load(session, line, step, refs=refs)

    def slice(self, session: str, line: int, lo: int, hi: int) -> Bundle:
        """Rows lo..hi of a line, with the packs that hold the thin ones."""
        return self._reader.slice(session, line, lo, hi)

    def artifacts(self, session: str) -> list[Artifact]:
        """All artifacts of a session."""
        return self._reader.artifacts(session)

    def sessions(self, **wanted: Unpack[Wanted]) -> list[SessionRow]:
        """Sessions in order of id, or the newest first, without tombstones."""
        return self._reader.sessions(Asked(**wanted))

    def counts(self) -> list[Count]:
        """How many sessions there are by status, agent and error."""
        return self._reader.counts()

    def changes(self, after: str | None = None, limit: int = 1000) -> ChangePage:
        """Commits after a cursor, as far back as the stream goes."""
        return self._reader.changes(after, limit)

    def blob_refs(self) -> Iterator[str]:
        """Every blob that any row or artifact refers to."""
        return self._reader.blob_refs()

    # -- leases ------------------------------------------------------------------------------------

    def acquire(self, session: str, holder: str, ttl: int) -> Lease:
        """Take the lease for ``ttl`` ms of the server's time, or raise ``Busy``."""
        return self._writer.acquire(session, holder, ttl)

    def renew(self, leases: Sequence[Lease], ttl: int) -> list[bool]:
        """Extend leases; False where the token is no longer the current one."""
        return self._writer.renew(leases, ttl)

    def release(self, lease: Lease) -> None:
        """Give a lease back."""
        self._writer.release(lease)

    # -- maintenance -------------------------------------------------------------------------------

    def rewrite(self, change: Rewrite) -> bool:
        """Do maintenance in one script; False when it no longer applies."""
        return self._writer.rewrite(change)

    def drop(self, session: str, token: int | None, reason: str) -> None:
        """Delete a session and leave a tombstone."""
        self._writer.drop(session, token, reason)

    def dump(self, session: str) -> Dump:
        """A whole session as stored, at one instant."""
        return self._reader.dump(session)

    def restore(self, dump: Dump) -> None:
        """Put a dumped session into this store."""
        self._link.check()
        restore(self._runner, dump)

    def renew_epoch(self) -> None:
        """Give the store a new epoch: cursors expire and every lease ends."""
        epoch = os.urandom(8).hex()
        self._writer.renew_epoch(epoch)
        self.epoch = epoch

    def usage(self) -> Usage:
        """Sizes; bytes are those of rows, artifacts and inbox entries, without what Redis adds."""
        return self._reader.usage()

    def close(self) -> None:
        """Close all connections."""
        self._link.close()


_RETURNED = "When a commit has returned the server has it, so it survives the end of this process. "
_KEPT = {
    "always": (
        "The server wrote it to its append-only file and synced that first (appendfsync always): it survives the end "
        "of the server and a loss of power, as far as the disk keeps what it says it has synced."
    ),
    "everysec": (
        "The server syncs its append-only file once a second (appendfsync everysec): when the server crashes or loses "
        "power, the commits of the last two seconds or so may be gone, and nobody is told."
    ),
    "no": (
        "The server leaves it to its operating system when the append-only file is synced (appendfsync no): a loss of "
        "power may take back the commits of half a minute or more."
    ),
    "snapshots": (
        "The server keeps no append-only file and only takes snapshots of its memory now and then: when it crashes, "
        "all commits since the last snapshot are gone. Use CONFIG SET appendonly yes and appendfsync always."
    ),
    "nothing": (
        "The server persists nothing: when it ends, everything is gone. Use CONFIG SET appendonly yes and "
        "appendfsync always."
    ),
    "unknown": (
        "The server does not say whether and when it writes to a disk (CONFIG GET is not allowed): ask whoever runs "
        "it, and count on nothing when the server crashes."
    ),
}
_FAILOVER = (
    " Replication is asynchronous: a replica that is promoted may lack commits that had returned. A promotion is "
    "noticed when we connect again: leases and cursors from before it are refused."
)
_WAITED = (
    " Each commit waits until {n} replica(s) have it in memory, which makes it unlikely, not impossible, that a "
    "promotion loses it."
)


def kept_by(server: Server) -> str:
    """Which of the promises holds on this server."""
    if server.appendonly:
        return server.appendfsync if server.appendfsync in _KEPT else "unknown"
    if server.appendonly is None or server.save is None:
        return "unknown"
    return "snapshots" if server.save.strip() else "nothing"


def promise_of(server: Server, wait_replicas: int) -> Promise:
    """The promise in code and in words."""
    kept = kept_by(server)
    waited = _WAITED.format(n=wait_replicas) if wait_replicas else ""
    return Promise(
        process_crash=kept in ("always", "everysec", "no"),
        power_loss=kept == "always",
        words=_RETURNED + _KEPT[kept] + _FAILOVER + waited,
    )


def warn_if_nothing_is_kept(server: Server, where: str) -> None:
    """Warn (once per place, as warnings do) when everything is gone with the server's process."""
    if kept_by(server) == "nothing":
        warnings.warn(
            f"{where} persists nothing: when the server ends, all checkpoints are gone. "
            "CONFIG SET appendonly yes and CONFIG SET appendfsync always make it keep them.",
            stacklevel=4,
        )
