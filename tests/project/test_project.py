"""The project as a whole: versions that agree, pins without addresses, files of a readable size."""

import ast
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LONG = 700

# Written as patterns that do not match their own text: this file is searched too.
HOSTS = re.compile(
    r"(?:pypi|python(?:hosted)|deb(?:ian)|npm(?:js)|yarn(?:pkg)|crates|conda)[.](?:org|com|io)\b",
    re.IGNORECASE,
)
MACHINE_PATHS = re.compile(r"(?<![\w.})*-])/(?:work|root|home|Users|opt|mnt)/")
PIN = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*==[0-9][0-9a-z.]*")


def project_files() -> list[Path]:
    """Files that are tracked or would be with the next `git add`, so that a new file counts at once."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git work tree")
    listed = subprocess.run(
        [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [path for name in sorted(set(listed.split("\0")) - {""}) if (path := ROOT / name).is_file()]


def python_files(folder: str = "") -> list[Path]:
    return [path for path in project_files() if path.suffix == ".py" and path.is_relative_to(ROOT / folder)]


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def written_version() -> str:
    tree = ast.parse((ROOT / "src/perdure/_version.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            return str(node.value.value)
    raise AssertionError("src/perdure/_version.py assigns no version")


def matches(pattern: re.Pattern[str]) -> list[str]:
    """Every match in every text file of the project, as `file:line: match`."""
    found: list[str] = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            found += [f"{path.relative_to(ROOT)}:{number}: {hit.group()}" for hit in pattern.finditer(line)]
    return found


def pins(name: str) -> list[str]:
    lines = (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith(("#", "-r "))]


def test_the_package_takes_its_version_from_the_file_that_states_it():
    config = pyproject()
    assert config["project"]["dynamic"] == ["version"]
    assert config["tool"]["hatch"]["version"]["path"] == "src/perdure/_version.py"
    assert version("perdure") == written_version()


def test_the_newest_version_in_the_changelog_is_the_version_of_the_package():
    headings = re.findall(r"^## .*$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    versions = [found.group() for line in headings if (found := re.search(r"\d+\.\d+\.\d+\w*", line))]
    assert versions[:1] == [written_version()]


def test_no_file_names_the_host_of_a_package_registry():
    assert matches(HOSTS) == []


def test_no_file_names_a_path_of_one_machine():
    assert matches(MACHINE_PATHS) == []


@pytest.mark.parametrize(
    "text",
    [
        "https://pypi" + ".org/simple",
        "files.python" + "hosted.org",
        "deb.deb" + "ian.org",
        "registry.npm" + "js.org",
    ],
)
def test_the_search_for_hosts_finds_them(text: str):
    assert HOSTS.search(text)


@pytest.mark.parametrize("text", ["cd /" + "work/main", "file:///" + "opt/simple/", '"/' + 'home/ana/x"'])
def test_the_search_for_paths_finds_them(text: str):
    assert MACHINE_PATHS.search(text)


@pytest.mark.parametrize("name", ["runtime.txt", "dev.txt", "peers.txt"])
def test_requirements_are_exact_versions_and_nothing_else(name: str):
    assert [line for line in pins(name) if not PIN.fullmatch(line)] == []


def test_every_dependency_of_the_package_is_pinned():
    wanted = pyproject()["project"]["dependencies"]
    names = {re.split(r"[^\w-]", requirement, maxsplit=1)[0] for requirement in wanted}
    assert names <= {line.split("==")[0] for line in pins("runtime.txt")}


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("runtime.txt", ()),
        ("servers.txt", ()),
        ("agent.txt", ()),
        ("fleet.txt", ("servers.txt", "agent.txt")),
        ("console.txt", ()),
    ],
)
def test_what_pinned_packages_need_is_pinned_with_them(name: str, beside: tuple[str, ...]):
    """They are installed without looking for what they need."""
    here = [line for file in ("runtime.txt", name, *beside) for line in pins(file)]
    there = {canonicalize_name(Requirement(line).name) for line in here}
    needed = [
        (line, need)
        for line in here
        if (pin := Requirement(line)).marker is None or pin.marker.evaluate()
        for need in map(Requirement, requires(pin.name) or ())
        if need.marker is None or need.marker.evaluate({"extra": ""})
    ]
    assert [(line, str(need)) for line, need in needed if canonicalize_name(need.name) not in there] == []


def test_a_long_source_file_says_why_it_is_long():
    for path in python_files("src"):
        text = path.read_text(encoding="utf-8")
        why = ast.get_docstring(ast.parse(text)) or ""
        assert len(text.splitlines()) <= LONG or "Long because" in why, path.relative_to(ROOT)


def test_every_module_says_what_lives_in_it():
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files()
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []
