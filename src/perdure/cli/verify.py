"""``perdure verify``: whether what is stored is what was written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.progress import all_of, progress
from perdure.cli.which_database import AsJson, BlobsAt, Store, open_existing
from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.upkeep.verify import Report

SHOWN = 50
"""Findings that are printed; JSON has them all."""


def one_or_all(session: str | None, everything: bool) -> None:
    """Refuse a command that names neither a session nor all of them, or both."""
    if (session is None) != everything:
        msg = "name a session, or say --all"
        raise InvalidInput(msg)


def verify(
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", show_default=False)] = None,
    store: Store = None,
    blobs: BlobsAt = None,
    everything: Annotated[bool, typer.Option("--all", help="Every session, and every blob they refer to.")] = False,
    witness: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Compare with what this file says was there.", show_default=False),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update-witness", help="When all is well, write the witness anew (with --all).")
    ] = False,
    copied: Annotated[
        bool, typer.Option("--copied", help="The witness is of the store that this one was copied from.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read everything and report whatever is not as it was written.

    Changes nothing in the store. Loss of the newest checkpoints shows only against a witness: keep the file on another
    disk, and renew it now and then with --update-witness.
    """
    from perdure.cli.output import Out, print_json
    from perdure.shapes.store import verified
    from perdure.system.wording import count

    one_or_all(session, everything)
    if update and (witness is None or not everything):
        msg = "--update-witness needs --all and --witness FILE"
        raise InvalidInput(msg)
    with (
        open_existing(store, blobs) as db,
        progress("verifying", all_of(db) if everything else None, show=not as_json) as told,
    ):
        # The first time there is nothing to compare with yet, and --update-witness makes it.
        compare = witness if witness is not None and (os.path.exists(witness) or not update) else None
        report = db.verify(session, compare, told, copied=copied)
        updated = db.witness(witness) if update and report.ok and witness is not None else 0
    if as_json:
        print_json(verified(report, witness, updated))
    else:
        _print_report(Out(), report)
        if updated:
            Out().line(f"the witness {witness} now knows {count(updated, 'branch')}")
    if not report.ok:
        raise typer.Exit(1)


def _print_report(out: Any, report: Report) -> None:
    from perdure.cli.terminal_text import cut
    from perdure.system.wording import count

    for finding in report.findings[:SHOWN]:
        out.line(cut(str(finding), 1000), "bold red")
    if len(report.findings) > SHOWN:
        out.line(f"… {len(report.findings) - SHOWN} more: --json lists them all", "dim")
    parts = ((report.sessions, "session"), (report.checkpoints, "checkpoint"), (report.blobs, "blob"))
    looked = ", ".join(count(number, thing) for number, thing in parts)
    if report.ok:
        out.line(f"{looked}: all as they were written", "green")
    else:
        out.line(f"{looked}: {count(len(report.findings), 'problem')}", "bold")
