"""A worker inside this process: how it puts sessions down that are not its own to go on with, and how it goes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import perdure
from perdure import Agent, ScriptedModel, tool, tool_migration
from perdure.agent.children import handoff
from perdure.agent.models import Request, text_of
from perdure.agent.models.scripted import calls
from perdure.errors import ModelError, Unavailable
from perdure.fleet import worker as fleet_worker
from perdure.fleet.board import submit
from perdure.fleet.status import steer
from perdure.fleet.why.reading import why
from perdure.fleet.worker import Settings, Worker, version_of
from perdure.protocols import Rest, WorkerRow
from perdure.session.handover import hand_over
from perdure.session.tools import Done, Later
from perdure.stores.sqlite.board import SqliteBoard
from tests.fleet.boarding import work_of
from tests.fleet.harness import LIMIT, answered, board, is_idle
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from perdure.fleet.worker import Engine


def _work(
    url: str,
    agents: Sequence[Agent],
    what: Callable[[Worker], Any],
    *,
    schema: str = "1.0.0",
    lease: float = 1.0,
    engine: Engine | None = None,
    tries: int = 10,
    **options: Any,
) -> Worker:
    """Run a worker until something is so; it has gone by then."""

    async def main() -> Worker:
        async with perdure.open_async(url, lease_ttl=lease, schema=schema, **options) as db:
            worker = Worker(db, agents, Settings(concurrency=2, most_tries=tries))
            worker.engine = engine
            running = asyncio.create_task(worker.run())
            try:
                async with asyncio.timeout(LIMIT):
                    while not await asyncio.to_thread(what, worker):
                        assert not running.done()
                        await asyncio.sleep(0.02)
            finally:
                worker.stop()
                await running
            return worker

    return asyncio.run(main())


def _desk() -> Agent:
    return Agent("desk", model=ScriptedModel(lambda request: f"you said {text_of(request.messages[-1])}"))


class _Slow:
    """An engine that takes its time to end, as one does whose server answers no more."""

    async def run(self, on_hint: Callable[[str], Awaitable[None]], stop: asyncio.Event) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1.5)

    async def tidy(self) -> None:
        """There is nothing to tidy."""

    async def close(self) -> None:
        """There is nothing to close."""


def test_a_worker_that_has_gone_gives_no_sign_of_life_any_more(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db:
        submit(db, "s", "hello", agent="desk")
        _work(url, [_desk()], lambda _: is_idle(db, ["s"]), lease=0.4, engine=_Slow())
        assert board(db).workers() == []


def test_a_result_is_asked_for_by_whoever_has_the_conversation_by_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("perdure.fleet.worker.POLL", 50)
    asked: list[Any] = []

    def poll(handle: Any) -> Done | None:
        asked.append(handle)
        return Done("rendered") if len(asked) > 2 else None

    @tool(poll=poll)
    def render(scene: str) -> Later:
        """Render a scene."""
        return Later(scene)

    def artist(request: Request) -> Any:
        last = request.messages[-1]
        return "it is done" if text_of(last) == "rendered" else calls(("render", {"scene": "sea"}))

    painter = Agent("painter", model=ScriptedModel(artist), tools=[render])
    front = Agent("front", model=ScriptedModel(lambda _: calls(("hand_to_painter", {}))), tools=[handoff(painter)])
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db:
        submit(db, "s", "paint the sea", agent="front")
        _work(url, [front], lambda _: is_idle(db, ["s"]))
        assert answered(db, "s") == ["it is done"]
    assert asked == ["sea"] * 3


def test_a_conversation_that_was_handed_to_an_agent_of_other_workers_becomes_theirs(tmp_path: Path):
    painter = Agent("painter", model=ScriptedModel(lambda _: "here is the sea"))
    front = Agent("front", model=ScriptedModel(lambda _: calls(("hand_to_painter", {}))), tools=[handoff("painter")])
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db:
        submit(db, "s", "paint the sea", agent="front", owner="ana", priority=7)
        _work(url, [front], lambda _: work_of(board(db), "s").agent == "painter")
        work = work_of(board(db), "s")
        assert (work.queued, work.owner, work.priority, work.parked) == (True, "ana", 7, "")
        _work(url, [painter], lambda _: is_idle(db, ["s"]))
        assert answered(db, "s") == ["here is the sea"]
        assert db.look("s").agent == "painter"


def test_a_conversation_that_was_handed_on_is_held_with_the_agent_that_has_it(tmp_path: Path):
    def said(request: Request) -> Any:
        last = request.messages[-1]
        return f"painted: {text_of(last)}" if last["role"] == "user" else "here is the sea"

    painter = Agent("painter", model=ScriptedModel(said))
    front = Agent("front", model=ScriptedModel(lambda _: calls(("hand_to_painter", {}))), tools=[handoff(painter)])
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db:
        submit(db, "s", "paint the sea", agent="front", owner="ana", priority=7)
        _work(url, [front, painter], lambda _: is_idle(db, ["s"]) and work_of(board(db), "s").agent == "painter")
        assert (work_of(board(db), "s").owner, work_of(board(db), "s").priority) == ("ana", 7)
        board(db).hold("painter", True)
        db.post("s", "more")
        assert "All sessions of agent painter are held" in why(db, "s").line
        assert board(db).claim("w", ("front", "painter"), 9, 0) == []


def test_a_session_of_a_schema_that_it_does_not_know_is_left_to_those_who_do(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url, schema="2.0.0") as db:
        submit(db, "s", "hello", agent="desk")
        with db.session("s") as s:
            s.vars["shape"] = "new"
            s.commit()
        step = db.look("s").heads[0].step
        old = _work(url, [_desk()], lambda _: work_of(board(db), "s").avoid_version)
        assert old.done == 0
        work = work_of(board(db), "s")
        assert (work.queued, work.tries, work.parked) == (True, 0, "")
        assert db.look("s").heads[0].step == step
        assert board(db).claim("w", ("desk",), 9, 0, version=old.version) == []
        new = _work(url, [_desk()], lambda _: is_idle(db, ["s"]), schema="2.0.0")
        assert new.version != old.version
        assert answered(db, "s") == ["you said hello"]


def test_a_program_that_declares_another_migration_is_another_version(tmp_path: Path):
    agents = [_desk()]
    with perdure.open(url_of("sqlite", tmp_path)) as db:
        before = version_of(agents, db.kernel)
        assert version_of(agents, db.kernel) == before

        @tool_migration("tool_of_putting_down", "1", "2")
        def _(arguments: dict[str, Any]) -> None:
            arguments["more"] = True

        assert version_of(agents, db.kernel) != before


def test_a_session_that_is_retried_keeps_its_priority(tmp_path: Path):
    with perdure.open(url_of("sqlite", tmp_path)) as db:
        submit(db, "s", "hello", agent="desk", priority=7)
        steer(db, ["s"], "retry")
        assert work_of(board(db), "s").priority == 7


def test_an_error_of_the_program_is_told_by_the_session_itself(tmp_path: Path):
    def broken(request: Request) -> str:
        raise KeyError("customer")

    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db:
        submit(db, "s", "hello", agent="desk")
        agent = Agent("desk", model=ScriptedModel(broken))
        _work(url, [agent], lambda _: db.look("s").error == "KeyError" and work_of(board(db), "s").tries > 1)
        board(db).beat(WorkerRow("w", "host", 1, "v", ("desk",), 10))
        found = why(db, "s")
    assert "KeyError" in found.line, found
    assert "customer" in found.line
    assert found.severity in ("wait", "failing")


def test_what_fails_at_one_place_and_then_at_another_has_failed_once_at_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("perdure.fleet.worker.wait_before", lambda _: 0)
    failed: list[int] = []

    @tool(read=True)
    def look_up(order: str) -> str:
        """Look an order up."""
        return "paid"

    def script(request: Request) -> Any:
        place = len(request.messages)
        if place not in failed:
            failed.append(place)
            raise ModelError("it said nothing sensible")
        return "it is paid" if request.messages[-1]["role"] == "tool" else calls(("look_up", {"order": "A"}))

    agent = Agent("desk", model=ScriptedModel(script), tools=[look_up])
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db:
        submit(db, "s", "is A paid?", agent="desk")
        _work(url, [agent], lambda _: is_idle(db, ["s"]) or work_of(board(db), "s").parked, tries=2)
        assert work_of(board(db), "s").parked == ""
        assert answered(db, "s") == ["it is paid"]
    assert len(failed) == 2


def test_a_session_that_kills_whoever_reads_it_is_parked_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def killed(*_: Any) -> int:
        raise AssertionError("it was read")

    monkeypatch.setattr("perdure.fleet.worker.place_of", killed)
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db:
        submit(db, "s", "hello", agent="desk")
        for number in range(3):
            board(db).claim(f"w{number}", ("desk",), 1, 0)
            board(db).leave(f"w{number}")
        _work(url, [_desk()], lambda _: work_of(board(db), "s").parked, tries=2)
        assert work_of(board(db), "s").parked == "its worker died or failed 3 times at the same place"
        assert db.look("s").pending == 1


def _shop(*tools: Any) -> Agent:
    def script(request: Request) -> Any:
        last = request.messages[-1]
        return "it is booked" if last["role"] == "tool" else calls(("reserve", {"room": "R2"}))

    return Agent("desk", model=ScriptedModel(script), tools=tools)


def test_only_workers_that_cannot_go_on_with_it_are_there_and_everybody_says_so(tmp_path: Path):
    @tool(approve=True)
    def reserve(room: str) -> str:
        """Reserve a room."""
        return room

    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db:
        submit(db, "s", "a room", agent="desk")
        (approval,) = _shop(reserve).run_sync(url, session="s").approvals
        db.approve("s", approval.id, by="eve")

        def refused(worker: Worker) -> bool:
            if not work_of(board(db), "s").avoid_version:
                return False
            found, handed = why(db, "s"), hand_over(db.kernel, db.look("s"))
            assert found.line.startswith("The decision is in. The workers that have agent desk cannot go on with it")
            assert (found.severity, [a.name for a in found.actions]) == ("act", ["worker", "run"])
            assert handed.to == "nobody"
            assert "cannot go on with it" in handed.words
            return True

        assert _work(url, [_shop()], refused).done == 0
        # What it says to do helps.
        _work(url, [_shop(reserve)], lambda _: is_idle(db, ["s"]))
        assert answered(db, "s")[-1] == "it is booked"


def test_workers_of_two_versions_do_not_hand_each_other_for_ever_what_neither_can_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    @tool(approve=True)
    def reserve(room: str) -> str:
        """Reserve a room."""
        return room

    monkeypatch.setattr(fleet_worker, "FIRST", 10)
    url = url_of("sqlite", tmp_path)

    async def both(db: perdure.Database) -> None:
        async with perdure.open_async(url, lease_ttl=1.0) as handle:
            two = [Worker(handle, [_shop()], Settings(2, most_tries=2, version=version)) for version in ("1", "2")]
            running = [asyncio.create_task(worker.run()) for worker in two]
            try:
                async with asyncio.timeout(LIMIT / 3):
                    while not (await asyncio.to_thread(work_of, board(db), "s")).parked:
                        assert not any(task.done() for task in running)
                        await asyncio.sleep(0.02)
            finally:
                for worker in two:
                    worker.stop()
                await asyncio.gather(*running)

    with perdure.open(url) as db:
        submit(db, "s", "a room", agent="desk")
        (approval,) = _shop(reserve).run_sync(url, session="s").approvals
        db.approve("s", approval.id, by="eve")
        asyncio.run(both(db))
        found = why(db, "s")
        assert "no program that came by can go on with it" in found.line
        assert "retry" in [action.name for action in found.actions]
        # What it says to do helps, once there is a program that can.
        steer(db, ["s"], "retry")
        _work(url, [_shop(reserve)], lambda _: is_idle(db, ["s"]))
        assert answered(db, "s")[-1] == "it is booked"


def test_a_session_that_was_parked_and_is_run_by_hand_is_parked_no_more(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db:
        submit(db, "s", "hello", agent="desk")
        for park in ("it failed 5 times", ""):
            now = db.kernel.clock.wall()
            board(db).claim("w", ["desk"], 1, now)
            board(db).rest("w", [Rest("s", 0, failed=True, park=park, again=not park)], now)
            _desk().run_sync(url, session="s")
            assert board(db).works() == []
            assert why(db, "s").line == "It has answered everything."
            submit(db, "s", "hello", agent="desk")
        steer(db, ["s"], "pause")
        _desk().run_sync(url, session="s")
        assert work_of(board(db), "s").paused
        steer(db, ["s"], "unpause")
        _desk().run_sync(url, session="s")
        # A message is found by a worker that looks for what nobody knows of.
        db.post("s", "more")
        assert board(db).adopt() == 1


def test_who_only_gives_a_session_up_is_no_try_of_it(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db:
        submit(db, "s", "hello", agent="desk")
        for _ in range(2):
            assert board(db).claim("dead", ["desk"], 1, db.kernel.clock.wall())
            board(db).leave("dead")
        _work(url, [_desk()], lambda _: work_of(board(db), "s").parked, tries=2)
        work = work_of(board(db), "s")
        assert (work.parked, work.tries) == ("its worker died or failed 2 times at the same place", 2)


def test_who_has_just_claimed_a_session_is_not_counted_among_those_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with perdure.open(url_of("sqlite", tmp_path)) as db:
        submit(db, "s", "hello", agent="desk")
        for _ in range(2):
            assert board(db).claim("dead", ["desk"], 1, db.kernel.clock.wall())
            board(db).leave("dead")
        workers = SqliteBoard.workers

        def and_another_comes(self: SqliteBoard) -> list[WorkerRow]:
            found = workers(self)
            self.claim("new", ["desk"], 1, db.kernel.clock.wall())
            return found

        monkeypatch.setattr(SqliteBoard, "workers", and_another_comes)
        assert "died or failed 2 times" in why(db, "s").line


def test_a_run_by_hand_gives_its_result_although_the_board_cannot_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db:
        submit(db, "s", "hello", agent="desk")

    def fail(*_: Any) -> int:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(SqliteBoard, "change", fail)
    assert _desk().run_sync(url, session="s").text
    assert "the board of the fleet could not be told: the disk is full" in caplog.text


def test_why_names_the_call_under_way_when_nobody_is_left(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db:

        @tool
        def send(to: str) -> None:
            raise KeyboardInterrupt

        with db.session("s") as s, pytest.raises(KeyboardInterrupt):
            s.call(send, "ana")
        assert 'in the middle of its work: send(to="ana") has no outcome yet' in why(db, "s").line


def test_a_worker_says_from_the_first_when_it_began(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    seen: list[int] = []
    with perdure.open(url) as db:
        known = SqliteBoard.beat

        def beat(self: SqliteBoard, row: WorkerRow) -> str:
            seen.append(row.started)
            return known(self, row)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SqliteBoard, "beat", beat)
            _work(url, [_desk()], lambda _: board(db).workers())
    assert seen
    assert all(seen)


def test_a_store_that_is_locked_when_a_worker_starts_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db:
        submit(db, "s", "hello", agent="desk")
        other = apsw.Connection(url.removeprefix("sqlite:///"))
        other.execute("begin immediate")

        def has_gone_on(_: Worker) -> bool:
            if other.in_transaction and "cannot be reached" in caplog.text:
                other.execute("rollback")
            return is_idle(db, ["s"]) and answered(db, "s") == ["you said hello"]

        _work(url, [_desk()], has_gone_on, busy_timeout=0.05)
        other.close()
