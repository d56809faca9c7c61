"""Log lines: parsable, told apart by session, and free of secrets."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure import Agent, ScriptedModel, tool
from perdure.agent.models.scripted import calls
from perdure.system.lease_holders import describe, new_holder
from perdure.system.secrets import scrubbed
from perdure.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger("perdure.test")


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    stream = io.StringIO()
    logs.configure(as_json=True, stream=stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    restore()


@pytest.fixture
def plain_text() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.configure(stream=stream)
    yield stream
    restore()


def restore() -> None:
    logger = logging.getLogger(logs.ROOT)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def test_a_line_says_what_where_and_when(lines: Callable[[], list[dict[str, Any]]]):
    with logs.about(worker="w1"), logs.about(session="trip-42", agent="travel", step=lambda: 7):
        log.warning("slow: %d ms", 300, extra={"tool": "book"})
    log.info("outside")
    first, second = lines()
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "warning", "logger": "perdure.test", "message": "slow: 300 ms", "worker": "w1",
        "session": "trip-42", "agent": "travel", "step": 7, "tool": "book",
    }  # fmt: skip
    assert set(second) == {"time", "level", "logger", "message"}


def test_people_are_told_a_worker_in_short_and_programs_in_full(plain_text: io.StringIO):
    name = new_holder()
    with logs.about(worker=name):
        log.info("hello")
        assert plain_text.getvalue().endswith(f"hello  [worker={describe(name)}]\n")
        stream = io.StringIO()
        logs.configure(as_json=True, stream=stream)
        log.info("hello")
    assert json.loads(stream.getvalue())["worker"] == name


def test_whatever_a_tool_logs_names_its_session_and_step(lines: Callable[[], list[dict[str, Any]]]):
    @tool
    def book(seat: str) -> str:
        """Book a seat."""
        log.info("booking %s", seat)
        return "booked"

    async def one(db: perdure.AsyncDatabase, session: str) -> None:
        model = ScriptedModel([calls(("book", {"seat": session})), "done"])
        await Agent("travel", model=model, tools=[book]).run(db, session=session, message="go")

    async def work() -> None:
        async with perdure.open_async("memory://") as db:
            await asyncio.gather(*(one(db, f"s{n}") for n in range(5)))

    asyncio.run(work())
    told = {line["session"]: line for line in lines()}
    assert sorted(told) == ["s0", "s1", "s2", "s3", "s4"]
    assert all(line["message"] == f"booking {session}" for session, line in told.items())
    assert {(line["agent"], line["step"]) for line in told.values()} == {("travel", 1)}


SECRETS = [
    "postgresql://ana:hunter2hunter2@db.example/agents",
    "tiered:redis://:hunter2hunter2@a:1,postgresql://u:hunter2hunter2@b/c",
    "redis://h:1/0?password=hunter2hunter2&x=1",
    "https://bucket.example/key?X-Amz-Signature=hunter2hunter2",
    "postgresql://ana:hunter2'hunter2@db",
    "postgresql://ana:hunter2/hunter2@x@db/agents",
    "Authorization: Bearer hunter2hunter2",
    "api_key=hunter2hunter2",
    '{"password": "hunter2hunter2"}',
    "OPENAI_API_KEY: hunter2hunter2",
    "key sk-hunter2hunter2 was refused",
]


@pytest.mark.parametrize("text", SECRETS)
def test_no_secret_is_logged(text: str, lines: Callable[[], list[dict[str, Any]]]):
    log.error("failed: %s", text, extra={"url": text, "api_key": "hunter2hunter2"})
    try:
        raise ConnectionError(f"cannot reach {text}")
    except ConnectionError:
        log.exception("it broke")
    assert "hunter2" not in json.dumps(lines())
    assert lines()[1]["error"] == "ConnectionError"


@pytest.mark.parametrize("text", SECRETS)
def test_no_secret_is_logged_in_plain_lines_either(text: str, plain_text: io.StringIO):
    try:
        raise ConnectionError(f"cannot reach {text}")
    except ConnectionError:
        log.exception("it broke: %s", text)
    assert "hunter2" not in plain_text.getvalue()


def test_values_of_secret_variables_are_masked_wherever_they_turn_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PERDURE_KEY", "correct horse battery")
    stream = io.StringIO()
    logs.configure(as_json=True, stream=stream)
    try:
        log.info("opened with correct horse battery, as it were")
    finally:
        restore()
    assert json.loads(stream.getvalue())["message"] == "opened with (PERDURE_KEY), as it were"


@given(st.text(max_size=60), st.text(max_size=20))
def test_any_text_is_one_line_of_json(text: str, session: str):
    record = logging.makeLogRecord({"msg": "%s", "args": (text,), "name": "perdure", "levelname": "INFO"})
    with logs.about(session=session):
        line = logs.JsonLines().format(record)
        plain = logs.PlainLines().format(record)
    assert "\n" not in line
    assert json.loads(line)["level"] == "info"
    assert "\n" not in plain


def test_ordinary_addresses_stay_readable():
    said = "see https://docs.example/guide#start, file:///data/agents and redis://cache:6379/0"
    assert scrubbed(said) == said


def test_plain_lines_are_for_people(plain_text: io.StringIO):
    with logs.about(session="trip-42"):
        log.info("parked")
    assert plain_text.getvalue().rstrip().endswith("INFO    parked  [session=trip-42]")


def test_configuring_again_takes_the_place_of_the_last_time(lines: Callable[[], list[dict[str, Any]]]):
    other = io.StringIO()
    logs.configure(as_json=True, stream=other)
    log.info("once")
    assert lines() == []
    assert len(other.getvalue().splitlines()) == 1


def test_a_line_with_the_wrong_arguments_is_still_written():
    record = logging.makeLogRecord({"msg": "%d of %d", "args": (1,)})
    assert json.loads(logs.JsonLines().format(record))["message"] == "%d of %d"


def test_importing_the_library_configures_nothing():
    import subprocess
    import sys

    code = "import logging, perdure, perdure.telemetry.logs, perdure.agent.loop, perdure.telemetry.otel\n"
    code += "print([n for n, l in logging.Logger.manager.loggerDict.items()"
    code += " if n.startswith('perdure') and isinstance(l, logging.Logger) and l.handlers], logging.root.handlers)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[] []"
