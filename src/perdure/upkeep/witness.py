"""The witness: the newest checkpoint of every line, kept outside the store, against which a lost tail shows.

A text file of JSON lines. First a header (store id, epoch, time, name of the key), then one line per line of a
session and one per input that waits in its inbox, then an end line with a digest over all before it (an HMAC when
keys are held). A live witness appends one line per commit behind the end line, each with a digest of its own, and is
not synced: what a crash takes from it is only that much less to compare with.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from perdure.errors import Corrupted, NotFound, Unavailable, UnsupportedFormat
from perdure.record import codec
from perdure.stores.listing import each_session
from perdure.system.disk import FILE_MODE, write_whole

if TYPE_CHECKING:
    from perdure.kernel import Kernel
    from perdure.record.codec import Point
    from perdure.stores.listing import Progress

T = TypeVar("T")
PAGE = 500
COMPACT_FROM = 1000
"""Lines behind the end line below which a live witness is not written anew when it is opened."""
log = logging.getLogger("perdure")


class Seen(NamedTuple):
    """The newest checkpoint of a line that the witness saw."""

    session: str
    branch: str
    line: int
    step: int
    id: str
    digest: str
    at: int
    """When it was seen (ms)."""


class Waited(msgspec.Struct, frozen=True):
    """An input that waited in an inbox when the witness looked."""

    session: str
    key: str
    digest: str
    at: int
    """When it was seen (ms)."""


class Witness(NamedTuple):
    """A witness as read from its file."""

    path: str
    store: str
    epoch: str
    at: int
    seen: dict[tuple[str, int], Seen]
    """By session and line."""
    live: int = 0
    """Lines that were appended since the file was last written as a whole."""
    waited: tuple[Waited, ...] = ()


class _Header(msgspec.Struct, tag_field="perdure", tag="witness"):
    v: int
    store: str
    epoch: str
    at: int
    key: str


class _End(msgspec.Struct):
    end: int
    digest: str


def write_witness(kernel: Kernel, path: str | os.PathLike[str], progress: Progress | None = None) -> int:
    """Write down the head of every branch of every session, and what waits in its inbox, atomically and durably.

    Returns how many heads there are.
    """

    def heads() -> Iterable[Seen | Waited]:
        for number, row in enumerate(each_session(kernel.store, PAGE), start=1):
            for head in row.heads:
                now = kernel.clock.wall()
                found = kernel.store.slice(row.id, head.line, head.step, head.step).rows
                if found and found[0].id == head.id:
                    digest = found[0].digest.hex()
                    yield Seen(row.id, head.branch, head.line, head.step, head.id.hex(), digest, now)
            for entry in kernel.store.inbox(row.id, row.pending) if row.pending else ():
                yield Waited(row.id, entry.key, entry.digest.hex(), kernel.clock.wall())
            if progress is not None:
                progress(row.id, number)

    return _write(kernel, os.fspath(path), heads())


def _write(kernel: Kernel, path: str, seen: Iterable[Seen | Waited]) -> int:
    name = kernel.keys.current
    header = _Header(1, kernel.store.id, kernel.store.epoch, kernel.clock.wall(), name)
    lines = [msgspec.json.encode(header)]
    heads = 0
    for one in seen:
        heads += isinstance(one, Seen)
        lines.append(msgspec.json.encode(one))
    body = b"\n".join(lines) + b"\n"
    mac = _digest(kernel, name, body, path)
    body += msgspec.json.encode(_End(len(lines) - 1, mac)) + b"\n"
    with write_whole(path) as file:
        file.write(body)
    return heads


def _digest(kernel: Kernel, name: str, data: bytes, path: str) -> str:
    return codec.digest(kernel.keys, name, b"witness\0", (data,), f"witness {path}").hex()


def read_witness(kernel: Kernel, path: str | os.PathLike[str]) -> Witness:
    """Read and verify a witness."""
    where = os.fspath(path)
    try:
        with open(where, "rb") as file:
            data = file.read()
    except FileNotFoundError as e:
        raise NotFound(
            f"there is no witness {where}: write one with perdure verify --all --witness {where} --update-witness"
        ) from e
    except OSError as e:
        raise Unavailable(f"witness {where} cannot be read: {e.strerror}: name a file") from e
    lines = data.split(b"\n")
    header = _parse(where, lines[0], _Header)
    if header.v != 1:
        raise UnsupportedFormat(f"witness {where}: version {header.v} is not known to this version: upgrade Perdure")
    end = _find_end(where, lines)
    claim = _parse(where, lines[end], _End)
    if not _matches(kernel, header.key, b"\n".join(lines[:end]) + b"\n", claim.digest, where):
        raise Corrupted(f"witness {where}", "the digest does not match")
    seen: dict[tuple[str, int], Seen] = {}
    waited: list[Waited] = []
    for line in lines[1:end]:
        if line.startswith(b"{"):
            waited.append(_parse(where, line, Waited))
        else:
            _note(seen, _parse(where, line, Seen))
    live = [line for line in lines[end + 1 :] if line]
    for line in live:
        if (one := _live(kernel, where, line)) is not None:
            _note(seen, one)
    return Witness(where, header.store, header.epoch, header.at, seen, len(live), tuple(waited))


def _note(seen: dict[tuple[str, int], Seen], one: Seen) -> None:
    known = seen.get((one.session, one.line))
    # A smaller step later on is another life of the session, after it had expired.
    if known is None or one.step > known.step or one.at > known.at:
        seen[one.session, one.line] = one


def _parse(where: str, line: bytes, of: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=of)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise Corrupted(f"witness {where}", "a line cannot be read") from e


def _find_end(where: str, lines: list[bytes]) -> int:
    for i, line in enumerate(lines):
        if line.startswith(b'{"end":'):
            return i
    raise Corrupted(f"witness {where}", "it is cut short")


def _live(kernel: Kernel, where: str, line: bytes) -> Seen | None:
    """A checkpoint that was appended; None for a line that a crash cut short: it may stand before others."""
    try:
        one, name, mac = _parse(where, line, tuple[Seen, str, str])
    except Corrupted:
        return None
    return one if _matches(kernel, name, line[: line.rindex(b',"')], mac, where) else None


def _matches(kernel: Kernel, name: str, data: bytes, mac: str, where: str) -> bool:
    return hmac.compare_digest(_digest(kernel, name, data, where).encode(), mac.encode())


class LiveWitness:
    """A witness that is told of every commit, as it returns. Its file may be shared by several processes."""

    def __init__(self, kernel: Kernel, path: str | os.PathLike[str]) -> None:
        self._kernel = kernel
        self._path = os.path.abspath(path)
        self._fd = self._open()

    def _open(self) -> int:
        try:
            known = read_witness(self._kernel, self._path)
        except NotFound:
            write_witness(self._kernel, self._path)
        else:
            if known.live >= max(COMPACT_FROM, len(known.seen)):
                self._compact()
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
            fcntl.flock(fd, fcntl.LOCK_SH)
            if os.path.samestat(os.fstat(fd), os.stat(self._path)):
                # A killed process may have left half a line: it ends here.
                os.write(fd, b"\n")
                return fd
            # Somebody has just written it anew.
            os.close(fd)

    def _compact(self) -> None:
        """Write the file anew, with one line for each line of a session; not while others append to it."""
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                known = read_witness(self._kernel, self._path)
                kept = [one for one in (*known.seen.values(), *known.waited) if not self._is_over(one)]
                _write(self._kernel, self._path, kept)
        finally:
            os.close(fd)

    def _is_over(self, one: Seen | Waited) -> bool:
        """Whether a session has rightly ended since."""
        row = self._kernel.store.look(one.session)
        return row is not None and bool(row.reason) and row.updated >= one.at

    def note(self, point: Point) -> None:
        """Append one checkpoint."""
        env = point.envelope
        now = self._kernel.clock.wall()
        one = [env.session, env.branch, env.line, env.step, env.id.hex(), point.digest.hex(), now]
        name = self._kernel.keys.current
        body = b"[" + msgspec.json.encode(one) + b"," + msgspec.json.encode(name)
        mac = _digest(self._kernel, name, body, self._path)
        try:
            # One write at the end of the file: lines of several processes do not mix.
            os.write(self._fd, body + b',"' + mac.encode() + b'"]\n')
        except OSError as e:
            # The commit itself is durable: whoever waits for it must not be told otherwise.
            log.warning("the witness %s could not be written: %s", self._path, e)

    def close(self) -> None:
        """Give the file back."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
