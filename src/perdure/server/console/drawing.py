"""Where lines, bars and dots go. Pure: pictures are drawn by the templates, in parts of a hundred and in pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.server.console.session_past import StepLine

LANE = 26
"""Pixels between two lanes."""
MOST_LANES = 12


class Line(NamedTuple):
    """One line of checkpoints as the store knows it."""

    number: int
    name: str
    """Its branch when it is that branch's newest line; "" when it was left behind."""
    first: int
    last: int
    origin: tuple[int, int] | None
    """The line and step it starts from."""


class Lane(NamedTuple):
    """One line as it is drawn."""

    name: str
    x1: float
    x2: float
    y: int
    join: int | None
    """The height of the line it starts from."""
    last: int
    chosen: bool
    label_at: float
    label_end: bool
    """Whether the label ends there instead of beginning."""


class Mark(NamedTuple):
    """A tag."""

    name: str
    step: int
    x: float
    y: int


class Graph(NamedTuple):
    """A picture of branches."""

    lanes: list[Lane]
    marks: list[Mark]
    height: int
    left_out: int
    low: int
    high: int


def graph_of(lines: Sequence[Line], tags: Sequence[tuple[str, int, int]], chosen: str) -> Graph:
    """Lanes for lines, the oldest on top; tags are (name, line, step).

    >>> g = graph_of([Line(0, "main", 1, 5, None), Line(1, "try", 3, 4, (0, 2))], [("half", 0, 3)], "try")
    >>> [(lane.name, lane.x1, lane.x2, lane.y, lane.join) for lane in g.lanes]
    [('main', 0.0, 100.0, 20, None), ('try', 25.0, 75.0, 46, 20)]
    >>> g.marks
    [Mark(name='half', step=3, x=50.0, y=20)]
    """
    high = max((line.last for line in lines), default=1)
    kept = _kept(lines, chosen)
    place = {line.number: 20 + LANE * i for i, line in enumerate(kept)}

    def x(step: int) -> float:
        return round((step - 1) / (high - 1) * 100, 3) if high > 1 else 0.0

    lanes: list[Lane] = []
    for line in kept:
        begin = line.origin[1] if line.origin else line.first
        join = place.get(line.origin[0]) if line.origin else None
        x1, x2 = x(begin), x(line.last)
        far = x1 > 60
        lanes.append(
            Lane(line.name, x1, x2, place[line.number], join, line.last, line.name == chosen, x2 if far else x1, far)
        )
    marks = [Mark(name, step, x(step), place[line]) for name, line, step in tags if line in place]
    return Graph(lanes, marks, 20 + LANE * len(kept), len(lines) - len(kept), 1, high)


def _kept(lines: Sequence[Line], chosen: str) -> list[Line]:
    """As many lines as can be shown: those the chosen one stands on, then the newest."""
    if len(lines) <= MOST_LANES:
        return sorted(lines)
    by_number = {line.number: line for line in lines}
    keep: dict[int, Line] = {}
    at = next((line for line in lines if line.name == chosen), None)
    while at is not None and at.number not in keep:
        keep[at.number] = at
        at = by_number.get(at.origin[0]) if at.origin else None
    for line in sorted(lines, key=lambda one: (not one.name, -one.number)):
        if len(keep) >= MOST_LANES:
            break
        keep[line.number] = line
    return sorted(keep.values())


class Bar(NamedTuple):
    """One step of the chart."""

    line: StepLine
    x: float
    width: float
    input: float
    output: float
    """Heights."""


class Chart(NamedTuple):
    """Tokens by step, and what they cost."""

    bars: list[Bar]
    height: int
    most: int
    input: int
    output: int
    cost: float


def chart_of(steps: Sequence[StepLine], slots: int, height: int = 56) -> Chart:
    """Bars for steps, oldest first; ``slots`` is how many have room."""
    ordered = sorted(steps)
    most = max((s.tokens for s in ordered), default=0)
    if not most:
        # Only ticks.
        height = 14
    width = 100 / max(slots, 1)
    low = ordered[0].step if ordered else 1
    first = (low - 1) // slots * slots + 1 if slots else 1
    bars: list[Bar] = []
    for s in ordered:
        share = (height - 6) / most if most else 0
        x = round((s.step - first) * width, 3)
        bars.append(Bar(s, x, round(width * 0.72, 3), round(s.input * share, 1), round(s.output * share, 1)))
    return Chart(
        bars, height, most, sum(s.input for s in ordered), sum(s.output for s in ordered), sum(s.cost for s in ordered)
    )


class Curve(NamedTuple):
    """Measurements over time as one line."""

    points: str
    area: str
    most: float
    last: float


def curve_of(values: Sequence[float], width: int = 300, height: int = 60) -> Curve:
    """A line through values at equal distances, newest on the right.

    >>> curve_of([0, 2, 1], 100, 10).points
    '0.0,9.0 50.0,1.0 100.0,5.0'
    """
    values = [*values, *values] if len(values) == 1 else values
    most = max(values, default=0) or 1
    apart = width / max(len(values) - 1, 1)
    spots = [(round(i * apart, 1), round(height - 1 - v / most * (height - 2), 1)) for i, v in enumerate(values)]
    points = " ".join(f"{a},{b}" for a, b in spots)
    area = f"0,{height} {points} {spots[-1][0]},{height}" if spots else ""
    return Curve(points, area, max(values, default=0), values[-1] if values else 0)
