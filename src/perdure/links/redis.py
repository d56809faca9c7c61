"""Connections to one server, kept ready, and the sending of commands until they are answered or time is up.

Whatever is sent may be sent again when its answer was lost: every script is written so that a second run of the
same bytes changes nothing.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from perdure.errors import (
    ForkedProcess,
    HandleClosed,
    InvalidInput,
    MissingExtra,
    OutcomeUnknown,
    PerdureError,
    Unavailable,
)
from perdure.links import redis_errors as words
from perdure.links.redis_errors import Hopeless, cluster
from perdure.system.urls import take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

try:
    import redis
except ImportError as error:
    raise MissingExtra("redis", "redis") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    # MOVED

    Ask = Callable[[bytes], Any]

CONNECTIONS: Final = 32
"""Connections at most; more callers wait for one."""
FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0
_BROKEN: Final = (redis.ConnectionError, redis.TimeoutError, redis.InvalidResponse, OSError)


class Lost(OutcomeUnknown):
    """Time is up in the middle. ``answers`` came; those behind them have none.

    Of these, the ones up to the number ``sent`` may have been executed; the others were not, and ``problem`` says why.
    """

    def __init__(self, problem: PerdureError, answers: list[Any], sent: int) -> None:
        self.problem = problem
        self.answers = answers
        self.sent = sent
        said = str(problem).removesuffix("; nothing was written")
        super().__init__(f"{said}; what was sent may or may not have been done")

    def may_be_done(self, place: int) -> bool:
        """Whether nobody knows what became of a command, by its place."""
        return len(self.answers) <= place < self.sent and isinstance(self.problem, Unavailable)


class Link:
    """Sends packed commands. May be used from any thread; a forked child must open its own."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        scripts: Sequence[Script],
        retry_for: float,
        socket_timeout: float,
        greet: Callable[[Ask], None] | None = None,
    ) -> None:
        self.url = name
        self._load = b"".join(script.load for script in scripts)
        self._scripts = len(scripts)
        self._retry_for = retry_for
        self._greet = greet
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._idle: list[Any] = []
        self._slots = threading.Semaphore(CONNECTIONS)
        self._slot_wait = socket_timeout + retry_for
        self._make = _maker(url, name, socket_timeout)

    # -- sending -----------------------------------------------------------------------------------

    def one(self, command: bytes, *, writes: bool = False, replies: int = 1, patience: float | None = None) -> Any:
        """Send one command (of several parts the last of ``replies`` counts) and give back its answer, or raise it.

        Raises ``Lost`` when one that ``writes`` may have been executed and nobody said so.
        """
        try:
            (answer,) = self.many((command,), replies=replies, patience=patience)
        except Lost as lost:
            raise (lost if writes and lost.may_be_done(0) else lost.problem) from None
        if isinstance(answer, PerdureError):
            raise answer
        return answer

    def unit(self, commands: Sequence[bytes]) -> list[Any]:
        """Send MULTI, commands and EXEC, all again if need be; the answers of the commands, none of them refused."""
        for again in (False, True):
            answers = self.one(b"".join(commands), replies=len(commands))
            refused = [words.code_of(answer) for answer in answers if isinstance(answer, redis.ResponseError)]
            if not refused:
                return answers
            if again or refused[0][0] != "NOSCRIPT":
                raise words.translate(*refused[0], self.url)
            self.one(self._load, replies=self._scripts)
        raise AssertionError

    def many(self, commands: Sequence[bytes], *, replies: int = 1, patience: float | None = None) -> list[Any]:
        """Send commands in one go; each answer is a value or an error of ours.

        Raises ``Lost`` when time is up (``patience`` seconds after the first failure) and something was sent,
        ``Unavailable`` when nothing was.
        """
        answers: list[Any] = []
        sent = 0
        pause = FIRST_PAUSE
        deadline = 0.0
        while True:
            self.check()
            progress = _Progress(sent, replies)
            try:
                problem = self._attempt(commands, answers, progress)
            except PerdureError as error:
                problem = error
            except _BROKEN as error:
                problem = _explain(error, self.url)
            if problem is None:
                return answers
            sent = progress.sent
            now = time.monotonic()
            deadline = deadline or now + (self._retry_for if patience is None else patience)
            if not isinstance(problem, Unavailable) or isinstance(problem, words.Hopeless) or now + pause >= deadline:
                raise Lost(problem, answers, sent) if answers or sent else problem from None
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE)

    def _attempt(self, commands: Sequence[bytes], answers: list[Any], progress: _Progress) -> PerdureError | None:
        """Send what has no answer yet and read; a problem that may pass by itself is given back."""
        if not self._slots.acquire(timeout=self._slot_wait):
            return Unavailable(f"{self.url}: all {CONNECTIONS} connections are busy: use fewer threads per handle")
        connection: Any = None
        try:
            connection = self._take()
            passing = self._exchange(connection, commands, answers, progress)
            if passing is not None and passing[0] == "NOSCRIPT":
                self._load_scripts(connection)
                passing = self._exchange(connection, commands, answers, progress)
            if passing is not None:
                return words.translate(*passing, self.url)
            self._give_back(connection)
            connection = None
            return None
        finally:
            if connection is not None:
                connection.disconnect()
                self._forget_idle()
            self._slots.release()

    def _exchange(
        self, connection: Any, commands: Sequence[bytes], answers: list[Any], progress: _Progress
    ) -> tuple[str, str] | None:
        """One round trip; the code and words of a refusal that a second try may overcome, else None."""
        first = len(answers)
        before, progress.sent = progress.sent, len(commands)
        connection.send_packed_command(commands if len(commands) == 1 else (b"".join(commands[first:]),))
        passing: tuple[str, str] | None = None
        executed = False
        for _ in range(first, len(commands)):
            try:
                answer = self._answer(connection, progress.replies)
            except redis.ResponseError as error:
                code, text = words.code_of(error)
                if code in words.PASSING and passing is None:
                    passing = (code, text)
                answer = words.translate(code, text, self.url)
            else:
                executed = executed or passing is not None
            # What comes behind a command that must be sent again may build on it: it is sent again as well.
            if passing is None:
                answers.append(answer)
        if passing is not None and not executed:
            progress.sent = before
        return passing

    def _answer(self, connection: Any, count: int) -> Any:
        if count == 1:
            return connection.read_response(disable_decoding=True)
        first: redis.ResponseError | None = None
        answer: Any = None
        for _ in range(count):
            try:
                answer = connection.read_response(disable_decoding=True)
            except redis.ResponseError as error:
                # A unit of several is refused as a whole, for what its first refused part says.
                first = first or error
        if first is not None:
            raise first
        return answer

    def _load_scripts(self, connection: Any) -> None:
        connection.send_packed_command((self._load,))
        for _ in range(self._scripts):
            try:
                connection.read_response(disable_decoding=True)
            except redis.ResponseError as error:
                raise words.translate(*words.code_of(error), self.url) from None

    # -- connections -------------------------------------------------------------------------------

    def _take(self) -> Any:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        connection = self._make()
        try:
            connection.connect()
            if self._greet is not None:
                self._greet(lambda command: self._ask(connection, command))
        except redis.ResponseError as error:
            connection.disconnect()
            raise words.translate(*words.code_of(error), self.url) from None
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def _ask(self, connection: Any, command: bytes) -> Any:
        """One question on a connection that is being greeted; a refusal is raised as one of ours."""
        for again in (False, True):
            connection.send_packed_command((command,))
            try:
                return connection.read_response(disable_decoding=True)
            except redis.ResponseError as error:
                code, text = words.code_of(error)
                if code != "NOSCRIPT" or again:
                    raise words.translate(code, text, self.url) from None
            self._load_scripts(connection)
        raise AssertionError

    def _give_back(self, connection: Any) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.disconnect()

    def _forget_idle(self) -> None:
        """After a failure the others are no better: whoever needs one connects anew."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.disconnect()

    # -- the handle --------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse to work after a fork or after the end."""
        if os.getpid() != self._pid:
            raise ForkedProcess(f"{self.url}: this handle was opened before a fork: open a new one in the child")
        if self._closed:
            raise HandleClosed(f"{self.url}: this handle was closed: open a new one")

    def close(self) -> None:
        """Close all connections; one that is in use is closed when its command is done."""
        if os.getpid() == self._pid:
            self._closed = True
            self._forget_idle()


