"""An ordinary copy of a tracked state: nobody's but its own, and every blob in it read once."""

from __future__ import annotations

from typing import Any

from perdure.state.document import Document, plain
from perdure.state.values import TREE, UNREAD, BlobRef, copied


def document(raw: dict[str, Any]) -> tuple[Document, list[str]]:
    read: list[str] = []
    kept = {"text": "long", "tree": {"deep": [1, {"x": 2}]}}

    def resolve(ref: BlobRef) -> Any:
        read.append(ref.ref)
        return kept[ref.ref]

    return Document(raw, resolve), read


def test_a_copy_shares_nothing_with_what_it_was_made_of():
    raw = {"a": [{"b": [1, 2]}, "x"], "n": None, "f": 1.5}
    doc, _ = document(raw)
    one = plain(doc.root)
    one["a"][0]["b"].append(3)
    assert plain(doc.root) == {"a": [{"b": [1, 2]}, "x"], "n": None, "f": 1.5}
    assert type(one["a"]) is list
    assert type(one["a"][0]) is dict


def test_what_was_changed_is_in_the_copy():
    doc, _ = document({"a": [{"b": 1}]})
    doc.root["a"][0]["b"] = {"c": [2]}
    doc.root["a"].append("new")
    assert plain(doc.root) == {"a": [{"b": {"c": [2]}}, "new"]}


def test_a_blob_deep_inside_is_read_and_read_only_once():
    text, tree = BlobRef(0, "text", 4), BlobRef(TREE, "tree", 9)
    doc, read = document({"a": [{"b": {"c": [text]}}, {"d": "e"}], "t": tree})
    wanted = {"a": [{"b": {"c": ["long"]}}, {"d": "e"}], "t": {"deep": [1, {"x": 2}]}}
    assert plain(doc.root) == wanted
    assert plain(doc.root) == wanted
    assert sorted(read) == ["text", "tree"]


def test_a_decoded_value_with_a_blob_in_it_is_not_copied():
    assert copied({"a": [1, BlobRef(0, "text", 4)]}) is UNREAD
    assert copied({"a": [1, "x"]}) == {"a": [1, "x"]}
