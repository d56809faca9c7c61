"""Putting a line together from what the hot tier holds: as far as rows follow one another, and no further."""

from __future__ import annotations

from perdure.model import SNAPSHOT, Append, Artifact, Row
from perdure.stores.tiered.hot import is_upto, row_field, row_value, state_value, view_of
from perdure.testing.sealed_rows import commit

BASE = Artifact(SNAPSHOT, 0, 3, 3, b"sealed")


def chain(count: int, past: str = "s") -> list[Append]:
    """Commits 0 to count - 1, each on top of the one before."""
    items: list[Append] = []
    for step in range(count):
        items.append(commit(past, step, items[-1].id if items else None))
    return items


def fields(*items: Append) -> dict[bytes, bytes]:
    return {row_field(item.step): row_value(item) for item in items}


def row(item: Append) -> Row:
    return Row(item.line, item.step, item.id, item.digest, item.envelope, item.payload)


def state(item: Append) -> bytes:
    return state_value(row(item), BASE)


def test_a_line_with_its_beginning_needs_no_state():
    items = chain(4)
    view = view_of(0, None, fields(*reversed(items)))
    assert view is not None
    assert (view.base, view.rows, view.tip) == (None, tuple(map(row, items)), row(items[3]))


def test_rows_after_a_state_are_taken_and_those_before_it_are_not():
    items = chain(6)
    view = view_of(0, state(items[3]), fields(*items))
    assert view is not None
    assert (view.base, view.rows, view.tip) == (BASE, (row(items[4]), row(items[5])), row(items[5]))


def test_a_gap_ends_the_line():
    items = chain(6)
    view = view_of(0, state(items[2]), fields(items[3], items[5]))
    assert view is not None
    assert view.tip == row(items[3])


def test_rows_of_another_past_are_not_taken():
    ours, others = chain(6), chain(6, "another")
    view = view_of(0, state(ours[3]), fields(others[4], others[5]))
    assert view is not None
    assert (view.rows, view.tip.id) == ((), ours[3].id)
    view = view_of(0, None, fields(*ours[:3], *others[3:]))
    assert view is not None
    assert [r.id for r in view.rows] == [item.id for item in ours[:3]]


def test_without_a_beginning_and_without_a_state_there_is_nothing():
    assert view_of(0, None, fields(*chain(4)[1:])) is None
    assert view_of(0, None, {}) is None


def test_what_is_about_another_line_or_step_is_not_used():
    items = chain(3)
    assert view_of(1, None, fields(*items)) is None
    assert view_of(1, state(items[2]), {}) is None
    assert view_of(0, None, {b"0": row_value(items[1])}) is None


def test_a_view_can_end_earlier():
    items = chain(6)
    view = view_of(0, state(items[3]), fields(*items))
    assert view is not None
    earlier = view.upto(4)
    assert earlier is not None
    assert (earlier.rows, earlier.tip) == ((row(items[4]),), row(items[4]))
    assert view.upto(5) is view
    assert [view.upto(step) for step in (2, 3, 6)] == [None] * 3


def test_fields_that_a_state_makes_superfluous_are_known():
    names = [b"1", b"9", b"10", b"11", b"x", b"", b"-1", b"9" * 40]
    assert [name for name in names if not is_upto(name, 9)] == [b"10", b"11"]
