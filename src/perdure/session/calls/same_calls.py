"""Which calls are the same one, so that none is made twice: here, on other branches, and in other sessions.

A call that was never made on this line may have been made elsewhere: then its outcome is taken, waited for, or told of.
One that is open here may have gone further elsewhere since. Nothing is made by this, and nobody outside is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import CallError, DoneElsewhere, InDoubt, ResultPending
from perdure.model import Kind
from perdure.session.calls.effects import stands_at
from perdure.session.calls.identity import Asked, asked
from perdure.session.calls.other_branches import OtherBranches, Outcome, is_same_call
from perdure.session.calls.read_cache import declared
from perdure.session.calls.records import (
    ENDED_RUN,
    GIVEN_UP,
    PROBLEM,
    REPEATS,
    UNSETTLED,
    about,
    claims,
    is_begun,
    new_effect_id,
)
from perdure.session.calls.retries import key_holds
from perdure.session.tools.call_state import CallState, redone
from perdure.session.tools.declaration import Tool
from perdure.session.tools.running import check_awaited
from perdure.state.document import plain
from perdure.system.flow import Do, Flow

if TYPE_CHECKING:
    from perdure.session.calls.approvals import Approvals
    from perdure.session.calls.effects import Effects
    from perdure.session.calls.read_cache import ReadCache
    from perdure.session.inbox import Inbox
    from perdure.session.journal import Journal
    from perdure.state.document import TrackedDict

DRY = "dry run: nothing is called"
"""What is said of a call that a dry run has not made."""


class SameCalls:
    """What is known of a call before it is made."""

    def __init__(
        self, journal: Journal, inbox: Inbox, effects: Effects, approvals: Approvals, cache: ReadCache
    ) -> None:
        self._journal = journal
        self._inbox = inbox
        self._effects = effects
        self._approvals = approvals
        self._cache = cache
        self._others: tuple[int, OtherBranches] | None = None

    def kept(self, tool: Tool, digest: str, args: dict[str, Any]) -> Flow[dict[str, Any] | None]:
        """What the same call returned lately: here, on another branch, or in another session of the owner."""
        if tool.cache is None:
            return None
        wanted = declared(tool, digest, args)
        hit = yield from self._cache.find(wanted)
        if hit is None and (tool.read or self._journal.settings.effects != "live"):
            others = yield from self._other_branches()
            hit = plain(others.kept.get(wanted["name"]))
        return hit if self._cache.gives(hit, wanted) else None

    def begin(self, tool: Tool, bound: dict[str, Any], digest: str, slot: str) -> Flow[TrackedDict]:
        """Plan a call that was never made on this line, unless another line has made it, or its result is kept."""
        if (hit := (yield from self.kept(tool, digest, bound))) is not None:
            record = self._effects.new(tool, bound, digest, slot)
            yield from self.finish_with(tool, record, hit)
            return record
        call = Asked(tool, bound, digest)
        if (known := (yield from self._effects.take_settled(call, slot))) is not None:
            record = self._effects.new(tool, bound, digest, slot)
            record["reused"] = known["id"]
            _with_problem(record, known)
            yield from self._effects.done(tool, record, known["result"])
            return record
        check_awaited(tool, self._journal.gate)
        if (record := self._left(call, slot)) is not None:
            if record["status"] == "waiting":
                yield from self._effects.write_waiting(record)
            return record
        if tool.cache is not None:
            # Before there is a record: who is held back has not called.
            self.hold_back(declared(tool, digest, bound)["name"])
        reused: Any = None
        if self._journal.settings.effects != "live":
            if (record := (yield from self._awaited(call, slot))) is not None:
                if record["status"] == "waiting":
                    yield from self._effects.write_waiting(record)
                return record
            reused = yield from self._reuse(call, slot)
            if reused is None and self._journal.settings.effects == "dry":
                raise CallError(f"dry run: {tool.name} is not called")
        before = self._effects.raised_before(call, slot)
        record = self._effects.new(tool, bound, digest, slot)
        if reused is not None:
            writes = self._taken_over(record, reused)
            yield from self._effects.done(tool, record, reused.result, writes)
        elif before is not None and (refused := self._repeat(tool, record, *before)):
            yield from self._effects.finish(record, "failed", None, refused)
        else:
            if self._journal.settings.effects != "live":
                yield from self._say_if_edited(record, slot)
            if claims(record):
                # A claim names it, so it must be known here after a crash.
                yield from self._journal.write(Kind.PLANNED, x=about(record))
        return record

    def begin_of_answer(self, tool: Tool, bound: dict[str, Any], slot: str, call: str) -> Flow[TrackedDict]:
        """The same for a call of a model's answer, which names it ``call``; the commit of the answer writes it.

        That another line has made it is no error here. One that is still planned then is to be asked about, or started.
        """
        wanted = asked(tool, bound)
        digest = wanted.digest
        again, asks = None, ""
        hit = yield from self.kept(tool, digest, bound)
        known = None
        if hit is None and not tool.read:
            known = yield from self._effects.take_settled(wanted, slot)
        if hit is None and known is None and not tool.read:
            if self._journal.settings.effects != "live":
                awaited = self._left(wanted, slot) or (yield from self._awaited(wanted, slot))
                if awaited is not None:
                    awaited["call"] = call
                    return awaited
            again, asks = yield from self._on_another_branch(wanted, slot)
        earlier = None if tool.read else self._effects.raised_before(wanted, slot)
        record = self._effects.new(tool, bound, digest, slot)
        record["call"] = call
        if hit is not None:
            record["reused"] = "cache"
            _with_problem(record, hit)
            self._effects.settle(record, "done", self._effects.as_recorded(tool, record, hit["result"]), None)
        elif known is not None:
            record["reused"] = known["id"]
            _with_problem(record, known)
            self._effects.settle(record, "done", self._effects.as_recorded(tool, record, known["result"]), None)
        elif again is not None:
            writes = self._taken_over(record, again)
            result = self._effects.as_recorded(tool, record, again.result)
            self._effects.settle(record, "done", result, None, writes)
        elif not tool.read and self._journal.settings.effects == "dry":
            self._effects.settle(record, "failed", None, DRY)
        elif asks and self._journal.settings.effects != "live":
            self._effects.settle(record, "failed", None, self._said_elsewhere(asks))
        elif earlier is not None and (refused := self._repeat(tool, record, *earlier)):
            self._effects.settle(record, "failed", None, refused)
        elif record["status"] != "in_doubt":
            if asks:
                record["because"] = self._same_elsewhere(asks)
            elif not tool.read:
                yield from self._say_if_edited(record, slot)
        return record

    def begin_again(
        self, tool: Tool, bound: dict[str, Any], record: TrackedDict, digest: str, slot: str
    ) -> Flow[TrackedDict]:
        """Begin a call again that has ended its run; the run goes on from it as if it had never been made."""
        id = record["id"]
        if record["status"] == "raised" and self._journal.settings.effects != "live":
            elsewhere = yield from self._other_branches()
            further, known = yield Do(elsewhere.twin, (id, record["attempt"]))
            if further and known is None:
                raise self._done_elsewhere(tool, id)
            if known is not None:
                del record[ENDED_RUN]
                record["status"] = "in_doubt"
                yield from self.reconsider(tool, record)
                return record
        self._effects.recall(record)
        record = yield from self.begin(tool, bound, digest, slot)
        if record["id"] == id:
            record["was"] = [other for other in record.get("was", ()) if other != id]
            if not record["was"]:
                del record["was"]
        return record

    def finish_with(self, tool: Tool, record: TrackedDict, hit: dict[str, Any]) -> Flow[None]:
        """Settle a call by a result that is kept of the same one."""
        record["reused"] = "cache"
        record["cache"]["at"] = hit["at"]
        _with_problem(record, hit)
        # Nothing was made: what a witness saw of it would be asked about after a restore.
        self._journal.calls.pop(record["id"], None)
        yield from self._effects.done(tool, record, hit["result"])

    def first_of(self, name: str, record: TrackedDict | None = None) -> tuple[str, TrackedDict] | None:
        """The call of this session whose result is kept under a name, while it has been made, or may have been, and
        has no outcome: with its place. Of several the one that was begun first is behind none."""
        for slot, other in self._journal.book.get("effects", {}).items():
            if other is record:
                break
            if "cache" in other and other["cache"]["name"] == name and "read" not in other and is_begun(other):
                return slot, other
        return None

    def hold_back(self, name: str, record: TrackedDict | None = None) -> None:
        """Raise while the same call of this session has no outcome: its result is kept, so nobody pays twice."""
        if (first := self.first_of(name, record)) is None:
            return
        slot, other = first
        run = slot[2:].rpartition(":")[0] if slot.startswith("r:") else ""
        where = f" in run {run!r}" if run else ""
        what = f"the same call of {other['tool']} (effect {other['id']}) was begun before{where}"
        if other["status"] in ("waiting", "planned"):
            comes = "its result comes later" if other["status"] == "waiting" else "it is to be made again"
            raise ResultPending(
                f"{what}, and {comes}. Its result is kept, so it is not made twice: "
                f"{f'go on with run {run!r}' if run else 'go on with that one'}, and call again once it has an outcome",
                other["id"],
            )
        raise InDoubt(
            f"{what}, and nobody knows whether it happened. Its result is kept, so it is not made twice: find out, "
            "then session.resolve(effect, done=result | retry=True | abort=True)",
            other["id"],
        )

    def is_over(self, slot: str, record: TrackedDict) -> bool:
        """Whether a call that is known by its arguments alone returned something whose time is over."""
        kept = record.get("cache", {})
        return slot.startswith("c:") and record["status"] == "done" and "at" in kept and not self._cache.fresh(kept)

    def reconsider(self, tool: Tool, record: TrackedDict, *, ask: bool = False) -> Flow[None]:
        """An effect that is open here may have gone further on another line, which knew it when the lines parted.

        Where all calls are made, with ``ask`` somebody has to agree to such a one first.
        """
        planned = record["status"] == "planned"
        ours = record["line"] == self._journal.line or record["attempt"] > 0
        if planned and ours and (yield from self._reported(tool, record)):
            return
        # Somebody may have paid since it was planned.
        look = planned and "cache" in record and "approval" not in record
        hit = (yield from self.kept(tool, record["digest"], plain(record["args"]))) if look else None
        if hit is not None:
            yield from self.finish_with(tool, record, hit)
            return
        if tool.read:
            return
        reused = there = None
        if self._journal.settings.effects == "live":
            planned = yield from self._planned_anew(tool, record, ask=ask)
        else:
            elsewhere = yield from self._other_branches()
            further, reused = yield Do(elsewhere.twin, (record["id"], record["attempt"]))
            there = elsewhere.open_there(record["id"]) if record["status"] != "waiting" else None
            if (
                there is not None
                and there["status"] != "waiting"
                and not (planned and further and self._journal.settings.effects == "reuse")
            ):
                there = None
            if planned and reused is None and there is None:
                if further:
                    raise self._done_elsewhere(tool, record["id"])
                reused = yield from self._reuse(_asked_by(tool, record), self._effects.place(record))
        was_asked = planned and "approval" in record
        if planned and (reused is not None or there is not None or record["line"] != self._journal.line):
            yield from self._approvals.let_go(record, ours=record["line"] == self._journal.line)
        if reused is not None and reused.given_up:
            record[GIVEN_UP] = True
        if reused is not None and reused.error is not None:
            record["reported"] = True
            self._effects.did_not_happen(record)
            yield from self._effects.finish(record, "failed", None, reused.error)
        elif reused is not None:
            writes = self._taken_over(record, reused)
            yield from self._effects.done(tool, record, reused.result, writes)
        elif there is not None:
            self._effects.become(record, there)
            if record["status"] == "waiting":
                yield from self._effects.write_waiting(record)
        elif planned and record["line"] != self._journal.line:
            record["line"] = self._journal.line
            if not record["attempt"]:
                # Not made anywhere yet, and both lines may: each does it under an id, and with an approval, of its own.
                # One that was made before, and is to be made again, is still that one: its provider knows it by its id.
                self._rename(record)
                if was_asked:
                    # On this line nobody has agreed, whatever the reason was.
                    record["approval"] = ""

    def give_way(self, record: TrackedDict, effect: str) -> Flow[None]:
        """A planned call was made on another line since: it is not made here, and its model is told as of a new one."""
        yield from self._approvals.let_go(record, ours=record["line"] == self._journal.line)
        if record["id"] == effect:
            # What becomes of that one is told where it was made.
            self._rename(record)
            _forget_attempts(record)
        yield from self._effects.finish(record, "failed", None, self._said_elsewhere(effect))

    def _planned_anew(self, tool: Tool, record: TrackedDict, *, ask: bool) -> Flow[bool]:
        """Whether a call is only planned here; one that another line has made since is, and somebody has to agree."""
        planned = record["status"] == "planned"
        if not ask and not (planned and record["attempt"] and record["line"] != self._journal.line):
            return planned
        elsewhere = yield from self._other_branches()
        further, _ = yield Do(elsewhere.twin, (record["id"], record["attempt"]))
        made = record["id"] if further else ""
        if planned and not further:
            made = yield Do(elsewhere.report, (_asked_by(tool, record), self._effects.place(record)))
        if ask and made:
            yield from self._have_agreed(record, self._same_elsewhere(made))
        if further:
            # Another call than that one, also for whoever knows calls by their ids: of no line yet, it gets its own.
            _forget_attempts(record)
            record.update(status="planned", line=-1)
        return record["status"] == "planned"

    def _have_agreed(self, record: TrackedDict, because: str) -> Flow[None]:
        """Have somebody agree to a call for this reason; who was asked without knowing it is asked anew."""
        request = self._approvals.of_call(record)
        if request is not None and record["line"] == self._journal.line:
            if because in (record.get("because"), request.get("because")):
                return
            if not record["attempt"]:
                yield from self._approvals.let_go(record, ours=True)
        record["because"] = because

    def is_known_after_edit(self, tool: Tool, bound: dict[str, Any], record: TrackedDict) -> Flow[bool]:
        """Whether a call that a person has changed is not simply made: it is the same as an earlier one by now.

        All that holds for a call that is asked for once more holds for it, as if these arguments had been asked for.
        """
        if record["attempt"] or REPEATS in record:
            return False
        place, call = self._effects.place(record), Asked(tool, bound, record["digest"])
        hit = yield from self.kept(tool, call.digest, bound)
        known = hit or (yield from self._effects.take_settled(call, place))
        if known is not None:
            self._approvals.use(record)
            if hit is not None:
                yield from self.finish_with(tool, record, hit)
            else:
                record["reused"] = known["id"]
                yield from self._effects.done(tool, record, known["result"])
            return True
        if (before := self._effects.raised_before(call, place)) is not None:
            id = record["id"]
            if refused := self._repeat(tool, record, *before):
                self._approvals.use(record)
                yield from self._effects.finish(record, "failed", None, refused)
                return True
            if record["id"] == id:
                yield from self._ask_once(tool, bound, record, record.pop("because"))
                return False
            self._approvals.use(record)
            record["was"] = [*record.get("was", ()), id]
            if (called := self._journal.calls.pop(id, None)) is not None:
                self._journal.calls[record["id"]] = called
            return record["status"] == "in_doubt"
        begun = next((r for r in self._begun_before(record, place) if call.is_same(r)), None)
        because = ""
        if begun is not None:
            because = f"the same call (effect {begun['id']}) was begun before, and nobody knows whether it was done"
            if begun["status"] == "waiting":
                because = f"the same call (effect {begun['id']}) was made before, and its result is still to come"
            if tool.if_unsure == "report":
                self._approvals.use(record)
                yield from self._effects.finish(record, "failed", None, f"{because}: it is refused until that is known")
                return True
        else:
            others = yield from self._other_branches()
            if made := (yield Do(others.report, (call, place))):
                because = self._same_elsewhere(made)
        if because:
            yield from self._ask_once(tool, bound, record, because)
        return False

    def _begun_before(self, record: TrackedDict, place: str) -> list[TrackedDict]:
        """Calls of this session that were begun and have no outcome, and that may be the same as the one there."""
        effects = self._journal.book.get("effects", {}).items()
        return [
            other
            for there, other in effects
            if other is not record
            and "read" not in other
            and is_begun(other)
            and is_same_call(place, there) is not False
        ]

    def _ask_once(self, tool: Tool, bound: dict[str, Any], record: TrackedDict, because: str) -> Flow[None]:
        """Have somebody agree to a call for this reason, unless he has: who agreed before did not know of it."""
        request = self._approvals.of_call(record)
        if because in (record.get("because"), request["because"] if request is not None else ""):
            return
        record["because"] = because
        if request is not None:
            request["status"] = "stale"
        facts = yield from self._approvals.facts_of(tool, bound, record)
        yield from self._approvals.ask(tool, bound, record, facts, because)

    def _reported(self, tool: Tool, record: TrackedDict) -> Flow[bool]:
        """Whether somebody has reported the outcome of a call that is to be made: it is not, and nobody is asked."""
        if not (yield from self._inbox.waiting(f"outcome:{record['id']}")):
            return False
        request = self._approvals.of_call(record)
        if request is not None and request["status"] in ("pending", "approved"):
            yield from self._approvals.outdate(request)
        record.pop("question", None)
        return (yield from self._effects.take_posted(tool, record))

    def _rename(self, record: TrackedDict) -> None:
        """Have a call be another one than that which was planned before the lines parted."""
        record["was"] = [*record.get("was", ()), record["id"]]
        record.update(id=new_effect_id(), at=self._journal.kernel.clock.wall())

    def _repeat(self, tool: Tool, record: TrackedDict, before: dict[str, Any], is_taken: bool) -> str:
        """A call is asked for again of which nobody knows what it did: go on under its id, ask somebody, or say why it
        is refused. Under its id only one goes on: for whoever asks for another one meanwhile, somebody is asked."""
        known = "the answer to the same call was lost, and nobody knows whether it was done"
        if before["error"]:
            known = f"the same call ended with {before['error']}, and what it had changed by then is not known"
        if callable(tool.if_unsure) and not is_taken:
            # What became of it is asked first.
            record.update(id=before["id"], attempt=before["attempt"], at=before["at"], status="in_doubt")
        elif tool.if_unsure == "retry" and not is_taken and key_holds(tool, before["at"], self._journal.kernel.clock):
            record.update(id=before["id"], attempt=before["attempt"], at=before["at"])
            record[UNSETTLED] = True
        elif tool.if_unsure == "report":
            record[REPEATS] = before["id"]
            return f"{known}: it is refused until a person has said what became of that one (effect {before['id']})"
        else:
            record[REPEATS] = before["id"]
            record["because"] = known
        return ""

    def _say_if_edited(self, record: TrackedDict, slot: str) -> Flow[None]:
        """Have somebody agree to a call that a person has had made otherwise on another branch, and tell him so."""
        others = yield from self._other_branches()
        if "because" not in record and record["digest"] in others.edited:
            effect, call, there = others.edited[record["digest"]]
            if is_same_call(slot, there) is not False:
                said = f"the same was asked for on another branch, and made there as {call} (effect {effect})"
                record["because"] = said

    def _left(self, call: Asked, slot: str) -> TrackedDict | None:
        """The same call, where a rewind has left it and nobody knows what became of it: it is gone on with."""
        return self._effects.take_left(call, slot) if self._journal.settings.effects == "reuse" else None

    def _awaited(self, call: Asked, slot: str) -> Flow[TrackedDict | None]:
        """The same call on another line, where it has no outcome: this line waits for its result, too, or does what its
        tool declares for one of which nobody knows whether it happened. A dry run only takes what is reported of it.
        """
        others = yield from self._other_branches()
        there = yield Do(others.begun, (call, slot))
        if there is None or not call.goes_on_with(there):
            return None
        goes_on = there["status"] == "waiting" or self._journal.settings.effects == "reuse"
        if not goes_on and not (yield from self._inbox.waiting(f"outcome:{there['id']}")):
            return None
        others.use(there["id"])
        return self._effects.go_on_with(call, slot, there)

    def _reuse(self, call: Asked, slot: str) -> Flow[Outcome | None]:
        """What the same call returned on the line we came from; refuses when any other line has made it."""
        reused, other = yield from self._on_another_branch(call, slot)
        if other:
            raise self._done_elsewhere(call.tool, other)
        return reused

    def _on_another_branch(self, call: Asked, slot: str) -> Flow[tuple[Outcome | None, str]]:
        """The outcome to reuse, or the id of the same effect on another line."""
        others = yield from self._other_branches()
        if self._journal.settings.effects == "live":
            return None, (yield Do(others.report, (call, slot)))
        reused = yield Do(others.reuse, (call, slot))
        return reused, "" if reused is not None else (yield Do(others.report, (call, slot)))

    def _other_branches(self) -> Flow[OtherBranches]:
        journal = self._journal
        if self._others is None or self._others[0] != journal.loads:
            found = yield Do(OtherBranches, (journal.kernel, journal.id, stands_at(journal), journal.book))
            self._others = (journal.loads, found)
        return self._others[1]

    def _taken_over(self, record: TrackedDict, found: Outcome) -> CallState | None:
        """Note whose outcome a call gets, and write what it had written into the state.

        The model must know where that was made otherwise than it had asked.
        """
        record["reused"] = found.effect
        _with_problem(record, {PROBLEM: found.problem})
        if found.edited:
            record.update(args=found.args, edited=True)
        return redone(self._journal, found.writes)

    def _said_elsewhere(self, effect: str) -> str:
        where, known = self._told_of(effect)
        live = 'run with effects="live" to do it again'
        if known == "done":
            return f"was done {where} already (effect {effect}): {live}"
        if known == "waiting":
            return f"was made {where} (effect {effect}), and its result is still to come: {live}"
        return (
            f"was begun {where} (effect {effect}), and nobody knows whether it was done: do not assume either; {live}"
        )

    def _same_elsewhere(self, effect: str) -> str:
        """Why somebody is asked about a call that was made on another line."""
        where, known = self._told_of(effect)
        if known == "done":
            return f"the same was done {where} (effect {effect})"
        if known == "waiting":
            return f"the same was made {where} (effect {effect}), and its result is still to come"
        return f"the same was begun {where} (effect {effect}), and nobody knows whether it was done"

    def _done_elsewhere(self, tool: Tool, effect: str) -> DoneElsewhere:
        where, known = self._told_of(effect)
        unknown = "" if known else ", and nobody knows whether it was done"
        msg = (
            f"{tool.name} was already called with these arguments {where} (effect {effect}){unknown}: "
            'open the session with effects="live" to do it again'
        )
        return DoneElsewhere(msg, effect)

    def _told_of(self, effect: str) -> tuple[str, str]:
        """Where an effect was made that is not of this line, and what is known of it, in a word."""
        return ("on another branch", "") if self._others is None else self._others[1].told(effect)


def _with_problem(record: TrackedDict, kept: dict[str, Any]) -> None:
    """Of the same call that was done, and whose result cannot be kept, the same is told here."""
    if kept.get(PROBLEM):
        record[PROBLEM] = kept[PROBLEM]


def _asked_by(tool: Tool, record: TrackedDict) -> Asked:
    return Asked(tool, plain(record["args"]), record["digest"])


def _forget_attempts(record: TrackedDict) -> None:
    """What was begun under the id of a call is not this one: of it nothing was made yet."""
    for name in ("error", "lost", "lost_since", "retry_at", "handle", "progress", "question", UNSETTLED):
        record.pop(name, None)
    record["attempt"] = 0
