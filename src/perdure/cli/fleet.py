"""``perdure worker``, ``submit``, ``workers``, ``drain``, ``pause``, ``unpause`` and ``retry``: a fleet, steered."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import signal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perdure.agent.app_loader import load_agents
from perdure.agent.said_once import answer_of
from perdure.cli.options import AsJson, BlobsAt, DryRun, Made, Message, MessageKey, Owner, Session, Sessions, Store
from perdure.cli.output import SHOWN, Out, answered, print_json, tell
from perdure.cli.session_selection import Failed, Selection, act, pick
from perdure.cli.terminal_text import cut
from perdure.cli.which_database import find_or_default, open_existing, witness
from perdure.errors import InvalidInput, NotFound, PerdureError
from perdure.fleet.board import board_of
from perdure.fleet.board import submit as submit_to
from perdure.fleet.status import change, drain_workers, fleet_of, to_retry
from perdure.fleet.why.answer import OK
from perdure.fleet.why.decision import MOST_TRIES
from perdure.fleet.why.reading import why
from perdure.model import MAIN
from perdure.session.actions import Action, Do
from perdure.session.handover import served_by, workers_of
from perdure.shapes.work import Drained, fleet, run, submitted
from perdure.system.lease_holders import is_dead
from perdure.system.times import ago
from perdure.system.wording import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from perdure.agent.agent import Agent
    from perdure.database import Database
    from perdure.fleet.worker import Settings, Worker
    from perdure.model import SessionRow
    from perdure.protocols import WorkerRow

OfAgent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Sessions of this agent.")]
OfOwner = Annotated[str | None, typer.Option("--owner", metavar="NAME", help="Sessions of this owner.")]
OfStatus = Annotated[str | None, typer.Option("--status", metavar="STATUS", help="Sessions with this status.")]
OfState = Annotated[
    str | None,
    typer.Option("--state", metavar="STATE", help="Where they are: queued, working, waiting, parked or paused."),
]

OfAll = Annotated[bool, typer.Option("--all", help="All sessions that have failed.")]

STATES = {"waiting": "waiting (for a message, a timer or somebody)"}
"""What a state is called where its name alone could be misread."""


def submit(
    session: Session,
    message: Message = "",
    agent: Annotated[str, typer.Option(metavar="NAME", help="The agent that has it.")] = "",
    store: Store = None,
    blobs: BlobsAt = None,
    owner: Owner = "",
    key: MessageKey = None,
    priority: Annotated[
        int | None,
        typer.Option(metavar="N", min=-1000, max=1000, help="Larger goes first; without it, as it is, and 0 at first."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give a fleet something to do: a session that names its agent, and a message in its inbox."""
    with open_existing(store, blobs) as db:
        named = agent or _agent_of(db, session)
        if not message:
            _check_something_to_do(db, session)
        said = (key or os.urandom(12).hex()) if message else ""
        given = submit_to(db, session, message or None, agent=named, owner=owner, key=said or None, priority=priority)
        found = None if given or not said else answer_of(db.kernel, session, said, MAIN)
    answer = None if found is None else run(found.result, found.branch)
    words = "submitted" if given else "was there already"
    if given.instead_of:
        moved = cut(f"given to {named} instead of {given.instead_of}, which nobody serves", 300)
        words = f"{words}, {moved}" if message else moved
    if found is not None:
        words = f"{answered(found.result)}: {cut(found.result.text or found.result.reason, 2000)}"
    tell(as_json, submitted(session, named, given, said, answer), f"{session}: {words}")
    if found is None and given.handover.to == "nobody" and not as_json:
        Out().line(cut(given.handover.words, 1000), "yellow")


def _check_something_to_do(db: Database, session: str) -> None:
    """Without a message only what waits in a session is handed over."""
    try:
        found = why(db, session)
    except NotFound:
        found = None
    if found is None or (found.severity == OK and not found.line.startswith("It sleeps")):
        there = "it is new" if found is None else one_line(found.line, 200)
        where = f"{session!r:.80} ({there})"
        raise InvalidInput(f"the message is empty, and nothing is to be done in {where}: say something")


def _agent_of(db: Any, session: str) -> str:
    try:
        named = db.look(session).agent
    except NotFound:
        named = ""
    if not named:
        raise InvalidInput(f"session {session!r:.80} names no agent yet: say which with --agent")
    return named


