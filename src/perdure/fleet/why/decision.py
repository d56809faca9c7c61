"""What the facts come to: :func:`told` decides, from facts alone, and nobody else words where a session stands.

Long because all sentences stand in this one place: only side by side is it seen that no two of them contradict each
other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from perdure.agent.run_result import raised_in
from perdure.fleet.inputs import said_in
from perdure.fleet.why.answer import ACT, FAILING, OK, WAIT, Why
from perdure.fleet.why.facts import (
    TIMERS,
    Facts,
    call_behind,
    calls_at,
    child_of,
    failures_here,
    given_up_in,
    goes_on_by_itself,
    has_more,
    has_outcome,
    is_counted,
    is_held,
    is_run,
    is_shut_out,
    is_taken_up,
    lost_call,
    messages_in,
    obstacle_in,
)
from perdure.fleet.why.to_do import (
    PROGRAM,
    action_on,
    actions_for,
    no_worker,
    not_held,
    run_action,
    to_take_up,
    waiting_for_somebody,
    ways_past,
)
from perdure.fleet.why.wording import ahead_of, error_in, full_stop, gap_of, messages_wait
from perdure.history.expiry import in_doubt_in
from perdure.model import MAIN, Status
from perdure.session.actions import Action, Do
from perdure.session.calls.decisions import is_late, pending
from perdure.session.calls.records import (
    AGAIN,
    BEHIND,
    DONE_ELSEWHERE,
    ENDED_RUN,
    LEFT_LINE,
    RESTORED,
    call_of,
    exception_of,
    is_tried_again,
    is_whole,
    looked_up,
)
from perdure.session.handover import has_it_open, obstacle_of
from perdure.session.journal import LEFT
from perdure.session.tools.exceptions import in_short
from perdure.session.waiting_messages import UNSAID, unsaid_words
from perdure.system import times
from perdure.system.commands import door, typed
from perdure.system.commands import quoted as as_word
from perdure.system.lease_holders import describe, is_dead, runs_agent
from perdure.system.wording import brief, count, one_line

if TYPE_CHECKING:
    from perdure.agent.run_result import Raised
    from perdure.model import InboxEntry, SessionRow

_LEFT_OUT = 90
"""Characters of a call's arguments, or of an error, that are told."""
MOST_TRIES = 10
"""So often workers try a session at one place, unless they are started with another number."""
_IN_VAIN = 3
"""From this attempt on a call whose answers are lost is no mere wait."""
_OTHERS = 3
"""Calls that raised, beside the one that is told in full, that are told with their exceptions."""
_CHANGE_FIRST = "Change the key, the model's name, the address or the account first: the provider says which."
"""What nobody gets past by trying again."""


def told(f: Facts) -> Why:
    """What the facts come to."""
    if f.over:
        return _over(f)
    found = _with_time(f, _with_refused(f, _with_exception(f, _on_board(f) or _by_status(f))))
    label = f.head.more.get("label")
    return found._replace(line=f"{found.line} Its label: {full_stop(str(label))}") if label else found


def not_begun(row: SessionRow, inbox: list[InboxEntry], now: int) -> Why:
    """The same for a session without a checkpoint."""
    line = "Nothing has been committed to it yet."
    holder = row.lease.holder if row.lease.holder and not is_dead(row.lease.holder) else ""
    if (what := to_take_up(inbox, now)) and runs_agent(holder):
        return Why(f"{line} {what}, and {describe(holder)} is on it.", "Nothing to do.", WAIT)
    if what:
        what = f"{what}, and {describe(holder)} has it open" if holder else what
        next = "Run its agent on it. Whose it is to be is not known before its first checkpoint: name its owner again."
        return Why(f"{line} {what}.", next, ACT, actions_for(row, Do.START))
    begins = "It begins when its agent is run on it, or its program writes it."
    due = min((e.at for e in inbox if e.kind in TIMERS), default=None)
    return Why(line if due is None else f"{line} A timer in its inbox is due in {ahead_of(due - now)}.", begins)


def gone(row: SessionRow, inbox: list[InboxEntry], now: int, can_come_back: bool) -> Why:
    """The same for one that has ended; what was set aside can be brought back."""
    back = actions_for(row, Do.REVIVE) if can_come_back else ()
    revived = " Reviving it brings it back as it was." if back else ""
    line = f"It is gone: {row.why_gone}."
    if what := to_take_up(inbox, now):
        begins = f"Run its agent on it: it begins anew.{revived}"
        return Why(f"{line} {what}.", begins, ACT, (*actions_for(row, Do.START), *back))
    begins = f"A message to it starts a new session under the same name.{revived}"
    return Why(line, begins, OK, (*back, *actions_for(row, Do.MESSAGE)))


