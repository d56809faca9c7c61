"""Crashes conversations once each at a uniformly random moment, and measures what it took to finish them."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import perdure
from tests.campaigns.agent_kills.log import Log
from tests.campaigns.crash.zygote import Zygote
from tests.campaigns.resume_or_restart.talks import turns_of
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Sequence

END = 2**53


class Tokens(NamedTuple):
    """What a conversation took of a model."""

    whole: int
    """When nothing goes wrong."""
    before: int
    """Used up when the crash came."""
    resumed: int
    """In all, crash included, when it goes on where it was."""

    @property
    def restarted(self) -> int:
        """In all, crash included, when everything is begun again."""
        return self.before + self.whole


class Crashed(NamedTuple):
    """One conversation that crashed, beside the same one that did not."""

    turns: int
    killed: bool
    tokens: Tokens
    talk: Tokens
    """The same without the instructions that every request begins with."""
    ms: float | None
    """From opening the store until the agent did something again; None when measured from further back."""
    cold: float | None
    """The same from the start of the Python process; None when not measured."""
    same: bool
    """Whether the conversation is, word for word, the one without a crash."""
    problems: list[str]


class Measured(NamedTuple):
    """All conversations of one store."""

    store: str
    crashes: list[Crashed]
    sizes: list[int]
    """Bytes of each checkpoint as stored."""
    file: int
    """Bytes of the whole database per checkpoint; 0 where it is not a file."""

    @property
    def ok(self) -> bool:
        """Whether all were killed, finished, and are as they should be."""
        return all(c.killed and c.same and not c.problems for c in self.crashes)

    def lines(self) -> list[str]:
        """For people."""
        ms = [c.ms for c in self.crashes if c.ms is not None]
        cold = [c.cold for c in self.crashes if c.cold is not None]
        turns = [c.turns for c in self.crashes]
        tokens, talk = [c.tokens for c in self.crashes], [c.talk for c in self.crashes]
        lines = [
            f"{self.store}: {len(self.crashes)} sessions of {min(turns)} to {max(turns)} turns, one crash each, "
            f"{sum(c.same for c in self.crashes)} ended word for word as without a crash",
            _row("tokens to finish after the crash", f"{saved_after(tokens):.0f} % saved", "35-60 %"),
            _row("  of the conversation, instructions apart", f"{saved_after(talk):.0f} % saved", ""),
            _row("  tokens in all, before the crash included", f"{saved_in_all(tokens):.0f} % saved", ""),
            _row(
                "resume overhead, process running", f"p50 {_at(ms, 50):.1f} ms, p95 {_at(ms, 95):.1f} ms", "150-300 ms"
            ),
            _row("  from the start of Python", f"p50 {_at(cold, 50):.0f} ms, p95 {_at(cold, 95):.0f} ms", "150-300 ms"),
            _row("checkpoint size", f"mean {statistics.mean(self.sizes):.0f} bytes, largest {max(self.sizes)}", "2 KB"),
        ]
        if self.file:
            lines.append(_row("  of the whole database file", f"{self.file} bytes each", "2 KB"))
        return lines


def saved_after(used: list[Tokens]) -> float:
    """Of the tokens it takes after the crash to begin again: per cent that going on saves."""
    return 100 * (1 - sum(t.resumed - t.before for t in used) / sum(t.whole for t in used))


def saved_in_all(used: list[Tokens]) -> float:
    """The same over all tokens of the sessions, those spent before the crash included."""
    return 100 * (1 - sum(t.resumed for t in used) / sum(t.restarted for t in used))


def _sum(log: list[dict[str, Any]], what: str) -> int:
    return sum(e[what] for e in log if e["what"] == "asked")


def _row(what: str, measured: str, beside: str) -> str:
    return f"  {what:46}{measured:36}{'beside ' + beside if beside else ''}".rstrip()


def _at(values: Sequence[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


class Bench:
    """One store and the processes that use it."""

    def __init__(self, store: str, folder: Path, zygote: Zygote) -> None:
        self._store = store
        self._folder = folder
        self._zygote = zygote
        self.url = url_of(store, folder, "talks")

    def crash(self, seed: int, *, cold: bool) -> Crashed:
        """One conversation without a crash, and the same one with a crash."""
        whole, log = self._job(seed, "whole"), Log(str(self._folder / f"whole-{seed}.log"))
        self._zygote.do(whole)
        calm = log.read()
        passes = next((e["passed"] for e in calm if e["what"] == "finished"), 1)
        job, log = self._job(seed, "crash"), Log(str(self._folder / f"crash-{seed}.log"))
        die = random.Random(f"{seed}/moment").randint(1, passes)
        killed = self._zygote.do({**job, "die": die})["killed"]
        before = log.read()
        if cold:
            self._cold(job)
        else:
            self._zygote.do(job)
        every = log.read()
        after = every[len(before) :]
        ready = next((e["ms"] for e in after if e["what"] == "ready"), 0.0)
        return Crashed(
            turns_of(seed), killed,
            Tokens(*(_sum(log, "tokens") for log in (calm, before, every))),
            Tokens(*(_sum(log, "talk") for log in (calm, before, every))),
            None if cold else ready, ready if cold else None, self._same(seed),
            [e["trace"] for e in (*calm, *every) if e["what"] == "problem"],
        )  # fmt: skip

    def _job(self, seed: int, what: str) -> dict[str, Any]:
        return {
            "seed": seed,
            "session": f"{what}-{seed}",
            "url": self.url,
            "log": str(self._folder / f"{what}-{seed}.log"),
        }

    def _cold(self, job: dict[str, Any]) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.campaigns.resume_or_restart.talking",
            json.dumps({**job, "began": time.time()}),
        ]
        subprocess.run(command, check=True, timeout=120)

    def _same(self, seed: int) -> bool:
        with perdure.open(self.url, maintain=False) as db:
            one, other = (db.read(f"{what}-{seed}").plain()["messages"] for what in ("whole", "crash"))
        return one == other

    def sizes(self, seeds: Sequence[int]) -> tuple[list[int], int]:
        """Bytes of every checkpoint, and of the file per checkpoint."""
        with perdure.open(self.url, maintain=False) as db:
            rows = [r for seed in seeds for r in db.kernel.store.slice(f"whole-{seed}", 0, 0, END).rows]
            every = sum(len(db.history(f"{w}-{s}", limit=10_000)) for s in seeds for w in ("whole", "crash"))
        file = self._folder / "talks.db"
        return [len(r.envelope) + len(r.payload) for r in rows], file.stat().st_size // every if file.exists() else 0


def measure(store: str, folder: Path, sessions: int, seed: int, *, cold_every: int = 10) -> Measured:
    """Crash so many conversations; one in ``cold_every`` is resumed by a Python process that starts from nothing."""
    zygote = Zygote("tests.campaigns.resume_or_restart.life")
    try:
        bench = Bench(store, folder, zygote)
        seeds = range(seed, seed + sessions)
        crashes = [bench.crash(s, cold=i % cold_every == 0) for i, s in enumerate(seeds)]
        sizes, file = bench.sizes(seeds)
        return Measured(store, crashes, sizes, file)
    finally:
        zygote.close()
