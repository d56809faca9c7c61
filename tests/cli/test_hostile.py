"""Whatever an agent wrote is hostile: none of it may reach a terminal as anything but text."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import unicodedata
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.cli.program import run
from perdure.cli.terminal_text import Shown, brief, cut, safe

if TYPE_CHECKING:
    from pathlib import Path

NASTY = [
    "\x1b[2J\x1b[H all paid",
    "\x1b]0;title\x07",
    "line\r\noverwritten",
    "\x9b31m",
    "right\u202eto left\u2066",
    "[bold red]markup[/] :warning: [link=file:///etc/passwd]x[/link]",
    "\u2028separators\u2029",
    "\x7f\x08\x08\x08",
    "zero\u200bwidth\ufeff",
]


def steers(text: str) -> list[str]:
    """The characters of an output that are more than text."""
    return [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


@pytest.fixture
def nasty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database in which everything a program can name is hostile; its URL."""

    def tool(text: str) -> None:
        raise TimeoutError(text)

    all_of_it = " ".join(NASTY)
    url = f"sqlite:///{tmp_path}/agents.db"
    with perdure.open(url) as db, db.session(all_of_it, owner=all_of_it[:60]) as s:
        s.messages.extend({"role": text, "content": text} for text in NASTY)
        s.vars[all_of_it] = {text: [text] for text in NASTY}
        s.commit(all_of_it)
        s.vars["more"] = all_of_it
        s.commit()
        s.fork(f"branch {all_of_it[:80]}")
        s.tag(f"tag {all_of_it[:80]}")
        with pytest.raises(perdure.InDoubt):
            s.call(perdure.tool(name=f"tool {all_of_it[:80]}")(tool), all_of_it)
    monkeypatch.setenv("PERDURE_STORE", url)
    return all_of_it


@pytest.mark.parametrize("text", NASTY)
def test_safe_text_is_only_text(text: str):
    assert steers(safe(text)) == []
    assert steers(cut(text, 10)) == []
    assert steers("\n".join(Shown(full=True).lines({text: [text, {"a": text}]}))) == []
    assert steers(brief({text: text})) == []


def test_ordinary_writing_is_left_alone():
    text = "naïve façade 東京 Ελλάδα 👩‍🚀 [1] {x}"
    assert safe(text) == text


def test_no_command_lets_it_through(nasty: str, capsys: pytest.CaptureFixture[str]):
    for argv in (
        ["ls"],
        ["ls", "--json"],
        ["ls", "--owner", nasty],
        ["show", nasty],
        ["show", nasty, "--full"],
        ["show", nasty, "--json"],
        ["log", nasty],
        ["log", nasty, "--graph"],
        ["log", nasty, "--json"],
        ["diff", f"{nasty}@1", f"{nasty}@2"],
        ["diff", f"{nasty}@1", f"{nasty}@2", "--json"],
        ["show", f"{nasty}@nowhere"],
        ["show", f"nobody {nasty}"],
        ["log", nasty, "--branch", nasty[:80]],
        ["ls", "--status", nasty],
    ):
        run(argv)
        out, err = capsys.readouterr()
        assert out + err, argv
        assert steers(out) == [], argv
        assert steers(err) == [], argv


def test_markup_is_shown_as_it_is(nasty: str, capsys: pytest.CaptureFixture[str]):
    run(["show", nasty])
    assert NASTY[5] in capsys.readouterr().out


def test_a_terminal_sees_only_our_own_colours(nasty: str):
    """In a real terminal the only escape sequences are the styles we chose."""
    for argv in (["ls"], ["show", nasty, "--full"], ["log", nasty, "--graph"]):
        ours, theirs = pty.openpty()
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "400"}
        env.pop("NO_COLOR", None)
        child = subprocess.Popen(
            [sys.executable, "-m", "perdure.cli", *argv], stdout=theirs, stderr=theirs, stdin=theirs, env=env
        )
        os.close(theirs)
        seen = _drain(ours)
        assert child.wait() == 0
        text = seen.decode()
        assert "\x1b[" in text, "a terminal gets colours"
        assert "\x1b[2J" not in text
        assert "\x1b]" not in text
        # What is left once styles are taken out is text and line ends.
        plain = "".join(part.partition("m")[2] if i else part for i, part in enumerate(text.split("\x1b[")))
        assert [c for c in steers(plain) if c != "\r"] == []
        assert "\\x1b[2J" in plain


def _drain(fd: int) -> bytes:
    seen = b""
    while True:
        try:
            part = os.read(fd, 65536)
        except OSError:  # the other side was closed
            part = b""
        if not part:
            os.close(fd)
            return seen
        seen += part
