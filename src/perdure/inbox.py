"""The inbox: inputs posted by anyone, sealed, and taken by the writer in the very commit that answers them."""

# pyright: reportPrivateUsage=false
# The handle is one thing in several rooms: they share its inner parts.
from __future__ import annotations

import hmac
from typing import Any, NamedTuple

from perdure import codec
from perdure.codec import Body
from perdure.core import SessionCore
from perdure.errors import Corrupted, LimitExceeded
from perdure.flow import Do, Flow
from perdure.kernel import Kernel
from perdure.model import InboxEntry
from perdure.values import Wire

MAX_MESSAGE = 1024 * 1024
"""The most bytes one posted input may have."""


class Message(NamedTuple):
    """A posted input."""

    key: str
    kind: str
    body: Any


def seal_entry(kernel: Kernel, session: str, key: str, kind: str, body: Any) -> InboxEntry:
    """Seal an input, bound to its session, key and kind. The body holds no blobs: it is limited in size."""
    plaintext = codec.encode(Wire(None).value(body, ("message",)))
    if len(plaintext.data) > MAX_MESSAGE:
        msg = f"this message has {len(plaintext.data)} bytes, over the limit of {MAX_MESSAGE}: post a reference to it"
        raise LimitExceeded(msg)
    digest = _digest(kernel, kernel.keys.current, session, key, kind, plaintext)
    name = kernel.keys.current.encode()
    sealed = bytes((len(name),)) + name + codec.seal(plaintext)
    return InboxEntry(session, key, kind, kernel.clock.wall(), digest, sealed)


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


class Inbox(SessionCore):
    """The flows of a handle that read its inbox."""

    def _take_flow(self, limit: int = 100) -> Flow[list[Message]]:
        """Waiting messages, oldest first; the next commit takes them, together with what you made of them.

        Until that commit nothing is taken: after a crash they are all there again. Calling this twice before a
        commit gives only those not given yet.
        """
        self._usable()
        if self._replay is not None:
            recorded = self._replay.took()
            if recorded is not None:
                return recorded
        entries: list[InboxEntry] = yield Do(self.kernel.store.inbox, (self.id, limit + len(self._taking)))
        given = {e.key for e in self._taking}
        new = [open_entry(self.kernel, e) for e in entries if e.key not in given and e.kind == "message"][:limit]
        self._taking.extend(new)
        return new

    def _take_special(self, kind: str, key: str) -> Flow[Message | None]:
        """The waiting decision or outcome of that key, to be taken by the next commit."""
        entries: list[InboxEntry] = yield Do(self.kernel.store.inbox, (self.id, 1, key))
        if not entries or entries[0].kind != kind or any(e.key == key for e in self._taking):
            return None
        message = open_entry(self.kernel, entries[0])
        self._taking.append(message)
        return message
