"""The command line and the library, side by side: what one can do, the other can, and the reference says where."""

from __future__ import annotations

import asyncio
import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

import perdure
from perdure.cli.program import app
from perdure.fleet.board import board_of
from perdure.fleet.status import steer
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md").read_text("utf-8")
PART = PAGE.partition("\n## The same in Python\n")[2].partition("\n## ")[0]
ROWS = dict(re.findall(r"^\| `([\w-]+)` \| (.+) \|$", PART, re.M))
NAMED = set(re.findall(r"`(perdure\.[\w.]+)`", PART))


def found(path: str) -> Any:
    """What a dotted path names."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            value = getattr(value, part)
        return value
    raise AssertionError(path)


def public(kind: type) -> Iterable[str]:
    return (name for name in dir(kind) if not name.startswith("_"))


def test_every_command_has_a_function_that_is_there_or_says_why_not():
    assert sorted(ROWS) == sorted(get_command(app).commands)  # type: ignore[attr-defined]
    for command, said in ROWS.items():
        assert said.startswith("none: ") or "`perdure." in said, command
    for path in NAMED:
        assert found(path).__doc__, path


def test_everything_a_database_can_do_has_a_command_or_is_for_programs_only():
    missing = [name for name in public(perdure.Database) if f"perdure.Database.{name}" not in NAMED]
    assert missing == []


def test_why_is_a_public_function_blocking_and_awaited(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db:
        with db.session("s") as s:
            s.commit()
        blocking = perdure.why(db, "s")
        with pytest.raises(perdure.NotFound):
            perdure.why(db, "nobody")

    async def ask() -> perdure.Why:
        async with perdure.open_async(url) as db:
            return await perdure.why_async(db, "s")

    assert asyncio.run(ask()) == blocking
    assert str(blocking) == "Nothing in it is open. Its program can go on with it at any time."
    assert (blocking.severity, blocking.do) == ("ok", "")


def test_one_session_is_carried_from_one_store_to_another(tmp_path: Path):
    file = tmp_path / "one"
    with perdure.open(url_of("sqlite", tmp_path)) as db:
        for name in ("a", "b"):
            with db.session(name) as s:
                s.vars["large"] = b"x" * 100_000
                s.commit()
        told: list[tuple[str, int]] = []
        done = db.export_session("a", file, lambda *said: told.append(said))
        assert (done.copied, done.checkpoints, done.blobs) == (1, 1, 1)
        assert told == [("a", 1)]
        with pytest.raises(perdure.NotFound):
            db.export_session("nobody", tmp_path / "none")
        assert not (tmp_path / "none").exists()
        assert db.usage()[:2] == (2, 2)

    async def bring() -> tuple[Any, Any, bytes]:
        async with perdure.open_async(url_of("file", tmp_path)) as other:
            done = await other.import_sessions(file)
            return done, await other.usage(), (await other.read("a")).vars["large"]

    done, usage, large = asyncio.run(bring())
    assert (done.copied, done.unchanged, usage.sessions, large) == (1, 0, 1, b"x" * 100_000)


def test_sessions_are_paused_and_tried_again_by_name(tmp_path: Path):
    with perdure.open(url_of("sqlite", tmp_path)) as db:
        perdure.submit(db, "s", "hello", agent="desk")
        assert steer(db, ["s", "s"], "pause") == 1
        assert [w.paused for w in board_of(db).works()] == [True]
        assert steer(db, ["s"], "unpause") == 1
        with pytest.raises(perdure.InvalidInput, match="one of pause, unpause, retry"):
            steer(db, ["s"], "delete")
        with pytest.raises(perdure.NotFound):
            steer(db, ["nobody"], "retry")
