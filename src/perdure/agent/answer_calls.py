"""The calls of an answer: checked, journalled with it, run side by side, and answered to the model in their order."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from perdure import telemetry
from perdure.agent.checkpoint_policy import STEP
from perdure.agent.children import Handoff
from perdure.agent.context.recall import shown
from perdure.agent.models.parts import is_spoken, is_whole, taken_apart, text
from perdure.agent.run_result import STOPPED, note_misfit, note_raised
from perdure.errors import ApprovalRuleFailed, InvalidInput, StoreError, an
from perdure.model import Status
from perdure.protocols import Boarded
from perdure.session.calls.calls_of_answer import Call, twins
from perdure.session.calls.left_behind import is_left_open
from perdure.session.calls.records import OPEN, TOLD, left_open, no_json, unkept
from perdure.session.calls.same_calls import DRY
from perdure.session.tools.call_state import UNKEPT
from perdure.session.tools.declaration import Tool
from perdure.state.document import plain
from perdure.system.flow_async import AsyncDriver
from perdure.system.wording import storable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from perdure.agent.loop import Loop
    from perdure.agent.models import Answer
    from perdure.aio import AsyncSession
    from perdure.protocols import Board
    from perdure.session.handle import SessionHandle
    from perdure.state.document import TrackedDict

WITHDRAW, QUEUE = "withdraw", "queue"
"""What becomes of a request for approval when the user says something meanwhile: it is taken back, or goes first."""
SLOTS = "a:"
"""Begins the journal's places of an agent's calls: a:<turn>:<number>."""


class Calls:
    """The open calls of a loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._fresh: set[str] = set()
        """Places of calls that this process wrote as started and has not made yet."""
        self.started: list[str] = []
        """Effects that the commit under way writes as started."""
        self.unwritten = False
        """Whether outcomes of this answer's calls may be waiting for a commit."""
        self.left_open = ""
        """What is said of the calls that a dry run has come upon and does not go on with."""
        self._broken: ApprovalRuleFailed | None = None
        """Why a call can neither be asked for nor made."""

    async def begin(self, answer: Answer) -> None:
        """Check the calls of an answer and put them into the journal; its commit makes them durable."""
        loop = self._loop
        s, turn = loop.s, loop.book["turn"]
        s.effect_records.retire(lambda slot: slot.startswith(SLOTS))
        self.started, self.unwritten = [], False
        listed: list[dict[str, Any]] = []
        calls: list[Call] = []
        for i, asked in enumerate(answer.calls):
            entry: dict[str, Any] = {"id": asked.id, "name": asked.name}
            try:
                spec = loop.spec(asked.name)
                slot = f"{SLOTS}{turn}:{i}"
                calls.append(Call(loop.tool(asked.name), spec.arguments(asked.arguments), slot, asked.id))
                entry["slot"] = slot
            except InvalidInput as e:
                entry["error"] = storable(str(e))
            listed.append(entry)
        records = await s.driver.drive(s.calls.of_answer.begin(calls))
        # Listed when all have their records: a call that is settled at once must not answer for those after it.
        loop.book["calls"] = listed
        for record, call in zip(records, calls, strict=True):
            if record["status"] == "started":
                self._fresh.add(call.slot)
                self.started.append(record["id"])
        self._tell_unmade(records)
        self._answer_if_settled()

    def _tell_unmade(self, records: list[TrackedDict]) -> None:
        if unmade := sorted({r["tool"] for r in records if r.get("error") == DRY}):
            self._loop.note(self._not_called(unmade))

    def _not_called(self, tools: list[str]) -> str:
        """What is said of a dry run that was asked for calls."""
        s, run = self._loop.s, self._loop.book["run"]
        were, them = ("was", "it") if len(tools) == 1 else ("were", "them")
        where = f"branch off at step {s.step} of {s.branch}" if s.step else "go to another session"
        # What was said by the inbox is taken with this answer, so that it is not there yet.
        again = "say it again there" if run["turns"] == 1 and run.get("messages") else "run that"
        return (
            f"dry run: {', '.join(tools)} {were} not called, and the model was told so. To have {them} called, {where} "
            f'and {again} with --effects reuse (effects="reuse")'
        )

    async def settle(self) -> str:
        """Take every open call as far as it goes, side by side; what must be waited for, or "" when none is open."""
        loop = self._loop
        self._answer_if_settled()
        await self._settle_left()
        places = [c["slot"] for c in loop.book["calls"] if "slot" in c]
        effects = loop.s.book.get("effects", {})
        still = [slot for slot in places if slot in effects and effects[slot]["status"] in OPEN]
        left = await self._spare([effects[slot] for slot in still]) if loop.s.calls.is_dry else []
        self.left_open = "; ".join(left_open(plain(record)) for record in left)
        still = [slot for slot in still if effects[slot]["status"] in OPEN]
        if not still:
            return ""
        makes = [slot for slot in still if effects[slot] not in left]
        first = [slot for i, slot in enumerate(makes) if not any(twins(effects[slot], effects[s]) for s in makes[:i])]
        self._broken = None
        await self._side_by_side(first)
        for slot in makes:
            # What another call of this answer pays for is not paid for again, nor while that one is in doubt.
            if slot not in first and not any(
                twins(effects[slot], effects[other]) and effects[other]["status"] in OPEN for other in first
            ):
                await self._side_by_side([slot])
        if self._broken is not None:
            raise self._broken
        stand = {loop.s.book["effects"][slot]["status"] for slot in still if slot in loop.s.book["effects"]}
        if not stand & set(OPEN):
            return ""
        standing = loop.s.effect_records.session_status()
        free = (Status.RUNNING, Status.IDLE, Status.SLEEPING)
        if standing in free:
            return STOPPED if self.left_open else str(Status.WAITING_RESULT)
        return str(standing)

    async def _settle_left(self) -> None:
        """Take up what was reported of calls that a rewind has left: nobody may ever ask for them again."""
        s = self._loop.s
        for record in [r for r in s.book.get("effects", {}).values() if is_left_open(r)]:
            if (tool := self._loop.agent.tools.get(record["tool"])) is not None:
                await s.driver.drive(s.effect_records.take_posted(tool, record))

    async def _spare(self, records: list[TrackedDict]) -> list[TrackedDict]:
        """Take calls as far as they go in a dry run; those that stay open, and are not made."""
        s = self._loop.s
        spared = [r for r in records if not self._loop.tool(r["tool"]).read]
        # Together: the last outcome answers the model.
        for record in spared:
            await s.driver.drive(s.calls.of_answer.spare(self._loop.tool(record["tool"]), record))
        self._tell_unmade(spared)
        return [r for r in spared if r["status"] in OPEN]

    async def _side_by_side(self, slots: list[str]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for slot in slots:
                    group.create_task(self._make(slot))
        except ExceptionGroup as several:
            # Whoever runs the agent is told what is the matter, as if there had been one call.
            raise several.exceptions[0] from None

    def open_records(self) -> list[TrackedDict]:
        """The calls of the last answer that have no outcome."""
        effects = self._loop.s.book.get("effects", {})
        found = [effects.get(c["slot"]) for c in self._loop.book["calls"] if "slot" in c]
        return [r for r in found if r is not None and r["status"] in OPEN]

    async def withdraw(self) -> bool:
        """Take requests for approval back because the user has said something else; whether there was one."""
        loop = self._loop
        if loop.agent.on_message != WITHDRAW or loop.ignores_inbox:
            return False
        waiting = await loop.s.driver.drive(loop.s.inbox.look())
        if not any(e.kind == "message" for e in waiting.ready):
            return False
        why = "the user has said something else meanwhile"
        return any([await loop.s.driver.drive(loop.s.requests.withdraw(r, why)) for r in self.open_records()])

    async def abandon(self, why: str) -> list[dict[str, Any]]:
        """Give up calls that were not made yet; what was started stays open, and is answered."""
        s = self._loop.s
        left: list[dict[str, Any]] = []
        for record in self.open_records():
            if record["status"] != "planned":
                left.append(plain(record))
                continue
            reported = await s.driver.drive(s.effect_records.posted(self._loop.tool(record["tool"]), record))
            request = s.book.get("approvals", {}).get(record.get("approval", ""))
            if request is not None and request["status"] == "pending":
                # A decision that came too late goes with it.
                await s.driver.drive(s.inbox.take_by_key("decision", f"decision:{request['id']}"))
                request.update(status="withdrawn", reason=why, decided=s.kernel.clock.wall())
                telemetry.decided(request, request["decided"])
            s.effect_records.settle(record, *(reported or ("failed", None, why, None)))
        return left

    async def _make(self, slot: str) -> None:
        s = self._loop.s
        record: TrackedDict = s.book["effects"][slot]
        fresh = slot in self._fresh
        self._fresh.discard(slot)
        tool: Tool = self._loop.tool(record["tool"])
        self._loop.tell("call", tool=record["tool"], effect=record["id"], attempt=record["attempt"])
        async with place_for(s, tool, record["id"]):
            try:
                status = await s.driver.drive(s.calls.of_answer.carry_on(tool, record, fresh=fresh))
            except ApprovalRuleFailed as e:
                # Nothing was called. Its siblings are, and have to come to their ends.
                self._broken, status = e, record["status"]
        if status == "done" and "problem" in record:
            self._loop.note(str(no_json(tool.name, record["id"], record["problem"])))
        if status == "done" and UNKEPT in record:
            self._loop.note(unkept(record))
        self._loop.tell("outcome", tool=record["tool"], effect=record["id"], status=status)

    def may_wait(self, record: TrackedDict) -> bool:
        """Whether an outcome may be lost with the process: of a read that can simply run again, if that is wished."""
        name = record["tool"]
        if name not in self._loop.own and name not in self._loop.agent.tools:
            # The call of a tool that is gone was turned down.
            return False
        waits = self._loop.agent.checkpoints != STEP and _is_free(self._loop.tool(name))
        self.unwritten = self.unwritten or waits
        return waits

    def all_free(self) -> bool:
        """Whether every call of the answer can be made again without harm, whatever is lost with the process."""
        return all(_is_free(self._loop.tool(c["name"])) for c in self._loop.book["calls"] if "slot" in c)

    # -- answering ------------------------------------------------------------------------------------------------

    def outcome(self, record: TrackedDict) -> None:
        """An outcome is about to be written: when it is the last one, the model's messages go with it."""
        note_raised(self._loop.book, plain(record))
        if said := note_misfit(self._loop.book, plain(record)):
            self._loop.note(said)
        self._answer_if_settled()

    def _answer_if_settled(self) -> None:
        loop = self._loop
        listed = loop.book["calls"]
        if not listed:
            return
        effects = loop.s.book.get("effects", {})
        records = [effects.get(c["slot"]) if "slot" in c else None for c in listed]
        if any(r is not None and r["status"] in OPEN for r in records):
            return
        for entry, record in zip(plain(listed), records, strict=True):
            said = said_of(loop.s, plain(record)) if record is not None else _error(entry.get("error", "unknown call"))
            if record is not None and record["status"] in ("unknown", "raised"):
                record[TOLD] = True
            loop.s.messages.append({"role": "tool", "tool_call_id": entry["id"], "content": said})
            tool = loop.agent.tools.get(entry["name"])
            if isinstance(tool, Handoff) and record is not None and record["status"] == "done":
                loop.book["active_agent"] = tool.to
        loop.book["calls"] = []


def _is_free(tool: Tool) -> bool:
    """Whether calling a tool once more changes nothing and is not paid for."""
    return tool.read and tool.cache is None


def said_of(s: SessionHandle, record: dict[str, Any]) -> str | list[dict[str, Any]]:
    """What the model is told of a call's outcome; a large result is kept in the state and told in short.

    Pictures, recordings and files are told as they are, after the text, or where they stand among parts of a message.
    """
    if record["status"] == "done":
        if "problem" in record:
            return _error(
                f"it was done, and its result cannot be kept: it is {an(record['problem'])}, which is not JSON"
            )
        rest, pieces = taken_apart(record["result"])
        told: dict[str, Any] = {}
        if "edited" in record:
            # The model asked for something else: it must know what was done instead.
            told |= {"note": "a person changed the arguments", "arguments": record["args"]}
        if UNKEPT in record:
            told["state"] = f"it was done, and what it wrote into the session's state was not kept: {record[UNKEPT]}"
        if pieces and not told:
            if is_spoken(record["result"]):
                return _spoken(s, record["id"], record["result"])
            if is_whole(record["result"]):
                return pieces
        said = shown(s, record["id"], rest)
        if told:
            said = json.dumps({**told, "result": said}, ensure_ascii=False)
        return [text(said), *pieces] if pieces else said
    if record["status"] == "raised":
        told = record["raised"]
        said = f"it ended with {told['class']}: {told['message']}. What it had changed by then is not known"
        return _error(f"{said}: do not assume either, and do not simply try again")
    if record["status"] == "unknown":
        return _error("nobody knows whether this was done; do not assume either, and do not simply try again")
    return _error(str(record.get("error")))


def _spoken(s: SessionHandle, effect: str, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parts of a message, a long text among them in short."""
    return [text(shown(s, f"{effect}.{n}", p["text"])) if p["type"] == "text" else p for n, p in enumerate(parts)]


def _error(said: str) -> str:
    return json.dumps({"error": said}, ensure_ascii=False)


TTL = 15_000
"""Milliseconds a place is held without a word: one that a killed worker had is free again after that."""
FIRST, LONGEST = 0.02, 0.5
"""Seconds between two looks for a place, at first and at most."""

_HERE: WeakKeyDictionary[AsyncDriver, dict[str, asyncio.Semaphore]] = WeakKeyDictionary()


@asynccontextmanager
async def place_for(s: AsyncSession, tool: Tool, effect: str) -> AsyncGenerator[None]:
    """Hold one of the places of a tool while it is called; wait until there is one."""
    if tool.limit is None:
        yield
        return
    async with _HERE.setdefault(s.driver, {}).setdefault(tool.name, asyncio.Semaphore(tool.limit)):
        # The calls of this process wait for each other here, so that few of them ask the board.
        store = s.kernel.store
        if not isinstance(store, Boarded):
            yield
            return
        driver = s.driver
        board = await driver.call(store.board)
        await _wait(driver, board, tool, effect)
        keeping = asyncio.create_task(_keep(driver, board, tool, effect))
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            # Where the store cannot be reached, it is free by itself after a while.
            with suppress(StoreError):
                await driver.call(board.unslot, tool.name, effect)


async def _wait(driver: AsyncDriver, board: Board, tool: Tool, effect: str) -> None:
    wait = FIRST
    while not await driver.call(board.slot, tool.name, effect, tool.limit, TTL):
        await asyncio.sleep(wait)
        wait = min(LONGEST, wait * 1.5)


async def _keep(driver: AsyncDriver, board: Board, tool: Tool, effect: str) -> None:
    while True:
        await asyncio.sleep(TTL / 3000)
        # Where the store cannot be reached, the place may go, and the call under way goes on.
        with suppress(StoreError):
            await driver.call(board.slot, tool.name, effect, tool.limit, TTL)
