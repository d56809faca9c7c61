"""``perdure new``, ``chat``, ``run``, ``resume`` and ``replay``: a first agent, running one, and running it again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.agent.app_loader import load_for_sessions
from perdure.agent.run_result import CANCELLED, FAILED
from perdure.agent.said_once import same_unanswered
from perdure.cli.approvals import user_name
from perdure.cli.options import (
    Again,
    App,
    AsJson,
    BlobsAt,
    By,
    Made,
    Message,
    MessageKey,
    Owner,
    Reopen,
    Session,
    Store,
    Wait,
)  # fmt: skip
from perdure.cli.output import STOPPED, Out, print_json, print_raised, tell
from perdure.cli.terminal_text import call_in_full, cut, safe
from perdure.cli.which_database import NoDatabase, open_existing_async, open_or_make_async
from perdure.errors import InvalidInput, NotFound
from perdure.history.expiry import ended, living
from perdure.history.hydrate import find
from perdure.model import MAIN
from perdure.session.actions import Action, Do
from perdure.session.handover import is_worked_on
from perdure.shapes import work as shapes
from perdure.shapes.machine import NewAgent
from perdure.system.commands import quoted, typed
from perdure.system.names import check_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.agent.agent import Agent
    from perdure.agent.app_loader import App as Loaded
    from perdure.agent.branching_off import Rerun
    from perdure.agent.replay.replay import Replayed
    from perdure.agent.run_result import RunResult
    from perdure.agent.session_stream import Event
    from perdure.aio import AsyncDatabase

FILES = {"app.py": "app.py", "README.md": "README.md", "gitignore": ".gitignore"}
"""What is written, and under which name."""
PLACEHOLDER = "myagent"
EFFECTS = ("reuse", "dry", "live")
GOES_ON = "the same message was there and not answered yet: it was gone on with (--again says it once more)"
_TYPED = 5
"""Requests and doubts whose commands are told after a run; resolve and approve --list tell them all."""
BAD = ("failed", "incompatible", "in_doubt", "cancelled")
"""Ends of a run that are a negative answer."""


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name; a folder of this name is made.")],
    as_json: AsJson = False,
) -> None:
    """Write a first agent into a new folder; it runs at once, without a key."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", name):
        raise InvalidInput(f"{name!r:.80} is no name: begin with a letter, then letters, digits, - and _")
    folder = Path(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"{name} exists already and is not empty: choose another name")
    folder.mkdir(exist_ok=True)
    source = Path(__file__).parent / "first_agent"
    for of, to in FILES.items():
        (folder / to).write_text((source / of).read_text("utf-8").replace(PLACEHOLDER, name), "utf-8")
    if as_json:
        print_json(NewAgent(folder=str(folder.resolve()), files=list(FILES.values()), agent="app"))
    else:
        typer.echo(f"{name}/ has a first agent in it. Talk to it:\n\n    cd {name}\n    perdure chat app")


def chat(
    app: App,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="Which conversation; the agent's name if not said.")
    ] = None,
    store: Made = None,
    blobs: BlobsAt = None,
    owner: Owner = "",
) -> None:
    """Talk to an agent. Stop or kill it at any moment: the same command goes on where it was."""
    from perdure.cli.chat import Chat

    loaded = load_for_sessions(app)
    raise typer.Exit(Chat(loaded, session or loaded.agent().name, owner).hold(store, blobs))


OnBranch = Annotated[str, typer.Option("--branch", metavar="NAME", help="The branch to run on.")]
Effects = Annotated[
    str | None,
    typer.Option(
        "--effects",
        metavar="HOW",
        help="What becomes of calls: reuse (what was done is not done again), dry (nothing outside changes), "
        "live (all are made; those that another branch has made, after asking). Default: reuse; on another branch dry.",
    ),
]
Turns = Annotated[int | None, typer.Option("--max-turns", metavar="N", min=1, help="Answers of the model at most.")]


