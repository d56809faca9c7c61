"""Connections to a Redis or Valkey server: redis-py's, and commands sent until they are answered or time is up.

Whatever is sent may be sent again when its answer was lost: every script is written so that a second run of the
same command changes nothing.
"""

from __future__ import annotations

import hashlib
import random
import re
import select
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perdure.errors import (
    Corrupted,
    InvalidInput,
    MissingExtra,
    OutcomeUnknown,
    PerdureError,
    StoreFull,
    Unavailable,
)
from perdure.links.pool import Pool
from perdure.system.urls import shown, take

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:
    raise MissingExtra("redis", "redis", error) from None

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Command = tuple[bytes, ...]
    Ask = Callable[[Command], Any]

CONNECTIONS: Final = 32
"""Connections at most; more callers wait for one."""
FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0
_BROKEN: Final = (redis.ConnectionError, redis.TimeoutError, redis.InvalidResponse, OSError)


class Script:
    """A script by name: called by its digest, loaded again whenever the server does not know it.

    The digest is that of the text, so processes with other versions of a script never call each other's.
    ``flags`` are the server's: "no-writes" for one that only reads, "allow-oom" for one that a full server needs.
    """

    def __init__(self, name: str, text: str, flags: str = "") -> None:
        # With this first line the server checks before the start, and not in the middle, that it may write.
        whole = f"#!lua{flags and ' flags='}{flags}\n{text}".encode()
        self.name = name
        self.writes = flags != "no-writes"
        self.load = (b"SCRIPT", b"LOAD", whole)
        self._digest = hashlib.sha1(whole, usedforsecurity=False).hexdigest().encode()

    def call(self, key: bytes | None, *args: bytes) -> Command:
        """The command; ``key`` is the one that everything it touches hangs on (None: the store itself)."""
        if key is None:
            return (b"EVALSHA", self._digest, b"0", *args)
        return (b"EVALSHA", self._digest, b"1", key, *args)


class Lost(Exception):
    """Time is up in the middle. ``answers`` came; those behind them have none. Nobody outside the store sees it.

    Of these, the ones up to the number ``sent`` may have been executed; the others were not, and ``problem`` says why.
    """

    def __init__(self, problem: PerdureError, answers: list[Any], sent: int) -> None:
        self.problem = problem
        self.answers = answers
        self.sent = sent
        super().__init__()

    def error(self, place: int) -> PerdureError:
        """What is said of a command that has no answer, by its place."""
        if not self.may_be_done(place):
            return self.problem
        said = str(self.problem).removesuffix("; nothing was written")
        return OutcomeUnknown(f"{said}; what was sent may or may not have been done")

    def may_be_done(self, place: int) -> bool:
        """Whether nobody knows what became of a command, by its place."""
        return len(self.answers) <= place < self.sent and isinstance(self.problem, Unavailable)


