"""What the record of a call says: the words that stand in it, and what can be read from it without asking anybody.

``effects`` writes the records. Whoever tells people of calls, or acts on them, reads them with this.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from perdure.errors import NotJson
from perdure.session.journal import KeptAs
from perdure.session.tools.call_state import UNKEPT
from perdure.system.wording import call_words

if TYPE_CHECKING:
    from perdure.session.tools.declaration import Tool
    from perdure.state.document import TrackedDict

OPEN = ("planned", "started", "in_doubt", "waiting")
"""Where a call without an outcome may stand."""
LEFT = "left:"
"""Begins the place of a call that a person has settled after whoever called was told that nobody knows what it did, or
that a rewind has left; its id and the place that it had follow."""
LEFT_LINE = "left_line"
"""Marks the record of a call whose outcome nobody knows and that a rewind has left; its place begins with ``LEFT``."""
GIVEN_UP = "given_up"
"""Marks the record of a call that a person has given up."""
RESTORED = "restored"
"""Marks the record of an effect that only a witness knew of when the store had been put back to an older state."""
ARGS_LOST = "args_lost"
"""Marks such a record where the witness alone knew of the call: it sees digests of arguments, never themselves."""
BEHIND = "behind"
"""Under this a planned call names the effect of another session whose result it waits for."""
ENDED_RUN = "ended_run"
"""Under this a call that failed or raised has the run that its exception has ended, and what its tool declares of a
repetition: run again, the run asks for it again. "" where a person has decided that it is not to be made."""
AGAIN = {
    "failed": "the call is made again",
    "retry": "the call is made again under its id, while that is valid",
    "function": "what became of the call is looked up, and it is made again if it did not happen",
    "ask": "a person is asked whether the call is to be made again",
}
"""What is said of that."""
DONE_ELSEWHERE = (
    "has its outcome from another branch or from before a rewind, and that is taken when it goes on, without a call"
)
"""What is said of an open call whose outcome another line has."""
LOOKUP = "lookup_error"
"""In a record: what the function that finds out what became of the call ended with."""
MISFIT = "misfit"
"""In a record: what of its result does not fit the type that its tool declares. The result is kept as it is."""
UNSETTLED = "unsettled"
"""Marks the record of a call that is made again under its id while nobody knows what became of an earlier attempt."""
PROBLEM = "problem"
"""In a record, and where its result is kept or reused: why what a call returned that was done cannot be kept."""
REPEATS = "repeats"
"""Under this a call has the id of the one that raised, and for which somebody is asked before it is made again."""
TOLD = "told"
"""Marks the record of a call of which nobody knows what it did, once whoever called was told so."""
RECORD, PLACE = "record", "place"
"""In what is remembered of a call that raised: its record, so that a person can settle it; in that the place it had."""
MAX_ERROR = 2000
"""Characters of an error's text that are kept."""


def new_effect_id() -> str:
    """A name for an effect, sent to providers as an idempotency key."""
    return "ef_" + os.urandom(12).hex()


def about(record: TrackedDict, **more: Any) -> dict[str, Any]:
    """What a checkpoint says in the clear of the call it records."""
    return {"effect": record["id"], "tool": record["tool"], **more}


def kept_as(record: TrackedDict | dict[str, Any]) -> KeptAs | None:
    """How what a call returns is kept; None when it is not."""
    kept = record.get("cache")
    return None if kept is None else KeptAs(kept["name"], kept["for"], kept["shared"])


def claims(record: TrackedDict | dict[str, Any]) -> bool:
    """Whether a call must be claimed before it is made: its result is shared with other sessions, which may ask now."""
    return "cache" in record and record["cache"]["shared"] and "read" not in record


def run_of(place: str) -> str | None:
    """The run in which a call has its place; None when it was not made in one."""
    return place[2:].rpartition(":")[0] if place.startswith("r:") else None


def raised_as(digest: str, place: str) -> str:
    """Under what it is remembered that a call raised: with another key it is another call."""
    return f"{digest}:{place}" if place.startswith("k:") else digest


def is_begun(record: TrackedDict | dict[str, Any]) -> bool:
    """Whether a call has been made, or may have been, and has no outcome yet."""
    return record["status"] in OPEN and (record["status"] != "planned" or record["attempt"] > 0)


