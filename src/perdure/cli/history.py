"""``perdure log``, ``diff``, ``fork``, ``rewind``, ``merge`` and ``tag``: a session's past."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.agent.model_versions import between, versions_in
from perdure.cli.options import AsJson, BlobsAt, Place, Session, Store
from perdure.cli.output import SHOWN, Out, extra, print_json, print_traceback, tell
from perdure.cli.session_at import open_place, split
from perdure.cli.state_edits import apply, in_editor, parse
from perdure.cli.terminal_text import brief, cut
from perdure.cli.which_database import open_existing, open_existing_async
from perdure.errors import InvalidInput, MergeConflict, NotFound
from perdure.history.hydrate import load_at
from perdure.model import MAIN, TAG_PREFIX, Kind
from perdure.session.actions import Action, Do
from perdure.session.calls.records import MISFIT, exception_of
from perdure.session.tools.exceptions import in_short
from perdure.session.waiting_messages import UNSAID, unsaid_words
from perdure.session.wakes import VOID, is_of_another
from perdure.shapes.basics import page
from perdure.shapes.history import Merge, checkpoint
from perdure.shapes.history import diff as diff_shape
from perdure.state.document import BOOK, STATE, genesis, plain
from perdure.state.merge import differences
from perdure.system.commands import quoted, typed
from perdure.system.times import ago

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.cli.session_at import Opened
    from perdure.cli.state_edits import Edits
    from perdure.database import Database
    from perdure.history.checkpoint import Checkpoint
    from perdure.model import SessionRow
    from perdure.session.handle import Session as Handle
    from perdure.state.merge import Difference

_WITH_EXCEPTIONS = (Kind.RAISED, Kind.DONE, Kind.FAILED, Kind.IN_DOUBT, Kind.RETRYING)
PREFERENCES = ("ours", "theirs", "both")
_STYLES = {
    "in_doubt": "bold red",
    "failed": "red",
    "raised": "red",
    "retrying": "yellow",
    "approval": "yellow",
    "fork": "cyan",
    "rewind": "cyan",
}


def log(
    session: Session,
    store: Store = None,
    blobs: BlobsAt = None,
    branch: Annotated[str | None, typer.Option(metavar="NAME", help="Which branch; main if not said.")] = None,
    graph: Annotated[bool, typer.Option("--graph", help="Draw all branches, or the one given.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="How many at most.")] = 50,
    before: Annotated[int | None, typer.Option(min=1, metavar="STEP", help="Only steps before this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints of a session, newest first."""
    with open_existing(store, blobs) as db:
        row = db.look(session)
        known: dict[str, Checkpoint] = {}
        for name in row.branches if graph and branch is None else [branch or MAIN]:
            known.update((c.id, c) for c in db.history(session, branch=name, limit=limit + 1, before=before))
        labels = _labels(db, session, [h.branch for h in row.heads])
        now = db.kernel.clock.wall()
        told = _exceptions(db, row, sorted(known.values(), key=lambda c: -c.step)[:limit])
    # A child's step is always larger than its parent's: by step, everything comes after what builds on it.
    points = sorted(known.values(), key=lambda c: (-c.step, -c.at, c.line))
    if as_json:
        print_json(page(points, limit, lambda c: checkpoint(c, told.get(c.id)), lambda c: c.step))
    else:
        following = points[limit - 1].step if len(points) > limit else None
        _print_log(points[:limit], labels, now, following, told, graph=graph)


def _exceptions(db: Database, row: SessionRow, points: list[Checkpoint]) -> dict[str, dict[str, str]]:
    """Checkpoint id -> the exception of a tool that it records; of the newest that record one."""
    found: dict[str, dict[str, str]] = {}
    for c in [c for c in points if c.kind in _WITH_EXCEPTIONS and (c.more.get("error") or c.more.get("exception"))][
        :SHOWN
    ]:
        book = plain(load_at(db.kernel, row, c.id, c.branch).doc[BOOK])
        for record in book.get("effects", {}).values():
            if record["id"] == c.more.get("effect") and (told := exception_of(record)) is not None:
                found[c.id] = told
    return found


