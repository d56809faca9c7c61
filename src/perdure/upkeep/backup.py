"""One portable file with everything of a store: sessions, artifacts, inboxes, blobs; from any store, into any store.

The file: a magic line, then frames, then the sha256 of all before it. A frame is its type (1 byte), its length and
its inflated length (8 bytes each, little-endian) and a zstd-compressed msgpack value. What is inside is sealed as it
was in the store: digests stay as they are, and whoever reads a restored session needs the same keys.

Each session is dumped at one instant; the file as a whole is not of one instant, and need not be: sessions share
nothing but blobs, and the blobs of a session are written before it.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import msgspec
import zstandard

from perdure.errors import Conflict, Corrupted, LimitExceeded, NotFound, Unavailable, UnsupportedFormat
from perdure.model import Artifact, Dump, InboxEntry, Row, SessionRow
from perdure.system import faults
from perdure.system.disk import FILE_MODE, explain

if TYPE_CHECKING:
    from perdure.kernel import Kernel

Progress = Callable[[str, int], None]
MAGIC = b"perdure backup 1\n"
_FRAME = struct.Struct("<BQQ")
HEADER, BLOB, SESSION, ROWS, ARTIFACT, INBOX, DONE, END = range(1, 9)
PART = 1000
"""Rows, or inbox entries, in one frame at most."""
PART_BYTES = 16 << 20
MAX_FRAME = 2 << 30
"""The largest inflated frame; a blob, a thousand messages, a snapshot are all smaller by their own limits."""
PAGE = 100


class Backed(NamedTuple):
    """What a backup holds."""

    sessions: int
    checkpoints: int
    blobs: int
    bytes: int
    missing: tuple[str, ...] = ()
    """Blobs that are referred to and were not there: the store is damaged, run verify."""


class Restored(NamedTuple):
    """What a restore wrote."""

    sessions: int
    skipped: int
    """Sessions that were there already, exactly as in the file: an interrupted restore goes on."""
    blobs: int


class _Header(msgspec.Struct, array_like=True):
    store: str
    epoch: str
    at: int


class _End(msgspec.Struct, array_like=True):
    sessions: int
    checkpoints: int
    blobs: int


def backup(
    kernel: Kernel, path: str | os.PathLike[str], progress: Progress | None = None, *, only: Sequence[str] | None = None
) -> Backed:
    """Write everything, or some sessions only, into one file while the store is in use.

    The file gets its name when it is complete.
    """
    target = os.path.abspath(path)
    unfinished = f"{target}.{os.getpid()}.tmp"
    try:
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            with open(fd, "wb") as file:
                writer = _Writer(kernel, file)
                done = writer.run(progress, only)
                file.flush()
                faults.point("backup.before_fsync")
                os.fsync(file.fileno())
            faults.point("backup.before_rename")
            os.replace(unfinished, target)
        except BaseException:
            os.unlink(unfinished)
            raise
        folder = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as e:
        raise explain(e, target) from e
    return done


class _Writer:
    def __init__(self, kernel: Kernel, file: IO[bytes]) -> None:
        self._kernel = kernel
        self._file = file
        self._hash = hashlib.sha256()
        self._size = 0
        self._compressor = zstandard.ZstdCompressor(level=3)
        self._blobs: set[str] = set()
        self._missing: set[str] = set()

    def run(self, progress: Progress | None, only: Sequence[str] | None) -> Backed:
        store = self._kernel.store
        self._raw(MAGIC)
        self._frame(HEADER, _Header(store.id, store.epoch, self._kernel.clock.wall()))
        sessions = checkpoints = 0
        for session in self._all() if only is None else only:
            try:
                dump = store.dump(session)
            except NotFound:
                if only is not None:
                    raise
                # It has gone since it was listed.
                continue
            self._session(dump)
            sessions, checkpoints = sessions + 1, checkpoints + len(dump.rows)
            if progress is not None:
                progress(session, sessions)
        held = len(self._blobs) - len(self._missing)
        self._frame(END, _End(sessions, checkpoints, held))
        self._file.write(self._hash.digest())
        return Backed(sessions, checkpoints, held, self._size + 32, tuple(sorted(self._missing)))

    def _all(self) -> Iterator[str]:
        after: str | None = None
        while rows := self._kernel.store.sessions(after=after, limit=PAGE):
            after = rows[-1].id
            yield from (row.id for row in rows)

    def _session(self, dump: Dump) -> None:
        refs = {ref for _, shown in dump.rows for ref in shown["blobs"]}
        refs.update(ref for artifact in dump.artifacts for ref in artifact.blobs)
        for ref in sorted(refs - self._blobs):
            self._blobs.add(ref)
            try:
                self._frame(BLOB, [ref, self._kernel.blobs.get(ref)])
            except NotFound:
                self._missing.add(ref)
        self._frame(SESSION, dump.row)
        part: list[Any] = []
        size = 0
        for row, shown in dump.rows:
            part.append((row, shown))
            size += len(row.envelope) + len(row.payload)
            if len(part) >= PART or size >= PART_BYTES:
                self._frame(ROWS, part)
                part, size = [], 0
        if part:
            self._frame(ROWS, part)
        for artifact in dump.artifacts:
            self._frame(ARTIFACT, artifact)
        for i in range(0, len(dump.inbox), PART):
            self._frame(INBOX, dump.inbox[i : i + PART])
        self._frame(DONE, [len(dump.rows), len(dump.artifacts), len(dump.inbox)])

    def _frame(self, kind: int, value: Any) -> None:
        plain = msgspec.msgpack.encode(value)
        if len(plain) > MAX_FRAME:
            msg = f"a single record has {len(plain)} bytes, over the limit of {MAX_FRAME} for a backup"
            raise LimitExceeded(msg)
        packed = self._compressor.compress(plain)
        self._raw(_FRAME.pack(kind, len(packed), len(plain)) + packed)

    def _raw(self, data: bytes) -> None:
        self._hash.update(data)
        self._file.write(data)
        self._size += len(data)


def restore(
    kernel: Kernel, path: str | os.PathLike[str], progress: Progress | None = None, *, whole: bool = True
) -> Restored:
    """Bring everything of a backup into this store, which gets a new epoch: cursors expire and leases end.

    With ``whole=False`` it is some sessions of another store that come to those that are here: the epoch stays.

    The whole file is read and checked first: a damaged one is refused, and so is one with a session that is here
    already and differs, before anything is written.
    """
    where = os.fspath(path)
    try:
        with open(where, "rb") as file:
            return _restore(kernel, file, where, progress, whole)
    except FileNotFoundError as e:
        raise NotFound(f"there is no backup {where}") from e
    except OSError as e:
        raise Unavailable(f"backup {where} cannot be read: {e.strerror}") from e


def _restore(kernel: Kernel, file: IO[bytes], where: str, progress: Progress | None, whole: bool) -> Restored:
    there = _check(kernel, file, where)
    file.seek(0)
    faults.point("restore.checked")
    if whole:
        kernel.store.renew_epoch()
    sessions = blobs = 0
    for item in _items(_frames(file, where), where):
        if isinstance(item, Dump):
            if item.row.id not in there:
                faults.point("restore.before_session")
                kernel.store.restore(item)
                sessions += 1
            if progress is not None:
                progress(item.row.id, sessions)
        else:
            kernel.blobs.put(*item)
            blobs += 1
    return Restored(sessions, len(there), blobs)


def _check(kernel: Kernel, file: IO[bytes], where: str) -> set[str]:
    """Read the file to its end; the sessions in it that are in the store already."""
    there: set[str] = set()
    differs: SessionRow | None = None
    for item in _items(_frames(file, where), where):
        if isinstance(item, Dump):
            row = kernel.store.look(item.row.id)
            if row is not None and row.lines:
                differs = row if row.heads != item.row.heads else differs
                there.add(row.id)
        elif hashlib.sha256(item[1]).hexdigest() != item[0]:
            raise Corrupted(f"backup {where}", "a blob does not match its name")
    if differs is not None:
        msg = f"session {differs.id!r} is in {kernel.store.url} already, and differs: restore into another store"
        raise Conflict(msg, next(iter(differs.heads), None))
    return there


def _frames(file: IO[bytes], where: str) -> Iterator[tuple[int, bytes]]:
    """The frames of a file; its end is checked when it is reached."""
    seen = hashlib.sha256()

    def read(size: int) -> bytes:
        data = file.read(size)
        if len(data) != size:
            raise Corrupted(f"backup {where}", "it is cut short")
        seen.update(data)
        return data

    if read(len(MAGIC)) != MAGIC:
        raise UnsupportedFormat(f"{where} is not a backup of this version of Perdure")
    decompressor = zstandard.ZstdDecompressor()
    kind = 0
    while kind != END:
        kind, packed, plain = _FRAME.unpack(read(_FRAME.size))
        if plain > MAX_FRAME or packed > MAX_FRAME:
            raise Corrupted(f"backup {where}", "a frame claims an impossible size")
        data = read(packed)
        try:
            if zstandard.frame_content_size(data) != plain:
                raise Corrupted(f"backup {where}", "a frame has another size than it says")
            body = decompressor.decompress(data, max_output_size=plain or 1)
        except zstandard.ZstdError as e:
            raise Corrupted(f"backup {where}", "a frame cannot be read") from e
        yield kind, body
    if file.read(33) != seen.digest():
        raise Corrupted(f"backup {where}", "its sha256 does not match")


_Rows = list[tuple[Row, dict[str, Any]]]


def _items(frames: Iterator[tuple[int, bytes]], where: str) -> Iterator[Dump | tuple[str, bytes]]:
    """The blobs and sessions of a file, in its order."""
    session: SessionRow | None = None
    rows: _Rows = []
    artifacts: list[Artifact] = []
    inbox: list[InboxEntry] = []
    counted = _End(0, 0, 0)
    for kind, body in frames:
        try:
            if kind == BLOB:
                counted.blobs += 1
                yield msgspec.msgpack.decode(body, type=tuple[str, bytes])
            elif kind == SESSION:
                session, rows, artifacts, inbox = msgspec.msgpack.decode(body, type=SessionRow), [], [], []
            elif kind == ROWS:
                rows.extend(msgspec.msgpack.decode(body, type=_Rows))
            elif kind == ARTIFACT:
                artifacts.append(msgspec.msgpack.decode(body, type=Artifact))
            elif kind == INBOX:
                inbox.extend(msgspec.msgpack.decode(body, type=list[InboxEntry]))
            elif kind == DONE:
                told = msgspec.msgpack.decode(body, type=list[int])
                if session is None or told != [len(rows), len(artifacts), len(inbox)]:
                    raise Corrupted(f"backup {where}", "a session is incomplete")
                counted.sessions, counted.checkpoints = counted.sessions + 1, counted.checkpoints + len(rows)
                yield Dump(session, tuple(rows), tuple(artifacts), tuple(inbox))
                session = None
            elif kind == END:
                if msgspec.msgpack.decode(body, type=_End) != counted:
                    raise Corrupted(f"backup {where}", "it holds another number of sessions or blobs than it says")
            elif kind != HEADER:
                raise UnsupportedFormat(f"backup {where}: frame type {kind} is not known: upgrade Perdure")
        except (msgspec.MsgspecError, UnicodeDecodeError) as e:
            raise Corrupted(f"backup {where}", "a frame cannot be read") from e
