"""Runs: a pass of work by key. An unfinished one is resumed, a finished one returns its recorded result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import Misuse
from perdure.history.hydrate import load
from perdure.model import Kind, Status
from perdure.session.resumed_run import CatchUp, read_record
from perdure.state.document import plain
from perdure.system import faults
from perdure.system.flow import Do, Flow, Invoke
from perdure.system.names import check_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.record.codec import Loaded
    from perdure.session.effects import Calls
    from perdure.session.journal import Journal


class Runs:
    """Functions run durably through a handle."""

    def __init__(self, journal: Journal, calls: Calls, handle: Any) -> None:
        self._journal = journal
        self._calls = calls
        self._handle = handle
        """What the function is given."""

    def run(self, key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Flow[Any]:
        """Run ``fn(session, ...)`` to its end, however often the process dies: call this again with the same key.

        The function is started from the top each time; calls it already made return their recorded outcome and
        commits it already made are skipped. It must make the same non-read calls in the same order until it has
        caught up, or ``Diverged`` is raised before anything happens.
        """
        self._journal.guard.check()
        check_name(key, "run key")
        if self._journal.run is not None:
            msg = f"run {self._journal.run!r} is under way on this handle: a run inside a run is a session of its own"
            raise Misuse(msg)
        yield from self._journal.resend()
        runs = self._journal.book.setdefault("runs", {})
        record = runs.get(key)
        if record is not None and record["status"] == "ended":
            return plain(record["result"])
        self._calls.number = 0
        self._journal.run = key
        try:
            if record is None:
                runs[key] = {"status": "open"}
                yield from self._journal.write(Kind.RUN_STARTED, status=Status.RUNNING, stamp=(runs[key], "at"))
            else:
                yield from self._catch_up(key, (record["at"][0], record["at"][1]))
            faults.point("run.before_function")
            result = yield Invoke(fn, (self._handle, *args), kwargs)
            faults.point("run.after_function")
            if self._journal.catching_up is not None:
                yield from self._journal.catching_up.end()
            yield from self._end_run(key, result)
        finally:
            self._journal.run = None
            self._journal.catching_up = None
        return result

    def _catch_up(self, key: str, base: tuple[int, int]) -> Flow[None]:
        assert self._journal.point is not None
        if self._journal.changed:
            raise Misuse(f"run {key!r} is resumed from its beginning: commit() or reload() the edits made before it")
        book = plain(self._journal.book)
        record = yield Do(read_record, (self._journal.kernel, self._journal.id, base, self._journal.point))
        loaded: Loaded = yield Do(load, (self._journal.kernel, self._journal.id, *base))
        assert loaded.point is not None
        # A run begun under an older schema is caught up with in the new one, step by step.
        older = loaded.point.envelope.schema != self._journal.settings.schema
        loose, upgrade = self._journal.unpacked, self._journal.kernel.upgrade if older else None
        self._journal.adopt(upgrade(loaded) if upgrade else loaded)
        self._journal.unpacked = loose
        self._journal.catching_up = CatchUp(self._journal, key, record, book, upgrade)

    def _end_run(self, key: str, result: Any) -> Flow[None]:
        """Record the result. The run's calls will not be asked for again: only their digests are kept."""
        record = self._journal.book["runs"][key]
        record["status"] = "ended"
        record["result"] = result
        effects = self._journal.book.get("effects", {})
        done = self._journal.book.setdefault("done", {})
        for slot in [s for s in effects if s.startswith(f"r:{key}:")]:
            effect = effects[slot]
            if effect["status"] == "done":
                done.setdefault(effect["digest"], []).append([effect["id"], *effect["where"]])
            del effects[slot]
        yield from self._journal.write(Kind.RUN_ENDED, status=Status.IDLE)
