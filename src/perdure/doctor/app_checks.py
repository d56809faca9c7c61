"""Diagnosis: what the runs of an app mean. Each fault that was seen, where it is and what to do about it, in a line."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# States are any JSON: their types are looked at, not declared.
from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import perdure
from perdure.doctor.findings import FAIL, NOTE, OK, AppRun, Finding
from perdure.errors import an
from perdure.system.wording import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONGEST = 500
"""Checkpoints of a session that are looked at."""
AFTER_SAVES, IN_CALLS, IN_ANSWERS = 3, 2, 2
"""At how many moments an app is killed."""
ROUNDS = 120
"""How often an app is run to see whether its state only grows."""
SMALL = 16_000
"""Tokens that the model takes which is played to see whether a conversation is cut."""
MESSAGES = 24
"""Long ones, of an eighth of that each."""
LARGEST = 300_000
"""The largest window that is filled to see whether it is kept."""
UNBOUNDED = 4_000_000
"""No model takes as many tokens: a window of that size is none."""
REPEATED = 3
"""As often the same line adds something to a state before it is taken for a loop."""
PARKING = ("InDoubt", "ApprovalNeeded", "ResultPending")
"""Errors with which a call waits for somebody: that is how it was meant."""
_REPR = re.compile(r"<[\w.]+[^<>]* at 0x[0-9a-f]{6,}>")


def ending(url: str) -> dict[str, Any]:
    """What a run has left, session by session: its state, how it was saved, results that could not be kept."""
    from perdure.session.calls.read_cache import PREFIX
    from perdure.state.document import plain

    found: dict[str, Any] = {}
    if not Path(url.removeprefix("sqlite:///")).exists():
        return found
    with perdure.open(url, maintain=False) as db:
        for row in db.sessions(limit=100):
            if not row.branches or row.id.startswith(PREFIX):
                continue
            calls, problems = set[str](), set[tuple[str, str]]()
            points = db.history(row.id, branch=row.branches[0], limit=LONGEST)
            for point in points:
                reading = db.read(row.id, point.id, migrate=False)
                # Looked for at every step: a call that is settled and told is taken from the book.
                book: dict[str, Any] = plain(reading.book)
                for id, effect in book.get("effects", {}).items():
                    calls.add(id)
                    if effect.get("problem"):
                        problems.add((effect["tool"], str(effect["problem"])))
            state = db.read(row.id, branch=row.branches[0], migrate=False).plain()
            messages = state.pop("messages")
            found[row.id] = {
                "status": row.status,
                "messages": [(m.get("role"), m.get("content")) if isinstance(m, dict) else m for m in messages],
                "rest": state,
                "saves": len(points),
                "calls": len(calls),
                "problems": sorted(problems),
                "leased": row.lease.token > 0,
            }
    return found


# -- one run ---------------------------------------------------------------------------------------------------------


def judge_run(seen: AppRun, about: dict[str, Any], said: bool) -> Finding:
    """Whether it came to its end."""
    if seen.late:
        return Finding("run", FAIL, "it did not end in time: raise --timeout, or see what it waits for")
    greeting = "; only a greeting was said: say what makes it work with --say TEXT"
    hint = greeting if about["kind"] == "agent" and not said else ""
    if (error := seen.error) is not None:
        return Finding("run", FAIL, f"it ended with {error['kind']}: {error['words']}{hint}", error["where"])
    results = seen.of("result")
    ended = f", the last one {results[-1]['status']}" if results else ""
    words = f"{count(len(seen.saved), 'save')} in {count(len(results) or 1, 'run')}{ended}"
    return Finding("run", NOTE if hint else OK, f"{words}{hint}")


def judge_values(seen: AppRun, left: dict[str, Any]) -> Finding:
    """Whether all that it wants to keep is JSON."""
    tools = {event["name"]: event["where"] for event in seen.of("tool")}
    for kept in left.values():
        for tool, what in kept["problems"]:
            words = f"the result of {tool} is {an(what)}, which is not JSON: it cannot be kept, and no model sees it; "
            where = tools.get(tool, "")
            return Finding("serialisation", FAIL, f"{words}return dicts, lists, text and numbers", where)
    for refused in seen.of("refused"):
        return Finding("serialisation", FAIL, refused["words"], refused["where"])
    for session, kept in left.items():
        if found := _REPR.search(str(kept["messages"]) + str(kept["rest"])):
            words = (
                f"session {session[:60]} holds {found[0][:80]}: the name of an object of one process, not the object"
            )
            return Finding("serialisation", FAIL, f"{words}; keep its fields as JSON")
    return Finding("serialisation", OK, "everything that was saved is JSON")


def judge_cached_reads(seen: AppRun) -> Iterator[Finding]:
    """Tools that are reads with a cache: whoever pays for them must know that a kill makes them run again."""
    found = {event["name"]: event["where"] for event in seen.of("tool") if event["cached_read"]}
    for name, where in found.items():
        words = f"{name} is read=True with a cache: when the process dies inside it, it runs again"
        advice = (
            "where a call costs money, declare if_unsure= with the cache instead, and it is never repeated silently"
        )
        yield Finding("cached reads", NOTE, f"{words}; {advice}", where)


def judge_saves(seen: AppRun, left: dict[str, Any]) -> Finding:
    """Whether little is lost when it is killed."""
    saves = seen.saved
    most = max(saves, key=lambda s: s.get("answers", 0), default={})
    advice = "a kill before that loses them all, and they are paid for again; commit after each answer and each call"
    if most.get("answers", 0) > 1:
        return Finding("saves", FAIL, f"{most['answers']} answers were saved together: {advice}", most["where"])
    for save in saves:
        if (made := sum(number for _, number in save["direct"])) > 1:
            words = f"{made} calls of tools were made past the session before anything was saved: a kill repeats them; "
            return Finding("saves", FAIL, f"{words}make them with s.call(...)", save["direct"][0][0])
    if sum(s["memory"] for s in saves) > len(saves) / 2:
        words = "it saves to memory://, which ends with the process: name a store on a disk or a server"
        return Finding("saves", FAIL, words, saves[-1]["where"])
    fed = [s.get("loop", 0) for s in saves]
    if fed and min(fed) >= REPEATED:
        last = saves[fed.index(max(fed))]
        words = (
            f"the state was added to {max(fed)} times in a row and then saved once: a kill before that loses it all; "
        )
        return Finding("saves", FAIL, f"{words}commit after each piece of work", last["at"])
    if not saves and not left:
        return Finding("saves", NOTE if seen.error is not None else FAIL, "nothing was saved: call commit()")
    answers = sum(s.get("answers", 0) for s in saves)
    calls = sum(kept["calls"] for kept in left.values())
    counted = f"{count(len(saves), 'save')} for {count(answers, 'answer')} and {count(calls, 'call')}"
    return Finding("saves", OK, f"{counted}: a kill loses one step at most")


# -- writers ---------------------------------------------------------------------------------------------------------


def judge_writers(seen: AppRun, left: dict[str, Any], contended: Callable[[], AppRun]) -> Finding:
    """Whether what one writer saves can be lost to another; with several of them, they are made to collide."""
    saves = seen.of("save")
    advice = "what they held is lost; open sessions with their lease, or use db.update, or db.post into the inbox"
    lost = _lost(saves)
    if lost:
        words = f"{len(lost)} of {len(saves)} saves without a lease came second and were refused: {advice}"
        return Finding("writers", FAIL, words, lost[0]["where"])
    if found := _unseen(seen, left):
        return found
    free = [s for s in saves if s["free"]]
    if not free:
        otherwise = " or by db.update" if any(s["retried"] for s in saves) else ""
        return Finding("writers", OK, f"every save was made under the session's lease{otherwise}")
    writers: defaultdict[str, set[str]] = defaultdict(set)
    for save in free:
        writers[save["session"]].add(save["who"])
    session = max(writers, key=lambda name: len(writers[name]))
    if len(writers[session]) > 1:
        again = contended()
        refused = _lost(again.of("save"))
        if refused or (again.error is not None and again.error["kind"] == "Conflict"):
            words = (
                f"{len(writers[session])} writers save session {session[:60]} without a lease: when two meet, {advice}"
            )
            return Finding("writers", FAIL, words, (refused or free)[0]["where"])
        return Finding("writers", OK, "several writers without a lease: whoever came second did it again")
    return Finding(
        "writers", NOTE, f"{count(len(free), 'save')} made without a lease (lease=False): a second writer would make "
        "them fail; keep the lease, or use db.update", free[0]["where"],
    )  # fmt: skip


def _lost(saves: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Saves that came second, and that their writer did not make again."""
    return [
        save for at, save in enumerate(saves)
        if save["lost"] and save["free"]
        and not any(
            not s["lost"] and s["who"] == save["who"] and s["session"] == save["session"] for s in saves[at + 1 :]
        )
    ]  # fmt: skip


