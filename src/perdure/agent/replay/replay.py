"""Replay: a recorded session run again, with no network and no effects, to see whether the same requests are made.

The loop itself runs, on a scratch copy in memory; the model says what it said, and calls come to what they came to.
Asking the real model instead, on a branch, is ``rerun``'s.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

import copy
import itertools
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.agent import Agent
from perdure.agent.answer_calls import Calls
from perdure.agent.checkpoint_policy import STEP
from perdure.agent.children import registry
from perdure.agent.context.compactor import REFUSED, Compactor
from perdure.agent.context.window import Window
from perdure.agent.limits import Limits
from perdure.agent.loop import Loop
from perdure.agent.model_versions import VersionChange
from perdure.agent.models import Answer, Request
from perdure.agent.models.scripted import ScriptedModel
from perdure.agent.replay.recorded_session import Cleaned, Edited, Event, Recording, Turn, read_recording
from perdure.agent.tool_schema import ToolSpec
from perdure.errors import ContextTooLong, InvalidInput, ModelError, PerdureError
from perdure.model import MAIN
from perdure.opening import open_async
from perdure.session.calls.records import OPEN
from perdure.session.tools.declaration import Tool
from perdure.state.document import edit, plain
from perdure.system.flow import check_open
from perdure.system.flow_async import in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.agent.models import ChatModel
    from perdure.aio import AsyncDatabase, AsyncSession

NEVER = 1 << 53
_ROUNDS = 3
"""How often the loop may go round before it asks what it once asked."""


class Replayed(NamedTuple):
    """What a replay found."""

    session: str
    branch: str
    turns: int
    """Answers that were given again."""
    step: int | None = None
    """The first recorded step that differs; None when all are identical."""
    what: str = ""
    """What is different there."""
    versions: tuple[VersionChange, ...] = ()
    """Where a provider's model became another one while the session was recorded: its version, or its fingerprint."""

    @property
    def identical(self) -> bool:
        """Whether everything happened as it is recorded."""
        return self.step is None


class _Differs(PerdureError):
    """The replay went another way than the record."""


async def replay(db: AsyncDatabase, session: str, *, agent: Agent | None = None, branch: str = MAIN) -> Replayed:
    """Run a recorded session again on a scratch copy; nothing is asked, called or written.

    With ``agent`` that agent runs, and the first step at which it would have sent something else is told. Without one
    the recorded agent runs: a check of the runtime itself.
    """
    check_open(db, "replay")
    recording = await in_thread(read_recording, db.kernel, session, branch)
    if not any(isinstance(e, Turn) for e in recording.events):
        raise InvalidInput(f"branch {branch!r} of session {session!r} holds no answer of a model: nothing to replay")
    async with open_async("memory://", maintain=False) as scratch, scratch.session(session, ttl=None) as s:
        return await _Replay(recording, agent, scratch, s).go()


class _Tape:
    """A model that says what is recorded, and keeps what it was asked."""

    def __init__(self, name: str, stands_for: ChatModel | None = None) -> None:
        self.name = name
        self.params: dict[str, Any] = getattr(stands_for, "params", {})
        self.strict_output: bool = getattr(stands_for, "strict_output", False)
        self.turn: Turn | None = None
        self.cleaned: list[Cleaned] = []
        self.refuses = False
        self.asked: list[Request] = []
        self.summaries: list[tuple[Cleaned, Request]] = []

    async def answer(self, request: Request, on_delta: Any = None) -> Answer:
        """The recorded answer to whatever is asked; the request is compared later."""
        del on_delta
        if self.refuses:
            self.refuses = False
            raise ContextTooLong("refused, as it was recorded")
        if self.turn is None:
            raise _Differs("the model is asked for an answer, where the record has the window cut")
        self.asked.append(request)
        return self.turn.answer

    def next_summary(self, request: Request) -> Answer:
        """The recorded summary."""
        if not self.cleaned or self.cleaned[0].answer is None:
            raise ModelError("no summary is recorded here")
        cleaned = self.cleaned.pop(0)
        self.summaries.append((cleaned, request))
        assert cleaned.answer is not None
        return cleaned.answer

    async def close(self) -> None:
        """Nothing to release."""


