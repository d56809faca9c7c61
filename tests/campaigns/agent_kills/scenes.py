"""What the agent is asked to do while it is killed: a conversation per policy, each with several calls at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from perdure.agent.agent import Agent
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.session.tools import Done, ModelRetry, NotDone, ToolError, Unknown
from perdure.session.tools.declaration import Tool, tool
from perdure.system import faults
from tests.shop.server import receipt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.agent.models import Request
    from perdure.session.tools.context import Context
    from tests.campaigns.agent_kills.log import Log
    from tests.shop.client import Shop

POLICIES = ("retry", "reconcile", "ask", "report")
RAISING = ("raising_retry", "raising_reconcile", "raising_unknown", "raising_ask", "raising_report")
"""Tools that charge, and then raise before they tell anybody."""
REFUSING = ("refusing_retry", "refusing_reconcile", "refusing_ask", "refusing_report")
"""Tools that say at first, each with another exception, that they have done nothing."""
SCENES = ("read", *POLICIES, "mixed", "approved", "raising", "refusing")
UNATTENDED = ("read", "retry", "reconcile")
"""Scenes in which no person may ever be needed."""
LAST_WORDS = "Everything is paid."
RAISED = "it ended with KeyError"
"""What a model is told of a tool that raised."""
REFUSED = "the till is not open yet"
"""What it is told of one that has done nothing."""
NO_PRICE = "no price yet"
"""What it is told of a read that went wrong."""


def order_of(session: str, n: int) -> str:
    """The name of an order, as the shop knows it."""
    return f"{session}.{n}"


def script(scene: str, session: str) -> list[Any]:
    """What the model says: answers with calls, the first with several at once, then its last words."""

    def pay(policy: str, n: int) -> tuple[str, dict[str, Any]]:
        return f"pay_{policy}", {"order": order_of(session, n)}

    def look(n: int) -> tuple[str, dict[str, Any]]:
        return "stock", {"order": order_of(session, n)}

    match scene:
        case "read":
            return [calls(look(1), look(2), look(3)), calls(look(4)), LAST_WORDS]
        case "mixed":
            first = [pay(policy, n) for n, policy in enumerate(POLICIES, 1)]
            second = [pay(policy, n) for n, policy in enumerate(reversed(POLICIES), 5)]
            return [calls(look(1), *first), calls(*second), LAST_WORDS]
        case "approved":
            first = [pay("approved_retry", 1), pay("approved_ask", 2), pay("approved_retry", 3)]
            return [calls(*first, pay("ask", 4), look(1)), calls(pay("approved_ask", 5), pay("retry", 6)), LAST_WORDS]
        case "raising":
            return [calls(look(1), *(pay(name, n) for n, name in enumerate(RAISING, 1))), *_AGAIN, LAST_WORDS]
        case "refusing":
            first = [pay(name, n) for n, name in enumerate(REFUSING, 1)]
            return [calls(("price", {"order": "any"}), *first), *_AGAIN, LAST_WORDS]
        case _:
            return [calls(look(1), pay(scene, 1), pay(scene, 2), pay(scene, 3)), calls(pay(scene, 4)), LAST_WORDS]


def _repeated(request: Request) -> Any:
    """A model that makes each call again which it has got an error for, whatever that says."""
    told = {m["tool_call_id"]: json.loads(m["content"]) for m in request.messages if m["role"] == "tool"}
    asked = [call for m in request.messages for call in m.get("tool_calls", ())]
    newest = {(c["function"]["name"], c["function"]["arguments"]): told[c["id"]] for c in asked}
    again = [call for call, answer in newest.items() if isinstance(answer, dict) and "error" in answer]
    return calls(*again) if again else calls(("stock", {"order": "none"}))


_AGAIN = (_repeated,) * 3
"""Whoever is refused once, or turned down, asks once more, and then again."""


def orders(scene: str, session: str) -> dict[str, str]:
    """The orders of a scene and the tools that pay them."""
    every: Iterable[Any] = (call for said in script(scene, session) if isinstance(said, dict) for call in said["calls"])
    return {args["order"]: name for name, args in every if name.startswith("pay_")}


def tools(shop: Shop, log: Log, *, keys: bool = True) -> list[Tool]:
    """The agent's tools, one per policy; without ``keys`` they do not tell the shop which requests are the same."""

    def paid(name: str, order: str, ctx: Context, key: str | None) -> dict[str, Any]:
        log.note("entered", tool=name, order=order, effect=ctx.effect_id, attempt=ctx.attempt)
        faults.point("tool.entered")
        answer = shop.charge(order, key, sent=lambda: faults.point("tool.sent"))
        faults.point("tool.charged")
        return answer

    def look_up(order: str) -> Any:
        """The reconciler: the shop's books say whether it happened."""
        faults.point("tool.reconcile")
        return Done(receipt(order)) if shop.order(order)["charges"] else NotDone

    def look_up_later(order: str) -> Any:
        """A reconciler that is asked too early: it does not know at first."""
        asked = any(e["what"] == "looked_up" and e["order"] == order for e in log.read())
        log.note("looked_up", order=order)
        return look_up(order) if asked else Unknown()

    def payer(name: str, if_unsure: Any, *, keyed: bool = False, approve: bool = False, raises: bool = False) -> Tool:
        def pay(order: str, ctx: Any) -> dict[str, Any]:
            """Pay an order."""
            answer = paid(name, order, ctx, ctx.effect_id if keyed and keys else None)
            if raises and ctx.attempt == 1:
                log.note("raised", tool=name, order=order, effect=ctx.effect_id)
                faults.point("tool.raising")
                raise KeyError("receipt")
            return answer

        return tool(name=name, if_unsure=if_unsure, approve=approve)(pay)

    def refuser(name: str, if_unsure: Any, refusal: type[Exception], *, keyed: bool = False) -> Tool:
        def pay(order: str, ctx: Any) -> dict[str, Any]:
            """Pay an order, once the till is open."""
            if not any(e["what"] == "refused" and e["order"] == order for e in log.read()):
                log.note("refused", tool=name, order=order, effect=ctx.effect_id)
                faults.point("tool.refusing")
                raise refusal(REFUSED)
            return paid(name, order, ctx, ctx.effect_id if keyed and keys else None)

        return tool(name=name, if_unsure=if_unsure)(pay)

    def price(order: str) -> int:
        """Look a price up; the first time it goes wrong, and a read may do so."""
        if not any(e["what"] == "priced" for e in log.read()):
            log.note("priced", order=order)
            faults.point("tool.raising")
            raise KeyError(NO_PRICE)
        return 5

    def stock(order: str) -> dict[str, Any]:
        """Look an article up."""
        log.note("read", order=order)
        faults.point("tool.entered")
        answer = shop.stock(order)
        faults.point("tool.charged")
        return answer

    return [
        tool(read=True)(stock),
        payer("pay_retry", "retry", keyed=True),
        payer("pay_reconcile", look_up),
        payer("pay_ask", "ask"),
        payer("pay_report", "report"),
        payer("pay_approved_retry", "retry", keyed=True, approve=True),
        payer("pay_approved_ask", "ask", approve=True),
        tool(read=True)(price),
        refuser("pay_refusing_retry", "retry", NotDone, keyed=True),
        refuser("pay_refusing_reconcile", look_up, ModelRetry),
        refuser("pay_refusing_ask", "ask", ToolError),
        refuser("pay_refusing_report", "report", ModelRetry),
        payer("pay_raising_retry", "retry", keyed=True, raises=True),
        payer("pay_raising_reconcile", look_up, raises=True),
        payer("pay_raising_unknown", look_up_later, raises=True),
        payer("pay_raising_ask", "ask", raises=True),
        payer("pay_raising_report", "report", raises=True),
    ]


def agent(scene: str, session: str, shop: Shop, log: Log, *, keys: bool = True) -> Agent:
    """The agent of one session."""
    return Agent("cashier", model=ScriptedModel(script(scene, session)), tools=tools(shop, log, keys=keys))
