"""Which checkpoints retention keeps: those asked for, and those that something else of the session stands on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import Corrupted, InvalidInput
from perdure.history.hydrate import ancestry, head_of, load, origins, where_is
from perdure.kernel import Kernel
from perdure.model import TAG_PREFIX, Kind
from perdure.state.document import BOOK

if TYPE_CHECKING:
    from perdure.history.hydrate import Origins
    from perdure.model import SessionRow


class Keep(NamedTuple):
    """What to keep of a session's past: the last checkpoints of each branch, every k-th step, tagged ones.

    Whatever is asked for, some are always kept: the first and the last checkpoint of every line, the points
    branches were forked and rewound from, those that merges were made with, everything since the beginning of an
    unfinished run, and the outcomes of effects that another line may still reuse instead of doing them again.
    """

    last: int | None = None
    every: int | None = None
    tagged: bool = True
    """Without this a tag no longer keeps its checkpoint; reading a tag that lost it raises ``Gone``."""

    def check(self) -> None:
        """Refuse what cannot be meant."""
        for name, value in (("keep_last", self.last), ("keep_every", self.every)):
            if value is not None and (type(value) is not int or value < 1):
                msg = f"{name} is a whole number, at least 1, or None: {value!r:.40}"
                raise InvalidInput(msg)
        if self.last is None and self.every is None:
            msg = "say what to keep: keep_last=100, keep_every=10, or both"
            raise InvalidInput(msg)


class Line(NamedTuple):
    """A line of a session and the steps of it to keep, whether or not they are still there."""

    line: int
    first: int
    last: int
    kept: set[int]


def kept_lines(kernel: Kernel, row: SessionRow, keep: Keep) -> list[Line]:
    """The steps to keep, line by line. Heads and ends of lines are verified first: nothing is decided on hearsay."""
    session = row.id
    lines = origins(kernel, session)
    heads = {head_of(kernel, row, h.branch).line for h in row.heads if not h.branch.startswith(TAG_PREFIX)}
    found = {n: Line(n, first, _last(kernel, session, n, first), set()) for n, (first, _, _) in lines.items()}
    for n, (first, origin, env) in lines.items():
        found[n].kept.update((first, found[n].last))
        if origin is not None and (keep.tagged or env.kind != Kind.TAG):
            _line(found, session, *origin).kept.add(origin[1])
        if keep.every is not None:
            found[n].kept.update(range(-(-first // keep.every) * keep.every, found[n].last + 1, keep.every))
    for n, (_, _, env) in lines.items():
        if env.kind == Kind.TAG:
            continue
        past = ancestry(kernel, session, n, found[n].last, lines)
        if keep.last is not None and n in heads:
            _keep_from(found, past, found[n].last - keep.last + 1)
        book = load(kernel, session, n, None).doc[BOOK]
        for run in book.get("runs", {}).values():
            if run["status"] == "open":
                # Catching up with a run goes through all that it recorded.
                _keep_from(found, past, run["at"][1])
        for line, step in book.get("merges", ()):
            _line(found, session, line, step).kept.add(step)
        found[n].kept.update(_outcomes(book, lines, n))
    return [found[n] for n in sorted(found)]


def _last(kernel: Kernel, session: str, line: int, first: int) -> int:
    return kernel.store.slice(session, line, first, first).last


def _line(found: dict[int, Line], session: str, line: int, step: int) -> Line:
    if line not in found:
        raise Corrupted(where_is(session, line, step), "its line has no beginning")
    return found[line]


def _keep_from(found: dict[int, Line], past: dict[int, int], step: int) -> None:
    """Keep all of a past from a step on: steps only grow along it, whatever the lines."""
    for line, end in past.items():
        found[line].kept.update(range(max(found[line].first, step), end + 1))


def _outcomes(book: dict[str, Any], lines: Origins, line: int) -> set[int]:
    """Where outcomes lie that a line which left this one before them would reuse.

    Only lines that are there already count. On a branch forked later, an outcome that is gone is not reused:
    the call is reported as done elsewhere.
    """
    left = [origin[1] for _, origin, env in lines.values() if origin and origin[0] == line and env.kind != Kind.TAG]
    places = [e["where"] for e in book.get("effects", {}).values() if e["status"] == "done"]
    places += [[n, step] for done in book.get("done", {}).values() for _, n, step in done]
    return {step for n, step in places if n == line and left and step > min(left)}
