"""Nobody is told anything until somebody asks for it, and nothing is imported for it either."""

from __future__ import annotations

import subprocess
import sys

import pytest

import perdure
from perdure import telemetry
from perdure.telemetry import prometheus

LOADED = """
import sys, perdure
with perdure.open("memory://") as db, db.session("a") as s:
    s.commit()
    s.call(perdure.tool(lambda: 1, name="one", read=True))
print([m for m in ("opentelemetry", "prometheus_client", "wsgiref", "logging") if m in sys.modules])
"""


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    import os

    told = {**os.environ, **env}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=told, check=False)


def test_nothing_is_listening_and_nothing_is_loaded_by_default():
    assert telemetry.sinks == ()
    assert telemetry.tracing.invoke_agent("a", "b", "main", None) is telemetry.NOTHING
    found = python(LOADED, PERDURE_TELEMETRY="")
    assert found.stdout.strip() == "[]", found.stderr


def test_the_environment_switches_it_on_when_a_database_is_opened():
    found = python(LOADED + "from perdure import telemetry; print(len(telemetry.sinks))", PERDURE_TELEMETRY="otel")
    assert "opentelemetry" in found.stdout, found.stderr
    assert "prometheus_client" not in found.stdout
    assert found.stdout.endswith("1\n")


def test_an_unknown_listener_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(telemetry.VARIABLE, "statsd")
    with pytest.raises(perdure.InvalidInput, match="PERDURE_TELEMETRY: telemetry goes to otel or prometheus"):
        perdure.open("memory://")


def test_enabling_again_keeps_what_was_counted():
    telemetry.enable("prometheus")
    telemetry.doubted("pay")
    telemetry.enable("prometheus", "otel")
    assert b'perdure_effect_in_doubt_total{tool="pay"} 1.0' in prometheus.render()
    assert len(telemetry.sinks) == 2
    telemetry.disable()
    assert b'tool="pay"' not in prometheus.render()


@pytest.mark.parametrize("module", ["otel", "prometheus"])
def test_a_missing_library_names_what_to_install(module: str):
    blocked = "opentelemetry" if module == "otel" else "prometheus_client"
    code = f"import sys; sys.modules[{blocked!r}] = None\nfrom perdure import telemetry\ntelemetry.enable({module!r})"
    assert 'pip install "perdure[telemetry]"' in python(code).stderr
