"""Reading the documentation as a newcomer would: its code is run, its commands are typed, its outputs compared.

In a document, a ``python`` block that begins with ``# file: NAME`` is written to that file, any other one is run; all
of a document share one namespace and one empty folder. A ``text`` block right after a ``python`` block is what that
block prints. A ``console`` block holds commands after ``$`` and what they print. ``...`` stands for anything.

Run as a program on one document, because what it runs may leave traces: ``python -m tests.cli.documents FILE``.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
ROUGHLY = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    """One fenced block."""

    language: str
    text: str
    line: int
    follows: bool
    """Whether only white space lies between it and the block before."""


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a document, in order."""
    found: list[Block] = []
    end = 0
    for match in FENCE.finditer(text):
        follows = bool(found) and not text[end : match.start()].strip()
        found.append(Block(match[1], match[2], text.count("\n", 0, match.start()) + 2, follows))
        end = match.end()
    return found


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with what it prints."""
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def alike(want: str, got: str) -> bool:
    """Whether an output is the documented one."""
    return doctest.OutputChecker().check_output(want, got, ROUGHLY)


def run_command(command: str, folder: str, exported: dict[str, str]) -> str:
    """What a command prints in a shell; a killed one says so, as an interactive shell does."""
    if command.startswith("export "):
        name, _, value = shlex.split(command)[1].partition("=")
        exported[name] = value
        return ""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")} | exported
    # Of pytest's plugins a reader has ours; those that are installed here beside it take seconds to load.
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "perdure.testing.pytest_plugin"}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        check=False, timeout=120,
    )  # fmt: skip
    return done.stdout + ("Killed\n" if done.returncode in (-9, 137) else "")


class Reader:
    """Somebody who does what a document says."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._printed = ""
        self._exported: dict[str, str] = {}
        self.problems: list[str] = []

    def follow(self, block: Block) -> None:
        """Do what one block says."""
        if block.language == "python" and block.text.startswith("# file: "):
            name = block.text.partition("\n")[0].removeprefix("# file: ").strip()
            Path(self._folder, name).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            self._run(block)
        elif block.language == "text" and block.follows and self._printed:
            self._compare(block.line, block.text, self._printed)
            self._printed = ""
        elif block.language == "console":
            for command, want in commands(block):
                self._compare(block.line, want, run_command(command, self._folder, self._exported), command)

    def _run(self, block: Block) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            code = compile("\n" * (block.line - 1) + block.text, "document", "exec", dont_inherit=True)
            exec(code, self._names)  # noqa: S102 - the documentation's own examples
        self._printed = printed.getvalue()

    def _compare(self, line: int, want: str, got: str, command: str = "") -> None:
        if not alike(want, got):
            self.problems.append(f"line {line} {command}\nwanted:\n{want}\ngot:\n{got}")


def main(path: str) -> int:
    """Follow a whole document in a folder of its own."""
    text = Path(path).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="perdure-docs-") as folder:
        os.chdir(folder)
        reader = Reader(folder)
        for block in blocks(text):
            reader.follow(block)
        os.chdir("/")
    for problem in reader.problems:
        print(problem)
    return bool(reader.problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
