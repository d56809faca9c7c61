"""What may enter a state, what stands for large values, and which values count as the same."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import LimitExceeded, NotJson
from perdure.record import codec
from perdure.state.values import BLOB_OVER, BYTES, MAX_DEPTH, STR, TREE, BlobRef, Wire, is_plain, same
from tests.campaigns.model.documents import exact, values


class Aside:
    """Keeps what a wire puts aside."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[int, bytes]] = {}

    def __call__(self, form: int, data: bytes) -> str:
        ref = hashlib.sha256(data).hexdigest()
        self.kept[ref] = (form, data)
        return ref


@given(values)
def test_a_json_value_passes_unchanged_but_for_large_integers(value: Any):
    wired = Wire(None, big_ints=False).value(value, ("vars",))
    assert exact(wired) == exact(value)
    assert wired is not value or not isinstance(value, dict | list)


@given(values, values)
def test_values_are_the_same_exactly_if_they_are_written_the_same_up_to_the_order_of_keys(a: Any, b: Any):
    assert same(a, copy.deepcopy(a))
    assert same(a, b) == same(b, a)
    if exact(a) == exact(b):
        assert same(a, b)
    if same(a, b):
        assert a == b


@pytest.mark.parametrize(
    ("a", "b"), [(1, 1.0), (1, True), (0, False), (0.0, 0), ("1", 1), (None, False), ([], {}), ([1], [1.0])]
)
def test_what_python_calls_equal_may_still_be_two_values(a: Any, b: Any):
    assert not same(a, b)
    assert not same({"k": [a]}, {"k": [b]})


def test_the_order_of_keys_does_not_make_two_values_of_one():
    assert same({"a": 1, "b": 2}, {"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("value", "form"),
    [("x" * (BLOB_OVER + 1), STR), ("ä" * BLOB_OVER, STR), (b"", BYTES), (b"\0", BYTES), (["word"] * 9000, TREE)],
)
def test_large_values_and_all_bytes_are_put_aside_under_the_hash_of_their_content(value: Any, form: int):
    aside = Aside()
    ref = Wire(aside).value(value, ("vars", "v"))
    assert isinstance(ref, BlobRef)
    kept_form, data = aside.kept[ref.ref]
    assert (kept_form, ref.form, ref.size) == (form, form, len(data))


@pytest.mark.parametrize("value", ["x" * (BLOB_OVER // 4), "x" * BLOB_OVER, ["word"] * 100, 2**70])
def test_what_is_small_stays_where_it_is(value: Any):
    aside = Aside()
    Wire(aside).value(value, ("vars", "v"))
    assert aside.kept == {}


def test_large_integers_in_a_tree_that_is_put_aside_survive_in_either_form():
    for big_ints in (True, False):
        aside = Aside()
        Wire(aside, big_ints=big_ints).value([2**70, *["word"] * 9000], ("vars",))
        ((_, data),) = aside.kept.values()
        first = msgspec.msgpack.decode(data)[0]
        assert int.from_bytes(first.data, "big", signed=True) == 2**70


def test_depth_counts_from_the_top_of_the_state_and_not_from_the_edit():
    deep: Any = 1
    for _ in range(MAX_DEPTH - 2):
        deep = [deep]
    Wire(None).value(deep, ("vars", "v"))
    with pytest.raises(LimitExceeded, match="deep"):
        Wire(None).value(deep, ("vars", "v", 0))


def test_a_refusal_names_the_place_of_the_value():
    with pytest.raises(NotJson) as caught:
        Wire(None).value({"a": [1, {"b c": {1, 2}}]}, ("vars", "v"))
    assert caught.value.path == ("vars", "v", "a", 1, "b c")
    assert "state.vars.v.a[1]['b c'] is a set" in str(caught.value)


def test_a_ref_equals_what_it_stands_for_only_when_it_can_look():
    ref = BlobRef(STR, "00" * 32, 3)
    assert ref != "abc"
    with pytest.raises(LookupError, match="no blob folder"):
        ref.resolve()
    ref.resolver = lambda _: "abc"
    assert ref == "abc"
    assert ref == BlobRef(STR, "00" * 32, 3)


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9000) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(JSONISH, max_size=3), st.integers(min_value=0, max_value=2))
def test_what_is_called_plain_is_what_wiring_would_give(value: list[Any], depth: int):
    put_aside: list[bytes] = []

    def offload(_: int, data: bytes) -> str:
        put_aside.append(data)
        return "0" * 64

    if is_plain(value, depth):
        try:
            unwired = codec.encode(value).data
        except UnicodeEncodeError:
            return
        assert codec.encode(Wire(offload).value(value, ("vars", "x")[:depth])).data == unwired
        assert put_aside == []


@pytest.mark.parametrize(
    "value", [b"bytes", float("nan"), 2**64, (1,), {1: 2}, {"k": {"deep": object()}}, "x" * 40_000, [0] * 9000]
)
def test_what_needs_wiring_is_not_called_plain(value: Any):
    assert not is_plain([value], 0)
    assert is_plain(["small", 1, None, {"role": "user", "content": ["ü", 1.5, True]}], 0)
