"""Spans, as the OpenTelemetry SDK's own exporter gets them."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import perdure
from perdure import ModelError, telemetry, tool
from perdure.agent.models.scripted import calls
from tests.telemetry.scene import SESSION, approve, ask_for_refund, shop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan


class Listening:
    """Spans that have ended, in the order they began."""

    def __init__(self, *, content: bool | None = False) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        telemetry.enable("otel", tracer_provider=self.provider, content=content)

    def spans(self) -> list[ReadableSpan]:
        return sorted(self._exporter.get_finished_spans(), key=lambda s: s.start_time or 0)

    def one(self, name: str) -> ReadableSpan:
        (found,) = [s for s in self.spans() if s.name == name]
        return found


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def names(spans: Sequence[ReadableSpan]) -> list[str]:
    return [s.name for s in spans]


def inside(span: ReadableSpan, parent: ReadableSpan) -> bool:
    context = parent.get_span_context()
    return context is not None and span.parent is not None and span.parent.span_id == context.span_id


async def life(db: perdure.AsyncDatabase) -> tuple[perdure.RunResult, perdure.RunResult]:
    waiting = await ask_for_refund(db)
    return waiting, await approve(db, waiting)


def test_a_run_its_requests_and_its_calls_are_spans_within_each_other():
    heard = Listening()

    async def work() -> None:
        async with perdure.open_async("memory://") as db:
            await life(db)

    asyncio.run(work())
    spans = heard.spans()
    assert names(spans) == [
        "invoke_agent shop", "chat scripted-9", "execute_tool look_up", "chat scripted-9",
        "invoke_agent shop", "execute_tool refund", "chat scripted-9",
    ]  # fmt: skip
    first, second = spans[0], spans[4]
    assert all(inside(s, first) for s in spans[1:4])
    assert all(inside(s, second) for s in spans[5:])
    assert {about(s)["gen_ai.conversation.id"] for s in spans} == {SESSION}


def test_spans_say_who_asked_what_and_how_much_it_took():
    heard = Listening()

    async def work() -> tuple[perdure.RunResult, perdure.RunResult, str]:
        async with perdure.open_async("memory://") as db:
            waiting, done = await life(db)
            head = (await db.history(SESSION, limit=1))[0].id
            return waiting, done, head

    waiting, done, head = asyncio.run(work())
    runs = [about(s) for s in heard.spans() if s.name == "invoke_agent shop"]
    assert runs[0]["gen_ai.operation.name"] == "invoke_agent"
    assert runs[0]["gen_ai.agent.name"] == "shop"
    assert runs[0]["perdure.branch.name"] == "main"
    assert runs[0]["perdure.outcome"] == "waiting_approval"
    assert "perdure.resume.from_checkpoint_id" not in runs[0]
    assert runs[1]["perdure.resume.from_checkpoint_id"] == runs[0]["perdure.checkpoint.id"]
    assert runs[1]["perdure.checkpoint.id"] == head
    assert runs[1]["perdure.outcome"] == "done"
    assert runs[1]["gen_ai.usage.input_tokens"] == done.spent.input > 0
    chat = about(heard.spans()[1])
    assert chat["gen_ai.operation.name"] == "chat"
    assert chat["gen_ai.request.model"] == "scripted-9"
    assert chat["gen_ai.usage.output_tokens"] > 0
    call = about(heard.one("execute_tool refund"))
    assert call["gen_ai.operation.name"] == "execute_tool"
    assert call["gen_ai.tool.name"] == "refund"
    assert call["gen_ai.tool.call.id"].startswith("call_")
    assert call["perdure.approval.id"] == waiting.approvals[0].id


def test_commits_are_events_of_the_span_they_happen_in():
    heard = Listening()

    async def work() -> list[str]:
        async with perdure.open_async("memory://") as db:
            await life(db)
            return [c.id for c in await db.history(SESSION)]

    ids = asyncio.run(work())
    told = [dict(e.attributes or {}) for s in heard.spans() for e in s.events if e.name == "perdure.checkpoint"]
    assert sorted(str(e["perdure.checkpoint.id"]) for e in told) == sorted(ids)


def texts(spans: Sequence[ReadableSpan]) -> str:
    return json.dumps([[s.name, about(s), [[e.name, dict(e.attributes or {})] for e in s.events]] for s in spans])


@pytest.mark.parametrize(
    ("said", "variable", "content"),
    [(False, "1", False), (True, None, True), (None, None, False), (None, "", False), (None, "1", True)],
)
def test_what_was_said_is_told_only_when_that_is_opted_in(
    said: bool | None, variable: str | None, content: bool, monkeypatch: pytest.MonkeyPatch
):
    if variable is not None:
        monkeypatch.setenv(telemetry.CONTENT, variable)
    heard = Listening(content=said)

    async def work() -> None:
        async with perdure.open_async("memory://") as db:
            waiting = await ask_for_refund(db, "the parcel is for the ambassador")
            await approve(db, waiting)

    asyncio.run(work())
    told = texts(heard.spans())
    for words in ("ambassador", "refunded A-1", "It is refunded", "is on its way"):
        assert (words in told) is content, words
    for name in ("input.messages", "output.messages", "tool.call.arguments", "tool.call.result"):
        assert (f'"gen_ai.{name}"' in told) is content, name
    if content:
        call = about(heard.one("execute_tool refund"))
        assert json.loads(call["gen_ai.tool.call.arguments"]) == {"order": "A-1"}
        assert json.loads(call["gen_ai.tool.call.result"]) == "refunded A-1"
        asked = json.loads(about(heard.spans()[1])["gen_ai.input.messages"])
        assert {"type": "text", "content": "the parcel is for the ambassador"} in asked[-1]["parts"]


def test_a_failure_is_named_by_its_class_and_its_words_are_kept_back():
    heard = Listening()

    def broken(_: Any) -> str:
        raise ModelError("quota of ana@example.com exceeded")

    async def work() -> None:
        async with perdure.open_async("memory://") as db:
            await shop(calls(("send_mail", {"to": "ana"}))).run(db, session="mail", message="hi")
            await shop(broken).run(db, session="quota", message="hi")

    asyncio.run(work())
    mail, quota = heard.one("execute_tool send_mail"), heard.spans()[-1]
    assert (about(mail)["error.type"], mail.status.status_code) == ("ConnectionError", StatusCode.ERROR)
    assert (about(quota)["error.type"], quota.status.status_code) == ("ModelError", StatusCode.ERROR)
    runs = [s for s in heard.spans() if s.name == "invoke_agent shop"]
    assert [s.status.status_code for s in runs] == [StatusCode.UNSET, StatusCode.ERROR]
    assert "example.com" not in texts(heard.spans())
    assert "cut while" not in texts(heard.spans())
    assert all(s.status.description is None for s in heard.spans())


def test_a_question_of_a_tool_is_no_failure():
    heard = Listening()

    @tool
    def book(ctx: perdure.Context) -> str:
        """Book a seat."""
        return ctx.ask("Aisle or window?")

    with perdure.open("memory://") as db, db.session("trip") as s, pytest.raises(perdure.ApprovalNeeded):
        s.call(book)
    span = heard.one("execute_tool book")
    assert "error.type" not in about(span)
    assert span.status.status_code is StatusCode.UNSET


def test_spans_of_the_callers_own_code_lie_inside_those_of_the_tool():
    heard = Listening()
    tracer = heard.provider.get_tracer("mine")

    @tool
    def charge() -> str:
        """Charge a card."""
        with tracer.start_as_current_span("POST /charges"):
            return "ok"

    @tool(read=True)
    async def balance() -> int:
        """Read a balance."""
        with tracer.start_as_current_span("GET /balance"):
            await asyncio.sleep(0)
            return 5

    async def work() -> None:
        async with perdure.open_async("memory://") as db, db.session("a") as s:
            await asyncio.gather(s.call(charge), s.call(balance))
            assert trace.get_current_span() is trace.INVALID_SPAN

    asyncio.run(work())
    assert inside(heard.one("POST /charges"), heard.one("execute_tool charge"))
    assert inside(heard.one("GET /balance"), heard.one("execute_tool balance"))


def test_the_api_without_a_provider_is_enough():
    telemetry.enable()

    async def work() -> perdure.RunResult:
        async with perdure.open_async("memory://") as db:
            return (await life(db))[1]

    assert asyncio.run(work()).ok