def run(
    app: App,
    session: Session,
    message: Message = "",
    store: Made = None,
    blobs: BlobsAt = None,
    owner: Owner = "",
    key: MessageKey = None,
    again: Again = False,
    wait: Wait = 0,
    branch: OnBranch = MAIN,
    effects: Effects = None,
    max_turns: Turns = None,
    objective: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the session is to achieve; it is told to the agent.")
    ] = None,
    reopen: Reopen = False,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Run an agent on a session until it is done or must wait. Killed at any moment, the same command goes on.

    A message that is there already and not answered yet is not said twice: it is gone on with. With --branch it is said
    there, and main's inbox is left alone.
    """
    if key is not None and not message:
        raise InvalidInput("--key names a message: say one")
    if again and (key is not None or not message):
        raise InvalidInput("--again says a message once more: say one, without --key")
    if wait and branch != MAIN:
        raise InvalidInput("--wait goes with main")
    if key is not None and branch != MAIN:
        raise InvalidInput("--key names a message of the inbox, which is main's: on a branch, say it without")
    if (reopen or objective is not None) and branch != MAIN:
        raise InvalidInput(f"{'--reopen' if reopen else '--objective'} goes with main")
    if by is not None and not reopen:
        raise InvalidInput("--by says who opens a closed session again: it goes with --reopen")

    loaded = load_for_sessions(app)

    def opened() -> AsyncDatabase:
        # A branch is of a session that is there.
        if branch != MAIN:
            try:
                return open_existing_async(store, blobs, maintain=True)
            except NoDatabase as e:
                where = str(e).partition(":")[0] if store is None else f"there is no database {store}"
                first = "branch off a session that has run (perdure fork), or leave --branch out"
                msg = f"a branch is of a session that is there, and {where}: nothing was made; {first}"
                raise NoDatabase(msg) from None
        return open_to_run(loaded, store, blobs)

    _run(app, loaded, session, opened, branch, effects, as_json, message=message or None, key=key, owner=owner,
         max_turns=max_turns, again=again, wait=wait, objective=objective, reopen=reopen,
         by=by or (user_name() if reopen else ""))  # fmt: skip


def resume(
    app: App,
    session: Session,
    store: Store = None,
    blobs: BlobsAt = None,
    branch: OnBranch = MAIN,
    effects: Effects = None,
    max_turns: Turns = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a session that is there, with nothing new to say: after a crash, a decision, or a failure."""

    def opened() -> AsyncDatabase:
        return open_existing_async(store, blobs, maintain=True)

    _run(app, load_for_sessions(app), session, opened, branch, effects, as_json, must_exist=True, max_turns=max_turns)


def open_to_run(loaded: Loaded, store: str | None, blobs: str | None) -> AsyncDatabase:
    """Open the database for a session that need not be there yet; made only where it is plain which agent is meant."""
    if loaded.usual is not None:
        return open_or_make_async(store, blobs)
    try:
        return open_existing_async(store, blobs, maintain=True)
    except NoDatabase:
        loaded.agent()
        raise


async def agent_for(db: AsyncDatabase, loaded: Loaded, session: str) -> Agent:
    """The agent that goes on with a session: its own, where that is known here."""
    row = await db.driver.call(find, db.kernel, check_session(session))
    # What has not begun, or has ended and begins anew, is of nobody.
    if row is None or not row.heads or await db.driver.call(ended, db.kernel, session):
        return loaded.agent()
    return loaded.agent(row.agent)