class _Calls(Calls):
    """Calls that come to what they are recorded to have come to."""

    outcomes: dict[str, Any]

    async def settle(self) -> str:
        loop = self._loop
        self._answer_if_settled()
        effects = loop.s.book.get("effects", {})
        for entry in plain(loop.book["calls"]):
            record = effects.get(entry.get("slot", ""))
            if record is not None and record["status"] in OPEN:
                loop.s.effect_records.settle(
                    record, "done", self.outcomes.get(entry["id"], "(no outcome is recorded)"), None
                )
        return ""


class _Loop(Loop):
    """The loop over a tape."""

    recorded: dict[str, Any] | None = None
    """How the agent was made, when the recorded agent runs."""

    def told_context(self) -> dict[str, Any] | None:
        # As it was told, with the objective as it stood then.
        return self.context

    def setup(self, model: ChatModel | None = None) -> dict[str, Any]:
        return self.recorded if self.recorded is not None else super().setup(model)


class _RecordedSpec(ToolSpec):
    """A tool of which only the schema is known: what it made of its arguments is in the record."""

    def __init__(self, described: dict[str, Any], tool: Tool) -> None:
        self.tool = tool
        self.name = described["name"]
        self.description = described["description"]
        self.parameters = described["parameters"]

    def arguments(self, raw: str) -> dict[str, Any]:
        """Any arguments will do."""
        try:
            given = json.loads(raw or "{}")
        except ValueError:
            return super().arguments(raw)
        return given if isinstance(given, dict) else {}


