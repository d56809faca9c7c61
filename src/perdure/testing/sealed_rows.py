"""Commits and inbox entries as a session would seal them, with made-up bytes: what tests of stores write."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from perdure.errors import PerdureError
from perdure.model import Append, InboxEntry, Landed

if TYPE_CHECKING:
    from perdure.protocols import Store

HOUR = 3_600_000
"""Milliseconds."""


def commit(session: str = "s", step: int = 0, expect: bytes | None = None, **fields: Any) -> Append:
    """A sealed commit; the first of a line when its step is 0, unless told otherwise."""
    branch = fields.get("branch", "main")
    line = fields.get("line", 0)
    id = fields.get("id") or hashlib.sha256(f"{session}/{branch}/{line}/{step}".encode()).digest()[:16]
    values: dict[str, Any] = {
        "session": session,
        "branch": branch,
        "line": line,
        "step": step,
        "id": id,
        "expect": expect,
        "digest": hashlib.sha256(b"digest" + id).digest(),
        "envelope": b"envelope of " + id,
        "payload": b"payload of " + id,
        "token": None,
        "starts": step == 0,
        "owner": "ana",
        "status": "idle",
        "kind": "commit",
        "at": 1_690_000_000_000 + step,
        "ttl": None,
    }
    return Append(**{**values, **fields})


def land(store: Store, item: Append) -> Landed:
    """Append one commit; its error is raised."""
    (answer,) = store.append([item])
    if isinstance(answer, PerdureError):
        raise answer
    return answer


def write(store: Store, session: str = "s", count: int = 1, **fields: Any) -> list[Append]:
    """Append some commits to the branch main, each on top of the one before, from where it stands."""
    row = store.look(session)
    head = next((head for head in row.heads if head.branch == "main"), None) if row else None
    step, expect, line = (head.step + 1, head.id, head.line) if head else (0, None, 0)
    items: list[Append] = []
    for number in range(step, step + count):
        item = commit(session, number, expect, **{"line": line, **fields})
        land(store, item)
        expect = item.id
        items.append(item)
    return items


def entry(key: str = "k", session: str = "s", body: bytes = b"hello", **fields: Any) -> InboxEntry:
    """An input to post."""
    digest = hashlib.sha256(body).digest()
    values: dict[str, Any] = {"kind": "message", "at": 1_690_000_000_000, "digest": digest, "body": body}
    return InboxEntry(session, key, **{**values, **fields})


def post(store: Store, item: InboxEntry) -> bool:
    """Post one entry; its error is raised."""
    (answer,) = store.post([item])
    if isinstance(answer, PerdureError):
        raise answer
    assert isinstance(answer, bool), f"it is not number {item.seq}"
    return answer
