"""Where a conversation may be cut, and what stays."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.agent.context.window import Cut, Room, Window, cut, sendable, units
from perdure.errors import InvalidInput
from tests.agent.context.checker import orphans

Message = dict[str, Any]


def conversation(kinds: str) -> list[Message]:
    """u: user, a: assistant, s: system, p: pinned user, 1-3: an answer with so many calls and their results."""
    said: list[Message] = []
    for i, kind in enumerate(kinds):
        if kind in "123":
            ids = [f"c{i}-{n}" for n in range(int(kind))]
            said.append({"role": "assistant", "content": None, "tool_calls": [{"id": id} for id in ids]})
            said += [{"role": "tool", "tool_call_id": id, "content": "x" * 40} for id in ids]
        else:
            role = {"u": "user", "a": "assistant", "s": "system", "p": "user"}[kind]
            said.append(
                {"role": role, "content": f"{kind}{i} " + "y" * 40, **({"pinned": True} if kind == "p" else {})}
            )
    return said


def shown(said: list[Message], at: Cut) -> list[Message]:
    return [sendable(said[i]) for i in at.kept] + [sendable(m) for m in said[at.start :]]


def size(window: Window, said: list[Message], at: Cut) -> int:
    return sum(window.count(m) for m in shown(said, at))


@given(st.text("uasp123", min_size=1, max_size=60), st.integers(60, 600), st.integers(1, 12), st.booleans())
def test_however_it_is_cut_no_call_and_no_result_is_alone_and_what_must_stay_stays(
    kinds: str, most: int, recent: int, scheduled: bool
):
    said = conversation(kinds)
    window = Window(keep_recent=recent)
    at = Cut(0, [])
    # Cut again and again, as the conversation grows.
    for end in [u.stop for u in units(said)]:
        part = said[:end]
        new = cut(part, window, at, Room(most // 2, most, 0), scheduled=scheduled)
        assert new.start >= at.start
        assert orphans(shown(part, new)) == []
        assert new.start < len(part)
        assert all(i < new.start for i in new.kept)
        seen = {*new.kept, *range(new.start, end)}
        assert all(i in seen for i, m in enumerate(part) if window.stays(m))
        if new != at:
            assert size(window, part, new) <= size(window, part, at) or scheduled
        at = new


@given(st.text("ua123", min_size=12, max_size=60), st.integers(1, 6))
def test_a_full_window_is_cut_to_the_low_water_mark_and_no_further(kinds: str, recent: int):
    said = conversation(kinds)
    window = Window(keep_recent=recent)
    whole = size(window, said, Cut(0, []))
    low = whole // 2
    new = cut(said, window, Cut(0, []), Room(low, whole, 0))
    pieces = units(said)
    index = next(n for n, piece in enumerate(pieces) if piece.start == new.start)
    if size(window, said, new) > low:
        # Only because the newest messages stay.
        assert new.start <= len(said) - recent or index == 0
        assert index + 1 == len(pieces) or pieces[index + 1].start > len(said) - recent
    elif index:
        one_less = pieces[index - 1].start
        asked = max((i for i, m in enumerate(said) if m["role"] == "user"), default=one_less)
        assert size(window, said, Cut(one_less, [asked] if asked < one_less else [])) > low


def test_what_the_user_asked_for_last_is_shown_even_when_it_is_old():
    said = conversation("uau" + "1" * 20)
    new = cut(said, Window(keep_recent=2), Cut(0, []), Room(300, 600, 0))
    assert new.kept == [2]
    # A newer one takes its place.
    said += conversation("u" + "1" * 20)
    newer = cut(said, Window(keep_recent=2), new, Room(300, 600, 0))
    assert [said[i]["content"][:2] for i in newer.kept] == ["u0"]


def test_a_message_that_would_fill_the_window_alone_is_not_held_on_to():
    said = [{"role": "user", "content": "z" * 10_000}, *conversation("1" * 20)]
    new = cut(said, Window(keep_recent=2), Cut(0, []), Room(300, 600, 0))
    assert new.kept == []
    assert size(Window(), said, new) <= 600


def test_messages_stay_that_the_program_wants_to_stay():
    said = conversation("uaua" + "1" * 10)
    window = Window(keep_recent=2, pinned=lambda m: str(m.get("content")).startswith("a1"))
    assert 1 in cut(said, window, Cut(0, []), Room(200, 600, 0)).kept


def test_results_that_come_after_other_messages_are_still_with_their_call():
    called = {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]}
    said = [called, {"role": "tool", "tool_call_id": "a"}, {"role": "user"}, {"role": "tool", "tool_call_id": "b"}]
    assert units([*said, {"role": "user"}]) == [range(4), range(4, 5)]


@pytest.mark.parametrize(
    "options", [{"max_tokens": 0}, {"low_water": 5}, {"max_tokens": 10, "low_water": 10}, {"keep_recent": 0}]
)
def test_a_window_that_makes_no_sense_is_refused(options: dict[str, Any]):
    with pytest.raises(InvalidInput):
        Window(**options)
