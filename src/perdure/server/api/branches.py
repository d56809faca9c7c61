"""Branches over HTTP: fork (with edits), rewind and tag. All need the session's lease: while another writes it, 409."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Values are any JSON here: their types are looked at, not declared.
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.agent.branching_off import check_state, open_as_stored
from perdure.errors import InvalidInput
from perdure.server.api.inputs import Edit, NewBranch, NewTag, Rewind
from perdure.server.api.routing import Call, Nothing, endpoint
from perdure.shapes.history import Checkpoint, checkpoint
from perdure.shapes.truncation import parts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.history.checkpoint import Reading


@endpoint("POST", "/sessions/{session}/branches", tag="branches", status=201, errors=(409,))
async def fork(call: Call[Nothing, NewBranch]) -> Checkpoint:
    """Start a branch at a step, tag, branch or checkpoint, and edit its state. What is there stays as it is.

    The answer is where the new branch ends. Effects that were done before are not done again on it.
    """
    b = call.body
    if b.edits:
        # Tried on a copy first: an edit that does not fit must not leave a branch behind.
        reading = await call.ctx.db.read(call.session, b.at, branch=b.branch, migrate=False)
        row = await call.ctx.db.look(call.session)
        await call.ctx.blocking(_tried, reading, b.edits, bool(row.agent))
    async with await open_as_stored(call.ctx.db, call.session, b.branch) as s:
        made = await s.fork(b.name, at=b.at)
        if b.edits:
            await s.switch(b.name)
            apply_edits(s.state, b.edits)
            made = await s.commit(b.note or "edited")
    return checkpoint(made)


@endpoint("POST", "/sessions/{session}/rewind", tag="branches", errors=(409,))
async def rewind(call: Call[Nothing, Rewind]) -> Checkpoint:
    """Go on from an earlier checkpoint of a branch. What is left stays in the history, under the id of its tip."""
    b = call.body
    async with await open_as_stored(call.ctx.db, call.session, b.branch) as s:
        return checkpoint(await s.rewind(b.at))


@endpoint("POST", "/sessions/{session}/tags", tag="branches", status=201, errors=(409,))
async def tag(call: Call[Nothing, NewTag]) -> Checkpoint:
    """Give a checkpoint a name that never moves."""
    b = call.body
    async with await open_as_stored(call.ctx.db, call.session, b.branch) as s:
        return checkpoint(await s.tag(b.name, at=b.at))


def _tried(reading: Reading, edits: Sequence[Edit], agent: bool) -> None:
    state = reading.plain()
    apply_edits(state, edits)
    check_state(state, agent=agent)


def apply_edits(state: Any, edits: Sequence[Edit]) -> None:
    """Carry edits out on a state.

    >>> state = {"vars": {"a": 1}, "messages": [1, 2]}
    >>> apply_edits(state, [Edit(op="replace", path="/vars/a", value=2), Edit(op="add", path="/messages/-", value=3)])
    >>> apply_edits(state, [Edit(op="remove", path="/messages/0")])
    >>> state
    {'vars': {'a': 2}, 'messages': [2, 3]}
    """
    for edit in edits:
        *way, last = parts_of(edit.path) or [""]
        at = state
        for part in way:
            at = at[_key(at, part, edit)]
        if isinstance(at, list) and edit.op == "add":
            at.insert(len(at) if last == "-" else _index(last, len(at), edit), edit.value)
        elif isinstance(at, dict) and edit.op == "add":
            at[last] = edit.value
        elif edit.op == "remove":
            del at[_key(at, last, edit)]
        else:
            at[_key(at, last, edit)] = edit.value


def _key(at: Any, part: str, edit: Edit) -> Any:
    if isinstance(at, dict) and part in at:
        return part
    if isinstance(at, list):
        return _index(part, len(at) - 1, edit)
    raise _nothing(edit)


def _index(part: str, last: int, edit: Edit) -> int:
    if not (part.isascii() and part.isdigit() and len(part) <= 18 and int(part) <= last):
        raise _nothing(edit)
    return int(part)


def _nothing(edit: Edit) -> InvalidInput:
    return InvalidInput(f"there is nothing at {edit.path[:200]!r} to {edit.op}")
