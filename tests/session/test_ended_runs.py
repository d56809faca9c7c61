"""A run that the exception of a call has ended is tried again by running it again, by what the call's tool declares."""

from __future__ import annotations

import asyncio
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Done, EffectFailed, EffectRaised, NotDone, ToolError, tool
from perdure.errors import Unavailable
from perdure.fleet.why.reading import why
from perdure.session.calls.records import ENDED_RUN
from perdure.system import faults
from tests.session.test_parallel_runs import Dying

if TYPE_CHECKING:
    from collections.abc import Callable


DECLARED: dict[str, Any] = {
    "retry": {"if_unsure": "retry", "key_valid_for": "24h"},
    "hasty": {"if_unsure": "retry", "key_valid_for": "10m"},
    "function": {},
    "ask": {},
    "report": {"if_unsure": "report"},
}


class World:
    """A provider whose answers are planned: what a call raises, by turns, before it is paid."""

    def __init__(self, *plan: Exception, declared: str, finds: Any = None) -> None:
        self._plan = list(plan)
        self.ids: list[str] = []
        self.finds = finds if finds is not None else perdure.Unknown()
        options = dict(DECLARED[declared])
        if declared == "function":
            options["if_unsure"] = lambda amount: self.finds

        @tool(**options)
        def pay(amount: int, ctx: perdure.Context) -> str:
            return self._pay(ctx)

        @tool(name="pay", **options)
        async def pay_async(amount: int, ctx: perdure.Context) -> str:
            return self._pay(ctx)

        self.tools = {"sync": pay, "async": pay_async}

    def _pay(self, ctx: perdure.Context) -> str:
        self.ids.append(ctx.effect_id)
        if self._plan:
            raise self._plan.pop(0)
        return "paid"


class Desk:
    """A session in memory that is opened anew for each start of its program, one way or the other."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.clock = perdure.testing.FakeClock()
        self.url = f"memory://ended-{uuid.uuid4().hex}"
        self._keep = perdure.open(self.url, clock=self.clock, maintain=False)

    @property
    def status(self) -> str:
        return self._keep.look("s").status

    def close(self) -> None:
        self._keep.close()


@pytest.fixture(params=["sync", "async"])
def desk(request: pytest.FixtureRequest) -> Any:
    desk = Desk(request.param)
    yield desk
    desk.close()


def run(desk: Desk, world: World, before: Any) -> str:
    """Start the program: it has a call that is done, a commit, and the call that may raise; what came of it."""
    try:
        if desk.way == "async":
            return asyncio.run(_run(desk, world, before))

        def work(s: Any) -> str:
            s.vars["first"] = s.call(before, "A-7")
            s.commit()
            s.vars["lost"] = "unless it is made again"
            return s.call(world.tools["sync"], 5)

        with perdure.open(desk.url, clock=desk.clock, maintain=False) as db, db.session("s") as s:
            return s.run("job", work)
    except perdure.PerdureError as e:
        return type(e).__name__


async def _run(desk: Desk, world: World, before: Any) -> str:
    async def work(s: Any) -> str:
        s.vars["first"] = await s.call(before, "A-7")
        await s.commit()
        s.vars["lost"] = "unless it is made again"
        return await s.call(world.tools["async"], 5)

    async with perdure.open_async(desk.url, clock=desk.clock, maintain=False) as db, db.session("s") as s:
        return await s.run("job", work)


class Ledger:
    """The books of those outside: what was done there, once for each key that they know."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

        @tool(if_unsure="retry")
        def refund(order: str, ctx: perdure.Context) -> str:
            self.note(ctx.effect_id, order)
            return "refunded"

        self.refund = refund

    def note(self, key: str, what: str) -> None:
        if (key, what) not in self.lines:
            self.lines.append((key, what))

    @property
    def done(self) -> list[str]:
        return sorted(what for _, what in self.lines)


AGAIN = {
    ("retry", "raised"): ("paid", 2, 1),
    ("hasty", "raised"): ("paid", 2, 1),
    ("function", "raised"): ("InDoubt", 1, 1),
    ("ask", "raised"): ("ApprovalNeeded", 1, 1),
    ("report", "raised"): ("EffectRaised", 1, 1),
    **{(how, "failed"): ("paid", 2, 2) for how in ("retry", "function", "ask", "report")},
}
"""What comes of a program that is started again: how often the call was made by then, and under how many ids."""