def _with_time(f: Facts, found: Why) -> Why:
    """The same, with the call that keeps a session whose time is over: also one that has ended for its agent."""
    if not f.row.over or is_held(f):
        return found
    begun = [e for e in in_doubt_in(f.book) if e["id"] not in f.done_elsewhere]
    if not begun:
        return found
    what = "that" if f.head.status == Status.IN_DOUBT else f"what became of {call_of(begun[0])}"
    ran_out = f"Its time ran out {gap_of(f.row.now - (f.row.expires or 0))} ago: it is kept until {what} is settled."
    found = found._replace(line=f"{found.line} {ran_out}")
    if found.severity != OK:
        return found
    settles = f"Find out, then say: done, try again, or give up.{_left_out(f, begun[0], 'resolve')}"
    if f.head.status == Status.CLOSED:
        return found._replace(next=f"{settles} Open it again for that.", severity=ACT)
    actions = (*action_on(f, Do.RESOLVE, begun[0]["id"]), *found.actions)
    return found._replace(next=f"{settles} {found.next}", severity=ACT, actions=actions)


def _with_exception(f: Facts, found: Why) -> Why:
    """The same, with an exception of a tool: whoever looks may have written it."""
    error = found.error
    effects = f.book.get("effects", {}).values()
    lost = next((e for e in effects if e["status"] == "in_doubt" or is_tried_again(e)), None)
    if error is None and lost is not None:
        error = exception_of(lost)
    if not (raised := raised_in(f.book)):
        return found._replace(error=error)
    newest = raised[::-1]
    newest.sort(key=_is_known)
    first, *others = newest
    told = {"class": first.error, "message": first.message, "traceback": first.traceback} if first.error else None
    line = f"{found.line} {one_line(str(first), 200)}. {_became(first)}"
    if others:
        open_ = sum(not _is_known(one) for one in others)
        unknown = f"; what {open_} of them had changed by then is not known, either" if open_ else ""
        which = ", ".join(f"{one.tool} with {one.error or 'no answer'}" for one in others[:_OTHERS])
        left_out = ", …" if len(others) > _OTHERS else ""
        did = "raised" if all(one.error for one in others) else "came to no outcome"
        line = f"{line} {count(len(others), 'more call')} {did}: {which}{left_out}{unknown}."
    return found._replace(line=line, error=error if error is not None else told)


def _is_known(one: Raised) -> bool:
    """Whether it is known what became of a call that raised."""
    return bool(one.again) or one.status not in ("raised", "unknown")


def _became(one: Raised) -> str:
    """What became of a call that raised."""
    match one.status:
        case "raised" if one.again:
            return "The same call was made again since, and was done."
        case "raised":
            return "What it had changed by then is not known."
        case "unknown":
            return "Nobody knows whether it happened."
        case "done":
            return "It had happened."
        case _:
            return "Nothing had happened."


def _with_refused(f: Facts, found: Why) -> Why:
    """The same, with the message that the provider may have refused: it is refused again until somebody sees to it."""
    if not f.refused:
        return found
    last = f.refused[-1]
    words = brief(said_in(last.kind, last.body), _LEFT_OUT)
    others = f", and {len(f.refused) - 1} before it" if len(f.refused) > 1 else ""
    line = f"{found.line} What was refused had message {brief(last.key, _LEFT_OUT)} in it{others}: {full_stop(words)}"
    if is_held(f):
        return found._replace(line=line)
    next = f"Withdraw or edit that message, if it is what is refused. {found.next}"
    return found._replace(
        line=line, next=next, severity=ACT, actions=(*action_on(f, Do.WITHDRAW, last.key), *found.actions)
    )


def _over(f: Facts) -> Why:
    """It has expired, and is there until somebody begins it anew or a sweep comes by."""
    ran_out, back = f"Its time ran out {gap_of(f.row.now - (f.row.expires or 0))} ago", actions_for(f.row, Do.REVIVE)
    revived = "Reviving it brings it back as it was."
    if what := to_take_up(f.inbox, f.now, agent=bool(f.row.agent)):
        found = waiting_for_somebody(f, f"{ran_out}, it begins anew: {what[0].lower()}{what[1:]}")
        return found._replace(next=f"{found.next} {revived}", actions=(*found.actions, *back))
    return Why(f"{ran_out}.", f"A message to it begins anew. {revived}", OK, (*back, *actions_for(f.row, Do.MESSAGE)))


