"""One portable file with sessions: a whole store (backup, restore) or one session (export, import), of any store.

The file: a magic line, then frames, then the sha256 of all before it. A frame is its type (1 byte), its length and
its inflated length (8 bytes each, little-endian) and a zstd-compressed msgpack value. What is inside is sealed as it
was in the store that the header names: digests stay as they are, and whoever restores a session, which binds it to
another store, needs the same keys.

Each session is dumped at one instant; the file as a whole is not of one instant, and need not be: sessions share
nothing but blobs, and the blobs of a session are written before it.
"""

from __future__ import annotations

import hashlib
import os
import struct
from typing import IO, TYPE_CHECKING, Any, TypeVar

import msgspec
import zstandard

from perdure.errors import Conflict, Corrupted, InvalidInput, LimitExceeded, NotFound, Unavailable, UnsupportedFormat
from perdure.model import Artifact, Dump, InboxEntry, Row, SessionRow
from perdure.record import codec
from perdure.record.binding import rebind
from perdure.system import faults
from perdure.system.disk import write_whole
from perdure.upkeep.own_files import check_apart
from perdure.upkeep.transfer import Sink, Source, StoreSink, Transferred, from_store, in_batches, transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from perdure.kernel import Kernel
    from perdure.stores.listing import Progress

T = TypeVar("T")
MAGIC = b"perdure backup 2\n"
_ANY = b"perdure backup "
"""What a backup of any version begins with."""
_FRAME = struct.Struct("<BQQ")
HEADER, BLOB, SESSION, ROWS, ARTIFACTS, INBOX, END = range(1, 8)
PART = 1000
"""Rows, artifacts or inbox entries in one frame at most."""
PART_BYTES = 16 << 20
MAX_FRAME = 2 << 30
"""The largest inflated frame; a piece of a blob, a thousand messages, a snapshot are smaller by their own limits."""


class _Header(msgspec.Struct, array_like=True):
    store: str
    epoch: str
    at: int


class _Session(msgspec.Struct, array_like=True):
    """A session and how much of it follows."""

    row: SessionRow
    rows: int
    artifacts: int
    inbox: int


class _End(msgspec.Struct, array_like=True):
    sessions: int = 0
    checkpoints: int = 0
    blobs: int = 0


_Rows = list[tuple[Row, dict[str, Any]]]


def backup(
    kernel: Kernel, path: str | os.PathLike[str], progress: Progress | None = None, *, only: Sequence[str] | None = None
) -> Transferred:
    """Write everything, or some sessions only, into one file while the store is in use.

    The file gets its name when it is complete. An earlier backup of that name is replaced, and nothing else is.
    """
    check_apart(kernel, path, "backup")
    _check_replaced(path)
    with write_whole(path) as file:
        sink = _Writer(kernel, file)
        done = transfer(from_store(kernel, only), sink, progress)
        sink.end()
    return done


def _check_replaced(path: str | os.PathLike[str]) -> None:
    """Refuse a name that something else than an earlier backup has: it would be gone."""
    if not os.path.exists(path):
        return
    known = False
    # A pipe is not opened: it would wait for somebody to write.
    if os.path.isfile(path):
        try:
            with open(path, "rb") as file:
                known = file.read(len(_ANY)) in (_ANY, b"")
        except OSError as e:
            raise Unavailable(f"{os.fspath(path)} cannot be read: {e.strerror}: choose a new name") from e
    if not known:
        msg = f"{os.fspath(path)} exists already and is no backup: choose a new name, so that nothing is lost"
        raise InvalidInput(msg)


