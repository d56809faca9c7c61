"""A session that only seems to have ended, because somebody without the key said so in the store: no door believes it.

What is said to it would be acknowledged, and lie where nobody takes it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, ScriptedModel
from perdure.errors import Corrupted
from perdure.fleet.board import submit
from perdure.fleet.why.reading import why
from perdure.history.lives import end_session
from tests.store_urls import STORES, url_of
from tests.tampering import forge_end

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY = "a key of sixteen bytes"


def _update(s: Any) -> None:
    s.vars["n"] = 2


DOORS: dict[str, Callable[[perdure.Database], Any]] = {
    "session": lambda db: db.session("s"),
    "optimistic": lambda db: db.session("s", lease=False),
    "existing": lambda db: db.session("s", create=False),
    "update": lambda db: db.update("s", _update),
    "create": lambda db: db.create("s", agent="a"),
    "post": lambda db: db.post("s", "hello"),
    "post of an owner": lambda db: db.post("s", "hello", owner="ana"),
    "post_outcome": lambda db: db.post_outcome("s", "e1", 1),
    "wake": lambda db: db.wake("s", delay="2h"),
    "cancel_wake": lambda db: db.cancel_wake("s", "k"),
    "cancel": lambda db: db.cancel("s", by="ana"),
    "approve": lambda db: db.approve("s", "a1", by="ana"),
    "answer": lambda db: db.answer("s", "a1", 1, by="ana"),
    "reject": lambda db: db.reject("s", "a1", by="ana"),
    "revive": lambda db: db.revive("s"),
    "compact": lambda db: db.compact("s"),
    "prune": lambda db: db.prune("s", keep_last=1),
    "look": lambda db: db.look("s"),
    "read": lambda db: db.read("s"),
    "history": lambda db: list(db.history("s")),
    "why": lambda db: why(db, "s"),
}


def _one_session(kind: str, folder: Path) -> None:
    with perdure.open(url_of(kind, folder), keys=KEY, maintain=False) as db, db.session("s", owner="ana") as s:
        s.vars["n"] = 1
        s.commit()


def _refuses(db: perdure.Database, door: Callable[[perdure.Database], Any]) -> bool:
    try:
        door(db)
    except Corrupted:
        return True
    return False


@pytest.mark.parametrize("how", ["column", "unsigned"])
@pytest.mark.parametrize("kind", STORES)
def test_no_door_believes_it(tmp_path: Path, kind: str, how: str) -> None:
    _one_session(kind, tmp_path)
    if how == "column":
        forge_end(kind, tmp_path, "s")
    with perdure.open(url_of(kind, tmp_path), keys=KEY, maintain=False) as db:
        if how == "unsigned":
            db.kernel.store.drop("s", None, "no longer needed")
        believed = [name for name, door in DOORS.items() if not _refuses(db, door)]
        assert believed == []
        assert db.kernel.store.inbox("s", 10) == [], "nothing lies where nobody takes it"
        assert [f.session for f in db.verify().findings] == ["s"]


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "tiered"])
def test_no_fleet_is_given_it(tmp_path: Path, kind: str) -> None:
    _one_session(kind, tmp_path)
    forge_end(kind, tmp_path, "s")
    with perdure.open(url_of(kind, tmp_path), keys=KEY, maintain=False) as db:
        with pytest.raises(Corrupted):
            submit(db, "s", "hello", agent="a")
        assert db.kernel.store.board().works() == []  # pyright: ignore


@pytest.mark.parametrize("kind", STORES)
def test_no_agent_runs_on_it(tmp_path: Path, kind: str) -> None:
    _one_session(kind, tmp_path)
    forge_end(kind, tmp_path, "s")

    async def run() -> None:
        async with perdure.open_async(url_of(kind, tmp_path), keys=KEY, maintain=False) as db:
            await Agent("a", model=ScriptedModel(["hello"])).run(db, session="s", message="hello")

    with pytest.raises(Corrupted):
        asyncio.run(run())


def test_without_a_key_checkpoints_that_are_there_speak_against_it(tmp_path: Path) -> None:
    with perdure.open(url_of("sqlite", tmp_path)) as db, db.session("s") as s:
        s.commit()
    forge_end("sqlite", tmp_path, "s")
    with perdure.open(url_of("sqlite", tmp_path)) as db, pytest.raises(Corrupted, match="it has checkpoints"):
        db.post("s", "hello")


@pytest.mark.parametrize("kind", STORES)
def test_who_posts_to_one_that_has_rightly_ended_begins_it_anew(tmp_path: Path, kind: str) -> None:
    _one_session(kind, tmp_path)
    with perdure.open(url_of(kind, tmp_path), keys=KEY, maintain=False) as db:
        end_session(db.kernel, db.look("s"), None, "asked to forget")
        assert db.post("s", "hello", key="k")
        assert not db.post("s", "hello", key="k")
        with db.session("s") as s:
            assert [m.body for m in s.take()] == ["hello"]
