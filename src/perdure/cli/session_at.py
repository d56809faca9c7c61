"""``SESSION@PLACE``: what it means, and the state that is stored there, as it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.run_result import raised_in
from perdure.cli.terminal_text import cut
from perdure.fleet.why import inputs
from perdure.history.checkpoint import Reading
from perdure.history.expiry import living
from perdure.history.hydrate import load_at
from perdure.model import MAIN
from perdure.session.decisions import decided, pending
from perdure.session.effects import RESTORED, exception_of, is_tried_again, looked_up, lookup_error
from perdure.session.effects_on_other_branches import done_elsewhere
from perdure.session.tool_exceptions import in_short
from perdure.shapes.approvals import OPEN
from perdure.state.document import plain
from perdure.system.times import ago
from perdure.system.wording import count

if TYPE_CHECKING:
    from perdure.agent.run_result import Raised
    from perdure.database import Database
    from perdure.model import SessionRow


class Opened(NamedTuple):
    """A session's row and the reading of one of its checkpoints."""

    row: SessionRow
    reading: Reading

    @property
    def name(self) -> str:
        """How the place is written: session and step."""
        return f"{self.row.id}@{self.reading.step}"

    @property
    def is_past(self) -> bool:
        """Whether no branch stands there any more."""
        return all(head.id.hex() != self.reading.checkpoint.id for head in self.row.heads)


def split(db: Database, text: str) -> tuple[str, str]:
    """Session and place. A session whose own id is the whole text comes first, since ids may contain "@"."""
    session, at, place = text.rpartition("@")
    if not at or not session:
        return text, ""
    row = db.kernel.store.look(text)
    return (text, "") if row is not None and row.heads else (session, place)


def open_place(db: Database, text: str, branch: str = MAIN) -> Opened:
    """Read a place without a lease. The state is shown as it was stored: a command has no migrations of a program."""
    session, place = split(db, text)
    row = living(db.kernel, session)
    return Opened(row, Reading(db.kernel, load_at(db.kernel, row, place or None, branch)))


class Matters(NamedTuple):
    """What waits for somebody at a checkpoint."""

    effects: list[dict[str, Any]]
    """Without an outcome, on this line or another of the session, or ended with an exception."""
    approvals: list[dict[str, Any]]
    """Without a decision."""
    decided: list[tuple[dict[str, Any], str]]
    """Requests with a decision that waits to be taken up, and who took it."""
    raised: list[Raised]
    """Calls whose tools ended with exceptions, beside those of ``effects``."""

    @property
    def ids(self) -> list[str]:
        """Of what waits for a person."""
        return [one["id"] for one in (*self.effects, *self.approvals) if one["status"] != "raised"]


def open_matters(db: Database, opened: Opened) -> Matters:
    """What waits for somebody at a checkpoint: effects without an outcome, approvals without a decision, exceptions."""
    book = plain(opened.reading.book)
    effects = [e for e in book.get("effects", {}).values() if e["status"] in OPEN]
    if effects and not opened.is_past and opened.row.lines > 1:
        at = opened.reading.checkpoint.line, opened.reading.step
        done = done_elsewhere(db.kernel, opened.row.id, at, book)
        effects = [e for e in effects if e["id"] not in done]
    raised = [one for one in raised_in(book) if one.effect not in {e["id"] for e in effects}]
    asked = {a["id"]: a for a in pending(book, opened.reading.checkpoint.line)}
    # What was decided since, and waits to be taken up, is nothing of the past.
    over = {} if opened.is_past else decided(db.kernel, opened.row, list(asked.values()))
    said = [(asked.pop(id), inputs(db.kernel, [entry])[0].text) for id, entry in over.items()]
    return Matters(effects, list(asked.values()), said, raised)


def in_words(effect: dict[str, Any], now: int, *, past: bool = False) -> str:
    """Where a call stands, or stood, and the exception that it came to that by."""
    told = exception_of(effect)
    if past:
        said = f"was {effect['status']}"
    elif is_tried_again(effect):
        again = f"tried again {ago(effect['retry_at'], now)}" if "retry_at" in effect else "being tried again"
        tries = count(effect["attempt"], "attempt")
        said = f"has got no answer since {ago(effect['lost_since'], now)}, {tries}, {again}"
    else:
        said = f"is {effect['status']}{': ' + cut(effect['error'], 400) if RESTORED in effect else ''}"
    said = f"{said}: {cut(in_short(told), 400)}" if told is not None else said
    return f"{said}; {cut(looked_up(failed), 400)}" if (failed := lookup_error(effect)) and not past else said


def known_matters(reading: Reading) -> set[str]:
    """The ids of all effects and approvals that are known at a checkpoint, whatever became of them."""
    book = plain(reading.book)
    return {one["id"] for part in ("effects", "approvals") for one in book.get(part, {}).values()}
