"""``perdure approve``, ``reject``, ``answer`` and ``cancel``: what people decide about a session."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from perdure.cli.session_selection import DryRun, Failure, Selected, Selection, act, each, pick
from perdure.cli.which_database import AsJson, BlobsAt, Store, open_existing
from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.cli.session_at import Opened
    from perdure.database import Database

MAIN = "main"

Session = Annotated[str, typer.Argument(metavar="SESSION")]
Approval = Annotated[
    str | None, typer.Argument(metavar="[APPROVAL]", help="Which one; without it those that wait are listed.")
]
By = Annotated[
    str | None, typer.Option(metavar="NAME", help="Who decides; your user name if not said.", show_default=False)
]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; it is recorded.", show_default=False)]
Branch = Annotated[str, typer.Option(metavar="NAME", help="The branch that is looked at.")]


def approve(
    session: Session,
    approval: Approval = None,
    store: Store = None,
    blobs: BlobsAt = None,
    by: By = None,
    reason: Reason = "",
    edit: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Agree to other arguments: the whole object.", show_default=False),
    ] = None,
    branch: Branch = MAIN,
    as_json: AsJson = False,
) -> None:
    """Agree to a call that waits for it, once, exactly as it was asked."""
    args: Any = None if edit is None else _json(edit, "--edit")
    if args is not None and not isinstance(args, dict):
        raise InvalidInput("--edit takes the call's arguments as an object, such as '{\"amount\": 60}'")
    with open_existing(store, blobs) as db:
        if approval is None:
            list_open(db, session, branch, as_json)
            return
        db.approve(session, approval, by=by or user_name(), reason=reason, args=cast("dict[str, Any] | None", args))
    _tell(as_json, session, approval, "approved")


def reject(
    session: Session,
    approval: Approval = None,
    store: Store = None,
    blobs: BlobsAt = None,
    by: By = None,
    reason: Reason = "",
    branch: Branch = MAIN,
    as_json: AsJson = False,
) -> None:
    """Refuse a call that waits for agreement, or the answer to a question."""
    with open_existing(store, blobs) as db:
        if approval is None:
            list_open(db, session, branch, as_json)
            return
        db.reject(session, approval, by=by or user_name(), reason=reason)
    _tell(as_json, session, approval, "rejected")


def answer(
    session: Session,
    approval: Approval = None,
    value: Annotated[str | None, typer.Argument(metavar="[VALUE]", help="JSON; anything else is text.")] = None,
    store: Store = None,
    blobs: BlobsAt = None,
    by: By = None,
    reason: Reason = "",
    branch: Branch = MAIN,
    as_json: AsJson = False,
) -> None:
    """Answer a question that a tool has put."""
    with open_existing(store, blobs) as db:
        if approval is None:
            list_open(db, session, branch, as_json)
            return
        if value is None:
            raise InvalidInput("an answer is missing: perdure answer SESSION APPROVAL VALUE")
        db.answer(session, approval, json_or_text(value), by=by or user_name(), reason=reason)
    _tell(as_json, session, approval, "answered")


def cancel(
    sessions: Annotated[list[str] | None, typer.Argument(metavar="[SESSION]...", help="Which; or use options.")] = None,
    store: Store = None,
    blobs: BlobsAt = None,
    by: By = None,
    reason: Reason = "",
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="All sessions of this agent.")] = None,
    owner: Annotated[str | None, typer.Option(metavar="NAME", help="All sessions of this owner.")] = None,
    status: Annotated[str | None, typer.Option(metavar="STATUS", help="All sessions with this status.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Stop agents: they end as soon as they notice, and go on only with a new message."""
    with open_existing(store, blobs) as db:
        who = by or user_name()

        failed: list[Failure] = []

        def stop(batch: list[Selected]) -> int:
            return each(batch, lambda chosen: db.cancel(chosen.session, by=who, reason=reason), failed)

        picked = pick(db, Selection(sessions, agent, owner, status))
        act(picked, "cancel", stop, dry_run=dry_run, as_json=as_json, failed=failed)


def list_open(db: Database, session: str, branch: str, as_json: bool) -> None:
    """What waits for somebody in a session, with what to type."""
    from perdure.cli.output import Out, print_json
    from perdure.cli.session_at import open_matters, open_place
    from perdure.cli.terminal_text import brief, cut
    from perdure.shapes.approvals import waiting
    from perdure.system.wording import ago

    opened = open_place(db, session, branch)
    if as_json:
        print_json(waiting(opened.reading, opened.row.id, branch))
        return
    effects, approvals = open_matters(opened.reading)
    out, now = Out(), db.kernel.clock.wall()
    for a in approvals:
        asked = f"{cut(a['tool'], 60)} {brief(a['args'])}"
        if a.get("question"):
            out.line(f"{a['id']}: {asked} asks: {cut(a['question'], 300)}", "yellow")
        else:
            out.line(f"{a['id']}: {asked} waits for agreement", "yellow")
        for name in ("because", "facts", "schema"):
            if a.get(name) is not None and a[name] != "":
                out.line(f"  {name}: {brief(a[name], 300)}")
        out.line(f"  asked {ago(a['asked'], now)}, expires {ago(a['expires'], now)}", "dim")
        words = "answer {} VALUE" if a.get("question") else "approve {}"
        typed = words.format(f"{shlex.quote(opened.row.id)} {a['id']}")
        out.line(f"  perdure {cut(typed, 400)}   (or reject)", "dim")
    for e in effects:
        why = f", ended with {cut(e['error'], 60)}" if e.get("error") else ""
        out.line(f"{e['id']}: {cut(e['tool'], 60)} {brief(e['args'])} is {e['status']}{why}", "bold red")
    if not approvals and not effects:
        where = "" if branch == MAIN else f" on branch {cut(branch, 80)}"
        out.line(f"nothing in {cut(opened.row.id, 200)} waits for anybody{where}")
    for name, number in _elsewhere(db, opened, branch):
        waits = "1 more waits" if number == 1 else f"{number} more wait"
        out.line(f"{waits} on branch {cut(name, 80)}: see it with --branch {cut(shlex.quote(name), 100)}", "yellow")


def _elsewhere(db: Database, opened: Opened, branch: str) -> list[tuple[str, int]]:
    """How much waits on other branches than the one that is looked at, each request once."""
    from perdure.cli.session_at import known_matters, open_matters, open_place

    # A branch has the requests of the line it parted from: what is known here already is not its own.
    seen, found = known_matters(opened.reading), list[tuple[str, int]]()
    for name in opened.row.branches:
        if name == branch:
            continue
        reading = open_place(db, f"{opened.row.id}@", name).reading
        effects, approvals = open_matters(reading)
        number = sum(one["id"] not in seen for one in (*effects, *approvals))
        seen |= known_matters(reading)
        if number:
            found.append((name, number))
    return found


def _tell(as_json: bool, session: str, approval: str, decision: Literal["approved", "rejected", "answered"]) -> None:
    from perdure.cli.output import Out, print_json
    from perdure.cli.terminal_text import cut
    from perdure.shapes.approvals import Decided

    if as_json:
        print_json(Decided(session=session, id=approval, decision=decision))
    else:
        Out().line(f"{cut(approval or session, 200)}: {decision}")


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as e:
        raise InvalidInput(f"{what} is not JSON: {e}") from None


def json_or_text(text: str) -> Any:
    """A value as it is typed: JSON, and anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def user_name() -> str:
    """Who types this."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        raise InvalidInput("a decision records who took it: pass --by") from None
