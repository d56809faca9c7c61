"""A message that the provider refuses: named by why, taken back or changed, and the session goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, Gone, RequestRefused, ScriptedModel, tool
from perdure.agent.models.scripted import calls
from perdure.agent.replay.replay import replay
from perdure.errors import ContextTooLong
from perdure.fleet.board import board_of
from perdure.protocols import Rest, WorkerRow

if TYPE_CHECKING:
    from pathlib import Path


@tool(read=True)
def look(at: str) -> str:
    """Look at something."""
    return "seen"


def script(request: Any) -> Any:
    """Refuses what is forbidden at once; what is sly once it was looked at."""
    said = " ".join(str(m.get("content")) for m in request.messages if m["role"] == "user")
    if "forbidden" in said:
        raise RequestRefused("the provider answered 400: forbidden contents")
    if "huge" in said:
        raise ContextTooLong("the provider answered 413: too large")
    last = request.messages[-1]
    if "sly" in said and last["role"] == "tool":
        raise RequestRefused("the provider answered 400: sly contents")
    return calls(("look", {"at": "it"})) if "sly" in said and last["role"] == "user" else f"to {last['content']}"


desk = Agent("desk", model=ScriptedModel(script), tools=[look])


def run(url: str, message: str | None = None, key: str | None = None, **options: Any) -> perdure.RunResult:
    return desk.run_sync(url, session="s", message=message, key=key, **options)


@pytest.mark.parametrize(("words", "error"), [("forbidden", "RequestRefused"), ("huge", "ContextTooLong")])
@pytest.mark.parametrize("how", ["withdraw", "edit"])
def test_it_is_named_and_the_session_goes_on_without_it(tmp_path: Path, how: str, words: str, error: str):
    url = f"sqlite:///{tmp_path}/a.db"
    assert run(url, "hello", "k0").ok
    assert run(url, words, "k1").status == "failed"
    # What is said since then is refused with it, and is not suspected.
    assert run(url, "and this", "k2").status == "failed"
    with perdure.open(url) as db:
        found = perdure.why(db, "s")
        assert error in found.line
        assert f'message "k1" in it: "{words}"' in found.line
        assert found.actions[0][:3] == ("withdraw", "s", "k1")
        assert [(m.key, m.taken_at) for m in db.inbox("s")] == [("k1", None), ("k2", None)]
        done = db.withdraw("s", "k1", by="eve") if how == "withdraw" else db.edit("s", "k1", "well", by="eve")
        assert (done.new, done.handover.unserved) == (True, True)
        # The summary of a window that was cut is work of an open run.
        assert db.look("s").status == ("idle" if words == "forbidden" else "running")
    ended = run(url)
    assert (ended.status, ended.text) == ("done", "to and this")
    asked = [m["content"] for m in perdure_messages(url) if m["role"] == "user"]
    assert asked == ["hello", *(["well"] if how == "edit" else []), "and this"]
    # Whoever says it again by its key is told what became of it.
    if how == "withdraw":
        with pytest.raises(Gone, match="eve withdrew it"):
            run(url, words, "k1")
    else:
        assert run(url, words, "k1").repeated
    assert [m for m in perdure_messages(url) if m["role"] == "user"][1:][-1]["content"] == "and this"


def perdure_messages(url: str) -> list[Any]:
    with perdure.open(url) as db:
        return db.read("s").plain()["messages"]


@pytest.mark.parametrize("how", ["withdraw", "edit"])
def test_one_that_a_run_has_taken_leaves_the_conversation(tmp_path: Path, how: str):
    url = f"sqlite:///{tmp_path}/a.db"
    assert run(url, "hello", "k0").ok
    assert run(url, "sly", "k1").status == "failed"
    with perdure.open(url) as db:
        (one,) = db.inbox("s")
        # The answer that made the call is what took it.
        assert (one.key, one.taken_at, one.body["content"]) == ("k1", 2, "sly")
        assert perdure.why(db, "s").actions[0][:3] == ("withdraw", "s", "k1")
        if how == "withdraw":
            assert [db.withdraw("s", "k1", by="eve").new for _ in range(2)] == [True, False]
        else:
            assert [db.edit("s", "k1", "look", by="eve").new for _ in range(2)] == [True, False]
        assert [m.edited_by for m in db.inbox("s")] == ([] if how == "withdraw" else ["eve"])
        # What it did stays, and so does the history.
        assert db.read("s", at=2).messages[2]["content"] == "sly"
        assert db.verify("s").findings == ()
    assert run(url).text == "to seen"
    if how == "withdraw":
        with pytest.raises(Gone, match="eve withdrew"):
            run(url, key="k1")
    else:
        assert run(url, key="k1").text == "to seen"

    async def again() -> bool:
        async with perdure.open_async(url) as db:
            return (await replay(db, "s", agent=desk)).identical

    assert asyncio.run(again())


def test_workers_try_it_again_although_they_had_given_up(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/a.db"
    with perdure.open(url) as db:
        perdure.submit(db, "s", "forbidden", agent="desk", key="k1")
        board, now = board_of(db), db.kernel.clock.wall()
        board.beat(WorkerRow("w", "host", 1, "v", ("desk",), 1))
        (work,) = board.claim("w", ["desk"], 1, now)
        run(url, claimed=True)
        board.rest("w", [Rest("s", work.step, failed=True, park="it failed 10 times")], now)
        found = perdure.why(db, "s")
        assert (found.severity, found.actions[0].name) == ("act", "withdraw")
        db.post("s", "hello", key="k2")
        assert db.withdraw("s", "k1", by="eve").handover.to == "worker"
        assert [w.session for w in board.claim("w", ["desk"], 1, now)] == ["s"]
        assert run(url, claimed=True).text == "to hello"