def restore(
    kernel: Kernel, path: str | os.PathLike[str], progress: Progress | None = None, *, whole: bool = True
) -> Transferred:
    """Bring everything of a backup into this store, which gets a new epoch: cursors expire and leases end.

    With ``whole=False`` it is some sessions of another store that come to those that are here: the epoch stays.

    The whole file is read and checked first: a damaged one is refused, and so is one with a session that is here
    already and differs, before anything is written.
    """
    where = os.fspath(path)
    sink = StoreSink(kernel)
    conflicts: list[Conflict] = []

    def compare(dump: Dump, store: str) -> None:
        try:
            # Without the key they cannot be bound to this store: that is found out before anything is written.
            rebind(kernel.keys, dump, store, kernel.store_id)
            sink.has(dump)
        except Conflict as e:
            conflicts.append(e)

    try:
        with open(where, "rb") as file:
            found = _read_whole(file, where, compare)
            if conflicts:
                raise conflicts[0]
            faults.point("restore.checked")
            if whole:
                kernel.store.renew_epoch()
            return transfer(Source(found.sessions, found.dump, found.blob, found.store), sink, progress)
    except FileNotFoundError as e:
        raise NotFound(f"there is no backup {where}") from e
    except OSError as e:
        raise Unavailable(f"backup {where} cannot be read: {e.strerror}") from e


