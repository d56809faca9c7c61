"""What a call writes into ``ctx.state`` lands with its outcome, once, or not at all; and what ``ctx`` tells of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import perdure
from perdure import Context, Done, EffectRaised, Later, NotDone, StateNotKept, Unknown, tool
from perdure.session.tools import call_state
from tests.session.test_calls import Killed

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.testing.clock import FakeClock


@tool(if_unsure="report")
def put(name: str, value: Any, ctx: Context) -> str:
    """Write one variable, look at it, and append to a list."""
    ctx.state["vars"][name] = value
    ctx.state["todos"].append({"put": name})
    return f"{name} is {ctx.state['vars'][name]}"


def test_what_a_call_writes_is_in_the_checkpoint_of_its_outcome(db: perdure.Database) -> None:
    with db.session("s") as s:
        s.vars["old"] = {"deep": [1]}
        s.commit()

        @tool(if_unsure="report")
        def change(ctx: Context) -> list[int]:
            ctx.state["vars"]["old"]["deep"].append(2)
            assert s.vars["old"] == {"deep": [1]}, "nobody else sees it before the call has its outcome"
            return ctx.state["vars"]["old"]["deep"].plain()

        assert s.call(change) == [1, 2]
        assert s.vars["old"] == {"deep": [1, 2]}
        s.call(put, "a", 1)
        past = [c for c in db.history("s") if c.step > 1][::-1]
        steps = [(c.kind, [str(d) for d in db.diff("s", c.step - 1, c.step)]) for c in past]
    assert [found for kind, found in steps if kind == "started"] == [[], []]
    assert [found for kind, found in steps if kind == "done"] == [
        ["+ state.vars.old.deep[1]"],
        ["+ state.vars.a", "+ state.todos[0]"],
    ]


@pytest.mark.parametrize("error", [NotDone("no"), KeyError("x"), TimeoutError(), Killed()], ids=repr)
def test_a_call_that_raises_has_written_nothing(db: perdure.Database, error: BaseException) -> None:
    @tool
    def fails(ctx: Context) -> None:
        ctx.state["vars"]["half"] = True
        raise error

    with db.session("s") as s:
        with pytest.raises((perdure.CallError, Killed)):
            s.call(fails)
        s.vars["mine"] = 1
        s.commit()
    assert db.read("s").vars == {"mine": 1}


async def _both(url: str, writes: list[tuple[str, str]]) -> tuple[list[Any], dict[str, Any], list[str]]:
    """Two calls at once that write what is said; what came of each, the variables, and how the effects stand."""
    begun = asyncio.Barrier(2)

    @tool(if_unsure="report")
    async def write(path: str, value: str, ctx: Context) -> str:
        *above, last = path.split(".")
        at = ctx.state["vars"]
        for part in above:
            at = at.setdefault(part, {})
        at[last] = value
        await begun.wait()
        return value

    async with perdure.open_async(url) as db, db.session("s") as s:
        found = await asyncio.gather(*(s.call(write, *one) for one in writes), return_exceptions=True)
        again = await asyncio.gather(*(s.call(write, *one) for one in writes), return_exceptions=True)
        assert list(map(repr, found)) == list(map(repr, again)), "what is recorded is told again"
        return found, s.vars.plain(), [e["status"] for e in s.effects()]


def test_siblings_that_write_one_path_are_told_and_both_were_done(url: str) -> None:
    for writes in ([("cart", "x"), ("cart", "y")], [("cart", "x"), ("cart.a", "y")], [("b.c", "x"), ("b.d", "y")]):
        found, held, stand = asyncio.run(_both(f"{url}{'-' if 'memory' in url else ''}{writes[1][0]}", writes))
        assert stand == ["done", "done"]
        (refused,) = [one for one in found if isinstance(one, StateNotKept)]
        assert "state.vars." in str(refused)
        assert "was written meanwhile by write" in str(refused)
        kept = next(one for one in found if isinstance(one, str))
        assert {kept, refused.result} == {"x", "y"}
        assert str(held).count(kept) == 1
        assert refused.result not in str(held)


def test_siblings_that_write_different_paths_both_land(url: str) -> None:
    found, held, _ = asyncio.run(_both(url, [("a", "x"), ("b", "y")]))
    assert (found, held) == (["x", "y"], {"a": "x", "b": "y"})


def test_what_the_program_writes_meanwhile_is_not_overwritten(db: perdure.Database) -> None:
    with db.session("s") as s:

        @tool(if_unsure="report")
        def slow(ctx: Context) -> str:
            ctx.state["vars"]["n"] = "call"
            s.vars["n"] = "program"
            return "done it"

        with pytest.raises(StateNotKept, match=r"state\.vars\.n was written meanwhile") as refused:
            s.call(slow)
        assert refused.value.result == "done it"
        assert s.vars["n"] == "program"


class Typed(msgspec.Struct):
    """A declared state."""

    limit: int = 0


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda state: state.update(when={1, 2}), "state.when is a set"),
        (lambda state: state.update(limit="many"), "limit does not fit Typed"),
        (lambda state: state.update({f"k{i}": "x" * 5_000 for i in range(300)}), "over the limit of"),
    ],
    ids=["no JSON", "declared type", "too large"],
)
def test_what_can_never_be_kept_is_refused_and_the_outcome_stands(
    open_db: Callable[..., perdure.Database],
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Any], None],
    said: str,
) -> None:
    monkeypatch.setattr(call_state, "MAX_WRITES", 1_000_000)
    db = open_db(state=Typed)

    @tool(if_unsure="report")
    def bad(ctx: Context) -> str:
        ctx.state["vars"]["fine"] = 1
        write(ctx.state)
        return "was done"

    with db.session("s") as s:
        with pytest.raises(StateNotKept, match=said):
            s.call(bad)
        assert [e["status"] for e in s.effects()] == ["done"]
        s.commit()
    assert db.read("s").vars == {}, "all of it or nothing"


def test_reads_and_the_functions_of_a_rule_only_look(db: perdure.Database) -> None:
    seen: list[Any] = []

    def look(ctx: Context[list[str]]) -> None:
        seen.append((ctx.deps, ctx.owner, ctx.session, ctx.state["vars"]["n"]))
        with pytest.raises(perdure.ReadOnly, match="changes nothing"):
            ctx.state["vars"]["n"] = 2

    @tool(read=True)
    def read(ctx: Context[list[str]]) -> str:
        look(ctx)
        return "read"

    def asks(a: dict[str, Any], ctx: Context[list[str]]) -> bool:
        look(ctx)
        return True

    def facts(ctx: Context[list[str]]) -> int:
        look(ctx)
        return 1

    def recheck(then: int, now: int, ctx: Context[list[str]]) -> bool:
        look(ctx)
        return then == now

    @tool(if_unsure="retry", approve=asks, facts=facts, recheck=recheck)
    def act() -> str:
        return "acted"

    with db.session("s", owner="ana") as s:
        s.vars["n"] = 1
        with pytest.raises(perdure.Misuse, match=r"act was not called: it needs what its ctx: Context\[...\] declares"):
            s.call(act)
        assert s.step == 0, "nothing was written"
        s.deps = ["shop"]
        assert s.call(read) == "read"
        with pytest.raises(perdure.ApprovalNeeded):
            s.call(act)
        db.approve("s", s.approvals()[0].id, by="boss")
        assert s.call(act) == "acted"
    assert seen == [(["shop"], "ana", "s", 1)] * len(seen)
    assert len(seen) == 5, "read, approve, facts, facts again and recheck"
    assert "shop" not in repr(db.read("s").book.plain())


def test_who_finds_an_outcome_writes_what_the_call_could_not(db: perdure.Database, clock: FakeClock) -> None:
    def find(ctx: Context) -> Any:
        ctx.state["vars"]["found"] = ctx.state["vars"].get("found", 0) + 1
        return Done("it was sent") if ctx.state["vars"].get("ready") else Unknown()

    @tool(if_unsure=find)
    def send(ctx: Context) -> str:
        ctx.state["vars"]["lost"] = True
        raise TimeoutError

    def poll(handle: str, ctx: Context) -> Any:
        ctx.state["vars"]["polled"] = [*ctx.state["vars"].get("polled", []), handle]
        return Done("arrived") if ctx.state["vars"].get("ready") else None

    @tool(if_unsure="report", poll=poll)
    def order(ctx: Context) -> Any:
        ctx.state["vars"]["ordered"] = True
        return Later("job-1")

    with db.session("s") as s:
        for fn in (send, order):
            with pytest.raises((perdure.InDoubt, perdure.ResultPending)):
                s.call(fn)
        assert s.vars == {"ordered": True}, "what is not known yet has written nothing"
        s.vars["ready"] = True
        s.commit()
        assert [s.call(send), s.call(order)] == ["it was sent", "arrived"]
    assert db.read("s").vars == {"ordered": True, "ready": True, "found": 1, "polled": ["job-1"]}


def test_a_run_that_dies_at_any_event_ends_with_every_write_once(db: perdure.Database, clock: FakeClock) -> None:
    """The function sees each write right after its call, also while it catches up."""
    left, attempts = 10**9, Counter[str]()

    def event() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    @tool(if_unsure="retry")
    def count(n: int, ctx: Context) -> int:
        event()
        attempts[ctx.effect_id] += 1
        ctx.state["vars"]["sum"] = ctx.state["vars"].get("sum", 0) + n
        ctx.state["todos"].append(n)
        event()
        return n

    def work(s: perdure.Session) -> list[Any]:
        seen: list[Any] = []
        for n in (1, 2, 4):
            s.messages.append({"before": n})
            event()
            s.call(count, n)
            event()
            seen.append(s.vars["sum"])
            s.todos.append({"seen": s.vars["sum"]})
            if n != 2:
                s.commit()
            event()
        return seen

    for kill_after in range(17):
        left, name = kill_after, f"s{kill_after}"
        for _ in range(2):
            s = db.session(name)
            try:
                assert s.run("r", work) == [1, 3, 7], kill_after
            except Killed:
                left = 10**9
                clock.advance(60_000)
                continue
            s.release()
            break
        found = db.read(name)
        assert found.vars == {"sum": 7}, kill_after
        assert found.todos == [1, {"seen": 1}, 2, {"seen": 3}, 4, {"seen": 7}], kill_after
        db.verify(name)


@pytest.mark.parametrize("order", ["quick first", "slow first"])
def test_calls_side_by_side_in_a_resumed_run_have_written_once(url: str, order: str) -> None:
    """The slow one of two calls dies when the quick one has its outcome: what that has written is there for both."""

    async def lives(*, killed: bool) -> dict[str, Any]:
        first_is_done = asyncio.Event()

        @tool(if_unsure="retry")
        async def first(ctx: Context) -> str:
            ctx.state["todos"].append("first")
            return "1"

        @tool(if_unsure="retry")
        async def second(ctx: Context) -> str:
            ctx.state["vars"]["second"] = ctx.attempt
            await first_is_done.wait()
            if killed:
                raise Killed
            return "2"

        async def work(s: perdure.AsyncSession) -> list[Any]:
            async def one() -> Any:
                found = await s.call(first)
                first_is_done.set()
                return found

            both = [one(), s.call(second)] if order == "quick first" else [s.call(second), one()]
            found = await asyncio.gather(*both, return_exceptions=True)
            if killed:
                raise Killed
            return [*sorted(found), s.todos.plain(), s.vars.plain()]

        async with perdure.open_async(url, lease_ttl=0.2) as db, db.session("s") as s:
            assert await s.run("r", work) == ["1", "2", ["first"], {"second": 2}]
            s.todos.append("after")
            await s.commit()
            return (await db.read("s")).state.plain()

    with pytest.raises(Killed):
        asyncio.run(lives(killed=True))
    found = asyncio.run(lives(killed=False))
    assert (found["todos"], found["vars"]) == (["first", "after"], {"second": 2})


def test_a_branch_gets_what_a_call_wrote_with_its_outcome(db: perdure.Database) -> None:
    @tool(if_unsure="report")
    def clear(ctx: Context) -> str:
        ctx.state["todos"][0] = "cleared"
        return "cleared it"

    with db.session("s") as s:
        s.todos.append("old")
        s.commit()
        s.call(put, "a", 1)
        s.call(clear)
        assert s.todos == ["cleared", {"put": "a"}]
        s.rewind(1)
        s.vars["mine"] = True
        assert s.call(put, "a", 1) == "a is 1"
        assert (s.vars, s.todos) == ({"mine": True, "a": 1}, ["old", {"put": "a"}])
        with pytest.raises(StateNotKept, match=r"state\.todos is not here what it was"):
            s.call(clear)
        s.commit()
    assert db.read("s").todos == ["old", {"put": "a"}]


def test_an_interrupt_while_an_outcome_is_put_down_leaves_nothing_half(
    db: perdure.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with db.session("s") as s:
        with monkeypatch.context() as patched:
            patched.setattr(s.read_cache, "keep_outcome", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                s.call(put, "a", 1)
        with pytest.raises(perdure.Misuse, match="was interrupted while what a call wrote"):
            s.commit()
        s.reload()
        assert s.vars == {}
        assert isinstance(s.call(put, "a", 1), Unknown), "its outcome is lost, as after a kill"


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_bug_shows_what_it_is_and_not_what_it_wrote(db: perdure.Database) -> None:
    @tool(if_unsure="report")
    def leaves(ctx: Context) -> None:
        del ctx.state["summary"]["nothing"]

    with db.session("s") as s, pytest.raises(EffectRaised, match="TypeError"):
        s.call(leaves)


@pytest.mark.parametrize("way", ["resolve", "report"])
def test_a_result_that_a_person_says_fits_what_the_tool_returns(db: perdure.Database, way: str) -> None:
    class Receipt(msgspec.Struct):
        number: str
        cents: int

    @tool
    def pay() -> Receipt:
        raise TimeoutError

    with db.session("s") as s:
        with pytest.raises(perdure.InDoubt) as doubt:
            s.call(pay)
        effect = doubt.value.effect

    def say(result: Any) -> None:
        if way == "report":
            db.post_outcome("s", effect, result)
            return
        with db.session("s") as s:
            s.resolve(effect, done=result, by="ana")

    for wrong, said in (
        (7, "must be object, not 7"),
        ({"number": "R-1"}, "has no cents"),
        ({"number": 1, "cents": 2}, ""),
    ):
        with pytest.raises(perdure.InvalidInput, match=f"result of pay.*{said}.*effect {effect} stands as before"):
            say(wrong)
    say({"number": "R-1", "cents": 500})
    with db.session("s") as s:
        assert s.call(pay) == Receipt("R-1", 500)


def _until_posted(db: Any) -> None:
    while not db.kernel.store.inbox("s"):
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("between", "kept", "problem"),
    [
        (None, True, ""),
        ("elsewhere", True, ""),
        ("there", False, "vars.paid was written meanwhile"),
        ("list", False, "todos was written meanwhile"),
        ("much", False, "no more than 1048576 are kept"),
        ("bytes", False, "no bytes"),
    ],
)
def test_a_call_that_returns_when_nobody_waits_any_more_has_written_all_the_same(
    url: str, between: str | None, kept: bool, problem: str
) -> None:
    """The task is cancelled, as Ctrl-C does; a thread cannot be. What it could not keep is told like a conflict."""
    entered, leave = threading.Event(), threading.Event()
    made: list[str] = []

    @tool(if_unsure="retry")
    def pay(ctx: Context) -> str:
        made.append(ctx.effect_id)
        ctx.state["vars"]["paid"] = {"much": "x" * 3_000_000, "bytes": b"\xff"}.get(between or "", 5)
        ctx.state["todos"].append("thank them")
        entered.set()
        leave.wait(20)
        return "paid"

    async def main() -> None:
        async with perdure.open_async(url) as db:

            async def once() -> Any:
                async with db.session("s") as s:
                    s.vars["other"] = 1
                    return await s.call(pay)

            task = asyncio.create_task(once())
            await asyncio.to_thread(entered.wait, 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            if between in ("elsewhere", "there", "list"):
                async with db.session("s") as s:
                    if between == "list":
                        s.todos.append("mine")
                    else:
                        s.vars["paid" if between == "there" else "more"] = 7
                    await s.commit()
            leave.set()
            await asyncio.to_thread(_until_posted, db)
            with pytest.raises(StateNotKept, match=problem) if problem else nullcontext():
                assert await once() == "paid"
            found = await db.read("s")
            assert len(made) == 1
            assert (found.vars.get("paid") == 5, list(found.todos)) == (
                (True, ["thank them"]) if kept else (False, ["mine"] if between == "list" else [])
            )

    asyncio.run(main())
