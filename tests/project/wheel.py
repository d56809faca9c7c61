"""The built wheel, and an environment in which nothing is installed but it and what its extras bring.

Made once in a run of the tests, without a network: what the wheel needs is linked from the environment of the tests.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.servers import place

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "perdure"
SOURCES = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE")
"""What the wheel is built from, beside ``src``; the image copies the same."""
QUIET = ("-q", "--disable-pip-version-check", "--no-index", "--no-deps")
SCRIPT = """#!{python}
import sys
from {module} import {name}
sys.exit({name}())
"""


def wheel() -> Path:
    """The wheel, built from a copy of the source."""
    with place.alone("wheel") as folder:
        built = folder / "wheel"
        if not built.exists():
            source = folder / "wheel-source"
            shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
            for name in SOURCES:
                shutil.copy(ROOT / name, source / name)
            made = source / "made"
            pip = [sys.executable, "-m", "pip", "wheel", *QUIET, "--no-build-isolation", "--wheel-dir", str(made)]
            subprocess.run([*pip, str(source)], check=True, capture_output=True)
            made.rename(built)
            shutil.rmtree(source)
    (found,) = built.glob(f"{PACKAGE}-*.whl")
    return found


def python_of_the_wheel() -> Path:
    """The interpreter of the environment that has the wheel with all its extras."""
    of = wheel()
    with place.alone("installed") as folder:
        there = folder / "installed"
        if not there.exists():
            _install(of, there)
    return there / "bin/python"


def _install(of: Path, there: Path) -> None:
    try:
        # It names its own folder, and so is made where it stays.
        venv.EnvBuilder(symlinks=True).create(there)
        python = there / "bin/python"
        names = {"base": str(there), "platbase": str(there)}
        site = Path(sysconfig.get_path("purelib", "venv", names))
        for found in needed((PACKAGE, extra) for extra in ("", "all", "testing")):
            _link(found, site, python)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", *QUIET, str(of)]
        subprocess.run(pip, check=True, capture_output=True)
    except BaseException:
        shutil.rmtree(there, ignore_errors=True)
        raise


def needed(wanted: Iterable[tuple[str, str]]) -> list[Distribution]:
    """What has to be installed for packages with an extra each ("": none), without Perdure itself."""
    open_ones, seen = list(wanted), set[tuple[str, str]]()
    while open_ones:
        name, extra = open_ones.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for need in map(Requirement, _requirements(name, extra)):
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                open_ones += [(canonicalize_name(need.name), more) for more in ("", *need.extras)]
    return [distribution(name) for name in sorted({name for name, _ in seen} - {PACKAGE})]


def _requirements(name: str, extra: str) -> list[str]:
    if name != PACKAGE:
        return distribution(name).requires or []
    # Not as it was when the environment of the tests was made.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return project["optional-dependencies"][extra] if extra else project["dependencies"]


def _link(found: Distribution, site: Path, python: Path) -> None:
    for file in found.files or ():
        if ".." not in file.parts:
            link = site / file
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(file))))
    for point in found.entry_points:
        if point.group == "console_scripts":
            script = python.parent / point.name
            script.write_text(SCRIPT.format(python=python, module=point.module, name=point.attr), "utf-8")
            script.chmod(0o755)
