"""Streaming: deltas are provisional until committed or retracted, in this process and in others."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.agent import live_answers
from perdure.agent.agent import Agent
from perdure.agent.live_answers import Feed, seal_pieces
from perdure.agent.models import Answer, Delta
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.agent.session_stream import Event, Piece, SessionReader, follow, live_of, open_pieces
from perdure.errors import ModelUnavailable
from perdure.stores.live import FolderLive
from tests.agent.worker import WORDS, start
from tests.agent.working import by_turn, opened, play
from tests.store_urls import STORES, url_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure.agent.models import Request


@perdure.tool(read=True)
def look(what: str) -> str:
    """Look something up."""
    return f"{what} is fine"


def text_seen(events: list[Event]) -> str:
    """What a screen shows in the end: deltas by their offsets, thrown away when retracted, settled when committed."""
    settled: list[str] = []
    shown = ""
    for e in events:
        if e.kind == "delta":
            assert e.data["offset"] == len(shown)
            shown += e.data["text"]
        elif e.kind == "retracted":
            shown = ""
        elif e.kind == "committed":
            assert e.data["text"].startswith(shown)
            settled.append(e.data["text"])
            shown = ""
    assert shown == ""
    return "".join(settled)


def test_a_run_is_told_as_it_happens(tmp_path: Path):
    agent = Agent("a", model=ScriptedModel(by_turn(calls(("look", {"what": "it"})), "it is fine indeed")), tools=[look])

    async def work() -> list[Event]:
        async with opened(tmp_path) as db:
            return [e async for e in agent.stream(db, session="s", message="go")]

    events = play(work())
    assert [e.kind for e in events] == ["committed", "call", "outcome", *["delta"] * 4, "committed", "result"]
    assert {(e.data["step"], e.data["attempt"]) for e in events if e.kind == "delta"} == {(3, 2)}
    assert text_seen(events) == "it is fine indeed" == events[-1].data["result"].text


class Stumbling:
    """A model whose first attempt breaks off in the middle, as the client tells it or as an error."""

    name = "stumbling"

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    async def answer(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Answer:
        assert on_delta is not None
        on_delta(Delta(text="I thi"))
        if self._fails:
            raise ModelUnavailable("cut")
        on_delta(Delta(restart=True))
        on_delta(Delta(text="Here"))
        return Answer({"role": "assistant", "content": "Here"})

    async def close(self) -> None:
        """Nothing to release."""


def test_an_attempt_that_breaks_off_is_retracted(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:
            agent = Agent("a", model=Stumbling(fails=False))
            events = [e async for e in agent.stream(db, session="s", message="go")]
            kinds = ["delta", "retracted", "delta", "committed", "result"]
            assert [e.kind for e in events] == kinds
            assert [e.data.get("attempt") for e in events][:4] == [1, 1, 2, 2]
            assert text_seen(events) == "Here"
            agent = Agent("a", model=Stumbling(fails=True))
            events = [e async for e in agent.stream(db, session="t", message="go")]
            assert [e.kind for e in events] == ["delta", "retracted", "ended", "result"]

    play(work())


def test_leaving_the_stream_ends_the_run_which_can_be_resumed(tmp_path: Path):
    agent = Agent("a", model=ScriptedModel(lambda _: "one two three", delay=0.2))

    async def work() -> None:
        async with opened(tmp_path) as db:
            stream = agent.stream(db, session="s", message="go")
            assert (await anext(stream)).kind == "delta"
            await stream.aclose()
            assert (await agent.run(db, session="s")).text == "one two three"

    play(work())


def test_a_slow_listener_gets_deltas_put_together():
    async def work() -> None:
        feed = Feed()
        for i in range(10_000):
            data = {"step": 1, "attempt": 1, "offset": i, "text": "x", "delta": None}
            feed.put(Event("delta", "s", 0, data))
        feed.end()
        events: list[Event] = []
        while (event := await feed.get()) is not None:
            events.append(event)
        assert len(events) <= Feed.MANY
        assert sum(len(e.data["text"]) for e in events) == 10_000

    play(work())


# -- from another process ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STORES)
def test_pieces_go_through_every_store_and_are_forgotten(tmp_path: Path, kind: str):
    url = url_of(kind, tmp_path)
    with perdure.open(url) as one, perdure.open(url) as other:
        here, there = live_of(one.kernel), live_of(other.kernel)
        assert here is not None
        assert there is not None
        assert there.poll("s", "") == ([], "")
        here.publish("s", b"a")
        here.publish("s", b"b\0")
        here.publish("t", b"other")
        pieces, cursor = there.poll("s", "")
        assert pieces == [b"a", b"b\0"]
        assert there.poll("s", cursor) == ([], cursor)
        here.publish("s", b"c")
        pieces, cursor = there.poll("s", cursor)
        assert pieces == [b"c"]
        for _ in range(20):
            # Said within the same millisecond or not, it is new to who has heard what was before.
            here.clear("s")
            here.publish("s", b"new")
            pieces, cursor = there.poll("s", cursor)
            assert pieces == [b"new"]
        here.clear("s")
        here.clear("s")
        for _ in range(300):
            here.publish("s", bytes(10_000))
        assert sum(map(len, there.poll("s", "")[0])) <= 1 << 20
        # Nothing of it is in the history.
        assert one.sessions() == []


def test_a_file_that_was_made_just_now_says_nothing_yet(tmp_path: Path):
    said = FolderLive(str(tmp_path))
    said.publish("s", b"a")
    path = next(tmp_path.iterdir())
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        pieces, cursor = said.poll("s", "")
        assert pieces == []
        path.write_bytes(whole)
        assert said.poll("s", cursor)[0] == [b"a"]


def test_a_piece_that_was_altered_is_not_shown(tmp_path: Path):
    with perdure.open("memory://", keys=b"k" * 32) as db:
        piece = Piece(7, 1, 1, 0, "hello")
        sealed = seal_pieces(db.kernel, "s", [piece])
        assert open_pieces(db.kernel, "s", sealed) == [piece]
        assert open_pieces(db.kernel, "t", sealed) == []
        for at in range(len(sealed)):
            assert open_pieces(db.kernel, "s", sealed[:at]) == []
            changed = bytearray(sealed)
            changed[at] ^= 1
            assert open_pieces(db.kernel, "s", bytes(changed)) == []


def test_a_way_that_is_broken_fails_nothing(tmp_path: Path):
    (tmp_path / "agents.db-live").write_text("no folder")
    agent = Agent("a", model=ScriptedModel(lambda _: "one two three", delay=0.2))

    async def work() -> None:
        async with opened(tmp_path) as db:
            end = await agent.run(db, session="s", message="go", live=True)
            assert (end.status, end.text) == ("done", "one two three")
            assert "told nothing more" in end.notes[0]
            assert [e.kind async for e in follow(db, "s", after=0)] == ["committed", "ended"]

    play(work())


def test_a_way_that_hangs_slows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    free = threading.Event()

    class Hanging:
        def publish(self, session: str, piece: bytes) -> None:
            free.wait(60)

        clear = poll = publish

    monkeypatch.setattr(live_answers, "live_of", lambda _: Hanging())
    monkeypatch.setattr(live_answers, "BATCH", 0.0)
    agent = Agent("a", model=ScriptedModel(lambda _: "word " * 1000, delay=0.01))

    async def work() -> None:
        async with opened(tmp_path) as db:
            assert (await agent.run(db, session="s", message="go", live=True)).ok

    try:
        play(asyncio.wait_for(work(), 30))
    finally:
        free.set()


async def _seen(url: str, ready: asyncio.Event, events: list[Event], retracted: asyncio.Event, heard: Path) -> None:
    async with perdure.open_async(url) as db:
        ready.set()
        async for event in follow(db, "s", poll=0.02):
            events.append(event)
            if event.kind == "retracted":
                retracted.set()
            elif event.kind == "delta":
                (heard / str(len(events))).touch()


def test_what_was_seen_of_another_attempt_is_retracted_by_the_commit(tmp_path: Path):
    """The worker that commits tells nothing on the way."""
    agent = Agent("a", model=ScriptedModel(lambda _: "Here I am"))

    async def work() -> None:
        async with opened(tmp_path) as db:
            reader = SessionReader(db.kernel, "s")
            reader.begin(None)
            async with db.session("s") as s:
                way = live_of(db.kernel)
                assert way is not None
                way.publish("s", seal_pieces(db.kernel, "s", [Piece(s.fence or 0, 1, 1, 0, "I thi")]))
                assert [e.kind for e in reader.read()] == ["delta"]
                assert reader.ended() is None
            await agent.run(db, session="s", message="go")
            events = [*reader.read(), reader.ended()]
            assert [e.kind for e in events if e is not None] == ["retracted", "committed", "ended"]
            assert events[1] is not None
            assert events[1].data["text"] == "Here I am"

    play(work())


def test_a_reader_elsewhere_sees_what_was_committed_when_the_worker_is_killed_in_mid_answer(tmp_path: Path):
    url, heard = url_of("sqlite", tmp_path), tmp_path / "heard"
    heard.mkdir()

    async def work() -> list[Event]:
        ready = asyncio.Event()
        events: list[Event] = []
        retracted = asyncio.Event()
        reading = asyncio.create_task(_seen(url, ready, events, retracted, heard))
        await ready.wait()
        for attempt, die_after in (("first", 20), ("second", 25), ("third", -1)):
            worker = start(tmp_path, scene="talk", url=url, attempt=attempt, die_after=die_after, heard=str(heard))
            out, _ = await asyncio.to_thread(worker.communicate)
            assert worker.returncode == (-signal.SIGKILL if die_after >= 0 else 0), out
            if die_after >= 0:
                # Nobody has taken over yet, and the reader knows all the same.
                await asyncio.wait_for(retracted.wait(), 60)
                retracted.clear()
        await asyncio.wait_for(reading, 60)
        return events

    events: list[Any] = play(work())
    whole = "third " + "".join(WORDS)
    assert text_seen(events) == whole
    retracted = [e.data["worker"] for e in events if e.kind == "retracted"]
    assert len(retracted) == 2
    assert len(set(retracted)) == 2
    assert sum(e.kind == "delta" for e in events) > 6
    assert events[-1].kind == "ended"

    async def committed() -> str:
        async with perdure.open_async(url) as db:
            return (await db.read("s")).messages[-1]["content"]

    assert play(committed()) == whole
