"""Blobs inside a Redis or Valkey server: what a ``redis://`` database uses unless told otherwise.

Each is a string under ``<prefix>:blob:<ref>``; one sorted set says when each was last put. Putting and deleting are
scripts, so a blob that is being put again is never deleted under the hands of the one who relies on it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from perdure.blobs.content import WholeStreams, check_content, check_ref, check_size, verified
from perdure.errors import NotFound
from perdure.links.redis import Link, Script, check_server, prefix_of, server_info
from perdure.system.clock import SystemClock
from perdure.system.urls import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.protocols import Clock

MAX_BLOB = 16 * 1024 * 1024
"""The largest blob kept in Redis, where everything takes memory and one large answer makes all others wait."""
PAGE = 1000

_NOW = """
local function now()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
"""
# A blob that is there, and whole, is only renewed; never back in time. SHA-1 is what the server has, and tells damage:
# whoever would forge a content can write the server's data anyway.
_RENEW = Script(
    "renew",
    _NOW
    + """
if redis.call('STRLEN', KEYS[1]) ~= tonumber(ARGV[4]) or not redis.call('ZSCORE', ARGV[2], ARGV[3]) then return 0 end
if redis.sha1hex(redis.call('GET', KEYS[1])) ~= ARGV[5] then return 0 end
redis.call('ZADD', ARGV[2], 'GT', now(), ARGV[3])
return 1
""",
)
_PUT = Script(
    "put",
    _NOW
    + """
redis.call('SET', KEYS[1], ARGV[4])
redis.call('ZADD', ARGV[2], 'GT', now(), ARGV[3])
return 1
""",
)
_DELETE = Script(
    "delete",
    """
local renewed = redis.call('ZSCORE', ARGV[1], ARGV[2])
if not renewed or tonumber(renewed) >= tonumber(ARGV[3]) then return 0 end
redis.call('ZREM', ARGV[1], ARGV[2])
redis.call('UNLINK', KEYS[1])
return 1
""",
    "allow-oom",
)


class RedisBlobs(WholeStreams):
    """Implements :class:`perdure.protocols.Blobs` on a Redis or Valkey server."""

    def __init__(
        self, url: str, *, clock: Clock | None = None, retry_for: float = 10.0, socket_timeout: float = 5.0
    ) -> None:
        plain, prefix = prefix_of(url)
        self._url = shown(url)
        self._system = clock or SystemClock()
        self._clock = None if isinstance(self._system, SystemClock) else self._system
        self._prefix = prefix.encode()
        self._index = self._prefix + b":blobs"
        self._link = Link(
            plain,
            name=self._url,
            scripts=(_RENEW, _PUT, _DELETE),
            retry_for=retry_for,
            socket_timeout=socket_timeout,
            on_connect=lambda ask: check_server(server_info(ask), self._url),
        )

    def put(self, ref: str, data: bytes) -> None:
        """Make the content durable under its ref; when it is there already, renew it instead."""
        check_content(ref, data)
        check_size(data, MAX_BLOB, "Redis")
        key, name = self._key(ref), ref.encode()
        seen = hashlib.sha1(data, usedforsecurity=False).hexdigest().encode()
        if not self._link.one(_RENEW.call(key, self._now(), self._index, name, b"%d" % len(data), seen), writes=True):
            self._link.one(_PUT.call(key, self._now(), self._index, name, data), writes=True)

    def get(self, ref: str) -> bytes:
        """The content, verified; ``NotFound`` when missing, ``Corrupted`` when altered."""
        check_ref(ref)
        data = self._link.one((b"GET", self._key(ref)))
        if data is None:
            raise NotFound(f"there is no blob {ref} in {self._url}")
        return verified(ref, f"{self._url}, blob {ref}", data)

    def refs(self) -> Iterator[tuple[str, int]]:
        """All refs with the time (ms) each was last put or renewed, by the caller's own clock."""
        self._link.check()
        # By time, not by place: one that is renewed meanwhile moves to the end and is met again there.
        ahead = self._ahead()
        after, first = b"-inf", 0
        while True:
            limit = (b"LIMIT", b"%d" % first, b"%d" % PAGE)
            found = self._link.one((b"ZRANGEBYSCORE", self._index, after, b"+inf", b"WITHSCORES", *limit))
            for ref, at in zip(found[::2], found[1::2], strict=True):
                yield ref.decode(), int(at) - ahead
            if len(found) < 2 * PAGE:
                return
            # Many may have the same time: go on from it, past those of it that were seen.
            last = found[-1]
            same = sum(at == last for at in found[1::2])
            first = first + same if last == after else same
            after = last

    def delete(self, ref: str, unless_renewed_since: int) -> bool:
        """Delete unless it was renewed at or after that time (ms) of the caller's clock; True when deleted."""
        check_ref(ref)
        since = b"%d" % (unless_renewed_since + self._ahead())
        return self._link.one(_DELETE.call(self._key(ref), self._index, ref.encode(), since), writes=True) == 1

    def close(self) -> None:
        """Close all connections."""
        self._link.close()

    def _key(self, ref: str) -> bytes:
        return b"%b:blob:%b" % (self._prefix, ref.encode())

    def _now(self) -> bytes:
        return b"" if self._clock is None else b"%d" % self._clock.wall()

    def _ahead(self) -> int:
        """How far the server's clock is ahead of ours, in ms, and rather too little: then a blob looks younger."""
        if self._clock is not None:
            return 0
        seconds, micros = self._link.one((b"TIME",))
        return int(seconds) * 1000 + int(micros) // 1000 - self._system.wall() - 1
