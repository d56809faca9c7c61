"""Whatever stands in the hot tier instead of what was written: it is found out, and the cold store is asked."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.model import SNAPSHOT, Artifact, Rewrite, Span
from perdure.record import codec
from perdure.record.keys import Keys
from perdure.stores.tiered.hot import state_value
from tests.stores.tiered.tiers import Tiers, eventually, is_hot, said, say, tiered

if TYPE_CHECKING:
    from collections.abc import Callable

TEXTS = [f"message {n}" for n in range(12)]


def fill(tiers: Tiers, session: str = "s", **options: Any) -> perdure.Database:
    """A session whose state and last rows are hot."""
    # Without packing, which would leave a newer state and no rows.
    db = tiers.db(maintain=False, **options)
    for text in TEXTS[:8]:
        say(db, text, session)

    def has_state() -> bool:
        # Its rows alone would do for so short a session: a state is kept when they are missing.
        if found := tiers.held(f":{session}:rows"):
            tiers.client.delete(*found)
        db.read(session)
        return bool(tiers.held(f":{session}:state"))

    eventually(has_state, "the state is hot")
    with db.session(session) as s:
        for text in TEXTS[8:]:
            s.messages.append({"role": "user", "content": text})
            s.commit()
    eventually(lambda: [k for k in tiers.held(":rows") if tiers.client.hexists(k, b"12")], "its rows are hot")
    return db


def test_any_flipped_bit_is_found_out(tiers: Tiers):
    seed = 20_240_611
    random = Random(seed)
    db = fill(tiers)
    (state,), (rows,) = tiers.held(":state"), tiers.held(":rows")
    good, fields = tiers.client.get(state), tiers.client.hgetall(rows)
    for turn in range(150):
        name = random.choice([None, *fields])
        data = bytearray(good if name is None else fields[name])
        at = random.randrange(len(data))
        data[at] ^= 1 << random.randrange(8)
        tiers.client.set(state, bytes(data) if name is None else good)
        tiers.client.hset(rows, mapping=fields if name is None else {**fields, name: bytes(data)})
        reader = db if turn % 2 else tiers.db()
        assert said(reader) == TEXTS, f"seed {seed}, turn {turn}, {name}, byte {at}"


@pytest.mark.parametrize(
    "value",
    [b"", b"x", b"\xff" * 10, b"\0" * 100_000, b"\x05\x00\x95\x01\x00\x01\xc4\x00\xc4\x00", bytes(range(256)) * 9],
)
def test_garbage_is_as_good_as_nothing(tiers: Tiers, value: bytes):
    db = fill(tiers)
    (state,), (rows,) = tiers.held(":state"), tiers.held(":rows")
    tiers.client.set(state, value)
    assert said(db) == TEXTS
    for field in (b"9", b"1", b"-1", b"x", b"9" * 100, b""):
        tiers.client.hset(rows, field, value)
    assert said(tiers.db()) == TEXTS
    assert said(db) == TEXTS


def as_text(tiers: Tiers, key: bytes) -> None:
    tiers.client.delete(key)
    tiers.client.set(key, b"text")


def as_list(tiers: Tiers, key: bytes) -> None:
    tiers.client.delete(key)
    tiers.client.rpush(key, b"a", b"b")


def as_hash(tiers: Tiers, key: bytes) -> None:
    tiers.client.delete(key)
    tiers.client.hset(key, b"a", b"b")


def emptied(tiers: Tiers, key: bytes) -> None:
    tiers.client.delete(key)


@pytest.mark.parametrize("part", [":state", ":rows", ":heads"])
@pytest.mark.parametrize("harm", [as_text, as_list, as_hash, emptied])
def test_values_of_another_kind_are_replaced(tiers: Tiers, part: str, harm: Callable[[Tiers, bytes], None]):
    db = fill(tiers)
    (key,) = tiers.held(part)
    harm(tiers, key)
    assert said(db) == TEXTS
    say(db, "more")
    assert said(db) == [*TEXTS, "more"]
    eventually(lambda: said(db) and is_hot(db), "it is hot again")
    assert tiered(db).hot == "answers"
    assert said(tiers.db()) == [*TEXTS, "more"]


def test_a_state_of_another_session_or_line_is_not_taken(tiers: Tiers):
    db = fill(tiers)
    say(db, "of somebody else", "other")
    db.read("other")
    eventually(lambda: len(tiers.held(":state")) == 2, "both are hot")
    other, ours = sorted(tiers.held(":state"), key=lambda key: key.endswith(b":s:state"))
    other_rows, our_rows = other.replace(b":state", b":rows"), ours.replace(b":state", b":rows")
    for _ in range(2):
        tiers.client.copy(other, ours, replace=True)
        tiers.client.copy(other_rows, our_rows, replace=True)
        assert said(db) == TEXTS
        assert said(tiers.db()) == TEXTS
        with db.session("s") as s:
            assert [m["content"] for m in s.messages] == TEXTS


def forged(keys: Keys, db: perdure.Database) -> bytes:
    """A state that was never written, sealed with what somebody knows who can write to the hot tier."""
    tip = tiered(db).cold.slice("s", 0, len(TEXTS), len(TEXTS)).rows[0]
    state = {"messages": [], "vars": {}, "facts": {}, "todos": [], "summary": "forged"}
    value = [tip.envelope, tip.digest, {"s": state, "k": {}}, {}, None]
    about = Artifact(SNAPSHOT, tip.line, tip.step, tip.step, b"")
    return state_value(tip, codec.seal_artifact(keys, db.kernel.store_id, "s", about, codec.encode(value)))


def test_with_a_key_nobody_can_forge_a_state_in_the_hot_tier(tiers: Tiers):
    key = b"k" * 32
    db = fill(tiers, keys=key)
    (state,) = tiers.held(":state")
    for keys in (Keys(), Keys(b"x" * 32)):
        tiers.client.set(state, forged(keys, db))
        assert said(tiers.db(keys=key)) == TEXTS
        assert said(db) == TEXTS


def test_without_a_key_whoever_can_write_the_hot_tier_can_write_states(tiers: Tiers):
    # The documented limit, as it is for whoever can write the cold store; it also shows that the forgery is a good one.
    db = fill(tiers)
    tiers.client.set(tiers.held(":state")[0], forged(Keys(), db))
    assert db.read("s").summary == "forged"
    assert tiers.truth().read("s").summary == ""


def test_what_was_doubted_is_replaced_by_what_is_true(tiers: Tiers):
    db = fill(tiers)
    (state,) = tiers.held(":state")
    good = tiers.client.get(state)
    tiers.client.set(state, good[:-1] + bytes([good[-1] ^ 1]))
    assert said(db) == TEXTS
    eventually(lambda: said(db) and is_hot(db), "it is hot again")
    assert said(tiers.db()) == TEXTS


def test_an_error_of_the_cold_store_is_still_an_error(tiers: Tiers):
    db = tiers.db()
    say(db, "one")
    say(db, "two")
    eventually(lambda: tiers.held(":rows") and tiers.held(":heads"), "it was told")
    # A row is thinned and no pack holds it: the cold store has lost it.
    assert tiered(db).cold.rewrite(Rewrite("s", thin=(Span(0, 2, 2),)))
    tiers.client.delete(*tiers.held())
    with pytest.raises(perdure.Corrupted):
        tiers.db().read("s")
