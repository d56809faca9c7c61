"""What a night comes to, of what was measured and what ``ledger_checks`` found: one object for programs, one table for
people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.demo.chaos import EVICT, FREEZE, KILL, LEASE, Recoveries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from perdure.demo.chaos import Hit
    from perdure.demo.crowd import Talk
    from perdure.demo.ledger_checks import Books, Spoken, Verified
    from perdure.demo.run import Wish


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
