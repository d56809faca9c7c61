"""What tokens cost: by step, by run and by session, and what is said when nobody knows."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure.agent.agent import Agent
from perdure.agent.context.compactor import Compactor
from perdure.agent.context.window import Window
from perdure.agent.models import Usage
from perdure.agent.models.prices import AS_OF, PRICES, Price, price_of
from perdure.agent.models.providers import PRESETS
from perdure.agent.models.scripted import ScriptedModel
from tests.agent.models.canned import canned, completion, http
from tests.agent.models.clients import client

USAGE = {"prompt_tokens": 1000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 600}}
FINE = http(completion({"content": "fine"}, usage=USAGE))
MINE = {"m": Price(10.0, 100.0, 1.0)}
COST = (400 * 10 + 600 * 1 + 100 * 100) / 1_000_000


def test_each_step_run_and_session_knows_what_it_cost():
    with canned(FINE) as server, perdure.open("memory://money") as db:
        agent = Agent("guide", model=client(server.url)[0], prices=MINE)
        one = agent.run_sync("memory://money", session="s", message="hi")
        two = agent.run_sync("memory://money", session="s", message="and?")
        assert one.spent.cost == pytest.approx(COST)
        assert two.spent.cost == pytest.approx(COST)
        assert tuple(two.spent)[:3] == (1000, 100, 600)
        assert two.total.cost == pytest.approx(2 * COST)
        assert two.total.input == 2000
        assert [c.more["usage"]["cost"] for c in db.history("s") if "usage" in c.more] == [one.spent.cost] * 2
        assert (one.notes, two.notes) == ((), ())


def test_prices_of_the_client_count_as_well():
    with canned(FINE) as server:
        agent = Agent("guide", model=client(server.url, prices=MINE)[0])
        assert agent.run_sync("memory://", session="s", message="hi").spent.cost == pytest.approx(COST)


@pytest.mark.parametrize("budget", [{"max_cost": 2.5 * COST}, {"max_tokens": 2500}], ids=["money", "tokens"])
def test_a_budget_ends_a_run(budget: dict[str, Any]):
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}

    @perdure.tool(read=True)
    def look() -> str:
        "Look."
        return "nothing"

    with canned(http(completion({"content": None, "tool_calls": [call]}, "tool_calls", usage=USAGE))) as server:
        agent = Agent("guide", model=client(server.url)[0], tools=[look], prices=MINE, max_turns=9)
        done = agent.run_sync("memory://", session="s", message="hi", **budget)
    assert (done.status, done.turns) == ("budget", 3)


def test_a_compactor_with_a_model_of_its_own_is_priced_as_that_model():
    with canned(FINE) as server, perdure.open("memory://compactors") as db:
        own, cheap = (client(server.url)[0] for _ in range(2))
        cheap.name = "cheap"
        prices = {**MINE, "cheap": Price(1.0, 10.0, 0.1)}
        agent = Agent("guide", model=own, prices=prices, window=Window(keep_recent=1))
        agent.compactor = Compactor(model=cheap, every=1)
        agent.run_sync("memory://compactors", session="s", message="hi")
        two = agent.run_sync("memory://compactors", session="s", message="and?")
        costs = [(c.more["model"]["name"], c.more["usage"]["cost"]) for c in db.history("s") if "usage" in c.more]
        assert sorted({name for name, _ in costs}) == ["cheap", "m"]
        assert [cost for name, cost in costs if name == "cheap"] == [pytest.approx(COST / 10)]
        assert two.spent.cost == pytest.approx(COST * 1.1)
        assert two.total.cost == pytest.approx(COST * 2.1)
        agent.prices = None
        three = agent.run_sync("memory://compactors", session="s", message="well?")
        assert {note.split(" is not")[0] for note in three.notes} == {"the price of m", "the price of cheap"}


def test_an_unknown_price_is_noted_once():
    call = {"id": "a", "type": "function", "function": {"name": "nope", "arguments": "{}"}}
    two = http(completion({"content": None, "tool_calls": [call]}, "tool_calls", usage=USAGE))
    with canned(two, FINE) as server:
        done = Agent("guide", model=client(server.url)[0]).run_sync("memory://", session="s", message="hi")
    assert done.turns == 2
    assert done.spent.cost == 0
    assert done.notes == ("the price of m is not known: its cost counts as 0; pass prices= to count it",)


def test_a_script_costs_nothing_and_says_nothing():
    done = Agent("guide", model=ScriptedModel(["hi"])).run_sync("memory://", session="s", message="hi")
    assert (done.spent.cost, done.notes) == (0, ())


def test_every_default_model_has_a_price():
    for preset in PRESETS.values():
        if preset.model:
            assert price_of(preset.name, preset.model) is not None, preset
    assert set(PRICES) == set(PRESETS)
    assert set(AS_OF) == {p.name for p in PRESETS.values() if p.key}


def test_the_price_at_holysheep_is_the_one_they_name():
    price = price_of("holysheep", "deepseek-v3.2")
    assert price is not None
    assert price.of(Usage(input=600_000, output=400_000)) == pytest.approx(0.42)


@pytest.mark.parametrize(
    "usage", [None, 7, {}, {"prompt_tokens": None}, {"prompt_tokens": "many"}, {"prompt_tokens": -3}]
)
def test_usage_that_makes_no_sense_counts_as_none(usage: Any):
    with canned(http(completion({"content": "fine"}, usage=usage))) as server:
        done = Agent("guide", model=client(server.url)[0], prices=MINE).run_sync("memory://", session="s", message="hi")
    assert done.ok
    assert tuple(done.spent) == (0, 0, 0, 0)
