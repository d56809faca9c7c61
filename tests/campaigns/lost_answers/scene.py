"""Where a case plays: one store, seen through the proxy by those who act and directly by those who check."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import perdure
from perdure import Context, Tool
from perdure.errors import Busy, Gone, NotFound, OutcomeUnknown
from perdure.system.clock import SystemClock
from tests.proxy import POSTGRES, RESP, Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from perdure.errors import StoreError
    from perdure.session.handle import Session
    from tests.servers.process import Running

    Act = Callable[[], Any]
    Case = Callable[["Scene"], Generator[Act, Any, None]]

END = 2**53
LEASE_TTL = 3.0


class Declared(NamedTuple):
    """A case, and what may be expected of it."""

    name: str
    play: Case
    single: bool
    """It writes once: "nothing was written" must then be true."""
    named: bool
    """What it writes has an id, which a refusal to guess must carry."""
    settles: bool
    """Done again after it landed, it is refused with a Conflict that names what landed."""


CASES: dict[str, Declared] = {}


def case(name: str, *, single: bool = False, named: bool = True, settles: bool = False) -> Callable[[Case], Case]:
    """Register a case: a generator that prepares, yields what is done while answers get lost, and checks."""

    def register(play: Case) -> Case:
        CASES[name] = Declared(name, play, single, named, settles)
        return play

    return register


class MovableClock(SystemClock):
    """The system's time, which can be moved on."""

    shift = 0

    def wall(self) -> int:
        return super().wall() + self.shift

    def monotonic(self) -> int:
        return super().monotonic() + self.shift


class Wrong(Exception):
    """Something that must not be. Kinds: lost, duplicated, wrong."""

    def __init__(self, kind: str, what: str) -> None:
        self.kind = kind
        super().__init__(what)


class Scene:
    """One store with its proxy; each attempt gets a session name of its own."""

    def __init__(self, url: str, server: Running | None, **options: Any) -> None:
        self.url = url
        self.options = {"maintain": False, "lease_ttl": LEASE_TTL, **options}
        self.proxy = None if server is None else Proxy(server.port, POSTGRES if server.kind == "postgres" else RESP)
        self.proxied = url
        if self.proxy is not None and server is not None:
            # Only the server that is behind the proxy: of a tiered store the other one is reached directly.
            self.proxied = url.replace(f":{server.port}/", f":{self.proxy.port}/")
        self.clock = MovableClock()
        # The first one makes the store: how that fares is a case of its own.
        self.direct = perdure.open(self.url, clock=self.clock, **self.options)
        self.db = perdure.open(self.proxied, clock=self.clock, **self.options)
        self.n = 0
        self.entered: list[str] = []
        self._cursor: str | None = None
        self.said: StoreError | None = None
        """What the first try of this attempt ended with, when it was not done."""
        self.cut = False
        """Whether anything was cut in this attempt."""

    def close(self) -> None:
        """Close everything."""
        self.db.close()
        self.direct.close()
        if self.proxy is not None:
            self.proxy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def begin(self) -> None:
        """A new attempt."""
        self.n += 1
        self.said, self.cut = None, False

    # -- for cases ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The session of this attempt."""
        return f"session-{self.n}"

    @property
    def store(self) -> Any:
        """The store, through the proxy."""
        return self.db.kernel.store

    @property
    def truth(self) -> Any:
        """The store, directly."""
        return self.direct.kernel.store

    @property
    def landed(self) -> bool:
        """Whether the commit that the first try could not tell of is there."""
        return isinstance(self.said, OutcomeUnknown) and self.said.id.hex() in self.ids()

    def beside(self, name: str, *, proxied: bool) -> str:
        """The URL of another store on the same server."""
        return re.sub(r"(schema|prefix)=\w+", rf"\g<0>_{name}", self.proxied if proxied else self.url)

    def patiently(self, do: Act) -> Any:
        """Do something that must wait for a lease whose holder does not know of it: its own, of a lost answer."""
        deadline = time.monotonic() + 2 * LEASE_TTL
        while True:
            try:
                return do()
            except Busy:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def begun(self, name: str = "", steps: int = 1, **options: Any) -> Session:
        """A handle through the proxy of a session with a first message."""
        s = self.db.session(name or self.name, **options)
        for step in range(steps):
            s.messages.append(f"before {step}")
            s.commit()
        return s

    def tool(self, **declared: Any) -> Tool:
        """A tool that notes under which effect it was entered."""

        def act(ctx: Context) -> str:
            self.entered.append(ctx.effect_id)
            return "receipt"

        return Tool(act, name="act", **declared)

    def messages(self, name: str = "", at: Any = None) -> list[Any]:
        """What the session's messages are, seen directly."""
        return self.direct.read(name or self.name, at).plain()["messages"]

    def ids(self, name: str = "") -> list[str]:
        """The checkpoints that are stored, seen directly."""
        row = self.truth.look(name or self.name)
        lines = range(row.lines if row else 0)
        found: list[str] = []
        for line in lines:
            try:
                found += [stored.id.hex() for stored in self.truth.slice(name or self.name, line, 0, END).rows]
            except (NotFound, Gone):
                continue
        return found

    def changes_so_far(self) -> str | None:
        """The cursor after everything that has happened."""
        page = self.truth.changes(self._cursor)
        while page.items:
            page = self.truth.changes(page.cursor)
        self._cursor = page.cursor
        return page.cursor

    def stored(self) -> Any:
        """Everything that is stored of the session, by which one sees whether anything was written."""
        row = self.truth.look(self.name)
        waiting = [e.key for e in self.truth.inbox(self.name, 1000)]
        return self.ids(), row and (row.heads, row.reason, row.status), waiting

    def expect(self, found: Any, wanted: Any, what: str) -> None:
        """Say what is wrong, and whether that is less or more than it must be."""
        if found == wanted:
            return
        kind = "wrong"
        if isinstance(found, list) and isinstance(wanted, list):
            kind = "lost" if len(found) < len(wanted) else "duplicated" if len(found) > len(wanted) else "wrong"
        raise Wrong(kind, f"{what}: {found!r}, not {wanted!r}")

    def let_expire(self) -> None:
        """Until the time of the scene's session is over, by the clock of its store."""
        while (row := self.truth.look(self.name)) is not None and row.heads and not row.over:
            time.sleep(0.05)

    def expect_messages(self, *texts: str, name: str = "") -> None:
        """These messages are there, in this order, each once."""
        self.expect(self.messages(name), list(texts), f"messages of {name or self.name}")

    def expect_steps(self, count: int, name: str = "") -> None:
        """So many checkpoints are there."""
        self.expect([*range(len(self.ids(name)))], [*range(count)], f"checkpoints of {name or self.name}")

    def expect_free(self, name: str = "") -> None:
        """Nobody holds the session."""
        row = self.truth.look(name or self.name)
        self.expect(row.lease.holder if row else "", "", f"the lease of {name or self.name}")

    def expect_intact(self, name: str = "") -> None:
        """Everything that is stored of the session is as it was written."""
        report = self.direct.verify(name or self.name)
        if not report.ok:
            raise Wrong("wrong", f"verify says {report}")
