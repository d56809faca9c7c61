"""The support desk of a web shop: order status, returns and exchanges, inventory, over real stock and real money.

    python app.py mail-1 "Where is ORD-2024-8847?"
    python app.py mail-2 "I want my money back"   it still knows which order
    python app.py mail-3 "Do you have a coat?"    what is in stock, and what there is instead
    perdure log session-2024-bf-847               what happened, step by step
    perdure chat app.py                           a conversation in the terminal; kill it, and type it again

Every mail of the customer has its id: killed, and typed again, it is the same mail, and is said once.
Without HOLYSHEEP_API_KEY a scripted model answers, with no network; with it, the real one.
"""

import os
import shlex
import sys
from typing import Any

from shop import Shop

import perdure
from perdure import Agent, ScriptedModel

STORE = os.environ.get("SUPPORT_STORE", "sqlite:///support.db")
SESSION, CUSTOMER = "session-2024-bf-847", "user-12345"
shop = Shop(os.environ.get("SUPPORT_WORLD", "shop.db"))


@perdure.tool(read=True)
def order_status(order: str) -> dict[str, Any]:
    """Where an order is, with its tracking number.

    Args:
        order: its number, such as ORD-2024-8847
    """
    return _order(order)


@perdure.tool(read=True)
def inventory(words: str) -> list[dict[str, Any]]:
    """What is in stock, by number or name of the article; with alternatives to what is not."""
    return shop.articles(words)


def is_much(args: dict[str, Any]) -> bool:
    """A person agrees before more than 100 is given back."""
    found = shop.order(args["order"])
    return not args.get("exchange_for") and found is not None and found["price"] > 100


@perdure.tool(if_unsure="retry", key_valid_for="24h", approve=is_much)
def return_or_exchange(order: str, reason: str, ctx: perdure.Context, exchange_for: str = "") -> dict[str, Any]:
    """Take an order back and give the money back, or send another article instead. The answer has the RMA number.

    Args:
        order: the order's number
        reason: why the customer sends it back, in a few words
        exchange_for: the number of the article to send instead; empty: give the money back
    """
    _order(order)
    try:
        # The effect id is the shop's key: sent twice, it is still one refund.
        return shop.take_back(order, reason, ctx.effect_id, exchange_for)
    except LookupError as e:
        raise perdure.NotDone(str(e)) from None


def _order(number: str) -> dict[str, Any]:
    found = shop.order(number)
    if found is None or found["customer"] != CUSTOMER:
        raise perdure.NotDone(f"there is no order {number} of this customer")
    return found


def model() -> dict[str, Any]:
    """The real model when there is a key, else a scripted one."""
    if os.environ.get("HOLYSHEEP_API_KEY"):
        return {"model": "deepseek-v3.2", "provider": "holysheep"}
    from offline import support

    return {"model": ScriptedModel(support)}


agent = Agent(
    "support",
    **model(),
    tools=[order_status, return_or_exchange, inventory],
    instructions="You are the support desk of a web shop. Look things up before you answer; never guess.",
)


def main(mail: str = "", *words: str) -> None:
    """Answer a mail, by its id, or go on with what was left open."""
    if mail and not words:
        print(__doc__)
        return
    result = agent.run_sync(STORE, session=SESSION, owner=CUSTOMER, key=mail or None, message=" ".join(words) or None,
                            context={"region": "US-West"})  # fmt: skip
    if result.ok:
        print(result.text)
        return
    print(f"({result.status}) {result.reason}".rstrip())
    store = shlex.quote(STORE)
    for approval in result.approvals:
        print(f"waits for a person: {approval.tool} {approval.args}. To agree, and go on:")
        print(f"  perdure approve {SESSION} {approval.id} --store {store}")
        print(f"  python {shlex.quote(sys.argv[0])}")
    if not result.approvals:
        print(f"What to do:\n  perdure why {SESSION} --store {store}")


if __name__ == "__main__":
    main(*sys.argv[1:])
