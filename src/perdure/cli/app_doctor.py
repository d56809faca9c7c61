"""``perdure doctor APP``: whether somebody's own app would survive a kill, by killing it; and what to fix.

The app runs in child processes, each in a scratch folder with a scratch database. Its tools really run.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.cli.app_trial import Task
from perdure.cli.text import count
from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

OK, NOTE, FAIL = "ok", "note", "fail"
KILLS = 6
"""Points at which an app is killed."""
ROUNDS = 30
"""How often a function is run to see whether its state only grows."""
LONGEST = 500
"""Checkpoints of a session that are looked at."""
STILL = 0.9
"""A part of a state that has grown in nearly all of the last rounds only grows."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    name: str
    verdict: str
    """ok, note (worth knowing) or fail (must be seen to)"""
    words: str


class Seen(NamedTuple):
    """What one child did."""

    events: list[dict[str, Any]]
    killed: bool
    url: str
    late: bool

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Its events of one kind."""
        return [e for e in self.events if e.get("event") == kind]

    @property
    def error(self) -> dict[str, Any] | None:
        """What the app ended with, if it was an error."""
        return next(iter(self.of("error")), None)


def findings(app: str, say: list[str], *, really: bool, timeout: float) -> Iterator[Finding]:
    """All checks, one after the other."""
    lab = Lab(app, tuple(say) or ("Hello.",), timeout)
    about = lab.look()
    if about["kind"] == "agent":
        yield _window(about)
        if not about["offline"] and not really:
            words = (
                f"{about['model']} is a real model: nothing was run; say --really to run it, and its tools, for real"
            )
            yield Finding("run", NOTE, words)
            return
    with tempfile.TemporaryDirectory(prefix="perdure-doctor-") as place:
        first = lab.run(place, "first")
        state = _ending(first)
        yield _ran(first, about, bool(say))
        yield _serialisable(first, state)
        yield _writers(first)
        yield _saves(first, state)
        if first.error is not None or first.late:
            yield Finding("resume", NOTE, "not tried: it does not run to its end undisturbed")
            return
        yield _resumes(lab, place, first, state, about)
        if about["kind"] == "function":
            yield _grows(lab, place)


class Lab:
    """Runs an app in children of its own."""

    def __init__(self, app: str, say: tuple[str, ...], timeout: float) -> None:
        place, colon, name = app.rpartition(":") if ":" in app else (app, "", "")
        # The children work in scratch folders: what is named must not depend on where they are.
        self._app = f"{os.path.abspath(place)}{colon}{name}" if place.endswith(".py") else app
        self._say = say
        self._timeout = timeout

    def look(self) -> dict[str, Any]:
        """What the app is."""
        with tempfile.TemporaryDirectory(prefix="perdure-doctor-") as place:
            seen = self._child(Task(self._app, "", look=True), place)
        if not seen.events or seen.error is not None:
            why = seen.error["words"] if seen.error is not None else "it ended while it was loaded"
            raise InvalidInput(f"{self._app[:200]} cannot be loaded: {why}"[:600])
        return seen.events[0]

    def run(self, place: str, name: str, *, stop_at: int = 0, repeat: int = 1) -> Seen:
        """Run it once in a folder of its own, which stays for the next time."""
        folder = os.path.join(place, name)
        os.makedirs(folder, exist_ok=True)
        url = f"sqlite:///{folder}/doctor.db"
        return self._child(Task(self._app, url, self._say, stop_at, repeat), folder)

    def _child(self, task: Task, folder: str) -> Seen:
        ours, theirs = os.pipe()
        paths = [os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-m", "perdure.cli.app_trial", str(theirs), json.dumps(task)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        env.pop("PERDURE_STORE", None)
        child = subprocess.Popen(
            command, cwd=folder, env=env, pass_fds=(theirs,),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs)
        late = threading.Event()

        def end() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(self._timeout, end)
        timer.start()
        events: list[dict[str, Any]] = []
        killed = False
        try:
            with os.fdopen(ours, encoding="utf-8") as lines:
                for line in lines:
                    events.append(json.loads(line))
                    if events[-1].get("event") == "here":
                        child.kill()
                        killed = True
        finally:
            timer.cancel()
            child.kill()
            child.wait()
        return Seen(events, killed, task.url, late.is_set())


def _window(about: dict[str, Any]) -> Finding:
    if about["bounded"]:
        return Finding("history", OK, "what the model is sent is cut when it no longer fits, and the rest summarised")
    return Finding(
        "history", FAIL, f"what agent {about['name']} sends only grows: janitor=False and a window without a limit; "
        "pass window=Window(max_tokens=...), or leave the janitor on",
    )  # fmt: skip


def _ran(seen: Seen, about: dict[str, Any], said: bool) -> Finding:
    if seen.late:
        return Finding("run", FAIL, "it did not end in time: raise --timeout, or see what it waits for")
    if (error := seen.error) is not None:
        return Finding("run", FAIL, f"it ended with {error['kind']}: {error['words']}")
    results = seen.of("result")
    ended = f", the last one {results[-1]['status']}" if results else ""
    words = f"{count(len(seen.of('save')), 'save')} in {count(len(results) or 1, 'run')}{ended}"
    if about["kind"] == "agent" and not said:
        return Finding("run", NOTE, f"{words}; only a greeting was said: say what makes it work with --say TEXT")
    return Finding("run", OK, words)


def _ending(seen: Seen) -> dict[str, Any]:
    """What a run has left, session by session: messages, what is saved with what, results that could not be kept."""
    import perdure
    from perdure.caching import PREFIX
    from perdure.kernel import BOOK
    from perdure.tracked import plain

    found: dict[str, Any] = {}
    if not Path(seen.url.removeprefix("sqlite:///")).exists():
        return found
    with perdure.open(seen.url, maintain=False) as db:
        for row in db.sessions(limit=100):
            if not row.heads or row.id.startswith(PREFIX):
                continue
            together, before = list[int](), 0
            calls, problems = set[str](), set[tuple[str, str]]()
            points = db.history(row.id, limit=LONGEST)
            for point in reversed(points):
                reading = db.read(row.id, point.step, migrate=False)
                messages: list[Any] = reading.plain()["messages"]
                together.append(sum(_is_answer(m) for m in messages[before:]))
                before = len(messages)
                # Looked for at every step: a call that is settled and told is taken from the book.
                book: dict[str, Any] = plain(reading._document.root[BOOK])  # pyright: ignore[reportPrivateUsage]
                for id, effect in book.get("effects", {}).items():
                    calls.add(id)
                    if effect.get("problem"):
                        problems.add((effect["tool"], str(effect["problem"])))
            state = db.read(row.id, migrate=False).plain()
            found[row.id] = {
                "status": row.status,
                "messages": [
                    (m.get("role"), m.get("content")) if isinstance(m, dict) else m for m in state["messages"]
                ],
                "vars": state.get("vars"),
                "together": together,
                "saves": len(points),
                "calls": len(calls),
                "problems": sorted(problems),
            }
    return found


def _is_answer(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"


def _serialisable(seen: Seen, state: dict[str, Any]) -> Finding:
    error = seen.error
    if error is not None and error["kind"] == "NotJson":
        return Finding("serialisation", FAIL, error["words"])
    for left in state.values():
        if left["problems"]:
            tool, what = left["problems"][0]
            return Finding(
                "serialisation", FAIL, f"the result of {tool} is a {what}, which is not JSON: the model never sees it; "
                "return dicts, lists, text and numbers",
            )  # fmt: skip
    return Finding("serialisation", OK, "everything that was saved is JSON")


def _writers(seen: Seen) -> Finding:
    saves = seen.of("save")
    free = [s for s in saves if s["free"] and not s["retried"]]
    lost = sum(s["lost"] for s in free)
    if lost:
        return Finding(
            "writers", FAIL, f"{lost} of {len(saves)} saves without a lease came second and were refused: what they "
            "held is lost; open sessions with their lease, or use db.update, or db.post into the inbox",
        )  # fmt: skip
    if free:
        return Finding(
            "writers", NOTE, f"{len(free)} saves were made without a lease (lease=False): a second writer would make "
            "them fail; keep the lease, or use db.update",
        )  # fmt: skip
    return Finding("writers", OK, "every save was made under the session's lease")


def _saves(seen: Seen, state: dict[str, Any]) -> Finding:
    most = max((n for left in state.values() for n in left["together"]), default=0)
    saves = sum(left["saves"] for left in state.values())
    answers = sum(sum(left["together"]) for left in state.values())
    calls = sum(left["calls"] for left in state.values())
    if most > 1:
        return Finding(
            "saves", FAIL, f"{most} answers were saved together: a kill before that loses them all, and they are paid "
            "for again; commit after each answer and each call",
        )  # fmt: skip
    if not saves:
        return Finding("saves", NOTE if seen.error is not None else FAIL, "nothing was saved: call commit()")
    counted = f"{count(saves, 'save')} for {count(answers, 'answer')} and {count(calls, 'call')}"
    return Finding("saves", OK, f"{counted}: a kill loses one step at most")


def _resumes(lab: Lab, place: str, first: Seen, state: dict[str, Any], about: dict[str, Any]) -> Finding:
    """Kill it after some of its saves, start it again, and compare where it ends."""
    landed = sum(not s["lost"] for s in first.of("save"))
    # A function that is called after its last save begins anew: that is not resuming.
    last = landed if about["kind"] == "agent" else landed - 1
    points = sorted({1 + round(i * (last - 1) / (KILLS - 1)) for i in range(KILLS)}) if last > 0 else []
    if not points:
        return Finding("resume", NOTE, "there is no moment between two saves at which it could be killed")
    control = _ending(lab.run(place, "second"))
    if _compared(control, texts=False) != _compared(state, texts=False):
        return Finding("resume", NOTE, "two undisturbed runs end differently, so that a resumed one cannot be compared")
    steady = _compared(control, texts=True) == _compared(state, texts=True)
    kills, parked = 0, set[str]()
    for point in points:
        name = f"killed-{point}"
        if not lab.run(place, name, stop_at=point).killed:
            # It has saved less often than the first time.
            continue
        kills += 1
        seen = lab.run(place, name)
        if (error := seen.error) is not None or seen.late:
            what = f"{error['kind']}: {error['words']}" if error is not None else "no end"
            return Finding("resume", FAIL, f"killed after save {point} and started again, it ended with {what}")
        left = _ending(seen)
        if any(v["status"] == "in_doubt" for v in left.values()):
            parked |= {sid for sid, v in left.items() if v["status"] == "in_doubt"}
            continue
        if steady and _compared(left, texts=True) != _compared(state, texts=True):
            # What differs from run to run by itself, such as who of two is first, may have been alike by chance.
            control = _ending(lab.run(place, f"control-{point}"))
            steady = _compared(control, texts=True) == _compared(state, texts=True)
        if _compared(left, texts=steady) != _compared(state, texts=steady):
            return Finding(
                "resume", FAIL, f"killed after save {point} and started again, it ended elsewhere: "
                f"{_first_difference(state, left)}; what a run needs must be in the session, not in the process",
            )  # fmt: skip
    if not kills:
        return Finding("resume", NOTE, "it saves now and then only: it ended before it could be killed")
    killed = f"killed with SIGKILL after {kills} of {landed} saves"
    if parked:
        return Finding(
            "resume", NOTE, f"{killed}: a tool that was cut off waits for a person; "
            "say what may be done with @tool(if_unsure=...)",
        )  # fmt: skip
    return Finding("resume", OK, f"{killed}, it went on each time and ended in the same place")


def _compared(state: dict[str, Any], *, texts: bool) -> Any:
    """What must be the same after a kill; without texts only who said something, and where it stands."""
    return {
        session: (
            left["status"],
            left["messages"] if texts else [m[0] if isinstance(m, tuple) else "" for m in left["messages"]],
            left["vars"] if texts else sorted(left["vars"] or ()),
        )
        for session, left in state.items()
    }


def _first_difference(whole: dict[str, Any], left: dict[str, Any]) -> str:
    for session in whole.keys() | left.keys():
        a, b = whole.get(session), left.get(session)
        if a is None or b is None:
            return f"session {session[:60]} is {'new' if a is None else 'missing'}"
        if len(a["messages"]) != len(b["messages"]):
            return f"{len(b['messages'])} messages instead of {len(a['messages'])}"
        for one, other in zip(a["messages"], b["messages"], strict=True):
            if one != other:
                return f"{str(other)[:100]} instead of {str(one)[:100]}"
        if (a["status"], a["vars"]) != (b["status"], b["vars"]):
            return f"{b['status']}, vars {str(b['vars'])[:100]} instead of {a['status']}, {str(a['vars'])[:100]}"
    return "the state differs"


def _grows(lab: Lab, place: str) -> Finding:
    """Run a function again and again, and see whether some part of its state only ever grows."""
    rounds = [e["sizes"] for e in lab.run(place, "many", repeat=ROUNDS).of("round")]
    late = rounds[len(rounds) // 2 :]
    for part in late[-1] if len(late) > 2 else ():
        sizes = [r.get(part, 0) for r in late]
        grown = sum(b > a for a, b in itertools.pairwise(sizes))
        if grown >= STILL * (len(sizes) - 1):
            per = (sizes[-1] - sizes[0]) // (len(sizes) - 1)
            session, _, name = part.rpartition(": ")
            return Finding(
                "history", FAIL, f"{name} of session {session[:60]} grew in every one of {len(rounds)} runs, by about "
                f"{per} characters each: prune or summarise it, or keep only what is still needed",
            )  # fmt: skip
    return Finding("history", OK, f"after {len(rounds)} runs the state has stopped growing")
