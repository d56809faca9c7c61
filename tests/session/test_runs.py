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


# -- what others commit between the attempts of a run ----------------------------------------------------------------


class Work:
    """A run of two commits and a call in between, which at first waits for a person, is killed, or gets no answer."""

    def __init__(self, how: str) -> None:
        self.made: list[str] = []
        self.stops = how != "approval"
        died: dict[str, type[BaseException]] = {"killed": Killed, "doubt": TimeoutError, "approval": Killed}

        @tool(approve=how == "approval", if_unsure="retry" if how == "killed" else "ask")
        def pay(what: str) -> str:
            if self.stops:
                self.stops = False
                raise died[how]
            self.made.append(what)
            return f"paid {what}"

        @tool(if_unsure="retry")
        def free(what: str) -> str:
            return what

        self.pay, self.free = pay, free

    def __call__(self, s: Any) -> str:
        s.messages.append("begin")
        s.commit()
        s.messages.append("call")
        paid = s.call(self.pay, "rent")
        s.messages.append(paid)
        s.vars["seen"] = sorted(s.vars.plain())
        s.commit()
        s.messages.append("end")
        return paid

    def settle(self, db: perdure.Database, s: perdure.Session) -> None:
        for asked in s.approvals():
            db.approve("s", asked.id, by="ana")
        for effect in s.effects():
            if effect["status"] == "in_doubt":
                s.resolve(effect["id"], retry=True)


def others_commit(db: perdure.Database, s: perdure.Session, work: Work) -> None:
    s.vars["other"] = 1
    s.messages.append("other")
    s.commit()


def others_take(db: perdure.Database, s: perdure.Session, work: Work) -> None:
    db.post("s", "other", key=str(s.step))
    s.vars["other"] = 1
    s.messages.extend(m.body for m in s.take())
    s.commit()


def others_run(db: perdure.Database, s: perdure.Session, work: Work) -> None:
    def other(s: Any) -> None:
        s.call(work.free, "other")
        s.vars["other"] = 1
        s.messages.append("other")
        s.commit()

    s.run("friday", other)


@pytest.mark.parametrize("how", ["approval", "killed", "doubt"])
@pytest.mark.parametrize("between", [others_commit, others_take, others_run])
@pytest.mark.parametrize("again", [False, True], ids=["same handle", "new handles"])
def test_a_run_goes_on_whatever_was_committed_since(how: str, between: Any, again: bool) -> None:
    work = Work(how)
    with perdure.open("memory://") as db:
        s = db.session("s")

        def attempt() -> perdure.Session:
            if not again:
                return s
            s.release()
            return db.session("s")

        with pytest.raises((perdure.ApprovalNeeded, perdure.InDoubt, Killed)):
            s.run("monday", work)
        s = attempt()
        between(db, s, work)
        s = attempt()
        work.settle(db, s)
        between(db, s, work)
        s = attempt()
        assert s.run("monday", work) == "paid rent"
        # It goes on at the head: it sees what others committed, above what it had recorded before.
        expected = ["begin", "call", "other", *(["other"] if between is not others_run else []), "paid rent", "end"]
        assert (s.messages.plain(), work.made, s.vars["seen"]) == (expected, ["rent"], ["other"])
        assert s.status == "idle"
        s.release()
        assert db.read("s").messages == expected


@pytest.mark.parametrize("others", [False, True])
def test_a_run_that_others_commit_between_dies_at_every_event(
    db: perdure.Database, clock: FakeClock, others: bool
) -> None:
    for kill_after in range(18):
        script, name = Script(3), f"s{kill_after}"
        for attempt in range(12):
            script.left = kill_after + 3 * attempt
            try:
                with db.session(name) as s:
                    assert s.run("r", script) == "3 turns"
                break
            except Killed:
                clock.advance(60_000)
            with db.session(name) as s:
                if others:
                    s.vars["others"] = s.vars.get("others", 0) + 1
                s.commit()
        found = db.read(name)
        assert found.messages == expected(3)["messages"], kill_after
        assert found.vars["results"] == expected(3)["results"], kill_after
        assert [n for n, _ in script.done] == [0, 1, 2], kill_after


def test_a_resumed_run_sees_what_it_saw_where_it_saw_it(db: perdure.Database) -> None:
    """Each attempt goes on at the head; a later one finds the same there, or it would not make the same calls."""
    made: list[Any] = []
    stops = ["first", "second"]

    @tool(if_unsure="retry")
    def pay(what: Any) -> Any:
        made.append(what)
        return what

    def work(s: Any) -> list[Any]:
        seen = [s.vars.get("n")]
        s.call(pay, ["first", s.vars.get("n")])
        seen.append(s.vars.get("n"))
        if stops == ["first", "second"]:
            raise Killed(stops.pop(0))
        s.call(pay, ["second", s.vars.get("n")])
        seen.append(s.vars.get("n"))
        if stops:
            raise Killed(stops.pop())
        return seen

    for n in range(2):
        with db.session("s") as s, pytest.raises(Killed):
            s.run("r", work)
        with db.session("s") as s:
            s.vars["n"] = n
            s.commit()
    with db.session("s") as s:
        assert s.run("r", work) == [None, 0, 1]
    assert made == [["first", None], ["second", 0]]


