"""Runs: a plain function, run again from the top until it has come to its end once."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure import tool
from perdure.testing.clock import FakeClock
from tests.session.test_calls import Killed


class Script:
    """A function of several turns that dies after a given number of events."""

    def __init__(self, turns: int = 4) -> None:
        self.turns = turns
        self.done: list[tuple[int, str]] = []
        self.left = 10**9
        self.salt = ""

        @tool(if_unsure="retry")
        def act(n: int, ctx: Any) -> dict[str, int]:
            self.event()
            if (n, ctx.effect_id) not in self.done:
                self.done.append((n, ctx.effect_id))
            self.event()
            return {"n": n}

        self.act = act

    def event(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def __call__(self, s: Any) -> str:
        messages = s.messages
        for n in range(self.turns):
            messages.append({"n": n, "salt": self.salt})
            self.event()
            s.commit()
            self.event()
            result = s.call(self.act, n)
            self.event()
            s.vars.setdefault("results", []).append(result)
            messages.append({"got": result})
        s.commit()
        self.event()
        return f"{self.turns} turns"


def expected(turns: int) -> dict[str, Any]:
    return {
        "results": [{"n": n} for n in range(turns)],
        "messages": [m for n in range(turns) for m in ({"n": n, "salt": ""}, {"got": {"n": n}})],
    }


def test_a_run_dies_at_every_event_and_ends_as_if_it_never_had(db: perdure.Database, clock: FakeClock) -> None:
    for kill_after in range(22):
        script, name = Script(3), f"s{kill_after}"
        script.left = kill_after
        for _ in range(2):
            s = db.session(name)
            try:
                assert s.run("r", script) == "3 turns"
            except Killed:
                script.left = 10**9
                clock.advance(60_000)
                continue
            s.release()
            break
        found = db.read(name)
        assert found.messages == expected(3)["messages"], kill_after
        assert found.vars["results"] == expected(3)["results"], kill_after
        assert [n for n, _ in script.done] == [0, 1, 2], kill_after


def test_a_finished_run_returns_its_recorded_result(db: perdure.Database) -> None:
    script = Script()
    with db.session("s") as s:
        assert s.run("r", script) == "4 turns"
        steps = s.step
    script.left = 0
    with db.session("s") as s:
        assert s.run("r", script) == "4 turns"
        assert s.step == steps
        assert s.status == "idle"


def test_runs_with_other_keys_make_their_own_calls(db: perdure.Database) -> None:
    script = Script(1)
    with db.session("s") as s:
        s.run("one", script)
        s.run("two", script)
    assert len({e for _, e in script.done}) == 2


def test_a_difference_in_calls_raises_before_anything_happens(db: perdure.Database, clock: FakeClock) -> None:
    script = Script(3)
    script.left = 11
    s = db.session("s")
    with pytest.raises(Killed):
        s.run("r", script)
    clock.advance(60_000)
    did = list(script.done)
    script.left = 10**9

    def other(s: Any) -> None:
        s.messages.append("x")
        s.commit()
        s.call(script.act, 99)

    def fewer(s: Any) -> None:
        s.commit()

    with db.session("s") as s:
        with pytest.raises(perdure.Diverged, match="same order"):
            s.run("r", other)
        s.reload()
        with pytest.raises(perdure.Diverged, match="same order"):
            s.run("r", fewer)
        assert script.done == did
        s.reload()
        assert s.run("r", script) == "3 turns"


@pytest.mark.parametrize("died_at", range(1, 9))
def test_commits_without_edits_leave_no_record_and_are_not_looked_for(
    db: perdure.Database, clock: FakeClock, died_at: int
) -> None:
    script = Script(3)

    def work(s: Any) -> list[Any]:
        found = []
        for n in range(3):
            s.commit()
            found.append(s.call(script.act, n))
            s.commit()
            s.vars["n"] = s.vars.get("n", 0) + 1
            script.event()
            s.commit()
            s.commit()
        return found

    script.left = died_at
    with pytest.raises(Killed):
        db.session("s").run("r", work)
    clock.advance(60_000)
    script.left = 10**9
    with db.session("s") as s:
        assert s.run("r", work) == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert s.vars.plain() == {"n": 3}
    assert [n for n, _ in script.done] == [0, 1, 2]


def test_messages_are_given_where_they_were_taken_not_earlier(db: perdure.Database, clock: FakeClock) -> None:
    script = Script(2)

    def work(s: Any) -> None:
        for n in range(2):
            for message in s.take():
                s.messages.append([n, message.body])
            s.commit()
            s.call(script.act, n)
            if n == 0:
                db.post("s", "hello", key="k")
            script.event()
        s.commit()

    script.left = 5
    with pytest.raises(Killed):
        db.session("s").run("r", work)
    clock.advance(60_000)
    script.left = 10**9
    with db.session("s") as s:
        s.run("r", work)
        assert s.messages.plain() == [[1, "hello"]]


def test_a_handle_whose_run_has_diverged_goes_on(db: perdure.Database) -> None:
    script = Script(1)

    def first(s: Any) -> None:
        s.call(script.act, 1)
        s.vars["a"] = 1
        s.commit()
        raise ValueError("stop")

    with db.session("s") as s:
        with pytest.raises(ValueError, match="stop"):
            s.run("r", first)
        for _ in range(2):
            with pytest.raises(perdure.Diverged, match="other arguments"):
                s.run("r", lambda s: s.call(script.act, 2))
        s.vars["b"] = 1
        s.commit()
        assert s.vars.plain() == {"a": 1, "b": 1}
        with pytest.raises(ValueError, match="stop"):
            s.run("r", first)


def test_edits_may_differ_the_recorded_ones_win(db: perdure.Database, clock: FakeClock) -> None:
    script = Script(3)
    script.left = 10
    s = db.session("s")
    with pytest.raises(Killed):
        s.run("r", script)
    clock.advance(60_000)
    script.left, script.salt = 10**9, "another time"
    with db.session("s") as s:
        s.run("r", script)
        salts = [m["salt"] for m in s.messages if "salt" in m]
    assert salts == ["", "", "another time"]
    assert len(db.read("s").messages) == 6


def test_a_resumed_run_takes_the_same_messages(db: perdure.Database, clock: FakeClock) -> None:
    db.post("s", "one", key="1")
    seen: list[list[str]] = []
    script = Script(1)

    def work(s: Any) -> None:
        taken = [m.body for m in s.take()]
        seen.append(taken)
        s.messages.extend(taken)
        s.commit()
        script.event()

    script.left = 0
    s = db.session("s")
    with pytest.raises(Killed):
        s.run("r", work)
    clock.advance(60_000)
    db.post("s", "two", key="2")
    script.left = 1
    with db.session("s") as s:
        s.run("r", work)
        assert s.messages == ["one"]
        assert [m.body for m in s.take()] == ["two"]
    assert seen == [["one"], ["one"]]


def test_a_run_inside_a_run_is_refused(db: perdure.Database) -> None:
    with db.session("s") as s, pytest.raises(perdure.Misuse, match="session of its own"):
        s.run("r", lambda s: s.run("q", lambda s: None))


def test_a_fork_in_the_middle_of_a_run_goes_on_from_there(db: perdure.Database, clock: FakeClock) -> None:
    script = Script(3)
    script.left = 11
    s = db.session("s")
    with pytest.raises(Killed):
        s.run("r", script)
    clock.advance(60_000)
    script.left = 10**9
    with db.session("s") as s:
        s.fork("again")
        s.switch("again")
        assert s.run("r", script) == "3 turns"
        assert s.messages == expected(3)["messages"]


def test_a_run_whose_call_was_agreed_to_with_other_arguments_is_resumed(db: perdure.Database) -> None:
    paid: list[int] = []
    deaths = ["once"]

    @tool(approve=True)
    def pay(amount: int) -> dict[str, int]:
        paid.append(amount)
        return {"paid": amount}

    def trip(s: perdure.Session) -> Any:
        result = s.call(pay, amount=5)
        if deaths:
            raise Killed(deaths.pop())
        return result

    with db.session("s") as s, pytest.raises(perdure.ApprovalNeeded) as asked:
        s.run("r", trip)
    db.approve("s", asked.value.approval.id, by="ana", args={"amount": 3})
    with db.session("s") as s, pytest.raises(Killed):
        s.run("r", trip)
    with db.session("s") as s:
        assert s.run("r", trip) == {"paid": 3}
    assert paid == [3]


def test_a_call_in_doubt_outlives_the_run_that_would_not_hear_of_it(db: perdure.Database) -> None:
    @tool
    def pay(amount: int) -> str:
        raise KeyboardInterrupt

    def work(s: perdure.Session) -> str:
        try:
            return s.call(pay, 5)
        except perdure.InDoubt:
            return "never mind"

    with db.session("s") as s, pytest.raises(KeyboardInterrupt):
        s.run("r", work)
    with db.session("s") as s:
        assert s.run("r", work) == "never mind"
        (effect,) = s.effects()
        assert (effect["status"], s.status) == ("in_doubt", "in_doubt")
        s.resolve(effect["id"], done="paid")
        assert s.status == "idle"
        assert s.run("r", work) == "never mind"
