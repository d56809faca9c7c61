"""State: edits, commits, reading any moment again."""

from __future__ import annotations

import json
from typing import Any

import pytest

import perdure
from perdure.testing.clock import FakeClock


def test_a_commit_is_there_for_the_next_handle(db: perdure.Database) -> None:
    with db.session("s", owner="ana") as s:
        assert (s.opened, s.step) == ("created", 0)
        s.messages.append({"role": "user", "content": "hi"})
        s.vars["budget"] = 12_000
        s.remember("seat", "window", source="user")
        s.set_summary("going")
        checkpoint = s.commit()
    assert checkpoint.step == 1
    with db.session("s") as s:
        assert (s.opened, s.step, s.owner) == ("resumed", 1, "ana")
        assert s.messages == [{"role": "user", "content": "hi"}]
        assert s.facts["seat"] == {"value": "window", "time": s.facts["seat"]["time"], "source": "user"}
        assert s.summary == "going"


def test_a_commit_without_edits_writes_nothing_but_the_first(db: perdure.Database) -> None:
    with db.session("s") as s:
        assert s.commit().step == 1
        s.vars["a"] = 1
        second = s.commit()
        assert s.commit() == second
        assert second.step == 2


def test_a_checkpoint_records_model_usage_and_tools(db: perdure.Database) -> None:
    about: dict[str, Any] = {
        "model": {"name": "deepseek-v3.2", "temperature": 0.0, "top_p": 1.0, "seed": 7},
        "usage": {"input_tokens": 12, "output_tokens": 3, "cost": 0.001},
        "tools": "1.0",
    }
    with db.session("s") as s:
        s.commit("planned", **about)
        with pytest.raises(perdure.LimitExceeded, match="4096"):
            s.commit("x" * 5000)
    assert db.history("s")[0].more == {"note": "planned", **about}


def test_every_step_can_be_read_again(db: perdure.Database) -> None:
    with db.session("s") as s:
        for i in range(20):
            s.messages.append({"n": i})
            s.commit()
    for step in range(1, 21):
        assert len(db.read("s", at=step).messages) == step
    with pytest.raises(perdure.NotFound, match="1 to 20"):
        db.read("s", at=21)
    with pytest.raises(perdure.NotFound, match="no session"):
        db.read("nobody")


def test_a_checkpoint_can_be_read_by_the_beginning_of_its_id(db: perdure.Database) -> None:
    with db.session("s") as s:
        s.vars["a"] = 1
        first = s.commit()
        s.vars["a"] = 2
        s.commit()
    assert db.read("s", at=first.id[:10]).vars["a"] == 1


def test_types_survive_exactly(db: perdure.Database) -> None:
    values: dict[str, Any] = {"i": 1, "f": 1.0, "t": True, "big": 2**200, "neg": -(2**90), "none": None, "": {"": []}}
    with db.session("s") as s:
        s.vars.update(values)
        s.commit()
    found = db.read("s").vars
    assert json.dumps(found) == json.dumps(values)
    assert [type(v) for v in found.values()][:3] == [int, float, bool]


@pytest.mark.parametrize("codec", ["msgpack", "json"])
def test_both_codecs_read_each_others_sessions(open_db: Any, codec: str) -> None:
    other = {"msgpack": "json", "json": "msgpack"}[codec]
    value = {"$perdure": [1, 2, 3], "big": 2**80, "bytes": b"\x00\xff", "long": "x" * 50_000, "1": [1.0, 1]}
    one = open_db(codec=codec)
    with one.session("s") as s:
        s.vars["v"] = value
        s.commit()
    with open_db(codec=other).session("s") as s:
        assert s.vars["v"] == value
        s.vars["v"]["more"] = value
        s.commit()
    assert open_db().read("s").plain()["vars"]["v"] == {**value, "more": value}


