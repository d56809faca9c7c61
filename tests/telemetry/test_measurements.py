"""Measurements, as Prometheus and the OpenTelemetry SDK read them, of a real life of sessions on a real store."""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

import perdure
from perdure import Agent, ScriptedModel, calls, telemetry, tool
from perdure.system import faults
from perdure.telemetry import instruments, prometheus
from perdure.telemetry.sampling import Sampler
from perdure.testing.clock import FakeClock
from tests.telemetry.scene import SESSION, ask_again, ask_for_refund, pay, refund, shop, whole_life

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from prometheus_client.samples import Sample

ID = re.compile(r"[0-9a-f]{16,}|ef_|ap_|call_")


def samples() -> list[Sample]:
    families = text_string_to_metric_families(prometheus.render().decode())
    return [s for family in families for s in family.samples]


def total(name: str, **labels: str) -> float:
    """The sum of a series over all labels that are not named."""
    found = [s for s in samples() if s.name == name and labels.items() <= s.labels.items()]
    return sum(s.value for s in found)


def test_everything_that_happens_is_measured(tmp_path: Path):
    prometheus.listening()
    asyncio.run(whole_life(tmp_path))
    assert total("perdure_checkpoint_duration_seconds_count", store="sqlite", kind="commit") > 3
    sizes = total("perdure_checkpoint_size_bytes_sum") / total("perdure_checkpoint_size_bytes_count")
    assert 100 < sizes < 10_000
    assert total("perdure_resumes_total", outcome="ok", status="waiting_approval") == 1
    assert total("perdure_resumes_total", outcome="ok", status="idle") >= 2
    assert total("perdure_resumes_total", outcome="error") == 0
    assert total("perdure_effect_replays_total", tool="look_up", source="cache") == 1
    assert total("perdure_effect_replays_total", tool="pay", source="journal") == 1
    assert total("perdure_effect_in_doubt_total", tool="send_mail") == 1
    assert total("perdure_approval_requests_total", tool="refund") == 1
    assert total("perdure_approval_wait_duration_seconds_count", tool="refund", decision="approved") == 1
    assert total("perdure_session_outcomes_total", agent="shop", outcome="done") == 2
    assert total("perdure_session_outcomes_total", agent="shop", outcome="waiting_approval") == 1
    assert total("perdure_session_outcomes_total", agent="shop", outcome="in_doubt") == 1
    assert total("perdure_recovery_duration_seconds_count") == 1
    assert total("perdure_recovery_duration_seconds_sum") >= 1.5
    assert total("perdure_worker_takeovers_total") == 1
    assert total("perdure_worker_heartbeats_total") == 1
    assert total("perdure_session_in_doubt") == 1
    assert total("perdure_sessions", agent="clerk", state="queued") == 1
    assert (total("perdure_session_stuck", agent="clerk"), total("perdure_session_stuck", agent="shop")) == (1, 0)
    assert total("perdure_queue_length") == 2
    assert total("perdure_workers") == 1
    assert total("perdure_worker_busy") == 3


def test_a_session_whose_time_is_over_waits_for_nobodys_agreement_although_no_sweep_came_by(tmp_path: Path):
    prometheus.listening()
    clock = FakeClock()

    @tool(approve=True)
    def grant(to: str) -> str:
        return to

    agent = Agent("desk", model=ScriptedModel([calls(("grant", {"to": "ana"}))]), tools=[grant])

    async def work() -> None:
        async with perdure.open_async(f"sqlite:///{tmp_path}/agents.db", clock=clock, maintain=False) as db:
            await agent.run(db, session="s", message="go", ttl=3600)
            for standing in (1, 0):
                Sampler(db.kernel.store).sample()
                assert total("perdure_approval_pending") == standing
                # The request stays open for seven days, and keeps its session.
                clock.advance(8 * 86_400_000)

    asyncio.run(work())


def test_no_label_names_a_session_a_run_or_a_checkpoint(tmp_path: Path):
    prometheus.listening()
    asyncio.run(whole_life(tmp_path))
    told = {value for s in samples() for name, value in s.labels.items() if name not in ("le", "version")}
    assert not [value for value in told if ID.search(value)]
    assert not told & {SESSION, "mail", "bills", "july", "ana", "w1"}


def test_the_names_of_the_instruments_are_those_that_were_promised():
    promised = {
        "perdure.checkpoint.duration", "perdure.checkpoint.size", "perdure.resumes", "perdure.effect.replays",
        "perdure.effect.in_doubt", "perdure.approval.pending", "perdure.approval.wait.duration",
        "perdure.session.outcomes",
    }  # fmt: skip
    assert promised <= {one.name for one in instruments.ALL}
    assert {name for one in instruments.ALL for name in one.attributes} <= set(instruments.LABELS)


