"""``perdure verify``, ``sweep``, ``prune``, ``migrate`` and ``query``: keeping a database in order, and asking it."""

from __future__ import annotations

import datetime
import decimal
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.agent.app_loader import load_module
from perdure.cli import which_database
from perdure.cli.options import AsJson, BlobsAt, Store
from perdure.cli.output import SHOWN, Out, all_of, print_each, print_json, progress, tell
from perdure.cli.terminal_text import cut
from perdure.cli.which_database import find_url, open_existing
from perdure.errors import Busy, InvalidInput
from perdure.protocols import SetsAside
from perdure.shapes import store as shapes
from perdure.shapes.basics import Page
from perdure.stores.listing import each_session
from perdure.system.commands import quoted, typed
from perdure.system.times import timestamp
from perdure.system.urls import TIERED, shown, tiers
from perdure.system.wording import count, left_aside, sessions_stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.stores.postgres.store import PostgresStore
    from perdure.upkeep.lost_effects import AcceptedLoss
    from perdure.upkeep.verify import Report


def one_or_all(session: str | None, everything: bool) -> None:
    """Refuse a command that names neither a session nor all of them, or both."""
    if (session is None) != everything:
        raise InvalidInput("name a session, or say --all")


def verify(
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]")] = None,
    store: Store = None,
    blobs: BlobsAt = None,
    everything: Annotated[bool, typer.Option("--all", help="Every session, and every blob they refer to.")] = False,
    witness: Annotated[
        str | None,
        typer.Option(envvar="PERDURE_WITNESS", metavar="FILE", help="Compare with what this file says was there."),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update-witness", help="When all is well, write the witness anew (with --all).")
    ] = False,
    copied: Annotated[
        bool, typer.Option("--copied", help="The witness is of the store that this one was copied from.")
    ] = False,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Go on without what is lost for good: SESSION's damaged last record (file stores), or, with --all, "
            "whatever the witness saw and the store lacks.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read everything and report whatever is not as it was written.

    Changes nothing in the store, except with --accept-loss. Loss of the newest checkpoints shows only against a
    witness: keep the file on another disk, and renew it now and then with --update-witness.

    A program that was given a witness writes to no store that is behind it. After a restored backup or a promoted
    replica, --accept-loss lets it: what the witness saw is given up, effects among it are put in doubt in their
    sessions, the store gets a new epoch and the witness begins anew. A store that is damaged is not accepted; the
    damaged last record of one session's log is, by its name: its bytes are set aside.
    """
    one_or_all(session, everything)
    if (update or (accept and everything)) and (witness is None or not everything):
        raise InvalidInput(f"{'--accept-loss' if accept else '--update-witness'} needs --all and --witness FILE")
    if accept and (update or copied):
        raise InvalidInput("--accept-loss writes the witness anew itself: leave --update-witness and --copied out")
    with (
        open_existing(store, blobs) as db,
        progress("verifying", all_of(db) if everything else None, show=not as_json) as told,
    ):
        kept = db.accept_damage(session) if accept and session is not None else None
        # The first time there is nothing to compare with yet, and --update-witness makes it.
        compare = witness if witness is not None and (os.path.exists(witness) or not update) else None
        report = db.verify(session, compare, told, copied=copied)
        left = db.kernel.store.left_beside() if isinstance(db.kernel.store, SetsAside) else []
        updated = db.witness(witness) if update and report.ok and witness is not None else 0
        accepted: AcceptedLoss | None = None
        if accept and everything and not report.ok and witness is not None and report.only_lost:
            accepted = db.accept_loss(witness)
            updated = accepted.branches
    if as_json:
        print_json(shapes.verified(report, witness, updated, accepted))
    else:
        if accept and session is not None:
            said = f"the damaged record was set aside: {kept}; nothing reads it, and it may be deleted"
            Out().line(said if kept else "no damaged record to set aside")
        _print_report(report)
        if left:
            Out().line(left_aside(left), "yellow")
        if accepted is not None:
            Out().line(f"accepted: {count(len(report.findings), 'loss')}; the store has a new epoch", "bold")
            print_doubts(accepted.in_doubt)
        if updated:
            Out().line(f"the witness {witness} now knows {count(updated, 'branch')}")
    if not report.ok and accepted is None:
        raise typer.Exit(1)


def print_doubts(in_doubt: Sequence[tuple[str, str, str]]) -> None:
    """What has to be found out because the store was put back to before it."""
    print_each("in doubt", [(session, f"{tool} ({effect})") for session, effect, tool in in_doubt], "yellow")
    if in_doubt:
        Out().line(f"The witness saw these happen: find out whether they did, then {typed('resolve SESSION EFFECT')}.")


def _print_report(report: Report) -> None:
    out = Out()
    for finding in report.findings[:SHOWN]:
        out.line(cut(str(finding), 1000), "bold red")
    if len(report.findings) > SHOWN:
        out.line(f"… {len(report.findings) - SHOWN} more: --json lists them all", "dim")
    read = f"{count(report.checkpoints, 'checkpoint')}, {count(report.blobs, 'blob')}"
    looked = f"{sessions_stored(report.sessions, report.set_aside)}, {read}"
    if report.ok:
        out.line(f"{looked}: all as they were written", "green")
    else:
        out.line(f"{looked}: {count(len(report.findings), 'problem')}", "bold")


def sweep(
    store: Store = None,
    blobs: BlobsAt = None,
    keep_expired: Annotated[
        str,
        typer.Option(metavar="DURATION", help='For how long "perdure revive" can bring one back; 0: not at all.'),
    ] = "7d",
    as_json: AsJson = False,
) -> None:
    """Remove expired sessions, and blobs that nothing refers to any more.

    An expired session is kept for a while, where nobody reads it; after that a sweep deletes it for good.
    """
    kept: str | float = 0 if keep_expired == "0" else keep_expired
    with open_existing(store, blobs, keep_expired=kept) as db, progress("sweeping", show=not as_json) as told:
        swept = db.sweep(told)
        collected = db.collect()
    removed = f"{count(swept.removed, 'expired session')} and {count(collected.deleted, 'unused blob')} removed"
    tell(as_json, shapes.swept(swept, collected), removed)
    if not as_json:
        if swept.deleted:
            Out().line(f"{count(swept.deleted, 'session')} that had expired long ago deleted for good")
        print_each("being written, left for the next time", [(session, "") for session in swept.busy], "yellow")
        print_each("could not be removed", swept.failed, "bold red")
    if swept.failed:
        raise typer.Exit(1)


def revive(
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]")] = None,
    store: Store = None,
    blobs: BlobsAt = None,
    life: Annotated[
        int | None,
        typer.Option(
            metavar="LIFE", min=0, help="Which of its lives, as the list says; the one set aside last if not."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Bring a session back that has expired, as it was; without a SESSION, list those that can be.

    It lives for its time to live from now on. If it has begun anew since, that life is set aside in its turn, and
    reviving once more brings that one back. Messages that a life took stay with it; those that wait are for the one
    that is brought back.
    """
    if life is not None and session is None:
        raise InvalidInput(f"name the session whose life it is: {typed(f'revive SESSION --life {life}')}")
    with open_existing(store, blobs) as db:
        if session is not None:
            found = db.revive(session, life=life)
            tell(as_json, shapes.aside(found), f"{cut(session, 200)} is back: as it was at {timestamp(found.updated)}")
            if found.made_way is not None and not as_json:
                again = typed(f"revive {quoted(session)} --life {found.made_way}")
                Out().line(f"The one that had begun since is set aside: {again} brings it back instead.")
            return
        lives = db.set_aside()
    if as_json:
        print_json(Page(items=[shapes.aside(life) for life in lives], next=None))
        return
    if not lives:
        Out().line("nothing can be brought back: no session has expired, or it was deleted for good")
        return
    rows = [
        (
            one.session,
            str(one.life),
            one.owner or "-",
            timestamp(one.created),
            timestamp(one.updated),
            timestamp(one.until),
        )
        for one in lives
    ]
    Out().table(("SESSION", "LIFE", "OWNER", "BEGAN", "UPDATED", "DELETED AFTER"), rows)


