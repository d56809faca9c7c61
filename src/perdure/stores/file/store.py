"""The file store: a folder of append-only logs, one for each session. The handle; its parts lie beside it."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from perdure import model
from perdure.errors import Corrupted, PerdureError, Poisoned
from perdure.stores import rules
from perdure.stores.file import write
from perdure.stores.file.changes import Reach, resume
from perdure.stores.file.records import Posted
from perdure.stores.file.root import FileRoot, salt_of, session_name
from perdure.stores.file.session_folder import Pool, SessionFile, row_of
from perdure.stores.listing import EVERY, Asked
from perdure.stores.live import FolderLive
from perdure.stores.rules import LeaseJudge, StoredLease, is_final
from perdure.system.clock import SteadyClock, SystemClock
from perdure.system.disk import Disk, explain, warn_if_network
from perdure.system.flow import HandleGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from typing import Unpack

    from perdure.protocols import Clock, Wanted
    from perdure.stores.file.index import RowAt, SessionIndex
    from perdure.stores.listing import Count

__all__ = ["FileStore", "Torn", "TornTail", "Unreadable"]

R = TypeVar("R")


class FileStore:
    """Implements :class:`perdure.protocols.Store` on a folder, for the processes of one machine.

    ``torn`` lists the torn tails that this handle has cut. ``disk`` is for tests that lose power.
    """

    promise = model.Promise(
        process_crash=True,
        power_loss=True,
        words=(
            "When a commit has returned it is at the end of its session's log, and the log and its name were "
            "synced: it survives the end of the process and a loss of power, as far as the disk keeps what "
            "it says it has synced. An interrupted write is cut off, kept beside the log, and reported; a last "
            "record that is all there, and damaged, is refused until somebody accepts its loss."
        ),
    )

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock | None = None, disk: Disk | None = None) -> None:
        folder = os.path.abspath(path)
        self.url = f"file://{folder}"
        self._handle = FileHandle(folder, clock, disk)
        self._clock = self._handle.clock
        self._judge = LeaseJudge(self._clock)
        self._glances: dict[str, Glance] = {}
        self.torn = self._handle.torn
        self.id, self.epoch = self._handle.root.identity

    def live(self) -> FolderLive:
        """Carries pieces of answers on their way, in a folder of the folder."""
        return FolderLive(os.path.join(self.url.removeprefix("file://"), "live"))

    # -- commits and inbox -------------------------------------------------------------------------

    def append(self, batch: Sequence[model.Append]) -> list[model.Landed | PerdureError]:
        """Make a batch durable, with one write and one sync for each session in it.

        Sessions share nothing, so what goes wrong with one is the answer to its own items only. When the
        store itself fails (``Poisoned``, ``Unavailable``) before anything was answered, that is raised.
        """
        return self._by_session(batch, self._append)

    def _append(self, session: str, items: Sequence[model.Append]) -> list[model.Landed | PerdureError]:
        return self._handle.session(
            session, lambda file: write.append(file, session, items, self._judge, self._handle.steady.latest()), items
        )

    def post(self, entries: Sequence[model.InboxEntry]) -> list[bool | model.Outrun | PerdureError]:
        """Put entries into inboxes, with one write and one sync for each session."""
        return self._by_session(entries, self._post)

    def _post(self, session: str, entries: Sequence[model.InboxEntry]) -> list[bool | model.Outrun | PerdureError]:
        return self._handle.session(session, lambda file: write.post(file, session, entries))

    def _by_session(self, items: Sequence[Any], do: Callable[[str, Sequence[Any]], list[Any]]) -> list[Any]:
        """Do something with the items of each session, and put the answers in the order of the items."""
        if len(items) == 1:
            try:
                return do(items[0].session, items)
            except PerdureError as error:
                if is_final(error):
                    raise
                return [error]
        self._handle.guard.check()
        groups: dict[str, list[int]] = {}
        for number, item in enumerate(items):
            groups.setdefault(item.session, []).append(number)
        answers: dict[int, Any] = {}
        failed: PerdureError | None = None
        for session in sorted(groups):
            numbers = groups[session]
            try:
                if failed is not None:
                    raise failed
                found = do(session, [items[number] for number in numbers])
            except PerdureError as error:
                failed = error if is_final(error) else None
                if failed is not None and not answers:
                    raise
                found = [error] * len(numbers)
            answers.update(zip(numbers, found, strict=True))
        return [answers[number] for number in range(len(items))]

    def inbox(self, session: str, limit: int = 100, key: str | None = None) -> list[model.InboxEntry]:
        """Waiting entries in order of arrival; with ``key`` only the one of that key."""

        def find(file: SessionFile | None) -> list[model.InboxEntry]:
            if file is None:
                return []
            if key is None:
                waiting = list(islice(file.index.waiting.values(), max(limit, 0)))
            else:
                waiting = [post for post in (file.index.waiting.get(key),) if post is not None][: max(limit, 0)]
            records = file.log.records([post.place for post in waiting])
            return [file.entry(file.expect(record, Posted)) for record in records]

        return self._handle.known(session, find)

    # -- looking -----------------------------------------------------------------------------------

    def look(self, session: str) -> model.SessionRow | None:
        """What is known of a session, a tombstone included."""
        return self._glimpse(session, damaged=False)

    def _glimpse(self, session: str, *, damaged: bool) -> model.SessionRow | None:
        return self._handle.known(session, lambda file: self._look(file) if file else None, damaged=damaged)

    def _look(self, file: SessionFile) -> model.SessionRow:
        row = file.index.row(self._judge.info(file.index.session, file.lease()))
        return row._replace(now=self._handle.steady.now())

    def starts(self, session: str, branch: str | None) -> list[model.Row]:
        """The first rows of all lines of a branch (None: of any), by line."""

        def find(file: SessionFile | None) -> list[model.Row]:
            if file is None:
                return []
            found = [
                row for row in file.index.commits.values() if row.starts and (branch is None or row.branch == branch)
            ]
            return file.rows(sorted(found, key=lambda row: (row.line, row.step)))

        return self._handle.known(session, find)

    def load(self, session: str, line: int, step: int | None = None, *, refs: bool = True) -> model.Bundle:
        """What is needed to rebuild a line at a step (None: its last)."""

        def find(file: SessionFile | None) -> model.Bundle:
            if file is None:
                raise rules.no_session(session)
            index, last = file.index, file.last_step(line)
            at = last if step is None else step
            if at > last:
                raise rules.no_step(index.session, line, at, last)
            base = index.base(line, at)
            rows = index.rows(model.Span(line, base.hi + 1 if base else 0, at))
            reached = rows[-1].step if rows else base.hi if base else -1
            if reached != at:
                for art in index.artifacts.values():
                    if art.kind == model.ANCHOR and art.line == line and art.lo <= at < art.hi:
                        raise rules.retained(index.session, line, at, art.lo, art.hi)
                raise rules.no_step(index.session, line, at, last)
            packs = index.packs([*thin_spans(rows), *(base.refs if base and refs else ())])
            held = file.artifacts([*packs, *([base] if base else [])])
            return model.Bundle(held.pop() if base else None, tuple(file.rows(rows)), tuple(held), last)

        return self._handle.known(session, find)

    def slice(self, session: str, line: int, lo: int, hi: int) -> model.Bundle:
        """Rows lo..hi of a line, with the packs that hold the thin ones."""

        def find(file: SessionFile | None) -> model.Bundle:
            if file is None:
                raise rules.no_session(session)
            last = file.last_step(line)
            rows = file.index.rows(model.Span(line, lo, hi))
            thin = thin_spans(rows)
            held = file.artifacts([*file.index.packs(thin), *file.index.anchors(thin)])
            return model.Bundle(None, tuple(file.rows(rows)), tuple(held), last)

        return self._handle.known(session, find)

    def artifacts(self, session: str) -> list[model.Artifact]:
        """All artifacts of a session."""
        return self._handle.known(session, lambda file: file.artifacts() if file else [])

    def sessions(self, **wanted: Unpack[Wanted]) -> list[model.SessionRow]:
        """Sessions in the order that is asked for; each is looked at anew before it is shown.

        One whose last record is damaged is shown as of the record before, and one that cannot be read is left out with
        a warning: it must not hide all others.
        """
        asked = Asked(**wanted)
        now = self._handle.steady.now()
        readable = self._all(self._leave_out)
        found = [glance.row for _, glance in readable if asked.keeps(glance.row.id, glance.row, now)]
        rows: list[model.SessionRow] = []
        for glance in sorted(found, key=lambda row: asked.key(row.id, row.updated)):
            if len(rows) >= asked.limit:
                break
            row = self._glimpse(glance.id, damaged=True)
            if row is not None and asked.keeps(row.id, row, now):
                rows.append(row)
        return sorted(rows, key=lambda row: asked.key(row.id, row.updated))

    def counts(self) -> list[Count]:
        """How many sessions there are by status, agent and error."""
        rows = (glance.row for _, glance in self._all(self._leave_out))
        living = Counter((row.status, row.agent, row.error) for row in rows if EVERY.keeps(row.id, row))
        return [(*what, number) for what, number in sorted(living.items())]

    def changes(self, after: str | None = None, limit: int = 1000) -> model.ChangePage:
        """Commits after a cursor, session by session."""
        with self._handle.alone():
            # Another process may have renewed it.
            self.epoch = self._handle.root.read_identity().epoch
        known = {name: glance.reach for name, glance in self._all()}
        cursor = resume(after, epoch=self.epoch, reaches=known)
        items: list[model.Change] = []
        for name, reach in known.items():
            if len(items) >= limit:
                break
            if cursor.at(name) >= reach.newest:
                continue
            found, newest = self._handle.named(
                name, self._changes_of(cursor.at(name), limit - len(items)), damaged=True
            )
            if newest is None:
                continue
            items += [change for _, change in found]
            # On a page that is not full there was no more; the newest commits may also have been dropped.
            cursor.move(name, found[-1][0] if len(items) >= limit else newest)
        return model.ChangePage(tuple(items), str(cursor))

    def _changes_of(
        self, after: int, limit: int
    ) -> Callable[[SessionFile | None], tuple[list[tuple[int, model.Change]], int | None]]:
        return lambda file: (file.changes(after, limit), file.index.ordinal) if file else ([], None)

    def blob_refs(self) -> Iterator[str]:
        """Every blob that any row or artifact refers to."""
        self._handle.guard.check()
        for name in self._handle.root.names():
            yield from self._handle.named(name, lambda file: list(file.index.blobs()) if file else [])

    def usage(self) -> model.Usage:
        """Sizes; bytes are those of the logs."""
        sessions = checkpoints = size = 0
        for _, glance in self._all(self._leave_out):
            sessions += not glance.row.reason
            checkpoints += glance.checkpoints
            size += glance.log[1]
        return model.Usage(sessions, checkpoints, size)

    def unreadable(self) -> list[Corrupted]:
        """What is to be said of each log that cannot be read; not even whose it is may be known."""
        found: list[Corrupted] = []
        for _ in self._all(found.append):
            pass
        return found

    def _leave_out(self, error: Corrupted) -> None:
        warnings.warn(f"a session cannot be read and is left out: {error}", Unreadable, stacklevel=4)

    def _all(self, unreadable: Callable[[Corrupted], None] | None = None) -> Iterator[tuple[str, Glance]]:
        """Goes through the folders; reads only the logs that have changed since it last did."""
        handle = self._handle
        handle.guard.check()
        for name in handle.root.names():
            try:
                stat = handle.disk.stat(f"{handle.root.folder(name)}/log")
            except FileNotFoundError:
                continue
            log = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            glance = self._glances.get(name)
            if glance is None or glance.log != log:
                try:
                    glance = handle.named(name, Glance.taker(log), damaged=True)
                except Corrupted as error:
                    if unreadable is None:
                        raise
                    unreadable(error)
                    continue
                if glance is None:
                    continue
                if len(self._glances) >= GLANCES:
                    self._glances.clear()
                self._glances[name] = glance
            yield name, glance

    # -- leases ------------------------------------------------------------------------------------

    def acquire(self, session: str, holder: str, ttl: int) -> model.Lease:
        """Take the lease for ``ttl`` ms, or raise ``Busy``."""

        def take(file: SessionFile) -> int:
            current = file.lease()
            if busy := self._judge.busy(session, current):
                raise busy
            file.append(session, [], "acquire")
            token = self._handle.root.next_token(current.token)
            file.set_lease(self._judge.grant(holder, token, ttl))
            return token

        token = self._handle.session(session, take)
        return model.Lease(session, holder, token, self._clock.wall() + ttl)

    def renew(self, leases: Sequence[model.Lease], ttl: int) -> list[bool]:
        """Extend leases; False where the token is no longer the current one."""
        return [self._renew(lease, ttl) for lease in leases]

    def _renew(self, lease: model.Lease, ttl: int) -> bool:
        def extend(file: SessionFile | None) -> bool:
            current = file.lease() if file else StoredLease()
            if file is None or not current.holder or current.token != lease.token:
                return False
            file.set_lease(self._judge.grant(current.holder, current.token, ttl))
            return True

        return self._handle.known(lease.session, extend, exclusive=True)

    def release(self, lease: model.Lease) -> None:
        """Give a lease back."""

        def end(file: SessionFile | None) -> None:
            if file is not None and file.lease().token == lease.token:
                file.set_lease(StoredLease(token=lease.token))

        self._handle.known(lease.session, end, exclusive=True)

    # -- maintenance -------------------------------------------------------------------------------

    def rewrite(self, change: model.Rewrite) -> bool:
        """Do maintenance in one record; False when it no longer applies."""
        return self._handle.known(
            change.session, lambda file: write.rewrite(file, change, self._judge) if file else False, exclusive=True
        )

    def drop(self, session: str, token: int | None, reason: str, *, keep_waiting: bool = False) -> None:
        """Delete a session and leave a tombstone, which takes a few hundred bytes."""

        def bury(file: SessionFile | None) -> None:
            if file is None:
                raise rules.no_session(session)
            if refused := rules.fenced(session, token, file.lease(), self._judge):
                raise refused
            write.drop(file, session, reason, self._clock.wall(), keep_waiting)

        self._handle.known(session, bury, exclusive=True)

    def dump(self, session: str) -> model.Dump:
        """A whole session as stored, at one instant."""

        def read(file: SessionFile | None) -> model.Dump:
            if file is None:
                raise rules.no_session(session)
            index = file.index
            if index.reason:
                raise rules.gone(index.session, index.reason)
            rows: list[tuple[model.Row, dict[str, Any]]] = []
            for at, said in zip(index.commits.values(), file.commits(), strict=True):
                rows.append((row_of(at, said), {name: getattr(said, name) for name in rules.SHOWN}))
            entries = tuple(file.entry(posted) for posted in file.posts())
            return model.Dump(self._look(file)._replace(now=0), tuple(rows), tuple(file.artifacts()), entries)

        return self._handle.known(session, read)

    def restore(self, dump: model.Dump) -> None:
        """Put a dumped session into this store."""

        def put(file: SessionFile) -> None:
            # Tokens of the other store may still be about: ours go on behind them.
            self._handle.root.skip_tokens(dump.row.lease.token)
            write.restore(file, dump)

        self._handle.session(dump.row.id, put)

    def renew_epoch(self) -> None:
        """Give the store a new epoch: cursors expire and every lease ends."""
        root = self._handle.root
        with self._handle.alone():
            root.renew_epoch()
        self.epoch = root.identity.epoch

        def end_lease(file: SessionFile | None) -> None:
            if file is not None and file.lease().holder:
                file.set_lease(StoredLease(token=file.lease().token))

        for name in root.names():
            self._handle.named(name, end_lease, exclusive=True, damaged=True)

    # -- damaged ends ------------------------------------------------------------------------------

    def damaged(self) -> list[Corrupted]:
        """What is to be said of each log whose last record is damaged: its loss may be accepted."""
        self._handle.guard.check()

        def look(file: SessionFile | None) -> Corrupted | None:
            return file.log.damaged() if file is not None and file.log.damage else None

        found: list[Corrupted] = []
        for name in self._handle.root.names():
            with suppress(Corrupted):  # damaged further in
                if (damage := self._handle.named(name, look, damaged=True)) is not None:
                    found.append(damage)
        return found

    def accept_loss(self, session: str) -> str | None:
        """Set a damaged last record aside and go on from the one before; the file it is in, None when there is none."""

        def set_aside(file: SessionFile | None) -> str | None:
            if file is None:
                raise rules.no_session(session)
            return file.accept_loss(session) if file.log.damage else None

        return self._handle.known(session, set_aside, exclusive=True, damaged=True)

    def kept(self) -> list[str]:
        """The files with what was cut off or set aside, which nobody but you removes."""
        handle = self._handle
        handle.guard.check()
        folders = (handle.root.folder(name) for name in handle.root.names())
        return [
            f"{folder}/{name}"
            for folder in folders
            for name in handle.disk.listdir(folder)
            if name.startswith(("log.torn-", "log.damaged-"))
        ]

    def close(self) -> None:
        """Close all files; the store cannot be used afterwards."""
        self._handle.close()


GLANCES = 100_000
"""Sessions of which a few words are kept, so that listing them again need not read their logs."""


class Glance(NamedTuple):
    """What listings need of a session, and the state of its log (inode, size, time) when that was so."""

    log: tuple[int, int, int]
    row: model.SessionRow
    """Without heads and lease, which no listing asks about."""
    reach: Reach
    checkpoints: int

    @classmethod
    def of(cls, index: SessionIndex, log: tuple[int, int, int]) -> Glance:
        """What an index says."""
        row = index.row(_NOBODY)._replace(heads=())
        return cls(log, row, Reach(index.ordinal, index.trimmed), len(index.commits))

    @classmethod
    def taker(cls, log: tuple[int, int, int]) -> Callable[[SessionFile | None], Glance | None]:
        """What is to be done with a session to have one; None when it is not there."""

        def take(file: SessionFile | None) -> Glance | None:
            if file is not None and not file.log.end:
                # Not even its name is left: nobody could be told of it otherwise.
                raise file.log.damaged()
            return cls.of(file.index, log) if file is not None else None

        return take


_NOBODY = model.LeaseInfo("", 0, 0)


def thin_spans(rows: Sequence[RowAt]) -> list[model.Span]:
    """The thin rows among these, as few spans of neighbours."""
    return rules.spans_of([(row.line, row.step) for row in rows if row.thin])


TORN = 1000
"""Torn tails that a handle remembers."""

_name_of = lru_cache(4096)(session_name)


class TornTail(UserWarning):
    """The end of a log was the rest of an interrupted write: it was cut, and kept in a file beside it."""


class Unreadable(UserWarning):
    """The log of a session is damaged, and the session is missing from what is listed."""


class Torn(NamedTuple):
    """A tail that was cut: whose, where the bytes are kept, at which offset they were, and how many."""

    session: str
    file: str
    offset: int
    bytes: int


class FileHandle:
    """One open file store of one process."""

    def __init__(self, path: str, clock: Clock | None, disk: Disk | None) -> None:
        self.path = path
        self.clock: Clock = clock or SystemClock()
        self.disk = disk or Disk()
        self.torn: list[Torn] = []
        self.guard = HandleGuard(f"{path}: this handle")
        self.pool = Pool(self._make)
        warn_if_network(path)
        try:
            self.root = FileRoot(path, self.disk)
            self.steady = SteadyClock(self.clock, self.root.clock())
            if self.steady.news:
                self.root.keep_clock(self.steady.known)
        except OSError as error:
            raise explain(error, path) from error

    def close(self) -> None:
        """Close all files. In a forked child they belong to the parent, and are left alone."""
        if self.guard.closed or self.guard.forked:
            return
        self.guard.closed = True
        self.pool.close()
        self.root.close()

    def session(self, session: str, do: Callable[[SessionFile], R], at_stake: Sequence[model.Append] = ()) -> R:
        """Do something with a session to write to, made by that; ``at_stake`` are the commits that may get lost."""
        return self._do(_name_of(session), do, exclusive=True, create=True, damaged=False, at_stake=at_stake)

    def known(
        self,
        session: str,
        do: Callable[[SessionFile | None], R],
        *,
        exclusive: bool = False,
        damaged: bool = False,
    ) -> R:
        """Do something with a session, None when it is not there; ``damaged``: even without its last record."""
        return self.named(_name_of(session), do, exclusive=exclusive, damaged=damaged)

    def named(
        self, name: str, do: Callable[[SessionFile | None], R], *, exclusive: bool = False, damaged: bool = False
    ) -> R:
        """The same, by the name of its folder."""
        return self._do(name, do, exclusive=exclusive, create=False, damaged=damaged, at_stake=())

    def _do(
        self,
        name: str,
        do: Callable[[Any], R],
        *,
        exclusive: bool,
        create: bool,
        damaged: bool,
        at_stake: Sequence[model.Append],
    ) -> R:
        """Do something with a session, locked and up to date meanwhile; errors are explained.

        No ``with`` statement of our own: its end is a function, and an interrupt at the start of that would leave
        everything locked. What is given back is given back again when that was interrupted.
        """
        self.guard.check()
        user, there = object(), False
        try:
            file = self.pool.take(name, user)
            with file.mutex:
                try:
                    there = file.enter(exclusive=exclusive, create=create, damaged=damaged)
                    return do(file if there else None)
                finally:
                    try:
                        file.leave()
                    except BaseException:
                        file.leave()
                        raise
        except BaseException as error:
            self.note(error, at_stake if there else ())
            raise
        finally:
            try:
                self.pool.give(name, user)
            except BaseException:
                self.pool.give(name, user)
                raise

    @contextmanager
    def alone(self) -> Generator[None]:
        """For work on the root."""
        self.guard.check()
        try:
            yield
        except BaseException as error:
            self.note(error)
            raise

    def note(self, error: BaseException, at_stake: Sequence[model.Append] = ()) -> None:
        """Explain what the system said; remember a failed sync: from then on nobody knows what is on disk."""
        if isinstance(error, OSError):
            raise explain(error, self.path) from error
        if isinstance(error, Poisoned):
            todo = "close this handle, see to the disk, and open a new one"
            self.guard.poisoned = f"{error}, so nobody knows what is on disk: {todo}"
            names = ", ".join(item.id.hex() for item in at_stake)
            unknown = f". It is unknown whether these commits landed: {names}" if names else ""
            raise Poisoned(self.guard.poisoned + unknown) from error

    def _make(self, name: str) -> SessionFile:
        return SessionFile(self.disk, self.root.folder(name), salt_of(name), self.clock, self._note_torn)

    def _note_torn(self, session: str, file: str, offset: int, size: int) -> None:
        self.torn.append(Torn(session, file, offset, size))
        del self.torn[:-TORN]
        warnings.warn(
            f"session {session!r}: the last write to its log was interrupted and never completed; its "
            f"{size} bytes at {offset} were cut off and kept in {file}, which nothing reads: it may be deleted",
            TornTail,
            stacklevel=2,
        )
