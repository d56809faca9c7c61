"""The effects of a session: planned, started, done, failed or in doubt. Records in its book, and where it stands.

What makes a call is in ``calls``; here a call is only put down, found again and settled.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

from perdure import telemetry
from perdure.errors import CallError, NotFound
from perdure.model import Kind, Status
from perdure.state.document import plain
from perdure.state.values import refusal
from perdure.system import faults

if TYPE_CHECKING:
    from perdure.session.inbox import Inbox
    from perdure.session.journal import Journal
    from perdure.session.tools import Tool
    from perdure.state.document import TrackedDict
    from perdure.system.flow import Flow

OPEN = ("planned", "started", "in_doubt", "waiting")
"""Where a call without an outcome may stand."""
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

    def __init__(self, journal: Journal, inbox: Inbox) -> None:
        self._journal = journal
        self._inbox = inbox
        self.observer: Observer | None = None

    def resolve(
        self, effect: str, *, done: Any = _UNSET, retry: bool = False, abort: bool = False, by: str = ""
    ) -> Flow[None]:
        """Settle an effect in doubt: it happened with this result, or may be tried again, or is given up."""
        self._journal.guard.check()
        if (done is not _UNSET) + retry + abort != 1:
            msg = "resolve with exactly one of done=result, retry=True, abort=True"
            raise CallError(msg)
        record = self.find(effect)
        if record["status"] not in ("started", "in_doubt", "unknown"):
            msg = f"effect {effect} is {record['status']}, not in doubt"
            raise CallError(msg)
        record["resolved_by"] = by
        x = {"effect": effect, "tool": record["tool"]}
        if done is not _UNSET:
            yield from self.finish(record, "done", done, None)
        elif abort:
            yield from self.finish(record, "failed", None, "given up")
        else:
            record["status"] = "planned"
            yield from self._journal.write(Kind.PLANNED, x=x, status=self.session_status())

    def all(self) -> list[dict[str, Any]]:
        """The effects this branch still holds records of, oldest first."""
        return [plain(r) for r in self._journal.book.get("effects", {}).values()]

    def session_status(self) -> str:
        """Where the session stands once what is being written is written."""
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

    def find(self, effect: str) -> TrackedDict:
        for record in self._journal.book.get("effects", {}).values():
            if record["id"] == effect:
                return record
        msg = f"session {self._journal.id!r} has no effect {effect!r} on branch {self._journal.branch!r}"
        raise NotFound(msg)

    def new(self, tool: Tool, bound: dict[str, Any], digest: str, slot: str) -> TrackedDict:
        effects = self._journal.book.setdefault("effects", {})
        effects[slot] = {
            "id": new_effect_id(),
            "tool": tool.name,
            "digest": digest,
            "args": bound,
            "status": "planned",
            "attempt": 0,
            "at": self._journal.kernel.clock.wall(),
            "line": self._journal.line,
        }
        return effects[slot]

    def take_posted(self, record: TrackedDict) -> Flow[bool]:
        """Take an outcome that was posted under the effect's id; whether there was one."""
        key = f"outcome:{record['id']}"
        late = yield from self._inbox.take_by_key("outcome", key)
        if late is not None:
            yield from self.finish(record, "done", late.body, None)
            return True
        late = yield from self._inbox.take_by_key("failure", key)
        if late is not None:
            yield from self.finish(record, "failed", None, str(late.body))
        return late is not None

    def finish(self, record: TrackedDict, status: str, result: Any, error: str | None) -> Flow[None]:
        """Make an outcome durable."""
        self.settle(record, status, result, error)
        if self.observer is not None and self.observer.may_wait(record):
            return
        x: dict[str, Any] = {"effect": record["id"], "tool": record["tool"]}
        if status != "done":
            x["error"] = error
        kind = Kind.DONE if status == "done" else Kind.FAILED
        faults.point("call.before_outcome")
        yield from self._journal.write(kind, x=x, status=self.session_status, stamp=(record, "where"))
        faults.point("call.after_outcome")

    def settle(self, record: TrackedDict, status: str, result: Any, error: str | None) -> None:
        """Put an outcome into the journal; the next commit makes it durable."""
        record["status"] = status
        if "reused" in record:
            telemetry.replayed(record["tool"], "cache" if record["reused"] == "cache" else "branch")
        if status == "done":
            # It happened: that must be recorded even though what it returned cannot be.
            if problem := refusal(result):
                record["problem"] = problem
            record["result"] = None if problem else result
        else:
            record["error"] = error
        if self.observer is not None:
            self.observer.outcome(record)

    def retire(self, prefix: str) -> None:
        """Forget settled calls but for their digests: nobody will ask for them by their place again."""
        effects = self._journal.book.get("effects", {})
        done = self._journal.book.setdefault("done", {})
        for slot in [s for s in effects if s.startswith(prefix)]:
            record = effects[slot]
            if record["status"] in OPEN:
                continue
            if "reused" in record:
                if record["reused"] != "cache":
                    self._journal.book.setdefault("reused", []).append(record["reused"])
            elif record["status"] == "done":
                # Without a place of its own the outcome came with a sibling's commit: it is at the head, in any case.
                where = record.get("where", [self._journal.line, self._journal.step])
                done.setdefault(record["digest"], []).append([record["id"], *where])
            elif record["status"] == "unknown":
                # Another line that would do it must be told, and there is no outcome to give it.
                done.setdefault(record["digest"], []).append([record["id"], self._journal.line, 0])
            del effects[slot]


def new_effect_id() -> str:
    """A name for an effect, sent to providers as an idempotency key."""
    return "ef_" + os.urandom(12).hex()
