"""What operators are told is so: numbers of a retry, priorities, forged messages, the system prompt, what waits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, ModelError, tool
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.fleet.board import board_of, submit
from perdure.fleet.why.reading import why
from perdure.protocols import NewWork, Rest, WorkerRow
from perdure.session.handover import work_of
from perdure.system.lease_holders import new_holder
from perdure.testing.clock import FakeClock
from tests.server.asking import Asking, asking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@tool(approve=True)
def refund(order: str) -> str:
    """Give money back."""
    return "done"


def _script(request: Any) -> Any:
    last = request.messages[-1]
    if last["role"] == "tool":
        return "Good."
    match str(last.get("content")).split(maxsplit=1)[0]:
        case "refund":
            return calls(("refund", {"order": "A-1"}))
        case "fail":
            raise ModelError("it said nothing sensible")
        case _:
            return "Hello."


agent = Agent("desk", model=ScriptedModel(_script), tools=[refund], instructions="Be brief, and never swear.")
NAMES = ("a", "b", "c", "d", "e")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def desk(tmp_path: Path, clock: FakeClock) -> Iterator[Asking]:
    with asking(tmp_path, clock=clock) as found:
        yield found


def run(desk: Asking, session: str, message: str | None) -> None:
    """Run the agent on a session."""

    async def work() -> None:
        async with perdure.open_async(desk.db.url, clock=desk.db.kernel.clock) as db:
            await agent.run(db, session=session, message=message)

    asyncio.run(work())


def form(desk: Asking, path: str, wanted: int = 303, **fields: Any) -> str:
    """Send a form; where it leads, or the page."""
    answer = desk.http.post(path, data=fields, follow_redirects=False)
    assert answer.status_code == wanted, (path, answer.status_code, answer.text[:2000])
    return answer.headers.get("location", answer.text)


def beat(desk: Asking) -> None:
    """Let there be a worker."""
    board_of(desk.db).beat(WorkerRow("w", "host", 1, "v", ("desk",), 10))


# -- a retry is counted as what it does ---


@pytest.fixture
def failed(desk: Asking) -> Asking:
    """Five sessions that have failed."""
    for name in NAMES:
        run(desk, name, "fail")
    return desk


def test_a_retry_over_http_counts_what_it_has_queued(failed: Asking) -> None:
    assert failed.post("/sessions/a/retry")["changed"] == 1
    body = {"action": "retry", "filter": {"status": "failed"}}
    assert failed.post("/bulk", body)["changed"] == 5
    assert len(board_of(failed.db).works()) == 5


def test_a_retry_in_the_console_counts_what_it_has_queued(failed: Asking) -> None:
    where = form(failed, "/bulk/do", do="retry", session=list(NAMES), by="eve")
    page = failed.http.get(where).text
    assert "Retry: 5 of 5 sessions." in page


def test_one_that_is_paused_is_not_counted_as_tried_again(failed: Asking, clock: FakeClock) -> None:
    board_of(failed.db).put([NewWork("a", "desk")])
    failed.post("/sessions/a/pause")
    assert failed.post("/sessions/a/retry")["changed"] == 0


def test_what_has_answered_everything_is_not_tried_again(desk: Asking) -> None:
    run(desk, "rests", "hello")
    assert desk.post("/sessions/rests/retry")["changed"] == 0
    body = {"action": "retry", "filter": {"sessions": ["rests"]}}
    assert desk.post("/bulk", body)["changed"] == 0
    assert desk.post("/bulk", {**body, "dry_run": True})["sessions"] == []
    assert board_of(desk.db).works() == []


def test_what_is_not_in_doubt_is_not_said_to_be_settled(desk: Asking) -> None:
    run(desk, "rests", "hello")
    body = {"action": "resolve", "verdict": "retry", "filter": {"sessions": ["rests"]}}
    assert desk.post("/bulk", {**body, "dry_run": True})["sessions"] == []


def test_after_a_retry_it_is_not_said_to_retry(failed: Asking, clock: FakeClock) -> None:
    assert [action.name for action in why(failed.db, "a").actions] == ["run", "retry"]
    failed.post("/sessions/a/retry")
    found = why(failed.db, "a")
    assert (found.do, found.severity) == ("worker", "act"), found
    beat(failed)
    assert why(failed.db, "a").severity == "wait"
    board_of(failed.db).claim("w", ("desk",), 1, clock.wall())
    assert why(failed.db, "a").severity == "wait", "a worker has it, and has not written yet"


# -- a session that crashes in a loop says so ---


def crash(desk: Asking, clock: FakeClock, times: int) -> None:
    """Workers claim it, write that they work, and die."""
    board = board_of(desk.db)
    for n in range(times):
        worker = f"w{n}"
        board.beat(WorkerRow(worker, "host", 1, "v", ("desk",), 10))
        assert board.claim(worker, ("desk",), 1, clock.wall())
        board.got(worker, "s", 0)
        clock.advance(20_000)
        board.leave(worker)


def test_one_that_kills_its_workers_is_said_to_fail(desk: Asking, clock: FakeClock) -> None:
    submit(desk.db, "s", "hello", agent="desk")
    with desk.db.session("s") as s:
        s.vars["far"] = 1
        s.commit(status="running")
    beat(desk)
    crash(desk, clock, 1)
    assert why(desk.db, "s").severity == "wait", "one worker died, which happens"
    crash(desk, clock, 3)
    beat(desk)
    found = why(desk.db, "s")
    assert found.severity == "failing", found
    assert "died or failed 4 times at the same place" in found.line
    assert "no further since step 2, " in found.line
    assert "That was 1 min ago." in found.line
    assert "after 10 tries, or as many as its workers were started with, no worker takes it any more" in found.next
    assert "No error was recorded" in found.line
    page = desk.http.get("/", params={"agent": "desk"}).text
    assert "failing, at least 3 times at the same place" in page
    assert 'class="why failing"' in desk.http.get("/session", params={"id": "s"}).text


# -- what waits is seen before it is answered ---


def test_a_message_that_waits_is_seen(desk: Asking) -> None:
    run(desk, "s", "hello")
    where = form(desk, "/session/message", id="s", message="Where is my parcel?")
    page = desk.http.get(where).text
    assert "Where is my parcel?" in page
    desk.db.wake("s", delay="2h", message="remind them")
    told = desk.get("/sessions/s/why")
    assert [(one["kind"], one["text"]) for one in told["inputs"]] == [
        ("message", "Where is my parcel?"), ("wake", "remind them"),
    ]  # fmt: skip
    run(desk, "s", None)
    assert "message waits" not in desk.http.get("/session", params={"id": "s"}).text


# -- the fleet's numbers are of one moment ---


def test_cards_and_tables_of_the_fleet_agree(desk: Asking, clock: FakeClock) -> None:
    beat(desk)
    desk.http.get("/fleet")
    for name in NAMES:
        submit(desk.db, name, "hello", agent="desk")
    page = desk.http.get("/fleet").text
    card = page.split("Waiting for a worker")[1].split("</b>")[0].rpartition(">")[2]
    row = page.split('aria-label="Agents"')[1].split("<tbody>")[1].split('<td class="num">')[1].split("<")[0]
    assert (card, row) == ("5", "5")


def test_what_a_worker_had_that_died_is_not_being_worked_on(desk: Asking) -> None:
    script = "from perdure.system.lease_holders import new_holder; print(new_holder())"
    dead = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    for name, worker in (("mine", new_holder()), ("left", dead)):
        submit(desk.db, name, "hello", agent="desk")
        assert board_of(desk.db).claim(worker, ["desk"], 1, desk.db.kernel.clock.wall())
    shown = desk.http.get("/fleet").text.split("<h2>Being worked on</h2>")[1]
    assert "id=mine" in shown
    assert "id=left" not in shown


# -- the request is shown as it was sent ---


def test_the_system_prompt_of_a_long_request_is_shown(desk: Asking) -> None:
    for n in range(40):
        run(desk, "s", f"hello {n}")
    page = desk.http.get("/session", params={"id": "s", "view": "request"}).text
    assert "Exactly what was sent" in page
    assert "Be brief, and never swear." in page
    assert "messages that come here are in the download" in page


# -- a page says only what the server has said ---


def test_an_address_cannot_make_a_page_say_anything(desk: Asking) -> None:
    run(desk, "s", "hello")
    for path in ("/", "/approvals", "/fleet", "/store"):
        assert "Your account" not in desk.http.get(path, params={"told": "Your account is locked: call 555"}).text


def test_what_was_done_is_told_once(desk: Asking) -> None:
    run(desk, "s", "hello")
    where = form(desk, "/session/message", id="s", message="more")
    assert "The message is in the inbox" in desk.http.get(where).text
    assert "The message is in the inbox" not in desk.http.get(where).text, "told to whoever has the link"


# -- priorities stay ---


@pytest.mark.parametrize("do", ["approve", "reject"])
def test_a_decision_in_the_console_keeps_the_priority(desk: Asking, clock: FakeClock, do: str) -> None:
    submit(desk.db, "s", "refund it", agent="desk", priority=7)
    beat(desk)
    board = board_of(desk.db)
    assert board.claim("w", ("desk",), 1, clock.wall())
    run(desk, "s", None)
    (request,) = desk.get("/approvals")["items"]
    board.rest("w", [Rest("s", 1)], clock.wall())
    form(desk, "/approvals", session="s", approval=request["id"], do=do, by="eve")
    work = work_of(board, "s")
    assert work is not None
    assert (work.priority, work.queued) == (7, True)


def test_a_message_for_the_fleet_keeps_the_priority_unless_told(desk: Asking) -> None:
    submit(desk.db, "s", "hello", agent="desk", priority=7)
    submit(desk.db, "s", "more", agent="desk")
    desk.post("/sessions", {"id": "s", "agent": "desk", "message": "still more"}, 201)
    work = work_of(board_of(desk.db), "s")
    assert work is not None
    assert work.priority == 7
    submit(desk.db, "s", "at leisure", agent="desk", priority=0)
    assert next(iter(board_of(desk.db).works())).priority == 0


# -- a label of the program ---


def test_a_label_is_told_and_filtered_by_everywhere(desk: Asking) -> None:
    with desk.db.session("s", owner="ana") as s:
        s.commit(label="waiting for <executive>")
    with desk.db.session("other") as s:
        s.commit()
    (found,) = desk.get("/sessions", label="waiting for <executive>")["items"]
    assert (found["id"], found["label"], found["status"]) == ("s", "waiting for <executive>", "idle")
    assert "waiting for <executive>" in desk.get("/sessions/s/why")["summary"]
    shown = "waiting for &lt;executive&gt;"
    page = desk.http.get("/", params={"label": "waiting for <executive>"}).text
    assert shown in page
    assert 'id="row-other"' not in page
    assert shown in desk.http.get("/session", params={"id": "s"}).text
