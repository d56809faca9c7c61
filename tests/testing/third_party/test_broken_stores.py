"""The kit finds each fault that was planted in a store, and the name of a failing test says what the fault is."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from tests.testing.third_party.broken_stores import CAUGHT_BY, ForgetsKeys, NotIdempotent

ROOT = Path(__file__).resolve().parents[3]
SOUND = "test_starts_are_the_first_rows_of_all_lines_of_a_branch"
SUITE = """
from perdure.testing.store_contract import (
    AppendContract, ChangesContract, InboxContract, LeasesContract, RewriteContract
)
from tests.testing.third_party import broken_stores

class Parts(AppendContract, ChangesContract, InboxContract, LeasesContract, RewriteContract):
    def open_store(self, folder, name, clock):
        return getattr(broken_stores, type(self).__name__.removeprefix("Test"))(folder / f"{name}.db", clock=clock)

for kind in broken_stores.CAUGHT_BY:
    globals()[f"Test{kind.__name__}"] = type(f"Test{kind.__name__}", (Parts,), {})
"""


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """By store, the tests that failed and what they said."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "test_broken.py").write_text(SUITE)
    wanted = [
        f"test_broken.py::Test{k.__name__}::{test}" for k, caught in CAUGHT_BY.items() for test in (caught, SOUND)
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=found.xml", *wanted]
    paths = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    env = {**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[str, dict[str, str]] = {kind.__name__: {} for kind in CAUGHT_BY}
    for case in xml.parse(folder / "found.xml").iter("testcase"):
        if (failure := case.find("failure")) is not None:
            name = case.get("name", "").partition("[")[0]
            found[case.get("classname", "").rpartition(".Test")[2]][name] = failure.text or ""
    return found


@pytest.mark.parametrize("kind", CAUGHT_BY, ids=lambda kind: kind.__name__)
def test_each_planted_fault_is_named(failed: dict[str, dict[str, str]], kind: type):
    assert CAUGHT_BY[kind] in failed[kind.__name__]


def test_what_is_not_broken_is_not_called_so(failed: dict[str, dict[str, str]]):
    assert [name for name, tests in failed.items() if SOUND in tests] == []


def test_a_failure_shows_what_was_compared(failed: dict[str, dict[str, str]]):
    assert "assert True is False" in failed["ForgetsKeys"][CAUGHT_BY[ForgetsKeys]]
    assert "the head has moved" in failed["NotIdempotent"][CAUGHT_BY[NotIdempotent]]
