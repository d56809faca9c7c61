"""One session's folder: its lock, its lease and its log, and what is read of it. Decides nothing.

``log``
    the session's records (:mod:`perdure.stores.file.log`), and its inbox's; replaced as a whole when too
    much of it is dead.
``lease``
    the current lease, written in place, and the file whose advisory lock guards the folder: it is never
    replaced, so the lock outlives any log.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import msgspec

from perdure.errors import Corrupted, InvalidInput
from perdure.model import Artifact, Change, InboxEntry, Row
from perdure.stores import rules
from perdure.stores.file.log import SessionLog, new_birth
from perdure.stores.file.records import HEADER, Commit, Posted, Record, Rewritten, checked
from perdure.stores.rules import StoredLease
from perdure.system.disk import open_to_write, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from perdure.protocols import Clock
    from perdure.stores.file.index import ArtifactAt, RowAt, SessionIndex
    from perdure.stores.file.log import Packed
    from perdure.system.disk import Disk

R = TypeVar("R", bound=Record)

_LEASE = struct.Struct("<4sII")
_LEASE_MAGIC = b"pdL1"
_LEASE_SIZE = 1024
_lease_decoder = msgspec.msgpack.Decoder(StoredLease)


class SessionFile:
    """The files of one session; everything but the constructor is called between ``enter`` and ``leave``."""

    def __init__(
        self, disk: Disk, folder: str, salt: int, clock: Clock, torn: Callable[[str, str, int, int], None]
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._salt = salt
        self._clock = clock
        self.log = SessionLog(disk, folder, salt, torn)
        self.mutex = threading.Lock()
        """Between threads; the advisory lock is between processes only."""
        self.users: set[object] = set()
        """Who has it or waits for it: the pool closes only what nobody uses."""
        self.counted = 0
        """How many rows of it the pool has counted."""
        self._lock_fd = -1
        self._lease_raw = b""
        self._lease = StoredLease()

    @property
    def index(self) -> SessionIndex:
        """What the log adds up to."""
        return self.log.index

    @property
    def is_open(self) -> bool:
        """Whether it takes up descriptors."""
        return self._lock_fd >= 0

    def enter(self, *, exclusive: bool, create: bool, damaged: bool = False) -> bool:
        """Take the lock and read what is new in the log; False when there is no such session.

        One whose last record is damaged is refused, unless ``damaged`` asks for what is before that. Whatever comes of
        it, :meth:`leave` follows.
        """
        if self._lock_fd < 0:
            if create:
                self._disk.mkdir(os.path.dirname(self._folder))
                self._disk.mkdir(self._folder)
            elif not self._is_there():
                return False
            self._lock_fd = open_to_write(self._disk, f"{self._folder}/lease")
        self._disk.lock(self._lock_fd, exclusive=exclusive)
        self.log.refresh(exclusive=exclusive)
        if self.log.damage and not damaged:
            raise self.log.damaged()
        return bool(create or self.log.end or self.log.damage)

    def _is_there(self) -> bool:
        try:
            self._disk.stat(self.log.path)
        except FileNotFoundError:
            return False
        return True

    def leave(self) -> None:
        """Give the lock back; again, or when it was never had: no error."""
        if self._lock_fd >= 0:
            self._disk.unlock(self._lock_fd)

    def park(self) -> None:
        """Close the files and keep the index."""
        self.log.park()
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            self._disk.close(fd)

    # -- records -----------------------------------------------------------------------------------

    def append(self, session: str, batch: Sequence[Packed], what: str) -> None:
        """Append records durably; an empty batch only makes the session, when there is none."""
        if not self.log.end:
            birth = new_birth(session, self._clock.wall())
            batch = [(birth, checked(birth)), *batch]
        if batch:
            self.log.append(batch, what)

    def replace(self, session: str, records: Iterable[Record], what: str) -> None:
        """Put other records in the place of all there are."""
        self.log.replace(new_birth(session, self.index.created or self._clock.wall()), records, what)

    def compact(self) -> None:
        """Rewrite the log without what is dead."""
        self.replace(self.index.session, self._living(), "compact")

    def accept_loss(self, session: str) -> str:
        """Set a damaged last record aside; the file with its bytes."""
        saved, size = self.log.save_damaged()
        # Others may have read what is lost, and count on from there: no number is given out twice.
        self.index.ordinal = self.index.trimmed = self.index.ordinal + size // HEADER.size
        self.replace(session, self._living(), "accept")
        return saved

    def _living(self) -> Iterator[Record]:
        index = self.index
        yield from self.posts()
        rows = list(index.commits.values())
        for row, commit in zip(rows, self.commits(), strict=True):
            yield msgspec.structs.replace(commit, envelope=b"", payload=b"") if row.thin else commit
        for artifact in self.artifacts(list(index.artifacts.values())):
            yield Rewritten(put=(artifact,))
        yield index.state(max(index.token, self.lease().token))

    def posts(self) -> Iterator[Posted]:
        """All inbox entries in order of arrival; those that were taken without their bodies."""
        posts = sorted(self.index.posts.values(), key=lambda post: post.seq)
        for post, record in zip(posts, self.log.records([post.place for post in posts]), strict=True):
            posted = self.expect(record, Posted)
            yield msgspec.structs.replace(posted, body=b"", taken=post.taken) if post.taken else posted

    def commits(self) -> Iterator[Commit]:
        """All commits in the order they were made, as written (a thin one may still have its payload)."""
        for record in self.log.records([row.place for row in self.index.commits.values()]):
            yield self.expect(record, Commit)

    def rows(self, found: Sequence[RowAt]) -> list[Row]:
        """Some rows, each verified."""
        records = self.log.records([row.place for row in found])
        return [row_of(at, self.expect(record, Commit)) for at, record in zip(found, records, strict=True)]

    def artifacts(self, found: Sequence[ArtifactAt] | None = None) -> list[Artifact]:
        """Some artifacts, each verified; without any named, all of them in order of their keys."""
        if found is None:
            found = [self.index.artifacts[key] for key in sorted(self.index.artifacts)]
        records = self.log.records([at.place for at in found])
        return [self.expect(record, Rewritten).put[at.nth] for at, record in zip(found, records, strict=True)]

    def entry(self, said: Posted) -> InboxEntry:
        """An inbox entry as callers see it."""
        session = self.index.session
        return InboxEntry(session, said.key, said.kind, said.at, said.digest, said.body, said.seq, said.taken)

    def changes(self, after: int, limit: int) -> list[tuple[int, Change]]:
        """Commits after an ordinal, each with its own."""
        index = self.index
        numbers = (number for number in range(after + 1, index.ordinal + 1) if number in index.commits)
        found = [index.commits[number] for number in islice(numbers, limit)]
        items: list[tuple[int, Change]] = []
        for row, record in zip(found, self.log.records([row.place for row in found]), strict=True):
            said = self.expect(record, Commit)
            change = Change(index.session, said.branch, said.line, said.step, said.id, said.kind, said.status, said.at)
            items.append((row.ordinal, change))
        return items

    def last_step(self, line: int) -> int:
        """The last step of a line that can be read."""
        index = self.index
        if index.reason:
            raise rules.gone(index.session, index.reason)
        if not index.next_line:
            raise rules.no_session(index.session)
        last = index.last(line)
        if last is None:
            raise rules.no_line(index.session, line)
        return last

    def expect(self, record: Record, kind: type[R]) -> R:
        """The record, which the index says is of this type."""
        if not isinstance(record, kind):
            raise Corrupted(self.log.path, f"a record is no {kind.__name__}, as it was when the log was read")
        return record

    # -- the lease ---------------------------------------------------------------------------------

    def lease(self) -> StoredLease:
        """The lease as it stands; one that cannot be read (never synced, power lost) is nobody's."""
        raw = self._disk.read(self._lock_fd, _LEASE_SIZE, 0)
        if raw != self._lease_raw:
            self._lease_raw, self._lease = raw, self._parse_lease(raw)
        if self._lease.token < self.index.token:
            return StoredLease(token=self.index.token)
        return self._lease

    def _parse_lease(self, raw: bytes) -> StoredLease:
        if len(raw) >= _LEASE.size:
            magic, length, crc = _LEASE.unpack_from(raw)
            body = raw[_LEASE.size : _LEASE.size + length]
            if magic == _LEASE_MAGIC and len(body) == length and zlib.crc32(body, self._salt) == crc:
                return _lease_decoder.decode(body)
        return StoredLease()

    def set_lease(self, lease: StoredLease) -> None:
        """Write the lease in its place. Never synced: no holder outlives the power that would lose it."""
        try:
            body = msgspec.msgpack.encode(lease)
        except ValueError as error:
            raise InvalidInput(f"a lease cannot be kept: {error}") from error
        raw = _LEASE.pack(_LEASE_MAGIC, len(body), zlib.crc32(body, self._salt)) + body
        if len(raw) > _LEASE_SIZE:
            raise InvalidInput("the holder's name is too long: use 200 characters at most")
        # Always of the same length, so that one system call reads it.
        write_all(self._disk, self._lock_fd, raw.ljust(_LEASE_SIZE, b"\0"), 0)


