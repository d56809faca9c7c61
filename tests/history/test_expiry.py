"""Opening a session that is missing, was there, has expired or was deleted: the handle says which, when and why."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, FunctionModel, Origin, calls

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.testing.clock import FakeClock


def commit(db: perdure.Database, session: str = "s", **options: Any) -> None:
    with db.session(session, **options) as s:
        s.vars["n"] = 1
        s.commit()


def test_a_new_session_is_created_and_an_old_one_resumed(db: perdure.Database) -> None:
    with db.session("s") as s:
        assert s.origin == Origin("created", "", None, None)
        s.commit()
    with db.session("s") as s:
        assert s.origin == Origin("resumed")
        assert (s.opened, s.because) == ("resumed", "")


def test_an_expired_session_is_restarted_and_says_when_it_began_and_ended(
    db: perdure.Database, clock: FakeClock
) -> None:
    began = clock.wall()
    commit(db, ttl=60)
    clock.advance(61_000)
    ended = clock.wall()
    with db.session("s") as s:
        assert s.origin == Origin("restarted", "expired", began, ended)
        assert (s.opened, s.because, s.step, s.vars.plain()) == ("restarted", "expired", 0, {})
    # Nothing was committed: whoever opens it next is told the same.
    clock.advance(5_000)
    with db.session("s") as s:
        assert s.origin == Origin("restarted", "expired", began, ended)
        s.commit()
    with db.session("s") as s:
        assert s.origin == Origin("resumed")


@pytest.mark.parametrize("lease", [True, False])
def test_a_deleted_session_is_restarted_with_the_reason_it_was_given(
    db: perdure.Database, clock: FakeClock, lease: bool
) -> None:
    began = clock.wall()
    commit(db)
    clock.advance(1000)
    db.kernel.store.drop("s", None, "asked to forget")
    with db.session("s", lease=lease) as s:
        assert s.origin == Origin("restarted", "asked to forget", began, began + 1000)


def test_a_session_that_was_only_posted_to_is_new(db: perdure.Database) -> None:
    db.post("s", "hello")
    with db.session("s") as s:
        assert s.origin == Origin("created")


@pytest.mark.parametrize("lease", [True, False])
def test_who_wants_no_new_session_is_told_why_there_is_none(
    db: perdure.Database, clock: FakeClock, lease: bool
) -> None:
    with pytest.raises(perdure.NotFound) as missing:
        db.session("s", create=False, lease=lease)
    assert not isinstance(missing.value, perdure.Gone)
    assert db.kernel.store.look("s") is None, "asking made nothing"
    commit(db, ttl=60)
    with db.session("s", create=False, lease=lease) as s:
        assert s.origin == Origin("resumed")
    clock.advance(61_000)
    for _ in range(2):
        with pytest.raises(perdure.Gone) as gone:
            db.session("s", create=False, lease=lease)
        assert gone.value.reason == "expired"
    db.sweep()
    with pytest.raises(perdure.Gone) as gone:
        db.session("s", create=False, lease=lease)
    assert gone.value.reason == "expired"
    with pytest.raises(perdure.Gone):
        db.update("s", lambda s: None, create=False)
    with db.session("s") as s:
        assert s.origin.reason == "expired"


def test_one_that_ends_between_the_look_and_the_lease_is_gone_and_the_lease_given_back(
    db: perdure.Database, open_db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(db)
    store = db.kernel.store
    acquire = store.acquire

    def late(*args: Any) -> Any:
        store.drop("s", None, "deleted")
        return acquire(*args)

    monkeypatch.setattr(store, "acquire", late)
    with pytest.raises(perdure.Gone) as gone:
        db.session("s", create=False)
    assert gone.value.reason == "deleted"
    with open_db().session("s") as s:
        assert s.opened == "restarted"


def test_the_awaited_handle_says_the_same(url: str, clock: FakeClock) -> None:
    async def ask() -> list[Any]:
        async with perdure.open_async(url, clock=clock) as db:
            found: list[Any] = []
            for _ in range(2):
                async with db.session("s", ttl=60) as s:
                    found.append(s.origin.kind)
                    await s.commit("noted")
            clock.advance(61_000)
            with pytest.raises(perdure.Gone):
                await db.session("s", create=False)
            async with db.session("s") as s:
                return [*found, s.origin.kind, s.origin.reason]

    assert asyncio.run(ask()) == ["created", "resumed", "restarted", "expired"]


# -- wrong clocks ------------------------------------------------------------------------------------------------------


def messages(s: Any) -> list[Any]:
    """What waits for a session, in order."""
    return [message.body for message in s.take()]


def reopened(db: perdure.Database, clock: FakeClock) -> perdure.Database:
    """The same store in a process that starts now."""
    return perdure.open(db.kernel.store.url, clock=clock)


@pytest.mark.parametrize("lease", [True, False])
def test_a_wall_clock_that_is_set_ahead_expires_nothing(db: perdure.Database, clock: FakeClock, lease: bool) -> None:
    commit(db, ttl=60)
    clock.set_wall(clock.wall() + 10 * 365 * 86_400_000)
    with reopened(db, clock) as other:
        assert other.read("s").vars["n"] == 1
        assert other.sweep().removed == 0
        with other.session("s", lease=lease) as s:
            assert s.origin == Origin("resumed")
            assert s.vars["n"] == 1


def test_a_wall_clock_that_was_behind_while_it_wrote_expires_nothing_once_it_is_right(
    db: perdure.Database, clock: FakeClock
) -> None:
    right = clock.wall()
    clock.set_wall(right - 365 * 86_400_000)
    commit(db, ttl=60)
    clock.set_wall(right)
    with reopened(db, clock) as other, other.session("s") as s:
        assert s.vars["n"] == 1


def test_what_a_fast_clock_wrote_lives_longer_and_not_shorter(db: perdure.Database, clock: FakeClock) -> None:
    right = clock.wall()
    clock.set_wall(right + 3_600_000)
    commit(db, ttl=60)
    clock.set_wall(right)
    clock.advance(61_000)
    assert db.read("s").vars["n"] == 1
    clock.advance(3_600_000)
    with pytest.raises(perdure.Gone):
        db.read("s")


# -- one answer at every moment ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("swept", [False, True], ids=["before the sweep", "after it"])
@pytest.mark.parametrize("how", ["session", "optimistic", "update", "post first", "create"])
def test_whatever_is_done_with_an_expired_session_begins_anew(
    db: perdure.Database, clock: FakeClock, swept: bool, how: str
) -> None:
    with db.session("s", ttl=60) as s:
        s.vars["secret"] = "of last year"
        s.commit()
    clock.advance(61_000)
    if swept:
        assert db.sweep().removed == 1
    with pytest.raises(perdure.Gone):
        db.read("s")
    with pytest.raises(perdure.Gone):
        db.history("s")
    if how == "update":
        db.update("s", lambda s: s.vars.__setitem__("n", 2))
    elif how == "create":
        assert db.create("s", agent="a")
    else:
        if how == "post first":
            assert db.post("s", "hello", key="m")
        with db.session("s", lease=how != "optimistic") as s:
            assert s.origin.kind == "restarted"
            assert messages(s) == (["hello"] if how == "post first" else [])
            s.commit()
    assert "secret" not in db.read("s").vars


def test_a_message_that_came_in_time_keeps_its_session(db: perdure.Database, clock: FakeClock) -> None:
    commit(db, ttl=60)
    clock.advance(59_000)
    db.post("s", "in time")
    clock.advance(60_000)
    assert db.sweep() == (0, 1, (), (), 0)
    with db.session("s") as s:
        assert (s.origin.kind, messages(s)) == ("resumed", ["in time"])


def test_a_wake_for_an_expired_session_is_refused_and_nothing_is_left_of_it(
    db: perdure.Database, clock: FakeClock
) -> None:
    commit(db, ttl=60)
    clock.advance(61_000)
    with pytest.raises(perdure.Gone, match="perdure revive s"):
        db.wake("s", delay="1h")
    assert db.kernel.store.inbox("s") == []
    # What it says helps.
    db.revive("s")
    assert db.wake("s", delay="1h")


# -- bringing back -----------------------------------------------------------------------------------------------------


def test_an_expired_session_is_brought_back_as_it_was(db: perdure.Database, clock: FakeClock) -> None:
    with db.session("s", ttl=60, owner="ana") as s:
        s.journal.settings.agent = "clerk"
        s.vars["n"] = 1
        s.commit()
        s.fork("b")
        s.tag("t")
    before, row = db.read("s").plain(), db.look("s")
    clock.advance(61_000)
    assert db.sweep().removed == 1
    (aside,) = db.set_aside()
    assert (aside.session, aside.owner, aside.created) == ("s", "ana", row.created)
    assert [r.id for r in db.sessions()] == []
    assert db.counts() == []
    assert db.changes().items == ()
    assert db.verify().ok
    assert db.revive("s") == aside
    again = db.look("s")
    assert (db.read("s").plain(), again.owner, again.agent, again.status) == (before, "ana", "clerk", row.status)
    assert [h.branch for h in again.heads] == [h.branch for h in row.heads]
    assert db.set_aside() == []
    assert db.verify().ok
    clock.advance(59_000)
    assert db.read("s").vars["n"] == 1
    clock.advance(2_000)
    with pytest.raises(perdure.Gone):
        db.read("s")


def test_the_life_that_has_begun_since_is_set_aside_in_its_turn(db: perdure.Database, clock: FakeClock) -> None:
    commit(db, ttl=60)
    clock.advance(61_000)
    with db.session("s", ttl=60) as s:
        s.vars["n"] = 2
        s.commit()
    db.post("s", "waits", key="m")
    db.revive("s")
    assert db.read("s").vars["n"] == 1
    with db.session("s") as s:
        assert messages(s) == ["waits"]
    db.revive("s")
    assert db.read("s").vars["n"] == 2


def test_of_several_lives_the_one_that_was_set_aside_last_comes_back(db: perdure.Database, clock: FakeClock) -> None:
    for life in ("A", "B"):
        with db.session("s", ttl=60) as s:
            s.vars["life"] = life
            s.commit()
        clock.advance(61_000 if life == "A" else 1000)
    back = db.revive("s")
    assert (db.read("s").vars["life"], back.life) == ("A", 0)
    assert back.made_way == db.set_aside("s")[-1].life, "the answer says where the other one went"
    for sweep in (False, True):
        clock.advance(61_000)
        if sweep:
            db.sweep()
        assert [one.life for one in db.set_aside("s")] == [back.made_way, 0]
        assert db.revive("s").made_way is None
        assert db.read("s").vars["life"] == "A", "it expired last, and B was written last"


def test_who_keeps_what_has_expired_for_how_long_does_not_matter_to_which_life_comes_back(
    open_db: Callable[..., perdure.Database], clock: FakeClock
) -> None:
    db = open_db(keep_expired="30d")
    commit(db, ttl=60)
    clock.advance(61_000)
    db.sweep()
    with open_db(keep_expired="1d") as other:
        with other.session("s", ttl=60) as s:
            s.vars["n"] = 2
            s.commit()
        clock.advance(61_000)
        other.sweep()
    db.revive("s")
    assert db.read("s").vars["n"] == 2


def test_another_life_can_be_named(db: perdure.Database, clock: FakeClock) -> None:
    for n in range(3):
        with db.session("s", ttl=60) as s:
            s.vars["n"] = n
            s.commit()
        clock.advance(61_000)
    lives = [one.life for one in db.set_aside("s")]
    assert lives == sorted(lives)
    for n in (0, 2, 1):
        assert db.revive("s", life=lives[n]).life == lives[n]
        assert db.read("s").vars["n"] == n
        assert db.verify().ok
    with pytest.raises(perdure.NotFound, match=f"life 7 of session 's' is not set aside; those that are: {lives[0]}"):
        db.revive("s", life=7)
    assert db.read("s").vars["n"] == 1, "nothing was done"


def test_what_was_set_aside_is_deleted_for_good_after_its_time(db: perdure.Database, clock: FakeClock) -> None:
    commit(db, ttl=60)
    clock.advance(61_000)
    assert db.sweep().removed == 1
    clock.advance(7 * 86_400_000 - 1000)
    assert db.sweep().deleted == 0
    clock.advance(1000)
    assert db.sweep().deleted == 1
    assert db.set_aside() == []
    with pytest.raises(perdure.NotFound, match="nothing of session 's' is set aside"):
        db.revive("s")


def test_who_keeps_nothing_has_nothing_to_bring_back(clock: FakeClock) -> None:
    with perdure.open("memory://", clock=clock, keep_expired=0) as db:
        commit(db, ttl=60)
        clock.advance(61_000)
        assert db.sweep().removed == 1
        assert db.set_aside() == []
        with pytest.raises(perdure.NotFound):
            db.revive("s")
        with pytest.raises(perdure.NotFound):
            db.revive("never was")
        assert db.kernel.store.look("never was") is None


def test_the_id_of_what_is_set_aside_is_nobodys(db: perdure.Database, clock: FakeClock) -> None:
    commit(db, ttl=60)
    clock.advance(61_000)
    db.sweep()
    (row,) = db.kernel.store.sessions(aside=True)
    for use in (db.read, db.session, db.history, lambda id: db.post(id, 1)):
        with pytest.raises(perdure.InvalidInput, match="set aside"):
            use(row.id)


# -- calls in doubt ----------------------------------------------------------------------------------------------------


@perdure.tool
def lost(what: str) -> str:
    """Pay, and hear nothing."""
    raise TimeoutError(what)


@perdure.tool
def broken(what: str) -> str:
    """Pay, and break."""
    raise KeyError(what)


def in_doubt(db: perdure.Database, session: str = "s", **options: Any) -> str:
    """A session with a call in doubt, and its effect."""
    with db.session(session, ttl=60, **options) as s:
        with pytest.raises(perdure.InDoubt):
            s.call(lost, what="rent")
        return s.effects()[-1]["id"]


def test_a_call_in_doubt_keeps_its_session_until_somebody_settles_it(db: perdure.Database, clock: FakeClock) -> None:
    effect = in_doubt(db)
    clock.advance(30 * 86_400_000)
    assert db.sweep() == (0, 1, (), (), 0)
    assert db.set_aside() == []
    assert db.read("s").checkpoint.status == "in_doubt"
    assert db.post("s", "are you there?")
    with db.session("s") as s:
        assert s.origin.kind == "resumed"
        s.resolve(effect, done="paid")
        assert s.call(lost, what="rent") == "paid"
        assert messages(s) == ["are you there?"]
        s.commit()
    clock.advance(59_000)
    assert db.read("s").step > 1
    clock.advance(2_000)
    assert db.sweep().removed == 1


@pytest.mark.parametrize("read", [False, True], ids=["any call", "a read"])
def test_a_call_that_was_interrupted_keeps_its_session_unless_it_only_reads(
    db: perdure.Database, clock: FakeClock, read: bool
) -> None:
    begun = asyncio.Event()

    @perdure.tool(read=read)
    async def slow(what: str) -> str:
        """Take for ever."""
        begun.set()
        return await asyncio.Future()

    agent = Agent("a", model=FunctionModel(lambda _: calls(("slow", {"what": "rent"})), name="m"), tools=[slow])

    async def run() -> None:
        async with perdure.open_async(db.url, clock=clock) as other:
            task = asyncio.create_task(agent.run(other, session="s", message="go", ttl=60))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    clock.advance(61_000)
    assert db.sweep() == ((1, 0, (), (), 0) if read else (0, 1, (), (), 0))


def test_a_closed_session_with_a_call_in_doubt_is_kept(db: perdure.Database, clock: FakeClock) -> None:
    effect = in_doubt(db)
    with db.session("s") as s:
        s.close()
    clock.advance(61_000)
    assert db.sweep().kept == 1
    with db.session("s", reopen=True) as s:
        s.resolve(effect, abort=True)
        s.close()
    clock.advance(61_000)
    assert db.sweep().removed == 1


def test_a_call_in_doubt_on_another_branch_keeps_the_session_and_an_outcome_counts_on_all_that_have_the_call(
    db: perdure.Database, clock: FakeClock
) -> None:
    effect = in_doubt(db)
    with db.session("s") as s:
        s.fork("copy")
        s.resolve(effect, abort=True)
        s.commit()
    clock.advance(61_000)
    with db.session("s", ttl=60) as s:
        assert s.origin.kind == "restarted", "the copy has the call of the line it parted from"
        s.commit()
        s.fork("b")
    in_doubt(db, branch="b")
    clock.advance(61_000)
    assert db.sweep() == (0, 1, (), (), 0)
    # A rewind leaves the call behind, and nobody knows more of it than before.
    with db.session("s", branch="b") as s:
        s.rewind(1)
    clock.advance(61_000)
    assert db.sweep() == (0, 1, (), (), 0)
    with db.session("s", branch="b") as s:
        s.resolve(s.effects()[-1]["id"], abort=True)
    clock.advance(61_000)
    assert db.sweep().removed == 1


@pytest.mark.parametrize("branch", ["main", "b"])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("verdict", [{"done": "paid"}, {"retry": True}, {"abort": True}, "reported"])
def test_a_call_in_doubt_that_a_rewind_leaves_keeps_its_session_until_somebody_settles_it(
    db: perdure.Database, clock: FakeClock, verdict: Any, times: int, branch: str
) -> None:
    with db.session("s", ttl=60) as s:
        s.commit()
        s.fork("b")
    effect = in_doubt(db, branch=branch)
    for _ in range(times):
        with db.session("s", branch=branch) as s:
            s.rewind(1)
            assert [(e["id"], e["status"]) for e in s.effects()] == [(effect, "in_doubt")]
            s.vars["n"] = times
            s.commit()
            assert s.status == "in_doubt"
            if branch == "b":
                s.switch("main")
                s.merge("b", prefer="theirs")
    if branch == "main":
        assert [row.id for row in db.sessions(status="in_doubt")] == ["s"]
    why = perdure.why(db, "s", branch=branch)
    assert "on the line that a rewind has left, and nobody knows whether it happened" in why.line
    assert (why.severity, why.actions[0].name, why.actions[0].argument) == ("act", "resolve", effect)
    clock.advance(61_000)
    assert db.sweep() == (0, 1, (), (), 0)
    if verdict == "reported":
        assert db.post_outcome("s", effect, "paid")
    with db.session("s", branch=branch) as s:
        assert s.origin.kind == "resumed"
        if verdict != "reported":
            s.resolve(effect, **verdict)
        if verdict in ({"done": "paid"}, "reported"):
            assert s.call(lost, what="rent") == "paid", "settled, and never made again"
        assert s.status == "idle"
        s.commit()
    clock.advance(61_000)
    assert db.sweep().removed == 1


def test_a_pending_result_keeps_its_session_and_one_that_has_expired_takes_no_outcome(
    db: perdure.Database, clock: FakeClock
) -> None:
    made: list[str] = []

    @perdure.tool(if_unsure="retry")
    def charge(order: str, ctx: perdure.Context) -> perdure.Later:
        made.append(ctx.effect_id)
        return perdure.Later("job")

    with db.session("s", ttl=60) as s, pytest.raises(perdure.ResultPending):
        s.call(charge, "X")
    clock.advance(61_000)
    assert db.sweep() == (0, 1, (), (), 0)
    why = perdure.why(db, "s")
    assert "Its time ran out 1 s ago: it is kept until" in why.line
    assert db.post_outcome("s", made[0], "paid")
    with db.session("s", ttl=60) as s:
        assert s.call(charge, "X") == "paid"
    for swept in (False, True):
        clock.advance(61_000)
        if swept:
            db.sweep()
        with pytest.raises(perdure.Gone, match="nothing was reported"):
            db.post_outcome("s", made[0], "paid")
    assert len(made) == 1


def test_a_call_that_was_told_as_raised_keeps_nothing(db: perdure.Database, clock: FakeClock) -> None:
    with db.session("s", ttl=60) as s, pytest.raises(perdure.EffectRaised):
        s.call(broken, what="rent")
    clock.advance(61_000)
    assert db.sweep().removed == 1
