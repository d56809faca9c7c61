"""The hot tier as its store sees it: asked with a deadline, told in the background, given up for a while when it fails.

Commits never wait for it: what they tell goes into a bounded queue, and is dropped when that is full. Readers wait for
a fraction of a second at most, once: then nobody asks until a background thread has found it answering again.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from perdure.model import SNAPSHOT, Artifact, Row

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from perdure.model import Append

LINGER = 0.05
"""Seconds that commits gather before they are told together."""
MOST_WAITING = 4096
"""Commits that wait to be told; more are dropped."""
MOST_STATES = 16
"""States that wait to be told; more are dropped."""
MOST_ROWS = 512
"""Rows of a line that the hot tier holds; a longer one is forgotten, and kept anew with its state."""
MOST_ROW_BYTES = 16 << 10
"""A larger row is left to the cold store."""
MOST_DOUBTED = 1024
_PORTION = 256 << 10
_READ = 1 << 16
_BACKOFF = 0.1
_LONGEST_BACKOFF = 5.0
_STEADY = 60.0
"""Seconds without a failure after which the next one counts as the first."""


class Told(NamedTuple):
    """A commit that landed, for its line."""

    key: bytes
    heads: bytes
    item: Append


class Kept(NamedTuple):
    """A state for its line."""

    key: bytes
    heads: bytes
    branch: str
    tip: Row
    make: Callable[[], Artifact]


class Hot:
    """The connection, the queue and the thread that works it off."""

    def __init__(self, url: str, *, timeout: float, ttl: float, most: int) -> None:
        # Imported with the first tier: whoever only imports this module need not have the driver.
        from perdure.links.redis import connection_maker

        self._make = connection_maker(url, timeout)
        self._timeout = timeout
        self._ttl = str(int(ttl * 1000)).encode()
        self._most = most
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._reading = threading.RLock()
        """Held by one thread at a time, and never twice; one of this kind refuses to be released by another."""
        self._reader: Link | None = None
        self._writer: Link | None = None
        self._down = False
        self._strikes = 0
        self._tripped = 0.0
        self._why = ""
        self._refusal = ""
        self._told: deque[Told] = deque()
        self._kept: dict[bytes, Kept] = {}
        self._forget: dict[bytes, None] = {}
        self._doubted: dict[bytes, None] = {}
        self._large: dict[bytes, None] = {}
        self._wake = threading.Event()
        self._tried = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="perdure-hot", daemon=True)
        self._thread.start()

    @property
    def state(self) -> str:
        """Whether it answers, and if not, why."""
        if self._down:
            return f"does not answer ({self._why})"
        return f"answers, but takes nothing ({self._refusal})" if self._refusal else "answers"

    # -- asking ------------------------------------------------------------------------------------------------

    def line(self, key: bytes) -> tuple[bytes | None, dict[bytes, bytes]] | None:
        """The state and the rows of a line; None when nothing is known, it is doubted, or it takes too long."""
        found = self._ask(key, [(b"GET", _state(key)), (b"HGETALL", _rows(key))])
        if found is None:
            return None
        state, rows = found[0], _pairs(found[1])
        return (state, rows) if isinstance(state, bytes) or (state is None and rows) else None

    def fields(self, key: bytes) -> dict[bytes, bytes]:
        """The fields of a hash; empty when it is not known."""
        found = self._ask(key, [(b"HGETALL", key)])
        return _pairs(found[0]) if found else {}

    def _ask(self, key: bytes, commands: Sequence[Sequence[bytes]]) -> list[Any] | None:
        if self._down or os.getpid() != self._pid or key in self._doubted:
            return None
        deadline = time.monotonic() + self._timeout
        if not self._tried.wait(self._timeout):
            self._trip("it could not be reached in time")
            return None
        try:
            if not self._reading.acquire(timeout=max(0.0, deadline - time.monotonic())):
                return None
            return self._exchange(key, commands, deadline)
        finally:
            # Whether an interrupt came before or after it was acquired, only the lock itself knows; and a `with` of
            # Python's own would give it another place to come.
            try:  # noqa: SIM105
                self._reading.release()
            except RuntimeError:
                pass

    def _exchange(self, key: bytes, commands: Sequence[Sequence[bytes]], deadline: float) -> list[Any] | None:
        try:
            if self._reader is None:
                raise Broken("there is no connection")
            found = self._reader.ask(commands, max(0.001, deadline - time.monotonic()))
            for one in found:
                if isinstance(one, Refused):
                    if one.code != "WRONGTYPE":
                        raise one
                    # Somebody else's value under our name.
                    self.forget([key])
                    return None
            return found
        except BaseException as e:
            # After an interrupt, too: an answer may be on its way that nobody has read.
            self._trip(_word(e))
            if self._reader is not None:
                self._reader.close()
                self._reader = None
            if isinstance(e, Exception):
                return None
            raise

    # -- telling -----------------------------------------------------------------------------------------------

    def wants(self, key: bytes) -> bool:
        """Whether a state would be kept."""
        return not self._down and key not in self._large and len(self._kept) < MOST_STATES

    def tell(self, told: Told) -> None:
        """Hand over a commit that landed."""
        if not self._down and len(self._told) < MOST_WAITING:
            with self._lock:
                self._told.append(told)
            if not self._wake.is_set():
                self._wake.set()

    def keep(self, kept: Kept) -> None:
        """Hand over a state."""
        if self.wants(kept.key):
            with self._lock:
                self._kept[kept.key] = kept
            self._wake.set()

    def forget(self, keys: Sequence[bytes]) -> None:
        """Have lines deleted, soon; until then nobody here believes them."""
        with self._lock:
            for key in keys:
                self._doubted[key] = self._forget[key] = None
                self._kept.pop(key, None)
            # What was told of them before must not be told after.
            gone = set(keys)
            self._told = deque(told for told in self._told if told.key not in gone and told.heads not in gone)
            while len(self._doubted) > MOST_DOUBTED:
                oldest = next(iter(self._doubted))
                del self._doubted[oldest]
                self._forget.pop(oldest, None)
        self._wake.set()

    # -- the thread --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stop.is_set():
            if self._down:
                self._unlink()
                if self._stop.wait(self._backoff()):
                    break
            if self._writer is None and not self._connect():
                continue
            self._wake.wait()
            self._stop.wait(LINGER)
            self._wake.clear()
            # Whoever gave the tier up did so before waking us, perhaps before that was cleared: look, do not wait.
            if not self._down:
                self._flush_safely()
        if self._writer is not None and not self._down:
            self._flush_safely()
        self._unlink()

    def _backoff(self) -> float:
        # Not all processes at once.
        return min(_BACKOFF * 2**self._strikes, _LONGEST_BACKOFF) * random.uniform(0.5, 1)

    def _connect(self) -> bool:
        try:
            room = self._most + MOST_ROWS * (2 * MOST_ROW_BYTES)
            reader = Link(self._make(), room)
            try:
                self._writer = Link(self._make(), room)
                (said,) = self._writer.ask([(b"PING",)], self._timeout)
                if isinstance(said, Refused):
                    raise said
            except BaseException:
                reader.close()
                if self._writer is not None:
                    self._writer.close()
                self._writer = None
                raise
        except Exception as e:
            self._trip(_word(e))
            self._tried.set()
            return False
        with self._reading:
            self._reader = reader
        if self._down:
            self._log("the hot tier answers again")
        self._down = False
        self._tried.set()
        return True

    def _unlink(self) -> None:
        with self._reading:
            if self._reader is not None:
                self._reader.close()
                self._reader = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _trip(self, why: str) -> None:
        with self._lock:
            first = not self._down
            self._down, self._why = True, why
            # One that answers small questions and times out on large ones must not be tried again all the time.
            now = time.monotonic()
            self._strikes = min(self._strikes + 1, 16) if now - self._tripped < _STEADY else 0
            self._tripped = now
            # What waits is soon known to the cold store only, which is where it is safe.
            self._told.clear()
            self._kept.clear()
        self._wake.set()
        if first:
            self._log(f"the hot tier does not answer ({why}): the cold store does all the work until it does")

    def _log(self, words: str) -> None:
        # Imported when there is something to say: a process that starts is not kept waiting for it.
        import logging

        logging.getLogger("perdure").warning("%s", words)

    # -- writing -----------------------------------------------------------------------------------------------

    def _flush_safely(self) -> None:
        try:
            self._flush()
        except Exception as e:
            self._trip(_word(e))
            self._unlink()

    def _flush(self) -> None:
        with self._lock:
            forget = list(self._forget)
            kept, self._kept = self._kept, {}
        for key in forget:
            (said,) = self._send([(b"DEL", key, _rows(key), _state(key))])
            with self._lock:
                self._forget.pop(key, None)
                if not isinstance(said, Refused):
                    self._doubted.pop(key, None)
        self._flush_rows()
        for one in kept.values():
            self._write_state(one)

    def _flush_rows(self) -> None:
        rows: dict[bytes, list[bytes]] = {}
        heads: dict[bytes, dict[bytes, bytes]] = {}
        size = 0
        while True:
            with self._lock:
                if not self._told:
                    break
                key, head, item = self._told.popleft()
            heads.setdefault(head, {})[item.branch.encode()] = str(item.line).encode()
            if len(item.payload) + len(item.envelope) <= MOST_ROW_BYTES:
                value = row_value(item)
                rows.setdefault(key, []).extend((row_field(item.step), value))
                size += len(value)
            if size >= _PORTION:
                self._write_rows(rows, heads)
                rows, heads, size = {}, {}, 0
        self._write_rows(rows, heads)

    def _write_state(self, kept: Kept) -> None:
        base = kept.make()
        if len(base.body) > self._most:
            self._large[kept.key] = None
            while len(self._large) > MOST_DOUBTED:
                del self._large[next(iter(self._large))]
            return
        (said,) = self._send([(b"HKEYS", _rows(kept.key))])
        if isinstance(said, Refused):
            self._send([(b"DEL", _rows(kept.key))])
        names = cast("list[bytes]", said) if isinstance(said, list) else []
        commands: list[tuple[bytes, ...]] = [(b"SET", _state(kept.key), state_value(kept.tip, base), b"PX", self._ttl)]
        # Rows that the state stands for; those after it may be somebody else's newest, and stay.
        if stale := [name for name in names if is_upto(name, kept.tip.step)]:
            commands.append((b"HDEL", _rows(kept.key), *stale))
        commands += [
            (b"HSET", kept.heads, kept.branch.encode(), str(kept.tip.line).encode()),
            (b"PEXPIRE", kept.heads, self._ttl),
        ]
        self._send(commands)

    def _write_rows(self, rows: dict[bytes, list[bytes]], heads: dict[bytes, dict[bytes, bytes]]) -> None:
        commands: list[tuple[bytes, ...]] = []
        for head, fields in heads.items():
            commands.append((b"HSET", head, *(part for pair in fields.items() for part in pair)))
            commands.append((b"PEXPIRE", head, self._ttl))
        for key, fields in rows.items():
            commands += [
                (b"HSET", _rows(key), *fields),
                (b"PEXPIRE", _rows(key), self._ttl),
                (b"PEXPIRE", _state(key), self._ttl),
                (b"HLEN", _rows(key)),
            ]
        for command, answer in zip(commands, self._send(commands), strict=True):
            wrong = isinstance(answer, Refused) and answer.code == "WRONGTYPE"
            if wrong or (command[0] == b"HLEN" and isinstance(answer, int) and answer > MOST_ROWS):
                self._send([(b"DEL", command[1])])

    def _send(self, commands: list[tuple[bytes, ...]]) -> list[Any]:
        """Tell the server; what it refuses (it is full, it is a replica) is simply not there when somebody asks."""
        if not commands:
            return []
        if self._writer is None:
            raise Broken("there is no connection")
        answers = self._writer.ask(commands, self._timeout)
        refused = next((answer for answer in answers if isinstance(answer, Refused)), None)
        if refused is not None and not self._refusal and refused.code != "WRONGTYPE":
            self._log(f"the hot tier takes nothing ({refused.code}): loads are as fast as the cold store is")
        self._refusal = refused.code if refused is not None else ""
        return answers

    def close(self) -> None:
        """Tell what waits, if that is possible at once, then disconnect."""
        if os.getpid() != self._pid:
            return
        self._stop.set()
        self._wake.set()
        self._thread.join(4 * self._timeout + 1)


def _word(error: BaseException) -> str:
    """What kind of error it is; its own words might show where we connect as whom."""
    return error.code if isinstance(error, Refused) else type(error).__name__


def _state(key: bytes) -> bytes:
    """The key of a line's state."""
    return key + b":state"


