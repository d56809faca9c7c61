"""``perdure ls`` and ``perdure show``: which sessions there are, and what one of them holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.opening import AsJson, BlobsAt, Store, open_existing

if TYPE_CHECKING:
    from perdure.cli.places import Opened
    from perdure.database import Database
    from perdure.model import SessionRow

MAIN = "main"
_STYLES = {"in_doubt": "bold red", "failed": "red", "waiting_approval": "yellow", "running": "green", "closed": "dim"}


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("ls")(ls)
    app.command("show")(show)


def ls(
    store: Store = None,
    blobs: BlobsAt = None,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="Only sessions with this status, such as in_doubt.")
    ] = None,
    owner: Annotated[str | None, typer.Option(metavar="NAME", help="Only sessions of this owner.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only sessions of this agent.")] = None,
    error: Annotated[
        str | None, typer.Option(metavar="CLASS", help="Only sessions that stand at this error, such as ModelError.")
    ] = None,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only sessions with this in their id or owner.")
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="Those that were written last come first.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="How many at most.")] = 100,
    after: Annotated[
        str | None, typer.Option(metavar="SESSION", help="Go on after this session id; with --newest, this cursor.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Results that sessions share, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List sessions in order of id, or the newest first, with what waits in their inboxes."""
    from perdure.cli.output import print_json
    from perdure.errors import InvalidInput
    from perdure.model import Status

    if status is not None and status not in list(Status):
        raise InvalidInput(f"there is no status {status[:40]!r}: it is one of {', '.join(Status)}")
    with open_existing(store, blobs) as db:
        # One more than wanted tells whether there is more.
        rows = _listed(
            db, everything, limit + 1, after,
            owner=owner, status=status, agent=agent, error=error, search=search, newest=newest,
        )  # fmt: skip
        now = db.kernel.clock.wall()
    more, rows = len(rows) > limit, rows[:limit]
    following = None if not more else rows[-1].cursor if newest else rows[-1].id
    if as_json:
        print_json({"sessions": [row_json(row) for row in rows], "next": following})
    else:
        chosen = any(value is not None for value in (status, owner, agent, error, search, after))
        go_on = None if following is None else f"{'--newest ' if newest else ''}--after {following}"
        _print_rows(rows, now, go_on, filtered=chosen)


def _listed(db: Database, everything: bool, most: int, after: str | None, **chosen: Any) -> list[SessionRow]:
    """So many sessions; results that are shared between sessions are kept in such, too, and are not what is meant."""
    from perdure.caching import PREFIX

    found: list[SessionRow] = []
    while len(found) < most:
        page = db.sessions(after=after, limit=most, **chosen)
        found += [row for row in page if everything or not row.id.startswith(PREFIX)]
        if len(page) < most:
            break
        after = page[-1].cursor if chosen["newest"] else page[-1].id
    return found[:most]


def row_json(row: SessionRow) -> dict[str, Any]:
    """A session as programs see it; the shape is documented."""
    return {
        "id": row.id,
        "owner": row.owner,
        "status": row.status,
        "created": row.created,
        "updated": row.updated,
        "expires": row.expires,
        "step": _step(row),
        "branches": {h.branch: {"step": h.step, "id": h.id.hex()} for h in row.heads},
        "inbox": row.pending,
        "writer": row.lease.holder or None,
        "agent": row.agent,
        "error": row.error,
    }


def _step(row: SessionRow) -> int | None:
    heads = {h.branch: h.step for h in row.heads}
    return heads.get(MAIN, max(heads.values(), default=None))


def _print_rows(rows: list[SessionRow], now: int, go_on: str | None, *, filtered: bool) -> None:
    from perdure.cli.output import Out
    from perdure.cli.text import ago, cut
    from perdure.holders import describe

    out = Out()
    if not rows:
        out.line("no session matches" if filtered else "no sessions yet")
        return
    table: list[list[str]] = []
    agents = any(row.agent for row in rows)
    for row in rows:
        branches = sum(not h.branch.startswith("tags/") for h in row.heads)
        table.append(
            [
                cut(row.id, 60),
                cut(row.owner, 30) or "-",
                *([cut(row.agent, 30) or "-"] if agents else []),
                cut(row.status, 20),
                str(_step(row) or "-"),
                str(branches),
                str(row.pending or "-"),
                ago(row.updated, now),
                "never" if row.expires is None else ago(row.expires, now),
                cut(describe(row.lease.holder), 40) if row.lease.holder else "-",
            ]
        )
    named = ("AGENT",) if agents else ()
    header = ("SESSION", "OWNER", *named, "STATUS", "STEP", "BRANCHES", "INBOX", "UPDATED", "EXPIRES", "WRITER")
    out.table(header, table, [_STYLES.get(row.status, "") for row in rows])
    if go_on is not None:
        out.line(f"there are more: perdure ls {cut(go_on, 200)}", "dim")


def show(
    place: Annotated[str, typer.Argument(metavar="SESSION[@PLACE]", help="PLACE: a step, tag, branch or id.")],
    store: Store = None,
    blobs: BlobsAt = None,
    branch: Annotated[str, typer.Option(metavar="NAME", help="The branch a step is counted on.")] = MAIN,
    full: Annotated[bool, typer.Option("--full", help="Leave nothing out, however long it is.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the state of a session, now or at any moment of its past. Takes no lease."""
    from perdure.cli.output import print_json
    from perdure.cli.places import open_matters, open_place

    with open_existing(store, blobs) as db:
        opened = open_place(db, place, branch)
        effects, approvals = open_matters(opened.reading)
        state = opened.reading.plain()
        now = db.kernel.clock.wall()
    if as_json:
        checkpoint = opened.reading.checkpoint.as_dict()
        print_json({**checkpoint, "state": state, "effects": effects, "approvals": approvals})
    else:
        _print_state(opened, state, effects, approvals, now, full=full)


def _print_state(opened: Opened, state: Any, effects: list[Any], approvals: list[Any], now: int, *, full: bool) -> None:
    from perdure.cli.output import Out
    from perdure.cli.text import Shown, ago, brief, cut, when

    out, c = Out(), opened.reading.checkpoint
    out.line(f"{cut(opened.row.id, 200)}@{c.step} on {cut(c.branch, 200)}", "bold")
    out.line(
        f"{cut(c.status, 40)}, {cut(c.kind, 40)}, {when(c.at)} ({ago(c.at, now)}), owner {cut(c.owner, 80) or '-'}"
    )
    out.line(f"id {c.id}, schema {cut(c.schema, 40)}, digest {c.digest[:16]}…")
    if opened.row.expires is not None and opened.row.expires <= now:
        out.line(f"expired {ago(opened.row.expires, now)}: the next sweep removes it", "yellow")
    for e in effects:
        out.line(f"effect {e['id']}: {cut(e['tool'], 60)} {brief(e['args'])} is {e['status']}", "bold red")
    for a in approvals:
        out.line(f"approval {a['id']}: {cut(a['tool'], 60)} {brief(a['args'])} waits for a decision", "yellow")
    shown = Shown(full=full)
    for line in shown.lines(state):
        out.line(line, fold=full)
    if shown.shortened:
        out.line("shortened: --full shows everything, --json is for programs", "dim")
