"""Pieces of answers on their way through Redis: one short list for each session that is talking, gone after a day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.stores.live import MOST, STALE

if TYPE_CHECKING:
    from perdure.stores.redis.scripts import ScriptRunner

_QUIET = 60
"""Seconds that the place is remembered after the last word."""


class RedisLive:
    """Implements :class:`perdure.protocols.Live` with a stream, capped, and a name that tells one from the next."""

    def __init__(self, runner: ScriptRunner) -> None:
        self._runner = runner
        self._bytes: dict[str, int] = {}

    def _key(self, session: str) -> bytes:
        return b"%b:live:%b" % (self._runner.prefix, session.encode())

    def publish(self, session: str, piece: bytes) -> None:
        """Append a piece."""
        said = self._bytes.get(session, 0) + len(piece)
        if said > MOST:
            return
        self._bytes[session] = said
        key, link = self._key(session), self._runner.link
        link.one((b"XADD", key, b"MAXLEN", b"~", b"10000", b"*", b"p", piece), writes=True)
        link.one((b"EXPIRE", key, b"%d" % STALE), writes=True)

    def poll(self, session: str, after: str) -> tuple[list[bytes], str]:
        """The pieces after a cursor, and the next one."""
        since = f"({after}".encode() if after else b"-"
        found: Any = self._runner.link.one((b"XRANGE", self._key(session), since, b"+"))
        pieces = [bytes(fields[1]) for _, fields in found]
        return pieces, bytes(found[-1][0]).decode() if found else after

    def clear(self, session: str) -> None:
        """Forget what was published.

        The stream is emptied, not deleted: a new one would count from the clock again, and what is said within the
        same millisecond would stand before the place that readers have reached.
        """
        self._bytes.pop(session, None)
        key, link = self._key(session), self._runner.link
        link.one((b"XTRIM", key, b"MAXLEN", b"0"), writes=True)
        link.one((b"EXPIRE", key, b"%d" % _QUIET), writes=True)
