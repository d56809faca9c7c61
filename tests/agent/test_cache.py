"""Results of reads that are shared between the sessions of one owner, and with nobody else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import tool
from perdure.agent.agent import Agent
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.cli.program import run
from perdure.errors import InvalidInput
from perdure.session.calls import read_cache
from perdure.session.calls.read_cache import PREFIX, cache_id
from perdure.testing.clock import FakeClock
from tests.agent.working import by_turn, play
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

asked: list[str] = []
DAY = 24 * 3_600_000


@tool(read=True, cache="7d", cache_scope="shared")
def search(city: str) -> list[str]:
    """Search hotels."""
    asked.append(city)
    return [f"{city} {len(asked)}"]


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    asked.clear()


def call(url: str, clock: FakeClock, session: str, owner: str, city: str = "Paris") -> list[str]:
    with perdure.open(url, clock=clock) as db, db.session(session, owner=owner) as s:
        return s.call(search, city)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_result_is_shared_by_the_sessions_of_one_owner_for_its_time(tmp_path: Path, kind: str):
    url, clock = url_of(kind, tmp_path), FakeClock()
    assert call(url, clock, "a", "ana") == ["Paris 1"]
    assert call(url, clock, "b", "ana") == ["Paris 1"]
    assert call(url, clock, "b", "ana", "Rome") == ["Rome 2"]
    assert call(url, clock, "c", "bob") == ["Paris 3"]
    assert call(url, clock, "d", "") == ["Paris 4"]
    assert call(url, clock, "e", "") == ["Paris 4"]
    clock.advance(8 * DAY)
    assert call(url, clock, "f", "ana") == ["Paris 5"]
    with perdure.open(url, clock=clock) as db:
        db.sweep()
    clock.advance(8 * DAY)
    with perdure.open(url, clock=clock) as db:
        db.sweep()
        assert not [row for row in db.sessions() if row.id.startswith(PREFIX)]
    # Where one was swept, the next one is kept again.
    assert call(url, clock, "g", "ana") == ["Paris 6"]
    assert call(url, clock, "h", "ana") == ["Paris 6"]


def test_another_version_of_a_tool_is_another_tool(tmp_path: Path):
    url, clock = url_of("sqlite", tmp_path), FakeClock()
    call(url, clock, "a", "ana")
    newer = tool(read=True, cache="7d", cache_scope="shared", name="search", version="2")(search.fn)
    with perdure.open(url, clock=clock) as db, db.session("b", owner="ana") as s:
        assert s.call(newer, "Paris") == ["Paris 2"]


def test_an_entry_that_was_planted_under_another_owner_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # By a program that does not refuse it.
    monkeypatch.setattr("perdure.database.check_own_session", str)
    url, clock = url_of("sqlite", tmp_path), FakeClock()
    from perdure.session.tools.declaration import call_digest

    with perdure.open(url, clock=clock) as db:
        place = cache_id("ana", call_digest("search", "1", {"city": "Paris"}))
        with db.session(place, owner="eve") as s:
            s.vars.update({"result": ["evil"], "until": clock.wall() + DAY})
            s.commit()
    assert call(url, clock, "a", "ana") == ["Paris 1"]


def test_agents_share_them_too(tmp_path: Path):
    script = by_turn(calls(("search", {"city": "Paris"})), lambda r: r.messages[-1]["content"])
    agent = Agent("a", model=ScriptedModel(script), tools=[search])

    async def work() -> list[str]:
        async with perdure.open_async(url_of("sqlite", tmp_path)) as db:
            return [(await agent.run(db, session=s, owner=o, message="go")).text for s, o in
                    (("a", "ana"), ("b", "ana"), ("c", "bob"))]  # fmt: skip

    assert play(work()) == ['["Paris 1"]', '["Paris 1"]', '["Paris 2"]']


def test_a_scope_is_one_of_two_words():
    with pytest.raises(InvalidInput, match="session, shared"):
        tool(read=True, cache=5, cache_scope="world")(search.fn)


def test_a_session_keeps_no_results_whose_time_is_over_and_no_more_than_are_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url, clock = url_of("sqlite", tmp_path), FakeClock()
    monkeypatch.setattr(read_cache, "MOST", 5)

    @tool(read=True, cache="1h")
    def find(n: int) -> int:
        """Find something."""
        asked.append(str(n))
        return n

    script = by_turn(calls(*(("find", {"n": n}) for n in range(100, 108))), "done")
    agent = Agent("a", model=ScriptedModel(script), tools=[find])
    with perdure.open(url, clock=clock) as db, db.session("s") as s:
        for n in range(8):
            clock.advance(1000)
            s.call(find, n)
        assert sorted(hit["result"] for hit in s.book["cache"].values()) == [3, 4, 5, 6, 7]
        s.call(find, 7)
        s.call(find, 0)
        assert asked == [*map(str, range(8)), "0"]
        clock.advance(3_600_000)
        s.call(find, 50)
        assert [hit["result"] for hit in s.book["cache"].values()] == [50]

    async def work() -> list[int]:
        async with perdure.open_async(url, clock=clock) as db:
            assert (await agent.run(db, session="s", message="go")).ok
            async with db.session("s") as s:
                return sorted(hit["result"] for hit in s.book["cache"].values())

    # Of an agent's calls, too: all eight were found, and the last five are kept.
    assert len(play(work())) == 5
    assert len(asked) == 18


def test_they_are_no_sessions_to_whoever_lists_sessions(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    url, clock = url_of("sqlite", tmp_path), FakeClock()
    for n in range(6):
        call(url, clock, f"s{n}", "ana", f"City {n}")

    def listed(*options: str) -> tuple[list[str], str | None]:
        assert run(["ls", "--store", url, "--json", *options]) == 0
        told = json.loads(capsys.readouterr().out)
        return [row["id"] for row in told["items"]], told["next"]

    everyone = [f"s{n}" for n in range(6)]
    assert listed() == (everyone, None)
    assert sum(id.startswith(PREFIX) for id in listed("--all")[0]) == 6
    for newest in ((), ("--newest",)):
        found: list[str] = []
        after: tuple[str, ...] = ()
        while True:
            page, more = listed("--limit", "2", *newest, *after)
            found += page
            if more is None:
                break
            after = ("--after", more)
        assert sorted(found) == everyone


@pytest.mark.parametrize("declared", [{"read": True}, {"if_unsure": "retry"}, {}], ids=["read", "retry", "ask"])
def test_what_an_agent_pays_for_is_paid_once_in_one_answer_and_in_later_ones(tmp_path: Path, declared: dict[str, Any]):
    @tool(cache="7d", **declared)
    def buy(city: str) -> str:
        """Buy a report."""
        asked.append(city)
        return f"{city} {len(asked)}"

    twice = (("buy", {"city": "Rome"}), ("buy", {"city": "Rome"}))
    script = by_turn(
        calls(*twice), calls(*twice), lambda r: str([m["content"] for m in r.messages if m["role"] == "tool"])
    )
    agent = Agent("a", model=ScriptedModel(script), tools=[buy])

    async def work() -> str:
        async with perdure.open_async(url_of("sqlite", tmp_path)) as db:
            return (await agent.run(db, session="s", message="go")).text

    assert play(work()) == str(["Rome 1"] * 4)
    assert asked == ["Rome"]


def test_a_call_whose_twin_in_the_same_answer_is_in_doubt_is_not_made_either(tmp_path: Path):
    @tool(cache="7d")
    def buy(city: str) -> str:
        """Buy a report."""
        asked.append(city)
        raise TimeoutError

    script = by_turn(calls(("buy", {"city": "Rome"}), ("buy", {"city": "Rome"})), "done")
    agent = Agent("a", model=ScriptedModel(script), tools=[buy])

    async def work() -> list[str]:
        async with perdure.open_async(url_of("sqlite", tmp_path)) as db:
            states = [(await agent.run(db, session="s", message="go")).status]
            async with db.session("s") as s:
                (doubt,) = [e["id"] for e in s.effects() if e["status"] == "in_doubt"]
                await s.resolve(doubt, done="a report", by="eve")
            result = await agent.run(db, session="s")
            return [*states, result.status, result.text]

    assert play(work()) == ["in_doubt", "done", "done"]
    assert asked == ["Rome"]
