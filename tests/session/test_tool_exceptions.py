"""What an exception, a lost answer or an end means for a call is what its tool declares: around that table.

The cells themselves are gone through, by sessions and agents, in ``tests/agent/test_what_a_call_means.py``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import http.client
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
from concurrent.futures import BrokenExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Done, EffectRaised, InDoubt, NotDone, ToolError, Unknown, errors, tool
from perdure.session.calls.late_returns import runs_on
from perdure.session.calls.retries import LONGEST_PAUSE, RETRY_FOR
from perdure.session.tools.exceptions import Meaning, described, meaning
from perdure.testing.clock import FakeClock
from tests.doors import LEASE, Door, World

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Answered(Exception):
    """As an HTTP client raises it."""

    def __init__(self, status: int) -> None:
        self.status_code = status
        super().__init__(f"HTTP {status}")


def _caused(by: BaseException) -> BaseException:
    outer = RuntimeError("the provider could not be asked")
    outer.__cause__ = by
    return outer


def _told(call: Callable[[], Any]) -> str:
    try:
        return call()
    except perdure.CallError as e:
        return {EffectRaised: "raised", InDoubt: "parked"}[type(e)]


@pytest.fixture(params=["session-sync", "session-async"])
def desk(request: pytest.FixtureRequest) -> Any:
    desk = Door(request.param)
    yield desk
    desk.close()


def test_a_read_gives_its_own_exception() -> None:
    world = World(ToolError("no"), KeyError("id"), declared="read")
    with perdure.open("memory://") as db, db.session("s") as s:
        with pytest.raises(ToolError):
            s.call(world.tools["sync"], 5)
        with pytest.raises(KeyError):
            s.call(world.tools["sync"], 5)


def test_bad_arguments_are_refused_before_anything_is_written() -> None:
    world = World(declared="ask")
    with perdure.open("memory://") as db, db.session("s") as s:
        with pytest.raises(errors.InvalidInput):
            s.call(world.tools["sync"], 5, 6)
        assert s.head is None


# -- any other exception -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", ["retry", "ask", "report", "function"])
def test_any_other_exception_is_raised_and_told(desk: Door, declared: str) -> None:
    world = World(KeyError("id"), declared=declared)
    assert desk.call(world) == ["raised"]
    assert world.asked_about == (declared == "function")
    (effect,) = desk.effects()
    assert effect["status"] == "raised"
    assert effect["raised"]["class"] == "KeyError"
    assert effect["raised"]["message"] == "'id'"
    assert "in _pay" in effect["raised"]["traceback"]
    assert "perdure/session/" not in effect["raised"]["traceback"]
    assert desk.status == "idle", "nobody is asked about what nobody waits for"


def test_who_can_be_asked_about_it_is_asked(desk: Door) -> None:
    assert desk.call(World(KeyError("id"), declared="function", finds=Done("paid before"))) == ["paid before"]


def test_what_certainly_did_not_happen_has_failed(desk: Door) -> None:
    assert desk.call(World(KeyError("id"), declared="function", finds=NotDone)) == ["failed"]


def test_the_cause_is_the_exception_itself() -> None:
    world = World(KeyError("id"), declared="ask")
    with perdure.open("memory://") as db, db.session("s") as s, pytest.raises(EffectRaised) as raised:
        s.call(world.tools["sync"], 5)
    assert isinstance(raised.value.__cause__, KeyError)
    assert raised.value.error["class"] == "KeyError"
    assert "What it had changed by then is not known" in str(raised.value)


def test_a_repetition_asks_the_world_first(desk: Door) -> None:
    world = World(KeyError("id"), declared="function")
    assert desk.call(world) == ["raised"]
    world.finds = NotDone
    assert desk.call(world) == ["paid"]
    assert len(world.ids) == 2
    assert world.asked_about == 2


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


def test_in_a_resumed_run_the_record_speaks(desk: Door) -> None:
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


@pytest.mark.parametrize(
    ("finds", "wanted", "calls"), [(Done("found"), "found", 1), (NotDone, "paid", 2), (Unknown(), "parked", 1)]
)
def test_a_lost_answer_is_asked_about(desk: Door, finds: Any, wanted: str, calls: int) -> None:
    world = World(TimeoutError(), declared="function", finds=finds)
    assert desk.call(world) == [wanted]
    assert len(world.ids) == calls


def test_an_outage_is_waited_for_under_the_same_id(desk: Door) -> None:
    world = World(*[TimeoutError()] * 10, declared="retry")
    before = desk.clock.wall()
    assert desk.call(world) == ["paid"]
    assert len(world.ids) == 11
    assert len(set(world.ids)) == 1
    assert desk.clock.wall() - before == (1 + 2 + 4 + 8 + 16 + 32 + 60 * 4) * 1000


@pytest.mark.parametrize("kind", ["session-sync", "session-async", "agent-sync"])
def test_what_is_found_not_to_have_happened_is_made_again_after_the_same_pauses(kind: str) -> None:
    desk, world = Door(kind), World(*[TimeoutError()] * 10, declared="function", finds=NotDone)
    before = desk.clock.wall()
    assert desk.call(world) == ["paid"]
    assert len(world.ids) == 11
    assert len(set(world.ids)) == 1
    assert desk.clock.wall() - before == (1 + 2 + 4 + 8 + 16 + 32 + 60 * 4) * 1000
    desk.close()


def test_so_is_it_for_a_day_and_then_a_person_is_asked(desk: Door) -> None:
    world = World(*[TimeoutError()] * 3000, declared="function", finds=NotDone)
    before = desk.clock.wall()
    assert desk.call(world) == ["parked"]
    assert desk.status == "in_doubt"
    made = len(world.ids)
    assert made < 1500
    assert abs(desk.clock.wall() - before - RETRY_FOR * 1000) <= LONGEST_PAUSE
    # Whoever calls again has it looked up; nothing but the lookup or a person can settle it.
    assert desk.call(world) == ["parked"]
    assert len(world.ids) == made


def test_what_arrives_during_the_pause_is_found(desk: Door) -> None:
    world = World(
        TimeoutError(), declared="function", finds=lambda: Done("found") if world.asked_about > 1 else NotDone
    )
    assert desk.call(world) == ["found"]
    assert len(world.ids) == 1


def test_the_pause_before_it_is_looked_up_again_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, world, pauses = (
        Door("session-sync"),
        World(*[TimeoutError()] * 3, declared="function", finds=NotDone),
        list[int](),
    )

    def sleep(ms: int) -> None:
        pauses.append(ms)
        if len(pauses) == 3:
            raise KeyboardInterrupt
        desk.clock.advance(ms)

    with monkeypatch.context() as patched:
        patched.setattr(desk.clock, "sleep", sleep)
        with pytest.raises(KeyboardInterrupt):
            desk.call(world)
    desk.clock.advance(LEASE)
    before = desk.clock.wall() - LEASE
    # The process died in the third pause.
    desk.clock.set_wall(before + 1000)
    assert desk.call(world) == ["paid"]
    assert pauses == [1000, 2000, 4000]
    assert desk.clock.wall() - before == 4000
    desk.close()


def test_an_outage_longer_than_the_key_is_valid_asks_a_person(desk: Door) -> None:
    world = World(*[TimeoutError()] * 500, declared="retry", key_valid_for="10m")
    assert desk.call(world) == ["parked"]
    assert len(set(world.ids)) == 1
    assert desk.status == "in_doubt"


def test_who_says_that_it_is_to_be_tried_again_begins_its_time_anew() -> None:
    over: list[str] = []

    @tool(if_unsure="retry")
    def pay(amount: int) -> str:
        over.append("asked")
        if len(over) in again:
            return "paid"
        raise TimeoutError

    again: set[int] = set()
    with perdure.open("memory://", clock=FakeClock(), maintain=False) as db, db.session("s") as s:
        with pytest.raises(perdure.InDoubt) as lost:
            s.call(pay, amount=5)
        again.add(len(over) + 5)
        s.resolve(lost.value.effect, retry=True, by="ana")
        assert s.call(pay, amount=5) == "paid"


def test_a_tool_names_what_else_means_a_lost_answer() -> None:
    class Vanished(Exception):
        pass

    @tool(lost=Vanished)
    def pay(amount: int) -> None:
        raise Vanished

    with perdure.open("memory://") as db, db.session("s") as s, pytest.raises(InDoubt):
        s.call(pay, 5)


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


def test_what_returns_when_nobody_can_write_it_down_any_more_says_what_becomes_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    @tool(timeout=0.05)
    def pay(amount: int) -> str:
        go_on.wait(30)
        return "paid"

    url = f"sqlite:///{tmp_path}/a.db"
    with perdure.open(url) as db, db.session("s") as s, pytest.raises(perdure.CallError) as lost:
        s.call(pay, 5)
    go_on.set()
    while runs_on(lost.value.effect):
        time.sleep(0.01)
    (said,) = [r.getMessage() for r in caplog.records if "has returned late" in r.getMessage()]
    assert "its database was closed meanwhile. " in said
    settle = f"perdure resolve s {lost.value.effect} --done RESULT"
    assert f"It stands in doubt: find out whether it happened, then settle it with {settle}" in said
    assert "open a new one" not in said
    with perdure.open(url) as db, db.session("s") as s:
        s.resolve(lost.value.effect, done="paid", by="ana")
        assert s.call(pay, 5) == "paid"


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        (lambda amount: perdure.Done("found"), "The call is recorded as done already"),
        ("report", "Whoever called was told"),
    ],
    ids=["function", "report"],
)
def test_what_returns_late_does_not_say_that_the_doubt_is_still_to_be_settled_once_it_is(
    declared: Any, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    @tool(if_unsure=declared, timeout=0.05)
    def pay(amount: int) -> str:
        go_on.wait(30)
        return "paid"

    with perdure.open(f"sqlite:///{tmp_path}/a.db") as db, db.session("s") as s:
        s.call(pay, 5)
        effect = s.effects()[0]["id"]
    go_on.set()
    while runs_on(effect):
        time.sleep(0.01)
    (said,) = [r.getMessage() for r in caplog.records if "has returned late" in r.getMessage()]
    assert says in said
    assert "Whoever goes on" not in said


def test_of_a_time_out_it_is_kept_where_the_tool_hangs() -> None:
    go_on, inside = threading.Event(), threading.Event()

    def ask_the_bank() -> None:
        inside.set()
        go_on.wait(30)

    @tool(timeout=0.5)
    def pay(amount: int) -> str:
        ask_the_bank()
        return "paid"

    with perdure.open("memory://hangs") as db, db.session("s") as s:
        assert _told(lambda: s.call(pay, 5)) == "parked"
        kept = s.effects()[0]["lost"]["traceback"]
        go_on.set()
    assert inside.is_set()
    assert "in pay\n    ask_the_bank()" in kept
    assert "in ask_the_bank\n    go_on.wait(30)" in kept
    assert "perdure/session/" not in kept


# -- what is kept of an exception ----------------------------------------------------------------------------------


def test_what_is_kept_is_bounded_and_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "a-key-of-the-shop")

    def fail() -> None:
        msg = "x" * 5000 + " a-key-of-the-shop https://ana:pass@host/ Bearer 0123456789abcdef"
        raise ValueError(msg[4500:])

    with pytest.raises(ValueError, match="key-of-the-shop") as caught:
        fail()
    told = described(caught.value)
    assert told["class"] == "ValueError"
    for secret in ("a-key-of-the-shop", "ana:pass", "0123456789abcdef"):
        assert secret not in str(told)
    assert len(told["message"]) <= 1000
    assert "in fail" in told["traceback"]


@pytest.mark.parametrize("bounded", [False, True], ids=["here", "in a thread"])
def test_one_exception_raised_again_and_again_is_kept_with_where_it_came_from_last(bounded: bool) -> None:
    again, made = TimeoutError("no answer"), list[int]()

    def here() -> None:
        raise again

    def there() -> None:
        raise again

    def find() -> Any:
        return Unknown if len(made) == 5 else NotDone

    @tool(if_unsure=find, timeout=60.0 if bounded else None)
    def pay() -> None:
        made.append(1)
        (there if len(made) == 5 else here)()

    with perdure.open("memory://again", clock=FakeClock()) as db, db.session("s") as s:
        assert _told(lambda: s.call(pay)) == "parked"
        kept = s.effects()[0]["lost"]["traceback"]
    assert len(made) == 5
    assert kept.count("in there\n    raise again") == 1
    assert "in here" not in kept


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


def _within(by: BaseException) -> BaseException:
    outer = RuntimeError("while that was handled")
    outer.__context__ = by
    return outer


@pytest.mark.parametrize("wrapped", [_caused, _within, lambda by: ExceptionGroup("several", [ValueError(), by])])
@pytest.mark.parametrize(
    ("error", "wanted"), [(TimeoutError(), Meaning.LOST), (socket.gaierror(-2, "?"), Meaning.UNREACHED)], ids=repr
)
def test_what_is_beneath_counts(wrapped: Callable[[Any], BaseException], error: BaseException, wanted: Meaning) -> None:
    assert meaning(wrapped(error)) is wanted
    assert meaning(wrapped(wrapped(error))) is wanted
    assert meaning(wrapped(ValueError())) is Meaning.RAISED


def test_an_unknown_host_was_not_reached() -> None:
    with pytest.raises(socket.gaierror) as caught:
        socket.getaddrinfo("nowhere.invalid", 80, flags=socket.AI_NUMERICHOST)
    assert meaning(caught.value) is Meaning.UNREACHED


LOST_AS = (
    ("httpx", "ReadTimeout"), ("httpx", "WriteTimeout"), ("httpx", "ReadError"), ("httpx", "WriteError"),
    ("httpx", "CloseError"), ("httpx", "RemoteProtocolError"), ("httpcore", "ReadTimeout"),
    ("httpcore._exceptions", "ReadError"), ("requests.exceptions", "ReadTimeout"),
    ("requests.exceptions", "ChunkedEncodingError"), ("urllib3.exceptions", "ReadTimeoutError"),
    ("urllib3.exceptions", "ProtocolError"), ("urllib3.exceptions", "IncompleteRead"),
    ("aiohttp.client_exceptions", "ServerDisconnectedError"), ("aiohttp.client_exceptions", "ServerTimeoutError"),
    ("aiohttp.client_exceptions", "ClientPayloadError"), ("botocore.exceptions", "ReadTimeoutError"),
    ("botocore.exceptions", "ConnectionClosedError"),
)  # fmt: skip
UNREACHED_AS = (
    ("httpx", "ConnectError"), ("httpx", "ConnectTimeout"), ("httpx", "PoolTimeout"), ("httpcore", "ConnectError"),
    ("requests.exceptions", "ConnectTimeout"), ("urllib3.exceptions", "NewConnectionError"),
    ("urllib3.exceptions", "ConnectTimeoutError"), ("urllib3.exceptions", "NameResolutionError"),
    ("aiohttp.client_exceptions", "ClientConnectorError"), ("aiohttp.client_exceptions", "ConnectionTimeoutError"),
    ("botocore.exceptions", "EndpointConnectionError"), ("botocore.exceptions", "ConnectTimeoutError"),
)  # fmt: skip


@pytest.mark.parametrize("wanted", [Meaning.LOST, Meaning.UNREACHED])
def test_clients_are_known_by_the_names_of_their_exceptions(wanted: Meaning) -> None:
    for module, name in LOST_AS if wanted is Meaning.LOST else UNREACHED_AS:
        kind = type(name, (Exception,), {"__module__": module})
        assert meaning(kind()) is wanted, (module, name)
        assert meaning(type("Ours", (kind,), {})()) is wanted, "whatever is made of it"
        assert meaning(type(name, (Exception,), {"__module__": "shop.errors"})()) is Meaning.RAISED


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (http.client.IncompleteRead(b""), Meaning.LOST),
        (http.client.RemoteDisconnected("no answer"), Meaning.LOST),
        (ssl.SSLEOFError(), Meaning.LOST),
        (subprocess.TimeoutExpired("pay", 1), Meaning.LOST),
        (asyncio.IncompleteReadError(b"", 1), Meaning.LOST),
        (BrokenExecutor(), Meaning.LOST),
        (concurrent.futures.CancelledError(), Meaning.LOST),
    ],
    ids=repr,
)
def test_so_are_those_of_the_standard_library(error: BaseException, wanted: Meaning) -> None:
    assert meaning(error) is wanted


STATUSES = {
    Meaning.LOST: (408, 500, 502, 503, 504, 599),
    Meaning.RAISED: (400, 401, 403, 404, 409, 422, 429),
}


class _OfBotocore(Exception):
    def __init__(self, status: int) -> None:
        self.response = {"Error": {"Code": "?"}, "ResponseMetadata": {"HTTPStatusCode": status}}
        super().__init__(f"HTTP {status}")


class _OfRequests(Exception):
    def __init__(self, status: int) -> None:
        self.response = Answered(status)
        super().__init__(f"HTTP {status}")


class _OfAiohttp(Exception):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"HTTP {status}")


def _of_urllib(status: int) -> BaseException:
    return urllib.error.HTTPError("http://shop", status, "?", http.client.HTTPMessage(), None)


@pytest.mark.parametrize("answered", [Answered, _OfBotocore, _OfRequests, _OfAiohttp, _of_urllib])
@pytest.mark.parametrize(("wanted", "statuses"), STATUSES.items())
def test_an_http_status_says_whether_there_was_an_answer(
    answered: Callable[[int], BaseException], wanted: Meaning, statuses: tuple[int, ...]
) -> None:
    for status in statuses:
        assert meaning(answered(status)) is wanted, status
        assert meaning(_caused(answered(status))) is wanted, status
        if wanted is Meaning.RAISED:
            error = answered(status)
            error.__context__ = TimeoutError()
            assert meaning(error) is wanted, "there was an answer, in the end"


GRPC = {
    Meaning.LOST: ("CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"),
    Meaning.RAISED: (
        "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "UNAUTHENTICATED",
    ),
}  # fmt: skip


@pytest.mark.parametrize("module", ["grpc._channel", "grpc.aio._call"])
@pytest.mark.parametrize(("wanted", "codes"), GRPC.items())
def test_so_does_that_of_grpc(module: str, wanted: Meaning, codes: tuple[str, ...]) -> None:
    for name in codes:
        code = SimpleNamespace(name=name)
        kind = type("RpcError", (Exception,), {"__module__": module, "code": lambda _, code=code: code})
        assert meaning(kind()) is wanted, name


def test_a_chain_that_bites_its_tail_has_an_end() -> None:
    one, other = ValueError(), KeyError()
    one.__cause__, other.__cause__ = other, one
    assert meaning(one) is Meaning.RAISED
