"""``perdure post``, ``outcome`` and ``wake``: something put into a session's inbox, whoever writes the session."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from perdure.cli.approvals import json_or_text
from perdure.cli.which_database import AsJson, BlobsAt, Store, open_existing
from perdure.errors import InvalidInput

Session = Annotated[str, typer.Argument(metavar="SESSION")]
Key = Annotated[
    str | None, typer.Option(metavar="KEY", help="Makes it safe to repeat: it is put there once.", show_default=False)
]


def post(
    session: Session,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="What is said to it.")],
    store: Store = None,
    blobs: BlobsAt = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Say something to a session that is there; its agent answers when it next runs."""
    if not message:
        raise InvalidInput("the message is empty: say something")
    with open_existing(store, blobs) as db:
        db.look(session)
        new = db.post(session, message, key=key)
    _tell(as_json, session, new, "posted" if new else "was there already")


def outcome(
    session: Session,
    effect: Annotated[str, typer.Argument(metavar="EFFECT", help="The id of the call.")],
    result: Annotated[str | None, typer.Argument(metavar="[RESULT]", help="JSON; anything else is text.")] = None,
    store: Store = None,
    blobs: BlobsAt = None,
    failed: Annotated[
        str | None, typer.Option(metavar="WHY", help="It certainly did not happen, and why.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Report the outcome of a call that was to come later, or whose worker lost its lease."""
    if (result is None) == (failed is None):
        raise InvalidInput("say what became of it: its RESULT, or --failed WHY")
    with open_existing(store, blobs) as db:
        db.look(session)
        new = db.post_outcome(session, effect, None if result is None else json_or_text(result), failed=failed)
    _tell(as_json, session, new, "reported" if new else "was reported already")


def wake(
    session: Session,
    message: Annotated[str | None, typer.Argument(metavar="[MESSAGE]", help="What it is told then.")] = None,
    store: Store = None,
    blobs: BlobsAt = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Such as 2030-11-30T09:00:00+01:00.", show_default=False)
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="TIME", help="From now: 90s, 45m, 2h or 7d.", show_default=False)
    ] = None,
    cron: Annotated[
        str | None, typer.Option(metavar="CRON", help="Again and again: '0 9 * * 1-5'.", show_default=False)
    ] = None,
    zone: Annotated[str, typer.Option(metavar="ZONE", help="Whose clocks --cron means: Europe/Berlin.")] = "UTC",
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Its name: put there once, and can be cancelled by it.")
    ] = None,
    cancel: Annotated[
        str | None, typer.Option(metavar="KEY", help="Take back the one of this name instead.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Have a session told something later, or again and again."""
    ways: dict[str, Any] = {"delay": delay, "cron": cron}
    if cancel is not None and (at or delay or cron or message or key):
        raise InvalidInput("--cancel takes one back: it goes with nothing else")
    with open_existing(store, blobs) as db:
        db.look(session)
        if cancel is not None:
            db.cancel_wake(session, cancel)
            _tell(as_json, session, True, "taken back")
            return
        new = db.wake(session, _moment(at), zone=zone, message=message, key=key, **ways)
    _tell(as_json, session, new, "will be woken" if new else "was there already")


def _moment(at: str | None) -> datetime | None:
    if at is None:
        return None
    try:
        found = datetime.fromisoformat(at)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidInput(f"--at {at[:60]!r} is no time with a time zone: write 2030-11-30T09:00:00+01:00")
    return found


def _tell(as_json: bool, session: str, new: bool, words: str) -> None:
    from perdure.cli.output import Out, print_json
    from perdure.cli.terminal_text import cut
    from perdure.shapes.work import Posted

    if as_json:
        print_json(Posted(session=session, new=new))
    else:
        Out().line(f"{cut(session, 200)}: {words}")
