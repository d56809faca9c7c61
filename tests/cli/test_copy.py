"""``perdure copy``: what it says, how it ends, and that nothing secret is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import apsw
import pytest

import perdure
from tests.cli.terminals import in_terminal
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command


def damage(path: Path, session: str) -> None:
    with apsw.Connection(str(path)) as raw:
        raw.execute(
            "update commits set payload = zeroblob(30) where no = (select no from sessions where id = ?)", (session,)
        )


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_a_database_is_copied_into_one_of_any_kind(command: Command, trip: Path, tmp_path: Path, kind: str):
    target = url_of(kind, tmp_path, "copy")
    result = command("copy", "agents.db", target)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("2 sessions copied: 7 checkpoints, 1 blob, ")
    assert result.out.endswith(" s, verified\n")
    assert command("verify", "--all", "--store", target).code == 0
    for place in ("trip", "trip@cheaper", "trip@early", "visit"):
        both = [command("show", place, "--json", "--store", store).json for store in ("agents.db", target)]
        assert both[0] == both[1]
    again = command("copy", "agents.db", target, "--json").json
    assert (again["copied"], again["unchanged"], again["checkpoints"]) == (0, 2, 0)


def test_json_has_everything(command: Command, trip: Path, tmp_path: Path):
    with perdure.open(f"sqlite:///{trip}") as db:
        for name in ("bad", "ended"):
            with db.session(name) as s:
                s.vars["n"] = 1
                s.commit()
    command("copy", "agents.db", "copy.db", "--session", "ended")
    with perdure.open(f"sqlite:///{tmp_path}/copy.db") as db:
        db.kernel.store.drop("ended", None, "deleted")
    damage(trip, "bad")
    result = command("copy", "agents.db", "copy.db", "--json")
    assert result.code == 1
    answer = result.json
    assert answer.pop("duration_seconds") >= 0
    assert answer.pop("bytes") > 0
    ((problem),) = [f.pop("detail") for f in answer["failed"]]
    assert "the source is not intact" in problem
    assert answer == {
        "ok": False, "source": "sqlite:///agents.db", "destination": "sqlite:///copy.db", "copied": 2, "updated": 0,
        "unchanged": 0, "skipped": [{"session": "ended", "detail": "it has ended there: deleted"}],
        "failed": [{"session": "bad"}], "missing": [], "in_doubt": [], "checkpoints": 7,
        "blobs": 1, "verified": True, "dry_run": False,
    }  # fmt: skip
    plain = command("copy", "agents.db", "copy.db")
    assert plain.code == 1
    left, failed, summary = plain.out.splitlines()
    assert left == "left alone: ended: it has ended there: deleted"
    assert failed.startswith("failed: bad: ")
    assert summary.startswith("0 sessions copied, 2 there already, 1 failed: 0 checkpoints")
    assert command("copy", "agents.db", "copy.db", "--revive", "--no-verify", "--json").json["copied"] == 2


def test_a_trial_makes_no_database(command: Command, trip: Path, tmp_path: Path):
    before = sorted(os.listdir(tmp_path))
    result = command("copy", "agents.db", "copy.db", "--dry-run")
    assert result.code == 0
    assert result.out.startswith("2 sessions would be copied: 7 checkpoints, 1 blob, ")
    assert sorted(os.listdir(tmp_path)) == before


def test_only_some_are_copied(command: Command, trip: Path):
    assert command("copy", "agents.db", "one.db", "--owner", "bea", "--json").json["copied"] == 1
    assert (
        command("copy", "agents.db", "two.db", "--session", "trip", "--session", "visit", "--json").json["copied"] == 2
    )
    missing = command("copy", "agents.db", "three.db", "--session", "nobody", "--session", "trip", "--json")
    assert (missing.code, missing.json["copied"]) == (1, 1)
    assert missing.json["failed"][0]["session"] == "nobody"


def test_blobs_may_lie_elsewhere(command: Command, trip: Path, tmp_path: Path):
    elsewhere = f"file://{tmp_path}/pictures"
    assert command("copy", "agents.db", "copy.db", "--target-blobs", elsewhere).code == 0
    with perdure.open("copy.db", blobs=elsewhere) as db:
        assert db.read("visit").vars["blob"] == b"\0\1"
    assert command("copy", "copy.db", "back.db", "--source-blobs", elsewhere).code == 0
    assert command("verify", "--all", "--store", "back.db").code == 0


@pytest.mark.parametrize(
    "argv",
    [
        ("agents.db",),
        ("agents.db", "memory://"),
        ("memory://", "agents.db"),
        ("agents.db", "agents.db"),
        ("agents.db", "nonsense://x"),
        ("agents.db", "copy.db", "--owner", "ana", "--session", "trip"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(command: Command, trip: Path, argv: tuple[str, ...]):
    result = command("copy", *argv)
    assert result.code == 2


@pytest.mark.parametrize("kind", ["sqlite", "file"])
@pytest.mark.parametrize("way", ["another path", "a link"])
def test_one_store_by_two_paths_is_no_copy(command: Command, tmp_path: Path, kind: str, way: str):
    with perdure.open(f"sqlite:///{tmp_path}/it.db" if kind == "sqlite" else f"file://{tmp_path}/it.db") as db:
        with db.session("s") as s:
            s.commit()
        url = db.url
    (tmp_path / "there").mkdir()
    (tmp_path / "linked.db").symlink_to(tmp_path / "it.db")
    other = url.replace("it.db", "there/../it.db" if way == "another path" else "linked.db")
    result = command("copy", url, other)
    assert (result.code, "both the source and the destination" in result.err) == (2, True), result.err


def test_a_source_that_is_not_there_is_not_made(command: Command, tmp_path: Path):
    result = command("copy", "nothing.db", "copy.db")
    assert result.code == 3
    assert "there is no database nothing.db" in result.err
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_shows_a_bar_and_a_pipe_does_not(trip: Path, tmp_path: Path):
    program = [sys.executable, "-m", "perdure.cli", "copy", "agents.db"]
    piped = subprocess.run([*program, "piped.db"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (piped.stderr, len(piped.stdout.splitlines())) == ("", 1)
    assert "\x1b" not in piped.stdout
    shown = in_terminal([*program, "shown.db"], tmp_path, {**os.environ, "TERM": "xterm", "COLUMNS": "100"})
    assert b"copying" in shown
    assert b"2/2" in shown
    assert b"2 sessions copied" in shown
