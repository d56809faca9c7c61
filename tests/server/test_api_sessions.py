"""Sessions and their past over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import perdure
from perdure import Agent, ScriptedModel
from perdure.testing.clock import FakeClock
from tests.server.asking import API, asking
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = '<script>alert("x")</script>\x1b]0;title\x07\x1b[31m\u2028\u202e' + "\x00\n"


def fill(db: perdure.Database, number: int, clock: FakeClock) -> None:
    """Some sessions with a few checkpoints each, one after the other."""
    for i in range(number):
        clock.advance(1)
        with db.session(f"s/{i:03}", owner=f"o{i % 2}") as s:
            s.vars["n"] = i
            s.commit("first")
            s.messages.append({"role": "user", "content": "hi"})
            s.commit()


def test_sessions_are_listed_by_their_properties_and_page_by_page(tmp_path: Path):
    clock = FakeClock()
    with asking(tmp_path, clock=clock) as api:
        fill(api.db, 7, clock)
        seen: list[str] = []
        after = None
        while True:
            page = api.get("/sessions", limit=3, **({"after": after} if after else {}))
            seen += [s["id"] for s in page["items"]]
            after = page["next"]
            if after is None:
                break
        assert seen == [f"s/{i:03}" for i in range(7)]
        assert [s["id"] for s in api.get("/sessions", owner="o1")["items"]] == ["s/001", "s/003", "s/005"]
        newest = api.get("/sessions", newest=True, limit=2)
        assert [s["id"] for s in newest["items"]] == ["s/006", "s/005"]
        following = api.get("/sessions", newest=True, limit=2, after=newest["next"])
        assert [s["id"] for s in following["items"]] == ["s/004", "s/003"]
        assert api.get("/sessions", search="/003")["items"][0]["id"] == "s/003"
        assert api.get("/sessions", status="failed") == {"items": [], "next": None}
        moment = newest["items"][1]["updated_at"]
        assert moment.endswith("Z")
        late = [s["id"] for s in api.get("/sessions", since=moment)["items"]]
        early = [s["id"] for s in api.get("/sessions", before=moment.replace("Z", "+00:00"))["items"]]
        assert (sorted(late + early), "s/006" in late) == (seen, True)
        for wrong in ("1700000000000", "2023-11-14", "2023-11-14T22:13:20", "2023-13-14T22:13:20Z", "null"):
            assert api.get("/sessions", 422, since=wrong)["type"]


def test_a_session_is_found_by_its_id_whatever_is_in_it(tmp_path: Path):
    names = ["a/b", "ü ?&#%", "100%", "a%2Fb", " ", "<b>", "a\nb", "x" * 512]
    with asking(tmp_path) as api:
        for name in names:
            with api.db.session(name) as s:
                s.commit()
        from urllib.parse import quote

        for name in names:
            assert api.get(f"/sessions/{quote(name, safe='')}")["id"] == name
        gone = api.get("/sessions/nobody", 404)
        assert gone["type"] == "urn:perdure:error:not-found"
        assert gone["status"] == 404


def test_the_past_is_read_at_any_place(tmp_path: Path):
    with asking(tmp_path) as api:
        with api.db.session("s", owner="ana") as s:
            for n in range(1, 6):
                s.vars["n"] = n
                s.commit(f"step {n}")
            s.tag("third", at=3)
            s.fork("other", at=2)
        row = api.get("/sessions/s")
        assert row["step"] == 5
        assert row["branches"]["other"]["step"] == 3
        assert row["tags"]["third"]["step"] == 3
        history = api.get("/sessions/s/history", limit=2)
        assert [c["step"] for c in history["items"]] == [5, 4]
        assert [c["step"] for c in api.get("/sessions/s/history", before=history["next"])["items"]] == [3, 2, 1]
        for at, n in (("2", 2), ("third", 3), ("other", 2), (history["items"][1]["id"][:10], 4)):
            assert api.get("/sessions/s/state", at=at)["value"]["vars"] == {"n": n}
        assert api.get("/sessions/s/state")["value"]["vars"] == {"n": 5}
        assert api.get("/sessions/s/state", path="/vars/n")["value"] == 5
        api.get("/sessions/s/state", 404, path="/vars/nothing")
        api.get("/sessions/s/state", 404, at="9")
        api.get("/sessions/s/state", 422, path="vars")
        diff = api.get("/sessions/s/diff", a="1", b="4")
        assert diff["differences"] == [{"path": "/vars/n", "kind": "changed", "before": 1, "after": 4}]
        assert (diff["a"]["step"], diff["b"]["step"]) == (1, 4)


def test_what_is_long_is_cut_and_can_be_read_piece_by_piece(tmp_path: Path):
    text = "".join(f"{i:06}" for i in range(50_000))
    with asking(tmp_path) as api:
        with api.db.session("s") as s:
            s.vars["long"] = text
            s.vars["many"] = list(range(3000))
            s.vars["raw"] = b"\x00\xff"
            s.vars["big"] = 2**80
            s.commit()
        whole = api.get("/sessions/s/state")
        assert {c["path"]: c["size"] for c in whole["truncated"]} == {"/vars/long": len(text), "/vars/many": 3000}
        assert whole["value"]["vars"]["raw"] == {"$bytes": "AP8="}
        assert whole["value"]["vars"]["big"] == 2**80
        read, offset = "", 0
        while offset < len(text):
            part = api.get("/sessions/s/state", path="/vars/long", offset=offset, limit=100_000)
            assert part["size"] == len(text)
            read += part["value"]
            offset += len(part["value"])
        assert read == text
        part = api.get("/sessions/s/state", path="/vars/many", offset=2998)
        assert (part["kind"], part["size"], part["value"]) == ("list", 3000, [2998, 2999])


def test_an_answer_stays_within_bounds_whatever_is_stored(tmp_path: Path):
    with asking(tmp_path) as api:
        with api.db.session("s") as s:
            for n in range(300):
                s.messages.append({"role": "user", "content": "x" * 20_000, "n": n})
            s.commit()
        answer = api.http.get(f"{API}/sessions/s/state")
        assert answer.status_code == 200
        assert len(answer.content) < 2_000_000
        assert len(answer.json()["truncated"]) > 10


def test_hostile_content_comes_out_as_plain_json(tmp_path: Path):
    with asking(tmp_path) as api:
        with api.db.session("s", owner="<b>o</b>") as s:
            s.messages.append({"role": "user", "content": HOSTILE + "y" * 10_000})
            s.vars[HOSTILE.replace("\x00", "")] = 1
            s.commit(HOSTILE.replace("\x00", "")[:50])
        answer = api.http.get(f"{API}/sessions/s/state", params={"path": "/messages/0/content"})
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert b"\x1b" not in answer.content
        assert answer.json()["value"] == HOSTILE + "y" * 10_000
        assert api.get("/sessions/s/history")["items"][0]["details"]["note"].startswith("<script>")


def test_the_exact_request_of_a_step_is_rebuilt(tmp_path: Path):
    from perdure.agent.requests import rebuild

    agent = Agent("guide", model=ScriptedModel(["Lisbon is on the sea."]), instructions="Be brief.")
    agent.run_sync(url_of("sqlite", tmp_path), session="s", message="Where is Lisbon?")
    with asking(tmp_path) as api:
        found = api.get("/sessions/s/request", at="1")
        sent = rebuild(api.db, "s", 1)
        assert found["value"]["messages"] == sent.messages
        assert found["value"]["model"] == sent.model
        assert found["checkpoint"]["step"] == 1
        assert api.get("/sessions/s/request", at="1", path="/messages/0/content")["value"] == "Be brief."
        with api.db.session("t") as s:
            s.commit()
        assert api.get("/sessions/t/request", 422, at="1")["type"] == "urn:perdure:error:invalid-input"


def test_a_state_of_a_newer_schema_is_shown_and_branched_as_it_is(tmp_path: Path):
    with perdure.open(url_of("sqlite", tmp_path), schema="2.5.0") as db, db.session("s") as s:
        s.vars["n"] = 1
        s.commit()
    with asking(tmp_path) as api:
        assert api.get("/sessions/s/state")["checkpoint"]["schema"] == "2.5.0"
        edits = [{"op": "replace", "path": "/vars/n", "value": 2}]
        made = api.post("/sessions/s/branches", {"name": "b", "edits": edits}, 201)
        assert (made["schema"], made["step"]) == ("2.5.0", 3)
        assert api.get("/sessions/s/state", at="b")["value"]["vars"] == {"n": 2}


def test_branches_are_forked_with_edits_rewound_and_tagged(tmp_path: Path):
    with asking(tmp_path) as api:
        with api.db.session("s") as s:
            for n in range(1, 5):
                s.vars["n"] = n
                s.messages.append({"n": n})
                s.commit()
        edits = [
            {"op": "replace", "path": "/vars/n", "value": 20},
            {"op": "remove", "path": "/messages/0"},
            {"op": "add", "path": "/messages/-", "value": "last"},
            {"op": "add", "path": "/vars/a~1b", "value": None},
        ]
        made = api.post("/sessions/s/branches", {"name": "b", "at": "2", "edits": edits}, 201)
        assert (made["branch"], made["step"]) == ("b", 4)
        state = api.get("/sessions/s/state", at="b")["value"]
        assert state["vars"] == {"n": 20, "a/b": None}
        assert state["messages"] == [{"n": 2}, "last"]
        assert api.get("/sessions/s/state")["value"]["vars"] == {"n": 4}
        assert api.post("/sessions/s/branches", {"name": "b"}, 409)["type"] == "urn:perdure:error:conflict"
        bad = [{"op": "replace", "path": "/vars/x", "value": 1}]
        api.post("/sessions/s/branches", {"name": "c", "edits": bad}, 422)
        assert "c" not in api.get("/sessions/s")["branches"]
        api.post("/sessions/s/tags", {"name": "good", "at": "1"}, 201)
        assert api.get("/sessions/s/state", at="good")["value"]["vars"] == {"n": 1}
        rewound = api.post("/sessions/s/rewind", {"at": "2"})
        assert rewound["kind"] == "rewind"
        assert api.get("/sessions/s/state")["value"]["vars"] == {"n": 2}


def test_while_another_writes_it_a_session_is_busy(tmp_path: Path):
    with asking(tmp_path) as api, api.db.session("s") as s:
        s.commit()
        answer = api.http.post(f"{API}/sessions/s/branches", json={"name": "b"})
        assert answer.status_code == 409
        assert answer.json()["type"] == "urn:perdure:error:busy"
        assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("swept", [False, True])
def test_a_message_to_an_expired_session_begins_it_anew_and_says_so(tmp_path: Path, swept: bool):
    clock = FakeClock()
    agent = Agent("desk", model=ScriptedModel(["hello"]))
    with asking(tmp_path, clock=clock, agents=[agent]) as api:
        api.db.create("s", agent="desk", ttl=10)
        assert api.post("/sessions/s/messages", {"message": "in time"}, 202)["begins_anew"] is False
        with api.db.session("t", ttl=10) as s:
            s.commit()
        clock.advance(11_000)
        if swept:
            assert api.db.sweep().removed == 1
        assert api.post("/sessions/s/messages", {"message": "kept"}, 202)["begins_anew"] is False
        assert api.get("/sessions/t/approvals", 410)["type"] == "urn:perdure:error:gone"
        assert api.post("/sessions/t/effects/ef_1/outcome", {"result": 1}, 410)["type"] == "urn:perdure:error:gone"
        assert api.get("/sessions/t/why")["action"] == "revive"
        said = api.post("/sessions/t/messages", {"message": "hi"}, 202)
        assert (said["session"], said["new"], said["begins_anew"], said["kept"]) == ("t", True, True, True)
        assert "revive" in {one["name"] for one in api.get("/sessions/t/why")["actions"]}
        assert api.post("/sessions/t/runs", {"agent": "desk", "branch": "b"}, 422)
        assert api.post("/sessions/t/runs", {"agent": "desk"}, 202)["started"]
        api.post("/sessions/never/messages", {"message": "hi"}, 404)


def test_a_session_that_has_expired_is_gone(tmp_path: Path):
    clock = FakeClock()
    with asking(tmp_path, clock=clock) as api:
        with api.db.session("s", ttl=10) as s:
            s.commit()
        api.get("/sessions/s/state")
        clock.advance(11_000)
        assert api.get("/sessions/s/state", 410)["type"] == "urn:perdure:error:gone"
