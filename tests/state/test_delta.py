"""Deltas: what turns one document into another, found, applied, and refused where it does not fit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given

from perdure.errors import Corrupted
from perdure.state.delta import APPEND, DEL, SET, SPLICE, apply, describe, diff
from tests.campaigns.model.documents import documents, exact


@given(documents, documents)
def test_a_difference_applied_to_the_old_document_gives_the_new_one_exactly(old: dict[str, Any], new: dict[str, Any]):
    found = copy.deepcopy(old)
    apply(copy.deepcopy(diff(old, new)), found)
    assert exact(found) == exact(new)


@given(documents)
def test_a_document_does_not_differ_from_itself(document: dict[str, Any]):
    assert diff(document, copy.deepcopy(document)) == []


@given(documents, documents)
def test_finding_a_difference_changes_neither_document(old: dict[str, Any], new: dict[str, Any]):
    before = exact([old, new])
    diff(old, new)
    assert exact([old, new]) == before


@pytest.mark.parametrize(
    ("old", "new", "ops"),
    [
        ({"m": [1]}, {"m": [1, 2, 3]}, [[APPEND, ["m"], [2, 3]]]),
        ({"m": [1, 2, 3]}, {"m": [1, 3]}, [[SPLICE, ["m"], 1, 1, []]]),
        ({"m": [1, 2, 3]}, {"m": [1, 9, 3]}, [[SET, ["m", 1], 9]]),
        ({"m": [{"a": 1}, 2]}, {"m": [{"a": 5}, 2]}, [[SET, ["m", 0, "a"], 5]]),
        ({"a": 1, "b": 2}, {"b": 2}, [[DEL, ["a"]]]),
        ({"a": 1}, {"a": 1.0}, [[SET, ["a"], 1.0]]),
        ({"a": 1}, {"a": True}, [[SET, ["a"], True]]),
        ({"a": [1]}, {"a": [True]}, [[SET, ["a", 0], True]]),
        ({"a": {"b": {}}}, {"a": {"b": []}}, [[SET, ["a", "b"], []]]),
    ],
)
def test_a_difference_is_as_small_as_what_changed(old: dict[str, Any], new: dict[str, Any], ops: list[Any]):
    assert diff(old, new) == ops
    assert exact(diff(old, new)) == exact(ops)


def test_another_order_of_keys_is_a_difference():
    old, new = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    found = dict(old)
    apply(diff(old, new), found)
    assert list(found) == ["b", "a"]


@pytest.mark.parametrize(
    "op",
    [
        [SET, ["nothing", "a"], 1],
        [SET, ["list", 7], 1],
        [SET, ["list", "a"], 1],
        [DEL, ["nothing"]],
        [APPEND, ["text"], [1]],
        [APPEND, ["nothing"], [1]],
        [SPLICE, ["list"], 1, 5, []],
        [SPLICE, ["list"], -1, 0, []],
        [SPLICE, ["list"], 0, -1, []],
        [SPLICE, ["object"], 0, 0, []],
        [9, ["list"], 1],
        [SET, ["text", 0], 1],
        [SET],
        [],
    ],
    ids=repr,
)
def test_an_operation_that_does_not_fit_is_corruption_and_no_guess(op: list[Any]):
    with pytest.raises(Corrupted, match="does not fit"):
        apply([op], {"list": [1, 2], "text": "t", "object": {}})


def test_operations_are_told_in_words():
    said = [
        describe(op) for op in ([APPEND, ["m"], [1]], [SET, ["m", 0], 1], [DEL, ["a b"]], [SPLICE, ["m"], 2, 1, []])
    ]
    assert said == ["state.m: 1 appended", "state.m[0] set", "state['a b'] removed", "state.m[2:3]: 1 out, 0 in"]
