"""Packing rows and taking snapshots changes how a history is stored, and nothing that can be read of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perdure
from perdure.model import PACK, SNAPSHOT
from tests.campaigns.model.documents import Edit, carry_out, edits, exact

appends = st.builds(Edit, st.just(1), st.just("append"), st.just(0), st.just(0), st.just("a"), st.lists(
    st.dictionaries(st.just("content"), st.text(max_size=40), min_size=1), min_size=1, max_size=2))  # fmt: skip
histories = st.lists(
    st.tuples(
        st.lists(appends | appends | edits, min_size=1, max_size=4),
        st.sampled_from(["", "", "", "compact", "fork", "rewind"]),
    ),
    min_size=6, max_size=30,
)  # fmt: skip


@pytest.mark.parametrize("codec", ["msgpack", "json"])
@settings(max_examples=60)
@given(histories)
def test_every_step_reads_the_same_however_often_and_whenever_rows_were_packed(
    codec: str, history: list[tuple[list[Edit], str]]
):
    with perdure.open("memory://", codec=codec, maintain=False) as db, db.session("s") as s:
        model: dict[str, Any] = s.state.plain()
        past: list[dict[str, Any]] = []
        for number, (todo, then) in enumerate(history):
            for one in todo:
                carry_out(one, s.state)
                carry_out(one, model)
            s.commit("so that there is one")
            past.append(copy.deepcopy(model))
            if then == "compact":
                db.compact("s")
            elif then == "fork":
                s.fork(f"b{number}")
                s.switch(f"b{number}")
                past.append(copy.deepcopy(model))
            elif then == "rewind":
                at = len(past) - number % len(past)
                s.rewind(at)
                past = [*past[:at], copy.deepcopy(past[at - 1])]
                model = copy.deepcopy(past[-1])
        db.compact("s")
        for step, state in enumerate(past, 1):
            assert exact(db.read("s", step, branch=s.branch).plain()) == exact(state)
        s.reload()
        assert exact(s.state.plain()) == exact(past[-1])


def test_packs_and_snapshots_are_really_made_in_these_tests():
    with perdure.open("memory://", maintain=False) as db, db.session("s") as s:
        for number in range(20):
            s.messages.append({"n": number})
            s.commit()
        assert db.compact("s") == 19
        kinds = [artifact.kind for artifact in db.kernel.store.artifacts("s")]
        assert kinds.count(PACK) > 2
        assert SNAPSHOT in kinds


def test_a_message_that_was_edited_does_not_bring_earlier_ones_back_when_rows_are_packed():
    with perdure.open("memory://", maintain=False) as db, db.session("s") as s:
        for number in range(3):
            s.messages.append(number)
            s.commit()
        s.messages[0] = "edited"
        s.commit()
        s.messages.append("a long one " * 10)
        s.commit()
        db.compact("s")
        assert db.read("s").messages == ["edited", 1, 2, "a long one " * 10]


def test_the_first_and_only_item_of_a_list_survives_packing_beside_a_heavy_one():
    with perdure.open("memory://", maintain=False) as db, db.session("s") as s:
        for number in range(4):
            s.messages.append({"n": number})
            s.commit()
        s.todos.append([])
        s.commit()
        db.compact("s")
        assert db.read("s").todos == [[]]
