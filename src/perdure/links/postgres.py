"""Connections to a PostgreSQL server, and work done over them: again when one was lost, until patience ends."""

from __future__ import annotations

import random
import re
import select
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from perdure import errors

try:
    import psycopg
    from psycopg import generators
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import ExecStatus, TransactionStatus
    from psycopg.rows import tuple_row
    from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper
except ImportError as error:
    raise errors.MissingExtra("psycopg", "postgres", error) from None

from perdure.links.pool import Pool
from perdure.system.clock import SystemClock
from perdure.system.options import is_amount, is_number
from perdure.system.urls import shown, take

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGconn, PGresult

    from perdure.protocols import Clock

T = TypeVar("T")
Rows = list[tuple[Any, ...]]

POOL = 8
"""Connections of one handle at most."""
PATIENCE = 10.0
"""Seconds during which a lost connection is made again."""
TIMEOUT = 20.0
"""Seconds to wait for the answer to one statement."""
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_FINE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that does not wait for ever."""

    limit: float | None = TIMEOUT

    def __init__(self, pgconn: PGconn, row_factory: Any = tuple_row) -> None:
        super().__init__(pgconn, row_factory)
        self._perdure_names: dict[str, bytes] = {}
        self._incoming = select.poll()
        self._incoming.register(pgconn.socket, select.POLLIN)

    def is_quiet(self) -> bool:
        """Whether the server said nothing that it was not asked."""
        return not self._incoming.poll(0)

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait for an answer as long as the limit says; a server that keeps silent counts as lost."""
        return super().wait(gen, interval, self.limit if timeout is None else timeout)

    def ask(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """Run one statement and give all its rows."""
        cursor = psycopg.Cursor(self)
        cursor.format = psycopg.pq.Format.BINARY
        cursor.execute(sql, values)  # type: ignore[arg-type]
        # Not by asking for a description, which is costly to make.
        return cursor.fetchall() if cursor.pgresult is not None and cursor.pgresult.nfields else []

    def ask_raw(self, sql: str, values: Sequence[bytes | None], formats: Sequence[int]) -> PGresult:
        """The same for what is asked all the time, with ``$1`` and so on for values that are encoded already.

        This leaves out what a cursor does for every statement, which is more than half of what a client spends on it.
        """
        if self.prepare_threshold is None:
            self.pgconn.send_query_params(sql.encode(), values, None, formats)
            return self._answer()
        try:
            return self._ask_named(sql, values, formats)
        except psycopg.errors.InvalidSqlStatementName:
            # The driver lets all prepared statements go after a rollback, ours with them. Nothing was done: once more.
            self._perdure_names.clear()
            if self.info.transaction_status != TransactionStatus.IDLE:
                raise
        return self._ask_named(sql, values, formats)

    def _ask_named(self, sql: str, values: Sequence[bytes | None], formats: Sequence[int]) -> PGresult:
        name = self._perdure_names.get(sql)
        if name is None:
            name = f"perdure_{len(self._perdure_names)}".encode()
            self.pgconn.send_prepare(name, sql.encode())
            self._answer()
            self._perdure_names[sql] = name
        self.pgconn.send_query_prepared(name, values, formats)
        return self._answer()

    def _answer(self) -> PGresult:
        result = self.wait(generators.execute(self.pgconn))[-1]
        if result.status not in _FINE:
            raise psycopg.errors.error_from_result(result)
        return result

    def each(self, sql: str, many: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each of many values."""
        if many:
            with self.cursor() as cursor:
                cursor.executemany(sql, many)  # type: ignore[arg-type]

    def run(self, script: str) -> None:
        """Run several statements in one go, without values."""
        self.execute(script, prepare=False)  # type: ignore[arg-type]


class Link:
    """Connections to one place. May be used from any thread."""

    def __init__(self, place: Place, *, size: int = POOL, patience: float = PATIENCE, timeout: float = TIMEOUT) -> None:
        numbers = is_number(size) and is_amount(patience) and is_amount(timeout)
        if not numbers or size < 1 or patience < 0 or timeout <= 0:
            raise errors.InvalidInput("pool is at least 1, patience at least 0 and timeout more than 0")
        self.url = place.url
        self.pooled = place.pooled
        self._place = place
        self._patience = patience
        self._timeout = timeout
        self._pool = Pool(place.url, self._connect, size=size, wait=timeout, advice="open with a larger pool=")
        self.check = self._pool.check
        """Refuses to work on a handle that is closed or from another process."""

    def do(self, what: str, work: Callable[[Connection], T], *, writes: bool = True, whole: bool = True) -> T:
        """Do some work on a connection; when that is lost, on another one. The work must bear being done twice.

        With ``writes`` a loss that no retry could make good is ``OutcomeUnknown``: it may have been done. Without
        ``whole`` the caller can do it in pieces, and is told at once when other transactions are in the way. Errors
        of the server are told as ours.
        """
        sent, pause, deadline = False, _FIRST_PAUSE, 0.0
        while True:
            try:
                connection = self._pool.take()
            except psycopg.Error as error:
                failure, hopeless = not_connected(error, self.url), not may_come_back(error)
            else:
                try:
                    try:
                        result = work(connection)
                    except BaseException as error:
                        if is_lost(error):
                            self._pool.lose(connection)
                            sent, hopeless = True, False
                            failure = errors.Unavailable(f"{self.url}: the connection was lost ({_one_line(error)})")
                        elif is_worth_another_try(error) and (whole or not is_clash(error)):
                            self._give_back(connection)
                            hopeless = False
                            failure = translate(error, self.url) or errors.Unavailable(self.url)
                        else:
                            self._give_back(connection)
                            if is_replica(error):
                                self._pool.forget()
                            known = translate(error, self.url) or error
                            if sent and writes and isinstance(known, errors.Unavailable):
                                # True of this attempt, not of the one before.
                                raise errors.OutcomeUnknown(
                                    f"{what}: the connection to {self.url} was lost before it answered, and the next "
                                    f"attempt failed ({_one_line(error)}): it may or may not have been done; try "
                                    "again, or look it up"
                                ) from None
                            raise known from None
                    else:
                        self._give_back(connection)
                        return result
                except BaseException:
                    # An interrupt may have come before it was given back.
                    if self._pool.has(connection):
                        self._pool.lose(connection)
                    raise
            now = time.monotonic()
            deadline = deadline or now + self._patience
            if hopeless or now + pause > deadline:
                if sent and writes:
                    raise errors.OutcomeUnknown(
                        f"{what}: {self.url} did not answer, and could not be asked again within {self._patience:g} "
                        "seconds: it may or may not have been done; try again, or look it up"
                    ) from None
                raise failure from None
            # Jitter, so that a fleet does not come back all at one moment.
            time.sleep(pause * (0.5 + random.random() / 2))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def ask(self, what: str, sql: str, values: Sequence[Any] = (), *, writes: bool = True) -> Rows:
        """Run one statement; see :meth:`do`."""
        return self.do(what, lambda connection: connection.ask(sql, values), writes=writes)

    # -- connections -------------------------------------------------------------------------------

    def _connect(self) -> Connection:
        # Prepared statements belong to one server connection, which a pooler gives to everyone in turn.
        connection = Connection.connect(**self._place.parameters, autocommit=True, prepare_threshold=None)
        try:
            connection.limit = self._timeout
            connection.adapters.register_dumper(int, Int8Dumper)
            connection.adapters.register_dumper(int, Int8BinaryDumper)
            if self.pooled is None:
                # A pooler makes up the process number that it tells its clients.
                ((pid,),) = connection.ask("select pg_backend_pid()")
                self.pooled = pid != connection.info.backend_pid
            connection.prepare_threshold = None if self.pooled else 0
        except BaseException:
            connection.close()
            raise
        return connection

    def _give_back(self, connection: Connection) -> None:
        # Given back already when somebody is interrupted right after that: then it is another's.
        if self._pool.has(connection):
            if connection.info.transaction_status != TransactionStatus.IDLE:
                connection.close()
            self._pool.give_back(connection)

    def close(self) -> None:
        """Close all connections; those in use are closed when they are given back. Again: no error."""
        self._pool.close()


_DEFAULTS = {
    "application_name": "perdure",
    "connect_timeout": "5",
    # A server that vanished without a word is noticed within a minute, also by a connection that only waits.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
_ODD = re.compile(r"""[\x00-\x1f"'%$\\]""")
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Place(NamedTuple):
    """A schema of a database. The parameters hold the password: they are never shown."""

    parameters: dict[str, Any]
    schema: str
    """The PostgreSQL schema that holds the tables; "" means the connection's current one."""
    pooled: bool | None
    """Whether a transaction pooler such as PgBouncer is in between; None: find out."""
    url: str
    """As it may be shown."""

    def __repr__(self) -> str:
        return f"Place({self.url!r})"


def place_of(url: str) -> Place:
    """Take a URL apart.

    >>> place = place_of("postgresql://ana:pw@db.example/agents?schema=shop&pgbouncer=true")
    >>> place.schema, place.pooled, place
    ('shop', True, Place('postgresql://ana@db.example/agents?schema=shop&pgbouncer=true'))
    """
    try:
        rest, ours = take(url, "schema", "pgbouncer")
        named = ours.get("schema", "")
        parameters: dict[str, Any] = {**_DEFAULTS, **conninfo_to_dict(rest), "client_encoding": "UTF8"}
    except (psycopg.Error, ValueError):
        # The driver's words may quote a part of the URL, and with it the password.
        raise errors.InvalidInput(
            f"{shown(url)} is no PostgreSQL URL: write postgresql://user:password@host:port/database, "
            "with every character other than letters and digits of the password as %XX"
        ) from None
    if _ODD.search(named) or len(named.encode("utf-8", "replace")) > 63:
        raise errors.InvalidInput(
            f"{named!r:.80} will not do as the name of a schema: use letters, digits and the like, up to 63 bytes"
        )
    word = ours.get("pgbouncer")
    if word is not None and word.lower() not in _WORDS:
        raise errors.InvalidInput(f"pgbouncer is true or false, not {word!r:.40}")
    return Place(parameters, named, None if word is None else _WORDS[word.lower()], shown(url))


def quoted(name: str) -> str:
    """A name as an identifier in SQL.

    >>> quoted("Order book")
    '"Order book"'
    """
    return '"' + name.replace('"', '""') + '"'


SERVER_NOW = "(extract(epoch from clock_timestamp()) * 1000)::bigint"
"""The server's time in ms, in SQL."""


class Time:
    """Wall and lease time to pass to the server; None means that it takes its own."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = None if clock is None or isinstance(clock, SystemClock) else clock

    def now(self) -> tuple[int | None, int | None]:
        """The wall clock and the clock that leases run by."""
        return (None, None) if self._clock is None else (self._clock.wall(), self._clock.monotonic())


def packed(text: str) -> str:
    r"""The text as it is stored.

    >>> packed("trip-42")
    'trip-42'
    >>> packed("nul\0inside") < packed("nul\1inside") < packed("nul\2inside")
    True
    """
    if "\0" in text or "\1" in text:
        return text.replace("\1", "\1\2").replace("\0", "\1\1")
    return text


def unpacked(text: str) -> str:
    r"""The text that was stored.

    >>> unpacked(packed("\0\1\1\0\2")) == "\0\1\1\0\2"
    True
    """
    return text.replace("\1\1", "\0").replace("\1\2", "\1") if "\1" in text else text


# -- what refusals and broken connections mean to a caller: no I/O, and no secret or value in any word ---------------

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


class Clash(errors.Unavailable):
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


def not_connected(error: psycopg.Error, url: str) -> errors.PerdureError:
    """The error for a connection that could not be made."""
    why = _one_line(error)
    advice = next((advice for words, advice in _ADVICE if words in why), "see to the server")
    return errors.Unavailable(f"{url}: cannot connect ({why}): {advice}; nothing was written")


def translate(error: BaseException, url: str) -> errors.PerdureError | None:
    """The error to raise instead; None when this one is not PostgreSQL's and should go its own way."""
    match error:
        case UnicodeEncodeError():
            return errors.InvalidInput("a name holds half of a surrogate pair, which is no text")
        case OverflowError():
            return errors.InvalidInput("a number does not fit into 64 bits")
        case psycopg.Error():
            return _by_state(error, error.sqlstate or "", url)
        case _:
            return None


def _by_state(error: psycopg.Error, state: str, url: str) -> errors.PerdureError:
    said = error.diag.message_primary or type(error).__name__
    match state:
        case "53100" | "53400":
            return errors.StoreFull(
                f"{url}: the server's disk is full; nothing was written and earlier checkpoints are intact: "
                "free some space and try again"
            )
        case "40001" | "40P01" | "55P03":
            return Clash(f"{url}: other transactions are in the way ({said}); nothing was written: try again")
        case "53200":
            return errors.Unavailable(f"{url}: the server ran out of memory; nothing was written")
        case "25006" | "55000" if is_replica(error):
            return errors.Unavailable(
                f"{url}: the server is read-only, perhaps a replica; nothing was written: connect to the primary, "
                "or name all hosts and add target_session_attrs=read-write to the URL"
            )
        case "42501":
            return errors.Unavailable(
                f"{url}: permission denied ({said}); nothing was written: grant it, or let the owner of the schema "
                "open the store first"
            )
        case "3F000" | "42P01" | "42883" | "42703":
            return errors.UnsupportedFormat(
                f"{url}: the tables are not the ones this Perdure made ({said}): upgrade this process, or open the "
                "schema where they are"
            )
        case "54000" | "22001":
            return errors.LimitExceeded(f"{url}: a name is too long for PostgreSQL ({said})")
        case "22003" | "22P02" | "22P03" | "22P05" | "42804" | "23502" | "22021" | "22032" | "42846":
            return errors.InvalidInput(f"a field has a value or type that cannot be stored ({state})")
        case "26000" | "42P05":
            return errors.Unavailable(
                f"{url}: prepared statements do not work here; nothing was written: a pooler is in between, "
                "so add pgbouncer=true to the URL"
            )
        case _:
            return errors.Unavailable(f"{url}: PostgreSQL says {state} {said}; nothing was written")


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # libpq repeats itself for each address it tried.
    text = lines[0] if lines else type(error).__name__
    return text.removeprefix("connection failed: ")[:300]
