"""The dashboard and the alerts: every measurement they ask for is one that a real run of an agent has made."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from perdure import telemetry
from perdure.telemetry import instruments, prometheus
from tests.deploy.files import DEPLOY, load
from tests.telemetry.scene import whole_life

METRIC = re.compile(r"\bperdure_\w+")
SELECTED = re.compile(r"(perdure_\w+)\{([^}]*)\}")
GROUPED = re.compile(r"\b(?:by|on) \(([^)]*)\)")


def panels() -> list[dict[str, Any]]:
    return json.loads((DEPLOY / "grafana/perdure.json").read_text(encoding="utf-8"))["panels"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in load(DEPLOY / "prometheus/alerts.yml")["groups"] for rule in group["rules"]]


def grafana_rule() -> dict[str, Any]:
    (group,) = load(DEPLOY / "grafana/alerting.yml")["groups"]
    (rule,) = group["rules"]
    return rule


def expressions() -> list[str]:
    asked = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    asked += [rule["expr"] for rule in rules()]
    return asked + [part["model"]["expr"] for part in grafana_rule()["data"] if "expr" in part["model"]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The names of all series after a real life of sessions, each with its labels."""
    telemetry.disable()
    prometheus.listening()
    asyncio.run(whole_life(tmp_path_factory.mktemp("life")))
    text = prometheus.render().decode()
    telemetry.disable()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_everything_asked_for_is_exported(exported: dict[str, set[str]]):
    asked = {name for expression in expressions() for name in METRIC.findall(expression)}
    assert len(asked) > 15
    assert asked - set(exported) == set()


def test_the_dashboard_shows_every_instrument_there_is():
    text = json.dumps(panels())
    assert [one.prometheus for one in instruments.ALL if one.prometheus not in text] == []


def test_labels_that_are_asked_for_are_there(exported: dict[str, set[str]]):
    for expression in expressions():
        for name, selectors in SELECTED.findall(expression):
            assert set(re.findall(r"(\w+)\s*(?:=~|=|!=|!~)", selectors)) <= exported[name], expression
        labels = set().union(*(exported[name] for name in METRIC.findall(expression)))
        for group in GROUPED.findall(expression):
            assert {label.strip() for label in group.split(",")} - {""} <= labels, expression
        assert expression.count("(") == expression.count(")")


def test_outcomes_and_states_that_are_asked_for_exist():
    from perdure.agent import run_result
    from perdure.protocols import Filter

    known = {value for name, value in vars(run_result).items() if name.isupper()} | {telemetry.FAILED, telemetry.OK}
    states = {"queued", "working", "waiting", "parked", "paused"}
    assert Filter(state="working").state in states
    for expression in expressions():
        for values in re.findall(r'outcome=~?"([^"]*)"', expression):
            assert set(values.split("|")) <= known, expression
        for values in re.findall(r'state=~?"([^"]*)"', expression):
            assert set(values.split("|")) <= states, expression


def test_there_is_an_alert_on_the_resume_rate_in_both_places():
    (rule,) = [r for r in rules() if r["alert"] == "PerdureResumesFail"]
    panel = next(p for p in panels() if p["title"] == "Resume rate")
    asked, _, limit = rule["expr"].strip().rpartition(" < ")
    assert limit == "0.997"
    assert panel["targets"][0]["expr"] == asked == grafana_rule()["data"][0]["model"]["expr"]
    assert [s["value"] for s in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]] == [None, 0.997]
    (limits,) = grafana_rule()["data"][1]["model"]["conditions"]
    assert limits["evaluator"] == {"type": "lt", "params": [0.997]}
    assert grafana_rule()["annotations"]["__panelId__"] == str(panel["id"])


def test_panels_do_not_overlap_and_have_ids_of_their_own():
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


@pytest.mark.parametrize("rule", rules(), ids=lambda r: r["alert"])
def test_every_alert_says_what_is_wrong_and_what_to_do(rule: dict[str, Any]):
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"]
    assert re.fullmatch(r"\d+m", rule["for"])
