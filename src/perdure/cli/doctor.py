"""``perdure doctor``: whether this machine can keep what the store promises, or an app survives being killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.options import AsJson, BlobsAt, Store
from perdure.cli.output import Out, print_json
from perdure.cli.terminal_text import cut
from perdure.cli.which_database import NoDatabase, find_url
from perdure.doctor.findings import FAIL, NOTE, OK, Finding
from perdure.errors import InvalidInput, PerdureError
from perdure.shapes.basics import shaped
from perdure.shapes.machine import Check, Doctor
from perdure.system.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator

_STYLES = {OK: "green", NOTE: "yellow", FAIL: "bold red"}


def doctor(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="[APP]",
            help="Check your own program: app.py with an agent or a script in it, app:agent, or app:work, a function "
            "of a database.",
        ),
    ] = None,
    say: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="With APP: what is said to the agent, in this order; tools that it calls really run."
        ),
    ] = None,
    really: Annotated[
        bool, typer.Option("--really", help="With APP: run it even when its model is a real one, which costs money.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, max=3600, help="With APP: how long one run may take.")
    ] = 60.0,
    store: Store = None,
    blobs: BlobsAt = None,
    as_json: AsJson = False,
) -> None:
    """Check that this machine can keep what the store promises; or that your program survives being killed.

    Without APP it looks at versions, the key, the store, its disk and the clocks, and kills a child process to see what
    survives; that test writes to a scratch database beside yours, never into it. With APP it runs your program in
    scratch folders on scratch databases, kills it after saves, inside calls and inside answers, starts it again, and
    looks at what it saves and when. Its tools really run.
    """
    if app is None and (say or really):
        raise InvalidInput("--say and --really go with APP")
    if app is not None:
        from perdure.doctor.app import check_app

        if say and not as_json:
            Out().line("what is said may have its tools called, and they really run, several times over", "yellow")
        checks = check_app(app, say or [], really=really, timeout=timeout)
    else:
        checks = _of_machine(store, blobs)
    found: list[Finding] = []
    out = Out()
    for finding in checks:
        found.append(finding)
        if not as_json:
            place = f" ({cut(finding.where, 300)})" if finding.where else ""
            out.line(
                f"{finding.verdict:4}  {finding.name}: {cut(finding.words, 1500)}{place}", _STYLES[finding.verdict]
            )
    failed = sum(f.verdict == FAIL for f in found)
    if as_json:
        checked = [shaped(Check, f, detail=f.words, place=f.where) for f in found]
        print_json(Doctor(ok=not failed, checks=checked))
    else:
        notes = sum(f.verdict == NOTE for f in found)
        checked = count(len(found) - notes, "check")
        noted = f", {count(notes, 'note')}" if notes else ""
        out.line((f"{failed} of {checked} failed" if failed else f"{checked} passed") + noted, "bold")
    if failed:
        raise typer.Exit(1)


def _of_machine(given: str | None, blobs: str | None) -> Iterator[Finding]:
    """The checks of this machine, and of the database that is meant if there is one."""
    from perdure.doctor.machine import check_machine

    url = ""
    try:
        url = find_url(given)
    except NoDatabase as error:
        yield Finding("store", NOTE, f"{error}; the checks below use a scratch database")
    except PerdureError as error:
        yield Finding("store", FAIL, str(error))
    yield from check_machine(url, blobs)
