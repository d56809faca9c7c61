"""What the store says is compared with what the reference says: heads after every step, everything in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from perdure.errors import Gone, PerdureError
from tests.campaigns.model.documents import exact
from tests.campaigns.model.reference import Expected, Node, Reference

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.database import Database
    from perdure.history.checkpoint import Checkpoint

T = TypeVar("T")
SESSIONS = ("trip-42", "a/../ü")
writers = st.integers(0, 1)
sessions = st.sampled_from([SESSIONS[0], SESSIONS[0], SESSIONS[1]])
fractions = st.floats(0, 1)


class Comparing(RuleBasedStateMachine):
    """The half of the machine that only looks."""

    dbs: list[Database]
    model: Reference
    touched: str
    ids: dict[Node, str]

    def agree(self, expected: Expected, do: Callable[[], T]) -> T | None:
        """Do something to the store; it answers with the expected error, or with none."""
        if expected is None:
            return do()
        with pytest.raises(PerdureError) as caught:
            do()
        assert type(caught.value) is expected, (expected, caught.value)
        return None

    def know(self, session: str) -> None:
        """Learn the ids of new checkpoints: the model has none of its own."""
        life = self.model.life(session)
        for branch, head in life.heads.items():
            if head not in self.ids:
                row = self.dbs[0].look(session)
                self.ids[head] = next(h.id.hex() for h in row.heads if h.branch == branch)

    @invariant()
    def heads_are_equal(self) -> None:
        if not self.dbs:
            return
        session = self.touched
        expected = self.model.readable(session)
        if expected is not None:
            self.agree(expected, lambda: self.dbs[0].read(session))
            return
        life = self.model.life(session)
        self.know(session)
        assert {h.branch for h in self.dbs[0].look(session).heads} == set(life.heads)
        for branch, node in life.heads.items():
            reading = self.dbs[1].read(session, branch=branch)
            assert (reading.step, reading.checkpoint.line, reading.checkpoint.kind) == (node.step, node.line, node.kind)
            assert exact(reading.plain()) == exact(node.state)

    @rule(writer=writers, session=sessions, branch=st.integers(0, 9), at=fractions)
    def look_back(self, writer: int, session: str, branch: int, at: float) -> None:
        if self.model.readable(session) is not None:
            return
        heads = self.model.life(session).heads
        name = sorted(heads)[branch % len(heads)]
        node = heads[name].at(1 + round(at * (heads[name].step - 1)))
        self.compare_at(session, name, node)
        history = self.dbs[writer].history(session, branch=name, limit=3, before=node.step + 1)
        self.compare_history(history, node.past())

    def compare_at(self, session: str, branch: str, node: Node) -> None:
        """The state at a step is what it was; only what retention could drop may be gone."""
        try:
            found = self.dbs[0].read(session, node.step, branch=branch)
        except Gone:
            assert node.droppable
        else:
            assert exact(found.plain()) == exact(node.state)

    def compare_history(self, history: list[Checkpoint], past: list[Node]) -> None:
        """Newest first, without holes but for what retention could drop."""
        steps = {checkpoint.step for checkpoint in history}
        oldest = min(steps)
        told = [node for node in past if node.step in steps]
        assert [(c.step, c.line, c.kind) for c in history] == [(n.step, n.line, n.kind) for n in told]
        assert all(node.droppable for node in past if node.step >= oldest and node.step not in steps)

    def compare_everything(self, session: str) -> None:
        """Every checkpoint of every branch, the inbox and the list of changes."""
        db, life = self.dbs[0], self.model.life(session)
        waiting = [(e.key, e.kind) for e in db.kernel.store.inbox(session)]
        assert waiting == [(key, "message") for key in life.waiting]
        if self.model.readable(session) is not None:
            return
        for branch, head in life.heads.items():
            history = db.history(session, branch=branch, limit=10_000)
            self.compare_history(history, head.past())
            for node in head.past():
                self.compare_at(session, branch, node)
            for checkpoint in history:
                assert exact(db.read(session, checkpoint.id).plain()) == exact(head.at(checkpoint.step).state)
        changes = [(c.line, c.step, c.kind) for c in db.changes(limit=100_000).items if c.session == session]
        made = [(n.line, n.step, n.kind) for n in life.everything]
        assert changes == [one for one in made if one in changes]
        assert all(n.droppable for n in life.everything if (n.line, n.step, n.kind) not in changes)
        assert db.verify(session).findings == ()
