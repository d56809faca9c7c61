"""The documentation is true: its code runs, its outputs are real, its links and names lead somewhere."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from packaging.utils import canonicalize_name

import perdure
from perdure.cli.which_database import MAKERS
from tests.cli.documents import alike, blocks, commands
from tests.project.wheel import PACKAGE, needed, python_of_the_wheel

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
RUN = [ROOT / "README.md", *sorted((ROOT / "docs/tutorial").glob("*.md")), *sorted((ROOT / "docs/howto").glob("*.md"))]
ALL = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def code_of(text: str) -> list[str]:
    """Lines of code: no blank lines, no docstring at the top."""
    return [line for line in re.sub(r'\A""".*?"""', "", text, flags=re.DOTALL).splitlines() if line.strip()]


@pytest.mark.parametrize("path", RUN, ids=name)
def test_what_a_document_says_happens(path: Path):
    """For somebody who has installed the wheel and its extras, and nothing else.

    Its own process, because what it declares (migrations) stays declared.
    """
    done = subprocess.run(
        [python_of_the_wheel(), "-W", "error", "-m", "tests.cli.documents", str(path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def imported(text: str) -> set[str]:
    """What the programs of a document import that is neither Python's nor a file of its own."""
    programs = [b.text for b in blocks(text) if b.language in ("python", "py") and not b.text.startswith(">>>")]
    own = {Path(found).stem for found in re.findall(r"^# file: (\S+)", "\n".join(programs), re.MULTILINE)}
    names: set[str] = set()
    for node in (node for program in programs for node in ast.walk(ast.parse(program))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - own - {PACKAGE}


def brought(text: str) -> set[str]:
    """The modules of Perdure and of the extras that a document says to install."""
    extras = {extra for found in re.findall(r"perdure\[([a-z,]+)\]", text) for extra in found.split(",")}
    there = {canonicalize_name(d.name) for d in needed((PACKAGE, extra) for extra in ("", *extras))}
    return {m for m, ds in packages_distributions().items() if there & {canonicalize_name(d) for d in ds}}


@pytest.mark.parametrize("path", RUN, ids=name)
def test_what_a_document_imports_is_brought_by_the_extras_that_it_names(path: Path):
    text = path.read_text("utf-8")
    assert imported(text) - brought(text) == set()


def test_an_import_that_no_extra_brings_is_found_out():
    text = "```python\n# file: desk.py\nimport json\n```\n```py\nimport desk, httpx.x\nfrom openai import a\n```\n"
    assert imported(text) == {"httpx", "openai"}
    assert imported(text) - brought(text + '`pip install "perdure[agent]"`') == {"httpx"}
    assert imported(text) - brought(text + '`pip install "perdure[agent,testing]"`') == set()


def test_the_example_of_the_readme_is_the_one_in_the_examples():
    readme = next(b.text for b in blocks((ROOT / "README.md").read_text("utf-8")) if b.language == "python")
    example = (ROOT / "examples/invoices.py").read_text("utf-8")
    assert code_of(readme) == code_of(example)
    assert len(code_of(example)) <= 20


def test_the_example_can_be_run_again(tmp_path: Path):
    command = [python_of_the_wheel(), ROOT / "examples/invoices.py"]
    first, second = (
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()
        for _ in range(2)
    )
    assert first[0] == "created at step 0"
    assert second[0] == "resumed at step 11"
    assert first[1:] == second[1:]


def test_the_agent_of_the_readme_stands_alone_and_can_be_run_again(tmp_path: Path):
    found = blocks((ROOT / "README.md").read_text("utf-8"))
    at = next(n for n, b in enumerate(found) if b.language == "python" and "Agent(" in b.text)
    first, second = (
        subprocess.run(
            [python_of_the_wheel(), "-c", found[at].text], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    )
    assert first == found[at + 1].text
    assert second == f"done []\n{first.splitlines()[1]}\n"


@pytest.mark.parametrize("path", ALL, ids=name)
def test_links_lead_somewhere(path: Path):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text("utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_every_document_can_be_reached_from_the_readme():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert [name(path) for path in ALL[1:] if name(path) not in readme] == []


def test_every_test_that_the_readme_names_exists():
    named = re.findall(r"\]\((tests/[^)]+)\) `(test_\w+)`", (ROOT / "README.md").read_text("utf-8"))
    assert len(named) >= 8
    assert [pair for pair in named if f"def {pair[1]}(" not in (ROOT / pair[0]).read_text("utf-8")] == []


@pytest.mark.parametrize("path", ALL, ids=name)
def test_every_command_that_is_named_exists(path: Path):
    from typer.main import get_command

    from perdure.cli.program import app

    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    named = set(re.findall(r"(?:`|^\$ |^|  )perdure ([a-z]+)\b", path.read_text("utf-8"), re.MULTILINE))
    assert named - known == set()


def options_of(command: Any) -> set[str]:
    """The options of a command and of those below it."""
    own = {option for p in command.params for option in (*p.opts, *p.secondary_opts)} | {"--help"}
    return own.union(*(options_of(c) for c in getattr(command, "commands", {}).values()))


def unknown_options(text: str) -> list[str]:
    """Options that a document gives to a command and that it does not have."""
    from typer.main import get_command

    from perdure.cli.program import app

    known: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    # In a table of commands the next one begins after several blanks.
    named = re.findall(r"(?:`|^\$ |^|  )perdure ([a-z-]+)((?: ?[^`\n| ])*)", text, re.MULTILINE)
    given = [(c, o) for c, rest in named if c in known for o in re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest)]
    return [f"perdure {c} {o}" for c, o in given if o not in options_of(known[c])]


@pytest.mark.parametrize("path", ALL, ids=name)
def test_every_option_that_is_named_exists(path: Path):
    assert unknown_options(path.read_text("utf-8")) == []


def test_an_option_that_no_command_has_is_found_out():
    text = "`perdure show --request x` and\n$ perdure ls --json --nope\nperdure log a --graph   perdure why --graph\n"
    assert unknown_options(text) == ["perdure show --request", "perdure ls --nope", "perdure why --graph"]


def test_the_commands_that_make_a_database_are_those_that_are_named():
    text = (ROOT / "docs/reference/cli.md").read_text("utf-8")
    told = re.search(r"Only those that bring sessions \((.*?)\)", text, re.DOTALL)
    assert told is not None
    assert set(re.findall("[a-z]+", MAKERS)) - {"perdure", "and"} <= set(re.findall("`([a-z]+)`", told[1]))


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/reference/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    return module


def test_the_generated_reference_is_what_the_code_says():
    """If this fails: python docs/reference/generate.py."""
    assert generator().stale() == []


def test_the_reference_covers_every_public_name():
    text = (ROOT / "docs/reference/api.md").read_text("utf-8") + (ROOT / "docs/reference/errors.md").read_text("utf-8")
    assert [n for n in perdure.__all__ if n != "__version__" and not re.search(rf"\b{n}\b", text)] == []


def test_the_documented_limits_are_the_real_ones():
    text = (ROOT / "docs/reference/limits.md").read_text("utf-8")
    rows = re.findall(r"^\| .*? \| (.*?) \| `([\w.]+)\.(\w+)` \|$", text, re.MULTILINE)
    assert len(rows) >= 12
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "days": 86_400}
    for said, module, constant in rows:
        real: Any = getattr(importlib.import_module(module), constant)
        number, unit = re.search(r"([\d,]+)(?: (KiB|MiB|days))?", said).groups()  # type: ignore[union-attr]
        assert real == int(number.replace(",", "")) * units.get(unit, 1), constant


def test_the_documented_query_runs_on_a_real_database(tmp_path: Path):
    @perdure.tool
    def wire() -> None:
        raise TimeoutError

    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db, db.session("a") as s:
        for _ in range(3):
            s.vars["n"] = s.vars.get("n", 0) + 1
            s.commit()
        with pytest.raises(perdure.InDoubt):
            s.call(wire)
    text = (ROOT / "docs/reference/formats.md").read_text("utf-8")
    query = re.search(r"`(select .*?)`", text, re.DOTALL)
    assert query is not None
    rows = list(apsw.Connection(f"{tmp_path}/agents.db").execute(query[1]))
    assert [(id, tool) for id, tool, _ in rows] == [("a", "wire")]


def test_a_document_that_lies_is_found_out():
    """The reader itself: blocks, commands and outputs are told apart and compared."""
    found = blocks("x\n```python\nprint(1)\n```\n\n```text\n2\n```\n\n```console\n$ echo a\na\n$ echo b\nc\n```\n")
    assert [(b.language, b.follows) for b in found] == [("python", False), ("text", True), ("console", True)]
    assert commands(found[2]) == [("echo a", "a\n"), ("echo b", "c\n")]
    assert alike("id ...\n", "id 12ab\n")
    assert not alike("2\n", "1\n")
