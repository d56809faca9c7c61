"""``perdure copy``: sessions from one database into another."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.progress import all_of, progress
from perdure.cli.terminal_text import cut
from perdure.cli.which_database import DEFAULT, AsJson, BlobsAt, NoDatabase, Store, find_url, open_existing
from perdure.errors import InvalidInput
from perdure.system.wording import count, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.database import Database
    from perdure.upkeep.copy import Copied

SHOWN = 50
"""Sessions that are named one by one; JSON has them all."""


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("export")(export)
    app.command("import")(bring_in)
    app.command("copy")(copy)


def copy(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The database to copy from.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="The one to copy to; made when it is not there.")],
    sessions: Annotated[
        list[str] | None,
        typer.Option("--session", metavar="ID", help="Only this session; may be given often.", show_default=False),
    ] = None,
    owner: Annotated[
        str | None, typer.Option(metavar="OWNER", help="Only sessions of this owner.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Neither check the source nor read the copy back.")
    ] = False,
    revive: Annotated[
        bool, typer.Option("--revive", help="Also bring sessions back that have expired or were deleted in DST.")
    ] = False,
    source_blobs: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where the blobs of SRC are, if not beside it.", show_default=False),
    ] = None,
    target_blobs: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where the blobs of DST go, if not beside it.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy sessions into another database, of any kind, while agents go on writing.

    May be interrupted and run again: what is there already is passed over, and what has gone on since is brought up
    to date. Digests stay as they are; every session is checked before it is written, and read back afterwards.
    """
    import perdure

    begun = time.monotonic()
    from_url = find_url(source)
    with (
        perdure.open(from_url, maintain=False, blobs=source_blobs) as src,
        perdure.open(_target_url(target, dry_run), maintain=False, blobs=None if dry_run else target_blobs) as dst,
        progress("copying", _total(src, sessions, owner), show=not as_json) as told,
    ):
        done = src.copy_to(
            dst, sessions=sessions or None, owner=owner, verify=not no_verify, dry_run=dry_run, revive=revive,
            progress=told,
        )  # fmt: skip
        urls = src.url, dst.url
    seconds = round(time.monotonic() - begun, 3)
    if as_json:
        from perdure.cli.output import print_json
        from perdure.shapes.store import copied

        where = {"source": urls[0], "destination": urls[1]}
        print_json(copied(done, **where, duration_seconds=seconds, verified=not no_verify, dry_run=dry_run))
    else:
        _print(done, seconds, verified=not no_verify, dry_run=dry_run)
    if not done.ok:
        raise typer.Exit(1)


def _target_url(given: str, dry_run: bool) -> str:
    if given.startswith("memory://"):
        raise InvalidInput("memory:// lives inside one process: nobody could look at what is copied there")
    try:
        return find_url(given)
    except NoDatabase:
        # A trial must not leave a database behind: an empty one is as good to compare with.
        return "memory://" if dry_run else given


def _total(src: Database, sessions: list[str] | None, owner: str | None) -> Callable[[], int | None]:
    if sessions:
        return lambda: len(sessions)
    return all_of(src) if owner is None else lambda: None


def _print(done: Copied, seconds: float, *, verified: bool, dry_run: bool) -> None:
    from perdure.cli.output import Out

    out = Out()
    for title, pairs, style in (("left alone", done.left, "yellow"), ("failed", done.failed, "bold red")):
        for id, words in pairs[:SHOWN]:
            out.line(f"{title}: {cut(id, 200)}: {cut(words, 500)}", style)
        if len(pairs) > SHOWN:
            out.line(f"… {len(pairs) - SHOWN} more {title}: --json lists them all", "dim")
    would = "would be " if dry_run else ""
    parts = [f"{count(done.copied, 'session')} {would}copied"]
    parts += [f"{done.updated} {would}brought up to date"] if done.updated else []
    parts += [f"{done.unchanged} there already"] if done.unchanged else []
    parts += [f"{len(done.failed)} failed"] if done.failed else []
    held = f"{count(done.checkpoints, 'checkpoint')}, {count(done.blobs, 'blob')}, {size(done.bytes)}"
    checked = "" if dry_run else ", verified" if verified and done.ok else ", not verified" if not verified else ""
    out.line(f"{', '.join(parts)}: {held} in {seconds:.1f} s{checked}", "" if done.ok else "bold")


def export(
    session: Annotated[str, typer.Argument(metavar="SESSION")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to write it; a new file.")],
    store: Store = None,
    blobs: BlobsAt = None,
    as_json: AsJson = False,
) -> None:
    """Write one session into a file: all its branches and checkpoints, its inbox and its blobs, sealed as they are.

    Whoever imports it needs the same key, if the store has one.
    """
    from perdure.cli.output import Out, print_json
    from perdure.shapes.store import backed_up

    if os.path.exists(file):
        raise InvalidInput(f"{file} exists already: choose a new name, so that nothing is lost")
    with open_existing(store, blobs) as db, progress("exporting", show=not as_json) as told:
        done = db.export_session(session, file, told)
    if as_json:
        print_json(backed_up(done))
    else:
        held = f"{count(done.checkpoints, 'checkpoint')} and {count(done.blobs, 'blob')} in {size(done.bytes)}"
        Out().line(f"{cut(session, 200)}: {held}")
    if done.missing:
        print(f"perdure: {count(len(done.missing), 'blob')} missing: run perdure verify", file=sys.stderr)
        raise typer.Exit(1)


def bring_in(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file that perdure export or backup wrote.")],
    store: Store = None,
    blobs: BlobsAt = None,
    as_json: AsJson = False,
) -> None:
    """Bring the session of a file into a database, which is made when it is not there.

    The file is checked as a whole before anything is written. A session that is there already is a conflict, unless it
    is exactly the one in the file. Other sessions, their leases and cursors stay as they are.
    """
    import perdure
    from perdure.cli.output import Out, print_json
    from perdure.shapes.store import restored

    if not os.path.isfile(file):
        # Before a database is made for nothing.
        raise InvalidInput(f"there is no file {file}")
    try:
        where = find_url(store)
    except NoDatabase:
        where = store or DEFAULT
    with (
        perdure.open(where, maintain=False, blobs=blobs or None) as db,
        progress("importing", show=not as_json) as told,
    ):
        done = db.import_sessions(file, told)
        url = db.url
    if as_json:
        print_json(restored(done, url))
    else:
        there = f", {done.skipped} were there already" if done.skipped else ""
        Out().line(f"{count(done.sessions, 'session')} and {count(done.blobs, 'blob')} imported{there}")
