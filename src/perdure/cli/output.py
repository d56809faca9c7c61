"""Where output goes: styled in a terminal, plain in a pipe, JSON for programs."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING, Any

from perdure.cli.terminal_text import safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console


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
