"""What a reader sees of a checkpoint, and the state opened at one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from perdure.errors import Misuse, format_path
from perdure.kernel import Kernel
from perdure.record.codec import Point
from perdure.state.document import BOOK, STATE, Document, TrackedDict
from perdure.state.values import LONG_AGO, TREE, BlobRef

if TYPE_CHECKING:
    from perdure.record.codec import Loaded

OBJECTIVE = "objective"
"""Where a state keeps what its session is to achieve."""
OBJECTIVE_STATUSES = ("open", "reached", "given_up")


def is_objective(value: Any) -> bool:
    """Whether a state keeps an objective there, not something of its program's own under the same name."""
    if not isinstance(value, dict):
        return False
    forms = {"text": str, "status": str, "note": str, "time": int}
    kept = cast("dict[str, Any]", value)
    if kept.keys() != forms.keys() or kept["status"] not in OBJECTIVE_STATUSES:
        return False
    return all(type(kept[name]) is form for name, form in forms.items())


class Checkpoint:
    """One immutable moment of a session."""

    __slots__ = ("_point",)

    def __init__(self, point: Point) -> None:
        self._point = point

    @property
    def session(self) -> str:
        """The session's id."""
        return self._point.envelope.session

    @property
    def branch(self) -> str:
        """The branch it was written on."""
        return self._point.envelope.branch

    @property
    def step(self) -> int:
        """How many checkpoints it is away from the session's beginning."""
        return self._point.envelope.step

    @property
    def id(self) -> str:
        """Its name, made by the writer."""
        return self._point.envelope.id.hex()

    @property
    def parent(self) -> str | None:
        """The id of the checkpoint it builds on; None for the first."""
        parent = self._point.envelope.parent
        return parent.hex() if parent else None

    @property
    def kind(self) -> str:
        """What it records, as :class:`perdure.Kind` lists them."""
        return self._point.envelope.kind

    @property
    def at(self) -> int:
        """Milliseconds since the epoch, by the writer's clock."""
        return self._point.envelope.at

    @property
    def owner(self) -> str:
        """Who the session belongs to."""
        return self._point.envelope.owner

    @property
    def status(self) -> str:
        """Where the session stood."""
        return self._point.envelope.status

    @property
    def schema(self) -> str:
        """The version of the state's schema."""
        return self._point.envelope.schema

    @property
    def digest(self) -> str:
        """The digest of everything up to here."""
        return self._point.digest.hex()

    @property
    def line(self) -> int:
        """The line of checkpoints it stands on: forks and rewinds begin new ones."""
        return self._point.envelope.line

    @property
    def more(self) -> dict[str, Any]:
        """What only some have: run, effect, tool, error, takes, note, model, usage, ..."""
        more = {k: v for k, v in self._point.envelope.x.items() if k not in ("from", "blobs")}
        if isinstance(more.get("leaves"), bytes):
            more["leaves"] = more["leaves"].hex()
        return more

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and self._point == other._point

    def __hash__(self) -> int:
        return hash(self._point.digest)

    def __repr__(self) -> str:
        return f"<Checkpoint {self.session}@{self.step} on {self.branch}, {self.kind}, {self.id[:12]}>"


class StateView:
    """A session's state as the words of the product name its parts."""

    document: Document

    @property
    def state(self) -> TrackedDict:
        """The whole state: any JSON under any key."""
        return self.document.root[STATE]

    @property
    def book(self) -> TrackedDict:
        """What the library keeps beside the state: effects, approvals, runs, and an agent's notes."""
        return self.document.root[BOOK]

    @property
    def messages(self) -> Any:
        """The conversation, oldest first."""
        return self.document.root[STATE]["messages"]

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

    @property
    def objective(self) -> Any:
        """What is to be achieved: its text, status (open, reached, given_up), note and time; None when none is set."""
        found = self.state.get(OBJECTIVE)
        return found if is_objective(found) else None

    def blob(self, *path: str | int) -> BlobRef | bytes:
        """The bytes or text at a path of the state, without reading them: for ``db.open_blob``, or for another state.

        They are themselves where they are in memory already.
        """
        found: Any = self.state
        for part in path[:-1]:
            found = found[part]
        # Past the tracked container's own look, which would read it.
        raw: Any = dict[str, Any] if isinstance(found, dict) else list[Any]
        value: Any = raw.__getitem__(found, path[-1])
        if isinstance(value, BlobRef) and value.form != TREE:
            # Whoever puts it into another state must not rely on this one to keep it.
            return BlobRef(value.form, value.ref, value.size, value.resolver, LONG_AGO)
        if not isinstance(value, bytes | str):
            raise Misuse(f"{format_path(path)} is neither bytes nor text: only these are read as a stream")
        return value.encode() if isinstance(value, str) else value


class Reading(StateView):
    """A session's state at one checkpoint, for looking only: takes no lease, and what is stored stays as it is.

    Edits of the state raise ``ReadOnly``; the items of its lists are copies of your own.
    """

    def __init__(self, kernel: Kernel, loaded: Loaded, *, possibly_old: bool = False) -> None:
        assert loaded.point is not None
        self.document = Document(loaded.doc, kernel.resolve, readonly=True, bare=not loaded.blobs)
        self.checkpoint = Checkpoint(loaded.point)
        self.possibly_old = possibly_old
        """Whether there may be newer checkpoints: the store could not be asked, and a cache answered for it."""

    @property
    def step(self) -> int:
        """The step that was opened."""
        return self.checkpoint.step

    def plain(self) -> dict[str, Any]:
        """The state as ordinary dicts and lists, blobs read."""
        return self.state.plain()

    def __repr__(self) -> str:
        c = self.checkpoint
        old = ", possibly old" if self.possibly_old else ""
        return f"<Reading {c.session}@{c.step} on {c.branch}, {c.status}{old}>"
