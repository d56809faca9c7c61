"""The records of effects: calls with the outside world, planned, started, done, failed, raised or in doubt.

:class:`Effects` keeps them in the journal and settles them, whoever brings the outcome: the call itself, a post, a
person. The calls are made in ``attempts``.

Long because whatever settles a record, and whatever is remembered of it afterwards, keeps one table of states: read
apart, no two of the ways to an outcome could be held against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from perdure import telemetry
from perdure.errors import CallError, Gone, NotFound
from perdure.history.hydrate import load_at, look
from perdure.history.reader import history
from perdure.model import Kind, Status
from perdure.session.calls.identity import ASKED_ARGS, BY_DEFAULT, Asked, identify, is_unknown, key_in, versioned
from perdure.session.calls.late_returns import has_outcome, warn
from perdure.session.calls.left_behind import is_left_open
from perdure.session.calls.other_branches import done_elsewhere, is_refuted, is_same_call, made_otherwise
from perdure.session.calls.read_cache import declared
from perdure.session.calls.records import (
    DONE_ELSEWHERE,
    ENDED_RUN,
    GIVEN_UP,
    LEFT,
    LOOKUP,
    MISFIT,
    OPEN,
    PLACE,
    PROBLEM,
    RECORD,
    REPEATS,
    TOLD,
    UNSETTLED,
    about,
    claims,
    kept_as,
    new_effect_id,
    raised_as,
    unfit,
)
from perdure.session.calls.schemas import check_result, note_result_schema, returns_nothing
from perdure.session.inbox import open_entry
from perdure.session.journal import Called
from perdure.session.strands import BESIDE
from perdure.session.tools import Done, Unknown
from perdure.session.tools.call_state import OUTCOME, RETURNED, UNKEPT, WRITES, CallState
from perdure.session.tools.declaration import Tool, call_digest
from perdure.session.tools.exceptions import in_short
from perdure.state.document import STATE, plain
from perdure.state.values import refusal
from perdure.system import faults
from perdure.system.flow import Do, Flow
from perdure.system.wording import brief

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.kernel import Kernel
    from perdure.model import Envelope
    from perdure.session.calls.read_cache import ReadCache
    from perdure.session.inbox import Inbox
    from perdure.session.journal import Journal
    from perdure.session.tools.call_state import CallState
    from perdure.state.document import TrackedDict

SEARCHED = 1000
"""How many checkpoints are looked through for an effect whose record is forgotten."""
MAX_REMEMBERED = 300
"""Characters of the exception of a call that is remembered as having raised."""
LEFT_KEPT = 100
"""Calls that a person has settled after whoever called was told, and that nobody has asked for again, the newest."""
RAISED_KEPT = 1000
"""Calls that raised, were made with other arguments than were asked for, or have not happened after all, and are
remembered so that a repetition is noticed and other branches are told, the newest."""
_OF_THE_CALL = (
    "id", "attempt", "at", "handle", "progress", "answers", "error", "lost", "lost_since", "retry_at", "was", UNSETTLED,
)  # fmt: skip
"""What the record of a call says of it on whichever line it is gone on with."""
_UNSET: Any = object()


class Observer(Protocol):
    """Who works through a handle and acts on outcomes as they are recorded: an agent's loop."""

    def outcome(self, record: TrackedDict) -> None:
        """An outcome is about to be written: the commit that makes it durable also takes what is edited here."""
        ...

    def may_wait(self, record: TrackedDict) -> bool:
        """Whether an outcome need not be durable before the next commit, whatever that is: of a read, at most."""
        ...


