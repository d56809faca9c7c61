"""What an exception, a lost answer or an end means for a call is what its tool declares: every cell of that table.

The same cells are gone through by an agent in ``tests/agent/test_tool_exceptions.py``.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Done, EffectFailed, EffectRaised, InDoubt, ModelRetry, NotDone, ToolError, Unknown, errors, tool
from perdure.session.tool_exceptions import Meaning, described, meaning
from perdure.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

SAYS_NOTHING_HAPPENED = (NotDone("no"), ToolError("no"), ModelRetry("ask otherwise"))
OWN = (
    errors.LeaseLost("x"), errors.OutcomeUnknown("x"), errors.Unavailable("x"), errors.Busy("s", "somebody", 1),
)  # fmt: skip


class Answered(Exception):
    """As an HTTP client raises it."""

    def __init__(self, status: int) -> None:
        self.status_code = status
        super().__init__(f"HTTP {status}")


def _caused(by: BaseException) -> BaseException:
    outer = RuntimeError("the provider could not be asked")
    outer.__cause__ = by
    return outer


LOST = (
    TimeoutError(), ConnectionResetError(), BrokenPipeError(), Answered(503), Answered(408), _caused(TimeoutError()),
    ExceptionGroup("several", [ValueError(), ConnectionAbortedError()]), asyncio.CancelledError(),
)  # fmt: skip
DECLARED: dict[str, dict[str, Any]] = {
    "read": {"read": True},
    "retry": {"if_unsure": "retry", "key_valid_for": "24h"},
    "hasty": {"if_unsure": "retry", "key_valid_for": "10m"},
    "function": {},
    "ask": {},
    "report": {"if_unsure": "report"},
}


_NUMBERS = count()


class World:
    """A provider whose answers can be planned: what a call raises or returns, by turns."""

    def __init__(self, *plan: Any, declared: str, finds: Any = None) -> None:
        self._plan = list(plan)
        self.ids: list[str] = []
        self.asked_about = 0
        options = dict(DECLARED[declared])
        if declared == "function":
            options["if_unsure"] = self._find_out
        self._finds = finds if finds is not None else Unknown()

        @tool(**options)
        def pay(amount: int, ctx: perdure.Context) -> str:
            return self._pay(ctx)

        @tool(name="pay", **options)
        async def pay_async(amount: int, ctx: perdure.Context) -> str:
            return self._pay(ctx)

        self.tools = {"sync": pay, "async": pay_async}

    def _pay(self, ctx: perdure.Context) -> str:
        self.ids.append(ctx.effect_id)
        next = self._plan.pop(0) if self._plan else "paid"
        if isinstance(next, BaseException):
            raise next
        return next

    def _find_out(self, amount: int) -> Any:
        self.asked_about += 1
        return self._finds


class Desk:
    """A session in memory through which calls are made, one way or the other; what came of each, in a word."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.clock = FakeClock()
        self.url = f"memory://tools-{next(_NUMBERS)}"
        self._keep = perdure.open(self.url, clock=self.clock, maintain=False)

    def call(self, world: World, times: int = 1) -> list[str]:
        if self.way == "sync":
            with perdure.open(self.url, clock=self.clock, maintain=False) as db, db.session("s") as s:
                return [_told(lambda: s.call(world.tools["sync"], 5)) for _ in range(times)]
        return asyncio.run(self._call(world, times))

    async def _call(self, world: World, times: int) -> list[str]:
        found: list[str] = []
        async with perdure.open_async(self.url, clock=self.clock, maintain=False) as db, db.session("s") as s:
            for _ in range(times):
                try:
                    result = await s.call(world.tools["async"], 5)
                    found.append("unknown" if isinstance(result, Unknown) else result)
                except (Exception, asyncio.CancelledError) as e:
                    found.append(_word(e))
        return found

    def effects(self) -> list[dict[str, Any]]:
        return list(self._keep.read("s").book.get("effects", {}).plain().values())

    @property
    def status(self) -> str:
        return self._keep.look("s").status

    def close(self) -> None:
        self._keep.close()


def _told(call: Callable[[], Any]) -> str:
    try:
        result = call()
    except (Exception, asyncio.CancelledError) as e:
        return _word(e)
    return "unknown" if isinstance(result, Unknown) else result