def _on_board(f: Facts) -> Why | None:
    """What the fleet says, where that is the reason."""
    settled = (Status.WAITING_APPROVAL, Status.IN_DOUBT, Status.CLOSED, Status.CANCELLED)
    if f.work is None or f.head.status in settled:
        return None
    if obstacle := obstacle_of(f.work, f.held and (has_more(f) or f.work.paused)):
        stands = f" {_stands(f)}" if f.work.parked else ""
        line, next = f"{obstacle.line}{stands}", obstacle.next
        if f.row.agent and any(e.kind == "cancel" for e in f.inbox):
            stops = "it stops when a worker takes it"
            line = f"Somebody wants it to stop: {stops}. {line}"
            next = f"Unpause it: {stops}." if f.work.paused and not (f.held or f.work.parked) else next
        return Why(line, next, ACT, ways_past(f, obstacle))
    return _failing(f) if has_more(f) and failures_here(f) else None


def _waits_and_fails(f: Facts) -> Why | None:
    """It waits for something that no run brings, and workers died of looking at it."""
    if f.head.status != Status.WAITING_RESULT or isinstance(waits := _awaited(f), str):
        return None
    times = failures_here(f)
    again = times > 1 and waits.severity == WAIT
    return waits._replace(line=f"{waits.line} {_died(f)}", severity=FAILING if again else waits.severity)


def _failing(f: Facts) -> Why | None:
    """It is tried again by itself, and gets no further."""
    if (waits := _waits_and_fails(f)) is not None:
        return waits
    work = f.work
    assert work is not None
    times, lost = failures_here(f), lost_call(f)
    if lost is not None and is_run(f) and f.head.status != Status.FAILED and not has_outcome(f, lost):
        # Who has it keeps to the pauses of the call.
        again = _tried_again(f, lost)
        return again._replace(line=f"{again.line} {_died(f)}", severity=FAILING if times > 1 else WAIT)
    since = f" That was {gap_of(f.now - f.trail.since)} ago." if f.trail is not None else ""
    line = _died(f)
    if f.head.status == Status.FAILED:
        line = (
            full_stop(f"The last run failed: {_error(f)}") + (f" {line}" if times > 1 else "") + f" {_place(f)}{since}"
        )
    else:
        line = f"{line} {_stands(f, since)}"
    if is_held(f) and not is_run(f):
        line = f"{line} {has_it_open(f.row.lease.holder).capitalize()}: it has to be let go first."
    if not f.served and not is_run(f):
        return Why(line, no_worker(f), ACT, not_held(f, actions_for(f.row, Do.WORKER, Do.RUN)))
    if not is_taken_up(work) and not is_run(f):
        # It failed, and nobody is to try it again.
        return None
    if is_run(f):
        again = f"{describe(f.row.lease.holder).capitalize()} tries it now"
    elif is_held(f):
        again = "Then it is tried again"
    elif (due := max(work.due or 0, lost["retry_at"] if lost is not None else 0)) > f.now:
        again = f"It is tried again in {ahead_of(due - f.now)}"
    else:
        again = "It is tried again now"
    if is_shut_out(f) and not is_run(f):
        again = f"{_CHANGE_FIRST} {again}"
    if times == 1:
        return Why(line, f"{again}.", WAIT)
    after = f"after {MOST_TRIES} tries, or as many as its workers were started with, no worker takes it any more"
    return Why(line, f"{again}; {after}.", FAILING)


def _died(f: Facts) -> str:
    times = failures_here(f)
    if f.head.status == Status.FAILED and times > 1:
        # The last one failed, with the error that is told; those before may have died.
        more = "" if is_counted(f) else ", the last time or more often"
        return f"It was tried {times} times{more} at the same place."
    if times == 1 or is_counted(f):
        return f"Its worker died or failed {count(times, 'time')} at the same place."
    return f"Its worker died or failed {times} times, the last time or more often at this place."


def _stands(f: Facts, since: str = "") -> str:
    """Where it stands, and the last error there."""
    if f.trail is None:
        return ""
    error = full_stop(f"It failed last {f.trail.error}") if f.trail.error else "No error was recorded."
    return f"{_place(f)}{since} {error}"


def _place(f: Facts) -> str:
    """The step since which it only wrote that it was tried again, and which call was under way there."""
    if f.trail is None:
        return ""
    under_way = _open_call(f) or "the model is to be asked next"
    return f"It has got no further since step {f.trail.step}, where {under_way}."


