"""``perdure ls``, ``show``, ``why``, ``stats`` and ``tail``: sessions, what they hold, do, and why they stand still."""

from __future__ import annotations

import re
import sys
import time
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from perdure.cli.options import AsJson, BlobsAt, Place, Session, Store
from perdure.cli.output import STOPPED, Out, print_json, print_line, print_raised, print_traceback
from perdure.cli.session_at import NOBODY_DECIDED, in_words, open_matters, open_place
from perdure.cli.session_selection import check_one_of
from perdure.cli.terminal_text import Shown, call_in_full, cut
from perdure.cli.which_database import open_existing, open_existing_async
from perdure.errors import InvalidInput, NotFound
from perdure.fleet.inputs import SHOWN, inputs, waiting_counted
from perdure.fleet.why.lists import trouble
from perdure.fleet.why.reading import why as look_into
from perdure.history.expiry import BEGUN, living
from perdure.history.reader import NOW
from perdure.model import MAIN, TAG_PREFIX, Status
from perdure.session.calls.decisions import pending, undecided
from perdure.session.calls.records import exception_of
from perdure.session.handover import fleet_of, works_of
from perdure.shapes import store as store_shapes
from perdure.shapes.basics import Page
from perdure.shapes.events import changes, run_event
from perdure.shapes.sessions import session_row, session_state, step_of
from perdure.shapes.sessions import why as why_shape
from perdure.system.commands import quoted, typed
from perdure.system.lease_holders import describe
from perdure.system.names import check_session
from perdure.system.times import ago, when
from perdure.system.wording import count, sessions_stored, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.agent.session_stream import Event
    from perdure.cli.chat import Screen
    from perdure.cli.session_at import Matters, Opened
    from perdure.database import Database
    from perdure.fleet.inputs import Input
    from perdure.model import Change, SessionRow
    from perdure.shapes.store import Store as Held

