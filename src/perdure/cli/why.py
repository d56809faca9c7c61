"""``perdure why`` and ``perdure stats``: where one session stands and what to do about it; and where all of them do."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.which_database import AsJson, BlobsAt, Store, open_existing

if TYPE_CHECKING:
    from perdure.database import Database

MAIN = "main"
_STYLES = {"ok": "green", "wait": "", "act": "bold yellow"}
_COMMANDS = {
    "approve": "approve {session}",
    "answer": "answer {session}",
    "resolve": "resolve {session}",
    "retry": "retry {session}",
    "unpause": "unpause {session}",
    "unhold": "unpause --agent {agent}",
    "worker": "worker APP",
    "run": "resume APP {session}",
    "message": "run APP {session} MESSAGE",
    "outcome": "outcome {session} EFFECT RESULT",
}
"""What to type for each thing that can be done; the rest is done by the program itself."""


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
    from perdure.fleet.why import why as look_into

    with open_existing(store, blobs) as db:
        found = look_into(db, session, branch=branch)
        agent = db.look(session).agent if found.do == "unhold" else ""
    command = command_for(found.do, session, agent, branch)
    if as_json:
        print_json({"session": session, "branch": branch, **found._asdict(), "command": command})
        return
    out = Out()
    out.line(cut(str(found), 1000), _STYLES[found.severity])
    if command:
        out.line(f"  {cut(command, 400)}", "dim")


def command_for(do: str, session: str, agent: str = "", branch: str = MAIN) -> str:
    """What to type for it; "" when it is nothing to type.

    >>> command_for("approve", "my trip"), command_for("run", "t", branch="b"), command_for("", "t")
    ("perdure approve 'my trip'", 'perdure resume APP t --branch b', '')
    """
    known = _COMMANDS.get(do)
    if known is None:
        return ""
    words = known.format(session=shlex.quote(session), agent=shlex.quote(agent))
    return f"perdure {words}" + (f" --branch {shlex.quote(branch)}" if branch != MAIN and do == "run" else "")


def stats(store: Store = None, blobs: BlobsAt = None, as_json: AsJson = False) -> None:
    """Count sessions by status, agent and error, and say how much the store holds and what its fleet does."""
    from perdure.cli.output import print_json

    with open_existing(store, blobs) as db:
        found = _counted(db)
    if as_json:
        print_json(found)
    else:
        _print_stats(found)


def _counted(db: Database) -> dict[str, Any]:
    usage = db.usage()
    by: tuple[dict[str, int], ...] = ({}, {}, {})
    for *names, number in db.counts():
        for kind, name in zip(by, names, strict=True):
            if name:
                kind[name] = kind.get(name, 0) + number
    status, agent, error = (dict(sorted(kind.items(), key=lambda item: (-item[1], item[0]))) for kind in by)
    return {
        "store": db.url,
        "promise": db.promise,
        **usage._asdict(),
        "status": status,
        "agents": agent,
        "errors": error,
        "fleet": _fleet(db),
    }


def _fleet(db: Database) -> dict[str, Any] | None:
    """What its workers do; None where no fleet can be."""
    from perdure.fleet.status import fleet_of
    from perdure.protocols import Boarded

    if not isinstance(db.kernel.store, Boarded):
        return None
    found = fleet_of(db)
    states: dict[str, int] = {}
    for counted in found.agents.values():
        for state, number in counted.items():
            states[state] = states.get(state, 0) + number
    return {
        "workers": len(found.workers),
        "busy": sum(w.busy for w in found.workers),
        "concurrency": sum(w.concurrency for w in found.workers),
        "states": states,
        "unserved": found.unserved,
        "held": found.held,
    }


def _print_stats(found: dict[str, Any]) -> None:
    from perdure.cli.output import Out
    from perdure.cli.terminal_text import cut
    from perdure.system.wording import count, size

    out = Out()
    out.line(cut(found["store"], 400), "bold")
    held = f"{count(found['sessions'], 'session')}, {count(found['checkpoints'], 'checkpoint')}"
    out.line(f"{held}, {size(found['bytes'])}")
    out.line(found["promise"], "dim")
    for title, style in (("status", ""), ("agents", ""), ("errors", "red")):
        if numbers := found[title]:
            shown = ", ".join(f"{number} {cut(name, 60)}" for name, number in list(numbers.items())[:20])
            out.line(f"{title}: {shown}" + (f", and {len(numbers) - 20} more" if len(numbers) > 20 else ""), style)
    fleet = found["fleet"]
    if fleet is None or not (fleet["workers"] or fleet["states"]):
        return
    states = "".join(f", {n} {state}" for state, n in sorted(fleet["states"].items()))
    out.line(
        f"fleet: {count(fleet['workers'], 'worker')}, {fleet['busy']} of {fleet['concurrency']} places busy{states}"
    )
    for name, what in (("unserved", "no worker serves"), ("held", "held:")):
        if fleet[name]:
            out.line(f"{what} {cut(', '.join(fleet[name]), 300)}", "yellow")
