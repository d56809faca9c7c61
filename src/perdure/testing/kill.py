"""Kill and resume: somebody's function is run in a child process, killed at a named moment, and run again to its end.

The children are those of ``perdure doctor APP``: they tell what they do, and wait at the moment for the signal.
"""

from __future__ import annotations

import importlib.util
import os
import random
import re
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from perdure.doctor.app import run_child
from perdure.doctor.app_checks import PARKING
from perdure.doctor.app_process import Task
from perdure.doctor.instrumentation import ANSWER, BEFORE, CALLING, SAVE, TOOL
from perdure.errors import ApprovalNeeded, InDoubt, InvalidInput, ResultPending
from perdure.model import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from perdure.database import Database
    from perdure.doctor.findings import AppRun

_MOMENT = re.compile(r"(after commit|inside answer) (\d+)|(before|inside) tool (.+?)(?: (\d+))?")
_FORMS = "'after commit 2', 'before tool NAME', 'inside tool NAME', 'inside tool NAME 2', 'inside answer 1' or a seed"


class KillTestFailed(AssertionError):
    """A function did not come to the moment it was to be killed at, or not to its end afterwards."""


class Outcome:
    """What a function that was killed and run again has left."""

    def __init__(self, at: str, first: AppRun, second: AppRun, db: Database) -> None:
        self.at = at
        """The moment at which it was killed."""
        self.first: Counter[str] = Counter(e["name"] for e in first.of(CALLING))
        """How often each tool was really called before the kill."""
        self.second: Counter[str] = Counter(e["name"] for e in second.of(CALLING))
        """And after it."""
        self.waits = second.error["kind"] if second.error is not None else _waits_in(db)
        """Why the second run ended without being finished: ``InDoubt``, ``ApprovalNeeded`` or ``ResultPending``; ""
        when it was finished."""
        self.db = db
        """The scratch database, open until the end of the ``with`` block."""

    @property
    def calls(self) -> Counter[str]:
        """How often each tool was really called, in both runs together."""
        return self.first + self.second

    def state(self, session: str | None = None) -> dict[str, Any]:
        """The final state of a session; without a name, of the only one there is."""
        return self.db.read(session or self._only()).plain()

    def status(self, session: str | None = None) -> str:
        """Where a session stands in the end."""
        return self.db.look(session or self._only()).status

    def _only(self) -> str:
        ids = [row.id for row in self.db.sessions() if row.heads]
        if len(ids) != 1:
            raise InvalidInput(f"say which session is meant: there are {', '.join(ids)[:200] or 'none'}")
        return ids[0]

    def __repr__(self) -> str:
        return f"<killed {self.at}; calls {dict(self.calls)}{f'; waits: {self.waits}' if self.waits else ''}>"


_WAITS = {
    Status.IN_DOUBT: InDoubt.__name__,
    Status.WAITING_APPROVAL: ApprovalNeeded.__name__,
    Status.WAITING_RESULT: ResultPending.__name__,
}
"""What stands in the way of a session, in the order in which it is told: a parent waits for what its child does."""


def _waits_in(db: Database) -> str:
    """The same of an agent, whose run ends with a result and raises nothing."""
    stand = {row.status for row in db.sessions()}
    return next((name for status, name in _WAITS.items() if status in stand), "")