def workers(store: Store = None, blobs: BlobsAt = None, as_json: AsJson = False) -> None:
    """List the workers of a fleet, what is queued, and which agents nobody serves."""
    with open_existing(store, blobs) as db:
        if as_json:
            print_json(fleet(db))
            return
        found, now = fleet_of(db), db.kernel.clock.wall()
    out = Out()
    rows = [_line(w, now) for w in found.workers]
    if rows:
        out.table(("HOST", "PID", "SERVES", "BUSY", "RUNS", "RECOVERED", "UP", "HEARD", "VERSION", "WISH"), rows)
    else:
        out.line(f"no worker is running: start one with {Action(Do.WORKER, '').command}", "yellow")
    for agent, states in sorted(found.agents.items()):
        said = ", ".join(f"{n} {STATES.get(state, state)}" for state, n in sorted(states.items()))
        note = " (unserved: no worker has this agent)" if agent in found.unserved else ""
        note += " (held: no worker takes its sessions)" if agent in found.held else ""
        out.line(f"{cut(agent, 60)}: {said}{note}", "yellow" if note else "")
    if began := [w.started for w in found.workers if w.started and not is_dead(w.id)]:
        out.line(f"the oldest worker began {ago(min(began), now)}", "dim")


def _line(w: WorkerRow, now: int) -> list[str]:
    agents = cut(", ".join(w.agents), 40)
    died = is_dead(w.id)
    up = ago(w.started, now).removesuffix(" ago") if w.started and not died else "-"
    heard = f"{w.age / 1000:.1f} s ago" + (", has died" if died else "")
    return [
        cut(w.host, 30), str(w.pid), agents, "-" if died else f"{w.busy}/{w.concurrency}", str(w.done),
        str(w.recovered), up, heard, cut(w.version, 20), w.wish or "-",
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
    with open_existing(store, blobs) as db:
        told, left = drain_workers(db, worker, wait=wait, here=here)
    tell(as_json, Drained(told=told, left=left), f"{told} told to go" + (f", {left} still there" if wait else ""))
    if wait and left:
        raise typer.Exit(1)


def _steering(do: Literal["pause", "unpause", "retry"], about: str) -> Callable[..., None]:
    """The command that does this to sessions on the board; the three differ in nothing else."""

    def command(
        sessions: Sessions = None,
        agent: OfAgent = None,
        owner: OfOwner = None,
        status: OfStatus = None,
        state: OfState = None,
        dry_run: DryRun = False,
        store: Store = None,
        blobs: BlobsAt = None,
        as_json: AsJson = False,
        everything: bool = False,
    ) -> None:
        if do == "retry" and not (sessions or status or state) and (agent or owner or everything):
            status = "failed"
        chosen = Selection(sessions, agent, owner, status, state)
        with open_existing(store, blobs) as db:
            missing: list[Failed] = []
            also = ", --state or --all" if do == "retry" else " or --state"
            picked = pick(db, chosen, missing, options=f"--agent, --owner, --status{also}")
            if do == "retry" and (sessions or dry_run):
                wanted = to_retry(db, picked)
                if sessions and not wanted and not missing:
                    raise NotFound(_nothing_to_retry(db, picked))
                picked = wanted if dry_run else picked
            whole_agent = do != "retry" and chosen.agent is not None and chosen.only_agent
            if whole_agent and not dry_run:
                # Before what is counted: whatever is said of it then, it is held, or let go.
                assert chosen.agent is not None
                board_of(db).hold(chosen.agent, do == "pause")
            act(
                picked, do, lambda batch: change(db, batch, do, on_board=whole_agent), dry_run=dry_run,
                as_json=as_json, failed=missing, named=bool(sessions),
            )  # fmt: skip
            if whole_agent and not (dry_run or as_json):
                Out().line(_held(chosen.agent or "", do == "pause"))
            if do != "pause" and not (dry_run or as_json):
                _tell_who_is_missing(db, picked)

    command.__name__ = do
    command.__doc__ = about
    signature = inspect.signature(command, eval_str=True)
    given = dict(signature.parameters)
    # Only of what has failed there is a natural whole.
    last = given.pop("everything").replace(annotation=OfAll)
    named = [*given.values(), last] if do == "retry" else [*given.values()]
    command.__signature__ = signature.replace(parameters=named)  # pyright: ignore[reportFunctionMemberAccess]
    return command


def _held(agent: str, on: bool) -> str:
    """What became of a whole agent, whatever became of sessions of it that are on the board."""
    return cut(
        f"All sessions of agent {agent} are held, new ones too: no worker takes them."
        if on
        else f"Agent {agent} is not held: workers take its sessions.",
        300,
    )


def _tell_who_is_missing(db: Database, rows: list[SessionRow]) -> None:
    """Which agents of sessions that workers are to take have none, and what goes on with them."""
    served = served_by(workers_of(db.kernel))
    for agent in sorted({row.agent for row in rows if row.agent and row.agent not in served})[:SHOWN]:
        left = [row.id for row in rows if row.agent == agent]
        alone = f", or go on with {Action(Do.RUN, left[0]).command}" if len(left) == 1 else ""
        starts = f"start one with {Action(Do.WORKER, left[0]).command}{alone}"
        Out().line(cut(f"No worker serves agent {agent}: {starts}.", 1000), "yellow")


def _nothing_to_retry(db: Database, rows: list[SessionRow]) -> str:
    if len(rows) > 1:
        return f"there is nothing to be tried again in any of these {len(rows)} sessions"
    found = why(db, rows[0].id)
    return f"there is nothing to be tried again in {rows[0].id!r:.80}: {cut(str(found), 300)}"


pause = _steering(
    "pause", "Let no worker take some sessions any more; a step under way ends. With --agent alone: new ones neither."
)
unpause = _steering("unpause", "Let workers take paused sessions again.")
retry = _steering("retry", "Have workers try sessions again that have failed or were parked.")


def worker(
    app: Annotated[str, typer.Argument(metavar="APP", help="A module or file with agents in it: app, app.py:desk.")],
    store: Made = None,
    blobs: BlobsAt = None,
    concurrency: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="Sessions at once.")] = 20,
    lease: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.2, help="How long others wait when this worker falls silent.")
    ] = 10.0,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long steps may take to end once it is told to go.")
    ] = 25.0,
    per_owner: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Sessions of one owner at once, in the whole fleet.")
    ] = None,
    tries: Annotated[
        int, typer.Option(metavar="N", min=1, help="So many tries a session has at one place before it is parked.")
    ] = MOST_TRIES,
    version: Annotated[
        str, typer.Option(metavar="NAME", help="Names what this worker runs; made from its agents if not said.")
    ] = "",
    schema: Annotated[
        str, typer.Option(metavar="VERSION", help="The version of the state that APP writes, as for migrate.")
    ] = "1.0.0",
    metrics_port: Annotated[
        int | None, typer.Option(metavar="PORT", min=0, max=65535, help="Serve Prometheus metrics on this port.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to serve them.")] = "127.0.0.1",
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object a line.")] = False,
    direct: Annotated[
        str | None,
        typer.Option(
            "--direct-store",
            envvar="PERDURE_DIRECT_STORE",
            metavar="URL",
            help="PostgreSQL without a pooler in between, for notifications.",
        ),
    ] = None,
) -> None:
    """Run the sessions of all agents in APP. Start as many as you like; stop them with SIGTERM, or any other way."""
    import asyncio

    from perdure.fleet.worker import Settings
    from perdure.telemetry.logs import configure

    configure(as_json=log_json)
    with _told(log_json):
        agents = load_agents(app)
        if metrics_port is not None:
            from perdure.telemetry.prometheus import serve

            serve(metrics_port, metrics_host)
        settings = Settings(concurrency, grace, per_owner, tries, version)
        asyncio.run(_work(agents, find_or_default(store), blobs, lease, settings, schema, direct))


