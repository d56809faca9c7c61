"""A shop's agent with a scripted model, and a life of its sessions in which everything that is measured happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import perdure
from perdure import Agent, ScriptedModel, telemetry, tool
from perdure.agent.models.scripted import calls
from perdure.fleet.why.lists import stuck
from perdure.protocols import NewWork, Rest, WorkerRow
from perdure.telemetry.sampling import Sampler

if TYPE_CHECKING:
    from pathlib import Path

SESSION = "order-4711"


@tool(read=True, cache="1h")
def look_up(order: str) -> str:
    """Look an order up."""
    return f"{order} is on its way"


@tool(approve=True)
def refund(order: str) -> str:
    """Give the money back."""
    return f"refunded {order}"


@tool(if_unsure="ask")
def send_mail(to: str) -> str:
    """Send a mail; the connection breaks in the middle."""
    raise ConnectionError(f"cut while writing to {to}")


@tool(if_unsure="retry")
def pay(amount: int) -> str:
    """Pay a bill."""
    return f"paid {amount}"


def shop(*script: Any, name: str = "shop") -> Agent:
    """An agent that says what it is told to."""
    return Agent(name, model=ScriptedModel(list(script), name="scripted-9"), tools=[look_up, refund, send_mail])


async def ask_for_refund(db: perdure.AsyncDatabase, message: str = "Where is my order?") -> perdure.RunResult:
    """A run that reads something, then waits until a person agrees to a refund."""
    agent = shop(calls(("look_up", {"order": "A-1"})), calls(("refund", {"order": "A-1"})), "It is refunded.")
    return await agent.run(db, session=SESSION, owner="ana", message=message)


async def approve(db: perdure.AsyncDatabase, waiting: perdure.RunResult) -> perdure.RunResult:
    """Somebody agrees, and the run is taken up by whoever comes next."""
    await db.approve(SESSION, waiting.approvals[0].id, by="ben")
    return await ask_again(db)


async def ask_again(db: perdure.AsyncDatabase) -> perdure.RunResult:
    """Take a run up again."""
    agent = shop("?", calls(("refund", {"order": "A-1"})), "It is refunded.")
    return await agent.run(db, session=SESSION, owner="ana")


async def whole_life(folder: Path) -> None:
    """Everything that is measured happens once at least, on a real store."""
    url = f"sqlite:///{folder / 'agents.db'}"
    async with perdure.open_async(url) as db:
        await approve(db, await ask_for_refund(db))
        again = shop(calls(("send_mail", {"to": "ana"})), "never said")
        await again.run(db, session="mail", owner="ana", message="hello")
        more = shop("", "", "", calls(("look_up", {"order": "A-1"})), "done")
        await more.run(db, session=SESSION, message="again")
    with perdure.open(url) as db:
        with db.session("bills") as s:
            s.run("july", lambda s: s.call(pay, 5))
        with db.session("bills") as s:
            telemetry.took_over("bills", 1.5)
            s.call(pay, 7)
            s.call(pay, 7)
        board_of(db)
        telemetry.beat(3, 20)
        Sampler(db.kernel.store, stuck=lambda: stuck(db)).sample()


def board_of(db: perdure.Database) -> None:
    """Put something on the board of the fleet, and a worker that is not there."""
    store: Any = db.kernel.store
    board = store.board()
    board.put([NewWork("bills", "clerk"), NewWork("order-4711", "shop")])
    for _ in range(3):
        board.claim("w1", ["clerk"], 1, 0)
        board.rest("w1", [Rest("bills", 0, failed=True, again=True)], 0)
    board.beat(WorkerRow("w1", "host", 1, "1", ("shop",), 20))
