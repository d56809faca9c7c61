"""The records of the file store, and what their reader refuses."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from perdure.stores.file import log as frames

if TYPE_CHECKING:
    pass


def test_what_was_packed_is_scanned_again():
    records = [(1, b"one"), (2, b""), (3, bytes(3000))]
    raw, starts = frames.pack(records, 100, salt=7)
    data = bytes(100) + raw
    found = list(frames.scan(lambda size, at: data[at : at + size], 100, len(data), 7))
    assert [(frame.kind, frame.body) for frame in found] == records
    assert [frame.offset for frame in found] == starts


def test_a_record_longer_than_the_buffer_is_scanned():
    raw, _ = frames.pack([(1, b"a"), (2, os.urandom(3 << 20)), (3, b"b")], 0, salt=7)
    found = list(frames.scan(lambda size, at: raw[at : at + size], 0, len(raw), 7))
    assert [frame.kind for frame in found] == [1, 2, 3]


def test_a_record_is_valid_only_at_its_place_and_in_its_log():
    raw, _ = frames.pack([(1, b"one")], 0, salt=7)
    assert frames.unpack(raw, 0, 0, 7) is not None
    assert frames.unpack(raw, 0, 512, 7) is None
    assert frames.unpack(raw, 0, 0, 8) is None


def test_every_flipped_bit_of_a_record_is_noticed():
    raw, _ = frames.pack([(1, b"some body")], 0, salt=7)
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert frames.unpack(bytes(flipped), 0, 0, 7) is None, bit
