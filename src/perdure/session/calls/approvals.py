"""Approvals as records: bound to one effect, its exact arguments and the facts they rest on; used once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure import telemetry
from perdure.errors import ApprovalNeeded, InvalidInput
from perdure.model import Kind, Status
from perdure.session.calls.identity import ASKED_ARGS, digest_of
from perdure.session.calls.read_cache import declared
from perdure.session.calls.records import OPEN, kept_as
from perdure.session.calls.schemas import note_arguments_schema
from perdure.session.inbox import open_entry
from perdure.session.tools.exceptions import rule
from perdure.state.document import plain
from perdure.state.values import same
from perdure.system.flow import Flow, Invoke
from perdure.system.wording import storable

if TYPE_CHECKING:
    from perdure.model import InboxEntry
    from perdure.session.calls.effects import Effects
    from perdure.session.inbox import Inbox
    from perdure.session.journal import Journal
    from perdure.session.tools.context import Asking, Contexts
    from perdure.session.tools.declaration import Tool
    from perdure.state.document import TrackedDict

APPROVAL_TTL = 7 * 24 * 3600
"""Seconds a request stays open."""
SETTLED_KEPT = 100
"""Requests kept that nothing waits for any more, the newest; earlier checkpoints have those before."""


class Approval(NamedTuple):
    """A request for a person's agreement to one call, and what became of it."""

    id: str
    effect: str
    tool: str
    args: dict[str, Any]
    facts: Any
    asked: int
    expires: int
    status: str
    """pending, approved, rejected, expired, stale (what it rested on changed), withdrawn or used"""
    by: str = ""
    reason: str = ""
    decided: int = 0
    because: str = ""
    """Why somebody is asked, when it is not the tool's own rule."""
    question: str = ""
    """What the tool wants to know, when it asks for more than agreement."""
    schema: dict[str, Any] | None = None


def decision(approved: bool, by: str, reason: str, at: int, **more: Any) -> dict[str, Any]:
    """The body of a decision posted to a session's inbox; no two are alike, so that none is taken for another."""
    if not by:
        raise InvalidInput("a decision records who took it: pass by=")
    return {"approved": approved, "by": by, "reason": storable(reason), "at": at, "id": os.urandom(8).hex(), **more}