@pytest.mark.parametrize(("declared", "ended"), AGAIN)
def test_a_run_that_a_call_has_ended_is_tried_again_as_its_tool_declares(desk: Desk, declared: str, ended: str) -> None:
    world = World(KeyError("id") if ended == "raised" else ToolError("not now"), declared=declared)
    ledger = Ledger()
    assert run(desk, world, ledger.refund) == ("EffectRaised" if ended == "raised" else "EffectFailed")
    told, calls, ids = AGAIN[declared, ended]
    for _ in range(2):
        assert run(desk, world, ledger.refund) == told
        assert (len(world.ids), len(set(world.ids))) == (calls, ids)
    assert ledger.done == ["A-7"]
    assert (desk.status == "idle") == (told == "paid")


@pytest.mark.parametrize("finds", [Done("was paid"), NotDone, None])
def test_who_can_be_asked_is_asked_when_the_run_is_tried_again(desk: Desk, finds: Any) -> None:
    world = World(KeyError("id"), declared="function")
    assert run(desk, world, Ledger().refund) == "EffectRaised"
    world.finds = finds if finds is not None else perdure.Unknown()
    told = run(desk, world, Ledger().refund)
    assert told == {Done("was paid"): "was paid", NotDone: "paid", None: "InDoubt"}[finds]
    assert len(world.ids) == (2 if finds is NotDone else 1)


def test_what_certainly_did_not_happen_is_made_again_when_the_run_is(desk: Desk) -> None:
    world = World(KeyError("id"), declared="function", finds=NotDone)
    assert run(desk, world, Ledger().refund) == "EffectFailed"
    assert run(desk, world, Ledger().refund) == "paid"


def test_it_is_tried_again_as_often_as_it_takes(desk: Desk) -> None:
    world = World(KeyError("a"), KeyError("b"), ToolError("c"), KeyError("d"), declared="retry")
    told = [run(desk, world, Ledger().refund) for _ in range(5)]
    assert told[:2] == ["EffectRaised"] * 2
    assert told[4] == "paid"
    assert len(world.ids) == 5


def test_the_key_of_a_call_that_is_valid_no_more_asks_a_person(desk: Desk) -> None:
    world = World(KeyError("id"), declared="retry")
    assert run(desk, world, Ledger().refund) == "EffectRaised"
    desk.clock.advance(25 * 3600 * 1000)
    assert run(desk, world, Ledger().refund) == "ApprovalNeeded"


class Killed(BaseException):
    """The process ends here."""


def test_without_a_word_that_it_ended_the_run_the_record_speaks_once(desk: Desk) -> None:
    world = World(KeyError("id"), declared="retry")

    def die(name: str) -> None:
        if name in ("call.after_outcome", "run.before_left") and len(world.ids) == 1:
            raise Killed

    faults.hook = die
    for _ in range(2):
        with pytest.raises(Killed):
            run(desk, world, Ledger().refund)
    faults.hook = None
    assert run(desk, world, Ledger().refund) == "EffectRaised"
    assert len(world.ids) == 1
    assert run(desk, world, Ledger().refund) == "paid"


@pytest.fixture(autouse=True)
def _no_faults() -> Any:
    yield
    faults.hook = None


class Mailing:
    """A program that is started until it has come to its end: a refund, a mail that cannot be sent, another refund."""

    def __init__(self, declared: str, error: Exception) -> None:
        self.ledger = Ledger()
        self.broken = [error, error]

        def was_it(to: str) -> Any:
            return Done("mailed") if to in self.ledger.done else NotDone

        policy: Any = was_it if declared == "function" else declared

        @tool(if_unsure=policy)
        def mail(to: str, ctx: perdure.Context) -> str:
            if self.broken:
                raise self.broken.pop()
            self.ledger.note(ctx.effect_id, to)
            return "mailed"

        self.mail = mail

    def __call__(self, s: Any) -> str:
        s.vars["first"] = s.call(self.ledger.refund, "A-7")
        s.commit()
        s.messages.append({"role": "user", "content": "x"})
        told = s.call(self.mail, "ana")
        s.messages.append({"role": "user", "content": told})
        s.vars["last"] = s.call(self.ledger.refund, "B-8")
        s.commit()
        return told

    def start(self, db: perdure.Database, dying: Dying) -> bool:
        """Start it; whether it came to its end. Whoever is asked about the mail says what the books say."""
        s: Any = None
        try:
            s = db.session("s")
            return s.run("job", self) == "mailed"
        except perdure.ApprovalNeeded as e:
            dying.left = 10**9
            db.approve("s", e.approval, by="eve")
        except perdure.InDoubt as e:
            dying.left = 10**9
            s.reload()
            found: dict[str, Any] = {"done": "mailed"} if "ana" in self.ledger.done else {"retry": True}
            s.resolve(e.effect, **found)
        except (EffectRaised, EffectFailed, Unavailable, perdure.OutcomeUnknown):
            return False
        finally:
            dying.left = 10**9
            with suppress(perdure.PerdureError, AttributeError):
                s.release()
        return False


