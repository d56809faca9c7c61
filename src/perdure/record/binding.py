"""What binds stored bytes to their place: to the store they lie in, and an inbox entry to its number and its time.

A row's payload and an artifact carry a tag that covers the store's id (``codec``). The body of an inbox entry is
``length of head | head | tag | sealed bytes``; the head names the key and the stamp. A stamp, the id of the store an
entry was posted to and its number there, is never given twice, and stays with the entry wherever it is copied: so
checkpoints say by stamps what they took. All tags are checked before anything is inflated, and are HMACs when there is
a key.

A copy is bound anew. That takes the key; and what was not bound to its old store is not bound to the new one either.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from perdure.errors import Corrupted, UnsupportedFormat
from perdure.record import codec

if TYPE_CHECKING:
    from perdure.model import Artifact, Dump, InboxEntry, Row
    from perdure.record.keys import Keys


class Stamp(NamedTuple):
    """Which input this is, for all time."""

    origin: str
    """The id of the store it was posted to."""
    number: int
    """Its number there, within its session."""


class _Head(NamedTuple):
    key: str
    origin: str
    number: int


_head = msgspec.msgpack.Decoder(_Head).decode


def bind_entry(keys: Keys, store: str, entry: InboxEntry, stamp: Stamp, name: str | None = None) -> InboxEntry:
    """An entry whose body is sealed bytes, as it is stored; under the current key unless one is named."""
    name = keys.current if name is None else name
    head = msgspec.msgpack.encode(_Head(name, *stamp))
    tag = _entry_tag(keys, name, store, entry, stamp, entry.body)
    return entry._replace(body=b"".join((bytes((len(head),)), head, tag, entry.body)))


def open_entry_seal(keys: Keys, store: str, entry: InboxEntry) -> tuple[str, Stamp, memoryview]:
    """The name of its key, the stamp and the sealed bytes of an entry, verified with all its columns."""
    where = where_entry(entry)
    raw = memoryview(entry.body)
    if not raw or len(raw) < 1 + raw[0] + codec.TAG:
        raise Corrupted(where, "its body is missing, or cut short")
    end = 1 + raw[0]
    try:
        name, origin, number = _head(raw[1:end])
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise Corrupted(where, "its head cannot be read") from e
    stamp, sealed = Stamp(origin, number), raw[end + codec.TAG :]
    tag = _entry_tag(keys, name, store, entry, stamp, bytes(sealed))
    if not hmac.compare_digest(tag, raw[end : end + codec.TAG]):
        raise Corrupted(where, codec.NOT_FROM_HERE)
    if origin == store and number != entry.seq:
        raise Corrupted(where, f"the store says that it is number {entry.seq}, and it is number {number}")
    return name, stamp, sealed


def where_entry(entry: InboxEntry) -> str:
    """A place for people to read."""
    return f"session {entry.session!r}, inbox entry {entry.key!r:.60}"


def _entry_tag(keys: Keys, name: str, store: str, entry: InboxEntry, stamp: Stamp, sealed: bytes) -> bytes:
    about = msgspec.msgpack.encode((store, entry.session, entry.key, entry.kind, entry.at, *stamp))
    return codec.digest(keys, name, b"input\0", (about, entry.digest, sealed), where_entry(entry))


def rebind(keys: Keys, dump: Dump, old: str, new: str) -> Dump:
    """A dump of one store as it is to lie in another."""
    if old == new:
        return dump
    session = dump.row.id
    return dump._replace(
        rows=tuple((rebind_row(keys, row, old, new), shown) for row, shown in dump.rows),
        artifacts=tuple(_rebind_artifact(keys, session, artifact, old, new) for artifact in dump.artifacts),
        inbox=tuple(rebind_entry(keys, entry, old, new) for entry in dump.inbox),
    )


def rebind_row(keys: Keys, row: Row, old: str, new: str) -> Row:
    """One row; as it is when it does not belong to the old store."""
    if not row.envelope:
        return row
    try:
        name = codec.decode_envelope(row.envelope, "").key
    except (Corrupted, UnsupportedFormat):
        return row
    where, tag, fenced = f"line {row.line}, step {row.step}", row.payload[: codec.TAG], row.payload[codec.TAG :]
    if not hmac.compare_digest(codec.tag_payload(keys, name, old, row.envelope, fenced, where), tag):
        return row
    # Tokens are those of a store: in another one they mean nothing.
    return row._replace(payload=codec.bind_payload(keys, name, new, row.envelope, fenced[codec.FENCE :], where))


def _rebind_artifact(keys: Keys, session: str, artifact: Artifact, old: str, new: str) -> Artifact:
    try:
        name, sealed = codec.open_artifact_seal(keys, old, session, artifact, "")
    except Corrupted:
        return artifact
    return codec.bind_artifact(keys, name, new, session, artifact, sealed)


def rebind_entry(keys: Keys, entry: InboxEntry, old: str, new: str) -> InboxEntry:
    """One inbox entry, which has its own number only in the store it was posted to, and gets any in others.

    Its body stays as it is when it was taken, or does not belong to the old store.
    """
    if entry.taken:
        return entry._replace(seq=0)
    try:
        name, stamp, sealed = open_entry_seal(keys, old, entry)
    except Corrupted:
        return entry._replace(seq=0)
    number = stamp.number if stamp.origin == new else 0
    return bind_entry(keys, new, entry._replace(body=bytes(sealed), seq=number), stamp, name)
