"""The SQLite store: one file, any number of processes on one machine.

Long because it is one object: every question and every change stands in its transaction beside the
statements it runs. The file itself, with its connections, is in ``file``, its tables in ``tables``.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import apsw

from perdure import model
from perdure.errors import InvalidInput, PerdureError
from perdure.stores import rules
from perdure.stores.cursors import resume
from perdure.stores.listing import Asked
from perdure.stores.live import FolderLive
from perdure.stores.rules import LeaseJudge
from perdure.stores.sqlite import set_aside
from perdure.stores.sqlite.file import (
    BUSY_TIMEOUT,
    SYNCHRONOUS,
    Damaged,
    SqliteFile,
    lease_of,
    names,
    raw,
    spans,
    text,
    value_of,
    whole,
)
from perdure.stores.sqlite.own_locks import PROMISE
from perdure.stores.sqlite.tables import make_file, prepare
from perdure.system import faults
from perdure.system.clock import SteadyClock, SystemClock
from perdure.system.options import is_amount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Unpack

    from perdure.protocols import Clock, Wanted
    from perdure.stores.listing import Count
    from perdure.stores.rules import StoredLease
    from perdure.stores.sqlite.board import SqliteBoard
    from perdure.stores.sqlite.file import Cursor

BATCH = 512
"""Commits in one transaction at most."""

_PROMISES = {
    "full": model.Promise(
        process_crash=True,
        power_loss=True,
        words=(
            "When a commit has returned it is in SQLite's log and the log was synced (synchronous=FULL): "
            "it survives the end of the process and a loss of power, as far as the disk keeps what it "
            "says it has synced."
        ),
    ),
    "normal": model.Promise(
        process_crash=True,
        power_loss=False,
        words=(
            "When a commit has returned it is in SQLite's log (synchronous=NORMAL): it survives the end of "
            "the process. A loss of power may take back the newest commits, all since the last checkpoint "
            "of the log; what is left is consistent."
        ),
    ),
}
_SESSION = (
    "select no, id, owner, status, created, updated, expires, reason, lines,"
    " agent, error, label, posts, holder, token, until, span, boot from sessions"
)
_ARTIFACT = "select kind, line, lo, hi, body, refs, blobs from artifacts"
_ROW_COLUMNS = "select line, step, id, digest, envelope, payload"
_ROW = f"{_ROW_COLUMNS} from commits"
_SHOWN: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(rules.SHOWN, text), "at": whole, "takes": names, "blobs": names, "starts": lambda n: bool(whole(n)),
}  # fmt: skip
"""What a dump tells of a commit beside its sealed bytes, and how each is read."""
NEWEST = "select max(ifnull((select max(seq) from commits), 0), (select value from meta where key = 'trimmed'))"
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
_TOUCH_ALONE = f"{_TOUCH}, status = ?, error = ?, label = ? where no = ?"
_TOUCH_MAIN = f"{_TOUCH}, status = ?, error = ?, label = ?, line = ?, step = ?, head = ? where no = ?"


class SqliteStore:
    """Implements :class:`perdure.protocols.Store` on one SQLite file.

    ``synchronous="normal"`` gives up the promise about power loss for speed; ``busy_timeout`` is how many
    seconds to wait for other processes that are writing. ``vfs`` is for tests that lose power.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        synchronous: str = SYNCHRONOUS,
        busy_timeout: float = BUSY_TIMEOUT,
        vfs: str | None = None,
    ) -> None:
        mode = str(synchronous).lower()
        if mode not in _PROMISES:
            raise InvalidInput(f'synchronous is "full" or "normal", not {synchronous!r}')
        if not (is_amount(busy_timeout) and busy_timeout >= 0):
            raise InvalidInput(f"busy_timeout is how many seconds to wait, such as 30, not {busy_timeout!r:.40}")
        self.url = f"sqlite:///{os.fspath(path)}"
        promise = _PROMISES[mode]
        self.promise = promise._replace(words=f"{promise.words} {PROMISE}")
        self._clock: Clock = clock or SystemClock()
        # What lies beside a database lies beside the file, not beside a link to it, as its log does.
        self._path = full = os.path.realpath(path)
        make_file(full)
        ready = partial(prepare, path=full, synchronous=mode, patience=busy_timeout)
        self._file = SqliteFile(full, ready, synchronous=mode, busy_timeout=busy_timeout, vfs=vfs)
        self._judge = LeaseJudge(self._clock)
        try:
            self.id, self.epoch, known = self._file.glance(
                lambda c: (str(_meta(c, "id")), str(_meta(c, "epoch")), str(_meta(c, "clock")))
            )
            self._steady = SteadyClock(self._clock, known)
            if self._steady.news:
                self._keep_clock()
        except BaseException:
            self._file.close()
            raise

    def _keep_clock(self) -> None:
        sql = "update meta set value = ? where key = 'clock'"
        # Whoever cannot write now opens nevertheless: the next process of this boot has to rely on its wall clock.
        with suppress(PerdureError):
            self._file.write("clock", lambda cursor: cursor.execute(sql, (self._steady.known,)))

    def live(self) -> FolderLive:
        """Carries pieces of answers on their way, in a folder beside the file."""
        return FolderLive(f"{self._path}-live")

    def left_beside(self) -> list[str]:
        """The files in which commits were set aside, and logs, which nobody but you removes."""
        return set_aside.files(self._path)

    def has_board(self) -> bool:
        """Whether the board of a fleet was made."""
        return self._file.glance(lambda c: value_of(c, "select 1 from meta where key = 'board'")) is not None

    def board(self) -> SqliteBoard:
        """The board of a fleet, which is made when it is first asked for."""
        from perdure.stores.sqlite.board import SqliteBoard

        return SqliteBoard(self._file, self._clock, self._judge, self._number)

    # -- commits and inbox --------------------------------------------------------------------------

    def append(self, batch: Sequence[model.Append]) -> list[model.Landed | PerdureError]:
        """Make a batch durable in as few transactions as possible; see the protocol for the rules."""
        self._file.check()

        def transact(items: Sequence[model.Append]) -> list[model.Landed | PerdureError]:
            return self._file.write("append", lambda cursor: [self._append(cursor, item) for item in items], items)

        return rules.append_batch(batch, BATCH, transact)

    def _append(self, cursor: Cursor, item: model.Append) -> model.Landed | PerdureError:
        found = cursor.execute(_STATE, (item.session,)).fetchone()
        no, owner, lines, reason, *place, holder, token, until, span, boot = found or _NO_STATE
        tells = rules.sets_session_status(item.branch, place[2] is not None)
        if item.branch != model.MAIN:
            place = cursor.execute(_HEAD, (no, item.branch)).fetchone() or (None, None, None)
        stored, lines = lease_of(holder, token, until, span, boot), whole(lines)
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
        wall = self._steady.latest()
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
            if _holds(cursor, no, model.Span(item.line, item.step, item.step)):
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
        touched, standing = (wall, expires, stored.until, stored.boot, lines), (item.status, item.error, item.label)
        if item.branch == model.MAIN:
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
        return model.Landed(item.id)

    def _insert_session(self, cursor: Cursor, session: str, wall: int) -> int:
        sql = "insert into sessions (id, owner, status, created, updated) values (?, '', ?, ?, ?) returning no"
        return value_of(cursor, sql, (session, model.Status.IDLE.value, wall, wall))

    def _number(self, cursor: Cursor, session: str) -> int:
        """The number of a session, which is known from then on."""
        no = _known_number(cursor, session)
        return self._insert_session(cursor, session, self._clock.wall()) if no is None else no

    def post(self, entries: Sequence[model.InboxEntry]) -> list[bool | model.Outrun | PerdureError]:
        """Put entries into inboxes, in one transaction; one by one when that fails."""

        def write(cursor: Cursor, entries: Sequence[model.InboxEntry]) -> list[bool | model.Outrun | PerdureError]:
            answers: list[bool | model.Outrun | PerdureError] = []
            for entry in entries:
                no = self._number(cursor, entry.session)
                sql = "select digest from inbox where no = ? and key = ?"
                known = value_of(cursor, sql, (no, entry.key))
                if known is not None:
                    same = known == entry.digest
                    answers.append(False if same else rules.other_post(entry.session, entry.key))
                    continue
                number = whole(value_of(cursor, "select posts from sessions where no = ?", (no,))) + 1
                if entry.seq not in (0, number):
                    answers.append(model.Outrun(number))
                    continue
                faults.point("sqlite.post.before_insert")
                cursor.execute(
                    "insert into inbox (no, seq, key, kind, at, digest, body) values (?, ?, ?, ?, ?, ?, ?)",
                    (no, number, entry.key, entry.kind, entry.at, entry.digest, entry.body),
                )
                cursor.execute("update sessions set posts = ? where no = ?", (number, no))
                faults.point("sqlite.post.after_insert")
                answers.append(True)
            return answers

        def transact(entries: Sequence[model.InboxEntry]) -> list[bool | model.Outrun | PerdureError]:
            return self._file.write("post", lambda cursor: write(cursor, entries))

        return rules.post_batch(entries, transact)

    def inbox(self, session: str, limit: int = 100, key: str | None = None) -> list[model.InboxEntry]:
        """Waiting entries in order of arrival; with ``key`` only the one of that key."""
        with self._file.read() as cursor:
            if key is not None:
                return _entries(cursor, session, "key = ? and taken is null limit ?", (key, limit))
            return _entries(cursor, session, "taken is null order by seq limit ?", (limit,))

    # -- looking ------------------------------------------------------------------------------------

    def look(self, session: str) -> model.SessionRow | None:
        """What is known of a session, a tombstone included."""
        return self._file.glance(lambda cursor: self._look(cursor, session))

    def _look(self, cursor: Cursor, session: str) -> model.SessionRow | None:
        found = cursor.execute(f"{_SESSION} where id = ?", (session,)).fetchone()
        return self._session(cursor, found) if found else None

    def _session(self, cursor: Cursor, values: Any) -> model.SessionRow:
        no, id, owner, status, created, updated, expires, reason, lines, agent, error, label, posts, *lease = values
        no = whole(no)
        session = text(id)
        pending = value_of(cursor, "select count(*) from inbox where no = ? and taken is null", (no,))
        return model.SessionRow(
            session,
            text(owner),
            text(status),
            whole(created),
            whole(updated),
            None if expires is None else whole(expires),
            self._judge.info(session, lease_of(*lease)),
            _heads(cursor, no),
            text(reason),
            whole(pending),
            whole(lines),
            text(agent),
            text(error),
            text(label),
            whole(posts),
            self._steady.now(),
        )

    def sessions(self, **wanted: Unpack[Wanted]) -> list[model.SessionRow]:
        """Sessions in order of id, or the newest first, without tombstones."""
        asked = Asked(**wanted)
        with self._file.read() as cursor:
            tests, values, order = asked.sql("", "?", "instr", f"{self._steady.now()}")
            sql = f"{_SESSION} where {' and '.join(tests)}"
            found = cursor.execute(f"{sql} order by {order} limit ?", (*values, asked.limit)).fetchall()
            return [self._session(cursor, values) for values in found]

    def counts(self) -> list[Count]:
        """How many sessions there are by status, agent and error."""
        sql = (
            "select status, agent, error, count(*) from sessions where reason = '' and instr(id, ?) <> 1"
            " group by 1, 2, 3 order by 1, 2, 3"
        )
        with self._file.read() as cursor:
            return [(text(a), text(b), text(c), whole(n)) for a, b, c, n in cursor.execute(sql, (model.ASIDE,))]

    def starts(self, session: str, branch: str | None) -> list[model.Row]:
        """The first rows of all lines of a branch (None: of all branches)."""
        named = () if branch is None else (branch,)
        sql = f"{_ROW} where no = ? {'and branch = ?' if named else ''} and starts order by line"
        return self._file.glance(lambda cursor: _rows(cursor.execute(sql, (_known_number(cursor, session), *named))))

    def load(self, session: str, line: int, step: int | None = None, *, refs: bool = True) -> model.Bundle:
        """What is needed to rebuild a line at a step (None: its last)."""

        def read(cursor: Cursor) -> model.Bundle:
            no = _present(cursor, session)
            last = _last(cursor, no, session, line)
            at = last if step is None else step
            # Snapshots lie at one step, so the key finds the newest; anchors are few. On a tie the anchor wins:
            # it is the one that stands for rows which are no longer there.
            base = max(
                _artifacts(cursor, no, "kind = ? and line = ? and lo <= ? order by lo desc limit 1",
                                (model.SNAPSHOT, line, at))
                + _artifacts(cursor, no, "kind = ? and line = ? and hi <= ? order by hi desc limit 1",
                                  (model.ANCHOR, line, at)),
                key=lambda artifact: (artifact.hi, artifact.kind == model.ANCHOR),
                default=None,
            )  # fmt: skip
            rows = _steps(cursor, no, line, base.hi + 1 if base else 0, at)
            reached = rows[-1].step if rows else base.hi if base else -1
            if reached != at:
                anchors = _artifacts(
                    cursor, no, "kind = ? and line = ? and lo <= ? and hi > ?", (model.ANCHOR, line, at, at)
                )
                for anchor in anchors:
                    raise rules.retained(session, line, at, anchor.lo, anchor.hi)
                raise rules.no_step(session, line, at, last)
            packs = _packs(cursor, no, [*_thin_spans(rows), *(base.refs if base and refs else ())])
            return model.Bundle(base, tuple(rows), packs, last)

        return self._file.glance(read)

    def slice(self, session: str, line: int, lo: int, hi: int) -> model.Bundle:
        """Rows lo..hi of a line, with the packs that hold the thin ones."""
        with self._file.read() as cursor:
            no = _present(cursor, session)
            last = _last(cursor, no, session, line)
            rows = _steps(cursor, no, line, lo, hi)
            thin = _thin_spans(rows)
            anchors = [
                anchor
                for span in thin
                for anchor in _artifacts(
                    cursor, no, "kind = ? and line = ? and hi between ? and ? order by lo", (model.ANCHOR, *span)
                )
            ]
            return model.Bundle(None, tuple(rows), (*_packs(cursor, no, thin), *anchors), last)

    def artifacts(self, session: str) -> list[model.Artifact]:
        """All artifacts of a session."""
        with self._file.read() as cursor:
            return _all_artifacts(cursor, session)

    def changes(self, after: str | None = None, limit: int = 1000) -> model.ChangePage:
        """Commits after a cursor."""
        with self._file.read() as cursor:
            place = resume(
                after,
                epoch=text(_meta(cursor, "epoch")),
                newest=whole(value_of(cursor, NEWEST)),
                trimmed=whole(_meta(cursor, "trimmed")),
            )
            found = cursor.execute(
                "select s.id, c.branch, c.line, c.step, c.id, c.kind, c.status, c.at, c.seq"
                " from commits c join sessions s on s.no = c.no where c.seq > ? order by c.seq limit ?",
                (place.seq, limit),
            )
            items: list[model.Change] = []
            seq = place.seq
            for session, branch, line, step, id, kind, status, at, number in found:
                items.append(
                    model.Change(
                        text(session), text(branch), whole(line), whole(step), raw(id),
                        text(kind), text(status), whole(at),
                    )
                )  # fmt: skip
                seq = whole(number)
            return model.ChangePage(tuple(items), str(place.after(seq)))

    def blob_refs(self) -> Iterator[str]:
        """Every blob that any row or artifact refers to, those of copies that were set aside beside it included."""
        yield from set_aside.blob_refs(self._path)
        # Rows in pages, so that no long transaction keeps the log from being emptied. Artifacts come after
        # them: what maintenance moves meanwhile goes from rows to artifacts.
        sql = "select seq, blobs from commits where blobs <> '' and seq > ? order by seq limit 1000"
        after = 0
        while True:
            with self._file.read() as cursor:
                found = cursor.execute(sql, (after,)).fetchall()
                refs = [ref for _, blobs in found for ref in names(blobs)]
                after = whole(found[-1][0]) if found else after
            yield from refs
            if not found:
                break
        # At one instant: refs may move from one artifact to another.
        with self._file.read() as cursor:
            kept = cursor.execute("select blobs from artifacts where blobs <> ''").fetchall()
            refs = [ref for (blobs,) in kept for ref in names(blobs)]
        yield from refs

    # -- leases -------------------------------------------------------------------------------------

    def acquire(self, session: str, holder: str, ttl: int) -> model.Lease:
        """Take the lease for ``ttl`` ms, or raise ``Busy``."""

        def write(cursor: Cursor) -> StoredLease:
            no = self._number(cursor, session)
            if busy := self._judge.busy(session, _lease(cursor, no)):
                raise busy
            token = value_of(cursor, "update meta set value = value + 1 where key = 'token' returning value")
            if type(token) is not int:
                # Past its largest number SQLite goes on with fractions.
                raise Damaged("the store's token")
            lease = self._judge.grant(holder, token, ttl)
            faults.point("sqlite.acquire.before_insert")
            cursor.execute(
                "update sessions set holder = ?, token = ?, until = ?, span = ?, boot = ? where no = ?",
                (*lease, no),
            )
            faults.point("sqlite.acquire.after_insert")
            return lease

        lease = self._file.write("acquire", write)
        return model.Lease(session, holder, lease.token, self._clock.wall() + ttl)

    def renew(self, leases: Sequence[model.Lease], ttl: int) -> list[bool]:
        """Extend leases; False where the token is no longer the current one."""

        def write(cursor: Cursor) -> list[bool]:
            answers: list[bool] = []
            for lease in leases:
                new = self._judge.grant(lease.holder, lease.token, ttl)
                sql = (
                    "update sessions set until = ?, span = ?, boot = ?"
                    " where id = ? and token = ? and holder <> '' returning 1"
                )
                done = value_of(cursor, sql, (new.until, new.span, new.boot, lease.session, lease.token))
                answers.append(done is not None)
            return answers

        return self._file.write("renew", write)

    def release(self, lease: model.Lease) -> None:
        """Give a lease back."""

        def write(cursor: Cursor) -> None:
            cursor.execute(
                "update sessions set holder = '', until = 0, span = 0, boot = '' where id = ? and token = ?",
                (lease.session, lease.token),
            )

        self._file.write("release", write)

    # -- maintenance --------------------------------------------------------------------------------

    def rewrite(self, change: model.Rewrite) -> bool:
        """Do maintenance in one transaction; False when it no longer applies."""
        done = self._file.write("rewrite", lambda cursor: self._rewrite(cursor, change))
        if done and (change.thin or change.drop or change.discard):
            self._file.shrink()
        return done

    def _rewrite(self, cursor: Cursor, change: model.Rewrite) -> bool:
        found = cursor.execute("select no, reason from sessions where id = ?", (change.session,)).fetchone()
        if not found or (found[1] and change.token is None):
            return False
        no = whole(found[0])
        token, lease = change.token, _lease(cursor, no)
        if token is not None and (refused := rules.fenced(change.session, token, lease, self._judge)):
            raise refused
        if not all(_holds(cursor, no, span, full=True) for span in change.thin):
            return False
        if not all(_holds(cursor, no, span) for span in change.needs):
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
            _discard(cursor, no, _dangling(cursor, no, change.drop))
        return True

    def drop(self, session: str, token: int | None, reason: str, *, keep_waiting: bool = False) -> None:
        """Delete a session and leave a tombstone; the file gets smaller by it."""

        def write(cursor: Cursor) -> None:
            no = _known_number(cursor, session)
            if no is None:
                raise rules.no_session(session)
            if refused := rules.fenced(session, token, _lease(cursor, no), self._judge):
                raise refused
            faults.point("sqlite.drop.before_insert")
            _delete_commits(cursor, "no = ?", (no,))
            for table in ("branches", "artifacts", "inbox"):
                kept = " and taken is not null" if keep_waiting and table == "inbox" else ""
                cursor.execute(f"delete from {table} where no = ?{kept}", (no,))
            cursor.execute(
                "update sessions set owner = '', status = ?, updated = ?, expires = null, holder = '', until = 0,"
                " span = 0, boot = '', reason = ?, lines = 0, agent = '', error = '', label = '',"
                " line = null, step = null, head = null where no = ?",
                (rules.status_of_gone(reason), self._clock.wall(), reason or "deleted", no),
            )
            faults.point("sqlite.drop.after_insert")

        self._file.write("drop", write)
        self._file.shrink()

    def dump(self, session: str) -> model.Dump:
        """A whole session as stored, at one instant."""
        with self._file.read() as cursor:
            row = self._look(cursor, session)
            if row is None:
                raise rules.no_session(session)
            if row.reason:
                raise rules.gone(session, row.reason)
            no = _known_number(cursor, session)
            rows: list[tuple[model.Row, dict[str, Any]]] = []
            columns = ", ".join(_SHOWN)
            for values in cursor.execute(f"{_ROW_COLUMNS}, {columns} from commits where no = ? order by seq", (no,)):
                shown = {name: read(value) for (name, read), value in zip(_SHOWN.items(), values[6:], strict=True)}
                rows.append((_rows([values[:6]])[0], shown))
            entries = _entries(cursor, session, "true order by seq", ())
            return model.Dump(row._replace(now=0), tuple(rows), tuple(_all_artifacts(cursor, session)), tuple(entries))

    def restore(self, dump: model.Dump) -> None:
        """Put a dumped session into this store."""

        def write(cursor: Cursor) -> None:
            row = rules.restored_row(dump)
            no = self._number(cursor, row.id)
            if value_of(cursor, "select lines from sessions where no = ?", (no,)):
                raise rules.has_checkpoints(row.id, next(iter(_heads(cursor, no)), None))
            for stored, projections in dump.rows:
                cursor.execute(_INSERT, _restored(no, stored, projections))
            cursor.executemany(_BRANCH, [(no, *head) for head in row.heads if head.branch != model.MAIN])
            cursor.executemany(_MAIN, [(*head[1:], no) for head in row.heads if head.branch == model.MAIN])
            _put(cursor, no, dump.artifacts)
            # What was posted here meanwhile stays; what the dump has taken counts as taken.
            known = {
                text(key): (whole(seq), raw(digest))
                for key, seq, digest in cursor.execute("select key, seq, digest from inbox where no = ?", (no,))
            }
            newest = whole(value_of(cursor, "select posts from sessions where no = ?", (no,)))
            entries = rules.restored_inbox(dump, known, newest)
            cursor.executemany(
                "insert into inbox (no, seq, key, kind, at, digest, body, taken) values (?, ?, ?, ?, ?, ?, ?, ?)"
                " on conflict (no, key) do update set taken = excluded.taken, body = x''"
                " where excluded.taken is not null",
                [(no, e.seq, e.key, e.kind, e.at, e.digest, e.body, e.taken or None) for e in entries],
            )
            # Tokens of the other store may still be about: ours go on behind them.
            cursor.execute("update meta set value = max(value, ?) where key = 'token'", (row.lease.token,))
            cursor.execute(
                "update sessions set owner = ?, status = ?, created = ?, updated = ?, expires = ?, reason = ?,"
                " lines = ?, agent = ?, error = ?, label = ?, posts = max(posts, ?),"
                " token = iif(holder = '', max(token, ?), token) where no = ?",
                (
                    row.owner, row.status, row.created, row.updated, row.expires, row.reason, row.lines,
                    row.agent, row.error, row.label, max((e.seq for e in entries), default=0), row.lease.token, no,
                ),
            )  # fmt: skip

        self._file.write("restore", write)

    def renew_epoch(self) -> None:
        """Give the store a new epoch: cursors expire and every lease ends."""
        epoch = os.urandom(8).hex()

        def write(cursor: Cursor) -> None:
            cursor.execute("update meta set value = ? where key = 'epoch'", (epoch,))
            cursor.execute("update meta set value = value + ? where key = 'token'", (TOKENS_PER_EPOCH,))
            cursor.execute("update sessions set holder = '', until = 0, span = 0, boot = '' where holder <> ''")

        self._file.write("renew_epoch", write)
        self.epoch = epoch

    def usage(self) -> model.Usage:
        """Sizes; bytes are those of the main file and its log."""
        sql = "select (select count(*) from sessions where reason = ''), (select count(*) from commits)"
        with self._file.read() as cursor:
            ((sessions, checkpoints),) = cursor.execute(sql).fetchall()
        return model.Usage(sessions, checkpoints, self._file.size())

    def close(self) -> None:
        """Close all connections."""
        self._file.close()


