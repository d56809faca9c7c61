"""Large results: the state keeps the whole, the model sees a digest and can read on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import tool
from perdure.agent.agent import Agent
from perdure.agent.context.recall import LARGE_OVER, PIECE
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.agent.requests import rebuild
from perdure.errors import an
from tests.agent.working import opened, play

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.agent.models import Request

LINES = "".join(f"line {i:06d} of the report\n" for i in range(2000))


def last(request: Request) -> Any:
    return json.loads(request.messages[-1]["content"])


def agent_with(result: Any, *script: Any, seen: list[Request]) -> Agent:
    runs: list[int] = []

    @tool
    def report() -> Any:
        """A report."""
        runs.append(1)
        assert len(runs) == 1
        return result

    def watched(request: Request) -> Any:
        seen.append(request)
        said = script[sum(m["role"] == "assistant" for m in request.messages)]
        return said(request) if callable(said) else said

    return Agent("reporter", model=ScriptedModel(watched), tools=[report])


def test_the_model_sees_a_digest_and_reads_on_by_place_and_by_word(tmp_path: Path):
    seen: list[Request] = []

    def read(request: Request) -> Any:
        shown = last(request)
        assert (shown["kind"], shown["characters"]) == ("text", len(LINES))
        assert shown["begins"] == LINES[:3000]
        assert LINES.endswith(shown["ends"])
        ref = shown["large_result"]
        return calls(
            ("read_result", {"ref": ref, "offset": 26 * 1000, "limit": 26}),
            ("read_result", {"ref": ref, "search": "LINE 001999"}),
            ("read_result", {"ref": ref, "offset": len(LINES) - 5, "limit": 10**9}),
            ("read_result", {"ref": "ef_of_another"}),
        )

    agent = agent_with(LINES, calls(("report", {})), read, "done", seen=seen)

    async def work() -> None:
        async with opened(tmp_path) as db:
            assert (await agent.run(db, session="s", message="report")).text == "done"
            reading = await db.read("s")
            assert list(reading.state["results"].values()) == [LINES]
            # Each request can be made again as it was sent, the offered tool included.
            steps = [c.step for c in await db.history("s") if "model" in c.more]
            assert [rebuild(db, "s", step) for step in reversed(steps)] == seen

    play(work())
    assert ["read_result" in [t["name"] for t in r.tools] for r in seen] == [False, True, True]
    a, b, c, d = (json.loads(m["content"]) for m in seen[2].messages[-4:])
    assert a == {"offset": 26000, "characters": len(LINES), "text": "line 001000 of the report\n", "next_offset": 26026}
    assert (b["found"], b["places"][0]["offset"]) == (1, 26 * 1999)
    assert "line 001999" in b["places"][0]["text"]
    assert (c["text"], c["next_offset"]) == ("port\n", None)
    assert "no large result" in d["error"]


def test_fifty_megabytes_are_a_result_like_any_other(tmp_path: Path):
    seen: list[Request] = []
    huge = {"rows": ["x" * 1000] * 50_000}

    def read(request: Request) -> Any:
        return calls(("read_result", {"ref": last(request)["large_result"], "offset": 50_000_000}))

    agent = agent_with(huge, calls(("report", {})), read, "done", seen=seen)

    async def work() -> None:
        async with opened(tmp_path) as db:
            assert (await agent.run(db, session="s", message="report")).text == "done"
        async with opened(tmp_path) as db:
            kept = (await db.read("s")).state["results"]
            assert json.loads(next(iter(kept.values()))) == huge

    play(work())
    assert last(seen[1])["kind"] == "object with the keys rows"
    assert max(len(json.dumps(r.messages)) for r in seen) < 2 * LARGE_OVER
    assert len(last(seen[2])["text"]) == PIECE


@pytest.mark.parametrize(
    ("result", "what"),
    [
        ({1, 2}, "set"),
        (object(), "object"),
        ({"n": float("nan")}, "float nan"),
        ("\ud800", "str with a lone surrogate"),
    ],
)
def test_what_cannot_be_kept_was_done_all_the_same_and_is_not_repeated(tmp_path: Path, result: Any, what: str):
    seen: list[Request] = []
    agent = agent_with(result, calls(("report", {})), "I see", "and again", seen=seen)

    async def work() -> None:
        async with opened(tmp_path) as db:
            assert (await agent.run(db, session="s", message="report")).text == "I see"
            assert [c.kind for c in reversed(await db.history("s"))] == ["commit", "done", "commit"]
        async with opened(tmp_path) as db:
            assert (await agent.run(db, session="s", message="more")).text == "and again"

    play(work())
    assert f"it was done, and its result cannot be kept: it is {an(what)}" in last(seen[1])["error"]


def test_a_value_without_end_is_a_result_that_cannot_be_kept(tmp_path: Path):
    seen: list[Request] = []
    endless: list[Any] = []
    endless.append(endless)
    agent = agent_with(endless, calls(("report", {})), "I see", seen=seen)

    async def work() -> None:
        async with opened(tmp_path) as db:
            assert (await agent.run(db, session="s", message="report")).text == "I see"

    play(work())
    assert "too deeply nested" in last(seen[1])["error"]


def test_bytes_are_told_as_base64(tmp_path: Path):
    seen: list[Request] = []
    agent = agent_with({"image": b"\0\1"}, calls(("report", {})), "I see", seen=seen)

    async def work() -> None:
        async with opened(tmp_path) as db:
            await agent.run(db, session="s", message="report")

    play(work())
    assert last(seen[1]) == {"image": {"$bytes": "AAE="}}


def test_a_call_by_itself_says_what_cannot_be_kept(tmp_path: Path):
    @tool
    def report() -> Any:
        return {1}

    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db, db.session("s") as s:
        for _ in range(2):
            with pytest.raises(perdure.NotJson, match="set"):
                s.call(report)
        assert [e["status"] for e in s.effects()] == ["done"]
