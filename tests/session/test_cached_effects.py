"""A call that costs money is paid once: cached for its time, and never made again silently after a kill.

On every kind of store that has processes, with real kills inside the tool.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import tool
from perdure.agent.models.scripted import calls
from perdure.errors import DoneElsewhere, InDoubt, InvalidInput, ResultPending
from perdure.session.calls.read_cache import PREFIX
from perdure.testing.clock import FakeClock
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

paid: list[str] = []
HOUR = 3_600_000
DAY = 24 * HOUR


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    paid.clear()


def buy_tool(**declared: Any) -> perdure.Tool:
    def buy(city: str) -> str:
        paid.append(city)
        return f"{city} {len(paid)}"

    options: dict[str, Any] = {"cache": "7d", **declared}
    return tool(**options)(buy)


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "plain": lambda s, t: s.call(t, "Rome"),
    "run": lambda s, t: s.run(f"r{s.step}", lambda r: r.call(t, "Rome")),
}


@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("declared", [{}, {"if_unsure": "retry"}, {"read": True}], ids=["ask", "retry", "read"])
def test_it_is_paid_once_for_its_time_and_again_after_it(url: str, how: str, declared: dict[str, Any]):
    clock, buy = FakeClock(), buy_tool(**declared)

    def call() -> str:
        with perdure.open(url, clock=clock) as db, db.session("s", ttl=None) as s:
            return CALLS[how](s, buy)

    assert [call(), call()] == ["Rome 1", "Rome 1"]
    clock.advance(6 * DAY)
    assert call() == "Rome 1"
    clock.advance(2 * DAY)
    assert [call(), call()] == ["Rome 2", "Rome 2"]
    assert len(paid) == 2


@pytest.mark.parametrize("declared", [{}, {"read": True}, {"cache_scope": "shared"}], ids=["effect", "read", "shared"])
@pytest.mark.parametrize("way", ["fork", "rewind", "sibling"])
def test_a_branch_from_before_the_call_does_not_pay_again(url: str, declared: dict[str, Any], way: str):
    clock, buy = FakeClock(), buy_tool(**declared)
    with perdure.open(url, clock=clock) as db, db.session("s", ttl=None) as s:
        s.vars["n"] = 1
        s.commit()
        if way == "sibling":
            s.fork("first", at=1)
            s.fork("second", at=1)
            s.switch("first")
        assert s.call(buy, "Rome") == "Rome 1"
        match way:
            case "fork":
                s.fork("other", at=1)
                s.switch("other")
            case "rewind":
                s.rewind(1)
            case _:
                s.switch("second")
        assert [s.call(buy, "Rome") for _ in range(2)] == ["Rome 1"] * 2
        assert s.run("later", lambda r: [r.call(buy, "Rome"), r.call(buy, "Rome")]) == ["Rome 1"] * 2
    assert len(paid) == 1


def test_what_another_branch_paid_longer_ago_than_the_cache_holds_is_told_before_it_is_paid_again(url: str):
    clock, buy = FakeClock(), buy_tool()
    with perdure.open(url, clock=clock) as db, db.session("s", ttl=None) as s:
        s.vars["n"] = 1
        s.commit()
        for branch in ("first", "second"):
            s.fork(branch, at=1)
        s.switch("first")
        s.call(buy, "Rome")
        clock.advance(8 * DAY)
        s.switch("second")
        with pytest.raises(DoneElsewhere):
            s.call(buy, "Rome")
    assert len(paid) == 1


def test_it_is_shared_by_the_sessions_of_one_owner_and_with_nobody_else(url: str):
    clock, buy = FakeClock(), buy_tool(cache_scope="shared", if_unsure="retry")

    def call(session: str, owner: str) -> str:
        with perdure.open(url, clock=clock) as db, db.session(session, owner=owner, ttl=None) as s:
            return s.call(buy, "Rome")

    assert [call("a", "ana"), call("b", "ana")] == ["Rome 1"] * 2
    assert [call("c", "bob"), call("d", "")] == ["Rome 2", "Rome 3"]
    clock.advance(8 * DAY)
    assert [call("b", "ana"), call("a", "ana")] == ["Rome 4"] * 2


def test_not_shared_is_not_shared(url: str):
    buy = buy_tool()
    with perdure.open(url) as db:
        for session in "ab":
            with db.session(session, owner="ana") as s:
                s.call(buy, "Rome")
        assert not [row for row in db.sessions() if row.id.startswith(PREFIX)]
    assert len(paid) == 2


def test_a_key_tells_calls_apart_for_the_cache_too(url: str):
    buy = buy_tool(cache_scope="shared")
    with perdure.open(url) as db:
        for session in "ab":
            with db.session(session, owner="ana") as s:
                assert s.call(buy, "Rome") == "Rome 1"
                assert s.call(buy.options(key="second"), "Rome") == "Rome 2"


@pytest.mark.parametrize("scope", ["session", "shared"])
@pytest.mark.parametrize("read", [True, False])
def test_a_clock_that_was_set_back_neither_pays_again_nor_keeps_a_result_for_good(url: str, scope: str, read: bool):
    """Nobody knows how old a result from the future is; within its own time it is believed, further off it is not."""
    clock, buy = FakeClock(), buy_tool(cache_scope=scope, read=read)

    def call(session: str) -> str:
        with perdure.open(url, clock=clock) as db, db.session(session, owner="ana", ttl=None) as s:
            return s.run(f"r{s.step}", lambda r: r.call(buy, "Rome"))

    assert call("s") == "Rome 1"
    clock.advance(-HOUR)
    assert call("s" if scope == "session" else "t") == "Rome 1"
    clock.advance(-8 * DAY)
    assert call("s" if scope == "session" else "u") == "Rome 2"


def test_an_outcome_that_comes_late_is_kept_like_any_other(url: str):
    clock = FakeClock()

    def buy(city: str) -> str:
        paid.append(city)
        raise TimeoutError

    bought = tool(cache="7d", cache_scope="shared")(buy)
    with perdure.open(url, clock=clock) as db:
        with db.session("s", owner="ana") as s:
            with pytest.raises(InDoubt) as doubt:
                s.call(bought, "Rome")
            s.resolve(doubt.value.effect, done="a ticket", by="eve")
            assert s.run("later", lambda r: r.call(bought, "Rome")) == "a ticket"
        with db.session("t", owner="ana") as s:
            assert s.call(bought, "Rome") == "a ticket"
    assert len(paid) == 1


LOST: dict[str, Callable[[Any, Any], Any]] = {
    "run": lambda s, t: s.run("monday", lambda r: r.call(t, "Rome")),
    "plain": lambda s, t: s.call(t, "Rome"),
}
AGAIN: dict[str, Callable[[Any, Any], Any]] = {
    "another run": lambda s, t: s.run("friday", lambda r: r.call(t, "Rome")),
    "plain": lambda s, t: s.call(t, "Rome"),
    "live": lambda s, t: s.run("friday", lambda r: r.call(t, "Rome")),
}


@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("declared", [{}, {"cache_scope": "shared"}, {"if_unsure": lambda city: perdure.Unknown()}])
def test_while_it_is_in_doubt_no_later_run_of_its_session_pays(
    url: str, declared: dict[str, Any], lost: str, again: str
):
    answers: list[Any] = [TimeoutError()]

    def buy(city: str) -> str:
        paid.append(city)
        if answers:
            raise answers.pop()
        return f"{city} {len(paid)}"

    options: dict[str, Any] = {"cache": "7d", **declared}
    bought = tool(**options)(buy)
    how = AGAIN[again]
    with perdure.open(url) as db:
        with db.session("s", owner="ana") as s, pytest.raises(InDoubt) as doubt:
            LOST[lost](s, bought)
        with db.session("s", owner="ana", effects="live" if again == "live" else "reuse") as s:
            with pytest.raises(InDoubt) as held:
                how(s, bought)
            assert held.value.effect == doubt.value.effect
            assert len(paid) == 1
            s.resolve(held.value.effect, done="a ticket")
            assert how(s, bought) == "a ticket"
            assert LOST[lost](s, bought) == "a ticket"
    assert len(paid) == 1


@pytest.mark.parametrize("verdict", ["abort", "retry"])
def test_once_it_is_given_up_or_made_again_the_next_run_goes_on(url: str, verdict: str):
    answers: list[Any] = [TimeoutError()]

    def buy(city: str) -> str:
        paid.append(city)
        if answers:
            raise answers.pop()
        return f"{city} {len(paid)}"

    bought = tool(cache="7d")(buy)
    with perdure.open(url) as db, db.session("s") as s:
        with pytest.raises(InDoubt) as doubt:
            LOST["run"](s, bought)
        s.resolve(doubt.value.effect, retry=verdict == "retry", abort=verdict == "abort")
        if verdict == "retry":
            with pytest.raises(ResultPending, match="in run 'monday', and it is to be made again") as pending:
                AGAIN["plain"](s, bought)
            assert pending.value.effect == doubt.value.effect
            assert LOST["run"](s, bought) == "Rome 2"
        assert AGAIN["plain"](s, bought) == "Rome 2"
    assert len(paid) == 2


def test_a_result_that_comes_later_is_waited_for_by_every_run_of_its_session(url: str):
    def buy(city: str) -> Any:
        paid.append(city)
        return perdure.Later(handle=city)

    bought = tool(cache="7d")(buy)
    with perdure.open(url) as db, db.session("s") as s:
        with pytest.raises(ResultPending) as first:
            LOST["run"](s, bought)
        with pytest.raises(ResultPending, match="its result comes later") as second:
            AGAIN["another run"](s, bought)
        assert first.value.effect == second.value.effect
        db.post_outcome("s", first.value.effect, "a ticket")
        assert LOST["run"](s, bought) == "a ticket"
        assert AGAIN["another run"](s, bought) == "a ticket"
    assert len(paid) == 1


def test_two_threads_of_a_session_that_ask_at_once_pay_once():
    """In a run a call is known by its place: another place is the same call all the same, when it is kept."""
    begun, both = threading.Event(), threading.Event()

    def buy(city: str) -> str:
        paid.append(city)
        begun.set()
        both.wait(0.5)
        return f"{city} {len(paid)}"

    bought = tool(cache="7d")(buy)
    with perdure.open("memory://") as db, db.session("s") as s, ThreadPoolExecutor(2) as pool:

        def work(r: Any) -> list[str]:
            first = pool.submit(r.call, bought, "Rome")
            begun.wait()
            second = pool.submit(r.call, bought, "Rome")
            return [first.result(), second.result()]

        assert s.run("both", work) == ["Rome 1", "Rome 1"]
    assert len(paid) == 1


def test_an_agent_does_not_pay_for_what_a_run_of_its_session_has_in_doubt(tmp_path: Path):
    answers: list[Any] = [TimeoutError()]

    def buy(city: str) -> str:
        """Buy a ticket."""
        paid.append(city)
        if answers:
            raise answers.pop()
        return f"{city} {len(paid)}"

    bought, url = tool(cache="7d")(buy), url_of("sqlite", tmp_path)

    def script(request: Any) -> Any:
        last = request.messages[-1]
        return last["content"] if last["role"] == "tool" else calls(("buy", {"city": "Rome"}))

    with perdure.open(url) as db, db.session("s") as s, pytest.raises(InDoubt) as doubt:
        LOST["run"](s, bought)
    agent = perdure.Agent("desk", model=perdure.ScriptedModel(script), tools=[bought])
    assert agent.run_sync(url, session="s", message="go").status == "in_doubt"
    assert len(paid) == 1
    with perdure.open(url) as db, db.session("s") as s:
        s.resolve(doubt.value.effect, done="a ticket")
    assert agent.run_sync(url, session="s").text == "a ticket"
    assert len(paid) == 1


@pytest.mark.parametrize("turn", [1, -1])
def test_a_providers_key_is_not_called_valid_when_its_age_makes_no_sense(url: str, turn: int):
    clock = FakeClock()

    def buy(city: str) -> str:
        paid.append(city)
        raise KeyboardInterrupt

    retried = tool(if_unsure="retry", key_valid_for="24h")(buy)
    with perdure.open(url, clock=clock) as db:
        with db.session("s", ttl=None) as s, pytest.raises(KeyboardInterrupt):
            s.call(retried, "Rome")
        clock.advance(turn * 25 * HOUR)
        with db.session("s", ttl=None) as s, pytest.raises(InDoubt):
            s.call(retried, "Rome")
    assert len(paid) == 1


@pytest.mark.parametrize(
    "declared", [{"cache": 0}, {"cache": -5}, {"cache": None, "cache_scope": "shared"}, {"key_valid_for": "1h"}]
)
def test_what_could_not_hold_is_not_accepted(declared: dict[str, Any]):
    with pytest.raises(InvalidInput, match=r"cache|key_valid_for"):
        buy_tool(**declared)


@pytest.mark.parametrize("scope", ["session", "shared"])
def test_a_call_that_a_person_changed_is_kept_under_what_was_done_not_under_what_was_asked(url: str, scope: str):
    buy = buy_tool(approve=lambda args: args["city"] == "Rome", cache_scope=scope)
    with perdure.open(url) as db, db.session("s", owner="ana") as s:
        with pytest.raises(perdure.ApprovalNeeded) as needed:
            s.run("r", lambda r: r.call(buy, "Rome"))
        db.approve("s", needed.value.approval, by="eve", args={"city": "Oslo"})
        assert s.run("r", lambda r: r.call(buy, "Rome")) == "Oslo 1"
        assert s.run("oslo", lambda r: r.call(buy, "Oslo")) == "Oslo 1"
        with pytest.raises(perdure.ApprovalNeeded):
            s.run("rome", lambda r: r.call(buy, "Rome"))
    assert paid == ["Oslo"]


PROGRAM = """
import os, signal, sys
import perdure