def prune(
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]")] = None,
    store: Store = None,
    blobs: BlobsAt = None,
    everything: Annotated[bool, typer.Option("--all", help="Every session that nobody is writing.")] = False,
    keep_last: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Keep the last N checkpoints of each branch.")
    ] = None,
    keep_every: Annotated[int | None, typer.Option(metavar="N", min=1, help="Keep every N-th step.")] = None,
    drop_tagged: Annotated[bool, typer.Option("--drop-tagged", help="A tag alone keeps nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Drop old checkpoints and free their space. What is kept reads exactly as before.

    Whatever a branch, an unfinished run, a merge or the reuse of an effect needs is kept in any case.
    """
    one_or_all(session, everything)
    dropped = kept = 0
    busy: list[str] = []
    with (
        open_existing(store, blobs) as db,
        progress("pruning", all_of(db) if everything else None, show=not as_json) as told,
    ):
        ids = [session] if session is not None else [row.id for row in each_session(db.kernel.store)]
        for number, id in enumerate(ids, start=1):
            if told is not None:
                told(id, number)
            try:
                done = db.prune(id, keep_last=keep_last, keep_every=keep_every, keep_tagged=not drop_tagged)
            except Busy:
                if session is not None:
                    raise
                busy.append(id)
                continue
            dropped, kept = dropped + done.dropped, kept + done.kept
    words = f"{count(dropped, 'checkpoint')} dropped, {kept} kept"
    tell(as_json, shapes.Pruned(dropped=dropped, kept=kept, busy=busy), words)
    if not as_json:
        print_each("being written, left alone", [(id, "") for id in busy], "yellow")


def migrate(
    module: Annotated[str, typer.Argument(metavar="MODULE", help="Your module that declares the migrations.")],
    schema: Annotated[str, typer.Option(metavar="VERSION", help="The schema version to bring sessions to.")],
    store: Store = None,
    blobs: BlobsAt = None,
    as_json: AsJson = False,
) -> None:
    """Bring every session to a schema version now, instead of when it is next opened.

    May be interrupted and run again. The originals stay in the history.
    """
    import perdure

    load_module(module)
    # A deploy migrates first: where there is no store yet, this makes it.
    with (
        perdure.open(
            find_url(store), schema=schema, maintain=False, blobs=blobs or None, witness=which_database.witness()
        ) as db,
        progress("migrating", all_of(db), show=not as_json) as told,
    ):
        done = db.migrate(told)
    words = f"{count(done.migrated, 'branch')} brought to {schema}, {done.current} had it already"
    tell(as_json, shapes.migrated(done), words)
    if not as_json:
        print_each("left alone", done.skipped, "yellow")
        print_each("failed", done.failed, "bold red")
    if done.failed:
        raise typer.Exit(1)


def query(
    sql: Annotated[str, typer.Argument(metavar="SELECT", show_default=False)],
    store: Store = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="How many rows at most.")] = 1000,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.001, help="For how long at most.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Ask a store in PostgreSQL with SQL, read-only.

    There are the views perdure_sessions, perdure_steps, perdure_effects and perdure_approvals.
    """
    opened = _open(find_url(store))
    try:
        answer = opened.query(sql, limit=limit, seconds=timeout)
    finally:
        opened.close()
    rows = [[_plain(value) for value in row] for row in answer.rows]
    if as_json:
        named = [dict(zip(answer.columns, row, strict=True)) for row in rows]
        print_json(shapes.Table(columns=list(answer.columns), rows=named, more=answer.more))
        return
    out = Out()
    out.table(answer.columns, [["-" if value is None else str(value) for value in row] for row in rows])
    out.line(f"{count(len(rows), 'row')}{', and there are more: raise --limit' if answer.more else ''}", "dim")


def _open(url: str) -> PostgresStore:
    """The store that can be asked: of two tiers, the one that is the truth."""
    where = tiers(url)[1] if url.startswith(TIERED) else url
    if where.partition("://")[0].lower() not in ("postgresql", "postgres"):
        raise InvalidInput(
            f"{shown(url)} is not in PostgreSQL, and only there can be asked with SQL: use ls, log and show, "
            "or copy the sessions there"
        )
    from perdure.stores.postgres.store import PostgresStore

    return PostgresStore(where, create=False)


def _plain(value: Any) -> Any:
    """A value that JSON has a form for."""
    match value:
        case datetime.datetime() if value.tzinfo is not None:
            return timestamp(value.timestamp() * 1000)
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case decimal.Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return value.hex()
        case list():
            return [_plain(each) for each in value]  # type: ignore[misc]
        case dict():
            return {str(key): _plain(each) for key, each in value.items()}  # type: ignore[misc]
        case _:
            return str(value)