def _open_call(f: Facts) -> str:
    """Which call was under way; "" when none was."""
    every = [calls_at(f, status) for status in ("started", "in_doubt", "planned", "waiting")]
    left = [[e for e in some if not has_outcome(f, e)] for some in every]
    begun = next(filter(None, left), None)
    if begun is None:
        come = next(filter(None, every), None)
        return f"the outcome of {call_of(come[0])} has arrived" if come else ""
    more = f", and {len(begun) - 1} more" if len(begun) > 1 else ""
    return f"{_no_outcome(f, begun[0])}{more}"


def _no_outcome(f: Facts, call: dict[str, Any]) -> str:
    return f"{call_of(call)} {DONE_ELSEWHERE if call['id'] in f.done_elsewhere else 'has no outcome yet'}"


def _under_way(f: Facts) -> str:
    return f": {call}" if (call := _open_call(f)) else ""


def _by_status(f: Facts) -> Why:
    match f.head.status:
        case Status.IN_DOUBT:
            return _in_doubt(f)
        case Status.WAITING_APPROVAL:
            return _approval(f)
        case Status.WAITING_RESULT:
            return _result(f)
        case Status.FAILED:
            return _failed(f)
        case Status.PAUSED:
            return _at_limit(f)
        case Status.CANCELLED:
            if what := to_take_up(f.inbox, f.now):
                return waiting_for_somebody(f, f"It was cancelled, and {what[0].lower()}{what[1:]}")
            note = str(f.head.more.get("note") or "cancelled")
            line = full_stop(f"It was {note}" if note.startswith("cancelled") else note)
            next, severity, goes_on = _go_on_by_message(f)
            if doubts := _left_in_doubt(f):
                found = _find_out(f, doubts, goes_on)
                ways = found.actions if goes_on[0] in found.actions else (*found.actions, *goes_on)
                next = f"{found.next} {next[:-1]}, and is answered when that is settled."
                return found._replace(line=f"{line} {found.line}", next=next, actions=ways)
            return Why(_with_open_call(f, line), next, severity, goes_on)
        case Status.CLOSED if is_held(f):
            return waiting_for_somebody(f, "It was closed")
        case Status.CLOSED:
            waiting = f" {messages_wait(number)} in its inbox." if (number := messages_in(f.inbox)) else ""
            line, next = f"It was closed.{waiting}", "Nothing goes on with it unless somebody opens it again."
            doubts = _left_in_doubt(f)
            if doubts:
                line = f"{line} {_nobody_knows(doubts)}"
                next = "Find out, and open it again to say what became of that: nothing goes on with it before."
            # An agent that opened it would meet calls of the program's own tools.
            opens = Do.REOPEN if f.row.agent else Do.PROGRAM_REOPENS
            severity = ACT if waiting or doubts else OK
            return Why(line if doubts else _with_open_call(f, line), next, severity, actions_for(f.row, opens))
        case Status.RUNNING:
            return _running(f)
        case _:
            return _resting(f)


def _failed(f: Facts) -> Why:
    """The last run failed, and no worker was told to try it again."""
    what = f"The last run failed: {_error(f)}"
    if is_held(f) or goes_on_by_itself(f):
        found = waiting_for_somebody(f, what)
        return found._replace(next=_CHANGE_FIRST) if is_shut_out(f) and found.severity == WAIT else found
    line = full_stop(what)
    if not f.row.agent:
        return _left_open(f) or Why(line, PROGRAM, ACT, action_on(f, Do.PROGRAM))
    line = f"{line} {_place(f)}"
    if f.served is None:
        again = f"{_CHANGE_FIRST} Then run its agent again."
        other = "Run its agent again, or branch before the failing step."
        return Why(line, again if is_shut_out(f) else other, ACT, run_action(f))
    if f.work is not None and is_taken_up(f.work):
        return Why(line, no_worker(f), ACT, actions_for(f.row, Do.WORKER, Do.RUN))
    does = "retry it" if f.served else "run its agent again, for no worker serves it"
    or_else = f"{does[0].upper()}{does[1:]}, or branch before the failing step."
    again = f"{_CHANGE_FIRST} Then {does}." if is_shut_out(f) else or_else
    return Why(line, again, ACT, actions_for(f.row, *((Do.RETRY, Do.RUN) if f.served else (Do.RUN, Do.RETRY))))


def _at_limit(f: Facts) -> Why:
    if is_held(f):
        return waiting_for_somebody(f, "It stopped at a limit")
    line = f"It stopped at a limit: {full_stop(str(f.head.more.get('note') or 'a limit was reached'))}"
    if not f.row.agent:
        return _left_open(f) or Why(line, PROGRAM, ACT, action_on(f, Do.PROGRAM))
    return Why(line, "Run it again, with a higher limit where one was used up.", ACT, run_action(f))