def _word(error: BaseException) -> str:
    names = {
        EffectFailed: "failed", EffectRaised: "raised", InDoubt: "parked", perdure.ApprovalNeeded: "asks",
    }  # fmt: skip
    return names.get(type(error), type(error).__name__)


@pytest.fixture(params=["sync", "async"])
def desk(request: pytest.FixtureRequest) -> Any:
    desk = Desk(request.param)
    yield desk
    desk.close()


# -- what the tool says on purpose ---------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", ["retry", "function", "ask", "report"])
@pytest.mark.parametrize("error", SAYS_NOTHING_HAPPENED, ids=repr)
def test_what_says_that_nothing_happened_has_failed(desk: Desk, declared: str, error: Exception) -> None:
    world = World(error, declared=declared)
    assert desk.call(world) == ["failed"]
    assert len(world.ids) == 1
    assert desk.status == "idle"


def test_a_read_gives_its_own_exception(desk: Desk) -> None:
    assert desk.call(World(ToolError("no"), declared="read")) == ["ToolError"]
    assert desk.call(World(KeyError("id"), declared="read")) == ["KeyError"]


def test_bad_arguments_are_refused_before_anything_is_written() -> None:
    world = World(declared="ask")
    with perdure.open("memory://") as db, db.session("s") as s:
        with pytest.raises(errors.InvalidInput):
            s.call(world.tools["sync"], 5, 6)
        assert s.head is None
    assert world.ids == []


# -- any other exception -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", ["retry", "ask", "report", "function"])
def test_any_other_exception_is_raised_and_told(desk: Desk, declared: str) -> None:
    world = World(KeyError("id"), declared=declared)
    assert desk.call(world) == ["raised"]
    assert world.asked_about == (declared == "function")
    (effect,) = desk.effects()
    assert effect["status"] == "raised"
    assert effect["raised"]["class"] == "KeyError"
    assert effect["raised"]["message"] == "'id'"
    assert "in _pay" in effect["raised"]["traceback"]
    assert "session/effects.py" not in effect["raised"]["traceback"]
    assert desk.status == "idle", "nobody is asked about what nobody waits for"


def test_who_can_be_asked_about_it_is_asked(desk: Desk) -> None:
    assert desk.call(World(KeyError("id"), declared="function", finds=Done("paid before"))) == ["paid before"]


def test_what_certainly_did_not_happen_has_failed(desk: Desk) -> None:
    assert desk.call(World(KeyError("id"), declared="function", finds=NotDone)) == ["failed"]


def test_the_cause_is_the_exception_itself() -> None:
    world = World(KeyError("id"), declared="ask")
    with perdure.open("memory://") as db, db.session("s") as s, pytest.raises(EffectRaised) as raised:
        s.call(world.tools["sync"], 5)
    assert isinstance(raised.value.__cause__, KeyError)
    assert raised.value.error["class"] == "KeyError"
    assert "What it had changed by then is not known" in str(raised.value)


REPEATED = {
    "retry": (["raised", "paid"], 1),
    "ask": (["raised", "asks"], 1),
    "report": (["raised", "failed"], 1),
    "function": (["raised", "parked"], 1),
}


@pytest.mark.parametrize("declared", REPEATED)
def test_what_a_repetition_of_a_call_that_raised_means(desk: Desk, declared: str) -> None:
    world = World(KeyError("id"), declared=declared)
    wanted, ids = REPEATED[declared]
    assert desk.call(world, 2) == wanted
    assert len(set(world.ids)) == ids, "never under a new id unasked"
    assert len(world.ids) == wanted.count("paid") + 1


def test_the_same_in_another_process_that_resumes(desk: Desk) -> None:
    world = World(KeyError("id"), declared="retry")
    assert desk.call(world) + desk.call(world) == ["raised", "paid"]
    assert len(set(world.ids)) == 1


def test_a_repetition_asks_the_world_first(desk: Desk) -> None:
    world = World(KeyError("id"), declared="function")
    assert desk.call(world) == ["raised"]
    world._finds = NotDone
    assert desk.call(world) == ["paid"]
    assert len(world.ids) == 2
    assert world.asked_about == 2


def test_a_repetition_after_the_key_is_forgotten_asks_a_person(desk: Desk) -> None:
    world = World(KeyError("id"), declared="retry")
    assert desk.call(world) == ["raised"]
    desk.clock.advance(25 * 3600 * 1000)
    assert desk.call(world) == ["asks"]


