"""What we ask of a server before we rely on it: whether it is one we can use, what it keeps, what it throws away."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import InvalidInput, Unavailable
from perdure.redislink.replies import Hopeless, cluster
from perdure.redislink.scripts import pack
from perdure.urls import take

if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX = "perdure"
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_INFO = pack(b"INFO", b"server", b"replication", b"cluster", b"memory", b"persistence")
_CONFIG = pack(b"CONFIG", b"GET", b"appendfsync", b"save")
_NO_ID = "0" * 40


def prefix_of(url: str) -> tuple[str, str]:
    """The URL without our parameter, and the prefix that begins every key.

    >>> prefix_of("redis://host/0?prefix=shop")
    ('redis://host/0', 'shop')
    """
    plain, ours = take(url, "prefix")
    prefix = ours.get("prefix", PREFIX)
    if not _PREFIX.fullmatch(prefix):
        raise InvalidInput(f"a prefix has up to 100 letters, digits, dots, dashes and underscores: {prefix[:40]!a}")
    return plain, prefix


class Server(NamedTuple):
    """What a server says of itself; None where it does not say."""

    major: int | None
    cluster: bool
    replica: bool
    loading: bool
    policy: str | None
    appendonly: bool | None
    appendfsync: str | None
    """Only when the append-only file is in use."""
    save: str | None
    life: str
    """Names this process and this line of replication; "" when unknown."""
    process: str
    promoted: bool
    """It was a replica in this life."""
    replicas: int


def look_at(ask: Callable[[bytes], Any]) -> Server:
    """Ask a server about itself; what it refuses to say (managed services do) stays unknown."""
    about = _info(_allowed(ask, _INFO))
    settings: list[Any] = _allowed(ask, _CONFIG) or []
    values = {_text(name): _text(value) for name, value in zip(settings[::2], settings[1::2], strict=False)}
    version = about.get("redis_version", "").partition(".")[0]
    enabled = about.get("aof_enabled")
    process, replication = about.get("run_id", ""), about.get("master_replid", "")
    return Server(
        major=int(version) if version.isdigit() else None,
        cluster=about.get("cluster_enabled") == "1",
        replica=about.get("role", "master") != "master",
        loading=about.get("loading") == "1",
        policy=about.get("maxmemory_policy"),
        appendonly=None if enabled is None else enabled == "1",
        appendfsync=values.get("appendfsync") if enabled == "1" else None,
        save=values.get("save"),
        life=f"{process}:{replication}" if process and replication else "",
        process=process,
        promoted=about.get("master_replid2", _NO_ID) != _NO_ID,
        replicas=int(about.get("connected_slaves", "0")),
    )


def check(server: Server, where: str) -> None:
    """Refuse a server that cannot hold a store."""
    if server.cluster:
        raise cluster(where)
    if server.replica:
        raise Unavailable(f"{where}: this server is a replica and takes no writes: use the address of the primary")
    if server.loading:
        raise Unavailable(f"{where}: the server is still loading its data: try again in a moment")
    if server.major is not None and server.major < 7:
        raise InvalidInput(f"{where}: this is Redis {server.major}: Redis 7 or Valkey is needed")
    if server.policy not in (None, "noeviction"):
        raise InvalidInput(
            f"{where}: the server would delete keys when its memory is full (maxmemory-policy {server.policy}), and "
            "checkpoints with them: CONFIG SET maxmemory-policy noeviction, and the same in its configuration file"
        )


def _allowed(ask: Callable[[bytes], Any], command: bytes) -> Any:
    try:
        return ask(command)
    except Unavailable as error:
        if isinstance(error, Hopeless) or "unknown command" in str(error):
            return None
        raise


def _info(raw: Any) -> dict[str, str]:
    lines = _text(raw).splitlines() if raw else []
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name: value for name, _, value in pairs}


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
