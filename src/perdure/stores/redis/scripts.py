"""The scripts of the Redis store (in lua/), how they are called, and what their refusals mean."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any, cast

from perdure.errors import Corrupted, InvalidInput
from perdure.links.redis import Script
from perdure.stores import rules
from perdure.stores.redis.format import Form
from perdure.system.clock import SystemClock
from perdure.system.lease_holders import busy, is_dead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.errors import PerdureError
    from perdure.links.redis import Command, Link
    from perdure.protocols import Clock


class ScriptRunner:
    """Calls the scripts of one store: its keys, its id, its clock."""

    def __init__(self, link: Link, prefix: str, clock: Clock, changes_kept: int) -> None:
        self.link = link
        self.url = link.url
        self.prefix = prefix.encode()
        self.id = b""
        self.form = Form(link.url)
        self.kept = b"%d" % changes_kept
        self._clock = None if isinstance(clock, SystemClock) else clock

    # -- asking ------------------------------------------------------------------------------------

    def key(self, session: str) -> bytes:
        """The key that everything of a session is derived from."""
        return b"%b:s:%b" % (self.prefix, utf8(session))

    def now(self) -> bytes:
        """Nothing, for the server's own time; else a test's clock: wall time and the time of leases."""
        clock = self._clock
        return b"" if clock is None else b"%d:%d" % (clock.wall(), clock.monotonic())

    def call(self, script: Script, session: str | None, *args: bytes) -> Command:
        """A call of a script, about a session or about the store."""
        return script.call(None if session is None else self.key(session), self.prefix, self.id, *args)

    def ask(self, script: Script, session: str | None, *args: bytes) -> Any:
        """Call a script and give back its answer; a refusal that means the same everywhere is raised."""
        answer: Any = self.link.one(self.call(script, session, *args), writes=script.writes)
        parts = refusal(answer)
        if parts and parts[0] in _EVERYWHERE:
            raise self.refused(parts, session or "")
        return answer

    # -- refusals ----------------------------------------------------------------------------------

    def refused(self, answer: Sequence[Any], session: str) -> PerdureError:
        """The error for a refusal that needs no more than the session to be told."""
        match answer[0]:
            case b"other":
                return self.replaced()
            case b"lost":
                return rules.lease_lost(session)
            case b"busy":
                return busy(session, answer[1].decode(errors="replace"), answer[4] + answer[3])
            case b"none":
                return rules.no_session(session)
            case b"gone":
                return rules.gone(session, answer[1].decode(errors="replace"))
            case _:
                return self.form.damaged("an answer of the server")

    def replaced(self) -> Corrupted:
        """The server no longer holds the store that was opened."""
        return Corrupted(
            self.url,
            "the store that was opened here is gone (the server was emptied, or lost its data in a restart, "
            "or another store was put in its place)",
        )


_EVERYWHERE = (b"other", b"lost", b"busy", b"none", b"gone")


def refusal(answer: Any) -> list[Any] | None:
    """The parts of an answer that has any: a refusal, where a number means that it was done."""
    return cast("list[Any]", answer) if isinstance(answer, list) else None


def dead_holder(answer: Any) -> bytes | None:
    """The token of the lease that keeps a session busy, when its holder is a process that has certainly ended."""
    parts = refusal(answer)
    if parts and parts[0] == b"busy" and is_dead(parts[1].decode(errors="replace")):
        return parts[2]
    return None


def utf8(text: str) -> bytes:
    """A name as bytes; half of a surrogate pair is no text."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInput("a name holds half of a surrogate pair, which is no text") from None


ALL: list[Script] = []
_FOLDER = resources.files("perdure.stores.redis") / "lua"
_COMMON = (_FOLDER / "common.lua").read_text(encoding="utf-8")


def _script(name: str, flags: str = "") -> Script:
    ALL.append(Script(name, _COMMON + (_FOLDER / f"{name}.lua").read_text(encoding="utf-8"), flags))
    return ALL[-1]


_READS = "no-writes"
_EVEN_WHEN_FULL = "allow-oom"
"""For what is needed to make room again."""


OPEN = _script("open", _EVEN_WHEN_FULL)
APPEND = _script("append")
POST = _script("post")
ACQUIRE = _script("acquire", _EVEN_WHEN_FULL)
RENEW = _script("renew", _EVEN_WHEN_FULL)
RELEASE = _script("release", _EVEN_WHEN_FULL)
REWRITE = _script("rewrite", _EVEN_WHEN_FULL)
DROP = _script("drop", _EVEN_WHEN_FULL)
RESTORE = _script("restore")
EPOCH = _script("epoch", _EVEN_WHEN_FULL)
LINEAGE = _script("lineage", _EVEN_WHEN_FULL)
LOOK = _script("look", _READS)
LIST = _script("list", _READS)
READ = _script("read", _READS)
STARTS = _script("starts", _READS)
CHANGES = _script("changes", _READS)
INBOX = _script("inbox", _READS)
SIZES = _script("sizes", _READS)
REFS = _script("refs", _READS)
