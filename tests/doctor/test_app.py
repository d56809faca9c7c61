"""``perdure doctor APP``: it finds each planted fault, and none where there is none."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Command

ROOT = Path(__file__).resolve().parents[2]
APPS = "tests.doctor.planted.apps"


@pytest.fixture(autouse=True)
def found_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.delenv("HOLYSHEEP_API_KEY", raising=False)


def verdicts(command: Command, app: str, *more: str) -> dict[str, tuple[str, str, str]]:
    found = command("doctor", app, "--json", *more)
    assert found.err == ""
    told = found.json
    assert list(told) == ["ok", "checks"]
    assert all(list(f) == ["name", "verdict", "detail", "place"] for f in told["checks"])
    assert told["ok"] == (found.code == 0) == all(f["verdict"] != "fail" for f in told["checks"])
    return {f["name"]: (f["verdict"], f["detail"], f["place"]) for f in told["checks"]}


def failed(found: dict[str, tuple[str, str, str]]) -> list[str]:
    return [name for name, (verdict, *_) in found.items() if verdict == "fail"]


@pytest.mark.parametrize(
    ("app", "fault", "words"),
    [
        ("saves_at_the_end", "saves", "4 answers were saved together"),
        ("unserialisable", "serialisation", "state.vars.when is a datetime"),
        ("only_grows", "history", "messages of session trip still grew after"),
        ("depends_on_memory", "resume", "messages instead of 4"),
        ("two_writers", "writers", "saves without a lease came second"),
        ("forgetful", "resume", "must be in the session, not in the process"),
        ("undated", "serialisation", "the result of when is a set"),
        ("endless", "history", "compactor=False"),
    ],
)
def test_each_planted_fault_is_found_and_nothing_else(command: Command, app: str, fault: str, words: str):
    found = verdicts(command, f"{APPS}:{app}")
    # What cannot be saved also ends the run: one fault, told by both.
    assert failed(found) == (["run", fault] if app == "unserialisable" else [fault])
    assert words in found[fault][1]


@pytest.mark.parametrize("app", ["keeps_within_bounds", "two_careful_writers"])
def test_an_app_without_a_fault_has_none(command: Command, app: str):
    assert failed(verdicts(command, f"{APPS}:{app}")) == []


def test_a_healthy_app_was_really_killed(command: Command):
    found = verdicts(command, f"{APPS}:healthy")
    assert failed(found) == []
    assert found["resume"][:2] == (
        "ok", "killed with SIGKILL after 3 of 4 saves, it went on each time and ended in the same place",
    )  # fmt: skip
    assert found["saves"][1].startswith("4 saves for 4 answers")


@pytest.mark.parametrize(
    ("app", "say"),
    [
        ("support", ("Where is ORD-2024-8847?", "I want to return ORD-2024-8847")),
        ("travel", ("Two weeks in Lisbon, please",)),
    ],
)
def test_none_is_found_in_the_examples(command: Command, app: str, say: tuple[str, ...], tmp_path: Path):
    said = [part for words in say for part in ("--say", words)]
    found = verdicts(command, str(ROOT / "examples" / app / "app.py"), *said)
    assert failed(found) == []
    verdict, words, _ = found["resume"]
    assert (verdict, "inside 2 calls and inside 2 answers" in words) == ("ok", True), words
    assert os.listdir(tmp_path) == [], "it has left something behind"


def test_none_is_found_in_the_example_that_is_a_script(command: Command, tmp_path: Path):
    found = verdicts(command, str(ROOT / "examples/invoices.py"))
    assert failed(found) == []
    verdict, words, _ = found["resume"]
    assert (verdict, "inside 2 calls" in words) == ("ok", True), words
    assert os.listdir(tmp_path) == [], "it has left something behind"


def test_whatever_store_an_app_names_it_gets_a_scratch_one(command: Command, tmp_path: Path):
    real = tmp_path / "real.db"
    (tmp_path / "own.py").write_text(
        "import perdure\n"
        "def work(db):\n"
        f"    for url in ('sqlite:///{real}', 'postgresql://nobody@127.0.0.1:1/nothing', None):\n"
        "        with perdure.open(url) as own, own.session('s') as s:\n"
        "            s.vars['x'] = 1\n"
        "            s.commit()\n"
    )
    assert verdicts(command, "own.py:work")["run"][0] == "ok"
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".db"] == []


def test_a_tool_that_is_cut_off_is_worth_a_word(command: Command):
    found = verdicts(command, f"{APPS}:payer", "--say", "pay")
    assert failed(found) == []
    verdict, words, where = found["resume"]
    assert (verdict, "pay was cut off" in words, "if_unsure" in words) == ("note", True, True)
    assert "tests/doctor/planted/apps.py:" in where


def test_a_real_model_is_not_asked_unless_that_is_wanted(command: Command):
    found = verdicts(command, f"{APPS}:costly")
    assert list(found) == ["history", "run"]
    assert found["run"][0] == "note"
    assert "--really" in found["run"][1]


def test_what_cannot_be_checked(command: Command, tmp_path: Path):
    (tmp_path / "broken.py").write_text("raise RuntimeError('\\x1b]0;x\\x07 no')\n")
    (tmp_path / "gone.py").write_text("import os\nos._exit(3)\n")
    for app in ("broken.py", "gone.py", "nowhere.py", "no.such.module", f"{APPS}:nothing", f"{APPS}:missing"):
        found = command("doctor", app)
        assert (found.code, found.out, found.err.count("\n")) == (2, "", 1), app
        assert "\x1b" not in found.err
    assert command("doctor", "--say", "hello").code == 2
    assert command("doctor", f"{APPS}:healthy", "--timeout", "0").code == 2


def test_an_app_that_never_ends_is_ended(command: Command, tmp_path: Path):
    (tmp_path / "slow.py").write_text("import time\ndef work(db):\n    time.sleep(600)\n")
    found = verdicts(command, "slow.py:work", "--timeout", "4")
    assert failed(found)[0] == "run"
    assert "in time" in found["run"][1]


def test_what_an_app_leaves_running_is_ended_with_it(command: Command, tmp_path: Path):
    (tmp_path / "leaves.py").write_text(
        "import os, time\ndef work(db):\n    if not os.fork():\n        time.sleep(90)\n        os._exit(0)\n"
    )
    began = time.monotonic()
    assert "in time" in verdicts(command, "leaves.py:work", "--timeout", "4")["run"][1]
    assert time.monotonic() - began < 60


def test_people_get_lines_in_plain_words(command: Command):
    found = command("doctor", f"{APPS}:saves_at_the_end")
    assert found.code == 1
    assert any(line.startswith("fail  saves: 4 answers") for line in found.out.splitlines())
    assert found.out.splitlines()[-1].endswith("checks failed, 1 note")


def test_whoever_has_something_said_is_told_that_tools_really_run(command: Command):
    words = "what is said may have its tools called, and they really run, several times over"
    assert command("doctor", f"{APPS}:saves_at_the_end", "--say", "hello").out.splitlines()[0] == words
    assert words not in command("doctor", f"{APPS}:saves_at_the_end", "--say", "hello", "--json").out
