"""The HTTP API in the hands of somebody who gets it wrong: a problem that says so, and nothing left behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, ScriptedModel, tool
from perdure.agent.models.scripted import calls
from perdure.server.api.routing import PREFIX
from perdure.session.inbox import open_entry
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


@pytest.mark.parametrize("message", [{"role": "user"}, {"text": "x"}, {"content": 5}, 5, ["a"], " ", []], ids=repr)
def test_what_is_no_message_is_not_said_to_an_agent(desk: Asking, message: Any):
    for path, more in (("/sessions", {"agent": "desk", "id": "t"}), (f"{S}/messages", {}), (f"{S}/runs", {})):
        assert desk.post(path, {"message": message, **more}, 422)["detail"].startswith("nothing was said: ")
    assert desk.get(f"{S}/inbox")["items"] == []
    desk.get("/sessions/t", 404)
    with desk.db.session("free") as s:
        s.vars["no"] = "agent"
        s.commit()
    desk.post("/sessions/free/messages", {"message": message}, 202)


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


# -- names that nobody knows ------------------------------------------------------------------------------------------


@tool(approve=True)
def charge(order: str, amount: int) -> str:
    """Charge an order, once somebody has agreed."""
    return f"{amount} for {order}"


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[Asking, str]]:
    """A session that waits for agreement to a charge of 900, and which request that is."""
    model = ScriptedModel([calls(("charge", {"order": "e1", "amount": 900})), "done"])
    agent = Agent("till", model=model, tools=[charge])
    with asking(tmp_path, agents=[agent]) as api:
        agent.run_sync(api.db.url, session="s", message="charge")
        (one,) = api.get(f"{S}/approvals")["items"]
        yield api, one["id"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"payload": {"approved": True, "args": {"order": "e1", "amount": 10}}}, "`args`"),
        ({"payload": {"approved": True, "edited_args": {"order": "e1", "amount": 10}}}, "`edited_args`"),
        ({"payload": {"approved": True}, "editedArgs": {"order": "e1", "amount": 10}}, "`editedArgs`"),
        ({"payload": {"approved": True, "answer": "yes"}}, "approved and answer"),
        ({"payload": {"approved": False, "editedArgs": {"order": "e1", "amount": 10}}}, "approved: true"),
        ({"payload": {"editedArgs": {"order": "e1", "amount": 10}}}, "approved: true"),
        ({"payload": {"approved": "yes"}}, "bool"),
        ({"payload": {"approved": True}, "status": "cancelled"}, "decides otherwise"),
        ({"payload": "yes"}, "object"),
        ({}, "the payload says"),
    ],
)
def test_a_decision_with_a_name_nobody_knows_or_that_contradicts_itself_decides_nothing(
    asked: tuple[Asking, str], said: dict[str, Any], words: str
) -> None:
    api, id = asked
    decision = {"status": "resolved", **said}
    for path, body in (
        (f"{S}/approvals/{id}", decision),
        (f"{S}/resume", {"resume": [{"interruptId": id, **decision}]}),
    ):
        assert words in api.post(path, body, 422)["detail"]
    assert [i["id"] for i in api.get(f"{S}/approvals")["items"]] == [id]


def test_a_refused_name_is_told_with_those_that_are_known(asked: tuple[Asking, str]) -> None:
    api, id = asked
    payload = {"approved": True, "args": {}}
    told = api.post(f"{S}/approvals/{id}", {"status": "resolved", "payload": payload}, 422)["detail"]
    assert told.endswith("at `$.payload`; known are approved, editedArgs, answer, reason")
    entry = {"interruptId": id, "status": "resolved", "payload": payload}
    told = api.post(f"{S}/resume", {"resume": [entry]}, 422)["detail"]
    assert told.endswith("at `$.resume[0].payload`; known are approved, editedArgs, answer, reason")
    assert api.post("/fleet/drain", {"all": True}, 422)["detail"].endswith("known are worker")
    assert api.post(f"{S}/pause", {"by": "eve"}, 422)["detail"].endswith("none is known there")
    told = api.post("/bulk", {"action": "cancel", "filter": {"session": "s"}}, 422)["detail"]
    assert "known are status, owner, agent, error, label, search, since, before, sessions" in told
    told = api.get("/sessions", 422, agnt="till")["detail"]
    assert "`agnt`" in told
    assert "agent" in told.partition("known are ")[2]


def test_edited_arguments_of_an_empty_object_are_not_taken_for_none(asked: tuple[Asking, str]) -> None:
    api, id = asked
    yes = {"status": "resolved", "payload": {"approved": True, "editedArgs": {}}}
    for path, body in ((f"{S}/approvals/{id}", yes), (f"{S}/resume", {"resume": [{"interruptId": id, **yes}]})):
        assert "has no order. Nothing was decided" in api.post(path, body, 422)["detail"]
    assert api.db.kernel.store.inbox("s", 1, f"decision:{id}") == []


def test_a_reason_inside_the_payload_is_recorded(asked: tuple[Asking, str]) -> None:
    api, id = asked
    api.post(f"{S}/approvals/{id}", {"status": "resolved", "payload": {"approved": True, "reason": "she called"}})
    (said,) = api.db.kernel.store.inbox("s", 1, f"decision:{id}")
    assert open_entry(api.db.kernel, said).body["reason"] == "she called"


def test_every_body_and_every_query_refuses_a_name_nobody_knows(asked: tuple[Asking, str]) -> None:
    api, _ = asked
    document = api.get("/openapi.json")
    for path, methods in document["paths"].items():
        filled = path.replace("{session}", "s").replace("{approval}", "ap_1").replace("{effect}", "ef_1")
        filled = filled.replace("{branch}", "main").replace("{blob}", "b")
        url = filled if filled.startswith(PREFIX) else PREFIX + filled
        for method in methods:
            send = getattr(api.http, method)
            query = send(url, params={"nosuch": "1"})
            assert (query.status_code, "nosuch" in query.text) == (422, True), (method, path, query.text[:300])
            if method == "get":
                continue
            body = (
                send(url, json={"nosuch": 1})
                if method != "delete"
                else api.http.request("DELETE", url, json={"nosuch": 1})
            )
            assert (body.status_code, "nosuch" in body.text) == (422, True), (method, path, body.text[:300])


def test_a_call_that_takes_no_body_takes_an_empty_one(asked: tuple[Asking, str]) -> None:
    api, _ = asked
    api.post(f"{S}/pause")
    api.post(f"{S}/unpause", {})


def test_of_several_decisions_none_is_taken_when_one_is_wrong(tmp_path: Path) -> None:
    model = ScriptedModel([
        calls(("charge", {"order": "a", "amount": 1}), ("charge", {"order": "b", "amount": 2})), "done",
    ])  # fmt: skip
    agent = Agent("till", model=model, tools=[charge])
    with asking(tmp_path, agents=[agent]) as api:
        agent.run_sync(api.db.url, session="s", message="charge")
        one, two = (i["id"] for i in api.get(f"{S}/approvals")["items"])
        yes = {"interruptId": one, "status": "resolved", "payload": {"approved": True}}
        for wrong in ({"answer": 1}, {}):
            body = {"resume": [yes, {"interruptId": two, "status": "resolved", "payload": wrong}]}
            assert "the payload says" in api.post(f"{S}/resume", body, 422)["detail"]
        assert "twice" in api.post(f"{S}/resume", {"resume": [yes, yes]}, 422)["detail"]
        assert len(api.get(f"{S}/approvals")["items"]) == 2


def test_a_verdict_and_an_outcome_say_one_thing(asked: tuple[Asking, str]) -> None:
    api, _ = asked
    effects = f"{S}/effects/ef_1"
    assert "goes with done" in api.post(f"{effects}/resolve", {"verdict": "retry", "result": 1}, 422)["detail"]
    for body in ({}, {"result": 1, "failed": "no"}):
        assert "say what became of it" in api.post(f"{effects}/outcome", body, 422)["detail"]
    for body in ({"action": "cancel", "verdict": "done"}, {"action": "resolve", "verdict": "retry", "result": 1}):
        assert "goes with" in api.post("/bulk", {"filter": {"owner": "x"}, **body}, 422)["detail"]


def test_a_request_that_is_met_the_wrong_way_is_told_how_it_is_met_over_http(asked: tuple[Asking, str]) -> None:
    api, id = asked
    told = api.post(f"{S}/approvals/{id}", {"status": "resolved", "payload": {"answer": "yes"}}, 409)["detail"]
    assert told.endswith(f"is no question, and nothing was decided: POST {PREFIX}/sessions/s/approvals/{id}")
