"""The HTTP API in the hands of somebody who gets it wrong: a problem that says so, and nothing left behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, ScriptedModel
from tests.server.asking import Asking, asking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

S = "/sessions/s"


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Asking]:
    """A session with an agent, a branch and a tag."""
    agent = Agent("desk", model=ScriptedModel(["hello"] * 50))
    with asking(tmp_path, agents=[agent]) as api:
        agent.run_sync(api.db.url, session="s", message="hi")
        with api.db.session("s") as s:
            s.fork("b")
            s.tag("t")
        yield api


def branches(api: Asking) -> list[str]:
    """What the session has."""
    return sorted(head.branch for head in api.db.look("s").heads)


@pytest.mark.parametrize(
    "edit",
    [
        {"op": "replace", "path": "/messages", "value": 7},
        {"op": "replace", "path": "/messages/0", "value": 7},
        {"op": "replace", "path": "/vars", "value": []},
        {"op": "replace", "path": "/summary", "value": None},
        {"op": "add", "path": "/vars/x", "value": nested(300)},
        {"op": "add", "path": "/messages/99", "value": {}},
        {"op": "remove", "path": "/nothing"},
        {"op": "remove", "path": "/messages/00000000000000000099"},
        {"op": "remove", "path": "/messages/" + "9" * 5000},
    ],
)
def test_an_edit_that_nobody_could_go_on_with_makes_no_branch(desk: Asking, edit: dict[str, Any]) -> None:
    problem = desk.post(f"{S}/branches", {"name": "x", "edits": [edit]}, 422)
    assert problem["detail"]
    assert branches(desk) == ["b", "main", "tags/t"]


@pytest.mark.parametrize("number", ["00000000000000000099", "9" * 180])
def test_a_place_in_a_list_that_is_not_there_is_not_found(desk: Asking, number: str) -> None:
    desk.get(f"{S}/state", 404, path=f"/messages/{number}")


@pytest.mark.parametrize("body", [{"branch": "tags/t"}, {"branch": "nowhere"}, {"branch": "b", "message": {"role": 7}}])
def test_what_cannot_be_run_is_refused_and_says_nothing(desk: Asking, body: dict[str, Any]) -> None:
    before = desk.db.read("s", branch="b").checkpoint.id
    desk.post(f"{S}/runs", body, 422)
    assert desk.db.read("s", branch="b").checkpoint.id == before


def test_while_one_branch_is_run_another_one_is_refused(tmp_path: Path) -> None:
    go = tmp_path / "go"

    async def wait(_: Any) -> str:
        while not go.exists():  # noqa: ASYNC110 - the test itself makes the file
            await asyncio.sleep(0.02)
        return "hello"

    agent = Agent("desk", model=ScriptedModel(wait))
    with asking(tmp_path, agents=[agent]) as api:
        go.touch()
        agent.run_sync(api.db.url, session="s", message="hi")
        with api.db.session("s") as s:
            s.fork("b")
        go.unlink()
        try:
            assert api.post(f"{S}/runs", {"branch": "b", "message": "again"}, 202)["started"] is True
            assert api.post(f"{S}/runs", {"branch": "b", "message": "again"}, 202)["started"] is False
            assert "on branch 'b'" in api.post(f"{S}/runs", {}, 409)["detail"]
        finally:
            go.touch()
