"""What a store with its sessions is supposed to do, in plain Python: no bytes, no deltas, no packs.

Every operation answers the class of the error that is expected, or None when it is expected to succeed.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from perdure.errors import Busy, Conflict, Gone, LeaseLost, MergeConflict, NotFound, OutcomeUnknown, PerdureError
from perdure.model import TAG_PREFIX
from perdure.state.document import STATE, genesis
from tests.campaigns.model.merging import equal, merged

LEASE = 3_600_000
"""Milliseconds of a lease; longer in real time than any test, so that no heartbeat comes between."""
TTL = 100_000
"""Seconds a session lives."""

Expected = type[PerdureError] | None


@dataclass(eq=False)
class Node:
    """A checkpoint: a whole state and where it came from."""

    line: int
    step: int
    branch: str
    kind: str
    state: dict[str, Any]
    parent: Node | None
    merges: tuple[Node, ...] = ()
    """The other sides of all merges that this line of checkpoints has seen."""
    takes: tuple[str, ...] = ()
    droppable: bool = False
    """Retention was free to drop it: whoever reads it gets it whole, or hears that it is gone."""

    def past(self) -> list[Node]:
        """The checkpoints of the branch up to this one, newest first."""
        found: list[Node] = []
        node: Node | None = self
        while node is not None:
            found.append(node)
            node = node.parent
        return found

    def at(self, step: int) -> Node:
        """An ancestor."""
        return next(node for node in self.past() if node.step == step)

    def stands_on(self) -> set[Node]:
        """All checkpoints whose changes are in this one."""
        return {node for tip in (self, *self.merges) for node in tip.past()}


@dataclass
class Life:
    """A session, as the store knows it."""

    heads: dict[str, Node] = field(default_factory=dict[str, Node])
    lines: int = 0
    reason: str = ""
    expires: int = 0
    waiting: dict[str, Any] = field(default_factory=dict[str, Any])
    keys: dict[str, Any] = field(default_factory=dict[str, Any])
    """All that was ever posted, by key."""
    posted: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Number and time of each."""
    posts: int = 0
    """The newest number."""
    holder: Hand | None = None
    until: int = 0
    everything: list[Node] = field(default_factory=list[Node])


@dataclass(eq=False)
class Hand:
    """A writer's handle of a session."""

    session: str
    branch: str
    leased: bool
    node: Node | None = None
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    stale: bool = False
    pending: Node | None = None
    unsure: Node | None = None
    """The checkpoint of which nobody knows whether it has landed."""
    expect: Node | None = None
    """The head that the pending checkpoint builds on."""
    asked: tuple[Any, ...] = ()
    """What the pending checkpoint was asked for with."""
    edited: bool = False
    """Whether there are edits, as the real handle sees it."""
    taking: list[str] = field(default_factory=list[str])

    @property
    def begins(self) -> bool:
        """Whether what is pending is a line."""
        return self.pending is not None and self.pending.kind in ("fork", "tag", "rewind")

    def adopt(self, node: Node | None) -> None:
        """Stand at a checkpoint, without edits."""
        self.node = node
        self.state = copy.deepcopy(node.state) if node else genesis()[STATE]
        self.stale, self.pending, self.taking = False, None, []


