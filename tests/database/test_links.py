"""A database that is opened through a link is the one that the link names, with all that lies beside it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import perdure
from perdure.agent.live_answers import live_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_large_values_and_live_pieces_lie_beside_the_database_and_not_beside_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("data", "app", "elsewhere"):
        (tmp_path / folder).mkdir()
    data, link = tmp_path / "data" / "agents.db", tmp_path / "app" / "agents.db"
    # Also one that is made through the link.
    link.symlink_to(data)
    monkeypatch.chdir(tmp_path / "app")
    with perdure.open("sqlite:///agents.db") as db, db.session("s") as s:
        # What a program does later makes it no other database.
        os.chdir(tmp_path / "elsewhere")
        s.vars["shot"] = b"x" * 50_000
        s.commit()
        with perdure.open(data) as other:
            here, there = live_of(db.kernel), live_of(other.kernel)
            assert here is not None
            assert there is not None
            here.publish("s", b"piece")
            assert there.poll("s", "")[0] == [b"piece"]
    with perdure.open(data) as db:
        assert db.read("s").vars["shot"] == b"x" * 50_000
        assert db.verify().ok
        assert db.backup(tmp_path / "all.bak").missing == []
    assert [path.name for path in (tmp_path / "app").iterdir()] == ["agents.db"]


def test_a_witness_through_a_link_is_the_file_that_it_names(tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "heads.json")
    with perdure.open(tmp_path / "a.db", witness=link) as db, db.session("s") as s:
        s.commit()
    assert link.is_symlink()
    with perdure.open(tmp_path / "a.db", witness=tmp_path / "heads.json") as db:
        assert db.verify().ok
