"""What has become of a shared call where it was claimed: a claim holds for what may have happened, nothing else.

The session that claimed may have left the line on which it did, or hold an outcome that never came to the shared entry.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import Gone, PerdureError
from perdure.history.hydrate import load, load_head, look, origins
from perdure.session.calls.other_branches import is_refuted
from perdure.session.calls.records import GIVEN_UP, is_begun
from perdure.state.document import BOOK, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.kernel import Kernel

    Record = dict[str, Any]


class Stands(StrEnum):
    """Where a claimed call stands."""

    DONE = auto()
    NOT_MADE = auto()
    """It has not happened, or was given up."""
    PLANNED = auto()
    """It is planned where its session is, and may be made at any moment."""
    UNKNOWN = auto()
    """It was begun, or nobody knows."""
    LEFT = auto()
    """It was never begun, and is planned only on a line that was left."""


class Claimed(NamedTuple):
    """A claimed call as it stands in its session."""

    stands: Stands
    line: int = -1
    """The line that says so."""
    record: Record | None = None
    """Its record, where it is done."""


_RANK = (Stands.DONE, Stands.NOT_MADE, Stands.UNKNOWN, Stands.PLANNED, Stands.LEFT)


def claimed(kernel: Kernel, session: str, effect: str) -> Claimed:
    """Where a claimed call stands, by all lines of the session that has claimed it. Blocks."""
    found: list[Claimed] = []
    try:
        row = look(kernel, session)
        heads = [load_head(kernel, row, branch).point for branch in row.branches]
        live = {head.envelope.line for head in heads if head is not None}
        for line in origins(kernel, session):
            with suppress(Gone):
                found += _on_line(kernel, session, line, effect, is_live=line in live)
    except PerdureError:
        # Deleted, or not to be had: what it did there is not known.
        return Claimed(Stands.UNKNOWN)
    return min(found, key=lambda one: _RANK.index(one.stands), default=Claimed(Stands.UNKNOWN))


def _on_line(kernel: Kernel, session: str, line: int, effect: str, *, is_live: bool) -> Iterator[Claimed]:
    """What the end of a line says of a call."""
    book: Record = load(kernel, session, line, None).doc[BOOK]
    for record in book.get("effects", {}).values():
        if record["id"] == effect:
            yield _of_record(record, line, is_live=is_live)
    for id, at, step in (entry for entries in book.get("done", {}).values() for entry in entries):
        if id != effect:
            continue
        if not step:
            yield Claimed(Stands.UNKNOWN, line)
            continue
        for record in load(kernel, session, at, step).doc[BOOK].get("effects", {}).values():
            if record["id"] == effect and record["status"] == "done":
                yield Claimed(Stands.DONE, line, plain(record))
    if any(entry[0] == effect for entry in book.get("refuted", ())):
        yield Claimed(Stands.NOT_MADE, line)
    if any(one["id"] == effect for one in book.get("raised", {}).values()):
        yield Claimed(Stands.UNKNOWN, line)


def _of_record(record: Record, line: int, *, is_live: bool) -> Claimed:
    if record["status"] == "done":
        return Claimed(Stands.DONE, line, plain(record))
    if is_refuted(record) or GIVEN_UP in record:
        return Claimed(Stands.NOT_MADE, line)
    if is_begun(record) or record["status"] in ("raised", "unknown"):
        return Claimed(Stands.UNKNOWN, line)
    return Claimed(Stands.PLANNED if is_live and record["status"] == "planned" else Stands.LEFT, line)
