"""Effects that a witness saw and the store has forgotten: put in doubt, so that none is made a second time unasked.

A store that was put back to an older state knows nothing of what its sessions did since. What they did is done all the
same: each such effect stands in its session again, in doubt, under its own id and, where the witness knew it, in its
own place in the journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import NotFound
from perdure.history.hydrate import look
from perdure.model import MAIN, Kind
from perdure.session.calls.records import ARGS_LOST, RESTORED, claims
from perdure.system.times import when
from perdure.upkeep.witness import was_lost

if TYPE_CHECKING:
    from perdure.kernel import Kernel
    from perdure.session.handle import SessionHandle
    from perdure.system.flow import Flow
    from perdure.upkeep.verify import Finding
    from perdure.upkeep.witness import Effect, Witness

_MADE = (Kind.STARTED, Kind.DONE, Kind.IN_DOUBT, Kind.WAITING)
"""What says that an effect may have happened."""
_PLACES = ("c:", "k:", "r:")
"""Beginnings of the places of calls that a program makes: by their arguments, by a key, by their number in a run."""


class AcceptedLoss(NamedTuple):
    """What was given up, and what has to be found out."""

    lost: tuple[Finding, ...]
    """What the witness saw and the store does not have."""
    in_doubt: tuple[tuple[str, str, str], ...]
    """Session, effect and tool of each effect that is in doubt now."""
    branches: int
    """How many branches the witness knows from now on."""


def lost_effects(kernel: Kernel, witness: Witness) -> dict[tuple[str, str], list[Effect]]:
    """What may have happened and is not in the store, by session and branch."""
    found: dict[tuple[str, str], list[Effect]] = {}
    for effect in witness.effects.values():
        if effect.call.what in _MADE and was_lost(kernel, effect):
            found.setdefault((effect.session, _branch(kernel, effect)), []).append(effect)
    return found


def _branch(kernel: Kernel, effect: Effect) -> str:
    try:
        branches = look(kernel, effect.session).branches
    except NotFound:
        return MAIN
    return effect.branch if effect.branch in branches else MAIN


def owner_of(kernel: Kernel, session: str, effects: list[Effect]) -> str:
    """Whose a session is that is lost as a whole, where its calls say so; "" for one that is there, or of nobody."""
    try:
        look(kernel, session)
    except NotFound:
        return next((e.call.kept.owner for e in effects if e.call.kept is not None and e.call.kept.owner), "")
    return ""


def put_in_doubt(s: SessionHandle, effects: list[Effect]) -> Flow[None]:
    """Write down in a session that these effects are in doubt; those whose result is shared keep their claims."""

    def edit() -> None:
        book = s.journal.book.setdefault("effects", {})
        known: dict[str, Any] = {record["id"]: record for record in book.values()}
        for effect in effects:
            id, tool, what, slot, digest, kept = effect.call
            record = known.get(id)
            if record is None:
                # What a model is asked anew it answers anew: only what the program itself calls has the same place.
                place = slot if slot.startswith(_PLACES) and slot not in book else f"restored:{id}"
                book[place] = {
                    "id": id, "tool": tool, "digest": digest, "args": {}, "status": "in_doubt", "attempt": 1,
                    "at": effect.at, "line": s.journal.line, ARGS_LOST: True,
                }  # fmt: skip
                record = book[place]
                if kept is not None:
                    record["cache"] = {"name": kept.name, "for": kept.ms, "shared": kept.shared}
            elif record["status"] in ("done", "failed"):
                continue
            record["attempt"] = max(record["attempt"], 1)
            record["status"] = "in_doubt"
            record[RESTORED] = what
            lost = "; its arguments were lost" if record.get(ARGS_LOST) else ""
            record["error"] = (
                f"the witness saw it {what} at {when(effect.at)}, and the store was put back to before that{lost}"
            )

    requests = s.journal.book.get("approvals", {})
    for record in s.journal.book.get("effects", {}).values():
        if record["status"] == "planned" and any(effect.call[0] == record["id"] for effect in effects):
            # It was made since somebody was asked: there is nothing to agree to, or to answer, any more.
            request = requests.get(record.pop("approval", ""))
            record.pop("question", None)
            if request is not None and request["status"] in ("pending", "approved"):
                yield from s.requests.outdate(request)
    names = ", ".join(f"{effect.call.tool} ({effect.call.id})" for effect in effects)
    x = {"note": f"the store was put back to before these effects: {names}"[:500]}
    yield from s.journal.write(Kind.IN_DOUBT, x=x, edit=edit, status=s.effect_records.session_status)
    at = {effect.call.id: effect.at for effect in effects}
    for record in s.effect_records.all():
        if record["id"] in at and record["status"] == "in_doubt" and claims(record):
            yield from s.read_cache.claim_again(record["tool"], record["cache"], record["id"], at[record["id"]])