class _Progress:
    """How many commands, counted from the first, may have reached the server without an answer."""

    def __init__(self, sent: int, replies: int) -> None:
        self.sent = sent
        self.replies = replies
        """Answers of the server to each command."""


def _explain(error: Exception, where: str) -> PerdureError:
    code = getattr(error, "status_code", None)
    if isinstance(error, redis.AuthenticationError | redis.BusyLoadingError) or code:
        return words.translate(*words.code_of(error), where)
    return words.unreachable(error, where)


def _maker(url: str, name: str, socket_timeout: float) -> Callable[[], Any]:
    """What makes connections; a URL that the driver does not understand is refused at once."""
    from_url = cast("Callable[..., Any]", getattr(redis.ConnectionPool, "from_url"))  # noqa: B009 (its types are open)
    try:
        pool = from_url(
            url, protocol=2, socket_timeout=socket_timeout, socket_connect_timeout=socket_timeout, driver_info=None
        )
        # Answers are parsed as those of the older protocol, whatever the URL says. The pool itself is not used: it
        # would count connections that we count ourselves, and never forget one.
        kind, options = pool.connection_class, {**pool.connection_kwargs, "protocol": 2}
        kind(**options)
    except (ValueError, TypeError, redis.RedisError):
        raise InvalidInput(
            f"{name}: this URL cannot be used: write redis://user:password@host:6379/0?prefix=perdure "
            "(rediss:// for TLS), with parameters that redis-py knows"
        ) from None
    # A closure, since the options hold the password and other callables would show them.
    return lambda: kind(**options)


