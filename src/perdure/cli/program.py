"""The program ``perdure``: its groups of commands, its help, and what becomes of an error."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import warnings
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from perdure.cli import agents, approvals, demo, doctor, fleet, history, inbox, server, sessions, transfer, upkeep
from perdure.cli.options import Witness
from perdure.cli.terminal_text import safe
from perdure.cli.which_database import use_witness
from perdure.errors import Conflict, InvalidInput, LeaseError, MergeConflict, Misuse, PerdureError, StoreError
from perdure.system import commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FINE, NEGATIVE, USAGE, STORE, TAKEN = 0, 1, 2, 3, 4
"""Exit codes; ``docs/reference/cli.md`` says what each means."""
DEBUG = "PERDURE_DEBUG"
GROUPS = {
    "Sessions": (sessions.ls, sessions.show, sessions.why, sessions.stats, sessions.tail),
    "Past and branches": (history.log, history.diff, history.fork, history.rewind, history.merge, history.tag),
    "People (approvals, calls in doubt, messages)": (
        approvals.approve, approvals.reject, approvals.answer, approvals.resolve, approvals.post, approvals.outcome,
        approvals.wake, inbox.inbox,
    ),
    "Agents and runs": (agents.new, agents.chat, agents.run, agents.resume, approvals.cancel, agents.replay),
    "Fleet": (fleet.worker, fleet.submit, fleet.workers, fleet.drain, fleet.pause, fleet.unpause, fleet.retry),
    "Store and upkeep": (
        upkeep.verify, doctor.doctor, transfer.backup, transfer.restore, transfer.export, transfer.bring_in,
        transfer.copy, upkeep.sweep, upkeep.revive, upkeep.prune, upkeep.migrate, upkeep.query,
    ),
    "Server and programs": (server.serve, server.console, server.schema),
    "Try it": (demo.demo, demo.bench),
}  # fmt: skip
"""Every command, under the heading and in the order in which ``perdure --help`` lists it."""
DIFFERENT: dict[Any, dict[str, Any]] = {
    transfer.bring_in: {"name": "import"},
    # What follows `bench` is read by the benchmarks themselves, --help included.
    demo.bench: {
        "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
        "add_help_option": False,
    },
}
"""Commands that are not simply called as their functions are."""


def _witnessed(command: Callable[..., None]) -> Callable[..., None]:
    """A command that writes sessions takes a witness, which nothing in it has to be told of."""
    plain = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("witness", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Witness)

    @functools.wraps(command)
    def called(*, witness: str | None = None, **given: Any) -> None:
        use_witness(witness or "")
        command(**given)

    called.__signature__ = plain.replace(parameters=[*plain.parameters.values(), option])  # type: ignore[attr-defined]
    called.__annotations__ = {**command.__annotations__, option.name: option.annotation}
    return called


class Grouped(TyperGroup):
    """Lists commands under the headings of their groups, all in the same columns."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write what ``--help`` says of the commands."""
        width = max(map(len, self.commands))
        found: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            words = command.get_short_help_str(formatter.width - width - 6)
            found.setdefault(getattr(command, "rich_help_panel", ""), []).append((name.ljust(width), words))
        for title, rows in found.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def _version(wanted: bool) -> None:
    if wanted:
        from perdure import __version__

        typer.echo(f"perdure {__version__}")
        raise typer.Exit


def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Durable state for AI agents: look at sessions, their past and their integrity."""


COMMANDS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    settings["name"]: (title, command, settings)
    for title, commands in GROUPS.items()
    for command in commands
    for settings in ({"name": command.__name__, **DIFFERENT.get(command, {})},)
}
"""By name: heading, function and settings of each command."""


def program_of(names: Iterable[str]) -> typer.Typer:
    """The program with these commands. To read the options of all of them takes longer than most of them do."""
    app = typer.Typer(
        name="perdure",
        cls=Grouped,
        help="Durable state for AI agents: look at sessions, their past and their integrity.",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(program)
    for name in names:
        title, command, settings = COMMANDS[name]
        app.command(rich_help_panel=title, **settings)(_witnessed(command) if name in commands.WITNESSED else command)
    return app


app = program_of(COMMANDS)


def exit_code(error: PerdureError) -> int:
    """What a shell is told about an error.

    >>> from perdure.errors import Corrupted, NotFound
    >>> exit_code(NotFound("x")), exit_code(InvalidInput("x")), exit_code(Corrupted("here", "x"))
    (1, 2, 3)
    """
    if isinstance(error, StoreError):
        return STORE
    if isinstance(error, (LeaseError, Conflict)) and not isinstance(error, MergeConflict):
        return TAKEN
    return USAGE if isinstance(error, (InvalidInput, Misuse)) else NEGATIVE


def run(argv: list[str]) -> int:
    """Run one command; an error of ours is one line on stderr, with a traceback only when asked for."""
    # Whoever closed them does not want to hear anything.
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    with warnings.catch_warnings():
        warnings.showwarning = _one_line
        commands.begin()
        try:
            code = _ended(argv)
            # What cannot be written must not be found out when nobody can say so any more.
            sys.stdout.flush()
        except PerdureError as error:
            if os.environ.get(DEBUG):
                raise
            print(f"perdure: {safe(str(error))}", file=sys.stderr)
            return exit_code(error)
        except OSError as error:
            if os.environ.get(DEBUG):
                raise
            _give_up_printing()
            if not isinstance(error, BrokenPipeError):
                what = f"{error.filename}: " if error.filename else f"{type(error).__name__}: "
                said = error.strerror or str(error)
                print(f"perdure: {safe(what + said)} ({DEBUG}=1 shows where)", file=sys.stderr)
            return NEGATIVE
        finally:
            commands.forget()
            use_witness("")
    return code


def _ended(argv: list[str]) -> int:
    called = program_of(argv[:1]) if argv and argv[0] in COMMANDS else app
    try:
        called(args=argv, prog_name="perdure")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FINE
    return FINE


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _give_up_printing() -> None:
    """What is still to be printed goes nowhere: it would only fail once more when the process ends."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError), _nowhere() as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _one_line(message: Warning | str, *_: object, **__: object) -> None:
    print(f"perdure: warning: {safe(str(message))}", file=sys.stderr)
