"""The picture fits the terminal it is shown in, at the beginning, in the middle and at the end of a night."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from perdure.demo.chaos import EVICT, FREEZE, KILL, Event, Hit
from perdure.demo.run import Night, Wish, opened
from perdure.demo.view import View, short
from tests.demo.standing_in import commit

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def night() -> Iterator[Night]:
    with opened(Wish(sessions=20, kills=8, seed=5)) as night:
        yield night


def shown(view: View, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(view.render(width, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


SIZES = [(60, 20), (80, 24), (120, 40), (40, 10)]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_picture_of_a_night_that_has_not_begun_fits(night: Night, width: int, height: int):
    lines = shown(View(night), width, height)
    assert all(len(line) <= width for line in lines)
    assert "Black Friday" in lines[0]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_picture_of_a_busy_night_fits(night: Night, width: int, height: int):
    view = View(night)
    in_the_middle(night)
    lines = shown(view, width, height)
    assert all(len(line) <= width for line in lines)
    if height >= 20:
        assert len(lines) < height


def test_the_picture_tells_what_matters(night: Night):
    view = View(night)
    in_the_middle(night)
    text = "\n".join(shown(view, 100, 40))
    for part in ("5 finished", "SIGKILL 3/8", "1 s lease", "model × 1", "seed 5", "taken up by others", "median 1.3 s"):
        assert part in text, part
    assert "SIGSTOP worker 2 with 7 conversations in mid-step" in text
    assert "12.3 k" in text


def test_one_line_tells_the_same(night: Night):
    in_the_middle(night)
    line = View(night).plain()
    assert "5 of 20 conversations finished" in line
    assert "3 killed, 1 evicted, 1 frozen" in line
    assert "\n" not in line


def in_the_middle(night: Night) -> None:
    """Let a night look as if it were half over."""
    night.phase = "the night"
    crowd, chaos = night.crowd, night.chaos
    crowd.finished, crowd.open, crowd.answered, crowd.commits = 5, 9, 100, 12_345
    session = next(iter(crowd.talks))
    crowd.asking.add(session)
    crowd.talks[session].commits.append(commit(6_300, 7, "idle"))
    chaos.struck.update({KILL: 3, EVICT: 1, FREEZE: 1})
    chaos.hits.append(Hit(KILL, session, 5_000, 5_010, 6, 12_300))
    kinds = (KILL, EVICT, FREEZE)
    chaos.events.extend(Event(kinds[n % 3], n, 5 + n, 10.0 * n, "as told") for n in range(30))
    chaos.events.append(Event(FREEZE, 2, 7, 300.0, "woken after 2.0 s"))


def test_numbers_are_short():
    assert [short(n) for n in (0, 9_999, 10_000, 1_500_000)] == ["0", "9,999", "10.0 k", "1.5 M"]
