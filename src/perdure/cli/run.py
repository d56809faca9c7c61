"""``perdure run`` and ``perdure resume``: an agent run once from the command line, until it is done or must wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.which_database import AsJson, BlobsAt, Made, Store, open_existing_async
from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.agent.agent import Agent
    from perdure.agent.run_events import Event
    from perdure.agent.run_result import RunResult
    from perdure.aio import AsyncDatabase

MAIN = "main"
EFFECTS = ("reuse", "dry", "live")
BAD = ("failed", "incompatible", "in_doubt", "cancelled")
"""Ends of a run that are a negative answer."""
STOPPED = 130

App = Annotated[str, typer.Argument(metavar="APP", help="A module or file, and a name in it: app, app.py:desk.")]
Session = Annotated[str, typer.Argument(metavar="SESSION")]
OnBranch = Annotated[str, typer.Option("--branch", metavar="NAME", help="The branch to run on.")]
Effects = Annotated[
    str | None,
    typer.Option(
        "--effects",
        metavar="HOW",
        help="What becomes of calls: reuse (what was done is not done again), dry (nothing outside changes), "
        "live (all are made, after asking). Default: reuse; on another branch dry.",
        show_default=False,
    ),
]
Turns = Annotated[
    int | None,
    typer.Option("--max-turns", metavar="N", min=1, help="Answers of the model at most.", show_default=False),
]


def run(
    app: App,
    session: Session,
    message: Annotated[str, typer.Argument(metavar="[MESSAGE]", help="What is said to the agent.")] = "",
    store: Made = None,
    blobs: BlobsAt = None,
    owner: Annotated[str, typer.Option(metavar="NAME", help="Whose session it is.", show_default=False)] = "",
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Makes it safe to repeat: the message is put there once.")
    ] = None,
    branch: OnBranch = MAIN,
    effects: Effects = None,
    max_turns: Turns = None,
    as_json: AsJson = False,
) -> None:
    """Run an agent on a session until it is done or must wait. Killed at any moment, the same command goes on."""
    if message and branch != MAIN:
        raise InvalidInput(
            "a message goes to main: on a branch, change what was said with perdure fork --set said=TEXT"
        )
    if key is not None and not message:
        raise InvalidInput("--key names a message: say one")

    def opened() -> AsyncDatabase:
        import perdure

        # A branch is of a session that is there.
        return perdure.open_async(store or None, blobs=blobs or None) if branch == MAIN else _there(store, blobs)

    _run(app, session, opened, branch, effects, as_json, message=message or None, key=key, owner=owner,
         max_turns=max_turns)  # fmt: skip


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
    _run(app, session, lambda: _there(store, blobs), branch, effects, as_json, must_exist=True, max_turns=max_turns)


def _there(store: str | None, blobs: str | None) -> AsyncDatabase:
    return open_existing_async(store, blobs, maintain=True)


def _run(
    app: str, session: str, opened: Callable[[], AsyncDatabase], branch: str, effects: str | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    from perdure.agent.app_loader import load_agent
    from perdure.cli.chat import Screen

    how = effects or ("reuse" if branch == MAIN else "dry")
    if how not in EFFECTS:
        raise InvalidInput(f"--effects is one of {', '.join(EFFECTS)}, not {how!r:.40}")
    agent = load_agent(app)
    screen = None if as_json else Screen()
    try:
        result = asyncio.run(
            _once(agent, opened, session, branch, how, on_event=screen.event if screen else None, **options)
        )
    except KeyboardInterrupt:
        if screen is not None:
            screen.line("Stopped. perdure resume goes on from here.", "dim")
        raise typer.Exit(STOPPED) from None
    if screen is not None:
        screen.end_line()
    _print_result(result, branch, as_json=as_json)
    if result.status in BAD:
        raise typer.Exit(1)


async def _once(
    agent: Agent, opened: Callable[[], AsyncDatabase], session: str, branch: str, effects: str, *,
    on_event: Callable[[Event], None] | None, max_turns: int | None, must_exist: bool = False, **options: Any,
) -> RunResult:  # fmt: skip
    async with opened() as db:
        try:
            if branch != MAIN:
                from perdure.agent.branching_off import run_on

                return await run_on(
                    db, agent, session, branch, effects=effects, max_turns=max_turns, on_event=on_event, live=True
                )
            if must_exist:
                await db.read(session, migrate=False)
            return await agent.run(
                db, session=session, effects=effects, on_event=on_event, live=True, max_turns=max_turns, **options
            )
        finally:
            await agent.close()


def _print_result(result: RunResult, branch: str, *, as_json: bool) -> None:
    from perdure.cli.output import Out, print_json
    from perdure.cli.terminal_text import brief, cut
    from perdure.shapes import work as shapes
    from perdure.shapes.sessions import command_for

    if as_json:
        print_json(shapes.run(result, branch))
        return
    out = Out()
    for note in result.notes:
        out.line(cut(note, 400), "dim")
    for approval in result.approvals:
        asked = approval.question or approval.because
        out.line(f"{approval.id}: {cut(approval.tool, 60)} {brief(approval.args)} {cut(asked, 200)}".rstrip(), "yellow")
    for doubt in result.in_doubt:
        out.line(f"{doubt.effect}: {cut(doubt.question, 400)}", "bold red")
    ended = f"{result.status}{': ' + result.reason if result.reason else ''}"
    out.line(cut(f"{ended} (step {result.step})", 1000), "dim" if result.ok else "yellow")
    do = "answer" if any(a.question for a in result.approvals) else "approve" if result.approvals else ""
    if command := command_for("resolve" if result.in_doubt else do, result.session):
        out.line(f"  {cut(command, 300)}", "dim")