class _Writer(Sink):
    """Writes sessions into a file, each after those of its blobs that are not in it yet."""

    def __init__(self, kernel: Kernel, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._hash = hashlib.sha256()
        self._compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
        self._write(MAGIC)
        self._frame(HEADER, _Header(kernel.store.id, kernel.store.epoch, kernel.clock.wall()))

    def take(self, dump: Dump, source: Source) -> None:
        """Write one session."""
        self.bring_new_blobs(dump, source)
        self._frame(SESSION, _Session(dump.row, len(dump.rows), len(dump.artifacts), len(dump.inbox)))
        self._parts(ROWS, ((row, len(row[0].envelope) + len(row[0].payload)) for row in dump.rows))
        self._parts(ARTIFACTS, ((artifact, len(artifact.body)) for artifact in dump.artifacts))
        self._parts(INBOX, ((entry, len(entry.body)) for entry in dump.inbox))
        self.done.copied += 1
        self.done.checkpoints += len(dump.rows)

    def put_blob(self, ref: str, pieces: Iterator[bytes]) -> None:
        """Write one blob, a frame for each piece."""
        for piece in pieces:
            self._frame(BLOB, (ref, piece))

    def end(self) -> None:
        """Write down what there should be, and the digest of it all."""
        self.done.missing.sort()
        self._frame(END, _End(self.done.copied, self.done.checkpoints, self.done.blobs))
        self._write(self._hash.digest())

    def _parts(self, kind: int, items: Iterable[tuple[object, int]]) -> None:
        for part in in_batches(items, PART, PART_BYTES):
            self._frame(kind, part)

    def _frame(self, kind: int, value: Any) -> None:
        plain = msgspec.msgpack.encode(value)
        if len(plain) > MAX_FRAME:
            raise LimitExceeded(f"a single record has {len(plain)} bytes, over the limit of {MAX_FRAME} for a backup")
        packed = self._compressor.compress(plain)
        self._write(_FRAME.pack(kind, len(packed), len(plain)) + packed)

    def _write(self, data: bytes) -> None:
        self._hash.update(data)
        self._file.write(data)
        self.done.bytes += len(data)


def check_backup(path: str) -> None:
    """Refuse a file that is damaged, before a database is made for it."""
    try:
        with open(path, "rb") as file:
            _read_whole(file, path, lambda _dump, _store: None)
    except OSError as e:
        raise Unavailable(f"backup {path} cannot be read: {e.strerror}") from e


def _read_whole(file: IO[bytes], where: str, check: Callable[[Dump, str], None]) -> _Reader:
    try:
        return _Reader(file, where, check)
    except Corrupted as e:
        if not e.where.startswith("backup "):
            raise
        # What could be verified is the store, and nothing is the matter with that.
        raise Corrupted(e.where, e.what, "take another copy of this file, or another backup") from e


class _Reader:
    """Reads sessions and blobs of a file, which is first read and checked as a whole: ``check`` gets every session."""

    def __init__(self, file: IO[bytes], where: str, check: Callable[[Dump, str], None]) -> None:
        self._file = file
        self._where = f"backup {where}"
        self._size = os.fstat(file.fileno()).st_size
        self._hash = hashlib.sha256()
        self.sessions: dict[str, int] = {}
        """Where in the file each session begins."""
        self._blobs: dict[str, int] = {}
        self.store = ""
        """The id of the store that it was made of."""
        if self._read(len(MAGIC)) != MAGIC:
            raise UnsupportedFormat(f"{where} is not a backup of this version of Perdure")
        self._check(check)

    def dump(self, id: str) -> Dump:
        """One session."""
        self._file.seek(self.sessions[id])
        return self._session(self._next()[1])

    def blob(self, ref: str) -> Iterator[bytes]:
        """The pieces of a blob."""
        if ref not in self._blobs:
            raise NotFound(f"there is no blob {ref} in {self._where}")
        self._file.seek(self._blobs[ref])
        while (found := self._piece(*self._next()))[0] == ref:
            yield found[1]

    def _check(self, check: Callable[[Dump, str], None]) -> None:
        """Read the file to its end."""
        found = _End()
        kind, ref, content = 0, "", hashlib.sha256()
        while kind != END:
            at = self._file.tell()
            kind, body = self._next()
            name, piece = self._piece(kind, body)
            if name != ref:
                if ref and content.hexdigest() != ref:
                    raise self._damaged("a blob does not match its name")
                ref, content = name, hashlib.sha256()
                if name:
                    self._blobs[name] = at
                    found.blobs += 1
            content.update(piece)
            if kind == HEADER:
                self.store = self._decode(body, _Header).store
            elif kind == SESSION:
                dump = self._session(body)
                self.sessions[dump.row.id] = at
                found.sessions, found.checkpoints = found.sessions + 1, found.checkpoints + len(dump.rows)
                check(dump, self.store)
            elif kind == END and self._decode(body, _End) != found:
                raise self._damaged("it holds another number of sessions or blobs than it says")
            elif kind not in (BLOB, END):
                raise UnsupportedFormat(f"{self._where}: frame type {kind} is not known here: upgrade Perdure")
        digest = self._hash.digest()
        if self._file.read(len(digest) + 1) != digest:
            raise self._damaged("its sha256 does not match")

    def _piece(self, kind: int, body: bytes) -> tuple[str, bytes]:
        """The name of a blob and a piece of it; no name if this frame is something else."""
        return self._decode(body, tuple[str, bytes]) if kind == BLOB else ("", b"")

    def _session(self, body: bytes) -> Dump:
        session = self._decode(body, _Session)
        rows = self._parts(ROWS, _Rows, session.rows)
        artifacts = self._parts(ARTIFACTS, list[Artifact], session.artifacts)
        inbox = self._parts(INBOX, list[InboxEntry], session.inbox)
        return Dump(session.row, tuple(rows), tuple(artifacts), tuple(inbox))

    def _parts(self, wanted: int, of: type[list[T]], count: int) -> list[T]:
        items: list[T] = []
        while len(items) < count:
            kind, body = self._next()
            if kind != wanted:
                raise self._damaged("a session is incomplete")
            items += self._decode(body, of)
        if len(items) != count:
            raise self._damaged("a session is incomplete")
        return items

    def _next(self) -> tuple[int, bytes]:
        """The type and the inflated body of the frame that comes next."""
        kind, packed, plain = _FRAME.unpack(self._read(_FRAME.size))
        if plain > MAX_FRAME:
            raise self._damaged("a frame claims an impossible size")
        data = codec.inflate(self._read(packed), plain, self._where)
        if len(data) != plain:
            raise self._damaged("a frame has another size than it says")
        return kind, data

    def _read(self, size: int) -> bytes:
        # Asked first: a length that is not true must not make us set memory aside for it.
        if size > self._size - self._file.tell():
            raise self._damaged("it is cut short")
        data = self._file.read(size)
        self._hash.update(data)
        return data

    def _decode(self, body: bytes, of: type[T]) -> T:
        try:
            return msgspec.msgpack.decode(body, type=of)
        except (msgspec.MsgspecError, UnicodeDecodeError) as e:
            raise self._damaged("a frame cannot be read") from e

    def _damaged(self, what: str) -> Corrupted:
        return Corrupted(self._where, what)
