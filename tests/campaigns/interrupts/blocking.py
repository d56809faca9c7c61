"""Loops of a prompt over a blocking handle, alone or shared with a second thread, that go on after each Ctrl-C."""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import perdure
from perdure.errors import Busy, Conflict, HandleClosed, InDoubt, Misuse, PerdureError
from tests.campaigns.interrupts.seen import HOME, PER_WRITER, Seen, is_ours, no_more

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from types import FrameType

PATIENCE = 20
"""Seconds after which something that takes milliseconds counts as hanging."""
LEASE = 1.0
CHECK_EVERY = 25
"""Turns between two comparisons of what the handle shows with what is stored."""
CHECK_SOON = 0.3
"""How many turns that were interrupted are followed by one."""
SESSION = "prompt"
CROWD = 200
"""Other sessions that are visited: more than a store keeps files open for."""


def turn(work: Callable[[], None]) -> None:
    """What may be interrupted; the loop around it may not, as the loop of a prompt."""
    work()


class Prompt:
    """A loop over one handle; ``kind`` says who else uses it, and whether it visits others meanwhile."""

    def __init__(self, url: str, wanted: int, seed: int, pipe: Connection, kind: str) -> None:
        self._url = url
        self._wanted = wanted
        self._pipe = pipe
        self._rng = random.Random(seed)
        self._shared = kind == "threads"
        self._crowd = CROWD if kind == "crowd" else 0
        self.seen = Seen()
        self._keeper = perdure.open(url, maintain=False)
        """What is in memory is there as long as somebody has it open."""
        self._open_database()
        self.s = self.db.session(SESSION)
        self._numbers = itertools.count(1)
        self._acknowledged: list[int] = []
        self._theirs: list[int] = []
        self._visits: dict[str, list[int]] = {f"visited-{n}": [] for n in range(self._crowd)}
        """What was acknowledged of the others."""
        self._forks: list[str] = []
        self._world: list[int] = []
        """What calls have done."""
        self._open_calls: list[int] = []
        self._returned: list[int] = []
        self._drops = 0
        """Grows when edits are thrown away, and again when that is over: what the other thread had not committed is
        among them. While it is odd they may be thrown away at any moment."""
        self._kept: BaseException | None = None
        """The last interrupt, with all it was in the middle of: a prompt keeps it for whoever wants to look into it."""
        self._still = threading.Lock()
        self._stop = threading.Event()

    def run(self) -> Seen:
        """Until so many interrupts have come; then everything is compared."""
        signal.signal(signal.SIGINT, self._interrupted)
        other = threading.Thread(target=self._write_along, daemon=True)
        if self._shared:
            other.start()
        kinds = {k: w for k, w in TURNS.items() if not self._shared or k not in ("reload", "reopen")}
        if self._crowd:
            kinds |= VISITS
            for name in self._visits:
                self._visit_one(name)
        self._pipe.send("up")
        try:
            for number in itertools.count(1):
                kind = self._rng.choices(list(kinds), list(kinds.values()))[0]
                before = self.seen.interrupts
                self._turn(kind)
                # Soon, before a reload hides what went wrong; not at once, so that whatever comes next meets it, too.
                if number % CHECK_EVERY == 0 or (self.seen.interrupts > before and self._rng.random() < CHECK_SOON):
                    self._check()
                if number % CHECK_EVERY == 0:
                    self._pipe.send(self.seen.interrupts)
                if self.seen.interrupts >= self._wanted:
                    break
        finally:
            no_more(self._pipe)
            self._stop.set()
        self._check()
        if self._shared:
            other.join(PATIENCE)
            if other.is_alive():
                self.seen.problem("hung", "the second thread")
        self._end()
        return self.seen

    def _interrupted(self, _number: int, frame: FrameType | None) -> None:
        """Ctrl-C: in the middle of a turn, what it always is."""
        place = ""
        while frame is not None and frame.f_code is not turn.__code__:
            if not place and is_ours(frame):
                place = f"{frame.f_code.co_filename.removeprefix(HOME)}:{frame.f_lineno}"
            frame = frame.f_back
        if frame is not None:
            self.seen.interrupts += 1
            self.seen.inside += bool(place)
            self.seen.places.append(place)
            raise KeyboardInterrupt

    def _turn(self, kind: str) -> None:
        self.seen.turns[kind] += 1
        error: PerdureError | None = None
        try:
            turn(getattr(self, f"_{kind}"))
        except KeyboardInterrupt as e:
            self._kept = e
            return
        except HandleClosed as e:
            error = e
            self._again(self._open)
        except (Misuse, Conflict) as e:
            # What a person does who is told so.
            error = e
            self._drops += 1
            try:
                self._again(self.s.reload)
            except HandleClosed:
                # It was let go in the middle of that.
                self._again(self._open)
            self._drops += 1
        except PerdureError as e:
            error = e
        self.seen.went(error)

    def _again(self, work: Callable[[], Any]) -> None:
        """Do something until it is done, however often it is interrupted."""
        deadline, before = time.monotonic() + 3 * LEASE, ""
        for _ in range(1000):
            try:
                turn(work)
            except KeyboardInterrupt as e:
                self._kept = e
                deadline, before = time.monotonic() + 3 * LEASE, ""
            except Busy as e:
                # Of an opening that was interrupted right where the store had granted it: it ends with its time.
                self.seen.refused[type(e).__name__] += 1
                before = before or " ".join(self.seen.places[-2:])
                time.sleep(LEASE / 10)
                if time.monotonic() > deadline:
                    # Of a handle that was given to nobody: it is kept for as long as the database is open.
                    self.seen.left_behind.append(before)
                    self.db.close()
                    self._open_database()
                    deadline, before = time.monotonic() + 3 * LEASE, ""
            else:
                return
        raise TimeoutError("interrupted a thousand times in a row")

    def _open_database(self) -> None:
        self.db = perdure.open(self._url, lease_ttl=LEASE, maintain=self._rng.random() < 0.5)

    # -- turns ----------------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        value = next(self._numbers)
        self.s.messages.append(value)
        self.s.commit()
        self._acknowledged.append(value)

    def _edits(self) -> None:
        values = [next(self._numbers) for _ in range(3)]
        self.s.vars["newest"] = values
        self.s.messages.extend(values)
        self.s.vars.setdefault("seen", {})[str(values[0] % 7)] = values
        self.s.commit()
        self._acknowledged.extend(values)

    def _call(self) -> None:
        value = next(self._numbers)
        self._open_calls.append(value)
        self._settle(value)

    def _settle_calls(self) -> None:
        for value in self._open_calls[:5]:
            self._settle(value)

    def _settle(self, value: int) -> None:
        """Call, and when nobody knows whether it was made, look: this world can be asked."""
        try:
            self.s.call(self._do, value)
        except InDoubt as doubt:
            if value in self._world:
                self.s.resolve(doubt.effect, done=value)
            else:
                self.s.resolve(doubt.effect, retry=True)
            self.s.call(self._do, value)
        self._returned.append(value)
        self._open_calls.remove(value)

    def _do(self, value: int) -> int:
        self._world.append(value)
        return value

    def _fork(self) -> None:
        name = f"b{next(self._numbers)}"
        self.s.fork(name)
        self._forks.append(name)

    def _reload(self) -> None:
        self.s.reload()

    def _open(self) -> None:
        self.s = self.db.session(SESSION)

    def _reopen(self) -> None:
        self.s.release()
        self._open()

    def _visit(self) -> None:
        self._visit_one(self._rng.choice(list(self._visits)))

    def _visit_one(self, name: str) -> None:
        value = next(self._numbers)
        with self.db.session(name) as s:
            s.messages.append(value)
            s.commit()
            self._visits[name].append(value)

    def _see(self) -> None:
        for name in self._rng.sample(list(self._visits), 5):
            self.db.read(name)

    # -- the other thread, and comparing --------------------------------------------------------------------------

    def _write_along(self) -> None:
        for value in itertools.count(PER_WRITER):
            with self._still:
                if self._stop.is_set():
                    return
                drops = self._drops
                try:
                    self.s.messages.append(value)
                    self.s.commit()
                except PerdureError as e:
                    self.seen.refused[f"{type(e).__name__} (second thread)"] += 1
                else:
                    if self._drops == drops and drops % 2 == 0:
                        self._theirs.append(value)
            # The lock is not fair: whoever wants to compare gets a chance.
            time.sleep(0.0005)

    def _check(self) -> None:
        """The next commit stores what the handle shows, with everything that was interrupted, once."""
        if not self._still.acquire(timeout=PATIENCE):
            raise TimeoutError("the second thread hangs")
        try:
            try:
                self.s.commit()
            except (Misuse, Conflict):
                if self.s.journal.guard.closed:
                    self._again(self._open)
                self._drops += 1
                self.s.reload()
                self.s.commit()
            stored = self.db.read(SESSION)
            values = stored.messages.plain()
            self.seen.compare("a check", values, [*self._acknowledged, *self._theirs], self.s.messages.plain())
            if stored.state.plain() != self.s.state.plain():
                self.seen.problem("wrong", "a check: the handle shows another state than is stored")
        finally:
            self._still.release()

    def _end(self) -> None:
        for value in self._open_calls[:]:
            self._settle(value)
        self.seen.calls = len(self._returned)
        self.seen.made_once(self._world, self._returned)
        branches = {head.branch for head in self.db.look(SESSION).heads}
        if missing := set(self._forks) - branches:
            self.seen.problem("lost", f"branches {sorted(missing)[:5]}", len(missing))
        self.s.release()
        self.db.close()
        self.seen.everything(self._url, {SESSION: [*self._acknowledged, *self._theirs], **self._visits})
        self._keeper.close()


TURNS = {"commit": 8, "edits": 4, "call": 3, "settle_calls": 2, "fork": 1, "reload": 2, "reopen": 2}
"""How often each is done, against the others."""
VISITS = {"visit": 15, "see": 15}
"""The same, where others are visited."""
