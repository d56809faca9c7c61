"""A session's log on disk and the index that follows it: reading on, cutting an interrupted write, writing.

The caller holds the session's lock: shared to read, exclusive for everything else.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from perdure.errors import Corrupted, Poisoned, Unavailable, UnsupportedFormat
from perdure.stores.file.index import Place, SessionIndex
from perdure.stores.file.records import (
    FORMAT,
    HEADER,
    Birth,
    Record,
    decode,
    encode,
    interrupted,
    later_write,
    pack,
    scan,
    unpack,
)
from perdure.system import faults
from perdure.system.commands import typed
from perdure.system.disk import open_to_write, sync, sync_folder, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from perdure.system.disk import Disk

    Packed = tuple[Record, tuple[int, bytes]]
    """A record, and its type and body."""
    Read = Callable[[int, int], bytes]
    """(size, offset) -> bytes, shorter only at the end of the file."""

_AT_ONCE = 64 << 20
_BUFFER = 4 << 20


class SessionLog:
    """One log. ``torn`` is told (session, file with the cut bytes, offset, length) when a tail was cut."""

    def __init__(self, disk: Disk, folder: str, salt: int, torn: Callable[[str, str, int, int], None]) -> None:
        self._disk = disk
        self._folder = folder
        self.path = f"{folder}/log"
        self._salt = salt
        self._torn = torn
        self._fd = -1
        self._inode = 0
        self._forget()

    def _forget(self) -> None:
        self.index = SessionIndex()
        self.end = 0
        """How far the log is read, and intact."""
        self._durable = 0
        """How far it is known to be synced: a killed process may have written more than it synced."""
        self._named = False
        """Whether the names of the log and of its folders are known to be durable."""
        self._judged = 0
        """Length of the file when what follows the last intact record was looked at."""
        self.damage = ""
        """What is wrong with a last record that is all there, and damaged; it is neither used nor cut."""

    def park(self) -> None:
        """Close the file and keep the index."""
        # First forgotten, then closed: whoever is interrupted in between must not close somebody else's file later.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)

    # -- reading -----------------------------------------------------------------------------------

    def refresh(self, *, exclusive: bool) -> None:
        """Take in what others have written since; whoever may write also cuts a torn tail."""
        try:
            stat = self._disk.stat(self.path)
        except FileNotFoundError:
            self.park()
            self._forget()
            return
        if self._fd < 0 or stat.st_ino != self._inode:
            self._reopen(stat.st_ino)
        if stat.st_size < self.end:
            # Nobody ever cuts off what others may have read: what was there is lost.
            raise Corrupted(self._where(stat.st_size), f"the log is shorter than the {self.end} bytes it had")
        if stat.st_size != self.end or self.end < self.index.durable:
            self._extend(stat.st_size)
            if self.end < self.index.durable or self._judged != stat.st_size:
                self._judge_tail(stat.st_size)
            if exclusive and self.end < stat.st_size and not self.damage:
                self._cut(stat.st_size)

    def _reopen(self, inode: int) -> None:
        self.park()
        self._fd = open_to_write(self._disk, self.path)
        # A closed file's inode may be given to another: only the same generation is the same log.
        size = self._disk.fstat(self._fd).st_size
        first = next(scan(self._read, 0, size, self._salt), None)
        record = None if first is None else decode(first.kind, first.body, self._where(0))
        same = isinstance(record, Birth) and record.generation == self.index.generation
        if inode != self._inode or not same:
            self._forget()
        self._inode = inode

    def _extend(self, size: int) -> None:
        try:
            for frame in scan(self._read, self.end, size, self._salt):
                record = decode(frame.kind, frame.body, self._where(frame.offset))
                if isinstance(record, Birth) and record.format > FORMAT:
                    raise UnsupportedFormat(
                        f"{self.path}: format {record.format} is of a newer Perdure: upgrade this process"
                    )
                if (frame.offset == 0) != isinstance(record, Birth):
                    raise Corrupted(self._where(frame.offset), "a log starts with its session, once")
                self._take(record, Place(frame.offset, frame.size))
                self.end = frame.offset + frame.size
        except BaseException:
            # An interrupt in here could make us take a record twice: read everything again.
            self._forget()
            raise

    def _take(self, record: Record, place: Place) -> None:
        try:
            self.index.apply(record, place)
        except (ValueError, LookupError) as error:
            # Its checksum is right: this was not the disk.
            raise Corrupted(self._where(place.offset), f"it does not fit what is before it ({error})") from error

    def _judge_tail(self, size: int) -> None:
        """Whether what follows the last intact record is an interrupted write, or damage."""
        self.damage, self._judged = "", 0
        if self.end < self.index.durable:
            raise Corrupted(self._where(self.end), "a record that was durable once is damaged or missing")
        later = later_write(self._read, self.end, size, self._salt)
        if later is not None:
            raise Corrupted(
                self._where(self.end),
                f"this record is damaged, and one that was written later lies at {later}",
            )
        if self.end < size and not interrupted(self._read, self.end, size, self._salt):
            self.damage = (
                "the last record was written as a whole, and is damaged: it may have been acknowledged, so nothing "
                f"was cut. `{typed('verify SESSION --accept-loss')}` sets it aside and goes on from the record before "
                "it"
            )
        self._judged = size

    def damaged(self) -> Corrupted:
        """What there is to say of a damaged last record."""
        return Corrupted(self._where(self.end), self.damage)

    def _cut(self, size: int) -> None:
        """Cut a torn tail, and keep what was cut beside the log."""
        disk, at = self._disk, self.end
        saved = self._save(f"{self.path}.torn-{at}", at, size)
        faults.point("file.torn.before_truncate")
        disk.truncate(self._fd, at)
        faults.point("file.torn.before_fsync")
        sync(disk, self._fd, self.path)
        faults.point("file.torn.after_fsync")
        self._torn(self.index.session, saved, at, size - at)

    def save_damaged(self) -> tuple[str, int]:
        """Keep what follows the last intact record in a file beside the log: its name, and how many bytes."""
        size = self._disk.fstat(self._fd).st_size
        return self._save(f"{self.path}.damaged-{self.end}", self.end, size), size - self.end

    def _save(self, name: str, at: int, size: int) -> str:
        disk = self._disk
        for turn in range(1000):
            saved = name + (f".{turn}" if turn else "")
            fd = disk.open(saved, create=True)
            try:
                if not self._begins(fd, at, size):
                    continue
                for offset in range(at, size, _AT_ONCE):
                    write_all(disk, fd, self._read(min(_AT_ONCE, size - offset), offset), offset - at)
                sync(disk, fd, saved)
            finally:
                disk.close(fd)
            sync_folder(disk, self._folder)
            return saved
        raise Unavailable(f"{name}: a thousand ends of this log were kept here; remove some")

    def _begins(self, fd: int, at: int, size: int) -> bool:
        """Whether a file holds a beginning of these bytes (all or nothing, too): left by one who was interrupted."""
        there = self._disk.fstat(fd).st_size
        steps = range(0, there, _BUFFER)
        return there <= size - at and all(
            self._disk.read(fd, min(_BUFFER, there - step), step) == self._read(min(_BUFFER, there - step), at + step)
            for step in steps
        )

    def _read(self, size: int, offset: int) -> bytes:
        return self._disk.read(self._fd, size, offset)

    def _where(self, offset: int) -> str:
        return f"{self.path}, byte {offset}"

    def records(self, places: Sequence[Place]) -> Iterator[Record]:
        """The records at some places of the log, each verified again; neighbours are read together."""
        at = 0
        while at < len(places):
            first, start = at, places[at].offset
            stop = start + places[at].size
            at += 1
            while at < len(places) and places[at].offset == stop and stop - start < _BUFFER:
                stop += places[at].size
                at += 1
            raw = self._read(stop - start, start)
            for place in places[first:at]:
                frame = unpack(raw, place.offset - start, place.offset, self._salt)
                if frame is None:
                    raise Corrupted(self._where(place.offset), "this record is not what was written")
                yield decode(frame.kind, frame.body, self._where(place.offset))

    # -- writing -----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Make everything durable that was read, before it is built upon or called durable."""
        if self._durable < self.end:
            sync(self._disk, self._fd, self.path)
            self._durable = self.end
        if not self._named and self.end:
            # What a killed process left of a log that never took this one's place.
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(f"{self.path}.new")
            self._sync_names()

    def _sync_names(self) -> None:
        shard = os.path.dirname(self._folder)
        for folder in (self._folder, shard, os.path.dirname(shard)):
            sync_folder(self._disk, folder)
        self._named = True

    def append(self, batch: Sequence[Packed], what: str) -> None:
        """Append records, durably, and take them into the index. ``what`` names the crash points."""
        if len(batch) == 1:
            self._append(batch, what)
            return
        size = first = 0
        for number, (_, (_, body)) in enumerate(batch):
            if size and size + len(body) > _AT_ONCE:
                self._append(batch[first:number], what)
                size, first = 0, number
            size += len(body)
        self._append(batch[first:], what)

    def _append(self, batch: Sequence[Packed], what: str) -> None:
        if self._fd < 0:
            self._fd = self._disk.open(self.path, create=True)
            self._inode = self._disk.fstat(self._fd).st_ino
        if self._durable < self.end or not self._named:
            self.settle()
        data, starts = pack([packed for _, packed in batch], self.end, self._salt)
        # The names are put together only when somebody asks for them: a commit passes here each time.
        if faults.hook is not None:
            faults.point(f"file.{what}.before_write")
        try:
            write_all(self._disk, self._fd, data, self.end)
        except OSError:
            self._undo()
            raise
        if faults.hook is not None:
            faults.point(f"file.{what}.before_fsync")
        try:
            sync(self._disk, self._fd, self.path)
        except Poisoned:
            # The pages may now count as clean though they are on no disk: nobody may read them as
            # durable. The handle is poisoned either way, so a failure here adds nothing.
            with contextlib.suppress(OSError):
                self._disk.truncate(self._fd, self.end)
            raise
        if not self._named:
            self._sync_names()
        if faults.hook is not None:
            faults.point(f"file.{what}.after_fsync")
        try:
            for (record, (_, body)), start in zip(batch, starts, strict=True):
                self.index.apply(record, Place(start, HEADER.size + len(body)))
            self.end = self._durable = self.end + len(data)
        except BaseException:
            # An interrupt in here could make us take a record twice: read everything again.
            self._forget()
            raise

    def _undo(self) -> None:
        """Take back a write that did not go through, if any of it did."""
        if self._disk.fstat(self._fd).st_size == self.end:
            return
        try:
            self._disk.truncate(self._fd, self.end)
        except OSError as error:
            raise Poisoned(f"{self.path}: a failed write could not be undone ({error.strerror})") from error
        sync(self._disk, self._fd, self.path)

    def replace(self, birth: Birth, records: Iterable[Record], what: str) -> None:
        """Put a new log in the place of the old one, atomically and durably."""
        disk, new = self._disk, f"{self.path}.new"
        fd = disk.open(new, create=True)
        try:
            # A killed process may have left one behind.
            disk.truncate(fd, 0)
            faults.point(f"file.{what}.before_write")
            index, end = self._fill(fd, birth, records)
            faults.point(f"file.{what}.before_fsync")
            sync(disk, fd, new)
            inode = disk.fstat(fd).st_ino
            faults.point(f"file.{what}.before_rename")
            disk.rename(new, self.path)
        except BaseException as error:
            disk.close(fd)
            if isinstance(error, OSError):
                # Half a log on a full disk would keep it full.
                with contextlib.suppress(OSError):
                    disk.unlink(new)
            raise
        self.park()
        self._fd, self._inode = fd, inode
        self.index, self._named, self._judged, self.damage = index, False, 0, ""
        self.end = self._durable = end
        faults.point(f"file.{what}.after_rename")
        self._sync_names()
        faults.point(f"file.{what}.after_fsync")

    def _fill(self, fd: int, birth: Birth, records: Iterable[Record]) -> tuple[SessionIndex, int]:
        """Write a whole log. Its first record goes last, because it tells how long the log is."""
        index = SessionIndex()
        first = HEADER.size + len(encode(birth)[1])
        index.apply(birth, Place(0, first))
        buffer, flushed, end = bytearray(), first, first
        for record in records:
            packed = encode(record)
            data, _ = pack([packed], end, self._salt)
            index.apply(record, Place(end, len(data)))
            buffer += data
            end += len(data)
            if len(buffer) > _BUFFER:
                write_all(self._disk, fd, bytes(buffer), flushed)
                buffer, flushed = bytearray(), end
        write_all(self._disk, fd, bytes(buffer), flushed)
        index.durable = end
        data, _ = pack([encode(birth.lasting(end))], 0, self._salt)
        write_all(self._disk, fd, data, 0)
        return index, end


def new_birth(session: str, created: int) -> Birth:
    """The first record of a log that is about to be made."""
    return Birth(FORMAT, session, os.urandom(8), created)
