"""Packs give back exactly the rows that were put into them, and what those rows appended, for every span."""

import random
from typing import Any

import pytest

import perdure
from perdure.errors import Corrupted
from perdure.kernel import Kernel
from perdure.model import Span
from perdure.record import codec
from perdure.record.codec import JSON, MSGPACK, Body
from perdure.record.packs import Packed, PackReader, build_pack
from perdure.state.delta import APPEND, SET
from perdure.state.document import STATE

SESSION, LINE, LO = "s", 3, 7


@pytest.fixture
def kernel():
    with perdure.open("memory://", keys=b"a key of sixteen bytes or more") as db:
        yield db.kernel


def append(name: str, *values: Any) -> list[Any]:
    return [APPEND, [STATE, name], list(values)]


PAYLOADS: dict[str, list[Any]] = {
    "one message": [[append("messages", {"role": "user", "content": "hello"})], None],
    "several at once": [[append("messages", {"a": 1}, [2], "three", None, 2**80)], None],
    "more than fit a count": [[append("messages", *range(300))], None],
    "another list": [[append("todos", "buy milk")], None],
    "something beside it": [[append("messages", 1)], {"took": [["k", "message", None]]}],
    "an end like none": [[append("messages", 1)], {"nothing": None}],
    "another edit too": [[append("messages", 1), [SET, [STATE, "vars"], {"x": 1.0}]], None],
    "no append": [[[SET, [STATE, "summary"], "short"]], None],
    "an append further down": [[[APPEND, [STATE, "vars", "list"], [1]]], None],
    "nothing at all": [[], None],
}


def row(payload: list[Any], form: int = MSGPACK) -> Packed:
    return Packed(random.Random(repr(payload)).randbytes(40), codec.encode(payload, form))


def packed(kernel: Kernel, rows: list[Packed]) -> PackReader:
    return PackReader(kernel, SESSION, [build_pack(kernel, SESSION, LINE, LO, b"d" * 32, rows)])


def said(rows: list[Packed], name: str) -> list[Any]:
    """What rows appended, found the long way."""
    ops = [op for r in rows for op in codec.decode(r.body)[0]]
    return [v for op in ops if op[0] == APPEND and op[1] == [STATE, name] for v in op[2]]


@pytest.mark.parametrize("kind", PAYLOADS)
def test_a_row_comes_out_byte_for_byte_as_it_went_in(kernel: Kernel, kind: str):
    rows = [row(PAYLOADS["one message"]), row(PAYLOADS[kind]), row(PAYLOADS[kind], JSON)]
    reader = packed(kernel, rows)
    assert [reader.row(LINE, LO + i) for i in range(3)] == rows


def test_every_span_says_what_its_rows_appended(kernel: Kernel):
    rng = random.Random(5)
    kinds = [rng.choice(list(PAYLOADS)) for _ in range(12)]
    rows = [row(PAYLOADS[kind], rng.choice([MSGPACK, MSGPACK, JSON])) for kind in kinds]
    for name in ("messages", "todos", "facts"):
        for start in range(len(rows)):
            for end in range(start, len(rows)):
                got = packed(kernel, rows).appended(name, Span(LINE, LO + start, LO + end))
                assert got == said(rows[start : end + 1], name), (kinds, name, start, end)


def test_a_pack_of_plain_appends_gives_them_all_and_any_part_of_them(kernel: Kernel):
    rows = [row([[append("messages", {"n": n}, {"n": -n})], None]) for n in range(20)]
    for start, end in ((0, 19), (0, 7), (3, 19), (5, 5)):
        got = packed(kernel, rows).appended("messages", Span(LINE, LO + start, LO + end))
        assert got == said(rows[start : end + 1], "messages")


def test_a_value_written_in_an_unusual_way_is_kept_as_it_was_written(kernel: Kernel):
    # The same payload with one array header longer than need be: nobody of ours writes it, and it must survive.
    plain = codec.encode(PAYLOADS["one message"]).data
    odd = Packed(b"envelope", Body(MSGPACK, b"\xdc\x00\x02" + plain[1:]))
    assert codec.decode(odd.body) == codec.decode(Body(MSGPACK, plain))
    assert packed(kernel, [odd]).row(LINE, LO) == odd


def test_the_digest_before_a_pack_is_kept_with_it(kernel: Kernel):
    pack = build_pack(kernel, SESSION, LINE, LO, b"d" * 32, [row(PAYLOADS["one message"])])
    assert PackReader(kernel, SESSION, [pack]).before(pack) == b"d" * 32


def test_a_changed_byte_anywhere_in_a_pack_is_noticed(kernel: Kernel):
    pack = build_pack(kernel, SESSION, LINE, LO, b"d" * 32, [row(p) for p in PAYLOADS.values()])
    for at in range(len(pack.body)):
        changed = bytearray(pack.body)
        changed[at] ^= 1 << at % 8
        reader = PackReader(kernel, SESSION, [pack._replace(body=bytes(changed))])
        with pytest.raises((Corrupted, perdure.KeyMismatch)):
            reader.appended("messages", Span(LINE, LO, LO))
        with pytest.raises((Corrupted, perdure.KeyMismatch)):
            reader.row(LINE, LO)
