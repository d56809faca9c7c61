"""The scripts of the Redis store, read from ``lua/``."""

from __future__ import annotations

from importlib import resources

from perdure.redislink import Script

_FOLDER = resources.files("perdure.stores") / "lua"
_COMMON = (_FOLDER / "common.lua").read_text(encoding="utf-8")


def _script(name: str, flags: str = "") -> Script:
    return Script(name, _COMMON + (_FOLDER / f"{name}.lua").read_text(encoding="utf-8"), flags)


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
ALL = (
    OPEN, APPEND, POST, ACQUIRE, RENEW, RELEASE, REWRITE, DROP, RESTORE, EPOCH, LINEAGE, LOOK, LIST, READ, STARTS,
    CHANGES, INBOX, SIZES, REFS,
)  # fmt: skip
