"""Modules, names and files that the documentation names are there, and its picture shows the layers there are."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from perdure.telemetry import instruments, otel

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "perdure"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOTTED = re.compile(r"(?<![\w./:@\"'-])perdure(?:\.[A-Za-z_]\w*)+(?![\w/@-])")
NOT_MODULES = re.compile(r"perdure\.(?:json|db|log|txt|md|py|toml|mine|example|service|local)\b")
"""File names and schemes of examples."""
FILES = re.compile(r"`([\w/]+\.(?:py|md|svg|sql|lua)|(?:src|tests|docs)/[\w/]*)`")
PAGES_OF_SOURCE = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "glossary.md",
    *sorted((ROOT / "docs" / "explanation").glob("*.md")),
]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def found(path: str) -> bool:
    """Whether a dotted path leads to a module, or to something in one."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("perdure"):
                raise
            continue
        for part in parts[cut:]:
            if not hasattr(value, part):
                # A field of a class without a default is only declared.
                return part in getattr(value, "__annotations__", {}) and part == parts[-1]
            value = getattr(value, part)
        return True
    return False


def measured() -> set[str]:
    """Names of measurements and of attributes of spans: dotted, and no modules."""
    text = Path(instruments.__file__).read_text("utf-8") + Path(otel.__file__).read_text("utf-8")
    return set(re.findall(r"\"(perdure(?:\.\w+)+)\"", text))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_module_and_name_that_a_page_names_is_there(page: Path):
    named = {path for path in DOTTED.findall(page.read_text("utf-8")) if not NOT_MODULES.match(path)}
    assert [path for path in sorted(named - measured()) if not found(path)] == []


def is_there(path: str) -> bool:
    """Whether a file is meant that exists: from the root of the project, in the source, or by its name alone."""
    return (ROOT / path).exists() or (SOURCE / path).exists() or ("/" not in path and any(SOURCE.rglob(path)))


@pytest.mark.parametrize("page", PAGES_OF_SOURCE, ids=name)
def test_every_file_that_a_page_about_the_source_names_is_there(page: Path):
    named = set(FILES.findall(page.read_text("utf-8")))
    assert [path for path in sorted(named) if not is_there(path)] == []


def picture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_picture", ROOT / "docs/explanation/generate_picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_picture_of_the_layers_is_the_one_of_the_import_contract():
    """If this fails: python docs/explanation/generate_picture.py."""
    drawn = picture()
    assert drawn.PICTURE.read_text("utf-8") == drawn.draw()


def test_every_folder_is_in_the_picture():
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__", "_version"}
    assert {layer for _, _, layers in picture().GROUPS for layer in layers} == folders | modules


def test_a_path_that_leads_nowhere_is_noticed():
    assert found("perdure.session.journal.Journal.write")
    assert found("perdure.model.SessionRow.agent")
    assert not found("perdure.logs")
    assert not found("perdure.session.journal.Journal.nowhere")
    assert is_there("journal.py")
    assert not is_there("session/bridge.py")
