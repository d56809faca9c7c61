"""The effect journal: planned, started, done, failed or in doubt. A call is written down before it is made.

Identity of a call: inside a run its place in the run; with ``options(key=...)`` that key; otherwise tool, version
and arguments. A recorded outcome is returned, never made again.
"""

# pyright: reportPrivateUsage=false
# The handle is one thing in several rooms: they share its inner parts.
from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from perdure import telemetry
from perdure.errors import CallError, Diverged, DoneElsewhere, EffectFailed, InDoubt, NotFound, NotJson, ResultPending
from perdure.model import Kind, Status
from perdure.session.effects_on_other_branches import Elsewhere, find_elsewhere
from perdure.session.read_cache import Caching
from perdure.session.tools import Asking, Context, Done, Later, NotDone, Tool, Unknown, as_tool, call_digest, runnable
from perdure.state.document import plain
from perdure.state.values import refusal
from perdure.system import faults
from perdure.system.flow import Do, Flow, Invoke

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.state.document import TrackedDict

MAX_ERROR = 2000
"""Characters of an error's text that are kept."""
MAX_ATTEMPTS = 3
"""How often one call of ``s.call`` tries a tool that keeps raising before it asks a human."""
_UNSET: Any = object()


class Effects(Caching):
    """The flows of a handle that call tools."""

    _calls = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._not_made: set[str] = set()
        """Effects written as started, to the best of our knowledge, and never made: the write's answer was lost."""

    def _call_flow(self, fn: Callable[..., Any] | Tool, /, *args: Any, **kwargs: Any) -> Flow[Any]:
        """Call a tool, journalled: a crash at any moment neither repeats nor forgets it.

        Raises ``InDoubt`` when it was started and nobody knows whether it happened, ``EffectFailed`` when the tool
        said that it did not, ``ApprovalNeeded`` when a person must agree first.
        """
        self._usable()
        # What is known here may not be durable yet: the answer to its commit was lost.
        yield from self._resend()
        tool = as_tool(fn)
        bound = tool.bind(args, kwargs)
        digest = call_digest(tool.name, tool.version, bound)
        if tool.read:
            return (yield from self._read(tool, bound, digest))
        slot = self._slot(tool, digest)
        if self._replay is not None:
            yield from self._replay.call(self, slot, tool.name, digest)
        record: TrackedDict | None = self._book.get("effects", {}).get(slot)
        if record is not None and record.get("asked", record["digest"]) != digest:
            msg = f"{slot}: recorded as a call of {record['tool']} with other arguments than this call of {tool.name}"
            raise Diverged(msg)
        if record is None:
            record = yield from self._begin(tool, bound, digest, slot)
        elif record["status"] in ("planned", "started", "in_doubt"):
            yield from self._reconsider(tool, record)
        elif record["status"] != "waiting":
            telemetry.replayed(tool.name, "journal")
        return (yield from self._go_on(tool, bound, record))

    def _resolve_flow(
        self, effect: str, *, done: Any = _UNSET, retry: bool = False, abort: bool = False, by: str = ""
    ) -> Flow[None]:
        """Settle an effect in doubt: it happened with this result, or may be tried again, or is given up."""
        self._usable()
        if (done is not _UNSET) + retry + abort != 1:
            msg = "resolve with exactly one of done=result, retry=True, abort=True"
            raise CallError(msg)
        record = self._record(effect)
        if record["status"] not in ("started", "in_doubt", "unknown"):
            msg = f"effect {effect} is {record['status']}, not in doubt"
            raise CallError(msg)
        record["resolved_by"] = by
        x = {"effect": effect, "tool": record["tool"]}
        if done is not _UNSET:
            yield from self._finish(record, "done", done, None)
        elif abort:
            yield from self._finish(record, "failed", None, "given up")
        else:
            record["status"] = "planned"
            yield from self._write(Kind.PLANNED, x=x, status=self._standing())

    def effects(self) -> list[dict[str, Any]]:
        """The effects this branch still holds records of, oldest first."""
        return [plain(r) for r in self._book.get("effects", {}).values()]

    # -- parts ----------------------------------------------------------------------------------------------------

    def _standing(self) -> str:
        """Where the session stands once what is being written is written."""
        effects = self._book.get("effects", {}).values()
        if any(r["status"] == "in_doubt" for r in effects):
            return Status.IN_DOUBT
        if any(r["status"] == "pending" for r in self._book.get("approvals", {}).values()):
            return Status.WAITING_APPROVAL
        if any(r["status"] == "waiting" for r in effects):
            return Status.WAITING_RESULT
        if any(r["status"] == "open" for r in self._book.get("runs", {}).values()):
            return Status.RUNNING
        if self._book.get("agent", {}).get("run") is not None:
            return Status.RUNNING
        return Status.IDLE if self._until is None else Status.SLEEPING

    def _record(self, effect: str) -> TrackedDict:
        for record in self._book.get("effects", {}).values():
            if record["id"] == effect:
                return record
        msg = f"session {self.id!r} has no effect {effect!r} on branch {self.branch!r}"
        raise NotFound(msg)

    def _slot(self, tool: Tool, digest: str) -> str:
        if tool.key is not None:
            return f"k:{tool.name}:{tool.key}"
        if self._run is not None:
            self._calls += 1
            return f"r:{self._run}:{self._calls}"
        return f"c:{digest}"

    def _read(self, tool: Tool, bound: dict[str, Any], digest: str) -> Flow[Any]:
        """A read runs whenever asked, unless a recorded answer is still fresh."""
        if (hit := (yield from self._cached(tool, digest))) is not None:
            telemetry.replayed(tool.name, "cache")
            return hit[1]
        with telemetry.execute_tool(tool.name, self.id, bound, {}) as span:
            result = yield Invoke(runnable(tool), (), self._arguments(tool, bound, None))
            span.returned(result)
        if tool.cache is not None and self._replay is None:
            self._keep(digest, result, tool.cache)
            # A cached read is one somebody pays for: it is durable before anyone sees it.
            yield from self._write(Kind.DONE, x={"tool": tool.name})
            if tool.cache_scope == "shared":
                yield from self._keep_shared(tool, digest, result)
        return result

    def _arguments(self, tool: Tool, bound: dict[str, Any], record: TrackedDict | None) -> dict[str, Any]:
        if not tool.wants_context:
            return bound
        if record is None:
            return {**bound, "ctx": Context("", self.fence, self.id, 1)}
        carry = self._courier()

        def write(data: Any) -> Any:
            return carry(self._progress_flow(record, data))

        def wake(at: Any, *, key: str = "", **options: Any) -> Any:
            return carry(self._wake_later(f"{record['id']}:{key}" if key else record["id"], at=at, **options))

        more: dict[str, Any] = {"write": write, "wake": wake, "last_progress": plain(record.get("progress"))}
        more["answers"] = tuple(plain(record.get("answers", ())))
        return {**bound, "ctx": Context(record["id"], self.fence, self.id, record["attempt"], **more)}

    def _courier(self) -> Callable[[Flow[Any]], Any]:
        """Carries a flow out for a tool that is running; each kind of handle has its own way."""
        raise NotImplementedError

    def _progress_flow(self, record: TrackedDict, data: Any) -> Flow[None]:
        record["progress"] = data
        yield from self._write(Kind.PROGRESS, x={"effect": record["id"], "tool": record["tool"]})

    def _begin(self, tool: Tool, bound: dict[str, Any], digest: str, slot: str) -> Flow[TrackedDict]:
        """Plan a call that was never made on this line, unless another line has made it."""
        reused: Any = None
        if self._settings.effects != "live":
            reused = yield from self._reuse(tool, digest)
            if reused is None and self._settings.effects == "dry":
                msg = f"dry run: {tool.name} is not called"
                raise CallError(msg)
        record = self._new_record(tool, bound, digest, slot)
        if reused is not None:
            record["reused"] = reused[0]
            yield from self._finish(record, "done", reused[1], None)
        return record

    def _new_record(self, tool: Tool, bound: dict[str, Any], digest: str, slot: str) -> TrackedDict:
        effects = self._book.setdefault("effects", {})
        effects[slot] = {
            "id": _new_id(),
            "tool": tool.name,
            "digest": digest,
            "args": bound,
            "status": "planned",
            "attempt": 0,
            "at": self.kernel.clock.wall(),
            "line": self._line,
        }
        return effects[slot]

    @property
    def _line(self) -> int:
        return self._point.envelope.line if self._point else 0

    def _lines_apart(self) -> Flow[Elsewhere]:
        if self._elsewhere is None:
            self._elsewhere = yield Do(find_elsewhere, (self.kernel, self.id, self._point, self._book))
        return self._elsewhere

    def _reuse(self, tool: Tool, digest: str) -> Flow[tuple[str, Any] | None]:
        """What the same call returned on the line we came from; refuses when any other line has made it."""
        elsewhere = yield from self._lines_apart()
        reused = yield Do(elsewhere.reuse, (digest,))
        if reused is None and (other := elsewhere.report(digest)):
            raise _done_elsewhere(tool, other)
        return reused

    def _reconsider(self, tool: Tool, record: TrackedDict) -> Flow[None]:
        """An effect that is open here may have gone further on another line, which knew it when the lines parted."""
        planned = record["status"] == "planned"
        reused: Any = None
        if self._settings.effects != "live":
            elsewhere = yield from self._lines_apart()
            further, reused = yield Do(elsewhere.twin, (record["id"], record["attempt"]))
            if planned and reused is None:
                if further:
                    raise _done_elsewhere(tool, record["id"])
                reused = yield from self._reuse(tool, record["digest"])
        if reused is not None:
            record["reused"] = reused[0]
            yield from self._finish(record, "done", reused[1], None)
        elif planned and record["line"] != self._line:
            # Not made anywhere yet, and both lines may: each does it under an id, and with an approval, of its own.
            request = self._book.get("approvals", {}).get(record.pop("approval", ""))
            if request is not None and request["status"] in ("pending", "approved"):
                request["status"] = "stale"
            record["was"] = [*record.get("was", ()), record["id"]]
            record.update(id=_new_id(), line=self._line, attempt=0, at=self.kernel.clock.wall())

    def _go_on(self, tool: Tool, bound: dict[str, Any], record: TrackedDict, *, fresh: bool = False) -> Flow[Any]:
        """Take a recorded call from where it stands to its outcome; a ``fresh`` one was written as started just now."""
        tries = 0
        if record["status"] == "started" and (fresh or record["id"] in self._not_made):
            self._not_made.discard(record["id"])
            tries += 1
            yield from self._make(tool, bound, record)
        while True:
            status = record["status"]
            if status == "done":
                if "problem" in record:
                    raise NotJson(("result",), record["problem"])
                return plain(record["result"])
            if status == "failed":
                msg = f"{tool.name} did not happen: {record['error']}"
                raise EffectFailed(msg, record["id"])
            if status == "unknown":
                return Unknown(record["id"])
            if status == "waiting":
                yield from self._late(tool, record)
                continue
            if tries == MAX_ATTEMPTS:
                yield from self._park(record)
            if status in ("started", "in_doubt") and not (yield from self._unsure(tool, bound, record)):
                continue
            if (yield from self._gate_call(tool, bound, record)):
                tries += 1
                # A decision may have come with other arguments.
                bound = plain(record["args"]) if "edited" in record else bound
                yield from self._attempt(tool, bound, record)

    def _gate_call(self, tool: Tool, bound: dict[str, Any], record: TrackedDict) -> Flow[bool]:
        """Whether the call may be made now; overridden where people must agree to it."""
        yield from ()
        return True

    def _attempt(self, tool: Tool, bound: dict[str, Any], record: TrackedDict) -> Flow[None]:
        """Write down that the call starts, make it, write its outcome down."""
        tried = record["attempt"]
        x = {"effect": record["id"], "tool": tool.name}
        faults.point("call.before_started")
        try:
            # Marked inside the commit: one of a sibling that is written first must not call it started.
            yield from self._write(Kind.STARTED, x=x, status=Status.RUNNING, edit=lambda: self._mark_started(record))
        except BaseException:
            # It was not made, and this process knows, while another one that finds it started is rightly in doubt.
            if not self._closed and self._stale is None and record["attempt"] > tried:
                if self._pending is not None and "approval" not in record:
                    self._not_made.add(record["id"])
                else:
                    # Not on its way to the store; or what somebody agreed to must be looked at again first.
                    self._unmark_started(record)
            raise
        faults.point("call.after_started")
        yield from self._make(tool, bound, record)

    def _mark_started(self, record: TrackedDict) -> None:
        record["status"] = "started"
        record["attempt"] += 1

    def _unmark_started(self, record: TrackedDict) -> None:
        record["status"] = "planned"
        record["attempt"] -= 1

    def _make(self, tool: Tool, bound: dict[str, Any], record: TrackedDict) -> Flow[None]:
        """Make a call that is written down as started, and write its outcome down."""
        try:
            with telemetry.execute_tool(tool.name, self.id, bound, record, (Asking,)) as span:
                result = yield Invoke(runnable(tool), (), self._arguments(tool, bound, record))
                span.returned(result)
        except Asking as e:
            yield from self._ask_person(tool, bound, record, e)
        except NotDone as e:
            yield from self._finish(record, "failed", None, str(e) or "the tool said so")
        except Exception as e:
            if tool.read:
                # Nothing can have happened: its error is its answer.
                yield from self._finish(record, "failed", None, f"{type(e).__name__}: {e}"[:MAX_ERROR])
                return
            record["status"] = "in_doubt"
            record["error"] = type(e).__name__
            telemetry.doubted(tool.name)
            x = {"effect": record["id"], "tool": tool.name, "error": type(e).__name__}
            yield from self._write(Kind.IN_DOUBT, x=x)
        else:
            if isinstance(result, Later):
                record["status"] = "waiting"
                record["handle"] = result.handle
                yield from self._write(
                    Kind.WAITING, x={"effect": record["id"], "tool": tool.name}, status=self._standing()
                )
            else:
                yield from self._finish(record, "done", result, None)

    def _ask_person(self, tool: Tool, bound: dict[str, Any], record: TrackedDict, asking: Asking) -> Flow[None]:
        """Put a question to a person; overridden where people are asked."""
        raise NotImplementedError

    def _late(self, tool: Tool, record: TrackedDict) -> Flow[None]:
        """Look whether the result of a call that said "later" has come; ``ResultPending`` while it has not."""
        if not (yield from self._posted(record)) and tool.poll is not None:
            verdict = yield Invoke(tool.poll, (plain(record["handle"]),))
            if isinstance(verdict, Done):
                yield from self._finish(record, "done", verdict.result, None)
            elif verdict is NotDone or isinstance(verdict, NotDone):
                yield from self._finish(record, "failed", None, str(verdict) if verdict is not NotDone else "not done")
        if record["status"] == "waiting":
            msg = (
                f"{tool.name} (effect {record['id']}) was made and its result comes later: call again once it is there"
            )
            raise ResultPending(msg, record["id"])

    def _posted(self, record: TrackedDict) -> Flow[bool]:
        """Take an outcome that was posted under the effect's id; whether there was one."""
        key = f"outcome:{record['id']}"
        late = yield from self._take_special("outcome", key)
        if late is not None:
            yield from self._finish(record, "done", late.body, None)
            return True
        late = yield from self._take_special("failure", key)
        if late is not None:
            yield from self._finish(record, "failed", None, str(late.body))
        return late is not None

    def _finish(self, record: TrackedDict, status: str, result: Any, error: str | None) -> Flow[None]:
        """Make an outcome durable."""
        self._settle_record(record, status, result, error)
        if self._may_wait is not None and self._may_wait(record):
            return
        x: dict[str, Any] = {"effect": record["id"], "tool": record["tool"]}
        if status != "done":
            x["error"] = error
        kind = Kind.DONE if status == "done" else Kind.FAILED
        faults.point("call.before_outcome")
        yield from self._write(kind, x=x, status=self._standing, stamp=(record, "where"))
        faults.point("call.after_outcome")

    def _settle_record(self, record: TrackedDict, status: str, result: Any, error: str | None) -> None:
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
        if self._on_outcome is not None:
            self._on_outcome(record)

    _on_outcome: Callable[[TrackedDict], None] | None = None
    """Told of every outcome right before the commit that makes it durable, which also takes what it edits."""

    _may_wait: Callable[[TrackedDict], bool] | None = None
    """Says of an outcome that it need not be durable before the next commit, whatever that is: of a read, at most."""

    def _unsure(self, tool: Tool, bound: dict[str, Any], record: TrackedDict) -> Flow[bool]:
        """An effect was started and its outcome is unknown: True when it may be made (again)."""
        if tool.read:
            return True
        if record["status"] == "started":
            telemetry.doubted(tool.name)
        if (yield from self._posted(record)):
            return False
        policy = tool.if_unsure
        if callable(policy):
            verdict = yield Invoke(policy, (), bound)
            if isinstance(verdict, Done):
                yield from self._finish(record, "done", verdict.result, None)
                return False
            if verdict is NotDone or isinstance(verdict, NotDone):
                return True
        elif policy == "retry":
            valid = tool.key_valid_for
            if valid is None or self.kernel.clock.wall() - record["at"] < valid * 1000:
                return True
        elif policy == "report":
            self._settle_record(record, "unknown", None, record.get("error"))
            x = {"effect": record["id"], "tool": tool.name}
            yield from self._write(Kind.IN_DOUBT, x=x, status=self._standing)
            return False
        yield from self._park(record)
        return False

    def _park(self, record: TrackedDict) -> Flow[None]:
        """Leave an effect in doubt to a human."""
        if record["status"] != "in_doubt" or self.status != Status.IN_DOUBT:
            record["status"] = "in_doubt"
            x = {"effect": record["id"], "tool": record["tool"], "error": record.get("error", "")}
            yield from self._write(Kind.IN_DOUBT, x=x, status=Status.IN_DOUBT)
        msg = (
            f"{record['tool']} (effect {record['id']}) was started and nobody knows whether it happened: "
            "find out, then session.resolve(effect, done=result | retry=True | abort=True)"
        )
        raise InDoubt(msg, record["id"])


def _new_id() -> str:
    return "ef_" + os.urandom(12).hex()


def _done_elsewhere(tool: Tool, effect: str) -> DoneElsewhere:
    msg = (
        f"{tool.name} was already called with these arguments on another branch (effect {effect}): "
        'open the session with effects="live" to do it again'
    )
    return DoneElsewhere(msg, effect)
