"""A store that tells the journal what it is asked to make durable, and what it has acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.model import Landed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.errors import PerdureError
    from perdure.model import Append, Dump, InboxEntry, Lease, Outrun
    from perdure.protocols import Store
    from tests.campaigns.crash.journal import Journal


class Watched:
    """Passes everything on to a store; commits, posts, tokens and removals are noted before and after."""

    def __init__(self, store: Store, journal: Journal) -> None:
        self._store = store
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, batch: Sequence[Append]) -> list[Landed | PerdureError]:
        """Commits, each by its id and digest."""
        for item in batch:
            self._journal.note(
                "try", s=item.session, b=item.branch, l=item.line, n=item.step, id=item.id.hex(),
                d=item.digest.hex(), takes=list(item.takes), k=item.kind,
            )  # fmt: skip
        answers = self._store.append(batch)
        for answer in answers:
            if isinstance(answer, Landed):
                self._journal.note("ack", id=answer.id.hex())
        return answers

    def post(self, entries: Sequence[InboxEntry]) -> list[bool | Outrun | PerdureError]:
        """Inbox entries, each by its key; one that was there already is acknowledged as well."""
        for entry in entries:
            self._journal.note("post", s=entry.session, key=entry.key)
        answers = self._store.post(entries)
        for entry, answer in zip(entries, answers, strict=True):
            if isinstance(answer, bool):
                self._journal.note("posted", s=entry.session, key=entry.key)
        return answers

    def acquire(self, session: str, holder: str, ttl: int) -> Lease:
        """Leases: a token is above every token that was ever acknowledged."""
        before = self._journal.history.token
        self._journal.note("leasing", s=session)
        lease = self._store.acquire(session, holder, ttl)
        if lease.token <= before:
            self._journal.note("problem", kind="duplicated", what=f"token {lease.token} was given out after {before}")
        self._journal.note("token", token=lease.token)
        return lease

    def restore(self, dump: Dump) -> None:
        """What is brought back, with the checkpoint that says so."""
        self._journal.note("back", s=dump.row.id)
        new = [(row, shown) for row, shown in dump.rows if row.id.hex() not in self._journal.history.tries]
        for row, shown in new:
            self._journal.note(
                "try", s=dump.row.id, b=shown["branch"], l=row.line, n=row.step, id=row.id.hex(),
                d=row.digest.hex(), takes=list(shown["takes"]), k=shown["kind"],
            )  # fmt: skip
        self._store.restore(dump)
        for row, _ in new:
            self._journal.note("ack", id=row.id.hex())

    def drop(self, session: str, token: int | None, reason: str, *, keep_waiting: bool = False) -> None:
        """Removals."""
        self._store.drop(session, token, reason, keep_waiting=keep_waiting)
        self._journal.note("gone", s=session)
