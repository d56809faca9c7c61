"""Programs in documents and examples say a message with its key: it is said once, however often they are run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.cli.documents import blocks

ROOT = Path(__file__).resolve().parents[2]
FIRST_AGENT = ROOT / "src" / "perdure" / "cli" / "first_agent"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), FIRST_AGENT / "README.md"]
PROGRAMS = [*sorted((ROOT / "examples").rglob("*.py")), *sorted(FIRST_AGENT.glob("*.py"))]
SAY = {"run", "run_sync", "stream"}
GIVE = {"post", "submit", "submit_async"}
"""These take the message as an argument that has no name, behind the session, or behind the database and it."""
INLINE = re.compile(r"`[^`]*\.(?:run|run_sync|stream)\([^`]*message=[^`]*`")
WITHOUT = {
    "docs/howto/dependencies.md: perdure.submit(db, 's2', 'Tea, please.', agent=bare)": "it is refused",
    "docs/howto/writers.md: pool.submit(db.update, 'chat', count, tries=100)": "another submit, of Python's own",
}
"""What says a message without a key, and why."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def calls_in(program: str) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Call)]


def is_said_without_a_key(call: ast.Call) -> bool:
    what = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    named = {keyword.arg for keyword in call.keywords}
    said = "message" in named or (what in GIVE and len(call.args) >= (2 if what == "post" else 3))
    return what in SAY | GIVE and said and "key" not in named


def without_a_key(where: str, programs: list[str]) -> list[str]:
    calls = [ast.unparse(call) for program in programs for call in calls_in(program) if is_said_without_a_key(call)]
    return [call for call in calls if f"{where}: {call}" not in WITHOUT]


@pytest.mark.parametrize("path", [*PAGES, *PROGRAMS], ids=name)
def test_every_message_in_a_document_or_an_example_has_a_key(path: Path):
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        assert without_a_key(name(path), [text]) == []
        return
    assert without_a_key(name(path), [block.text for block in blocks(text) if block.language == "python"]) == []
    assert [said for said in INLINE.findall(text) if "key=" not in said] == []


def test_what_is_excepted_is_there_still():
    for place in WITHOUT:
        where, _, call = place.partition(": ")
        found = [b.text for b in blocks((ROOT / where).read_text("utf-8")) if b.language == "python"]
        assert call in [ast.unparse(one) for program in found for one in calls_in(program)], place


def test_a_program_without_a_key_is_found_out():
    assert without_a_key("x", ["agent.run_sync(url, session='s', message='pay')", "db.post('s', 'pay')"]) != []
    fine = ["agent.run(db, session='s')", "db.post('s', 'pay', key='m1')", "asyncio.run(main())"]
    assert without_a_key("x", fine) == []
