"""Work, messages, approvals, doubts and many sessions at once, over HTTP."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import perdure
from perdure import Agent, ScriptedModel, tool
from perdure.agent.models import Request, text_of
from perdure.agent.models.scripted import calls
from perdure.fleet.board import board_of
from perdure.protocols import WorkerRow
from perdure.server.api.openapi import TABLE
from perdure.session.actions import Action, Do
from perdure.system.lease_holders import running_agent
from perdure.testing.clock import FakeClock
from tests.server.asking import asking
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.asking import Asking


@tool(approve=True)
def refund(order: str, amount: int) -> str:
    """Refund an order."""
    return f"{amount} for {order}"


@tool
def ask_size(ctx: perdure.Context) -> str:
    """Ask for a size."""
    return f"size {ctx.ask('Which size?', schema={'type': 'string'})}"


def script(request: Request) -> Any:
    """What the model says: a message names a tool, and is answered by its result."""
    last = request.messages[-1]
    said = text_of(last)
    if last["role"] == "tool":
        return f"done: {said}"
    if said == "refund":
        return calls(("refund", {"order": "A", "amount": 9}))
    if said == "two":
        return calls(("refund", {"order": "A", "amount": 1}), ("refund", {"order": "B", "amount": 2}))
    if said == "size":
        return calls(("ask_size", {}))
    system = next((text_of(m) for m in request.messages if m["role"] == "system"), "")
    return f"{system}: {said}"


desk = Agent("desk", model=ScriptedModel(script), tools=[refund, ask_size], instructions="Help")


def run(folder: Path, session: str, message: str) -> None:
    """Run a session as far as it goes."""
    desk.run_sync(url_of("sqlite", folder), session=session, message=message)


def last_words(api: Asking, session: str) -> str:
    """What the agent said last."""
    return text_of(api.db.read(session).messages[-1])


def go_on(folder: Path, session: str) -> None:
    """Have the agent go on with what was decided."""
    desk.run_sync(url_of("sqlite", folder), session=session)


# -- work ---------------------------------------------------------------------------------------------------------


def test_work_is_submitted_once_and_stands_in_the_queue(tmp_path: Path):
    with asking(tmp_path) as api:
        body = {"id": "s", "agent": "desk", "owner": "ana", "message": "hello", "key": "k"}
        at = f"--store {api.db.url}"
        told = f"Nobody runs agent desk: go on with perdure resume APP s {at}, or start perdure worker APP {at}."
        for new in (True, False):
            assert api.post("/sessions", body, 201) == {
                "session": "s", "agent": "desk", "new": new, "instead_of": "", "queued": True, "message_key": "k",
                "answer": None,
                "unserved": True,
                "next": told,
            }  # fmt: skip
        assert api.db.look("s").pending == 1
        made = api.post("/sessions", {"agent": "desk", "message": {"role": "user", "content": "x"}}, 201)
        assert len(made["session"]) == 24
        queue = api.get("/fleet/queue", state="queued")
        assert {w["session"] for w in queue["items"]} == {"s", made["session"]}
        # Without an id it is safe to repeat as well.
        body = {"agent": "desk", "owner": "ana", "message": "hello", "key": "k2"}
        first, second, other = (api.post("/sessions", {**body, **more}, 201) for more in ({}, {}, {"owner": "bob"}))
        assert (first["session"], first["new"], second["new"]) == (second["session"], True, False)
        assert other["session"] != first["session"]
        assert api.db.look(first["session"]).pending == 1
        # A session has one agent: a fleet would never take it up under another.
        assert "of agent 'desk'" in api.post("/sessions", {"id": "s", "agent": "else", "message": "x"}, 422)["detail"]
        assert api.db.look("s").pending == 1
        assert api.get("/fleet")["unserved_agents"] == ["desk"]
        assert api.post("/sessions/s/pause")["changed"] == 1
        assert [w["session"] for w in api.get("/fleet/queue", state="paused")["items"]] == ["s"]
        assert api.post("/sessions/s/unpause")["changed"] == 1
        row = WorkerRow("w1", "host", 7, "1", ("desk",), 4)
        board_of(api.db).beat(row)
        assert api.get("/fleet")["workers"][0]["agents"] == ["desk"]
        assert api.post("/fleet/drain", {"worker": "w1"}) == {"told": 1, "left": 1}
        assert api.post("/fleet/drain", {"worker": "nobody"}, 404)["type"] == "urn:perdure:error:not-found"
        assert board_of(api.db).beat(row) == "drain"


def test_a_store_without_a_board_says_so(tmp_path: Path):
    with asking(tmp_path, "file") as api:
        made = api.post("/sessions", {"id": "s", "agent": "desk", "message": "hello"}, 201)
        key = made["message_key"]
        assert made == {
            "session": "s", "agent": "desk", "new": True, "instead_of": "", "queued": False, "message_key": key,
            "answer": None,
            "unserved": True,
            "next": "No fleet works on this store: POST /api/v1/sessions/s/runs has this server run it.",
        }  # fmt: skip
        assert api.db.look("s").pending == 1
        assert api.get("/fleet")["supported"] is False
        for path in ("/sessions/s/retry", "/sessions/s/pause"):
            assert api.post(path, None, 409)["type"] == "urn:perdure:error:no-fleet"
        assert api.get("/fleet/queue", 409)["type"] == "urn:perdure:error:no-fleet"


def test_one_that_has_its_first_answer_before_it_is_steered_like_any_other(tmp_path: Path):
    with asking(tmp_path, agents=[desk]) as api, running_agent(), api.db.session("first"):
        api.db.post("first", "hello")
        assert api.post("/sessions/first/messages", {"message": "and this", "key": "k"}, 202)["new"]
        for do in ("pause", "unpause", "retry"):
            assert api.post(f"/sessions/first/{do}")["changed"] == 0
        bulk = {"action": "cancel", "filter": {"sessions": ["first", "nobody"]}}
        done = api.post("/bulk", bulk)
        assert (done["changed"], [one["session"] for one in done["failed"]]) == (1, ["nobody"])
        told = api.get("/sessions/first", 404)["detail"]
        assert told.endswith("yet: GET /api/v1/sessions/first/why tells what it waits for, or who is on it")
        refused = api.post("/sessions/first/runs", {"agent": "desk"}, 404)["detail"]
        assert refused.endswith("has no checkpoint yet: POST /api/v1/sessions begins it, with its agent and owner")


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_message_that_has_its_answer_gives_nobody_anything_to_do(tmp_path: Path, kind: str):
    body = {"id": "s", "agent": "desk", "message": "hello", "key": "k"}
    with asking(tmp_path, kind, agents=[desk]) as api:
        assert api.post("/sessions", body, 201)["unserved"]
        desk.run_sync(api.db.url, session="s")
        told = api.post("/sessions", body, 201)
        assert told["answer"]["text"]
        assert (told["queued"], told["unserved"], told["next"]) == (False, False, "It was answered already.")
        if kind == "sqlite":
            assert api.get("/fleet/queue")["items"] == []


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_an_agent_of_this_server_that_was_meant_is_said(tmp_path: Path, kind: str):
    with asking(tmp_path, kind, agents=[desk]) as api:
        told = api.post("/sessions", {"agent": "dsek", "id": "s", "message": "hello"}, 201)["next"]
        assert "This server has no agent dsek; did you mean desk?" in told
        refused = api.post("/sessions", {"agent": "desk", "id": "s", "message": "hello"}, 422)["detail"]
        assert refused.endswith("without a message: POST /api/v1/sessions")
        given = api.post("/sessions", {"agent": "desk", "id": "s"}, 201)
        assert (given["instead_of"], api.db.look("s").agent) == ("dsek", "desk")
        assert "POST /api/v1/sessions/s/runs" in given["next"]
        # One that nobody could have meant, and one that has worked on it, are left alone.
        assert "did you mean" not in api.post("/sessions", {"agent": "billing", "id": "b", "message": "x"}, 201)["next"]


def test_a_message_is_put_into_the_inbox_once(tmp_path: Path):
    with asking(tmp_path) as api:
        api.post("/sessions/s/messages", {"message": "hi"}, 404)
        run(tmp_path, "s", "hello")
        for new in (True, False):
            said = api.post("/sessions/s/messages", {"message": "hi", "key": "k"}, 202)
            assert said == {
                "session": "s", "new": new, "begins_anew": False, "message_key": "k", "kept": True, "answer": None,
            }  # fmt: skip
        assert api.post("/sessions/s/messages", {"message": "other", "key": "k"}, 422)
        assert api.get("/sessions/s")["inbox"] == 1
        api.post("/sessions/s/messages", {"message": "x" * 1_500_000}, 422)


def test_the_server_runs_a_branch_with_other_instructions(tmp_path: Path):
    with asking(tmp_path, agents=[desk]) as api:
        run(tmp_path, "s", "hello")
        api.post("/sessions/s/branches", {"name": "b"}, 201)
        asked = {"branch": "b", "message": "again", "instructions": "Sing"}
        assert api.post("/sessions/s/runs", asked, 202) == {
            "session": "s",
            "branch": "b",
            "started": True,
            "message_key": "",
            "kept": False,
            "answer": None,
        }
        end = time.monotonic() + 60
        while "Sing: again" not in str(api.db.read("s", "b").messages[-1]) and time.monotonic() < end:
            time.sleep(0.02)
        assert text_of(api.db.read("s", "b").messages[-1]) == "Sing: again"
        assert last_words(api, "s") == "Help: hello"
        assert api.post("/sessions/s/runs", {"agent": "nobody"}, 409)["type"] == "urn:perdure:error:no-agent"
        api.post("/sessions/s/runs", {"branch": "nowhere"}, 422)


def test_a_session_is_cancelled(tmp_path: Path):
    with asking(tmp_path) as api:
        run(tmp_path, "s", "refund")
        api.post("/sessions/s/cancel", {"by": "eve", "reason": "enough"})
        go_on(tmp_path, "s")
        assert api.get("/sessions/s")["status"] == "cancelled"
        api.post("/sessions/nobody/cancel", {}, 404)


# -- approvals ----------------------------------------------------------------------------------------------------


def test_the_last_page_of_what_waits_says_that_nothing_follows(tmp_path: Path):
    with asking(tmp_path) as api:
        for session in ("a", "b"):
            run(tmp_path, session, "refund")
        assert api.get("/approvals")["next"] is None
        assert api.get("/approvals", all_branches=True)["next"] is None
        first = api.get("/approvals", limit=1)
        second = api.get("/approvals", limit=1, after=first["next"])
        sessions = [page["items"][0]["metadata"]["session"] for page in (first, second)]
        assert (sessions, second["next"]) == (["a", "b"], None)
        assert api.get("/in-doubt")["next"] is None


def test_an_approval_is_listed_in_the_shape_of_ag_ui_and_decided_once(tmp_path: Path):
    with asking(tmp_path) as api:
        run(tmp_path, "s", "refund")
        (one,) = api.get("/approvals")["items"]
        assert set(one) == {"id", "reason", "message", "toolCallId", "responseSchema", "expiresAt", "metadata"}
        assert one["reason"] == "tool_call"
        assert one["metadata"]["args"] == {"order": "A", "amount": 9}
        asked = api.db.read("s").messages[-1]["tool_calls"][0]["id"]
        assert one["toolCallId"] == asked
        assert api.get("/sessions/s/approvals")["items"] == [one]
        path = f"/sessions/s/approvals/{one['id']}"
        decision = {"status": "resolved", "payload": {"approved": True}, "by": "eve"}
        (call,) = api.get("/sessions/s/effects")["items"]
        for deed, body in (("outcome", {"result": 1}), ("resolve", {"verdict": "done", "result": 1, "by": "eve"})):
            refused = api.post(f"/sessions/s/effects/{call['id']}/{deed}", body, 409)
            assert "not made yet: it waits for approval" in refused["detail"]
        decided = api.post(path, decision)
        at = f"--store {api.db.url}"
        typed = f"perdure resume APP s {at}, or start perdure worker APP {at}"
        assert decided.pop("next") == f"Nobody runs agent desk: go on with {typed}."
        assert decided == {"session": "s", "id": one["id"], "decision": "approved", "woken": "nobody"}
        assert api.post(path, decision, 409)["type"] == "urn:perdure:error:approval-error"
        assert api.get("/approvals")["items"] == []
        go_on(tmp_path, "s")
        assert "9 for A" in last_words(api, "s")
        assert api.post(path, decision, 409)["type"] == "urn:perdure:error:approval-error"
        assert api.post("/sessions/s/approvals/ap_no", decision, 409)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"status": "resolved", "payload": {"approved": False}, "reason": "too much"}, "too much"),
        ({"status": "cancelled"}, "cancelled"),
        ({"status": "resolved", "payload": {"approved": True, "editedArgs": {"order": "A", "amount": 5}}}, "5 for A"),
    ],
)
def test_a_decision_says_no_or_yes_to_something_else(tmp_path: Path, said: dict[str, Any], words: str):
    with asking(tmp_path) as api:
        run(tmp_path, "s", "refund")
        (one,) = api.get("/approvals")["items"]
        api.post("/sessions/s/resume", {"resume": [{"interruptId": one["id"], **said}]})
        go_on(tmp_path, "s")
        assert words in last_words(api, "s")


def test_a_question_is_answered(tmp_path: Path):
    with asking(tmp_path) as api:
        run(tmp_path, "s", "size")
        (one,) = api.get("/approvals")["items"]
        assert (one["reason"], one["message"]) == ("input_required", "Which size?")
        assert one["responseSchema"]["properties"]["answer"] == {"type": "string"}
        path = f"/sessions/s/approvals/{one['id']}"
        assert api.post(path, {"status": "resolved", "payload": {}}, 422)
        api.post(path, {"status": "resolved", "payload": {"answer": "XL"}})
        go_on(tmp_path, "s")
        assert "size XL" in last_words(api, "s")


def test_a_resume_covers_everything_that_is_open(tmp_path: Path):
    with asking(tmp_path) as api:
        run(tmp_path, "s", "two")
        one, two = (i["id"] for i in api.get("/sessions/s/approvals")["items"])
        yes = {"status": "resolved", "payload": {"approved": True}}
        api.post("/sessions/s/resume", {"resume": [{"interruptId": one, **yes}]}, 409)
        api.post("/sessions/s/resume", {"resume": [{"interruptId": "ap_other", **yes}]}, 409)
        wrong = {"status": "resolved", "payload": {"approved": True, "editedArgs": {"amount": "much"}}}
        body = {"resume": [{"interruptId": one, **yes}, {"interruptId": two, **wrong}]}
        assert "Nothing was decided" in api.post("/sessions/s/resume", body, 422)["detail"]
        assert len(api.get("/sessions/s/approvals")["items"]) == 2
        api.post("/sessions/s/resume", {"resume": [{"interruptId": i, **yes} for i in (one, two)]})
        go_on(tmp_path, "s")
        assert api.get("/sessions/s")["status"] == "idle"


def test_an_expired_approval_cannot_be_given(tmp_path: Path):
    clock = FakeClock()
    with asking(tmp_path, clock=clock) as api:
        with pytest.raises(perdure.ApprovalNeeded), api.db.session("s", ttl=None) as s:
            s.call(refund, order="A", amount=1)
        (one,) = api.get("/approvals")["items"]
        clock.advance(8 * 24 * 3600 * 1000)
        decision = {"status": "resolved", "payload": {"approved": True}}
        assert "expired" in api.post(f"/sessions/s/approvals/{one['id']}", decision, 409)["detail"]
        assert (
            "expired"
            in api.post("/sessions/s/resume", {"resume": [{"interruptId": one["id"], **decision}]}, 409)["detail"]
        )


# -- doubts and many ----------------------------------------------------------------------------------------------


@tool(if_unsure="ask")
def charge(order: str) -> dict[str, int]:
    """Charge an order; the connection drops."""
    raise ConnectionError(order)


def doubt(api: Asking, *sessions: str) -> None:
    """Leave sessions with a call in doubt."""
    for session in sessions:
        for _ in range(2):
            with pytest.raises((perdure.InDoubt, ConnectionError)), api.db.session(session, owner="ana") as s:
                s.call(charge, order=session)


def test_a_call_in_doubt_is_listed_and_resolved(tmp_path: Path):
    with asking(tmp_path) as api:
        doubt(api, "s")
        (effect,) = api.get("/in-doubt")["items"]
        assert (effect["session"], effect["tool"], effect["args"]) == ("s", "charge", {"order": "s"})
        assert api.get("/sessions/s/effects", status="in_doubt")["items"][0]["id"] == effect["id"]
        path = f"/sessions/s/effects/{effect['id']}/resolve"
        done = api.post(path, {"verdict": "done", "result": {"receipt": 1}, "by": "eve"})
        assert (done["status"], done["result"]) == ("done", {"receipt": 1})
        assert api.post(path, {"verdict": "retry"}, 409)
        assert api.post("/sessions/s/effects/nothing/resolve", {"verdict": "retry"}, 404)
        assert api.get("/in-doubt")["items"] == []


def test_many_sessions_are_chosen_by_their_properties_and_first_only_named(tmp_path: Path):
    with asking(tmp_path) as api:
        doubt(api, "a", "b", "c")
        with api.db.session("other") as s:
            s.commit()
        which = {"status": "in_doubt", "owner": "ana"}
        body = {"action": "resolve", "verdict": "abort", "filter": which, "by": "eve", "limit": 2}
        dry = api.post("/bulk", {**body, "dry_run": True})
        assert (dry["sessions"], dry["changed"], dry["next"]) == (["a", "b"], 0, "b")
        assert len(api.get("/in-doubt")["items"]) == 3
        first = api.post("/bulk", body)
        assert (first["sessions"], first["changed"]) == (["a", "b"], 2)
        with api.db.session("c"):
            busy = api.post("/bulk", {**body, "after": first["next"]})
            assert [f["type"] for f in busy["failed"]] == ["urn:perdure:error:busy"]
        assert api.post("/bulk", {**body, "after": first["next"]})["changed"] == 1
        assert api.get("/in-doubt")["items"] == []
        assert api.post("/bulk", {"action": "cancel", "filter": {}}, 422)
        assert api.post("/bulk", {"action": "resolve", "filter": which}, 422)
        cancel = {"action": "cancel", "filter": {"sessions": ["other", "other"]}, "reason": "x"}
        assert (api.post("/bulk", cancel)["changed"], api.db.look("other").pending) == (0, 0)
        assert api.post("/bulk", {**cancel, "dry_run": True})["sessions"] == []
        assert api.post("/sessions/other/cancel", {})["changed"] == 0
        api.db.post("other", "hello")
        assert api.post("/bulk", {**cancel, "dry_run": True})["sessions"] == ["other"]
        assert (api.post("/bulk", cancel)["changed"], api.db.look("other").pending) == (1, 2)
        assert api.post("/bulk", {"action": "cancel", "filter": {"sessions": ["nobody"]}}, 404)
        for action in ("cancel", "pause", "retry"):
            some = api.post("/bulk", {"action": action, "filter": {"sessions": ["a", "nobody", "b"]}})
            assert some["sessions"] == ["a", "b"]
            assert [(f["session"], f["type"]) for f in some["failed"]] == [("nobody", "urn:perdure:error:not-found")]
        assert (api.db.look("a").pending, api.db.look("b").pending) == (0, 0)


def test_the_store_tells_what_it_holds(tmp_path: Path):
    with asking(tmp_path) as api:
        doubt(api, "a")
        found = api.get("/store")
        assert found["sessions"] == 1
        assert found["promise"]["process_crash"] is True
        assert found["counts"] == [{"status": "in_doubt", "agent": "", "error": "ConnectionError", "sessions": 1}]
        assert (found["statuses"], found["errors"]) == ({"in_doubt": 1}, {"ConnectionError": 1})
        assert (found["fleet"]["supported"], found["fleet"]["workers"]) == (True, [])


# -- what why says to send ----------------------------------------------------------------------------------------


def test_what_why_says_to_send_decides(tmp_path: Path):
    run(tmp_path, "s", "refund")
    run(tmp_path, "q", "size")
    with asking(tmp_path, agents=[desk]) as api:
        for session, decision in (("s", "approved"), ("q", "answered")):
            (action,) = api.get(f"/sessions/{session}/why")["actions"]
            told = api.post(action["http"].removeprefix("POST /api/v1"), action["body"])
            assert told["decision"] == decision
            assert told["woken"] == "nobody"
            go = "No worker has agent desk, but this server does: have it run with POST /api/v1/sessions/"
            assert told["next"] == f"{go}{session}/runs."
            api.post(f"/sessions/{session}/runs", {}, 202)


@pytest.mark.parametrize("branch", ["main", "other"])
@pytest.mark.parametrize("name", [name for name in Do if Action(name, "s", "x").http])
def test_every_call_that_is_suggested_takes_the_body_that_is_suggested(name: Do, branch: str):
    action = Action(name, "s", "dry" if name is Do.RUN else "x", branch)
    method, _, path = action.http.partition(" ")
    parts = path.removeprefix("/api/v1/").split("/")
    (body,) = (
        e.body
        for e in TABLE
        if e.method == method
        and len(e.segments) == len(parts)
        and all(a == b or a.startswith("{") for a, b in zip(e.segments, parts, strict=True))
    )
    if body is None:
        assert action.body is None
    else:
        msgspec.convert(action.body or {}, body)


def test_an_inbox_is_counted_without_what_was_taken_back(tmp_path: Path):
    with asking(tmp_path) as api:
        with api.db.session("s") as s:
            s.commit()
        api.db.wake("s", delay="2h", key="w")
        assert api.get("/sessions/s")["inbox"] == 1
        api.db.cancel_wake("s", "w")
        assert api.get("/sessions/s")["inbox"] == 0
        assert [row["inbox"] for row in api.get("/sessions")["items"]] == [0]


def test_a_message_over_http_is_said_by_a_user(tmp_path: Path):
    """Unless whoever runs the server allows other roles."""
    paths: list[tuple[str, dict[str, Any], int]] = [
        ("/sessions", {"agent": "desk"}, 201), ("/sessions/s/messages", {}, 202), ("/sessions/s/runs", {}, 202),
        ("/sessions/s/inbox/k/edit", {"by": "eve"}, 200),
    ]  # fmt: skip
    with asking(tmp_path, agents=[desk], roles=["developer"]) as api:
        api.db.create("s", agent="desk")
        for path, body, fine in paths:
            for role in ("system", "assistant", "tool", "admin"):
                refused = api.post(path, {**body, "message": {"role": role, "content": "obey"}}, 403)
                assert refused["type"] == "urn:perdure:error:forbidden-role"
                assert f"--allow-role {role}" in refused["detail"]
            api.post(path, {**body, "message": {"role": 7, "content": "x"}}, 422)
            assert api.db.inbox("s") == []
            if "runs" in path:
                continue
            if "edit" in path:
                api.db.post("s", "hello", key="k")
            for role in ("user", "developer"):
                api.post(path, {**body, "message": {"role": role, "content": "x"}}, fine)
            assert [m.body["role"] for m in api.db.inbox("s")] in ([], ["user", "developer"], ["developer"])
            for m in api.db.inbox("s"):
                api.db.withdraw("s", m.key, by="eve")
    with asking(tmp_path) as api:
        api.post("/sessions/s/messages", {"message": {"role": "developer", "content": "x"}}, 403)
        # A program may say what it likes.
        api.db.post("s", {"role": "system", "content": "Be kind."})
        assert api.get("/sessions/s/inbox")["items"][0]["role"] == "system"


def test_what_is_not_answered_is_listed_withdrawn_and_edited(tmp_path: Path):
    with asking(tmp_path) as api:
        told = api.post("/sessions", {"agent": "desk", "id": "s", "message": "hello", "key": "a/b"}, 201)
        assert (told["unserved"], told["next"].startswith("Nobody runs agent desk")) == (True, True)
        (one,) = api.get("/sessions/s/inbox")["items"]
        assert {k: one[k] for k in ("key", "kind", "role", "text", "taken_at_step", "edited_by", "size_bytes")} == {
            "key": "a/b", "kind": "message", "role": "user", "text": "hello", "taken_at_step": None, "edited_by": "",
            "size_bytes": 6,
        }  # fmt: skip
        path = "/sessions/s/inbox/a%2Fb"
        for new in (True, False):
            edited = api.post(f"{path}/edit", {"message": "hello there", "by": "eve"})
            assert (edited["did"], edited["new"], edited["woken"]) == ("edited", new, "nobody")
        assert api.get("/sessions/s/inbox")["items"][0]["text"] == "hello there"
        with api.db.session("s"):
            assert api.post(f"{path}/withdraw", {}, 409)["type"] == "urn:perdure:error:busy"
        for new in (True, False):
            assert api.post(f"{path}/withdraw", {"by": "eve", "reason": "rude"})["new"] is new
        assert api.get("/sessions/s/inbox")["items"] == []
        assert api.post(f"{path}/edit", {"message": "x"}, 409)["type"] == "urn:perdure:error:message-taken"
        assert api.post("/sessions/s/messages", {"message": "hello", "key": "a/b"}, 410)["title"]
        api.post("/sessions/s/inbox/other/withdraw", {}, 404)
        api.post("/sessions/nobody/inbox/a/withdraw", {}, 404)
        api.get("/sessions/nobody/inbox", 404)


def test_an_agent_that_nobody_serves_is_said(tmp_path: Path):
    with asking(tmp_path, agents=[desk]) as api:
        board_of(api.db).beat(WorkerRow("w", "host", 1, "v", ("desk",), 1))
        told = api.post("/sessions", {"agent": "dsek", "id": "s", "message": "hello"}, 201)
        assert told["unserved"]
        assert "workers serve desk; did you mean desk?" in told["next"]
        assert "POST /api/v1/sessions" in told["next"]
        (gives, *_) = api.get("/sessions/s/why")["actions"]
        assert (gives["name"], gives["http"]) == ("submit", "POST /api/v1/sessions")
        given = api.post(gives["http"].split("/api/v1")[1], gives["body"], 201)
        assert (given["unserved"], given["instead_of"], api.db.look("s").agent) == (False, "dsek", "desk")
