"""What came out: the report of a run, beside the goals.

The report is JSON, a table for people, or a page, and says on which machine it was measured.
"""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure._version import __version__
from perdure.bench.goals import MEASURES, meets
from perdure.bench.plan import SEED, raw_bytes, zstd_ratio
from perdure.system.disk import filesystem

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.bench.plan import Plan


class Result(NamedTuple):
    """A figure as it came out; the value is None when it could not be taken."""

    name: str
    value: float | None
    detail: dict[str, Any]
    steady: bool = True
    """False when the disk was so busy with others that the value says little."""

    @property
    def goal(self) -> str:
        """What it should be."""
        return MEASURES[self.name].goal

    @property
    def ok(self) -> bool:
        """Whether it is; never when the value is missing or cannot be true."""
        return self.value is not None and self.possible and meets(self.value, self.goal)

    @property
    def possible(self) -> bool:
        """Whether the value can be true at all."""
        return self.value is None or self.value >= MEASURES[self.name].least

    def as_json(self) -> dict[str, Any]:
        """The form that is printed."""
        value = None if self.value is None else round(self.value, 3)
        return {
            "name": self.name,
            "value": value,
            "goal": self.goal,
            "ok": self.ok,
            "steady": self.steady,
            **({} if self.possible else {"impossible": f"below {MEASURES[self.name].least}: measured wrongly"}),
            "what": MEASURES[self.name].words,
            "detail": self.detail,
        }


def machine(folder: Path) -> dict[str, Any]:
    """Facts the absolute times depend on."""
    import apsw
    import zstandard

    return {
        "perdure": __version__,
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "zstd": ".".join(str(n) for n in zstandard.ZSTD_VERSION),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "load_before": [round(x, 2) for x in os.getloadavg()],
        "filesystem": filesystem(folder) or "?",
    }


def as_json(suite: str, plan: Plan, facts: dict[str, Any], results: list[Result]) -> dict[str, Any]:
    """The whole report."""
    messages = plan.messages(plan.session)
    made = {
        "seed": SEED,
        "measured_on": len(messages),
        "mean_json_bytes": round(raw_bytes(messages) / len(messages)),
        "whole_file_zstd3": round(zstd_ratio(messages), 3),
    }
    return {
        "suite": suite,
        "plan": plan.name,
        "results": [r.as_json() for r in results],
        "messages": made,
        "machine": facts,
    }


def _verdict(result: dict[str, Any]) -> str:
    word = "WRONG" if "impossible" in result else "ok" if result["ok"] else "MISSED"
    return word if result["steady"] else f"{word} (disk unsteady: measure again when nobody else uses it)"


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def as_text(report: dict[str, Any]) -> str:
    """A table for a terminal."""
    rows = [(r["name"], _shown(r["value"]), r["goal"], _verdict(r)) for r in report["results"]]
    lines = [f"{name:<28} {value:>8}  {goal:>8}  {ok}" for name, value, goal, ok in rows]
    lines += ["", _line("messages", report["messages"]), _line("machine", report["machine"])]
    if report["plan"] == "quick":
        lines.append("quick: too short to mean anything; it only shows that every measurement runs")
    return "\n".join(lines)


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a page of the documentation."""
    lines = [
        f"# Benchmark: {report['suite']}",
        "",
        f"`perdure bench {report['suite']}`, {report['plan']} run. Each figure is a ratio taken in one run, both sides",
        "in turns. The floor is what a plain program does to keep one JSON message at the same durability.",
        "",
        "| figure | value | goal | met | what it is |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{r['name']}` | {_shown(r['value'])} | {r['goal']} | {_verdict(r)} | {r['what']} |"
        for r in report["results"]
    ]
    lines += ["", "## Behind the figures", ""]
    lines += [f"- `{r['name']}`: {_words(r['detail'])}" for r in report["results"]]
    lines += ["", "## Messages and machine", ""]
    lines += [f"- {_line('messages', report['messages'])}", f"- {_line('machine', report['machine'])}", ""]
    return "\n".join(lines)


def _line(name: str, facts: dict[str, Any]) -> str:
    return f"{name}: {_words(facts)}"


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_words(v)}" for k, v in value.items()) or "-"  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return " ".join(str(v) for v in value) or "none"  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    return str(value)
