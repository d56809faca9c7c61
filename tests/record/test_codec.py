"""Plaintexts, seals and digests: what is written is read, and what was not written is refused."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import Corrupted, KeyMismatch, PerdureError, StoreError, UnsupportedFormat
from perdure.model import Artifact, Envelope, Span
from perdure.record import codec
from perdure.record.codec import JSON, MSGPACK, Body
from perdure.record.keys import Keys
from perdure.state.values import STR, BlobRef
from tests.campaigns.model.documents import exact, values

KEY, OTHER = Keys("a key of some length"), Keys("another key of some length")
BODY = codec.encode({"content": "word " * 100})


@pytest.mark.parametrize("form", [MSGPACK, JSON])
@given(value=values)
def test_a_value_comes_back_exactly_in_either_form(form: int, value: Any):
    assert exact(codec.decode(codec.encode(value, form))) == exact(value)


@pytest.mark.parametrize("form", [MSGPACK, JSON])
def test_a_ref_comes_back_as_a_ref_and_what_looks_like_one_as_itself(form: int):
    value = [BlobRef(STR, "ab" * 32, 5), {"$perdure": [0, "ab" * 32, 5]}, {"$perdure": {"$perdure": [1]}}]
    found = codec.decode(codec.encode(value, form))
    assert isinstance(found[0], BlobRef)
    assert (found[0].form, found[0].ref, found[0].size) == (STR, "ab" * 32, 5)
    assert found[1:] == value[1:]


@given(st.binary(max_size=2000), st.sampled_from([MSGPACK, JSON]))
def test_sealing_gives_every_plaintext_back(data: bytes, form: int):
    body = Body(form, data)
    assert codec.unseal(codec.seal(body), "here") == body


def test_two_hundred_messages_shrink_by_four_fifths():
    text = "The hotel in {} has a free room from the {}th on, breakfast included, for {} euros a night. "
    messages = [
        {"role": ["user", "assistant"][n % 2], "content": text.format(n % 7, n, 80 + n) * 3} for n in range(200)
    ]
    raw = len(msgspec.json.encode(messages))
    assert len(codec.seal(codec.encode(messages))) <= 0.2 * raw


@given(st.data())
def test_any_change_of_sealed_bytes_gives_the_same_plaintext_or_a_typed_error(data: st.DataObject):
    sealed = bytearray(codec.seal(BODY))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = codec.unseal(bytes(sealed), "here")
    except StoreError:
        return
    # Nothing here says that it is the same plaintext: the digest does.
    digests = [codec.chain_digest(KEY, KEY.current, b"", b"", body, "here") for body in (found, BODY)]
    assert (digests[0] == digests[1]) == (found == BODY)


@given(st.binary(max_size=200))
def test_noise_is_refused_with_a_typed_error(noise: bytes):
    for read in (codec.unseal, codec.decode_envelope):
        with pytest.raises(StoreError, match="here"):
            read(noise, "here")
    for form in (MSGPACK, JSON, 7):
        # Some noise is a value by chance; what is none must not get out as anything but an error of ours.
        with contextlib.suppress(StoreError):
            codec.decode(Body(form, noise), "here")


def header(version: int = 1, flags: int = 0, how: int = 0x10, size: int = 0) -> bytes:
    return struct.pack("<BBBBI", 0xD5, version, flags, how, size)


@pytest.mark.parametrize(
    ("sealed", "error"),
    [
        (b"", Corrupted),
        (header()[:7], Corrupted),
        (b"\0" + header()[1:], Corrupted),
        (header(version=2), UnsupportedFormat),
        (header(flags=1), UnsupportedFormat),
        (header(flags=2), UnsupportedFormat),
        (header(flags=64), UnsupportedFormat),
        (header(how=0x1F), UnsupportedFormat),
        (header(size=5), Corrupted),
        (header(size=2**32 - 1), Corrupted),
        (header(how=0x11, size=5) + b"not a frame", Corrupted),
        (header(how=0x11, size=10**6) + zstandard.compress(b"x" * 10), Corrupted),
        (header(how=0x11, size=10) + zstandard.compress(b"x" * 10)[:-1], Corrupted),
        (header(how=0x11, size=codec.MAX_INFLATED + 1) + zstandard.compress(b""), Corrupted),
    ],
)
def test_headers_that_are_damaged_unknown_or_too_much_are_refused(sealed: bytes, error: type[PerdureError]):
    with pytest.raises(error, match="here"):
        codec.unseal(sealed, "here")


def test_a_row_may_not_inflate_to_more_than_a_commit_could_have_had():
    sealed = header(how=0x11, size=codec.MAX_ROW + 1) + zstandard.compress(bytes(codec.MAX_ROW + 1))
    with pytest.raises(Corrupted, match="over the limit"):
        codec.unseal(sealed, "here", codec.MAX_ROW)


def test_what_compresses_very_well_is_still_read():
    body = Body(MSGPACK, bytes(5 << 20))
    assert codec.unseal(codec.seal(body), "here") == body


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=4), st.lists(st.binary(max_size=6), min_size=1, max_size=4))
def test_parts_of_a_digest_cannot_be_moved_from_one_to_the_next(a: list[bytes], b: list[bytes]):
    one, two = (codec.digest(KEY, KEY.current, b"x\0", tuple(parts), "here") for parts in (a, b))
    assert (one == two) == (a == b)


def test_a_digest_depends_on_key_label_parent_envelope_form_and_content():
    base = (KEY, KEY.current, b"p", b"e", Body(MSGPACK, b"b"))
    others = [
        (OTHER, OTHER.current, b"p", b"e", Body(MSGPACK, b"b")), (Keys(), "", b"p", b"e", Body(MSGPACK, b"b")),
        (KEY, KEY.current, b"q", b"e", Body(MSGPACK, b"b")), (KEY, KEY.current, b"p", b"f", Body(MSGPACK, b"b")),
        (KEY, KEY.current, b"p", b"e", Body(JSON, b"b")), (KEY, KEY.current, b"p", b"e", Body(MSGPACK, b"c")),
    ]  # fmt: skip
    digests = [codec.chain_digest(*given, "here") for given in (base, *others)]
    assert len(set(digests)) == len(digests)


def test_with_a_key_in_hand_nothing_unkeyed_is_believed_and_without_it_nothing_keyed():
    with pytest.raises(KeyMismatch, match="without a key"):
        codec.digest(KEY, "", b"x", (), "here")
    with pytest.raises(KeyMismatch, match="no key was given"):
        codec.digest(Keys(), KEY.current, b"x", (), "here")
    with pytest.raises(KeyMismatch, match="another key"):
        codec.digest(OTHER, KEY.current, b"x", (), "here")


def test_several_keys_verify_and_the_first_one_signs():
    ring = Keys("another key of some length", "a key of some length")
    assert ring.current == OTHER.current
    for keys in (KEY, OTHER):
        assert codec.digest(ring, keys.current, b"x", (b"y",), "") == codec.digest(
            keys, keys.current, b"x", (b"y",), ""
        )


ARTIFACT = codec.seal_artifact(KEY, "here", "s", Artifact("pack", 1, 2, 5, b"", (Span(0, 1, 2),), ("ab" * 32,)), BODY)


@pytest.mark.parametrize(
    "change",
    [{"kind": "snapshot"}, {"line": 2}, {"lo": 1}, {"hi": 6}, {"refs": ()}, {"refs": (Span(0, 1, 3),)}, {"blobs": ()}],
    ids=repr,
)
def test_an_artifact_is_bound_to_what_it_says_it_is(change: dict[str, Any]):
    assert codec.open_artifact(KEY, "here", "s", ARTIFACT, "here") == BODY
    with pytest.raises(Corrupted, match="changed"):
        codec.open_artifact(KEY, "here", "s", ARTIFACT._replace(**change), "here")
    with pytest.raises(Corrupted, match="changed"):
        codec.open_artifact(KEY, "here", "t", ARTIFACT, "here")
    with pytest.raises(Corrupted, match="another store"):
        codec.open_artifact(KEY, "elsewhere", "s", ARTIFACT, "here")


@given(st.data())
def test_any_change_of_an_artifact_is_a_typed_error(data: st.DataObject):
    raw = bytearray(ARTIFACT.body)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(StoreError):
        codec.open_artifact(KEY, "here", "s", ARTIFACT._replace(body=bytes(raw)), "here")


def test_an_envelope_comes_back_and_a_newer_one_is_refused():
    envelope = Envelope(
        1, "s", b"i" * 16, None, 0, 1, "main", "commit", 5, "ana", "idle", None, "1.0.0", "", {"note": "n"}
    )
    assert codec.decode_envelope(codec.encode_envelope(envelope), "here") == envelope
    newer = codec.encode_envelope(msgspec.structs.replace(envelope, v=2))
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        codec.decode_envelope(newer, "here")