SORTS = ("id", "updated", "created", "owner", "agent", "status", "step", "inbox")
KEPT = ("id", "updated")
"""Orders that stores keep themselves."""
MOST = 100_000
"""Sessions that are read to put them in an order that stores do not keep."""
PAUSE = 1.0
FAILED = ("failed", "in_doubt")
_UNITS = {"s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_STYLES = {"in_doubt": "bold red", "failed": "red", "waiting_approval": "yellow", "running": "green", "closed": "dim"}
_SEVERITIES = {"ok": "green", "wait": "", "failing": "bold red", "act": "bold yellow"}


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
    label: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only sessions that their program has labelled so.")
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
    check_one_of("status", status, list(Status))
    if watch and as_json:
        raise InvalidInput(f"--watch is for people: programs follow what happens with {typed('tail --json')}")
    sort = "updated" if newest else check_one_of("order", sort, SORTS)
    if after is not None and sort not in KEPT:
        raise InvalidInput("--after goes with --sort id or updated: other orders are made anew each time")
    since = parse_age(age) if age is not None else None
    chosen: dict[str, Any] = {
        "owner": owner, "status": status, "agent": agent, "error": error, "label": label, "search": search,
    }  # fmt: skip
    filtered = any(value is not None for value in (*chosen.values(), tag, age, failed_step, after))
    with open_existing(store, blobs) as db:

        def look() -> list[SessionRow]:
            bounds = since.bounds(db.kernel.clock.wall()) if since is not None else {}
            fits = sieve(db, tag, failed_step)
            # One more than wanted tells whether there is more.
            return _listed(db, everything, limit + 1, after, sort, fits, **chosen, **bounds)

        def show_rows(rows: list[SessionRow]) -> None:
            following = go_on = None
            if len(rows) > limit and sort in KEPT:
                following = rows[limit - 1].cursor if sort == "updated" else rows[limit - 1].id
                go_on = typed(f"ls {'--newest ' if sort == 'updated' else ''}--after {quoted(following)}")
            elif len(rows) > limit:
                go_on = "a larger --limit shows them"
            if as_json:
                print_json(Page(items=[session_row(row) for row in rows[:limit]], next=following))
            else:
                works = works_of(db.kernel.store, [row.id for row in rows[:limit]])
                fleet = fleet_of(db.kernel.store, works)
                notes = [trouble(row, works.get(row.id), fleet) for row in rows[:limit]]
                _print_rows(rows[:limit], notes, db.kernel.clock.wall(), go_on, filtered=filtered)

        if not watch:
            show_rows(look())
            return
        seen: list[SessionRow] | None = None
        try:
            while True:
                if (rows := look()) != seen:
                    Out().clear()
                    show_rows(rows)
                    seen = rows
                time.sleep(PAUSE)
        except KeyboardInterrupt:
            raise typer.Exit(STOPPED) from None


def _listed(
    db: Database, everything: bool, most: int, after: str | None, sort: str,
    fits: Callable[[SessionRow], bool] | None, **chosen: Any,
) -> list[SessionRow]:  # fmt: skip
    """So many sessions; results that are shared between sessions are kept in such, too, and are not what is meant."""
    from perdure.session.calls.read_cache import PREFIX

    newest, native = sort == "updated", sort in KEPT
    wanted = most if native else MOST
    page_size = min(wanted, 1000) if fits is not None or not native else most
    found: list[SessionRow] = []
    while len(found) < wanted:
        page = db.sessions(after=after, limit=page_size, newest=newest, **chosen)
        named = [row for row in waiting_counted(db.kernel, page) if everything or not row.id.startswith(PREFIX)]
        found += named if fits is None else [row for row in named if fits(row)]
        if len(page) < page_size:
            break
        after = page[-1].cursor if newest else page[-1].id
    return (found if native else in_order(found, sort))[:most]


def _print_rows(rows: list[SessionRow], notes: list[str], now: int, go_on: str | None, *, filtered: bool) -> None:
    out = Out()
    if not rows:
        out.line("no session matches" if filtered else "no sessions yet")
        return
    table: list[list[str]] = []
    agents, noted, labels = any(row.agent for row in rows), any(notes), any(row.label for row in rows)
    for row, note in zip(rows, notes, strict=True):
        table.append(
            [
                cut(row.id, 60),
                cut(row.owner, 30) or "-",
                *([cut(row.agent, 30) or "-"] if agents else []),
                cut(row.status, 20),
                *([cut(row.label, 40) or "-"] if labels else []),
                str(step_of(row) or "-"),
                str(len(row.branches)),
                str(row.pending or "-"),
                ago(row.updated, now),
                "never" if row.expires is None else ago(row.expires, now),
                cut(describe(row.lease.holder), 40) if row.lease.holder else "-",
                *([cut(note, 80) or "-"] if noted else []),
            ]
        )
    named, said = ("AGENT",) if agents else (), ("NOTE",) if noted else ()
    standing = ("STATUS", "LABEL") if labels else ("STATUS",)
    header = ("SESSION", "OWNER", *named, *standing, "STEP", "BRANCHES", "INBOX", "UPDATED", "EXPIRES", "WRITER", *said)
    styles = ["bold red" if note else _STYLES.get(row.status, "") for row, note in zip(rows, notes, strict=True)]
    out.table(header, table, styles)
    if go_on is not None:
        out.line(f"there are more: {cut(go_on, 1000)}", "dim")


def show(
    place: Place,
    store: Store = None,
    blobs: BlobsAt = None,
    branch: Annotated[str, typer.Option(metavar="NAME", help="The branch a step is counted on.")] = MAIN,
    full: Annotated[bool, typer.Option("--full", help="Leave nothing out, however long it is.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the state of a session, now or at any moment of its past. Takes no lease."""
    with open_existing(store, blobs) as db:
        opened = open_place(db, place, branch)
        if as_json:
            reading = opened.reading
            book, line = reading.book, reading.checkpoint.line
            open_ = pending(book, line) if opened.is_past else undecided(db.kernel, opened.row, book, line)
            (row,) = waiting_counted(db.kernel, [opened.row])
            print_json(session_state(row, reading, branch, open_))
        else:
            # What waits now is nothing of the past.
            listed = [] if opened.is_past else db.kernel.store.inbox(opened.row.id, SHOWN)
            waiting = inputs(db.kernel, listed)
            _print_state(opened, open_matters(db, opened), waiting, db.kernel.clock.wall(), full=full)


def _print_state(opened: Opened, matters: Matters, waiting: list[Input], now: int, *, full: bool) -> None:
    out, c = Out(), opened.reading.checkpoint
    out.line(f"{cut(opened.row.id, 200)}@{c.step} on {cut(c.branch, 200)}", "bold")
    out.line(
        f"{cut(c.status, 40)}, {cut(c.kind, 40)}, {when(c.at)} ({ago(c.at, now)}), owner {cut(c.owner, 80) or '-'}"
    )
    if label := c.more.get("label"):
        out.line(f"labelled {cut(str(label), 200)}")
    out.line(f"id {c.id}, schema {cut(c.schema, 40)}, digest {c.digest[:16]}…")
    if opened.row.expires is not None and opened.row.over:
        ran_out = ago(opened.row.expires, opened.row.now)
        if any(e["status"] in BEGUN for e in matters.effects):
            kept = "nobody knows what became of a call"
        elif opened.row.pending:
            kept = "something waits in its inbox that came in time"
        else:
            kept = "its checkpoints live longer"
        out.line(f"its time ran out {ran_out}, and no sweep takes it: {kept}", "yellow")
    waits = "waited" if opened.is_past else "waits"
    shown = Shown(full=full)

    def print_call(kind: str, record: dict[str, Any], said: str, style: str) -> None:
        call, more = call_in_full(record["tool"], record["args"], shown)
        out.line(f"{kind} {record['id']}: {call} {said}", style)
        out.lines(more)

    for e in matters.effects:
        told = matters.reported.get(e["id"], "")
        print_call("effect", e, in_words(e, opened, now, told), "dim" if told else "bold red")
        print_traceback(out, exception_of(e))
    print_raised(out, matters.raised)
    for said in matters.misfits:
        out.line(cut(said, 500), "yellow")
    for a in matters.approvals:
        print_call("approval", a, f"{waits} for a decision", "yellow")
    for a in matters.late:
        print_call("approval", a, NOBODY_DECIDED, "yellow")
    for a, said in matters.decided:
        print_call("approval", a, f"was {cut(said, 300)}", "yellow")
    _print_inputs(out, waiting, now)
    for line in shown.lines(opened.reading.plain()):
        out.line(line, fold=full)
    if shown.shortened:
        out.line("shortened: --full shows everything, --json is for programs", "dim")


class Age(NamedTuple):
    """How long ago a session was written last."""

    ms: int
    older: bool

    def bounds(self, now: int) -> dict[str, int]:
        """What a store is asked for."""
        return {"before": now - self.ms} if self.older else {"since": now - self.ms}


def parse_age(text: str) -> Age:
    """``2h``: written in the last two hours; ``+2h``: not since.

    >>> parse_age("2h"), parse_age("+90s")
    (Age(ms=7200000, older=False), Age(ms=90000, older=True))
    """
    found = re.fullmatch(r"(\+?)([0-9]{1,9})(s|m|min|h|d|w)", text)
    if found is None:
        raise InvalidInput(f"--age {text!r:.40} is no time: write 30min, 2h or 7d; +2h for longer ago than that")
    return Age(int(found[2]) * _UNITS[found[3]], bool(found[1]))


def in_order(rows: list[SessionRow], sort: str) -> list[SessionRow]:
    """Text from a to z; times, steps and inboxes with the largest first."""
    if sort in ("owner", "agent", "status"):
        return sorted(rows, key=lambda r: (getattr(r, sort), r.id))
    largest: dict[str, Callable[[SessionRow], int]] = {
        "created": lambda r: r.created,
        "step": step_of,
        "inbox": lambda r: r.pending,
    }
    return sorted(rows, key=lambda r: (-largest[sort](r), r.id))


def sieve(db: Database, tag: str | None, failed: str | None) -> Callable[[SessionRow], bool] | None:
    """Whether a session has a tag, and has failed at a step; None when nothing of that is asked."""
    if tag is None and failed is None:
        return None

    def fits(row: SessionRow) -> bool:
        if tag is not None and not any(h.branch == TAG_PREFIX + tag for h in row.heads):
            return False
        return failed is None or _failed_at(db, row, failed)

    return fits


def _failed_at(db: Database, row: SessionRow, failed: str) -> bool:
    if row.status not in FAILED:
        return False
    if failed.isascii() and failed.isdigit():
        return step_of(row) == int(failed[:18])
    try:
        opened = open_place(db, f"{row.id}@")
    except NotFound:
        # It has gone since it was listed.
        return False
    tools: set[Any] = {e["tool"] for e in open_matters(db, opened).effects if e["status"] == "in_doubt"}
    return failed in tools | {opened.reading.checkpoint.more.get("tool")}


def why(
    session: Session,
    store: Store = None,
    blobs: BlobsAt = None,
    branch: Annotated[str, typer.Option(metavar="NAME", help="Which branch.")] = MAIN,
    as_json: AsJson = False,
) -> None:
    """Say why a session is where it is, and what to do next. Takes no lease and changes nothing."""
    with open_existing(store, blobs) as db:
        found = look_into(db, session, branch=branch)
        waiting = inputs(db.kernel, db.kernel.store.inbox(session, SHOWN)) if branch == MAIN else []
        now = db.kernel.clock.wall()
    if as_json:
        print_json(why_shape(found, session, branch, waiting))
        return
    out = Out()
    out.line(cut(str(found), 1000), _SEVERITIES[found.severity])
    if (wish := found.objective) is not None:
        how = f": {wish['note']}" if wish["note"] else ""
        out.line(cut(f"objective, {wish['status'].replace('_', ' ')}{how}: {wish['text']}", 1000), "dim")
    print_traceback(out, found.error)
    for action in found.actions:
        for command in (action.command, *action.others):
            if command:
                out.line(f"  {cut(command, 1000)}", "dim")
    _print_inputs(out, waiting, now)


def _print_inputs(out: Out, waiting: list[Input], now: int) -> None:
    """What was posted and waits: a customer's question is seen before it is answered."""
    for one in waiting:
        out.line(f"waiting: {one.kind}, {ago(one.at, now)}{': ' if one.text else ''}{cut(one.text, 300)}", "yellow")


def stats(store: Store = None, blobs: BlobsAt = None, as_json: AsJson = False) -> None:
    """Count sessions by status, agent and error, and say how much the store holds and what its fleet does."""
    with open_existing(store, blobs) as db:
        found = store_shapes.store(db, db.counts())
    if as_json:
        print_json(found)
    else:
        _print_stats(found)


def _print_stats(found: Held) -> None:
    out = Out()
    out.line(cut(found.url, 400), "bold")
    held = f"{sessions_stored(found.sessions, found.set_aside)}, {count(found.checkpoints, 'checkpoint')}"
    out.line(f"{held}, {size(found.bytes)}")
    out.line(found.promise.words, "dim")
    for title, numbers, style in (
        ("status", found.statuses, ""), ("agents", found.agents, ""), ("errors", found.errors, "red"),
    ):  # fmt: skip
        if numbers:
            shown = ", ".join(f"{number} {cut(name, 60)}" for name, number in list(numbers.items())[:20])
            out.line(f"{title}: {shown}" + (f", and {len(numbers) - 20} more" if len(numbers) > 20 else ""), style)
    fleet = found.fleet
    if not (fleet.workers or fleet.states):
        return
    states = "".join(f", {n} {state}" for state, n in sorted(fleet.states.items()))
    living = sum(not worker.has_died for worker in fleet.workers)
    out.line(f"fleet: {count(living, 'worker')}, {fleet.busy} of {fleet.concurrency} places busy{states}")
    for names, what in ((fleet.unserved_agents, "no worker serves"), (fleet.held_agents, "held:")):
        if names:
            out.line(f"{what} {cut(', '.join(names), 300)}", "yellow")


def tail(
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="Only this one, word by word.")] = None,
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
    import asyncio

    if session is not None and (since is not None or everything):
        raise InvalidInput("--since and --all go without SESSION; with one say --after STEP")
    if session is None and after is not None:
        raise InvalidInput("--after goes with SESSION; without one say --since CURSOR")
    if since is not None and everything:
        raise InvalidInput("--since names where to begin, and --all the beginning: say one of them")
    try:
        if session is None:
            with open_existing(store, blobs) as db:
                _tail_changes(db, None if everything else NOW if since is None else since, once=once, as_json=as_json)
        else:
            # Digits alone are a step; a position has dots.
            begin = int(after) if after is not None and after.isdecimal() and len(after) < 16 else after
            asyncio.run(_tail_session(session, store, blobs, begin, once=once, as_json=as_json))
    except KeyboardInterrupt:
        raise typer.Exit(STOPPED) from None


def _tail_changes(db: Database, after: str | None, *, once: bool, as_json: bool) -> None:
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
    where = cut(change.session, 80) + (f" on {cut(change.branch, 60)}" if change.branch != MAIN else "")
    words = f"{when(change.at)}  {where}@{change.step}  {cut(change.kind, 20)}  {cut(change.status, 20)}"
    Out().line(words, _STYLES.get(change.status, ""))


async def _tail_session(
    session: str, store: str | None, blobs: str | None, after: int | str | None, *, once: bool, as_json: bool
) -> None:
    from perdure.agent.session_stream import SessionReader, follow
    from perdure.cli.chat import Screen

    screen = None if as_json else Screen()

    def show(event: Event) -> None:
        if screen is None:
            print_line(run_event(event))
        else:
            _show_event(screen, event)
            sys.stdout.flush()

    async with open_existing_async(store, blobs) as db:
        await db.driver.call(living, db.kernel, check_session(session))
        if once:
            reader = SessionReader(db.kernel, session)
            for event in chain(reader.begin(after), reader.read()):
                show(event)
        else:
            async for event in follow(db, session, after=after):
                show(event)
    if screen is not None:
        screen.end_line()


def _show_event(screen: Screen, event: Event) -> None:
    if event.kind == "step":
        data = event.data
        about = " ".join(cut(str(data[k]), 80) for k in ("tool", "error", "note") if data.get(k))
        screen.line(f"· step {event.step}: {cut(data['kind'], 20)} {about}".rstrip(), "dim")
    elif event.kind == "ended":
        screen.line(f"({cut(str(event.data.get('status', '')), 40)} at step {event.step})", "dim")
    else:
        screen.event(event)
