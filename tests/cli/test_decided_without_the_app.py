"""Approving, answering, resolving and reporting never import the program whose calls they are about.

Whoever decides may not have it, and what it does when it is imported is nobody's wish.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.agent.app_loader import load_agent
from tests.server.asking import asking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from perdure import Database
    from tests.cli.conftest import Command

APP = """
from dataclasses import dataclass
from pathlib import Path

from perdure import Agent, Context, Later, ScriptedModel, calls, tool

with Path(__file__).with_name("imported").open("a") as file:
    file.write("once more\\n")


@dataclass
class Receipt:
    number: int


@tool(approve=lambda a: a["amount"] > 1)
def pay(amount: int) -> Receipt:
    return Receipt(amount)


@tool
def ship(number: int) -> Receipt:
    raise TimeoutError


@tool
def render(number: int) -> Receipt | Later:
    return Later("job")


@tool
def seat(ctx: Context) -> str:
    return str(ctx.ask("Which?", {"enum": ["window", "aisle"]}))


asked = (("pay", {"amount": 5}), ("ship", {"number": 1}), ("render", {"number": 1}), ("seat", {}))
agent = Agent("desk", model=ScriptedModel([calls(*asked), "done"]), tools=[pay, ship, render, seat])
"""


@pytest.fixture
def shop(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """A session of an agent that waits for everybody; how often its program was imported, which anybody could."""
    (tmp_path / "shop_of_a_test.py").write_text(APP)
    monkeypatch.syspath_prepend(tmp_path)
    agent = load_agent("shop_of_a_test")

    def forget() -> None:
        sys.modules.pop("shop_of_a_test", None)

    agent.run_sync(f"sqlite:///{tmp_path}/agents.db", session="s", message="go")
    forget()
    yield lambda: len((tmp_path / "imported").read_text().splitlines())
    forget()


def waiting(db: Database) -> dict[str, Any]:
    """The ids of what waits, by tool."""
    book = db.read("s").book
    found = {r["tool"]: r["id"] for r in book["effects"].values()}
    return {**found, **{f"asks {a['tool']}": a["id"] for a in book["approvals"].values()}}


def test_from_the_command_line(command: Command, shop: Callable[[], int], tmp_path: Path) -> None:
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db:
        ids = waiting(db)
    assert set(ids) == {"pay", "ship", "render", "seat", "asks pay", "asks seat"}
    # Checked by what is kept with the call, edited arguments, answers and results alike.
    assert command("approve", "s", ids["asks pay"], "--by", "ana", "--edit", '{"amount": "many"}').code == 2
    assert command("resolve", "s", ids["ship"], "--done", "nope", "--by", "ana").code == 2
    for argv in (
        ("approve", "s", ids["asks pay"], "--by", "ana", "--edit", '{"amount": 6}'),
        ("answer", "s", ids["asks seat"], "aisle", "--by", "ana"),
        ("resolve", "s", ids["ship"], "--done", '{"number": 1}', "--by", "ana"),
        ("outcome", "s", ids["render"], '{"number": 2}'),
        ("why", "s"),
        ("show", "s"),
        ("resolve", "s"),
    ):
        done = command(*argv)
        assert done.code == 0, (argv, done.err)
    assert shop() == 1


def test_from_the_library_http_and_the_console(command: Command, shop: Callable[[], int], tmp_path: Path) -> None:
    with asking(tmp_path) as api:
        ids = waiting(api.db)
        api.db.approve("s", ids["asks pay"], by="ana", args={"amount": 6})
        api.post(
            f"/sessions/s/approvals/{ids['asks seat']}",
            {"status": "resolved", "payload": {"answer": "aisle"}, "by": "ana"},
        )
        result = {"verdict": "done", "result": {"number": 1}, "by": "ana"}
        api.post(f"/sessions/s/effects/{ids['ship']}/resolve", result)
        api.post(f"/sessions/s/effects/{ids['render']}/outcome", {"result": {"number": 2}}, 202)
        for page in ("/approvals", "/in-doubt", "/session?id=s"):
            assert api.http.get(page).status_code == 200
    assert shop() == 1