class Link:
    """Sends commands. May be used from any thread; a forked child must open its own."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        scripts: Sequence[Script],
        retry_for: float,
        socket_timeout: float,
        on_connect: Callable[[Ask], None] | None = None,
    ) -> None:
        self.url = name
        self._scripts = scripts
        self._retry_for = retry_for
        self._on_connect = on_connect
        self._make = connection_maker(url, socket_timeout)
        self._pool = Pool(
            name,
            self._connect,
            size=CONNECTIONS,
            wait=socket_timeout + retry_for,
            advice="use fewer threads per handle",
        )
        self.check = self._pool.check
        """Refuses to work after a fork or after the end."""

    # -- sending -----------------------------------------------------------------------------------

    def one(self, command: Command, *, writes: bool = False, patience: float | None = None) -> Any:
        """Send one command and give back its answer, or raise it.

        Raises ``OutcomeUnknown`` when one that ``writes`` may have been executed and nobody said so.
        """
        try:
            (answer,) = self.deliver((command,), patience=patience)
        except Lost as lost:
            raise (lost.error(0) if writes else lost.problem) from None
        if isinstance(answer, PerdureError):
            raise answer
        return answer

    def transaction(self, commands: Sequence[Command]) -> list[Any]:
        """Ask several things about one instant; the answers of the commands, none of them refused."""
        for again in (False, True):
            try:
                *queued, answers = self.deliver(((b"MULTI",), *commands, (b"EXEC",)), whole=True)
            except Lost as lost:
                raise lost.problem from None
            for answer in (*queued, answers):
                if isinstance(answer, PerdureError):
                    raise answer
            refused = [code_of(answer) for answer in answers if isinstance(answer, redis.ResponseError)]
            if not refused:
                return answers
            if again or refused[0][0] != "NOSCRIPT":
                raise translate(*refused[0], self.url)
            self.many([script.load for script in self._scripts])
        raise AssertionError

    def many(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one go; each answer is a value or an error of ours.

        Raises ``OutcomeUnknown`` when time is up and one of them may have been executed without an answer.
        """
        try:
            return self.deliver(commands)
        except Lost as lost:
            raise lost.error(len(lost.answers)) from None

    def deliver(self, commands: Sequence[Command], *, whole: bool = False, patience: float | None = None) -> list[Any]:
        """Send commands in one go; each answer is a value or an error of ours. With ``whole``, all again or none.

        Raises ``Lost`` when time is up (``patience`` seconds after the first failure) and something was sent,
        ``Unavailable`` when nothing was.
        """
        answers: list[Any] = []
        sent = _Sent()
        pause = FIRST_PAUSE
        deadline = 0.0
        while True:
            if whole:
                answers.clear()
            try:
                problem = self._attempt(commands, answers, sent)
            except PerdureError as error:
                problem = error
            except redis.ResponseError as error:
                problem = translate(*code_of(error), self.url)
            except _BROKEN as error:
                problem = _explain(error, self.url)
            if problem is None:
                return answers
            now = time.monotonic()
            deadline = deadline or now + (self._retry_for if patience is None else patience)
            if not isinstance(problem, Unavailable) or isinstance(problem, Hopeless) or now + pause >= deadline:
                raise Lost(problem, answers, sent.count) if answers or sent.count else problem from None
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE)

    def _attempt(self, commands: Sequence[Command], answers: list[Any], sent: _Sent) -> PerdureError | None:
        """Send what has no answer yet and read; a problem that may pass by itself is given back."""
        connection = self._pool.take()
        fine = False
        try:
            passing = self._exchange(connection, commands, answers, sent)
            if passing is not None and passing[0] == "NOSCRIPT":
                self._load_scripts(connection)
                passing = self._exchange(connection, commands, answers, sent)
            fine = passing is None
            return None if passing is None else translate(*passing, self.url)
        finally:
            back = self._pool.give_back if fine else self._pool.lose
            try:
                back(connection)
            except BaseException:
                if self._pool.has(connection):
                    self._pool.lose(connection)
                raise

    def _exchange(
        self, connection: Connection, commands: Sequence[Command], answers: list[Any], sent: _Sent
    ) -> tuple[str, str] | None:
        """One round trip; the code and words of a refusal that a second try may overcome, else None."""
        first = len(answers)
        before, sent.count = sent.count, len(commands)
        connection.send(commands[first:])
        passing: tuple[str, str] | None = None
        executed = False
        for _ in range(first, len(commands)):
            try:
                answer = connection.read()
            except redis.ResponseError as error:
                code, text = code_of(error)
                if code in PASSING and passing is None:
                    passing = (code, text)
                answer = translate(code, text, self.url)
            else:
                executed = executed or passing is not None
            # What comes behind a command that must be sent again may build on it: it is sent again as well.
            if passing is None:
                answers.append(answer)
        if passing is not None and not executed:
            sent.count = before
        return passing

    def _load_scripts(self, connection: Connection) -> None:
        connection.send([script.load for script in self._scripts])
        for _ in self._scripts:
            try:
                connection.read()
            except redis.ResponseError as error:
                raise translate(*code_of(error), self.url) from None

    # -- connections -------------------------------------------------------------------------------

    def _connect(self) -> Connection:
        """A new connection, greeted before anybody uses it."""
        connection = Connection(self._make())
        try:
            if self._on_connect is not None:
                self._on_connect(lambda command: self._ask(connection, command))
        except BaseException:
            connection.close()
            raise
        return connection

    def _ask(self, connection: Connection, command: Command) -> Any:
        """One question on a connection that is being greeted; a refusal is raised as one of ours."""
        for again in (False, True):
            connection.send((command,))
            try:
                return connection.read()
            except redis.ResponseError as error:
                code, text = code_of(error)
                if code != "NOSCRIPT" or again:
                    raise translate(code, text, self.url) from None
            self._load_scripts(connection)
        raise AssertionError

    def close(self) -> None:
        """Close all connections; one that is in use is closed when its command is done."""
        self._pool.close()


