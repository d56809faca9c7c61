"""What somebody sees while the night is played: a live picture in a terminal, or plain lines on stderr."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from perdure.demo.chaos import CONCURRENCY, EVICT, FREEZE, FROZEN, KILL, LEASE, LEAVING, STARTING, UP, Recoveries

if TYPE_CHECKING:
    from collections.abc import Generator

    from rich.console import ConsoleOptions, RenderableType, RenderResult

    from perdure.demo.chaos import Event
    from perdure.demo.run import Night

EVERY = 0.5
"""Seconds between two samples of the rate."""
RECENT = 6.0
"""Seconds over which the rate is told."""
BLOCKS = "▁▂▃▄▅▆▇█"
ROWS = 16
"""Lines that are there whatever happens; the rest of the screen tells of workers and events."""
STYLES = {KILL: "bold red", EVICT: "yellow", FREEZE: "cyan"}
LOOKS = {UP: ("●", "green"), STARTING: ("○", "dim"), FROZEN: ("❄", "cyan"), LEAVING: ("◐", "yellow")}


def clock(seconds: float) -> str:
    """Minutes and seconds.

    >>> clock(75.2)
    '1:15'
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def short(number: int) -> str:
    """A number that is looked at, not copied.

    >>> short(950), short(12_400), short(12_400_000)
    ('950', '12.4 k', '12.4 M')
    """
    if number < 10_000:
        return f"{number:,}"
    return f"{number / 1e6:.1f} M" if number >= 1e6 else f"{number / 1e3:.1f} k"


