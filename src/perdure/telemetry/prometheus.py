"""The same measurements as Prometheus reads them, and a worker's small HTTP port that gives them.

They are in a registry of our own: no other library's are in it. The port answers ``/metrics`` for Prometheus, and
``/healthz`` and ``/readyz`` for whoever runs the worker.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from perdure import telemetry
from perdure._version import __version__
from perdure.errors import InvalidInput, MissingExtra
from perdure.telemetry import instruments as i

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from perdure.telemetry.instruments import Instrument

try:
    import prometheus_client as client
except ImportError as error:
    raise MissingExtra("prometheus-client", "telemetry", error) from None

CONTENT_TYPE: str = client.CONTENT_TYPE_LATEST


class Prometheus:
    """Measurements kept in this process until somebody asks for them."""

    def __init__(self) -> None:
        self.registry = client.CollectorRegistry()
        # Of a gauge without labels the client gives 0 until it is set: one that nobody here measures is not there.
        self._of = {one.name: self._made(one) for one in i.ALL if one.kind != i.GAUGE}
        self._making = threading.Lock()
        client.Info("perdure_build", "The version of the library", registry=self.registry).info(
            {"version": __version__}
        )

    def record(self, instrument: Instrument, value: float, attributes: Mapping[str, str]) -> None:
        """Add to a counter or a histogram, or set a gauge."""
        metric = self._of.get(instrument.name) or self._first(instrument)
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

    def _first(self, one: Instrument) -> Any:
        with self._making:
            if one.name not in self._of:
                self._of[one.name] = self._made(one)
            return self._of[one.name]

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


def listening() -> Prometheus:
    """The sink that keeps measurements for Prometheus; it begins to listen when it did not."""
    telemetry.enable(telemetry.PROMETHEUS)
    sink = telemetry.listener(telemetry.PROMETHEUS)
    assert isinstance(sink, Prometheus)
    return sink


TEXT = "text/plain; charset=utf-8"
PATIENCE = 5.0
"""Seconds that a caller may take for its request."""


class Serving:
    """The open port. Close it, or use it as a context manager."""

    def __init__(self, server: WSGIServer) -> None:
        self.port: int = server.server_port
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, name="perdure-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def serve(port: int, host: str = "127.0.0.1") -> Serving:
    """Answer ``/metrics``, ``/healthz`` and ``/readyz`` on a port (0: any free one), by default to this machine."""
    listening()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    kind = type("Server", (_Server,), {"address_family": family})
    try:
        return Serving(make_server(host, port, _app, server_class=kind, handler_class=_Quiet))
    except (OSError, OverflowError) as e:
        raise InvalidInput(f"metrics cannot be served on {host} port {port}: {e}; name another one") from None


def _app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    kind, status = TEXT, "200 OK"
    path, method = environ.get("PATH_INFO", ""), environ.get("REQUEST_METHOD", "")
    if method not in ("GET", "HEAD"):
        status, body = "405 Method Not Allowed", b"only GET\n"
    elif path == "/metrics":
        kind, body = CONTENT_TYPE, render()
    elif path in ("/healthz", "/readyz"):
        wrong = telemetry.health.alive() if path == "/healthz" else telemetry.health.ready()
        status = "503 Service Unavailable" if wrong else status
        body = f"{wrong or 'ok'}\n".encode()
    else:
        status, body = "404 Not Found", b"there are /metrics, /healthz and /readyz\n"
    start(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [] if method == "HEAD" else [body]


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """A thread for each caller: one that connects and says nothing keeps no probe waiting."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller who went away is no news."""

    def server_bind(self) -> None:
        # Not the base's: it asks a name server who we are.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Quiet(WSGIRequestHandler):
    timeout = PATIENCE

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds."""

    def address_string(self) -> str:
        """Who asks, as a number: a name server is not asked either."""
        return str(self.client_address[0])
