"""A travel agent that asks before it spends: it may exit while it waits, and an old yes does not cover a new price.

    python app.py ask mail-1 "Two weeks in Lisbon"   searches, reserves the room, waits for a yes to the flight, exits
    python app.py approve                            somebody agrees, minutes or days later, from another process
    python app.py price 1500                         meanwhile the fare has risen
    python app.py                                    goes on: not at this price, and asks again
    python app.py approve; python app.py             booked

What is asked has an id: killed, and typed again, it is the same mail, and is said once.
Without HOLYSHEEP_API_KEY a scripted model answers, with no network; with it, the real one.
"""

import os
import sys
from typing import Any

from airline import Airline

import perdure
from perdure import Agent, ScriptedModel

STORE = os.environ.get("TRAVEL_STORE", "sqlite:///trips.db")
SESSION = "trip-42"
airline = Airline(os.environ.get("TRAVEL_WORLD", "airline.db"))


@perdure.tool(read=True)
def search_flights(origin: str, destination: str) -> list[dict[str, Any]]:
    """Flights from one city to another, with prices."""
    return airline.flights(origin, destination)


def fare_of(flight: str) -> dict[str, Any]:
    """What an agreement to a booking rests on; read again right before the booking is made."""
    return {"price": airline.fare(flight)}


def not_dearer(then: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether an agreement still holds: cheaper is fine."""
    return now["price"] <= then["price"]


@perdure.tool(approve=True, facts=fare_of, recheck=not_dearer, approval_valid_for="3d", if_unsure="retry")
def book_flight(flight: str, ctx: perdure.Context) -> dict[str, Any]:
    """Book a flight. A person is asked first.

    Args:
        flight: the flight's number
    """
    return airline.book(flight, reference=ctx.effect_id)


def find_room(city: str, nights: int) -> Any:
    """The hotel knows no references: whether a reservation was made, only its guest list tells."""
    known = (city, nights) in airline.rooms(SESSION)
    return perdure.Done({"city": city, "nights": nights}) if known else perdure.NotDone


@perdure.tool(if_unsure=find_room)
def reserve_room(city: str, nights: int) -> dict[str, Any]:
    """Reserve a hotel room; it can be cancelled for free, so nobody is asked."""
    airline.reserve(city, nights, SESSION)
    return {"city": city, "nights": nights}


def model() -> dict[str, Any]:
    """The real model when there is a key, else a scripted one."""
    if os.environ.get("HOLYSHEEP_API_KEY"):
        return {"model": "deepseek-v3.2", "provider": "holysheep"}
    from offline import travel

    return {"model": ScriptedModel(travel)}


agent = Agent(
    "travel",
    **model(),
    tools=[search_flights, book_flight, reserve_room],
    instructions="You book trips. Search first; then book the cheapest flight and a room for the whole stay at once.",
)


def main(command: str = "go", *words: str) -> None:
    """One command of the list above."""
    match command:
        case "ask":
            show(agent.run_sync(STORE, session=SESSION, key=words[0], message=" ".join(words[1:])))
        case "go":
            show(agent.run_sync(STORE, session=SESSION))
        case "price":
            airline.set_fare("TP-449", int(words[0]))
        case "approve":
            with perdure.open(STORE) as db:
                with db.session(SESSION) as s:
                    waiting = s.approvals()
                for approval in waiting:
                    db.approve(SESSION, approval.id, by="you")
                    print(f"agreed: {approval.tool} {approval.args} at {approval.facts}")
        case _:
            print(__doc__)


def show(result: Any) -> None:
    """Where the trip stands."""
    for approval in result.approvals:
        print(f"May I? {approval.tool} {approval.args} at {approval.facts['price']:,}", approval.because)
    print(result.text if result.ok else f"({result.status})")


if __name__ == "__main__":
    main(*sys.argv[1:])
