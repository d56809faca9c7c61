"""How far long work has come, for people who look at a terminal; programs and pipes get nothing of it."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from perdure.database import Database

    Told = Callable[[str, int], None]


@contextlib.contextmanager
def progress(words: str, total: Callable[[], int | None] | None = None, *, show: bool) -> Generator[Told | None]:
    """A bar while something is under way, and what to tell how many sessions are done; None where nobody looks.

    ``total`` is asked only when somebody does; what nobody knows beforehand has a bar that only moves.
    """
    if not (show and sys.stdout.isatty() and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=None if total is None else total())
        yield lambda _, done: bar.update(task, completed=done)


def all_of(db: Database) -> Callable[[], int]:
    """How many sessions a database has."""
    return lambda: db.usage().sessions
