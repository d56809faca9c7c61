"""What the hot tier holds of a line: a state at one step, and the rows that were committed after it. Formats only.

A line has two keys: a string with the state (what it is about, then its sealed bytes; a server hands a large string
out faster than a large field of a hash), and a hash with the rows by their steps. Nothing here is believed: a line is
only used as far as its rows follow one another, when its end is a row that the cold store has, too; and every byte is
verified like the cold store's, by whoever rebuilds the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from perdure.model import SNAPSHOT, Artifact, Row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.model import Append

_VERSION = 1
_about = msgspec.msgpack.Decoder(tuple[int, int, int, bytes, bytes]).decode
_row = msgspec.msgpack.Decoder(tuple[int, int, int, bytes, bytes, bytes, bytes, bytes, bool]).decode
_encode = msgspec.msgpack.encode


class View(NamedTuple):
    """A line as the hot tier knows it, up to ``tip``: the row at its end, without its bytes when the base is."""

    base: Artifact | None
    rows: tuple[Row, ...]
    tip: Row

    def upto(self, step: int) -> View | None:
        """The same up to a step; None when that is not known."""
        if step == self.tip.step:
            return self
        rows = tuple(row for row in self.rows if row.step <= step)
        # The step of the base itself is known only by its tip, which is another one here.
        return View(self.base, rows, rows[-1]) if rows and rows[-1].step == step else None


def state_value(tip: Row, base: Artifact) -> bytes:
    """A state with the row that it speaks for."""
    about = _encode((_VERSION, tip.line, tip.step, tip.id, tip.digest))
    return len(about).to_bytes(2, "little") + about + base.body


def row_field(step: int) -> bytes:
    """The name of a row's field."""
    return b"%d" % step


def is_upto(name: bytes, step: int) -> bool:
    """Whether a field is that of a row at or before a step, or of none that could ever be read."""
    return not name.isdigit() or len(name) > 16 or int(name) <= step


def row_value(item: Append) -> bytes:
    """A committed row, with the id of the one before it."""
    parent = b"" if item.starts else item.expect or b""
    return _encode(
        (_VERSION, item.line, item.step, item.id, item.digest, item.envelope, item.payload, parent, item.starts)
    )


def view_of(line: int, state: bytes | None, fields: Mapping[bytes, bytes]) -> View | None:
    """Put a line together as far as it is there; None when it cannot be used."""
    rows: dict[int, tuple[Row, bytes, bool]] = {}
    base: Artifact | None = None
    tip: Row | None = None
    try:
        for name, value in fields.items():
            version, at, step, id, digest, envelope, payload, parent, starts = _row(value)
            if version != _VERSION or at != line or name != row_field(step):
                return None
            rows[step] = (Row(line, step, id, digest, envelope, payload), parent, starts)
        if state is not None:
            end = 2 + int.from_bytes(state[:2], "little")
            version, at, step, id, digest = _about(memoryview(state)[2:end])
            if version != _VERSION or at != line:
                return None
            base = Artifact(SNAPSHOT, line, step, step, state[end:])
            tip = Row(line, step, id, digest, b"", b"")
    except (msgspec.MsgspecError, ValueError):
        return None
    found: list[Row] = []
    if tip is None:
        # A line whose beginning is there needs no state before it.
        first = min((step for step, (_, _, starts) in rows.items() if starts), default=None)
        if first is None:
            return None
        tip = rows[first][0]
        found.append(tip)
    while (after := rows.get(tip.step + 1)) is not None and after[1] == tip.id:
        tip = after[0]
        found.append(tip)
    return View(base, tuple(found), tip)
