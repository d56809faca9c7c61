"""A process that starts from nothing: what importing costs, and how soon a session is back. Beside LangGraph's."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from perdure.bench.floors import touch
from perdure.bench.report import Result
from perdure.bench.saves import store_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.bench.plan import Plan

ROOT = Path(__file__).resolve().parents[3]
"""The checkout: LangGraph's environment and its script are only there."""
PEERS = ROOT / ".venv-peers" / "bin" / "python"
SCRIPT = ROOT / "bench" / "langgraph_resume.py"

OPTIONAL = ("typer", "rich", "pydantic", "click", "hypothesis")
HEAVY = ("apsw", "asyncio", "msgspec", "zstandard")
"""No options, but not needed before something is opened either."""

_RESUME = """
import sys, perdure
with perdure.open(sys.argv[1]) as db, db.session(sys.argv[2]) as s:
    print(len(s.messages), sum(len(m["content"]) for m in s.messages))
"""
_LOADED = "import perdure, sys; print(*(m for m in sys.argv[1:] if m in sys.modules))"


def run(command: Sequence[str], cache: Path) -> tuple[float, str]:
    """Milliseconds from start to end of a process, and what it said."""
    # Byte code is there after the first turn, as it is after an installation, whatever this shell says about it.
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PERDURE_KEY")}
    env["PYTHONPYCACHEPREFIX"] = str(cache)
    start = perf_counter_ns()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    spent = (perf_counter_ns() - start) / 1e6
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr[-2000:]}")
    return spent, done.stdout.strip()


def in_turns(commands: dict[str, list[str]], times: int, folder: Path) -> tuple[dict[str, float], dict[str, str]]:
    """Median milliseconds of several commands that take turns, and what each said; the first turn warms up."""
    spent: dict[str, list[float]] = {name: [] for name in commands}
    said: dict[str, str] = {}
    for turn in range(times + 1):
        for name, command in commands.items():
            ms, said[name] = run(command, folder / "bytecode")
            if turn:
                spent[name].append(ms)
    return {name: statistics.median(values) for name, values in spent.items()}, said


def imports(folder: Path, plan: Plan) -> list[Result]:
    """What ``import perdure`` costs and what it pulls in."""
    python = sys.executable
    times, said = in_turns(
        {
            "bare": [python, "-c", "pass"],
            "import": [python, "-c", "import perdure"],
            "first_use": [python, "-c", "import perdure; perdure.open('memory://').close()"],
            "loaded": [python, "-c", _LOADED, *OPTIONAL, *HEAVY],
        },
        plan.colds,
        folder,
    )
    found = said["loaded"].split()
    optional = [m for m in found if m in OPTIONAL]
    detail = {
        "bare_python_ms": round(times["bare"], 1),
        "import_and_open_in_memory_ms": round(times["first_use"] - times["bare"], 1),
        "rounds": plan.colds,
    }
    return [
        Result("import.perdure_ms", max(0.0, times["import"] - times["bare"]), detail),
        Result(
            "import.optional_modules", len(optional), {"optional": optional, "others": [*set(found) - set(optional)]}
        ),
    ]


def resume(folder: Path, plan: Plan, *, peers: bool = True) -> list[Result]:
    """A new process imports, opens SQLite, takes the session and touches all of its messages."""
    messages = plan.messages(plan.session)
    url = store_session(folder, messages)
    python = sys.executable
    commands = {"bare": [python, "-c", "pass"], "ours": [python, "-c", _RESUME, url, "trip-42"]}
    missing = "not asked for" if not peers else _missing()
    if not missing:
        commands |= _langgraph(folder, messages)
    times, said = in_turns(commands, plan.colds, folder)
    wanted = f"{len(messages)} {touch(messages)}"
    wrong = [name for name, text in said.items() if text not in ("", wanted)]
    if wrong:
        raise AssertionError(f"{wrong[0]} read {said[wrong[0]]}, not {wanted}")
    ours = times["ours"] - times["bare"]
    detail: dict[str, Any] = {
        "messages": len(messages),
        "ours_ms": round(ours, 1),
        "bare_python_ms": round(times["bare"], 1),
        "rounds": plan.colds,
    }
    if missing:
        return [Result("cold.resume_vs_langgraph", None, {**detail, "langgraph": missing})]
    theirs = times["langgraph"] - times["bare_peers"]
    detail |= {
        "langgraph_ms": round(theirs, 1),
        "langgraph_saver_alone_ms": round(times["saver"] - times["bare_peers"], 1),
        "langgraph": "import, compile the graph, open SqliteSaver, get_state; saver alone: its get_tuple, no graph",
    }
    return [Result("cold.resume_vs_langgraph", theirs / ours, detail)]


def _missing() -> str:
    for path in (PEERS, SCRIPT):
        if not path.exists():
            return f"not measured: there is no {path.name} at its place; run `make peers` in a checkout"
    return ""


def _langgraph(folder: Path, messages: list[dict[str, Any]]) -> dict[str, list[str]]:
    source, target = folder / "messages.json", folder / "langgraph.db"
    source.write_text(json.dumps(messages), encoding="utf-8")
    python, script = str(PEERS), str(SCRIPT)
    run([python, script, "build", str(target), str(source)], folder / "bytecode")
    return {
        "bare_peers": [python, "-c", "pass"],
        "langgraph": [python, script, "resume", str(target)],
        "saver": [python, script, "saver", str(target)],
    }
