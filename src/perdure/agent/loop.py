"""The loop: settle open calls, take new messages, ask the model, commit its answer with its calls, and again.

It keeps nothing in memory that matters: where it stands is read from the session each time around, so a process that
is killed anywhere is followed by one that goes on from the last commit.

What stops a run is here, too: its limits (turns, tokens, money, time, over all attempts), its deadline, and a
cancellation.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from perdure import telemetry
from perdure.agent import notify
from perdure.agent import run_result as ended
from perdure.agent.answer_calls import Calls
from perdure.agent.children import HERE, cancel_children, children_of, registry, tell_parent
from perdure.agent.context.compactor import Cleaning
from perdure.agent.context.recall import NAME as RECALL
from perdure.agent.context.recall import READER, RESULTS, reader, recall_spec
from perdure.agent.live_answers import Publisher
from perdure.agent.models import Answer, Delta, ask, text_of
from perdure.agent.models.parts import unpacked
from perdure.agent.requests import AGENT, build, note
from perdure.agent.run_result import Doubt, RunResult, Spent
from perdure.agent.said_once import note_answer
from perdure.agent.session_stream import Event
from perdure.agent.upgrades import upgrade
from perdure.errors import ApprovalRuleFailed, ContextTooLong, ModelError
from perdure.model import MAIN, Kind, Status
from perdure.session.effects import exception_of, looked_up, lookup_error
from perdure.session.inbox import open_entry
from perdure.session.tool_exceptions import in_short
from perdure.state.document import plain
from perdure.state.values import refusal
from perdure.system import faults
from perdure.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.agent.agent import Agent
    from perdure.agent.models import ChatModel, Request
    from perdure.agent.tool_schema import ToolSpec
    from perdure.aio import AsyncDatabase, AsyncSession
    from perdure.protocols import Clock
    from perdure.session.tools import Tool

NOTIFIED = (ended.WAITING_APPROVAL, ended.IN_DOUBT, ended.FAILED)
"""Ends of a run that somebody is told of, when the agent has somebody to tell."""


class Loop:
    """One attempt at one run of one agent in one session."""

    def __init__(
        self,
        agent: Agent,
        session: AsyncSession,
        limits: Limits,
        *,
        context: dict[str, Any] | None = None,
        tell: Callable[[Event], None] | None = None,
        db: AsyncDatabase | None = None,
        agents: Sequence[Agent] = (),
        parent: dict[str, str] | None = None,
        live: bool = False,
        stop: asyncio.Event | None = None,
    ) -> None:
        self.agent = agent
        self.s = session
        session.journal.settings.agent = agent.name
        self.limits = limits
        self.context = context
        self.db = db
        self.agents = registry(agent, agents)
        """Who may have the conversation, by name."""
        self.parent = parent
        """Whose call this run works on, when it is in the hands of its parent."""
        self.stopping = stop
        """Set when the process is to end."""
        self.notes: list[str] = []
        self.ignores_inbox = False
        """Whether the inbox is left alone: what is posted there is meant for another line."""
        self._tell = tell
        self._speaker = Publisher(db, session) if live and db is not None else None
        self._unwritten: list[str] = []
        self.own: dict[str, ToolSpec] = {}
        """Tools that are not the agent's but the session's."""
        if RECALL not in agent.tools:
            self.own[RECALL] = recall_spec(self._hidden)
        if READER not in agent.tools:
            self.own[READER] = reader(session)
        self.cleaning = Cleaning(self)
        self.calls = Calls(self)
        session.effect_records.observer = self.calls

    # -- the book -------------------------------------------------------------------------------------------------

    @property
    def book(self) -> Any:
        """The loop's notes: turn, run, calls of the last answer, context."""
        return self.s.book.setdefault(AGENT, {"turn": 0, "calls": [], "run": None})

    def tool(self, name: str) -> Tool:
        """The tool of that name, of the session or of the agent."""
        return self.own[name].tool if name in self.own else self.agent.tool(name)

    def spec(self, name: str) -> ToolSpec:
        """How the arguments of a tool are checked."""
        return self.own[name] if name in self.own else self.agent.spec(name)

    def setup(self) -> dict[str, Any]:
        """All that requests are made of besides the conversation."""
        search = [self.own[RECALL].as_json()] if self.agent.window.recall and RECALL in self.own else []
        reading = [self.own[READER].as_json()] if READER in self.own else []
        return {**self.agent.setup(), "search": search, "reading": reading}

    def note(self, text: str) -> None:
        """Say something with the result of the run and with its next answer."""
        self.notes.append(text)
        self._unwritten.append(text)

    def _hidden(self) -> tuple[Any, range, list[int]]:
        held = self.book.get("window") or {}
        return self.s.messages, range(held.get("from", 0)), plain(held.get("kept", []))

    def tell(self, kind: str, **data: Any) -> None:
        """Say what happens to whoever listens."""
        event = Event(kind, self.s.id, self.s.step, data)
        if self._tell is not None:
            self._tell(event)
        if self._speaker is not None:
            self._speaker.publish(event)

    # -- going round ----------------------------------------------------------------------------------------------

    async def go(self) -> RunResult:
        """Work until nothing is left to do, or something must be waited for."""
        s, name = self.s, self.agent.name
        head = s.journal.point.envelope.id if s.journal.point is not None else None
        told = telemetry.tracing.invoke_agent(name, s.id, s.branch, head)
        with logs.about(session=s.id, agent=name, step=lambda: s.step), told as span:
            try:
                result = await self._go()
            except Exception:
                telemetry.ended(name, telemetry.FAILED)
                raise
            telemetry.ended(name, result.status)
            span.ended(result, s.journal.point.envelope.id if s.journal.point is not None else None)
        return result

    async def _go(self) -> RunResult:
        self.s.journal.check_open()
        before = self.s.step
        if self.parent is not None and self.book.get("parent") is None:
            self.book["parent"] = self.parent
        if (was := self.s.journal.known_agent) not in ("", self.agent.name) and not self.book.get("active_agent"):
            self.note(f"it was a session of agent {was!r:.80}, and is one of {self.agent.name!r:.80} from now on")
        reason = self._switch() or ("" if self._handed_over() else await upgrade(self))
        result = await self._undecided(self.result(ended.INCOMPATIBLE, reason) if reason else await watched(self))
        if self._speaker is not None:
            await self._speaker.close()
            if self._speaker.problem:
                result = result._replace(notes=(*result.notes, self._speaker.problem))
        # A dry run is looked at by whoever has started it: nobody outside hears of it.
        dry = self.s.calls.is_dry
        if self.agent.notify is not None and self.s.step > before and result.status in NOTIFIED and not dry:
            notify.tell(self.agent.notify, notify.body_of(self.agent.name, result, self.s.branch))
        if self.book.get("parent") is not None and self.s.branch == MAIN and not dry:
            await tell_parent(self, result)
        return result._replace(until=self.s.inbox.wakes_at, children=await children_of(self))

    async def _undecided(self, result: RunResult) -> RunResult:
        """Nobody is asked for what he has decided on already: it waits in the inbox until somebody can go on."""
        s = self.s
        decided = [await s.driver.drive(s.inbox.waiting(f"decision:{a.id}")) for a in result.approvals]
        return result._replace(approvals=tuple(a for a, d in zip(result.approvals, decided, strict=True) if not d))

    def _handed_over(self) -> bool:
        """Whether the agent that has the conversation now has not said anything yet."""
        setup, active = self.book.get("setup"), self.book.get("active_agent")
        return setup is not None and active is not None and setup["agent"] != active

    def _switch(self) -> str:
        """Let the agent go on that has the conversation; what is wrong when there is none of its name."""
        name = self.book.get("active_agent") or self.agent.name
        if name == self.agent.name:
            return ""
        if name not in self.agents:
            known = ", ".join(sorted(self.agents))
            return f"agent {name!r} has the conversation, and only {known} are known here: pass it in agents="
        self.agent = self.agents[name]
        self.s.journal.settings.agent = name
        return ""

    async def round(self) -> RunResult | None:
        """Go round once; None when there is more to do."""
        try:
            waits = await self.calls.settle()
        except ApprovalRuleFailed as e:
            return await self.stop(ended.FAILED, str(e), type(e).__name__)
        if waits and await self.calls.withdraw():
            return None
        if waits == ended.STOPPED:
            return await self._put_down(waits, self.calls.left_open)
        if waits:
            return await self._rest(waits)
        if self.stopping is not None and self.stopping.is_set():
            # Nothing is open: whoever goes on finds the session as it stands.
            return await self._put_down(ended.STOPPED, "it was put down between two steps: run it again to go on")
        if reason := self._switch():
            return await self._put_down(ended.INCOMPATIBLE, reason)
        fresh = await self._take()
        if self.s.inbox.cancellation is not None:
            return await cancelled(self)
        if not fresh and not self._has_more_to_say():
            return await self._idle()
        times, wrong = plain(self.book["run"].get("misfits", [0, ""]))
        if times > MISFITS:
            return await self.stop(ended.FAILED, f"{times} answers in a row did not fit output=: {wrong}")
        if over := self.limits.reached(self.book["run"]):
            return await self.stop(*over)
        if self.s.state.get(RESULTS) and not self.book.get("reads"):
            self.book["reads"] = True
        note(self.book, self.setup(), self.context, len(self.s.messages))
        request = build(self.s.state, self.book)
        if why := self.cleaning.due(request):
            await self.cleaning.clean(why)
            return None
        try:
            await self._turn(request)
        except ContextTooLong as e:
            if not await self.cleaning.refused():
                return await self.stop(ended.FAILED, str(e), type(e).__name__)
        except ModelError as e:
            return await self.stop(ended.FAILED, str(e), type(e).__name__)
        return None

    async def _take(self) -> bool:
        """Put waiting messages into the conversation; the commit of the answer takes them."""
        messages = [] if self.ignores_inbox else await self.s.take()
        if messages:
            for body in plain(self.book.pop("unanswered", [])):
                self.s.messages.append(as_message(body))
        for message in messages:
            self.s.messages.append(as_message(message.body))
        if self.book["run"] is None and (messages or self._has_more_to_say()):
            self._begin_run()
        if keys := [message.key for message in messages if message.kind == "message"]:
            self.book["run"]["messages"] = [*plain(self.book["run"].get("messages", [])), *keys]
        return bool(messages)

    def _begin_run(self) -> None:
        self.book["run"] = {"turns": 0, "spent": list(Spent()), "began": self.s.kernel.clock.wall()}
        ended.forget_raised(self.book)

    def spend(self, answer: Answer, asked: ChatModel | None = None) -> None:
        """Count what an answer cost, for this run and for the session; ``asked`` is who gave it, if not the agent's."""
        book = self.book
        if book["run"] is None:
            self._begin_run()
        run = book["run"]
        spent = self.agent.price(answer, self.notes, asked=asked)
        run["spent"] = list(Spent(*run["spent"]).plus(spent))
        book["total"] = list(Spent(*book.get("total", ())).plus(spent))
        self.limits.note(run)

    def _has_more_to_say(self) -> bool:
        """Whether the model is to be asked: the last word is not its own, or it is not done by its own measure."""
        messages = self.s.messages
        return bool(messages) and (messages[-1].get("role") != "assistant" or self.book["run"] is not None)

    async def _turn(self, request: Request) -> None:
        """Ask the model once and commit its answer together with the calls it makes."""
        book = self.book
        faults.point("agent.before_model")
        answer = await self._ask(request)
        faults.point("agent.after_model")
        if what := refusal(answer.message):
            raise ModelError(f"{self.agent.model.name} answered with a {what}, which no session can keep")
        self.s.messages.append(answer.message)
        book["turn"] += 1
        book["run"]["turns"] += 1
        self.spend(answer)
        self.cleaning.answered(answer)
        await self.calls.begin(answer)
        if not answer.calls:
            self._close_turn(answer)
        await self._commit(answer, request)

    def _close_turn(self, answer: Answer) -> None:
        """The model called nothing: it is done, unless the agent's own measure says otherwise."""
        if said := _CUT_SHORT.get(answer.finish):
            self.note(f"{said} (finish reason {answer.finish})")
        if not self.agent.is_done(answer, self.s):
            self.s.messages.append({"role": "user", "content": self.agent.nudge})
        elif wrong := self.agent.misfit(text_of(answer.message)):
            self.book["run"]["misfits"] = [self.book["run"].get("misfits", [0, ""])[0] + 1, wrong]
            said = f"This answer does not have the form that is wanted: {wrong}. Answer again, with the JSON alone."
            self.s.messages.append({"role": "user", "content": said})
        else:
            note_answer(self.book, self.s.messages, self.s.step + 1, self.agent.name)
            self.book["run"] = None

    async def _ask(self, request: Any) -> Answer:
        step, offset = self.s.step + 1, 0

        def piece(delta: Delta) -> None:
            nonlocal offset
            if delta.restart:
                self.tell("retracted", step=step, attempt=self._attempt)
                self._attempt += 1
                offset = 0
                return
            self.tell("delta", step=step, attempt=self._attempt, offset=offset, text=delta.text, delta=delta)
            offset += len(delta.text)

        self._attempt += 1
        try:
            with telemetry.tracing.chat(self.agent.name, self.s.id, request) as span:
                answer = await ask(self.agent.model, request, piece if self._tell or self._speaker else None)
                span.answered(answer)
            return answer
        except BaseException:
            self.tell("retracted", step=step, attempt=self._attempt)
            raise

    _attempt = 0

    async def _commit(self, answer: Answer, request: Any) -> None:
        s = self.s
        x = self.agent.about(answer, request)
        if effects := self.calls.started:
            x["effects"] = effects
        if self._unwritten:
            x["note"] = "; ".join(self._unwritten)[:500]
        faults.point("agent.before_commit")
        await s.driver.drive(s.journal.write(Kind.COMMIT, x=x, status=s.effect_records.session_status()))
        self._unwritten = []
        faults.point("agent.after_commit")
        self.tell("committed", step=s.step, attempt=self._attempt, text=text_of(answer.message))

    # -- ending ---------------------------------------------------------------------------------------------------

    async def _rest(self, waits: str) -> RunResult:
        """Something must be waited for: the process may go."""
        s = self.s
        if s.status != waits or self.calls.unwritten:
            await s.driver.drive(s.journal.write(Kind.COMMIT, status=waits))
        self.tell("waiting", status=waits)
        return self.result(waits, self.calls.left_open)

    async def _put_down(self, status: str, reason: str) -> RunResult:
        """End without a word; reads that were not written down yet will run again."""
        if self.s.changed:
            await self.afresh()
        return self.result(status, reason)

    async def _idle(self) -> RunResult:
        """Nothing is left to do: the session rests, or sleeps until it is to be woken."""
        s, resting = self.s, (Status.IDLE, Status.SLEEPING)
        standing = s.effect_records.session_status()
        if s.status in resting and standing in resting and s.status != standing and s.head is not None:
            await s.driver.drive(s.journal.write(Kind.COMMIT, status=standing))
        asleep = s.inbox.wakes_at is not None and not self.limits.turns
        return self.result(ended.SLEEPING if asleep else ended.DONE)

    async def afresh(self) -> None:
        """Read the session anew, once it is known what became of a commit that was on its way."""
        await self.s.driver.drive(self.s.journal.resend())
        await self.s.reload()

    async def stop(self, status: str, reason: str, error: str = "") -> RunResult:
        """End without an answer; what was taken from the inbox stays there for the next run."""
        s = self.s
        await self.afresh()
        if self.book["run"] is not None:
            # Whoever runs it again has it asked again.
            self.book["run"].pop("misfits", None)
        x = {"note": reason[:500], **({"error": error} if error else {})}
        await s.driver.drive(s.journal.write(Kind.COMMIT, x=x, status=_STANDING[status]))
        self.tell("ended", status=status, reason=reason)
        return self.result(status, reason)

    def result(self, status: str, reason: str = "") -> RunResult:
        s, run = self.s, self.book["run"]
        last = next((m for m in reversed(s.messages) if m.get("role") == "assistant"), None)
        text = text_of(plain(last)) if last is not None else ""
        spent = Spent(*run["spent"]) if run is not None else self.limits.spent
        output = self.agent.parsed(text) if status == ended.DONE and not self.agent.misfit(text) else None
        raised = ended.raised_in({AGENT: plain(self.book)}) if run is not None or self.limits.turns else []
        return RunResult(
            status, s.id, text, output, s.step,
            run["turns"] if run is not None else self.limits.turns, spent,
            tuple(s.approvals()), tuple(self._doubts()), reason, s.origin, tuple(self.notes),
            Spent(*self.book.get("total", ())), agent=self.book.get("active_agent") or self.agent.name,
            raised=tuple(raised),
        )  # fmt: skip

    def _doubts(self) -> list[Doubt]:
        return [
            Doubt(r["id"], r["tool"], r["args"], r["attempt"], question(r))
            for r in self.s.effects()
            if r["status"] == "in_doubt"
        ]