def _rows(key: bytes) -> bytes:
    """The key of a line's rows."""
    return key + b":rows"


def _pairs(found: Any) -> dict[bytes, bytes]:
    words = cast("list[Any]", found) if isinstance(found, list) else []
    if len(words) % 2 or not all(isinstance(word, bytes) for word in words):
        return {}
    return dict(zip(words[::2], words[1::2], strict=True))


_VERSION = 1
_about = msgspec.msgpack.Decoder(tuple[int, int, int, bytes, bytes]).decode
_row = msgspec.msgpack.Decoder(tuple[int, int, int, bytes, bytes, bytes, bytes, bytes, bool]).decode
_encode = msgspec.msgpack.encode


class View(NamedTuple):
    """A line as the hot tier knows it, up to ``tip``: the row at its end, without its bytes when the base is."""

    base: Artifact | None
    rows: tuple[Row, ...]
    tip: Row

    def upto(self, step: int) -> View | None:
        """The same up to a step; None when that is not known."""
        if step == self.tip.step:
            return self
        rows = tuple(row for row in self.rows if row.step <= step)
        # The step of the base itself is known only by its tip, which is another one here.
        return View(self.base, rows, rows[-1]) if rows and rows[-1].step == step else None


def state_value(tip: Row, base: Artifact) -> bytes:
    """A state with the row that it speaks for."""
    about = _encode((_VERSION, tip.line, tip.step, tip.id, tip.digest))
    return len(about).to_bytes(2, "little") + about + base.body