def test_large_values_and_bytes_are_kept_as_blobs_and_nobody_notices(db: perdure.Database) -> None:
    page, shot, tree = "x" * 100_000, b"\x89PNG" * 20_000, [{"n": i, "t": "y" * 50} for i in range(2_000)]
    with db.session("s") as s:
        s.messages.append({"role": "tool", "content": page})
        s.vars["shot"] = shot
        s.vars["tree"] = tree
        s.commit()
    assert {len(db.kernel.blobs.get(ref)) for ref, _ in db.kernel.blobs.refs()} >= {100_000, 80_000}
    with db.session("s") as s:
        assert s.messages[0]["content"] == page
        assert s.vars["shot"] == shot
        assert json.loads(json.dumps(s.vars["tree"])) == tree
        s.vars["tree"][7]["n"] = "seven"
        s.commit()
    assert db.read("s").vars["tree"][7]["n"] == "seven"
    assert db.read("s", at=1).vars["tree"][7]["n"] == 7


def test_what_is_assigned_is_copied(db: perdure.Database) -> None:
    with db.session("s") as s:
        mine = {"a": [1]}
        s.vars["v"] = mine
        mine["a"].append(2)
        s.commit()
        mine["a"].append(3)
        assert s.vars["v"] == {"a": [1]}


def test_a_reading_refuses_edits(db: perdure.Database) -> None:
    with db.session("s") as s:
        s.vars["a"] = 1
        s.commit()
    with pytest.raises(perdure.ReadOnly):
        db.read("s").vars["a"] = 2


def test_parts_taken_before_a_reload_refuse_edits(db: perdure.Database) -> None:
    with db.session("s") as s:
        s.vars["a"] = {"b": 1}
        s.commit()
        part = s.vars["a"]
        s.reload()
        with pytest.raises(perdure.Misuse, match="fetch it again"):
            part["b"] = 2


def test_leaving_with_uncommitted_edits_says_so(db: perdure.Database) -> None:
    with pytest.warns(perdure.UncommittedEdits), db.session("s") as s:
        s.vars["a"] = 1


def test_an_expired_session_starts_anew_and_says_why(db: perdure.Database, clock: FakeClock) -> None:
    with db.session("s", ttl=60) as s:
        s.vars["a"] = 1
        s.commit()
    clock.advance(59_000)
    with db.session("s") as s:
        assert s.opened == "resumed"
        s.vars["a"] = 2
        s.commit()
    clock.advance(59_000)
    assert db.read("s").vars["a"] == 2
    clock.advance(2_000)
    with pytest.raises(perdure.Gone, match="expired"):
        db.read("s")
    with db.session("s") as s:
        assert (s.opened, s.because, s.step) == ("restarted", "expired", 0)


def test_a_session_with_a_waiting_message_does_not_expire(db: perdure.Database, clock: FakeClock) -> None:
    with db.session("s", ttl=60) as s:
        s.vars["a"] = 1
        s.commit()
    clock.advance(59_000)
    db.post("s", "are you there?", key="q")
    clock.advance(2_000)
    assert db.sweep().removed == 0
    with db.session("s") as s:
        assert s.opened == "resumed"
        s.messages.extend(m.body for m in s.take())
        s.commit()
    clock.advance(61_000)
    assert db.sweep().removed == 1


def test_a_closed_session_is_read_but_not_written(db: perdure.Database) -> None:
    with db.session("s") as s:
        s.vars["a"] = 1
        s.close()
    assert db.read("s").checkpoint.status == "closed"
    with db.session("s") as s:
        s.vars["a"] = 2
        with pytest.raises(perdure.Misuse, match="reopen=True"):
            s.commit()
        s.reload()
    with db.session("s", reopen=True) as s:
        s.vars["a"] = 2
        s.commit()
    assert db.read("s").vars["a"] == 2
    assert [c.kind for c in db.history("s")] == ["commit", "reopened", "closed"]


def test_a_session_belongs_to_its_owner(db: perdure.Database) -> None:
    with db.session("s", owner="ana") as s:
        s.vars["a"] = 1
        s.commit()
    with pytest.raises(perdure.InvalidInput, match="another owner"):
        db.session("s", owner="bob")


def test_a_handle_of_a_closed_database_says_so(open_db: Any) -> None:
    db = open_db()
    db.close()
    with pytest.raises(perdure.Misuse, match="closed"):
        db.session("s")