@pytest.mark.parametrize("answers", [True, False], ids=["killed", "answer lost"])
@pytest.mark.parametrize("error", [KeyError("no"), ToolError("no")], ids=["raised", "failed"])
@pytest.mark.parametrize("declared", ["retry", "function", "ask"])
def test_killed_at_every_commit_nothing_is_done_twice(declared: str, error: Exception, answers: bool) -> None:
    for kill_after in range(1, 20):
        mailing, clock = Mailing(declared, error), perdure.testing.FakeClock()
        with perdure.open("memory://", clock=clock, maintain=False) as db:
            dying = Dying(db)
            dying.answers = answers
            for attempt in range(40):
                # Dies once more where it went on, and again further on, before it is let through.
                dying.left = (kill_after, 2, 1, 3)[attempt] if attempt < 4 else 10**9
                if mailing.start(db, dying):
                    break
                clock.advance(60_000)
            found = db.read("s")
            assert mailing.ledger.done == ["A-7", "B-8", "ana"], (kill_after, mailing.ledger.lines)
            assert len(found.messages) == 2
            assert found.vars == {"first": "refunded", "last": "refunded"}


# -- what has ended it, and what has not -----------------------------------------------------------------------------


class Bug:
    """A tool that raises until it is mended."""

    def __init__(self, **declared: Any) -> None:
        self.broken = True
        self.made: list[tuple[str, str]] = []

        options: dict[str, Any] = declared or {"if_unsure": "retry"}

        @tool(**options)
        def mail(to: str, ctx: perdure.Context) -> str:
            return self._mail(to, ctx)

        @tool(name="mail", **options)
        async def mail_async(to: str, ctx: perdure.Context) -> str:
            await asyncio.sleep(0.001)
            return self._mail(to, ctx)

        self.mail, self.mail_async = mail, mail_async

    def _mail(self, to: str, ctx: perdure.Context) -> str:
        self.made.append((to, ctx.effect_id))
        if self.broken and to.startswith("bad"):
            raise KeyError(to)
        return to

    def ids(self, to: str) -> list[str]:
        return [id for name, id in self.made if name == to]


def tried(db: perdure.Database, work: Callable[[Any], Any], session: str = "s", **options: Any) -> Any:
    with db.session(session, **options) as s:
        try:
            return s.run("job", work)
        except Exception as e:
            return type(e).__name__


def asked(db: perdure.Database) -> Any:
    with db.session("s") as s:
        (request,) = s.approvals()
    return request


def ended(db: perdure.Database, session: str = "s") -> list[str]:
    return [
        e["args"]["to"] for e in db.read(session).book["effects"].plain().values() if e.get(ENDED_RUN, {}).get("again")
    ]


def _wrapped(s: Any, bug: Bug) -> Any:
    try:
        return s.call(bug.mail, "bad")
    except EffectRaised as e:
        raise ValueError("could not mail") from e


def _while_handled(s: Any, bug: Bug) -> Any:
    try:
        return s.call(bug.mail, "bad")
    except EffectRaised:
        raise ValueError("could not mail") from None


def _in_a_group(s: Any, bug: Bug) -> Any:
    try:
        return _nested(s, bug)
    except EffectRaised as e:
        raise ExceptionGroup("several", [ValueError(), ExceptionGroup("more", [e])]) from None


def _nested(s: Any, bug: Bug) -> Any:
    def inner() -> Any:
        return s.call(bug.mail, "bad")

    try:
        return inner()
    finally:
        s.vars["looked"] = True


@pytest.mark.parametrize("way", [_wrapped, _while_handled, _in_a_group, _nested])
def test_however_it_leaves_the_function_it_has_ended_the_run(
    db: perdure.Database, way: Callable[[Any, Bug], Any]
) -> None:
    bug = Bug()

    def work(s: Any) -> Any:
        s.call(bug.mail, "ok")
        return way(s, bug)

    tried(db, work)
    assert ended(db) == ["bad"]
    bug.broken = False
    assert tried(db, work) == "bad"
    assert len(bug.ids("ok")) == 1
    assert len(bug.ids("bad")) == 2
    assert len(set(bug.ids("bad"))) == 1


