"""``SESSION@PLACE``: what it means, and the state that is stored there, as it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.run_result import misfits_in, raised_in
from perdure.cli.terminal_text import cut
from perdure.fleet.inputs import inputs
from perdure.history.checkpoint import Reading
from perdure.history.expiry import living
from perdure.history.hydrate import load_at
from perdure.model import MAIN, Status
from perdure.session.actions import Action, Do
from perdure.session.calls.decisions import decided, is_late, pending, reported
from perdure.session.calls.other_branches import done_elsewhere
from perdure.session.calls.records import RESTORED, exception_of, is_tried_again, looked_up, lookup_error
from perdure.session.handover import is_worked_on
from perdure.session.tools.exceptions import in_short
from perdure.shapes.approvals import OPEN
from perdure.state.document import plain
from perdure.system.lease_holders import is_dead
from perdure.system.times import ago
from perdure.system.wording import count

if TYPE_CHECKING:
    from perdure.agent.run_result import Raised
    from perdure.database import Database
    from perdure.kernel import Kernel
    from perdure.model import InboxEntry, SessionRow


class Opened(NamedTuple):
    """A session's row and the reading of one of its checkpoints."""

    row: SessionRow
    reading: Reading

    @property
    def name(self) -> str:
        """How the place is written: session and step."""
        return f"{self.row.id}@{self.reading.step}"

    @property
    def is_held(self) -> bool:
        """Whether somebody who lives has it: only he may settle its calls, and outcomes are posted to him."""
        return bool(self.row.lease.holder) and not is_dead(self.row.lease.holder)

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
    """Without an outcome, on this line or another of the session, or ended with an exception; of those whose result
    comes later the ones whose ``poll`` fails."""
    approvals: list[dict[str, Any]]
    """Without a decision."""
    decided: list[tuple[dict[str, Any], str]]
    """Requests with a decision that waits to be taken up, and who took it."""
    late: list[dict[str, Any]]
    """Requests that nobody has decided on in time."""
    raised: list[Raised]
    """Calls whose tools ended with exceptions, beside those of ``effects``."""
    misfits: list[str]
    """What is said of results that are not what their tools declare."""
    reported: dict[str, str]
    """What was reported of some of ``effects`` and waits to be taken up, by their ids: nobody else may settle them."""

    @property
    def ids(self) -> list[str]:
        """Of what waits for a person."""
        effects = [e for e in self.effects if e["status"] != "raised" and e["id"] not in self.reported]
        return [one["id"] for one in (*effects, *self.approvals)]


def open_matters(db: Database, opened: Opened) -> Matters:
    """What waits for somebody at a checkpoint: effects without an outcome, approvals without a decision, exceptions."""
    book = plain(opened.reading.book)
    effects = [e for e in book.get("effects", {}).values() if e["status"] in OPEN or lookup_error(e)]
    if effects and not opened.is_past and opened.row.lines > 1:
        at = opened.reading.checkpoint.line, opened.reading.step
        done = done_elsewhere(db.kernel, opened.row.id, at, book)
        effects = [e for e in effects if e["id"] not in done]
    raised = [one for one in raised_in(book) if one.effect not in {e["id"] for e in effects}]
    asked = {a["id"]: a for a in pending(book, opened.reading.checkpoint.line)}
    # What was decided since, and waits to be taken up, is nothing of the past.
    over = {} if opened.is_past else decided(db.kernel, opened.row, list(asked.values()))
    said = [(asked.pop(id), inputs(db.kernel, [entry])[0].text) for id, entry in over.items()]
    now = db.kernel.clock.wall()
    late = [a for a in asked.values() if not opened.is_past and is_late(a, now)]
    told = {} if opened.is_past else reported(db.kernel, opened.row, [e["id"] for e in effects])
    outcomes = {id: _outcome(db.kernel, entry) for id, entry in told.items()}
    undecided = [a for a in asked.values() if a not in late]
    return Matters(effects, undecided, said, late, raised, misfits_in(book), outcomes)


def _outcome(kernel: Kernel, entry: InboxEntry) -> str:
    """What a reported outcome says."""
    said = inputs(kernel, [entry])
    did = "did not happen" if entry.kind == "failure" else "done"
    return f"{did}, {said[0].text}" if said else did


NOBODY_DECIDED = "was not decided on in time, and counts as turned down when the session goes on"
"""What is said of a request whose time is over."""


def in_words(effect: dict[str, Any], opened: Opened, now: int, reported: str = "") -> str:
    """Where a call stands, or stood, and the exception that it came to that by; ``reported`` is what was said of it."""
    past = opened.is_past
    if reported:
        return f"is {effect['status']}, and its outcome was reported and waits to be taken up: {cut(reported, 300)}"
    told = exception_of(effect)
    if past:
        said = f"was {effect['status']}"
    elif is_tried_again(effect):
        # Nobody tries it but whoever works on its session.
        left = effect.get("retry_at", 0) - now if is_worked_on(opened.row) else None
        again = "to be made again when its session goes on" if left is None else "being tried again now"
        if left is not None and left > 0:
            again = f"tried again {ago(effect['retry_at'], now)}"
        tries = count(effect["attempt"], "attempt")
        said = f"has got no answer since {ago(effect['lost_since'], now)}, {tries}, {again}"
    else:
        said = f"is {effect['status']}{': ' + cut(effect['error'], 400) if RESTORED in effect else ''}"
    said = f"{said}: {cut(in_short(told), 400)}" if told is not None else said
    return f"{said}; {cut(told, 400)}" if (told := looked_up(effect)) and not past else said


def ways_out(effect: dict[str, Any], opened: Opened, branch: str, reported: str = "") -> list[str]:
    """What to type about a call that has no outcome; nothing about one that somebody is making."""
    row, id, status = opened.row, effect["id"], effect["status"]
    stands = opened.reading.checkpoint.status
    if stands == Status.CLOSED:
        # Nothing is written to it before.
        deeds = [Action(Do.REOPEN if row.agent else Do.PROGRAM_REOPENS, row.id)]
    elif reported:
        if opened.is_held or not row.agent:
            return []
        again = Do.MESSAGE if stands == Status.CANCELLED else Do.RUN
        deeds = [Action(again, row.id, "" if branch == MAIN else "reuse", branch)]
    elif status == "waiting" or (opened.is_held and status in ("started", "in_doubt")):
        if status == "started" and not is_tried_again(effect):
            return []
        deeds = [Action(Do.OUTCOME, row.id, id, branch)]
    else:
        deeds = [Action(Do.RESOLVE, row.id, id, branch)]
        if status == "started" and row.agent and stands != Status.CANCELLED:
            # It may be one that is made again, or looked up, by whoever goes on.
            deeds.insert(0, Action(Do.RUN, row.id, "" if branch == MAIN else "reuse", branch))
    return [way for deed in deeds for way in (deed.command, *deed.others) if way]


def known_matters(reading: Reading) -> set[str]:
    """The ids of all effects and approvals that are known at a checkpoint, whatever became of them."""
    book = plain(reading.book)
    return {one["id"] for part in ("effects", "approvals") for one in book.get(part, {}).values()}
