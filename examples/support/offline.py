"""What the model says when there is none: understands the questions of a shop's customers by their words."""

import json
import re
from typing import Any

from perdure.agent.models import Request, text_of
from perdure.agent.models.scripted import calls

ARTICLES = {"shoe": "shoe", "coat": "coat", "jacket": "coat"}


def support(request: Request) -> Any:
    """Call what the last question needs, then put the answers into words."""
    at = max(i for i, m in enumerate(request.messages) if m["role"] == "user")
    asked = text_of(request.messages[at])
    answers = [text_of(m) for m in request.messages[at:] if m["role"] == "tool"]
    if answers:
        return " ".join(_words(json.loads(a)) for a in answers)
    # An order that was named earlier in the conversation is still the one that is meant.
    said = " ".join(text_of(m) for m in request.messages[: at + 1] if m["role"] == "user")
    orders = re.findall(r"ORD-\d{4}-\d{4}", said)
    because = re.search(r"because (?:it is |of )?([^.!?]+)", asked)
    back = {"order": orders[-1] if orders else "", "reason": because[1] if because else "not said"}
    wanted: list[Any] = []
    if found := re.search(r"\b(SHOE|COAT)-\w+", asked):
        wanted.append(("return_or_exchange", {**back, "exchange_for": found[0]}))
    elif re.search(r"return|refund|money back", asked, re.IGNORECASE) and orders:
        wanted.append(("return_or_exchange", back))
    elif orders and re.search(r"where|status|arrive|order", asked, re.IGNORECASE):
        wanted.append(("order_status", {"order": orders[-1]}))
    wanted += [("inventory", {"words": w}) for k, w in ARTICLES.items() if re.search(rf"have.*{k}|stock.*{k}", asked)]
    if wanted:
        return calls(*wanted)
    return "I can look up an order, take it back or exchange it, and tell what is in stock. What is it about?"


def _words(answer: Any) -> str:
    match answer:
        case {"error": why}:
            return f"That did not work: {why}."
        case {"status": status, "name": name, "tracking": tracking}:
            return f"Your order ({name}) is {status}." + (f" Tracking number: {tracking}." if tracking else "")
        case {"refunded": amount, "order": order, "rma": rma, "reason": reason, "instructions": how}:
            back = f"{order} is taken back ({rma}, reason: {reason}): {how}."
            return f"{back} {amount:.2f} is on its way to you."
        case {"sent": sku, "order": order, "rma": rma, "reason": reason, "tracking": tracking, "instructions": how}:
            back = f"{order} is exchanged ({rma}, reason: {reason}): {how}."
            return f"{back} {sku} is on its way to you, tracking number {tracking}."
        case list():
            return " ".join(map(_article, answer)) or "We have none."
        case _:
            return str(answer)


def _article(article: dict[str, Any]) -> str:
    said = f"{article['name']}: {article['stock'] or 'none'} in stock"
    return f"{said}; there is {', '.join(article['alternatives'])}." if article["alternatives"] else f"{said}."
