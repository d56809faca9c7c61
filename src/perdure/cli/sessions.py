"""``perdure ls`` and ``perdure show``: which sessions there are, and what one of them holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.which_database import AsJson, BlobsAt, Store, open_existing

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.cli.session_at import Opened
    from perdure.database import Database
    from perdure.model import SessionRow

MAIN = "main"
_ORDERED = {"updated": "--newest "}
_STYLES = {"in_doubt": "bold red", "failed": "red", "waiting_approval": "yellow", "running": "green", "closed": "dim"}


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
    tag: Annotated[str | None, typer.Option(metavar="NAME", help="Only sessions that have this tag.")] = None,
    age: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only those written in the last 30min, 2h, 7d; +2h: not since then."),
    ] = None,
    failed_step: Annotated[
        str | None,
        typer.Option(metavar="STEP", help="Only those that failed, or are in doubt, at this step or in this tool."),
    ] = None,
    sort: Annotated[
        str, typer.Option(metavar="BY", help="id, updated, created, owner, agent, status, step or inbox.")
    ] = "id",
    newest: Annotated[
        bool, typer.Option("--newest", help="Those that were written last come first: --sort updated.")
    ] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="How many at most.")] = 100,
    after: Annotated[
        str | None, typer.Option(metavar="SESSION", help="Go on after this session id; with --newest, this cursor.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Results that sessions share, too.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show them again whenever something changes.")] = False,
    as_json: AsJson = False,
) -> None:
    """List sessions in order of id, or another one, with what waits in their inboxes."""
    from perdure.cli.output import Out, print_json
    from perdure.cli.session_filters import again_and_again, check_sort, parse_age, sieve
    from perdure.errors import InvalidInput
    from perdure.model import Status
    from perdure.shapes.basics import Page
    from perdure.shapes.sessions import session_row

    if status is not None and status not in list(Status):
        raise InvalidInput(f"there is no status {status[:40]!r}: it is one of {', '.join(Status)}")
    if watch and as_json:
        raise InvalidInput("--watch is for people: programs follow what happens with perdure tail --json")
    sort = "updated" if newest else check_sort(sort)
    if after is not None and sort not in ("id", "updated"):
        raise InvalidInput("--after goes with --sort id or updated: other orders are made anew each time")
    since = parse_age(age) if age is not None else None
    chosen: dict[str, Any] = {"owner": owner, "status": status, "agent": agent, "error": error, "search": search}
    filtered = any(value is not None for value in (*chosen.values(), tag, age, failed_step, after))
    with open_existing(store, blobs) as db:

        def look() -> list[SessionRow]:
            bounds = since.bounds(db.kernel.clock.wall()) if since is not None else {}
            fits = sieve(db, tag, failed_step)
            # One more than wanted tells whether there is more.
            return _listed(db, everything, limit + 1, after, sort, fits, **chosen, **bounds)

        def show_rows(rows: list[SessionRow]) -> None:
            following = _following(rows, limit, sort)
            if as_json:
                print_json(Page(items=[session_row(row) for row in rows[:limit]], next=following))
                return
            go_on = None if following is None else f"perdure ls {_ORDERED.get(sort, '')}--after {following}"
            if len(rows) > limit and following is None:
                go_on = "a larger --limit shows them"
            _print_rows(rows[:limit], db.kernel.clock.wall(), go_on, filtered=filtered)

        if not watch:
            show_rows(look())
            return
        try:
            again_and_again(look, show_rows, Out().clear)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _following(rows: list[SessionRow], limit: int, sort: str) -> str | None:
    """What to say to go on after the last of them."""
    if len(rows) <= limit or sort not in ("id", "updated"):
        return None
    return rows[limit - 1].cursor if sort == "updated" else rows[limit - 1].id


def _listed(
    db: Database, everything: bool, most: int, after: str | None, sort: str,
    fits: Callable[[SessionRow], bool] | None, **chosen: Any,
) -> list[SessionRow]:  # fmt: skip
    """So many sessions; results that are shared between sessions are kept in such, too, and are not what is meant."""
    from perdure.cli.session_filters import MOST, in_order
    from perdure.session.read_cache import PREFIX

    newest, native = sort == "updated", sort in ("id", "updated")
    wanted = most if native else MOST
    page_size = min(wanted, 1000) if fits is not None or not native else most
    found: list[SessionRow] = []
    while len(found) < wanted:
        page = db.sessions(after=after, limit=page_size, newest=newest, **chosen)
        named = [row for row in page if everything or not row.id.startswith(PREFIX)]
        found += named if fits is None else [row for row in named if fits(row)]
        if len(page) < page_size:
            break
        after = page[-1].cursor if newest else page[-1].id
    return (found if native else in_order(found, sort))[:most]


def _print_rows(rows: list[SessionRow], now: int, go_on: str | None, *, filtered: bool) -> None:
    from perdure.cli.output import Out
    from perdure.cli.terminal_text import cut
    from perdure.shapes.sessions import step_of
    from perdure.system.lease_holders import describe
    from perdure.system.wording import ago

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
                str(step_of(row) or "-"),
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
        out.line(f"there are more: {cut(go_on, 200)}", "dim")


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
    from perdure.cli.session_at import open_place
    from perdure.shapes.sessions import session_state

    with open_existing(store, blobs) as db:
        opened = open_place(db, place, branch)
        if as_json:
            print_json(session_state(opened.row, opened.reading, branch))
        else:
            _print_state(opened, db.kernel.clock.wall(), full=full)


def _print_state(opened: Opened, now: int, *, full: bool) -> None:
    from perdure.cli.output import Out
    from perdure.cli.session_at import open_matters
    from perdure.cli.terminal_text import Shown, brief, cut
    from perdure.system.wording import ago, when

    out, c = Out(), opened.reading.checkpoint
    out.line(f"{cut(opened.row.id, 200)}@{c.step} on {cut(c.branch, 200)}", "bold")
    out.line(
        f"{cut(c.status, 40)}, {cut(c.kind, 40)}, {when(c.at)} ({ago(c.at, now)}), owner {cut(c.owner, 80) or '-'}"
    )
    out.line(f"id {c.id}, schema {cut(c.schema, 40)}, digest {c.digest[:16]}…")
    if opened.row.expires is not None and opened.row.expires <= now:
        out.line(f"expired {ago(opened.row.expires, now)}: the next sweep removes it", "yellow")
    effects, approvals = open_matters(opened.reading)
    for e in effects:
        out.line(f"effect {e['id']}: {cut(e['tool'], 60)} {brief(e['args'])} is {e['status']}", "bold red")
    for a in approvals:
        out.line(f"approval {a['id']}: {cut(a['tool'], 60)} {brief(a['args'])} waits for a decision", "yellow")
    shown = Shown(full=full)
    for line in shown.lines(opened.reading.plain()):
        out.line(line, fold=full)
    if shown.shortened:
        out.line("shortened: --full shows everything, --json is for programs", "dim")