def _unseen(seen: AppRun, left: dict[str, Any]) -> Finding | None:
    """Saves of programs that the app has started: they are not watched, but a lease leaves a trace."""
    for session, kept in left.items():
        told = sum(s["session"] == session for s in seen.saved)
        if kept["saves"] > told and not kept["leased"]:
            words = f"session {session[:60]} is saved by several processes, and none takes its lease: "
            return Finding(
                "writers", FAIL, f"{words}what comes second is lost; leave lease=False out, or use db.update"
            )
    return None


# -- killed and started again ----------------------------------------------------------------------------------------


def kill_points(first: AppRun, *, agent: bool) -> list[tuple[str, int]]:
    """The moments at which it is killed: after saves, at the end of calls, and inside answers."""
    # A function that is called after its last save begins anew: that is not resuming.
    saves = len(first.saved) - (not agent)
    return [
        *(("save", n) for n in _spread(saves, AFTER_SAVES)),
        *(("tool", n) for n in _spread(len(first.of("tool")), IN_CALLS)),
        *(("answer", n) for n in _spread(len(first.of("answer")), IN_ANSWERS)),
    ]


def _spread(last: int, most: int) -> list[int]:
    """So many numbers between 1 and the last, both included.

    >>> _spread(9, 3), _spread(2, 4), _spread(0, 2), _spread(5, 2)
    ([1, 5, 9], [1, 2], [], [1, 5])
    """
    return sorted({1 + round(i * (last - 1) / (most - 1)) for i in range(most)}) if last > 0 else []