def test_another_program_is_found_whatever_others_committed(db: perdure.Database) -> None:
    work = Work("approval")
    with db.session("s") as s:
        with pytest.raises(perdure.ApprovalNeeded):
            s.run("monday", work)
        others_run(db, s, work)
        work.settle(db, s)

        def otherwise(s: Any) -> None:
            s.messages.append("begin")
            s.commit()
            s.call(work.pay, "food")

        def less(s: Any) -> str:
            return "nothing to do"

        for other in (otherwise, less):
            with pytest.raises(perdure.Diverged, match="commit\\(\\), and read it from there"):
                s.run("monday", other)
            assert (work.made, s.messages[-1]) == ([], "other")
        assert s.run("monday", work) == "paid rent"


def test_edits_before_a_resumed_run_are_kept_or_thrown_away_as_it_says(db: perdure.Database) -> None:
    work = Work("approval")
    with db.session("s") as s:
        with pytest.raises(perdure.ApprovalNeeded):
            s.run("monday", work)
        work.settle(db, s)
        s.vars["note"] = 1
        for _ in range(2):
            with pytest.raises(perdure.Misuse, match=r"commit\(\) keeps them, reload\(\) throws them away"):
                s.run("monday", work)
        s.commit()
        assert (s.run("monday", work), s.vars["note"]) == ("paid rent", 1)


def test_what_a_run_that_failed_had_not_committed_is_not_committed_by_others(db: perdure.Database) -> None:
    fails = [1]

    def work(s: Any) -> None:
        s.messages.extend(m.body for m in s.take())
        s.messages.append("mine")
        if fails:
            raise ValueError(fails.pop())
        s.commit()

    db.post("s", "hello", key="1")
    with db.session("s") as s:
        with pytest.raises(ValueError, match="1"):
            s.run("r", work)
        s.vars["error"] = "ValueError"
        s.commit()
        assert s.messages.plain() == []
        s.run("r", work)
        assert s.messages.plain() == ["hello", "mine"]


def test_messages_that_a_call_took_along_are_given_again(db: perdure.Database) -> None:
    work = Work("doubt")
    for n in range(3):
        db.post("s", n, key=str(n))

    def answer(s: Any) -> list[Any]:
        taken: list[Any] = []
        while found := s.take(limit=1):
            taken.extend(m.body for m in found)
        s.call(work.pay, str(taken))
        return taken

    with db.session("s") as s, pytest.raises(perdure.InDoubt):
        s.run("r", answer)
    db.post("s", "later", key="later")
    with db.session("s") as s:
        work.settle(db, s)
        assert s.run("r", answer) == [0, 1, 2]
        assert [m.body for m in s.take()] == ["later"]
    assert work.made == ["[0, 1, 2]"]


def test_a_kept_read_gives_its_answer_again_and_what_was_edited_before_it_is_there_once(db: perdure.Database) -> None:
    numbers = iter(range(10))
    work = Work("doubt")
    fails = [1]

    @tool(read=True, cache="7d")
    def number() -> int:
        return next(numbers)

    def draw(s: Any) -> Any:
        s.messages.append("draw")
        drawn = s.call(number)
        s.messages.append(drawn)
        if fails:
            raise ValueError(fails.pop())
        return s.call(work.pay, str(drawn))

    with db.session("s") as s:
        with pytest.raises(ValueError, match="1"):
            s.run("r", draw)
        with pytest.raises(perdure.InDoubt):
            s.run("r", draw)
        work.settle(db, s)
        assert s.run("r", draw) == "paid 0"
        s.reload()
        assert s.messages.plain() == ["draw", 0]


def test_a_run_whose_key_begins_with_that_of_another_one_keeps_its_calls(db: perdure.Database) -> None:
    work = Work("killed")
    work.stops = False
    fails = [1]

    def long(s: Any) -> Any:
        s.call(work.pay, "once")
        if fails:
            raise ValueError(fails.pop())

    with db.session("s") as s:
        with pytest.raises(ValueError, match="1"):
            s.run("a:b", long)
        s.run("a", lambda s: None)
        s.run("a:b", long)
    assert work.made == ["once"]