_CUT_SHORT = {
    "length": "the last answer was cut off at the model's limit: raise max_tokens of its params, or ask it to go on",
    "content_filter": "the provider held back some or all of the last answer",
}
_STANDING = {
    ended.FAILED: Status.FAILED,
    ended.MAX_TURNS: Status.PAUSED,
    ended.BUDGET: Status.PAUSED,
    ended.DEADLINE: Status.PAUSED,
    ended.CANCELLED: Status.CANCELLED,
}


def question(record: dict[str, Any]) -> str:
    """What a person must find out."""
    arguments = ", ".join(f"{k}={v!r}" for k, v in record["args"].items())
    told = exception_of(record)
    why = f" It ended with {in_short(told)}." if told is not None else ""
    if failed := lookup_error(record):
        why += f" W{looked_up(failed)[1:]}."
    return (
        f"Did {record['tool']}({arguments:.300}) happen? It was started (attempt {record['attempt']}, effect "
        f"{record['id']}) and its outcome was never recorded.{why}"
    )


def as_message(body: Any) -> dict[str, Any]:
    """What was posted as a message of the conversation: text is said by the user."""
    body = unpacked(body)
    if isinstance(body, dict) and "role" in body:
        return dict(body)
    return {"role": "user", "content": body if isinstance(body, str | list) else str(body)}


