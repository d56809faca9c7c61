"""The past of a branch is all of it, or an error: each checkpoint names the one before it, and none is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw
import pytest

import perdure
from perdure.agent.session_stream import SessionReader
from perdure.errors import Corrupted
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.database import Database


def written(db: Database, steps: int) -> None:
    with db.session("s") as s:
        for i in range(steps):
            s.vars["i"] = i
            s.commit()


def leave_out(db: Database, monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """What a damaged index does: the rows are there, and nobody is told of them."""
    store: Any = db.kernel.store
    slice_ = store.slice

    def fewer(session: str, line: int, lo: int, hi: int) -> Any:
        bundle = slice_(session, line, lo, hi)
        return bundle._replace(rows=tuple(row for row in bundle.rows if row.step not in steps))

    monkeypatch.setattr(store, "slice", fewer)


@pytest.mark.parametrize("steps", [(20,), (15, 16, 17, 18, 19, 20), (11,), (8, 9, 10), (1,), tuple(range(1, 21))])
@pytest.mark.parametrize("limit", [5, 100])
@pytest.mark.parametrize("before", [None, 13])
def test_a_history_that_lacks_a_checkpoint_is_corrupted(
    steps: tuple[int, ...], limit: int, before: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with perdure.open("memory://") as db:
        written(db, 20)
        newest = 20 if before is None else before - 1
        right = [c.step for c in db.history("s", limit=limit, before=before)]
        assert right == list(range(newest, max(0, newest - limit), -1))
        leave_out(db, monkeypatch, *steps)
        if set(steps) & set(right):
            with pytest.raises(Corrupted, match=r"session 's', line 0, step \d+"):
                db.history("s", limit=limit, before=before)


def test_a_checkpoint_before_a_gap_that_retention_left_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    with perdure.open("memory://") as db:
        written(db, 30)
        db.compact("s")
        db.prune("s", keep_every=10)
        assert [c.step for c in db.history("s")] == [30, 20, 10, 1]
        for before in (25, 20, 15, 11, 10, 5, 2, 1):
            for limit in (1, 2, 100):
                expected = [n for n in (30, 20, 10, 1) if n < before][:limit]
                assert [c.step for c in db.history("s", before=before, limit=limit)] == expected
        leave_out(db, monkeypatch, 20)
        with pytest.raises(Corrupted, match="step"):
            db.history("s")


def test_a_history_goes_on_below_a_fork_and_a_rewind() -> None:
    with perdure.open("memory://") as db:
        written(db, 10)
        with db.session("s") as s:
            s.fork("other", at=4)
            s.rewind(6)
            s.vars["i"] = "again"
            s.commit()
            top = s.step
        for branch, steps in (("main", range(top, 0, -1)), ("other", range(5, 0, -1))):
            for before in range(1, top + 2):
                found = [c.step for c in db.history("s", branch=branch, before=before)]
                assert found == [n for n in steps if n < before]


@pytest.mark.parametrize("newest", [57, 45, 20, 1])
def test_an_index_of_sqlite_that_leaves_out_the_newest_checkpoints_is_found_out(tmp_path: Path, newest: int) -> None:
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db:
        written(db, 60)
        path: str = db.kernel.store.url.removeprefix("sqlite:///")
    raw = apsw.Connection(path)
    sql = "create unique index commits_by_step on commits (no, line, step)"
    assert raw.execute("select sql from sqlite_master where name = 'commits_by_step'").get.lower() == sql
    # An index of some rows only, of which its definition says that they are all.
    raw.execute(f"drop index commits_by_step; {sql} where step <= {newest}")
    raw.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    raw.execute("pragma writable_schema = on")
    raw.execute("update sqlite_master set sql = ? where name = 'commits_by_step'", (sql,))
    raw.close()
    with perdure.open(url) as db:
        with pytest.raises(Corrupted, match="session 's', line 0, step"):
            db.history("s")
        assert not db.verify().ok


def test_whoever_reads_along_is_told_of_every_commit_or_of_the_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    with perdure.open("memory://") as db:
        written(db, 250)
        leave_out(db, monkeypatch, 100, 101)
        reader = SessionReader(db.kernel, "s")
        with pytest.raises(Corrupted, match=r"step 10[02]"):
            list(reader.read())