def is_by_itself(record: TrackedDict, approvals: TrackedDict | dict[str, Any]) -> bool:
    """Whether a call has failed or raised by what its tool did, and not because a person has decided so."""
    if record["status"] == "raised":
        return True
    request = approvals.get(record.get("approval", ""))
    refused = "approval" in record and (request is None or request["status"] in ("rejected", "expired", "withdrawn"))
    return record["attempt"] > 0 and not refused and GIVEN_UP not in record


def is_ahead(record: dict[str, Any]) -> bool:
    """Whether the outcome of a call is still to come: it has none, or has ended the run and is asked for again."""
    return record["status"] in OPEN or bool(record.get(ENDED_RUN, {}).get("again"))


def is_asked_again(record: TrackedDict | dict[str, Any], tool: Tool) -> bool:
    """Whether a recorded call is asked for again where a run comes to it, because it has ended that run."""
    if not record.get(ENDED_RUN, {}).get("again"):
        return False
    return record["status"] == "failed" or (record["status"] == "raised" and tool.if_unsure != "report")


def if_repeated(tool: Tool, record: TrackedDict, approvals: TrackedDict | dict[str, Any]) -> str:
    """What is done when a call is asked for again that failed or raised, in a word; "" for nothing."""
    if not is_by_itself(record, approvals):
        return ""
    if record["status"] == "failed":
        return "failed"
    return "function" if callable(tool.if_unsure) else tool.if_unsure


def is_tried_again(record: dict[str, Any]) -> bool:
    """Whether the answer to a call was lost, and it is made again by itself under its id."""
    return record["status"] == "started" and "lost_since" in record


def exception_of(record: dict[str, Any]) -> dict[str, str] | None:
    """The exception that a call ended with, or that its answer was lost with last; None when it has answered."""
    if "raised" in record:
        return record["raised"]
    return record.get("lost") if record["status"] not in ("done", "planned") else None


def lookup_error(record: dict[str, Any]) -> str:
    """What the function ended with that its tool has as ``if_unsure`` or ``poll``, while the call has no outcome for
    that reason; else ""."""
    return record.get(LOOKUP, "") if record["status"] in ("in_doubt", "raised", "waiting") else ""


def looked_up(record: dict[str, Any]) -> str:
    """The same in words; "" when none has failed."""
    option = "poll" if record["status"] == "waiting" else "if_unsure"
    failed = lookup_error(record)
    return failed and f"what its tool has as {option} could not find out, it failed with {failed}"


def call_of(record: dict[str, Any], limit: int = 90, each: int = 40) -> str:
    """A recorded call as people write one."""
    return f"{record['tool']}(…)" if record.get(ARGS_LOST) else call_words(record["tool"], record["args"], limit, each)


def is_whole(record: dict[str, Any]) -> bool:
    """Whether :func:`call_of` tells all arguments of a call that are known."""
    return bool(record.get(ARGS_LOST)) or call_of(record) == call_words(
        record["tool"], record["args"], sys.maxsize, sys.maxsize
    )


def left_open(record: dict[str, Any]) -> str:
    """What is said of an open call that a dry run does not go on with."""
    match record["status"]:
        case "planned" if "approval" in record:
            stands = "it was not made yet, and somebody was asked to decide on it"
        case "planned":
            stands = "it was not made yet"
        case "waiting":
            stands = "it was made before, and its result comes later"
        case _:
            stands = "it was started before, and nobody knows whether it happened"
    return (
        f"dry run: {record['tool']} (effect {record['id']}) is not called, and stays open: {stands}. "
        'Go on with --effects reuse (effects="reuse") to have it settled'
    )


def unfit(record: dict[str, Any]) -> str:
    """What is said of a call whose result is not what its tool declares."""
    return (
        f"{record['tool']} was done (effect {record['id']}), and its result does not fit what it declares to return: "
        f"{record[MISFIT]}. The result is kept, and given to whoever called, as it is"
    )


def unkept(record: TrackedDict) -> str:
    """What is said of a call that was done, and whose writes into the state were not kept."""
    return (
        f"{record['tool']} was done (effect {record['id']}), and what it wrote to ctx.state was not kept: "
        f"{record[UNKEPT]}"
    )


def no_json(tool: str, effect: str, problem: str) -> NotJson:
    """A call was made, and what it returned cannot be kept."""
    hint = (
        f"{tool} was done (effect {effect}) and its result is lost. Have it return JSON, or a value of the type "
        "that its return annotation declares"
    )
    return NotJson(("result",), problem, hint, where=f"what {tool} returned, or a part of it,")
