"""Every command, made to print what it prints for programs: on real stores, with real workers and servers.

A case covers some commands: it must show each of their shapes, and each of their negative answers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import perdure
from perdure.cli.output import OUTPUTS
from perdure.fleet.board import board_of
from perdure.protocols import WorkerRow
from tests.cli.conftest import Result
from tests.cli.test_copy import damage
from tests.server.listening import LIMIT, until
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Command

    Case = Callable[["Stage"], None]

ROOT = Path(__file__).resolve().parents[2]
DESK = "tests.cli.desk"
POLITE = """
from tests.cli.desk import *
agent = Agent("desk", model=ScriptedModel(said), instructions="Be polite.")
"""
CASES: dict[tuple[str, ...], Case] = {}


class Stage:
    """Where a case happens, and what the commands have printed there."""

    def __init__(self, command: Command, folder: Path, trip: Path) -> None:
        self._command = command
        self.folder, self.trip = folder, trip
        self.url = f"sqlite:///{trip}"
        self.seen: list[tuple[str, Result]] = []

    def do(self, name: str, *argv: str) -> Result:
        """Run a command for a program to read."""
        done = self._command(name, *argv, OUTPUTS[name].option)
        self.seen.append((name, done))
        return done

    def start(self, name: str, *argv: str) -> Process:
        """Start one that runs until it is stopped."""
        return Process(self, name, *argv)


class Process:
    """A command that runs until it is stopped, as a process of its own."""

    def __init__(self, stage: Stage, name: str, *argv: str) -> None:
        self._stage, self._name = stage, name
        self._files = [stage.folder / f"{name}.{kind}" for kind in ("out", "err")]
        env = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")} | {"PYTHONPATH": str(ROOT)}
        with self._files[0].open("wb") as out, self._files[1].open("wb") as err:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "perdure.cli", name, *argv, OUTPUTS[name].option],
                cwd=stage.folder, env=env, stdout=out, stderr=err,
            )  # fmt: skip

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait()

    def said(self) -> tuple[str, str]:
        """What it has printed so far."""
        out, err = (file.read_text("utf-8") for file in self._files)
        assert self._child.poll() in (None, 0), err
        return out, err

    def ended(self, number: int | None = None) -> Result:
        """How it ended: by itself, or by a signal."""
        if number is not None:
            self._child.send_signal(number)
        code = self._child.wait(LIMIT)
        out, err = (file.read_text("utf-8") for file in self._files)
        assert "\x1b" not in out + err
        # A log goes where logs go.
        done = Result(code, err if OUTPUTS[self._name].option == "--log-json" else out, err)
        self._stage.seen.append((self._name, done))
        return done


def case(*commands: str) -> Callable[[Case], Case]:
    """Say which commands a case covers."""

    def taken(function: Case) -> Case:
        CASES[commands] = function
        return function

    return taken


@case("ls", "show", "why", "stats", "log", "diff", "tail")
def looking(stage: Stage) -> None:
    assert stage.do("ls", "--limit", "1").json["next"] == "trip"
    assert stage.do("show", "trip@early").json["state"]["checkpoint"]["step"] == 1
    assert stage.do("show", "visit").json["state"]["value"]["vars"]["blob"] == {"$bytes": "AAE="}
    stage.do("why", "trip")
    stage.do("stats")
    assert len(stage.do("log", "trip", "--graph").json["items"]) > 3
    assert stage.do("diff", "trip@1", "trip@2").code == 0
    assert stage.do("diff", "trip@1", "trip@2", "--exit-code").code == 1
    stage.do("tail", "--all", "--once")
    stage.do("tail", "trip", "--after", "0", "--once")


@case("fork", "rewind", "merge", "tag")
def branching(stage: Stage) -> None:
    assert stage.do("merge", "trip", "cheaper").json["conflicts"] == []
    stage.do("fork", "trip@1", "other", "--set", "vars.city=Rome")
    clash = stage.do("merge", "trip", "other")
    assert (clash.code, clash.json["merged"]) == (1, None)
    assert stage.do("tag", "trip@2", "later").json["kind"] == "tag"
    assert stage.do("rewind", "trip@1").json["kind"] == "rewind"


@case("run", "resume", "approve", "reject", "answer", "resolve", "replay", "outcome")
def people(stage: Stage) -> None:
    stage.do("run", DESK, "told", "book 7")
    for words, decide in (
        ("refund 7", lambda id: stage.do("approve", "talk", id)),
        ("refund 8", lambda id: stage.do("reject", "talk", id, "--reason", "no")),
        ("ask", lambda id: stage.do("answer", "talk", id, "aisle")),
    ):
        assert len(stage.do("run", DESK, "talk", words).json["approval_ids"]) == 1
        (waiting,) = [
            stage.do(name, "talk", *listed).json
            for name, *listed in (("approve", "--list"), ("reject", "--list"), ("answer",))
        ][:1]
        assert decide(waiting["approvals"][0]["id"]).json["id"] == waiting["approvals"][0]["id"]
        assert stage.do("resume", DESK, "talk").json["status"] == "done"
    assert stage.do("run", DESK, "talk", "wire 1").code == 1
    assert stage.do("resume", DESK, "talk").code == 1
    assert stage.do("resolve", "--agent", "desk", "--dry-run").json["sessions"] == ["talk"]
    assert [one["session"] for one in stage.do("resolve", "--list").json["items"]] == ["talk"]
    (effect,) = stage.do("resolve", "talk").json["effects"]
    assert stage.do("resolve", "--status", "in_doubt", "--dry-run").json["sessions"] == ["talk"]
    assert stage.do("resolve", "talk", effect["id"], "--abort").json["status"] == "failed"
    (late,) = stage.do("run", DESK, "late", "wire 1").json["in_doubt_ids"]
    assert stage.do("outcome", "late", late, "5").json == {
        "session": "late", "new": True, "begins_anew": False, "message_key": "", "kept": True, "answer": None,
    }  # fmt: skip
    assert stage.do("resume", DESK, "late").json["status"] == "done"
    assert stage.do("replay", "told").json["identical"]
    (stage.folder / "polite.py").write_text(POLITE)
    assert stage.do("replay", "told", "--agent", "polite.py").code == 1
    went = stage.do("replay", "told", "--agent", DESK, "--live", "--from", "1", "--effects", "dry")
    assert went.json["branch"] != "main"


@case("post", "wake", "inbox")
def posting(stage: Stage) -> None:
    assert [stage.do("post", "trip", "hello", "--key", "k").json["new"] for _ in range(2)] == [True, False]
    assert stage.do("wake", "trip", "good morning", "--delay", "2h", "--key", "w").json["new"]
    assert stage.do("wake", "trip", "--cancel", "w").code == 0
    assert [item["text"] for item in stage.do("inbox", "trip").json["items"]] == ["hello", "hello"]
    assert [stage.do("inbox", "trip", "--withdraw", "k").json["new"] for _ in range(2)] == [True, False]


@case("verify", "backup", "restore", "export", "import", "copy")
def carrying(stage: Stage) -> None:
    for name, file in (("backup", "all"), ("export", "one")):
        argv = ("visit", file) if name == "export" else (file,)
        assert stage.do(name, *argv, "--store", stage.url).json["blobs"] == 1
        assert stage.do({"backup": "restore", "export": "import"}[name], file, "--store", f"{file}.db").code == 0
    assert stage.do("verify", "--all", "--witness", "heads", "--update-witness", "--store", stage.url).code == 0
    assert stage.do("copy", "agents.db", "copy.db").json["copied"] == 2
    for blob in (path for path in (stage.folder / "agents.db-blobs").rglob("*") if len(path.name) >= 60):
        blob.unlink()
    assert stage.do("backup", "holes", "--store", stage.url).json["missing"]
    assert stage.do("export", "visit", "hole", "--store", stage.url).code == 1
    # What the file lacks, those who take it in are told as well.
    assert stage.do("restore", "holes", "--store", "holes.db").json["missing"]
    assert stage.do("import", "hole", "--store", "hole.db").json["missing"]
    damage(stage.trip, "trip")
    assert {f["kind"] for f in stage.do("verify", "--all", "--store", stage.url).json["findings"]} == {
        "blob", "corrupted",
    }  # fmt: skip
    assert stage.do("copy", "agents.db", "again.db").json["failed"]


@case("sweep", "revive", "prune", "migrate")
def upkeep(stage: Stage) -> None:
    with perdure.open(stage.url) as db, db.session("short", ttl=1) as s:
        s.commit()
        over = s.head.at + 1000 if s.head else 0
    while time.time() * 1000 <= over:
        time.sleep(0.05)
    stage.do("backup", "before")
    assert stage.do("sweep").json["removed"] == 1
    assert [life["session"] for life in stage.do("revive").json["items"]] == ["short"]
    assert stage.do("revive", "short").json["session"] == "short"
    stage.do("restore", "before", "--store", "damaged.db")
    damage(stage.folder / "damaged.db", "short")
    assert stage.do("sweep", "--store", "damaged.db").json["failed"][0]["session"] == "short"
    (stage.folder / "damaged.db").unlink()
    assert stage.do("prune", "trip", "--keep-last", "1").json["kept"] > 3
    (stage.folder / "cli_no_way.py").write_text("")
    assert stage.do("migrate", "cli_no_way", "--schema", "9.9.9").json["failed"]
    with perdure.open(stage.url, maintain=False) as db:
        present = db.read("trip").checkpoint.schema
    assert stage.do("migrate", "cli_no_way", "--schema", present).json["failed"] == []


@case("doctor")
def doctor(stage: Stage) -> None:
    assert stage.do("doctor").json["ok"]
    (stage.folder / "bad.py").write_text("def work(db):\n    with db.session('s') as s:\n        s.vars['x'] = {1}\n")
    assert not stage.do("doctor", "bad.py:work").json["ok"]


@case("query")
def query(stage: Stage) -> None:
    url = url_of("postgres", stage.folder)
    with perdure.open(url) as db, db.session("s") as s:
        s.commit()
    asked = "select session, now(), 1.5::numeric, null, '\\x00'::bytea, array[1] from perdure_steps"
    assert stage.do("query", asked, "--store", url).json["rows"][0]["session"] == "s"


@case("new", "schema")
def first_steps(stage: Stage) -> None:
    made = stage.do("new", "mine").json
    assert all((Path(made["folder"]) / file).is_file() for file in made["files"])
    assert stage.do("schema", "new").json["$defs"].keys() == {"NewAgent"}
    assert stage.do("schema").json.keys() == OUTPUTS.keys()


@case("submit", "pause", "unpause", "retry", "cancel")
def steering(stage: Stage) -> None:
    assert stage.do("submit", "a", "hello", "--agent", "desk", "--key", "k").json["new"]
    assert not stage.do("submit", "a", "hello", "--key", "k").json["new"]
    for name in ("pause", "unpause", "retry", "cancel"):
        assert stage.do(name, "a", "--dry-run").json["changed"] == 0
        assert stage.do(name, "a").json["sessions"] == ["a"]


@case("worker", "workers", "drain")
def working(stage: Stage) -> None:
    stage.do("submit", "a", "hello", "--agent", "desk")
    with stage.start("worker", DESK, "--store", stage.url, "--lease", "2") as worker:

        def answered() -> bool:
            worker.said()
            with perdure.open(stage.url, maintain=False) as db:
                row = db.look("a")
                return row.pending == 0 and row.status == "idle"

        until(answered, worker.said)
        (row,) = stage.do("workers").json["workers"]
        assert row["agents"] == ["desk"]
        assert stage.do("drain", "--wait", str(LIMIT)).json == {"told": 1, "left": 0}
        assert worker.ended().code == 0
    with perdure.open(stage.url, maintain=False) as db:
        board_of(db).beat(WorkerRow("gone", "host", 7, "v1", ("desk",), 20))
    assert stage.do("drain", "--wait", "0.1").code == 1


@case("serve", "console")
def serving(stage: Stage) -> None:
    for name, more in (("serve", ()), ("console", ("--no-browser",))):
        with stage.start(name, "--store", stage.url, "--port", "0", *more) as server:
            until(lambda server=server: "\n" in server.said()[0], server.said)
            assert server.ended(signal.SIGTERM).json["token"]


@case("demo")
def demo(stage: Stage) -> None:
    small = ("--sessions", "2", "--kills", "0", "--workers", "1", "--factor", "0.01", "--no-live")
    with stage.start("demo", *small) as night:
        assert night.ended().json["ok"]


@case("bench")
def bench(stage: Stage) -> None:
    assert stage.do("bench", "kernel", "--quick", "--only", "reads", "--dir", str(stage.folder)).json["results"]