class Limits:
    """What one run may use."""

    def __init__(
        self,
        clock: Clock,
        *,
        max_turns: int = 50,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        deadline: float | None = None,
    ) -> None:
        self._clock = clock
        self.max_turns = max_turns
        self.max_tokens = max_tokens
        self.max_cost = max_cost
        self._until = None if deadline is None else clock.monotonic() + int(deadline * 1000)
        self.turns = 0
        self.spent = Spent()
        """What the run had used when it was last looked at: a run that has ended keeps no books."""

    def reached(self, run: Any) -> tuple[str, str] | None:
        """Which limit the run has reached, and what to do; None while it may go on."""
        self.note(run)
        spent = self.spent
        if self.turns >= self.max_turns:
            return ended.MAX_TURNS, f"{self.turns} turns were taken: raise max_turns, or give a new message"
        if self.max_tokens is not None and spent.input + spent.output >= self.max_tokens:
            return ended.BUDGET, f"{spent.input + spent.output} tokens were used, {self.max_tokens} are allowed"
        if self.max_cost is not None and spent.cost >= self.max_cost:
            return ended.BUDGET, f"{spent.cost:.4f} was spent, {self.max_cost} is allowed"
        if self.late():
            return ended.DEADLINE, "the deadline has passed: run again to go on"
        return None

    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self._until is not None and self._clock.monotonic() >= self._until

    def wait_at_most(self, seconds: float) -> float:
        """So many seconds, or fewer when the deadline comes first."""
        if self._until is None:
            return seconds
        return max(0.0, min(seconds, (self._until - self._clock.monotonic()) / 1000))

    def note(self, run: Any) -> None:
        """Remember what a run has used."""
        if run is not None:
            self.turns, self.spent = run["turns"], Spent(*run["spent"])


