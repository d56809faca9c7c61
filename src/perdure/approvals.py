"""Approvals as records: bound to one effect, its exact arguments and the facts they rest on; used once."""

# pyright: reportPrivateUsage=false
# The handle is one thing in several rooms: they share its inner parts.
from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.effects import Effects
from perdure.errors import ApprovalNeeded, InvalidInput
from perdure.flow import Flow, Invoke
from perdure.model import Kind, Status
from perdure.tracked import plain
from perdure.values import same

if TYPE_CHECKING:
    from perdure.tools import Tool
    from perdure.tracked import TrackedDict

APPROVAL_TTL = 7 * 24 * 3600
"""Seconds a request stays open."""


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
    """pending, approved, rejected, expired, stale (what it rested on changed) or used"""
    by: str = ""
    reason: str = ""
    decided: int = 0


def decision(approved: bool, by: str, reason: str, at: int) -> dict[str, Any]:
    """The body of a decision posted to a session's inbox."""
    if not by:
        msg = "a decision records who took it: pass by="
        raise InvalidInput(msg)
    return {"approved": approved, "by": by, "reason": reason, "at": at}


class Approvals(Effects):
    """The flows of a handle that wait for people."""

    def approvals(self, status: str | None = "pending") -> list[Approval]:
        """The requests of this branch with that status (None: all)."""
        records = (plain(r) for r in self._book.get("approvals", {}).values())
        return [Approval(**r) for r in records if status is None or r["status"] == status]

    def _gate_call(self, tool: Tool, bound: dict[str, Any], record: TrackedDict) -> Flow[bool]:
        """Let a call pass when nobody has to agree, or somebody has, to exactly this."""
        if record["attempt"] or not tool.needs_approval(bound):
            return True
        facts = (yield Invoke(tool.facts, (), bound)) if tool.facts is not None else None
        request: TrackedDict | None = self._book.get("approvals", {}).get(record.get("approval", ""))
        if request is None:
            yield from self._ask(tool, bound, record, facts)
            return False
        message = yield from self._take_special("decision", f"decision:{request['id']}")
        now = self.kernel.clock.wall()
        if message is not None and request["status"] == "pending":
            decided = message.body
            request.update(by=decided["by"], reason=decided["reason"], decided=decided["at"])
            request["status"] = "approved" if decided["approved"] else "rejected"
        if request["status"] in ("pending", "approved") and now >= request["expires"]:
            request["status"] = "expired"
        if request["status"] == "pending":
            raise ApprovalNeeded(_words(request), Approval(**plain(request)))
        if request["status"] != "approved":
            yield from self._finish(record, "failed", None, f"approval {request['status']}: {request['reason']}")
            return False
        fine = tool.recheck(plain(request["facts"]), facts) if tool.recheck else same(plain(request["facts"]), facts)
        if not fine:
            request["status"] = "stale"
            yield from self._ask(tool, bound, record, facts)
        request["status"] = "used"
        return True

    def _ask(self, tool: Tool, bound: dict[str, Any], record: TrackedDict, facts: Any) -> Flow[None]:
        now = self.kernel.clock.wall()
        id = "ap_" + os.urandom(12).hex()
        ttl = tool.approval_valid_for if tool.approval_valid_for is not None else APPROVAL_TTL
        approval = Approval(id, record["id"], tool.name, bound, facts, now, now + int(ttl * 1000), "pending")
        self._book.setdefault("approvals", {})[id] = approval._asdict()
        record["approval"] = id
        x = {"effect": record["id"], "tool": tool.name, "approval": id}
        yield from self._write(Kind.APPROVAL, x=x, status=Status.WAITING_APPROVAL)
        raise ApprovalNeeded(_words(approval._asdict()), approval)


def _words(request: Any) -> str:
    return (
        f"{request['tool']} waits for approval {request['id']}: "
        "decide with db.approve(session, approval, by=...) or db.reject(...), then call again"
    )
