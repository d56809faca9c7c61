"""Whoever got no answer asks again: the same sealed bytes are sent, and what was asked for happens exactly once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.model import Append
    from perdure.testing.clock import FakeClock


class Losing:
    """Stands before a store. ``how`` says what happens to the next commit: its answer is lost, or it never arrives."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.how = ""
        self.sent: list[Append] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, batch: Sequence[Append]) -> Any:
        """Send commits on, or not."""
        self.sent += batch
        how, self.how = self.how, ""
        if how == "never arrives":
            raise perdure.OutcomeUnknown("nobody knows", batch[0].id)
        if how == "unavailable":
            raise perdure.Unavailable("nobody is there")
        answers = self._store.append(batch)
        if how == "answer lost":
            raise perdure.OutcomeUnknown("the answer was lost", batch[0].id)
        if how == "answer unknown":
            return [perdure.OutcomeUnknown("the answer was lost", item.id) for item in batch]
        return answers


WAYS = ["answer lost", "answer unknown", "never arrives", "unavailable"]
ASKED: dict[str, Callable[[Any], Any]] = {
    "fork": lambda s: s.fork("x"),
    "fork at": lambda s: s.fork("x", at=2),
    "tag": lambda s: s.tag("x", at=1),
    "rewind": lambda s: s.rewind(1),
    "merge": lambda s: s.merge("other"),
    "merge prefer": lambda s: s.merge("other", prefer="ours"),
    "noted commit": lambda s: s.commit("a note"),
    "commit with status": lambda s: s.commit(status="paused"),
    "close": lambda s: s.close("the end"),
}


def losing(db: Any) -> Losing:
    db.kernel.store = Losing(db.kernel.store)
    return db.kernel.store


def write(db: perdure.Database) -> None:
    with db.session("s") as s:
        for n in range(3):
            s.vars["n"] = n
            s.commit()
        s.fork("other", at=2)
        s.switch("other")
        s.vars["theirs"] = True
        s.commit()


def rows(db: Any) -> set[tuple[int, int, bytes]]:
    store = db.kernel.store
    return {(r.line, r.step, r.id) for n in range(store.look("s").lines) for r in store.slice("s", n, 0, 99).rows}


@pytest.mark.parametrize("lease", [True, False])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("asked", ASKED)
def test_the_same_asked_again_happens_once(db: perdure.Database, asked: str, way: str, lease: bool) -> None:
    write(db)
    store = losing(db)
    before = rows(db)
    with db.session("s", lease=lease) as s:
        s.vars["mine"] = 1
        s.commit()
        before = rows(db)
        for _ in range(2):
            store.how = way
            with pytest.raises(PerdureError):
                ASKED[asked](s)
        done = ASKED[asked](s)
        first, *resent = store.sent[-3:]
        assert resent == [first, first], "byte for byte"
        new = rows(db) - before
        assert new == {(done.line, done.step, bytes.fromhex(done.id))}
        if asked != "close":
            s.vars["after"] = True
            s.commit()
    assert db.verify().findings == ()
    if asked.startswith("merge"):
        assert db.read("s").vars["theirs"]
    if asked == "rewind":
        assert db.read("s").vars.plain() == {"n": 0, "after": True}


@pytest.mark.parametrize("asked", ["fork", "tag", "rewind", "merge"])
def test_an_awaited_handle_asks_again_alike(url: str, clock: FakeClock, asked: str) -> None:
    with perdure.open(url, clock=clock) as db:
        write(db)

    async def ask() -> tuple[int, int]:
        async with perdure.open_async(url, clock=clock) as db:
            store = losing(db)
            db.driver.writer.store = store  # type: ignore[assignment]
            before = rows(db)
            async with db.session("s") as s:
                store.how = "answer lost"
                with pytest.raises(perdure.OutcomeUnknown):
                    await ASKED[asked](s)
                await ASKED[asked](s)
                landed = len(rows(db) - before)
                s.vars["after"] = 1
                return landed, (await s.commit()).step

    landed, step = asyncio.run(ask())
    assert landed == 1
    assert step == {"fork": 4, "tag": 4, "rewind": 3, "merge": 5}[asked]


