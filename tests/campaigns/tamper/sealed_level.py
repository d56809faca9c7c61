"""Forged seals: what somebody writes who knows the formats, can write the store, and has not got the key."""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import zstandard

from perdure.record import codec
from perdure.record.codec import MSGPACK, Body
from perdure.record.keys import Keys
from perdure.state.delta import SET

if TYPE_CHECKING:
    import random

HEADER = struct.Struct("<BBBBI")
BOMBS = (60 << 20, 480 << 20)
"""Below and above what a checkpoint may inflate to."""
FORGERIES = ("version", "flags", "form", "compression", "size", "bomb", "content")


@cache
def bomb(size: int) -> bytes:
    """A few kB that inflate to many MB, as honest about that as a frame of ours."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=size)
    zeros = bytes(1 << 20)
    parts = [compressor.compress(zeros) for _ in range(size >> 20)]
    return b"".join([*parts, compressor.flush()])


def forge_seal(rng: random.Random, sealed: bytes) -> tuple[str, bytes]:
    """Another header, or another content, for sealed bytes."""
    if len(sealed) < HEADER.size:
        return "too short", sealed + b"\xd5"
    magic, version, flags, how, size = HEADER.unpack_from(sealed)
    data = sealed[HEADER.size :]
    what = rng.choice(FORGERIES)
    match what:
        case "version":
            version = rng.choice([0, 2, 255])
        case "flags":
            flags = rng.choice([1, 2, 3, 4, 128])
        case "form":
            how = how & 15 | rng.choice([0, 1, 2, 3, 15]) << 4
        case "compression":
            how = how & 0xF0 | rng.choice([0, 1, 2, 15])
        case "size":
            size = rng.choice([0, 1, size + 1, max(size - 1, 0), BOMBS[1], 2**29, 2**32 - 1])
        case "bomb":
            size = rng.choice(BOMBS)
            how, data = how & 0xF0 | 1, bomb(size)
        case _:
            data = zstandard.ZstdCompressor().compress(_plaintext())
            how, size = 1 << 4 | 1, len(_plaintext())
    return what, HEADER.pack(magic, version, flags, how, size) + data


def _plaintext() -> bytes:
    return codec.encode([[[SET, ["s", "vars"], {"forged": True}]], None]).data


def forge_payload(rng: random.Random, payload: bytes) -> tuple[str, bytes]:
    """Another header, or another content, behind the tag and the token of a row."""
    begin = codec.TAG + codec.FENCE
    what, sealed = forge_seal(rng, payload[begin:])
    return what, payload[:begin] + sealed


def forge_commit(
    rng: random.Random, store: str, envelope: bytes, parent: bytes, keep: bytes
) -> tuple[str, bytes, bytes, bytes]:
    """A checkpoint that says something else, sealed without the key (and with or without claiming one).

    Gives back what was done, envelope, digest and payload. ``keep`` is the digest that was there.
    """
    env = codec.decode_envelope(envelope, "")
    body = Body(MSGPACK, _plaintext())
    how = rng.choice(["no key", "no key, same digest", "unkeyed digest under the key's name", "other key"])
    keys = Keys("another key of some length") if how == "other key" else Keys()
    name = keys.current if how != "unkeyed digest under the key's name" else env.key
    env_bytes = codec.encode_envelope(msgspec.structs.replace(env, key=name))
    digest = keep
    if how != "no key, same digest":
        digest = codec.chain_digest(keys, keys.current, parent, env_bytes, body, "")
    return how, env_bytes, digest, codec.bind_payload(keys, keys.current, store, env_bytes, codec.seal(body), "")


def forge_tail(rng: random.Random, raw: bytes) -> tuple[str, bytes]:
    """Artifacts and inbox entries begin with the name of a key; behind it (and a digest) come sealed bytes."""
    if len(raw) < 2:
        return "too short", b""
    name = raw[1 : 1 + raw[0]]
    rest = raw[1 + raw[0] :]
    what = rng.choice(["no key", "long name", "seal", "seal", "seal"])
    if what == "no key":
        return what, b"\0" + rest
    if what == "long name":
        return what, bytes((255,)) + name + rest
    at = rest.find(b"\xd5\x01")
    what, sealed = forge_seal(rng, rest[max(at, 0) :])
    return what, raw[: 1 + raw[0]] + rest[: max(at, 0)] + sealed


def altered(rng: random.Random, value: Any, others: list[Any]) -> Any:
    """Another value of the same type, from elsewhere or a little off."""
    if others and rng.random() < 0.5:
        return rng.choice(others)
    match value:
        case bool():
            return not value
        case int():
            return max(0, value + rng.choice([-1, 1, 1, 1000, -1000]))
        case bytes() if value:
            at = rng.randrange(len(value))
            return value[:at] + bytes((value[at] ^ 1 << rng.randrange(8),)) + value[at + 1 :]
        case str():
            return rng.choice(["", value + "x", value[:-1], "main", "x" * 300])
        case None:
            return 1
        case _:
            return value
