"""Showing a night while it is played: on a terminal as a picture, elsewhere as lines on stderr."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

    from rich.console import Console, ConsoleOptions, RenderResult

    from perdure.demo.run import Night
    from perdure.demo.view import View

LINES_EVERY = 5.0
PICTURES = 4
"""A second."""


@contextlib.contextmanager
def watched(night: Night, *, live: bool) -> Generator[None]:
    """Show how the night goes until the block is left."""
    from perdure.demo.view import View

    view = View(night)
    with _picture(view) if live and sys.stderr.isatty() else _lines(view):
        yield


class _Fitting:
    """The picture in the size that the terminal has at the moment."""

    def __init__(self, view: View) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._view.render(options.max_width, console.height)


@contextlib.contextmanager
def _picture(view: View) -> Generator[None]:
    from rich.console import Console
    from rich.live import Live

    fitting = _Fitting(view)
    # What the program prints goes to stdout, and may be piped.
    with Live(fitting, console=Console(stderr=True), refresh_per_second=PICTURES, transient=True):
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