def _lease(cursor: Cursor, no: int) -> StoredLease:
    found = cursor.execute("select holder, token, until, span, boot from sessions where no = ?", (no,)).fetchone()
    if found is None:
        raise Damaged("a session")
    return lease_of(*found)


def _heads(cursor: Cursor, no: int) -> tuple[model.Head, ...]:
    """The heads of all branches, by name."""
    main = "select ?, line, step, head from sessions where no = ? and head is not null"
    others = "select name, line, step, head from branches where no = ?"
    found = cursor.execute(f"{main} union all {others} order by 1", (model.MAIN, no, no))
    return tuple(model.Head(text(name), whole(line), whole(step), raw(head)) for name, line, step, head in found)


def _known_number(cursor: Cursor, session: str) -> int | None:
    """The session's number; None when it was never heard of."""
    no = value_of(cursor, "select no from sessions where id = ?", (session,))
    return None if no is None else whole(no)


def _present(cursor: Cursor, session: str) -> int:
    found = cursor.execute("select no, reason, lines from sessions where id = ?", (session,)).fetchone()
    if not found:
        raise rules.no_session(session)
    no, reason, lines = whole(found[0]), text(found[1]), whole(found[2])
    if reason:
        raise rules.gone(session, reason)
    if not lines:
        raise rules.no_session(session)
    return no


