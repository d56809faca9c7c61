"""The file store: a folder of append-only logs, one for each session. The handle; its parts lie beside it."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure import model
from perdure.errors import PerdureError, Poisoned
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

__all__ = ["FileStore", "Torn", "TornTail"]


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
            "it says it has synced. An interrupted write is cut off, kept beside the log, and reported."
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
        with (held := self._handle.session(session, items)).mutex, held as file:
            assert file is not None
            return write.append(file, session, items, self._judge, self._handle.steady.latest())

    def post(self, entries: Sequence[model.InboxEntry]) -> list[bool | model.Outrun | PerdureError]:
        """Put entries into inboxes, with one write and one sync for each session."""
        return self._by_session(entries, self._post)

    def _post(self, session: str, entries: Sequence[model.InboxEntry]) -> list[bool | model.Outrun | PerdureError]:
        with (held := self._handle.session(session)).mutex, held as file:
            assert file is not None
            return write.post(file, session, entries)

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
        with (held := self._handle.known(session)).mutex, held as file:
            if file is None:
                return []
            if key is None:
                waiting = list(islice(file.index.waiting.values(), max(limit, 0)))
            else:
                waiting = [post for post in (file.index.waiting.get(key),) if post is not None][: max(limit, 0)]
            records = file.log.records([post.place for post in waiting])
            return [file.entry(file.expect(record, Posted)) for record in records]

    # -- looking -----------------------------------------------------------------------------------

    def look(self, session: str) -> model.SessionRow | None:
        """What is known of a session, a tombstone included."""
        with (held := self._handle.known(session)).mutex, held as file:
            return self._look(file) if file else None

    def _look(self, file: SessionFile) -> model.SessionRow:
        row = file.index.row(self._judge.info(file.index.session, file.lease()))
        return row._replace(now=self._handle.steady.now())

    def starts(self, session: str, branch: str | None) -> list[model.Row]:
        """The first rows of all lines of a branch (None: of any), by line."""
        with (held := self._handle.known(session)).mutex, held as file:
            if file is None:
                return []
            found = [
                row for row in file.index.commits.values() if row.starts and (branch is None or row.branch == branch)
            ]
            return file.rows(sorted(found, key=lambda row: (row.line, row.step)))

    def load(self, session: str, line: int, step: int | None = None, *, refs: bool = True) -> model.Bundle:
        """What is needed to rebuild a line at a step (None: its last)."""
        with (held := self._handle.known(session)).mutex, held as file:
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

    def slice(self, session: str, line: int, lo: int, hi: int) -> model.Bundle:
        """Rows lo..hi of a line, with the packs that hold the thin ones."""
        with (held := self._handle.known(session)).mutex, held as file:
            if file is None:
                raise rules.no_session(session)
            last = file.last_step(line)
            rows = file.index.rows(model.Span(line, lo, hi))
            thin = thin_spans(rows)
            held = file.artifacts([*file.index.packs(thin), *file.index.anchors(thin)])
            return model.Bundle(None, tuple(file.rows(rows)), tuple(held), last)

    def artifacts(self, session: str) -> list[model.Artifact]:
        """All artifacts of a session."""
        with (held := self._handle.known(session)).mutex, held as file:
            return file.artifacts() if file else []

    def sessions(self, **wanted: Unpack[Wanted]) -> list[model.SessionRow]:
        """Sessions in the order that is asked for; each is looked at anew before it is shown."""
        asked = Asked(**wanted)
        found = [glance.row for _, glance in self._all() if asked.keeps(glance.row.id, glance.row)]
        rows: list[model.SessionRow] = []
        for glance in sorted(found, key=lambda row: asked.key(row.id, row.updated)):
            if len(rows) >= asked.limit:
                break
            row = self.look(glance.id)
            if row is not None and asked.keeps(row.id, row):
                rows.append(row)
        return sorted(rows, key=lambda row: asked.key(row.id, row.updated))

    def counts(self) -> list[Count]:
        """How many sessions there are by status, agent and error."""
        rows = (glance.row for _, glance in self._all())
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
            with (held := self._handle.named(name)).mutex, held as file:
                if file is None:
                    continue
                found = file.changes(cursor.at(name), limit - len(items))
                newest = file.index.ordinal
            items += [change for _, change in found]
            # On a page that is not full there was no more; the newest commits may also have been dropped.
            cursor.move(name, found[-1][0] if len(items) >= limit else newest)
        return model.ChangePage(tuple(items), str(cursor))

    def blob_refs(self) -> Iterator[str]:
        """Every blob that any row or artifact refers to."""
        self._handle.guard.check()
        for name in self._handle.root.names():
            with (held := self._handle.named(name)).mutex, held as file:
                refs = list(file.index.blobs()) if file else []
            yield from refs

    def usage(self) -> model.Usage:
        """Sizes; bytes are those of the logs."""
        sessions = checkpoints = size = 0
        for _, glance in self._all():
            sessions += not glance.row.reason
            checkpoints += glance.checkpoints
            size += glance.log[1]
        return model.Usage(sessions, checkpoints, size)

    def _all(self) -> Iterator[tuple[str, Glance]]:
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
                with (held := handle.named(name)).mutex, held as file:
                    if file is None:
                        continue
                    glance = Glance.of(file.index, log)
                if len(self._glances) >= GLANCES:
                    self._glances.clear()
                self._glances[name] = glance
            yield name, glance

    # -- leases ------------------------------------------------------------------------------------

    def acquire(self, session: str, holder: str, ttl: int) -> model.Lease:
        """Take the lease for ``ttl`` ms, or raise ``Busy``."""
        with (held := self._handle.session(session)).mutex, held as file:
            assert file is not None
            current = file.lease()
            if busy := self._judge.busy(session, current):
                raise busy
            file.append(session, [], "acquire")
            token = self._handle.root.next_token(current.token)
            file.set_lease(self._judge.grant(holder, token, ttl))
        return model.Lease(session, holder, token, self._clock.wall() + ttl)

    def renew(self, leases: Sequence[model.Lease], ttl: int) -> list[bool]:
        """Extend leases; False where the token is no longer the current one."""
        return [self._renew(lease, ttl) for lease in leases]

    def _renew(self, lease: model.Lease, ttl: int) -> bool:
        with (held := self._handle.known(lease.session, exclusive=True)).mutex, held as file:
            current = file.lease() if file else StoredLease()
            if file is None or not current.holder or current.token != lease.token:
                return False
            file.set_lease(self._judge.grant(current.holder, current.token, ttl))
            return True

    def release(self, lease: model.Lease) -> None:
        """Give a lease back."""
        with (held := self._handle.known(lease.session, exclusive=True)).mutex, held as file:
            if file is not None and file.lease().token == lease.token:
                file.set_lease(StoredLease(token=lease.token))

    # -- maintenance -------------------------------------------------------------------------------

    def rewrite(self, change: model.Rewrite) -> bool:
        """Do maintenance in one record; False when it no longer applies."""
        with (held := self._handle.known(change.session, exclusive=True)).mutex, held as file:
            return write.rewrite(file, change, self._judge) if file else False

    def drop(self, session: str, token: int | None, reason: str, *, keep_waiting: bool = False) -> None:
        """Delete a session and leave a tombstone, which takes a few hundred bytes."""
        with (held := self._handle.known(session, exclusive=True)).mutex, held as file:
            if file is None:
                raise rules.no_session(session)
            if refused := rules.fenced(session, token, file.lease(), self._judge):
                raise refused
            write.drop(file, session, reason, self._clock.wall(), keep_waiting)

    def dump(self, session: str) -> model.Dump:
        """A whole session as stored, at one instant."""
        with (held := self._handle.known(session)).mutex, held as file:
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

    def restore(self, dump: model.Dump) -> None:
        """Put a dumped session into this store."""
        with (held := self._handle.session(dump.row.id)).mutex, held as file:
            assert file is not None
            # Tokens of the other store may still be about: ours go on behind them.
            self._handle.root.skip_tokens(dump.row.lease.token)
            write.restore(file, dump)

    def renew_epoch(self) -> None:
        """Give the store a new epoch: cursors expire and every lease ends."""
        root = self._handle.root
        with self._handle.alone():
            root.renew_epoch()
        self.epoch = root.identity.epoch
        for name in root.names():
            with (held := self._handle.named(name, exclusive=True)).mutex, held as file:
                if file is not None and file.lease().holder:
                    file.set_lease(StoredLease(token=file.lease().token))

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


_NOBODY = model.LeaseInfo("", 0, 0)


def thin_spans(rows: Sequence[RowAt]) -> list[model.Span]:
    """The thin rows among these, as few spans of neighbours."""
    return rules.spans_of([(row.line, row.step) for row in rows if row.thin])


TORN = 1000
"""Torn tails that a handle remembers."""

_name_of = lru_cache(4096)(session_name)


class TornTail(UserWarning):
    """The end of a log was the rest of an interrupted write: it was cut, and kept in a file beside it."""


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

    def session(self, session: str, at_stake: Sequence[model.Append] = ()) -> Held:
        """A session to write to, which is made by that; ``at_stake`` are the commits that may get lost."""
        return Held(self, _name_of(session), exclusive=True, create=True, at_stake=at_stake)

    def known(self, session: str, *, exclusive: bool = False) -> Held:
        """A session that must be there already, or None is what one gets."""
        return Held(self, _name_of(session), exclusive=exclusive, create=False)

    def named(self, name: str, *, exclusive: bool = False) -> Held:
        """A session by the name of its folder."""
        return Held(self, name, exclusive=exclusive, create=False)

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
            f"{size} bytes at {offset} were cut off and kept in {file}",
            TornTail,
            stacklevel=2,
        )


class Held:
    """A session, locked and up to date while the block runs; its errors are explained.

    Its ``mutex`` is held around it, by the same ``with`` statement: only there no interrupt comes between taking a lock
    and knowing that it is taken. The lock among processes is given back by the next block, if one ends this half-way.
    """

    __slots__ = ("_at_stake", "_create", "_exclusive", "_file", "_handle", "_name", "mutex")

    def __init__(
        self, handle: FileHandle, name: str, *, exclusive: bool, create: bool, at_stake: Sequence[model.Append] = ()
    ) -> None:
        handle.guard.check()
        self._handle = handle
        self._name = name
        self._exclusive = exclusive
        self._create = create
        self._at_stake = at_stake
        self._file = handle.pool.take(name)
        self.mutex = self._file.mutex

    def __enter__(self) -> SessionFile | None:
        try:
            if self._file.enter(exclusive=self._exclusive, create=self._create):
                return self._file
        except BaseException as error:
            self._leave()
            self._handle.note(error)
            raise
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave()
        if error is not None:
            self._handle.note(error, self._at_stake)

    def _leave(self) -> None:
        try:
            self._file.leave()
        finally:
            self._handle.pool.give(self._name, self._file)
