"""``perdure export`` and ``perdure import``: one session as one file that any store can take in."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from perdure.cli.opening import DEFAULT, AsJson, BlobsAt, NoDatabase, Store, find_url, open_existing
from perdure.cli.progress import progress
from perdure.errors import InvalidInput


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("export")(export)
    app.command("import")(bring_in)


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
    from perdure.cli.text import count, cut
    from perdure.wording import size

    if os.path.exists(file):
        raise InvalidInput(f"{file} exists already: choose a new name, so that nothing is lost")
    with open_existing(store, blobs) as db, progress("exporting", show=not as_json) as told:
        done = db.export_session(session, file, told)
    if as_json:
        print_json({**done._asdict(), "missing": list(done.missing)})
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
    from perdure.cli.text import count

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
        print_json({**done._asdict(), "store": url})
    else:
        there = f", {done.skipped} were there already" if done.skipped else ""
        Out().line(f"{count(done.sessions, 'session')} and {count(done.blobs, 'blob')} imported{there}")