def steadily_alike(one: dict[str, Any], other: dict[str, Any]) -> bool | None:
    """Whether two ends are the same; False: only in outline, None: not even so."""
    if _compared(one, texts=True) == _compared(other, texts=True):
        return True
    return False if _compared(one, texts=False) == _compared(other, texts=False) else None


def judge_resumed(
    point: tuple[str, int], seen: AppRun, now: dict[str, Any], left: dict[str, Any], first: AppRun, *, steady: bool
) -> Finding | None:
    """What became of it after a kill; None when a call waits for somebody, as it should."""
    when = f"{_moment(point)} and started again"
    if seen.late:
        return Finding("resume", FAIL, f"{when}, it did not end in time")
    if (error := seen.error) is not None:
        if error["kind"] in PARKING:
            return None
        return Finding("resume", FAIL, f"{when}, it ended with {error['kind']}: {error['words']}", error["where"])
    if any(kept["status"] == "in_doubt" for kept in now.values()):
        return None
    if _compared(now, texts=steady) != _compared(left, texts=steady):
        what, call = _first_difference(left, now)
        called = first.of("tool")[call : call + 1] if call >= 0 else []
        # Where the resumed run saved first, or the save after which it should have.
        saved = [*seen.saved[:1], *(first.saved[point[1] - 1 : point[1]] if point[0] == "save" else [])]
        where = next((e["where"] for e in (*called, *saved) if e["where"]), "")
        advice = "what a run needs must be in the session, not in the process"
        return Finding("resume", FAIL, f"{when}, it ended elsewhere: {what}; {advice}", where)
    return Finding("resume", OK, when)


def judge_ending(killed: list[tuple[str, int]], parked: list[dict[str, Any]], first: AppRun) -> Finding:
    """All kills together."""
    if not killed:
        return Finding("resume", NOTE, "it does not do the same twice: it ended before it could be killed")
    number = {what: sum(k == what for k, _ in killed) for what in ("save", "tool", "answer")}
    parts = [f"after {number['save']} of {count(len(first.saved), 'save')}"] if number["save"] else []
    parts += [f"inside {count(number['tool'], 'call')}"] if number["tool"] else []
    parts += [f"inside {count(number['answer'], 'answer')}"] if number["answer"] else []
    words = f"killed with SIGKILL {' and '.join([', '.join(parts[:-1]), parts[-1]] if parts[1:] else parts)}"
    if parked:
        tool = parked[0]["name"]
        return Finding(
            "resume", NOTE, f"{words}: {tool} was cut off and waits for a person; "
            f"say what may be done with @tool(if_unsure=...)", parked[0]["where"],
        )  # fmt: skip
    return Finding("resume", OK, f"{words}, it went on each time and ended in the same place")


def _moment(point: tuple[str, int]) -> str:
    what, number = point
    return f"killed after save {number}" if what == "save" else f"killed inside {what.replace('tool', 'call')} {number}"


def _compared(state: dict[str, Any], *, texts: bool) -> Any:
    """What must be the same after a kill; without texts only who said something, and where it stands."""
    return {
        session: (
            kept["status"],
            kept["messages"] if texts else [m[0] if isinstance(m, tuple) else "" for m in kept["messages"]],
            kept["rest"] if texts else _outline(kept["rest"]),
        )
        for session, kept in state.items()
    }


