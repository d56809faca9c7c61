"""A new version takes over while people have not decided yet: nothing fails, nothing is done by the wrong version."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import perdure
from tests.campaigns.rolling_deploy import app_v1 as deploy_v1
from tests.campaigns.rolling_deploy import app_v2 as deploy_v2
from tests.campaigns.rolling_deploy import deploy
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_workers_are_replaced_one_by_one_by_a_version_with_other_tools(tmp_path: Path):
    found = deploy.run(url_of("sqlite", tmp_path), tmp_path, print)
    assert found.ok, "\n".join(deploy.lines_of("sqlite", found))
    assert found.open == deploy.EACH * len(deploy.KINDS)
    assert sum(found.fates.values()) == found.open, found.fates
    assert sorted(found.kept) == ["book1", "send1"]


def _asked(url: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A request that version 1 has made."""
    monkeypatch.setattr("tests.fleet.app.LEDGER", str(tmp_path / "ledger"))
    result = deploy_v1.desk.run_sync(url, session="s", message=words)
    assert result.status == "waiting_approval"
    return result.approvals[0].id


def test_a_call_that_was_turned_down_is_settled_by_a_version_that_has_no_such_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url = url_of("sqlite", tmp_path)
    approval = _asked(url, "send A", monkeypatch, tmp_path)
    assert deploy_v2.desk.run_sync(url, session="s").status == "incompatible"
    with perdure.open(url) as db:
        db.reject("s", approval, by="bob", reason="nobody has a fax")
        result = deploy_v2.desk.run_sync(url, session="s")
        assert result.ok, result
        assert "nobody has a fax" in result.text
        assert db.look("s").pending == 0
    assert not (tmp_path / "ledger").exists()


def test_a_decision_on_a_request_that_is_void_is_taken_out_of_the_inbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url = url_of("sqlite", tmp_path)
    approval = _asked(url, "refund A 5", monkeypatch, tmp_path)

    async def main() -> None:
        async with perdure.open_async(url) as db:
            await db.approve("s", approval, by="bob", reason="five is fine")
            result = await deploy_v2.desk.run(db, session="s")
            (asked,) = result.approvals
            assert (asked.tool, asked.args) == ("give_back", {"order": "A", "cents": 500})
            assert (await db.look("s")).pending == 0
            async with db.session("s") as s:
                (void,) = [a for a in s.approvals(None) if a.id == approval]
            assert (void.status, void.by, void.reason) == ("stale", "bob", "five is fine")
            await db.approve("s", asked.id, by="bob")
            assert (await deploy_v2.desk.run(db, session="s")).ok

    asyncio.run(main())
    assert (tmp_path / "ledger").read_text().split()[:4] == ["v2", "give_back", "A", "500"]
