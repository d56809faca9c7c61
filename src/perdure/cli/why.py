"""``perdure why`` and ``perdure stats``: where one session stands and what to do about it; and where all of them do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.which_database import AsJson, BlobsAt, Store, open_existing

if TYPE_CHECKING:
    from perdure.shapes.store import Store as Held

MAIN = "main"
_STYLES = {"ok": "green", "wait": "", "act": "bold yellow"}


def why(
    session: Annotated[str, typer.Argument(metavar="SESSION")],
    store: Store = None,
    blobs: BlobsAt = None,
    branch: Annotated[str, typer.Option(metavar="NAME", help="Which branch.")] = MAIN,
    as_json: AsJson = False,
) -> None:
    """Say why a session is where it is, and what to do next. Takes no lease and changes nothing."""
    from perdure.cli.output import Out, print_json
    from perdure.cli.terminal_text import cut
    from perdure.fleet.status import why as look_into
    from perdure.shapes import sessions as shapes

    with open_existing(store, blobs) as db:
        found = look_into(db, session, branch=branch)
        row = db.kernel.store.look(session)
    told = shapes.why(found, session, branch, row.agent if row is not None else "")
    if as_json:
        print_json(told)
        return
    out = Out()
    out.line(cut(str(found), 1000), _STYLES[found.severity])
    if told.command:
        out.line(f"  {cut(told.command, 400)}", "dim")


def stats(store: Store = None, blobs: BlobsAt = None, as_json: AsJson = False) -> None:
    """Count sessions by status, agent and error, and say how much the store holds and what its fleet does."""
    from perdure.cli.output import print_json
    from perdure.shapes import store as shapes

    with open_existing(store, blobs) as db:
        found = shapes.store(db, db.counts())
    if as_json:
        print_json(found)
    else:
        _print_stats(found)


def _print_stats(found: Held) -> None:
    from perdure.cli.output import Out
    from perdure.cli.terminal_text import cut
    from perdure.system.wording import count, size

    out = Out()
    out.line(cut(found.url, 400), "bold")
    held = f"{count(found.sessions, 'session')}, {count(found.checkpoints, 'checkpoint')}"
    out.line(f"{held}, {size(found.bytes)}")
    out.line(found.promise.words, "dim")
    for title, numbers, style in (
        ("status", found.statuses, ""), ("agents", found.agents, ""), ("errors", found.errors, "red"),
    ):  # fmt: skip
        if numbers:
            shown = ", ".join(f"{number} {cut(name, 60)}" for name, number in list(numbers.items())[:20])
            out.line(f"{title}: {shown}" + (f", and {len(numbers) - 20} more" if len(numbers) > 20 else ""), style)
    fleet = found.fleet
    if not (fleet.workers or fleet.states):
        return
    states = "".join(f", {n} {state}" for state, n in sorted(fleet.states.items()))
    out.line(f"fleet: {count(len(fleet.workers), 'worker')}, {fleet.busy} of {fleet.concurrency} places busy{states}")
    for names, what in ((fleet.unserved_agents, "no worker serves"), (fleet.held_agents, "held:")):
        if names:
            out.line(f"{what} {cut(', '.join(names), 300)}", "yellow")