def test_who_agreed_to_a_repetition_has_it_made() -> None:
    world = World(KeyError("id"), declared="ask")
    with perdure.open("memory://") as db, db.session("s") as s:
        assert _told(lambda: s.call(world.tools["sync"], 5)) == "raised"
        with pytest.raises(perdure.ApprovalNeeded) as needed:
            s.call(world.tools["sync"], 5)
        assert "the same call ended with KeyError" in needed.value.approval.because
        db.approve("s", needed.value.approval, by="ana")
        assert s.call(world.tools["sync"], 5) == "paid"
        assert s.call(world.tools["sync"], 5) == "paid"
    assert len(world.ids) == 2


def test_in_a_resumed_run_the_record_speaks(desk: Desk) -> None:
    world = World(KeyError("id"), declared="ask")

    def work(s: Any) -> str:
        first = _told(lambda: s.call(world.tools["sync"], 5))
        if first != "raised":
            return first
        raise SystemExit

    with perdure.open(desk.url, clock=desk.clock, maintain=False) as db:
        for _ in range(2):
            with db.session("s") as s, pytest.raises(SystemExit):
                s.run("r", work)
    assert len(world.ids) == 1


# -- lost answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", LOST, ids=repr)
@pytest.mark.parametrize(
    ("declared", "wanted", "calls"),
    [("retry", "paid", 2), ("function", "parked", 1), ("ask", "parked", 1), ("report", "unknown", 1)],
)
def test_a_lost_answer(desk: Desk, declared: str, wanted: str, calls: int, error: BaseException) -> None:
    world = World(error, declared=declared)
    assert desk.call(world) == [wanted]
    assert len(world.ids) == calls
    assert len(set(world.ids)) == 1


@pytest.mark.parametrize("error", LOST, ids=repr)
def test_a_read_whose_answer_is_lost_is_tried_three_times(desk: Desk, error: BaseException) -> None:
    world = World(error, error, declared="read")
    assert desk.call(world) == ["paid"]
    before = desk.clock.wall()
    world = World(error, error, error, declared="read")
    assert desk.call(world) == [type(error).__name__]
    assert len(world.ids) == 3
    assert desk.clock.wall() - before == 3000


@pytest.mark.parametrize(
    ("finds", "wanted", "calls"), [(Done("found"), "found", 1), (NotDone, "paid", 2), (Unknown(), "parked", 1)]
)
def test_a_lost_answer_is_asked_about(desk: Desk, finds: Any, wanted: str, calls: int) -> None:
    world = World(TimeoutError(), declared="function", finds=finds)
    assert desk.call(world) == [wanted]
    assert len(world.ids) == calls


def test_an_outage_is_waited_for_under_the_same_id(desk: Desk) -> None:
    world = World(*[TimeoutError()] * 10, declared="retry")
    before = desk.clock.wall()
    assert desk.call(world) == ["paid"]
    assert len(world.ids) == 11
    assert len(set(world.ids)) == 1
    assert desk.clock.wall() - before == (1 + 2 + 4 + 8 + 16 + 32 + 60 * 4) * 1000


def test_an_outage_longer_than_the_key_is_valid_asks_a_person(desk: Desk) -> None:
    world = World(*[TimeoutError()] * 500, declared="hasty")
    assert desk.call(world) == ["parked"]
    assert len(set(world.ids)) == 1
    assert desk.status == "in_doubt"


@pytest.mark.parametrize(("declared", "wanted"), [("retry", "paid"), ("ask", "raised"), ("report", "raised")])
def test_who_cannot_be_reached_was_asked_for_nothing(desk: Desk, declared: str, wanted: str) -> None:
    world = World(ConnectionRefusedError(), declared=declared)
    assert desk.call(world) == [wanted]


def test_a_tool_names_what_else_means_a_lost_answer() -> None:
    class Vanished(Exception):
        pass

    @tool(lost=Vanished)
    def pay(amount: int) -> None:
        raise Vanished

    with perdure.open("memory://") as db, db.session("s") as s, pytest.raises(InDoubt):
        s.call(pay, 5)