def _in_doubt(f: Facts) -> Why:
    doubts = [e for e in calls_at(f, "in_doubt") if not has_outcome(f, e) and e["id"] not in f.done_elsewhere]
    if not doubts:
        settled = calls_at(f, "in_doubt")
        if settled and settled[0]["id"] in f.done_elsewhere:
            return waiting_for_somebody(f, _no_outcome(f, settled[0]))
        what = f"The outcome of {settled[0]['tool']} has arrived" if settled else "A doubt was settled"
        return waiting_for_somebody(f, what)
    found = _find_out(f, doubts, run_action(f) if f.row.agent else actions_for(f.row, Do.PROGRAM))
    return _and_kept_back(f, _and_asked(f, found))


def _left_in_doubt(f: Facts) -> list[dict[str, Any]]:
    """The calls of a session that was stopped of which nobody knows what became of them.

    Those that were under way then are among them: nobody goes on with them by himself, so nobody finds out.
    """
    begun = [e for status in ("in_doubt", "started") for e in calls_at(f, status) if "read" not in e]
    return [e for e in begun if not has_outcome(f, e) and e["id"] not in f.done_elsewhere]


def _with_open_call(f: Facts, line: str) -> str:
    """What is said of a session that was stopped, with the call that it goes on with when it does."""
    return f"{line} {full_stop(_begins(call))}" if (call := _open_call(f)) else line


def _nobody_knows(doubts: list[dict[str, Any]]) -> str:
    """That it is not known what became of some calls: the first of them, and what it ended with."""
    first = doubts[0]
    more = f" ({len(doubts) - 1} more in doubt)" if len(doubts) > 1 else ""
    told = exception_of(first)
    ended = f" {full_stop(f'It ended with {in_short(told)}')}" if told is not None else ""
    if RESTORED in first:
        ended = f" {full_stop(first['error'][:1].upper() + first['error'][1:])}"
    if failed := looked_up(first):
        ended += f" {full_stop(failed[:1].upper() + failed[1:])}"
    if LEFT_LINE in first:
        since = "made, and its result was to come later" if "handle" in first else "started"
        return (
            f"{call_of(first)} was {since}, on the line that a rewind has left, and nobody knows whether it "
            f"happened{more}.{ended}"
        )
    return f"{call_of(first)} was started and nobody knows whether it happened{more}.{ended}"


def _find_out(f: Facts, doubts: list[dict[str, Any]], goes_on: tuple[Action, ...]) -> Why:
    """A person has to find out what became of calls; ``goes_on`` has it looked up again."""
    first, line = doubts[0], _nobody_knows(doubts)
    by = f", by its id {first['id']} or that time" if RESTORED in first else ""
    if is_held(f):
        # Only who has the lease may settle it; an outcome can be posted to whoever that is.
        finds = f"{describe(f.row.lease.holder)} has the session and finds" if is_run(f) else "whoever goes on finds"
        next = f"Find out{by}, then post its outcome: {finds} it there.{_left_out(f, first, 'resolve')}"
        return Why(line, next, ACT, action_on(f, Do.OUTCOME, first["id"]))
    next = f"Find out{by}, then say: done, try again, or give up.{_left_out(f, first, 'resolve')}"
    settle = action_on(f, Do.RESOLVE, first["id"])
    if looked_up(first):
        return Why(
            line, f"{next} Or mend what failed and go on with it: it is looked up again.", ACT, (*settle, *goes_on)
        )
    return Why(line, next, ACT, settle)


def _approval(f: Facts) -> Why:
    waiting = pending(f.book, f.head.line)
    still = [a for a in waiting if a["id"] not in f.decided]
    if not still:
        planned = sorted(calls_at(f, "planned"), key=lambda e: e["id"] in f.done_elsewhere)
        if waiting:
            return waiting_for_somebody(f, "The decision is in")
        if not planned:
            return waiting_for_somebody(f, "Nothing is to be decided")
        known = planned[0]["id"] in f.done_elsewhere
        anew = f"{call_of(planned[0])} is asked for anew when it goes on"
        return waiting_for_somebody(f, _no_outcome(f, planned[0]) if known else anew)
    late = still[0]
    still = [a for a in still if not is_late(a, f.now)]
    if not still:
        return waiting_for_somebody(f, f"The request to agree to {late['tool']} has expired")
    first = still[0]
    since = times.gap(f.now - first["asked"])
    if first.get("question"):
        asks = f"{first['tool']} asks: {one_line(first['question'], _LEFT_OUT)}{f' ({since})' if since else ''}"
        answer = action_on(f, Do.ANSWER, first["id"])
        return _and_kept_back(f, Why(asks, f"Answer it.{_left_out(f, first, 'answer')}", ACT, answer))
    more = f", and {len(still) - 1} more" if len(still) > 1 else ""
    because = f" Asked because {full_stop(first['because'])}" if first.get("because") else ""
    waits = f"has waited for agreement for {since}" if since else "waits for agreement"
    line = f"{call_of(first)} {waits}{more}.{because}"
    next = f"Approve it, change it, or reject it.{_left_out(f, first, 'approve')}"
    return _and_kept_back(f, Why(line, next, ACT, action_on(f, Do.APPROVE, first["id"])))


