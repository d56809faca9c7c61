"""A message is said once: its key finds the answer that it got, however often and by whomever it is said again."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# The book is any JSON: its types are looked at, not declared.
from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure import errors
from perdure.agent import run_result as ended
from perdure.agent.conversation import check_message, is_answer
from perdure.agent.models import text_of
from perdure.agent.models.parts import packed
from perdure.agent.requests import AGENT
from perdure.agent.run_result import RunResult, Spent
from perdure.errors import Busy, Gone, NotFound, PerdureError
from perdure.history.checkpoint import Reading
from perdure.history.expiry import check_branch_is_there, living
from perdure.history.hydrate import load_at, load_head
from perdure.history.reader import change_of
from perdure.model import MAIN, Status
from perdure.session.inbox import open_edited, seal_entry
from perdure.session.journal import session_closed
from perdure.session.waiting_messages import LISTED, named_at, rewound, withdrawn
from perdure.session.wakes import sort_out
from perdure.state.document import plain
from perdure.system.names import check_name, check_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.aio import AsyncDatabase
    from perdure.history.checkpoint import StateView
    from perdure.kernel import Kernel
    from perdure.model import SessionRow
    from perdure.state.document import TrackedDict, TrackedList

ANSWERED = "answered"
KEPT = 200
"""Messages of a session whose answers the newest state knows by their keys; those of older ones are looked for in its
history."""
_UNDER_ANOTHER = "to have it answered, say it again under another key"
RESTING = (ended.DONE, ended.SLEEPING)


def note_answer(book: TrackedDict, messages: TrackedList, step: int, agent: str) -> None:
    """Write down which answer the messages of the run that ends now got: the last one."""
    run = book["run"]
    if not (keys := plain(run.get("messages", ()))):
        return
    answered = book.setdefault(ANSWERED, {})
    for key in keys:
        answered[key] = [len(messages) - 1, step, run["turns"], *run["spent"], agent]
    if len(answered) > KEPT:
        for key in sorted(answered, key=lambda key: answered[key][1])[:-KEPT]:
            del answered[key]


class Answered(NamedTuple):
    """What became of a message, and on which branch."""

    branch: str
    result: RunResult


def answer_of(kernel: Kernel, session: str, key: str, branch: str) -> Answered | None:
    """What the message of a key was answered with, on this branch or another; None while it was not. Blocks.

    ``Gone`` when it was taken and nothing that is left of the session has its answer.
    """
    check_name(key, "message key")
    try:
        row = living(kernel, check_session(session))
    except NotFound:
        return None
    branches = sorted(row.branches, key=lambda name: name != branch)
    for name in branches:
        view = Reading(kernel, load_head(kernel, row, name))
        if (found := recorded(view, session, key)) is not None:
            return Answered(name, found)
        if key in ((view.book.get(AGENT) or {}).get("run") or {}).get("messages", ()):
            return None
    if kernel.store.inbox(session, 1, key) and not withdrawn(kernel, session, branch, key, None):
        return None
    for name in branches:
        taken = named_at(kernel, session, name, key)
        if who := withdrawn(kernel, session, name, key, taken):
            raise Gone(f"message {key!r:.80} of session {session!r} gets no answer: {who}", "withdrawn")
        if taken is not None:
            found = _after(kernel, row, name, taken.step, key)
            return None if found is None else Answered(name, found)
    for name in branches:
        if (left := rewound(kernel, session, name, key)) is not None:
            raise Gone(
                f"message {key!r:.80} of session {session!r} gets no answer: it was said, and at step {left.step} "
                f"{name} was rewound to before that: {_UNDER_ANOTHER}",
                "rewound",
            )
    return None


def recorded(view: StateView, session: str, key: str) -> RunResult | None:
    """The answer that a state has recorded for a message."""
    if (found := _entry(view, key)) is None:
        return None
    notes, (index, step, turns, *spent, agent) = view.book[AGENT], found
    text, total = text_of(plain(view.messages[index])), Spent(*notes.get("total", ()))
    return RunResult(
        ended.DONE, session, text, None, step, turns, Spent(*spent), total=total, agent=agent, message_key=key,
        repeated=True,
    )  # fmt: skip


def _entry(view: StateView, key: str) -> list[Any] | None:
    found = plain((view.book.get(AGENT) or {}).get(ANSWERED, {}).get(key))
    if found is None or found[0] >= len(view.messages) or not is_answer(view.messages[found[0]]):
        # It is not noted, or somebody has edited the conversation since.
        return None
    return found


def _after(kernel: Kernel, row: SessionRow, branch: str, taken: int, key: str) -> RunResult | None:
    """How the run ended that took a message at a step; None while it has not."""
    last = next(head.step for head in row.heads if head.branch == branch)
    for step in range(taken, last + 1):
        try:
            loaded = load_at(kernel, row, step, branch)
        except Gone:
            # Retention may have dropped a step on the way.
            continue
        view = Reading(kernel, loaded)
        notes = view.book.get(AGENT)
        if notes is None or notes["run"] is not None:
            continue
        assert loaded.point is not None
        env, messages = loaded.point.envelope, view.messages
        about: dict[str, Any] = {
            "agent": notes.get("active_agent") or row.agent, "message_key": key, "repeated": True,
            "total": Spent(*notes.get("total", ())),
        }  # fmt: skip
        if env.status == Status.CANCELLED:
            return RunResult(ended.CANCELLED, row.id, step=env.step, reason=env.x.get("note", ""), **about)
        if messages and is_answer(messages[-1]):
            return RunResult(ended.DONE, row.id, text_of(plain(messages[-1])), step=env.step, **about)
    return None


def same_unanswered(kernel: Kernel, session: str, message: Any) -> str | None:
    """The key of an identical message to main that has no answer yet, for a person who types it once more. Blocks."""
    body = packed(message)
    waiting = sort_out(kernel.store.inbox(check_session(session), LISTED), set(), kernel.clock.wall())
    # What somebody wanted it to stop after is not answered.
    stop = max((entry.seq for entry in waiting.cancels), default=0)
    for entry in waiting.ready:
        if entry.kind == "message" and entry.seq > stop and open_edited(kernel, entry, waiting).body == body:
            return entry.key
    try:
        view = Reading(kernel, load_head(kernel, living(kernel, session), MAIN))
    except NotFound:
        return None
    for key in plain(((view.book.get(AGENT) or {}).get("run") or {}).get("messages", ())):
        taken = named_at(kernel, session, MAIN, key)
        change = change_of(kernel, taken) if taken is not None else None
        if change is not None and any(name == key and said == body for name, _, said in change[1].get("took", ())):
            return key
    return None


def _check_it_can_be_said(kernel: Kernel, session: str, branch: str, key: str) -> None:
    """Refuse what nobody could answer before it lies in an inbox: on a branch that is not there, or that was closed."""
    if branch != MAIN:
        check_branch_is_there(kernel, session, branch)
    try:
        row = living(kernel, check_session(session))
    except NotFound:
        return
    if branch == MAIN and row.status != Status.CLOSED:
        return
    point = load_head(kernel, row, branch).point
    closed = point is not None and point.envelope.status == Status.CLOSED
    if closed and answer_of(kernel, session, key, branch) is None:
        raise session_closed(session)


class Said:
    """One message on its way to a session, and where it stands."""

    def __init__(
        self, db: AsyncDatabase, session: str, branch: str, message: Any, key: str | None, owner: str,
        output: Callable[[str, str], Any],
    ) -> None:  # fmt: skip
        self._db = db
        self.session = session
        self._branch = branch
        if message is not None:
            check_message(message)
        self._message = packed(message) if message is not None else None
        self._owner = owner
        self._output = output
        """The structured output of an agent's text, by its name."""
        self.named = key is not None
        """Whether the caller can say it again: what has no key of theirs is written only when nothing refuses it."""
        self.key = key if key is not None else os.urandom(12).hex() if message is not None else ""
        self.kept = False
        """Whether it is durable."""
        self.new = not self.named
        """Whether nobody can have answered it: it is put there by this call, which has not been waiting since."""

    async def post_first(self, *, reopens: bool = False) -> None:
        """Put a message with a key into the inbox, durably; the same key with another message is refused."""
        if self.named and self._message is not None:
            if not reopens:
                check = (self._db.kernel, self.session, self._branch, self.key)
                await self._db.driver.call(_check_it_can_be_said, *check)
            # Of one that has expired, and that somebody has still, nobody can say yet whether it knows this key.
            with suppress(Busy):
                await self._post()
        elif self._message is not None:
            # What cannot be kept is refused before the session is opened, and perhaps opened again.
            seal_entry(self._db.kernel, self.session, self.key, "message", self._message)

    async def post_last(self, *, anew: bool) -> None:
        """Put it there now that nothing can refuse it, if it is not; of an earlier life nothing is there any more."""
        if self._message is not None and (not self.kept or anew):
            await self._post()

    async def _post(self) -> None:
        self.new = await self._db.post(self.session, self._message, key=self.key, owner=self._owner)
        self.kept = True

    async def answer(self) -> RunResult | None:
        """What it was answered with; None while it was not."""
        asked = (self._db.kernel, self.session, self.key, self._branch)
        found: Answered | None = await self._db.driver.call(answer_of, *asked)
        return None if found is None else self._whole(found.result)

    def _whole(self, found: RunResult) -> RunResult:
        return found._replace(output=self._output(found.agent, found.text) if found.ok else None)

    async def result(self, result: RunResult, s: StateView, before: int) -> RunResult:
        """How a run ended for whoever said this: with its own answer, whatever else was answered meanwhile.

        ``before`` is the step that the session stood at when it was opened.
        """
        if not self.key:
            return result
        found, at = recorded(s, self.session, self.key), _entry(s, self.key)
        if found is None or at is None:
            if result.status not in RESTING:
                return result._replace(message_key=self.key)
            if (old := await self.answer()) is None:
                raise Gone(
                    f"session {self.session!r}: nothing that is left of it has an answer to message {self.key!r:.80}: "
                    f"it was never said, or what followed was rewound or dropped: {_UNDER_ANOTHER}",
                    "unanswered",
                )
            return old
        if result.status in RESTING and at[0] == len(s.messages) - 1:
            return result._replace(message_key=self.key, repeated=found.step <= before)
        own = ("status", "text", "step", "turns", "spent", "agent", "message_key")
        found = self._whole(found)
        return result._replace(
            reason="",
            output=found.output,
            repeated=found.step <= before,
            **{name: getattr(found, name) for name in own},
        )

    def mark(self, error: BaseException) -> None:
        """Have an error say that the message is not lost with it, or that it is; also one that is none of ours."""
        if self._message is None:
            return
        kept = self.kept and not isinstance(error, Gone)
        # The same one may be raised again and again, and have said it of another message.
        vars(error).update(kept=kept, message_key=self.key if kept else "")
        if isinstance(error, PerdureError):
            if not kept and isinstance(error, Busy):
                error.args = (f"{error.args[0]}. The message is not kept: one with a key of yours would be",)
        elif kept:
            twice = "" if self.named else "; without a key it is said twice"
            said = (
                f"The message is kept in session {self.session!r}: run it again without a message to go on with it, or "
                f"{errors.say_again(self.key)}{twice}"
            )
            if said not in getattr(error, "__notes__", ()):
                error.add_note(said)