def _last(cursor: Cursor, no: int, session: str, line: int) -> int:
    last = value_of(cursor, "select max(step) from commits where no = ? and line = ?", (no, line))
    if last is None:
        anchor = "select max(hi) from artifacts where no = ? and kind = ? and line = ?"
        last = value_of(cursor, anchor, (no, model.ANCHOR, line))
    if last is None:
        raise rules.no_line(session, line)
    return whole(last)


def _steps(cursor: Cursor, no: int, line: int, lo: int, hi: int) -> list[model.Row]:
    between = f"{_ROW} where no = ? and line = ? and step between ? and ? order by step"
    return _rows(cursor.execute(between, (no, line, lo, hi)))


def _rows(found: Iterable[Any]) -> list[model.Row]:
    rows: list[model.Row] = []
    for values in found:
        row = model.Row(*values)
        if (
            type(row.line) is int and row.line >= 0
            and type(row.step) is int and row.step >= 0
            and type(row.id) is bytes and type(row.digest) is bytes
            and type(row.envelope) is bytes and type(row.payload) is bytes
        ):  # fmt: skip
            rows.append(row)
        else:
            raise Damaged("a row of commits")
    return rows


def _all_artifacts(cursor: Cursor, session: str) -> list[model.Artifact]:
    """All artifacts of a session."""
    no = _known_number(cursor, session)
    return [] if no is None else _artifacts(cursor, no, "true order by kind, line, lo", ())


