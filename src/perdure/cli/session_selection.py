"""Which sessions a command means, one by one or by their properties, and doing something to all of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import typer

from perdure.cli.output import Out, print_json
from perdure.cli.terminal_text import cut
from perdure.errors import InvalidInput, NotFound, PerdureError, Poisoned, Unavailable
from perdure.fleet.board import check_boarded
from perdure.history.hydrate import known
from perdure.model import Status
from perdure.protocols import Filter
from perdure.session.handover import made_board
from perdure.shapes.basics import failure
from perdure.shapes.work import Bulk
from perdure.system.names import check_session
from perdure.system.wording import count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.database import Database
    from perdure.model import SessionRow

BATCH = 500
SHOWN = 20
"""Sessions that are named when it could not be done to them."""
STATES = ("queued", "working", "waiting", "parked", "paused")

LEFT = {
    "cancel": "not those in which there is nothing to stop",
    "pause": "not those that were paused already, or that name no agent",
    "unpause": "not those that were not paused",
    "retry": "not those that name no agent, are paused, or have nothing to do",
    "resolve": "not those without a call in doubt",
}
"""Why something was done to fewer sessions than were meant, where none failed."""


class Selection(NamedTuple):
    """What a person said about the sessions they mean."""

    sessions: list[str] | None = None
    agent: str | None = None
    owner: str | None = None
    status: str | None = None
    state: str | None = None

    @property
    def only_agent(self) -> bool:
        """Whether a whole agent is meant."""
        return self.agent is not None and not (self.sessions or self.owner or self.status or self.state)


Failed = tuple[str, PerdureError]
"""A session that it could not be done to, and why."""


def check_one_of(what: str, said: str | None, known: Sequence[str]) -> str:
    """What was said, or "" when nothing was; ``InvalidInput`` if nobody knows it."""
    if said is not None and said not in known:
        raise InvalidInput(f"there is no {what} {said[:40]!r}: it is one of {', '.join(known)}")
    return said or ""


def pick(
    db: Database, chosen: Selection, missing: list[Failed], *, options: str = "--agent, --owner, --status or --state"
) -> list[SessionRow]:
    """The sessions that are meant; ``InvalidInput`` when nothing was said, for that would be all of them.

    Of several that are named, one that is not there keeps nobody from the others: it is put into ``missing``.
    ``options``: those that the command has to say which are meant.
    """
    if chosen.sessions:
        return _named(db, list(dict.fromkeys(chosen.sessions)), missing)
    if not (chosen.agent or chosen.owner or chosen.status or chosen.state):
        raise InvalidInput(f"say which sessions: name them, or use {options}")
    check_one_of("status", chosen.status, list(Status))
    check_one_of("state", chosen.state, STATES)
    inside = _by_state(db, chosen) if chosen.state is not None else None
    found: list[SessionRow] = []
    after: str | None = None
    while rows := db.sessions(agent=chosen.agent, owner=chosen.owner, status=chosen.status, after=after, limit=BATCH):
        found += [row for row in rows if inside is None or row.id in inside]
        after = rows[-1].id
    return found


def _named(db: Database, sessions: list[str], missing: list[Failed]) -> list[SessionRow]:
    found: list[SessionRow] = []
    for session in sessions:
        try:
            found.append(known(db.kernel, check_session(session)))
        except NotFound as error:
            if len(sessions) == 1:
                raise
            missing.append((session, error))
    return found


def _by_state(db: Database, chosen: Selection) -> set[str]:
    found, after = set[str](), None
    check_boarded(db)
    if (board := made_board(db.kernel.store)) is None:
        return found
    which = Filter(chosen.agent, chosen.owner, chosen.state)
    while works := board.works(which, after=after, limit=BATCH):
        found |= {w.session for w in works}
        after = works[-1].session
    return found


def sure(yes: bool, what: str) -> bool:
    """Whether somebody really means it; where nobody can be asked, it must have been said before."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput(f"this would {what}: look with --dry-run first, then add --yes")
    if typer.confirm(f"{what[:1].upper()}{what[1:]}?"):
        return True
    raise typer.Exit(1)


def each(batch: list[SessionRow], do: Callable[[str], Any], failed: list[Failed]) -> int:
    """Do it to one after the other; one that it cannot be done to keeps nobody from the others.

    Those are counted that it was done to; where ``do`` gives 0 there was nothing to do.
    """
    done = 0
    for row in batch:
        try:
            done += do(row.id) != 0
        except (InvalidInput, Unavailable, Poisoned):
            # It would go wrong for each of them.
            raise
        except PerdureError as error:
            failed.append((row.id, error))
    return done


def act(
    picked: list[SessionRow],
    verb: Literal["cancel", "pause", "unpause", "retry", "resolve"],
    on: Callable[[list[SessionRow]], int],
    *,
    dry_run: bool,
    as_json: bool,
    failed: Sequence[Failed] = (),
    named: bool = False,
) -> None:
    """Do it to all of them in batches, and say so; or only say which they are.

    Where sessions were ``named``, to have done it to none of them is no success. ``failed`` are those that are not
    there, and whatever ``on`` puts there: they are named, and the first of their errors says how the command ends.
    """
    out, done, missing = Out(), 0, len(failed)
    if not dry_run:
        for at in range(0, len(picked), BATCH):
            done += on(picked[at : at + BATCH])
    if as_json:
        names, wrong = [row.id for row in picked], [failure(*one) for one in failed]
        print_json(Bulk(action=verb, dry_run=dry_run, sessions=names, changed=done, failed=wrong, next=None))
    elif dry_run:
        for row in picked:
            out.line(f"{cut(row.id, 80)}  {row.status}  {cut(row.agent, 40)}")
        out.line(f"would {verb} {count(len(picked), 'session')}; nothing was done", "yellow")
    else:
        rest = f" ({LEFT[verb]})" if verb in LEFT and done < len(picked) + missing - len(failed) else ""
        out.line(f"{verb}: {done} of {count(len(picked) + missing, 'session')}{rest}")
    if not as_json:
        for session, error in failed[:SHOWN]:
            out.line(f"{cut(session, 80)}: {cut(str(error), 300)}", "bold red")
        if len(failed) > SHOWN:
            out.line(f"and {len(failed) - SHOWN} more could not be done", "bold red")
    if failed:
        from perdure.cli.program import exit_code

        raise typer.Exit(exit_code(failed[0][1]))
    if named and not (done or dry_run):
        raise typer.Exit(1)