def row_field(step: int) -> bytes:
    """The name of a row's field."""
    return b"%d" % step


def is_upto(name: bytes, step: int) -> bool:
    """Whether a field is that of a row at or before a step, or of none that could ever be read."""
    return not name.isdigit() or len(name) > 16 or int(name) <= step


def row_value(item: Append) -> bytes:
    """A committed row, with the id of the one before it."""
    parent = b"" if item.starts else item.expect or b""
    return _encode(
        (_VERSION, item.line, item.step, item.id, item.digest, item.envelope, item.payload, parent, item.starts)
    )


def view_of(line: int, state: bytes | None, fields: Mapping[bytes, bytes]) -> View | None:
    """Put a line together as far as it is there; None when it cannot be used."""
    rows: dict[int, tuple[Row, bytes, bool]] = {}
    base: Artifact | None = None
    tip: Row | None = None
    try:
        for name, value in fields.items():
            version, at, step, id, digest, envelope, payload, parent, starts = _row(value)
            if version != _VERSION or at != line or name != row_field(step):
                return None
            rows[step] = (Row(line, step, id, digest, envelope, payload), parent, starts)
        if state is not None:
            end = 2 + int.from_bytes(state[:2], "little")
            version, at, step, id, digest = _about(memoryview(state)[2:end])
            if version != _VERSION or at != line:
                return None
            base = Artifact(SNAPSHOT, line, step, step, state[end:])
            tip = Row(line, step, id, digest, b"", b"")
    except (msgspec.MsgspecError, ValueError):
        return None
    found: list[Row] = []
    if tip is None:
        # A line whose beginning is there needs no state before it.
        first = min((step for step, (_, _, starts) in rows.items() if starts), default=None)
        if first is None:
            return None
        tip = rows[first][0]
        found.append(tip)
    while (after := rows.get(tip.step + 1)) is not None and after[1] == tip.id:
        tip = after[0]
        found.append(tip)
    return View(base, tuple(found), tip)


