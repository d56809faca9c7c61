"""The port of a worker: measurements, and whether it lives and is ready."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from typing import Any

import pytest

import perdure
from perdure import telemetry
from perdure.telemetry import probes
from perdure.telemetry.prometheus import serve


def get(port: int, path: str, method: str = "GET") -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.headers["Content-Type"], e.read().decode()


def test_measurements_are_served():
    with serve(0) as port:
        with perdure.open("memory://") as db, db.session("a") as s:
            s.commit()
        status, kind, text = get(port.port, "/metrics")
        assert (status, kind.partition(";")[0]) == (200, "text/plain")
        assert 'perdure_checkpoint_size_bytes_count{kind="commit",store="memory"} 1.0' in text
        assert get(port.port, "/")[0] == 404
        assert get(port.port, "/metrics", "POST")[0] == 405
        assert get(port.port, "/metrics", "HEAD")[::2] == (200, "")


def test_what_nobody_has_measured_is_not_told():
    telemetry.disable()
    with serve(0) as port:
        assert "perdure_workers" not in get(port.port, "/metrics")[2]
        telemetry.beat(0, 20)
        assert "perdure_worker_busy 0.0" in get(port.port, "/metrics")[2]


def test_a_caller_that_says_nothing_keeps_nobody_waiting():
    with serve(0) as port, socket.create_connection(("127.0.0.1", port.port)):
        assert get(port.port, "/healthz")[0] == 200


def test_a_worker_is_ready_once_it_was_heard_of_and_not_when_it_goes():
    with serve(0) as port:
        assert get(port.port, "/healthz")[::2] == (200, "ok\n")
        assert get(port.port, "/readyz")[::2] == (503, "the worker has not reached its store yet\n")
        telemetry.beat(0, 20)
        assert get(port.port, "/readyz")[::2] == (200, "ok\n")
        telemetry.health.going()
        assert get(port.port, "/readyz")[::2] == (503, "the worker is going\n")
        assert get(port.port, "/healthz")[0] == 200


def test_a_store_that_is_down_makes_a_worker_unready_and_a_loop_that_stands_kills_it(monkeypatch: pytest.MonkeyPatch):
    now = [1000.0]
    monkeypatch.setattr(probes, "monotonic", lambda: now[0])
    telemetry.health.reset()
    telemetry.beat(0, 1)
    now[0] += probes.TOO_OLD + 1
    telemetry.health.turned()
    assert telemetry.health.alive() == ""
    assert telemetry.health.ready() == "no sign of life has reached the store for 31 s"
    now[0] += probes.STUCK + 1
    assert telemetry.health.alive() == "the worker's loop has not turned for 121 s"


@pytest.mark.parametrize("host", ["127.0.0.1", "no such host"])
def test_a_port_that_cannot_be_had_is_an_error_of_one_line(host: str):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port: Any = taken.getsockname()[1]
        with pytest.raises(perdure.InvalidInput, match=rf"metrics cannot be served on {host} port {port}") as e:
            serve(port, host)
    assert "\n" not in str(e.value)