url, ledger, when = sys.argv[1:4]
declared = dict(pair.split("=") for pair in sys.argv[4:])
declared = {k: v == "True" if v in ("True", "False") else v for k, v in declared.items()}

def buy(city: str) -> str:
    with open(ledger, "a") as book:
        print(city, file=book, flush=True)
    if when == "inside":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"ticket to {city}"

if when.startswith("at "):
    from perdure.system import faults
    def hook(name):
        if name == when[3:]:
            os.kill(os.getpid(), signal.SIGKILL)
    faults.hook = hook

bought = perdure.tool(cache="7d", **declared)(buy)
with perdure.open(url) as db, db.session("s", owner="ana") as s:
    if not s.step:
        s.vars["n"] = 1
        s.commit()
    try:
        print(s.run("trip", lambda r: r.call(bought, "Rome")))
    except perdure.InDoubt as e:
        print("in doubt")
"""


class Killed:
    """Runs the program in processes of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._ledger = url, folder / "ledger"

    def run(self, when: str, **declared: Any) -> str:
        said = [f"{name}={value}" for name, value in declared.items()]
        command = [sys.executable, "-c", PROGRAM, self._url, str(self._ledger), when, *said]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if when:
            assert done.returncode == -signal.SIGKILL, done.stderr
        else:
            assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @property
    def paid(self) -> int:
        return len(self._ledger.read_text().splitlines())