def _commits(s: Any, bug: Bug) -> None:
    try:
        s.call(bug.mail, "bad")
    except EffectRaised:
        s.vars["failed"] = True
        s.commit()
        raise


def _calls(s: Any, bug: Bug) -> None:
    try:
        s.call(bug.mail, "bad")
    finally:
        s.call(bug.mail, "cleanup")


def _stores(s: Any, bug: Bug) -> None:
    found: list[Exception] = []
    try:
        s.call(bug.mail, "bad")
    except EffectRaised as e:
        found.append(e)
    s.call(bug.mail, "next")
    raise found[0]


@pytest.mark.parametrize("way", [_commits, _calls, _stores])
def test_a_function_that_went_on_after_it_gets_what_is_recorded(
    db: perdure.Database, way: Callable[[Any, Bug], Any]
) -> None:
    bug = Bug()
    for _ in range(2):
        assert tried(db, lambda s: way(s, bug)) == "EffectRaised"
        assert ended(db) == []
        bug.broken = False
    made = len(bug.made)

    def mended(s: Any) -> str:
        with suppress(EffectRaised):
            way(s, bug)
        return s.call(bug.mail, "bad")

    assert tried(db, mended) == "bad"
    assert len(bug.made) == made + 1
    assert len(set(bug.ids("bad"))) == 1, "under its id, as any repetition"


def test_what_was_caught_and_is_recorded_further_on_is_not_made_again_by_whoever_lets_it_out(
    db: perdure.Database,
) -> None:
    bug = Bug()

    def work(s: Any) -> None:
        with suppress(EffectRaised):
            s.call(bug.mail, "bad")
        s.vars["n"] = 1
        s.commit()
        raise SystemExit

    with db.session("s") as s, pytest.raises(SystemExit):
        s.run("job", work)
    assert tried(db, lambda s: s.call(bug.mail, "bad")) == "EffectRaised"
    assert ended(db) == []
    assert len(bug.made) == 1


def test_another_exception_behind_a_call_that_was_caught_has_nothing_to_do_with_it(db: perdure.Database) -> None:
    bug = Bug(if_unsure="ask")
    fails = [1]

    def work(s: Any) -> str:
        with suppress(EffectRaised):
            s.call(bug.mail, "bad")
        if fails:
            raise ValueError(fails.pop())
        return "went on"

    assert tried(db, work) == "ValueError"
    assert tried(db, work) == "went on"
    assert len(bug.made) == 1


@pytest.mark.parametrize("caught", [True, False])
def test_a_call_with_a_key_of_its_own(db: perdure.Database, caught: bool) -> None:
    bug = Bug()
    fails = [1]

    def work(s: Any) -> str:
        s.call(bug.mail, "ok")
        try:
            return s.call(bug.mail.options(key="k"), "bad")
        except EffectRaised:
            if not caught:
                raise
        s.vars["n"] = 1
        s.commit()
        s.call(bug.mail, "next")
        if fails:
            raise ValueError(fails.pop())
        return "went on"

    assert tried(db, work) == ("ValueError" if caught else "EffectRaised")
    bug.broken = False
    assert tried(db, work) == ("went on" if caught else "bad")
    assert len(bug.made) == 3
    assert len(set(bug.made)) == (3 if caught else 2)


def test_a_call_inside_of_a_call(db: perdure.Database) -> None:
    bug = Bug()

    def work(s: Any) -> str:
        @tool(if_unsure="retry")
        def outer(x: int) -> str:
            s.call(bug.mail, "ok")
            return s.call(bug.mail, "bad")

        return s.call(outer, 1)

    assert tried(db, work) == "EffectRaised"
    bug.broken = False
    assert tried(db, work) == "bad"
    assert len(bug.ids("ok")) == 1
    assert len(set(bug.ids("bad"))) == 1


