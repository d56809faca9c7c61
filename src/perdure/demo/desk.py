"""The support desk: an agent with the tools of the shop, and the scripted model that answers for it.

Reads may run again; what costs money is sent with its key. The model is a pure function of the conversation, with a
provider's delays and counts: whichever worker asks, and however often one died before, the same conversation gets the
same answer. ``perdure worker perdure.demo.desk`` serves the agent at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import zlib
from typing import TYPE_CHECKING, Any

from perdure.agent.agent import Agent
from perdure.agent.models import Answer, Request, ToolCall, Usage, text_of
from perdure.demo.shop import Shop, Unknown
from perdure.session.tools import NotDone
from perdure.session.tools.context import Context
from perdure.session.tools.declaration import tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.agent.models import Delta

SHOP, FACTOR, NAME = "PERDURE_DEMO_SHOP", "PERDURE_DEMO_FACTOR", "PERDURE_DEMO_AGENT"
"""Variables that tell a worker which shop it works for, how fast the model is, and what its agent is called."""
AGREE_OVER = 25_000
"""A refund of more than so many cents is only given once a supervisor has agreed."""
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


LEAST = 0.3
"""Seconds until an answer at least, before the factor."""
PER_TOKEN = 0.002
"""Seconds more for each token of the answer."""
_ORDER = re.compile(r"ORD-\d{4}-\d+")
_SKU = re.compile(r"\b[A-Z]{3}-[A-Z0-9]+\b")
_OFFERED = "Shall I"


class DeskModel:
    """Answers customers after at least 300 ms times ``factor``, and counts tokens as a provider does."""

    def __init__(self, factor: float = 1.0) -> None:
        self.name = "scripted-desk"
        self._factor = factor

    async def answer(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Answer:
        """The answer to a conversation."""
        answer = say(request)
        await asyncio.sleep((LEAST + PER_TOKEN * answer.usage.output) * self._factor)
        return answer

    async def close(self) -> None:
        """Nothing to release."""


def say(request: Request) -> Answer:
    """What the model says next, and what it costs."""
    said = _next(request.messages)
    if isinstance(said, str):
        message: dict[str, Any] = {"role": "assistant", "content": said}
        calls: tuple[ToolCall, ...] = ()
    else:
        name, arguments = said
        call = ToolCall(f"call_{len(request.messages)}", name, json.dumps(arguments))
        function = {"name": name, "arguments": call.arguments}
        asked = [{"id": call.id, "type": "function", "function": function}]
        message = {"role": "assistant", "content": None, "tool_calls": asked}
        calls = (call,)
    usage = Usage(tokens(request.messages) + 40 * len(request.tools), tokens([message]))
    return Answer(message, calls, "tool_calls" if calls else "stop", usage, "scripted-desk-1")


def tokens(messages: list[dict[str, Any]]) -> int:
    """About as many as a provider counts: one for four characters, and four for each message."""
    count = 0
    for message in messages:
        count += 16 + len(text_of(message))
        for call in message.get("tool_calls") or ():
            count += 40 + len(call["function"]["arguments"])
    return count // 4


def _next(messages: list[dict[str, Any]]) -> str | tuple[str, dict[str, Any]]:
    asked = next((text_of(m) for m in reversed(messages) if m["role"] == "user"), "")
    last = messages[-1]
    if last["role"] == "tool":
        return _told(messages, json.loads(text_of(last)), asked)
    order, sku = _ORDER.search(asked), _SKU.search(_ORDER.sub("", asked))
    if asked.startswith("Yes"):
        return _agreed(messages)
    if order and ("refund" in asked or "Where is" in asked):
        return "order_status", {"order": order[0]}
    if sku and ("exchange" in asked or "in stock" in asked):
        return "stock", {"sku": sku[0]}
    if "arrive" in asked:
        return _arrival(messages)
    if "that is all" in asked.lower():
        return (
            "You are very welcome. Everything we agreed on tonight is noted with your orders, and you will get one "
            "mail that sums it up. Have a good night, and thank you for shopping with us."
        )
    return _small_talk(asked)


def _told(messages: list[dict[str, Any]], result: dict[str, Any], asked: str) -> str:
    """What to say of a tool's result."""
    call = next(m["tool_calls"][0] for m in reversed(messages) if m.get("tool_calls"))["function"]
    arguments = json.loads(call["arguments"])
    if "error" in result:
        return f"I am sorry, that could not be done: {result['error']}. Is there anything else that I can do for you?"
    match call["name"]:
        case "order_status" if "refund" in asked:
            paid = f"{result['amount']:.2f}"
            return (
                f"I am sorry about that. I have your order in front of me: {result['sku']}, paid {paid}. {_OFFERED} "
                f"give back {paid} for {result['id']} to the card you paid with? It takes three working days until you "
                "see it there."
            )
        case "order_status":
            return (
                f"Your order {result['id']} ({result['sku']}) is {result['status']} with {result['carrier']} and is "
                f"expected on {result['eta']}. You can follow it with the link in your confirmation mail; the carrier "
                "updates it every few hours, tonight a little less often than usual."
            )
        case "stock" if "exchange" in asked:
            order = _ORDER.search(asked)
            assert order is not None
            return (
                f"Good news: {arguments['sku']} is in stock, {result['count']} pieces. {_OFFERED} send it to you in "
                f"exchange for {order[0]}? You keep what you have until the courier takes it back at your door."
            )
        case "stock":
            return (
                f"Yes, we have {result['count']} pieces of {arguments['sku']} left at the sale price. I cannot reserve "
                "one from here, and they go quickly tonight, so I would not wait too long if you need it this week."
            )
        case "refund":
            return (
                f"Done: {result['refunded']:.2f} for {result['order']} go back to your card, receipt "
                f"{result['receipt']}. Please send the article back with the label in the mail that is on its way."
            )
        case _:
            return (
                f"Done: {result['sent']} is on its way to you in exchange for {result['order']}, receipt "
                f"{result['receipt']}. The courier brings it and takes the other one back in the same visit."
            )


