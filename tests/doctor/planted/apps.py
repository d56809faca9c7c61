"""Five faults, each in an app of a few lines, and the same app without any."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import perdure
from perdure import Agent, ScriptedModel, Window, tool
from perdure.agent.models.scripted import calls

CITIES = ("Lisbon", "Porto", "Faro", "Braga")


def _answer(s: Any, city: str) -> None:
    s.messages.append({"role": "assistant", "content": f"a day in {city}"})


def healthy(db: Any) -> None:
    """Saves each answer, and knows from the session how far it is."""
    with db.session("trip") as s:
        for city in CITIES[len(s.messages) :]:
            _answer(s, city)
            s.commit()


def saves_at_the_end(db: Any) -> None:
    """Fault: four answers, one save."""
    with db.session("trip") as s:
        if not s.messages:
            for city in CITIES:
                _answer(s, city)
            s.commit()


def unserialisable(db: Any) -> None:
    """Fault: a moment is no JSON."""
    with db.session("trip") as s:
        s.vars["when"] = datetime.now(UTC)
        s.commit()


def only_grows(db: Any) -> None:
    """Fault: every run adds to the conversation, and nothing ever takes away."""
    with db.session("trip") as s:
        _answer(s, CITIES[0])
        s.commit()


def keeps_within_bounds(db: Any) -> None:
    """No fault: it grows, and is cut."""
    with db.session("trip") as s:
        _answer(s, CITIES[0])
        del s.messages[:-5]
        s.commit()


_done: list[str] = []


def depends_on_memory(db: Any) -> None:
    """Fault: how far it is, only the process knows."""
    with db.session("trip") as s:
        for city in CITIES:
            if city not in _done:
                _answer(s, city)
                s.commit()
                _done.append(city)


def two_writers(db: Any) -> None:
    """Fault: both opened it before either has written, and the loser shrugs."""
    opened = threading.Barrier(2)

    def write() -> None:
        with db.session("trip", lease=False) as s:
            opened.wait(60)
            s.messages.append({"role": "user", "content": "hello"})
            try:
                s.commit()
            except perdure.Conflict:
                s.reload()

    with db.session("trip") as s:
        s.commit()
        if s.messages:
            return
    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def two_careful_writers(db: Any) -> None:
    """No fault: whoever comes second does it again on top."""

    def write(who: str) -> None:
        db.update("trip", lambda s: s.vars.setdefault(who, "hello"), tries=50)

    threads = [threading.Thread(target=write, args=(name,)) for name in ("ana", "bea")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# -- agents ----------------------------------------------------------------------------------------------------------

_cart: list[str] = []


@tool(read=True)
def add(item: str) -> int:
    """Fault: the cart is a list of this process."""
    _cart.append(item)
    return len(_cart)


@tool(read=True)
def when() -> Any:
    """Fault: its result is no JSON."""
    return {datetime.now(UTC)}


@tool
def pay(amount: int) -> int:
    """No fault: but whoever kills it in the middle must be asked."""
    return amount


def _script(*wanted: Any) -> ScriptedModel:
    def said(request: Any) -> Any:
        answered = [m["content"] for m in request.messages if m["role"] == "tool"]
        return calls(wanted[len(answered)]) if len(answered) < len(wanted) else f"{(answered or [0])[-1]} in all"

    return ScriptedModel(said)


forgetful = Agent("forgetful", model=_script(("add", {"item": "milk"}), ("add", {"item": "tea"})), tools=[add])
undated = Agent("undated", model=_script(("when", {})), tools=[when])
endless = Agent("endless", model=_script(), window=Window(), compactor=False)
payer = Agent("payer", model=_script(("pay", {"amount": 3})), tools=[pay])
costly = Agent("costly", model="some-model", provider="ollama")
nothing = 7