def test_opentelemetry_gets_the_same_numbers(tmp_path: Path):
    reader = InMemoryMetricReader()
    telemetry.enable("otel", "prometheus", meter_provider=MeterProvider([reader]))
    asyncio.run(whole_life(tmp_path))
    data: Any = reader.get_metrics_data()
    found = {m.name: m for r in data.resource_metrics for scope in r.scope_metrics for m in scope.metrics}
    assert set(found) == {one.name for one in instruments.ALL}
    assert found["perdure.checkpoint.duration"].unit == "s"
    assert found["perdure.checkpoint.size"].unit == "By"
    points = found["perdure.checkpoint.duration"].data.data_points
    assert sum(p.count for p in points) == total("perdure_checkpoint_duration_seconds_count")
    assert points[0].explicit_bounds == instruments.CHECKPOINT_DURATION.buckets
    ended = {tuple(sorted(p.attributes.items())): p.value for p in found["perdure.session.outcomes"].data.data_points}
    assert ended[(("gen_ai.agent.name", "shop"), ("perdure.outcome", "done"))] == 2
    resumes = found["perdure.resumes"].data.data_points
    assert {p.attributes.get("error.type") for p in resumes} == {None}


def test_a_session_that_cannot_be_opened_is_a_failed_resume(tmp_path: Path):
    prometheus.listening()
    url = f"sqlite:///{tmp_path / 'agents.db'}"
    with perdure.open(url, schema="1.0.0") as db, db.session("a", owner="ana") as s:
        s.commit()
    with perdure.open(url, schema="9.0.0") as db, pytest.raises(perdure.Incompatible):
        db.session("a")
    with perdure.open(url) as db, pytest.raises(perdure.InvalidInput):
        db.session("a", owner="ben")
    assert total("perdure_resumes_total", outcome="error", error_type="Incompatible") == 1
    assert total("perdure_resumes_total") == 1


def test_a_call_found_started_is_doubted_once_and_what_is_made_again_counts_no_replay(tmp_path: Path):
    prometheus.listening()
    with perdure.open(f"sqlite:///{tmp_path / 'agents.db'}") as db:
        _started(db, "a")
        with db.session("a") as s:
            assert s.call(pay.options(key="1"), 3) == "paid 3"
    assert total("perdure_effect_in_doubt_total", tool="pay") == 1
    assert total("perdure_effect_replays_total") == 0


def _started(db: perdure.Database, session: str) -> None:
    """Leave a call behind that was written as started, as a killed process does."""
    with _dying("call.after_started"), db.session(session) as s:
        s.call(pay.options(key="1"), 3)


@contextmanager
def _dying(where: str) -> Generator[None]:
    def die(name: str) -> None:
        if name == where:
            raise KeyboardInterrupt

    faults.hook = die
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        faults.hook = None


def test_a_decision_counts_once_however_often_it_is_acted_upon():
    prometheus.listening()
    with perdure.open("memory://") as db, db.session("a") as s:
        with pytest.raises(perdure.ApprovalNeeded) as asked:
            s.call(refund, "A-1")
        db.approve("a", asked.value.approval.id, by="ben")
        with _dying("call.before_started"):
            s.call(refund, "A-1")
        assert s.call(refund, "A-1") == "refunded A-1"
    assert total("perdure_approval_wait_duration_seconds_count", tool="refund", decision="approved") == 1


@pytest.mark.parametrize("decision", ["approved", "rejected"])
def test_how_long_people_take_is_measured_by_the_clock_of_the_session(decision: str):
    prometheus.listening()
    clock = FakeClock()

    async def work() -> None:
        async with perdure.open_async("memory://", clock=clock) as db:
            waiting = await ask_for_refund(db)
            clock.advance(90_000)
            decide = db.approve if decision == "approved" else db.reject
            await decide(SESSION, waiting.approvals[0].id, by="ben")
            clock.advance(5_000)
            await ask_again(db)

    asyncio.run(work())
    assert total("perdure_approval_wait_duration_seconds_sum", decision=decision) == 90


def test_a_listener_that_fails_spoils_no_commit(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    class Broken:
        def record(self, *_: object) -> None:
            raise RuntimeError("the disk of the exporter is full")

    monkeypatch.setattr(telemetry, "sinks", (Broken(),))
    with perdure.open("memory://") as db, db.session("a") as s:
        s.vars["x"] = 1
        assert s.commit().step == 1
    assert "perdure.checkpoint.duration could not be recorded" in caplog.text


def test_a_run_that_raises_is_an_outcome_too():
    prometheus.listening()

    def broken(_: Any) -> str:
        raise RuntimeError("a bug in a client")

    async def work() -> None:
        async with perdure.open_async("memory://") as db:
            await shop(broken).run(db, session="a", message="hi")

    with pytest.raises(RuntimeError):
        asyncio.run(work())
    assert total("perdure_session_outcomes_total", agent="shop", outcome="error") == 1