@contextmanager
def kill_and_resume(
    app: Callable[[Any], Any] | str, *, at: str | int, say: Sequence[str] = (), timeout: float = 60.0
) -> Generator[Outcome]:
    """Run ``app(db)`` in a process of its own, kill it with SIGKILL at a moment, run it again, look at what is left.

    ``app`` is a function at the top of a module that takes a database (a coroutine function gets an awaited one), or
    names an agent as ``perdure doctor`` does, such as "app.py:agent", to which each of ``say`` is said. It works on a
    scratch database, whatever URL it opens. ``at`` is "after commit 2", "before tool charge" (its start is written
    down), "inside tool charge" (it has run, and nobody knows yet), "inside tool charge 2" (its second call), "inside
    answer 1", or a number: a moment drawn with that seed.
    """
    target = _target(app)
    with tempfile.TemporaryDirectory(prefix="perdure-kill-") as place:
        if isinstance(at, int):
            at = random.Random(at).choice(_moments(target, place, say, timeout))
        first = _run(target, place, "killed", say, timeout, stop=_stop(at))
        if not first.killed:
            there = ", ".join(_moments_of(first)) or "none at all"
            raise KillTestFailed(f"{target} never came to {at!r}{_ended(first)}: its moments were {there}")
        second = _run(target, place, "killed", say, timeout)
        if second.late or (second.error is not None and second.error["kind"] not in PARKING):
            raise KillTestFailed(f"killed {at}, {target} did not come to its end when it was run again{_ended(second)}")
        import perdure

        with perdure.open(second.url, maintain=False) as db:
            yield Outcome(at, first, second, db)


def kill_moments(app: Callable[[Any], Any] | str, *, say: Sequence[str] = (), timeout: float = 60.0) -> list[str]:
    """All moments at which ``app`` can be killed, in order, as an undisturbed run on a scratch database has them."""
    with tempfile.TemporaryDirectory(prefix="perdure-kill-") as place:
        return _moments(_target(app), place, say, timeout)


def _moments(target: str, place: str, say: Sequence[str], timeout: float) -> list[str]:
    seen = _run(target, place, "undisturbed", say, timeout)
    found = _moments_of(seen)
    if seen.late or not found or (seen.error is not None and seen.error["kind"] not in PARKING):
        raise KillTestFailed(f"{target} has no moments to be killed at, even undisturbed{_ended(seen)}")
    return found


def _moments_of(seen: AppRun) -> list[str]:
    counts: Counter[str] = Counter()
    found: list[str] = []
    for event in seen.events:
        words = {
            SAVE: "after commit", ANSWER: "inside answer", CALLING: f"before tool {event.get('name')}",
            TOOL: f"inside tool {event.get('name')}",
        }.get(event.get("event", ""))  # fmt: skip
        if words is None or event.get("lost") or event.get("refused"):
            continue
        counts[words] += 1
        found.append(f"{words} {counts[words]}")
    return found


def _stop(at: str) -> tuple[str, int]:
    match = _MOMENT.fullmatch(at)
    if match is None:
        raise InvalidInput(f"at={at!r:.80} is no moment: it is {_FORMS}")
    if match[1]:
        return (SAVE if match[1] == "after commit" else ANSWER), int(match[2])
    return f"{BEFORE if match[3] == 'before' else TOOL} {match[4]}", int(match[5] or 1)


def _run(target: str, place: str, name: str, say: Sequence[str], timeout: float, **how: Any) -> AppRun:
    folder = os.path.join(place, name)
    os.makedirs(folder, exist_ok=True)
    task = Task(target, f"sqlite:///{folder}/scratch.db", tuple(say) or ("Hello.",), **how)
    # What this process can import, the child can: it works in another folder.
    return run_child(task, folder, timeout, [os.path.abspath(path) for path in sys.path])


def _target(app: Callable[[Any], Any] | str) -> str:
    """How the child finds it: module and name, or file and name."""
    if isinstance(app, str):
        place, colon, name = app.rpartition(":") if ":" in app else (app, "", "")
        return f"{os.path.abspath(place)}{colon}{name}" if place.endswith(".py") else app
    code = getattr(app, "__code__", None)
    module = sys.modules.get(getattr(app, "__module__", ""))
    name = getattr(app, "__name__", "")
    if code is None or module is None or getattr(module, name, None) is not app:
        raise InvalidInput(f"{app!r:.100} must be a function at the top of a module: a new process has to find it")
    try:
        spec = importlib.util.find_spec(module.__name__)
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.origin == code.co_filename:
        return f"{module.__name__}:{name}"
    return f"{code.co_filename}:{name}"


def _ended(seen: AppRun) -> str:
    if seen.late:
        return " (it did not end in time)"
    if (error := seen.error) is not None:
        return f" ({error['kind']}: {error['words']}{' at ' + error['where'] if error['where'] else ''})"
    return ""