def _artifacts(cursor: Cursor, no: int, where: str, values: tuple[Any, ...]) -> list[model.Artifact]:
    found = cursor.execute(f"{_ARTIFACT} where no = ? and {where}", (no, *values))
    return [
        model.Artifact(
            text(kind), whole(line), whole(lo), whole(hi), raw(body),
            spans(refs), names(blobs),
        )
        for kind, line, lo, hi, body, refs, blobs in found
    ]  # fmt: skip


def _packs(cursor: Cursor, no: int, spans: Iterable[model.Span]) -> tuple[model.Artifact, ...]:
    """Every pack that overlaps one of the spans, once, in order."""
    packs: dict[tuple[int, int], model.Artifact] = {}
    for span in spans:
        overlap = "kind = ? and line = ? and lo <= ? and hi >= ?"
        for pack in _artifacts(cursor, no, overlap, (model.PACK, span.line, span.hi, span.lo)):
            packs[pack.line, pack.lo] = pack
    return tuple(packs[key] for key in sorted(packs))


def _dangling(cursor: Cursor, no: int, gone: Sequence[model.Span]) -> list[tuple[str, int, int]]:
    """The snapshots at a row of the spans or with a ref to one, by key."""
    found = cursor.execute("select line, lo, refs from artifacts where no = ? and kind = ?", (no, model.SNAPSHOT))
    return [
        (model.SNAPSHOT, whole(line), whole(lo))
        for line, lo, refs in found.fetchall()
        if any(rules.overlap(one, span) for one in (model.Span(line, lo, lo), *spans(refs)) for span in gone)
    ]