class Approvals:
    """The requests of a session for people's agreement, and what they decided."""

    def __init__(self, journal: Journal, inbox: Inbox, effects: Effects, contexts: Contexts) -> None:
        self._journal = journal
        self._contexts = contexts
        self._inbox = inbox
        self._effects = effects

    def of_call(self, record: TrackedDict) -> TrackedDict | None:
        """The request that a call waits for, or was agreed to with."""
        return self._journal.book.get("approvals", {}).get(record.get("approval", ""))

    def all(self, status: str | None = "pending") -> list[Approval]:
        """The requests of this branch with that status (None: all)."""
        records = (plain(r) for r in self._journal.book.get("approvals", {}).values())
        return [Approval(**r) for r in records if status is None or r["status"] == status]

    def facts_of(self, tool: Tool, bound: dict[str, Any], record: TrackedDict) -> Flow[Any]:
        """What agreement to a call rests on now, as it is recorded; None where its tool declares nothing."""
        if tool.facts is None:
            return None
        with rule("facts", tool, bound):
            given = {**tool.types.arguments(bound), **self._contexts.asked(tool.facts, record)}
            return tool.facts_types.result_as_json((yield Invoke(tool.facts, (), given)))

    def needed(self, tool: Tool, bound: dict[str, Any], record: TrackedDict) -> Flow[bool]:
        """Whether a person must agree to a call, by its tool's own rule."""
        if not callable(tool.approve):
            return bool(tool.approve)
        with rule("approve", tool, bound):
            given = self._contexts.asked(tool.approve, record)
            return _yes_or_no((yield Invoke(tool.approve, (tool.types.arguments(bound),), given)))

    def gate(self, tool: Tool, bound: dict[str, Any], record: TrackedDict) -> Flow[bool]:
        """Let a call pass when nobody has to agree, or somebody has, to exactly this."""
        if "question" in record:
            return (yield from self._answered(record))
        # A decision may have come with other arguments than whoever calls again knows of.
        bound = plain(record["args"]) if "edited" in record else bound
        if record["attempt"]:
            return True
        if not ("approval" in record or "because" in record or (yield from self.needed(tool, bound, record))):
            return True
        request: TrackedDict | None = self.of_call(record)
        if request is None:
            facts = yield from self.facts_of(tool, bound, record)
            yield from self.ask(tool, bound, record, facts, record.get("because", ""))
            return False
        # All that the program's own functions say is asked before the decision is taken: where one of them fails, the
        # decision is still there.
        said = yield from self._said(request)
        args, facts, because = bound, None, ""
        if said.get("approved"):
            if said.get("args") is not None:
                try:
                    args = tool.edited(said["args"])
                except InvalidInput as e:
                    because = f"the edited arguments do not fit: {e}"
            changed = not same(args, bound)
            if not changed or (yield from self.needed(tool, args, record)):
                facts = yield from self.facts_of(tool, args, record)
                if not because and not (
                    yield from self._still_good(tool, args, record, plain(request["facts"]), facts)
                ):
                    because = "what the agreement rested on has changed"
                    if changed:
                        because = f"{said['by']} has changed the arguments, and has not seen what these rest on"
        # One that has come since is for the next time: what it rests on was not read.
        yield from self._decision(request, take=bool(said))
        if request["status"] != "approved":
            yield from self._effects.finish(record, "failed", None, _turned_down(request))
            return False
        if not same(args, bound):
            self._edit_call(tool, record, request, args)
        if because:
            request["status"] = "stale"
            yield from self.ask(tool, args, record, facts, because)
        return True

    def _still_good(self, tool: Tool, bound: dict[str, Any], record: TrackedDict, then: Any, now: Any) -> Flow[bool]:
        if tool.recheck is None:
            return same(then, now)
        with rule("recheck", tool, bound):
            typed = tool.facts_types.result
            given = self._contexts.asked(tool.recheck, record)
            return _yes_or_no((yield Invoke(tool.recheck, (typed(then), typed(plain(now))), given)))

    def _said(self, request: TrackedDict) -> Flow[dict[str, Any]]:
        """What was decided on a request, as far as anybody has; what is not taken yet is left where it is."""
        if request["status"] != "pending":
            return {"approved": request["status"] == "approved"}
        waiting = yield from self._inbox.waiting(f"decision:{request['id']}")
        return open_entry(self._journal.kernel, waiting[0]).body if waiting else {}

    def use(self, record: TrackedDict) -> None:
        """A call is about to be made: what was agreed to is used up by it."""
        request = self.of_call(record)
        if request is not None and request["status"] == "approved":
            request["status"] = "used"

    def unuse(self, record: TrackedDict) -> None:
        """A call was not made after all, and this process knows: the agreement stands."""
        request = self.of_call(record)
        if request is not None and request["status"] == "used" and not record["attempt"]:
            request["status"] = "approved"

    def _decision(self, request: TrackedDict, *, take: bool = True) -> Flow[dict[str, Any]]:
        """Take the decision on a request if there is one; ``ApprovalNeeded`` while it is open."""
        key = f"decision:{request['id']}"
        message = (yield from self._inbox.take_by_key("decision", key)) if take else None
        decided: dict[str, Any] = {}
        was = request["status"]
        if message is not None and request["status"] == "pending":
            decided = message.body
            request.update(by=decided["by"], reason=decided["reason"], decided=decided["at"])
            request["status"] = "approved" if decided["approved"] else "rejected"
        # One that was taken in time counts whenever it is taken up: a late one is not let into the inbox.
        if request["status"] == "pending" and self._journal.kernel.clock.wall() >= request["expires"]:
            request.update(status="expired", reason="nobody decided in time")
        if request["status"] == "pending":
            raise ApprovalNeeded(_words(request), Approval(**plain(request)))
        if was == "pending":
            telemetry.decided(request, self._journal.kernel.clock.wall())
        return decided

    def _open_request(self, record: TrackedDict) -> Flow[tuple[TrackedDict | None, list[InboxEntry]]]:
        """The request that a call waits for, if it does, and what was decided on it and is not taken yet."""
        request = self.of_call(record)
        if record["status"] != "planned" or request is None or request["status"] != "pending":
            return None, []
        key = f"decision:{request['id']}"
        return request, (yield from self._inbox.waiting(key))

    def withdraw(self, record: TrackedDict, why: str) -> Flow[bool]:
        """Take the request of a call back, unless somebody has decided meanwhile; the call then did not happen."""
        request, decided = yield from self._open_request(record)
        if request is None or decided:
            return False
        request.update(status="withdrawn", reason=why, decided=self._journal.kernel.clock.wall())
        telemetry.decided(request, request["decided"])
        record.pop("question", None)
        yield from self._effects.finish(record, "failed", None, f"the request for approval was withdrawn: {why}")
        return True

    def settle_refusal(self, record: TrackedDict) -> Flow[bool]:
        """Settle a call that a person has turned down, whatever has become of its tool; whether there was such a no."""
        request, decided = yield from self._open_request(record)
        if request is None or not decided or open_entry(self._journal.kernel, decided[0]).body["approved"]:
            return False
        yield from self._decision(request)
        yield from self._effects.finish(record, "failed", None, _turned_down(request))
        return True

    def let_go(self, record: TrackedDict, *, ours: bool) -> Flow[None]:
        """Have a call wait for its request no longer, nor, where it is ``ours``, for what was decided on it.

        Why somebody was asked stays with the call.
        """
        request = self.of_call(record)
        record.pop("approval", None)
        record.pop("question", None)
        if request is None:
            return
        if request.get("because"):
            record.setdefault("because", request["because"])
        if request["status"] in ("pending", "approved"):
            if ours:
                yield from self.outdate(request)
            request["status"] = "stale"

    def outdate(self, request: TrackedDict) -> Flow[None]:
        """What was to be agreed to has changed: a request is void, with the decision that was taken on it."""
        message = yield from self._inbox.take_by_key("decision", f"decision:{request['id']}")
        if message is not None:
            request.update(by=message.body["by"], reason=message.body["reason"], decided=message.body["at"])
        request["status"] = "stale"

    def _answered(self, record: TrackedDict) -> Flow[bool]:
        """Whether the question a tool has put was answered: it is then run again and finds the answer."""
        request = self._journal.book["approvals"][record["question"]]
        decided = yield from self._decision(request)
        del record["question"]
        if request["status"] != "approved":
            yield from self._effects.finish(
                record, "failed", None, f"question {request['status']}: {request['reason']}"
            )
            return False
        request["status"] = "used"
        record["answers"] = [*record.get("answers", ()), decided.get("answer")]
        return True

    def ask_person(self, tool: Tool, bound: dict[str, Any], record: TrackedDict, asking: Asking) -> Flow[None]:
        """Nothing was done yet: put the question, and the call aside."""
        record["status"] = "planned"
        yield from self.ask(tool, bound, record, None, question=asking.question, schema=asking.schema)

    def _edit_call(self, tool: Tool, record: TrackedDict, request: TrackedDict, args: dict[str, Any]) -> None:
        """The decision came with other arguments: they take the place of those that were asked for."""
        request["args"] = args
        record.setdefault("asked", record["digest"])
        record.setdefault(ASKED_ARGS, plain(record["args"]))
        record["args"] = args
        record["edited"] = True
        record["digest"] = digest_of(tool, args)
        if "cache" in record:
            record["cache"] = declared(tool, record["digest"], args)
            if (call := self._journal.calls.get(record["id"])) is not None:
                self._journal.calls[record["id"]] = call._replace(kept=kept_as(record))

    def ask(
        self, tool: Tool, bound: dict[str, Any], record: TrackedDict, facts: Any, because: str = "", **asked: Any
    ) -> Flow[None]:
        """Ask for agreement to a call, durably; ``ApprovalNeeded`` tells the caller."""
        approval = self.request(tool, bound, record, facts, because, **asked)
        x = {"effect": record["id"], "tool": tool.name, "approval": approval.id}
        yield from self._journal.write(Kind.APPROVAL, x=x, status=Status.WAITING_APPROVAL)
        raise ApprovalNeeded(_words(approval._asdict()), approval)

    def request(
        self, tool: Tool, bound: dict[str, Any], record: TrackedDict, facts: Any, because: str = "",
        *, question: str = "", schema: dict[str, Any] | None = None,
    ) -> Approval:  # fmt: skip
        """Put a request into the journal; the next commit makes it durable."""
        now = self._journal.kernel.clock.wall()
        id = "ap_" + os.urandom(12).hex()
        ttl = tool.approval_valid_for if tool.approval_valid_for is not None else APPROVAL_TTL
        approval = Approval(
            id, record["id"], tool.name, bound, facts, now, now + int(ttl * 1000), "pending",
            because=because, question=question, schema=schema,
        )  # fmt: skip
        requests = self._journal.book.setdefault("approvals", {})
        self._forget_oldest(requests)
        requests[id] = approval._asdict()
        record["approval"] = id
        if not question:
            note_arguments_schema(self._journal.book, tool, record)
        if question:
            record["question"] = id
        telemetry.asked(tool.name)
        return approval

    def _forget_oldest(self, requests: TrackedDict) -> None:
        effects = self._journal.book.get("effects", {}).values()
        needed = {
            record.get(role) for record in effects if record["status"] in OPEN for role in ("approval", "question")
        }
        settled = [id for id, r in requests.items() if r["status"] not in ("pending", "approved") and id not in needed]
        for id in settled[:-SETTLED_KEPT]:
            del requests[id]


def _yes_or_no(answer: Any) -> bool:
    """What a rule says; one that forgot to return, or answers "false", has not said that the call may be made."""
    if not isinstance(answer, bool):
        raise TypeError(f"it gave {answer!r:.60}, and must return True or False")
    return answer


def _words(request: Any) -> str:
    return (
        f"{request['tool']} waits for approval {request['id']}: "
        "decide with db.approve(session, approval, by=...) or db.reject(...), then call again"
    )


def _turned_down(request: TrackedDict) -> str:
    """Why a call was not made; whoever decides need not give a reason."""
    return f"approval {request['status']}" + (f": {request['reason']}" if request["reason"] else "")
