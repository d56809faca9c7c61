"""The past of a session in JSON: checkpoints, the state or a request there, and what differs between two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from perdure.agent.model_versions import between, versions_in
from perdure.model import Kind, Status
from perdure.shapes.approvals import ToolException, tool_exception
from perdure.shapes.basics import Digest, Id, Shape, Time, shaped
from perdure.shapes.truncation import MAX_ANSWER, Truncation, bounded, pointer_of, window
from perdure.shapes.truncation import Kind as ValueKind
from perdure.state.merge import differences

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from perdure.agent.model_versions import VersionChange
    from perdure.history import checkpoint as library
    from perdure.history.checkpoint import Reading

MOST_DIFFERENCES = 500


class Checkpoint(Shape):
    """One saved step of a session."""

    session: str
    branch: str
    line: int
    """The line it stands on: forks and rewinds begin new ones."""
    step: int
    id: Id
    parent: Id | None
    kind: Kind
    status: Status
    at: Time
    owner: str
    schema: str
    """The version of the state's schema."""
    digest: Digest
    """Of everything up to here."""
    details: dict[str, Any]
    """What only some have: run, effect, tool, error, exception, misfit, takes, note, model, usage, tools, program,
    agent and child_of."""
    exception: ToolException | UnsetType = UNSET
    """Of a tool, where this records one: in `perdure log`, of the newest 50."""


def checkpoint(c: library.Checkpoint, told: Mapping[str, str] | None = None) -> Checkpoint:
    """A checkpoint of the library, and the exception of a tool that it records."""
    more = {"exception": tool_exception(told)} if told is not None else {}
    return shaped(Checkpoint, c, details=c.more, **more)


class Value(Shape):
    """The state, or the request to a model, at a checkpoint: as a whole, or the part that was asked for."""

    checkpoint: Checkpoint
    path: str
    """A JSON pointer (RFC 6901); empty for the whole."""
    kind: ValueKind
    size: int
    """Characters, items, names or bytes that there are at this path."""
    offset: int
    """Where in it the value begins."""
    value: Any
    """A whole state has messages, vars, facts, todos, summary and your own; a whole request has model, messages, tools
    and params."""
    truncated: list[Truncation]
    """What is too long to be there as a whole: ask for it by its path, with offset and limit."""


def value_part(c: library.Checkpoint, whole: Any, path: str, offset: int, limit: int | None) -> Value:
    """The part of a value that was asked for, of bounded size. May read blobs, so it blocks."""
    return Value(checkpoint=checkpoint(c), path=path, **window(whole, path, offset, limit)._asdict())


def whole_state(reading: Reading) -> Value:
    """A state with nothing left out, however long it is."""
    state = reading.plain()
    return Value(
        checkpoint=checkpoint(reading.checkpoint), path="", kind="object", size=len(state), offset=0, value=state,
        truncated=[],
    )  # fmt: skip


class Difference(Shape):
    """One place where two states differ."""

    path: str
    """A JSON pointer (RFC 6901)."""
    kind: Literal["added", "removed", "changed"]
    before: Any
    after: Any


class ModelChange(Shape):
    """A model that answers as another version, or from another system, than before."""

    model: str
    what: Literal["version", "fingerprint"]
    before: str
    after: str
    step: int | None
    """The first step that says so, where that is known."""


def model_changes(changes: Iterable[VersionChange]) -> list[ModelChange]:
    """What a provider has changed behind the name of a model."""
    return [shaped(ModelChange, change) for change in changes]


class Diff(Shape):
    """Where two states differ, in reading order."""

    a: Checkpoint
    b: Checkpoint
    differences: list[Difference]
    left_out: int
    """How many more differences there are."""
    model_changes: list[ModelChange]
    """What the provider has changed behind the names of models that answered on both sides."""
    truncated: list[Truncation]


def diff(one: Reading, two: Reading, *, whole: bool = False) -> Diff:
    """Where two states differ; unless the whole is wanted, of bounded size."""
    every = differences(one.plain(), two.plain())
    found: list[Difference] = []
    truncated: list[Truncation] = []
    budget = None if whole else MAX_ANSWER // 4
    for d in every if whole else every[:MOST_DIFFERENCES]:
        path = pointer_of(d.path)
        before, cut_before = bounded(d.before, budget, path)
        after, cut_after = bounded(d.after, budget, path)
        truncated += [*cut_before, *cut_after]
        if budget is not None:
            budget = max(budget - len(msgspec.json.encode([before, after])), 200)
        found.append(Difference(path=path, kind=d.kind, before=before, after=after))  # pyright: ignore
    return Diff(
        a=checkpoint(one.checkpoint), b=checkpoint(two.checkpoint), differences=found,
        left_out=len(every) - len(found), truncated=truncated[:1000],
        model_changes=model_changes(between(versions_in(one.book), versions_in(two.book))),
    )  # fmt: skip


class Merge(Shape):
    """The checkpoint of a merge, or the paths that both sides have changed."""

    merged: Checkpoint | None
    """Null when nothing was written: both sides have changed the same, or there was nothing to merge."""
    conflicts: list[str]