def _and_kept_back(f: Facts, found: Why) -> Why:
    """The same, with what keeps workers from the session once a person has decided."""
    if f.head.branch != MAIN or (obstacle := obstacle_in(f)) is None:
        return found
    line, next = f"{full_stop(found.line)} {obstacle.line}", f"{found.next} {obstacle.next}"
    return found._replace(line=line, next=next, actions=(*found.actions, obstacle.action))


def _and_asked(f: Facts, found: Why) -> Why:
    """The same, with the requests that nobody has decided on beside it."""
    asked = [a for a in pending(f.book, f.head.line) if a["id"] not in f.decided and not is_late(a, f.now)]
    if not asked:
        return found
    first, more = asked[0], f", and {len(asked) - 1} more" if len(asked) > 1 else ""
    do = Do.ANSWER if first.get("question") else Do.APPROVE
    line = (
        f"{found.line} {call_of(first)} waits for {'an answer' if first.get('question') else 'agreement'}, too{more}."
    )
    return found._replace(line=line, actions=(*found.actions, *action_on(f, do, first["id"])))


def _left_out(f: Facts, asked: dict[str, Any], listed_by: str) -> str:
    """Where all of it is told that somebody decides on, when the line leaves something of it out; else ""."""
    question = str(asked.get("question") or "")
    if len(question) <= _LEFT_OUT if question else is_whole(asked):
        return ""
    if door() == "http":
        part = "effects" if listed_by == "resolve" else "approvals"
        return f" Not all of it is told here: GET /api/v1/sessions/{quote(f.row.id, safe='')}/{part} does."
    branch = "" if f.head.branch == MAIN else f" --branch {as_word(f.head.branch)}"
    option = " --list" if listed_by == "approve" else ""
    return f" Not all of it is told here: {typed(f'{listed_by} {as_word(f.row.id)}{option}{branch}')} does."


def _result(f: Facts) -> Why:
    found = _awaited(f)
    return waiting_for_somebody(f, found) if isinstance(found, str) else found


def _awaited(f: Facts) -> Why | str:
    """What it waits for that no run of it brings; as a string, what there is to be taken up."""
    waiting = calls_at(f, "waiting")
    if not waiting and (behind := call_behind(f)) is not None:
        return _behind_another(f, call_of(behind), behind[BEHIND]["session"])
    if not waiting:
        return "The result it waited for is there"
    first = waiting[0]
    if has_outcome(f, first):
        return f"The result of {first['tool']} has arrived"
    if first["id"] in f.done_elsewhere:
        return _no_outcome(f, first)
    if f.child is not None and (child := child_of(first)):
        worked = f"{call_of(first)} is worked on by session {child['session']}"
        if any(action.name in (Do.REOPEN, Do.PROGRAM_REOPENS) for action in f.child.actions):
            # This one goes on no further than that.
            next = f"Open that session again, or post the outcome of {first['id']}."
            actions = (*f.child.actions, *action_on(f, Do.OUTCOME, first["id"]))
            return Why(f"{worked}. {f.child.line}", next, ACT, actions)
        if f.child.severity == OK or any(action.session == f.row.id for action in f.child.actions):
            # It has ended, or waits for this one to take it along.
            return f"{worked}, which goes on when this one does"
        return Why(f"{worked}. {f.child.line}", f.child.next, f.child.severity, f.child.actions, f.child.error)
    line = f"{call_of(first)} was made {gap_of(f.now - first['at'])} ago and its result comes later."
    if failed := looked_up(first):
        line = f"{line} {full_stop(failed[:1].upper() + failed[1:])}"
        post = action_on(f, Do.OUTCOME, first["id"])
        if is_run(f) or (goes_on_by_itself(f) and not obstacle_in(f) and not is_held(f)):
            due = f.work.due - f.now if f.work is not None and f.work.due is not None else 0
            again = f"Mend that: it is polled again by itself{f' in {ahead_of(due)}' if due > 0 else ''}."
            return Why(line, f"{again} Or post the outcome of {first['id']}.", FAILING, post)
        next = f"Mend that and go on with it: it is polled again. Or post the outcome of {first['id']}."
        goes_on = run_action(f) if f.row.agent else actions_for(f.row, Do.PROGRAM)
        return Why(line, next, ACT, (*post, *goes_on))
    next = f"Nothing to do, unless it never comes: then post the outcome of {first['id']}."
    return Why(line, next, WAIT, action_on(f, Do.OUTCOME, first["id"]))


