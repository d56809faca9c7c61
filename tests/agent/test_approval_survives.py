"""An agent that waits for a person outlives its processes, and an agreement covers only what was agreed to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.agent.app_loader import load_agent
from tests.agent.journey import APP
from tests.store_urls import url_of

HOUR = 3_600_000
ROOT = Path(__file__).parents[2]
WISH = "Two weeks in Lisbon, please"


class Journey:
    """The trip of ``examples/travel``: every step of it is a process of its own."""

    def __init__(self, folder: Path) -> None:
        world = str(folder / "airline.db")
        self._env = {**os.environ, "TRAVEL_STORE": url_of("sqlite", folder, "trips"), "TRAVEL_WORLD": world}
        self._env.pop("HOLYSHEEP_API_KEY", None)
        sys.path.insert(0, str(APP.parent))
        try:
            from airline import Airline  # pyright: ignore[reportMissingImports]
        finally:
            sys.path.pop(0)
        self.airline: Any = Airline(world)

    def process(self, *words: str) -> dict[str, Any]:
        command = [sys.executable, "-W", "error", "-m", "tests.agent.journey", *words]
        done = subprocess.run(
            command, cwd=ROOT, env=self._env, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def journey(tmp_path: Path) -> Journey:
    return Journey(tmp_path)


def test_one_process_asks_another_agrees_an_hour_later_a_third_finishes(journey: Journey) -> None:
    waiting = journey.process("run", "0", WISH)
    assert waiting["status"] == "waiting_approval"
    assert [a["facts"] for a in waiting["approvals"]] == [{"price": 1200}]
    # The room needs no agreement: it was reserved while the flight waits.
    assert journey.airline.rooms("trip-42") == [("Lisbon", 14)]
    assert journey.airline.bookings() == []
    assert journey.process("approve", str(HOUR), waiting["approvals"][0]["id"]) == {}
    done = journey.process("run", str(HOUR))
    assert done["status"] == "done"
    assert "TP-449 is booked for 1,200" in done["text"]
    assert journey.airline.bookings() == [("TP-449", 1200)]
    assert journey.airline.rooms("trip-42") == [("Lisbon", 14)]
    assert journey.process("run", str(2 * HOUR))["status"] == "done"
    assert journey.airline.bookings() == [("TP-449", 1200)]


def test_when_the_price_has_jumped_it_asks_again_and_the_old_agreement_is_worth_nothing(journey: Journey) -> None:
    first = journey.process("run", "0", WISH)["approvals"][0]
    journey.process("approve", str(HOUR), first["id"])
    journey.airline.set_fare("TP-449", 1500)
    waiting = journey.process("run", str(HOUR))
    assert waiting["status"] == "waiting_approval"
    (second,) = waiting["approvals"]
    assert second["facts"] == {"price": 1500}
    assert "has changed" in second["because"]
    assert second["id"] != first["id"]
    assert "decided already" in journey.process("approve", str(HOUR), first["id"])["error"]
    assert journey.process("run", str(HOUR))["status"] == "waiting_approval"
    assert journey.airline.bookings() == []
    journey.process("approve", str(HOUR), second["id"])
    assert "booked for 1,500" in journey.process("run", str(2 * HOUR))["text"]
    assert journey.airline.bookings() == [("TP-449", 1500)]
    assert journey.airline.rooms("trip-42") == [("Lisbon", 14)]


def test_cheaper_is_fine(journey: Journey) -> None:
    asked = journey.process("run", "0", WISH)["approvals"][0]
    journey.process("approve", "0", asked["id"])
    journey.airline.set_fare("TP-449", 1100)
    assert "booked for 1,100" in journey.process("run", str(HOUR))["text"]


def test_a_request_that_nobody_answered_in_time_is_told_to_the_model(journey: Journey) -> None:
    asked = journey.process("run", "0", WISH)["approvals"][0]
    later = str(4 * 24 * HOUR)
    assert "expired" in journey.process("approve", later, asked["id"])["error"]
    ended = journey.process("run", later)
    assert ended["status"] == "done"
    assert "not booked" in ended["text"]
    assert journey.airline.bookings() == []


def test_an_app_is_found_by_its_file() -> None:
    assert load_agent(f"{APP}:agent").name == "travel"
