"""Results that are not what their tools declare: kept as they are, and told by whatever people look at a call with."""

from __future__ import annotations

import asyncio
import enum
import logging
import threading
import time
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Literal

import pytest

import perdure
from perdure import Done, Later, tool
from perdure.state.document import plain
from perdure.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Receipt:
    """What was paid."""

    number: int


class Colour(enum.Enum):
    """One alone."""

    RED = "red"


MISFITS: list[tuple[Any, Any, Any, str]] = [
    (int, "abc", "abc", "Expected `int`, got `str`"),
    (list[int], [1, "x"], [1, "x"], r"Expected `int`, got `str` - at `$[1]`"),
    (Literal["a", "b"], "c", "c", "the value is one of 'a', 'b'"),
    (Receipt, {"number": "nope"}, {"number": "nope"}, "Expected `int`, got `str` - at `$.number`"),
    (Receipt, Receipt("nope"), {"number": "nope"}, "Expected `int`, got `str` - at `$.number`"),  # type: ignore[arg-type]
    (Receipt, None, None, "Expected `object`, got `null`"),
    (date, "tomorrow", "tomorrow", "Invalid RFC3339 encoded date"),
    (Colour, "a secret", "a secret", "the value is one of 'red'"),
    (None, 5, 5, "Expected `null`, got `int`"),
]
NAMES = ["int", "list", "literal", "dataclass", "made wrong", "nothing", "date", "enum", "None"]
every = pytest.mark.parametrize(("kind", "value", "kept", "said"), MISFITS, ids=NAMES)


def giving(kind: Any, value: Any, made: list[Any], **declared: Any) -> Any:
    """A tool that declares one thing and returns another."""

    def give() -> Any:
        made.append(value)
        return value

    give.__annotations__ = {"return": kind}
    return tool(give, **declared)


def told(log: pytest.LogCaptureFixture) -> list[str]:
    """What whoever reads logs is told, since he was asked last."""
    found = [r.getMessage() for r in log.records if r.levelno == logging.WARNING]
    log.clear()
    return found


@every
def test_it_is_kept_as_it_is_and_told(
    url: str, caplog: pytest.LogCaptureFixture, kind: Any, value: Any, kept: Any, said: str
) -> None:
    made: list[Any] = []
    give = giving(kind, value, made)
    with perdure.open(url) as db:
        with db.session("s") as s:
            assert s.call(give) == kept
            (record,) = s.effects()
            assert (record["status"], record["result"], record["misfit"]) == ("done", kept, said)
            (line,) = told(caplog)
            assert f"give was done (effect {record['id']})" in line
            assert said in line
            assert "a secret" not in line
            assert db.history("s")[0].more["misfit"] == said
        with db.session("s") as s:
            assert s.call(give) == kept
    assert len(made) == 1, "a call that was made is never made again for that"


@every
def test_an_awaited_one_and_what_is_kept_of_reads_is_told_alike(
    caplog: pytest.LogCaptureFixture, kind: Any, value: Any, kept: Any, said: str
) -> None:
    made: list[Any] = []

    async def work() -> None:
        async with perdure.open_async("memory://") as db:
            async with db.session("s") as s:
                assert await s.call(giving(kind, value, made)) == kept
                assert await s.call(giving(kind, value, made, name="look", read=True)) == kept
                assert len(told(caplog)) == 2
                read = giving(kind, value, made, name="read", read=True, cache="1h", cache_scope="shared")
                assert await s.call(read) == kept
                assert (await db.history("s"))[0].more["misfit"] == said
                assert len(told(caplog)) == 1
            async with db.session("other") as s:
                assert await s.call(read) == kept
                bought = giving(kind, value, made, name="bought", if_unsure="retry", cache="1h", cache_scope="shared")
                assert await s.call(bought) == kept
            async with db.session("third") as s:
                assert await s.call(bought) == kept
                assert (await db.history("third"))[0].more["misfit"] == said, "what another session has paid for, too"

    asyncio.run(work())
    assert len(made) == 4