def _entries(cursor: Cursor, session: str, where: str, values: tuple[Any, ...]) -> list[model.InboxEntry]:
    no = _known_number(cursor, session)
    columns = "select key, kind, at, digest, body, seq, taken from inbox"
    found = cursor.execute(f"{columns} where no = ? and {where}", (no, *values))
    return [
        model.InboxEntry(
            session, text(key), text(kind), whole(at), raw(digest), raw(body),
            whole(seq), b"" if taken is None else raw(taken),
        )
        for key, kind, at, digest, body, seq, taken in found
    ]  # fmt: skip


def _meta(cursor: Cursor, key: str) -> Any:
    """One of the store's own values."""
    value = value_of(cursor, "select value from meta where key = ?", (key,))
    if value is None:
        raise Damaged(f"the store's {key}")
    return value


def _thin_spans(rows: list[model.Row]) -> list[model.Span]:
    """The thin rows among these, as few spans of neighbours."""
    return rules.spans_of([(row.line, row.step) for row in rows if not (row.envelope or row.payload)])


def _discard(cursor: Cursor, no: int, keys: Sequence[tuple[str, int, int]]) -> None:
    sql = "delete from artifacts where no = ? and kind = ? and line = ? and lo = ?"
    cursor.executemany(sql, [(no, *key) for key in keys])


