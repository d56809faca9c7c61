"""Two processes that say something to the same session at the same instant, and what the conversation holds then."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import perdure
from perdure.agent.agent import Agent
from perdure.agent.models import text_of
from perdure.agent.models.scripted import ScriptedModel
from perdure.errors import Busy

if TYPE_CHECKING:
    from perdure.agent.models import Request

SPEAKERS = 2
PER_SESSION = 50
"""Rounds in one session; then the next one is spoken to."""
PATIENCE = 120
PRELOADED = [
    "tests.campaigns.two_messages.meeting",
    "perdure.aio",
    "perdure.stores.postgres.store",
    "perdure.stores.sqlite.store",
]


class Said(NamedTuple):
    """What one speaker met with."""

    busy: int
    """How often it was told that the other one's agent is at work."""
    astray: int
    """How often it was given something else than the answer to its own message."""


class Outcome(NamedTuple):
    """What all rounds came to."""

    store: str
    rounds: int
    posted: int
    once: int
    never: int
    twice: int
    together: int
    """Answers that answer more than one message."""
    busy: int
    astray: int = 0

    @property
    def ok(self) -> bool:
        """Whether every message was answered once."""
        return self.once == self.posted and not self.never and not self.twice and not self.astray

    def __str__(self) -> str:
        return (
            f"{self.store:9} rounds {self.rounds}   messages {self.posted}   answered once {self.once}   "
            f"never {self.never}   twice {self.twice}   answers to both at once {self.together}   busy {self.busy}   "
            f"answers to others {self.astray}"
        )


def answer(request: Request) -> str:
    """Answer everything that was said since the last answer, by name."""
    last = max((i for i, m in enumerate(request.messages) if m["role"] == "assistant"), default=-1)
    return "answers " + " ".join(text_of(m) for m in request.messages[last + 1 :] if m["role"] == "user")


_wait: Any = None


def _arm(barrier: Any) -> None:
    global _wait  # noqa: PLW0603 - a barrier reaches a process only while it starts
    _wait = barrier.wait


def _speak(url: str, speaker: int, rounds: int) -> Said:
    return asyncio.run(_talk(url, speaker, rounds))


async def _talk(url: str, speaker: int, rounds: int) -> Said:
    """Say one thing per round, and see that somebody answers it: this process, or the one that is at work already."""
    agent = Agent("echo", model=ScriptedModel(answer), compactor=False)
    busy = astray = 0
    async with perdure.open_async(url, maintain=False) as db:
        for n in range(rounds):
            session = session_of(n)
            message = f"{n}/{speaker}"
            _wait()
            while True:
                try:
                    end = await agent.run(db, session=session, message=message, key=f"{n}-{speaker}")
                except Busy as kept:
                    # It is in the inbox by now: said again, it is answered and not said twice.
                    busy += 1
                    astray += not kept.kept
                    await asyncio.sleep(0.001)
                else:
                    astray += message not in end.text.split()
                    break
    return Said(busy, astray)


def session_of(n: int) -> str:
    """The session that a round is about."""
    return f"talk-{n // PER_SESSION}"


def meet(store: str, url: str, rounds: int) -> Outcome:
    """Let two processes speak at the same instant, round after round, and count the answers."""
    with perdure.open(url, maintain=False) as db:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        barrier = context.Barrier(SPEAKERS, timeout=PATIENCE)
        with ProcessPoolExecutor(SPEAKERS, context, _arm, (barrier,)) as pool:
            said = [f.result() for f in [pool.submit(_speak, url, k, rounds) for k in range(SPEAKERS)]]
        return count(store, db, rounds, sum(s.busy for s in said), sum(s.astray for s in said))


def count(store: str, db: perdure.Database, rounds: int, busy: int = 0, astray: int = 0) -> Outcome:
    """How often each message stands in its conversation, and how often an answer names it."""
    heard: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    together = 0
    for session in sorted({session_of(n) for n in range(rounds)}):
        for message in db.read(session).plain()["messages"]:
            if message["role"] == "user":
                heard[message["content"]] += 1
            else:
                names = message["content"].split()[1:]
                answered.update(names)
                together += len(names) > 1
    posted = [f"{n}/{k}" for n in range(rounds) for k in range(SPEAKERS)]
    once = sum(heard[name] == 1 == answered[name] for name in posted)
    never = sum(not answered[name] for name in posted)
    twice = sum(n > 1 for n in (heard | answered).values())
    return Outcome(store, rounds, len(posted), once, never, twice, together, busy, astray)