@pytest.fixture(params=["sqlite", "file", "postgres"])
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> Killed:
    return Killed(url_of(request.param, tmp_path), tmp_path)


@pytest.mark.parametrize("scope", ["session", "shared"])
def test_killed_inside_the_tool_it_is_not_paid_again(killed: Killed, scope: str):
    killed.run("inside", cache_scope=scope)
    assert killed.run("", cache_scope=scope) == "in doubt"
    assert killed.paid == 1


def test_killed_inside_a_tool_that_only_reads_it_runs_again_as_its_declaration_says(killed: Killed):
    killed.run("inside", read=True)
    assert killed.run("", read=True) == "ticket to Rome"
    assert killed.paid == 2


@pytest.mark.parametrize("scope", ["session", "shared"])
def test_killed_before_the_outcome_is_written_it_is_found_in_the_shared_cache_or_asked_about(
    killed: Killed, scope: str
):
    killed.run("at call.before_outcome", cache_scope=scope)
    assert killed.run("", cache_scope=scope) == ("ticket to Rome" if scope == "shared" else "in doubt")
    assert killed.paid == 1


def test_killed_after_the_outcome_is_written_it_is_in_the_cache(killed: Killed, tmp_path: Path):
    killed.run("at call.after_outcome", cache_scope="shared")
    assert killed.run("", cache_scope="shared") == "ticket to Rome"
    assert killed.paid == 1