def _put(cursor: Cursor, no: int, artifacts: Sequence[model.Artifact]) -> None:
    cursor.executemany(
        "insert or replace into artifacts (no, kind, line, lo, hi, body, refs, blobs) values (?, ?, ?, ?, ?, ?, ?, ?)",
        [(no, *artifact[:5], _json(artifact.refs), _json(artifact.blobs)) for artifact in artifacts],
    )


def _landed(cursor: Cursor, no: int | None, item: model.Append) -> model.Landed | PerdureError | None:
    """The answer to a commit that is there already; None when it is not."""
    sql = "select digest from commits where no = ? and line = ? and step = ? and id = ?"
    digest = value_of(cursor, sql, (no, item.line, item.step, item.id))
    if digest is None:
        return None
    return model.Landed(item.id, again=True) if digest == item.digest else rules.other_digest(item)


def _not_waiting(cursor: Cursor, no: int | None, keys: Sequence[str]) -> str | None:
    """The first of the keys that cannot be taken."""
    seen: set[str] = set()
    for key in keys:
        sql = "select 1 from inbox where no = ? and key = ? and taken is null"
        if key in seen or not cursor.execute(sql, (no, key)).fetchone():
            return key
        seen.add(key)
    return None


def _thin(cursor: Cursor, no: int, span: model.Span) -> None:
    """Empty the rows of a span. They are put in anew: SQLite never joins pages that an update left half empty."""
    kept = "seq, no, line, step, id, digest, kind, branch, status, at, starts, tool, error, takes, blobs"
    where = "no = ? and line = ? and step between ? and ?"
    rows = cursor.execute(f"select {kept} from commits where {where}", (no, *span)).fetchall()
    cursor.execute(f"delete from commits where {where}", (no, *span))
    cursor.executemany(f"insert into commits ({kept}, envelope, payload) values (?{', ?' * 14}, x'', x'')", rows)