# Looking a length up costs a third of writing it out, and a commit has two dozen short parts.
_LENGTHS: Final = [b"$%d\r\n" % size for size in range(1024)]


def pack(*args: bytes) -> bytes:
    r"""A command as the protocol writes it.

    >>> pack(b"GET", b"key")
    b'*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n'
    """
    parts = [b"*%d\r\n" % len(args)]
    _add(parts, args)
    return b"".join(parts)


def _add(parts: list[bytes], args: Iterable[bytes]) -> None:
    add = parts.append
    for arg in args:
        size = len(arg)
        add(_LENGTHS[size] if size < 1024 else b"$%d\r\n" % size)
        add(arg)
        add(b"\r\n")


class Script:
    """A script by name: called by its digest, loaded again whenever the server does not know it.

    The digest is that of the text, so processes with other versions of a script never call each other's.
    ``flags`` are the server's: "no-writes" for one that only reads, "allow-oom" for one that a full server needs.
    """

    def __init__(self, name: str, text: str, flags: str = "") -> None:
        # With this first line the server checks before the start, and not in the middle, that it may write.
        whole = f"#!lua{flags and ' flags='}{flags}\n{text}"
        sha = hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest()
        self.name = name
        self.writes = flags != "no-writes"
        self.load = pack(b"SCRIPT", b"LOAD", whole.encode())
        self._call = f"\r\n$7\r\nEVALSHA\r\n$40\r\n{sha}\r\n$1\r\n".encode()

    def call(self, key: bytes | None, *args: bytes) -> bytes:
        """The packed command; ``key`` is the one that everything it touches hangs on (None: the store itself)."""
        if key is None:
            parts = [b"*%d" % (3 + len(args)), self._call, b"0\r\n"]
        else:
            parts = [b"*%d" % (4 + len(args)), self._call, b"1\r\n"]
            _add(parts, (key,))
        _add(parts, args)
        return b"".join(parts)


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
