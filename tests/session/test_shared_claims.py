"""Sessions of one owner that ask for the same shared call at the same time: one makes it, the others are told."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, NotDone, ScriptedModel, tool
from perdure.agent.models.scripted import calls
from perdure.errors import InDoubt, ResultPending
from perdure.fleet.why.answer import Why
from perdure.fleet.why.reading import why
from perdure.testing.clock import FakeClock
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400_000
KINDS = ["memory", "file", "sqlite", "postgres", "redis"]


class Shop:
    """A tool that costs money, what was paid for it, and what happens while somebody pays."""

    def __init__(self, **declared: Any) -> None:
        self.paid: list[str] = []
        self.meanwhile: Any = lambda: None

        def buy(city: str) -> str:
            """Buy a ticket."""
            self.paid.append(city)
            self.meanwhile()
            return f"ticket {len(self.paid)}"

        options: dict[str, Any] = {"cache": "7d", "cache_scope": "shared", **declared}
        self.buy = tool(**options)(buy)


@pytest.fixture(params=["memory", "sqlite"])
def db(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Any:
    with perdure.open(url_of(request.param, tmp_path), clock=clock) as db:
        yield db


def call(db: perdure.Database, session: str, shop: Shop, owner: str = "ana") -> str:
    with db.session(session, owner=owner, ttl=None) as s:
        return s.call(shop.buy, "Rome")


@pytest.mark.parametrize("policy", ["ask", "retry", "report"])
def test_who_asks_while_another_session_pays_is_told_and_gets_the_same_result(db: perdure.Database, policy: str):
    shop, told = Shop(if_unsure=policy), list[ResultPending]()

    def meanwhile() -> None:
        with pytest.raises(ResultPending, match="session 'a' was first with the same call") as pending:
            call(db, "b", shop)
        told.append(pending.value)
        shop.meanwhile = lambda: None
        assert call(db, "c", shop, owner="bob") == "ticket 2"

    shop.meanwhile = meanwhile
    assert call(db, "a", shop) == "ticket 2"
    assert told[0].effect == db.session("a").effects()[0]["id"]
    assert [call(db, "b", shop), call(db, "d", shop)] == ["ticket 2"] * 2
    assert len(shop.paid) == 2


def test_why_says_of_a_program_that_it_waits_for_the_call_of_another_session(db: perdure.Database, clock: FakeClock):
    shop, said = Shop(if_unsure="ask"), list[Why]()

    def meanwhile() -> None:
        with pytest.raises(ResultPending):
            call(db, "b", shop)
        said.append(why(db, "b"))
        raise ConnectionError("the line is dead")

    shop.meanwhile = meanwhile
    with pytest.raises(InDoubt):
        call(db, "a", shop)
    waits = 'buy(city="Rome") waits for session a, which has begun the same call: its result is shared.'
    (before,) = said
    assert before.line.startswith(waits)
    assert before.severity == "wait"
    # That one is in doubt: whoever asks why this one stands still is told what to do there.
    told = why(db, "b")
    assert told.line.startswith(f'{waits} buy(city="Rome") was started and nobody knows whether it happened.')
    (action,) = told.actions
    assert (told.severity, action.name, action.session) == ("act", "resolve", "a")
    with db.session("a") as s:
        s.resolve(action.argument, done="ticket 1", by="eve")
    told = why(db, "b")
    assert (
        told.line == 'buy(city="Rome") waited for the same call of session a, which has ended, and nobody works on it.'
    )
    assert (told.next, told.do) == ("Its program takes it up when it calls again.", "program")
    assert call(db, "b", shop) == "ticket 1"
    assert why(db, "b").line == "Nothing in it is open."


def test_why_says_when_the_claim_of_a_session_that_is_gone_ends(db: perdure.Database, clock: FakeClock):
    shop = Shop(if_unsure="ask")

    def meanwhile() -> None:
        raise ConnectionError("the line is dead")

    shop.meanwhile = meanwhile
    with pytest.raises(InDoubt):
        call(db, "a", shop)
    with pytest.raises(ResultPending):
        call(db, "b", shop)
    db.kernel.store.drop("a", None, "deleted")
    clock.advance(DAY)
    assert "Its claim ends in 6 d" in str(why(db, "b"))
    clock.advance(6 * DAY)
    assert why(db, "b").do == "program"
    shop.meanwhile = lambda: None
    assert call(db, "b", shop) == "ticket 2"


@pytest.mark.parametrize("kind", KINDS)
def test_of_many_that_ask_at_once_one_pays(kind: str, tmp_path: Path):
    shop, begin = Shop(), threading.Barrier(6)
    told: list[Any] = []
    with perdure.open(url_of(kind, tmp_path)) as db:

        def ask(number: int) -> None:
            begin.wait()
            try:
                told.append(call(db, f"s{number}", shop))
            except ResultPending as e:
                told.append(e)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(told) == 6
        assert len(shop.paid) == 1
        assert {call(db, f"s{n}", shop) for n in range(6)} == {"ticket 1"}


def test_a_call_that_certainly_did_not_happen_may_be_made_by_another_session(db: perdure.Database):
    shop = Shop()

    def refuse() -> None:
        raise NotDone("sold out")

    shop.meanwhile = refuse
    with pytest.raises(perdure.EffectFailed):
        call(db, "a", shop)
    shop.meanwhile = lambda: None
    assert call(db, "b", shop) == "ticket 2"


@pytest.mark.parametrize("verdict", [{"done": "ticket 1"}, {"abort": True}, {"retry": True}], ids=str)
def test_while_it_is_in_doubt_no_other_session_pays(db: perdure.Database, verdict: dict[str, Any]):
    shop = Shop()

    def lose() -> None:
        raise TimeoutError

    shop.meanwhile = lose
    with db.session("a", owner="ana", ttl=None) as s:
        with pytest.raises(InDoubt) as doubt:
            s.call(shop.buy, "Rome")
        with pytest.raises(ResultPending, match=doubt.value.effect):
            call(db, "b", shop)
        paid, shop.meanwhile = len(shop.paid), lambda: None
        s.resolve(doubt.value.effect, **verdict)
        if "retry" in verdict:
            with pytest.raises(ResultPending):
                call(db, "b", shop)
            s.call(shop.buy, "Rome")
    expected = "ticket 1" if "done" in verdict else f"ticket {paid + 1}"
    assert call(db, "b", shop) == expected
    assert len(shop.paid) == paid + (0 if "done" in verdict else 1)


def test_a_claim_lasts_no_longer_than_a_result_would(db: perdure.Database, clock: FakeClock):
    shop = Shop(if_unsure="report")

    def lose() -> None:
        raise TimeoutError

    shop.meanwhile = lose
    call(db, "a", shop)
    with pytest.raises(ResultPending):
        call(db, "b", shop)
    shop.meanwhile = lambda: None
    paid = len(shop.paid)
    clock.advance(8 * DAY)
    assert call(db, "b", shop) == f"ticket {paid + 1}"


def test_a_result_that_is_taken_from_another_session_grows_old_all_the_same(db: perdure.Database, clock: FakeClock):
    shop = Shop()
    assert call(db, "a", shop) == "ticket 1"
    clock.advance(6 * DAY)
    assert call(db, "b", shop) == "ticket 1"
    clock.advance(2 * DAY)
    assert call(db, "c", shop) == "ticket 2"


def test_what_is_not_shared_claims_nothing(db: perdure.Database):
    shop = Shop(cache_scope="session")
    shop.meanwhile = lambda: shop.paid[1:] or call(db, "b", shop)
    assert call(db, "a", shop) == "ticket 2"
    assert db.look("a").heads[0].step == 2, "started, done: no write more than without a cache"


def test_an_agent_waits_for_the_session_that_pays_and_goes_on_with_its_result(tmp_path: Path):
    url, shop = url_of("sqlite", tmp_path), Shop()

    def script(request: Any) -> Any:
        last = request.messages[-1]
        return f"got {last['content']}" if last["role"] == "tool" else calls(("buy", {"city": "Rome"}))

    agent = Agent("desk", model=ScriptedModel(script), tools=[shop.buy])
    seen: list[Any] = []

    async def main() -> None:
        async with perdure.open_async(url) as db:

            def meanwhile() -> None:
                waits = asyncio.run(agent.run(url, session="b", owner="ana", message="go"))
                with perdure.open(url) as other:
                    seen.append((waits.status, why(other, "b").line))

            shop.meanwhile = meanwhile
            assert (await agent.run(db, session="a", owner="ana", message="go")).text == "got ticket 1"
            assert seen[0][0] == "waiting_result"
            assert "waits for session a" in seen[0][1]
            assert (await agent.run(db, session="b", owner="ana")).text == "got ticket 1"

    asyncio.run(main())
    assert len(shop.paid) == 1


def test_a_call_that_is_given_up_because_its_agent_was_cancelled_may_be_made_by_another_session(tmp_path: Path):
    url, asks = url_of("sqlite", tmp_path), [True]

    @tool(cache="7d", cache_scope="shared")
    def buy(city: str, ctx: perdure.Context) -> str:
        """Buy a ticket."""
        return f"{ctx.ask('Which class?')} to {city}" if asks.pop() else f"ticket to {city}"

    agent = Agent("desk", model=ScriptedModel(lambda _: calls(("buy", {"city": "Rome"}))), tools=[buy])

    async def main() -> None:
        async with perdure.open_async(url) as db:
            await agent.run(db, session="a", owner="ana", message="go")
            async with db.session("b", owner="ana") as s:
                with pytest.raises(ResultPending):
                    await s.call(buy, "Rome")
                await db.cancel("a", by="eve")
                assert (await agent.run(db, session="a", owner="ana")).status == "cancelled"
                asks.append(False)
                assert await s.call(buy, "Rome") == "ticket to Rome"

    asyncio.run(main())


PROGRAM = """
import os, signal, sys
import perdure
from perdure.system import faults

