"""``perdure resolve``: what became of calls in doubt, of one call or of all calls of many sessions the same way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.approvals import MAIN, Branch, By, json_or_text, list_open, user_name
from perdure.cli.session_selection import DryRun, Failure, Selected, Selection, Yes, act, note_failure, pick, sure
from perdure.cli.which_database import AsJson, BlobsAt, Store, open_existing, open_existing_async
from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.aio import AsyncDatabase

IN_DOUBT = "in_doubt"
DECISIONS = {"done": "done", "failed": "given up"}
"""What is said of a call that was settled, by its status; any other may be made again."""


def resolve(
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="Which; or say it by options.")] = None,
    effect: Annotated[
        str | None,
        typer.Argument(
            metavar="[EFFECT]", help="Which call; without it those in doubt are listed, or all settled as is said."
        ),
    ] = None,
    store: Store = None,
    blobs: BlobsAt = None,
    done: Annotated[
        str | None, typer.Option(metavar="JSON", help="It happened, and this was its result.", show_default=False)
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="It did not happen: it may be made again.")] = False,
    abort: Annotated[bool, typer.Option("--abort", help="It did not happen, and is given up.")] = False,
    by: By = None,
    branch: Branch = MAIN,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="All in doubt of this agent.")] = None,
    owner: Annotated[str | None, typer.Option(metavar="NAME", help="All in doubt of this owner.")] = None,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="All with this status; in_doubt, if only others are said.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Say what became of a call that was started and whose outcome nobody knows; or of all of them in many sessions."""
    verdicts = [name for name, said in (("done", done is not None), ("retry", retry), ("abort", abort)) if said]
    if session is not None and effect is None and not (verdicts or dry_run):
        with open_existing(store, blobs) as db:
            list_open(db, session, branch, as_json)
        return
    if len(verdicts) > 1 or not (verdicts or dry_run):
        raise InvalidInput("say what became of it: exactly one of --done JSON, --retry and --abort")
    said: dict[str, Any] = {"by": by or user_name(), "verdict": verdicts[0] if verdicts else "retry"}
    if done is not None:
        said["result"] = json_or_text(done)

    def on_db(work: Callable[[AsyncDatabase], Awaitable[Any]]) -> Any:
        async def opened() -> Any:
            async with open_existing_async(store, blobs) as db:
                return await work(db)

        return asyncio.run(opened())

    if session is not None and effect is not None:
        if dry_run or agent or owner or status:
            raise InvalidInput("one call is named: --dry-run and the options for many sessions do not go with it")
        from perdure.fleet.status import settle

        record = on_db(lambda db: settle(db, session, effect, branch, **said))
        _tell(record, session, branch, as_json)
        return
    if session is None and not (agent or owner or status):
        raise InvalidInput("say which sessions: name one, or use --agent, --owner or --status in_doubt for all of them")
    if session is not None and (agent or owner or status):
        raise InvalidInput("a session is named: --agent, --owner and --status are for many")
    with open_existing(store, blobs) as db:
        chosen = Selection([session] if session is not None else None, agent, owner, status or IN_DOUBT)
        picked = pick(db, chosen)
    failed: list[Failure] = []

    def settle_batch(batch: list[Selected]) -> int:
        return on_db(lambda db: _settle_each(db, batch, said, failed))

    if dry_run or not picked or sure(yes, f"settle all calls in doubt of {len(picked)} sessions as {said['verdict']}"):
        act(picked, "resolve", settle_batch, dry_run=dry_run, as_json=as_json, failed=failed)


def _tell(record: dict[str, Any], session: str, branch: str, as_json: bool) -> None:
    from perdure.cli.output import Out, print_json
    from perdure.shapes.approvals import effect

    if as_json:
        print_json(effect(record, session, branch))
    else:
        Out().line(f"{record['id']}: {DECISIONS.get(record['status'], 'to be made again')}")


async def _settle_each(
    db: AsyncDatabase, batch: list[Selected], said: dict[str, Any], failed: list[Failure]
) -> int:  # fmt: skip
    """Settle the calls of each; one that is being written, or is gone, keeps nobody from the others."""
    from perdure.errors import PerdureError
    from perdure.fleet.status import settle_all

    changed = 0
    for one in batch:
        try:
            changed += bool(await settle_all(db, one.session, **said))
        except PerdureError as error:
            note_failure(failed, one, error)
    return changed