def _labels(db: Database, session: str, branches: list[str]) -> dict[str, list[str]]:
    """Checkpoint id -> the branches that end there and the tags that name it."""
    found: dict[str, list[str]] = {}
    for name in branches:
        tip = db.history(session, branch=name, limit=1)[0]
        if name.startswith(TAG_PREFIX):
            found.setdefault(tip.parent or tip.id, []).append(f"tag {name.removeprefix(TAG_PREFIX)}")
        else:
            found.setdefault(tip.id, []).append(name)
    return found


def _print_log(
    points: list[Checkpoint],
    labels: dict[str, list[str]],
    now: int,
    following: int | None,
    told: dict[str, dict[str, str]],
    *,
    graph: bool,
) -> None:
    out = Out()
    if not points:
        out.line("no checkpoints")
        return
    rows: list[list[str]] = []
    styles: list[str] = []
    drawn = draw([(c.id, c.parent) for c in points]) if graph else [(i, "") for i in range(len(points))]
    for index, picture in drawn:
        if index is None:
            rows.append([picture, "", "", "", "", "", ""])
            styles.append("dim")
            continue
        c = points[index]
        names = ", ".join(cut(name, 60) for name in labels.get(c.id, ()))
        said = _words(c, told.get(c.id))
        text = f"({names}) {said}" if names else said
        cells = [str(c.step), cut(c.kind, 20), cut(c.status, 20), ago(c.at, now), c.id[:12], text]
        rows.append([picture, *cells] if graph else cells)
        styles.append(_STYLES.get(c.kind, ""))
    header = ("STEP", "KIND", "STATUS", "WHEN", "ID", "WHAT")
    out.table(("", *header) if graph else header, rows, styles)
    if following is not None:
        out.line(f"there are more: --before {following}", "dim")
    with_one = [c for c in points if c.id in told]
    # That of a call of which it is known whether it happened must not hide one of which it is not.
    open_ = next((c for c in with_one if c.kind not in (Kind.FAILED, Kind.DONE)), None)
    if (last := open_ or next(iter(with_one), None)) is not None:
        which = "exception of a tool" if open_ is None else "exception of a tool that may have changed something"
        out.line(f"the newest {which}, at step {last.step}: {cut(in_short(told[last.id]), 400)}", "red")
        print_traceback(out, told[last.id])


def _words(c: Checkpoint, told: dict[str, str] | None = None) -> str:
    """What a checkpoint says of itself beside its kind."""
    said: list[str] = []
    for name in ("note", "run", "tool", "effect", "approval", "error", "leaves"):
        value = in_short(told) if name == "error" and told is not None else c.more.get(name)
        if value:
            said.append(cut(str(value), 80) if name == "note" else f"{name} {cut(str(value), 60)}")
    if wrong := c.more.get(MISFIT):
        said.append(f"its result does not fit: {cut(str(wrong), 200)}")
    if isinstance(other := c.more.get("with"), list) and len(other) == 3:  # pyright: ignore[reportUnknownArgumentType]
        said.append(f"with {cut(str(other[2])[:12], 60)}")  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(parent := c.more.get("child_of"), dict):
        said.append(cut(f"works on {parent['effect']} of {parent['session']}@{parent['step']}", 200))
    void = [str(key) for key in c.more.get(VOID, ())]
    told_of = [key for key in c.more.get("takes", ()) if key not in void and not is_of_another(key.partition(":")[0])]
    if told_of:
        said.append(f"took {len(told_of)} from the inbox")
    if void and not c.more.get("note"):
        said.append(f"{len(void)} in the inbox had been withdrawn")
    return ", ".join(said)


