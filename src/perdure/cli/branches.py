"""``perdure fork``, ``rewind``, ``merge`` and ``tag``: going back, and another way a session could have gone."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.which_database import AsJson, BlobsAt, Store, open_existing, open_existing_async
from perdure.errors import InvalidInput, MergeConflict, NotFound

if TYPE_CHECKING:
    from perdure.cli.session_at import Opened
    from perdure.cli.state_edits import Edits
    from perdure.database import Database
    from perdure.history.checkpoint import Checkpoint
    from perdure.session.handle import Session

MAIN, TAGS = "main", "tags/"
PREFERENCES = ("ours", "theirs", "both")

Place = Annotated[str, typer.Argument(metavar="SESSION[@PLACE]", help="PLACE: a step, tag, branch or id.")]
OnBranch = Annotated[str, typer.Option("--branch", metavar="NAME", help="The branch that is meant.")]


def fork(
    place: Place,
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="The new branch; from-STEP if not said.", show_default=False)
    ] = "",
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change the state there: vars.city=Porto, vars.plan=@plan.json. "
            "system=@prompt.txt changes the instructions, said=TEXT the user's last message.",
        ),
    ] = None,
    unsets: Annotated[list[str] | None, typer.Option("--unset", metavar="PATH", help="Remove from the state.")] = None,
    edit: Annotated[bool, typer.Option("--edit", help="Edit the state, as JSON, in $EDITOR.")] = False,
    before: Annotated[
        bool, typer.Option("--before", help="Before the answer that the step holds: it is asked for anew.")
    ] = False,
    store: Store = None,
    blobs: BlobsAt = None,
    branch: OnBranch = MAIN,
    as_json: AsJson = False,
) -> None:
    """Start a branch at any place of a session, as it was there or changed; what is there stays as it is.

    A VALUE is JSON, or else text; @FILE is a file's text, or its JSON when the name ends in .json. Run the branch on
    with perdure run APP SESSION --branch NAME: effects that were done are not done again.
    """
    from perdure.cli.output import print_json
    from perdure.cli.session_at import open_place
    from perdure.cli.state_edits import parse
    from perdure.shapes.history import checkpoint

    edits = parse(sets or [], unsets or [])
    with open_existing(store, blobs) as db:
        opened = open_place(db, place, branch)
        if before:
            branch = _own_branch(db, place, opened, branch)
        state = _draft(db, opened, branch, edits, edit=edit, before=before)
        name = name or _free(opened)
        at = opened.reading.step if before else _at(db, place, opened)
        changed = state is not None or edits.instructions is not None
        made = None
        if not (before or changed):
            # Nothing but a pointer.
            with _open(db, opened.row.id, branch) as s:
                made = s.fork(name, at=at)
    if made is None:
        made = asyncio.run(_branched(store, blobs, opened.row.id, name, at, branch, before, edits.instructions, state))
    if as_json:
        print_json(checkpoint(made))
    else:
        where = f"{'before' if before else 'from'} step {opened.reading.step}{', changed' if changed else ''}"
        _say(f"{opened.row.id}: branch {name} {where}; it is at step {made.step}")


async def _branched(
    store: str | None, blobs: str | None, session: str, name: str, at: int | str, branch: str, before: bool,
    instructions: str | None, state: dict[str, Any] | None,
) -> Checkpoint:  # fmt: skip
    from perdure.agent.branching_off import branch_off

    async with open_existing_async(store, blobs) as db:
        return await branch_off(
            db, session, name, at=at, branch=branch, before=before, instructions=instructions, state=state
        )


def _open(db: Database, session: str, branch: str) -> Session:
    """Open a session for writing in the schema that it has: a command does not have the program's migrations."""
    db.kernel.schema = db.read(session, branch=branch, migrate=False).checkpoint.schema
    return db.session(session, branch=branch, create=False)


def _draft(
    db: Database, opened: Opened, branch: str, edits: Edits, *, edit: bool, before: bool
) -> dict[str, Any] | None:
    """The whole state that the branch is to have; None when it is the one that is there."""
    from perdure.cli.output import extra
    from perdure.cli.state_edits import apply, in_editor

    if not (edit or edits.paths or edits.gone or edits.said is not None):
        return None
    old = _start_state(db, opened, branch) if before else opened.reading.plain()
    new = copy.deepcopy(old)
    apply(new, edits)
    if edit:
        new = in_editor(new, extra)
        if new == old and edits.instructions is None:
            raise InvalidInput("nothing was changed: no branch was made")
    return new


def _start_state(db: Database, opened: Opened, branch: str) -> dict[str, Any]:
    """The state that an answer was given to, with what it had been asked."""
    from perdure.agent.branching_off import before_answer
    from perdure.agent.requests import is_answer
    from perdure.state.document import STATE, genesis, plain

    c = opened.reading.checkpoint
    step, said = before_answer(db.kernel, opened.row.id, c.step, branch)
    if step == c.step == 1 and is_answer(c.more):
        state: dict[str, Any] = plain(genesis()[STATE])
    else:
        state = db.read(opened.row.id, step, branch=branch, migrate=False).plain()
    state["messages"] = [*state["messages"], *said]
    return state


