"""What providers do wrong: each has one outcome, waits are bounded, and no secret is ever told."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.agent.agent import Agent
from perdure.agent.models import Delta
from perdure.agent.models.openai import CONNECT_TIMEOUT, TIMEOUT, OpenAIModel
from perdure.agent.models.retry import Retry
from perdure.errors import ContextTooLong, InvalidInput, ModelError, ModelUnavailable, RequestRefused
from perdure.fleet.board import board_of
from perdure.protocols import NewWork, WorkerRow
from tests.agent.models.canned import canned, chunk, completion, events, http, silent, usage_chunk
from tests.agent.models.clients import KEY, ask, client, request
from tests.servers.process import free_port

if TYPE_CHECKING:
    from pathlib import Path

FINE = http(completion({"content": "fine"}))
GARBAGE: dict[str, Any] = {
    "no choices": {"id": "x", "choices": []},
    "choices that are none": {"choices": {"a": 1}},
    "nothing at all": {},
    "an empty choice": {"choices": [{}]},
    "an empty message": completion({}),
    "an empty text": completion({"content": ""}),
    "a message that is a list": {"choices": [{"message": [1]}]},
    "calls without a name": completion({"tool_calls": [{"id": "a", "function": {}}]}, "tool_calls"),
    "calls that are no list": completion({"content": "x", "tool_calls": "all of them"}),
    "a number that is none": b'{"choices": [{"message": {"role": "assistant", "content": "x", "p": NaN}}]}',
    "a nest": completion({"content": "x", "deep": json.loads("[" * 150 + "]" * 150)}),
    "half of it": b'{"choices": [{"message": {"role": "assis',
    "a page": "<html><body>502 Bad Gateway</body></html>",
    "not text": b"\xff\xfe\x00{",
    "another role": completion({"role": "user", "content": "I am you"}),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_is_tried_again_and_then_given_up(what: str):
    answer = GARBAGE[what]
    bad = http(answer).replace(b"text/plain", b"application/json") if isinstance(answer, bytes) else http(answer)
    with canned(bad, FINE) as server:
        assert ask(client(server.url)[0], request())[0].message["content"] == "fine"
    with canned(bad) as server:
        with pytest.raises(ModelError, match="after 3 attempts"):
            ask(client(server.url)[0], request())
        assert len(server.heard) == 3


STREAMED_GARBAGE: dict[str, tuple[str, bytes, str]] = {
    "no choice": ("chat", events({"id": "x", "choices": []}), "answered nothing"),
    "a choice without a word": ("chat", events(chunk({})), "answered nothing"),
    "a page that is called a stream": (
        "chat",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9\r\n\r\n<html>no\n",
        "answered something that is no answer",
    ),
    "no event of an answer": ("responses", events({"id": "x", "choices": []}), "answered nothing"),
}


@pytest.mark.parametrize("what", STREAMED_GARBAGE)
def test_a_stream_that_ends_before_anything_was_begun_is_garbage_and_not_cut(what: str):
    api, bad, said = STREAMED_GARBAGE[what]
    with canned(bad) as server:
        with pytest.raises(ModelError, match=rf"{said} \(after 3 attempts") as e:
            ask(client(server.url, api=api)[0], request(), stream=True)
        assert len(server.heard) == 3
    assert type(e.value) is ModelError


CHUNKS: dict[str, tuple[Any, ...]] = {
    "half a chunk": (chunk({"content": "a"}), b'{"id": "x", "choi'),
    "no text": (chunk({"content": "a"}), b'"\xff\xfe"'),
    "a chunk that is a number": (chunk({"content": "a"}), 7),
    "a choice that is a number": ({"choices": [7]},),
    "a call that is a number": (chunk({"tool_calls": [7]}), chunk({}, "tool_calls")),
    "only choices without anything": (chunk(None), chunk({}, "stop")),
}


@pytest.mark.parametrize("what", CHUNKS)
def test_garbage_in_a_stream_is_tried_again(what: str):
    good = events(chunk({"role": "assistant", "content": "fi"}), chunk({"content": "ne"}), chunk({}, "stop"))
    with canned(events(*CHUNKS[what]), good) as server:
        answer, told = ask(client(server.url)[0], request(), stream=True)
    assert answer.message["content"] == "fine"
    begun = max((i for i, d in enumerate(told) if d.restart), default=-1)
    assert "".join(d.text for d in told[begun + 1 :]) == "fine"


def test_a_stream_cut_in_the_middle_of_a_character_is_begun_anew():
    cut = events(
        chunk({"role": "assistant", "content": "It is "}), cut=b'data: {"choices": [{"delta": {"content": "\xc3'
    )
    good = events(chunk({"role": "assistant", "content": "It is é"}), chunk({}, "stop"), usage_chunk())
    with canned(cut, good) as server:
        answer, told = ask(client(server.url)[0], request(), stream=True)
    assert answer.message["content"] == "It is é"
    assert [(d.text, d.restart) for d in told] == [("It is ", False), ("", True), ("It is é", False)]


def test_a_stream_that_is_always_cut_ends():
    with canned(events(chunk({"content": "It is "}), done=False)) as server:
        with pytest.raises(ModelUnavailable, match=r"cut the answer off in the middle \(after 4 attempts"):
            ask(client(server.url, retry=Retry(attempts=4))[0], request(), stream=True)
        assert len(server.heard) == 4


def test_a_stream_cut_after_the_last_word_is_not_paid_twice():
    pieces = (chunk({"role": "assistant", "content": "fine"}), chunk({}, "stop"))
    with canned(events(*pieces, cut=b"data: {")) as server:
        answer, told = ask(client(server.url)[0], request(), stream=True)
        assert len(server.heard) == 1
    assert answer.message["content"] == "fine"
    assert [d.text for d in told] == ["fine"]


@pytest.mark.parametrize("status", [200, 503])
def test_a_server_that_does_not_stream_is_understood_all_the_same(status: int):
    with canned(http(completion({"content": "fine"}), status), FINE) as server:
        answer, told = ask(client(server.url)[0], request(), stream=True)
    assert answer.message["content"] == "fine"
    assert [d.text for d in told] == ["fine"]


def test_a_server_that_never_answers_is_left():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        model, time = client(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", retry=Retry(total=0.3))
        with pytest.raises(ModelUnavailable, match=r"no answer within 0\.3 seconds"):
            ask(model, request())
    assert time.waits == []


def test_an_error_inside_a_stream():
    broken = events(chunk({"content": "It"}), {"error": {"message": "overloaded", "code": "server_error"}})
    good = events(chunk({"content": "fine"}), chunk({}, "stop"))
    with canned(broken, good) as server:
        assert ask(client(server.url)[0], request(), stream=True)[0].message["content"] == "fine"
    refused = events({"error": {"message": f"bad key {KEY}", "type": "authentication_error"}})
    with canned(refused) as server:
        with pytest.raises(ModelError, match="bad key …"):
            ask(client(server.url)[0], request(), stream=True)
        assert len(server.heard) == 1


TOO_LONG: list[Any] = [
    {"error": {"message": "no", "code": "context_length_exceeded"}},
    {"error": {"message": "This model's maximum context length is 4096 tokens."}},
    {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}},
    {"error": {"message": "The input token count (1) exceeds the maximum number of tokens allowed (0)."}},
    {"error": {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"}},
    {"error": {"message": "Please reduce the length of the messages or completion."}},
    {"message": "Input is too long for requested model."},
    {"error": "input length and `max_tokens` exceed context limit: 10 + 5 > 12"},
]


@pytest.mark.parametrize("said", TOO_LONG)
def test_a_request_that_is_too_long_is_told_apart(said: dict[str, Any]):
    with canned(http(said, 400)) as server:
        with pytest.raises(ContextTooLong):
            ask(client(server.url)[0], request())
        assert len(server.heard) == 1


def test_a_request_that_is_too_large_is_too_long_before_an_answer_and_in_it():
    said = {"error": {"message": "no", "code": 413}}
    for answer in (http(said, 413), events(said)):
        with canned(answer) as server:
            with pytest.raises(ContextTooLong):
                ask(client(server.url)[0], request(), stream=True)
            assert len(server.heard) == 1


@pytest.mark.parametrize("said", ["temperature is too large", "unknown model", "context must be an object"])
def test_other_refusals_are_not_called_too_long(said: str):
    with canned(http({"error": {"message": said}}, 400)) as server, pytest.raises(ModelError, match=said) as e:
        ask(client(server.url)[0], request())
    assert type(e.value) is RequestRefused


@pytest.mark.parametrize(
    ("status", "change"), [(401, "the key"), (403, "the key"), (404, "the model's name"), (402, "")]
)
def test_who_is_not_let_in_is_told_what_to_change_before_another_try(tmp_path: Path, status: int, change: str):
    url = f"sqlite:///{tmp_path}/a.db"
    with canned(http({"error": {"message": "no such luck"}}, status)) as server:
        ran = Agent("a", model=client(server.url)[0]).run_sync(url, session="s", message="hi")
        assert len(server.heard) == 1
    assert ran.status == "failed"
    with perdure.open(url) as db:
        found = perdure.why(db, "s")
        assert "The last run failed: AccessRefused: " in found.line
        assert f"answered {status}: no such luck" in found.line
        assert f"(change {change}" in found.line or not change
        assert found.next == (
            "Change the key, the model's name, the address or the account first: the provider says which. "
            "Then run its agent again, for no worker serves it."
        )
        # A worker that tries it again by itself changes nothing.
        board_of(db).beat(WorkerRow("w", "host", 1, "v", ("a",), 1))
        board_of(db).put([NewWork("s", "a")])
        assert perdure.why(db, "s").next.startswith("Change the key")
    # Once that is done, it helps.
    with canned(FINE) as server:
        assert Agent("a", model=client(server.url)[0]).run_sync(url, session="s").text == "fine"


def test_milliseconds_come_first_and_dates_are_understood():
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=600), usegmt=True)
    first = http({"error": {"message": "slow"}}, 429, retry_after_ms="2500", retry_after="50")
    with canned(first, http({"error": {"message": "slow"}}, 503, retry_after=then), FINE) as server:
        model, time = client(server.url)
        ask(model, request())
    assert 2.5 <= time.waits[0] < 3
    assert 300 < time.waits[1] < 602


@pytest.mark.parametrize("value", ["soon", "-3", "inf", "nan", ""])
def test_a_wait_that_is_none_is_our_own(value: str):
    with canned(http({"error": {"message": "slow"}}, 429, retry_after=value), FINE) as server:
        model, time = client(server.url)
        ask(model, request())
    assert time.waits == [0.5]


def test_who_asks_to_wait_for_too_long_is_not_waited_for():
    with canned(http({"error": {"message": "slow"}}, 429, retry_after="86400")) as server:
        model, time = client(server.url)
        with pytest.raises(ModelUnavailable, match="asks to wait 86400 seconds"):
            ask(model, request())
    assert time.waits == []


def test_all_attempts_together_take_bounded_time():
    with canned(http({"error": {"message": "slow"}}, 503, retry_after="20")) as server:
        model, time = client(server.url, retry=Retry(attempts=100, total=50))
        with pytest.raises(ModelUnavailable):
            ask(model, request())
    assert sum(time.waits) < 50
    assert len(time.waits) == 2


def test_a_provider_that_says_not_to_try_again_is_not_tried_again():
    for answer in (
        http({"error": {"message": "no"}}, 503, x_should_retry="false"),
        http({"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}, 429),
    ):
        with canned(answer) as server:
            with pytest.raises(ModelError):
                ask(client(server.url)[0], request())
            assert len(server.heard) == 1


def test_nobody_there():
    model, time = client(f"http://127.0.0.1:{free_port()}/v1", retry=Retry(attempts=3))
    with pytest.raises(ModelUnavailable, match=r"at http://127.0.0.1:\d+/v1 cannot be reached: nothing listens there"):
        ask(model, request())
    assert len(time.waits) == 2


def test_a_host_that_nobody_knows():
    model, _ = client("http://no-such-host.invalid/v1", retry=Retry(attempts=1))
    with pytest.raises(ModelUnavailable, match="there is no host of that name"):
        ask(model, request())


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"


@pytest.mark.parametrize("after", [b"", STREAM, STREAM + b"data: {}\n\n", JSON, JSON + b'{"choices": ['])
def test_a_server_that_says_nothing_is_given_up(after: bytes):
    """In real time: at once, or in the middle of an answer; nobody who listens is needed for it to be noticed."""
    with silent(after) as url:
        model, time = client(url, timeout=0.3)
        with pytest.raises(ModelUnavailable, match=r"said nothing for 0\.3 seconds .*timeout=.* \(after 2 attempts\)"):
            ask(model, request())
        assert len(time.waits) == 1


def test_an_answer_in_one_piece_that_is_cut_is_asked_for_again():
    with canned(JSON + b'{"choices": [', FINE) as server:
        assert ask(client(server.url)[0], request())[0].message["content"] == "fine"


def test_a_server_that_says_something_now_and_then_is_waited_for():
    # In all it takes longer than it may be silent.
    words = [events(chunk({"content": f"{n} "}), done=False) for n in range(6)]
    pieces = [words[0], *(w.partition(b"\r\n\r\n")[2] for w in words[1:]), b": still here\n\n"]
    with silent(*pieces, events(chunk({}, "stop")).partition(b"\r\n\r\n")[2], pause=0.25) as url:
        model, _ = client(url, timeout=1.2)
        assert ask(model, request())[0].message["content"] == "0 1 2 3 4 5 "


def test_an_answer_that_is_being_written_is_not_cut_off_when_patience_ends():
    """Time is told by the server: it goes on only when the time without an answer would long be over."""
    words = [events(chunk({"content": f"{n} "}), done=False) for n in range(4)]
    pieces = [words[0], *(w.partition(b"\r\n\r\n")[2] for w in words[1:])]
    with silent(*pieces, events(chunk({}, "stop")).partition(b"\r\n\r\n")[2], pause=0.4) as url:
        model, _ = client(url, retry=Retry(total=1.2))
        assert ask(model, request())[0].message["content"] == "0 1 2 3 "


def test_an_answer_that_broke_off_late_is_asked_for_again():
    broken = events(chunk({"content": "It"}), {"error": {"message": "overloaded", "code": "server_error"}})
    with canned(broken, FINE) as server:
        model, time = client(server.url, retry=Retry(total=5))
        told: list[Delta] = []

        def long(delta: Delta) -> None:
            told.append(delta)
            time.now += 0 if delta.restart else 60

        answer = asyncio.run(model.answer(request(), long))
    assert answer.message["content"] == "fine"
    assert [d.text for d in told if not d.restart] == ["It", "fine"]


def test_a_server_is_given_up_after_a_minute_unless_told_otherwise():
    model = client("http://127.0.0.1:9/v1")[0]
    assert (TIMEOUT, CONNECT_TIMEOUT) == (60.0, 10.0)
    used: Any = model._made("k").timeout  # pyright: ignore[reportPrivateUsage]
    assert (used.connect, used.read, used.write) == (CONNECT_TIMEOUT, TIMEOUT, TIMEOUT)
    refused: list[dict[str, Any]] = [{"timeout": 0}, {"connect_timeout": -1}]
    for wrong in refused:
        with pytest.raises(InvalidInput, match="are seconds, above 0"):
            client("http://127.0.0.1:9/v1", **wrong)


def test_a_connection_that_is_dropped_without_a_word():
    with canned(b"", FINE) as server:
        assert ask(client(server.url)[0], request())[0].message["content"] == "fine"


def test_a_cancelled_question_is_not_asked_again():
    with canned(http({"error": {"message": "slow"}}, 429, retry_after="60")) as server:
        model = OpenAIModel("m", provider="openai", base_url=server.url, api_key=KEY)

        async def leave() -> None:
            task = asyncio.create_task(model.answer(request()))
            while not server.heard:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await model.close()

        asyncio.run(leave())
        assert len(server.heard) == 1


def test_a_listener_that_fails_is_not_mistaken_for_the_model():
    def listen(_: Any) -> None:
        raise ValueError("my own")

    async def main() -> None:
        model, _ = client(server.url)
        try:
            with pytest.raises(ValueError, match="my own"):
                await model.answer(request(), listen)
        finally:
            await model.close()

    with canned(events(chunk({"content": "fine"}), chunk({}, "stop"))) as server:
        asyncio.run(main())
        assert len(server.heard) == 1


@pytest.mark.parametrize("wrong", [b"x", float("nan"), "\ud800", {1, 2}])
def test_what_cannot_be_sent_is_refused_and_not_sent(wrong: Any):
    with canned(FINE) as server:
        with pytest.raises(InvalidInput, match="cannot be sent"):
            ask(client(server.url)[0], request({"role": "user", "content": wrong}))
        assert server.heard == []


@pytest.mark.parametrize("stream", [False, True])
def test_the_key_is_nowhere_but_in_its_header(caplog: pytest.LogCaptureFixture, stream: bool):
    caplog.set_level(logging.DEBUG)
    said = f"Incorrect API key provided: {KEY}. Also Bearer {KEY}x and sk-proj-ABCDEFGH****wxyz."
    for answer in (http({"error": {"message": said}}, 401), http(said, 500), b"HTTP/1.1 banana\r\n\r\n"):
        with canned(answer) as server:
            model, _ = client(server.url, retry=Retry(attempts=2))
            with pytest.raises(ModelError) as e:
                ask(model, request(), stream=stream)
        told = "".join(traceback.format_exception(e.value)) + repr(e.value) + repr(model)
        assert KEY not in told
        assert "wxyz" not in told
        assert e.value.__context__ is None
    assert KEY not in caplog.text


def test_a_key_that_looks_like_no_key_is_not_told_either():
    with canned(http({"error": {"message": "who is plain0123456789?"}}, 401)) as server:
        model = OpenAIModel("m", base_url=server.url, api_key="plain0123456789")
        with pytest.raises(ModelError, match="who is …"):
            ask(model, request())


def test_a_missing_key_names_its_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HOLYSHEEP_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-meant-for-somebody-else")
    with pytest.raises(InvalidInput, match=r"^there is no key for holysheep: set the variable HOLYSHEEP_API_KEY"):
        ask(OpenAIModel(provider="holysheep"), request())


@pytest.mark.parametrize("key", ["sk-a\nb", "sk-é", "sk a"])
def test_a_key_that_cannot_be_one_is_not_shown(key: str):
    with pytest.raises(InvalidInput, match="has characters that no key has") as e:
        ask(OpenAIModel("m", provider="openai", api_key=key), request())
    assert key not in str(e.value)


def test_a_key_is_not_given_to_an_address_that_names_no_provider(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-meant-for-openai")
    with canned(FINE) as server:
        ask(OpenAIModel("m", base_url=server.url), request())
        assert server.heard[0].headers["authorization"] == "Bearer none"


@pytest.mark.parametrize(
    "wrong",
    [
        {"provider": "acme"}, {"base_url": "localhost:8000/v1"}, {"base_url": "ftp://x/"}, {"api": "soap"},
        {"provider": "ollama", "model": None}, {"messages": []}, {"stream": True}, {"base_url": "http://[::1/v1"},
    ],
)  # fmt: skip
def test_bad_input_is_refused_at_once(wrong: dict[str, Any]):
    with pytest.raises(InvalidInput):
        OpenAIModel(**{"model": "m", **wrong})


def test_a_session_whose_model_failed_goes_on_where_it_was():
    with canned(http({"error": {"message": "no such model"}}, 404), FINE) as server, perdure.open("memory://f") as db:
        agent = Agent("guide", model=client(server.url)[0])
        failed = agent.run_sync("memory://f", session="s", message="hi")
        assert (failed.status, failed.ok) == ("failed", False)
        assert "no such model" in failed.reason
        done = agent.run_sync("memory://f", session="s")
        assert (done.status, done.text) == ("done", "fine")
        assert [m["role"] for m in db.read("s").messages] == ["user", "assistant"]
        assert server.heard[0].body == server.heard[1].body