def row_of(at: RowAt, said: Commit) -> Row:
    """A row as callers see it."""
    # Until the log is rewritten, a row that is thin still has its bytes there: they no longer count.
    envelope, payload = (b"", b"") if at.thin else (said.envelope, said.payload)
    return Row(said.line, said.step, said.id, said.digest, envelope, payload)


OPEN = 128
"""Sessions with open files (two each): well below the usual limit of 1024 descriptors."""
KEPT = 4096
"""Sessions whose index is kept."""
ROWS = 500_000
"""Rows in all indexes together; some 300 bytes each."""


class Pool:
    """Session files by the name of their folder; the ones used last are kept."""

    def __init__(self, make: Callable[[str], SessionFile]) -> None:
        self._make = make
        self._lock = threading.Lock()
        # In order of use, the last one last.
        self._kept: dict[str, SessionFile] = {}
        self._open: set[str] = set()
        self._rows = 0
        self._closed = False

    def close(self) -> None:
        """Close all files; those in use are closed by whoever uses them."""
        with self._lock:
            self._closed = True
            for file in self._kept.values():
                if not file.users:
                    file.park()

    def take(self, name: str, user: object) -> SessionFile:
        """The files of a session, which stay open until the user gives them back."""
        with self._lock:
            file = self._kept.pop(name, None) or self._make(name)
            self._kept[name] = file
            file.users.add(user)
            return file

    def give(self, name: str, user: object) -> None:
        """Give them back; again, or when they were never had: no error."""
        with self._lock:
            file = self._kept.get(name)
            if file is None:
                return
            file.users.discard(user)
            if self._closed:
                if not file.users:
                    file.park()
                return
            if file.is_open and name not in self._open:
                self._open.add(name)
                if len(self._open) > OPEN:
                    self._park()
            rows = len(file.index.commits)
            self._rows += rows - file.counted
            file.counted = rows
            if len(self._kept) > KEPT or self._rows > ROWS:
                self._forget()

    def _park(self) -> None:
        """Close some of the files that were not used for longest."""
        idle = [name for name, file in self._kept.items() if not file.users and name in self._open]
        for name in idle[: OPEN // 8]:
            self._kept[name].park()
            self._open.remove(name)

    def _forget(self) -> None:
        """Drop what was not used for longest, but never the one used last."""
        idle = [name for name, file in self._kept.items() if not file.users][:-1]
        for name in idle:
            if len(self._kept) <= KEPT and self._rows <= ROWS:
                break
            file = self._kept.pop(name)
            file.park()
            self._open.discard(name)
            self._rows -= file.counted