class Effects:
    """The records of a session's effects."""

    def __init__(self, journal: Journal, inbox: Inbox, cache: ReadCache) -> None:
        self._journal = journal
        self._inbox = inbox
        self._cache = cache
        self.observer: Observer | None = None

    def resolve(
        self, effect: str, *, done: Any = _UNSET, retry: bool = False, abort: bool = False, by: str = ""
    ) -> Flow[None]:
        """Settle an effect in doubt: it happened with this result, or may be tried again, or is given up."""
        self._journal.guard.check()
        if (done is not _UNSET) + retry + abort != 1:
            raise CallError("resolve with exactly one of done=result, retry=True, abort=True")
        record = yield from self._open(effect)
        reported = yield from self._inbox.waiting(f"outcome:{effect}")
        if reported and record["status"] in OPEN:
            raise CallError(
                f"the outcome of effect {effect} was reported meanwhile, and waits in the inbox: it is settled by that "
                "as soon as somebody goes on with the session",
                effect,
            )
        if done is _UNSET and (returned := [entry for entry in reported if entry.kind != "failure"]):
            said = open_entry(self._journal.kernel, returned[0]).body
            said = said["result"] if returned[0].kind == RETURNED else said
            raise CallError(
                f"effect {effect} was done: it has returned {brief(said, 300)} when nobody waited for it any more. Who "
                "makes the same call again is given that; done=result settles it now",
                effect,
            )
        # A call that is only planned may be in the way of other sessions, which wait for it.
        claimed = record["status"] == "planned" and claims(record)
        if claimed and not abort:
            raise CallError(
                f"effect {effect} was planned and not made: go on with its session, or abort=True gives it up"
            )
        if not claimed and record["status"] not in ("started", "in_doubt", "unknown", "raised"):
            request = plain(self._journal.book.get("approvals", {}).get(record.get("approval", "")))
            decided = bool(request and (yield from self._inbox.waiting(f"decision:{request['id']}")))
            stands = _standing(plain(record), asked(request, decided, self._journal.kernel.clock.wall()))
            raise CallError(f"effect {effect} is not in doubt: {stands}", effect)
        if record["status"] in OPEN and self._journal.settings.effects != "live":
            journal = self._journal
            known = yield Do(done_elsewhere, (journal.kernel, journal.id, stands_at(journal), journal.book))
            if effect in known:
                raise CallError(f"effect {effect} is not in doubt: it {DONE_ELSEWHERE}", effect)
        # Those that a rewind had left, and that did not happen: nobody asks for them by their place any more.
        self.retire(lambda place: place.startswith(LEFT) and self._journal.book["effects"][place]["status"] == "failed")
        for entry in reported:
            # Nobody would ever ask for it.
            yield from self._inbox.take_by_key(entry.kind, entry.key)
        if done is not _UNSET:
            check_result(self._journal.book, record, done)
        is_told = TOLD in record
        if is_told:
            record = self._put_back(record)
        if record["status"] in ("unknown", "raised"):
            self._note_settled(effect, "done" if done is not _UNSET else "failed")
        record["resolved_by"] = by
        record.pop(ENDED_RUN, None)
        if abort:
            record[GIVEN_UP] = True
        if done is not _UNSET:
            yield from self.finish(record, "done", done, None)
        elif abort or self.place(record).startswith(LEFT):
            # What nobody will ask for by its place is not planned: the identical call is simply made.
            self.did_not_happen(record)
            yield from self.finish(record, "failed", None, "given up" if abort else "it may be made again")
        else:
            self.did_not_happen(record)
            record["status"] = "planned"
            # A person has decided: its pauses, and the time for which it is tried again by itself, begin anew.
            for name in ("lost_since", "retry_at"):
                record.pop(name, None)
            yield from self._journal.write(Kind.PLANNED, x=about(record), status=self.session_status())

    def all(self) -> list[dict[str, Any]]:
        """The effects this branch still holds records of, oldest first."""
        return [plain(r) for r in self._journal.book.get("effects", {}).values()]

    def session_status(self) -> str:
        """Where the session stands once what is being written is written."""
        if self._journal.status == Status.CANCELLED and self.observer is None:
            # Whoever settles a call has not said that the session goes on: that is for its agent, and a new message.
            return Status.CANCELLED
        effects = self._journal.book.get("effects", {}).values()
        if any(r["status"] == "in_doubt" for r in effects):
            return Status.IN_DOUBT
        if any(r["status"] == "pending" for r in self._journal.book.get("approvals", {}).values()):
            return Status.WAITING_APPROVAL
        if any(r["status"] == "waiting" for r in effects):
            return Status.WAITING_RESULT
        if any(r["status"] == "open" for r in self._journal.book.get("runs", {}).values()):
            return Status.RUNNING
        if self._journal.book.get("agent", {}).get("run") is not None:
            return Status.RUNNING
        return Status.IDLE if self._inbox.wakes_at is None else Status.SLEEPING

    def write_waiting(self, record: TrackedDict) -> Flow[None]:
        """Make durable that a call was made and its result comes later, or that nobody could be asked for it."""
        # The class stands in the session's row: lists and metrics tell of it without opening a session.
        failed = plain(record).get(LOOKUP, "").partition(":")[0]
        x = about(record, error=failed) if failed else about(record)
        yield from self._journal.write(Kind.WAITING, x=x, status=self.session_status())

    def find(self, effect: str) -> TrackedDict:
        # The newest: a call that is repeated after it raised goes on under its id.
        for record in reversed(list(self._journal.book.get("effects", {}).values())):
            if record["id"] == effect:
                return record
        raise NotFound(f"session {self._journal.id!r} has no effect {effect!r} on branch {self._journal.branch!r}")

    def place(self, record: TrackedDict) -> str:
        """The place of a record in the journal."""
        effects = self._journal.book.get("effects", {})
        return next((place for place in reversed(list(effects)) if effects[place]["id"] == record["id"]), "")

    def place_of(self, call: Asked, place: str) -> str:
        """The place at which a call is recorded, or is to be.

        One of which nobody knows what became of it was made for another version of its tool: it is this one's from now
        on. A recorded outcome is given for the version alone that it was made for.
        """
        effects = self._journal.book.get("effects", {})
        record = effects.get(place)
        if record is not None and call.is_of(record):
            return place
        if not place.startswith("c:") and record is not None:
            if is_unknown(record) and call.is_same(record):
                self._take_up(call, record, place)
            return place
        if place.startswith("r:"):
            return place
        key = key_in(place, call.tool.name)
        before = ""
        for there in [name for name in effects if name.startswith(place[:2])]:
            other = effects[there]
            if key_in(there, other["tool"]) != key:
                continue
            if call.is_of(other):
                return there
            if not before and is_unknown(other) and call.is_same(other):
                before = there
        if record is not None:
            # An equal call to whoever looks at digests: what is as a default now was said then, or the other way round.
            place = f"c:{call_digest(call.tool.name, call.tool.version, call.args)}"
        if before:
            record = effects[place] = plain(effects[before])
            del effects[before]
            self._take_up(call, effects[place], place)
        return place

    def _take_up(self, call: Asked, record: TrackedDict, place: str) -> None:
        """Have a call go on that was made for another version of its tool."""
        if ASKED_ARGS in record:
            # A person has had it made otherwise, and that is what may have happened.
            record.update(tool=call.tool.name, asked=call.digest)
            record[ASKED_ARGS] = call.args
            record.pop(BY_DEFAULT, None)
            record.update(versioned(call.tool, call.args))
        else:
            identify(record, call.tool, call.args)
        for one in self._journal.book.get("raised", {}).values():
            if one["id"] == record["id"]:
                one["call"] = raised_as(record["digest"], place)
        if record["id"] in self._journal.calls:
            self._journal.calls[record["id"]] = Called(call.tool.name, place, record["digest"], kept_as(record))

    def recall(self, record: TrackedDict) -> None:
        """Have a call that raised known by what it was asked for, should that be forgotten: it is asked for again."""
        raised = self._journal.book.setdefault("raised", {})
        if record["status"] == "raised" and all(one["id"] != record["id"] for one in raised.values()):
            kept = {name: record[name] for name in ("id", "attempt", "at")}
            error = in_short(record["raised"])[:MAX_REMEMBERED]
            raised[raised_as(record["digest"], self.place(record))] = {**kept, "error": error}

    def _open(self, effect: str) -> Flow[TrackedDict]:
        """One that may be settled; who names one that is settled is told so, also when its record is long forgotten."""
        try:
            return self.find(effect)
        except NotFound:
            for one in self._journal.book.get("raised", {}).values():
                if one["id"] == effect and RECORD in one:
                    return one[RECORD]
            last = yield Do(last_of, (self._journal.kernel, self._journal.id, self._journal.branch, effect))
            if last is None:
                raise
            raise CallError(f"effect {effect} is settled: {_settled(last)}, at step {last.step}", effect) from None

    def _put_back(self, record: TrackedDict) -> TrackedDict:
        """Have the record of a call in the journal again that a person settles after whoever called was told.

        One that is known by its arguments or a key takes the place of its refused repetition.
        """
        effects = self._journal.book.setdefault("effects", {})
        asks = next((r for r in effects.values() if r.get(REPEATS) == record["id"] and r["status"] in OPEN), None)
        if asks is not None:
            msg = f"effect {record['id']} was asked for again: settle effect {asks['id']}, its repetition, first"
            raise CallError(msg, asks["id"])
        kept: dict[str, Any] = plain(record)
        del kept[TOLD]
        place = kept.pop(PLACE, "") or self.place(record)
        if place.startswith(("c:", "k:")) and effects.get(place, {"status": "failed"})["status"] not in (*OPEN, "done"):
            self.retire(place.__eq__)
        else:
            if effects.get(place, {}).get("id") == kept["id"]:
                del effects[place]
            place = f"{LEFT}{kept['id']}:{place}"
        effects[place] = kept
        left = [name for name in effects if name.startswith(LEFT)]
        over = set(left[:-LEFT_KEPT]) | {name for name in left if effects[name]["status"] == "failed"}
        self.retire(over.__contains__)
        return effects[place]

    def _note_settled(self, effect: str, status: str) -> None:
        """Have those who look at the exceptions of an agent's run told what became of a call."""
        noted: Any = self._journal.book.get("agent") or {}
        for one in noted.get("raised", ()):
            if one["effect"] == effect:
                one["status"] = status

    def take_settled(self, call: Asked, place: str) -> Flow[dict[str, Any] | None]:
        """The same call, of which it is known since that it was done, after whoever called was told that nobody knows:
        a person has said so, or it has returned late.

        It is given once, as what a tool's own function finds out is: whoever repeats the call asks for that one.
        """
        yield from self._settle_returned(call, place)
        for there, record in self._journal.book.get("effects", {}).items():
            if not there.startswith(LEFT) or record["status"] != "done":
                continue
            if key_in(there.split(":", 2)[2], record["tool"]) == key_in(place, call.tool.name) and call.is_same(record):
                found = plain(record)
                self.retire(there.__eq__)
                return found
        return None

    def make_anew(self, record: TrackedDict, before: dict[str, Any], because: str) -> None:
        """A call that was begun as ``before`` says is another one by now: with an id of its own, and once somebody has
        agreed for this reason. No provider is sent other arguments under the id that it may know."""
        if before["status"] != "planned" or UNSETTLED in before:
            place = self.place(record)
            self._journal.book.setdefault("raised", {})[before["id"]] = {
                **{name: before[name] for name in ("id", "attempt", "at")},
                "call": raised_as(record["digest"], place),
                "error": "",
                RECORD: {**before, "status": "unknown", TOLD: True, PLACE: place},
            }
            record[REPEATS] = before["id"]
        for name in _OF_THE_CALL:
            if name not in ("id", "attempt", "at", "was"):
                record.pop(name, None)
        self._journal.calls.pop(before["id"], None)
        record["was"] = [*before.get("was", ()), before["id"]]
        record.update(id=new_effect_id(), attempt=0, at=self._journal.kernel.clock.wall(), status="planned")
        record.update(approval="", because=because)

    def _settle_returned(self, call: Asked, place: str) -> Flow[None]:
        """Settle the same call by what it has returned when nobody waited any more, and nobody knew what it did."""
        before, is_repeated = self.raised_before(call, place) or ({}, True)
        if is_repeated or not (yield from self._inbox.waiting(f"outcome:{before['id']}")):
            return
        record = yield from self._open(before["id"])
        if TOLD not in record:
            return
        record = self._put_back(record)
        if (late := (yield from self.posted(call.tool, record))) is not None:
            self.settle(record, *late)
            self._note_settled(record["id"], record["status"])
            yield from self._share(record)

    def take_left(self, call: Asked, slot: str) -> TrackedDict | None:
        """The same call, should a rewind have left it open: whoever asks for it goes on with that one, under its id."""
        effects = self._journal.book.get("effects", {})
        for place, left in effects.items():
            if is_left_open(left) and call.goes_on_with(left) and is_same_call(slot, place):
                return self.go_on_with(call, slot, plain(left))
        return None

    def go_on_with(self, call: Asked, slot: str, there: dict[str, Any]) -> TrackedDict:
        """A record for a call of another line, or of one that was left: it is the same one here, with its id.

        It is never begun here just so: of what was started there nobody knows whether it happened.
        """
        record = self.new(call.tool, call.args, call.digest, slot)
        self.become(record, there)
        if "edited" in there:
            names = ("args", "edited", "asked", ASKED_ARGS, BY_DEFAULT, "digest")
            record.update({name: there[name] for name in names if name in there})
        self._journal.calls[record["id"]] = Called(call.tool.name, slot, record["digest"], kept_as(record))
        return record

    def become(self, record: TrackedDict, there: dict[str, Any]) -> None:
        """A call was begun on another line and has no outcome there: here it is the same one, and waited for, too."""
        effects = self._journal.book["effects"]
        for place in [p for p, r in effects.items() if r["id"] == there["id"] and r is not record and is_left_open(r)]:
            del effects[place]
        self._journal.calls.pop(record["id"], None)
        record.update({name: plain(there[name]) for name in _OF_THE_CALL if name in there})
        record["status"] = "waiting" if "handle" in there else "in_doubt"

    def new(self, tool: Tool, bound: dict[str, Any], digest: str, slot: str) -> TrackedDict:
        effects = self._journal.book.setdefault("effects", {})
        before = plain(effects.get(slot))
        if before is not None:
            self.retire(slot.__eq__)
        effects[slot] = {
            "id": new_effect_id(),
            "tool": tool.name,
            "digest": digest,
            "args": bound,
            **versioned(tool, bound),
            "status": "planned",
            "attempt": 0,
            "at": self._journal.kernel.clock.wall(),
            "line": self._journal.line,
        }
        if tool.cache is not None:
            effects[slot]["cache"] = declared(tool, digest, bound)
        note_result_schema(self._journal.book, tool, effects[slot])
        strands = self._journal.strands
        was_beside = before is not None and BESIDE in before
        if slot.startswith("r:") and (
            was_beside or int(slot.rpartition(":")[2]) in strands.numbered or strands.are_several()
        ):
            effects[slot][BESIDE] = True
        if before is not None:
            # A run that is resumed finds its first attempts under these.
            effects[slot]["was"] = [*before.get("was", ()), before["id"]]
        if tool.read:
            effects[slot]["read"] = True
        else:
            self._journal.calls[effects[slot]["id"]] = Called(tool.name, slot, digest, kept_as(effects[slot]))
        return effects[slot]

    def take_posted(self, tool: Tool, record: TrackedDict) -> Flow[bool]:
        """Take an outcome that was posted under the effect's id; whether there was one."""
        late = yield from self.posted(tool, record)
        if late is not None:
            yield from self.finish(record, *late)
        return late is not None

    def posted(self, tool: Tool, record: TrackedDict) -> Flow[tuple[str, Any, str | None, CallState | None] | None]:
        """The outcome that was posted under the effect's id, as it is settled, to be taken by the next commit."""
        key = f"outcome:{record['id']}"
        late = yield from self._inbox.take_by_key(OUTCOME, key)
        if late is not None:
            # Of one that returns nothing it is said what became of it, in whatever words.
            said = late.body if returns_nothing(tool) else self.as_recorded(tool, record, late.body)
            return "done", said, None, None
        late = yield from self._inbox.take_by_key(RETURNED, key)
        if late is not None:
            draft = yield from self._late_writes(late.body)
            return "done", self.as_recorded(tool, record, late.body["result"]), None, draft
        late = yield from self._inbox.take_by_key("failure", key)
        if late is None:
            return None
        record["reported"] = True
        self.did_not_happen(record)
        return "failed", None, str(late.body), None

    def _late_writes(self, body: dict[str, Any]) -> Flow[CallState]:
        """What a call wrote into the state while nobody waited for it, to be kept with its outcome."""
        draft = CallState(self._journal)
        if UNKEPT in body:
            draft.refuse(body[UNKEPT])
        else:
            draft.write_late(body["writes"], (yield Do(self._state_at, (body["since"],))))
        return draft

    def _state_at(self, checkpoint: str) -> dict[str, Any] | None:
        """The state at a checkpoint; None when that is not there any more."""
        kernel, journal = self._journal.kernel, self._journal
        try:
            return load_at(kernel, look(kernel, journal.id), checkpoint, journal.branch).doc[STATE]
        except (NotFound, Gone):
            return None

    def done(self, tool: Tool, record: TrackedDict, result: Any, draft: CallState | None = None) -> Flow[None]:
        """Make durable that a call was done: what it returned as its tool declares it, or as it is, and so told."""
        yield from self.finish(record, "done", self.as_recorded(tool, record, result), None, draft)

    def as_recorded(self, tool: Tool, record: TrackedDict, result: Any) -> Any:
        """What a call returned as it is recorded; where it does not fit what its tool declares, the record says so."""
        if PROBLEM in record:
            # Of the same call, whose result was lost: there is nothing that could fit.
            return None
        found, wrong = tool.types.fitting_result(tool.types.result_as_json(result))
        if isinstance(result, Done | Unknown):
            wrong = (
                f"perdure.{type(result).__name__} is an answer of if_unsure and poll. A tool returns its result as it "
                "is, and raises NotDone, or its own exception, where there is none"
            )
        record.pop(MISFIT, None)
        if wrong:
            record[MISFIT] = wrong
            if not refusal(found):
                warn("%s", unfit(plain(record)))
        return found

    def finish(
        self, record: TrackedDict, status: str, result: Any, error: str | None, draft: CallState | None = None
    ) -> Flow[None]:
        """Make an outcome durable, and what the call has written into its draft of the state."""
        self.settle(record, status, result, error, draft)
        status = record["status"]
        # First: whoever dies before the outcome is written finds it there, and no other session pays meanwhile.
        yield from self._share(record)
        if self.observer is not None and self.observer.may_wait(record):
            return
        kind = Kind(status) if status in ("done", "raised") else Kind.FAILED
        x = about(record, **_misfit_of(record), **_exception_of_done(record))
        if status != "done":
            x = about(record, error=error)
        faults.point("call.before_outcome")
        yield from self._journal.write(kind, x=x, status=self.session_status, stamp=(record, "where"))
        self._journal.calls.pop(record["id"], None)
        if "read" not in record:
            has_outcome(record["id"], record["status"])
        faults.point("call.after_outcome")

    def _share(self, record: TrackedDict) -> Flow[None]:
        """Have other sessions know what came of a call, should its result be shared with them."""
        if record["status"] == "failed":
            yield from self.unclaim(plain(record))
        elif self._is_shared(record) and "reused" not in record:
            yield from self._cache.keep_shared(
                record["tool"], plain(record["cache"]), plain(record["result"]), record["id"],
                plain(record.get(WRITES)), record.get(PROBLEM, ""),
            )  # fmt: skip

    def _is_shared(self, record: TrackedDict) -> bool:
        """Whether other sessions are to be told what came of a call; a read whose answer is lost may run again."""
        return (
            "cache" in record
            and record["cache"]["shared"]
            and ("at" in record["cache"] or (PROBLEM in record and claims(record)))
        )

    def unclaim(self, record: dict[str, Any]) -> Flow[None]:
        """A call has certainly not happened: another session may make it, should it be a shared one."""
        if claims(record) and UNSETTLED not in record:
            known = {one["id"] for one in self._journal.book.get("raised", {}).values()}
            to = record[REPEATS] if record.get(REPEATS) in known else ""
            yield from self._cache.give_up(record["tool"], record["cache"], record["id"], to=to)

    def settle(
        self, record: TrackedDict, status: str, result: Any, error: str | None, draft: CallState | None = None
    ) -> None:
        """Put an outcome into the journal; the next commit makes it durable."""
        if draft is not None:
            with draft.kept_in(record, agent=self.observer is not None):
                self.settle(record, status, result, error)
            return
        if "reused" in record:
            telemetry.replayed(record["tool"], "cache" if record["reused"] == "cache" else "branch")
        if status == "done":
            self._journal.book.get("asked_again", {}).pop(record["tool"], None)
            # It happened: that must be recorded even though what it returned cannot be.
            if problem := record.get(PROBLEM) or refusal(result):
                record[PROBLEM] = problem
                record.pop(MISFIT, None)
            record["result"] = None if problem else result
            self._cache.keep_outcome(record)
        else:
            if status == "failed" and UNSETTLED in record:
                # Whatever has ended it speaks of the last attempt. That the tool has done nothing this time may be its
                # own doing, before it has asked anybody by the key: what an earlier one did is as unknown as before.
                status = "raised"
                record.setdefault("raised", {"class": "EffectFailed", "message": error or "", "traceback": ""})
            record["error"] = error
        self._remember(record, status)
        # Last: an interrupt before this leaves a call without an outcome, never one that is done without its result.
        record["status"] = status
        if self.observer is not None:
            self.observer.outcome(record)

    def _remember(self, record: TrackedDict, status: str) -> None:
        """Keep of a call of which nobody knows what it did that it was made, until it is done, or somebody knows."""
        raised = self._journal.book.get("raised", {})
        if "read" in record or ((status == "failed" or not raised) and status not in ("raised", "unknown")):
            return
        # One that is made anew takes the place of the one it repeats; that it is not made says nothing of that one.
        known = [record.get(name) for name in ("id", REPEATS, "reused")]
        for name in [name for name in raised if raised[name]["id"] in known]:
            del raised[name]
        if status == "done":
            return
        raised = self._journal.book.setdefault("raised", {})
        ended = in_short(record["raised"])[:MAX_REMEMBERED] if status == "raised" else ""
        kept = {name: record[name] for name in ("id", "attempt", "at")}
        raised[record["id"]] = {**kept, "call": raised_as(record["digest"], self.place(record)), "error": ended}
        for old in list(raised)[:-RAISED_KEPT]:
            del raised[old]

    def did_not_happen(self, record: TrackedDict) -> None:
        """Who can know it, or may decide it, says that a call has not happened, or is given up or made again: all that
        was unknown of it is settled."""
        record.pop(UNSETTLED, None)
        raised = self._journal.book.get("raised", {})
        for name in [name for name in raised if raised[name]["id"] == record["id"]]:
            del raised[name]

    def raised_before(self, call: Asked, place: str) -> tuple[dict[str, Any], bool] | None:
        """The same call, of which nobody knows what it did, and whether another call repeats it already."""
        raised = self._journal.book.get("raised", {})
        if not raised:
            return None
        effects = self._journal.book.get("effects", {}).values()
        records = {record["id"]: record for record in effects}
        # Where it has no name of its own, it is kept by it.
        same = [
            plain(one)
            for name, one in raised.items()
            if self._is_same(call, place, one.get("call", name), one.get(RECORD, records.get(one["id"])))
        ]
        if not same:
            return None
        taken = {r.get(name) for r in effects if r["status"] in OPEN for name in ("id", REPEATS)}
        free = next((one for one in same if one["id"] not in taken), None)
        return (same[0], True) if free is None else (free, False)

    def _is_same(self, call: Asked, place: str, known_as: str, record: TrackedDict | None) -> bool:
        """Whether what is remembered of a call is of this one, by whichever version of its tool it was made."""
        if record is None:
            return known_as == raised_as(call.digest, place)
        there = known_as.partition(":")[2]
        return key_in(there, record["tool"]) == key_in(place, call.tool.name) and call.is_same(record)

    def asked_again(self, tool: str) -> int:
        """Count that a tool has the model ask otherwise; how often in a row by now."""
        counts = self._journal.book.setdefault("asked_again", {})
        counts[tool] = counts.get(tool, 0) + 1
        return counts[tool]

    def retire(self, wanted: Callable[[str], bool]) -> None:
        """Forget settled calls at these places but for their digests: nobody will ask for them by their place again.

        Of reads nothing is kept: whoever asks again reads again.
        """
        effects = self._journal.book.get("effects", {})
        done = self._journal.book.setdefault("done", {})
        for slot in [s for s in effects if wanted(s)]:
            record = effects[slot]
            if record["status"] in OPEN:
                continue
            if "read" in record:
                pass
            elif "reused" in record:
                if record["reused"] != "cache":
                    self._journal.book.setdefault("reused", []).append(record["reused"])
            elif record["status"] == "done":
                if changed := made_otherwise(record):
                    edited = self._journal.book.setdefault("edited", {})
                    edited[record["asked"]] = changed
                    for old in list(edited)[:-RAISED_KEPT]:
                        del edited[old]
                # Without a place of its own the outcome came with a sibling's commit: it is at the head, in any case.
                where = record.get("where", [self._journal.line, self._journal.step])
                done.setdefault(record["digest"], []).append([record["id"], *where])
            elif is_refuted(record):
                # Another line may have it without an outcome.
                refuted = self._journal.book.setdefault("refuted", [])
                refuted.append([record["id"], *record.get("where", [self._journal.line, self._journal.step])])
                del refuted[:-RAISED_KEPT]
            elif record["status"] in ("unknown", "raised"):
                # Another line that would do it must be told, and there is no outcome to give it.
                done.setdefault(record["digest"], []).append([record["id"], self._journal.line, 0])
                self._leave(record, slot)
            self._journal.calls.pop(record["id"], None)
            del effects[slot]

    def _leave(self, record: TrackedDict, place: str) -> None:
        """Keep the record of a call that a person may settle yet with what is remembered of it; where its exception
        came from is in the log."""
        for one in self._journal.book.get("raised", {}).values():
            if one["id"] == record["id"]:
                one[RECORD] = {**plain(record), TOLD: True, PLACE: place}
                for name in ("raised", "lost"):
                    if name in record:
                        one[RECORD][name]["traceback"] = ""