def _behind_another(f: Facts, call: str, other: str) -> Why | str:
    if f.claim is None:
        return f"{call} waited for the same call of session {other}, which has ended"
    line = f"{call} waits for session {f.claim.session}, which has begun the same call: its result is shared."
    then = "" if f.row.agent else f" {PROGRAM}"
    ends = f"Its claim ends in {ahead_of(f.claim.until - f.now)}, if there is no outcome before.{then}"
    if f.claim.session == f.row.id or (f.ahead is not None and f.ahead.severity == OK):
        # Nothing that is open there would bring one: it raised, was reported as unknown, or is on another branch.
        line = f"{line} That call has no outcome, and nobody knows what it did."
        settle = Action(Do.RESOLVE, f.claim.session, f.claim.effect)
        return Why(line, f"Find out, then say what came of it: done, or given up. {ends}", ACT, (settle,))
    if f.ahead is None:
        return Why(line, ends, WAIT)
    said = f.ahead
    return Why(f"{line} {said.line}", f"{said.next}{then}", said.severity, said.actions, said.error)


def _running(f: Facts) -> Why:
    holder = f.row.lease.holder
    if (lost := lost_call(f)) is not None:
        return _tried_again(f, lost)
    if not is_held(f) and not calls_at(f, "started") and call_behind(f) is not None:
        return _result(f)
    if (ended := _ended_run(f)) is not None:
        return ended
    if not holder or (is_held(f) and not is_run(f)):
        return waiting_for_somebody(f, f"It stands in the middle of its work{_under_way(f)}")
    if is_dead(holder):
        return waiting_for_somebody(f, f"{describe(holder).capitalize()} died while it worked on it{_under_way(f)}")
    working = calls_at(f, "started")
    who = describe(holder)
    if not working:
        return Why(f"{who.capitalize()} works on it{_between_calls(f)}.", "Nothing to do.", WAIT)
    first = working[0]
    again = f", attempt {first['attempt']}" if first["attempt"] > 1 else ""
    progress = f", {brief(first['progress'], _LEFT_OUT)}" if first.get("progress") is not None else ""
    since = times.gap(f.now - (first["at"] if f.begun is None else f.begun))
    line = f"{who.capitalize()} runs {call_of(first)}{f' for {since}' if since else ''}{again}{progress}."
    return Why(line, "Nothing to do.", WAIT)


def _between_calls(f: Facts) -> str:
    """What is done while no call is under way: only an agent asks a model, and what a program does it knows alone."""
    if f.row.agent:
        return ": the model is being asked"
    runs = [key for key, run in f.book.get("runs", {}).items() if run["status"] == "open"]
    return f": run {one_line(runs[-1], _LEFT_OUT)} is under way" if runs else ""


def _ended_run(f: Facts) -> Why | None:
    """A run has ended with the exception of a call: it is run again, and its tool says what becomes of the call."""
    runs = f.book.get("runs", {})
    ended = [e for e in f.book.get("effects", {}).values() if ENDED_RUN in e and e["status"] in ("failed", "raised")]
    calls = [e for e in ended if LEFT in runs.get(e[ENDED_RUN]["run"], {})]
    if not calls or is_held(f):
        return None
    # What somebody has to settle first keeps the run from all others.
    call = next((e for e in calls if e[ENDED_RUN]["again"] == "report"), calls[-1])
    run, again = call[ENDED_RUN]["run"], call[ENDED_RUN]["again"]
    more = f", and {len(calls) - 1} more" if len(calls) > 1 else ""
    # An exception of its own is told anyway.
    error = "" if "raised" in call else " " + full_stop(f"It did not happen: {call['error']}")
    line = f"Run {run} has ended with {call_of(call)}{more}.{error}"
    settle, program = action_on(f, Do.RESOLVE, call["id"]), action_on(f, Do.PROGRAM)
    if not again:
        then = "Have its function go on after that, then run it again: the call is not made again."
        return Why(line, then, ACT, program)
    if again == "report":
        then = "Find out what became of the call, then say: done, try again, or give up. Then run it again."
        return Why(line, then, ACT, settle)
    then = f"Mend the cause, then run it again: {AGAIN[again]}."
    if again == "failed":
        return Why(line, then, ACT, program)
    return Why(line, f"{then} Or say yourself what became of it.", ACT, (*program, *settle))


