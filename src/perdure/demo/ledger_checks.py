"""The morning after: the shop's ledger, the sessions and the digests, compared with what was agreed on and written.

Nobody is trusted: the ledger is read from the shop, order by order; messages are read from the sessions and compared
with what the customers wrote; every digest is computed again.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.models import text_of
from perdure.demo.chaos import tokens_of
from perdure.demo.shop import EFFECTS, EXCHANGE, REFUND
from perdure.errors import PerdureError
from perdure.model import Status

if TYPE_CHECKING:
    from perdure.database import Database
    from perdure.demo.crowd import Night, Talk
    from perdure.demo.shop import Shop

SHOWN = 5
"""Problems of one kind that are told one by one."""


class Books(NamedTuple):
    """What the shop says."""

    refunds: int
    exchanges: int
    duplicates: int
    """Ledger entries beyond the first of their kind for an order."""
    missing: int
    """Refunds and exchanges that were agreed on and never made."""
    repeated: int
    """Requests that the shop recognised by their key and answered from its books."""
    problems: list[str]


class Spoken(NamedTuple):
    """What the sessions say."""

    finished: int
    lost: int
    """Messages that a customer posted and that are not in the session, or were never answered."""
    doubled: int
    answers: int
    tokens: dict[str, int]
    """By session: of all its committed answers."""
    problems: list[str]


class Verified(NamedTuple):
    """What came of computing every digest again."""

    sessions: int
    checkpoints: int
    problems: list[str]


def check_shop(shop: Shop, night: Night) -> Books:
    """Compare the ledger with what was agreed on."""
    ledger = shop.ledger()
    made = Counter((entry.order, entry.kind) for entry in ledger)
    paid = Counter({entry.order: entry.cents for entry in ledger if entry.kind == REFUND})
    agreed = {(order, REFUND): cents for c in night.conversations for order, cents in c.refunds}
    sent = {(order, EXCHANGE): sku for c in night.conversations for order, sku in c.exchanges}
    wanted = agreed.keys() | sent.keys()
    twice = {place: n for place, n in made.items() if n > 1}
    missing = sorted(wanted - made.keys())
    problems = [f"{kind} for {order} was made {n} times" for (order, kind), n in sorted(twice.items())]
    problems += [f"{kind} for {order} was never made" for order, kind in missing]
    problems += [f"{kind} for {order} was made and never agreed on" for order, kind in sorted(made.keys() - wanted)]
    for (order, kind), cents in sorted(agreed.items()):
        if made[order, kind] and paid[order] != cents:
            problems.append(f"{paid[order]} cents were given back for {order} instead of {cents}")
    left = Counter(night.stock)
    left.subtract(sku for place, sku in sent.items() for _ in range(made[place]))
    problems += [
        f"{count} of {sku} are left instead of {left[sku]}" for sku, count in shop.left().items() if count != left[sku]
    ]
    asked = sum(count for kind, count in shop.requests().items() if kind in EFFECTS)
    count = Counter(entry.kind for entry in ledger)
    duplicates = sum(n - 1 for n in twice.values())
    return Books(count[REFUND], count[EXCHANGE], duplicates, len(missing), asked - len(ledger), _short(problems))


def check_sessions(db: Database, talks: dict[str, Talk]) -> Spoken:
    """Compare every session with what its customer wrote: each message there once, in order, and answered."""
    finished = lost = doubled = answers = 0
    tokens: dict[str, int] = {}
    problems: list[str] = []
    for session, talk in talks.items():
        said = list(talk.conversation.lines[: talk.said])
        try:
            reading = db.read(session)
        except PerdureError as e:
            lost += len(said)
            problems.append(f"{session} cannot be read: {e}")
            continue
        messages: list[dict[str, Any]] = reading.plain()["messages"]
        heard = [text_of(m) for m in messages if m["role"] == "user"]
        given = sum(m["role"] == "assistant" for m in messages)
        gone = Counter(said) - Counter(heard)
        extra = (Counter(heard) - Counter(said)).total()
        missed = gone.total() + _unanswered(messages)
        status = reading.checkpoint.status
        tokens[session] = tokens_of(reading)
        lost, doubled, answers = lost + missed, doubled + extra, answers + given
        if missed or extra:
            problems.append(f"{session}: {missed} messages lost or unanswered, {extra} too many")
        elif heard != said:
            problems.append(f"{session}: its messages are out of order")
        elif len(said) < len(talk.conversation.lines) or status != Status.IDLE:
            left = len(talk.conversation.lines) - len(said)
            problems.append(f"{session} is not finished: it stands at {status}, and its customer has {left} to say")
        elif given != talk.conversation.turns:
            problems.append(f"{session} has {given} answers instead of {talk.conversation.turns}")
        else:
            finished += 1
    return Spoken(finished, lost, doubled, answers, tokens, _short(problems))


def _unanswered(messages: list[dict[str, Any]]) -> int:
    """How many messages of a customer nothing was said to before the next one, or at all."""
    count, waits = 0, False
    for message in messages:
        if message["role"] == "user":
            count += waits
            waits = True
        elif message["role"] == "assistant" and not message.get("tool_calls"):
            waits = False
    return count + waits


def check_digests(db: Database, sessions: list[str]) -> Verified:
    """Read every checkpoint of these sessions again and compute its digest anew."""
    count = checkpoints = 0
    problems: list[str] = []
    for session in sessions:
        report = db.verify(session)
        count, checkpoints = count + report.sessions, checkpoints + report.checkpoints
        problems += [f"{session}: {finding}" for finding in report.findings]
    return Verified(count, checkpoints, _short(problems))


def _short(problems: list[str]) -> list[str]:
    more = len(problems) - SHOWN
    return [*problems[:SHOWN], f"and {more} more like these"] if more > 1 else problems