def _misfit_of(record: TrackedDict) -> dict[str, str]:
    return {MISFIT: record[MISFIT]} if MISFIT in record else {}


def _exception_of_done(record: TrackedDict) -> dict[str, str]:
    """The class of what a call had raised that was found to be done: a log is to find it."""
    return {"exception": record["raised"]["class"]} if "raised" in record else {}


def stands_at(journal: Journal) -> tuple[int, int] | None:
    """The line and step that a journal stands at."""
    return None if journal.point is None else (journal.point.envelope.line, journal.point.envelope.step)


def asked(request: dict[str, Any] | None, decided: bool, now: int) -> str:
    """What a person was asked about a call that was not made for that reason; "" when nobody was."""
    if request is None or request["status"] != "pending":
        return ""
    if decided:
        return f"approval {request['id']} was decided on, and that is taken up as soon as somebody goes on"
    if now >= request["expires"]:
        return f"approval {request['id']} has expired, and it is turned down as soon as somebody goes on"
    if request.get("question"):
        return f"its tool has asked a person first, and waits for the answer to {request['id']}"
    return f"it waits for approval {request['id']}"


def _standing(record: dict[str, Any], asked: str) -> str:
    """Where a call stands that no doubt is about."""
    match record["status"]:
        case "done":
            return "it was done"
        case "failed":
            return f"it did not happen ({record['error']:.300})"
        case "waiting":
            return "it was made and its result comes later, so post its outcome"
        case _ if asked:
            return f"it was not made yet: {asked}"
        case _:
            return "it was not made yet, and is as soon as somebody goes on with the session"


def _settled(last: Envelope) -> str:
    """What became of a call whose record is forgotten, by the last checkpoint that tells of it."""
    match last.kind:
        case Kind.DONE:
            return "it was done"
        case Kind.FAILED:
            return f"it did not happen ({last.x.get('error') or 'no reason was given'!s:.300})"
        case Kind.RAISED | Kind.IN_DOUBT:
            return "nobody knows whether it happened, and whoever called was told so"
        case _:
            return "its outcome was recorded with those of other calls"


def last_of(kernel: Kernel, session: str, branch: str, effect: str) -> Envelope | None:
    """The last checkpoint of a branch that tells of an effect, among the newest; None when there is none. Blocks."""
    for point in history(kernel, session, branch, SEARCHED, None):
        x = point.envelope.x
        if x.get("effect") == effect or effect in x.get("effects", ()):
            return point.envelope
    return None