MISFITS = 2
"""How often in a row a model is asked again because its last answer does not fit ``output``."""
POLL = 1.0
"""Seconds between looks into the inbox while a model or a tool is being waited for."""


async def watched(loop: Loop) -> RunResult:
    """Go round until the loop ends by itself, is cancelled, or reaches its deadline."""
    if (early := await _stopped_before(loop)) is not None:
        return early
    work = asyncio.ensure_future(_rounds(loop))
    try:
        over: tuple[str, str] | None = None
        while not work.done() and over is None:
            await asyncio.wait({work}, timeout=loop.limits.wait_at_most(POLL))
            over = None if work.done() else await _noticed(loop)
    finally:
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
    if not work.cancelled():
        return work.result()
    if over is None:
        raise asyncio.CancelledError
    return await (cancelled(loop) if over[0] == ended.CANCELLED else loop.stop(*over))


async def _rounds(loop: Loop) -> RunResult:
    HERE.set(loop)
    while (result := await loop.round()) is None:
        pass
    return result


async def _stopped_before(loop: Loop) -> RunResult | None:
    """A cancelled session stays so until there is something new to answer."""
    if loop.ignores_inbox:
        return None
    s = loop.s
    waiting = await s.driver.drive(s.inbox.look())
    if s.inbox.cancellation is not None:
        stopped = await cancelled(loop)
        # What was said after that is answered.
        return None if (await s.driver.drive(s.inbox.look())).ready else stopped
    if s.status == Status.CANCELLED and not waiting.ready:
        return loop.result(ended.CANCELLED, "it was cancelled: give it a new message to go on")
    return None


