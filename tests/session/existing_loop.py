"""One life of a loop of ``docs/howto/existing-loop.md``, in a process of its own: a zygote's child, killed at a point.

Run as ``python -m tests.session.existing_loop``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import perdure
from perdure.system import faults
from tests.campaigns.crash.zygote import BROKE, count_points, die_at, serve

if TYPE_CHECKING:
    from collections.abc import Callable

SESSION, MESSAGE = "order-A7", "Where is A-7?"
URL = "sqlite:///agents.db"


def _watched(what: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Passes a point before and after it, where a kill is interesting."""

    def watched(*args: Any, **kwargs: Any) -> Any:
        faults.point(f"{what}.entered")
        result = fn(*args, **kwargs)
        faults.point(f"{what}.done")
        return result

    return watched


def _live(job: dict[str, Any]) -> str:
    os.chdir(job["folder"])
    sys.path.insert(0, job["folder"])
    desk: Any = importlib.import_module("desk")
    for name in ("refund", "ask_model"):
        setattr(desk, name, _watched(name, getattr(desk, name)))
    program: Any = importlib.import_module(job["program"])
    if job["program"] == "before":
        return program.run_session(SESSION, MESSAGE)
    with perdure.open(URL) as db, db.session(SESSION) as s:
        return s.run("first", program.run_session, MESSAGE)


def _child(job: dict[str, Any], ready: int) -> int:
    told: dict[str, Any] = {}
    try:
        warnings.simplefilter("ignore")
        passed = count_points()
        if "point" in job:
            die_at(job["point"], job["hit"])
        told = {"text": _live(job), "points": passed}
    except BaseException:
        told = {"problem": traceback.format_exc()}
    faults.hook = None
    Path(job["folder"], "told.json").write_text(json.dumps(told), encoding="utf-8")
    return BROKE if "problem" in told else 0


if __name__ == "__main__":
    serve(_child)