class Reference:
    """The store."""

    def __init__(self) -> None:
        self.now = 0
        self.lives: dict[str, Life] = {}
        self.lose_answers = False
        """Whether what the store says of a commit gets lost on its way back."""

    def life(self, session: str) -> Life:
        """A session, which begins when somebody first speaks of it."""
        return self.lives.setdefault(session, Life())

    # -- looking ------------------------------------------------------------------------------------------------

    def readable(self, session: str) -> Expected:
        """What reading a session answers."""
        life = self.life(session)
        if not life.heads:
            return Gone if life.reason else NotFound
        return Gone if self.over(life) else None

    def over(self, life: Life) -> bool:
        """Whether a session has expired; one that somebody posted to in time, or before what was taken, has not."""
        taken = life.posts - len(life.waiting)
        awaited = any(life.posted[k][1] < life.expires or life.posted[k][0] <= taken for k in life.waiting)
        return bool(life.heads) and self.now >= life.expires and not awaited

    # -- leases -------------------------------------------------------------------------------------------------

    def busy(self, life: Life) -> bool:
        """Whether somebody holds the session now."""
        return life.holder is not None and life.until > self.now

    def open(self, session: str, branch: str, *, lease: bool) -> tuple[Expected, Hand | None, str]:
        """A new handle and how it says it came about."""
        life = self.life(session)
        hand = Hand(session, branch, lease)
        if branch != "main" and (self.over(life) or branch not in life.heads):
            # A branch parts from what is there: a session begins on main.
            return NotFound, None, ""
        if lease and self.busy(life):
            return Busy, None, ""
        if self.over(life) and not self.busy(life):
            self.drop(session, "expired")
            life = self.life(session)
        if lease:
            life.holder, life.until = hand, self.now + LEASE
        if life.heads and branch not in life.heads:
            if lease:
                life.holder = None
            return NotFound, None, ""
        hand.adopt(life.heads.get(branch))
        return None, hand, "resumed" if life.heads else "restarted" if life.reason else "created"

    def release(self, hand: Hand) -> None:
        """Give the lease back, if it is still ours."""
        life = self.life(hand.session)
        if life.holder is hand:
            life.holder = None

    def drop(self, session: str, reason: str) -> None:
        """Leave a tombstone, and what waits: it came too late, and is for whoever begins anew."""
        old = self.lives[session]
        known = {key: old.posted[key] for key in old.waiting}
        self.lives[session] = Life(
            reason=reason, waiting=old.waiting, keys=dict(old.waiting), posted=known, posts=old.posts
        )

    def sweep(self) -> tuple[int, int, list[str]]:
        """Drop what has expired; how many that were, how many stay for a waiting input, what was being written."""
        over = [s for s, life in self.lives.items() if life.heads and self.now >= life.expires]
        ended = [session for session in over if self.over(self.lives[session])]
        busy = [session for session in ended if self.busy(self.lives[session])]
        gone = [session for session in ended if session not in busy]
        for session in gone:
            self.drop(session, "expired")
        return len(gone), len(over) - len(ended), busy

    def prune(self, session: str, last: int, every: int) -> Expected:
        """Of each branch only the newest checkpoints and every so-manieth one must stay, and where lines begin."""
        life = self.life(session)
        if not life.heads:
            return Gone if life.reason else NotFound
        if self.busy(life):
            return Busy
        life.holder = None
        branches = [head for name, head in life.heads.items() if not name.startswith(TAG_PREFIX)]
        starts = [node for node in life.everything if node.parent is None or node.parent.line != node.line]
        kept = {node for head in branches for node in head.past()[:last]} | set(starts)
        kept |= {node for node in life.everything if node.step % every == 0}
        kept |= {node.parent for node in starts if node.parent is not None}
        for node in life.everything:
            node.droppable = node.droppable or node not in kept
        return None

    # -- writing ------------------------------------------------------------------------------------------------

    def _append(self, hand: Hand, node: Node, expect: Node | None) -> Expected:
        answer = self._decide(hand, node, expect)
        if self.lose_answers:
            hand.unsure = node
        return OutcomeUnknown if self.lose_answers else answer

    def _decide(self, hand: Hand, node: Node, expect: Node | None) -> Expected:
        """Compare and swap."""
        life = self.life(hand.session)
        if node in life.everything:
            return None
        if hand.leased:
            if life.holder is not hand:
                return LeaseLost
        elif self.busy(life):
            return Busy
        if life.heads.get(node.branch) is not expect:
            return Conflict
        starts = node.parent is None or node.parent.line != node.line
        if starts and node.line < life.lines:
            return Conflict
        if any(key not in life.waiting for key in node.takes):
            return Conflict
        for key in node.takes:
            del life.waiting[key]
        life.heads[node.branch] = node
        life.lines = max(life.lines, node.line + 1)
        life.everything.append(node)
        life.reason, life.expires = "", self.now + TTL * 1000
        if hand.leased:
            life.until = self.now + LEASE
        return None

    def _send(self, hand: Hand) -> Expected:
        if hand.stale:
            return Conflict
        if hand.pending is None:
            return None
        if hand.begins:
            return self._send_line(hand, settling=True)
        expected = self._append(hand, hand.pending, hand.expect)
        if expected is None:
            hand.node, hand.pending = hand.pending, None
        elif expected is Conflict:
            hand.stale, hand.pending = True, None
        return expected

    def _send_line(self, hand: Hand, *, settling: bool) -> Expected:
        node = hand.pending
        assert node is not None
        there = self.life(hand.session).everything
        if not hand.leased and node not in there and node.parent not in there:
            hand.pending = None
            return Conflict
        expected = self._append(hand, node, hand.expect)
        if expected is None:
            hand.pending = None
            if node.kind != "rewind":
                return None
            if settling and (hand.edited or hand.taking):
                hand.stale = True
                return Conflict
            hand.adopt(node)
        elif expected is not OutcomeUnknown:
            hand.pending = None
        return expected

    def reload(self, hand: Hand) -> Expected:
        """Throw edits away; what may have landed is settled first, whichever way."""
        if hand.pending is not None and hand.unsure is hand.pending:
            if hand.begins:
                expected = self._send_line(hand, settling=True)
            else:
                expected = self._append(hand, hand.pending, hand.expect)
            if expected is OutcomeUnknown:
                return expected
        life = self.life(hand.session)
        if hand.branch not in life.heads and (life.heads or hand.branch != "main"):
            # A branch parts from what is there, also where the session has ended meanwhile: it begins on main.
            return NotFound
        hand.adopt(life.heads.get(hand.branch))
        return None

    def again(self, hand: Hand, asked: tuple[Any, ...]) -> tuple[bool, Expected]:
        """Settle what is pending; whether it was the very thing that is asked for now."""
        if hand.pending is None:
            return False, None
        same = hand.asked == asked
        return same, self._send_line(hand, settling=False) if same and hand.begins else self._send(hand)

    def commit(self, hand: Hand, *, edited: bool, note: str = "", kind: str = "commit", **more: Any) -> Expected:
        """Make the handle's state the head of its branch."""
        asked = more.get("asked", (kind, note))
        hand.edited = edited
        same = hand.pending is not None and hand.asked == asked and not edited and not hand.taking
        refused = self._send(hand)
        before = hand.node
        # A session's first commit is written even when there is nothing to say.
        if refused is not None or same or (before and not (edited or note or kind != "commit" or hand.taking)):
            return refused
        merges = more.get("merges", before.merges if before else ())
        hand.pending = Node(
            before.line if before else 0,
            before.step + 1 if before else 1,
            hand.branch,
            kind,
            copy.deepcopy(hand.state),
            before,
            merges,
            tuple(hand.taking),
        )
        hand.expect, hand.asked, hand.taking = before, asked, []
        return self._send(hand)

    def start_line(self, hand: Hand, branch: str, at: Node, kind: str, asked: tuple[Any, ...]) -> Expected:
        """Fork, tag or rewind: a line of its own that begins with the state of ``at``."""
        refused = self._send(hand)
        if refused is not None:
            return refused
        life = self.life(hand.session)
        if kind != "rewind" and branch in life.heads:
            return Conflict
        hand.pending = Node(life.lines, at.step + 1, branch, kind, copy.deepcopy(at.state), at, at.merges)
        hand.expect, hand.asked = hand.node if kind == "rewind" else None, asked
        return self._send_line(hand, settling=False)

    def locate(self, hand: Hand, at: float | None, *, current: bool = False) -> tuple[Expected, Node | None]:
        """The checkpoint of the handle's branch at a fraction of its length; None: the handle's own."""
        refused = self._send(hand) if hand.pending is not None else None
        if refused is not None:
            return refused, None
        if hand.node is None:
            return NotFound, None
        life = self.life(hand.session)
        if not life.heads:
            return (Gone if life.reason else NotFound), hand.node
        if at is None and hand.node not in life.everything:
            # The handle is of an earlier life of the session; in this one its place may be somebody else's.
            twin = next((n for n in life.everything if (n.line, n.step) == (hand.node.line, hand.node.step)), None)
            return (NotFound if twin is None else Conflict), twin
        if at is None:
            return None, hand.node
        if hand.branch not in life.heads:
            return NotFound, hand.node
        node = life.heads[hand.branch]
        node = node.at(1 + round(at * (node.step - 1)))
        if node.droppable:
            node = life.heads[hand.branch]
        return None, hand.node if node.step == hand.node.step and not current else node

    def switch(self, hand: Hand, branch: str) -> Expected:
        """Move the handle."""
        refused = self._send(hand) if hand.pending is not None else None
        if refused is not None:
            return refused
        life = self.life(hand.session)
        if not life.heads:
            return Gone if life.reason else NotFound
        if branch not in life.heads:
            return NotFound
        hand.branch = branch
        hand.adopt(life.heads[branch])
        return None

    def merge(self, hand: Hand, other: str, prefer: str | None) -> Expected:
        """Three ways, from the newest checkpoint that both sides stand on."""
        asked = ("merge", other, prefer)
        same, refused = self.again(hand, asked)
        if same or refused is not None:
            return refused
        if hand.node is None:
            return NotFound
        life = self.life(hand.session)
        if not life.heads:
            return Gone if life.reason else NotFound
        theirs = life.heads.get(other) or life.heads.get(TAG_PREFIX + other)
        if theirs is None:
            return NotFound
        if life.heads.get(hand.branch) is not hand.node:
            return Conflict
        common = hand.node.stands_on() & theirs.stands_on()
        newest = [n for n in common if not any(n is not m and n in m.stands_on() for m in common)]
        base = max(newest, key=lambda node: (node.step, node.line))
        if equal(base.state, theirs.state):
            # There is nothing to bring in.
            return None
        state, clashes = merged(base.state, hand.state, theirs.state, prefer)
        if clashes:
            return MergeConflict
        hand.state = copy.deepcopy(state)
        return self.commit(hand, edited=True, kind="merge", merges=(*hand.node.merges, theirs), asked=asked)

    # -- the inbox ----------------------------------------------------------------------------------------------

    def post(self, session: str, key: str, body: Any) -> tuple[Expected, bool]:
        """Whether the key is new: one that only an expired life knew is, and that life ends with it."""
        life = self.life(session)
        if key in life.keys and self.over(life):
            if self.busy(life):
                return Busy, False
            self.drop(session, "expired")
            life = self.life(session)
        if key in life.keys:
            return None, False
        life.keys[key] = life.waiting[key] = body
        life.posts += 1
        life.posted[key] = (life.posts, self.now)
        return None, True

    def take(self, hand: Hand) -> list[tuple[str, Any]]:
        """What waits and was not given to this handle yet."""
        new = [(k, v) for k, v in self.life(hand.session).waiting.items() if k not in hand.taking]
        hand.taking.extend(key for key, _ in new)
        return new
