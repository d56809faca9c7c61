"""The examples run offline, as a reader would run them, and what they say is what their worlds hold."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import perdure
from perdure.agent.app_loader import load_agent

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


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

    def type(self, command: str, said: str = "") -> str:
        """Type a command in its folder, with ``said`` at its prompt; what is printed."""
        env = {**self._env, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{self._env['PATH']}"}
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=env, input=said, capture_output=True, text=True, check=False,
            timeout=120,
        )  # fmt: skip
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
    said = desk.run(
        "mail-1",
        "I ordered shoes last week, order #ORD-2024-8847, but they have not arrived. Can you check the status?",
    )
    assert "in transit" in said
    assert "Tracking number: 1Z-8847-01" in said
    said = desk.run("mail-2", "I want my money back because it is too small.")
    assert "89.00 is on its way to you" in said
    assert "RMA-000001, reason: too small" in said
    # Asked for once more it is another call, and the shop pays for an order once.
    assert "was taken back already" in desk.run("mail-3", "I want my money back")
    assert desk.world.refunds() == [("ORD-2024-8847", 89.0)]
    assert desk.world.stock("SHOE-42") == 4


def test_the_support_desk_knows_what_is_in_stock_and_exchanges_it(tmp_path: Path) -> None:
    desk = support(tmp_path)
    said = desk.run("mail-4", "Do you have a shoe?")
    assert "size 42: 3 in stock" in said
    assert "size M: none in stock; there is COAT-L" in desk.run("mail-5", "Do you have a coat?")
    said = desk.run("mail-6", "Please exchange ORD-2024-8847 for SHOE-43 because of the colour")
    assert "SHOE-43 is on its way to you, tracking number 1Z-8847-02" in said
    assert "RMA-000001, reason: the colour" in said
    assert "exchanged. Tracking number: 1Z-8847-02" in desk.run("mail-7", "Where is ORD-2024-8847?")
    assert (desk.world.stock("SHOE-42"), desk.world.stock("SHOE-43")) == (4, 0)
    assert "COAT-M is not in stock; there is COAT-L" in desk.run("mail-8", "Please exchange ORD-2024-8901 for COAT-M")
    assert desk.world.stock("COAT-L") == 5


def test_a_refund_over_100_waits_for_a_person(tmp_path: Path) -> None:
    desk = support(tmp_path)
    said = desk.run("mail-9", "I want to return ORD-2024-8901")
    assert "waits for a person" in said
    assert desk.world.refunds() == []
    agree, go_on = [line.strip() for line in said.splitlines() if line.startswith("  ")]
    assert "approved" in desk.type(agree)
    assert "240.00 is on its way to you" in desk.type(go_on)
    assert desk.world.refunds() == [("ORD-2024-8901", 240.0)]


def test_what_the_support_desk_says_of_itself_works_as_it_is_typed(tmp_path: Path) -> None:
    desk = support(tmp_path)
    about = ast.get_docstring(ast.parse(desk.app.read_text())) or ""
    typed = [re.split(r" {2,}", line.strip())[0] for line in about.splitlines() if line.startswith("    ")]
    assert [command.split()[0] for command in typed] == ["python", "python", "python", "perdure", "perdure"]
    shutil.copytree(desk.app.parent, tmp_path, dirs_exist_ok=True)
    answers = [desk.type(command, "/quit\n") for command in typed]
    for said, wanted in zip(answers, ["in transit", "RMA-", "COAT-L", "return_or_exchange", "support"], strict=True):
        assert wanted in said
    # Whoever types what the log is of sees what the others did.
    assert desk.world.refunds() == [("ORD-2024-8847", 89.0)]


def test_orders_of_other_customers_are_not_told(tmp_path: Path) -> None:
    assert "no order ORD-2024-9000" in support(tmp_path).run("mail-1", "Where is ORD-2024-9000?")


def test_a_refund_is_made_once_wherever_the_desk_is_killed(tmp_path: Path) -> None:
    for number, point in enumerate(
        ("agent.after_model", "agent.after_commit", "call.before_outcome", "call.after_outcome")
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        desk = support(folder)
        desk.killed_after(point, "mail-1", "I want my money back for ORD-2024-8847")
        assert "89.00 is on its way to you" in desk.run(), point
        assert desk.world.refunds() == [("ORD-2024-8847", 89.0)], point


def test_a_mail_that_is_typed_again_after_kills_is_said_once(tmp_path: Path) -> None:
    for example, world, words in (
        ("support", "shop", ("mail-1", "I want my money back for ORD-2024-8847")),
        ("travel", "airline", ("ask", "mail-1", "Two weeks in Lisbon")),
    ):
        folder = tmp_path / example
        folder.mkdir()
        program = Example(example, world, folder)
        for point in ("agent.before_model", "agent.before_model", "agent.after_model", "agent.after_commit"):
            program.killed_after(point, *words)
        for _ in range(2):
            program.run(*words)
        store = {"support": "support.db", "travel": "trips.db"}[example]
        with perdure.open(f"sqlite:///{folder}/{store}") as db:
            (row,) = db.sessions()
            said = [m for m in db.read(row.id).plain()["messages"] if m["role"] == "user"]
        assert len(said) == 1, said


def test_the_travel_agent_asks_again_when_the_price_has_jumped(tmp_path: Path) -> None:
    trip = Example("travel", "airline", tmp_path)
    assert "May I? book_flight {'flight': 'TP-449'} at 1,200" in trip.run("ask", "mail-1", "Two weeks in Lisbon")
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
