"""What a server's refusals and a broken connection mean to a caller. No I/O here, and no secret in any word."""

from __future__ import annotations

from typing import Final

from perdure.errors import Corrupted, InvalidInput, PerdureError, StoreFull, Unavailable

PASSING: Final = ("NOSCRIPT", "LOADING", "BUSY", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS", "READONLY", "CLUSTERDOWN")
"""Refusals that may pass by themselves, or on another connection: the command was not executed."""


class Hopeless(Unavailable):
    """Trying again cannot help: somebody must change a name, a password or a setting first."""


def code_of(error: BaseException) -> tuple[str, str]:
    """The first word of a server's refusal, which says what kind it is, and the rest."""
    code = getattr(error, "status_code", None)
    if code:
        return str(code), str(error)
    first, _, rest = str(error).partition(" ")
    return (first, rest) if first.isupper() else ("ERR", str(error))


def translate(code: str, words: str, where: str) -> PerdureError:
    """The error for a server's refusal; nothing was written by the refused command.

    >>> translate("OOM", "command not allowed when used memory > 'maxmemory'.", "redis://h")
    StoreFull('redis://h: the server has reached maxmemory; nothing was written and earlier checkpoints are ...')
    """
    match code:
        case "OOM":
            return StoreFull(
                f"{where}: the server has reached maxmemory; nothing was written and earlier checkpoints are intact: "
                "raise maxmemory, or sweep and prune sessions"
            )
        case "READONLY":
            return Unavailable(
                f"{where}: this server is a replica and takes no writes: use the address of the primary; "
                "nothing was written"
            )
        case "MISCONF" if "No space left" in words:
            return StoreFull(
                f"{where}: the server's disk is full and it refuses writes; nothing was written and earlier "
                "checkpoints are intact: free some space there"
            )
        case "MISCONF":
            return Unavailable(
                f"{where}: the server refuses writes because it cannot persist to its disk: see to the disk and the "
                "server's log; nothing was written"
            )
        case "DENIED":
            return Hopeless(f"{where}: the server is in protected mode: give it a password, or let it listen for us")
        case "NOAUTH":
            return Hopeless(f"{where}: the server asks for a password: write redis://user:password@host")
        case "WRONGPASS":
            return Hopeless(f"{where}: the server does not accept this user and password: check both in the URL")
        case "NOPERM":
            return _not_allowed(where)
        case "LOADING":
            return Unavailable(f"{where}: the server is still loading its data: try again in a moment")
        case "BUSY":
            return Unavailable(f"{where}: a script of somebody else has been running for too long: SCRIPT KILL ends it")
        case "MASTERDOWN" | "NOREPLICAS" | "TRYAGAIN" | "CLUSTERDOWN":
            return Unavailable(f"{where}: the server cannot take this now ({code}): see to its replication")
        case "WRONGTYPE":
            return Corrupted(where, "a key of the store holds something else than what was written there")
        case "MOVED" | "ASK" | "CROSSSLOT":
            return cluster(where)
        case _:
            if "ACL failure" in words:
                return _not_allowed(where)
            if "user_script" in words or "script:" in words:
                return Corrupted(where, f"a script found the store's keys damaged ({_short(words)})")
            if "DB index is out of range" in words:
                return InvalidInput(f"{where}: the server has no database of this number: use /0 at the end of the URL")
            return Unavailable(f"{where}: the server says {_short(f'{code} {words}')}; nothing was written")


def _not_allowed(where: str) -> Hopeless:
    return Hopeless(
        f"{where}: this user may not do that: allow it the commands and keys of the store "
        "(ACL SETUSER <user> ~<prefix>:* +@all -@dangerous +info +config|get)"
    )


def cluster(where: str) -> InvalidInput:
    """The server is part of a Redis Cluster."""
    return InvalidInput(
        f"{where}: this is a Redis Cluster, where one commit cannot be atomic over the keys it needs: "
        "use a single Redis or Valkey (with replicas, if you like)"
    )


def _short(message: str) -> str:
    return repr(" ".join(message.split())[:160])


def unreachable(error: BaseException, where: str) -> Unavailable:
    """The server cannot be reached, or broke off, or does not answer in time."""
    text = str(error)
    for sign, words in _HOPELESS:
        if sign in text:
            return Hopeless(f"{where}: {words}; nothing was written")
    words = "the connection broke off"
    if "imeout" in type(error).__name__ or "timed out" in text:
        words = "the server does not answer in time: see whether it hangs, or raise socket_timeout"
    if where.startswith("rediss:"):
        words += " (or write redis:// if it does not speak TLS)"
    for sign, said in _PASSING:
        if sign in text:
            words = said
    return Unavailable(f"{where}: {words}; nothing was written")


_HOPELESS: Final = (
    ("Name or service not known", "there is no such host: correct the name in the URL"),
    ("No address associated", "there is no such host: correct the name in the URL"),
    ("nodename nor servname", "there is no such host: correct the name in the URL"),
    ("CERTIFICATE_VERIFY_FAILED", "the server's certificate is not trusted: pass ssl_ca_certs in the URL"),
    ("WRONG_VERSION_NUMBER", "the server does not speak TLS: write redis:// instead of rediss://"),
    ("RECORD_LAYER_FAILURE", "the server does not speak TLS: write redis:// instead of rediss://"),
    ("SSL", "the TLS handshake failed: check the certificates, or write redis:// for a server without TLS"),
)
_PASSING: Final = (
    ("refused", "nobody listens there: start the server, or correct host and port in the URL"),
    ("name resolution", "the host's name cannot be resolved: correct it, or see to the network"),
    ("unreachable", "the network does not lead there: check the address in the URL"),
    ("No such file", "there is no such socket: correct the path in the URL"),
    ("max number of clients", "the server has no connection left: raise its maxclients"),
)
