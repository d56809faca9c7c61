"""What keeps a database in order, and what only looks at it, while answers get lost."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

import perdure
from perdure.errors import Busy, Gone, Unavailable
from tests.campaigns.lost_answers.scene import case

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.campaigns.lost_answers.scene import Act, Scene

    Play = Generator[Act, Any, None]


@case("open a database for the first time", named=False)
def _make(x: Scene) -> Play:
    """The store is made through the proxy; whoever comes next finds it whole."""

    def make() -> None:
        with perdure.open(x.beside(f"{x.n}", proxied=True), **x.options) as db:
            db.update("s", lambda s: s.vars.__setitem__("made", True))

    yield make
    with perdure.open(x.beside(f"{x.n}", proxied=False), **x.options) as db:
        x.expect(db.read("s").vars["made"], True, "what was written first")
        with db.session("t") as s:
            s.messages.append("one")
            s.commit()


@case("open a database again", named=False)
def _open(x: Scene) -> Play:
    with x.direct.session(x.name) as s:
        s.messages.append("one")
        s.commit()

    def look() -> list[Any]:
        with perdure.open(x.proxied, **x.options) as db:
            return db.read(x.name).plain()["messages"]

    found = yield look
    x.expect(found, ["one"], "messages")


@case("compact", named=False)
def _compact(x: Scene) -> Play:
    x.begun(steps=20).release()
    yield lambda: x.db.compact(x.name)
    x.expect_messages(*(f"before {n}" for n in range(20)))
    x.expect_steps(20)
    x.expect_intact()
    x.expect([a.kind for a in x.truth.artifacts(x.name) if a.kind == "pack"], ["pack"], "packs")


@case("prune", named=False)
def _prune(x: Scene) -> Play:
    x.begun(steps=12).release()
    yield lambda: x.patiently(lambda: x.db.prune(x.name, keep_last=3))
    x.expect_messages(*(f"before {n}" for n in range(12)))
    x.expect_intact()
    try:
        x.messages(at=5)
    except Gone:
        return
    x.expect("there", "gone", "a step that was pruned")


@case("sweep", named=False)
def _sweep(x: Scene) -> Play:
    x.begun(ttl=1).release()
    x.begun(f"{x.name}-stays", ttl=None).release()
    x.let_expire()

    def sweep() -> None:
        swept = x.db.sweep()
        # What could not be removed this time is said, and left to the next.
        for name in swept.busy:
            raise Busy(name, "an earlier sweep", 0)
        for _, why in swept.failed:
            raise Unavailable(why)

    yield lambda: x.patiently(sweep)
    row = x.truth.look(x.name)
    x.expect((row.why_gone, row.heads), ("expired", ()), "the tombstone")
    x.expect_messages("before 0", name=f"{x.name}-stays")


@case("open an expired session")
def _expired(x: Scene) -> Play:
    x.begun(ttl=1).release()
    x.let_expire()

    def begin_anew() -> str:
        with x.db.session(x.name) as s:
            if s.messages.plain() != ["one"]:
                s.messages.append("one")
                s.commit()
            return s.opened

    yield lambda: x.patiently(begin_anew)
    x.expect_messages("one")


@case("collect", named=False)
def _collect(x: Scene) -> Play:
    s = x.begun()
    s.vars["photo"] = kept = f"kept {x.n} " + "k" * 50_000
    s.commit()
    s.vars["photo"] = None
    s.commit()
    s.release()
    yield lambda: x.db.collect(grace=0)
    x.expect(x.direct.read(x.name, 2).vars["photo"], kept, "a large value that is referred to")


@case("restore")
def _restore(x: Scene) -> Play:
    with tempfile.TemporaryDirectory(prefix="perdure-ambiguous-") as folder:
        path = os.path.join(folder, "backup")
        with perdure.open("memory://", maintain=False) as other:
            with other.session(x.name) as s:
                s.vars["photo"] = large = f"restored {x.n} " + "r" * 50_000
                s.messages.append("one")
                s.commit()
                s.messages.append("two")
                s.commit()
            other.backup(path)
        yield lambda: x.db.restore(path)
    x.expect_messages("one", "two")
    x.expect_steps(2)
    x.expect(x.direct.read(x.name).vars["photo"], large, "a large value")
    x.expect_intact()


@case("back up", named=False)
def _backup(x: Scene) -> Play:
    # A store of its own, which does not grow: a backup reads everything there is.
    with (
        tempfile.TemporaryDirectory(prefix="perdure-ambiguous-") as folder,
        perdure.open(x.beside("small", proxied=False), **x.options) as direct,
        perdure.open(x.beside("small", proxied=True), **x.options) as db,
    ):
        with direct.session("s") as s:
            s.messages.append(x.name)
            s.commit()
        path = os.path.join(folder, "backup")
        yield lambda: db.backup(path)
        with perdure.open("memory://", maintain=False) as other:
            other.restore(path)
            x.expect(other.read("s").plain(), direct.read("s").plain(), "what was backed up")


@case("look", named=False)
def _look(x: Scene) -> Play:
    s = x.begun(steps=3)
    s.tag("good")
    s.release()

    def seen(db: perdure.Database) -> list[Any]:
        return [
            db.read(x.name).plain(), db.read(x.name, 2).plain(), [p.id for p in db.history(x.name)],
            db.look(x.name).heads, [r.id for r in db.sessions(limit=5)], len(db.changes(limit=3).items),
            db.diff(x.name, 1, 3), db.verify(x.name).ok,
        ]  # fmt: skip

    found = yield lambda: seen(x.db)
    x.expect(found, seen(x.direct), "what is seen")
