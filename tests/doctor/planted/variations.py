"""The five faults again, each in ways that do not look like the others; and apps that only look as if they had one."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import subprocess
import sys
import threading
from decimal import Decimal
from typing import Any

import perdure
from perdure import Agent, ScriptedModel, Window, tool
from perdure.agent.models.scripted import calls

CITIES = ("Lisbon", "Porto", "Faro", "Braga")

paid: list[str] = []


@tool
def pay(city: str) -> str:
    """Pay for a city."""
    paid.append(city)
    return f"paid {city}"


@tool(if_unsure="retry", key_valid_for="1h")
def keep(city: str) -> str:
    """Keep a place in a city."""
    return f"kept {city}"


@tool(if_unsure="retry", key_valid_for="1h")
def seats(city: str) -> Any:
    """Fault: a set is no JSON."""
    return {city}


@tool(read=True, cache="7d")
def report_on(city: str) -> str:
    """Get a report on a city, which somebody may have to pay for."""
    return f"a report on {city}"


def buys_a_read(db: Any) -> None:
    """No fault, and worth a word."""
    with db.session("trip") as s:
        s.call(report_on, "Lisbon")


# -- saves only at the end -------------------------------------------------------------------------------------------


def end_in_vars(db: Any) -> None:
    """What it finds out goes into a list, which is saved when it is complete."""
    with db.session("trip") as s:
        notes = s.vars.setdefault("notes", [])
        for city in CITIES[len(notes) :]:
            notes.append(f"a day in {city}")
        s.commit()


async def end_of_a_run(db: Any) -> None:
    """Inside a run nothing is saved."""

    async def work(s: Any) -> None:
        for city in CITIES:
            s.messages.append({"role": "assistant", "content": f"a day in {city}"})

    async with db.session("trip") as s:
        await s.run("july", work)


def end_past_the_session(db: Any) -> None:
    """Tools are called as if they were functions."""
    with db.session("trip") as s:
        if not s.vars:
            s.vars["receipts"] = [pay(city) for city in CITIES]
            s.commit()


def end_of_memory(db: Any) -> None:
    """It works on a store that is gone with the process, and keeps the result."""
    with perdure.open("memory://work") as work, work.session("trip") as s:
        for city in CITIES[len(s.messages) :]:
            s.messages.append({"role": "assistant", "content": f"a day in {city}"})
            s.commit()
        found = len(s.messages)
    with db.session("trip") as s:
        s.vars["found"] = found
        s.commit()


# -- an unserialisable value -----------------------------------------------------------------------------------------


def value_nobody_misses(db: Any) -> None:
    """The refusal is caught, and nothing is ever saved."""
    with db.session("trip") as s:
        s.commit()
        s.vars["price"] = Decimal("1.5")
        with contextlib.suppress(perdure.PerdureError):
            s.commit()
        s.reload()


def value_of_a_tool(db: Any) -> None:
    """A tool's result cannot be kept."""
    with db.session("trip") as s:
        s.vars["seats"] = len(s.call(seats, "Porto"))
        s.commit()


def value_by_its_name(db: Any) -> None:
    """What is kept is what Python calls it."""
    with db.session("trip") as s:
        s.vars["client"] = str(threading.Lock())
        s.commit()


# -- a history that only grows ---------------------------------------------------------------------------------------


def grows_deep_inside(db: Any) -> None:
    """A log inside a dict inside the state's own part."""
    with db.session("trip") as s:
        s.state.setdefault("audit", {}).setdefault("log", []).append("looked at Lisbon")
        s.commit()


def grows_although_cut(db: Any) -> None:
    """Two come, one goes."""
    with db.session("trip") as s:
        s.messages.append({"role": "user", "content": "where to?"})
        s.messages.append({"role": "assistant", "content": "Lisbon"})
        if len(s.messages) > 10:
            del s.messages[0]
        s.commit()


grows_by_pins = Agent(
    "pins", model=ScriptedModel(lambda _: "yes"), window=Window(max_tokens=4000, pinned=lambda _: True)
)
grows_to_the_sky = Agent("sky", model=ScriptedModel(lambda _: "yes"), window=Window(max_tokens=10**9), compactor=False)


# -- a resume that depends on the process ----------------------------------------------------------------------------

_queue: list[str] = []


