"""The janitor: cuts a full window, and tells in a summary what is no longer shown. Raw messages stay in the session.

Each summary is one request and one checkpoint. A process that dies in between is followed by one that finds the window
as it was and does the same again, which harms nobody.
"""

# pyright: reportPrivateUsage=false
# The loop is the session's inner part that asks models: it works with the journal itself.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import faults
from perdure.agent.models import Request, text_of
from perdure.agent.outcome import Spent
from perdure.agent.rebuild import build
from perdure.agent.tokens import MARGIN, corrected, count_request, estimate
from perdure.agent.window import Cut, Room, cut
from perdure.bridge import drive
from perdure.errors import ContextTooLong, InvalidInput, ModelError
from perdure.model import Kind
from perdure.tracked import plain

if TYPE_CHECKING:
    from perdure.agent.loop import Loop
    from perdure.agent.models import Answer, ChatModel

FULL, EVERY, REFUSED = "full", "every", "refused"
"""Why a window is cut: it holds all it may, it is time, or the model refused it."""
TRIES = 4
"""How often in a row a refused window is cut before the refusal is the answer."""
PIECE = 12_000
"""Tokens of messages that are summarised by one request, where no budget says less."""
LEAST_PIECE = 200
INSTRUCTIONS = (
    "You keep the notes of an assistant whose older messages are about to be put away. Write the new notes: everything "
    "from the old notes and the messages that still matters, such as what the user wants and likes, decisions and "
    "their reasons, results of tools with their exact names, numbers and identifiers, and what is still open. Leave "
    "out what was said in passing. Plain text, no preamble."
)


class Janitor:
    """Who writes the summary of what a window no longer shows.

    ``model`` is who writes it (None: the agent's own); ``every`` cleans up after so many turns even when there is
    room, leaving the newest messages; ``max_tokens`` bounds the summary; ``instructions`` say what it is to hold.
    """

    def __init__(
        self,
        *,
        model: ChatModel | None = None,
        every: int | None = None,
        max_tokens: int = 1000,
        instructions: str = INSTRUCTIONS,
    ) -> None:
        if every is not None and every < 1:
            raise InvalidInput(f"the janitor comes every so many turns, at least 1, not {every}")
        if max_tokens < 1:
            raise InvalidInput(f"a summary has at least one token, not {max_tokens}")
        self.model = model
        self.every = every
        self.max_tokens = max_tokens
        self.instructions = instructions

    def as_json(self) -> dict[str, Any]:
        """What a session records of it."""
        return {
            "model": self.model.name if self.model is not None else None,
            "every": self.every,
            "max_tokens": self.max_tokens,
            "instructions": self.instructions,
        }