async def _noticed(loop: Loop) -> tuple[str, str] | None:
    """Why what is under way must stop, if it must."""
    if loop.limits.late():
        return ended.DEADLINE, "the deadline has passed: run again to go on"
    if not loop.ignores_inbox:
        await loop.s.driver.drive(loop.s.inbox.look())
    return (ended.CANCELLED, "") if loop.s.inbox.cancellation is not None else None


async def cancelled(loop: Loop) -> RunResult:
    """Write down that the run was stopped; what waited for a person is withdrawn, what was started stays open."""
    s = loop.s
    await loop.afresh()
    waiting = await s.driver.drive(s.inbox.look(1_000_000))
    s.inbox.cancellation = None
    body: dict[str, Any] = {}
    for entry in waiting.cancels:
        message = open_entry(s.kernel, entry)
        body = body or message.body
        s.journal.takes.append(message)
    last = max((e.seq for e in waiting.cancels), default=0)
    said = [open_entry(s.kernel, e) for e in waiting.ready if e.kind == "message" and e.seq < last]
    if said:
        # What it was asked before stays known, and is not answered by itself.
        s.journal.takes.extend(said)
        loop.book["unanswered"] = [*plain(loop.book.get("unanswered", [])), *(m.body for m in said)]
    reason = f"cancelled{' by ' + body['by'] if body.get('by') else ''}{': ' * bool(body.get('reason'))}"
    reason += body.get("reason", "")
    given_up = [plain(record) for record in loop.calls.open_records() if record["status"] == "planned"]
    open_children = await loop.calls.abandon(reason)
    loop.book["run"] = None
    await s.driver.drive(s.journal.write(Kind.COMMIT, x={"note": reason[:500]}, status=Status.CANCELLED))
    for record in given_up:
        await s.driver.drive(s.effect_records.unclaim(record))
    await cancel_children(loop, open_children, body)
    loop.tell("ended", status=ended.CANCELLED, reason=reason)
    return loop.result(ended.CANCELLED, reason)