def _outline(value: Any, depth: int = 2) -> Any:
    """The keys of a state and the lengths of its lists, two levels deep."""
    if isinstance(value, dict) and depth:
        return {k: _outline(v, depth - 1) for k, v in value.items()}
    return len(value) if isinstance(value, list) else type(value).__name__


def _first_difference(whole: dict[str, Any], now: dict[str, Any]) -> tuple[str, int]:
    """What is different, and the number of the call whose result it is, or -1."""
    for session in sorted(whole.keys() | now.keys()):
        if session not in whole or session not in now:
            return f"session {session[:60]} is {'new' if session in now else 'missing'}", -1
        a, b = whole[session], now[session]
        if len(a["messages"]) != len(b["messages"]):
            return f"{len(b['messages'])} messages instead of {len(a['messages'])}", -1
        calls = 0
        for one, other in zip(a["messages"], b["messages"], strict=True):
            called = isinstance(one, tuple) and one[0] == "tool"
            if one != other:
                return f"{str(other)[:100]} instead of {str(one)[:100]}", calls if called else -1
            calls += called
        for part in a["rest"].keys() | b["rest"].keys():
            one, other = a["rest"].get(part), b["rest"].get(part)
            if one != other:
                return f"{part} {str(other)[:100]} instead of {str(one)[:100]}", -1
        if a["status"] != b["status"]:
            return f"{b['status']} instead of {a['status']}", -1
    return "the state differs", -1


# -- growth ----------------------------------------------------------------------------------------------------------


def judge_growth(seen: AppRun) -> Finding:
    """Whether some part of the state grows as fast in the last third of many runs as in the first."""
    rounds = [e["sizes"] for e in seen.of("round")]
    third = len(rounds) // 3
    if third < 3:
        return Finding(
            "history", NOTE, f"only {count(len(rounds), 'run')} in the time there was: growth cannot be told"
        )
    for part in rounds[-1]:
        sizes = [r.get(part, 0) for r in rounds]
        early, late = sizes[third] - sizes[0], sizes[-1] - sizes[-1 - third]
        if late >= third and late >= 0.6 * early:
            session, _, name = part.rpartition(": ")
            return Finding(
                "history", FAIL, f"{name} of session {session[:60]} still grew after {len(rounds)} runs, by about "
                f"{late // third} characters each: prune or summarise it, or keep only what is still needed",
                next((s["where"] for s in reversed(seen.saved) if s["where"]), ""),
            )  # fmt: skip
    return Finding("history", OK, f"after {len(rounds)} runs the state has stopped growing")


def judge_window(about: dict[str, Any]) -> Finding:
    """Whether what an agent is made to send has an end, as far as its parts tell."""
    window = about["window"]
    if window is not None and window <= UNBOUNDED:
        return Finding("history", OK, f"what the model is sent is cut at {window} tokens")
    if about["compactor"] and window is None:
        return Finding("history", OK, "what the model is sent is cut when it no longer fits, and the rest summarised")
    why = "compactor=False and a window without a limit" if window is None else f"no model takes {window} tokens"
    return Finding(
        "history", FAIL, f"what agent {about['name']} sends only grows: {why}; "
        "pass window=Window(max_tokens=...), or leave the compactor on",
    )  # fmt: skip


def judge_long_talk(talk: AppRun, about: dict[str, Any], limit: int) -> Finding | None:
    """Whether a long conversation goes on, and is cut; None when it could not be held at all."""
    asked, ends = talk.of("answer"), talk.of("result")
    if talk.error is not None or talk.late or not ends:
        return None
    sent = [a["size"] for a in asked if not a["refused"]]
    stuck = [e for e in ends if e["status"] == "failed"]
    advice = "look at what its window pins and counts; a limit is kept only by what may be cut"
    if stuck and any(a["refused"] for a in asked):
        words = (
            f"a model of {limit} tokens refuses what agent {about['name']} sends after {ends.index(stuck[0])} messages"
        )
        return Finding("history", FAIL, f"{words}, and nothing is cut: {advice}")
    if any(e["status"] != "done" for e in ends):
        return None
    if about["window"] is not None and max(sent[-3:]) > 2 * limit:
        words = f"agent {about['name']} sent {max(sent)} tokens through a window of {limit}"
        return Finding("history", FAIL, f"{words}: {advice}")
    return Finding(
        "history", OK, f"{len(ends)} long messages were said, and no more than {max(sent)} tokens sent at once"
    )