# -- one connection: a few commands and their answers, all before a deadline --------------------------------------


class Refused(Exception):
    """The server answered a command with an error; the connection is fine. ``code`` is its first word."""

    def __init__(self, words: str) -> None:
        self.code = words.partition(" ")[0][:40]
        super().__init__(words)


class Broken(Exception):
    """What came is no answer: the connection cannot be used any more."""


class Link:
    """A connection that is open; whoever meets an error on it other than ``Refused`` closes it.

    redis-py makes the connection (address, TLS, login, database) and packs the commands. Answers are read here: the
    driver's time-out is per packet, so that a slow network could hold a reader for minutes; it believes any length that
    it is told; and a state of one MiB takes it 3.6 times as long, and 7 times the processor time.
    """

    def __init__(self, connection: Any, most: int) -> None:
        """Connect one of redis-py that is not open yet; ``most`` is how many bytes one answer may have."""
        self._connection = connection
        self._most = self._room = most
        self._held = bytearray()
        self._at = 0
        self._deadline = 0.0
        try:
            self._connection.connect()
        except BaseException:
            self._connection.disconnect()
            raise
        self._socket: socket.socket = self._connection._get_socket()

    def ask(self, commands: Sequence[Sequence[bytes]], within: float) -> list[Any]:
        """Send commands together and give all their answers; errors of the server among them as ``Refused``."""
        self._deadline = time.monotonic() + within
        self._socket.settimeout(within)
        self._socket.sendall(b"".join(self._connection.pack_commands(commands)))
        answers: list[Any] = []
        for _ in commands:
            self._room = self._most
            answers.append(self._reply(0))
        return answers

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    # -- reading ---------------------------------------------------------------------------------------

    def _reply(self, depth: int) -> Any:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            size = _whole(rest)
            return None if size < 0 else self._exactly(size)
        if kind == b"*":
            count = _whole(rest)
            if depth > 2 or count > self._room:
                raise Broken("an answer is nested too deep or too long")
            return None if count < 0 else [self._reply(depth + 1) for _ in range(count)]
        if kind == b":":
            return _whole(rest)
        if kind == b"+":
            return rest
        if kind == b"-":
            return Refused(rest.decode(errors="replace")[:200])
        raise Broken("what came is no answer of a Redis server")

    def _line(self) -> bytes:
        while (end := self._held.find(b"\r\n", self._at)) < 0:
            if len(self._held) - self._at > _READ:
                raise Broken("an answer has no end")
            self._held += self._some()
        line = bytes(self._held[self._at : end])
        self._at = end + 2
        self._forget()
        return line

    def _exactly(self, size: int) -> bytes:
        self._room -= size
        if self._room < 0:
            raise Broken("an answer is too long")
        there = len(self._held) - self._at
        if there < size + 2:
            # The rest comes straight to its place.
            whole = bytearray(size + 2)
            whole[:there] = memoryview(self._held)[self._at :]
            self._held, self._at = bytearray(), 0
            view = memoryview(whole)
            while there < size + 2:
                self._wait()
                got = self._socket.recv_into(view[there:])
                if not got:
                    raise Broken("the connection was closed")
                there += got
            found = bytes(view[:size])
        else:
            found = bytes(memoryview(self._held)[self._at : self._at + size])
            self._at += size + 2
            self._forget()
        return found

    def _some(self) -> bytes:
        self._wait()
        if not (data := self._socket.recv(_READ)):
            raise Broken("the connection was closed")
        return data

    def _wait(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("it took too long")
        self._socket.settimeout(left)

    def _forget(self) -> None:
        if self._at == len(self._held):
            self._held, self._at = bytearray(), 0


def _whole(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise Broken("a number cannot be read") from None