def memory_of_a_queue(db: Any) -> None:
    """What is to be done is put into a queue when the session is new."""
    with db.session("trip") as s:
        if s.step == 0:
            _queue.extend(CITIES)
        s.commit()
        while _queue:
            s.state.setdefault("seen", []).append(_queue.pop(0))
            s.commit()


@functools.cache
def _plan() -> list[str]:
    return []


def memory_of_an_order(db: Any) -> None:
    """Fault: a set of strings has another order in each process, and a resumed run makes its calls in that."""

    def work(s: Any) -> int:
        for city in set(CITIES):
            s.messages.append({"role": "assistant", "content": s.call(keep, city)})
            s.commit()
        return len(s.messages)

    with db.session("trip") as s:
        s.run("july", work)


def memory_of_a_cache(db: Any) -> None:
    """How far it is, a cached object knows."""
    with db.session("trip") as s:
        for city in CITIES:
            if city not in _plan():
                s.facts[f"{city} {len(s.facts)}"] = "seen"
                s.commit()
                _plan().append(city)


class _Cart:
    """What a tool remembers between two calls."""

    items = 0

    def add(self) -> int:
        self.items += 1
        return self.items


_cart = _Cart()


@tool(if_unsure="retry", key_valid_for="1h")
def add() -> str:
    """Fault: the number is the process's."""
    return f"{_cart.add()} in the cart"


def _shopping(request: Any) -> Any:
    done = sum(m["role"] == "tool" for m in request.messages)
    return calls(("add", {})) if done < 3 else str([m["content"] for m in request.messages if m["role"] == "tool"])


memory_of_a_tool = Agent("shop", model=ScriptedModel(_shopping), tools=[add])


# -- two writers without a lease -------------------------------------------------------------------------------------


def _write(db: Any, who: str) -> None:
    with db.session("trip", lease=False) as s:
        s.vars[who] = "hello"
        with contextlib.suppress(perdure.Conflict):
            s.commit()


def writers_that_seldom_meet(db: Any) -> None:
    """One after the other, as it happens: nothing is lost on a good day."""
    with db.session("trip") as s:
        s.commit()
    for name in ("ana", "bea"):
        thread = threading.Thread(target=_write, args=(db, name))
        thread.start()
        thread.join()


async def writers_in_tasks(db: Any) -> None:
    """Two tasks of one loop."""

    async def write(who: str) -> None:
        async with db.session("trip", lease=False) as s:
            s.vars[who] = "hello"
            await asyncio.sleep(0)
            with contextlib.suppress(perdure.Conflict):
                await s.commit()

    await asyncio.gather(write("ana"), write("bea"))


def writers_in_programs(db: Any) -> None:
    """Two programs that nobody watches."""
    code = "import sys, perdure\nwith perdure.open(sys.argv[1]) as db, db.session('trip', lease=False) as s:\n"
    code += "    s.vars[sys.argv[2]] = 'hello'\n    s.commit()\n"
    for who in ("ana", "bea"):
        subprocess.run([sys.executable, "-c", code, db.url, who], check=False)


# -- none of them ----------------------------------------------------------------------------------------------------


def careful_by_hand(db: Any) -> None:
    """Whoever comes second reads again and tries again."""

    def write(who: str) -> None:
        with db.session("trip", lease=False) as s:
            while True:
                s.vars[who] = "hello"
                try:
                    s.commit()
                except perdure.Conflict:
                    s.reload()
                else:
                    return

    threads = [threading.Thread(target=write, args=(name,)) for name in ("ana", "bea")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def grows_to_a_limit(db: Any) -> None:
    """It grows for a good while, and then no more."""
    with db.session("trip") as s:
        s.messages.append({"role": "user", "content": "where to?"})
        del s.messages[:-20]
        s.commit()


def pays_in_a_run(db: Any) -> None:
    """A call that is cut off waits for a person: that is how it was meant."""

    def work(s: Any) -> int:
        for city in CITIES[:2]:
            s.messages.append({"role": "assistant", "content": s.call(pay, city)})
            s.commit()
        return len(s.messages)

    with db.session("trip") as s:
        s.run("july", work)


bounded = Agent("bounded", model=ScriptedModel(lambda _: "yes"), window=Window(max_tokens=4000))
