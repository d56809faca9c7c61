"""The compactor: cuts a full window, and tells in a summary what is no longer shown. Raw messages stay in the session.

Each summary is one request and one checkpoint. A process that dies in between is followed by one that finds the window
as it was and does the same again, which harms nobody.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import telemetry
from perdure.agent.context.window import (
    MARGIN,
    Cut,
    Plain,
    Room,
    corrected,
    count_request,
    cut,
    piece_of,
    sendable,
    shortened,
    summary_request,
)
from perdure.agent.models import Request, ask, text_of
from perdure.agent.requests import note_setup
from perdure.errors import ContextTooLong, InvalidInput, ModelError
from perdure.model import Kind
from perdure.state.document import plain
from perdure.system import faults
from perdure.system.options import check_fits, is_number, options_checked
from perdure.system.wording import storable

if TYPE_CHECKING:
    from perdure.agent.context.window import Window
    from perdure.agent.loop import Loop
    from perdure.agent.models import Answer, ChatModel

FULL, EVERY, REFUSED = "full", "every", "refused"
"""Why a window is cut: it holds all it may, it is time, or the model refused it."""
CUTS = 3
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


class Compactor:
    """Who writes the summary of what a window no longer shows.

    ``model`` is who writes it (None: the agent's own); ``every`` cleans up after so many turns even when there is
    room, leaving the newest messages; ``max_tokens`` bounds the summary; ``instructions`` say what it is to hold.
    """

    @options_checked("Compactor")
    def __init__(
        self,
        *,
        model: ChatModel | None = None,
        every: int | None = None,
        max_tokens: int = 1000,
        instructions: str = INSTRUCTIONS,
    ) -> None:
        if every is not None and not (is_number(every) and every >= 1):
            raise InvalidInput(f"the compactor comes every so many turns, at least 1, not {every!r:.40}")
        if not (is_number(max_tokens) and max_tokens >= 1):
            raise InvalidInput(f"a summary has at least one token, not {max_tokens!r:.40}")
        client = callable(getattr(model, "answer", None)) and isinstance(getattr(model, "name", None), str)
        check_fits("a Compactor", "model", model, model is None or client, "a client, such as OpenAIModel(...)")
        said: Any = instructions
        check_fits("a Compactor", "instructions", said, isinstance(said, str), "text that says what a summary holds")
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
        self._request: Request | None = None
        """What is about to be sent, or was."""
        self._size: int | None = None
        self._stuck = -1
        """The turn in which nothing could be cut."""
        self._refusals = 0
        self._ceiling: int | None = None
        """What a refusal has taught: more than this, as we count, is not tried again."""
        self._waiting = 0
        """How many messages were about to be taken when the window was found full."""

    @property
    def _window(self) -> Window:
        # Asked anew each time: another agent may have got the conversation.
        return self._loop.agent.window

    @property
    def _compactor(self) -> Compactor | None:
        return self._loop.agent.compactor

    # -- what the loop asks ---------------------------------------------------------------------------------------

    def due(self, request: Request) -> str:
        """Why the window must be cut before this request is sent; "" when it need not."""
        book = self._loop.book
        self._request, self._size = request, None
        if self._stuck == book["turn"]:
            return ""
        limit = self._limit()
        if limit is not None and self._counted() * self._rate() > limit:
            return FULL
        every = self._compactor.every if self._compactor is not None else None
        held = book.get("window") or {}
        shown = len(self._loop.s.messages) - held.get("from", 0)
        if every is not None and book["turn"] - held.get("turn", 0) >= every and shown > self._window.keep_recent:
            return EVERY
        return ""

    def answered(self, answer: Answer) -> None:
        """Learn from what the provider counted; the answer's commit takes it."""
        self._refusals = 0
        scale = self._scale()
        if self._limit() is None:
            # Nothing is counted where nothing is known of any limit.
            return
        if (seen := corrected(scale, self._counted(), answer.usage.input)) != scale:
            self._held()["scale"] = seen

    async def refused(self) -> bool:
        """The model has said that the request is too long: cut the window; False when that leads nowhere."""
        self._refusals += 1
        return self._refusals <= CUTS and await self.clean(REFUSED)

    # -- cutting --------------------------------------------------------------------------------------------------

    async def clean(self, why: str) -> bool:
        """Cut the window, with a summary of what goes; False when nothing could be cut.

        What was taken from the inbox goes back there: it is taken by the commit that answers it.
        """
        loop, sent = self._loop, self._counted()
        self._waiting = len(loop.s.journal.takes)
        await loop.afresh()
        limit = self._limit()
        self._ceiling = None
        if why == REFUSED:
            self._ceiling = int(sent * 0.9)
            refused = int(self._ceiling * self._scale())
            limit = refused if limit is None else min(limit, refused)
        held = plain(loop.book.get("window") or {})
        now = Cut(held.get("from", 0), held.get("kept", []))
        wanted = self._cut(now, sent, limit, scheduled=why == EVERY)
        if wanted == now:
            self._stuck = loop.book["turn"]
            return False
        told = self._compactor is None or await self._summarise(self._compactor, wanted, why, limit)
        if not told and why == EVERY:
            # There is room: better to show too much than to hide what no summary tells.
            self._stuck = loop.book["turn"]
            return False
        if not told:
            loop.notes.append(f"messages before {wanted.start} left the window without a summary")
        if not told or self._compactor is None or self._held().get("from", 0) != wanted.start:
            self._move(wanted)
            await self._commit({}, why, told=self._held().get("told", 0))
        return True

    def _cut(self, now: Cut, sent: int, limit: int | None, *, scheduled: bool) -> Cut:
        """Where the window of the committed state is to begin, what is about to be said counted in."""
        messages = Plain(self._loop.s.messages)
        shown = (*now.kept, *range(now.start, len(messages)))
        # All that the request has besides messages that can be cut, and a summary as long as one may get.
        fixed = max(sent - sum(self._window.count(sendable(messages[i])) for i in shown), 0)
        fixed += self._compactor.max_tokens if self._compactor is not None else 0
        rate = self._rate()
        if limit is None:
            limit = int(sent * rate) + 1
        room = Room(int(self._window.low_of(limit) / rate), int(limit / rate), fixed)
        return cut(messages, self._window, now, room, scheduled=scheduled)

    def _move(self, wanted: Cut) -> None:
        held = self._held()
        held["from"], held["kept"], held["turn"] = wanted.start, wanted.kept, self._loop.book["turn"]
        if self._ceiling is not None:
            held["ceiling"], held["model"] = self._ceiling, self._asked()

    async def _commit(
        self, x: dict[str, Any], why: str, *, told: int, asked: ChatModel | None = None, **more: Any
    ) -> None:
        """A checkpoint of its own for a summary, a new beginning of the window, or both."""
        loop, s = self._loop, self._loop.s
        note_setup(loop.book, loop.setup(asked))
        start = self._held().get("from", 0)
        x["window"] = {"why": why, "from": start, "told": told, "waiting": self._waiting, **more}
        x["note"] = f"messages before {told} are summarised, those from {start} on are shown"
        faults.point("agent.before_clean")
        await s.driver.drive(s.journal.write(Kind.COMMIT, x=x, status=s.effect_records.session_status()))
        faults.point("agent.after_clean")
        loop.tell("window", why=why, begins=start, told=told)

    # -- summarising ----------------------------------------------------------------------------------------------

    async def _summarise(self, compactor: Compactor, wanted: Cut, why: str, limit: int | None) -> bool:
        """Tell what goes out of the window in the summary, a piece per request; False when no model would do it.

        The last piece's checkpoint moves the window, too.
        """
        loop = self._loop
        models = (compactor.model,) if compactor.model is not None else loop.agent.models
        # Notes are plain text: a provider that counts little of calls and results may count all of that.
        rate = max(self._rate(), MARGIN)
        piece = PIECE if limit is None else max(LEAST_PIECE, min(PIECE, int(limit * 0.4 / rate)))
        while (told := self._held().get("told", 0)) < wanted.start:
            model = loop.fallback.next(models)
            messages = Plain(loop.s.messages)
            upto = piece_of(messages, told, wanted.start, piece)
            request = summary_request(compactor.as_json(), model.name, loop.s.summary, messages, (told, upto, piece))
            try:
                with telemetry.tracing.chat(loop.agent.name, loop.s.id, request) as span:
                    answer = await ask(model, request)
                    span.answered(answer)
                text = text_of(answer.message).strip()
                if not text:
                    raise ModelError(f"{model.name} wrote an empty summary")
            except ContextTooLong as e:
                if (piece := piece // 2) < LEAST_PIECE:
                    return self._gave_up(e)
                continue
            except ModelError as e:
                if loop.falls_back(models, model, e):
                    continue
                return self._gave_up(loop.fallback.all_failed(e))
            loop.s.set_summary(shortened(text, compactor.max_tokens))
            self._held()["told"] = upto
            if upto == wanted.start:
                self._move(wanted)
            loop.spend(answer, model)
            x = loop.agent.about(answer, request, use="summary", asked=model)
            await self._commit(x, why, told=upto, since=told, piece=piece, asked=None if compactor.model else model)
        return True

    def _gave_up(self, error: ModelError) -> bool:
        self._loop.notes.append(storable(f"no summary could be written: {error}"))
        return False

    # -- what is known --------------------------------------------------------------------------------------------

    def _counted(self) -> int:
        """How long the request is, as we count."""
        if self._size is None:
            self._size = count_request(self._request, self._window.count) if self._request is not None else 0
        return self._size

    def _asked(self) -> str:
        """Whose window it is."""
        return self._request.model if self._request is not None else self._loop.model.name

    def _held(self) -> Any:
        return self._loop.book.setdefault("window", {})

    def _scale(self) -> float:
        return float((self._loop.book.get("window") or {}).get("scale", 1.0))

    def _rate(self) -> float:
        """Tokens to reckon with per counted one."""
        return self._scale() * MARGIN

    def _limit(self) -> int | None:
        """The most tokens a request may have: by the budget, and by what the model has refused."""
        held = self._loop.book.get("window") or {}
        most = self._window.max_tokens
        if "ceiling" in held and held["model"] == self._asked():
            refused = int(held["ceiling"] * self._scale())
            return refused if most is None else min(most, refused)
        return most