def _free(opened: Opened) -> str:
    """A name that no branch has."""
    known = {h.branch for h in opened.row.heads}
    plain = f"from-{opened.reading.step}"
    return next(n for n in (plain, *(f"{plain}-{i}" for i in range(2, len(known) + 3))) if n not in known)


def _at(db: Database, place: str, opened: Opened) -> int | str:
    """The place as the library takes it."""
    from perdure.cli.session_at import split

    named = split(db, place)[1]
    if not named or (named.isascii() and named.isdigit() and int(named[:18]) == opened.reading.step):
        return opened.reading.step
    return named


def _own_branch(db: Database, place: str, opened: Opened, branch: str) -> str:
    """The branch on which the step that was found is that step."""
    c = opened.reading.checkpoint
    known = {h.branch for h in opened.row.heads}
    for name in (n for n in dict.fromkeys((branch, c.branch)) if n in known):
        with contextlib.suppress(NotFound):
            if db.read(c.session, c.step, branch=name, migrate=False).checkpoint.id == c.id:
                return name
    raise InvalidInput(f"{place!r:.80} was left by a rewind: fork it without --before, and again from that branch")


def rewind(
    place: Annotated[str, typer.Argument(metavar="SESSION@PLACE", help="PLACE: a step, tag or id of the branch.")],
    store: Store = None,
    blobs: BlobsAt = None,
    branch: OnBranch = MAIN,
    as_json: AsJson = False,
) -> None:
    """Have a branch go on from an earlier place. What is left stays in the history, under the id of its tip."""
    from perdure.cli.output import print_json
    from perdure.cli.session_at import open_place, split
    from perdure.shapes.history import checkpoint

    with open_existing(store, blobs) as db:
        session, named = split(db, place)
        if not named:
            raise InvalidInput(f"say where to go back to: {session[:80]}@STEP")
        at = _at(db, place, open_place(db, place, branch))
        with _open(db, session, branch) as s:
            left = s.head
            made = s.rewind(at)
    assert left is not None
    if as_json:
        print_json(checkpoint(made))
    else:
        _say(f"{session}: {branch} goes on from {named}, at step {made.step}; it has left step {left.step}, {left.id}")


def merge(
    session: Annotated[str, typer.Argument(metavar="SESSION")],
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The branch, tag or step to bring in.")],
    store: Store = None,
    blobs: BlobsAt = None,
    branch: OnBranch = MAIN,
    prefer: Annotated[
        str | None,
        typer.Option(metavar="WHOSE", help="Where both changed the same: ours, theirs, or both (lists that grew)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Bring what another branch changed since the two parted into this one; where both did, nothing is written."""
    from perdure.cli.output import Out, print_json
    from perdure.cli.session_at import open_place
    from perdure.cli.terminal_text import cut
    from perdure.shapes.history import Merge, checkpoint

    if prefer is not None and prefer not in PREFERENCES:
        raise InvalidInput(f"--prefer is one of {', '.join(PREFERENCES)}, not {prefer!r:.40}")
    with open_existing(store, blobs) as db, _open(db, session, branch) as s:
        try:
            made, clashes = s.merge(open_place(db, f"{session}@{other}", branch).reading.checkpoint.id, prefer), []
        except MergeConflict as e:
            made, clashes = None, [str(clash) for clash in e.paths]
    if as_json:
        print_json(Merge(merged=checkpoint(made) if made is not None else None, conflicts=clashes))
    elif made is not None:
        _say(f"{session}: {other} is merged into {branch}, at step {made.step}")
    else:
        out = Out()
        for clash in clashes:
            out.line(cut(clash, 300), "yellow")
        out.line(f"{branch} and {other} both changed these; nothing was written: say --prefer ours, theirs or both")
    if made is None:
        raise typer.Exit(1)


def tag(
    place: Place,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    store: Store = None,
    blobs: BlobsAt = None,
    branch: OnBranch = MAIN,
    as_json: AsJson = False,
) -> None:
    """Give a place in a session a name that never moves: SESSION@NAME leads there from now on."""
    from perdure.cli.output import print_json
    from perdure.cli.session_at import open_place
    from perdure.shapes.history import checkpoint

    with open_existing(store, blobs) as db:
        opened = open_place(db, place, branch)
        with _open(db, opened.row.id, branch) as s:
            made = s.tag(name, at=_at(db, place, opened))
    if as_json:
        print_json(checkpoint(made))
    else:
        _say(f"{opened.row.id}: step {opened.reading.step} is tagged {name}")


def _say(words: str) -> None:
    from perdure.cli.output import Out
    from perdure.cli.terminal_text import cut

    Out().line(cut(words, 1000))
