"""How small a state becomes: a support conversation with tool calls, as agents hold them all day."""

from __future__ import annotations

import json
import random
from typing import Any

import perdure
from perdure.model import SNAPSHOT, Artifact, Span
from perdure.record.packs import Skeleton, build_snapshot

ASKED = (
    "I ordered {item} last week, order {order}, and it has not arrived. Can you check where it is?",
    "Thanks. And what about {order}? I would rather return it: {item} is not what I expected.",
    "Could you exchange {item} from {order} for another colour if you have one in stock?",
    "The parcel for {order} says delivered, but nobody was at home on {day}. What happens now?",
)
ANSWERED = (
    "I have looked {order} up: {item} was shipped on {day} with tracking number {track}. It should reach you soon.",
    "I have started a return for {item} from {order}. Please send it back within 14 days with the label I mailed you.",
    "We have {item} in two other colours. I can exchange it under {order} as soon as the old one is scanned.",
    "The carrier left a note on {day}; parcel {track} waits at the pick-up point until the end of next week.",
)
ITEMS = ("wireless headphones", "a standing desk", "the blue kettle", "hiking boots", "a mechanical keyboard")


def conversation(turns: int) -> list[dict[str, Any]]:
    """Questions, tool calls, tool results and answers, with ids and numbers that never repeat."""
    rng = random.Random(847)
    out: list[dict[str, Any]] = []
    for n in range(turns):
        words = {
            "item": rng.choice(ITEMS),
            "order": f"ORD-2024-{rng.randrange(1000, 9999)}",
            "day": f"2024-11-{rng.randrange(1, 30):02}",
            "track": f"1Z{rng.randrange(10**15, 10**16)}",
        }
        call = f"call_{rng.randbytes(8).hex()}"
        arguments = json.dumps({"order_id": words["order"], "with_history": True})
        calls = [{"id": call, "type": "function", "function": {"name": "get_order_status", "arguments": arguments}}]
        result = {"status": "shipped", "items": [{"sku": f"SKU-{n}", "name": words["item"], "price": 59.9}], **words}
        out += [
            {"role": "user", "content": rng.choice(ASKED).format(**words)},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": call, "content": json.dumps(result)},
            {"role": "assistant", "content": rng.choice(ANSWERED).format(**words)},
        ]
    return out


def test_a_snapshot_of_200_messages_is_at_least_80_percent_smaller_than_its_json() -> None:
    with perdure.open("memory://") as db, db.session("s") as s:
        s.messages.extend(conversation(50))
        s.commit()
        assert len(s.messages) == 200
        as_json = len(json.dumps(s.state.plain()).encode())
        assert s.journal.point is not None
        artifact: Artifact = build_snapshot(
            db.kernel, "s", s.journal.point, Skeleton({"s": s.state.plain(), "k": {}}, {})
        )
    assert (artifact.kind, artifact.refs) == (SNAPSHOT, tuple[Span, ...]())
    assert len(artifact.body) <= 0.2 * as_json, f"{len(artifact.body)} of {as_json} bytes"
