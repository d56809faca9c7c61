"""Spans and measurements through OpenTelemetry: your own providers, or the global ones. It needs the API only."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from perdure._version import __version__
from perdure.errors import MissingExtra
from perdure.telemetry import Span, Tracing
from perdure.telemetry import instruments as i

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.telemetry.instruments import Instrument

MOST = 32_768
"""Characters of one attribute: collectors refuse spans that are too large."""


def as_text(value: Any) -> str:
    """Any value as JSON text; what is not JSON is named by its type.

    >>> as_text({"amount": 5, "proof": b"..."})
    '{"amount": 5, "proof": "(bytes)"}'
    """
    text = json.dumps(value, ensure_ascii=False, default=lambda v: f"({type(v).__name__})")
    return text if len(text) <= MOST else text[: MOST - 1] + "…"


def messages_as_text(messages: list[dict[str, Any]]) -> str:
    """Messages as roles and parts.

    >>> messages_as_text([{"role": "user", "content": "Hi"}])
    '[{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]'
    """
    return as_text([{"role": m.get("role", ""), "parts": _parts(m)} for m in messages])


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    if message.get("role") == "tool":
        return [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}]
    parts: list[dict[str, Any]] = []
    if isinstance(content, str) and content:
        parts.append({"type": "text", "content": content})
    for part in content if isinstance(content, list) else ():
        told = isinstance(part, dict) and isinstance(part.get("text"), str)
        # Pictures and sounds are named, not repeated.
        parts.append({"type": "text", "content": part["text"]} if told else {"type": "blob"})
    for call in message.get("tool_calls") or ():
        asked = call.get("function", {})
        parts.append(
            {"type": "tool_call", "id": call.get("id"), "name": asked.get("name"), "arguments": asked.get("arguments")}
        )
    return parts


try:
    from opentelemetry import metrics, trace
    from opentelemetry.trace import SpanKind, StatusCode
except ImportError as error:
    raise MissingExtra("opentelemetry-api", "telemetry", error) from None

SCOPE = "perdure"
OPERATION = "gen_ai.operation.name"
CONVERSATION = "gen_ai.conversation.id"
CALL_ID = "gen_ai.tool.call.id"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CHECKPOINT_ID = "perdure.checkpoint.id"
BRANCH = "perdure.branch.name"
RESUMED_FROM = "perdure.resume.from_checkpoint_id"
APPROVAL_ID = "perdure.approval.id"
EFFECT_ID = "perdure.effect.id"
ATTEMPT = "perdure.effect.attempt"
STEP = "perdure.checkpoint.step"
# Only when opted in:
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
ARGUMENTS = "gen_ai.tool.call.arguments"
RESULT = "gen_ai.tool.call.result"

FAILURES = ("failed", "incompatible")
"""Ends of a run that a trace shows as errors; a run that waits, or has reached a limit, is none."""


class Otel(Tracing):
    """Measurements to a meter, spans to a tracer."""

    def __init__(self, tracer_provider: Any = None, meter_provider: Any = None, *, content: bool = False) -> None:
        self._content = content
        self._tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
        meter = metrics.get_meter(SCOPE, __version__, meter_provider)
        self._of: dict[str, Any] = {one.name: _made(meter, one) for one in i.ALL}

    def record(self, instrument: Instrument, value: float, attributes: Mapping[str, str]) -> None:
        """Add to a counter or a histogram, or set a gauge. Attributes that say nothing are left out."""
        told = {name: said for name, said in attributes.items() if said}
        self._of[instrument.name](value, told)

    # -- spans ----------------------------------------------------------------------------------------------------

    def invoke_agent(self, agent: str, session: str, branch: str, resumed_from: bytes | None) -> Span:
        about = {OPERATION: "invoke_agent", i.AGENT: agent, CONVERSATION: session, BRANCH: branch}
        if resumed_from is not None:
            about[RESUMED_FROM] = resumed_from.hex()
        return self._span(f"invoke_agent {agent}", SpanKind.INTERNAL, about)

    def chat(self, agent: str, session: str, request: Any) -> Span:
        about = {OPERATION: "chat", i.AGENT: agent, CONVERSATION: session, REQUEST_MODEL: request.model}
        if self._content:
            about[INPUT_MESSAGES] = messages_as_text(request.messages)
        return self._span(f"chat {request.model}", SpanKind.CLIENT, about)

    def execute_tool(
        self, tool: str, session: str, args: Any, call: Mapping[str, Any], quiet: tuple[type[BaseException], ...] = ()
    ) -> Span:
        about: dict[str, Any] = {OPERATION: "execute_tool", i.TOOL: tool, CONVERSATION: session}
        told = {CALL_ID: "call", EFFECT_ID: "id", APPROVAL_ID: "approval", ATTEMPT: "attempt"}
        about |= {name: call[key] for name, key in told.items() if call.get(key)}
        if self._content:
            about[ARGUMENTS] = as_text(args)
        return self._span(f"execute_tool {tool}", SpanKind.INTERNAL, about, quiet)

    def checkpoint(self, id: bytes, step: int) -> None:
        """Note a commit in the span it happened in."""
        span = trace.get_current_span()
        if span.is_recording():
            span.add_event("perdure.checkpoint", {CHECKPOINT_ID: id.hex(), STEP: step})

    def _span(
        self, name: str, kind: SpanKind, about: dict[str, Any], quiet: tuple[type[BaseException], ...] = ()
    ) -> Span:
        # The text of an exception may repeat what was said: only its class is told.
        made = self._tracer.start_as_current_span(
            name, kind=kind, attributes=about, record_exception=False, set_status_on_exception=False
        )
        return _OtelSpan(made, quiet, self._content)


class _OtelSpan(Span):
    def __init__(self, made: Any, quiet: tuple[type[BaseException], ...], content: bool) -> None:
        self._made = made
        self._quiet = quiet
        self._content = content
        self._span: Any = None

    def __enter__(self) -> _OtelSpan:
        self._span = self._made.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is not None and not isinstance(error, self._quiet):
            self._failed(type(error).__name__)
        # Not what the way out was: nothing of the exception itself may be told.
        self._made.__exit__(None, None, None)

    def _failed(self, kind: str) -> None:
        self._span.set_attribute(i.ERROR, kind)
        self._span.set_status(StatusCode.ERROR)

    def answered(self, answer: Any) -> None:
        told: dict[str, Any] = {INPUT_TOKENS: answer.usage.input, OUTPUT_TOKENS: answer.usage.output}
        if answer.model:
            told[RESPONSE_MODEL] = answer.model
        if self._content:
            told[OUTPUT_MESSAGES] = messages_as_text([answer.message])
        self._span.set_attributes(told)

    def returned(self, result: Any) -> None:
        if self._content:
            self._span.set_attribute(RESULT, as_text(result))

    def ended(self, result: Any, checkpoint: bytes | None) -> None:
        spent = result.spent
        told = {i.OUTCOME: result.status, INPUT_TOKENS: spent.input, OUTPUT_TOKENS: spent.output}
        if checkpoint is not None:
            told[CHECKPOINT_ID] = checkpoint.hex()
        self._span.set_attributes(told)
        if result.status in FAILURES:
            self._failed(result.status)


def _made(meter: Any, one: Instrument) -> Any:
    if one.kind == i.COUNTER:
        return meter.create_counter(one.name, unit=one.unit, description=one.about).add
    if one.kind == i.GAUGE:
        return meter.create_gauge(one.name, unit=one.unit, description=one.about).set
    return meter.create_histogram(
        one.name, unit=one.unit, description=one.about, explicit_bucket_boundaries_advisory=list(one.buckets)
    ).record
