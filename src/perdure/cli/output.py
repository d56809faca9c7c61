"""Where output goes: styled in a terminal, plain in a pipe, JSON for programs; and how far long work has come."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

from perdure.cli.terminal_text import safe

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from rich.console import Console

    from perdure.database import Database

    Told = Callable[[str, int], None]

STOPPED = 130
"""The exit code of a program that was interrupted, as shells have it."""


class Out:
    """Prints lines and tables. Every text passes through :func:`perdure.cli.terminal_text.safe` and none is markup."""

    def __init__(self) -> None:
        self._console: Console | None = None
        if sys.stdout.isatty():
            from rich.console import Console

            self._console = Console(markup=False, highlight=False, emoji=False)

    @property
    def terminal(self) -> bool:
        """Whether somebody is looking."""
        return self._console is not None

    def clear(self) -> None:
        """Begin at the top of a terminal; a pipe just gets more."""
        if self._console is not None:
            self._console.clear()

    def line(self, text: str = "", style: str = "", *, fold: bool = True) -> None:
        """One line; in a terminal it is folded, or cut at the edge."""
        if self._console is None:
            print(safe(text))
            return
        from rich.text import Text

        shown = Text(safe(text), style=style)
        if fold:
            self._console.print(shown)
        else:
            self._console.print(shown, no_wrap=True, overflow="ellipsis")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> None:
        """Aligned columns; ``styles`` gives each row one."""
        from rich.cells import cell_len

        cells = [[safe(cell) for cell in row] for row in (header, *rows)]
        widths = [max(cell_len(row[i]) for row in cells) for i in range(len(header))]
        for number, row in enumerate(cells):
            padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
            style = "bold" if number == 0 else (styles[number - 1] if styles else "")
            self.line("  ".join(padded).rstrip(), style, fold=False)


def tell(as_json: bool, shape: Any, words: str, style: str = "") -> None:
    """Say how something went: its shape for programs, or a line for people."""
    if as_json:
        print_json(shape)
    else:
        Out().line(words, style)


def print_json(value: Any) -> None:
    """A shape as one JSON document; pure ASCII, so that nothing in it can steer a terminal."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=True, default=extra))


def print_line(value: Any) -> None:
    """A shape as one line of JSON, which whoever reads along through a pipe gets now."""
    print(json.dumps(_plain(value), ensure_ascii=True, default=extra), flush=True)


def _plain(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value, builtin_types=(bytes,))


def extra(value: Any) -> Any:
    """Bytes have no JSON form of their own."""
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    msg = f"{type(value).__name__} has no JSON form"
    raise TypeError(msg)


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
