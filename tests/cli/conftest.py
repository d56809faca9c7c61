"""What the tests of the command line share: a way to run a command, and a database to look at.

Whatever a command prints with ``--json`` is held against its declared schema, in every test that runs it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from tests.cli.schemas import check

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Command = Callable[..., "Result"]


class Result:
    """How a command ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        """What it printed, for programs."""
        return json.loads(self.out)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    # Not where the servers of the test run are written down: others would be started.
    for name in [n for n in os.environ if n.startswith("PERDURE_") and n != "PERDURE_TEST_SERVERS"]:
        monkeypatch.delenv(name)

    def do(*argv: str) -> Result:
        from perdure.cli.program import run

        capsys.readouterr()
        code = run(list(argv))
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        # Nobody looks at a pipe: no colours and nothing else that steers a terminal.
        assert "\x1b" not in out + err
        if "--json" in argv and out:
            # Whatever else a test is about: what is printed for programs is what was promised to them.
            check(argv[0], out)
        return Result(code, out, err)

    return do


@pytest.fixture
def trip(tmp_path: Path) -> Path:
    """A database with a session of a few steps, a branch and a tag, and an empty-handed second session."""
    path = tmp_path / "agents.db"
    with perdure.open(f"sqlite:///{path}") as db:
        with db.session("trip", owner="ana") as s:
            for city in ("Lisbon", "Porto", "Madrid"):
                s.messages.append({"role": "user", "content": f"a day in {city}"})
                s.vars["city"] = city
                s.commit(f"planned {city}")
            s.tag("early", at=1)
            s.fork("cheaper", at=2)
            s.switch("cheaper")
            s.vars["budget"] = 600
            s.commit()
        with db.session("visit", owner="bea", ttl=None) as s:
            s.vars["blob"] = b"\0\1"
            s.commit()
        db.post("trip", "hello")
    return path