class Cleaning:
    """The window of a loop: when it must be cut, and doing it."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._window = loop.agent.window
        self._janitor = loop.agent.janitor
        self._counted = 0
        self._stuck = -1
        """The turn in which nothing could be cut."""
        self._refusals = 0

    # -- what the loop asks ---------------------------------------------------------------------------------------

    def due(self, request: Request) -> str:
        """Why the window must be cut before this request is sent; "" when it need not."""
        loop = self._loop
        self._counted = count_request(request, self._window.count)
        if self._stuck == loop.book["turn"]:
            return ""
        limit = self._limit()
        if limit is not None and self._counted * self._scale() * MARGIN > limit:
            return FULL
        every = self._janitor.every if self._janitor is not None else None
        held = loop.book.get("window") or {}
        shown = len(loop.s.messages) - held.get("from", 0)
        if every is not None and loop.book["turn"] - held.get("turn", 0) >= every and shown > self._window.keep_recent:
            return EVERY
        return ""

    def answered(self, answer: Answer) -> None:
        """Learn from what the provider counted; the answer's commit takes it."""
        self._refusals = 0
        scale = self._scale()
        if (seen := corrected(scale, self._counted, answer.usage.input)) != scale:
            self._held()["scale"] = seen

    async def refused(self) -> bool:
        """The model has said that the request is too long: cut the window; False when that leads nowhere."""
        self._refusals += 1
        if self._refusals >= TRIES:
            return False
        return await self.clean(REFUSED)

    # -- cutting --------------------------------------------------------------------------------------------------

    async def clean(self, why: str) -> bool:
        """Cut the window, with a summary of what goes; False when nothing could be cut.

        What was taken from the inbox goes back there: it is taken by the commit that answers it.
        """
        loop, s = self._loop, self._loop.s
        sent = self._counted
        await s.reload()
        ceiling = int(sent * self._scale() * 0.9)
        limit = self._limit() if why != REFUSED else min(self._limit() or ceiling, ceiling)
        held = plain(loop.book.get("window") or {})
        now = Cut(held.get("from", 0), held.get("kept", []))
        wanted = self._cut(now, sent, limit, scheduled=why == EVERY)
        if wanted.start <= now.start and wanted.kept == now.kept:
            self._stuck = loop.book["turn"]
            return False
        if self._janitor is not None and not await self._summarise(wanted, why, limit):
            if why == EVERY:
                # There is room: better to show too much than to hide what no summary tells.
                self._stuck = loop.book["turn"]
                return False
            loop.notes.append(f"messages up to {wanted.start} were cut from the window without a summary")
        if why == REFUSED:
            self._held()["ceiling"] = ceiling
        await self._put(wanted, why, {})
        return True

    def _cut(self, now: Cut, sent: int, limit: int | None, *, scheduled: bool) -> Cut:
        """Where the window of the committed state is to begin, what is about to be said counted in."""
        loop = self._loop
        messages: list[dict[str, Any]] = _Lazy(loop.s.messages)
        shown = (*now.kept, *range(now.start, len(messages)))
        # All that the request has besides messages that can be cut, and a summary as long as one may get.
        fixed = sent - sum(self._window.count(messages[i]) for i in shown)
        fixed += self._janitor.max_tokens if self._janitor is not None else 0
        if limit is None:
            limit = int(sent * self._scale() * MARGIN) + 1
        per = self._scale() * MARGIN
        room = Room(int(self._window.low_of(limit) / per), int(limit / per), max(fixed, 0))
        return cut(messages, self._window, now, room, scheduled=scheduled)

    async def _put(self, wanted: Cut, why: str, x: dict[str, Any]) -> None:
        """Move the window, as a checkpoint of its own."""
        loop, held = self._loop, self._held()
        held["from"], held["kept"], held["turn"] = wanted.start, wanted.kept, loop.book["turn"]
        x["window"] = {"why": why, "from": wanted.start, "upto": held.get("told", 0)}
        x["note"] = f"the window begins at message {wanted.start}"
        await self._commit(x)

    async def _commit(self, x: dict[str, Any]) -> None:
        s = self._loop.s
        faults.point("agent.before_clean")
        await drive(s.bridge, s._write(Kind.COMMIT, x=x, status=s._standing()))
        faults.point("agent.after_clean")

    # -- summarising ----------------------------------------------------------------------------------------------

    async def _summarise(self, wanted: Cut, why: str, limit: int | None) -> bool:
        """Tell what goes out of the window in the summary, a piece per request; False when no model would do it."""
        loop, janitor = self._loop, self._janitor
        assert janitor is not None
        model = janitor.model or loop.agent.model
        piece = PIECE if limit is None else max(LEAST_PIECE, min(PIECE, int(limit * 0.4 / (self._scale() * MARGIN))))
        tries = 0
        while (told := self._held().get("told", 0)) < wanted.start:
            request, upto = self.request(model.name, told, wanted.start, piece)
            try:
                answer = await model.answer(request)
                text = text_of(answer.message).strip()
                if not text:
                    raise ModelError(f"{model.name} wrote an empty summary")
            except ContextTooLong as e:
                tries, piece = tries + 1, piece // 2
                if tries >= TRIES or piece < LEAST_PIECE:
                    return self._gave_up(e)
                continue
            except ModelError as e:
                return self._gave_up(e)
            await self._tell(answer, request, text, told, upto, why)
        return True

    def request(self, model: str, told: int, end: int, piece: int) -> Request:
        """Ask for a summary of the messages after those that are told already: (request, up to which message)."""
        raise NotImplementedError

    def _gave_up(self, error: ModelError) -> bool:
        self._loop.notes.append(f"no summary could be written: {error}")
        return False