def test_something_else_asked_for_settles_it_first(db: perdure.Database) -> None:
    write(db)
    store = losing(db)
    with db.session("s") as s:
        store.how = "never arrives"
        with pytest.raises(perdure.OutcomeUnknown):
            s.fork("x", at=1)
        s.vars["n"] = 9
        s.commit()
        assert db.read("s", "x").vars["n"] == 0, "it may have happened, so it does happen"
        store.how = "unavailable"
        with pytest.raises(perdure.Unavailable):
            s.tag("never")
        s.vars["n"] = 10
        s.commit()
        with pytest.raises(perdure.NotFound):
            db.read("s", "never")
        s.tag("never")
    assert db.read("s", "never").vars["n"] == 10


def test_a_rewind_that_landed_unseen_does_not_swallow_edits(db: perdure.Database) -> None:
    write(db)
    store = losing(db)
    with db.session("s") as s:
        store.how = "answer lost"
        with pytest.raises(perdure.OutcomeUnknown):
            s.rewind(1)
        s.vars["made since"] = True
        with pytest.raises(perdure.Misuse):
            s.rewind(1)
        for _ in range(2):
            with pytest.raises(perdure.Conflict, match="rewind has landed"):
                s.commit()
        s.reload()
        assert s.vars.plain() == {"n": 0}
        s.commit()


def test_a_rewind_that_landed_unseen_is_where_the_handle_goes_on(db: perdure.Database) -> None:
    write(db)
    store = losing(db)
    with db.session("s") as s:
        store.how = "answer lost"
        with pytest.raises(perdure.OutcomeUnknown):
            s.rewind(1)
        assert s.fork("from there").step == 3
        assert (s.step, s.vars["n"]) == (2, 0)


def test_a_line_that_was_refused_is_not_tried_behind_anybodys_back(db: perdure.Database, open_db: Any) -> None:
    write(db)
    store = losing(db)
    with db.session("s", lease=False) as s:
        store.how = "never arrives"
        with pytest.raises(perdure.OutcomeUnknown):
            s.fork("x")
        with open_db().session("s") as other:
            other.fork("x", at=1)
        with pytest.raises(perdure.Conflict):
            s.fork("x")
        s.vars["n"] = 5
        s.commit()
    assert db.read("s", "x").vars["n"] == 0


def test_no_line_starts_from_a_session_that_has_ended_meanwhile(db: perdure.Database) -> None:
    write(db)
    store = losing(db)
    s = db.session("s", lease=False)
    store.how = "never arrives"
    with pytest.raises(perdure.OutcomeUnknown):
        s.fork("x")
    store.drop("s", None, "deleted")
    with pytest.raises(perdure.Conflict):
        s.fork("x")
    with pytest.raises(perdure.Gone):
        db.look("s")
    s.release()


@pytest.mark.parametrize("first", ["answer lost", "answer unknown", "never arrives"])
@pytest.mark.parametrize("asked", ["noted commit", "fork", "rewind"])
def test_unknown_stays_unknown_until_it_is_settled(db: perdure.Database, first: str, asked: str) -> None:
    write(db)
    store = losing(db)
    with db.session("s") as s:
        s.reload()
        before = s.step
        store.how = first
        with pytest.raises(perdure.OutcomeUnknown) as unknown:
            ASKED[asked](s)
        for again in (ASKED[asked], lambda s: s.commit("another")):
            # "Nothing was written" would be true of this attempt only.
            store.how = "unavailable"
            with pytest.raises(perdure.OutcomeUnknown, match="an earlier attempt may have landed") as still:
                again(s)
            assert still.value.id == unknown.value.id
            assert isinstance(still.value.__cause__, perdure.Unavailable)
        done = ASKED[asked](s)
        assert len({item.id for item in store.sent}) == 1
        assert done.step == before + 1 if asked != "rewind" else done.step == 2
        # The next one has nothing to do with it.
        store.how = "unavailable"
        with pytest.raises(perdure.Unavailable):
            s.commit("more")
        s.commit("more")
