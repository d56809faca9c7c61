"""What may be written to a session, decided on its index, and the records that say it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from perdure.errors import InvalidInput, PerdureError
from perdure.model import Append, Head, Landed, Outrun, Span
from perdure.stores import rules
from perdure.stores.file.records import Commit, Posted, Record, Rewritten, State, checked
from perdure.stores.rules import StoredLease, restored_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perdure.model import Dump, InboxEntry, Rewrite
    from perdure.stores.file.log import Packed
    from perdure.stores.file.session_folder import SessionFile
    from perdure.stores.rules import LeaseJudge


SLIDE = 5
"""A commit prolongs the lease when more than 1/2**SLIDE of its span has passed: fast writers skip most."""


class Draft:
    """The commits of a batch that will be written to one session, and what they mean for those after them."""

    def __init__(self, file: SessionFile, judge: LeaseJudge, wall: int) -> None:
        self._index = file.log.index
        self._judge = judge
        self._wall = wall
        self.lease = file.lease()
        self.packed: list[Packed] = []
        self._heads: dict[str, Head] = {}
        self._rows: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self._taken: set[str] = set()
        self._lines = self._index.next_line
        self.fenced = False
        """Whether the holder of the lease wrote any of them."""

    def add(self, item: Append) -> Landed | PerdureError:
        """The answer to one commit, on condition that what is accepted is then written."""
        place = (item.line, item.step)
        there = self._rows.get(place) or self._index.find(*place)
        if there is not None and there[0] == item.id:
            return Landed(item.id, again=True) if there[1] == item.digest else rules.other_digest(item)
        if refused := rules.fenced(item.session, item.token, self.lease, self._judge):
            return refused
        head = self._heads.get(item.branch) or self._index.heads.get(item.branch)
        if (head.id if head else None) != item.expect:
            return rules.moved(item, head)
        if there is not None or (item.starts and item.line < self._lines):
            return rules.taken_place(item, head)
        if item.takes and (missing := self._not_waiting(item.takes)) is not None:
            return rules.not_waiting(item, missing, head)
        try:
            record = self._record(item)
            self.packed.append((record, checked(record)))
        except InvalidInput as error:
            return error
        self._heads[item.branch] = Head(item.branch, item.line, item.step, item.id)
        self._rows[place] = (item.id, item.digest)
        self._taken.update(item.takes)
        self._lines = max(self._lines, item.line + 1)
        self.fenced = self.fenced or item.token is not None
        return Landed(item.id)

    def _record(self, item: Append) -> Commit:
        return Commit(
            self._index.ordinal + len(self.packed) + 1,
            item.branch,
            item.line,
            item.step,
            item.id,
            item.digest,
            item.starts,
            item.owner,
            item.status,
            item.kind,
            item.at,
            self._wall,
            item.ttl,
            tuple(item.takes),
            tuple(item.blobs),
            item.tool,
            item.error,
            item.envelope,
            item.payload,
            item.agent,
            item.label,
            item.token or 0,
        )

    def _not_waiting(self, keys: Sequence[str]) -> str | None:
        """The first of the keys that cannot be taken."""
        seen: set[str] = set()
        for key in keys:
            if key in seen or key in self._taken or key not in self._index.waiting:
                return key
            seen.add(key)
        return None


def append(
    file: SessionFile, session: str, items: Sequence[Append], judge: LeaseJudge, wall: int
) -> list[Landed | PerdureError]:
    """Write the commits of one session that may be written; one write, one sync."""
    draft = Draft(file, judge, wall)
    answers = [draft.add(item) for item in items]
    if draft.packed:
        file.append(session, draft.packed, "append")
        if draft.fenced:
            slide(file, draft.lease, judge)
        tidy(file)
    elif file.log.end:
        # Whoever wrote what has "landed already" may have been killed before it was durable.
        file.log.settle()
    return answers


def slide(file: SessionFile, lease: StoredLease, judge: LeaseJudge) -> None:
    """Prolong the lease of the writer of a commit, unless it was prolonged a moment ago."""
    new = judge.grant(lease.holder, lease.token, lease.span)
    if new.until - lease.until > lease.span >> SLIDE or new.boot != lease.boot:
        # What landed has landed: a lease that cannot be prolonged only ends sooner.
        with suppress(OSError):
            file.set_lease(new)


def post(file: SessionFile, session: str, entries: Sequence[InboxEntry]) -> list[bool | Outrun | PerdureError]:
    """Write the inbox entries of one session that are new."""
    answers: list[bool | Outrun | PerdureError] = []
    packed: list[Packed] = []
    digests: dict[str, bytes] = {}
    for entry in entries:
        old = file.index.posts.get(entry.key)
        known = digests.get(entry.key) if old is None else old.digest
        if known is not None:
            answers.append(False if known == entry.digest else rules.other_post(session, entry.key))
            continue
        number = file.index.posted + len(packed) + 1
        if entry.seq not in (0, number):
            answers.append(Outrun(number))
            continue
        record = Posted(number, entry.key, entry.kind, entry.at, entry.digest, entry.body)
        try:
            packed.append((record, checked(record)))
        except InvalidInput as error:
            answers.append(error)
            continue
        digests[entry.key] = entry.digest
        answers.append(True)
    if packed:
        file.append(session, packed, "post")
    elif file.log.end:
        file.log.settle()
    return answers


def rewrite(file: SessionFile, change: Rewrite, judge: LeaseJudge) -> bool:
    """Store a session otherwise; False (and nothing is done) when it no longer applies."""
    if change.token is not None:
        if refused := rules.fenced(change.session, change.token, file.lease(), judge):
            raise refused
    elif file.index.reason:
        return False
    if not all(_all_full(file, span) for span in change.thin):
        return False
    if any(len(file.index.rows(span)) != span.hi - span.lo + 1 for span in change.needs):
        return False
    record = Rewritten(tuple(change.put), tuple(change.thin), tuple(change.drop), tuple(change.discard))
    if record != Rewritten():
        file.append(change.session, [(record, checked(record))], "rewrite")
        tidy(file)
    return True


def _all_full(file: SessionFile, span: Span) -> bool:
    rows = file.index.rows(span)
    return len(rows) == span.hi - span.lo + 1 and not any(row.thin for row in rows)


def tidy(file: SessionFile) -> None:
    """Rewrite the log when enough of it is dead: the cost stays in proportion to what was written."""
    if file.index.wasteful(file.log.end):
        # Nothing depends on it, and the next one who writes tries again.
        with suppress(OSError):
            file.compact()


def drop(file: SessionFile, session: str, reason: str, wall: int, keep_waiting: bool) -> None:
    """Leave a tombstone in the place of a session, and what waits in its inbox if that is to be kept."""
    index, token = file.index, max(file.index.token, file.lease().token)
    gone = State(
        "",
        rules.status_of_gone(reason),
        index.created,
        wall,
        None,
        (),
        reason or "deleted",
        token,
        0,
        index.ordinal,
        max([index.trimmed, *index.commits]),
        index.posted,
    )
    waiting = [post for post in file.posts() if not post.taken] if keep_waiting else []
    file.replace(session, [*waiting, gone], "drop")
    # Gone it is: a lease on a tombstone that cannot be ended merely runs out.
    with suppress(OSError):
        file.set_lease(StoredLease(token=token))


def restore(file: SessionFile, dump: Dump) -> None:
    """Write a dumped session; what was posted here meanwhile stays."""
    row, index = restored_row(dump), file.index
    if index.next_line:
        raise rules.has_checkpoints(row.id, next(iter(index.heads.values()), None))
    lease = file.lease()
    token = lease.token if lease.holder else max(lease.token, row.lease.token)
    posts = _merged(list(file.posts()) if file.log.end else [], index.posted, dump)
    ended = State(
        row.owner,
        row.status,
        row.created,
        row.updated,
        row.expires,
        row.heads,
        row.reason,
        token,
        row.lines,
        index.ordinal + len(dump.rows),
        index.trimmed,
        max([index.posted, *(post.seq for post in posts)]),
        row.agent,
        row.error,
        row.label,
    )
    try:
        commits = list(_restored(dump, index.ordinal))
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"the dump is incomplete: a row has no proper {error}") from error
    puts = [Rewritten(put=(artifact,)) for artifact in dump.artifacts]
    records: list[Record] = [*posts, *commits, *puts, ended]
    for record in records:
        checked(record)
    file.replace(row.id, records, "restore")


def _merged(posts: list[Posted], newest: int, dump: Dump) -> list[Posted]:
    """Entries that are here and entries of a dump; one that was taken there counts as taken here."""
    merged = {post.key: post for post in posts}
    for entry in rules.restored_inbox(dump, {post.key: (post.seq, post.digest) for post in posts}, newest):
        if (known := entry.key in merged) and not entry.taken:
            continue
        body = b"" if known else entry.body
        merged[entry.key] = Posted(entry.seq, entry.key, entry.kind, entry.at, entry.digest, body, entry.taken)
    return sorted(merged.values(), key=lambda post: post.seq)


def _restored(dump: Dump, ordinal: int) -> Iterator[Commit]:
    for number, (row, said) in enumerate(dump.rows, ordinal + 1):
        shown: dict[str, Any] = {name: said[name] for name in rules.SHOWN}
        shown.update(takes=tuple(said["takes"]), blobs=tuple(said["blobs"]))
        yield Commit(number, wall=said["at"], owner=dump.row.owner, ttl=None, **row._asdict(), **shown)
