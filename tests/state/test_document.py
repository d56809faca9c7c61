"""Tracked dicts and lists behave like ordinary ones and know exactly what was done to them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import LimitExceeded, Misuse, ReadOnly
from perdure.state.delta import apply, diff
from perdure.state.document import Document, edit, plain
from perdure.state.values import same
from tests.campaigns.model.documents import Edit, carry_out, documents, exact, plain_edits


def tracked(raw: dict[str, Any], *, readonly: bool = False) -> Document:
    def no_blobs(ref: object) -> Any:
        pytest.fail(f"no blob was stored, and {ref!r} was asked for")

    return Document(copy.deepcopy(raw), no_blobs, readonly=readonly)


def collected(document: Document) -> list[Any]:
    """The operations as a store would give them back: nothing live in them."""
    ops = [[plain(part) if isinstance(part, dict | list) else part for part in op] for op in document.collect()]
    return copy.deepcopy(ops)


@given(documents, st.lists(st.lists(plain_edits, max_size=6), min_size=1, max_size=4))
def test_the_operations_of_each_commit_turn_the_state_before_it_into_the_one_after(
    raw: dict[str, Any], commits: list[list[Edit]]
):
    document, replayed, model = tracked(raw), copy.deepcopy(raw), copy.deepcopy(raw)
    for edits in commits:
        for one in edits:
            carry_out(one, document.root)
            carry_out(one, model)
        ops = collected(document)
        document.settle()
        apply(ops, replayed)
        assert exact(document.root.plain()) == exact(model)
        assert exact(replayed) == exact(model)
        assert same(replayed, model)
        assert document.collect() == []


@given(documents, st.lists(plain_edits, max_size=8), documents)
def test_carrying_a_diff_out_as_edits_is_the_same_as_applying_it(
    raw: dict[str, Any], edits: list[Edit], wanted: dict[str, Any]
):
    document = tracked(raw)
    for one in edits:
        carry_out(one, document.root)
    document.settle()
    before = document.root.plain()
    edit(diff(before, wanted), document.root)
    replayed = copy.deepcopy(before)
    apply(collected(document), replayed)
    assert exact(document.root.plain()) == exact(wanted) == exact(replayed)


@given(documents)
def test_looking_at_every_part_of_a_state_is_no_edit(raw: dict[str, Any]):
    document = tracked(raw)
    exact(document.root)
    list(document.root.items())
    assert document.root == raw
    assert document.collect() == []


@given(documents, st.lists(plain_edits, min_size=1, max_size=3))
def test_a_state_opened_for_reading_refuses_every_edit_and_stays_as_it_was(raw: dict[str, Any], edits: list[Edit]):
    document, model = tracked(raw, readonly=True), copy.deepcopy(raw)
    for one in edits:
        after = copy.deepcopy(model)
        carry_out(one, after)
        if exact(after) == exact(model):
            continue
        with pytest.raises(ReadOnly):
            carry_out(one, document.root)
        assert exact(document.root.plain()) == exact(model)


def test_what_is_assigned_is_copied_so_later_changes_of_the_original_do_not_leak_in():
    document = tracked({"vars": {}})
    mine = {"list": [1]}
    document.root["vars"]["mine"] = mine
    mine["list"].append(2)
    assert document.root.plain() == {"vars": {"mine": {"list": [1]}}}


def test_one_value_assigned_at_two_places_is_two_values():
    document = tracked({"a": [0], "b": None})
    document.root["b"] = document.root["a"]
    document.root["a"].append(1)
    assert document.root.plain() == {"a": [0, 1], "b": [0]}


def test_an_append_is_recorded_as_an_append_and_not_as_the_whole_list():
    document = tracked({"messages": [{"n": n} for n in range(1000)]})
    document.root["messages"].append({"n": 1000})
    assert collected(document) == [[0, ["messages"], [{"n": 1000}]]]


def test_an_edit_deep_inside_is_recorded_with_its_path_alone():
    document = tracked({"messages": [{"n": n, "tags": []} for n in range(10)]})
    document.root["messages"][7]["tags"].append("x")
    assert collected(document) == [[0, ["messages", 7, "tags"], ["x"]]]


def test_a_part_taken_before_the_state_was_replaced_can_no_longer_be_edited():
    document = tracked({"vars": {"a": {}}})
    old = document.root["vars"]["a"]
    document.replace({"vars": {"a": {}}})
    with pytest.raises(Misuse, match="fetch it again"):
        old["x"] = 1
    assert document.collect() == []


def test_a_value_that_contains_itself_is_refused_at_once():
    document = tracked({"vars": {}})
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(LimitExceeded):
        document.root["vars"]["loop"] = loop
    assert document.root.plain() == {"vars": {}}


def test_a_tracked_state_copies_into_plain_dicts_and_lists_and_is_never_pickled():
    document = tracked({"vars": {"a": [1, {"b": 2}]}})
    for copied in (copy.deepcopy(document.root), copy.copy(document.root), document.root.copy()):
        assert type(copied) is dict
        assert type(copied["vars"]["a"][1]) is dict
    with pytest.raises(TypeError, match="never pickled"):
        document.root.__reduce__()