@pytest.mark.parametrize("way", ["a recorded tool", "s.vars"])
def test_what_the_guide_advises_against_diverged_helps(db: perdure.Database, way: str) -> None:
    numbers = iter(range(10))
    work = Work("doubt")

    @tool(if_unsure="retry")
    def number() -> int:
        return next(numbers)

    def draw(s: Any) -> Any:
        if way == "a recorded tool":
            return s.call(work.pay, str(s.call(number)))
        s.vars["n"] = next(numbers)
        s.commit()
        return s.call(work.pay, str(s.vars["n"]))

    with db.session("s") as s:
        with pytest.raises(perdure.InDoubt):
            s.run("r", draw)
        work.settle(db, s)
        assert s.run("r", draw) == "paid 0"


def test_a_run_that_went_on_without_a_call_says_why_it_cannot_go_on_with_it(db: perdure.Database) -> None:
    work = Work("approval")
    fails = [1]

    def careless(s: Any) -> None:
        try:
            s.call(work.pay, "rent")
        except perdure.ApprovalNeeded:
            s.vars["waits"] = True
            s.commit()
        if fails:
            raise ValueError(fails.pop())

    with db.session("s") as s:
        with pytest.raises(ValueError, match="1"):
            s.run("r", careless)
        work.settle(db, s)
        with pytest.raises(perdure.Diverged, match="let ApprovalNeeded, InDoubt and ResultPending out"):
            s.run("r", careless)
    assert work.made == []


def test_what_was_edited_before_a_call_with_a_known_result_is_there_once(db: perdure.Database) -> None:
    """Nothing was started for it: its outcome is all that the record says of it."""
    fails = [1]
    made: list[int] = []

    @tool(if_unsure="ask", cache="7d")
    def report(n: int) -> int:
        made.append(n)
        return n

    def work(s: Any) -> None:
        s.messages.append("before")
        s.messages.append(s.call(report, 1))
        if fails:
            raise Killed(fails.pop())
        s.commit()

    with db.session("s") as s:
        s.call(report, 1)
        with pytest.raises(Killed):
            s.run("r", work)
        with pytest.raises(perdure.Misuse, match="left before its end"):
            s.commit()
    with db.session("s") as s:
        s.vars["other"] = 1
        s.commit()
        s.run("r", work)
    assert (db.read("s").messages, made) == (["before", 1], [1])


def test_a_read_that_a_changed_run_makes_no_more_takes_none_of_its_edits(db: perdure.Database) -> None:
    fails = [1]

    @tool(read=True, cache="7d")
    def look() -> str:
        return "seen"

    def work(s: Any) -> None:
        s.messages.append("first")
        if fails:
            s.call(look)
            raise ValueError(fails.pop())
        s.vars["second"] = 2
        s.commit()

    with db.session("s") as s:
        with pytest.raises(ValueError, match="1"):
            s.run("r", work)
        s.vars["other"] = 1
        s.commit()
        s.run("r", work)
    found = db.read("s")
    assert (found.messages, found.vars) == (["first"], {"other": 1, "second": 2})


def test_a_commit_behind_a_call_in_doubt_is_not_taken_for_the_one_behind_its_outcome(db: perdure.Database) -> None:
    work = Work("doubt")
    fails = [1]

    def careless(s: Any) -> None:
        try:
            s.messages.append(s.call(work.pay, "rent"))
        except perdure.InDoubt:
            s.vars["waits"] = True
        s.commit()
        if fails:
            raise ValueError(fails.pop())

    with db.session("s") as s:
        with pytest.raises(ValueError, match="1"):
            s.run("r", careless)
        s.resolve(s.effects()[0]["id"], done="paid by hand")
        with pytest.raises(perdure.Diverged, match="let ApprovalNeeded, InDoubt and ResultPending out"):
            s.run("r", careless)
        assert (s.messages.plain(), s.vars.plain()) == ([], {"waits": True})


def test_messages_are_not_lost_to_a_run_that_asks_for_them_later_or_not_at_all(db: perdure.Database) -> None:
    work = Work("killed")
    work.stops = False
    fails = [1]
    db.post("s", "hello", key="1")

    def first(s: Any) -> None:
        s.messages.extend(m.body for m in s.take())
        s.call(work.pay, "rent")
        raise ValueError(fails.pop())

    def later(s: Any) -> None:
        s.call(work.pay, "rent")
        s.messages.extend(m.body for m in s.take())

    with db.session("s") as s:
        with pytest.raises(ValueError, match="1"):
            s.run("r", first)
        with pytest.raises(perdure.Diverged, match="messages that it has not asked for"):
            s.run("r", lambda s: s.call(work.pay, "rent"))
        s.run("r", later)
        assert s.messages.plain() == ["hello"]
    assert work.made == ["rent"]
