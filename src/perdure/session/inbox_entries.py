"""The entries of an inbox: sealed, bound to their session, key and kind, verified when opened, and limited in size."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import Corrupted, LimitExceeded, PerdureError
from perdure.kernel import Kernel
from perdure.model import InboxEntry
from perdure.record import codec
from perdure.record.codec import Body
from perdure.state.values import Wire
from perdure.system.flow import Do, Flow

if TYPE_CHECKING:
    from perdure.kernel import Kernel
    from perdure.model import InboxEntry

MAX_MESSAGE = 1024 * 1024
"""The most bytes one posted input may have."""


class Message(NamedTuple):
    """A posted input."""

    key: str
    kind: str
    body: Any


def seal_entry(kernel: Kernel, session: str, key: str, kind: str, body: Any, *, at: int | None = None) -> InboxEntry:
    """Seal an input, bound to its session, key and kind. The body holds no blobs: it is limited in size."""
    plaintext = codec.encode(Wire(None).value(body, ("message",)))
    if len(plaintext.data) > MAX_MESSAGE:
        msg = f"this message has {len(plaintext.data)} bytes, over the limit of {MAX_MESSAGE}: post a reference to it"
        raise LimitExceeded(msg)
    digest = _digest(kernel, kernel.keys.current, session, key, kind, plaintext)
    name = kernel.keys.current.encode()
    sealed = bytes((len(name),)) + name + codec.seal(plaintext)
    return InboxEntry(session, key, kind, kernel.clock.wall() if at is None else at, digest, sealed)


def open_entry(kernel: Kernel, entry: InboxEntry) -> Message:
    """Verify an input and open it."""
    where = f"session {entry.session!r}, inbox entry {entry.key!r:.60}"
    if not entry.body:
        raise Corrupted(where, "its body is missing")
    size = entry.body[0]
    try:
        name = entry.body[1 : 1 + size].decode("ascii")
    except UnicodeDecodeError as e:
        raise Corrupted(where, "the key's name cannot be read") from e
    body = codec.unseal(entry.body[1 + size :], where, MAX_MESSAGE)
    if not hmac.compare_digest(_digest(kernel, name, entry.session, entry.key, entry.kind, body), entry.digest):
        raise Corrupted(where, "the digest does not match")
    return Message(entry.key, entry.kind, kernel.decode(body, where))


def _digest(kernel: Kernel, name: str, session: str, key: str, kind: str, body: Body) -> bytes:
    about = codec.encode([session, key, kind]).data
    return codec.digest(kernel.keys, name, b"inbox\0", (about, body.data), f"inbox of session {session!r}")


def posted(kernel: Kernel, entry: InboxEntry) -> Flow[bool]:
    """Post one input; False when its key was there already."""
    answers: list[bool | PerdureError] = yield Do(kernel.store.post, ([entry],))
    if isinstance(answers[0], PerdureError):
        raise answers[0]
    return answers[0]