def diff(
    a: Annotated[str, typer.Argument(metavar="SESSION@A")],
    b: Annotated[str, typer.Argument(metavar="SESSION@B")],
    store: Store = None,
    blobs: BlobsAt = None,
    branch: Annotated[str, typer.Option(metavar="NAME", help="The branch steps are counted on.")] = MAIN,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="End with 1 when the two differ.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the states at two places: of one session, or of two."""
    with open_existing(store, blobs) as db:
        one, two = open_place(db, a, branch), open_place(db, b, branch)
        found = differences(one.reading.plain(), two.reading.plain())
        if as_json:
            print_json(diff_shape(one.reading, two.reading, whole=True))
        else:
            _print_differences(found, one.name, two.name)
            for change in between(versions_in(one.reading.book), versions_in(two.reading.book)):
                Out().line(cut(str(change), 400), "yellow")
    if found and exit_code:
        raise typer.Exit(1)


def _print_differences(found: list[Difference], a: str, b: str) -> None:
    out = Out()
    if not found:
        out.line(f"{cut(a, 100)} and {cut(b, 100)} hold the same state")
        return
    for d in found:
        place = cut(str(d), 200)
        if d.kind == "changed":
            out.line(f"{place}: {brief(d.before, 120)} -> {brief(d.after, 120)}", "yellow")
        else:
            value = d.after if d.kind == "added" else d.before
            out.line(f"{place}: {brief(value, 240)}", "green" if d.kind == "added" else "red")


def draw(points: Sequence[tuple[str, str | None]]) -> list[tuple[int | None, str]]:
    """Lines of a picture for (id, parent) pairs, children before parents; (index of the point or None, line).

    >>> for i, line in draw([("d", "b"), ("c", "b"), ("b", "a"), ("a", None)]):
    ...     print(line)
    *
    | *
    |/
    *
    *
    """
    columns: list[str | None] = []
    """The id each column leads down to."""
    out: list[tuple[int | None, str]] = []
    for index, (id, parent) in enumerate(points):
        mine = [i for i, wanted in enumerate(columns) if wanted == id]
        for other in reversed(mine[1:]):
            out.append((None, _join(columns, mine[0], other)))
            columns[other] = None
        while columns and columns[-1] is None:
            columns.pop()
        if mine:
            at = mine[0]
        elif None in columns:
            at = columns.index(None)
        else:
            at = len(columns)
            columns.append(None)
        out.append((index, " ".join("*" if i == at else _bar(c) for i, c in enumerate(columns)).rstrip()))
        columns[at] = parent
    return out


def _bar(wanted: str | None) -> str:
    return " " if wanted is None else "|"


def _join(columns: Sequence[str | None], into: int, other: int) -> str:
    """A line on which column ``other`` runs into column ``into``."""
    cells = [_bar(c) for c in columns]
    cells[other] = " "
    line = list(" ".join(cells))
    for i in range(2 * into + 1, 2 * other - 1):
        if line[i] == " ":
            line[i] = "_"
    line[2 * other - 1] = "/"
    return "".join(line).rstrip()


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
    adds: Annotated[
        list[str] | None, typer.Option("--add", metavar="PATH=VALUE", help="The same for what is not there yet.")
    ] = None,
    unsets: Annotated[list[str] | None, typer.Option("--unset", metavar="PATH", help="Remove from the state.")] = None,
    edit: Annotated[bool, typer.Option("--edit", help="Edit the state, as JSON, in $EDITOR.")] = False,
    before: Annotated[
        bool, typer.Option("--before", help="Without what the step holds: an answer is asked for anew.")
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
    import asyncio

    edits = parse(sets or [], unsets or [], adds or [])
    with open_existing(store, blobs) as db:
        opened = open_place(db, place, branch)
        if before:
            branch = _own_branch(db, place, opened, branch)
        state = _draft(db, opened, branch, edits, edit=edit, before=before)
        name = name or _free(opened)
        step = opened.reading.step
        at = step if before else split(db, place)[1] or step
        if edits.said is not None:
            _check_it_is_heard(db, place, opened, at, branch, before=before)
        changed = state is not None or edits.instructions is not None
        made = None
        if not (before or changed):
            # Nothing but a pointer.
            with _open(db, opened.row.id, branch) as s:
                made = s.fork(name, at=at)
    if made is None:
        made = asyncio.run(_branched(store, blobs, opened.row.id, name, at, branch, before, edits.instructions, state))
    where = f"{'before' if before else 'from'} step {opened.reading.step}{', changed' if changed else ''}"
    tell(as_json, checkpoint(made), cut(f"{opened.row.id}: branch {name} {where}; it is at step {made.step}", 1000))


async def _branched(
    store: str | None, blobs: str | None, session: str, name: str, at: int | str, branch: str, before: bool,
    instructions: str | None, state: dict[str, Any] | None,
) -> Checkpoint:  # fmt: skip
    from perdure.agent.branching_off import branch_off

    async with open_existing_async(store, blobs) as db:
        return await branch_off(
            db, session, name, at=at, branch=branch, before=before, instructions=instructions, state=state
        )


def _open(db: Database, session: str, branch: str) -> Handle:
    """Open a session for writing in the schema that it has: a command does not have the program's migrations."""
    db.kernel.schema = db.read(session, branch=branch, migrate=False).checkpoint.schema
    return db.session(session, branch=branch, create=False)


def _draft(
    db: Database, opened: Opened, branch: str, edits: Edits, *, edit: bool, before: bool
) -> dict[str, Any] | None:
    """The whole state that the branch is to have; None when it is the one that is there."""
    if not (edit or edits.paths or edits.added or edits.gone or edits.said is not None):
        return None
    old = _start_state(db, opened, branch) if before else opened.reading.plain()
    new = copy.deepcopy(old)
    apply(new, edits)
    if edit:
        new = in_editor(new, extra)
        if new == old and edits.instructions is None:
            raise InvalidInput("nothing was changed: no branch was made")
    return new


def _check_it_is_heard(db: Database, place: str, opened: Opened, at: int | str, branch: str, *, before: bool) -> None:
    """Something said in place of what is answered already would change the record, and nothing that is done."""
    from perdure.agent.branching_off import answered_at

    session = opened.row.id
    with contextlib.suppress(InvalidInput):
        branch = _own_branch(db, place, opened, branch)
    step = answered_at(db.kernel, session, at, branch, before=before)
    if step is None:
        return
    on = "" if branch == MAIN else f" --branch {quoted(branch)}"
    there = quoted(f"{session}@{step or 'STEP'}")
    anew = typed(f"fork {there} --before{on} --set said=TEXT")
    new = Action(Do.MESSAGE, session, branch="NAME").command
    raise InvalidInput(
        f"what was said last is answered there already{f', at step {step}' if step else ''}, so nobody would hear it, "
        f"and no branch was made: {anew} has it asked anew; to go on from there, fork without it, then {new}"
    )


def _start_state(db: Database, opened: Opened, branch: str) -> dict[str, Any]:
    """The state before a step: where that holds an answer, with what it had been asked."""
    from perdure.agent.branching_off import before_answer

    c = opened.reading.checkpoint
    step, said = before_answer(db.kernel, opened.row.id, c.step, branch)
    if c.step == 1:
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
    with open_existing(store, blobs) as db:
        session, named = split(db, place)
        if not named:
            raise InvalidInput(f"say where to go back to: {session[:80]}@STEP")
        with _open(db, session, branch) as s:
            left = s.head
            made = s.rewind(named)
    assert left is not None
    words = f"{session}: {branch} goes on from {named}, at step {made.step}; it has left step {left.step}, {left.id}"
    if unsaid := unsaid_words(made.more.get(UNSAID, ())):
        words = f"{words}. {unsaid}. To have an answer, say it again under another key, or without one."
    tell(as_json, checkpoint(made), cut(words, 1000))


def merge(
    session: Session,
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
    if prefer is not None and prefer not in PREFERENCES:
        raise InvalidInput(f"--prefer is one of {', '.join(PREFERENCES)}, not {prefer!r:.40}")
    with open_existing(store, blobs) as db, _open(db, session, branch) as s:
        try:
            before = s.head
            made, clashes = s.merge(open_place(db, f"{session}@{other}", branch).reading.checkpoint.id, prefer), []
            made = None if before is not None and made.id == before.id else made
        except MergeConflict as e:
            made, clashes = None, [str(clash) for clash in e.paths]
    if as_json:
        print_json(Merge(merged=checkpoint(made) if made is not None else None, conflicts=clashes))
    elif made is not None:
        Out().line(cut(f"{session}: {other} is merged into {branch}, at step {made.step}", 1000))
    elif not clashes:
        Out().line(cut(f"{session}: nothing to merge: {branch} has all that {other} has changed", 1000))
    else:
        out = Out()
        for clash in clashes:
            out.line(cut(clash, 300), "yellow")
        say = "say --prefer ours, theirs or both (of lists that only grew)"
        if prefer == "both":
            say = "both sides of these cannot be kept, only of lists that grew: say --prefer ours or theirs"
        out.line(f"{branch} and {other} both changed these; nothing was written: {say}")
    if clashes:
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
    with open_existing(store, blobs) as db:
        opened = open_place(db, place, branch)
        with _open(db, opened.row.id, branch) as s:
            made = s.tag(name, at=split(db, place)[1] or opened.reading.step)
    tell(as_json, checkpoint(made), cut(f"{opened.row.id}: step {opened.reading.step} is tagged {name}", 1000))