def _agreed(messages: list[dict[str, Any]]) -> str | tuple[str, dict[str, Any]]:
    """The customer agrees to what was offered last."""
    offer = next((text_of(m) for m in reversed(messages) if m["role"] == "assistant" and _OFFERED in text_of(m)), "")
    order = _ORDER.search(offer)
    if order is None:
        return "I am glad to hear that. What can I do for you?"
    if amount := re.search(r"give back (\d+\.\d\d)", offer):
        return "refund", {"order": order[0], "amount": float(amount[1])}
    sku = _SKU.search(offer)
    assert sku is not None
    return "exchange", {"order": order[0], "sku": sku[0]}


def _arrival(messages: list[dict[str, Any]]) -> str:
    """When the order comes that was last spoken of."""
    for message in reversed(messages):
        text = text_of(message)
        if message["role"] == "assistant" and (day := re.search(r"expected on (\w+)", text)):
            return (
                f"The carrier says {day[1]}, usually between noon and six in the evening. If nobody is at home they "
                "leave it at the nearest pick-up point and put a note with the address into your letter box."
            )
    return "I can tell you as soon as you give me the number of the order."


_TALK = (
    "I understand, and thank you for telling me. I have noted it with your account, so that nobody asks you again.",
    "That is a fair question. Our rules say: thirty days from delivery, any reason, and we pay for the way back.",
    "Yes, that works. The offer stays until Monday morning, whatever the counter on the page says.",
    "No trouble at all, take your time. I am here the whole night, and your conversation stays open.",
    "I am sorry about the wait you had before. Tonight is the busiest night of our year, and that is no excuse.",
)


def _small_talk(asked: str) -> str:
    # Not hash(): that differs from process to process.
    return _TALK[zlib.crc32(asked.encode()) % len(_TALK)]


# Outside of a worker nobody says which shop is meant, and there is no agent.
agent = (
    desk(Shop(os.environ[SHOP]), factor=float(os.environ.get(FACTOR, "1")), name=os.environ.get(NAME, "support"))
    if SHOP in os.environ
    else None
)
