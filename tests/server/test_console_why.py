"""One line says why a session is where it is and what to do next, for every status and every reason."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, tool
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.errors import ModelError, NotFound
from perdure.fleet.board import board_of
from perdure.fleet.why.answer import Why
from perdure.fleet.why.reading import why
from perdure.model import Kind, Status
from perdure.protocols import Filter, NewWork, Rest, WorkerRow
from perdure.session.handover import SILENT
from perdure.session.tools import Later
from perdure.session.tools.context import Context
from perdure.system.lease_holders import running_agent
from perdure.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@tool(approve=True)
def refund(order: str, amount: float) -> str:
    """Give money back."""
    return "done"


@tool
def send(parcel: str) -> str:
    """Send a parcel."""
    raise ConnectionError("the line is dead")


@tool
def render(video: str) -> Later:
    """Takes hours."""
    return Later("job-1")


@tool
def choose(what: str, ctx: Context) -> str:
    """Needs to know more."""
    return ctx.ask("Red or blue?")


def _script(request: Any) -> Any:
    said = str(request.messages[-1].get("content"))
    if request.messages[-1]["role"] == "tool":
        return "Good."
    match said.split(maxsplit=1)[0]:
        case "refund":
            return calls(("refund", {"order": "A-1", "amount": 20.0}))
        case "send":
            return calls(("send", {"parcel": "P-1"}))
        case "render":
            return calls(("render", {"video": "v"}))
        case "choose":
            return calls(("choose", {"what": "colour"}))
        case "fail":
            raise ModelError("it said nothing sensible")
        case _:
            return "Hello."


agent = Agent("desk", model=ScriptedModel(_script), tools=[refund, send, render, choose])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def db(tmp_path: Path, clock: FakeClock) -> Iterator[perdure.Database]:
    with perdure.open(f"sqlite:///{tmp_path / 'w.db'}", clock=clock) as db:
        yield db


def run(db: perdure.Database, message: str | None, clock: FakeClock, **options: Any) -> Why:
    """Run the agent on a session, then ask why."""

    async def work() -> None:
        async with perdure.open_async(db.url, clock=clock) as other:
            await agent.run(other, session="s", message=message, **options)

    asyncio.run(work())
    return why(db, "s")


def beat(db: perdure.Database, agents: tuple[str, ...] = ("desk",)) -> None:
    """Let there be a worker."""
    board_of(db).beat(WorkerRow("w", "host", 1, "v", agents, 10))


def test_one_that_has_answered(db: perdure.Database, clock: FakeClock) -> None:
    found = run(db, "hello", clock)
    assert (found.line, found.severity, found.do) == ("It has answered everything.", "ok", "message")


def test_one_without_an_agent(db: perdure.Database) -> None:
    with db.session("s") as s:
        s.commit()
    assert why(db, "s").line == "Nothing in it is open."


def test_one_that_is_not_there(db: perdure.Database) -> None:
    with pytest.raises(NotFound, match="there is no session 'nobody'"):
        why(db, "nobody")


def test_one_with_nothing_but_an_inbox(db: perdure.Database) -> None:
    db.post("s", "hello")
    found = why(db, "s")
    assert found.line == "Nothing has been committed to it yet. 1 message waits in its inbox."
    assert found.do == "start"


def test_one_that_needs_agreement(db: perdure.Database, clock: FakeClock) -> None:
    found = run(db, "refund", clock)
    assert found.line.startswith('refund(order="A-1", amount=20.0) waits for agreement.')
    assert (found.severity, found.do) == ("act", "approve")
    clock.advance(7_200_000)
    assert "for 2 h." in why(db, "s").line
    with db.session("s") as s:
        (request,) = s.approvals()
    db.approve("s", request.id, by="ana")
    assert why(db, "s").line.startswith("The decision is in")


def test_one_whose_request_has_expired(db: perdure.Database, clock: FakeClock) -> None:
    run(db, "refund", clock, context=None)
    clock.advance(6 * 86_400_000)
    with db.session("s", ttl=None) as s:
        s.vars["kept"] = True
        s.commit()
    clock.advance(2 * 86_400_000)
    with db.session("s", ttl=None) as s:
        s.vars["kept"] = 1
        s.commit(status="waiting_approval")
    assert why(db, "s").line.startswith("The request to agree to refund has expired")


def test_one_that_asks(db: perdure.Database, clock: FakeClock) -> None:
    found = run(db, "choose", clock)
    assert found.line.startswith("choose asks: Red or blue?")
    assert found.do == "answer"


def test_one_in_doubt(db: perdure.Database, clock: FakeClock) -> None:
    found = run(db, "send", clock)
    said = "It ended with ConnectionError: the line is dead."
    expected = f'send(parcel="P-1") was started and nobody knows whether it happened. {said}'
    assert (found.line, found.severity, found.do) == (expected, "act", "resolve")
    with db.session("s") as s:
        effect = s.effects()[0]["id"]
    db.post_outcome("s", effect, "it arrived")
    assert why(db, "s").line.startswith("The outcome of send has arrived")


def test_one_that_waits_for_a_result(db: perdure.Database, clock: FakeClock) -> None:
    found = run(db, "render", clock)
    assert "its result comes later" in found.line
    assert (found.severity, found.do) == ("wait", "outcome")


def test_one_that_sleeps(db: perdure.Database, clock: FakeClock) -> None:
    db.wake("s", delay="2h", message="up")
    found = run(db, "hello", clock)
    assert (found.line, found.severity, found.do) == ("It sleeps, and is due in 2 h.", "act", "worker")
    beat(db)
    assert why(db, "s") == Why("It sleeps, and is woken in 2 h.", "Nothing to do.", "wait")
    clock.advance(3 * 3_600_000)
    assert why(db, "s").line.startswith("A timer is due")


def test_one_that_failed(db: perdure.Database, clock: FakeClock) -> None:
    found = run(db, "fail", clock)
    assert found.line == (
        "The last run failed: ModelError: it said nothing sensible. It has got no further since step 1, where the "
        "model is to be asked next."
    )
    assert (found.severity, [action.name for action in found.actions]) == ("act", ["run", "retry"])


def test_one_that_failed_and_is_tried_again(db: perdure.Database, clock: FakeClock) -> None:
    run(db, "fail", clock)
    beat(db)
    board = board_of(db)
    board.put([NewWork("s", "desk")])
    board.claim("w", ("desk",), 1, clock.wall())
    board.rest("w", [Rest("s", 0, failed=True, due=clock.wall() + 30_000)], clock.wall())
    found = why(db, "s")
    assert found.line.startswith(
        "The last run failed: ModelError: it said nothing sensible. It has got no further since step 1, "
    )
    assert "That was a moment ago." in found.line
    assert (found.next, found.severity) == ("It is tried again in 30 s.", "wait")
    clock.advance(31_000)
    board.claim("w", ("desk",), 1, clock.wall())
    board.rest("w", [Rest("s", 0, failed=True, due=clock.wall() + 30_000)], clock.wall())
    line = why(db, "s").line
    assert "it said nothing sensible. It was tried 2 times" in line, "no worker died of it"
    assert "died" not in line


def test_one_that_nobody_tries_any_more(db: perdure.Database, clock: FakeClock) -> None:
    run(db, "fail", clock)
    beat(db)
    board = board_of(db)
    board.put([NewWork("s", "desk")])
    board.claim("w", ("desk",), 1, clock.wall())
    board.rest("w", [Rest("s", 2, failed=True, park="failed 5 times: it is broken")], clock.wall())
    found = why(db, "s")
    assert found.line == (
        "No worker takes it any more: failed 5 times: it is broken. It has got no further since step 1, where the "
        "model is to be asked next. It failed last at step 1: ModelError: it said nothing sensible."
    )
    assert found.do == "retry"


def test_one_that_a_person_has_paused(db: perdure.Database, clock: FakeClock) -> None:
    run(db, "hello", clock)
    board_of(db).put([NewWork("s", "desk")])
    board_of(db).change(Filter(sessions=("s",)), "pause", clock.wall())
    assert why(db, "s").do == "unpause"


def test_one_whose_agent_is_held(db: perdure.Database, clock: FakeClock) -> None:
    run(db, "hello", clock)
    db.post("s", "more")
    board_of(db).put([NewWork("s", "desk")])
    board_of(db).hold("desk", True)
    assert why(db, "s").do == "unhold"


def test_one_that_stopped_at_a_limit(db: perdure.Database, clock: FakeClock) -> None:
    found = run(db, "hello", clock, max_turns=0)
    assert found.line.startswith("It stopped at a limit")
    assert found.do == "run"


def test_one_that_was_cancelled(db: perdure.Database, clock: FakeClock) -> None:
    run(db, "hello", clock)
    db.post("s", "and more")
    db.cancel("s", by="ana", reason="enough")
    found = run(db, None, clock)
    assert found.line == "It was cancelled by ana: enough."


def test_one_that_was_closed(db: perdure.Database, clock: FakeClock) -> None:
    run(db, "hello", clock)
    with db.session("s") as s:
        s.close()
    assert why(db, "s").do == "reopen"


def test_one_that_a_program_closed_is_opened_again_by_the_program(db: perdure.Database) -> None:
    with db.session("s") as s:
        s.commit()
        s.close()
    (action,) = why(db, "s").actions
    assert action.library == "db.session('s', reopen=True)"


def test_one_that_is_over(db: perdure.Database, clock: FakeClock) -> None:
    with db.session("s", ttl=60) as s:
        s.commit()
    clock.advance(3_600_000)
    assert why(db, "s").line.startswith("Its time ran out 59 min ago")
    db.sweep()
    assert why(db, "s").line == "It is gone: expired."


def test_one_whose_time_is_over_with_a_call_in_doubt_is_kept_and_says_so(
    db: perdure.Database, clock: FakeClock
) -> None:
    run(db, "send A-1", clock)
    clock.advance(30 * 86_400_000)
    found = why(db, "s")
    assert found.line.startswith("send(parcel=")
    assert "Its time ran out 23 d ago: it is kept until that is settled." in found.line
    assert (found.severity, found.do) == ("act", "resolve")


def test_one_that_was_closed_or_cancelled_with_a_call_in_doubt_says_so_when_its_time_is_over(
    db: perdure.Database, clock: FakeClock
) -> None:
    run(db, "send A-1", clock)
    standing(db, "cancelled", clock)
    assert (why(db, "s").severity, why(db, "s").do) == ("act", "resolve")
    clock.advance(30 * 86_400_000)
    found = why(db, "s")
    assert "it is kept until what became of send(parcel=" in found.line
    assert (found.severity, found.do) == ("act", "resolve")
    with db.session("s") as s:
        s.close()
    clock.advance(30 * 86_400_000)
    found = why(db, "s")
    assert (found.severity, found.do) == ("act", "reopen"), "it is resolved when it is open again"


def standing(db: perdure.Database, status: str, clock: FakeClock) -> None:
    """A session of the agent with a status, which nobody holds."""

    async def work() -> None:
        async with perdure.open_async(db.url, clock=clock) as other, other.session("s", reopen=True) as s:
            s.journal.settings.agent = "desk"
            await s.driver.drive(s.journal.write(Kind.COMMIT, status=status))

    asyncio.run(work())


def test_one_that_is_worked_on(db: perdure.Database, clock: FakeClock) -> None:
    standing(db, Status.RUNNING, clock)
    with running_agent(), db.session("s"):
        found = why(db, "s")
    assert "works on it: the model is being asked" in found.line
    assert found.severity == "wait"
    with db.session("s"):
        found = why(db, "s")
    assert "has it open without running its agent" in found.line
    assert (found.severity, found.do) == ("act", "worker")


def test_one_that_was_put_down_in_the_middle(db: perdure.Database, clock: FakeClock) -> None:
    standing(db, Status.RUNNING, clock)
    found = why(db, "s")
    assert found.line == "It stands in the middle of its work, and nobody works on it."
    assert (found.severity, found.do) == ("act", "worker")
    assert "No worker serves agent desk" in found.next
    beat(db)
    board_of(db).put([NewWork("s", "desk")])
    assert why(db, "s").line.endswith("and it waits for a worker.")


def test_one_with_a_message(db: perdure.Database, clock: FakeClock) -> None:
    run(db, "hello", clock)
    db.post("s", "more")
    beat(db)
    board_of(db).put([NewWork("s", "desk")])
    found = why(db, "s")
    assert (found.line, found.severity) == ("1 message waits in its inbox, and it waits for a worker.", "wait")


def test_one_that_workers_of_another_version_may_go_on_with(db: perdure.Database, clock: FakeClock) -> None:
    run(db, "hello", clock)
    db.post("s", "more")
    board = board_of(db)
    for name in ("old", "new"):
        board.beat(WorkerRow(name, "host", 1, name, ("desk",), 10))
    board.put([NewWork("s", "desk")])
    which = "version '1' of agent desk, which has left the session, or from its schema."
    left = f"could not go on with it: no call is open in it, and its program does not go on from {which}"
    in_the_end = "Nothing to do, unless workers of no version can: then it is parked in the end."
    for version in ("old", "new"):
        board.claim(version, ("desk",), 1, clock.wall(), version=version)
        due = clock.wall() + 30_000 if version == "new" else None
        board.rest(version, [Rest("s", 0, again=due is None, due=due, avoid_version=version)], clock.wall())
        found = why(db, "s")
        waits = "it waits for a worker" if due is None else "a worker looks at it in 30 s"
        assert found.line == f"1 message waits in its inbox, and {waits}. One of version {version} {left}"
        assert (found.next, found.severity) == (in_the_end, "wait")
    board.leave("old")
    assert "have agent desk cannot go on with it, version new: no call is open in it" in why(db, "s").line


def test_every_status_has_an_answer(db: perdure.Database, clock: FakeClock) -> None:
    for status in Status:
        standing(db, status, clock)
        found = why(db, "s")
        assert found.line.endswith((".", "…")), status
        assert found.next, status
        assert found.severity in ("ok", "wait", "act"), status


def test_one_that_is_paused_and_parked_needs_both(db: perdure.Database, clock: FakeClock) -> None:
    run(db, "fail", clock)
    beat(db)
    board = board_of(db)
    board.put([NewWork("s", "desk")])
    board.claim("w", ("desk",), 1, clock.wall())
    board.rest("w", [Rest("s", 0, failed=True, park="it is broken")], clock.wall())
    board.change(Filter(sessions=("s",)), "pause", clock.wall())
    found = why(db, "s")
    assert (found.next, found.do) == ("Unpause it. Then retry it: it is parked, too.", "unpause")
    board.hold("desk", True)
    found = why(db, "s")
    both = "Then unpause it: a person has paused it, too. Then retry it: it is parked, too."
    assert (found.next, found.do) == (f"Let the agent go on again. {both}", "unhold")


def test_one_whose_worker_has_died_is_counted_before_anybody_takes_it_over(
    db: perdure.Database, clock: FakeClock
) -> None:
    run(db, "hello", clock)
    standing(db, "running", clock)
    board = board_of(db)
    board.put([NewWork("s", "desk")])
    assert board.claim("dead", ("desk",), 1, clock.wall())
    assert "died or failed" not in why(db, "s").line
    # Nobody is there to see that it is silent.
    clock.advance(SILENT)
    assert "died or failed 1 time at the same place" in why(db, "s").line


def test_a_program_that_works_on_it_asks_no_model(db: perdure.Database) -> None:
    def work(run: perdure.Session) -> None:
        lines.append(why(db, "p").line)
        run.vars["a"] = 1
        run.commit()
        lines.append(why(db, "p").line)
        run.call(look_at, 1)

    @tool(read=True)
    def look_at(n: int) -> int:
        lines.append(why(db, "p").line)
        return n

    lines: list[str] = []
    with db.session("p") as s:
        s.run("nightly", work)
    assert len(lines) == 3
    for line in lines:
        assert line.endswith(" works on it: run nightly is under way."), line
