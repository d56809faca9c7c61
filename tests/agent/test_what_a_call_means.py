"""The table of what an exception, a lost answer and an end mean for a call, every cell of it, through every door.

The rows are what happened, the columns what the tool declares, as in docs/explanation/effects.md.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from perdure import ModelRetry, NotDone, ToolError, errors
from tests.doors import DECLARED, DOORS, Door, World

if TYPE_CHECKING:
    from collections.abc import Iterator


class Cell(NamedTuple):
    """What came of the calls, in words, how often the tool was run, and under how many ids."""

    words: list[str]
    made: int
    ids: int = 1


class Row(NamedTuple):
    """What happened: alternatives that mean the same, for how many equal calls, and the cells."""

    cases: tuple[Any, ...]
    cells: dict[str, Cell]
    calls: int = 1
    times: int = 1
    """How often in a row it happens."""


class Answered(Exception):
    """As an HTTP client raises it."""

    def __init__(self, status: int) -> None:
        self.status_code = status
        super().__init__(f"HTTP {status}")


class Status:
    """As gRPC has it."""

    name = "UNAVAILABLE"


class RpcError(Exception):
    """As gRPC raises it."""

    __module__ = "grpc"

    def code(self) -> Any:
        return Status


def caused(by: BaseException) -> BaseException:
    outer = RuntimeError("the provider could not be asked")
    outer.__cause__ = by
    return outer


def within(by: BaseException) -> BaseException:
    """As it is raised while another one is handled."""
    outer = RuntimeError("and then something else went wrong")
    outer.__context__ = by
    return outer


NOTHING_HAPPENED = (NotDone("no"), ToolError("no"), ModelRetry("ask otherwise"))
LOST = (
    TimeoutError(), ConnectionResetError(), BrokenPipeError(), Answered(503), Answered(408), RpcError("UNAVAILABLE"),
    caused(TimeoutError()), within(TimeoutError()), asyncio.CancelledError(),
    ExceptionGroup("several", [ValueError(), ConnectionAbortedError()]),
)  # fmt: skip
UNREACHED = (ConnectionRefusedError(), socket.gaierror(-2, "unknown"), OSError(113, "no route to host"))
OWN = (
    errors.LeaseLost("x"), errors.OutcomeUnknown("x"), errors.Unavailable("x"), errors.Busy("s", "somebody", 1),
)  # fmt: skip
PARKED = Cell(["parked"], 1)
RAISED = Cell(["raised"], 1)
ROWS = {
    "it says that nothing happened": Row(NOTHING_HAPPENED, dict.fromkeys(DECLARED, Cell(["failed"], 1))),
    "any other exception": Row(
        (KeyError("id"), Answered(404), errors.InvalidInput("x")),
        {**dict.fromkeys(DECLARED, RAISED), "read": Cell(["failed"], 1)},
    ),
    "and the identical call again": Row(
        (KeyError("id"),),
        {
            "read": Cell(["failed", "paid"], 2, 2),
            "retry": Cell(["raised", "paid"], 2),
            "function": Cell(["raised", "parked"], 1),
            "ask": Cell(["raised", "asks"], 1),
            "report": Cell(["raised", "failed"], 1),
        },
        calls=2,
    ),
    "the answer was lost": Row(
        LOST,
        {
            "read": Cell(["paid"], 2),
            "retry": Cell(["paid"], 2),
            "function": PARKED,
            "ask": PARKED,
            "report": Cell(["unknown"], 1),
        },
    ),
    "the answer was lost three times": Row(
        LOST,
        {
            "read": Cell(["failed"], 3),
            "retry": Cell(["paid"], 4),
            "function": PARKED,
            "ask": PARKED,
            "report": Cell(["unknown"], 1),
        },
        times=3,
    ),
    "nobody was reached": Row(
        UNREACHED,
        {
            "read": Cell(["paid"], 2),
            "retry": Cell(["paid"], 2),
            "function": RAISED,
            "ask": RAISED,
            "report": RAISED,
        },
    ),
}
PAUSES = (1000, 2000, 4000)
"""Ms between attempts."""
RESUMED = {"read": "paid", "retry": "paid", "function": "parked", "ask": "parked", "report": "unknown"}
"""What whoever goes on finds of a call of which nothing was written."""


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Any:
    door = Door(request.param)
    yield door
    door.close()


def cells() -> Iterator[Any]:
    for name, row in ROWS.items():
        for declared, cell in row.cells.items():
            for error in row.cases:
                yield pytest.param(row, declared, error, cell, id=f"{name}-{declared}-{error!r}")


@pytest.mark.parametrize(("row", "declared", "error", "cell"), list(cells()))
def test_a_cell(door: Door, row: Row, declared: str, error: BaseException, cell: Cell) -> None:
    world = World(*[error] * row.times, declared=declared)
    before = door.clock.wall()
    assert door.call(world, row.calls) == cell.words
    assert len(world.ids) == cell.made
    assert len(set(world.ids)) <= cell.ids
    if row.calls == 1:
        assert door.clock.wall() - before == sum(PAUSES[: cell.made - 1])
    is_asked = declared == "function" and cell.words != ["failed"]
    assert world.asked_about == is_asked * row.calls


@pytest.mark.parametrize("declared", DECLARED)
def test_bad_arguments_are_refused_before_anything_happens(door: Door, declared: str) -> None:
    world = World(declared=declared)
    assert door.call(world, amount="many") == ["failed"]
    assert world.ids == []
    assert door.effects() == []


def unwritten(door: Door, world: World, declared: str) -> None:
    """Nothing was written of the outcome of a call, and whoever goes on finds what that means."""
    if door.is_agent or declared != "read":
        assert [effect["status"] for effect in door.effects()] == ["started"]
    assert door.call(world) == [RESUMED[declared]]
    assert len(world.ids) == 1 + (RESUMED[declared] == "paid")
    assert len(set(world.ids)) == 1


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("declared", DECLARED)
def test_of_an_end_nothing_is_written(door: Door, declared: str, end: type[BaseException]) -> None:
    world = World(end(), declared=declared)
    door.ends(world, end)
    unwritten(door, world, declared)


def test_an_end_counts_as_a_lost_answer_of_a_read_wherever_it_is_written_that_it_began(door: Door) -> None:
    world = World(*[KeyboardInterrupt()] * 3, declared="read")
    for _ in range(3):
        door.ends(world, KeyboardInterrupt)
    assert door.call(world) == (["failed"] if door.is_agent else ["paid"])
    assert len(world.ids) == (3 if door.is_agent else 4)
    if door.is_agent:
        assert "its answer was lost 3 times" in door.told()[-1]


@pytest.mark.parametrize("name", [name for name in DOORS if name != "session-sync"])
@pytest.mark.parametrize("declared", DECLARED)
def test_of_the_end_of_our_own_task_nothing_is_written(name: str, declared: str) -> None:
    door = Door(name)
    world = World("for ever", declared=declared)
    door.cancelled(world)
    unwritten(door, world, declared)
    door.close()


@pytest.mark.parametrize("error", OWN, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("declared", DECLARED)
def test_errors_of_our_own_store_say_nothing_of_the_call(door: Door, declared: str, error: Exception) -> None:
    world = World(error, declared=declared)
    assert door.call(world) == [type(error).__name__]
    unwritten(door, world, declared)
