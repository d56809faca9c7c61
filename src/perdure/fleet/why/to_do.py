"""Who could go on with a session, and what to do so that somebody does: in words, and as actions for programs.

The words and the actions of one situation stand here together, so that neither says what the other does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.fleet.why.answer import ACT, WAIT, Why
from perdure.fleet.why.facts import (
    TIMERS,
    Facts,
    given_up_in,
    goes_on_by_itself,
    is_held,
    is_run,
    messages_in,
    obstacle_in,
    unfit_in,
)
from perdure.fleet.why.wording import ahead_of, full_stop, messages_wait
from perdure.model import MAIN
from perdure.session.actions import Action, Do
from perdure.session.calls.records import OPEN
from perdure.session.handover import has_it_open
from perdure.system.lease_holders import describe
from perdure.system.wording import count

if TYPE_CHECKING:
    from perdure.model import InboxEntry, SessionRow
    from perdure.session.handover import Obstacle

PROGRAM = "Its program takes it up when it calls again."
"""What is done where no agent writes the session."""


def to_take_up(inbox: list[InboxEntry], now: int, *, agent: bool = True) -> str:
    """What lies in an inbox and is to be taken up now; "" when nothing does. Only an agent hears that it is to stop."""
    given_up = given_up_in(inbox) if agent else 0
    if waiting := messages_in(inbox) - given_up:
        return f"{messages_wait(waiting)} in its inbox"
    if agent and any(e.kind == "cancel" for e in inbox):
        left = f": {count(given_up, 'message')} from before that will not be answered" if given_up else ""
        return f"Somebody wants it to stop{left}"
    return "A timer is due" if any(e.kind in TIMERS and e.at <= now for e in inbox) else ""


def waiting_for_somebody(f: Facts, what: str) -> Why:
    """There is something to do, and somebody has to do it."""
    holder = f.row.lease.holder
    if is_run(f):
        return Why(f"{what}, and {describe(holder)} is on it.", "Nothing to do.", WAIT)
    if obstacle := obstacle_in(f):
        return Why(f"{full_stop(what)} {obstacle.line}", obstacle.next, ACT, ways_past(f, obstacle))
    if goes_on_by_itself(f) and is_held(f):
        return Why(f"{what}, and {has_it_open(holder)}.", "Nothing to do: a worker takes it when it is let go.", WAIT)
    if goes_on_by_itself(f):
        due = f.work.due if f.work is not None and not (f.work.queued or f.work.worker) else None
        left, next = "", "Nothing to do."
        if f.work is not None and f.work.avoid_version:
            left = f" One of version {f.work.avoid_version} could not go on with it: {unfit_in(f)}."
            next = "Nothing to do, unless workers of no version can: then it is parked in the end."
        if due is not None and due > f.now:
            return Why(f"{what}, and a worker looks at it in {ahead_of(due - f.now)}.{left}", next, WAIT)
        return Why(f"{what}, and it waits for a worker.{left}", next, WAIT)
    if is_held(f):
        next = f"It has to be let go first. {who_could(f)}"
        return Why(f"{what}, and {has_it_open(holder)}.", next, ACT, not_held(f, ways_on(f)))
    return Why(f"{what}, and nobody works on it.", who_could(f), ACT, ways_on(f))


def ways_past(f: Facts, obstacle: Obstacle) -> tuple[Action, ...]:
    """What to do about an obstacle. One that is parked anybody may run himself, and sees what it fails of."""
    by_hand = f.work is not None and f.work.parked and obstacle.action.name == Do.RETRY
    # Who has the lease has it alone.
    runs = (by_hand or obstacle is f.misfit) and not is_held(f)
    ways = (obstacle.action, *(actions_for(f.row, Do.RUN) if runs else ()))
    # A retry alone helps nobody where no worker is.
    return ways if f.served or not by_hand else ways[::-1]


def who_could(f: Facts) -> str:
    """Who could go on with it, and how."""
    if f.head.branch != MAIN and f.row.agent:
        return "Run the branch on, so that calls are made." if effects_to_run(f) == "reuse" else "Run the branch on."
    if f.parent:
        return f"The session it works for takes it along: run the agent of {f.parent}."
    if not f.row.agent:
        return PROGRAM
    if f.served is False:
        return no_worker(f)
    return "Hand it to the fleet by a retry, or run its agent." if f.served else "Run its agent again."


def ways_on(f: Facts) -> tuple[Action, ...]:
    """The same for programs."""
    if f.head.branch != MAIN and f.row.agent:
        return run_action(f)
    if f.parent:
        return (Action(Do.RUN, f.parent),)
    if not f.row.agent:
        return action_on(f, Do.PROGRAM)
    if f.served is None:
        return run_action(f)
    if f.meant:
        return (*as_meant(f), *actions_for(f.row, Do.WORKER))
    return actions_for(f.row, Do.RETRY if f.served else Do.WORKER, Do.RUN)


def not_held(f: Facts, actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """Those that can be done now, while somebody has it open; all of them where there are no such."""
    free = tuple(a for a in actions if a.name != Do.RUN or a.session != f.row.id)
    return free if is_held(f) and free else actions


def as_meant(f: Facts) -> tuple[Action, ...]:
    """To give it to the agent that was meant."""
    return (Action(Do.SUBMIT, f.row.id, f.meant),) if f.meant else ()


def no_worker(f: Facts) -> str:
    """What to do where no worker can go on with it."""
    if f.misfit is not None:
        return f"{f.misfit.line} {f.misfit.next}"
    starts = Action(Do.WORKER, f.row.id).command
    line = f"No worker serves agent {f.row.agent}{f.others}:"
    if f.meant:
        gives = Action(Do.SUBMIT, f.row.id, f.meant).command
        return f"{line} give it to {f.meant} with {gives}, or start one that has it with {starts}."
    return f"{line} start one with {starts}, or resume it yourself."


def actions_for(row: SessionRow, *names: Do) -> tuple[Action, ...]:
    """What is done on the session."""
    return tuple(Action(name, row.id) for name in names)


def action_on(f: Facts, name: Do, argument: str = "") -> tuple[Action, ...]:
    """What is done on the branch that is told of."""
    return (Action(name, f.row.id, argument, f.head.branch),)


def run_action(f: Facts) -> tuple[Action, ...]:
    """To run its agent on the branch that is told of."""
    return action_on(f, Do.RUN, effects_to_run(f))


def effects_to_run(f: Facts) -> str:
    """What must become of calls so that a run gets further: a dry one goes no further than an open call."""
    if f.head.branch == MAIN:
        return ""
    calls = [e for e in f.book.get("effects", {}).values() if e["status"] in OPEN and e["id"] not in f.done_elsewhere]
    return "reuse" if calls else "dry"
