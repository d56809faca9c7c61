"""``perdure inbox``: what was said to a session and is not answered; taken back, or changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.approvals import user_name
from perdure.cli.options import AsJson, BlobsAt, By, Reason, Session, Store
from perdure.cli.output import Out, print_json, tell
from perdure.cli.terminal_text import cut
from perdure.cli.which_database import open_existing
from perdure.errors import InvalidInput
from perdure.model import MAIN
from perdure.session.waiting_messages import UNSAID, unsaid_words
from perdure.shapes.basics import Page
from perdure.shapes.work import amended, inbox_message
from perdure.system.times import ago
from perdure.system.wording import size

if TYPE_CHECKING:
    from perdure.database import Database
    from perdure.shapes.work import InboxMessage


def inbox(
    session: Session,
    withdraw: Annotated[
        str | None, typer.Option(metavar="KEY", help="Take this message back: no agent is told it any more.")
    ] = None,
    edit: Annotated[
        str | None, typer.Option(metavar="KEY", help="Have this message say something else, with --message.")
    ] = None,
    message: Annotated[str | None, typer.Option(metavar="TEXT", help="With --edit: what it says instead.")] = None,
    store: Store = None,
    blobs: BlobsAt = None,
    by: By = None,
    reason: Reason = "",
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="How many are listed at most.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List what was said to a session and is not answered: what waits, and what an unfinished run has taken.

    With --withdraw or --edit a message is taken back or changed, such as one that the model's provider refuses. Nobody
    may be answering it at that moment; who did it stays in the session's history.
    """
    if withdraw is not None and edit is not None:
        raise InvalidInput("--withdraw and --edit exclude each other: say one of them")
    if (edit is None) != (message is None):
        raise InvalidInput("--edit KEY and --message TEXT go together: which message, and what it says instead")
    key = withdraw if withdraw is not None else edit
    if key is None and (by is not None or reason):
        raise InvalidInput("--by and --reason go with --withdraw or --edit")
    with open_existing(store, blobs) as db:
        if key is None:
            listed = db.inbox(session, limit=limit)
            found, now = [inbox_message(m) for m in listed], db.kernel.clock.wall()
            whens = [ago(m.at, now) for m in listed]
        else:
            who = by or user_name()
            done = (
                db.withdraw(session, key, by=who, reason=reason)
                if edit is None
                else db.edit(session, key, message, by=who, reason=reason)
            )
            did = "withdrawn" if edit is None else "edited"
            before = "" if done.new else " before"
            words = f"{cut(session, 200)}: {cut(key, 200)} {did}{before}. {cut(done.handover.words, 1000)}"
            tell(as_json, amended(session, key, did, done), words)
            return
        unsaid = "" if found else _unsaid(db, session)
    if as_json:
        print_json(Page(items=found, next=None))
    else:
        _print(found, whens, unsaid)


def _unsaid(db: Database, session: str) -> str:
    """What a rewind has left behind where the session still stands."""
    row = db.look(session)
    if not any(head.branch == MAIN for head in row.heads):
        return ""
    return unsaid_words(db.read(session, migrate=False).checkpoint.more.get(UNSAID, ()))


def _print(found: list[InboxMessage], whens: list[str], unsaid: str) -> None:
    out = Out()
    if not found:
        nothing = "nothing waits in it"
        out.line(
            cut(f"{nothing}. {unsaid}.", 1000) if unsaid else f"{nothing}, and nothing that was said is unanswered"
        )
        return
    rows = [
        [
            cut(m.key, 60), cut(m.kind, 20), cut(m.role, 20) or "-",
            f"taken at step {m.taken_at_step}" if m.taken_at_step is not None else "waits",
            when, size(m.size_bytes), cut(m.edited_by, 30) or "-", cut(m.text, 60),
        ]
        for m, when in zip(found, whens, strict=True)
    ]  # fmt: skip
    out.table(("KEY", "KIND", "ROLE", "STANDS", "WHEN", "SIZE", "EDITED BY", "SAYS"), rows)
