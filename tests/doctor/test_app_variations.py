"""``perdure doctor APP``: the five faults in other clothes, and apps that only look as if they had one."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import pytest

from tests import quick_start
from tests.doctor.test_app import failed, found_from_anywhere, verdicts

if TYPE_CHECKING:
    from tests.cli.conftest import Command

__all__ = ["found_from_anywhere"]
APPS = "tests.doctor.planted.variations"
HERE = r"tests/doctor/planted/variations\.py:\d+$"


@pytest.mark.parametrize(
    ("app", "fault", "words", "places"),
    [
        ("end_in_vars", "saves", "added to 4 times in a row and then saved once", True),
        ("end_of_a_run", "saves", "4 answers were saved together", True),
        ("end_past_the_session", "saves", "4 calls of tools were made past the session", True),
        ("end_of_memory", "saves", "saves to memory://", True),
        ("value_nobody_misses", "serialisation", "state.vars.price is a Decimal", True),
        ("value_of_a_tool", "serialisation", "the result of seats is a set", True),
        ("value_by_its_name", "serialisation", "the name of an object", False),
        ("grows_deep_inside", "history", "audit of session trip still grew", True),
        ("grows_although_cut", "history", "messages of session trip still grew", True),
        ("grows_by_pins", "history", "through a window of 4000", False),
        ("grows_to_the_sky", "history", "no model takes 1000000000 tokens", False),
        ("memory_of_a_queue", "resume", "seen None instead of ['Lisbon'", True),
        ("memory_of_a_cache", "resume", "facts", True),
        ("memory_of_a_tool", "resume", "in the cart", True),
        # Found because each run is a process of its own: those that are forked from one share the order of its sets.
        # How a resumed run ends (Diverged, or elsewhere) is up to the order that its process happens to have.
        ("memory_of_an_order", "resume", "and started again, it ended ", True),
        ("writers_that_seldom_meet", "writers", "2 writers save session trip without a lease", True),
        ("writers_in_tasks", "writers", "without a lease", True),
        ("writers_in_programs", "writers", "saved by several processes, and none takes its lease", False),
    ],
)
def test_each_variation_is_found_with_its_place(command: Command, app: str, fault: str, words: str, places: bool):
    with quick_start.anew() if app == "memory_of_an_order" else contextlib.nullcontext():
        found = verdicts(command, f"{APPS}:{app}")
    assert fault in failed(found), found
    assert set(failed(found)) <= {fault, "run"}, found
    assert words in found[fault][1]
    assert bool(re.search(HERE, found[fault][2])) == places, found[fault]


@pytest.mark.parametrize("app", ["careful_by_hand", "grows_to_a_limit", "bounded"])
def test_what_only_looks_like_a_fault_is_none(command: Command, app: str):
    assert failed(verdicts(command, f"{APPS}:{app}")) == []


def test_a_call_that_is_cut_off_in_a_function_waits_for_a_person(command: Command):
    found = verdicts(command, f"{APPS}:pays_in_a_run")
    assert failed(found) == []
    verdict, words, where = found["resume"]
    assert (verdict, "pay was cut off" in words, "inside 2 calls" in words) == ("note", True, True)
    assert re.search(HERE, where)


def test_a_cached_read_is_pointed_out_because_it_may_run_again(command: Command):
    found = verdicts(command, f"{APPS}:buys_a_read")
    assert failed(found) == []
    verdict, words, where = found["cached reads"]
    assert (verdict, "report_on" in words, "runs again" in words, "if_unsure" in words) == ("note", True, True, True)
    assert re.search(HERE, where)
    assert "cached reads" not in verdicts(command, f"{APPS}:pays_in_a_run")
