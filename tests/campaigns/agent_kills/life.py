"""One life of the agent, in a process of its own: go on from wherever the last one died, until finished or killed.

Run as ``python -m tests.campaigns.agent_kills.life``: a zygote like that of :mod:`tests.campaigns.crash.zygote`, a
job per line.
"""

# pyright: reportPrivateUsage=false
# The journal is broken on purpose, where it is made.
from __future__ import annotations

import asyncio
import random
import signal
import traceback
import warnings
from typing import TYPE_CHECKING, Any

from perdure.agent import run_result as ended
from perdure.opening import open_async
from perdure.session.calls.effects import Effects
from perdure.session.calls.lookups import Lookups
from perdure.session.journal import Journal
from perdure.stores.postgres import store
from perdure.stores.sqlite import store as sqlite_store
from perdure.system import faults
from tests.campaigns.agent_kills.log import Log
from tests.campaigns.agent_kills.scenes import agent
from tests.campaigns.crash.zygote import BROKE, PATIENCE, count_points, die_at, serve
from tests.shop.client import Shop
from tests.shop.server import receipt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.agent.run_result import RunResult
    from perdure.aio import AsyncDatabase

PRELOADED = (store, sqlite_store)
"""Imported before the fork: a life is about the agent, not about importing drivers."""
ROUNDS = 30


class Life:
    """The agent and the person who looks after it."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.session: str = job["session"]
        self.shop = Shop(job["shop"])
        self.log = Log(job["log"])
        self.agent = agent(job["scene"], self.session, self.shop, self.log, keys=job.get("sabotage") != "keys")

    async def live(self) -> int:
        """Go on until nothing is left to do."""
        async with open_async(self.job["url"], maintain=False) as db:
            if self.job.get("again"):
                await self._look_around(db)
            passed = count_points() if self.job.get("census") else {}
            if self.job.get("point"):
                die_at(self.job["point"], self.job["hit"])
            await self._work(db)
            faults.hook = None
            if passed:
                self.log.note("census", points=passed)
        return 0

    async def _work(self, db: AsyncDatabase) -> None:
        for _ in range(ROUNDS):
            result = await self.agent.run(db, session=self.session, message="Pay the orders.", key="asked")
            self.log.note("result", status=result.status, reason=result.reason)
            if result.status == ended.DONE:
                self.log.note("finished", text=result.text)
                return
            if result.status not in (ended.IN_DOUBT, ended.WAITING_APPROVAL):
                raise AssertionError(f"the run ended with {result.status}: {result.reason}")
            await self._decide(db, result)
        raise AssertionError("the run comes to no end")

    async def _decide(self, db: AsyncDatabase, result: RunResult) -> None:
        """The person: agrees to what is asked, and looks into the shop's books for what is in doubt or repeated."""
        for approval in result.approvals:
            if approval.because and self.shop.order(approval.args["order"])["charges"]:
                self.log.note("person", effect=approval.effect, said="reject")
                await db.reject(self.session, approval.id, by="ana", reason="it is paid")
                continue
            self.log.note("person", effect=approval.effect, said="approve")
            await db.approve(self.session, approval.id, by="ana")
        if not result.in_doubt:
            return
        async with db.session(self.session) as s:
            for doubt in result.in_doubt:
                known = self.shop.order(doubt.args["order"])
                said = "done" if known["charges"] else "retry"
                self.log.note("person", effect=doubt.effect, attempt=doubt.attempt, said=said)
                if known["charges"]:
                    await s.resolve(doubt.effect, done=receipt(doubt.args["order"]), by="ana")
                else:
                    await s.resolve(doubt.effect, retry=True, by="ana")

    async def _look_around(self, db: AsyncDatabase) -> None:
        """Write down what the last life left open, and what the shop knows of it."""
        async with db.session(self.session) as s:
            left = [r for r in s.effects() if r["status"] in ("started", "in_doubt")]
        if not left:
            return
        begun = set(_begun(await db.history(self.session, limit=1000)))
        for record in left:
            order = record["args"]["order"]
            seen = record["tool"] == "stock" or bool(self.shop.order(order)["seen"])
            self.log.note("doubt", effect=record["id"], tool=record["tool"], seen=seen, begun=record["id"] in begun)


def _begun(history: list[Any]) -> Iterator[str]:
    """The effects that some checkpoint says were about to be made."""
    for checkpoint in history:
        if checkpoint.kind == "started":
            yield checkpoint.more["effect"]
        yield from checkpoint.more.get("effects", ())


def _sabotage(how: str | None) -> None:
    """Break the journal on purpose: whoever judges must see it."""
    lookups: Any = Lookups
    journal: Any = Journal
    write = journal.write

    def made_again(*_: Any) -> Iterator[Any]:
        """Whatever was started and has no outcome is simply made again."""
        yield from ()
        return True

    def edited_before(self: Any, *args: Any, edit: Any = None, **more: Any) -> Any:
        """What belongs into one commit is edited before, when another may be written first."""
        if edit is not None:
            edit()
        return (yield from write(self, *args, **more))

    if how == "doubts":
        lookups.unsure = made_again
    elif how == "raised":
        effects: Any = Effects
        effects._remember = lambda *_: None
    elif how == "refused":
        effects = Effects
        remember = effects._remember

        def forgetful(self: Any, record: Any, status: str) -> None:
            """What raised is forgotten as soon as its repetition is refused, or turned down."""
            if status == "failed":
                self._journal.book.get("raised", {}).clear()
            remember(self, record, status)

        effects._remember = forgetful
    elif how == "siblings":
        journal.write = edited_before


def _child(job: dict[str, Any], ready: int) -> int:
    try:
        warnings.simplefilter("ignore")
        signal.alarm(PATIENCE)
        random.seed(job["session"])
        _sabotage(job.get("sabotage"))
        return asyncio.run(Life(job).live())
    except BaseException:
        Log(job["log"]).note("problem", session=job["session"], trace=traceback.format_exc())
        return BROKE


if __name__ == "__main__":
    serve(_child)
