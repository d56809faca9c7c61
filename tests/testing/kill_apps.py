"""Functions of a database that the tests of kill and resume kill."""

from __future__ import annotations

import os
from typing import Any

import perdure
from perdure import Agent, ScriptedModel, tool
from perdure.agent.models.scripted import calls


@tool(if_unsure="retry")
def charge(amount: int, ctx: perdure.Context) -> str:
    """Take money."""
    return f"{amount} under {ctx.effect_id[:3]}"


@tool
def mail(to: str) -> str:
    """Send a mail; nobody can find out whether it was sent."""
    return to


@tool(read=True)
def price() -> int:
    """What it costs."""
    return 5


def book(s: Any) -> None:
    s.vars["stage"] = "asked"
    s.commit()
    s.vars["price"] = s.call(price)
    s.vars["paid"] = s.call(charge, s.vars["price"])
    s.commit()
    s.vars["stage"] = "paid"


def trip(db: perdure.Database) -> None:
    """A durable run."""
    with db.session("trip") as s:
        s.run("book", book)
        s.commit()


async def trip_async(db: perdure.AsyncDatabase) -> None:
    """The same, awaited."""
    async with db.session("trip") as s:
        s.vars["stage"] = "asked"
        await s.commit()
        s.vars["paid"] = await s.call(charge, 5)
        await s.commit()


def mails(db: perdure.Database) -> None:
    """A call that is in doubt when it is cut off."""
    with db.session("mails") as s:
        s.call(mail, "ana")


def careless(db: perdure.Database) -> None:
    """Calls its tool past the session: a kill repeats it."""
    with db.session("trip") as s:
        if "paid" not in s.vars:
            perdure.Tool(lambda: None, name="shout")
            s.vars["paid"] = s.call(charge.options(key=os.urandom(4).hex()), 5)
            s.commit()


def fails(db: perdure.Database) -> None:
    """Fails the second time it is run."""
    with db.session("s") as s:
        if "n" in s.vars:
            raise ValueError("it cannot go on")
        s.vars["n"] = 1
        s.commit()


def two_sessions(db: perdure.Database) -> None:
    """Leaves two sessions."""
    for name in ("a", "b"):
        with db.session(name) as s:
            s.vars["n"] = name
            s.commit()


def nothing(db: perdure.Database) -> None:
    """Does nothing."""


agent = Agent(
    "desk",
    model=ScriptedModel([calls(("price", {})), calls(("charge", {"amount": 5})), "Done."]),
    tools=[price, charge],
)
asker = Agent("asker", model=ScriptedModel([calls(("mail", {"to": "ana"})), "Done."]), tools=[mail])
