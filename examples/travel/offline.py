"""What the model says when there is none: enough of a travel agent to book one trip."""

import json
from typing import Any

from perdure.agent.models import Request, text_of
from perdure.agent.models.scripted import calls

TRIP = {"origin": "Paris", "destination": "Lisbon"}


def travel(request: Request) -> Any:
    """Search, then book the cheapest flight and a room at once, then say what came of it."""
    after = request.messages[max(i for i, m in enumerate(request.messages) if m["role"] == "user") :]
    if "lisbon" not in text_of(after[0]).lower():
        return "I can book a trip to Lisbon. Shall I?"
    answers = [json.loads(text_of(m)) for m in after if m["role"] == "tool"]
    if not answers:
        return calls(("search_flights", TRIP), text="I look for flights.")
    if len(answers) == 1:
        cheapest = answers[0][0]["flight"]
        return calls(("book_flight", {"flight": cheapest}), ("reserve_room", {"city": "Lisbon", "nights": 14}))
    booked, room = answers[1:3]
    said = f"Your room in {room['city']} is reserved." if "city" in room else f"The room: {room['error']}."
    if "error" in booked:
        return f"The flight is not booked ({booked['error']}). {said}"
    return f"{booked['flight']} is booked for {booked['price']:,} (reference {booked['reference']}). {said}"