def test_what_fits_once_it_is_read_as_its_type_says_so_is_recorded_like_that(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with perdure.open(url) as db, db.session("s") as s:
        assert s.call(giving(int, "5", [])) == 5
        assert s.call(giving(Receipt, {"number": "5"}, [], name="pay")) == Receipt(5)
        assert s.call(giving(float, 3, [], name="whole")) == 3
        assert s.call(giving(int, "5", [], name="look", read=True)) == 5
        assert s.call(giving(float, "nan", [], name="odd")) == "nan"
        assert [plain(r["result"]) for r in s.effects()] == [5, {"number": 5}, 3, "nan"]
    assert len(told(caplog)) == 1


def test_what_is_not_json_is_told_as_that_alone(url: str) -> None:
    with perdure.open(url) as db, db.session("s") as s:
        with pytest.raises(perdure.NotJson, match="its result is lost"):
            s.call(giving(int, object(), []))
        assert "misfit" not in s.effects()[0]


def test_what_comes_later_is_told_alike(url: str, caplog: pytest.LogCaptureFixture) -> None:
    @tool(poll=lambda handle: Done({"number": handle}))
    def order() -> Receipt | Later:
        return Later("nope")

    @tool(if_unsure=lambda: Done("abc"))
    def pay() -> int:
        raise TimeoutError

    @tool
    def ship() -> Receipt | Later:
        return Later()

    with perdure.open(url) as db, db.session("s") as s:
        assert s.call(order) == {"number": "nope"}
        assert s.call(pay) == "abc"
        assert [r["misfit"] for r in s.effects()] == [
            "Expected `int`, got `str` - at `$.number`",
            "Expected `int`, got `str`",
        ]
        assert len(told(caplog)) == 2
        with pytest.raises(perdure.ResultPending):
            s.call(ship)
        effect = s.effects()[-1]["id"]
        with pytest.raises(perdure.InvalidInput, match="number of the result of ship must be integer"):
            db.post_outcome("s", effect, {"number": "nope"})
        db.post_outcome("s", effect, {"number": 7})
        assert s.call(ship) == Receipt(7)
    assert told(caplog) == []


def test_what_a_tool_returns_after_its_time_is_told_when_it_is_taken_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    may_end = threading.Event()

    @tool(timeout=0.05)
    def slow() -> int:
        may_end.wait(20)
        return "abc"  # type: ignore[return-value]

    with perdure.open(f"sqlite:///{tmp_path}/a.db") as db, db.session("s") as s:
        with pytest.raises(perdure.InDoubt):
            s.call(slow)
        may_end.set()
        until = time.monotonic() + 20
        while not db.look("s").pending:
            assert time.monotonic() < until
            time.sleep(0.01)
        caplog.clear()
        assert s.call(slow) == "abc"
        assert s.effects()[0]["misfit"] == "Expected `int`, got `str`"
    assert len(told(caplog)) == 1


def test_what_one_says_of_a_call_that_returns_nothing_is_no_misfit(url: str, caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def tell() -> None:
        raise TimeoutError

    with perdure.open(url, clock=FakeClock()) as db, db.session("s") as s:
        with pytest.raises(perdure.InDoubt):
            s.call(tell)
        db.post_outcome("s", s.effects()[0]["id"], "I saw the letter")
        assert s.call(tell) == "I saw the letter"
        assert "misfit" not in s.effects()[0]


def test_a_run_that_is_resumed_gets_what_it_got(tmp_path: Path) -> None:
    made: list[Any] = []
    give = giving(Receipt, Receipt("nope"), made)  # type: ignore[arg-type]
    got: list[Any] = []

    def plan(s: Any, *, dies: bool) -> None:
        got.append(s.call(give))
        if dies:
            raise KeyboardInterrupt

    url = f"sqlite:///{tmp_path}/a.db"
    with perdure.open(url) as db, db.session("s") as s, pytest.raises(KeyboardInterrupt):
        s.run("plan", plan, dies=True)
    with perdure.open(url) as db, db.session("s") as s:
        s.run("plan", plan, dies=False)
    assert got == [{"number": "nope"}] * 2
    assert len(made) == 1


@pytest.mark.parametrize(("value", "kept"), [(Done("paid"), ["paid"]), (perdure.Unknown(), [""])])
def test_an_answer_of_a_function_that_finds_out_is_no_result_of_a_tool(
    db: perdure.Database, value: Any, kept: Any
) -> None:
    @tool
    def pay() -> Any:
        return value

    with db.session("s") as s:
        assert s.call(pay) == kept
        (record,) = s.effects()
        assert record["misfit"].startswith(f"perdure.{type(value).__name__} is an answer of if_unsure and poll")
