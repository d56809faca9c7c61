"""Calls of tools that only read: made whenever asked, unless a recorded answer is still fresh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import telemetry
from perdure.model import Kind
from perdure.session.calls.late_returns import Attempt, warn
from perdure.session.calls.read_cache import declared
from perdure.session.calls.records import MISFIT, PROBLEM, new_effect_id, no_json
from perdure.session.calls.retries import READ_TRIES, is_left, pause_after
from perdure.session.tools.declaration import Tool
from perdure.session.tools.exceptions import Meaning, is_of_the_call, meaning
from perdure.session.tools.running import check_awaited, runnable
from perdure.system.flow import Flow, Invoke, Wait

if TYPE_CHECKING:
    from perdure.session.calls.read_cache import ReadCache
    from perdure.session.calls.same_calls import SameCalls
    from perdure.session.journal import Journal
    from perdure.session.tools.context import Contexts


class Reads:
    """The reads of a handle outside of a model's answers: those have records, as all calls of an answer do."""

    def __init__(self, journal: Journal, cache: ReadCache, contexts: Contexts, same: SameCalls) -> None:
        self._journal = journal
        self._cache = cache
        self._contexts = contexts
        self._same = same

    def read(self, tool: Tool, bound: dict[str, Any], digest: str) -> Flow[Any]:
        """A read runs whenever asked, unless a recorded answer is still fresh."""
        if tool.cache is not None and self._journal.catching_up is not None:
            yield from self._journal.catching_up.read(tool.name)
        if (hit := (yield from self._same.kept(tool, digest, bound))) is not None:
            telemetry.replayed(tool.name, "cache")
            if PROBLEM in hit:
                raise no_json(tool.name, hit["effect"], hit[PROBLEM])
            return tool.types.result(hit["result"])
        self._journal.check_open()
        check_awaited(tool, self._journal.gate)
        result = yield from self._read_patiently(tool, bound)
        if tool.cache is None:
            result, wrong = tool.types.as_declared(result)
            _warn_of_misfit(tool, wrong)
            return result
        result, wrong = tool.types.fitting_result(tool.types.result_as_json(result))
        _warn_of_misfit(tool, wrong)
        if self._journal.catching_up is None:
            wanted = declared(tool, digest, bound)
            self._cache.keep(wanted, result)
            # A cached read is one somebody pays for: it is durable before anyone sees it.
            x = {"tool": tool.name, **({MISFIT: wrong} if wrong else {})}
            yield from self._journal.write(Kind.DONE, x=x)
            if wanted["shared"]:
                yield from self._cache.keep_shared(tool.name, wanted, result)
        return tool.types.result(result)

    def _read_patiently(self, tool: Tool, bound: dict[str, Any]) -> Flow[Any]:
        """Make a read; one whose answer is lost is made again, a few times, but not while an attempt at it lives."""
        id = new_effect_id()
        late: list[Any] = []
        for attempt in range(1, READ_TRIES + 1):
            living = Attempt(id, late.append, str)
            try:
                with telemetry.tracing.execute_tool(tool.name, self._journal.id, bound, {}) as span:
                    given = {"ctx": self._contexts.make()} if tool.wants_context else {}
                    result = yield Invoke(runnable(tool, living.watched), (), {**tool.types.arguments(bound), **given})
                    span.returned(result)
                    return result
            except BaseException as e:
                if attempt == READ_TRIES or not _is_lost(tool, e):
                    raise
                late.extend(living.abandon() or ())
                yield Wait(self._journal.kernel.clock, pause_after(attempt))
                over = yield from is_left(self._journal.kernel.clock, id)
                if late:
                    return late[0]
                if not over:
                    raise
        raise AssertionError


def _warn_of_misfit(tool: Tool, wrong: str) -> None:
    if wrong:
        warn("what %s returned does not fit what it declares: %s. It is given as it is", tool.name, wrong)


def _is_lost(tool: Tool, error: BaseException) -> bool:
    return is_of_the_call(error) and meaning(error, tool.lost) in (Meaning.LOST, Meaning.UNREACHED)
