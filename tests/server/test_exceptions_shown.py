"""The console and HTTP: the exception of a tool is shown with its class, its words and where it came from, and without
the secrets in it; so is what of a result does not fit.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure import Agent, ScriptedModel, calls, tool
from tests.server.asking import Asking, asking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@tool
def charge(order: str) -> str:
    """Charge an order, and stumble."""
    raise KeyError(f"{order} with api_key=hunter2-{order}")


@tool
def wire(order: str) -> str:
    """Wire money; the answer is lost."""
    raise TimeoutError("no word from https://ana:hunter2@bank.example")


@tool(read=True)
def look(order: str) -> str:
    """Look an order up, and stumble."""
    raise ValueError("harmless")


@tool
def ask() -> int:
    """Return what is not declared."""
    return "many"  # type: ignore[return-value]


CHARGED = ("KeyError", "o1 with api_key=(secret)", "in charge", 'raise KeyError(f"{order}')
WIRED = ("TimeoutError", "no word from https://(secret)@bank.example", "in wire", "raise TimeoutError(")
LOOKED = ("ValueError", "harmless", "in look", 'raise ValueError("harmless")')


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Asking]:
    """A session whose call raised, one whose call is in doubt, and an agent that is done with calls that raised."""
    with asking(tmp_path) as found:
        with found.db.session("bug") as s, pytest.raises(perdure.EffectRaised):
            s.call(charge, order="o1")
        with found.db.session("lost") as s, pytest.raises(perdure.InDoubt):
            s.call(wire, order="o1")
        asked = [calls(("charge", {"order": "o1"})), calls(("look", {"order": "o1"})), calls(("ask", {})), "done"]
        agent = Agent("desk", model=ScriptedModel(asked), tools=[charge, look, ask])
        agent.run_sync(found.db.url, session="agent", message="go")
        yield found


def page(shop: Asking, path: str) -> str:
    """What people see."""
    answer = shop.http.get(path)
    assert answer.status_code == 200, answer.text[-500:]
    return html.unescape(answer.text)


def step_with(shop: Asking, tool: str) -> int:
    """The step of the agent's session that has the outcome of a call."""
    points = shop.db.history("agent")
    return next(p.step for p in points if p.more.get("tool") == tool and p.kind in ("raised", "failed", "done"))


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/session?id=bug", CHARGED),
        ("/session?id=bug&view=effects", CHARGED),
        ("/session?id=lost", WIRED),
        ("/session?id=lost&view=effects", WIRED),
        ("/in-doubt", WIRED),
        ("/session?id=agent", CHARGED),
        ("/session?id=agent&view=effects&step=charge", CHARGED),
        ("/session?id=agent&view=effects&step=look", LOOKED),
    ],
)
def test_a_page_shows_it_without_its_secrets(shop: Asking, path: str, shown: tuple[str, ...]) -> None:
    place, _, tool = path.partition("step=")
    found = page(shop, f"{place}step={step_with(shop, tool)}" if tool else path)
    for part in shown:
        assert part in found, part
    assert "hunter2@" not in found
    assert "hunter2-o1" not in found


def test_a_page_shows_what_of_a_result_does_not_fit(shop: Asking) -> None:
    found = page(shop, f"/session?id=agent&view=effects&step={step_with(shop, 'ask')}")
    assert "its result does not fit what its tool declares: Expected `int`, got `str`" in found


def test_programs_get_it_over_http(shop: Asking) -> None:
    told = [
        shop.get("/sessions/bug/why")["exception"],
        shop.get("/sessions/bug/effects")["items"][0]["exception"],
        shop.get("/sessions/agent/why")["exception"],
        {k: shop.get("/sessions/agent/effects")["raised"][0][k] for k in ("error", "message", "traceback")},
    ]
    for one in told:
        assert (one["error"], one["message"]) == ("KeyError", "'o1 with api_key=(secret)"), one
        assert "in charge" in one["traceback"]
    assert shop.get("/in-doubt")["items"][0]["exception"]["error"] == "TimeoutError"


def test_of_a_run_that_is_over_programs_get_all_of_them(shop: Asking) -> None:
    found = shop.get("/sessions/agent/effects")
    assert [(r["tool"], r["status"], r["error"]) for r in found["raised"]] == [
        ("charge", "raised", "KeyError"),
        ("look", "failed", "ValueError"),
    ]
    assert len(found["misfits"]) == 1
    assert "Expected `int`, got `str`" in found["misfits"][0]
