"""``perdure sweep``, ``prune`` and ``migrate``: keeping a database in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.progress import all_of, progress
from perdure.cli.terminal_text import cut
from perdure.cli.verify import one_or_all
from perdure.cli.which_database import AsJson, BlobsAt, Store, open_existing
from perdure.shapes import store as shapes
from perdure.system.wording import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.database import Database
    from perdure.shapes.basics import Shape


def sweep(store: Store = None, blobs: BlobsAt = None, as_json: AsJson = False) -> None:
    """Remove expired sessions, and blobs that nothing refers to any more."""
    with open_existing(store, blobs) as db, progress("sweeping", show=not as_json) as told:
        swept = db.sweep(told)
        collected = db.collect()
    removed = f"{count(swept.removed, 'expired session')} and {count(collected.deleted, 'unused blob')} removed"
    _tell(as_json, shapes.swept(swept, collected), removed)
    if not as_json:
        _print_list("being written, left for the next time", [(session, "") for session in swept.busy], "yellow")
        _print_list("could not be removed", swept.failed, "bold red")
    if swept.failed:
        raise typer.Exit(1)


def prune(
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", show_default=False)] = None,
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
    with open_existing(store, blobs) as db, _pruning(db, session, as_json) as told:
        from perdure.errors import Busy

        for number, id in enumerate([session] if session is not None else _ids(db), start=1):
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
    _tell(as_json, shapes.Pruned(dropped=dropped, kept=kept, busy=busy), words)
    if not as_json:
        _print_list("being written, left alone", [(id, "") for id in busy], "yellow")


def _pruning(db: Database, session: str | None, as_json: bool) -> Any:
    return progress("pruning", all_of(db) if session is None else None, show=not as_json)


def _ids(db: Database) -> list[str]:
    ids: list[str] = []
    while rows := db.sessions(after=ids[-1] if ids else None, limit=1000):
        ids.extend(row.id for row in rows)
    return ids


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
    from perdure.agent.app_loader import load_module
    from perdure.cli.which_database import find_url

    load_module(module)
    with (
        perdure.open(find_url(store), schema=schema, maintain=False, blobs=blobs or None) as db,
        progress("migrating", all_of(db), show=not as_json) as told,
    ):
        done = db.migrate(told)
    words = f"{count(done.migrated, 'branch')} brought to {schema}, {done.current} had it already"
    _tell(as_json, shapes.migrated(done), words)
    if not as_json:
        _print_list("left alone", done.skipped, "yellow")
        _print_list("failed", done.failed, "bold red")
    if done.failed:
        raise typer.Exit(1)


def _tell(as_json: bool, answer: Shape, words: str) -> None:
    from perdure.cli.output import Out, print_json

    if as_json:
        print_json(answer)
    else:
        Out().line(words)


def _print_list(title: str, pairs: Sequence[tuple[str, str]], style: str) -> None:
    from perdure.cli.output import Out

    for session, reason in pairs:
        Out().line(f"{title}: {cut(session, 200)}{': ' if reason else ''}{cut(reason, 500)}", style)
