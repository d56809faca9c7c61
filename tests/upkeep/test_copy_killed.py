"""A copy that is killed with SIGKILL anywhere leaves a sound destination, and run again it ends as if it never was."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

import perdure
from tests.store_urls import STORES, url_of
from tests.upkeep.copies import everything, small, write_everything

if TYPE_CHECKING:
    from pathlib import Path

KINDS = [kind for kind in STORES if kind != "memory"]
PAIRS = [*pairwise(KINDS), (KINDS[-1], KINDS[0])]
DEATHS = 3

# Counts the named points that a copy passes, from the first one of its own on, and dies at one of them.
CHILD = """
import os, signal, sys
from perdure.system import faults
from perdure.cli.program import run

at, passed, begun = int(sys.argv[1]), 0, False

def hook(name):
    global passed, begun
    begun = begun or name.startswith(("copy.", "transfer."))
    passed += begun
    if passed == at and begun:
        os.kill(os.getpid(), signal.SIGKILL)

faults.hook = hook
code = run(["copy", *sys.argv[2:]])
print("passed", passed)
sys.exit(code)
"""


def copy(src: str, dst: str, die_at: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHILD, str(die_at), src, dst]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def prepare(src: str, early: str) -> None:
    """A source of a few sessions, and a store that has some of them, as they were earlier."""
    with perdure.open(src) as one, perdure.open(early) as two:
        write_everything(one, "busy", count=36)
        small(one, "early", "same")
        assert one.copy_to(two).copied == 3
        with one.session("busy") as s:
            s.messages.append([m.body for m in s.take()])
            s.commit()
            for n in range(130):
                s.vars["n"] = n
                s.commit()
            s.vars["large"] = "another " * 10_000
            s.commit()
            s.rewind(s.step - 3)
        small(one, "early")
        small(one, "a", "late", "z")
        write_everything(one, "new", seed=2, count=36)
        one.post("posted", "hello", key="k")


def begin(early: str, dst: str) -> None:
    with perdure.open(early, maintain=False) as one, perdure.open(dst, maintain=False) as two:
        assert one.copy_to(two).copied == 3


IDS = ["a", "busy", "early", "late", "new", "same", "z"]


@pytest.mark.parametrize(("kind", "other"), PAIRS)
def test_a_copy_killed_anywhere_and_run_again_is_complete(tmp_path: Path, kind: str, other: str):
    src, early = url_of(kind, tmp_path, "src"), url_of("sqlite", tmp_path, "early")
    prepare(src, early)
    with perdure.open(src, maintain=False) as db:
        wanted = {id: everything(db, id, 9) for id in IDS}
    trial = url_of(other, tmp_path, "trial")
    begin(early, trial)
    whole = copy(src, trial, 0)
    assert whole.returncode == 0, whole.stderr
    points = int(whole.stdout.split()[-1])
    assert points >= 20
    halfway = 0
    for death in range(DEATHS):
        dst = url_of(other, tmp_path, f"dst{death}")
        begin(early, dst)
        killed = copy(src, dst, 1 + death * (points - 1) // (DEATHS - 1))
        assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
        with perdure.open(dst, maintain=False) as db:
            assert db.verify().findings == ()
            there = {row.id for row in db.sessions()} & set(IDS)
            for id in there - {"busy", "early"}:
                assert everything(db, id, 9) == wanted[id], "a new session is there as a whole, or not at all"
            for id in ("busy", "early"):
                found = everything(db, id, 9)["digests"]
                assert found.items() <= wanted[id]["digests"].items(), "it is an earlier moment of the same session"
            halfway += there < set(IDS)
        again = copy(src, dst, 0)
        assert again.returncode == 0, again.stdout + again.stderr
        with perdure.open(dst, maintain=False) as db:
            assert {id: everything(db, id, 9) for id in IDS} == wanted
            assert [e.key for e in db.kernel.store.inbox("posted")] == ["k"]
            assert db.verify().findings == ()
    assert halfway >= 1
