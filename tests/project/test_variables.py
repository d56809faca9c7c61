"""Environment variables: what the code reads, and the one table that says so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"PERDURE_[A-Z_]+")


def read_in_source() -> set[str]:
    """Every variable of ours that is a text in the code; docstrings only speak of them."""
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
                found.add(node.value)
    return found


def documented() -> set[str]:
    page = (ROOT / "docs" / "reference" / "limits.md").read_text("utf-8")
    table = page.partition("\n## Environment variables\n")[2]
    return {name for row in re.findall(r"^\| (`.+?`) \|", table, re.M) for name in NAME.findall(row)}


def test_every_variable_is_in_the_table_and_nothing_else_is():
    assert {"PERDURE_KEY", "PERDURE_DIRECT_STORE"} <= read_in_source()
    assert sorted(documented()) == sorted(read_in_source())
