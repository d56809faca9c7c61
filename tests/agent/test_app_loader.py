"""What is said of a program in which the agent that was named is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import InvalidInput
from perdure.agent.app_loader import load_agents, load_for_sessions

BEGIN = "from perdure import Agent, FunctionModel\ndef made(name): return Agent(name, model=FunctionModel(str))\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "looked_at.py"


@pytest.mark.parametrize(
    ("program", "name", "said"),
    [
        ("one, two = made('a'), made('b')", "", r"has no 'agent', .*: name it, as .*:one or .*looked_at.py:two$"),
        ("one = made('a')", ":three", r"has no 'three', .*: name it, as .*looked_at.py:one$"),
        ("all = {'x': made('a'), 'y': made('b')}", ":all", r"has a dict there, .*: it has a, b in lists or dicts"),
        ("object_ = object()", "", r"has no 'agent', .*: it has none. What counts is an Agent\(\.\.\.\) in a variable"),
        ("object_ = object()", ":object_", r"has an object there, .*: it has none"),
        ("def broken(:", "", r"cannot be loaded: SyntaxError: invalid syntax \(looked_at.py, line 3\); PERDURE_DEBUG"),
    ],
)  # fmt: skip
def test_the_agents_that_are_there_are_named(place: Path, program: str, name: str, said: str):
    place.write_text(BEGIN + program)
    with pytest.raises(InvalidInput, match=said):
        load_for_sessions(f"{place}{name}").agent()


@pytest.mark.parametrize("held", ["{'x': made('a'), 'y': made('b')}", "[made('a'), made('b')]"])
def test_agents_in_lists_and_dicts_are_found(place: Path, held: str):
    place.write_text(f"{BEGIN}every = {held}")
    assert [agent.name for agent in load_agents(str(place))] == ["a", "b"]
    assert load_for_sessions(str(place)).agent("b").name == "b"
