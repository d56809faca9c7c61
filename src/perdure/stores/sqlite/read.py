"""Questions to the SQLite store, each asked inside one reading transaction. Every value read is checked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from perdure.errors import Corrupted
from perdure.model import (
    ANCHOR,
    MAIN,
    PACK,
    SNAPSHOT,
    Artifact,
    Bundle,
    Change,
    ChangePage,
    Dump,
    Head,
    InboxEntry,
    Row,
    SessionRow,
    Span,
)
from perdure.stores import rules
from perdure.stores.cursors import resume
from perdure.stores.lease_clock import StoredLease
from perdure.stores.sqlite.driver import value_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.stores.lease_clock import LeaseJudge
    from perdure.stores.listing import Asked, Count
    from perdure.stores.sqlite.driver import Cursor


class Checks:
    """The checks; ``path`` says where damage was found."""

    def __init__(self, path: str) -> None:
        self._path = path

    def damaged(self, what: str) -> Corrupted:
        """The error for a value that cannot have been written."""
        return Corrupted(self._path, f"{what} is not what was written")

    def whole(self, value: Any) -> int:
        """A number, which none of ours is below zero."""
        if type(value) is not int or value < 0:
            raise self.damaged("a number")
        return value

    def text(self, value: Any) -> str:
        """A text."""
        if type(value) is not str:
            raise self.damaged("a text")
        return value

    def raw(self, value: Any) -> bytes:
        """Bytes."""
        if type(value) is not bytes:
            raise self.damaged("a sequence of bytes")
        return value

    def names(self, text: Any) -> tuple[str, ...]:
        """A list of texts, stored as JSON."""
        return tuple(self.text(name) for name in self._list(text))

    def spans(self, text: Any) -> tuple[Span, ...]:
        """A list of spans, stored as JSON."""
        spans: list[Span] = []
        for value in self._list(text):
            if not isinstance(value, list) or len(cast("list[Any]", value)) != 3:
                raise self.damaged("the reference of an artifact")
            spans.append(Span(*map(self.whole, cast("list[Any]", value))))
        return tuple(spans)

    def _list(self, text: Any) -> list[Any]:
        if not self.text(text):
            return []
        try:
            found = json.loads(text)
        except ValueError as error:
            raise self.damaged("a list") from error
        if not isinstance(found, list):
            raise self.damaged("a list")
        return cast("list[Any]", found)


_SESSION = (
    "select no, id, owner, status, created, updated, expires, reason, lines,"
    " agent, error, holder, token, until, span, boot from sessions"
)
_ARTIFACT = "select kind, line, lo, hi, body, refs, blobs from artifacts"
_ROW_COLUMNS = "select line, step, id, digest, envelope, payload"
_ROW = f"{_ROW_COLUMNS} from commits"
NEWEST = "select max(ifnull((select max(seq) from commits), 0), (select value from meta where key = 'trimmed'))"


class Reader(Checks):
    """The questions."""

    def __init__(self, path: str, judge: LeaseJudge) -> None:
        super().__init__(path)
        self._judge = judge

    # -- sessions ----------------------------------------------------------------------------------

    def look(self, cursor: Cursor, session: str) -> SessionRow | None:
        """What is known of one session."""
        found = cursor.execute(f"{_SESSION} where id = ?", (session,)).fetchone()
        return self._session(cursor, found) if found else None

    def sessions(self, cursor: Cursor, asked: Asked) -> list[SessionRow]:
        """Sessions in the order that is asked for, tombstones left out."""
        tests, values, order = asked.sql("", "?", "instr")
        sql = " and ".join([f"{_SESSION} where reason = ''", *tests])
        found = cursor.execute(f"{sql} order by {order} limit ?", (*values, asked.limit)).fetchall()
        return [self._session(cursor, values) for values in found]

    def counts(self, cursor: Cursor) -> list[Count]:
        """How many sessions there are by status, agent and error."""
        sql = "select status, agent, error, count(*) from sessions where reason = '' group by 1, 2, 3 order by 1, 2, 3"
        return [(self.text(a), self.text(b), self.text(c), self.whole(n)) for a, b, c, n in cursor.execute(sql)]

    def number(self, cursor: Cursor, session: str) -> int | None:
        """The session's number; None when it was never heard of."""
        no = value_of(cursor, "select no from sessions where id = ?", (session,))
        return None if no is None else self.whole(no)

    def _present(self, cursor: Cursor, session: str) -> int:
        found = cursor.execute("select no, reason, lines from sessions where id = ?", (session,)).fetchone()
        if not found:
            raise rules.no_session(session)
        no, reason, lines = self.whole(found[0]), self.text(found[1]), self.whole(found[2])
        if reason:
            raise rules.gone(session, reason)
        if not lines:
            raise rules.no_session(session)
        return no

    def _session(self, cursor: Cursor, values: Any) -> SessionRow:
        no, id, owner, status, created, updated, expires, reason, lines, agent, error, *lease = values
        no = self.whole(no)
        session = self.text(id)
        pending = value_of(cursor, "select count(*) from inbox where no = ? and taken is null", (no,))
        return SessionRow(
            session,
            self.text(owner),
            self.text(status),
            self.whole(created),
            self.whole(updated),
            None if expires is None else self.whole(expires),
            self._judge.info(session, self.lease(*lease)),
            self.heads(cursor, no),
            self.text(reason),
            self.whole(pending),
            self.whole(lines),
            self.text(agent),
            self.text(error),
        )

    def lease(self, holder: Any, token: Any, until: Any, span: Any, boot: Any) -> StoredLease:
        """A lease from its five columns."""
        if (
            type(holder) is str and type(token) is int and type(until) is int
            and type(span) is int and type(boot) is str and token >= 0 and span >= 0
        ):  # fmt: skip
            return StoredLease(holder, token, until, span, boot)
        raise self.damaged("a lease")

    def heads(self, cursor: Cursor, no: int) -> tuple[Head, ...]:
        """The heads of all branches, by name."""
        main = "select ?, line, step, head from sessions where no = ? and head is not null"
        others = "select name, line, step, head from branches where no = ?"
        found = cursor.execute(f"{main} union all {others} order by 1", (MAIN, no, no))
        return tuple(
            Head(self.text(name), self.whole(line), self.whole(step), self.raw(head))
            for name, line, step, head in found
        )

    # -- rows --------------------------------------------------------------------------------------

    def starts(self, cursor: Cursor, session: str, branch: str | None) -> list[Row]:
        """The first rows of a branch's lines, or of all lines."""
        no = self.number(cursor, session)
        named = "" if branch is None else "and branch = ?"
        found = cursor.execute(
            f"{_ROW} where no = ? {named} and starts order by line", (no,) if branch is None else (no, branch)
        )
        return self._rows(found)

    def load(self, cursor: Cursor, session: str, line: int, step: int | None, *, refs: bool) -> Bundle:
        """What rebuilds a line at a step."""
        no = self._present(cursor, session)
        last = self._last(cursor, no, session, line)
        at = last if step is None else step
        # Snapshots lie at one step, so the key finds the newest; anchors are few. On a tie the anchor wins:
        # it is the one that stands for rows which are no longer there.
        base = max(
            self._artifacts(cursor, no, "kind = ? and line = ? and lo <= ? order by lo desc limit 1",
                            (SNAPSHOT, line, at))
            + self._artifacts(cursor, no, "kind = ? and line = ? and hi <= ? order by hi desc limit 1",
                              (ANCHOR, line, at)),
            key=lambda artifact: (artifact.hi, artifact.kind == ANCHOR),
            default=None,
        )  # fmt: skip
        rows = self._steps(cursor, no, line, base.hi + 1 if base else 0, at)
        reached = rows[-1].step if rows else base.hi if base else -1
        if reached != at:
            anchors = self._artifacts(
                cursor, no, "kind = ? and line = ? and lo <= ? and hi > ?", (ANCHOR, line, at, at)
            )
            for anchor in anchors:
                raise rules.retained(session, line, at, anchor.lo, anchor.hi)
            raise rules.no_step(session, line, at, last)
        packs = self._packs(cursor, no, [*_thin_spans(rows), *(base.refs if base and refs else ())])
        return Bundle(base, tuple(rows), packs, last)

    def slice(self, cursor: Cursor, session: str, line: int, lo: int, hi: int) -> Bundle:
        """Some rows of a line."""
        no = self._present(cursor, session)
        last = self._last(cursor, no, session, line)
        rows = self._steps(cursor, no, line, lo, hi)
        thin = _thin_spans(rows)
        anchors = [
            anchor
            for span in thin
            for anchor in self._artifacts(
                cursor, no, "kind = ? and line = ? and hi between ? and ? order by lo", (ANCHOR, *span)
            )
        ]
        return Bundle(None, tuple(rows), (*self._packs(cursor, no, thin), *anchors), last)

    def _last(self, cursor: Cursor, no: int, session: str, line: int) -> int:
        last = value_of(cursor, "select max(step) from commits where no = ? and line = ?", (no, line))
        if last is None:
            anchor = "select max(hi) from artifacts where no = ? and kind = ? and line = ?"
            last = value_of(cursor, anchor, (no, ANCHOR, line))
        if last is None:
            raise rules.no_line(session, line)
        return self.whole(last)

    def _steps(self, cursor: Cursor, no: int, line: int, lo: int, hi: int) -> list[Row]:
        between = f"{_ROW} where no = ? and line = ? and step between ? and ? order by step"
        return self._rows(cursor.execute(between, (no, line, lo, hi)))

    def _rows(self, found: Iterable[Any]) -> list[Row]:
        rows: list[Row] = []
        for values in found:
            row = Row(*values)
            if (
                type(row.line) is int and row.line >= 0
                and type(row.step) is int and row.step >= 0
                and type(row.id) is bytes and type(row.digest) is bytes
                and type(row.envelope) is bytes and type(row.payload) is bytes
            ):  # fmt: skip
                rows.append(row)
            else:
                raise self.damaged("a row of commits")
        return rows

    # -- artifacts ---------------------------------------------------------------------------------

    def artifacts(self, cursor: Cursor, session: str) -> list[Artifact]:
        """All artifacts of a session."""
        no = self.number(cursor, session)
        return [] if no is None else self._artifacts(cursor, no, "true order by kind, line, lo", ())

    def _artifacts(self, cursor: Cursor, no: int, where: str, values: tuple[Any, ...]) -> list[Artifact]:
        found = cursor.execute(f"{_ARTIFACT} where no = ? and {where}", (no, *values))
        return [
            Artifact(
                self.text(kind), self.whole(line), self.whole(lo), self.whole(hi), self.raw(body),
                self.spans(refs), self.names(blobs),
            )
            for kind, line, lo, hi, body, refs, blobs in found
        ]  # fmt: skip

    def _packs(self, cursor: Cursor, no: int, spans: Iterable[Span]) -> tuple[Artifact, ...]:
        """Every pack that overlaps one of the spans, once, in order."""
        packs: dict[tuple[int, int], Artifact] = {}
        for span in spans:
            overlap = "kind = ? and line = ? and lo <= ? and hi >= ?"
            for pack in self._artifacts(cursor, no, overlap, (PACK, span.line, span.hi, span.lo)):
                packs[pack.line, pack.lo] = pack
        return tuple(packs[key] for key in sorted(packs))

    def dangling(self, cursor: Cursor, no: int, gone: Sequence[Span]) -> list[tuple[str, int, int]]:
        """The snapshots at a row of the spans or with a ref to one, by key."""
        found = cursor.execute("select line, lo, refs from artifacts where no = ? and kind = ?", (no, SNAPSHOT))
        return [
            (SNAPSHOT, self.whole(line), self.whole(lo))
            for line, lo, refs in found.fetchall()
            if any(
                one.line == span.line and one.lo <= span.hi and span.lo <= one.hi
                for one in (Span(line, lo, lo), *self.spans(refs))
                for span in gone
            )
        ]

    # -- inbox, changes, blobs ---------------------------------------------------------------------

    def inbox(self, cursor: Cursor, session: str, limit: int, key: str | None) -> list[InboxEntry]:
        """Waiting entries, or the one of a key if it waits."""
        if key is not None:
            return self._entries(cursor, session, "key = ? and taken is null limit ?", (key, limit))
        return self._entries(cursor, session, "taken is null order by seq limit ?", (limit,))

    def _entries(self, cursor: Cursor, session: str, where: str, values: tuple[Any, ...]) -> list[InboxEntry]:
        no = self.number(cursor, session)
        columns = "select key, kind, at, digest, body, seq, taken from inbox"
        found = cursor.execute(f"{columns} where no = ? and {where}", (no, *values))
        return [
            InboxEntry(
                session, self.text(key), self.text(kind), self.whole(at), self.raw(digest), self.raw(body),
                self.whole(seq), b"" if taken is None else self.raw(taken),
            )
            for key, kind, at, digest, body, seq, taken in found
        ]  # fmt: skip

    def changes(self, cursor: Cursor, after: str | None, limit: int) -> ChangePage:
        """Commits after a cursor."""
        place = resume(
            after,
            epoch=self.text(self.meta(cursor, "epoch")),
            newest=self.whole(value_of(cursor, NEWEST)),
            trimmed=self.whole(self.meta(cursor, "trimmed")),
        )
        found = cursor.execute(
            "select s.id, c.branch, c.line, c.step, c.id, c.kind, c.status, c.at, c.seq"
            " from commits c join sessions s on s.no = c.no where c.seq > ? order by c.seq limit ?",
            (place.seq, limit),
        )
        items: list[Change] = []
        seq = place.seq
        for session, branch, line, step, id, kind, status, at, number in found:
            items.append(
                Change(
                    self.text(session), self.text(branch), self.whole(line), self.whole(step), self.raw(id),
                    self.text(kind), self.text(status), self.whole(at),
                )
            )  # fmt: skip
            seq = self.whole(number)
        return ChangePage(tuple(items), str(place.after(seq)))

    def blob_page(self, cursor: Cursor, after: int, limit: int) -> tuple[list[str], int | None]:
        """Refs of some rows after a number, and the number to go on from (None: that was all)."""
        sql = "select seq, blobs from commits where blobs <> '' and seq > ? order by seq limit ?"
        found = cursor.execute(sql, (after, limit)).fetchall()
        refs = [ref for _, blobs in found for ref in self.names(blobs)]
        return refs, self.whole(found[-1][0]) if len(found) == limit else None

    def artifact_blobs(self, cursor: Cursor) -> list[str]:
        """Refs of all artifacts, at one instant: they may move from one artifact to another."""
        found = cursor.execute("select blobs from artifacts where blobs <> ''").fetchall()
        return [ref for (blobs,) in found for ref in self.names(blobs)]

    # -- the whole ---------------------------------------------------------------------------------

    def dump(self, cursor: Cursor, session: str) -> Dump:
        """A whole session."""
        row = self.look(cursor, session)
        if row is None:
            raise rules.no_session(session)
        if row.reason:
            raise rules.gone(session, row.reason)
        no = self.number(cursor, session)
        rows: list[tuple[Row, dict[str, Any]]] = []
        columns = "branch, kind, status, at, tool, error, takes, blobs, starts"
        for values in cursor.execute(f"{_ROW_COLUMNS}, {columns} from commits where no = ? order by seq", (no,)):
            branch, kind, status, at, tool, error, takes, blobs, starts = values[6:]
            projections = {
                "branch": self.text(branch),
                "kind": self.text(kind),
                "status": self.text(status),
                "at": self.whole(at),
                "tool": self.text(tool),
                "error": self.text(error),
                "takes": self.names(takes),
                "blobs": self.names(blobs),
                "starts": bool(self.whole(starts)),
            }
            rows.append((self._rows([values[:6]])[0], projections))
        entries = self._entries(cursor, session, "true order by seq", ())
        return Dump(row, tuple(rows), tuple(self.artifacts(cursor, session)), tuple(entries))

    def count(self, cursor: Cursor) -> tuple[int, int]:
        """How many sessions and checkpoints there are."""
        sql = "select (select count(*) from sessions where reason = ''), (select count(*) from commits)"
        ((sessions, checkpoints),) = cursor.execute(sql).fetchall()
        return sessions, checkpoints

    def meta(self, cursor: Cursor, key: str) -> Any:
        """One of the store's own values."""
        value = value_of(cursor, "select value from meta where key = ?", (key,))
        if value is None:
            raise self.damaged(f"the store's {key}")
        return value


def _thin_spans(rows: list[Row]) -> list[Span]:
    """The thin rows among these, as few spans of neighbours."""
    spans: list[Span] = []
    for row in rows:
        if row.envelope or row.payload:
            continue
        if spans and spans[-1].hi == row.step - 1:
            spans[-1] = spans[-1]._replace(hi=row.step)
        else:
            spans.append(Span(row.line, row.step, row.step))
    return spans
