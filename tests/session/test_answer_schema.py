"""What fits a question, and what does not."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.session.tools.answer_schema import misfit

SEAT = {
    "type": "object",
    "properties": {"row": {"type": "integer", "minimum": 1, "maximum": 40}, "side": {"enum": ["window", "aisle"]}},
    "required": ["row"],
    "additionalProperties": False,
}
TWO = {"type": "array", "items": {"type": "string", "minLength": 2}, "minItems": 1, "maxItems": 2}


@pytest.mark.parametrize(
    ("value", "schema", "wrong"),
    [
        ("anything", None, ""),
        (True, {"type": "boolean"}, ""),
        ("yes", {"type": "boolean"}, "the answer must be boolean, not 'yes'"),
        (1, {"type": "boolean"}, "the answer must be boolean, not 1"),
        (True, {"type": "integer"}, "the answer must be integer, not True"),
        (None, {"type": ["string", "null"]}, ""),
        (7, {"type": ["string", "null"]}, "the answer must be string or null, not 7"),
        (1, {"const": True}, "the answer is True"),
        ("left", {"enum": ["window", "aisle"]}, "the answer is one of 'window', 'aisle'"),
        ({"row": 7, "side": "aisle"}, SEAT, ""),
        ({"side": "aisle"}, SEAT, "the answer has no row"),
        ({"row": 41}, SEAT, "row of the answer is at most 40"),
        ({"row": 0}, SEAT, "row of the answer is at least 1"),
        ({"row": 1, "side": "left"}, SEAT, "side of the answer is one of 'window', 'aisle'"),
        ({"row": 1, "meal": 2}, SEAT, "the answer has an unknown 'meal': it has row, side"),
        (["ab"], TWO, ""),
        ([], TWO, "the answer is at least 1 items long"),
        (["ab", "c"], TWO, "item 1 of the answer is at least 2 characters long"),
        ("x", {"type": "something new", "format": "date"}, ""),
    ],
)
def test_what_is_wrong_is_said(value: Any, schema: Any, wrong: str):
    assert misfit(value, schema) == wrong


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-50, 50) | st.text("ab", max_size=3) | st.sampled_from(["window", "aisle"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["row", "side", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(JSON, st.sampled_from([SEAT, TWO, {"enum": [1, "a", None]}, {"type": ["integer", "string"], "minimum": 3}]))
def test_it_agrees_with_a_whole_implementation(value: Any, schema: dict[str, Any]):
    assert (misfit(value, schema) == "") == jsonschema.Draft202012Validator(schema).is_valid(value)
