"""Inputs that a session has not taken yet, as people are told of them: which of them count, and what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perdure.agent.models import text_of
from perdure.agent.models.parts import unpacked
from perdure.errors import PerdureError
from perdure.history.reported_outcomes import too_late
from perdure.session.inbox import open_edited
from perdure.session.wakes import is_of_another, sort_out
from perdure.system.wording import brief

if TYPE_CHECKING:
    from perdure.kernel import Kernel
    from perdure.model import InboxEntry, SessionRow

READ = 100
"""Entries of an inbox that are looked at."""
SHOWN = 20
"""Inputs that are told with their words."""


class Input(NamedTuple):
    """Something that was posted to a session and that it has not taken yet."""

    kind: str
    """message, wake, cron, decision, outcome, returned, failure or cancel"""
    at: int
    """When it was posted; of a timer, when it is due."""
    key: str
    text: str
    """What it says, as far as people read it."""


def waiting_in(kernel: Kernel, row: SessionRow) -> list[InboxEntry]:
    """What waits in an inbox, without what was taken back: it lies there until the next commit takes it along."""
    return _without_void(kernel, kernel.store.inbox(row.id, READ)) if row.pending else []


def _without_void(kernel: Kernel, entries: list[InboxEntry]) -> list[InboxEntry]:
    void = _unheard(kernel, entries)
    return [entry for entry in entries if entry not in void]


def _unheard(kernel: Kernel, entries: list[InboxEntry]) -> list[InboxEntry]:
    """Those of which nobody is told: what was taken back, says something of others, or came too late."""
    void, late = sort_out(entries, set(), kernel.clock.wall()).void, too_late(kernel, entries)
    return [entry for entry in entries if entry in void or is_of_another(entry.kind) or entry.key in late]


def waiting_counted(kernel: Kernel, rows: list[SessionRow]) -> list[SessionRow]:
    """Rows of sessions whose inboxes are counted without what was taken back, among the oldest in each. Blocks."""
    void = {r.id: len(_unheard(kernel, kernel.store.inbox(r.id, READ))) for r in rows if r.pending}
    return [row._replace(pending=row.pending - void.get(row.id, 0)) for row in rows]


def inputs(kernel: Kernel, entries: list[InboxEntry]) -> list[Input]:
    """Inputs that wait, oldest first, with their words. One that cannot be opened keeps nobody from the others."""
    found: list[Input] = []
    waiting = sort_out(entries, set(), kernel.clock.wall())
    for entry in _without_void(kernel, entries)[:SHOWN]:
        try:
            text = said_in(entry.kind, open_edited(kernel, entry, waiting).body)
        except PerdureError as e:
            text = str(e)
        found.append(Input(entry.kind, entry.at, entry.key, text))
    return found


def said_in(kind: str, body: Any) -> str:
    """What an input says, as far as people read it."""
    match kind:
        case "message":
            return _text(body)
        case "wake" | "cron":
            return _text(body["message"])
        case "decision":
            said = "answered" if "answer" in body else "approved" if body["approved"] else "rejected"
            other = "" if body.get("args") is None else f" with other arguments: {brief(body['args'], 200)}"
            return f"{said} by {body['by']}{other}"
        case "cancel":
            return str(body.get("reason") or "")
        case _:
            return brief(body, 300)


def _text(body: Any) -> str:
    body = unpacked(body)
    if isinstance(body, str):
        return body
    said = cast("dict[str, Any]", body) if isinstance(body, dict) else {"content": body}
    return text_of(said) or ("" if body is None else brief(said.get("content", said), 300))