def test_what_a_person_has_decided_is_not_asked_again(db: perdure.Database) -> None:
    bug = Bug(if_unsure="ask", approve=True)

    def work(s: Any) -> str:
        return s.call(bug.mail, "bad")

    assert tried(db, work) == "ApprovalNeeded"
    db.reject("s", asked(db), by="eve", reason="no")
    for _ in range(3):
        assert tried(db, work) == "EffectFailed"
    assert bug.made == []
    said = why(db, "s")
    assert "Have its function go on after that" in said.next
    assert "not made again" in said.next
    assert tried(db, lambda s: "went on" if tried_call(s, bug) else "") == "went on"


def tried_call(s: Any, bug: Bug) -> bool:
    with pytest.raises(EffectFailed, match="have its function go on"):
        s.call(bug.mail, "bad")
    return True


@pytest.mark.parametrize("declared", ["retry", "report", "ask"])
def test_who_settles_the_call_has_it_settled_for_the_run(db: perdure.Database, declared: Any) -> None:
    for verdict, wanted in (("done", "mailed"), ("retry", "bad"), ("abort", "EffectFailed")):
        bug = Bug(if_unsure=declared)

        def work(s: Any, bug: Bug = bug) -> str:
            return s.call(bug.mail, "bad")

        assert tried(db, work, verdict) == "EffectRaised"
        action = next(a for a in why(db, verdict).actions if a.name == "resolve")
        bug.broken = False
        with db.session(verdict) as s:
            settled: dict[str, Any] = {verdict: "mailed" if verdict == "done" else True}
            s.resolve(action.argument, **settled)
        for _ in range(2):
            assert tried(db, work, verdict) == wanted
        assert len(bug.made) == (2 if verdict == "retry" else 1)


def test_who_agrees_has_the_call_made_once(db: perdure.Database) -> None:
    bug = Bug(if_unsure="ask")

    def work(s: Any) -> str:
        return s.call(bug.mail, "bad")

    assert tried(db, work) == "EffectRaised"
    bug.broken = False
    for _ in range(2):
        assert tried(db, work) == "ApprovalNeeded"
    request = asked(db)
    assert "the same call ended with KeyError" in request.because
    db.approve("s", request, by="eve")
    assert tried(db, work) == "bad"
    assert len(bug.made) == 2


@pytest.mark.parametrize("effects", ["reuse", "dry"])
def test_a_branch_of_a_run_that_was_ended(db: perdure.Database, effects: Any) -> None:
    bug = Bug()

    def work(s: Any) -> str:
        s.call(bug.mail, "ok")
        return s.call(bug.mail, "bad")

    assert tried(db, work) == "EffectRaised"
    with db.session("s") as s:
        s.fork("b")
    bug.broken = False
    assert tried(db, work) == "bad"
    assert tried(db, work, branch="b", effects=effects) == "bad", "has the outcome of the other line"
    assert len(bug.made) == 3
    assert len(set(bug.ids("bad"))) == 1


def test_what_is_given_up_on_another_branch_is_given_up(db: perdure.Database) -> None:
    bug = Bug()

    def work(s: Any) -> str:
        return s.call(bug.mail, "bad")

    assert tried(db, work) == "EffectRaised"
    with db.session("s") as s:
        s.fork("b")
        s.resolve(s.effects()[0]["id"], abort=True, by="eve")
    for _ in range(2):
        assert tried(db, work, branch="b") == "EffectFailed"
        assert tried(db, work) == "EffectFailed"
    assert len(bug.made) == 1


# -- side by side ----------------------------------------------------------------------------------------------------


async def _gather(s: Any, bug: Bug, names: list[list[str]]) -> list[Any]:
    return await asyncio.gather(*(_chain(s, bug, chain) for chain in names))


async def _group(s: Any, bug: Bug, names: list[list[str]]) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_chain(s, bug, chain)) for chain in names]
    return [task.result() for task in tasks]


async def _all(s: Any, bug: Bug, names: list[list[str]]) -> list[Any]:
    """All of them come to their end, and what they raised is raised together."""
    found = await asyncio.gather(*(_chain(s, bug, chain) for chain in names), return_exceptions=True)
    if errors := [e for e in found if isinstance(e, Exception)]:
        raise ExceptionGroup("several", errors)
    return list(found)


async def _chain(s: Any, bug: Bug, chain: list[str]) -> list[str]:
    return [await s.call(bug.mail_async, name) for name in chain]


