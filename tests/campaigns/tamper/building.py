"""Stores worth tampering with: several sessions with all that a store can hold, and what was recorded of them.

What is recorded lies outside the store, as a witness does: exact states and digests, and copies of the folder as it
was at earlier moments, for replays.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import perdure
from perdure.model import ANCHOR, PACK, SNAPSHOT, TAG_PREFIX
from perdure.testing.clock import FakeClock
from tests.campaigns.model.documents import exact
from tests.campaigns.model.early import early

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.database import Database
    from perdure.session.handle import Session

KEY = "a key for the tamper campaign"
SESSIONS = ("trip-42", "trip-43", "a/../ü", "short")
Place = tuple[str, str, int | None]
"""Session, branch or tag, and step (None: its head)."""


@dataclass
class Original:
    """A store as it was built, and what is known of it."""

    kind: str
    codec: str
    folder: Path
    """Holds the images: ``closed`` (after a clean close), ``live`` (copied while it was open), ``old-0``, ...; and
    ``foreign``, of another store with the same sessions and the same key."""
    now: int = 0
    states: dict[Place, str] = field(default_factory=dict[Place, str])
    inboxes: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    ever: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """All states a session ever had: a loss can bring back one of these, and nothing else."""
    posted: dict[str, set[str]] = field(default_factory=dict[str, set[str]])

    @property
    def name(self) -> str:
        """For the counts."""
        return f"{self.kind}/{self.codec}"

    @property
    def witness(self) -> Path:
        """The file with the last heads."""
        return self.folder / "witness"

    def olds(self) -> list[Path]:
        """Images of earlier moments."""
        return sorted(self.folder.glob("old-*"))


def url_of(kind: str, folder: Path) -> str:
    """How the store in a folder is opened."""
    return f"sqlite:///{folder}/agents.db" if kind == "sqlite" else f"file://{folder}/agents"


def open_store(kind: str, codec: str, folder: Path, clock: FakeClock, **options: Any) -> Database:
    """Open the store in a folder, with the key."""
    options |= {"busy_timeout": 2.0} if kind == "sqlite" else {}
    folder.mkdir(parents=True, exist_ok=True)
    return perdure.open(url_of(kind, folder), keys=KEY, codec=codec, clock=clock, maintain=False, **options)


class Builder:
    """Writes one store, stage by stage."""

    def __init__(self, original: Original, seed: int) -> None:
        self._original = original
        self._rng = random.Random(seed)
        self._clock = FakeClock()
        self._work = original.folder / "work"
        self._olds = 0

    def build(self) -> None:
        """Write everything, keep images on the way, and record what there is in the end."""
        rng = self._rng
        with (
            mock.patch("secrets.token_bytes", rng.randbytes),
            mock.patch("secrets.token_hex", lambda n=16: rng.randbytes(n).hex()),
            early(PACK_ROWS=6, PACK_MIN=3, BLOB_OVER=400),
        ):
            with self._open() as db:
                self._beginnings(db)
                self._keep_old()
            with self._open() as db:
                self._middles(db)
                self._keep_old()
                self._ends(db)
                self._keep_old()
            shutil.copytree(self._work, self._original.folder / "closed")
            with self._open() as db:
                self._last_words(db)
                _witness(db, self._original.witness)
                shutil.copytree(self._work, self._original.folder / "live")
                self._record(db)
        self._original.now = self._clock.wall()
        # The closed image is that of the same moment, without a log beside it.
        shutil.rmtree(self._original.folder / "closed")
        shutil.copytree(self._work, self._original.folder / "closed")
        shutil.rmtree(self._work)

    def _open(self) -> Database:
        return open_store(self._original.kind, self._original.codec, self._work, self._clock)

    def _keep_old(self) -> None:
        shutil.copytree(self._work, self._original.folder / f"old-{self._olds}")
        self._olds += 1

    def _say(self, s: Session, count: int) -> None:
        for _ in range(count):
            self._clock.advance(1000)
            number = s.step
            s.messages.append({"role": "user", "content": f"{s.id} {number} " + "word " * self._rng.randrange(9)})
            s.vars["n"] = [number, float(number), number % 2 == 0]
            if number % 5 == 3:
                s.vars["large"] = f"{s.id} {number} " * 60
            if number % 7 == 4:
                s.messages[0]["content"] = f"edited at {number}"
            s.commit()
            self._original.ever.setdefault(s.id, set()).add(exact(s.state.plain()))

    def _beginnings(self, db: Database) -> None:
        for session in SESSIONS:
            with db.session(session, owner="ana", ttl=None) as s:
                self._say(s, 2 if session == "short" else 7)
            self._post(db, session, "hello", "later")
        with db.session("trip-42") as s:
            s.fork("cheaper", at=3)
            s.tag("good", at=5)
            s.take(limit=1)
            self._say(s, 1)

    def _middles(self, db: Database) -> None:
        with db.session("trip-42") as s:
            s.rewind(6)
            self._say(s, 6)
            s.switch("cheaper")
            self._say(s, 3)
        with db.session("trip-43") as s:
            self._say(s, 9)
            s.tag("good")
        for session in SESSIONS[:2]:
            db.compact(session)

    def _ends(self, db: Database) -> None:
        with db.session("trip-42") as s:
            s.merge("cheaper", prefer="theirs")
            self._original.ever[s.id].add(exact(s.state.plain()))
            self._say(s, 4)
        with db.session("a/../ü") as s:
            s.take()
            self._say(s, 4)
        db.compact("trip-42")
        db.compact("a/../ü")
        db.prune("trip-43", keep_last=5, keep_every=4)

    def _last_words(self, db: Database) -> None:
        for session in SESSIONS:
            with db.session(session) as s:
                self._say(s, 2)
            self._post(db, session, "waiting")

    def _post(self, db: Database, session: str, *keys: str) -> None:
        for key in keys:
            db.post(session, {"key": key, "to": session, "n": [1, 1.0, True]}, key=key)

    def _record(self, db: Database) -> None:
        original = self._original
        kinds = {artifact.kind for session in SESSIONS for artifact in db.kernel.store.artifacts(session)}
        assert kinds == {PACK, SNAPSHOT, ANCHOR}, "what is not in the store is not tampered with"
        for place in _places(db):
            reading = read(db, place)
            original.states[place] = reading
        for session in SESSIONS:
            original.inboxes[session] = inbox(db, session)
            original.posted[session] = {entry(db, session, key) for key in ("hello", "later", "waiting")}


def entry(db: Database, session: str, key: str) -> str:
    """What an inbox entry reads as."""
    return exact([key, "message", {"key": key, "to": session, "n": [1, 1.0, True]}])


def inbox(db: Database, session: str) -> list[str]:
    """What a writer is given of an inbox; nothing is committed, so it goes on waiting."""
    with db.session(session) as s:
        return [exact(list(message[:3])) for message in s.take()]


def read(db: Database, place: Place) -> str:
    """The state at a place, exactly."""
    session, branch, step = place
    if branch.startswith(TAG_PREFIX):
        return exact(db.read(session, branch.removeprefix(TAG_PREFIX)).plain())
    return exact(db.read(session, step, branch=branch).plain())


def _places(db: Database) -> Iterator[Place]:
    for session in SESSIONS:
        for head in db.look(session).heads:
            yield session, head.branch, None
            if not head.branch.startswith(TAG_PREFIX):
                steps = [checkpoint.step for checkpoint in db.history(session, branch=head.branch)]
                yield from ((session, head.branch, steps[i]) for i in {1, len(steps) // 2, len(steps) - 1})


def _witness(db: Database, path: Path) -> None:
    from perdure.upkeep.witness import write_witness

    write_witness(db.kernel, path)


def build(kind: str, codec: str, folder: Path, seed: int) -> Original:
    """A store with everything in it, below a folder."""
    os.makedirs(folder)
    original, foreign = Original(kind, codec, folder), Original(kind, codec, folder / "elsewhere")
    Builder(original, seed).build()
    os.makedirs(foreign.folder)
    Builder(foreign, seed + 1).build()
    shutil.move(foreign.folder / "closed", folder / "foreign")
    shutil.rmtree(foreign.folder)
    return original
