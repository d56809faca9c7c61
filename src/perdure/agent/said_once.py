"""A message is said once: its key finds the answer that it got, however often and by whomever it is said again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from perdure.agent import run_result as ended
from perdure.agent.models import text_of
from perdure.agent.models.parts import packed
from perdure.agent.requests import AGENT
from perdure.agent.run_result import RunResult, Spent
from perdure.errors import NotFound
from perdure.state.document import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.aio import AsyncDatabase
    from perdure.errors import PerdureError
    from perdure.history.checkpoint import StateView
    from perdure.state.document import TrackedDict, TrackedList

ANSWERED = "answered"
KEPT = 200
"""Messages of a session whose answers are found by their keys, the newest."""


def note_answer(book: TrackedDict, messages: TrackedList, step: int, agent: str) -> None:
    """Write down which answer the messages of the run that ends now got: the last one."""
    run = book["run"]
    if not (keys := plain(run.get("messages", ()))):
        return
    answered = book.setdefault(ANSWERED, {})
    for key in keys:
        answered.pop(key, None)
        answered[key] = [len(messages) - 1, step, run["turns"], *run["spent"], agent]
    for key in list(answered)[:-KEPT]:
        del answered[key]


class Said:
    """One message on its way to a session, and where it stands."""

    def __init__(self, db: AsyncDatabase, session: str, branch: str, message: Any, key: str | None, owner: str) -> None:
        self._db = db
        self.session = session
        self._branch = branch
        self._message = message
        self._owner = owner
        self.named = key is not None
        """Whether the caller can say it again: what has no key of theirs is written only when nothing refuses it."""
        self.key = key if key is not None else os.urandom(12).hex() if message is not None else ""
        self.kept = False
        """Whether it is durable."""
        self.new = False
        """Whether this call put it there: nobody can have answered it before."""

    async def post(self) -> None:
        """Put it into the inbox, durably; the same key with another message is refused."""
        if self._message is None or self.kept:
            return
        self.new = await self._db.post(self.session, packed(self._message), key=self.key, owner=self._owner)
        self.kept = True

    async def answer(self, parsed: Callable[[str], Any]) -> RunResult | None:
        """What it was answered with; None while it was not."""
        try:
            read = await self._db.read(self.session, branch=self._branch)
        except NotFound:
            return None
        return self.recorded(read, parsed)

    def recorded(self, view: StateView, parsed: Callable[[str], Any]) -> RunResult | None:
        """The answer that a state has recorded for it."""
        found = view.book.get(AGENT, {}).get(ANSWERED, {}).get(self.key)
        if found is None:
            return None
        index, step, turns, *spent, agent = plain(found)
        text = text_of(plain(view.messages[index]))
        return RunResult(
            ended.DONE, self.session, text, parsed(text), step, turns, Spent(*spent), agent=agent,
            message_key=self.key, repeated=True,
        )  # fmt: skip

    def result(self, result: RunResult, s: StateView, parsed: Callable[[str], Any]) -> RunResult:
        """How a run ended for whoever said this: with its own answer, whatever else was answered meanwhile."""
        found = self.recorded(s, parsed) if self.key else None
        if found is None:
            return result._replace(message_key=self.key)
        own = ("status", "text", "output", "step", "turns", "spent", "agent", "message_key")
        return result._replace(reason="", **{name: getattr(found, name) for name in own})

    def mark(self, error: PerdureError) -> None:
        """Have an error say that the message is not lost with it."""
        if self.kept:
            error.kept, error.message_key = True, self.key
