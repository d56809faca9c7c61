"""``perdure log`` and ``perdure diff``: how a session came to be what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.which_database import AsJson, BlobsAt, Store, open_existing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.database import Database
    from perdure.history.checkpoint import Checkpoint
    from perdure.state.merge import Difference

MAIN, TAGS = "main", "tags/"
_STYLES = {"in_doubt": "bold red", "failed": "red", "approval": "yellow", "fork": "cyan", "rewind": "cyan"}


def log(
    session: Annotated[str, typer.Argument(metavar="SESSION")],
    store: Store = None,
    blobs: BlobsAt = None,
    branch: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which branch; main if not said.", show_default=False)
    ] = None,
    graph: Annotated[bool, typer.Option("--graph", help="Draw all branches, or the one given.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="How many at most.")] = 50,
    before: Annotated[int | None, typer.Option(min=1, metavar="STEP", help="Only steps before this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints of a session, newest first."""
    from perdure.cli.output import print_json
    from perdure.shapes.basics import page
    from perdure.shapes.history import checkpoint

    with open_existing(store, blobs) as db:
        row = db.look(session)
        if graph and branch is None:
            branches = [h.branch for h in row.heads if not h.branch.startswith(TAGS)]
        else:
            branches = [branch or MAIN]
        known: dict[str, Checkpoint] = {}
        for name in branches:
            known.update((c.id, c) for c in db.history(session, branch=name, limit=limit + 1, before=before))
        labels = _labels(db, session, [h.branch for h in row.heads])
        now = db.kernel.clock.wall()
    # A child's step is always larger than its parent's: by step, everything comes after what builds on it.
    points = sorted(known.values(), key=lambda c: (-c.step, -c.at, c.line))
    if as_json:
        print_json(page(points, limit, checkpoint, lambda c: c.step))
    else:
        following = points[limit - 1].step if len(points) > limit else None
        _print_log(points[:limit], labels, now, following, graph=graph)


def _labels(db: Database, session: str, branches: list[str]) -> dict[str, list[str]]:
    """Checkpoint id -> the branches that end there and the tags that name it."""
    found: dict[str, list[str]] = {}
    for name in branches:
        tip = db.history(session, branch=name, limit=1)[0]
        if name.startswith(TAGS):
            found.setdefault(tip.parent or tip.id, []).append(f"tag {name.removeprefix(TAGS)}")
        else:
            found.setdefault(tip.id, []).append(name)
    return found


def _print_log(
    points: list[Checkpoint], labels: dict[str, list[str]], now: int, following: int | None, *, graph: bool
) -> None:
    from perdure.cli.output import Out
    from perdure.cli.terminal_text import cut
    from perdure.system.wording import ago

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
        text = f"({names}) {_words(c)}" if names else _words(c)
        cells = [str(c.step), cut(c.kind, 20), cut(c.status, 20), ago(c.at, now), c.id[:12], text]
        rows.append([picture, *cells] if graph else cells)
        styles.append(_STYLES.get(c.kind, ""))
    header = ("STEP", "KIND", "STATUS", "WHEN", "ID", "WHAT")
    out.table(("", *header) if graph else header, rows, styles)
    if following is not None:
        out.line(f"there are more: --before {following}", "dim")


def _words(c: Checkpoint) -> str:
    """What a checkpoint says of itself beside its kind."""
    from perdure.cli.terminal_text import cut

    said: list[str] = []
    for name in ("note", "run", "tool", "effect", "approval", "error", "leaves"):
        if value := c.more.get(name):
            said.append(cut(str(value), 80) if name == "note" else f"{name} {cut(str(value), 60)}")
    if isinstance(other := c.more.get("with"), list) and len(other) == 3:  # pyright: ignore[reportUnknownArgumentType]
        said.append(f"with {cut(str(other[2])[:12], 60)}")  # pyright: ignore[reportUnknownArgumentType]
    if taken := c.more.get("takes"):
        said.append(f"took {len(taken)} from the inbox")
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
    from perdure.cli.output import print_json
    from perdure.cli.session_at import open_place
    from perdure.shapes import history as shapes
    from perdure.state.merge import differences

    with open_existing(store, blobs) as db:
        one, two = open_place(db, a, branch), open_place(db, b, branch)
        found = differences(one.reading.plain(), two.reading.plain())
        if as_json:
            print_json(shapes.diff(one.reading, two.reading, whole=True))
        else:
            _print_differences(found, one.name, two.name)
    if found and exit_code:
        raise typer.Exit(1)


def _print_differences(found: list[Difference], a: str, b: str) -> None:
    from perdure.cli.output import Out
    from perdure.cli.terminal_text import brief, cut

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