class View:
    """The picture of a night."""

    def __init__(self, night: Night) -> None:
        self._night = night
        self._recoveries = Recoveries(night.crowd.talks)
        self._samples: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], maxlen=121)

    # -- numbers --------------------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Take note of where things stand."""
        now = time.monotonic()
        if now - self._samples[-1][0] >= EVERY:
            self._samples.append((now, self._night.crowd.commits))
        self._recoveries.update(self._night.chaos.hits)

    def rates(self) -> list[float]:
        """Checkpoints per second, sample by sample."""
        pairs = zip(list(self._samples), list(self._samples)[1:], strict=False)
        return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs]

    def rate(self) -> float:
        """Checkpoints per second of the last few seconds."""
        now, count = self._samples[-1]
        then, before = next(s for s in self._samples if now - s[0] <= RECENT)
        return (count - before) / (now - then) if now > then else 0.0

    def plain(self) -> str:
        """All that matters in one line."""
        self.sample()
        n, r = self._night, self._recoveries
        struck = n.chaos.struck
        return (
            f"{clock(n.seconds)}  {n.phase}: {n.crowd.finished} of {n.wish.sessions} conversations finished, "
            f"{n.crowd.commits:,} checkpoints ({self.rate():.0f}/s), {struck[KILL]} killed, {struck[EVICT]} evicted, "
            f"{struck[FREEZE]} frozen, {r.resumes} resumed"
        )

    # -- the picture ----------------------------------------------------------------------------------------------

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.render(options.max_width, console.height)

    def render(self, width: int, height: int) -> RenderableType:
        """The whole picture, for a terminal of that size."""
        self.sample()
        n = self._night
        inner = max(20, width - 4)
        room = max(0, height - ROWS)
        workers = self._workers(inner, room)
        events = self._events(room - len(workers))
        title = Text.assemble((" Black Friday night ", "bold"), (f"· {n.wish.sessions} conversations ", "dim"))
        about = f" {n.db.url.partition('://')[0]} · {n.wish.workers} workers · {LEASE:g} s lease"
        about += f" · model × {n.wish.factor:g} · seed {n.wish.seed} "
        body: list[RenderableType] = [
            self._progress(inner), Text(), self._standing(inner), Text(), self._numbers(inner), Text(), *workers,
            *([Text()] if events else []), *events,
        ]  # fmt: skip
        bottom = Text(about, style="dim", no_wrap=True, overflow="ellipsis")
        return Panel(Group(*body), title=title, subtitle=bottom, border_style="blue", width=width)

    def _progress(self, inner: int) -> RenderableType:
        n = self._night
        done = n.crowd.answered / max(1, n.crowd.total)
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(ratio=1)
        grid.add_column(justify="right", no_wrap=True)
        bar = ProgressBar(total=1.0, completed=done, width=max(10, inner - 16), complete_style="green")
        grid.add_row(bar, Text(f"{done:4.0%}  {clock(n.seconds):>5}"))
        return grid if n.phase == "the night" else Text(f"{n.phase} …", style="bold", no_wrap=True)

    def _standing(self, inner: int) -> RenderableType:
        crowd = self._night.crowd
        asking = len(crowd.asking)
        rest = self._night.wish.sessions - crowd.finished - crowd.open
        parts = [
            (crowd.finished, "finished", "bold green"), (crowd.open - asking, "at work", "bold blue"),
            (rest, "with the customer", "bold"), (asking, "with a supervisor", "bold yellow"),
        ]  # fmt: skip
        if inner < 70:
            parts = [(count, name.rpartition(" ")[2], style) for count, name, style in parts]
        grid = Table.grid(padding=(0, 1), expand=True)
        for _ in parts:
            grid.add_column(justify="center", no_wrap=True)
        grid.add_row(*(Text.assemble((str(count), style), f" {name}") for count, name, style in parts))
        return grid

    def _numbers(self, inner: int) -> RenderableType:
        n, r = self._night, self._recoveries
        struck, planned = n.chaos.struck, n.chaos.planned
        cut = sum(h.kind == KILL for h in n.chaos.hits)
        saved = sum(h.tokens for h in n.chaos.hits)
        p50, slowest = r.median, r.slowest
        times = "none yet" if p50 is None or slowest is None else f"median {p50:.1f} s, slowest {slowest:.1f} s"
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        kinds = {KILL: "SIGKILL", EVICT: "evicted", FREEZE: "frozen"}
        grid.add_row("workers struck", Text("   ").join(
            Text.assemble((f"{name} ", STYLES[kind]), f"{struck[kind]}/{planned[kind]}") for kind, name in kinds.items()
        ))  # fmt: skip
        resumed = Text.assemble((str(cut), "bold"), ", and ", (str(len(n.chaos.hits) - cut), "bold"), " frozen; ")
        resumed.append_text(Text.assemble((str(r.resumes), "bold green"), " taken up by others"))
        grid.add_row("runs cut in mid-step", resumed)
        grid.add_row("recovery", times)
        grid.add_row("tokens saved", Text.assemble((short(saved), "bold green"), " that a restart would pay for again"))
        sparks = self._sparks(max(5, inner - 48))
        rate = Text.assemble((f"{n.crowd.commits:,}", "bold"), f"  {self.rate():4.0f}/s  ", (sparks, "blue"))
        grid.add_row("checkpoints", rate)
        return grid

    def _sparks(self, width: int) -> str:
        rates = self.rates()[-width:]
        top = max(rates, default=0.0)
        return "".join(BLOCKS[min(7, int(rate / top * 7.99))] if top else BLOCKS[0] for rate in rates)

    def _workers(self, inner: int, room: int) -> list[RenderableType]:
        lines: list[RenderableType] = []
        for member in list(self._night.force.members)[: max(0, room - 1)]:
            sign, style = LOOKS.get(member.state, ("✖", "red"))
            busy = member.busy if member.state in (UP, FROZEN) else 0
            size = max(5, min(40, inner - 40))
            full = min(size, round(size * busy / CONCURRENCY))
            lines.append(
                Text.assemble(
                    (f"{sign} ", style), f"worker {member.number:<3} ", (f"{member.state:<9}", style),
                    f"{busy:>3} ", ("━" * full, "blue"), ("─" * (size - full), "grey35"),
                    no_wrap=True, overflow="ellipsis",
                )
            )  # fmt: skip
        return lines

    def _events(self, room: int) -> list[RenderableType]:
        return [_told(event) for event in self._night.chaos.events[-room:]] if room > 0 else []


def _told(event: Event) -> Text:
    return Text.assemble(
        (f"{clock(event.seconds):>5}  ", "dim"), (f"{event.kind} ", STYLES[event.kind]),
        f"worker {event.worker} with {event.sessions} conversations in mid-step: {event.more}",
        no_wrap=True, overflow="ellipsis",
    )  # fmt: skip


LINES_EVERY = 5.0
PICTURES = 4
"""A second."""


@contextlib.contextmanager
def watched(night: Night, *, live: bool) -> Generator[None]:
    """Show how the night goes until the block is left."""
    view = View(night)
    # What the program prints goes to stdout, and may be piped.
    picture = Live(view, console=Console(stderr=True), refresh_per_second=PICTURES, transient=True)
    with picture if live and sys.stderr.isatty() else _lines(view):
        yield


@contextlib.contextmanager
def _lines(view: View) -> Generator[None]:
    over = threading.Event()

    def tell() -> None:
        while not over.wait(LINES_EVERY):
            sys.stderr.write(view.plain() + "\n")
            sys.stderr.flush()

    thread = threading.Thread(target=tell, name="perdure-lines", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
