"""The benchmarks run, promise what the project promises, and say it in the agreed form. Never how long things take."""

import json
from pathlib import Path
from typing import Any

import pytest

from perdure import bench
from perdure.bench.floors import take_turns
from perdure.bench.goals import COLD, KERNEL, STORES
from perdure.bench.plan import make_messages, raw_bytes, zstd_ratio
from perdure.bench.report import MEASURES, Result, meets

PROMISED = {
    "sqlite.save_vs_floor.sync": "<= 1.3",
    "sqlite.save_vs_floor.async": "<= 2.2",
    "sqlite.late_vs_early": "<= 1.2",
    "sqlite.late_vs_early.p99": "<= 1.5",
    "sqlite.stored_vs_raw": "<= 0.6",
    "sqlite.load_vs_floor": "<= 0.5",
    "sqlite.open_step_vs_head": "<= 2",
    "sqlite.fleet_vs_unbatched": ">= 3",
    "file.save_vs_floor": "<= 1.25",
    "cold.resume_vs_langgraph": ">= 8",
    "import.perdure_ms": "< 150",
    "import.optional_modules": "== 0",
    "postgres.save_vs_floor": "<= 1.6",
    "redis.save_vs_floor": "<= 1.4",
    "tiered.save_vs_postgres": "<= 1.2",
    "tiered.load_vs_postgres": "<= 0.8",
    "postgres.late_vs_early": "<= 1.2",
    "postgres.stored_vs_raw": "<= 0.9",
    "postgres.fleet_vs_unbatched": ">= 4",
}


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert bench.main([*argv]) == 0
    return json.loads(capsys.readouterr().out)


def values(report: dict[str, Any]) -> dict[str, float | None]:
    return {result["name"]: result["value"] for result in report["results"]}


def test_the_goals_are_those_that_were_promised():
    assert {name: measure.goal for name, measure in MEASURES.items()} == PROMISED


def test_the_kernel_suite_measures_every_figure_it_promises(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    report = printed(
        capsys, "kernel", "--json", "--quick", "--without-peers", f"--dir={tmp_path}", f"--out={tmp_path / 'out'}"
    )
    assert report["suite"] == "kernel"
    assert set(values(report)) >= set(KERNEL)
    for result in report["results"]:
        assert {"name", "value", "goal", "ok"} <= set(result)
        assert result["goal"] == PROMISED[result["name"]]
        assert result["ok"] == (meets(result["value"], result["goal"]) and "impossible" not in result)
        assert result["value"] > 0 or result["name"].startswith("import.")
    assert 0.2 < report["messages"]["whole_file_zstd3"] < 0.5
    assert {"cpus", "python", "sqlite", "filesystem"} <= set(report["machine"])
    assert json.loads((tmp_path / "out/bench-kernel.json").read_text(encoding="utf-8")) == report
    page = (tmp_path / "out/bench-kernel.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in values(report))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_cold_suite_shows_what_it_could_not_measure(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    report = printed(capsys, "cold", "--json", "--quick", "--without-peers", f"--dir={tmp_path}")
    assert set(values(report)) == set(COLD)
    found = {result["name"]: result for result in report["results"]}
    assert found["cold.resume_vs_langgraph"]["value"] is None
    assert not found["cold.resume_vs_langgraph"]["ok"]
    assert found["cold.resume_vs_langgraph"]["detail"]["ours_ms"] != 0
    # Not a matter of time: nothing optional is loaded by the import, nor what is only needed to open something.
    assert found["import.optional_modules"]["ok"]
    assert found["import.optional_modules"]["detail"] == {"optional": [], "others": []}


def test_a_report_for_people_names_every_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert bench.main(["cold", "--quick", "--without-peers", f"--dir={tmp_path}"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COLD)
    assert "MISSED" in text


def test_a_missed_goal_is_not_ok_and_neither_is_a_missing_value():
    assert not Result("sqlite.stored_vs_raw", 0.61, {}).ok
    assert Result("sqlite.stored_vs_raw", 0.6, {}).ok
    assert not Result("cold.resume_vs_langgraph", None, {}).ok


def test_a_commit_faster_than_the_floor_is_a_wrong_measurement_not_a_good_one():
    wrong = Result("sqlite.save_vs_floor.async", 0.342, {})
    assert not wrong.ok
    assert "impossible" in wrong.as_json()
    assert Result("sqlite.save_vs_floor.async", 1.4, {}).ok


def test_turns_compare_operations_of_the_same_moment():
    # A disk that is fast, then slow: both sides meet both, so the ratio stays what it is.
    moments = iter([100] * 80 + [4000] * 80)
    turns = take_turns(lambda: next(moments), lambda: next(moments) * 2, 80, 10)
    assert turns.ratio() == 2
    assert not turns.steady()


def test_messages_are_the_same_every_time_and_look_like_a_conversation():
    messages = make_messages(300)
    assert messages == make_messages(300)
    assert {"user", "assistant", "tool"} == {message["role"] for message in messages}
    assert any("tool_calls" in message for message in messages)
    assert 900 < raw_bytes(messages) / len(messages) < 1150
    assert 0.25 < zstd_ratio(messages) < 0.45


def test_the_stores_suite_measures_every_figure_on_real_servers(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    report = printed(capsys, "stores", "--json", "--quick", f"--dir={tmp_path}")
    assert set(values(report)) == set(STORES)
    assert all(value is not None and value > 0 for value in values(report).values())
    by_name = {result["name"]: result["detail"] for result in report["results"]}
    assert by_name["redis.save_vs_floor"]["appendfsync"] == "always"
    assert by_name["postgres.save_vs_floor"]["reported_elsewhere_ms"] == 45