def _run(
    app: str, loaded: Loaded, session: str, opened: Callable[[], AsyncDatabase], branch: str, effects: str | None,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    import asyncio

    from perdure.agent.branching_off import usual_effects
    from perdure.cli.chat import Screen

    how = effects or usual_effects(branch)
    if how not in EFFECTS:
        raise InvalidInput(f"--effects is one of {', '.join(EFFECTS)}, not {how!r:.40}")
    on = "" if branch == MAIN else f" --branch {quoted(branch)}"
    on += f" --effects {how}" if effects else ""
    # What has no checkpoint yet cannot be resumed, only run.
    goes_on = "resume" if options.get("must_exist") or branch != MAIN else "run"
    again = typed(f"{goes_on} {quoted(app)} {quoted(session)}{on}")
    screen = None if as_json else Screen()
    try:
        result = asyncio.run(
            _once(loaded, opened, session, branch, how, on_event=screen.event if screen else None, **options)
        )
    except KeyboardInterrupt:
        if screen is not None:
            screen.line(f"Stopped. {again} goes on from here.", "dim")
        raise typer.Exit(STOPPED) from None
    if screen is not None:
        screen.end_line()
    _print_result(result, branch, as_json=as_json)
    if result.status in BAD:
        raise typer.Exit(1)


async def _once(
    loaded: Loaded, opened: Callable[[], AsyncDatabase], session: str, branch: str, effects: str, *,
    on_event: Callable[[Event], None] | None, max_turns: int | None, must_exist: bool = False,
    again: bool = False, wait: float = 0, **options: Any,
) -> RunResult:  # fmt: skip
    from perdure.agent.children import release

    async with opened() as db:
        agent = await agent_for(db, loaded, session)
        others = loaded.others(agent)
        try:
            if branch != MAIN:
                from perdure.agent.branching_off import is_said_on, run_on, say_on
                from perdure.agent.dependencies import check_deps

                check_deps(agent)
                said, notes = options.get("message"), ()
                if (
                    said is not None
                    and not again
                    and await db.driver.call(is_said_on, db.kernel, session, branch, said)
                ):
                    notes = (GOES_ON,)
                elif said is not None:
                    await say_on(db, session, branch, said)
                result = await run_on(
                    db, agent, session, branch, effects=effects, max_turns=max_turns, on_event=on_event, live=True,
                    agents=others,
                )  # fmt: skip
                return result._replace(notes=(*notes, *result.notes))
            if must_exist:
                await db.driver.call(_check_it_goes_on, db, session)
            said, notes = options.get("message"), ()
            if said is not None and options.get("key") is None and not again:
                options["key"] = await db.driver.call(same_unanswered, db.kernel, session, said)
                notes = (GOES_ON,) if options["key"] is not None else ()
            result = await agent.run(
                db, session=session, effects=effects, on_event=on_event, live=True, max_turns=max_turns, wait=wait,
                agents=others, **options,
            )  # fmt: skip
            return result._replace(notes=(*notes, *result.notes))
        finally:
            await release(agent, *others)


def _check_it_goes_on(db: AsyncDatabase, session: str) -> None:
    """There is something to go on with: a session, or what waits for one that has expired and begins anew."""
    row = find(db.kernel, check_session(session))
    if row is not None and row.pending and not row.heads and not row.reason and not is_worked_on(row):
        begins = Action(Do.START, session).command
        raise NotFound(f"session {session!r} has no checkpoint yet: {begins} begins it, with --owner where it has one")
    if row is None or not row.pending or not ended(db.kernel, session):
        living(db.kernel, session)


def _print_result(result: RunResult, branch: str, *, as_json: bool) -> None:
    if as_json:
        print_json(shapes.run(result, branch))
        return
    out = Out()
    if result.origin is not None and result.origin.kind == "restarted":
        out.line(f"{cut(result.session, 200)} was gone ({cut(result.origin.reason, 200)}), and began anew", "yellow")
    if result.repeated:
        had = f"It had been answered before: {result.text}" if result.status != CANCELLED else "It was not answered"
        out.line(cut(had, 4000))
    for note in result.notes:
        out.line(cut(note, 400), "dim")
    for approval in result.approvals:
        asked = approval.question or approval.because
        call, more = call_in_full(approval.tool, approval.args)
        out.line(f"{approval.id}: {call} {safe(asked)}".rstrip(), "yellow")
        out.lines(more)
    print_raised(out, result.raised)
    for doubt in result.in_doubt:
        out.line(f"{doubt.effect}: {cut(doubt.question, 400)}", "bold red")
        out.lines(call_in_full(doubt.tool, doubt.args)[1])
    ended = f"{result.status}{': ' + result.reason if result.reason else ''}"
    out.line(cut(f"{ended} (step {result.step})", 1000), "dim" if result.ok else "yellow")
    asks = [Action(Do.ANSWER if a.question else Do.APPROVE, result.session, a.id) for a in result.approvals]
    if result.status == "incompatible":
        # To agree to it would not help: this program cannot make the call.
        for approval in result.approvals[:1]:
            out.line(f"  {cut(typed(f'reject {quoted(result.session)} {approval.id}'), 1000)}", "dim")
        asks = []
    doubts = [Action(Do.RESOLVE, result.session, d.effect, branch) for d in result.in_doubt]
    for action in (doubts or asks)[:_TYPED]:
        for command in (action.command, *action.others):
            out.line(f"  {cut(command, 1000)}", "dim")
    if result.status == FAILED:
        out.line(f"  {cut(look_why(result.session, branch), 1000)}", "dim")


def look_why(session: str, branch: str) -> str:
    """What to type to be told why a session has got no further, and what to do."""
    return typed(f"why {quoted(session)}{'' if branch == MAIN else f' --branch {quoted(branch)}'}")


def replay(
    session: Session,
    store: Store = None,
    blobs: BlobsAt = None,
    agent: Annotated[
        str | None,
        typer.Option(metavar="APP", help="The agent to run, such as app:agent; the recorded one if not said."),
    ] = None,
    branch: Annotated[str, typer.Option(metavar="NAME", help="Which branch was recorded.")] = MAIN,
    live: Annotated[bool, typer.Option("--live", help="Ask the agent's model, on a new branch.")] = False,
    start: Annotated[
        int | None, typer.Option("--from", min=1, metavar="STEP", help="With --live: the step to run again.")
    ] = None,
    effects: Annotated[
        str,
        typer.Option(
            metavar="HOW", help="With --live: reuse outcomes, dry (call nothing), or live (asks before repeating)."
        ),
    ] = "reuse",
    name: Annotated[str | None, typer.Option("--as", metavar="NAME", help="With --live: the new branch.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a recorded session again and tell the first step that differs.

    Nothing is asked, called or written; with --live the agent's model is asked, on a new branch.
    """
    import asyncio

    if not live and (start is not None or name is not None or effects != "reuse"):
        raise InvalidInput("--from, --as and --effects go with --live")
    if live and (agent is None or start is None):
        raise InvalidInput("--live needs --agent APP and --from STEP")
    runs = load_for_sessions(agent) if agent is not None else None

    async def recorded() -> Replayed:
        from perdure.agent.replay.replay import replay as again

        async with open_existing_async(store, blobs) as db:
            own = await agent_for(db, runs, session) if runs is not None else None
            return await again(db, session, agent=own, branch=branch)

    async def asked_anew(runs: Loaded, start: int) -> Rerun:
        from perdure.agent.branching_off import rerun

        async with open_existing_async(store, blobs) as db:
            own = await agent_for(db, runs, session)
            try:
                return await rerun(db, own, session, at=start, branch=branch, name=name, effects=effects)
            finally:
                await own.close()

    if runs is not None and start is not None:
        _print_live(asyncio.run(asked_anew(runs, start)), start, as_json=as_json)
    else:
        _print_replayed(asyncio.run(recorded()), as_json=as_json)


def _print_replayed(found: Replayed, *, as_json: bool) -> None:
    words = f"identical: {found.turns} answers of {cut(found.session, 80)} on {cut(found.branch, 80)}"
    if not found.identical:
        words = f"step {found.step} differs, after {found.turns} identical answers: {cut(found.what, 600)}"
    words += "".join(f"\n{cut(str(change), 400)}" for change in found.versions)
    tell(as_json, shapes.replay(found), words, "green" if found.identical else "red")
    if not found.identical:
        raise typer.Exit(1)


def _print_live(went: Rerun, start: int, *, as_json: bool) -> None:
    result = went.result
    if as_json:
        print_json(shapes.run(result, went.branch))
    else:
        out = Out()
        out.line(f"from step {start} on branch {cut(went.branch, 80)}: {result.status}, step {result.step}")
        for line in (result.text, result.reason, *result.notes):
            if line:
                out.line(cut(line, 2000))
        for approval in result.approvals:
            out.line(f"waits for {approval.id}: {cut(approval.tool, 60)}; {cut(approval.because, 200)}", "yellow")
        if result.status == FAILED:
            out.line(f"  {cut(look_why(result.session, went.branch), 1000)}", "dim")
    if result.status in ("failed", "incompatible", "in_doubt"):
        raise typer.Exit(1)
