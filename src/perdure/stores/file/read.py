"""What is read of the sessions of a file store, each record verified: rows, artifacts, changes, and listings of all."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from perdure.model import Artifact, Change, ChangePage, InboxEntry, Row, SessionRow, Span, Usage
from perdure.stores import rules
from perdure.stores.file.changes import Reach, resume
from perdure.stores.file.records import Commit, Posted, Rewritten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from perdure.stores.file.index import ArtifactAt, RowAt
    from perdure.stores.file.session_folder import SessionFile
    from perdure.stores.file.store import FileHandle
    from perdure.stores.listing import Asked, Count


def artifacts(file: SessionFile) -> list[Artifact]:
    """All artifacts, in order of their keys."""
    known = file.index.artifacts
    return artifacts_at(file, [known[key] for key in sorted(known)])


def changes(file: SessionFile, after: int, limit: int) -> list[tuple[int, Change]]:
    """Commits after an ordinal, each with its own."""
    index = file.index
    found: list[RowAt] = []
    for ordinal in range(after + 1, index.ordinal + 1):
        if len(found) >= limit:
            break
        row = index.commits.get(ordinal)
        if row is not None:
            found.append(row)
    items: list[tuple[int, Change]] = []
    for row, record in zip(found, file.log.records([row.place for row in found]), strict=True):
        said = file.expect(record, Commit)
        change = Change(index.session, said.branch, said.line, said.step, said.id, said.kind, said.status, said.at)
        items.append((row.ordinal, change))
    return items


def last_step(file: SessionFile, line: int) -> int:
    index = file.index
    if index.reason:
        raise rules.gone(index.session, index.reason)
    if not index.next_line:
        raise rules.no_session(index.session)
    last = index.last(line)
    if last is None:
        raise rules.no_line(index.session, line)
    return last


def rows_at(file: SessionFile, rows: Sequence[RowAt]) -> list[Row]:
    records = file.log.records([row.place for row in rows])
    return [row_of(at, file.expect(record, Commit)) for at, record in zip(rows, records, strict=True)]


def row_of(at: RowAt, said: Commit) -> Row:
    # Until the log is rewritten, a row that is thin still has its bytes there: they no longer count.
    envelope, payload = (b"", b"") if at.thin else (said.envelope, said.payload)
    return Row(said.line, said.step, said.id, said.digest, envelope, payload)


def artifacts_at(file: SessionFile, found: Sequence[ArtifactAt]) -> list[Artifact]:
    records = file.log.records([at.place for at in found])
    return [file.expect(record, Rewritten).put[at.nth] for at, record in zip(found, records, strict=True)]


def entry_of(file: SessionFile, said: Posted) -> InboxEntry:
    return InboxEntry(file.index.session, said.key, said.kind, said.at, said.digest, said.body, said.seq, said.taken)


def thin_spans(rows: Sequence[RowAt]) -> list[Span]:
    """Runs of thin rows."""
    spans: list[Span] = []
    for row in rows:
        if row.thin:
            if spans and spans[-1].hi == row.step - 1:
                spans[-1] = spans[-1]._replace(hi=row.step)
            else:
                spans.append(Span(row.line, row.step, row.step))
    return spans


GLANCES = 100_000
"""Sessions of which a few words are kept, so that listing them again need not read their logs."""


class Glance(NamedTuple):
    """What listings need of a session, and the state of its log (inode, size, time) when that was so."""

    log: tuple[int, int, int]
    session: str
    owner: str
    status: str
    agent: str
    error: str
    updated: int
    expires: int | None
    reason: str
    reach: Reach
    checkpoints: int


class Listing:
    """Goes through the folders; reads only the logs that have changed since it last did."""

    def __init__(self, handle: FileHandle) -> None:
        self._handle = handle
        self._glances: dict[str, Glance] = {}

    def sessions(self, look: Callable[[str], SessionRow | None], asked: Asked) -> list[SessionRow]:
        """Sessions in the order that is asked for; each is looked at anew before it is shown."""
        found = [glance for _, glance in self._all() if asked.keeps(glance.session, glance)]
        rows: list[SessionRow] = []
        for glance in sorted(found, key=lambda g: asked.key(g.session, g.updated)):
            if len(rows) >= asked.limit:
                break
            row = look(glance.session)
            if row is not None and asked.keeps(row.id, row):
                rows.append(row)
        return sorted(rows, key=lambda row: asked.key(row.id, row.updated))

    def counts(self) -> list[Count]:
        """How many sessions there are by status, agent and error."""
        living = Counter((g.status, g.agent, g.error) for _, g in self._all() if not g.reason)
        return [(*what, number) for what, number in sorted(living.items())]

    def changes(self, after: str | None, limit: int, epoch: str) -> ChangePage:
        """Commits after a cursor, session by session."""
        known = {name: glance.reach for name, glance in self._all()}
        cursor = resume(after, epoch=epoch, reaches=known)
        items: list[Change] = []
        for name, reach in known.items():
            if len(items) >= limit:
                break
            if cursor.at(name) >= reach.newest:
                continue
            with self._handle.named(name) as file:
                if file is None:
                    continue
                found = changes(file, cursor.at(name), limit - len(items))
                newest = file.index.ordinal
            items += [change for _, change in found]
            # On a page that is not full there was no more; the newest commits may also have been dropped.
            cursor.move(name, found[-1][0] if len(items) >= limit else newest)
        return ChangePage(tuple(items), str(cursor))

    def blob_refs(self) -> Iterator[str]:
        """Every blob that any row or artifact refers to."""
        for name in self._names():
            with self._handle.named(name) as file:
                refs = list(file.index.blobs()) if file else []
            yield from refs

    def usage(self) -> Usage:
        """Sizes; bytes are those of the logs."""
        sessions = checkpoints = size = 0
        for _, glance in self._all():
            sessions += not glance.reason
            checkpoints += glance.checkpoints
            size += glance.log[1]
        return Usage(sessions, checkpoints, size)

    def _names(self) -> Iterator[str]:
        self._handle.check()
        return self._handle.root.names()

    def _all(self) -> Iterator[tuple[str, Glance]]:
        handle = self._handle
        for name in self._names():
            try:
                stat = handle.disk.stat(f"{handle.root.folder(name)}/log")
            except FileNotFoundError:
                continue
            log = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            glance = self._glances.get(name)
            if glance is None or glance.log != log:
                glance = self._look(name, log)
                if glance is None:
                    continue
                if len(self._glances) >= GLANCES:
                    self._glances.clear()
                self._glances[name] = glance
            yield name, glance

    def _look(self, name: str, log: tuple[int, int, int]) -> Glance | None:
        with self._handle.named(name) as file:
            if file is None:
                return None
            index = file.index
            return Glance(
                log,
                index.session,
                index.owner,
                index.status,
                index.agent,
                index.error,
                index.updated,
                index.expires,
                index.reason,
                Reach(index.ordinal, index.trimmed),
                len(index.commits),
            )