class _Replay:
    def __init__(self, recording: Recording, agent: Agent | None, scratch: AsyncDatabase, s: AsyncSession) -> None:
        self._recording = recording
        self._agent = agent
        self._scratch = scratch
        self._s = s
        self._outcomes: dict[str, Any] = {}
        self._turns = 0

    async def go(self) -> Replayed:
        """Go through all that is recorded; the first difference ends it."""
        where = (self._recording.session, self._recording.branch)
        step, versions = 0, self._recording.versions
        try:
            for events in self._groups():
                step = events[0].step
                await self._again(events)
            await self._compare_end()
        except _Differs as e:
            return Replayed(*where, self._turns, step, str(e), versions)
        return Replayed(*where, self._turns, versions=versions)

    def _groups(self) -> Iterator[list[Event]]:
        """Events that one round of the loop made: the compactor may need several checkpoints for one cut."""
        group: list[Event] = []
        for event in self._recording.events:
            if group and (not isinstance(event, Cleaned) or event.about["why"] != _why(group[0])):
                yield group
                group = []
            group.append(event)
            if not isinstance(event, Cleaned) or event.answer is None or _is_last(event):
                yield group
                group = []
        if group:
            yield group

    async def _again(self, events: list[Event]) -> None:
        first = events[0]
        if isinstance(first, Edited):
            await self._edit(first)
        elif isinstance(first, Turn):
            await self._turn(first)
        else:
            await self._clean([e for e in events if isinstance(e, Cleaned)])

    # -- one event ------------------------------------------------------------------------------------------------

    async def _turn(self, turn: Turn) -> None:
        await self._post(turn.took)
        tape = self._tape(turn)
        tape.turn = turn
        loop = self._loop(turn, tape)
        for _ in range(_ROUNDS):
            if tape.asked:
                break
            if (result := await loop.round()) is not None and not tape.asked:
                raise _Differs(f"the model was asked, and now the run is {result.status} {result.reason}".rstrip())
        if not tape.asked:
            raise _Differs("the model was asked, and now it is not")
        if said := difference(turn.request, tape.asked[0]):
            raise _Differs(said)
        self._compare_window(turn.window)
        self._turns += 1
        self._outcomes = turn.outcomes

    async def _clean(self, cleaned: list[Cleaned]) -> None:
        later = next((e for e in self._recording.events if isinstance(e, Turn) and e.step > cleaned[-1].step), None)
        if later is not None:
            await self._post(later.took[: cleaned[0].about["waiting"]])
        tape = self._tape(cleaned[0])
        tape.cleaned = list(cleaned)
        tape.refuses = cleaned[0].about["why"] == REFUSED
        loop = self._loop(cleaned[0], tape, later)
        await loop.round()
        for was, now in tape.summaries:
            assert was.request is not None
            if said := difference(was.request, now):
                raise _Differs(f"asking for a summary: {said}")
        self._compare_window(cleaned[-1].window)

    async def _edit(self, edited: Edited) -> None:
        if edited.settled and "agent" in self._s.book:
            await self._settle(next(e for e in self._recording.events if isinstance(e, Turn)))
        try:
            edit(edited.ops, self._s.state)
        except (LookupError, TypeError) as e:
            raise _Differs("a change that somebody made to the state no longer fits it") from e
        await self._s.commit()

    async def _post(self, took: list[tuple[str, Any]]) -> None:
        for key, body in took:
            await self._scratch.post(self._recording.session, body, key=key)

    async def _settle(self, turn: Turn) -> None:
        """Tell what the calls of the last answer came to."""
        await self._loop(turn, _Tape("")).calls.settle()

    # -- comparing ------------------------------------------------------------------------------------------------

    def _compare_window(self, was: dict[str, Any]) -> None:
        now = plain(self._s.book["agent"].get("window") or {})
        if was != now:
            raise _Differs(f"the window was {_window(was)} and is {_window(now)}")

    async def _compare_end(self) -> None:
        last = next(e for e in reversed(self._recording.events) if isinstance(e, Turn))
        if any(c.id not in last.outcomes for c in last.answer.calls):
            # Something was still waited for: there is no end to compare with.
            return
        await self._settle(last)
        was, now = self._recording.messages, plain(self._s.messages)
        for i, (a, b) in enumerate(itertools.zip_longest(was, now)):
            if a != b:
                raise _Differs(f"message {i} at the end: {_apart(a, b)}")

    # -- the agent that runs --------------------------------------------------------------------------------------

    def _loop(self, event: Turn | Cleaned, tape: _Tape, turn: Turn | None = None) -> _Loop:
        """A loop of its own for every event: it keeps nothing in memory that matters."""
        turn = event if isinstance(event, Turn) else turn
        limits = Limits(self._scratch.kernel.clock, max_turns=NEVER)
        loop = _Loop(self._double(event, tape, turn), self._s, limits, context=turn.context if turn else None)
        loop.recorded = event.setup if self._agent is None else None
        if turn is not None and turn.reads:
            loop.book["reads"] = True
        calls = _Calls(loop)
        calls.outcomes = self._outcomes
        loop.calls = self._s.effect_records.observer = calls
        return loop

    def _tape(self, event: Turn | Cleaned) -> _Tape:
        """A tape in place of the model that would be asked: of several, the one that was."""
        if self._agent is None:
            return _Tape(event.setup["model"])
        agent = registry(self._agent).get(event.setup["agent"], self._agent)
        model = agent.named(event.setup["model"])
        return _Tape(model.name, model)

    def _double(self, event: Turn | Cleaned, tape: _Tape, turn: Turn | None) -> Agent:
        """An agent that would send what the real one sends, and can neither ask nor do anything."""
        if self._agent is None:
            return _recorded_agent(event.setup, tape, turn)
        # Another agent may have had the conversation by then.
        agent = registry(self._agent).get(event.setup["agent"], self._agent)
        double = copy.copy(agent)
        double.model, double.checkpoints = tape, STEP
        if double.instruct is not None:
            # What functions gave is what was sent: they cannot be asked here what they would give today.
            double.instruct, double.instructions = None, event.setup["instructions"]
        if double.choose is not None:
            double.choose = None
            double.tools, double.specs = _recorded_tools(event.setup)
        double.tools = {name: _harmless(tool) for name, tool in double.tools.items()}
        if agent.compactor is not None:
            name = agent.compactor.model.name if agent.compactor.model is not None else tape.name
            double.compactor = compactor = copy.copy(agent.compactor)
            compactor.model = ScriptedModel(tape.next_summary, name=name)
        return double


class _RecordedAgent(Agent):
    """The agent that a session records: whether it was done is recorded, too."""

    turn: Turn | None = None

    def is_done(self, answer: Answer, s: AsyncSession) -> bool:
        del answer, s
        return self.turn is None or self.turn.nudge is None


