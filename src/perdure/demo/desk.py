"""The support desk: an agent with the tools of the shop. Reads may run again; what costs money is sent with its key."""

from __future__ import annotations

from typing import Any

from perdure.agent.agent import Agent
from perdure.demo.script import AGREE_OVER
from perdure.demo.shop import Shop, Unknown
from perdure.demo.shop_model import DeskModel
from perdure.session.tools import Context, NotDone, tool

SHOP, FACTOR, NAME = "PERDURE_DEMO_SHOP", "PERDURE_DEMO_FACTOR", "PERDURE_DEMO_AGENT"
"""Variables that tell a worker which shop it works for, how fast the model is, and what its agent is called."""
INSTRUCTIONS = """You are the night desk of an online shop, and tonight is Black Friday.

You help customers with the status of their orders, with what is in stock, with refunds and with exchanges. Be kind,
be brief, and be exact: a customer who writes at this hour wants to know where they stand and then wants to sleep.

Rules of the house:
- Look an order up before you say anything about it. Never guess a date, a price or a number of pieces.
- A refund is given for any article within thirty days of its delivery, whatever the reason. Say the exact amount and
  the number of the order first, and give the money back only when the customer has agreed to both.
- Refunds over 250.00 are looked at by a supervisor before they are made. You need not say so unless it takes long.
- An exchange is for the same article in another size or colour. Look whether it is in stock, offer it, and send it only
  when the customer has agreed. The customer keeps what they have until the courier takes it back.
- One refund or one exchange for an order, never both. If the customer wants both, explain why that cannot be.
- Do not promise a delivery day that the carrier has not confirmed. If there is none, say so.
- Sale prices stay until Monday morning. Vouchers cannot be combined with them. Gift wrapping costs 3.50.
- Never ask for card numbers, passwords or codes. If a customer sends one, tell them to change it.
- If something cannot be done, say what can be done instead, and by when.
- Numbers of receipts are always told to the customer, exactly as the shop gives them.
When the customer has what they need, say good night and leave the conversation open: they may come back.
"""


def desk(shop: Shop, *, factor: float = 1.0, name: str = "support") -> Agent:
    """The agent, over a shop."""

    @tool(read=True)
    def order_status(order: str) -> dict[str, Any]:
        """Where an order is, what is in it and what was paid.

        Args:
            order: its number, such as ORD-2024-8847
        """
        return _asked(shop.order, order)

    @tool(read=True)
    def stock(sku: str) -> dict[str, Any]:
        """How many pieces of an article there are.

        Args:
            sku: its number, such as BOT-43
        """
        return {"sku": sku, "count": _asked(shop.stock, sku)}

    @tool(if_unsure="retry", key_valid_for="24h", approve=_is_much)
    def refund(order: str, amount: float, ctx: Context) -> dict[str, Any]:
        """Give the money for an order back, once the customer has agreed.

        Args:
            order: the order's number
            amount: how much was paid for it
        """
        # The effect id is the key: whoever has to ask again asks for the same refund.
        return _asked(shop.refund, order, amount, ctx.effect_id)

    @tool(if_unsure="retry", key_valid_for="24h")
    def exchange(order: str, sku: str, ctx: Context) -> dict[str, Any]:
        """Send another article out in exchange for an order, once the customer has agreed.

        Args:
            order: the order's number
            sku: the article to send
        """
        return _asked(shop.exchange, order, sku, ctx.effect_id)

    tools = [order_status, stock, refund, exchange]
    return Agent(name, model=DeskModel(factor), tools=tools, instructions=INSTRUCTIONS, compactor=False)


def _is_much(args: dict[str, Any]) -> bool:
    return round(args["amount"] * 100) > AGREE_OVER


def _asked(what: Any, *args: Any) -> Any:
    try:
        return what(*args)
    except Unknown as e:
        raise NotDone(str(e)) from None
