"""``perdure tail``: commits as they happen, or one session's answers while they are made."""

from __future__ import annotations

import asyncio
import sys
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.which_database import BlobsAt, Store, open_existing, open_existing_async

if TYPE_CHECKING:
    from perdure.agent.run_events import Event
    from perdure.cli.chat import Screen
    from perdure.database import Database
    from perdure.model import Change

STOPPED = 130
_STYLES = {"in_doubt": "bold red", "failed": "red", "waiting_approval": "yellow"}


def tail(
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="Only this one, word by word.", show_default=False)
    ] = None,
    store: Store = None,
    blobs: BlobsAt = None,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="STEP", help="With SESSION: begin after this step, or position of --json; else with what comes now."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="CURSOR", help="Without SESSION: go on after this cursor of --json, and miss nothing."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Without SESSION: begin with the oldest there is.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End when everything there is has been told.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")] = False,
) -> None:
    """Follow what is committed, in all sessions or in one, until it is interrupted. Takes no lease.

    Of one session the agent's words are shown while it says them; that ends when its run has ended.
    """
    from perdure.errors import InvalidInput
    from perdure.history.reader import NOW

    if session is not None and (since is not None or everything):
        raise InvalidInput("--since and --all go without SESSION; with one say --after STEP")
    if session is None and after is not None:
        raise InvalidInput("--after goes with SESSION; without one say --since CURSOR")
    if since is not None and everything:
        raise InvalidInput("--since names where to begin, and --all the beginning: say one of them")
    try:
        if session is None:
            with open_existing(store, blobs) as db:
                _changes(db, None if everything else NOW if since is None else since, once=once, as_json=as_json)
        else:
            # Digits alone are a step; a position has dots.
            begin = int(after) if after is not None and after.isdecimal() and len(after) < 16 else after
            asyncio.run(_session(session, store, blobs, begin, once=once, as_json=as_json))
    except KeyboardInterrupt:
        raise typer.Exit(STOPPED) from None


def _changes(db: Database, after: str | None, *, once: bool, as_json: bool) -> None:
    from perdure.cli.output import print_line
    from perdure.shapes.events import changes

    for page in db.watch_pages(after):
        for change, told in zip(page.items, changes(page), strict=True):
            if as_json:
                print_line(told)
            else:
                _print_change(change)
        # Whoever reads along through a pipe sees it now, not when some thousand characters have come together.
        sys.stdout.flush()
        if once and not page.items:
            return


def _print_change(change: Change) -> None:
    from perdure.cli.output import Out
    from perdure.cli.terminal_text import cut
    from perdure.system.wording import when

    where = cut(change.session, 80) + (f" on {cut(change.branch, 60)}" if change.branch != "main" else "")
    words = f"{when(change.at)}  {where}@{change.step}  {cut(change.kind, 20)}  {cut(change.status, 20)}"
    Out().line(words, _STYLES.get(change.status, ""))


async def _session(
    session: str, store: str | None, blobs: str | None, after: int | str | None, *, once: bool, as_json: bool
) -> None:
    from perdure.agent.run_events import SessionReader, follow
    from perdure.cli.chat import Screen
    from perdure.cli.output import print_line
    from perdure.shapes.events import run_event

    screen = None if as_json else Screen()

    def show(event: Event) -> None:
        if screen is None:
            print_line(run_event(event))
        else:
            _show(screen, event)
            sys.stdout.flush()

    async with open_existing_async(store, blobs) as db:
        await db.look(session)
        if once:
            reader = SessionReader(db.kernel, session)
            for event in chain(reader.begin(after), reader.read()):
                show(event)
        else:
            async for event in follow(db, session, after=after):
                show(event)
    if screen is not None:
        screen.end_line()


def _show(screen: Screen, event: Event) -> None:
    from perdure.cli.terminal_text import cut

    if event.kind == "step":
        data = event.data
        about = " ".join(cut(str(data[k]), 80) for k in ("tool", "error", "note") if data.get(k))
        screen.line(f"· step {event.step}: {cut(data['kind'], 20)} {about}".rstrip(), "dim")
    elif event.kind == "ended":
        screen.line(f"({cut(str(event.data.get('status', '')), 40)} at step {event.step})", "dim")
    else:
        screen.event(event)
