"""What keeps a database in order: packing, pruning, sweeping, migrating, collecting, verifying, backing up.

Flows only: the work itself is done in the modules beside this one, which are imported when first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import InvalidInput, Misuse, PerdureError
from perdure.history.expiry import expired
from perdure.history.hydrate import find, look
from perdure.history.reader import history
from perdure.model import TAG_PREFIX, SessionRow, Status, Usage
from perdure.protocols import Logged
from perdure.system.flow import Do, Flow, check_open
from perdure.system.lease_holders import new_holder
from perdure.system.names import check_session
from perdure.upkeep.snapshots import PACK_MIN, compact

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from perdure.kernel import Kernel
    from perdure.stores.listing import Progress
    from perdure.system.flow import HandleGuard
    from perdure.upkeep.background import Caretaker
    from perdure.upkeep.blob_gc import Collected
    from perdure.upkeep.expired_sessions import Aside
    from perdure.upkeep.lost_effects import AcceptedLoss
    from perdure.upkeep.retention import Pruned, Swept
    from perdure.upkeep.transfer import Transferred
    from perdure.upkeep.verify import Report
    from perdure.upkeep.witness import Effect, Witness

    Path = str | os.PathLike[str]


class Migrated(NamedTuple):
    """What a bulk migration did, branch by branch."""

    migrated: int
    current: int
    """Branches that had this program's schema already."""
    skipped: tuple[tuple[str, str], ...]
    """Session and why it was left alone: it is closed, or its time has run out."""
    failed: tuple[tuple[str, str], ...]
    """Session and what went wrong; running the migration again tries these again."""


