"""The witness: the newest checkpoint of every line, kept outside the store, against which a lost tail shows.

How it is written, kept up to date by every commit, read, and compared with a store that is being verified.

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
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from perdure.errors import Corrupted, NotFound, Unavailable, UnsupportedFormat
from perdure.record import codec
from perdure.stores.listing import each_session
from perdure.system.disk import FILE_MODE, write_whole
from perdure.upkeep.verify import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from perdure.kernel import Kernel
    from perdure.model import SessionRow
    from perdure.record.codec import Point
    from perdure.stores.listing import Progress
    from perdure.upkeep.verify import Inspection

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

    def by_session(self) -> dict[str, SeenSession]:
        """What it saw, session by session."""
        found: dict[str, SeenSession] = {}
        for head in self.seen.values():
            found.setdefault(head.session, SeenSession([], [])).heads.append(head)
        for entry in self.waited:
            found.setdefault(entry.session, SeenSession([], [])).waited.append(entry)
        return found

    def compare_store(self, id: str) -> Iterator[Finding]:
        """Whether this is the store it was written for."""
        if self.store != id:
            what = f"it was written for store {self.store}, and this is {id}"
            yield Finding("lost", "", f"witness {self.path}", what)


class SeenSession(NamedTuple):
    """What a witness saw of one session, to be compared with what the store has of it now."""

    heads: list[Seen]
    waited: list[Waited]

    def compare(self, inspection: Inspection, waiting: Sequence[str]) -> Iterator[Finding]:
        """What an inspected session has lost; ``waiting`` are the keys of the inputs in its inbox."""
        since = {head.line: head.step for head in self.heads}
        for one in (*self.heads, *self.waited):
            # Another life of the session began after it was seen: the one that was seen had ended before.
            if inspection.born > one.at:
                continue
            if isinstance(one, Seen):
                if what := _compare_head(one, inspection):
                    yield _lost(one, what)
            elif what := inspection.input(one.key, one.digest, since):
                yield _lost(one, f"the witness saw input {one.key!r:.60} waiting, and {what}")
        order = [entry.key for entry in self.waited if entry.key in waiting]
        if order != [key for key in waiting if key in order]:
            id = self.waited[0].session
            what = "its inputs wait in another order than the witness saw"
            yield Finding("inbox", id, f"session {id!r}, inbox", what)

    def compare_ended(self, row: SessionRow | None) -> Iterator[Finding]:
        """What was lost with a session that is not there, unless its row says that it has rightly ended since."""
        for one in (*self.heads, *self.waited):
            if not _has_ended(row, one):
                saw = f"step {one.step} of line {one.line}" if isinstance(one, Seen) else f"input {one.key!r:.60}"
                yield _lost(one, f"the witness saw {saw}, and there is no such session")


def _compare_head(one: Seen, inspection: Inspection) -> str:
    """What became of a checkpoint; "" when it is there, or was dropped by retention."""
    row = inspection.rows.get((one.line, one.step))
    if row is not None and (row.id.hex(), row.digest.hex()) == (one.id, one.digest):
        return ""
    if row is not None:
        return f"step {one.step} of line {one.line} is another checkpoint than the witness saw"
    if inspection.covers(one.line, one.step):
        return ""
    steps = [step for line, step in inspection.rows if line == one.line]
    now = f"line {one.line} ends at step {max(steps)}" if steps else f"there is no line {one.line}"
    return f"the witness saw step {one.step} of line {one.line}, and {now}"


def _has_ended(row: SessionRow | None, one: Seen | Waited) -> bool:
    """Whether a session has rightly ended since it was seen, by the word of its tombstone."""
    return row is not None and bool(row.reason) and row.updated >= one.at


def _lost(one: Seen | Waited, what: str) -> Finding:
    where = f"session {one.session!r}, " + (f"branch {one.branch!r}" if isinstance(one, Seen) else "inbox")
    return Finding("lost", one.session, where, what)


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
                seen, look = (*known.seen.values(), *known.waited), self._kernel.store.look
                _write(self._kernel, self._path, [one for one in seen if not _has_ended(look(one.session), one)])
        finally:
            os.close(fd)

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
