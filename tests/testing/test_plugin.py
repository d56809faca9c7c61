"""The plugin in a pytest of its own, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = "perdure.testing.pytest_plugin"
AGENT = """
import os
from perdure import Agent, ScriptedModel, tool
from perdure.agent.models.scripted import calls

@tool
def refund(order: str) -> str:
    "Refund an order."
    with open("world.txt", "a") as world:
        world.write(order + "\\n")
    return "refunded"

def script(request):
    with open("world.txt", "a") as world:
        world.write("asked\\n")
    return "Done." if request.messages[-1]["role"] == "tool" else calls(("refund", {"order": "A1"}))

agent = Agent("support", model=ScriptedModel(script), tools=[refund], instructions=os.environ.get("SAID", "Be kind."))
"""
TEST = """
import pytest
from desk import agent

@pytest.mark.usefixtures("perdure_recording")
@pytest.mark.parametrize("who", ["ana", "bob/é"])
def test_refund(who, perdure_url):
    result = agent.run_sync(perdure_url, session=who, owner=who, message=f"{who}: refund A1")
    assert result.text == "Done."
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "desk.py").write_text(AGENT)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Run:
    def go(test: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
        (folder / "test_it.py").write_text(textwrap.dedent(test))
        command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-W", "error", *options]
        paths = f"{ROOT / 'src'}{os.pathsep}{folder}"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PERDURE_", "PYTEST_"))}
        # Whatever else is installed here is none of a user's business, and slow to load.
        alone = {"PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return subprocess.run(
            command, cwd=folder, env={**clean, **alone, **env}, capture_output=True, text=True, check=False, timeout=120
        )

    return go


def world(folder: Path) -> list[str]:
    """What really happened since this was last asked."""
    file = folder / "world.txt"
    happened = file.read_text().split() if file.exists() else []
    file.unlink(missing_ok=True)
    return happened


@pytest.mark.parametrize("how", ["option", "variable"])
def test_recorded_once_and_given_again_ever_after(run: Run, folder: Path, how: str):
    first = run(TEST, "--perdure-record") if how == "option" else run(TEST, PERDURE_RECORD="1")
    assert first.returncode == 0, first.stdout
    assert world(folder) == ["asked", "A1", "asked"] * 2
    assert len(files := sorted(path.name for path in (folder / "recordings").iterdir())) == 2
    assert files[0] == "test_it.test_refund_ana_.json"
    again = run(TEST)
    assert (again.returncode, world(folder)) == (0, []), again.stdout


def test_a_miss_fails_the_test_and_says_what_to_type(run: Run, folder: Path):
    run(TEST, "--perdure-record")
    world(folder)
    missed = run(TEST, SAID="Be rude.")
    assert (missed.returncode, world(folder)) == (1, [])
    assert 'recorded: "Be kind."' in missed.stdout
    assert 'now:      "Be rude."' in missed.stdout
    assert "recording: recordings/test_it.test_refund_ana_.json" in missed.stdout
    assert "pytest 'test_it.py::test_refund[ana]' --perdure-record" in missed.stdout
    assert "desk.py" in missed.stdout or "test_it.py:" in missed.stdout


def test_a_test_that_fails_leaves_the_recording_as_it_was(run: Run, folder: Path):
    run(TEST, "--perdure-record")
    before = {path: path.read_text() for path in (folder / "recordings").iterdir()}
    assert run(TEST.replace("Done.", "Gone."), "--perdure-record", SAID="Be rude.").returncode == 1
    assert {path: path.read_text() for path in (folder / "recordings").iterdir()} == before


def test_a_recording_of_which_something_is_left_over_is_an_error(run: Run, folder: Path):
    run(TEST, "--perdure-record")
    left = run(TEST.replace("result = agent", "return\n    result = agent"))
    assert left.returncode == 1
    assert "recorded, and never asked for" in left.stdout


DATABASE = """
import perdure

def test_one(perdure_db, perdure_clock, perdure_url):
    with perdure_db.session("s", ttl=60) as s:
        s.vars["n"] = 1
        s.commit()
    created = perdure_db.look("s").created
    assert created == perdure_clock.wall()
    perdure_clock.advance(60_000)
    perdure_db.sweep()
    assert [row.id for row in perdure_db.sessions()] == []
    print("at", perdure_url)

def test_two(perdure_db):
    assert perdure_db.sessions() == []
"""


@pytest.mark.parametrize(
    ("options", "ini", "url"),
    [
        ((), "", r"at memory://t[0-9a-f]{20}\n"),
        (("--perdure-url", "sqlite:///{folder}/x.db"), "", r"at sqlite:////.*/test_one0/x\.db\n"),
        ((), "file://{folder}/{name}", r"at file:///.*/test_one0/t[0-9a-f]{20}\n"),
    ],
)
def test_a_database_of_its_own_for_each_test(run: Run, folder: Path, options: tuple[str, ...], ini: str, url: str):
    if ini:
        (folder / "pytest.ini").write_text(f"[pytest]\nperdure_url = {ini}\n")
    done = run(DATABASE, "-s", *options)
    assert done.returncode == 0, done.stdout
    assert re.search(url, done.stdout)


def test_the_contract_of_stores_in_somebody_elses_tests(run: Run):
    suite = """
    from perdure.stores import open_store
    from perdure.testing.store_contract import LIVE, MACHINES_CLOCK, StoreContract

    class TestMine(StoreContract):
        scheme = "memory"
        survives_process_crash = survives_power_loss = False
        offers = frozenset({LIVE, MACHINES_CLOCK})

        def open_store(self, folder, name, clock):
            return open_store(f"memory://{folder}/{name}", clock=clock)

    class TestUndeclared(TestMine):
        offers = frozenset()
        survives_power_loss = True
    """
    done = run(suite, "-q", "-k", "TestMine and inbox or TestUndeclared and (promise or offers or boot)")
    assert "test_the_promise_is_made_in_code_and_in_words" in done.stdout
    assert "test_what_the_store_offers_beside_its_contract_is_what_is_declared" in done.stdout
    assert "2 failed" in done.stdout
    assert "boot" not in done.stdout


def test_without_a_way_to_open_it_a_store_is_asked_for(run: Run):
    suite = """
    from perdure.testing.store_contract import InboxContract

    class TestMine(InboxContract):
        pass
    """
    assert "say how your store is opened: def open_store(self, folder, name, clock)" in run(suite, "-x").stdout


def test_what_no_store_can_offer_is_refused():
    from perdure.testing.store_contract import StoreContract

    with pytest.raises(TypeError, match="may offer board, live, cache, machine's clock"):
        type("TestMine", (StoreContract,), {"offers": frozenset({"magic"})})


def test_pytest_finds_the_plugin_by_itself_once_it_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}
    assert any(wanted.startswith("pytest") for wanted in project["optional-dependencies"]["testing"])


def test_nothing_of_ours_imports_the_kit_and_the_kit_imports_no_pytest():
    script = (
        "import sys, perdure, perdure.cli; perdure.open('memory://').close()\n"
        "assert not [m for m in sys.modules if m.startswith('perdure.testing')]\n"
        "import perdure.testing\n"
        "assert 'pytest' not in sys.modules and 'perdure.testing.pytest_plugin' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})


@pytest.mark.parametrize("module", [PLUGIN, "perdure.testing.store_contract"])
def test_without_pytest_the_extra_is_named(module: str):
    script = (
        "import sys, json; sys.modules['pytest'] = None\n"
        f"try:\n    import {module}\nexcept ImportError as e:\n    print(json.dumps([type(e).__name__, str(e)]))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", script], check=True, env=env, capture_output=True, text=True)
    assert json.loads(done.stdout) == ["MissingExtra", 'pytest is not installed: pip install "perdure[testing]"']
