"""What the library tells about itself: measurements and spans. Off until somebody listens, and nearly free until then.

The parts call the functions below where something happens. They know no exporter: whoever listens is a sink, and
``otel`` and ``prometheus`` are the two there are; neither is imported before it is asked for.
"""

from __future__ import annotations

import os
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, Self

from perdure.errors import InvalidInput, NotFound
from perdure.telemetry import instruments as i
from perdure.telemetry.probes import Health

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.telemetry.instruments import Instrument

VARIABLE = "PERDURE_TELEMETRY"
"""Names who listens, for programs that do not say it themselves: otel, prometheus, or both with a comma."""
CONTENT = "PERDURE_TELEMETRY_CONTENT"
"""1: spans also tell what was said, and what tools were given and returned."""
OTEL, PROMETHEUS = "otel", "prometheus"
OFF = ("", "off", "0", "none")
OK, FAILED = "ok", "error"


class Sink(Protocol):
    """Whoever listens to measurements. Called from any thread; must neither block nor raise."""

    def record(self, instrument: Instrument, value: float, attributes: Mapping[str, str]) -> None:
        """Count ``value`` more of a counter, add it to a histogram, or set a gauge to it."""
        ...


class Span:
    """Something that takes time, as it is told to whoever traces; this one is told to nobody."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        pass

    def answered(self, answer: Any) -> None:
        """A model has answered."""

    def returned(self, result: Any) -> None:
        """A tool has returned."""

    def ended(self, result: Any, checkpoint: bytes | None) -> None:
        """A run has ended, or waits."""


class Tracing:
    """Whoever makes spans; this one makes none."""

    def invoke_agent(self, agent: str, session: str, branch: str, resumed_from: bytes | None) -> Span:
        """One run of an agent."""
        return NOTHING

    def chat(self, agent: str, session: str, request: Any) -> Span:
        """One request to a model."""
        return NOTHING

    def execute_tool(
        self, tool: str, session: str, args: Any, call: Mapping[str, Any], quiet: tuple[type[BaseException], ...] = ()
    ) -> Span:
        """One call of a tool; ``call`` is its record in the journal, ``quiet`` are exceptions that are no failure."""
        return NOTHING

    def checkpoint(self, id: bytes, step: int) -> None:
        """A commit has landed."""


NOTHING = Span()
sinks: tuple[Sink, ...] = ()
"""Whoever listens. Empty: places that would have to measure time do not."""
tracing = Tracing()
health = Health()
"""What the probes of a worker are answered from."""
_named: dict[str, Sink] = {}
_lock = threading.Lock()
_recovering: dict[str, float] = {}


# -- switching on and off -----------------------------------------------------------------------------------------


def enable(*names: str, content: bool | None = None, tracer_provider: Any = None, meter_provider: Any = None) -> None:
    """Listen: "otel" (the default) through your OpenTelemetry providers, "prometheus" for ``prometheus.render``.

    ``content`` puts what was said into spans; without it they tell who, when, how long and how many tokens.
    Asked for again it changes nothing but ``content`` and the providers.
    """
    global sinks, tracing  # noqa: PLW0603 - the switch everybody looks at
    wanted = names or (OTEL,)
    if unknown := [name for name in wanted if name not in (OTEL, PROMETHEUS)]:
        raise InvalidInput(f"telemetry goes to {OTEL} or {PROMETHEUS}, not to {unknown[0]!r:.40}")
    shown = os.environ.get(CONTENT, "") == "1" if content is None else content
    with _lock:
        for name in wanted:
            if name == OTEL:
                from perdure.telemetry.otel import Otel

                _named[OTEL] = tracing = Otel(tracer_provider, meter_provider, content=shown)
            elif name not in _named:
                from perdure.telemetry.prometheus import Prometheus

                _named[PROMETHEUS] = Prometheus()
        sinks = tuple(_named.values())


def disable() -> None:
    """Tell nobody any more; what was counted is forgotten."""
    global sinks, tracing
    with _lock:
        _named.clear()
        _recovering.clear()
        sinks, tracing = (), Tracing()


def enable_from_environment() -> None:
    """Listen as the variable ``PERDURE_TELEMETRY`` says; done whenever a database is opened."""
    value = os.environ.get(VARIABLE, "")
    if value in OFF:
        return
    names = [name.strip() for name in value.split(",")]
    if missing := [name for name in names if name not in _named]:
        try:
            enable(*missing)
        except InvalidInput as e:
            raise InvalidInput(f"{VARIABLE}: {e}") from None


def listener(name: str) -> Sink | None:
    """The sink of that name, if it listens."""
    return _named.get(name)


def record(instrument: Instrument, value: float = 1, attributes: Mapping[str, str] | None = None) -> None:
    """Tell everybody who listens, if anybody does; whatever goes wrong there stays there."""
    for sink in sinks:
        try:
            sink.record(instrument, value, attributes or {})
        except Exception:
            import logging

            # A commit that has landed must not fail because it could not be counted.
            logging.getLogger("perdure.telemetry").warning(
                "%s could not be recorded by %s", instrument.name, type(sink).__name__, exc_info=True
            )


# -- what happens in sessions -------------------------------------------------------------------------------------


def committed(session: str, item: Any, seconds: float, url: str) -> None:
    """A commit has landed ``seconds`` after it was handed to the store."""
    about = {i.STORE: url.partition(":")[0], i.KIND: item.kind}
    record(i.CHECKPOINT_DURATION, seconds, about)
    record(i.CHECKPOINT_SIZE, len(item.envelope) + len(item.payload), about)
    if _recovering and (died := _recovering.pop(session, None)) is not None:
        record(i.RECOVERY, max(0.0, monotonic() - died))
    tracing.checkpoint(item.id, item.step)


def resumed(status: str) -> None:
    """A session that was there was opened with its lease; ``status`` is where it stood."""
    record(i.RESUMES, 1, {i.STATUS: status, i.OUTCOME: OK})


def not_resumed(error: BaseException) -> None:
    """A session that was there could not be opened. What the caller got wrong is no failure of ours."""
    if isinstance(error, Exception) and not isinstance(error, InvalidInput | NotFound):
        record(i.RESUMES, 1, {i.OUTCOME: FAILED, i.ERROR: type(error).__name__})


def replayed(tool: str, source: str) -> None:
    """A recorded outcome was used: of the "journal", of another "branch", or of the "cache"."""
    record(i.REPLAYS, 1, {i.TOOL: tool, i.SOURCE: source})


def doubted(tool: str) -> None:
    """A call was started, and nobody knows whether it happened."""
    record(i.IN_DOUBT, 1, {i.TOOL: tool})


def asked(tool: str) -> None:
    """Somebody is asked to agree to a call."""
    record(i.APPROVAL_REQUESTS, 1, {i.TOOL: tool})


def decided(request: Mapping[str, Any], now: int) -> None:
    """What became of a request for approval is known."""
    waited = max(0, (request["decided"] or now) - request["asked"]) / 1000
    record(i.APPROVAL_WAIT, waited, {i.TOOL: request["tool"], i.DECISION: request["status"]})


# -- what agents do -----------------------------------------------------------------------------------------------


def ended(agent: str, outcome: str) -> None:
    """A run of an agent has ended, or waits for something."""
    record(i.OUTCOMES, 1, {i.AGENT: agent, i.OUTCOME: outcome})


# -- what a fleet does --------------------------------------------------------------------------------------------


def took_over(session: str, idle: float) -> None:
    """A session was claimed whose worker had died; its last commit is ``idle`` seconds old.

    Its recovery ends with its next commit in this process.
    """
    if sinks:
        record(i.TAKEOVERS)
        _recovering[session] = monotonic() - idle


def let_go(session: str) -> None:
    """A session that was taken over was put down without a commit."""
    _recovering.pop(session, None)


def beat(busy: int, slots: int) -> None:
    """This worker's sign of life has reached the store."""
    health.beaten()
    record(i.HEARTBEATS)
    record(i.BUSY, busy)
    record(i.SLOTS, slots)
