"""The same measurements as Prometheus reads them, in a registry of our own: no other library's are in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import telemetry
from perdure._version import __version__
from perdure.errors import MissingExtra
from perdure.telemetry import instruments as i

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.telemetry.instruments import Instrument
    from perdure.telemetry.serving import Serving

try:
    import prometheus_client as client
except ImportError:
    raise MissingExtra("prometheus-client", "telemetry") from None

CONTENT_TYPE: str = client.CONTENT_TYPE_LATEST


class Prometheus:
    """Measurements kept in this process until somebody asks for them."""

    def __init__(self) -> None:
        self.registry = client.CollectorRegistry()
        self._of = {one.name: self._made(one) for one in i.ALL}
        client.Info("perdure_build", "The version of the library", registry=self.registry).info(
            {"version": __version__}
        )

    def record(self, instrument: Instrument, value: float, attributes: Mapping[str, str]) -> None:
        """Add to a counter or a histogram, or set a gauge."""
        metric = self._of[instrument.name]
        if instrument.attributes:
            metric = metric.labels(*[attributes.get(name, "") for name in instrument.attributes])
        if instrument.kind == i.COUNTER:
            metric.inc(value)
        elif instrument.kind == i.GAUGE:
            metric.set(value)
        else:
            metric.observe(value)

    def render(self) -> bytes:
        """Everything as text."""
        return client.generate_latest(self.registry)

    def _made(self, one: Instrument) -> Any:
        labels = tuple(i.LABELS[name] for name in one.attributes)
        if one.kind == i.COUNTER:
            return client.Counter(one.prometheus, one.about, labels, registry=self.registry)
        if one.kind == i.GAUGE:
            return client.Gauge(one.prometheus, one.about, labels, registry=self.registry)
        return client.Histogram(one.prometheus, one.about, labels, registry=self.registry, buckets=one.buckets)


def render() -> bytes:
    """What was measured so far, as text for Prometheus; the first call begins to listen."""
    return listening().render()


def serve(port: int, host: str = "127.0.0.1") -> Serving:
    """Answer ``/metrics``, ``/healthz`` and ``/readyz`` on a port (0: any free one), by default to this machine."""
    from perdure.telemetry import serving

    return serving.serve(port, host)


def listening() -> Prometheus:
    """The sink that keeps measurements for Prometheus; it begins to listen when it did not."""
    telemetry.enable(telemetry.PROMETHEUS)
    sink = telemetry.listener(telemetry.PROMETHEUS)
    assert isinstance(sink, Prometheus)
    return sink
