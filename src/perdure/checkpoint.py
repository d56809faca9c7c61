"""What a reader sees of a checkpoint, and the state opened at one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.document import Document
from perdure.kernel import STATE, Kernel, Point
from perdure.tracked import TrackedDict

if TYPE_CHECKING:
    from perdure.kernel import Loaded


class Checkpoint(NamedTuple):
    """One immutable moment of a session."""

    session: str
    branch: str
    step: int
    id: str
    parent: str | None
    kind: str
    at: int
    """Milliseconds since the epoch, by the writer's clock."""
    owner: str
    status: str
    schema: str
    digest: str
    line: int
    more: dict[str, Any]
    """What only some have: run, effect, tool, error, takes, note, model, usage, ..."""


def checkpoint_of(point: Point) -> Checkpoint:
    """The public form of a verified checkpoint."""
    e = point.envelope
    more = {k: v for k, v in e.x.items() if k not in ("from", "blobs")}
    for name in ("leaves",):
        if isinstance(more.get(name), bytes):
            more[name] = more[name].hex()
    return Checkpoint(
        e.session, e.branch, e.step, e.id.hex(), e.parent.hex() if e.parent else None, e.kind, e.at, e.owner,
        e.status, e.schema, point.digest.hex(), e.line, more,
    )  # fmt: skip


class StateView:
    """A session's state as the words of the product name its parts."""

    _document: Document

    @property
    def state(self) -> TrackedDict:
        """The whole state: any JSON under any key."""
        return self._document.root[STATE]

    @property
    def messages(self) -> Any:
        """The conversation, oldest first."""
        return self.state["messages"]

    @property
    def vars(self) -> Any:
        """Working memory: structured variables."""
        return self.state["vars"]

    @property
    def facts(self) -> Any:
        """What was learnt: name -> value, time, source."""
        return self.state["facts"]

    @property
    def todos(self) -> Any:
        """What is still to be done."""
        return self.state["todos"]

    @property
    def summary(self) -> str:
        """What has been decided so far, in a few paragraphs."""
        return self.state["summary"]


class Reading(StateView):
    """A session's state at one checkpoint, for looking only: takes no lease, and what is stored stays as it is.

    Edits of the state raise ``ReadOnly``; the items of its lists are copies of your own.
    """

    def __init__(self, kernel: Kernel, loaded: Loaded) -> None:
        assert loaded.point is not None
        self._document = Document(loaded.doc, kernel.resolve, readonly=True, bare=not loaded.blobs)
        self.checkpoint = checkpoint_of(loaded.point)

    @property
    def step(self) -> int:
        """The step that was opened."""
        return self.checkpoint.step

    def plain(self) -> dict[str, Any]:
        """The state as ordinary dicts and lists, blobs read."""
        return self.state.plain()

    def __repr__(self) -> str:
        c = self.checkpoint
        return f"<Reading {c.session}@{c.step} on {c.branch}, {c.status}>"
