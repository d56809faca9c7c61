"""What must hold of a store, given the account of everything that was done to it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import Gone, NotFound, PerdureError
from perdure.history import hydrate
from perdure.model import TAG_PREFIX
from perdure.state.document import STATE, plain
from perdure.upkeep.verify import verify
from tests.campaigns.crash.journal import fingerprint
from tests.campaigns.crash.world import FOUND_OUT, KEYED, ONCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.database import Database
    from perdure.model import Row, SessionRow
    from tests.campaigns.crash.journal import History, Seen

END = 2**53


class Problem(NamedTuple):
    """Something that must not be. Kinds: lost, half, duplicated."""

    kind: str
    what: str


class Oracle:
    """Compares a store with its account."""

    def __init__(self, db: Database, history: History) -> None:
        self._kernel = db.kernel
        self._db = db
        self._history = history
        self._missing: set[str] = set()

    def check(self, sessions: set[str] | None = None, sample: int = 0, seed: int = 0) -> list[Problem]:
        """Check sessions (None: all): rows, heads, chains, posts; and states, of a sample unless 0."""
        history = self._history
        wanted = {t.session for t in history.tries.values()} | {s for s, _ in history.posted}
        if sessions is not None:
            wanted &= sessions
        problems: list[Problem] = []
        for session in sorted(wanted):
            problems += self._session(session)
        states = [seen for seen in history.seen if seen.session in wanted]
        if sample and len(states) > sample:
            picked = random.Random(seed).sample(history.seen, min(sample, len(history.seen)))
            states = list(dict.fromkeys([*history.fresh, *picked]))
        for seen in states:
            problems += self._state(seen)
        problems += self.world()
        return problems

    # -- one session -------------------------------------------------------------------------------

    def _session(self, session: str) -> Iterator[Problem]:
        history, store = self._history, self._kernel.store
        row = store.look(session)
        if session in history.gone:
            if row is None or not row.reason:
                yield Problem("lost", f"{session} was removed, and is back")
            return
        tried = {t.id: t for t in history.tries.values() if t.session == session}
        if row is not None and row.reason and session in history.fleeting:
            return
        present: dict[str, Row] = {}
        for line in range(row.lines if row else 0):
            for stored in store.slice(session, line, 1, END).rows:
                present[stored.id.hex()] = stored
        excused = history.thinned.get(session, set())
        for t in tried.values():
            if t.id in history.acked and t.id not in present and t.id not in excused:
                self._missing.add(t.id)
                yield Problem("lost", f"{session} line {t.line} step {t.step}: acknowledged, and not there")
        for id, stored in present.items():
            t = tried.get(id)
            if t is None or (t.line, t.step, t.digest) != (stored.line, stored.step, stored.digest.hex()):
                yield Problem("half", f"{session} line {stored.line} step {stored.step}: never written like this")
        yield from self._inbox(session, present)
        if row is not None:
            yield from self._heads(row)
            yield from self._intact(row)

    def _heads(self, row: SessionRow) -> Iterator[Problem]:
        history = self._history
        newest: dict[str, int] = {}
        for t in history.tries.values():
            if t.session == row.id and t.id in history.acked:
                newest[t.branch] = max(newest.get(t.branch, 0), t.order)
        heads = {h.branch: h.id.hex() for h in row.heads}
        for branch, order in newest.items():
            head = history.tries.get(heads.get(branch, ""))
            if head is None or head.order < order:
                yield Problem("lost", f"{row.id}, branch {branch}: its head is older than what was acknowledged")
        for branch, id in heads.items():
            t = history.tries.get(id)
            if t is None or t.branch != branch:
                yield Problem("half", f"{row.id}, branch {branch}: its head was never written there")

    def _intact(self, row: SessionRow) -> Iterator[Problem]:
        """Every branch is rebuilt, and everything that is stored of the session is verified."""
        try:
            for head in row.heads:
                if not head.branch.startswith(TAG_PREFIX):
                    hydrate.load_head(self._kernel, row, head.branch)
            if row.heads:
                for finding in verify(self._kernel, row.id).findings:
                    yield Problem("half", f"{row.id}: {finding}")
        except PerdureError as error:
            yield Problem("half", f"{row.id}: {type(error).__name__}: {error}")

    def _inbox(self, session: str, present: dict[str, Row]) -> Iterator[Problem]:
        history, store = self._history, self._kernel.store
        takers: dict[str, int] = {}
        for id in present:
            for key in history.tries[id].takes if id in history.tries else ():
                takers[key] = takers.get(key, 0) + 1
        waiting = {entry.key for entry in store.inbox(session, 100_000)}
        for (owner, key), acked in history.posted.items():
            if owner != session:
                continue
            count = takers.get(key, 0) + (key in waiting)
            if count > 1:
                yield Problem("duplicated", f"{session}: message {key} is there {count} times")
            if acked and not count:
                yield Problem("lost", f"{session}: message {key} was acknowledged, and is not there")

    # -- states ------------------------------------------------------------------------------------

    def _state(self, seen: Seen) -> Iterator[Problem]:
        history = self._history
        if seen.session in history.gone or seen.id in self._missing:
            return
        excused = seen.session in history.fleeting or seen.id in history.thinned.get(seen.session, ())
        where = f"{seen.session} line {seen.line} step {seen.step}"
        try:
            loaded = hydrate.load(self._kernel, seen.session, seen.line, seen.step)
            state = fingerprint(plain(loaded.doc[STATE]))
        except (Gone, NotFound) as error:
            if not excused:
                yield Problem("lost", f"{where}: {error}")
            return
        except PerdureError as error:
            yield Problem("lost", f"{where}: {type(error).__name__}: {error}")
            return
        assert loaded.point is not None
        same_id = loaded.point.envelope.id.hex() == seen.id
        if not same_id or state != seen.state:
            yield Problem("lost", f"{where}: another state than the one that was acknowledged")

    # -- the world ---------------------------------------------------------------------------------

    def world(self) -> Iterator[Problem]:
        """Nothing happened outside that must not happen twice."""
        history = self._history
        for (tool, n), count in history.entered.items():
            if tool in ONCE and count > 1:
                yield Problem("duplicated", f"{tool} {n} was entered {count} times")
            if tool in KEYED and len(history.effects[tool, n]) > 1:
                yield Problem("duplicated", f"{tool} {n} was seen under {history.effects[tool, n]}")
            if tool in FOUND_OUT and history.did[tool, n] > 1:
                yield Problem("duplicated", f"{tool} {n} was done {history.did[tool, n]} times")

    def finished(self) -> Iterator[Problem]:
        """With no plan left open: what each plan was to bring about is there, exactly once."""
        history = self._history
        answers: dict[tuple[str, str], int] = {}
        texts: dict[tuple[str, int, int], int] = {}
        sessions = {p["session"] for p in history.plans.values() if p["session"]} | {f"many-{i}" for i in range(5)}
        for session in sessions - history.gone - history.fleeting:
            try:
                messages = self._db.read(session).plain()["messages"]
            except NotFound:
                continue
            for m in messages:
                if "answers" in m:
                    at = (session, m["answers"])
                    answers[at] = answers.get(at, 0) + 1
                else:
                    place = (session, m["n"], m["part"])
                    texts[place] = texts.get(place, 0) + 1
        for n in history.done:
            p = history.plans[n]
            for session, part in _marks(p):
                count = texts.get((session, n, part), 0)
                if count != 1:
                    yield Problem("duplicated" if count else "lost", f"{p} left {count} messages, part {part}")
        for place, acked in history.posted.items():
            if not place[1].startswith("k"):
                continue
            count = answers.get(place, 0)
            if count > 1 or (acked and not count):
                yield Problem("duplicated" if count else "lost", f"message {place} was answered {count} times")


def _marks(p: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """(session, part) of the messages a plan leaves at the head of main."""
    op, session = p["op"], str(p["session"])
    match op:
        case "commit" | "migrate" | "merge" | "torn" | "wake":
            yield session, 0
        case "run":
            yield from ((session, 1), (session, 2))
        case "compact":
            yield from ((session, part) for part in range(10, 15))
        case "prune" | "prune:much":
            yield from ((session, 20 + i) for i in range(int(p["adds"])))
        case "gather":
            yield from ((f"many-{i}", i) for i in range(int(p["width"])))
        case _:
            return
