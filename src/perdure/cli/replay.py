"""``perdure replay``: a recorded session run again, without a network, or with the real model on a branch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.which_database import AsJson, BlobsAt, Store, find_url

if TYPE_CHECKING:
    from perdure.agent.agent import Agent
    from perdure.agent.branching_off import Rerun
    from perdure.agent.replay.replay import Replayed
    from perdure.aio import AsyncDatabase


def replay(
    session: Annotated[str, typer.Argument(metavar="SESSION")],
    store: Store = None,
    blobs: BlobsAt = None,
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="APP", help="The agent to run, such as app:agent; the recorded one if not said.", show_default=False
        ),
    ] = None,
    branch: Annotated[str, typer.Option(metavar="NAME", help="Which branch was recorded.")] = "main",
    live: Annotated[bool, typer.Option("--live", help="Ask the agent's model, on a new branch.")] = False,
    start: Annotated[
        int | None,
        typer.Option("--from", min=1, metavar="STEP", help="With --live: the step to run again.", show_default=False),
    ] = None,
    effects: Annotated[
        str, typer.Option(metavar="HOW", help="With --live: reuse outcomes, dry (call nothing), or live (asks first).")
    ] = "reuse",
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="With --live: the new branch.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a recorded session again and tell the first step that differs.

    Nothing is asked, called or written; with --live the agent's model is asked, on a new branch.
    """
    from perdure.agent.app_loader import load_agent
    from perdure.errors import InvalidInput

    if not live and (start is not None or name is not None or effects != "reuse"):
        raise InvalidInput("--from, --as and --effects go with --live")
    if live and (agent is None or start is None):
        raise InvalidInput("--live needs --agent APP and --from STEP")
    runs = load_agent(agent) if agent is not None else None
    url = find_url(store)
    if live:
        assert runs is not None
        assert start is not None
        went = asyncio.run(_live(url, blobs, runs, session, start, branch, name, effects))
        _print_live(went, start, as_json=as_json)
    else:
        found = asyncio.run(_recorded(url, blobs, session, runs, branch))
        _print_replayed(found, as_json=as_json)


def _open(url: str, blobs: str | None) -> AsyncDatabase:
    import perdure

    # On a server only the store itself can tell whether it is there.
    options: dict[str, Any] = {"create": False} if "postgresql://" in url or "postgres://" in url else {}
    return perdure.open_async(url, maintain=False, blobs=blobs or None, **options)


async def _recorded(url: str, blobs: str | None, session: str, agent: Agent | None, branch: str) -> Replayed:
    from perdure.agent.replay.replay import replay as again

    async with _open(url, blobs) as db:
        return await again(db, session, agent=agent, branch=branch)


async def _live(
    url: str, blobs: str | None, agent: Agent, session: str, start: int, branch: str, name: str | None, effects: str
) -> Rerun:
    from perdure.agent.branching_off import rerun

    async with _open(url, blobs) as db:
        try:
            return await rerun(db, agent, session, at=start, branch=branch, name=name, effects=effects)
        finally:
            await agent.close()


def _print_replayed(found: Replayed, *, as_json: bool) -> None:
    from perdure.cli.output import Out, print_json
    from perdure.cli.terminal_text import cut
    from perdure.shapes import work as shapes

    if as_json:
        print_json(shapes.replay(found))
    elif found.identical:
        Out().line(f"identical: {found.turns} answers of {cut(found.session, 80)} on {cut(found.branch, 80)}", "green")
    else:
        Out().line(f"step {found.step} differs, after {found.turns} identical answers: {cut(found.what, 600)}", "red")
    if not found.identical:
        raise typer.Exit(1)


def _print_live(went: Rerun, start: int, *, as_json: bool) -> None:
    from perdure.cli.output import Out, print_json
    from perdure.cli.terminal_text import cut
    from perdure.shapes.work import run

    result = went.result
    if as_json:
        print_json(run(result, went.branch))
    else:
        out = Out()
        out.line(f"from step {start} on branch {cut(went.branch, 80)}: {result.status}, step {result.step}")
        for line in (result.text, result.reason, *result.notes):
            if line:
                out.line(cut(line, 2000))
        for approval in result.approvals:
            out.line(f"waits for {approval.id}: {cut(approval.tool, 60)}; {cut(approval.because, 200)}", "yellow")
    if result.status in ("failed", "incompatible", "in_doubt"):
        raise typer.Exit(1)