# -- ends ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize(
    ("declared", "wanted"),
    [("read", "paid"), ("retry", "paid"), ("function", "parked"), ("ask", "parked"), ("report", "unknown")],
)
def test_of_an_end_nothing_is_written_and_who_resumes_finds_a_lost_answer(
    declared: str, wanted: str, end: type[BaseException]
) -> None:
    desk = Desk("sync")
    world = World(end(), declared=declared)
    with perdure.open(desk.url, clock=desk.clock, maintain=False) as db, db.session("s") as s, pytest.raises(end):
        s.call(world.tools["sync"], 5)
    if declared != "read":
        assert [effect["status"] for effect in desk.effects()] == ["started"]
    assert desk.call(world) == [wanted]
    assert len(set(world.ids) - {""}) <= 1
    desk.close()


def test_the_end_of_our_own_task_writes_nothing() -> None:
    asyncio.run(_cancelled())


async def _cancelled() -> None:
    inside = asyncio.Event()

    @tool
    async def pay() -> None:
        inside.set()
        await asyncio.sleep(3600)

    async with perdure.open_async("memory://") as db, db.session("s") as s:
        task = asyncio.create_task(s.call(pay))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [effect["status"] for effect in s.effects()] == ["started"]


@pytest.mark.parametrize("error", OWN, ids=repr)
@pytest.mark.parametrize("declared", ["retry", "function", "ask", "report"])
def test_errors_of_our_own_store_say_nothing_of_the_call(desk: Desk, declared: str, error: Exception) -> None:
    world = World(error, declared=declared)
    assert desk.call(world) == [type(error).__name__]
    assert [effect["status"] for effect in desk.effects()] == ["started"]


# -- threads that cannot be stopped --------------------------------------------------------------------------------


def test_a_tool_that_took_too_long_and_returns_late_settles_its_doubt() -> None:
    go_on, done = threading.Event(), threading.Event()

    @tool(timeout=0.05)
    def pay(amount: int) -> str:
        go_on.wait(30)
        try:
            return "paid"
        finally:
            done.set()

    with perdure.open("memory://late") as db, db.session("s") as s:
        assert _told(lambda: s.call(pay, 5)) == "parked"
        go_on.set()
        done.wait(30)
        for _ in range(1000):
            if db.kernel.store.inbox("s", 10):
                break
            threading.Event().wait(0.01)
        assert s.call(pay, 5) == "paid"


def test_there_is_no_second_attempt_while_the_first_lives() -> None:
    go_on = threading.Event()
    living: Counter[str] = Counter()
    most = 0

    @tool(timeout=0.05, if_unsure="retry")
    def pay(amount: int) -> str:
        nonlocal most
        living["now"] += 1
        living["all"] += 1
        most = max(most, living["now"])
        if living["all"] == 1:
            threading.Timer(0.5, go_on.set).start()
            go_on.wait(30)
        living["now"] -= 1
        return "paid"

    with perdure.open("memory://") as db, db.session("s") as s:
        assert s.call(pay, 5) == "paid"
    assert most == 1
    assert living["all"] == 1, "what it returned late was taken"


# -- what is kept of an exception ----------------------------------------------------------------------------------


def test_what_is_kept_is_bounded_and_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "a-key-of-the-shop")

    def fail() -> None:
        msg = "x" * 5000 + " a-key-of-the-shop https://ana:pass@host/ Bearer 0123456789abcdef"
        raise ValueError(msg[4500:])

    try:
        fail()
    except ValueError as e:
        told = described(e)
    assert told["class"] == "ValueError"
    for secret in ("a-key-of-the-shop", "ana:pass", "0123456789abcdef"):
        assert secret not in str(told)
    assert len(told["message"]) <= 1000
    assert "in fail" in told["traceback"]


def test_an_exception_whose_text_cannot_be_told_is_kept_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert described(Mute())["message"] == "(its text cannot be told: RuntimeError)"


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (Answered(404), Meaning.RAISED),
        (Answered(500), Meaning.LOST),
        (_caused(ConnectionRefusedError()), Meaning.UNREACHED),
        (_caused(_caused(errors.LeaseLost("x"))), Meaning.OURS),
        (OSError(113, "no route to host"), Meaning.UNREACHED),
        (ValueError(), Meaning.RAISED),
    ],
    ids=repr,
)
def test_what_exceptions_mean(error: BaseException, wanted: Meaning) -> None:
    assert meaning(error) is wanted


def test_a_chain_that_bites_its_tail_has_an_end() -> None:
    one, other = ValueError(), KeyError()
    one.__cause__, other.__cause__ = other, one
    assert meaning(one) is Meaning.RAISED