@contextlib.contextmanager
def _told(as_json: bool) -> Generator[None]:
    """Where the log is read by a program, an error that ends the worker is a line of it like any other."""
    log = logging.getLogger("perdure.fleet")
    try:
        yield
    except PerdureError as error:
        if not as_json:
            raise
        from perdure.cli.program import exit_code

        log.error("%s", error, extra={"error": type(error).__name__})
        raise typer.Exit(exit_code(error)) from None
    except Exception:
        if not as_json:
            raise
        log.critical("the worker has ended for a reason that nobody foresaw", exc_info=True)
        raise typer.Exit(1) from None


async def _work(
    agents: list[Agent], store: str, blobs: str | None, lease: float, settings: Settings, schema: str,
    direct: str | None,
) -> None:  # fmt: skip
    import asyncio

    from perdure.fleet.worker import start_worker

    begun: list[Worker] = []

    def ready(worker: Worker) -> None:
        begun.append(worker)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.stop)
        names = ", ".join(sorted(worker.agents))
        logging.getLogger("perdure.fleet").info("worker %s serves %s on %s", worker.id, names, worker.db.url)

    await start_worker(
        agents, store, settings, blobs=blobs, lease=lease, schema=schema, direct=direct, witness=witness(), ready=ready
    )
    if any(worker.is_held_up() for worker in begun):
        # Python would wait for it, however long it takes: it was cancelled, and others may be at it already.
        logging.getLogger("perdure.fleet").warning("a tool does not end by itself: it ends with this process")
        logging.shutdown()
        os._exit(0)