url, ledger, session, when = sys.argv[1:5]

def die(name):
    if name == when:
        os.kill(os.getpid(), signal.SIGKILL)
faults.hook = die

@perdure.tool(cache="7d", cache_scope="shared")
def buy(city: str) -> str:
    with open(ledger, "a") as book:
        print(city, file=book, flush=True)
    die("inside")
    return f"ticket to {city}"

with perdure.open(url) as db, db.session(session, owner="ana") as s:
    try:
        print(s.call(buy, "Rome"))
    except perdure.InDoubt:
        print("in doubt")
    except perdure.CallError as e:
        print(type(e).__name__)
"""


@pytest.mark.parametrize("kind", ["file", "sqlite", "postgres", "redis"])
@pytest.mark.parametrize(
    ("when", "other", "own"),
    [
        ("call.after_claimed", "ResultPending", "ticket to Rome"),
        ("call.after_started", "ResultPending", "in doubt"),
        ("inside", "ResultPending", "in doubt"),
        ("call.before_outcome", "ticket to Rome", "ticket to Rome"),
    ],
)
def test_killed_at_any_moment_the_call_is_never_paid_for_by_another_session_silently(
    kind: str, when: str, other: str, own: str, tmp_path: Path
):
    url, ledger = url_of(kind, tmp_path), tmp_path / "ledger"

    def run(session: str, when: str = "") -> str:
        command = [sys.executable, "-c", PROGRAM, url, str(ledger), session, when]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == (-signal.SIGKILL if when else 0), done.stderr
        return done.stdout.strip()

    run("a", when)
    assert run("b") == other
    assert run("a") == own
    assert len(ledger.read_text().splitlines() if ledger.exists() else []) <= 1


def test_what_a_killed_session_claimed_and_did_not_make_is_given_up_as_suggested(tmp_path: Path):
    url, ledger = url_of("sqlite", tmp_path), tmp_path / "ledger"

    def run(session: str, when: str = "") -> str:
        command = [sys.executable, "-c", PROGRAM, url, str(ledger), session, when]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    run("a", "call.after_claimed")
    assert run("b") == "ResultPending"
    with perdure.open(url, lease_ttl=1) as db:
        (waiting,) = db.read("b").book["effects"].plain().values()
        assert waiting["behind"]["session"] == "a"
        with db.session("a") as a:
            with pytest.raises(perdure.CallError, match="was planned and not made"):
                a.resolve(waiting["behind"]["effect"], retry=True)
            a.resolve(waiting["behind"]["effect"], abort=True)
    assert run("b") == "ticket to Rome"
    assert len(ledger.read_text().splitlines()) == 1


def test_who_waits_is_told_a_command_that_can_be_typed(db: perdure.Database):
    shop, told = Shop(), list[ResultPending]()

    def ask() -> None:
        with pytest.raises(ResultPending) as pending:
            call(db, "other", shop)
        told.append(pending.value)

    shop.meanwhile = ask
    call(db, "my trip", shop)
    assert "perdure resolve 'my trip' ef_" in str(told[0])


def raises() -> None:
    raise KeyError("after the charge")


def test_a_call_that_raised_and_is_agreed_to_takes_its_claim_over(db: perdure.Database):
    shop = Shop()
    shop.meanwhile = raises
    with db.session("a", owner="ana", ttl=None) as s:
        with pytest.raises(perdure.EffectRaised) as first:
            s.call(shop.buy, "Rome")
        with pytest.raises(ResultPending):
            call(db, "b", shop)
        # It raises once more: whoever waits is told of the call as it stands now.
        for paid in (2, 3):
            with pytest.raises(perdure.ApprovalNeeded) as asked:
                s.call(shop.buy, "Rome")
            assert (why(db, "b").severity, why(db, "b").do) == ("act", "approve")
            db.approve("a", asked.value.approval.id, by="eve", wake=False)
            shop.meanwhile = raises if paid == 2 else lambda: None
            if paid == 2:
                with pytest.raises(perdure.EffectRaised) as again:
                    s.call(shop.buy, "Rome")
                assert again.value.effect != first.value.effect
                with pytest.raises(ResultPending, match=again.value.effect):
                    call(db, "b", shop)
        assert s.call(shop.buy, "Rome") == "ticket 3"
    assert call(db, "b", shop) == "ticket 3"


def test_a_repetition_that_did_nothing_leaves_the_claim_to_the_call_that_raised(db: perdure.Database):
    shop = Shop()
    shop.meanwhile = raises

    def refuse() -> None:
        raise NotDone("sold out")

    with db.session("a", owner="ana", ttl=None) as s:
        with pytest.raises(perdure.EffectRaised) as first:
            s.call(shop.buy, "Rome")
        with pytest.raises(perdure.ApprovalNeeded) as asked:
            s.call(shop.buy, "Rome")
        db.approve("a", asked.value.approval.id, by="eve", wake=False)
        shop.meanwhile = refuse
        with pytest.raises(perdure.EffectFailed):
            s.call(shop.buy, "Rome")
    # Nobody knows yet whether the first one was paid for.
    with pytest.raises(ResultPending, match=first.value.effect):
        call(db, "b", shop)


@pytest.mark.parametrize("policy", ["ask", "retry", "report"])
@pytest.mark.parametrize("verdict", [{"done": "ticket 1"}, {"abort": True}], ids=str)
def test_who_waits_for_a_call_that_raised_is_told_where_to_settle_it(
    db: perdure.Database, policy: str, verdict: dict[str, Any]
):
    shop = Shop(if_unsure=policy)
    shop.meanwhile = raises
    with pytest.raises(perdure.EffectRaised) as raised:
        call(db, "a", shop)
    with pytest.raises(ResultPending, match=rf"--abort.* gives it up, .*{raised.value.effect} --done RESULT"):
        call(db, "b", shop)
    told = why(db, "b")
    (action,) = told.actions
    assert (told.severity, action.name, action.session) == ("act", "resolve", "a")
    assert action.argument == raised.value.effect
    assert told.line.count("waits for") == 1
    with db.session("a") as s:
        s.resolve(action.argument, by="eve", **verdict)
    shop.meanwhile = lambda: None
    assert why(db, "b").do == "program"
    assert call(db, "b", shop) == ("ticket 1" if "done" in verdict else "ticket 2")
