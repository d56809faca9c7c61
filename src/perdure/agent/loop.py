"""The loop: settle open calls, take new messages, ask the model, commit its answer with its calls, and again.

It keeps nothing in memory that matters: where it stands is read from the session each time around, so a process that
is killed anywhere is followed by one that goes on from the last commit.

What ends it from outside, a cancellation or its deadline, is in ``stopping.py``; its own limits are in ``limits.py``.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from perdure import telemetry
from perdure.agent import notify
from perdure.agent import run_result as ended
from perdure.agent.answer_calls import Calls
from perdure.agent.checkpoint_policy import Waiting
from perdure.agent.children import children_of, registry, tell_parent
from perdure.agent.context.compactor import Cleaning
from perdure.agent.context.recall import NAME as RECALL
from perdure.agent.context.recall import READER, RESULTS, reader, recall_spec
from perdure.agent.conversation import as_message, is_answer, misfit
from perdure.agent.dependencies import refuse_without
from perdure.agent.limits import Over
from perdure.agent.live_answers import Publisher
from perdure.agent.model_versions import name_of, note_version
from perdure.agent.models import Answer, Delta, ask, text_of
from perdure.agent.models.fallback import Fallback
from perdure.agent.requests import AGENT, build, note
from perdure.agent.run_result import Doubt, RunResult, Spent
from perdure.agent.said_once import note_answer
from perdure.agent.session_stream import Event
from perdure.agent.stopping import LEAVING, bounded, cancelled, put_down, watched
from perdure.agent.upgrades import upgrade
from perdure.errors import (
    ApprovalRuleFailed,
    ContextTooLong,
    InvalidInput,
    ModelError,
    PerdureError,
    RequestRefused,
    an,
)
from perdure.history.checkpoint import OBJECTIVE
from perdure.model import MAIN, Kind, Status
from perdure.session.calls.records import exception_of, looked_up
from perdure.session.tools.exceptions import in_short
from perdure.session.waiting_messages import REFUSED
from perdure.state.document import plain
from perdure.state.values import refusal
from perdure.system import faults
from perdure.system.commands import door
from perdure.system.wording import storable
from perdure.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from perdure.agent.agent import Agent
    from perdure.agent.dependencies import Dependencies
    from perdure.agent.limits import Limits
    from perdure.agent.models import ChatModel, Request
    from perdure.agent.tool_schema import ToolSpec
    from perdure.aio import AsyncDatabase, AsyncSession
    from perdure.session.tools.declaration import Tool

NAMED = 10
"""Messages that a checkpoint names, at most, whose request was refused."""
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
        parent: dict[str, Any] | None = None,
        live: bool = False,
        stop: asyncio.Event | None = None,
        deps: Dependencies | None = None,
    ) -> None:
        self.agent = agent
        """The agent with the instructions and tools that it has now."""
        self.declared = agent
        """The same as its program has made it."""
        self.deps = deps
        if deps is not None:
            deps.bounded = partial(bounded, self, LEAVING)
        self.was_stopped = False
        """Whether it was cancelled, or its deadline has passed: nobody waits for it much longer."""
        self.s = session
        session.journal.settings.agent = agent.name
        self.limits = limits
        self.context = context
        self.db = db
        self.agents = registry(agent, agents)
        """Who may have the conversation, by name."""
        self.parent = parent
        """Whose call this run works on, when it is in the hands of its parent."""
        session.journal.child_of = parent
        self.stopping = stop
        """Set when the process is to end."""
        self.notes: list[str] = []
        self.ignores_inbox = False
        """Whether the inbox is left alone: what is posted there is meant for another line."""
        self._tell = tell
        self._speaker = Publisher(db, session) if live and db is not None else None
        self._unwritten: list[str] = []
        self._seen = 0
        """How many messages are known to be such."""
        self._held: list[dict[str, Any]] = []
        """What is told of answers once they are durable: they wait for the next checkpoint that is."""
        self._waiting = Waiting(session.journal, session.kernel.clock)
        self.own: dict[str, ToolSpec] = {}
        """Tools that are not the agent's but the session's."""
        if RECALL not in agent.tools:
            self.own[RECALL] = recall_spec(self._hidden)
        if READER not in agent.tools:
            self.own[READER] = reader(session)
        self.fallback = Fallback(limits.clock)
        self._told: set[str] = set()
        """Models of which it was said that they have become others."""
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

    @property
    def model(self) -> ChatModel:
        """Who is asked next."""
        return self.fallback.next(self.agent.models)

    def setup(self, model: ChatModel | None = None) -> dict[str, Any]:
        """All that requests to a model (the one that is asked next) are made of besides the conversation."""
        search = [self.own[RECALL].as_json()] if self.agent.window.recall and RECALL in self.own else []
        reading = [self.own[READER].as_json()] if READER in self.own else []
        deps = self.s.contexts.deps
        named = {} if deps is None else {"deps": type(deps).__name__}
        return {**self.agent.setup(model or self.model), "search": search, "reading": reading, **named}

    def told_context(self) -> dict[str, Any] | None:
        """What is true for this run, for the model: the objective of the session is part of that."""
        if (objective := plain(self.s.objective)) is None:
            return self.context
        told = {name: objective[name] for name in ("text", "status", "note") if objective.get(name)}
        return {OBJECTIVE: told, **(self.context or {})}

    async def prepare(self) -> None:
        """Have what the agent's tools need, and the instructions and tools that it has at this moment."""
        contexts = self.s.contexts
        contexts.context = self.context
        if self.deps is not None:
            contexts.deps = await self.deps.of(self.declared)
        self.agent = await self.declared.as_now(self.s)
        if self.deps is not None and contexts.deps is None:
            refuse_without(self.agent)
        if self.agent is not self.declared:
            # Those whom it can hand the conversation to now.
            self.agents = {**registry(self.agent), **self.agents}

    def note(self, text: str) -> None:
        """Say something with the result of the run and with its next answer."""
        self.notes.append(storable(text))
        self._unwritten.append(self.notes[-1])

    def _hidden(self) -> tuple[Any, range, list[int]]:
        held = self.book.get("window") or {}
        return self.s.messages, range(held.get("from", 0)), plain(held.get("kept", []))

    def tell(self, kind: str, **data: Any) -> None:
        """Say what happens to whoever listens."""
        event = Event(kind, self.s.id, data["step"] if kind == "committed" else self.s.step, data)
        if self._tell is not None:
            self._tell(event)
        if self._speaker is not None:
            self._speaker.publish(event)

    # -- going round ----------------------------------------------------------------------------------------------

    async def go(self, begin: Callable[[], Awaitable[None]] | None = None) -> RunResult:
        """Work until nothing is left to do, or something must be waited for; first write what ``begin`` does."""
        s, name = self.s, self.agent.name
        head = s.journal.point.envelope.id if s.journal.point is not None else None
        told = telemetry.tracing.invoke_agent(name, s.id, s.branch, head)
        with logs.about(session=s.id, agent=name, step=lambda: s.step), told as span:
            try:
                result = await self._go(begin)
                await self.write_held()
            except BaseException as e:
                # Not lost for want of a word: only a kill costs what is held. What went wrong is told all the same.
                with suppress(PerdureError):
                    await self.write_held()
                if isinstance(e, Exception):
                    telemetry.ended(name, telemetry.FAILED)
                raise
            telemetry.ended(name, result.status)
            span.ended(result, s.journal.point.envelope.id if s.journal.point is not None else None)
        return result

    async def _go(self, begin: Callable[[], Awaitable[None]] | None) -> RunResult:
        self.s.journal.check_open()
        before = self.s.step
        if self.parent is not None and self.book.get("parent") is None:
            self.book["parent"] = self.parent
        was, runs = self.s.journal.known_agent, self.agent.name
        taken = was not in ("", runs) and not self.book.get("active_agent")
        if taken and self.s.branch == MAIN:
            self.note(f"it was a session of agent {was!r:.80}, and is one of {runs!r:.80} from now on")
        elif taken:
            self.note(f"it is a session of agent {was!r:.80}; {runs!r:.80} goes on with branch {self.s.branch!r:.80}")
        reason, over = self._switch(), None
        if not reason:
            try:
                async with bounded(self):
                    await self.prepare()
            except Over as ends:
                over = ends
        if begin is not None:
            # Once all that the program gives was asked for: an error there leaves nothing behind.
            await begin()
        if over is not None:
            return await put_down(self, over)
        reason = reason or ("" if self._handed_over() else await upgrade(self))
        told = len(self.notes)
        result = await self._undecided(self.result(ended.INCOMPATIBLE, reason) if reason else await watched(self))
        if taken and self.s.step == before:
            # Whose it is stands in what is committed, and nothing was; nor did what has changed about the agent matter,
            # unless it cannot go on because of that.
            did = "cannot go on with it, and has written nothing" if reason else "has written nothing"
            still = f"it is a session of agent {was!r:.80} as before: {runs!r:.80} {did}"
            result = result._replace(notes=(still, *result.notes[1 if reason else told :]))
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
            how = "name an APP that has it" if door() == "shell" else "pass it in agents="
            return f"agent {name!r} has the conversation, and only {known} are known here: {how}"
        self.agent = self.declared = self.agents[name]
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
        if wrong := self._no_message():
            return await self.stop(ended.FAILED, wrong, InvalidInput.__name__)
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
        await self.prepare()
        model = self.model
        note(self.book, self.setup(model), self.told_context(), len(self.s.messages))
        request = build(self.s.state, self.book)
        if why := self.cleaning.due(request):
            await self.cleaning.clean(why)
            return None
        try:
            await self._turn(request, model)
        except ModelError as e:
            sent = self._sent()
            if isinstance(e, ContextTooLong) and await self.cleaning.refused():
                return None
            if not self.falls_back(self.agent.models, model, e):
                e = self.fallback.all_failed(e)
                refused = sent if isinstance(e, (ContextTooLong, RequestRefused)) else ()
                return await self.stop(ended.FAILED, str(e), type(e).__name__, refused)
        return None

    def falls_back(self, models: Sequence[ChatModel], model: ChatModel, error: ModelError) -> bool:
        """One of some models cannot answer: whether there is another one to ask, which is noted."""
        if not self.fallback.failed(models, model, error):
            return False
        self.note(f"{name_of(self.fallback.next(models))} is asked: {name_of(model)} could not answer ({error!s:.300})")
        return True

    def _no_message(self) -> str:
        """What a program has put into the conversation and no model can be sent; "" when there is nothing of it."""
        messages = self.s.messages
        start = max(self._seen, (self.book.get("window") or {}).get("from", 0))
        for index, held in enumerate(messages.unread(start), start):
            if misfit(held) and (wrong := misfit(plain(messages[index]))):
                return (
                    f"messages[{index}] of session {self.s.id!r} cannot be sent to a model: {wrong}. Mend it in your "
                    f'program: s.messages[{index}] = {{"role": "user", "content": "..."}}, s.commit(); then run again'
                )
        self._seen = len(messages)
        return ""

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
            run, end = self.book["run"], len(self.s.messages)
            run["messages"] = [*plain(run.get("messages", [])), *keys]
            # Where they stand, should somebody take one back before the run has answered it.
            at = {m.key: [end - len(messages) + i, self.s.step + 1] for i, m in enumerate(messages) if m.key in keys}
            run["places"] = {**plain(run.get("places", {})), **at}
        return bool(messages)

    def _sent(self) -> list[str]:
        """The keys of the newest messages that went with the request: those new with it, or else those of its run."""
        new = [message.key for message in self.s.journal.takes if message.kind == "message"]
        return (new or plain(self.book["run"].get("messages", [])))[-NAMED:]

    def _begin_run(self) -> None:
        self.book["run"] = {"turns": 0, "spent": list(Spent()), "began": self.s.kernel.clock.wall()}
        ended.forget_noted(self.book)

    def spend(self, answer: Answer, asked: ChatModel) -> None:
        """Count what an answer cost, for this run and for the session, and see whether who gave it is who it was."""
        book = self.book
        self.fallback.answered()
        self._recognise(answer, name_of(asked))
        if book["run"] is None:
            self._begin_run()
        run = book["run"]
        spent = self.agent.price(answer, self.notes, asked=asked)
        run["spent"] = list(Spent(*run["spent"]).plus(spent))
        book["total"] = list(Spent(*book.get("total", ())).plus(spent))
        self.limits.note(run)

    def _recognise(self, answer: Answer, model: str) -> None:
        if (changes := note_version(self.book, model, answer)) and model not in self._told:
            # Once in an attempt: a provider with several systems answers from one after the other.
            self._told.add(model)
            self.note("; ".join(map(str, changes)))

    def _has_more_to_say(self) -> bool:
        """Whether the model is to be asked: the last word is not its own, or it is not done by its own measure."""
        messages = self.s.messages
        return bool(messages) and (messages[-1].get("role") != "assistant" or self.book["run"] is not None)

    async def _turn(self, request: Request, model: ChatModel) -> None:
        """Ask the model once and commit its answer together with the calls it makes."""
        book = self.book
        faults.point("agent.before_model")
        answer = await self._ask(request, model)
        faults.point("agent.after_model")
        if what := refusal(answer.message):
            raise ModelError(f"{model.name} answered with {an(what)}, which no session can keep")
        self.s.messages.append(answer.message)
        book.pop(REFUSED, None)
        book["turn"] += 1
        book["run"]["turns"] += 1
        self.spend(answer, model)
        self.cleaning.answered(answer)
        await self.calls.begin(answer)
        if not answer.calls:
            self._close_turn(answer)
        await self._commit(answer, request, model)

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

    async def _ask(self, request: Request, model: ChatModel) -> Answer:
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
                answer = await ask(model, request, piece if self._tell or self._speaker else None)
                span.answered(answer)
            return answer
        except BaseException:
            self.tell("retracted", step=step, attempt=self._attempt)
            raise

    _attempt = 0

    async def _commit(self, answer: Answer, request: Request, model: ChatModel) -> None:
        s = self.s
        x = self.agent.about(answer, request, asked=model)
        if effects := self.calls.started:
            x["effects"] = effects
        if self._unwritten:
            x["note"] = "; ".join(self._unwritten)[:500]
        faults.point("agent.before_commit")
        status = s.effect_records.session_status()
        in_run = self.book["run"] is not None
        if holds := in_run and self._waiting.may_wait(self.agent.checkpoints, self.calls.all_free):
            self._waiting.begin()
            await s.driver.drive(s.journal.hold(Kind.COMMIT, x=x, status=status))
        else:
            await s.driver.drive(s.journal.write(Kind.COMMIT, x=x, status=status))
        self._unwritten = []
        faults.point("agent.after_commit")
        self._held.append({"step": s.step, "attempt": self._attempt, "text": text_of(answer.message)})
        if not holds:
            self._tell_held()

    def may_hold_for(self) -> float:
        """For how many seconds what is held may still wait, or might if it were held now; for ever without a limit."""
        return self._waiting.seconds_left(self.agent.checkpoints)

    async def write_held(self) -> None:
        """Make durable what waits for that."""
        await self.s.driver.drive(self.s.journal.flush())
        self._tell_held()

    def _tell_held(self) -> None:
        told, self._held = self._held, []
        for answer in told:
            self.tell("committed", **answer)

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

    async def stop(self, status: str, reason: str, error: str = "", refused: Sequence[str] = ()) -> RunResult:
        """End without an answer; what was taken from the inbox stays there for the next run.

        ``refused`` are the keys of messages that went with a request that the provider refuses.
        """
        s, reason = self.s, storable(reason)
        self.was_stopped = status == ended.DEADLINE
        await self.afresh()
        if self.book["run"] is not None:
            # Whoever runs it again has it asked again.
            self.book["run"].pop("misfits", None)
        x = {"note": reason[:500], **({"error": error} if error else {})}
        if refused:
            # Those that were refused before: what was said since then went with them.
            before = plain(self.book.get(REFUSED, []))
            self.book[REFUSED] = [key for key in refused if key in before] or list(refused)
        await s.driver.drive(s.journal.write(Kind.COMMIT, x=x, status=_STANDING[status]))
        self.tell("ended", status=status, reason=reason)
        return self.result(status, reason)

    def result(self, status: str, reason: str = "") -> RunResult:
        s, run = self.s, self.book["run"]
        last = next((m for m in reversed(s.messages) if is_answer(m)), None)
        text = text_of(plain(last)) if last is not None else ""
        spent = Spent(*run["spent"]) if run is not None else self.limits.spent
        output = self.agent.parsed(text) if status == ended.DONE and not self.agent.misfit(text) else None
        noted = {AGENT: plain(self.book)} if run is not None or self.limits.turns else {}
        # Those of before this process have been told by nobody whom this one knows.
        notes = (*self.notes, *(said for said in ended.misfits_in(noted) if said not in self.notes))
        return RunResult(
            status, s.id, text, output, s.step,
            run["turns"] if run is not None else self.limits.turns, spent,
            tuple(s.approvals()), tuple(self._doubts()), reason, s.origin, notes,
            Spent(*self.book.get("total", ())), agent=self.book.get("active_agent") or self.agent.name,
            raised=tuple(ended.raised_in(noted)),
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
    if failed := looked_up(record):
        why += f" W{failed[1:]}."
    return (
        f"Did {record['tool']}({arguments:.300}) happen? It was started (attempt {record['attempt']}, effect "
        f"{record['id']}) and its outcome was never recorded.{why}"
    )


MISFITS = 2
"""How often in a row a model is asked again because its last answer does not fit ``output``."""
