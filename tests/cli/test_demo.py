"""The demo: its process is really killed, and what would be wrong is found out."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from perdure.cli.demo import agent
from perdure.cli.demo.bank import Bank
from perdure.cli.demo.play import _outcome, plan_kills

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def demo(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perdure.cli", "demo", *argv]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=120)


def test_an_agent_that_was_killed_at_every_moment_ends_as_one_that_was_not(tmp_path: Path):
    began = time.monotonic()
    done = demo("--seed", "7", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"]
    assert {kill["moment"] for kill in report["kills"]} == set(agent.MOMENTS)
    assert report["resumes"] == len(report["kills"]) == 6
    assert report["charges"]["made"] == report["turns"]["done"] == 12
    assert report["charges"]["requests"] > 12, "a charge that was made and not recorded is asked for again"
    assert report["state"]["equal"]
    assert time.monotonic() - began < 60, "under 15 s on an idle machine"


def test_the_demo_in_words_can_be_looked_at_afterwards(tmp_path: Path):
    done = demo("--seed", "3", "--kills", "2", "--keep", "kept", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing was lost, nothing was paid twice" in done.stdout
    assert "\x1b" not in done.stdout
    command = [sys.executable, "-m", "perdure.cli", "log", "orders", "--store", "kept/killed/agents.db"]
    log = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "tool charge" in log.stdout
    again = demo("--keep", "kept", cwd=tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_the_plan_of_kills_follows_from_the_seed_and_uses_every_moment():
    plan = plan_kills(random.Random(1), 12, 14)
    assert plan == plan_kills(random.Random(1), 12, 14)
    assert sorted(kill.turn for kill in plan) == [kill.turn for kill in plan]
    assert len({kill.turn for kill in plan}) == 12
    assert {kill.moment for kill in plan} == set(agent.MOMENTS)


def test_a_charge_made_twice_is_found_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    agent.main(str(tmp_path), 3)
    assert _outcome(str(tmp_path), 3).problems == []
    bank = Bank(f"{tmp_path}/bank.db")
    bank.charge("another key", "order-2", 114)
    bank.close()
    problems = _outcome(str(tmp_path), 3).problems
    assert "an order was charged twice" in problems
    assert len(problems) == 3


def test_a_turn_that_is_missing_is_found_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    agent.main(str(tmp_path), 3)
    assert "3 of 4 turns were finished, status idle" in _outcome(str(tmp_path), 4).problems


def test_the_bank_answers_a_repeated_request_with_the_first_receipt(tmp_path: Path):
    bank = Bank(f"{tmp_path}/bank.db")
    assert bank.charge("key", "order-1", 5) == bank.charge("key", "order-1", 5)
    assert (bank.books().requests, bank.books().charges) == (2, 1)
    bank.close()
