"""The scripts of the Redis store, read from ``lua/``."""

from __future__ import annotations

from importlib import resources

from perdure.redislink import Script

_FOLDER = resources.files("perdure.stores") / "lua"
_COMMON = (_FOLDER / "common.lua").read_text(encoding="utf-8")


def _script(name: str, *, writes: bool = True) -> Script:
    return Script(name, _COMMON + (_FOLDER / f"{name}.lua").read_text(encoding="utf-8"), writes=writes)


OPEN = _script("open")
APPEND = _script("append")
POST = _script("post")
ACQUIRE = _script("acquire")
RENEW = _script("renew")
RELEASE = _script("release")
REWRITE = _script("rewrite")
DROP = _script("drop")
RESTORE = _script("restore")
EPOCH = _script("epoch")
LINEAGE = _script("lineage")
LOOK = _script("look", writes=False)
LIST = _script("list", writes=False)
READ = _script("read", writes=False)
STARTS = _script("starts", writes=False)
CHANGES = _script("changes", writes=False)
INBOX = _script("inbox", writes=False)
SIZES = _script("sizes", writes=False)
REFS = _script("refs", writes=False)
ALL = (
    OPEN, APPEND, POST, ACQUIRE, RENEW, RELEASE, REWRITE, DROP, RESTORE, EPOCH, LINEAGE, LOOK, LIST, READ, STARTS,
    CHANGES, INBOX, SIZES, REFS,
)  # fmt: skip
