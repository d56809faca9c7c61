"""Calls of which nobody knows what became of them, and that a rewind leaves: the line that goes on has them, too.

The rewind's own commit takes them along, so nobody walks lines to find them. Under a place of their own they stand in
doubt: they keep the session from expiring, are listed and settled by their ids, and whoever asks for the same call goes
on with that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.model import Status
from perdure.session.calls.records import ENDED_RUN, LEFT, LEFT_LINE, OPEN, PLACE, RECORD, TOLD, is_begun
from perdure.session.strands import BESIDE
from perdure.state.delta import SET
from perdure.state.document import BOOK, plain

if TYPE_CHECKING:
    from collections.abc import Collection

    from perdure.state.document import TrackedDict

    Book = TrackedDict | dict[str, Any]

_FREE = (Status.IDLE, Status.RUNNING, Status.SLEEPING, Status.FAILED, Status.PAUSED, Status.WAITING_APPROVAL,
         Status.WAITING_RESULT)  # fmt: skip
"""Where a session may stand that is in doubt from then on; one that was stopped stays so."""


def is_left_open(record: Book) -> bool:
    """Whether a rewind has left this call, and nobody has settled it or asked for it again since."""
    return LEFT_LINE in record and record["status"] in OPEN


def carried(left: Book, to: Book, known_elsewhere: Collection[str]) -> list[list[Any]]:
    """The operations that have a book go on with what nobody knows of the calls in the book that is left.

    Not with what it knows itself, nor with calls whose outcome another line has.
    """
    known = {*_known_in(to), *known_elsewhere}
    effects: dict[str, Any] = {}
    for place, record in left.get("effects", {}).items():
        if record["id"] in known or "read" in record or record["status"] not in ("started", "in_doubt", "waiting"):
            continue
        kept = {name: value for name, value in plain(record).items() if name not in (BESIDE, ENDED_RUN)}
        # Whoever waits for its result, or makes it again, does so on the line that is left: here it is in doubt.
        effects[place if place.startswith(LEFT) else f"{LEFT}{record['id']}:{place}"] = {
            **kept, "status": "in_doubt", LEFT_LINE: True,
        }  # fmt: skip
    raised: dict[str, Any] = {}
    for name, one in left.get("raised", {}).items():
        if one["id"] not in known:
            raised[one["id"]] = {"call": name, **plain(one)}
    for place, record in left.get("effects", {}).items():
        # Whoever called was told, or will be where it is left: a person can settle it here all the same.
        if record["status"] in ("raised", "unknown") and RECORD not in (one := raised.get(record["id"], {RECORD: 0})):
            one[RECORD] = {**plain(record), TOLD: True, PLACE: place}
            for what in ("raised", "lost"):
                if what in record:
                    one[RECORD][what]["traceback"] = ""
    return [*_set(to, "effects", effects), *_set(to, "raised", raised)]


def status_with(status: str, ops: list[list[Any]]) -> str:
    """Where a session stands that stood there, once it goes on with these."""
    return Status.IN_DOUBT if status in _FREE and any(op[1][1] == "effects" for op in ops) else status


def _known_in(book: Book) -> set[str]:
    """The calls of which a book tells what became of them, or has them open itself."""
    # One that is merely planned there may have been made where the rewind comes from.
    known = {r["id"] for r in book.get("effects", {}).values() if r["status"] not in OPEN or is_begun(r)}
    known |= {one[0] for many in book.get("done", {}).values() for one in many}
    known |= {one[0] for one in book.get("refuted", ())}
    return known | {one["id"] for one in book.get("raised", {}).values()}


def _set(book: Book, part: str, values: dict[str, Any]) -> list[list[Any]]:
    if not values or part not in book:
        return [[SET, [BOOK, part], values]] if values else []
    return [[SET, [BOOK, part, name], value] for name, value in values.items()]
