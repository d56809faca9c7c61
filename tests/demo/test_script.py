"""Conversations follow from the seed alone, and the model says the same whoever asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.agent.models import Request
from perdure.demo.chaos import EVICT, FREEZE, KILL, LAST, plan
from perdure.demo.crowd import LONGEST, SHORTEST, night
from perdure.demo.desk import AGREE_OVER, LEAST, say
from tests.demo.standing_in import open_shop, opened, talk_through

if TYPE_CHECKING:
    from pathlib import Path


def test_a_night_follows_from_its_seed():
    assert night(1, 30) == night(1, 30)
    assert night(1, 30) != night(2, 30)
    # The first conversations are the same however many there are.
    assert [c.lines for c in night(1, 30).conversations] == [c.lines for c in night(1, 60).conversations[:30]]


def test_conversations_have_15_to_30_turns_and_every_one_costs_money_or_stock():
    plan = night(847, 847)
    assert {c.turns for c in plan.conversations} == set(range(SHORTEST, LONGEST + 1)) == set(range(15, 31))
    assert all(c.refunds or c.exchanges for c in plan.conversations)
    orders = [o.id for c in plan.conversations for o in c.orders]
    assert len(set(orders)) == len(orders)
    changed = [order for c in plan.conversations for order, _ in (*c.refunds, *c.exchanges)]
    assert len(set(changed)) == len(changed), "an order is given back or exchanged, and once"
    approvals = sum(cents > AGREE_OVER for c in plan.conversations for _, cents in c.refunds)
    assert 0 < approvals < len(plan.conversations)


def test_a_conversation_ends_with_the_turns_and_effects_that_were_planned(tmp_path: Path):
    plan = night(3, 6)
    shop = open_shop(tmp_path, plan)
    with opened(talk_through(tmp_path, plan, shop)) as db:
        for c in plan.conversations:
            messages = db.read(c.session).plain()["messages"]
            assert sum(m["role"] == "assistant" for m in messages) == c.turns
            assert [m["content"] for m in messages if m["role"] == "user"] == list(c.lines)
    made = sorted((e.order, e.cents) for e in shop.ledger() if e.kind == "refund")
    assert made == sorted(r for c in plan.conversations for r in c.refunds)
    assert any(cents > AGREE_OVER for c in plan.conversations for _, cents in c.refunds)
    shop.close()


def test_the_model_is_a_function_of_the_conversation():
    asked = Request("m", [{"role": "user", "content": "Where is my order ORD-2024-8847? I paid for it."}], [], {})
    one, other = say(asked), say(asked)
    assert one == other
    assert one.calls[0].name == "order_status"
    assert one.usage.input > 10
    assert one.usage.output > 5
    assert LEAST == 0.3


def test_the_model_tells_the_customer_when_something_could_not_be_done():
    asked = {"role": "user", "content": "Where is my order ORD-2024-1?"}
    first = say(Request("m", [asked], [], {}))
    result = {"role": "tool", "tool_call_id": first.calls[0].id, "content": '{"error": "there is no order ORD-2024-1"}'}
    said = say(Request("m", [asked, first.message, result], [], {}))
    assert "there is no order ORD-2024-1" in said.message["content"]
    assert not said.calls


def test_chaos_is_planned_by_the_seed_and_ends_before_the_night_does():
    strokes = plan(847, 40)
    assert strokes == plan(847, 40)
    count = {kind: sum(s.kind == kind for s in strokes) for kind in (KILL, EVICT, FREEZE)}
    assert count == {KILL: 40, EVICT: 10, FREEZE: 5}
    assert [s.at for s in strokes] == sorted(s.at for s in strokes)
    assert strokes[-1].at <= LAST < 1
    assert plan(1, 0) == []
