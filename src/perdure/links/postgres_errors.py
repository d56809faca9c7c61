"""What PostgreSQL's errors mean to a caller. Nothing here touches a server, and no message carries a value."""

from __future__ import annotations

from perdure.errors import (
    InvalidInput,
    LimitExceeded,
    MissingExtra,
    PerdureError,
    StoreFull,
    Unavailable,
    UnsupportedFormat,
)

try:
    import psycopg
except ImportError:
    raise MissingExtra("psycopg", "postgres") from None

_CLASH = {"40001", "40P01", "55P03"}
_AGAIN = {*_CLASH, "53300", "57014"}
_LOST = {"57P01", "57P02", "57P03", "57P05", "25P03", "08000", "08001", "08003", "08004", "08006", "08P01"}
_WAIT_FOR_IT = ("starting up", "shutting down", "not yet accepting", "too many clients", "remaining connection slots",
                "in recovery mode", "Connection refused", "server closed the connection", "timeout expired",
                "Connection reset", "server login has been failing", "server_login_retry")  # fmt: skip
_ADVICE = (
    ("password authentication failed", "check user and password"),
    ("no password supplied", "put the password into the URL, or into PGPASSWORD or a .pgpass file"),
    ("no pg_hba.conf entry", "the server's pg_hba.conf admits no such connection: ask whoever runs it"),
    ("does not exist", "create it, or check the names in the URL"),
    ("no such database", "create it, or check the names in the URL and PgBouncer's [databases]"),
    ("translate host name", "check the host name in the URL"),
    ("resolve host", "check the host name in the URL"),
    ("Connection refused", "is the server running, and at this host and port?"),
    ("timeout expired", "is the server running, and at this host and port?"),
    ("too many clients", "the server has no free connections: close some, or put PgBouncer in between"),
    ("remaining connection slots", "the server has no free connections: close some, or put PgBouncer in between"),
    ("SSL", "see to sslmode and the certificates"),
)


class Clash(Unavailable):
    """Transactions got in each other's way, and the server has undone this one: in smaller pieces it may go through."""


def is_clash(error: BaseException) -> bool:
    """Whether the server ended a transaction so that another one could go on."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _CLASH


def is_lost(error: BaseException) -> bool:
    """Whether the connection went, so that nobody knows what became of the last statement."""
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return error.sqlstate is None or error.sqlstate in _LOST
    return False


def is_replica(error: BaseException) -> bool:
    """Whether the server only reads, as a replica does; after a failover another host may be the one that writes."""
    if not isinstance(error, psycopg.Error):
        return False
    return error.sqlstate == "25006" or (error.sqlstate == "55000" and "recovery" in str(error))


def is_worth_another_try(error: BaseException) -> bool:
    """Whether the server undid everything and the same may work the next time: a deadlock, for instance."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _AGAIN


def may_come_back(error: psycopg.Error) -> bool:
    """Whether a connection that could not be made may be possible in a moment."""
    text = str(error)
    return any(words in text for words in _WAIT_FOR_IT)


def not_connected(error: psycopg.Error, url: str) -> PerdureError:
    """The error for a connection that could not be made."""
    why = _one_line(error)
    advice = next((advice for words, advice in _ADVICE if words in why), "see to the server")
    return Unavailable(f"{url}: cannot connect ({why}): {advice}; nothing was written")


def translate(error: BaseException, url: str) -> PerdureError | None:
    """The error to raise instead; None when this one is not PostgreSQL's and should go its own way."""
    match error:
        case UnicodeEncodeError():
            return InvalidInput("a name holds half of a surrogate pair, which is no text")
        case OverflowError():
            return InvalidInput("a number does not fit into 64 bits")
        case psycopg.Error():
            return _by_state(error, error.sqlstate or "", url)
        case _:
            return None


def _by_state(error: psycopg.Error, state: str, url: str) -> PerdureError:
    said = error.diag.message_primary or type(error).__name__
    match state:
        case "53100" | "53400":
            return StoreFull(
                f"{url}: the server's disk is full; nothing was written and earlier checkpoints are intact: "
                "free some space and try again"
            )
        case "40001" | "40P01" | "55P03":
            return Clash(f"{url}: other transactions are in the way ({said}); nothing was written: try again")
        case "53200":
            return Unavailable(f"{url}: the server ran out of memory; nothing was written")
        case "25006" | "55000" if is_replica(error):
            return Unavailable(
                f"{url}: the server is read-only, perhaps a replica; nothing was written: connect to the primary, "
                "or name all hosts and add target_session_attrs=read-write to the URL"
            )
        case "42501":
            return Unavailable(
                f"{url}: permission denied ({said}); nothing was written: grant it, or let the owner of the schema "
                "open the store first"
            )
        case "3F000" | "42P01" | "42883" | "42703":
            return UnsupportedFormat(
                f"{url}: the tables are not the ones this Perdure made ({said}): upgrade this process, or open the "
                "schema where they are"
            )
        case "54000" | "22001":
            return LimitExceeded(f"{url}: a name is too long for PostgreSQL ({said})")
        case "22003" | "22P02" | "22P03" | "22P05" | "42804" | "23502" | "22021" | "22032" | "42846":
            return InvalidInput(f"a field has a value or type that cannot be stored ({state})")
        case "26000" | "42P05":
            return Unavailable(
                f"{url}: prepared statements do not work here; nothing was written: a pooler is in between, "
                "so add pgbouncer=true to the URL"
            )
        case _:
            return Unavailable(f"{url}: PostgreSQL says {state} {said}; nothing was written")


def _one_line(error: psycopg.Error) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # libpq repeats itself for each address it tried.
    text = lines[0] if lines else type(error).__name__
    return text.removeprefix("connection failed: ")[:300]