@pytest.mark.parametrize("way", [_gather, _group, _all])
@pytest.mark.parametrize(
    "names",
    [
        [["bad"], ["ok"]],
        [["bad 1"], ["bad 2"]],
        [["bad"], ["a", "b", "c", "d"]],
        [["bad"], ["bad"]],
        [["a", "bad 1"], ["b", "c", "bad 2"], ["d", "e", "f", "g"]],
    ],
    ids=["one", "both", "others go on", "equal ones", "chains"],
)
def test_calls_side_by_side_of_which_some_have_ended_the_run(way: Any, names: list[list[str]]) -> None:
    async def main() -> None:
        bug = Bug()

        async def work(s: Any) -> Any:
            s.vars["n"] = 1
            await s.commit()
            found = await way(s, bug, names)
            await s.commit()
            return found

        async with perdure.open_async("memory://") as db:
            found: Any = None
            last: Exception = AssertionError()
            for attempt in range(4):
                s = await db.session("s")
                try:
                    found = await s.run("job", work)
                    break
                except (EffectRaised, ExceptionGroup) as e:
                    last = e
                finally:
                    others = asyncio.all_tasks() - {asyncio.current_task()}
                    for task in others:
                        task.cancel()
                    await asyncio.gather(*others, return_exceptions=True)
                    await s.release()
                bug.broken = attempt < 1
            else:
                raise last
            assert found == names
            for name in {name for chain in names for name in chain}:
                times = sum(chain.count(name) for chain in names)
                assert len(set(bug.ids(name))) == times, "each under one id"
                if not name.startswith("bad") and way is _all:
                    assert len(bug.ids(name)) == times

    asyncio.run(main())


def test_a_call_ends_the_run_again_before_those_beside_it_have_caught_up() -> None:
    async def main() -> list[str]:
        bug, attempt = Bug(), 0

        async def work(s: Any) -> list[str]:
            begin = asyncio.Event()

            async def other() -> str:
                await begin.wait()
                return await s.call(bug.mail_async, "ok")

            tasks = [asyncio.create_task(s.call(bug.mail_async, "bad")), asyncio.create_task(other())]
            if attempt == 0:
                await asyncio.wait(tasks[:1])
                begin.set()
                await asyncio.wait(tasks)
                raise ValueError("before it has looked at either")
            if attempt == 2:
                begin.set()
            return await asyncio.gather(*tasks)

        async with perdure.open_async("memory://") as db:
            for wanted in (ValueError, EffectRaised):
                s = await db.session("s")
                with pytest.raises(wanted):
                    await s.run("job", work)
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                await s.release()
                attempt += 1
                bug.broken = False
            async with db.session("s") as s:
                found = await s.run("job", work)
            assert [len(bug.ids(name)) for name in ("bad", "ok")] == [2, 1]
            return found

    assert asyncio.run(main()) == ["bad", "ok"]


def test_threads_of_which_one_has_ended_the_run(db: perdure.Database) -> None:
    bug = Bug()
    names = ["a", "bad", "b", "c"]

    def work(s: Any) -> list[Any]:
        pools = [ThreadPoolExecutor(1) for _ in names]
        futures = [pool.submit(s.call, bug.mail, name) for pool, name in zip(pools, names, strict=True)]
        for pool in pools:
            pool.shutdown()
        return [future.result() for future in futures]

    assert tried(db, work) == "EffectRaised"
    assert ended(db) == ["bad"]
    bug.broken = False
    assert tried(db, work) == names
    assert len(bug.made) == 5
    assert len({id for _, id in bug.made}) == 4


def test_a_thread_that_has_taken_up_something_else_is_told_to_have_gone_on(db: perdure.Database) -> None:
    bug = Bug()

    def work(s: Any) -> list[Any]:
        with ThreadPoolExecutor(1) as pool:
            futures = [pool.submit(s.call, bug.mail, name) for name in ("bad", "a")]
        return [future.result() for future in futures]

    for _ in range(2):
        assert tried(db, work) == "EffectRaised"
        assert ended(db) == []
        assert "Have its function go on after that" in why(db, "s").next
        bug.broken = False
    assert len(bug.made) == 2


def test_a_thread_that_goes_on_after_it_has_not_ended_the_run_with_it(db: perdure.Database) -> None:
    bug = Bug()
    failed: list[BaseException] = []

    def work(s: Any) -> None:
        def beside() -> None:
            try:
                s.call(bug.mail, "bad")
            except EffectRaised as e:
                s.call(bug.mail, "cleanup")
                failed.append(e)

        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
        raise failed.pop()

    for _ in range(2):
        assert tried(db, work) == "EffectRaised"
        assert ended(db) == []
    assert len(bug.made) == 2
