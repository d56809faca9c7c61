"""Sessions for the tests of the console to look at: a few that tell a story, and many that only fill the list."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import perdure
from perdure.fleet.board import board_of
from perdure.model import Kind
from perdure.protocols import NewWork, Rest, WorkerRow
from tests.server.browser.app import support

if TYPE_CHECKING:
    from perdure.aio import AsyncDatabase

HOSTILE = (
    "<script>window.stolen = 1</script><img src=x onerror='window.stolen = 2'><b>bold</b> "
    "\x1b]0;owned\x07\x1b[31mred\x1b[0m \u202egnp.exe \u200b\u2066 {{ 7 * 'zq' }} javascript:alert(1) ' \" `"
)


async def story(db: AsyncDatabase) -> None:
    """A desk after a busy hour: one that failed, one that needs agreement, one in doubt, and those that went well."""
    run = support.run
    await run(db, session="order-8847", owner="ana", message="Where is 8847?")
    await run(db, session="refund-8847", owner="ben", message="It broke. I want my money back for 8847.")
    await run(db, session="parcel-1204", owner="chidi", message="Please send 1204 again.")
    await run(db, session="hello-dana", owner="dana", message="Good evening")
    await run(db, session="hello-dana", owner="dana", message="I only wanted to say thank you.")
    async with db.session("trip-42", owner="emil") as s:
        await travel(s)


async def travel(s: Any) -> None:
    """A session without an agent: plain code that keeps its state, with branches and a tag."""
    for i, city in enumerate(("Paris", "Lyon", "Nice", "Genoa", "Rome", "Naples")):
        s.messages.append({"role": "user", "content": f"What about {city}?"})
        s.messages.append({"role": "assistant", "content": f"{city} is lovely in spring; I have added it."})
        s.vars["budget"] = 12_000 - 700 * i
        s.vars.setdefault("stops", []).append({"city": city, "nights": 2 + i % 3})
        s.facts["season"] = {"value": "spring", "source": "the customer"}
        await s.commit(f"added {city}")
        if city == "Nice":
            await s.tag("half-way")
    await s.fork("by-train", at=3)
    await s.fork("cheaper", at=4)
    await s.switch("by-train")
    for city in ("Turin", "Milan"):
        s.vars["stops"].append({"city": city, "nights": 2, "by": "train"})
        await s.commit(f"by train to {city}")
    await s.switch("cheaper")
    s.vars["budget"] = 6_000
    await s.commit("half the budget")


async def hostile(db: AsyncDatabase) -> None:
    """A session in which everything that can be written was written by somebody with bad intent."""
    async with db.session("evil \u202e<i>id</i>", owner="<b>mallory</b>\x1b[2J") as s:
        s.messages.append({"role": "user", "content": HOSTILE})
        s.messages.append({"role": "assistant", "content": "x" * 300_000})
        s.messages.append({"role": HOSTILE, "content": [{"type": "text", "text": HOSTILE}, {HOSTILE: HOSTILE}]})
        s.vars[HOSTILE] = {HOSTILE: [HOSTILE, 1, None]}
        await s.driver.drive(s.journal.write(Kind.COMMIT, x={"note": HOSTILE, "error": HOSTILE[:60]}))


async def long(db: AsyncDatabase, steps: int = 5000) -> None:
    """One session with very many steps."""
    async with db.session("long", owner="many") as s:
        for i in range(steps):
            s.messages.append(
                {"role": "user" if i % 2 == 0 else "assistant", "content": f"Message {i} of a long story."}
            )
            s.vars["count"] = i
            await s.commit()


async def some(db: AsyncDatabase) -> None:
    """A few dozen sessions, for pictures."""
    await many(db, 80)


async def many(db: AsyncDatabase, count: int = 10_000) -> None:
    """Very many sessions."""
    gate = asyncio.Semaphore(200)
    statuses = ["idle"] * 60 + ["closed"] * 20 + ["failed"] * 12 + ["paused"] * 4 + ["sleeping"] * 4
    errors = ["ModelUnavailable"] * 7 + ["ContextTooLong"] * 3 + ["TimeoutError"] * 2

    async def one(i: int) -> None:
        async with gate:
            s = await db.session(f"customer-{i:05}", owner=f"owner-{i % 97}", lease=False)
            s.journal.settings.agent = ("support", "sales", "travel")[i % 3]
            status = statuses[i * 37 % 100]
            x = {"error": errors[i % 12], "note": "it went wrong"} if status == "failed" else {}
            await s.driver.drive(s.journal.write(Kind.COMMIT, x=x, status=status))
            await s.release()

    await asyncio.gather(*(one(i) for i in range(count)))


def busy_board(db: perdure.Database) -> None:
    """Workers and work on the board, as if a fleet were there."""
    board = board_of(db)
    for i in range(3):
        row = WorkerRow(f"host-{i}/4{i}00/1/boot/ns/{i}", f"host-{i}", 4000 + i, "a1b2c3", ("support",), 20, busy=i)
        board.beat(row._replace(done=120 * (i + 1), recovered=i))
    board.put([NewWork(f"customer-{i:05}", "support") for i in range(12)])
    works = board.claim("host-1/4100/1/boot/ns/1", ("support",), 3, db.kernel.clock.wall())
    board.rest(
        "host-1/4100/1/boot/ns/1", [Rest(works[0].session, 1, failed=True, park="failed 5 times: it is broken")], 0
    )
