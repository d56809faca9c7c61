"""The state machine: two writers do to a store and to the reference whatever hypothesis comes up with."""

from __future__ import annotations

import copy
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

import perdure
from perdure.errors import Misuse
from perdure.model import TAG_PREFIX, Landed
from perdure.testing.clock import FakeClock
from tests.campaigns.model.comparing import SESSIONS, Comparing, fractions, sessions, writers
from tests.campaigns.model.courier import WAYS, Courier
from tests.campaigns.model.documents import Edit, carry_out, edits, exact, values
from tests.campaigns.model.reference import LEASE, TTL, Hand, Node, Reference
from tests.servers.place import memory
from tests.store_urls import url_of

if TYPE_CHECKING:
    from perdure.database import Database
    from perdure.session.handle import Session

BRANCHES = ("x", "y/../z", "ü")
TAGS = ("t1", "t2")

names = st.integers(0, 20)


class Histories(Comparing):
    """Two writers, two sessions, one store."""

    kind: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="perdure-model-", dir=memory())
        self.clock = FakeClock()
        self.model = Reference()
        self.codec, self.keys = "msgpack", None
        self.dbs: list[Database] = []
        self.hands: list[tuple[Session, Hand] | None] = [None, None]
        self.touched = SESSIONS[0]
        self.ids: dict[Node, str] = {}

    def open_database(self) -> Database:
        db = perdure.open(
            url_of(self.kind, Path(self.folder)),
            clock=self.clock,
            keys=self.keys,
            codec=self.codec,
            maintain=False,
            lease_ttl=LEASE / 1000,
        )
        db.kernel.store = Courier(db.kernel.store)  # pyright: ignore[reportAttributeAccessIssue]
        return db

    @initialize(codec=st.sampled_from(["msgpack", "json"]), key=st.sampled_from([None, "k" * 16]), lease=st.booleans())
    def begin(self, codec: str, key: str | None, lease: bool) -> None:
        self.codec, self.keys = codec, key
        self.dbs = [self.open_database(), self.open_database()]
        self.open(0, SESSIONS[0], lease, "main")
        for number in range(4):
            self.commit(0, [Edit(1, "append", 0, 0, "a", [{"n": number}])], "once", "", False)

    def teardown(self) -> None:
        try:
            if self.dbs:
                for session in SESSIONS:
                    self.compare_everything(session)
        finally:
            for db in self.dbs:
                db.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- how answers are compared -------------------------------------------------------------------------------

    def travelling(self, writer: int, way: str) -> None:
        for db in self.dbs:
            courier: Any = db.kernel.store
            courier.way = "once"
        courier = self.dbs[writer].kernel.store
        courier.way = way
        self.model.lose_answers = way == "lost"

    # -- handles ------------------------------------------------------------------------------------------------

    def branch_of(self, session: str, pick: int, *, tags: bool = False) -> str:
        """A branch (or tag) the session has; now and then one that it may not have."""
        known = sorted(self.model.life(session).heads, key=lambda name: (name != "main", name))
        if not tags:
            known = [name for name in known if not name.startswith(TAG_PREFIX)]
        return [*(known or ["main"]), "x"][pick % (len(known) + 1)]

    @rule(writer=writers, session=sessions, lease=st.booleans(), pick=names)
    def opens(self, writer: int, session: str, lease: bool, pick: int) -> None:
        self.open(writer, session, lease, self.branch_of(session, pick))

    def open(self, writer: int, session: str, lease: bool, branch: str) -> None:
        self.release(writer)
        self.touched = session
        expected, hand, opened = self.model.open(session, branch, lease=lease)
        s = self.agree(expected, lambda: self.dbs[writer].session(session, branch=branch, lease=lease, ttl=TTL))
        if s is not None:
            assert hand is not None
            assert s.opened == opened
            assert exact(s.state.plain()) == exact(hand.state)
            self.hands[writer] = (s, hand)

    def held(self, writer: int) -> tuple[Session, Hand]:
        """The writer's handle; one without a lease when it has none."""
        if self.hands[writer] is None:
            self.open(writer, self.touched, False, self.branch_of(self.touched, 0))
        held = self.hands[writer]
        assert held is not None
        s, hand = held
        hand.edited = s.changed
        if hand.begins and hand.pending and hand.pending.parent and hand.pending.parent.droppable:
            # Whether what the line starts from is gone by now, only the store knows.
            self.open(writer, hand.session, hand.leased, hand.branch)
            return self.held(writer)
        return held

    @rule(writer=writers)
    def release(self, writer: int) -> None:
        held = self.hands[writer]
        self.hands[writer] = None
        if held is not None:
            held[0].release()
            self.model.release(held[1])

    @rule(writer=writers, crash=st.booleans())
    def reopen(self, writer: int, crash: bool) -> None:
        """The database is closed and opened again; after a crash its lease was not given back."""
        if crash:
            self.hands[writer] = None
            courier: Any = self.dbs[writer].kernel.store
            courier.crashed = True
        else:
            self.release(writer)
        if self.kind != "memory" or crash:
            self.dbs[writer].close()
            self.dbs[writer] = self.open_database()

    @rule(writer=writers, way=st.sampled_from(WAYS))
    def reload(self, writer: int, way: str) -> None:
        self.held(writer)
        self.travelling(writer, way)
        self.throw_away(writer)

    def throw_away(self, writer: int) -> None:
        held = self.hands[writer]
        assert held is not None
        s, hand = held
        self.touched = hand.session
        expected = self.model.reload(hand)
        self.agree(expected, s.reload)
        if expected is None:
            assert exact(s.state.plain()) == exact(hand.state)

    # -- writing ------------------------------------------------------------------------------------------------

    @rule(
        writer=writers, todo=st.lists(st.lists(edits, min_size=1, max_size=3), min_size=1, max_size=3),
        way=st.sampled_from(WAYS), note=st.sampled_from(["", "", "noted"]), take=st.booleans(),
    )  # fmt: skip
    def commits(self, writer: int, todo: list[list[Edit]], way: str, note: str, take: bool) -> None:
        for one in todo:
            self.commit(writer, one, way, note, take)

    def commit(self, writer: int, todo: list[Edit], way: str, note: str, take: bool) -> None:
        s, hand = self.held(writer)
        self.touched = hand.session
        # Taking settles a commit whose fate is open first; here that is left to the commit below.
        if take and s.journal.pending is None:
            given = [(m.key, m.body) for m in s.take()]
            assert exact(given) == exact(self.model.take(hand))
        before = exact(hand.state)
        already = s.changed
        for one in todo:
            carry_out(one, s.state)
            carry_out(one, hand.state)
        assert exact(s.state.plain()) == exact(hand.state)
        assert already or s.changed or exact(hand.state) == before
        self.travelling(writer, way)
        expected = self.model.commit(hand, edited=s.changed, note=note)
        self.agree(expected, lambda: s.commit(note))
        if expected is None:
            assert s.step == (hand.node.step if hand.node else 0)
            assert not s.changed

    @rule(
        writer=writers, tag=st.booleans(), name=st.integers(0, 2), at=st.none() | fractions, way=st.sampled_from(WAYS)
    )
    def fork(self, writer: int, tag: bool, name: int, at: float | None, way: str) -> None:
        s, hand = self.held(writer)
        name = name % len(TAGS) if tag else name  # whoever asks for the same tag once more asks for the same
        self.touched = hand.session
        self.travelling(writer, way)
        if hand.pending is not None and hand.asked == ("tag" if tag else "fork", name, None) and at is None:
            self.ask_again(writer, way)
            return
        expected, node = self.model.locate(hand, at)
        if node is not None and node.droppable:
            # Whether it is gone by now, only the store knows.
            self.throw_away(writer)
            return
        step = None if at is None else node.step if node else 1
        branch = TAG_PREFIX + TAGS[name] if tag else BRANCHES[name]
        asked = ("tag" if tag else "fork", name, step)
        if hand.pending is not None and hand.asked == asked:
            # The very thing whose answer was lost, at the same step.
            self.ask_again(writer, way)
            return
        if expected is None:
            assert node is not None
            expected = self.model.start_line(hand, branch, node, asked[0], asked)
        self.agree(expected, lambda: self.ask(s, asked))

    def ask(self, s: Session, asked: tuple[Any, ...]) -> Any:
        """Ask a handle for what the model was asked for."""
        match asked:
            case ("tag", name, step):
                return s.tag(TAGS[name], step)
            case ("fork", name, step):
                return s.fork(BRANCHES[name], step)
            case ("rewind", step):
                return s.rewind(step)
            case ("merge", other, prefer):
                return s.merge(other, prefer)
            case (_, note):
                return s.commit(note)
            case _:
                raise AssertionError(asked)

    @rule(writer=writers, way=st.sampled_from(WAYS))
    def ask_again(self, writer: int, way: str) -> None:
        """Somebody who got no answer asks once more for the same."""
        s, hand = self.held(writer)
        self.touched = hand.session
        if hand.pending is None:
            return
        asked = hand.asked
        self.travelling(writer, way)
        if hand.edited and asked[0] in ("rewind", "merge"):
            self.agree(Misuse, lambda: self.ask(s, asked))
            return
        if asked[0] == "commit":
            expected = self.model.commit(hand, edited=hand.edited, note=asked[1])
        else:
            _, expected = self.model.again(hand, asked)
        self.agree(expected, lambda: self.ask(s, asked))
        assert exact(s.state.plain()) == exact(hand.state)

    @rule(writer=writers, at=fractions, way=st.sampled_from(WAYS))
    def rewind(self, writer: int, at: float, way: str) -> None:
        s, hand = self.held(writer)
        self.touched = hand.session
        if s.changed:
            self.agree(Misuse, lambda: s.rewind(1))
            return
        if hand.begins:
            self.ask_again(writer, way)
            return
        self.travelling(writer, way)
        expected, node = self.model.locate(hand, at, current=True)
        step = node.step if node else 1
        if expected is None:
            assert node is not None
            expected = self.model.start_line(hand, hand.branch, node, "rewind", ("rewind", step))
        self.agree(expected, lambda: s.rewind(step))
        assert exact(s.state.plain()) == exact(hand.state)

    @rule(writer=writers, pick=names)
    def switch(self, writer: int, pick: int) -> None:
        s, hand = self.held(writer)
        branch = self.branch_of(hand.session, pick)
        self.touched = hand.session
        self.travelling(writer, "once")
        if s.changed:
            self.agree(Misuse, lambda: s.switch(branch))
            return
        self.agree(self.model.switch(hand, branch), lambda: s.switch(branch))
        assert exact(s.state.plain()) == exact(hand.state)

    @rule(
        writer=writers, pick=names, prefer=st.sampled_from([None, "ours", "theirs", "both"]), way=st.sampled_from(WAYS)
    )
    def merge(self, writer: int, pick: int, prefer: str | None, way: str) -> None:
        _, hand = self.held(writer)
        self.bring_in(writer, self.branch_of(hand.session, pick, tags=True).removeprefix(TAG_PREFIX), prefer, way)

    def bring_in(self, writer: int, other: str, prefer: str | None, way: str = "once") -> None:
        s, hand = self.held(writer)
        self.touched = hand.session
        self.travelling(writer, way)
        if s.changed:
            self.agree(Misuse, lambda: s.merge(other))
            return
        if hand.node is not None and hand.node.droppable:
            # A handle that others have overtaken, on a checkpoint that may be gone by now.
            return
        self.agree(self.model.merge(hand, other, prefer), lambda: s.merge(other, prefer))
        assert exact(s.state.plain()) == exact(hand.state)

    @rule(writer=writers, ours=edits, theirs=edits, prefer=st.sampled_from([None, "ours", "theirs", "both"]))
    def part_and_meet_again(self, writer: int, ours: Edit, theirs: Edit, prefer: str | None) -> None:
        """Both sides of a fork change the same part of the state, then they are merged."""
        _, hand = self.held(writer)
        self.fork(writer, False, 0, None, "once")
        self.open(1 - writer, hand.session, False, "x")
        pick = ours.pick % 5
        self.commit(writer, [ours._replace(pick=pick)], "once", "", False)
        if self.hands[1 - writer] is not None:
            self.commit(1 - writer, [theirs._replace(pick=pick, key=ours.key)], "once", "", False)
        self.bring_in(writer, "x", prefer)

    @rule(writer=writers, session=sessions, todo=st.lists(edits, min_size=1, max_size=2))
    def take_over(self, writer: int, session: str, todo: list[Edit]) -> None:
        """A writer is away for longer than its lease, and another one takes the session over."""
        self.open(writer, session, True, self.branch_of(session, 0))
        self.let_time_pass(LEASE + LEASE // 10)
        self.open(1 - writer, session, True, self.branch_of(session, 0))
        for who in (1 - writer, writer):
            if self.hands[who] is not None:
                self.commit(who, todo, "once", "", False)

    @rule(writer=writers, pick=st.integers(0, 1000))
    def retry_an_old_commit(self, writer: int, pick: int) -> None:
        """Byte for byte, long after it landed, whoever holds the lease by now."""
        courier: Any = self.dbs[writer].kernel.store
        if not courier.landed:
            return
        item = courier.landed[pick % len(courier.landed)]
        if item.id.hex() in self.living(item.session):
            assert courier._store.append([item]) == [Landed(item.id, again=True)]

    def living(self, session: str) -> set[str]:
        self.know(session)
        return {self.ids[n] for n in self.model.life(session).everything if n in self.ids and not n.droppable}

    # -- the inbox, upkeep, time --------------------------------------------------------------------------------

    @rule(writer=writers, session=sessions, key=st.sampled_from("abcdef"), body=values)
    def post(self, writer: int, session: str, key: str, body: Any) -> None:
        known = self.model.life(session).keys
        body = known.get(key, body)
        expected, new = self.model.post(session, key, copy.deepcopy(body))
        told = self.agree(expected, lambda: self.dbs[writer].post(session, body, key=key))
        assert expected is not None or told is new

    @rule(writer=writers, session=sessions)
    def compact(self, writer: int, session: str) -> None:
        if self.model.life(session).heads:
            self.dbs[writer].compact(session)
            self.touched = session

    @rule(writer=writers)
    def sweep(self, writer: int) -> None:
        swept = self.dbs[writer].sweep()
        removed, kept, busy = self.model.sweep()
        assert (swept.removed, swept.kept, sorted(swept.busy)) == (removed, kept, sorted(busy))
        assert swept.failed == ()

    @rule(writer=writers, session=sessions, last=st.integers(1, 4), every=st.integers(2, 5))
    def prune(self, writer: int, session: str, last: int, every: int) -> None:
        self.touched = session
        expected = self.model.prune(session, last, every)
        self.agree(expected, lambda: self.dbs[writer].prune(session, keep_last=last, keep_every=every))

    @rule(ms=st.sampled_from([*[LEASE + LEASE // 10] * 4, TTL * 1000]))
    @precondition(lambda self: self.dbs)
    def let_time_pass(self, ms: int) -> None:
        self.clock.advance(ms)
        self.model.now += ms
