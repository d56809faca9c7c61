"""A store that is none of ours passes the whole contract, and a database opens on it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.errors import InvalidInput
from perdure.testing import FakeClock
from perdure.testing.store_contract import StoreContract
from tests.testing.third_party.json_store import JsonStore

if TYPE_CHECKING:
    from perdure.protocols import Clock, Store

PUBLIC = {
    "perdure.errors", "perdure.model", "perdure.protocols", "perdure.stores", "perdure.stores.rules",
    "perdure.stores.cursors", "perdure.stores.listing",
}  # fmt: skip


class TestJsonStore(StoreContract):
    scheme = "json"

    def open_store(self, folder: Path, name: str, clock: Clock) -> Store:
        return JsonStore(folder / f"{name}.db", clock=clock)


def test_it_uses_nothing_private():
    tree = ast.parse(Path(__file__).with_name("json_store.py").read_text("utf-8"))
    used = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in used if name.startswith("perdure")} <= PUBLIC
    names = [a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names]
    assert [name for name in names if name.startswith("_")] == []


def test_a_database_opens_on_it(tmp_path: Path):
    clock = FakeClock()

    def opened() -> perdure.Database:
        store = JsonStore(tmp_path / "own.db", clock=clock)
        return perdure.open(store, blobs=f"file://{tmp_path}/blobs", clock=clock)

    with opened() as db, db.session("trip", owner="ana") as s:
        s.messages.append({"role": "user", "content": "x" * 100_000})
        s.vars["n"] = 1
        s.commit()
        s.fork("cheaper")
    with opened() as db:
        assert db.read("trip").plain()["vars"] == {"n": 1}
        assert [row.id for row in db.sessions(owner="ana")] == ["trip"]
        assert db.verify("trip").ok


def test_what_cannot_be_opened_says_what_to_pass(tmp_path: Path):
    store = JsonStore(tmp_path / "own.db", clock=FakeClock())
    with pytest.raises(InvalidInput, match="blobs="):
        perdure.open(store)
    with pytest.raises(InvalidInput, match="synchronous"):
        perdure.open(store, blobs="memory://", synchronous="normal")
    store.close()
