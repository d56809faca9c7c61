"""The customers of the night: each writes the next message once the last one was answered, and a supervisor agrees.

They know only what anybody outside knows: they post into inboxes and follow the store's list of changes.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import ApprovalError, PerdureError
from perdure.fleet.board import board_of
from perdure.model import Status
from perdure.protocols import NewWork
from perdure.session.inbox import seal_entry
from perdure.state.document import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.database import Database
    from perdure.demo.script import Conversation, Night
    from perdure.history.checkpoint import Reading
    from perdure.model import Change

POLL = 0.02
FEW = 2


class Commit(NamedTuple):
    """One commit, as the list of changes tells of it."""

    at: int
    step: int
    status: str


class Talk:
    """A conversation as its customer sees it."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.said = 0
        """Messages that were posted."""
        self.answered = 0
        self.status = ""
        self.commits: list[Commit] = []

    @property
    def finished(self) -> bool:
        """Whether everything was said and answered."""
        return self.answered == len(self.conversation.lines)

    @property
    def open(self) -> bool:
        """Whether a message waits for its answer."""
        return self.said > self.answered


class Crowd:
    """All customers; ``at_once`` of them wait for an answer at the same time, the others are still thinking."""

    def __init__(
        self, db: Database, night: Night, agent: str, at_once: int, patient: Callable[[], bool] = lambda: False
    ) -> None:
        self._db = db
        self._agent = agent
        self._at_once = at_once
        self._patient = patient
        """Whether only few of them write at the moment: what is to go wrong must find something to interrupt."""
        self._board = board_of(db)
        self._pages = db.watch_pages(poll=POLL)
        self.talks = {c.session: Talk(c) for c in night.conversations}
        self._ready = deque(self.talks.values())
        self.total = night.messages
        self.posted = 0
        self.answered = 0
        self.finished = 0
        self.open = 0
        self.asking: set[str] = set()
        """Sessions that wait for the supervisor."""
        self.approved = 0
        self.commits = 0
        self.moved = time.monotonic()
        """When a commit was last seen."""

    def arrive(self) -> None:
        """Open every conversation, before anybody has said anything."""
        for talk in self.talks.values():
            self._db.create(talk.conversation.session, agent=self._agent, owner=talk.conversation.owner)

    # -- the loop -------------------------------------------------------------------------------------------------

    def play(self, patience: float, stop: Callable[[], bool]) -> None:
        """Talk until every conversation has ended, nothing has moved for ``patience`` seconds, or it must stop."""
        while not stop() and self.finished < len(self.talks):
            self.listen()
            self.speak()
            self.agree()
            if time.monotonic() - self.moved > patience:
                return

    def listen(self) -> int:
        """Read the next page of changes, after a moment where the last one was empty; how many there were."""
        page = next(self._pages)
        for change in page.items:
            self._note(change)
        return len(page.items)

    def _note(self, change: Change) -> None:
        talk = self.talks.get(change.session)
        if talk is None or (talk.commits and change.step <= talk.commits[-1].step):
            # Somebody else's, or told a second time.
            return
        self.commits += 1
        self.moved = time.monotonic()
        talk.commits.append(Commit(change.at, change.step, change.status))
        talk.status = change.status
        self.asking.discard(change.session)
        # The first step only makes the session, and says who its agent is.
        if change.status == Status.IDLE and talk.open and change.step > 1:
            talk.answered += 1
            self.answered += 1
            self.open -= 1
            if talk.finished:
                self.finished += 1
            else:
                self._ready.append(talk)
        elif change.status == Status.WAITING_APPROVAL:
            self.asking.add(change.session)

    def speak(self) -> None:
        """Let customers write who have something to say, as many as may wait at once."""
        most = max(FEW, self._at_once // 24) if self._patient() else self._at_once
        room = min(len(self._ready), most - self.open)
        if room > 0:
            self._post([self._ready.popleft() for _ in range(room)])

    def _post(self, talks: list[Talk]) -> None:
        """Put the next message of each into its inbox, all in one transaction: the first one also onto the board.

        It is what :func:`perdure.fleet.submit.submit` does for one session.
        """
        store = self._db.kernel.store
        said = [(t.conversation.session, f"m{t.said:02}", t.conversation.lines[t.said]) for t in talks]
        answers = store.post(
            [seal_entry(self._db.kernel, session, key, "message", text) for session, key, text in said]
        )
        for answer in answers:
            if isinstance(answer, PerdureError):
                raise answer
        new = [NewWork(t.conversation.session, self._agent, t.conversation.owner) for t in talks if not t.said]
        if new:
            self._board.put(new)
        for talk in talks:
            talk.said += 1
        self.posted += len(talks)
        self.open += len(talks)

    def agree(self) -> None:
        """The supervisor agrees to what is asked for, session by session."""
        for session in list(self.asking):
            for approval in asked_for(self._db.read(session)):
                try:
                    self._db.approve(session, approval, by="supervisor", reason="the customer is right")
                except ApprovalError:
                    # A worker was quicker to find that it was decided already.
                    continue
                self.approved += 1
            self.asking.discard(session)


def asked_for(reading: Reading) -> list[str]:
    """The ids of requests for approval that nobody has decided."""
    requests: dict[str, Any] = plain(reading.book.get("approvals", {}))
    return [name for name, request in requests.items() if request["status"] == "pending"]
