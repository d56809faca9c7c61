"""Over HTTP a message is said once: by its key it is kept, answered, or refused when it is another one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, Context, ScriptedModel, tool
from tests.server.asking import asking

if TYPE_CHECKING:
    from pathlib import Path

desk = Agent("desk", model=ScriptedModel(lambda _: "an answer"))
AT = "/api/v1/sessions/s"


@pytest.mark.parametrize("how", ["header", "body", "both"])
def test_a_message_is_kept_and_its_key_gets_its_answer(tmp_path: Path, how: str):
    headers = {} if how == "body" else {"Idempotency-Key": "k1"}
    body: dict[str, Any] = {"message": "one", **({} if how == "header" else {"key": "k1"})}
    with asking(tmp_path, agents=[desk]) as a:
        a.db.create("s", agent="desk")
        for new in (True, False):
            got = a.http.post(f"{AT}/messages", json=body, headers=headers)
            told = got.json()
            assert (got.status_code, told["new"], told["kept"], told["message_key"]) == (202, new, True, "k1")
            assert told["answer"] is None
        asyncio.run(desk.run(a.db.url, session="s"))
        told = a.http.post(f"{AT}/messages", json=body, headers=headers).json()
        assert (told["new"], told["answer"]["text"], told["answer"]["repeated"]) == (False, "an answer", True)
        told = a.http.post(f"{AT}/runs", json=body, headers=headers).json()
        assert (told["started"], told["answer"]["text"]) == (False, "an answer")
        other = a.http.post(f"{AT}/messages", json={"message": "two", "key": "k1"})
        assert (other.status_code, "another content" in other.json()["detail"]) == (422, True)


def test_two_keys_that_differ_are_refused(tmp_path: Path):
    with asking(tmp_path, agents=[desk]) as a:
        a.db.create("s", agent="desk")
        for path in (f"{AT}/messages", f"{AT}/runs", "/api/v1/sessions"):
            body = {"message": "one", "key": "k1", **({"agent": "desk"} if path.endswith("sessions") else {})}
            got = a.http.post(path, json=body, headers={"Idempotency-Key": "k2"})
            assert (got.status_code, "differ" in got.json()["detail"]) == (422, True), path
        assert list(a.db.kernel.store.inbox("s", 10)) == []


def test_a_message_for_a_session_that_is_held_is_kept(tmp_path: Path):
    with asking(tmp_path, agents=[desk]) as a:
        a.db.create("s", agent="desk")
        with a.db.session("s"):
            got = a.http.post(f"{AT}/runs", json={"message": "one", "key": "k1"})
            assert (got.status_code, got.json()["kept"], got.json()["message_key"]) == (202, True, "k1")
            assert [e.key for e in a.db.kernel.store.inbox("s", 10)] == ["k1"]


def test_a_new_session_is_made_once_and_gets_its_answer(tmp_path: Path):
    with asking(tmp_path, agents=[desk]) as a:
        body = {"agent": "desk", "message": "one"}
        made = [a.http.post("/api/v1/sessions", json=body, headers={"Idempotency-Key": "k1"}).json() for _ in "ab"]
        assert [m["new"] for m in made] == [True, False]
        assert made[0]["session"] == made[1]["session"]
        asyncio.run(desk.run(a.db.url, session=made[0]["session"]))
        again = a.http.post("/api/v1/sessions", json=body, headers={"Idempotency-Key": "k1"}).json()
        assert (again["message_key"], again["answer"]["text"]) == ("k1", "an answer")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/sessions/s/runs", {"branch": "typo"}),
        ("/api/v1/sessions/new/runs", {"branch": "typo"}),
        ("/api/v1/sessions/new/runs", {}),
        ("/api/v1/sessions/s/runs", {"objective": " "}),
        ("/api/v1/sessions/s/runs", {"objective": "x" * 2001}),
        ("/api/v1/sessions/s/runs", {"max_turns": 0}),
        ("/api/v1/sessions/s/runs", {"max_turns": "5"}),
        ("/api/v1/sessions/s/runs", {"effects": "often"}),
        ("/api/v1/sessions/s/runs", {"agent": "nobody"}),
        ("/api/v1/sessions/s/runs", {"agent": "needy"}),
        ("/api/v1/sessions/s/runs", {"reopen": "no"}),
        ("/api/v1/sessions/s/runs", {"by": ""}),
        ("/api/v1/sessions/s/runs", {"message": "x" * 1_100_000}),
        ("/api/v1/sessions/s/runs", {"message": {"role": "usr", "content": "x"}}),
        ("/api/v1/sessions/s/messages", {"message": "x" * 1_100_000}),
        ("/api/v1/sessions", {"agent": "desk", "message": "x" * 1_100_000}),
        ("/api/v1/sessions", {"agent": "desk", "message": " "}),
        ("/api/v1/sessions", {"agent": "desk", "priority": 2000}),
        ("/api/v1/sessions", {"agent": "desk", "ttl_seconds": 0}),
        ("/api/v1/sessions", {"agent": ""}),
    ],
)
@pytest.mark.parametrize("key", [None, "k1"])
@pytest.mark.parametrize("store", ["sqlite", "file"])
def test_what_is_refused_leaves_nothing_behind(
    tmp_path: Path, path: str, body: dict[str, Any], key: str | None, store: str
):
    @tool(read=True)
    def look(ctx: Context[int]) -> int:
        """Look."""
        return 1

    needy = Agent("needy", model=ScriptedModel(lambda _: "an answer"), tools=[look])
    with asking(tmp_path, store, agents=[desk, needy]) as a:
        a.db.create("s", agent="desk")
        for _ in range(3):
            said = {"message": "pay 5", **({} if key is None else {"key": key}), **body}
            got = a.http.post(path, json=said)
            assert 400 <= got.status_code < 500, got.text
        assert list(a.db.kernel.store.inbox("s", 10)) == list(a.db.kernel.store.inbox("new", 10)) == []
        assert [row.id for row in a.db.sessions()] == ["s"]