class Upkeep:
    """What a database does for its order; nothing of it changes what a session says, but for a loss accepted."""

    def __init__(
        self, kernel: Kernel, guard: HandleGuard, caretaker: Caretaker, open_session: Callable[..., Flow[Any]]
    ) -> None:
        self.kernel = kernel
        self.guard = guard
        self._caretaker = caretaker
        self._open = open_session

    def compact(self, session: str) -> Flow[int]:
        """Pack the rows of a session now; returns how many were packed."""
        self.guard.check()
        row: SessionRow = yield Do(look, (self.kernel, check_session(session)))
        packed = 0
        for line in range(row.lines):
            packed += yield Do(compact, (self.kernel, session, line, PACK_MIN))
        return packed

    def prune(
        self, session: str, *, keep_last: int | None = None, keep_every: int | None = None, keep_tagged: bool = True
    ) -> Flow[Pruned]:
        """Drop old checkpoints of a session and free their space; takes the lease, or raises ``Busy``.

        Kept are the last ``keep_last`` of each branch, every ``keep_every``-th step, tagged ones, and whatever a
        branch, an unfinished run or the reuse of an effect needs. They read exactly as before; a dropped one is
        ``Gone``, with the nearest ones that were kept.
        """
        from perdure.upkeep.retention import Keep, prune

        self.guard.check()
        keep = Keep(keep_last, keep_every, keep_tagged)
        keep.check()
        # A lease makes a row for a session that never was: look first.
        yield Do(look, (self.kernel, check_session(session)))
        claim = self._caretaker.claim(session)
        try:
            lease = yield from claim.acquire()
            return (yield Do(prune, (self.kernel, session, lease.token, keep)))
        finally:
            yield from claim.give_up()

    def sweep(self, progress: Progress | None = None) -> Flow[Swept]:
        """End every session whose TTL has run out, except those that are being written.

        For a while they can be brought back with :meth:`revive`; those that have expired long enough ago are deleted.
        """
        from perdure.upkeep.retention import sweep

        self.guard.check()
        yield Do(self._caretaker.before_write)
        return (yield Do(sweep, (self.kernel, new_holder(), self._caretaker.lease_ttl, progress)))

    def set_aside(self, session: str | None = None) -> Flow[list[Aside]]:
        """What has expired, of one session or of all, and can be brought back with :meth:`revive`.

        Of each session the life that was set aside last comes last.
        """
        from perdure.upkeep.expired_sessions import set_aside

        self.guard.check()
        return (yield Do(set_aside, (self.kernel, session)))

    def revive(self, session: str, *, life: int | None = None) -> Flow[Aside]:
        """Bring a session back that has expired, as it was; it lives for its TTL from now on.

        If it has begun anew since, that life is set aside in its turn, and ``made_way`` in the answer names it:
        reviving once more brings that one back. Of several lives the one that was set aside last comes back, or the
        ``life`` that is named; :meth:`set_aside` lists them. Inputs that another life took stay with that life; those
        that wait are for the one that is brought back.
        """
        from perdure.upkeep.expired_sessions import bring_back, choose_life

        self.guard.check()
        # A lease makes a row for a session that never was: look first.
        yield Do(find, (self.kernel, check_session(session)))
        yield Do(choose_life, (self.kernel, check_session(session), life))
        claim = self._caretaker.claim(session)
        try:
            lease = yield from claim.acquire()
            return (yield Do(bring_back, (self.kernel, session, lease.token, life)))
        finally:
            yield from claim.give_up()

    def migrate(self, progress: Progress | None = None) -> Flow[Migrated]:
        """Bring every session to this program's schema now, instead of when it is next opened.

        May be interrupted and run again: what is migrated already is passed over. The originals stay in the history.
        """
        self.guard.check()
        counts = {"migrated": 0, "current": 0}
        skipped: list[tuple[str, str]] = []
        failed: list[tuple[str, str]] = []
        after: str | None = None
        done = 0
        while rows := (yield Do(self._page, (after,))):
            after = rows[-1].id
            for row in rows:
                for head in row.heads:
                    if head.branch.startswith(TAG_PREFIX):
                        continue
                    try:
                        outcome: str = yield from self._migrate_branch(row, head.branch)
                    except PerdureError as e:
                        failed.append((row.id, str(e)))
                        continue
                    if outcome in counts:
                        counts[outcome] += 1
                    else:
                        skipped.append((row.id, outcome))
                done += 1
                if progress is not None:
                    progress(row.id, done)
        return Migrated(counts["migrated"], counts["current"], tuple(skipped), tuple(failed))

    def _page(self, after: str | None) -> list[SessionRow]:
        return self.kernel.store.sessions(after=after, limit=100)

    def _migrate_branch(self, row: SessionRow, branch: str) -> Flow[str]:
        points = yield Do(history, (self.kernel, row.id, branch, 1, None))
        env = points[0].envelope
        if env.schema == self.kernel.schema:
            return "current"
        if env.status == Status.CLOSED:
            return "it is closed"
        if row.over and (yield Do(expired, (self.kernel, row))):
            return "its time has run out"
        s: Any = yield from self._open(row.id, branch=branch)
        yield from s.release_flow()
        return "migrated"

    def collect(self, grace: float = 3600.0) -> Flow[Collected]:
        """Delete blobs that nothing refers to and that nobody has put for ``grace`` seconds."""
        from perdure.upkeep.blob_gc import collect

        self.guard.check()
        # What only lost checkpoints refer to is needed again when they are put back.
        yield Do(self._caretaker.before_write)
        return (yield Do(collect, (self.kernel, grace)))

    def verify(
        self,
        session: str | None = None,
        witness: Path | None = None,
        progress: Progress | None = None,
        *,
        copied: bool = False,
    ) -> Flow[Report]:
        """Read everything (or one session), and report whatever is not as it was written; see the report's ``ok``.

        With ``copied`` the witness is of the store that this one was copied from.
        """
        from perdure.upkeep.verify import verify
        from perdure.upkeep.witness import read_witness

        self.guard.check()
        seen = None if witness is None else (yield Do(read_witness, (self.kernel, witness)))
        id = None if session is None else check_session(session)
        return (yield Do(verify, (self.kernel, id, seen, progress, copied)))

    def accept_damage(self, session: str) -> Flow[str | None]:
        """Set the damaged last record of a session's log aside (file stores), and go on from the one before.

        The file that holds it now; None when nothing was damaged. What it held is lost: restore a backup instead if
        there is one.
        """
        self.guard.check()
        store = self.kernel.store
        if not isinstance(store, Logged):
            raise InvalidInput(f"{store.url}: only a file store can set a damaged record aside; restore a backup")
        return (yield Do(store.accept_loss, (check_session(session),)))

    def witness(self, path: Path) -> Flow[int]:
        """Write down the newest checkpoint of every branch in a file outside the store; returns how many.

        ``BehindWitness`` when the file knows of something that the store has lost: see :meth:`accept_loss`.
        """
        from perdure.upkeep.witness import write_witness

        self.guard.check()
        return (yield Do(write_witness, (self.kernel, path)))

    def accept_loss(self, witness: Path) -> Flow[AcceptedLoss]:
        """Accept that the store lacks what this witness saw: after a restored backup, or a promoted replica.

        Effects that the witness saw since, and the store knows nothing of, are put in doubt in their sessions; the
        store gets a new epoch, and the witness begins anew with what is there. May be interrupted and run again.
        """
        from perdure.upkeep.lost_effects import AcceptedLoss, lost_effects, owner_of, put_in_doubt
        from perdure.upkeep.witness import read_witness, write_witness

        self.guard.check()
        if self._caretaker.witnessed:
            raise Misuse("a loss is accepted by somebody who is not witnessed: open the database without witness=")
        known: Witness = yield Do(read_witness, (self.kernel, witness))
        found = yield Do(lambda: [*known.compare_file(self.kernel.store.id), *known.find_lost()])
        lost: dict[tuple[str, str], list[Effect]] = yield Do(lost_effects, (self.kernel, known))
        for (session, branch), effects in lost.items():
            owner = yield Do(owner_of, (self.kernel, session, effects))
            s: Any = yield from self._open(session, branch=branch, reopen=True, owner=owner)
            try:
                yield from put_in_doubt(s, effects)
            finally:
                yield from s.release_flow()
        if found:
            yield Do(self.kernel.store.renew_epoch)
        branches = yield Do(lambda: write_witness(self.kernel, witness, accept_loss=True))
        doubts = tuple((e.session, e.call.id, e.call.tool) for effects in lost.values() for e in effects)
        return AcceptedLoss(tuple(found), doubts, branches)

    def backup(self, path: Path, progress: Progress | None = None) -> Flow[Transferred]:
        """Write everything, blobs included, into one file while the database is in use."""
        from perdure.upkeep.backup import backup

        self.guard.check()
        return (yield Do(backup, (self.kernel, path, progress)))

    def restore(
        self, path: Path, progress: Progress | None = None, *, witness: Path | None = None
    ) -> Flow[Transferred]:
        """Bring everything of a backup into this store; a damaged file is refused before anything is written.

        With a ``witness`` of the store that the backup is of, effects that it saw since the backup was made are put in
        doubt (the answer's ``in_doubt``), and the witness begins anew with what is there: see :meth:`accept_loss`.
        """
        from perdure.upkeep.backup import restore
        from perdure.upkeep.witness import read_witness

        self.guard.check()
        if witness is not None:
            # Before anything is written: without it nothing could be put in doubt.
            yield Do(read_witness, (self.kernel, witness))
        yield Do(self._caretaker.before_write)
        done: Transferred = yield Do(restore, (self.kernel, path, progress))
        if witness is not None:
            accepted = yield from self.accept_loss(witness)
            done.in_doubt = list(accepted.in_doubt)
        return done

    def export_session(self, session: str, path: Path, progress: Progress | None = None) -> Flow[Transferred]:
        """Write one session into a file: its branches and checkpoints, its inbox and its blobs, sealed as they are."""
        from perdure.upkeep.backup import backup

        self.guard.check()
        yield Do(look, (self.kernel, check_session(session)))
        return (yield Do(lambda: backup(self.kernel, path, progress, only=(session,))))

    def import_sessions(self, path: Path, progress: Progress | None = None) -> Flow[Transferred]:
        """Bring the sessions of a file into this store. What is here, its leases and its cursors stay as they are."""
        from perdure.upkeep.backup import restore

        self.guard.check()
        yield Do(self._caretaker.before_write)
        return (yield Do(lambda: restore(self.kernel, path, progress, whole=False)))

    def usage(self) -> Flow[Usage]:
        """How many sessions and checkpoints the store holds, and how many bytes."""
        self.guard.check()
        return (yield Do(self.kernel.store.usage))

    def copy_to(
        self,
        other: Any,
        *,
        sessions: Iterable[str] | None = None,
        owner: str | None = None,
        verify: bool = True,
        dry_run: bool = False,
        revive: bool = False,
        progress: Progress | None = None,
    ) -> Flow[Transferred]:
        """Copy sessions into another database, digests unchanged: all, those named, or those of an owner.

        Each is checked before it is written and read back afterwards (``verify``). May be interrupted and run again:
        what is there already is passed over, and what has gone on since is brought up to date. A session that has
        ended there stays so, unless ``revive`` is given. What fails for one session is in the answer's ``failed``.
        """
        from perdure.upkeep.copy import Options, copy

        self.guard.check()
        check_open(other, "copy_to")
        other.guard.check()
        if not dry_run:
            yield Do(other.caretaker.before_write)
        named = None if sessions is None else [check_session(id) for id in sessions]
        how = Options(verify, dry_run, revive)
        return (yield Do(copy, (self.kernel, other.kernel, new_holder(), other.lease_ttl, named, owner, how, progress)))
