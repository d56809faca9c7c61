"""Changes to the SQLite store, each made inside a writing transaction that the caller began."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import apsw

from perdure.errors import InvalidInput, PerdureError
from perdure.model import MAIN, Head, Landed, Status
from perdure.stores import rules
from perdure.stores.rules import restored_row, sets_session_status
from perdure.stores.sqlite.driver import value_of
from perdure.stores.sqlite.read import NEWEST
from perdure.system import faults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.model import Append, Artifact, Dump, InboxEntry, Lease, Rewrite, Row, Span
    from perdure.protocols import Clock
    from perdure.stores.lease_clock import LeaseJudge, StoredLease
    from perdure.stores.sqlite.driver import Cursor
    from perdure.stores.sqlite.read import Reader

TOKENS_PER_EPOCH = 1 << 32
"""By how much tokens jump with a new epoch: past every one that a lost past may have given out."""

# Two questions, not one: SQLite plans a join anew with every binding, which costs four times as much.
_STATE = (
    "select no, owner, lines, reason, line, step, head, holder, token, until, span, boot from sessions where id = ?"
)
_HEAD = "select line, step, head from branches where no = ? and name = ?"
_NO_STATE = (None, "", 0, "", None, None, None, "", 0, 0, 0, "")
_INSERT = (
    "insert into commits (seq, no, line, step, id, digest, kind, branch, status, at, starts, tool, error,"
    f" takes, blobs, envelope, payload) values (({NEWEST}) + 1{', ?' * 16})"
)
_BRANCH = (
    "insert into branches (no, name, line, step, head) values (?, ?, ?, ?, ?)"
    " on conflict do update set line = excluded.line, step = excluded.step, head = excluded.head"
)
_MAIN = "update sessions set line = ?, step = ?, head = ? where no = ?"
_TOUCH = "update sessions set updated = ?, expires = ?, until = ?, boot = ?, lines = ?"
_TOUCH_BRANCH = f"{_TOUCH} where no = ?"
_TOUCH_ALONE = f"{_TOUCH}, status = ?, error = ? where no = ?"
_TOUCH_MAIN = f"{_TOUCH}, status = ?, error = ?, line = ?, step = ?, head = ? where no = ?"


class Writer:
    """The changes. Errors of one item are answered, not raised, as long as nothing was written for it."""

    def __init__(self, clock: Clock, judge: LeaseJudge, reader: Reader) -> None:
        self._clock = clock
        self._judge = judge
        self._reader = reader

    # -- commits -----------------------------------------------------------------------------------

    def append(self, cursor: Cursor, items: Sequence[Append]) -> list[Landed | PerdureError]:
        """Insert commits, each on its own terms."""
        return [self._append(cursor, item) for item in items]

    def _append(self, cursor: Cursor, item: Append) -> Landed | PerdureError:
        found = cursor.execute(_STATE, (item.session,)).fetchone()
        no, owner, lines, reason, *place, holder, token, until, span, boot = found or _NO_STATE
        tells = sets_session_status(item.branch, place[2] is not None)
        if item.branch != MAIN:
            place = cursor.execute(_HEAD, (no, item.branch)).fetchone() or (None, None, None)
        stored, lines = self._reader.lease(holder, token, until, span, boot), self._reader.whole(lines)
        head = place[2]
        # A commit whose own parent is the head has not landed; any other may have, and that comes first.
        if head != item.expect and (landed := _landed(cursor, no, item)):
            return landed
        if refused := rules.fenced(item.session, item.token, stored, self._judge):
            return refused
        if head != item.expect:
            return rules.moved(item, _head(item, place))
        if item.starts and item.line < lines:
            return _landed(cursor, no, item) or rules.taken_place(item, _head(item, place))
        if item.takes and (missing := _not_waiting(cursor, no, item.takes)) is not None:
            return rules.not_waiting(item, missing, _head(item, place))
        wall = self._clock.wall()
        if no is None:
            no = self._insert_session(cursor, item.session, wall)
        faults.point("sqlite.append.before_insert")
        try:
            cursor.execute(
                _INSERT,
                (
                    no, item.line, item.step, item.id, item.digest, item.kind, item.branch, item.status,
                    item.at, int(item.starts), item.tool, item.error,
                    _json(item.takes) if item.takes else "", _json(item.blobs) if item.blobs else "",
                    item.envelope, item.payload,
                ),
            )  # fmt: skip
        except apsw.ConstraintError as error:
            if landed := _landed(cursor, no, item):
                return landed
            if _is_place_taken(cursor, no, item):
                return rules.taken_place(item, _head(item, place))
            # What SQLite says here names the column and the type, not the value.
            what = f"session {item.session!r}: a field of the commit has the wrong type ({error})"
            raise InvalidInput(what) from error
        faults.point("sqlite.append.after_insert")
        # All are rare, so that the index by owner is left alone otherwise.
        if reason or not lines:  # the first commit of a life
            born = "update sessions set owner = ?, created = ?, reason = '' where no = ?"
            cursor.execute(born, (item.owner, wall, no))
        elif owner != item.owner:
            cursor.execute("update sessions set owner = ? where no = ?", (item.owner, no))
        if item.agent and tells:
            cursor.execute("update sessions set agent = ? where no = ?", (item.agent, no))
        if item.token is not None:
            stored = self._judge.grant(stored.holder, stored.token, stored.span)
        expires = None if item.ttl is None else wall + item.ttl * 1000
        lines = max(lines, item.line + 1)
        touched, standing = (wall, expires, stored.until, stored.boot, lines), (item.status, item.error)
        if item.branch == MAIN:
            cursor.execute(_TOUCH_MAIN, (*touched, *standing, item.line, item.step, item.id, no))
        else:
            cursor.execute(_BRANCH, (no, item.branch, item.line, item.step, item.id))
            if tells:
                cursor.execute(_TOUCH_ALONE, (*touched, *standing, no))
            else:
                cursor.execute(_TOUCH_BRANCH, (*touched, no))
        if item.takes:
            cursor.executemany(
                "update inbox set taken = ?, body = x'' where no = ? and key = ?",
                [(item.id, no, key) for key in item.takes],
            )
        return Landed(item.id)

    def _insert_session(self, cursor: Cursor, session: str, wall: int) -> int:
        sql = "insert into sessions (id, owner, status, created, updated) values (?, '', ?, ?, ?) returning no"
        return value_of(cursor, sql, (session, Status.IDLE.value, wall, wall))

    def number(self, cursor: Cursor, session: str) -> int:
        """The number of a session, which is known from then on."""
        no = self._reader.number(cursor, session)
        return self._insert_session(cursor, session, self._clock.wall()) if no is None else no

    # -- inbox -------------------------------------------------------------------------------------

    def post(self, cursor: Cursor, entries: Sequence[InboxEntry]) -> list[bool | PerdureError]:
        """Insert inbox entries, each once."""
        answers: list[bool | PerdureError] = []
        for entry in entries:
            no = self.number(cursor, entry.session)
            sql = "select digest from inbox where no = ? and key = ?"
            known = value_of(cursor, sql, (no, entry.key))
            if known is not None:
                same = known == entry.digest
                answers.append(False if same else rules.other_post(entry.session, entry.key))
                continue
            faults.point("sqlite.post.before_insert")
            cursor.execute(
                "insert into inbox (no, key, kind, at, digest, body) values (?, ?, ?, ?, ?, ?)",
                (no, entry.key, entry.kind, entry.at, entry.digest, entry.body),
            )
            faults.point("sqlite.post.after_insert")
            answers.append(True)
        return answers

    # -- leases ------------------------------------------------------------------------------------

    def acquire(self, cursor: Cursor, session: str, holder: str, span: int) -> StoredLease:
        """Take the lease, or raise ``Busy``."""
        no = self.number(cursor, session)
        if busy := self._judge.busy(session, self._lease(cursor, no)):
            raise busy
        sql = "update meta set value = value + 1 where key = 'token' returning value"
        lease = self._judge.grant(holder, value_of(cursor, sql), span)
        faults.point("sqlite.acquire.before_insert")
        cursor.execute(
            "update sessions set holder = ?, token = ?, until = ?, span = ?, boot = ? where no = ?",
            (*lease, no),
        )
        faults.point("sqlite.acquire.after_insert")
        return lease

    def renew(self, cursor: Cursor, leases: Sequence[Lease], span: int) -> list[bool]:
        """Extend the leases that are still current."""
        answers: list[bool] = []
        for lease in leases:
            new = self._judge.grant(lease.holder, lease.token, span)
            sql = (
                "update sessions set until = ?, span = ?, boot = ?"
                " where id = ? and token = ? and holder <> '' returning 1"
            )
            done = value_of(cursor, sql, (new.until, new.span, new.boot, lease.session, lease.token))
            answers.append(done is not None)
        return answers

    def release(self, cursor: Cursor, lease: Lease) -> None:
        """Give the lease back if it is still current."""
        cursor.execute(
            "update sessions set holder = '', until = 0, span = 0, boot = '' where id = ? and token = ?",
            (lease.session, lease.token),
        )

    def _lease(self, cursor: Cursor, no: int) -> StoredLease:
        found = cursor.execute("select holder, token, until, span, boot from sessions where no = ?", (no,)).fetchone()
        return self._reader.lease(*(found or ()))

    # -- maintenance -------------------------------------------------------------------------------

    def rewrite(self, cursor: Cursor, change: Rewrite) -> bool:
        """Store a session otherwise; False (and nothing is done) when it no longer applies."""
        found = cursor.execute("select no, reason from sessions where id = ?", (change.session,)).fetchone()
        if not found or (found[1] and change.token is None):
            return False
        no = self._reader.whole(found[0])
        if change.token is not None:
            refused = rules.fenced(change.session, change.token, self._lease(cursor, no), self._judge)
            if refused:
                raise refused
        if not all(_all_full(cursor, no, span) for span in change.thin):
            return False
        if not all(_all_there(cursor, no, span) for span in change.needs):
            return False
        faults.point("sqlite.rewrite.before_insert")
        _discard(cursor, no, change.discard)
        _put(cursor, no, change.put)
        faults.point("sqlite.rewrite.after_insert")
        for span in change.thin:
            _thin(cursor, no, span)
        for span in change.drop:
            _delete_commits(cursor, "no = ? and line = ? and step between ? and ?", (no, *span))
        if change.drop:
            _discard(cursor, no, self._reader.dangling(cursor, no, change.drop))
        return True

    def drop(self, cursor: Cursor, session: str, token: int | None, reason: str) -> None:
        """Delete a session, leaving its tombstone."""
        no = self._reader.number(cursor, session)
        if no is None:
            raise rules.no_session(session)
        if refused := rules.fenced(session, token, self._lease(cursor, no), self._judge):
            raise refused
        faults.point("sqlite.drop.before_insert")
        _delete_commits(cursor, "no = ?", (no,))
        for table in ("branches", "artifacts", "inbox"):
            cursor.execute(f"delete from {table} where no = ?", (no,))
        cursor.execute(
            "update sessions set owner = '', status = ?, updated = ?, expires = null, holder = '', until = 0,"
            " span = 0, boot = '', reason = ?, lines = 0, agent = '', error = '',"
            " line = null, step = null, head = null where no = ?",
            (_status_of_gone(reason), self._clock.wall(), reason or "deleted", no),
        )
        faults.point("sqlite.drop.after_insert")

    def renew_epoch(self, cursor: Cursor, epoch: str) -> None:
        """Set another epoch; every lease ends, and tokens go on behind any that was ever given."""
        cursor.execute("update meta set value = ? where key = 'epoch'", (epoch,))
        cursor.execute("update meta set value = value + ? where key = 'token'", (TOKENS_PER_EPOCH,))
        cursor.execute("update sessions set holder = '', until = 0, span = 0, boot = '' where holder <> ''")

    def restore(self, cursor: Cursor, dump: Dump) -> None:
        """Insert a dumped session."""
        row = restored_row(dump)
        no = self.number(cursor, row.id)
        if value_of(cursor, "select lines from sessions where no = ?", (no,)):
            raise rules.has_checkpoints(row.id, next(iter(self._reader.heads(cursor, no)), None))
        for stored, projections in dump.rows:
            cursor.execute(_INSERT, _restored(no, stored, projections))
        cursor.executemany(_BRANCH, [(no, *head) for head in row.heads if head.branch != MAIN])
        cursor.executemany(_MAIN, [(*head[1:], no) for head in row.heads if head.branch == MAIN])
        _put(cursor, no, dump.artifacts)
        # What was posted here meanwhile stays; what the dump has taken counts as taken.
        cursor.executemany(
            "insert into inbox (no, key, kind, at, digest, body, taken) values (?, ?, ?, ?, ?, ?, ?)"
            " on conflict do update set taken = excluded.taken, body = x'' where excluded.taken is not null",
            [(no, e.key, e.kind, e.at, e.digest, e.body, e.taken or None) for e in dump.inbox],
        )
        # Tokens of the other store may still be about: ours go on behind them.
        cursor.execute("update meta set value = max(value, ?) where key = 'token'", (row.lease.token,))
        cursor.execute(
            "update sessions set owner = ?, status = ?, created = ?, updated = ?, expires = ?, reason = ?,"
            " lines = ?, agent = ?, error = ?, token = iif(holder = '', max(token, ?), token) where no = ?",
            (
                row.owner, row.status, row.created, row.updated, row.expires, row.reason, row.lines,
                row.agent, row.error, row.lease.token, no,
            ),
        )  # fmt: skip


def _discard(cursor: Cursor, no: int, keys: Sequence[tuple[str, int, int]]) -> None:
    sql = "delete from artifacts where no = ? and kind = ? and line = ? and lo = ?"
    cursor.executemany(sql, [(no, *key) for key in keys])


def _put(cursor: Cursor, no: int, artifacts: Sequence[Artifact]) -> None:
    cursor.executemany(
        "insert or replace into artifacts (no, kind, line, lo, hi, body, refs, blobs) values (?, ?, ?, ?, ?, ?, ?, ?)",
        [(no, *artifact[:5], _json(artifact.refs), _json(artifact.blobs)) for artifact in artifacts],
    )


def _landed(cursor: Cursor, no: int | None, item: Append) -> Landed | PerdureError | None:
    """The answer to a commit that is there already; None when it is not."""
    sql = "select digest from commits where no = ? and line = ? and step = ? and id = ?"
    digest = value_of(cursor, sql, (no, item.line, item.step, item.id))
    if digest is None:
        return None
    return Landed(item.id, again=True) if digest == item.digest else rules.other_digest(item)


def _is_place_taken(cursor: Cursor, no: int, item: Append) -> bool:
    sql = "select 1 from commits where no = ? and line = ? and step = ?"
    return cursor.execute(sql, (no, item.line, item.step)).fetchone() is not None


def _not_waiting(cursor: Cursor, no: int | None, keys: Sequence[str]) -> str | None:
    """The first of the keys that cannot be taken."""
    seen: set[str] = set()
    for key in keys:
        sql = "select 1 from inbox where no = ? and key = ? and taken is null"
        if key in seen or not cursor.execute(sql, (no, key)).fetchone():
            return key
        seen.add(key)
    return None


def _thin(cursor: Cursor, no: int, span: Span) -> None:
    """Empty the rows of a span. They are put in anew: SQLite never joins pages that an update left half empty."""
    kept = "seq, no, line, step, id, digest, kind, branch, status, at, starts, tool, error, takes, blobs"
    where = "no = ? and line = ? and step between ? and ?"
    rows = cursor.execute(f"select {kept} from commits where {where}", (no, *span)).fetchall()
    cursor.execute(f"delete from commits where {where}", (no, *span))
    cursor.executemany(f"insert into commits ({kept}, envelope, payload) values (?{', ?' * 14}, x'', x'')", rows)


def _all_full(cursor: Cursor, no: int, span: Span) -> bool:
    sql = (
        "select count(*) from commits where no = ? and line = ? and step between ? and ?"
        " and (length(envelope) > 0 or length(payload) > 0)"
    )
    return value_of(cursor, sql, (no, *span)) == span.hi - span.lo + 1


def _all_there(cursor: Cursor, no: int, span: Span) -> bool:
    sql = "select count(*) from commits where no = ? and line = ? and step between ? and ?"
    return value_of(cursor, sql, (no, *span)) == span.hi - span.lo + 1


def _delete_commits(cursor: Cursor, where: str, values: tuple[int, ...]) -> None:
    """Delete rows and remember the newest number among them."""
    newest = value_of(cursor, f"select max(seq) from commits where {where}", values)
    if newest is not None:
        cursor.execute(f"delete from commits where {where}", values)
        cursor.execute("update meta set value = max(value, ?) where key = 'trimmed'", (newest,))


def _head(item: Append, place: Sequence[Any]) -> Head | None:
    line, step, head = place
    return None if head is None else Head(item.branch, line, step, head)


def _restored(no: int, row: Row, projections: dict[str, Any]) -> tuple[Any, ...]:
    try:
        p = projections
        return (
            no, row.line, row.step, row.id, row.digest, p["kind"], p["branch"], p["status"], p["at"],
            int(p["starts"]), p["tool"], p["error"], _json(p["takes"]), _json(p["blobs"]),
            row.envelope, row.payload,
        )  # fmt: skip
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"the dump is incomplete: a row has no proper {error}") from error


def _status_of_gone(reason: str) -> str:
    return (Status.EXPIRED if reason == Status.EXPIRED else Status.CLOSED).value


def _json(values: Sequence[Any]) -> str:
    return json.dumps(values) if values else ""
