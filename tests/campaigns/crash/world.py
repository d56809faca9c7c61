"""The outside world of the crash suite: tools with every policy, whose doings stand in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import Context, Done, NotDone, Tool
from perdure.system import faults

if TYPE_CHECKING:
    from tests.campaigns.crash.journal import Journal

ONCE = ("ask", "report", "approved", "refuses", "breaks")
"""Tools that must never be entered twice for one call, under whatever id."""
KEYED = ("retry",)
"""Tools whose provider tells repeats by the effect id: any number of entries, one id."""
FOUND_OUT = ("reconcile",)
"""Tools whose outcome can be found out: entered again only when they did nothing."""
READS = ("read", "cached")


def receipt(tool: str, n: int) -> dict[str, Any]:
    """What a tool returns for a call."""
    return {"tool": tool, "n": n, "receipt": f"{tool}-{n * 7919 % 10007}"}


def job_call(n: int, k: int) -> int:
    """The number of the ``k``-th call inside job ``n``; no plan has such a number."""
    return 10_000_000 + 10 * n + k


class World:
    """The tools by name, and what somebody who looks at the world can find out."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.tools = {name: self._tool(name) for name in (*ONCE, *KEYED, *FOUND_OUT, *READS)}

    def was_entered(self, tool: str, n: int) -> bool:
        """Whether a call has reached its tool."""
        return self._journal.history.entered[tool, n] > 0

    def was_done(self, tool: str, n: int) -> bool:
        """Whether a call has had its effect."""
        return self._journal.history.did[tool, n] > 0

    def _act(self, tool: str, n: int, ctx: Context) -> dict[str, Any]:
        self._journal.note("entered", tool=tool, n=n, effect=ctx.effect_id, attempt=ctx.attempt)
        faults.point("tool.entered")
        if tool == "refuses":
            raise NotDone("sold out")
        # A provider with idempotency keys does a thing once, however often it is asked.
        if tool != "retry" or not self.was_done(tool, n):
            self._journal.note("did", tool=tool, n=n)
        faults.point("tool.did")
        if tool == "breaks":
            raise ConnectionError("the line went dead")
        return receipt(tool, n)

    def _tool(self, name: str) -> Tool:
        def act(n: int, ctx: Context) -> dict[str, Any]:
            return self._act(name, n, ctx)

        def look(n: int) -> dict[str, Any]:
            faults.point("tool.read")
            return receipt(name, n)

        def find_out(n: int) -> Any:
            faults.point("tool.find_out")
            return Done(receipt(name, n)) if self.was_done(name, n) else NotDone()

        declared: dict[str, Any] = {
            "ask": {},
            "report": {"if_unsure": "report"},
            "approved": {"approve": True},
            "refuses": {},
            "breaks": {},
            "retry": {"if_unsure": "retry", "key_valid_for": "24h"},
            "reconcile": {"if_unsure": find_out},
            "read": {"read": True},
            "cached": {"read": True, "cache": "7d"},
        }[name]
        return Tool(look if name in READS else act, name=name, **declared)
