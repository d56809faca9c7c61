"""Questions to one session of the file store, answered from its index and its log, each record verified."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from perdure.model import ANCHOR, Artifact, Bundle, Change, Dump, InboxEntry, Row, SessionRow, Span
from perdure.stores import _verdicts as verdicts
from perdure.stores._filerecords import Commit, Posted, Rewritten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.stores._fileindex import ArtifactAt, RowAt
    from perdure.stores._filesession import SessionFile
    from perdure.stores._lease import LeaseJudge


def look(file: SessionFile, judge: LeaseJudge) -> SessionRow:
    """The session's row, with its lease."""
    return file.index.row(judge.info(file.index.session, file.lease()))


def starts(file: SessionFile, branch: str | None) -> list[Row]:
    """The first rows of a branch's lines (None: of all lines)."""
    found = [row for row in file.index.commits.values() if row.starts and (branch is None or row.branch == branch)]
    return _rows(file, sorted(found, key=lambda row: (row.line, row.step)))


def load(file: SessionFile, line: int, step: int | None, *, refs: bool) -> Bundle:
    """What rebuilds a line at a step."""
    index = file.index
    last = _last(file, line)
    at = last if step is None else step
    if at > last:
        raise verdicts.no_step(index.session, line, at, last)
    base = index.base(line, at)
    rows = index.rows(Span(line, base.hi + 1 if base else 0, at))
    reached = rows[-1].step if rows else base.hi if base else -1
    if reached != at:
        for art in index.artifacts.values():
            if art.kind == ANCHOR and art.line == line and art.lo <= at < art.hi:
                raise verdicts.retained(index.session, line, at, art.lo, art.hi)
        raise verdicts.no_step(index.session, line, at, last)
    packs = index.packs([*_thin_spans(rows), *(base.refs if base and refs else ())])
    read = _artifacts(file, [*packs, *([base] if base else [])])
    return Bundle(read.pop() if base else None, tuple(_rows(file, rows)), tuple(read), last)


def slice(file: SessionFile, line: int, lo: int, hi: int) -> Bundle:
    """Some rows of a line."""
    last = _last(file, line)
    rows = file.index.rows(Span(line, lo, hi))
    thin = _thin_spans(rows)
    held = _artifacts(file, [*file.index.packs(thin), *file.index.anchors(thin)])
    return Bundle(None, tuple(_rows(file, rows)), tuple(held), last)


def artifacts(file: SessionFile) -> list[Artifact]:
    """All artifacts, in order of their keys."""
    known = file.index.artifacts
    return _artifacts(file, [known[key] for key in sorted(known)])


def inbox(file: SessionFile, limit: int, key: str | None) -> list[InboxEntry]:
    """Waiting entries in order of arrival; with a key only that one."""
    if key is None:
        waiting = list(islice(file.index.waiting.values(), max(limit, 0)))
    else:
        waiting = [post for post in (file.index.waiting.get(key),) if post is not None][: max(limit, 0)]
    records = file.log.records([post.place for post in waiting])
    return [_entry(file, file.expect(record, Posted)) for record in records]


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


def dump(file: SessionFile, judge: LeaseJudge) -> Dump:
    """The whole session."""
    index = file.index
    if index.reason:
        raise verdicts.gone(index.session, index.reason)
    rows: list[tuple[Row, dict[str, Any]]] = []
    for at, said in zip(index.commits.values(), file.commits(), strict=True):
        projections = {
            "branch": said.branch,
            "kind": said.kind,
            "status": said.status,
            "at": said.at,
            "tool": said.tool,
            "error": said.error,
            "takes": said.takes,
            "blobs": said.blobs,
            "starts": said.starts,
        }
        rows.append((_row(at, said), projections))
    entries = tuple(_entry(file, posted) for posted in file.posts())
    return Dump(look(file, judge), tuple(rows), tuple(artifacts(file)), entries)


def _last(file: SessionFile, line: int) -> int:
    index = file.index
    if index.reason:
        raise verdicts.gone(index.session, index.reason)
    if not index.next_line:
        raise verdicts.no_session(index.session)
    last = index.last(line)
    if last is None:
        raise verdicts.no_line(index.session, line)
    return last


def _rows(file: SessionFile, rows: Sequence[RowAt]) -> list[Row]:
    records = file.log.records([row.place for row in rows])
    return [_row(at, file.expect(record, Commit)) for at, record in zip(rows, records, strict=True)]


def _row(at: RowAt, said: Commit) -> Row:
    # Until the log is rewritten, a row that is thin still has its bytes there: they no longer count.
    envelope, payload = (b"", b"") if at.thin else (said.envelope, said.payload)
    return Row(said.line, said.step, said.id, said.digest, envelope, payload)


def _artifacts(file: SessionFile, found: Sequence[ArtifactAt]) -> list[Artifact]:
    records = file.log.records([at.place for at in found])
    return [file.expect(record, Rewritten).put[at.nth] for at, record in zip(found, records, strict=True)]


def _entry(file: SessionFile, said: Posted) -> InboxEntry:
    return InboxEntry(file.index.session, said.key, said.kind, said.at, said.digest, said.body, said.seq, said.taken)


def _thin_spans(rows: Sequence[RowAt]) -> list[Span]:
    """Runs of thin rows."""
    spans: list[Span] = []
    for row in rows:
        if row.thin:
            if spans and spans[-1].hi == row.step - 1:
                spans[-1] = spans[-1]._replace(hi=row.step)
            else:
                spans.append(Span(row.line, row.step, row.step))
    return spans
