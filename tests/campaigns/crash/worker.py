"""A program that uses a store the way agents do, and can be told to take up where a dead one left off.

Whatever it is about to do, it writes down first (a *plan*, see :mod:`tests.campaigns.crash.plans`); a plan that was
begun and not finished is done again by the next process, as a real program would.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from perdure.errors import ApprovalError, ApprovalNeeded, EffectFailed, EffectRaised, InDoubt
from perdure.opening import open as open_database
from perdure.session.tools import ToolError, Unknown
from perdure.session.tools.declaration import tool
from perdure.state.migrations import Migrations
from perdure.stores.file import index
from perdure.stores.sqlite import file
from perdure.system.clock import SystemClock
from perdure.upkeep import background, flows, retention, snapshots
from tests.campaigns.crash.journal import fingerprint
from tests.campaigns.crash.watched import Watched
from tests.campaigns.crash.world import World, job_call, receipt

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from perdure.database import DatabaseHandle
    from perdure.kernel import Kernel
    from perdure.protocols import Blobs, Clock
    from perdure.session.handle import Session
    from tests.campaigns.crash.journal import Journal

OLD, NEW = "1.0.0", "2.0.0"
migrations = Migrations()


@migrations.add(OLD, NEW)
def _rename(state: dict[str, Any]) -> dict[str, Any]:
    state["vars"]["profile"] = state["vars"].pop("pref", None)
    return state


_SMALL: tuple[tuple[Any, str, int], ...] = (
    *((module, "PACK_ROWS", 8) for module in (snapshots, background, retention)),
    *((module, "PACK_MIN", 4) for module in (snapshots, background, flows)),
    (index, "COMPACT_FROM", 2048),
    (file, "CHECKPOINT_PAGES", 24),
    (file, "KEEP_FREE", 2),
)


@contextmanager
def small_thresholds() -> Iterator[None]:
    """Have upkeep happen after a few writes instead of hundreds, so that short workloads meet it."""
    before = [getattr(module, name) for module, name, _ in _SMALL]
    for module, name, value in _SMALL:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(_SMALL, before, strict=True):
            setattr(module, name, value)


class ShiftedClock(SystemClock):
    """The system's clocks, which can be moved on. To move one of them alone would let nothing expire."""

    shift = 0

    def wall(self) -> int:
        """Milliseconds since the epoch."""
        return super().wall() + self.shift

    def monotonic(self) -> int:
        """Milliseconds of the boot's own clock."""
        return super().monotonic() + self.shift


