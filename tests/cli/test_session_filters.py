"""``perdure ls`` by tag, age and failed step, in any order, and watched."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure import tool
from perdure.system.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command, Result


@tool
def wire(amount: int) -> None:
    raise TimeoutError


class Earlier(SystemClock):
    """Three hours ago."""

    def wall(self) -> int:
        return super().wall() - 3 * 3_600_000


def ids(result: Result) -> list[str]:
    assert result.code == 0, result.err
    return [s["id"] for s in result.json["items"]]


@pytest.fixture
def many(tmp_path: Path) -> str:
    """Four sessions: an old one, a tagged one, one in doubt at step 2, and a busy inbox; the URL."""
    url = f"sqlite:///{tmp_path}/agents.db"
    with perdure.open(url, clock=Earlier()) as db, db.session("old", owner="zoe", ttl=None) as s:
        s.commit()
    with perdure.open(url) as db:
        with db.session("tagged", owner="bea") as s:
            for n in range(9):
                s.vars["n"] = n
                s.commit()
            s.tag("good", at=2)
        with db.session("doubt", owner="ana") as s:
            s.commit()
            with pytest.raises(perdure.InDoubt):
                s.call(wire, 1)
            step = s.step
        assert step >= 2
        perdure.submit(db, "asked", "hello", agent="desk", owner="cy")
    return url


def test_by_tag(command: Command, many: str):
    assert ids(command("ls", "--tag", "good", "--json")) == ["tagged"]
    assert ids(command("ls", "--tag", "goo", "--json")) == []
    assert command("ls", "--tag", "goo").out == "no session matches\n"


def test_by_age(command: Command, many: str):
    assert ids(command("ls", "--age", "1h", "--json")) == ["asked", "doubt", "tagged"]
    assert ids(command("ls", "--age", "+60min", "--json")) == ["old"]
    assert ids(command("ls", "--age", "1w", "--json")) == ["asked", "doubt", "old", "tagged"]
    for wrong in ("", "2", "h", "-2h", "2y", "2h ago", "9" * 30 + "h"):
        assert command("ls", f"--age={wrong}").code == 2


def test_by_the_step_or_tool_that_failed(command: Command, many: str):
    step = command("ls", "--status", "in_doubt", "--json").json["items"][0]["step"]
    assert ids(command("ls", "--failed-step", str(step), "--json")) == ["doubt"]
    assert ids(command("ls", "--failed-step", str(step + 1), "--json")) == []
    assert ids(command("ls", "--failed-step", "wire", "--json")) == ["doubt"]
    assert ids(command("ls", "--failed-step", "refund", "--json")) == []


def test_in_any_order(command: Command, many: str):
    assert ids(command("ls", "--sort", "owner", "--json")) == ["doubt", "tagged", "asked", "old"]
    assert ids(command("ls", "--sort", "created", "--json"))[-1] == "old"
    assert ids(command("ls", "--sort", "updated", "--json")) == ids(command("ls", "--newest", "--json"))
    assert ids(command("ls", "--sort", "inbox", "--json"))[0] == "asked"
    assert ids(command("ls", "--sort", "status", "--json"))[-1] == "doubt"
    first = command("ls", "--sort", "step", "--limit", "1", "--json").json
    assert ([s["id"] for s in first["items"]], first["next"]) == (["tagged"], None)
    assert "a larger --limit" in command("ls", "--sort", "step", "--limit", "1").out
    assert command("ls", "--sort", "size").code == 2
    assert command("ls", "--sort", "step", "--after", "x").code == 2


def test_a_filtered_page_is_gone_on_with(command: Command, many: str):
    page = command("ls", "--age", "1h", "--limit", "2", "--json").json
    assert [s["id"] for s in page["items"]] == ["asked", "doubt"]
    assert ids(command("ls", "--age", "1h", "--after", page["next"], "--json")) == ["tagged"]


def test_watched_until_it_is_interrupted(command: Command, many: str, tmp_path: Path):
    assert command("ls", "--watch", "--json").code == 2
    child = subprocess.Popen(
        [sys.executable, "-u", "-m", "perdure.cli", "ls", "--watch", "--owner", "ana", "--store", many],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline().startswith("SESSION")
    assert child.stdout.readline().startswith("doubt")
    with perdure.open(many) as db, db.session("another", owner="ana") as s:
        s.commit()
    assert child.stdout.readline().startswith("SESSION")
    assert child.stdout.readline().startswith("another")
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
    child.stdout.close()


def test_sessions_are_listed_by_their_label_and_show_tells_it(command: Command, tmp_path: Path):
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db:
        with db.session("s") as s:
            s.commit(label="waiting for executive")
        with db.session("t") as s:
            s.commit()
    assert ids(command("ls", "--label", "waiting for executive", "--json")) == ["s"]
    assert ids(command("ls", "--label", "", "--json")) == ["t"]
    table = command("ls").out.splitlines()
    assert "LABEL" in table[0]
    assert "waiting for executive" in table[1]
    assert "labelled waiting for executive" in command("show", "s").out
    assert "Its label: waiting for executive." in command("why", "s").out
    assert "LABEL" not in command("ls", "--label", "").out
