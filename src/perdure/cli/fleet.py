"""``perdure submit``, ``workers``, ``drain``, ``pause``, ``unpause`` and ``retry``: steering a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perdure.cli.session_selection import DryRun, Selected, Selection, act, pick
from perdure.cli.which_database import AsJson, BlobsAt, Store, open_existing
from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.protocols import WorkerRow

Sessions = Annotated[list[str] | None, typer.Argument(metavar="[SESSION]...", help="Which; or say it by options.")]
OfAgent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Sessions of this agent.")]
OfOwner = Annotated[str | None, typer.Option("--owner", metavar="NAME", help="Sessions of this owner.")]
OfStatus = Annotated[str | None, typer.Option("--status", metavar="STATUS", help="Sessions with this status.")]
OfState = Annotated[
    str | None,
    typer.Option("--state", metavar="STATE", help="Where they are: queued, working, waiting, parked or paused."),
]


def submit(
    session: Annotated[str, typer.Argument(metavar="SESSION")],
    message: Annotated[str, typer.Argument(metavar="[MESSAGE]", help="What is said to the agent.")] = "",
    agent: Annotated[str, typer.Option(metavar="NAME", help="The agent that has it.")] = "",
    store: Store = None,
    blobs: BlobsAt = None,
    owner: Annotated[str, typer.Option(metavar="NAME", help="Whose session it is.", show_default=False)] = "",
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Makes it safe to repeat: the message is put there once.")
    ] = None,
    priority: Annotated[int, typer.Option(metavar="N", min=-1000, max=1000, help="Larger goes first.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Give a fleet something to do: a session that names its agent, and a message in its inbox."""
    from perdure.cli.output import Out, print_json
    from perdure.fleet.board import submit as submit_to
    from perdure.shapes.work import Submitted

    with open_existing(store, blobs) as db:
        named = agent or _agent_of(db, session)
        new = submit_to(db, session, message or None, agent=named, owner=owner, key=key, priority=priority)
    if as_json:
        print_json(Submitted(session=session, agent=named, new=new, queued=True))
    else:
        Out().line(f"{session}: {'submitted' if new else 'was there already'}")


def _agent_of(db: Any, session: str) -> str:
    from perdure.errors import NotFound

    try:
        named = db.look(session).agent
    except NotFound:
        named = ""
    if not named:
        raise InvalidInput(f"session {session!r:.80} names no agent yet: say which with --agent")
    return named


def workers(store: Store = None, blobs: BlobsAt = None, as_json: AsJson = False) -> None:
    """List the workers of a fleet, what is queued, and which agents nobody serves."""
    from perdure.cli.output import Out, print_json
    from perdure.cli.terminal_text import cut
    from perdure.fleet.status import fleet_of
    from perdure.shapes.work import fleet
    from perdure.system.wording import ago

    with open_existing(store, blobs) as db:
        if as_json:
            print_json(fleet(db))
            return
        found, now = fleet_of(db), db.kernel.clock.wall()
    out = Out()
    rows = [_line(w, now) for w in found.workers]
    if rows:
        out.table(("HOST", "PID", "SERVES", "BUSY", "DONE", "RECOVERED", "UP", "HEARD", "VERSION", "WISH"), rows)
    else:
        out.line("no worker is running: start one with perdure worker APP", "yellow")
    for agent, states in sorted(found.agents.items()):
        said = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
        note = " (unserved: no worker has this agent)" if agent in found.unserved else ""
        note += " (held: no worker takes its sessions)" if agent in found.held else ""
        out.line(f"{cut(agent, 60)}: {said}{note}", "yellow" if note else "")
    if found.workers and any(w.started for w in found.workers):
        oldest = min(w.started for w in found.workers)
        out.line(f"the oldest began {ago(oldest, now)}", "dim")


def _line(w: WorkerRow, now: int) -> list[str]:
    from perdure.cli.terminal_text import cut
    from perdure.system.wording import ago

    agents = cut(", ".join(w.agents), 40)
    up = ago(w.started, now).removesuffix(" ago") if w.started else "-"
    heard = f"{w.age / 1000:.1f} s ago"
    return [
        cut(w.host, 30), str(w.pid), agents, f"{w.busy}/{w.concurrency}", str(w.done), str(w.recovered), up, heard,
        cut(w.version, 20), w.wish or "-",
    ]  # fmt: skip


def drain(
    worker: Annotated[
        str | None, typer.Argument(metavar="[WORKER]", help="Its process number, or its full name; all if not said.")
    ] = None,
    store: Store = None,
    blobs: BlobsAt = None,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Wait so long for them to go; 0 does not wait.")
    ] = 0.0,
    here: Annotated[bool, typer.Option("--here", help="Only workers of this machine.")] = False,
    as_json: AsJson = False,
) -> None:
    """Tell workers to finish their steps and go; what they had is taken up by others."""
    from perdure.cli.output import Out, print_json
    from perdure.fleet.status import drain_workers
    from perdure.shapes.work import Drained

    with open_existing(store, blobs) as db:
        told, left = drain_workers(db, worker, wait=wait, here=here)
    if as_json:
        print_json(Drained(told=told, left=left))
    else:
        Out().line(f"{told} told to go" + (f", {left} still there" if wait else ""))
    if wait and left:
        raise typer.Exit(1)


def pause(
    sessions: Sessions = None,
    agent: OfAgent = None,
    owner: OfOwner = None,
    status: OfStatus = None,
    state: OfState = None,
    dry_run: DryRun = False,
    store: Store = None,
    blobs: BlobsAt = None,
    as_json: AsJson = False,
) -> None:
    """Let no worker take some sessions any more; a step under way ends. With --agent alone: new ones neither."""
    _board(Selection(sessions, agent, owner, status, state), "pause", dry_run, store, blobs, as_json)


def unpause(
    sessions: Sessions = None,
    agent: OfAgent = None,
    owner: OfOwner = None,
    status: OfStatus = None,
    state: OfState = None,
    dry_run: DryRun = False,
    store: Store = None,
    blobs: BlobsAt = None,
    as_json: AsJson = False,
) -> None:
    """Let workers take paused sessions again."""
    _board(Selection(sessions, agent, owner, status, state), "unpause", dry_run, store, blobs, as_json)


def retry(
    sessions: Sessions = None,
    agent: OfAgent = None,
    owner: OfOwner = None,
    status: OfStatus = None,
    state: OfState = None,
    dry_run: DryRun = False,
    store: Store = None,
    blobs: BlobsAt = None,
    as_json: AsJson = False,
) -> None:
    """Have workers try sessions again that have failed or were parked."""
    chosen = Selection(sessions, agent, owner, status, state)
    if not (sessions or status or state):
        chosen = chosen._replace(status="failed")
    _board(chosen, "retry", dry_run, store, blobs, as_json)


def _board(
    chosen: Selection, do: Literal["pause", "unpause", "retry"], dry_run: bool, store: str | None, blobs: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    from perdure.fleet.status import change
    from perdure.protocols import NewWork

    with open_existing(store, blobs) as db:
        picked = pick(db, chosen)

        def on(batch: list[Selected]) -> int:
            return change(db, [NewWork(s.session, s.agent, s.owner) for s in batch], do)

        held = chosen.agent if do != "retry" and chosen.only_agent else None
        act(picked, do, on, dry_run=dry_run, as_json=as_json)
        if held is not None and not dry_run:
            from perdure.fleet.board import board_of

            board_of(db).hold(held, do == "pause")
