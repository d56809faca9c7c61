"""The examples run offline, as a reader would run them, and what they say is what their worlds hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import perdure
from perdure.agent.app_loader import load_agent

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SESSION = "session-2024-bf-847"


class Example:
    """An example in a folder of its own: its program, its world and its store."""

    def __init__(self, name: str, world: str, folder: Path) -> None:
        self.app = EXAMPLES / name / "app.py"
        self.folder = folder
        self._env = {**os.environ, "PYTHONPATH": ""}
        self._env.pop("HOLYSHEEP_API_KEY", None)
        sys.path.insert(0, str(self.app.parent))
        try:
            module: Any = __import__(world)
        finally:
            sys.path.pop(0)
        self.world: Any = getattr(module, world.capitalize())(str(folder / f"{world}.db"))

    def run(self, *words: str) -> str:
        command = [sys.executable, "-W", "error", str(self.app), *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self._env, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def killed_after(self, point: str, *words: str) -> None:
        """Run it and have it killed at a named point of the loop."""
        program = (
            "import os, signal, sys, runpy; from perdure.system import faults\n"
            f"faults.hook = lambda p: os.kill(os.getpid(), signal.SIGKILL) if p == {point!r} else None\n"
            f"sys.argv = {['app.py', *words]!r}; sys.path.insert(0, {str(self.app.parent)!r})\n"
            f"runpy.run_path({str(self.app)!r}, run_name='__main__')"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr


def support(folder: Path) -> Example:
    return Example("support", "shop", folder)


def test_the_support_desk_looks_orders_up_and_remembers_which_one_is_meant(tmp_path: Path) -> None:
    desk = support(tmp_path)
    assert "in transit" in desk.run("Where is ORD-2024-8847?")
    assert "89.00 is on its way to you" in desk.run("I want my money back")
    assert desk.world.refunds() == [("ORD-2024-8847", 89.0)]
    assert desk.world.stock("SHOE-42") == 4


def test_the_support_desk_knows_what_is_in_stock_and_exchanges_it(tmp_path: Path) -> None:
    desk = support(tmp_path)
    said = desk.run("Do you have a shoe?")
    assert "size 42: 3 in stock" in said
    assert "SHOE-43 is on its way" in desk.run("Please exchange ORD-2024-8847 for SHOE-43")
    assert (desk.world.stock("SHOE-42"), desk.world.stock("SHOE-43")) == (4, 0)
    assert "COAT-M is not in stock" in desk.run("Please exchange ORD-2024-8901 for COAT-M")
    assert desk.world.stock("COAT-L") == 5


def test_a_refund_over_100_waits_for_a_person(tmp_path: Path) -> None:
    desk = support(tmp_path)
    assert "waits for a person" in desk.run("I want to return ORD-2024-8901")
    assert desk.world.refunds() == []
    with perdure.open(f"sqlite:///{tmp_path}/support.db") as db:
        with db.session(SESSION) as s:
            (approval,) = s.approvals()
        db.approve(SESSION, approval.id, by="ana")
    assert "240.00 is on its way to you" in desk.run()
    assert desk.world.refunds() == [("ORD-2024-8901", 240.0)]


def test_orders_of_other_customers_are_not_told(tmp_path: Path) -> None:
    assert "no order ORD-2024-9000" in support(tmp_path).run("Where is ORD-2024-9000?")


def test_a_refund_is_made_once_wherever_the_desk_is_killed(tmp_path: Path) -> None:
    for number, point in enumerate(
        ("agent.after_model", "agent.after_commit", "call.before_outcome", "call.after_outcome")
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        desk = support(folder)
        desk.killed_after(point, "I want my money back for ORD-2024-8847")
        assert "89.00 is on its way to you" in desk.run(), point
        assert desk.world.refunds() == [("ORD-2024-8847", 89.0)], point


def test_the_travel_agent_asks_again_when_the_price_has_jumped(tmp_path: Path) -> None:
    trip = Example("travel", "airline", tmp_path)
    assert "May I? book_flight {'flight': 'TP-449'} at 1,200" in trip.run("ask", "Two weeks in Lisbon")
    assert trip.world.rooms("trip-42") == [("Lisbon", 14)]
    assert "1200" in trip.run("approve")
    trip.run("price", "1500")
    assert "at 1,500 what the agreement rested on has changed" in trip.run()
    assert trip.world.bookings() == []
    trip.run("approve")
    assert "booked for 1,500" in trip.run()
    assert trip.world.bookings() == [("TP-449", 1500)]
    assert "python app.py ask" in trip.run("help")


def test_with_a_key_the_examples_ask_the_real_model(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLYSHEEP_API_KEY", "sk-not-real")
    for name in ("support", "travel"):
        assert load_agent(str(EXAMPLES / name / "app.py")).model.name == "deepseek-v3.2"
