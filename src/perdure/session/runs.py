"""Runs: a pass of work by key. An unfinished one is resumed, a finished one returns its recorded result."""

# pyright: reportPrivateUsage=false
# The handle is one thing in several rooms: they share its inner parts.
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import Misuse
from perdure.history.hydrate import load
from perdure.model import Kind, Status
from perdure.session.branches import Branching
from perdure.session.catch_up import Replay, read_record
from perdure.session.parallel_calls import Batches
from perdure.state.document import plain
from perdure.system import faults
from perdure.system.flow import Do, Flow, Invoke
from perdure.system.names import check_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.record.commit import Loaded


class Runs(Batches, Branching):
    """The flows of a handle that run functions durably."""

    def _run_flow(self, key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Flow[Any]:
        """Run ``fn(session, ...)`` to its end, however often the process dies: call this again with the same key.

        The function is started from the top each time; calls it already made return their recorded outcome and
        commits it already made are skipped. It must make the same non-read calls in the same order until it has
        caught up, or ``Diverged`` is raised before anything happens.
        """
        self._usable()
        check_name(key, "run key")
        if self._run is not None:
            msg = f"run {self._run!r} is under way on this handle: a run inside a run is a session of its own"
            raise Misuse(msg)
        yield from self._resend()
        runs = self._book.setdefault("runs", {})
        record = runs.get(key)
        if record is not None and record["status"] == "ended":
            return plain(record["result"])
        self._calls = 0
        self._run = key
        try:
            if record is None:
                runs[key] = {"status": "open"}
                yield from self._write(Kind.RUN_STARTED, status=Status.RUNNING, stamp=(runs[key], "at"))
            else:
                yield from self._catch_up(key, (record["at"][0], record["at"][1]))
            faults.point("run.before_function")
            result = yield Invoke(fn, (self, *args), kwargs)
            faults.point("run.after_function")
            if self._replay is not None:
                yield from self._replay.end(self)
            yield from self._end_run(key, result)
        finally:
            self._run = None
            self._replay = None
        return result

    def _catch_up(self, key: str, base: tuple[int, int]) -> Flow[None]:
        assert self._point is not None
        if self.changed:
            msg = f"run {key!r} is resumed from its beginning: commit() or reload() the edits made before it"
            raise Misuse(msg)
        book = plain(self._book)
        record = yield Do(read_record, (self.kernel, self.id, base, self._point))
        loaded: Loaded = yield Do(load, (self.kernel, self.id, *base))
        assert loaded.point is not None
        # A run begun under an older schema is caught up with in the new one, step by step.
        older = loaded.point.envelope.schema != self._settings.schema
        loose, upgrade = self._loose, self.kernel.upgrade if older else None
        self._adopt(upgrade(loaded) if upgrade else loaded)
        self._loose = loose
        self._replay = Replay(key, record, book, upgrade)

    def _end_run(self, key: str, result: Any) -> Flow[None]:
        """Record the result. The run's calls will not be asked for again: only their digests are kept."""
        record = self._book["runs"][key]
        record["status"] = "ended"
        record["result"] = result
        effects = self._book.get("effects", {})
        done = self._book.setdefault("done", {})
        for slot in [s for s in effects if s.startswith(f"r:{key}:")]:
            effect = effects[slot]
            if effect["status"] == "done":
                done.setdefault(effect["digest"], []).append([effect["id"], *effect["where"]])
            del effects[slot]
        yield from self._write(Kind.RUN_ENDED, status=Status.IDLE)
