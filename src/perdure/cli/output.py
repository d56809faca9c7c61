"""What commands print: lines and tables for people, JSON for programs, and how far long work has come.

``OUTPUTS`` says which shapes every command prints with ``--json``. The reference is generated from it, ``perdure
schema`` prints it as JSON Schema, and the tests hold the real output of every command against it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.run_result import CANCELLED
from perdure.cli.terminal_text import cut, safe
from perdure.shapes.approvals import Decided, Effect, Waiting
from perdure.shapes.basics import Page
from perdure.shapes.events import Change, Event
from perdure.shapes.history import Checkpoint, Diff, Merge
from perdure.shapes.machine import Bench, Demo, Doctor, LogLine, NewAgent, Serving
from perdure.shapes.schema import schemas
from perdure.shapes.sessions import Session, SessionState, Why
from perdure.shapes.store import Aside, Migrated, Pruned, Store, Swept, Table, Transferred, Verified
from perdure.shapes.work import Amended, Bulk, Drained, Fleet, InboxMessage, Posted, Replay, Run, Submitted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from rich.console import Console

    from perdure.agent.run_result import Raised, RunResult
    from perdure.database import Database

    Told = Callable[[str, int], None]

SHOWN = 50
"""Findings or sessions that are named one by one; JSON has them all."""
STOPPED = 130
"""The exit code of a program that was interrupted, as shells have it."""


def answered(result: RunResult) -> str:
    """What became of a message, and at which step: whoever was told to stop has not answered it."""
    return f"was {'not answered' if result.status == CANCELLED else 'answered'} at step {result.step}"


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

    def lines(self, lines: Sequence[str], style: str = "") -> None:
        """Several."""
        for line in lines:
            self.line(line, style)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> None:
        """Aligned columns; ``styles`` gives each row one."""
        from rich.cells import cell_len

        cells = [[safe(cell) for cell in row] for row in (header, *rows)]
        widths = [max(cell_len(row[i]) for row in cells) for i in range(len(header))]
        for number, row in enumerate(cells):
            padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
            style = "bold" if number == 0 else (styles[number - 1] if styles else "")
            self.line("  ".join(padded).rstrip(), style, fold=False)


def print_each(title: str, pairs: Sequence[tuple[str, str]], style: str) -> None:
    """Sessions, each with what there is to say of it; many of them are only counted, for JSON has them all."""
    out = Out()
    for session, reason in pairs[:SHOWN]:
        out.line(f"{title}: {cut(session, 200)}{': ' if reason else ''}{cut(reason, 500)}", style)
    if len(pairs) > SHOWN:
        out.line(f"… {len(pairs) - SHOWN} more {title}: --json lists them all", "dim")


def print_traceback(out: Out, told: Mapping[str, str] | None) -> None:
    """Where the exception of a tool came from, below what is said of it."""
    for line in (told or {}).get("traceback", "").splitlines():
        out.line(f"    {cut(line, 300)}", "dim")


def print_raised(out: Out, raised: Sequence[Raised]) -> None:
    """Calls whose tools ended with exceptions, each with where that came from."""
    for one in raised:
        out.line(cut(f"{one.effect}: {one} ({one.status})", 500), "red")
        print_traceback(out, one._asdict())


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
    raise TypeError(f"{type(value).__name__} has no JSON form")


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


# -- which shapes each command prints ---------------------------------------------------------------------------------

DIALECT = "https://json-schema.org/draft/2020-12/schema"
REF = "#/$defs/{name}"


class Output(NamedTuple):
    """What a command prints for programs."""

    shapes: tuple[Any, ...]
    """One of these."""
    negative: str = ""
    """When it ends with 1 although what it was asked about is there."""
    lines: bool = False
    """One object a line, as it happens, instead of one document."""
    option: str = "--json"
    when: tuple[str, ...] = ()
    """Which of several shapes it is, in the same order."""


_BRANCHED = Output((Checkpoint,))
_MANY = Output((Bulk,))
_DECIDED = Output((Waiting, Decided), when=("without an id", "with one"))
_POSTED = Output((Posted,))
_RUN = Output((Run,), "the run ended with failed, incompatible, in_doubt or cancelled")
_TRANSFERRED = Output((Transferred,), "something could not be brought over, or blobs are missing")
_SERVED = Output((Serving,), lines=True)

OUTPUTS: dict[str, Output] = {
    "ls": Output((Page[Session],)),
    "show": Output((SessionState,)),
    "why": Output((Why,)),
    "stats": Output((Store,)),
    "tail": Output((Change, Event), lines=True, when=("without SESSION", "of one session")),
    "log": Output((Page[Checkpoint],)),
    "diff": Output((Diff,), "they differ, with --exit-code"),
    "fork": _BRANCHED,
    "rewind": _BRANCHED,
    "merge": Output((Merge,), "both sides have changed the same: nothing was written"),
    "tag": _BRANCHED,
    "approve": _DECIDED,
    "reject": _DECIDED,
    "answer": _DECIDED,
    "resolve": Output(
        (Waiting, Page[Waiting], Effect, Bulk),
        when=("of one session", "with --list of many", "of one call", "of all calls of sessions"),
    ),
    "cancel": _MANY,
    "post": _POSTED,
    "outcome": _POSTED,
    "wake": _POSTED,
    "inbox": Output((Page[InboxMessage], Amended), when=("to list", "to withdraw or edit")),
    "verify": Output((Verified,), "something is not as it was written"),
    "doctor": Output((Doctor,), "a check failed"),
    "backup": _TRANSFERRED,
    "restore": _TRANSFERRED,
    "sweep": Output((Swept,), "a session could not be removed"),
    "revive": Output((Page[Aside], Aside), when=("without a session", "with one")),
    "prune": Output((Pruned,)),
    "migrate": Output((Migrated,), "a session could not be migrated"),
    "export": _TRANSFERRED,
    "import": _TRANSFERRED,
    "copy": _TRANSFERRED,
    "query": Output((Table,)),
    "replay": Output(
        (Replay, Run),
        "a step differs; with --live, the run ended with failed, incompatible or in_doubt",
        when=("from the record", "with --live"),
    ),
    "new": Output((NewAgent,)),
    "run": _RUN,
    "resume": _RUN,
    "worker": Output((LogLine,), lines=True, option="--log-json"),
    "submit": Output((Submitted,)),
    "workers": Output((Fleet,)),
    "drain": Output((Drained,), "some are still there after --wait"),
    "pause": _MANY,
    "unpause": _MANY,
    "retry": _MANY,
    "serve": _SERVED,
    "console": _SERVED,
    "demo": Output((Demo,), "something was lost, doubled or never finished"),
    "bench": Output((Bench,)),
    "schema": Output((dict[str, Any],)),
}
FOR_PEOPLE = {"chat": "a conversation in a terminal; programs use `run --json` and `tail --json`"}
"""Commands without a form for programs, and why."""


def components() -> dict[str, dict[str, Any]]:
    """Every shape that commands print, by its name, as JSON Schema."""
    kinds = {kind for output in OUTPUTS.values() for kind in output.shapes}
    return schemas(sorted(kinds, key=str), REF)[1]


def schema_of(command: str) -> dict[str, Any]:
    """The JSON Schema of what a command prints; of one line of it, where it prints lines."""
    (first, *others), made = schemas(OUTPUTS[command].shapes, REF)
    whole = {"anyOf": [first, *others]} if others else first
    return {"$schema": DIALECT, "title": f"perdure {command} {OUTPUTS[command].option}", **whole, "$defs": made}