class Worker:
    """One process's view of a store: the database at two schema versions, the journal and the world."""

    def __init__(
        self,
        url: str,
        journal: Journal,
        rng: random.Random,
        *,
        maintain: bool = False,
        clock: Clock | None = None,
        lease_ttl: float = 10,
        blobs: Callable[[], Blobs] | None = None,
        folder: str = "",
        **options: Any,
    ) -> None:
        self.url = url
        self.journal = journal
        self._slipped: set[int] = set()
        self._slips = tool(name="slip", if_unsure="retry")(self._slip)
        self.history = journal.history
        self.rng = rng
        self.world = World(journal)
        self.clock = clock or ShiftedClock()
        self._options = {"migrations": migrations, "clock": self.clock, "lease_ttl": lease_ttl, **options}
        self._blobs = blobs
        self.folder = folder or os.path.dirname(url.partition("//")[2].replace("//", "/"))
        """Where other files may be put: beside the store, unless told otherwise."""
        self.db = open_database(url, schema=NEW, maintain=maintain, **self.options)
        self.store = self.watch(self.db)
        self.old = open_database(url, schema=OLD, maintain=False, **self.options)
        self.watch(self.old)

    @property
    def options(self) -> dict[str, Any]:
        """What every handle of the store is opened with."""
        return self._options if self._blobs is None else {**self._options, "blobs": self._blobs()}

    def watch(self, db: DatabaseHandle) -> Any:
        """Have the journal told of everything that a database asks of its store; gives the store."""
        store: Any = Watched(db.kernel.store, self.journal)
        db.kernel.store = store
        return store

    @property
    def on_server(self) -> bool:
        """Whether the store has a clock of its own."""
        return not self.url.startswith(("sqlite:", "file:"))

    @property
    def kernel(self) -> Kernel:
        """The parts of the database."""
        return self.db.kernel

    def pass_time(self, ms: int) -> None:
        """Move the clocks on."""
        clock: Any = self.clock
        if isinstance(clock, ShiftedClock):
            clock.shift += ms
        else:
            clock.advance(ms)

    def close(self) -> None:
        """Close the database."""
        self.old.close()
        self.db.close()

    # -- parts of plans ----------------------------------------------------------------------------

    def saw(self, s: Session) -> None:
        """The program has been told that the session stands here."""
        head = s.head
        if head is None:
            return
        state = fingerprint(s.state.plain())
        self.journal.note("state", s=s.id, l=head.line, n=head.step, id=head.id, h=state)

    def edit(self, s: Session, n: int, part: int = 0) -> None:
        """Change the state in ways that depend on ``n`` only, so that doing it again would be seen."""
        text = f"{n:x} " * (3 + n * 31 % 40)
        s.messages.append({"n": n, "part": part, "content": text})
        s.vars[f"v{n % 5}"] = n
        match n % 6:
            case 0:
                s.facts[f"f{n % 4}"] = {"value": n, "time": n, "source": "tool"}
            case 1:
                s.todos.append({"n": n})
            case 2 if len(s.todos) > 2:
                s.todos.pop(0)
            case 3:
                s.set_summary(f"up to {n}")
            case 4:
                s.vars.pop(f"v{(n + 2) % 5}", None)
            case _:
                # Large enough to become a blob.
                s.vars["photo"] = f"{n:08x}" * 5000

    def has(self, s: Session, n: int, part: int = 0) -> int:
        """How often a session's messages hold what :meth:`edit` appends."""
        return sum(1 for m in s.messages.plain() if m.get("n") == n and m.get("part") == part)

    def call(self, s: Session, name: str, n: int, *, give_up: bool = True) -> Any:
        """Call a tool to its end: a person answers whatever is left to people."""
        for _ in range(8):
            try:
                result = s.call(self.world.tools[name], n=n)
            except InDoubt as doubt:
                self.find_out(s, doubt.effect, name, n, give_up=give_up)
            except ApprovalNeeded as needed:
                try:
                    self.db.approve(s.id, needed.approval.id, by="ana")
                except ApprovalError:
                    # Somebody has agreed already; the call finds that out.
                    continue
            except EffectFailed:
                return "failed"
            else:
                return "unknown" if isinstance(result, Unknown) else result
        raise AssertionError(f"{name} {n} came to no end")

    def find_out(self, s: Session, effect: str, name: str, n: int, *, give_up: bool = True) -> None:
        """What a careful person does about an effect in doubt: look at the world."""
        if self.world.was_done(name, n):
            s.resolve(effect, done=receipt(name, n), by="ana")
        elif not self.world.was_entered(name, n):
            s.resolve(effect, retry=True, by="ana")
        elif give_up:
            s.resolve(effect, abort=True, by="ana")
        else:
            s.resolve(effect, done=None, by="ana")

    def run(self, s: Session, n: int) -> Any:
        """Run a job to its end."""
        for _ in range(8):
            try:
                return s.run(f"job-{n}", self._job, n)
            except InDoubt as doubt:
                self.find_out(s, doubt.effect, "ask", job_call(n, 3))
            except (EffectFailed, EffectRaised):
                # What has ended it has been mended: it is run again. It raised where a kill had cut off a first try.
                continue
        raise AssertionError(f"job {n} came to no end")

    def _slip(self, n: int) -> None:
        """Fails once in each process."""
        if n not in self._slipped:
            self._slipped.add(n)
            raise ToolError("not yet")

    def _job(self, s: Session, n: int) -> dict[str, Any]:
        self.edit(s, n, part=1)
        s.commit()
        s.call(self._slips, n)
        first = s.call(self.world.tools["retry"], n=job_call(n, 1))
        for message in s.take():
            s.messages.append({"answers": message.key})
        s.vars["receipt"] = first["receipt"]
        s.commit()
        second = s.call(self.world.tools["reconcile"], n=job_call(n, 2))
        try:
            third = s.call(self.world.tools["ask"], n=job_call(n, 3))
        except EffectFailed:
            third = None
        self.edit(s, n, part=2)
        s.commit()
        return {"n": n, "first": first, "second": second, "third": third is not None}