def _recorded_agent(setup: dict[str, Any], tape: _Tape, turn: Turn | None) -> Agent:
    window = dict(setup["window"])
    if window.pop("own"):
        raise InvalidInput(
            "this session's window was computed by functions of its program: name the agent to replay it"
        )
    kept = setup["compactor"]
    compactor = False
    if kept is not None:
        more: dict[str, Any] = {**kept, "model": ScriptedModel(tape.next_summary, name=kept["model"] or tape.name)}
        compactor = Compactor(**more)
    agent = _RecordedAgent(
        setup["agent"], model=tape, instructions=setup["instructions"], version=setup["version"],
        params=setup["params"], window=Window(window.pop("max_tokens"), **window), compactor=compactor,
        nudge=(turn.nudge if turn is not None else None) or "",
    )  # fmt: skip
    agent.turn = turn
    agent.tools, agent.specs = _recorded_tools(setup)
    return agent


def _recorded_tools(setup: dict[str, Any]) -> tuple[dict[str, Tool], dict[str, ToolSpec]]:
    tools: dict[str, Tool] = {}
    specs: dict[str, ToolSpec] = {}
    for described in setup["tools"]:
        tool = _harmless(Tool(_refuse, name=described["name"], version=setup["versions"].get(described["name"], "1")))
        tools[tool.name], specs[tool.name] = tool, _RecordedSpec(described, tool)
    return tools, specs


def _harmless(tool: Tool) -> Tool:
    """A tool of the same name that nobody has to agree to and that does nothing."""
    double = tool.options()
    double.fn, double.read, double.cache = _refuse, True, None
    double.approve, double.facts, double.recheck = False, None, None
    return double


def _refuse(**_: Any) -> Any:
    raise AssertionError("a replay calls no tool")


# -- words -------------------------------------------------------------------------------------------------------------


def difference(was: Request, now: Request) -> str:
    """The first thing in which two requests differ; "" when they are identical.

    >>> one = Request("m", [{"role": "user", "content": "hi"}], [], {"seed": 1})
    >>> difference(one, one._replace(params={"seed": 2}))
    "the parameters: {'seed': 1} became {'seed': 2}"
    """
    if was.model != now.model:
        return f"the model: {_apart(was.model, now.model)}"
    if list(was.params.items()) != list(now.params.items()):
        return f"the parameters: {_apart(was.params, now.params)}"
    for i, (a, b) in enumerate(itertools.zip_longest(was.messages, now.messages)):
        if _text(a) != _text(b):
            role = (a or b or {}).get("role")
            return f"message {i} of the request ({role}): {_apart(a, b)}"
    for a, b in itertools.zip_longest(was.tools, now.tools):
        if _text(a) != _text(b):
            return f"the tool {(a or b or {}).get('name')}: {_apart(a, b)}"
    return ""


def _text(value: Any) -> str:
    # The order of keys counts, too: it is part of the bytes that are sent.
    return json.dumps(value, ensure_ascii=False, default=repr)


def _apart(a: Any, b: Any, around: int = 60) -> str:
    """Two values from a little before the place where they part."""
    if a is None or b is None:
        return f"{'is new' if a is None else 'is gone'}: {_text(b if a is None else a):.{2 * around}}"
    one, two = (v if isinstance(v, str) else repr(v) for v in (a, b))
    at = next((i for i, (x, y) in enumerate(zip(one, two, strict=False)) if x != y), min(len(one), len(two)))
    start = max(0, at - around) if max(len(one), len(two)) > 2 * around else 0
    dots = "..." if start else ""
    return f"{dots}{one[start : at + around]} became {dots}{two[start : at + around]}"


def _why(event: Event) -> str:
    return event.about["why"] if isinstance(event, Cleaned) else ""


def _is_last(event: Cleaned) -> bool:
    """Whether a checkpoint ended a cut: it moved the window to where the summary reaches."""
    return event.about["from"] == event.about["told"]


def _window(window: dict[str, Any]) -> str:
    return ", ".join(f"{k} {window[k]}" for k in sorted(window)) or "never cut"
