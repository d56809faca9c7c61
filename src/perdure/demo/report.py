"""The morning after: what the shop's ledger and the sessions themselves say, and the reckoning.

Nobody is trusted: the ledger is read from the shop, order by order; messages are read from the sessions and compared
with what the customers wrote; every digest is computed again. One object for programs, one table for people.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.models import text_of
from perdure.demo.chaos import EVICT, FREEZE, KILL, LEASE, Recoveries, tokens_of
from perdure.demo.shop import EFFECTS, EXCHANGE, REFUND
from perdure.errors import PerdureError
from perdure.model import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from perdure.database import Database
    from perdure.demo.chaos import Hit
    from perdure.demo.crowd import Night, Talk
    from perdure.demo.run import Wish
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


class Measured(NamedTuple):
    """What was counted and timed while it was played."""

    wish: Wish
    store: str
    """Where it was played, without any secret."""
    struck: dict[str, int]
    hits: Sequence[Hit]
    messages: int
    approvals: int
    commits: int
    seconds: float
    problems: list[str]


def saved(hits: Sequence[Hit], whole: dict[str, int]) -> float:
    """Of the tokens it takes to begin the interrupted conversations again: per cent that going on saves."""
    every = sum(whole.get(h.session, 0) for h in hits)
    return 100 * sum(h.tokens for h in hits) / every if every else 0.0


def reckon(
    measured: Measured, talks: dict[str, Talk], books: Books, spoken: Spoken, verified: Verified
) -> dict[str, Any]:
    """Everything in one JSON object."""
    wish = measured.wish
    kills = [h for h in measured.hits if h.kind == KILL]
    recovered = Recoveries(talks)
    recovered.update(measured.hits)
    problems = [*measured.problems, *books.problems, *spoken.problems, *verified.problems]
    if measured.struck[KILL] < wish.kills:
        problems.append(f"only {measured.struck[KILL]} of {wish.kills} kills found steps in flight: play more sessions")
    if recovered.missing:
        problems.append(f"{recovered.missing} runs that were cut were never taken up again")
    if spoken.doubled:
        problems.append(f"{spoken.doubled} messages are in their session more than once")
    return {
        "ok": not problems and spoken.finished == wish.sessions,
        "sessions": wish.sessions,
        "finished": spoken.finished,
        "kills": measured.struck[KILL],
        "evictions": measured.struck[EVICT],
        "freezes": measured.struck[FREEZE],
        "sessions_hit": len({h.session for h in kills}),
        "hits": len(kills),
        "resumes": recovered.resumes,
        "lost_messages": spoken.lost,
        "duplicate_effects": books.duplicates,
        "missing_effects": books.missing,
        "repeated_requests": books.repeated,
        "recovery_p50_seconds": _rounded(recovered.median),
        "recovery_max_seconds": _rounded(recovered.slowest),
        "tokens_saved_percent": round(saved(kills, spoken.tokens), 1),
        "tokens": sum(spoken.tokens.values()),
        "messages": measured.messages,
        "turns": spoken.answers,
        "refunds": books.refunds,
        "exchanges": books.exchanges,
        "approvals": measured.approvals,
        "saves": measured.commits,
        "saves_per_second": round(measured.commits / measured.seconds, 1),
        "verified": {"sessions": verified.sessions, "checkpoints": verified.checkpoints},
        "seed": wish.seed,
        "workers": wish.workers,
        "factor": wish.factor,
        "lease_seconds": LEASE,
        "store": measured.store,
        "problems": problems,
        "duration_seconds": round(measured.seconds, 1),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"


def show(report: dict[str, Any], console: Console) -> None:
    """Print the table."""
    from rich.table import Table
    from rich.text import Text

    r = report
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    fine = {True: "green", False: "bold red"}

    def row(what: str, value: str, remark: str, good: bool | None = None) -> None:
        table.add_row(what, Text(value, style="" if good is None else fine[good]), remark)

    # fmt: off
    row("conversations finished", f"{r['finished']} of {r['sessions']}",
        f"{r['messages']:,} messages, {r['turns']:,} turns", r["finished"] == r["sessions"])
    row("lost messages", str(r["lost_messages"]), "each is in its session, once, and answered", r["lost_messages"] == 0)
    row("duplicate effects", str(r["duplicate_effects"]),
        f"{r['refunds']:,} refunds and {r['exchanges']:,} exchanges, by order", r["duplicate_effects"] == 0)
    row("repeated requests", str(r["repeated_requests"]), "sent again after a crash, known by their key")
    row("workers killed", str(r["kills"]), f"and {r['evictions']} evicted, {r['freezes']} frozen beyond their lease")
    row("runs cut in mid-step", str(r["hits"]), f"in {r['sessions_hit']} conversations; others took them up")
    row("recovery, median", _seconds(r["recovery_p50_seconds"]), "from SIGKILL to the session's next commit")
    row("recovery, slowest", _seconds(r["recovery_max_seconds"]), f"with a lease of {r['lease_seconds']:g} s")
    row("tokens saved", f"{r['tokens_saved_percent']:.0f} %", "of starting those conversations again")
    row("approvals", str(r["approvals"]), "by a supervisor, while no process waited")
    row("checkpoints", f"{r['saves']:,}", f"{r['saves_per_second']:.0f} a second, each durable when it returned")
    row("digests verified", f"{r['verified']['checkpoints']:,}", "every checkpoint of every conversation")
    setting = f"seed {r['seed']}, {r['workers']} workers, model delays × {r['factor']:g}"
    row("time", f"{r['duration_seconds']:.0f} s", setting)
    # fmt: on
    console.print(table)
    console.print()
    for problem in r["problems"]:
        console.print(Text(f"PROBLEM: {problem}", style="bold red"))
    if r["ok"]:
        console.print(Text("Nothing was lost, and nothing was done twice.", style="bold green"))
