"""``perdure copy``, ``backup``, ``restore``, ``export`` and ``import``: sessions from a database or file to another."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.options import AsJson, BlobsAt, Store
from perdure.cli.output import Out, all_of, print_each, print_json, progress
from perdure.cli.terminal_text import cut
from perdure.cli.upkeep import print_doubts
from perdure.cli.which_database import NoDatabase, find_or_default, find_url, open_existing
from perdure.cli.which_database import witness as live_witness
from perdure.errors import InvalidInput
from perdure.shapes.store import transferred
from perdure.system.commands import typed
from perdure.system.urls import path_of
from perdure.system.wording import count, size
from perdure.upkeep.backup import check_backup

if TYPE_CHECKING:
    from perdure.upkeep.transfer import Transferred


def copy(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The database to copy from.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="The one to copy to; made when it is not there.")],
    sessions: Annotated[
        list[str] | None, typer.Option("--session", metavar="ID", help="Only this session; may be given often.")
    ] = None,
    owner: Annotated[str | None, typer.Option(metavar="OWNER", help="Only sessions of this owner.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Neither check the source nor read the copy back.")
    ] = False,
    revive: Annotated[
        bool, typer.Option("--revive", help="Also bring sessions back that have expired or were deleted in DST.")
    ] = False,
    source_blobs: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the blobs of SRC are, if not beside it.")
    ] = None,
    target_blobs: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the blobs of DST go, if not beside it.")
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
        progress(
            "copying", None if owner else (lambda: len(sessions)) if sessions else all_of(src), show=not as_json
        ) as told,
    ):
        done = src.copy_to(
            dst, sessions=sessions or None, owner=owner, verify=not no_verify, dry_run=dry_run, revive=revive,
            progress=told,
        )  # fmt: skip
        urls = src.url, dst.url
    checked = "" if dry_run else ", not verified" if no_verify else ", verified" if done.ok else ""
    words = ("would be " if dry_run else "") + "copied"
    _tell(done, begun, words, urls, as_json, checked=checked, verified=not no_verify, dry_run=dry_run)


def _target_url(given: str, dry_run: bool) -> str:
    if given.startswith("memory://"):
        raise InvalidInput("memory:// lives inside one process: nobody could look at what is copied there")
    # A trial must not leave a database behind: an empty one is as good to compare with.
    return _find_or(given, "memory://" if dry_run else given)


def _find_or(given: str | None, otherwise: str) -> str:
    """The URL of the database that is there, or of the one to be made."""
    try:
        return find_url(given)
    except NoDatabase:
        return otherwise


NewFile = Annotated[str, typer.Argument(metavar="FILE", help="Where to write it; a new file.")]


def backup(file: NewFile, store: Store = None, blobs: BlobsAt = None, as_json: AsJson = False) -> None:
    """Write everything, blobs included, into one file, while agents go on writing."""
    _into_file(None, file, store, blobs, as_json)


def export(
    session: Annotated[str, typer.Argument(metavar="SESSION")],
    file: NewFile,
    store: Store = None,
    blobs: BlobsAt = None,
    as_json: AsJson = False,
) -> None:
    """Write one session into a file: all its branches and checkpoints, its inbox and its blobs, sealed as they are.

    Whoever imports it needs the same key, if the store has one.
    """
    _into_file(session, file, store, blobs, as_json)


def _into_file(session: str | None, file: str, store: str | None, blobs: str | None, as_json: bool) -> None:
    begun = time.monotonic()
    if os.path.exists(file):
        raise InvalidInput(f"{file} exists already: choose a new name, so that nothing is lost")
    words = "backing up" if session is None else "exporting"
    with (
        open_existing(store, blobs) as db,
        progress(words, all_of(db) if session is None else None, show=not as_json) as told,
    ):
        done = db.backup(file, told) if session is None else db.export_session(session, file, told)
        urls = db.url, file
    _tell(done, begun, "backed up" if session is None else "exported", urls, as_json)


def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file that perdure backup wrote.")],
    store: Store = None,
    blobs: BlobsAt = None,
    witness: Annotated[
        str | None,
        typer.Option(
            envvar="PERDURE_WITNESS",
            metavar="FILE",
            help="Put in doubt what this witness saw since the backup; it begins anew.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Bring everything of a backup into a database, which is made when it is not there.

    The file is checked as a whole before anything is written. A session that is there already and is not exactly the
    one in the file is a conflict.

    Sessions go on from where the backup was made: what they did since is forgotten, and would be done again. With the
    --witness of the store that was lost, effects that it saw since are put in doubt instead, and somebody is asked.
    """
    _from_file(file, find_or_default(store), blobs, as_json, whole=True, witness=witness)


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
    _from_file(file, find_or_default(store), blobs, as_json, whole=False)


def _from_file(
    file: str, where: str, blobs: str | None, as_json: bool, *, whole: bool, witness: str | None = None
) -> None:
    import perdure

    begun = time.monotonic()
    if not os.path.isfile(file):
        # Before a database is made for nothing.
        raise InvalidInput(f"there is no file {file}")
    made = path_of(where) if "://" in where else where
    if made and not os.path.exists(made):
        check_backup(file)
    if witness is not None and not os.path.isfile(witness):
        raise InvalidInput(
            f"there is no witness {witness}, so nobody knows what happened since the backup: name the file, or leave "
            "--witness out (and PERDURE_WITNESS unset)"
        )
    with (
        perdure.open(where, maintain=False, blobs=blobs or None, witness=live_witness()) as db,
        progress("restoring" if whole else "importing", show=not as_json) as told,
    ):
        done = db.restore(file, told, witness=witness) if whole else db.import_sessions(file, told)
        urls = file, db.url
    if not as_json:
        print_doubts(done.in_doubt)
        if witness is not None:
            Out().line(f"the witness {cut(witness, 1000)} begins anew with what is there")
    _tell(done, begun, "restored" if whole else "imported", urls, as_json)


def _tell(
    done: Transferred, begun: float, words: str, urls: tuple[str, str], as_json: bool,
    *, checked: str = "", verified: bool = False, dry_run: bool = False,
) -> None:  # fmt: skip
    """Say what was transferred from the one place to the other; 1 if not everything was."""
    seconds = round(time.monotonic() - begun, 3)
    if as_json:
        how = {"duration_seconds": seconds, "verified": verified, "dry_run": dry_run}
        print_json(transferred(done, source=urls[0], destination=urls[1], **how))
    else:
        _print(done, words, f"{seconds:.1f} s{checked}")
    if done.missing:
        print(f"perdure: {count(len(done.missing), 'blob')} missing: run {typed('verify --all')}", file=sys.stderr)
    if not done.ok:
        raise typer.Exit(1)


def _print(done: Transferred, words: str, how: str) -> None:
    for title, pairs, style in (("left alone", done.left, "yellow"), ("failed", done.failed, "bold red")):
        print_each(title, pairs, style)
    parts = [f"{count(done.copied, 'session')} {words}"]
    parts += [f"{done.updated} {words.removesuffix('copied')}brought up to date"] if done.updated else []
    parts += [f"{done.unchanged} there already"] if done.unchanged else []
    parts += [f"{len(done.failed)} failed"] if done.failed else []
    held = f"{count(done.checkpoints, 'checkpoint')}, {count(done.blobs, 'blob')}, {size(done.bytes)}"
    Out().line(f"{', '.join(parts)}: {held} in {how}", "" if done.ok else "bold")