def _tried_again(f: Facts, call: dict[str, Any]) -> Why:
    """The answers to a call are lost, and it is made again under its id."""
    if has_outcome(f, call):
        return waiting_for_somebody(f, f"The outcome of {call_of(call)} has arrived")
    told = exception_of(call)
    last = f", the last time with {one_line(in_short(told), 200)}" if told is not None else ""
    since = times.gap(f.now - call["lost_since"])
    what = f"{call_of(call)} has got no answer{f' for {since}' if since else ''}"
    what = f"{what}, in {count(call['attempt'], 'attempt')}{last}"
    if not is_run(f):
        return waiting_for_somebody(f, what)
    left = call.get("retry_at", 0) - f.now
    again = f"It is tried again in {ahead_of(left)}" if left > 0 else "It is being tried again now"
    line = f"{full_stop(what)} {again}, under the same id."
    if call["attempt"] < _IN_VAIN:
        return Why(line, "Nothing to do: it goes on by itself.", WAIT)
    return Why(line, "Mend what it fails of, if that is yours: it goes on by itself when it is answered.", FAILING)


def _left_open(f: Facts) -> Why | None:
    """What the book says, whatever the status does: a program may set that as it likes."""
    if calls_at(f, "in_doubt"):
        return _in_doubt(f)
    if pending(f.book, f.head.line):
        return _approval(f)
    if calls_at(f, "waiting") or call_behind(f) is not None:
        return _result(f)
    if (ended := _ended_run(f)) is not None:
        return ended
    call = _open_call(f)
    return waiting_for_somebody(f, _begins(call)) if call else None


def _begins(call: str) -> str:
    """What was said of a call, as the beginning of a sentence; the name of a tool stays as it is."""
    return call[0].upper() + call[1:] if call.startswith("the ") else call


def _resting(f: Facts) -> Why:
    if (found := _left_open(f)) is not None:
        return found
    if what := to_take_up(f.inbox, f.now, agent=bool(f.row.agent)):
        found = waiting_for_somebody(f, what)
        if not (f.row.agent and given_up_in(f.inbox)):
            return found
        again = "Say again what is to be answered all the same."
        if messages_in(f.inbox) > (given_up := given_up_in(f.inbox)):
            # What was said since is answered; only what was said before is not.
            before = "1 message was" if given_up == 1 else f"{given_up} messages were"
            again = f"{before} said before somebody wanted it to stop, and will not be answered."
            return found._replace(next=f"{found.next} {again}")
        return found._replace(next=f"{found.next} {again}", actions=(*found.actions, *actions_for(f.row, Do.MESSAGE)))
    if f.unanswered and f.row.agent:
        return waiting_for_somebody(f, "What was said last on it has no answer yet")
    timers = sorted(e.at for e in f.inbox if e.kind in TIMERS)
    if timers:
        soon = ahead_of(timers[0] - f.now)
        if obstacle := obstacle_in(f):
            return Why(f"It sleeps, and is due in {soon}. {obstacle.line}", obstacle.next, ACT, (obstacle.action,))
        if f.served or f.polled:
            return Why(f"It sleeps, and is woken in {soon}.", "Nothing to do.", WAIT)
        line = f"It sleeps, and is due in {soon}."
        if not f.row.agent or f.served is None:
            return Why(line, "Run its agent then." if f.row.agent else PROGRAM)
        return Why(line, f"By then somebody has to run it. {no_worker(f)}", ACT, actions_for(f.row, Do.WORKER))
    if not f.row.agent:
        # Whatever writes it is not an agent: there is no command that could.
        return Why("Nothing in it is open.", "Its program can go on with it at any time.")
    if unsaid := unsaid_words(f.head.more.get(UNSAID, ())):
        again = "To have an answer, say it again under another key, or without one."
        return Why(f"{unsaid}.", again, OK, action_on(f, Do.MESSAGE))
    return Why("It has answered everything.", *_go_on_by_message(f))


def _go_on_by_message(f: Facts) -> tuple[str, str, tuple[Action, ...]]:
    """What to do with one that rests."""
    return "A new message makes it go on.", OK, action_on(f, Do.MESSAGE)


def _error(f: Facts) -> str:
    return error_in(f.head.more) or "its error was not recorded"
