"""Results of reads that all sessions of one owner share: each in a small session of its own, which expires by itself.

No owner ever sees another one's: the owner is part of the name, and is compared with the verified checkpoint.
"""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Any

from perdure.errors import PerdureError
from perdure.history.hydrate import load_head, look
from perdure.model import MAIN, Kind
from perdure.record.codec import Settings
from perdure.session.journal import Journal
from perdure.state.document import STATE, plain
from perdure.system.flow import Do, Flow

if TYPE_CHECKING:
    from perdure.session.tools import Tool

PREFIX = "perdure:cache:"
"""Begins the ids of these sessions."""
MOST = 200
"""Results that a session keeps for itself; those whose time is over soonest give way."""


def cache_id(owner: str, digest: str) -> str:
    """The session that holds a result: named by whose it is, and by tool, version and canonical arguments."""
    return PREFIX + hashlib.sha256(f"{owner}\0{digest}".encode()).hexdigest()[:40]


class ReadCache:
    """The results of reads that a session keeps, or finds with its owner's other sessions."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def find(self, tool: Tool, digest: str) -> Flow[tuple[str, Any] | None]:
        """What a read returned lately, in this session or in another one of the same owner."""
        if tool.cache is None:
            return None
        now = self._journal.kernel.clock.wall()
        hit: Any = self._journal.book.get("cache", {}).get(digest)
        if (hit is None or hit["until"] <= now) and tool.cache_scope == "shared":
            hit = yield Do(self._shared, (digest,))
        if hit is None or hit["until"] <= now:
            return None
        return "cache", plain(hit["result"])

    def keep(self, digest: str, result: Any, seconds: float) -> None:
        """Keep a result in the session's own book, and no more of them than are of use; the next commit takes it."""
        now = self._journal.kernel.clock.wall()
        cache: Any = self._journal.book.setdefault("cache", {})
        over = [(hit["until"], key) for key, hit in cache.items() if key != digest]
        over.sort()
        for i, (until, key) in enumerate(over):
            if until > now and len(over) - i < MOST:
                break
            del cache[key]
        cache[digest] = {"result": result, "until": now + int(seconds * 1000)}

    def _shared(self, digest: str) -> dict[str, Any] | None:
        try:
            loaded = load_head(
                self._journal.kernel, look(self._journal.kernel, cache_id(self._journal.settings.owner, digest)), MAIN
            )
        except PerdureError:
            # Not there, or not to be had: the tool is asked instead.
            return None
        if loaded.point is None or loaded.point.envelope.owner != self._journal.settings.owner:
            return None
        return plain(loaded.doc[STATE]["vars"])

    def keep_shared(self, tool: Tool, digest: str, result: Any) -> Flow[None]:
        """Keep a result for all sessions of the owner; when somebody else is faster, theirs is as good."""
        assert tool.cache is not None
        until = self._journal.kernel.clock.wall() + int(tool.cache * 1000)
        settings = Settings(self._journal.settings.owner, max(1, int(tool.cache)), self._journal.kernel.schema, "reuse")
        # Nobody else has this journal: its gate is never waited for, whoever drives it.
        owner = self._journal.settings.owner
        entry = Journal(self._journal.kernel, cache_id(owner, digest), MAIN, None, settings, threading.Lock())
        try:
            yield from entry.load()
            if entry.point is not None and entry.point.envelope.owner != owner:
                return
            entry.document.root[STATE]["vars"].update(result=result, until=until)
            yield from entry.write(Kind.COMMIT, x={"tool": tool.name})
        except PerdureError:
            return
