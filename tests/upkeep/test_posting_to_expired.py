"""A message to a session that has expired begins it anew, whether or not a sweep has come by, under any key."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, Busy, FunctionModel, InvalidInput
from perdure.server.app import create_app
from tests.store_urls import STORES, url_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from perdure.testing.clock import FakeClock

TOKEN = "t" * 20


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


@pytest.fixture
def db(url: str, clock: FakeClock) -> Iterator[perdure.Database]:
    with perdure.open(url, clock=clock, maintain=False) as db:
        yield db


@pytest.fixture(params=[False, True], ids=["before a sweep", "after a sweep"])
def swept(request: pytest.FixtureRequest) -> bool:
    return request.param


def take(db: perdure.Database, said: str = "") -> list[Any]:
    """Work on the session; what it is given, and takes."""
    with db.session("s", ttl=1) as s:
        found = [message.body for message in s.take()]
        s.vars["said"] = said
        s.commit()
        return found


def run_out(db: perdure.Database, clock: FakeClock) -> None:
    """Let the session's time run out: that of a server by itself."""
    while not ((row := db.look("s")) is not None and row.over):
        clock.advance(1000)
        time.sleep(0.02)


@pytest.mark.parametrize("body", ["one", "two"])
def test_under_a_key_that_it_had_in_its_earlier_life(
    db: perdure.Database, clock: FakeClock, swept: bool, body: str
) -> None:
    assert db.post("s", "one", key="k")
    assert take(db) == ["one"]
    assert not db.post("s", "one", key="k"), "while it lives, a key counts once"
    with pytest.raises(InvalidInput):
        db.post("s", "two", key="k")
    run_out(db, clock)
    if swept:
        db.sweep()
    assert db.post("s", body, key="k")
    assert [message.body for message in db.inbox("s")] == [body]
    assert not db.post("s", body, key="k"), "in its new life, too"
    with db.session("s") as s:
        assert (s.opened, s.because) == ("restarted", "expired")
    assert take(db) == [body]
    assert db.verify().findings == ()


def test_while_somebody_has_it_nothing_is_said_to_be_kept(db: perdure.Database, url: str, clock: FakeClock) -> None:
    db.post("s", "one", key="k")
    take(db)
    with perdure.open(url, clock=clock, maintain=False) as other, other.session("s", ttl=3600) as s:
        run_out(db, clock)
        with pytest.raises(Busy):
            db.post("s", "one", key="k")
        assert db.post("s", "late", key="other")
        # Whoever has it goes on with it, and then the key counts again.
        s.vars["n"] = 1
        s.commit()
        assert not db.post("s", "one", key="k")


def test_a_message_that_came_in_time_keeps_it_and_its_keys(db: perdure.Database, clock: FakeClock) -> None:
    db.post("s", "one", key="k")
    take(db)
    db.post("s", "in time", key="waits")
    run_out(db, clock)
    assert not db.post("s", "one", key="k")
    assert take(db) == ["in time"]


def test_what_is_set_aside_is_the_life_that_has_expired(db: perdure.Database, clock: FakeClock) -> None:
    db.post("s", "one", key="k")
    take(db, "then")
    run_out(db, clock)
    db.post("s", "two", key="k")
    assert [(one.session, one.life) for one in db.set_aside("s")] == [("s", 0)]
    with pytest.raises(InvalidInput, match="took another one of that key"):
        db.revive("s")


def test_an_agent_is_told_another_message_under_it(url: str, clock: FakeClock) -> None:
    agent = Agent("a", model=FunctionModel(lambda request: f"re: {request.messages[-1]['content']}"))
    with perdure.open(url, clock=clock, maintain=False) as db:

        async def say(message: str) -> perdure.RunResult:
            async with perdure.open_async(url, clock=clock, maintain=False) as its:
                return await agent.run(its, session="s", message=message, key="k", ttl=1)

        assert asyncio.run(say("one")).text == "re: one"
        run_out(db, clock)
        again = asyncio.run(say("two"))
        assert (again.text, again.repeated) == ("re: two", False)


def test_http_keeps_it(url: str, clock: FakeClock) -> None:
    import httpx

    async def ask() -> tuple[int, Any]:
        async with perdure.open_async(url, clock=clock, maintain=False) as db:
            app = create_app(db, token=TOKEN, console=False)
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app=app),
                base_url="http://localhost/api/v1",
                headers={"Authorization": f"Bearer {TOKEN}", "Idempotency-Key": "k"},
            ) as client:
                answer = await client.post("/sessions/s/messages", json={"message": "two"})
                return answer.status_code, answer.json()

    with perdure.open(url, clock=clock, maintain=False) as db:
        db.post("s", "one", key="k")
        take(db)
        run_out(db, clock)
        status, told = asyncio.run(ask())
        assert (status, told["new"], told["begins_anew"]) == (202, True, True)
        assert [message.body for message in db.inbox("s")] == ["two"]
