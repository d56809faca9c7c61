"""What a session came to, by what it wrote down and by what the shop's ledger says."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.session.calls.retries import READ_TRIES
from tests.campaigns.agent_kills.scenes import LAST_WORDS, NO_PRICE, RAISED, REFUSED, UNATTENDED, orders, script
from tests.shop.server import receipt

if TYPE_CHECKING:
    from collections.abc import Iterator

GIVEN_UP = f"its answer was lost {READ_TRIES} times"
"""What is told of a read that was killed again and again."""


class Verdict(NamedTuple):
    """One session, judged."""

    scene: str
    session: str
    finished: bool
    twice: list[str]
    """Orders charged more than once."""
    lost: list[str]
    """Orders that were neither charged nor reported as unknown."""
    entered_twice: list[str]
    """Effects of ``ask`` tools that were made again without anybody saying so."""
    needed_person: bool
    """In a scene that must do without."""
    never_begun: list[str]
    """Effects in doubt that no checkpoint says were about to be made."""
    doubts: int
    """Calls that a process found started and without an outcome."""
    needless: int
    """Of these: calls that the shop had never heard of."""
    people: int
    """How often a person had to decide what is in doubt."""
    raised: int
    """Calls that charged and then raised."""
    refused: int
    """Calls that said on purpose that nothing had happened."""
    repeated: int
    """Calls that the model repeated after they had raised, and a person turned down."""
    charges: dict[str, int]
    problems: list[str]

    @property
    def ok(self) -> bool:
        """Whether everything is as promised."""
        wrong = (self.twice, self.lost, self.entered_twice, self.never_begun, self.problems)
        return self.finished and not any(wrong) and not self.needed_person


def judge(scene: str, session: str, log: list[dict[str, Any]], books: dict[str, dict[str, int]]) -> Verdict:
    """Judge one session."""
    charges = books["charges"]
    wanted = orders(scene, session)
    entered = [e for e in log if e["what"] == "entered"]
    said = [e for e in log if e["what"] == "person"]
    doubts = {(e["effect"], i): e for i, e in enumerate(log) if e["what"] == "doubt"}
    reported = {order for order, name in wanted.items() if name.endswith("report")}
    problems = [e["trace"] for e in log if e["what"] == "problem"]
    problems += [f"{o} was charged and never asked for" for o in charges if o not in wanted]
    return Verdict(
        scene,
        session,
        finished=any(e["what"] == "finished" and e["text"] == LAST_WORDS for e in log),
        twice=[o for o, n in charges.items() if n > 1],
        lost=[o for o in wanted if not charges.get(o) and o not in reported],
        entered_twice=_entered_twice(entered, said),
        needed_person=scene in UNATTENDED and bool(said),
        never_begun=sorted({e["effect"] for e in doubts.values() if not e["begun"]}),
        doubts=len(doubts),
        needless=sum(not e["seen"] for e in doubts.values()),
        people=sum(e["said"] in ("done", "retry") for e in said),
        raised=sum(e["what"] == "raised" for e in log),
        refused=sum(e["what"] == "refused" for e in log),
        repeated=sum(e["said"] == "reject" for e in said),
        charges=charges,
        problems=problems,
    )


def _entered_twice(entered: list[dict[str, Any]], said: list[dict[str, Any]]) -> list[str]:
    """Effects of tools that ask, made more often than once and once more per person who said so."""
    made = Counter(e["effect"] for e in entered if e["tool"].endswith("ask"))
    # A decision is written down before it is made durable: killed in between, it is taken again, and counts once.
    allowed = Counter(effect for effect, _ in {(e["effect"], e["attempt"]) for e in said if e["said"] == "retry"})
    return [effect for effect, times in made.items() if times > 1 + allowed[effect]]


def wrong_answers(messages: list[dict[str, Any]], verdict: Verdict) -> Iterator[str]:
    """Where a conversation is not what happened: each call has one answer, and it is true."""
    roles = [m["role"] for m in messages]
    said = len(script(verdict.scene, verdict.session))
    if roles.count("user") != 1 or roles.count("assistant") != said or roles[-1] != "assistant":
        yield f"the conversation has the roles {roles}"
    answered = Counter(m["tool_call_id"] for m in messages if m["role"] == "tool")
    calls = [c for m in messages for c in m.get("tool_calls", ())]
    again = {json.loads(calls[at]["function"]["arguments"])["order"] for at in range(len(calls))
             if calls[at]["function"] in [c["function"] for c in calls[:at]]}  # fmt: skip
    answers = {m["tool_call_id"]: json.loads(m["content"]) for m in messages if m["role"] == "tool"}
    for call in calls:
        name, order = call["function"]["name"], json.loads(call["function"]["arguments"])["order"]
        if answered[call["id"]] != 1:
            yield f"{name} {order} was answered {answered[call['id']]} times"
            continue
        answer = answers[call["id"]]
        if name == "stock":
            # Killed as often as its answer may be lost: it only reads, so whether it did is nobody's concern.
            fine = answer.get("in_stock") or (GIVEN_UP in answer.get("error", "") and verdict.doubts >= READ_TRIES)
        elif name == "price":
            fine = answer == 5 or NO_PRICE in answer.get("error", "")
        elif name.startswith("pay_refusing_") and REFUSED in answer.get("error", ""):
            # It said so on purpose; the model has asked again since, or will have been told that nobody knows.
            fine = order in again
        elif answer == receipt(order):
            fine = verdict.charges.get(order) == 1
        elif name.startswith("pay_raising_") and "nobody knows" not in answer.get("error", ""):
            # It raised, or was refused because it had raised: it was charged, and nobody is told that it was not.
            known = (RAISED, "the same call ended with KeyError", "it is paid")
            fine = any(words in answer.get("error", "") for words in known) and verdict.charges.get(order) == 1
        else:
            fine = name.endswith("report") and "nobody knows" in answer.get("error", "")
        if not fine:
            yield f"{name} {order} was answered {answer}, and charged {verdict.charges.get(order, 0)} times"