class Connection:
    """One connection of redis-py, for a pool."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        try:
            driver.connect()
        except BaseException:
            driver.disconnect()
            raise
        self._incoming = select.poll()
        self._incoming.register(driver._get_socket(), select.POLLIN)

    @property
    def closed(self) -> bool:
        """Whether it was lost or closed."""
        return not self._driver.is_connected

    def is_quiet(self) -> bool:
        """Whether the server said nothing that it was not asked."""
        return not self._incoming.poll(0)

    def close(self) -> None:
        """Close it."""
        self._driver.disconnect()

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands in one piece."""
        packed = pack(commands[0]) if len(commands) == 1 else b"".join([pack(command) for command in commands])
        self._driver.send_packed_command((packed,))

    def read(self) -> Any:
        """The next answer; the server's refusals are raised as redis-py's ``ResponseError``."""
        return self._driver.read_response(disable_decoding=True)


class _Sent:
    """How many commands, counted from the first, may have reached the server without an answer."""

    count = 0


def _explain(error: Exception, where: str) -> PerdureError:
    code = getattr(error, "status_code", None)
    if isinstance(error, redis.AuthenticationError | redis.BusyLoadingError) or code:
        return translate(*code_of(error), where)
    return unreachable(error, where)


# Looking a length up costs a third of writing it out.
_LENGTHS: Final = [b"$%d\r\n" % size for size in range(1024)]


def pack(command: Command) -> bytes:
    r"""A command as the protocol writes it.

    redis-py's own packer takes 20 microseconds for the two dozen short parts of a commit, this one 5. In turns,
    commits with it took 1.12 times as long (1.18 times the processor time) on a server that does not sync; with
    ``appendfsync always`` the disk hides the difference.

    >>> pack((b"GET", b"key"))
    b'*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n'
    """
    parts = [b"*%d\r\n" % len(command)]
    add = parts.append
    for word in command:
        size = len(word)
        add(_LENGTHS[size] if size < 1024 else b"$%d\r\n" % size)
        add(word)
        add(b"\r\n")
    return b"".join(parts)


def connection_maker(url: str, timeout: float) -> Callable[[], Any]:
    """What makes connections of redis-py; a URL that it does not understand is refused at once, without its secrets."""
    # No retries here: whoever uses a connection tries again, or does without, by rules of its own.
    given: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "health_check_interval": 0,
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,
    }
    pool: Any = redis.ConnectionPool
    try:
        read = pool.from_url(url, **given)
        # Answers are read as those of the older protocol, whatever the URL says. The pool itself is not used: it
        # counts what it makes and stops at a hundred.
        kind, options = read.connection_class, {**read.connection_kwargs, "protocol": 2}
        kind(**options)
    except (ValueError, TypeError, redis.RedisError):
        raise InvalidInput(
            f"{shown(url)!r:.200}: this URL cannot be used: write redis://user:password@host:6379/0 "
            "(rediss:// for TLS), with parameters that redis-py knows"
        ) from None
    # A closure, since the options hold the password and other callables would show them.
    return lambda: kind(**options)


PREFIX = "perdure"
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_INFO = (b"INFO", b"server", b"replication", b"cluster", b"memory", b"persistence")
_CONFIG = (b"CONFIG", b"GET", b"appendfsync", b"save")
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


def server_info(ask: Ask) -> Server:
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


def check_server(server: Server, where: str) -> None:
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


def _allowed(ask: Ask, command: Command) -> Any:
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


# -- what refusals and broken connections mean to a caller: no I/O, and no secret or value in any word ---------------

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