def _holds(cursor: Cursor, no: int, span: model.Span, *, full: bool = False) -> bool:
    """Whether all rows of a span are there; with ``full``, and none of them is thin."""
    sql = "select count(*) from commits where no = ? and line = ? and step between ? and ?"
    thick = " and (length(envelope) > 0 or length(payload) > 0)" if full else ""
    return value_of(cursor, sql + thick, (no, *span)) == span.hi - span.lo + 1


def _delete_commits(cursor: Cursor, where: str, values: tuple[int, ...]) -> None:
    """Delete rows and remember the newest number among them."""
    newest = value_of(cursor, f"select max(seq) from commits where {where}", values)
    if newest is not None:
        cursor.execute(f"delete from commits where {where}", values)
        cursor.execute("update meta set value = max(value, ?) where key = 'trimmed'", (newest,))


def _head(item: model.Append, place: Sequence[Any]) -> model.Head | None:
    line, step, head = place
    return None if head is None else model.Head(item.branch, line, step, head)


def _restored(no: int, row: model.Row, projections: dict[str, Any]) -> tuple[Any, ...]:
    try:
        p = projections
        return (
            no, row.line, row.step, row.id, row.digest, p["kind"], p["branch"], p["status"], p["at"],
            int(p["starts"]), p["tool"], p["error"], _json(p["takes"]), _json(p["blobs"]),
            row.envelope, row.payload,
        )  # fmt: skip
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"the dump is incomplete: a row has no proper {error}") from error


def _json(values: Sequence[Any]) -> str:
    return json.dumps(values) if values else ""
