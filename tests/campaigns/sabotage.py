"""Plants deliberate faults in a copy of the source, one at a time, and sees which tests notice:
``python -m tests.campaigns.sabotage``. Exits 1 when a fault was missed, 2 when it could not be tried."""

from __future__ import annotations

import argparse
import compileall
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.campaigns import planted
from tests.campaigns.faults import AREAS, FAULTS
from tests.servers.guard import PR_SET_CHILD_SUBREAPER, end_family

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.campaigns.faults import Fault

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "perdure"
SEARCHED = (".py", ".sql", ".lua")
"""Endings of the files in which faults are planted."""
LIMIT = 900.0
"""Seconds that the tests of an area may take without a fault."""
SLOWER, LATER = 3, 120
"""With one, a run that takes so many times as long, and so many seconds more, is taken for a hang."""
TRIES = 3
"""How often a fault is tried when the test that noticed it fails without it as well, on a machine that is too busy."""
ALL_PASSED, SOME_FAILED, INTERRUPTED = 0, 1, 2
"""Exit codes of pytest that say something about the code."""
_FIRST = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - (.*))?$", re.MULTILINE)
_ESCAPED = re.compile(r"!+ KeyboardInterrupt !+\n(.+?:\d+): KeyboardInterrupt$", re.MULTILINE)
"""Where an interrupt that a test makes itself left the test, and so ended pytest."""
_PASSED = re.compile(r"\b(\d+) passed\b")
_WHERE = "import perdure; print(perdure.__file__)"
_WHERE_CHILDREN = f"""
{_WHERE}
import subprocess, sys
for flags in ([], ["-I"]):
    subprocess.run([sys.executable, *flags, "-c", {_WHERE!r}], env={{}}, check=True)
"""
"""Tells where the library comes from: here, in a process without any environment, in one that looks at none."""


class Untried(Exception):
    """A fault could not be tried: the table would say nothing."""


class Tried(NamedTuple):
    """A run of the tests of an area."""

    code: int | None
    """Pytest's exit code; None when the run took too long and was ended."""
    passed: int
    first: str
    """The first test that failed."""
    why: str
    seconds: float
    said: str


class Judged(NamedTuple):
    """What became of a fault."""

    name: str
    area: str
    breaks: str
    file: str
    caught: bool
    by: str
    why: str
    seconds: float


class Copy:
    """A copy of the source, and an environment whose interpreter knows the library from there only."""

    def __init__(self, folder: Path) -> None:
        self.src = folder / "src"
        self._folder = folder
        shutil.copytree(ROOT / "src", self.src, ignore=shutil.ignore_patterns("__pycache__"))
        # A file that is changed and put back keeps its time, and so its compiled form.
        compileall.compile_dir(self.src, quiet=1)
        self._bin = self._make_environment()
        self._check()

    def _make_environment(self) -> Path:
        """Not by PYTHONPATH alone: tests that start programs set that themselves, or leave it out."""
        place = self._folder / "venv"
        venv.EnvBuilder(symlinks=True).create(place)
        names = {"base": str(place), "platbase": str(place)}
        site, bin = (Path(sysconfig.get_path(name, "venv", names)) for name in ("purelib", "scripts"))
        # Libraries are those of this environment; its own way to the library is not followed from there.
        ours = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
        (site / "copy.pth").write_text("\n".join([str(self.src), *ours, ""]))
        for script in Path(sysconfig.get_path("scripts")).iterdir():
            if not (bin / script.name).exists():
                _adapt(script, bin / script.name)
        return bin

    def _check(self) -> None:
        done = subprocess.run(
            [self._bin / "python", "-c", _WHERE_CHILDREN],
            cwd=ROOT, env=self._environment(), check=True, capture_output=True, text=True,
        )  # fmt: skip
        found = done.stdout.split()
        if found != [str(self.src / PACKAGE / "__init__.py")] * 3:
            raise Untried(f"the copy is not what is imported: {found}")

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PERDURE_", "PYTEST_"))}
        return kept | {
            "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self.src),
            planted.COPY: str(self.src),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._folder / "hypothesis"),
        }

    def test(self, which: Sequence[str], limit: float = LIMIT) -> Tried:
        """Run tests up to the first that fails."""
        shutil.rmtree(self._folder / "hypothesis", ignore_errors=True)
        options = ["-x", "-q", "-rfE", "--tb=line", "--hypothesis-seed=0", "-p", planted.__name__]
        began = time.monotonic()
        with (self._folder / "output").open("w+") as output:
            child = subprocess.Popen(
                [self._bin / "python", "-m", "pytest", *options, "-p", "no:cacheprovider", *which],
                cwd=ROOT, env=self._environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            try:
                code: int | None = child.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
                child.kill()
                child.wait()
            finally:
                # Programs that tests have started and did not see end are children of this process now.
                end_family()
            seconds = time.monotonic() - began
            output.seek(0)
            said = output.read()
        first, passed = _FIRST.search(said), _PASSED.search(said)
        return Tried(
            code, int(passed[1]) if passed else 0, first[1] if first else "", (first[2] or "") if first else "",
            round(seconds, 1), said,
        )  # fmt: skip

    def judge(self, fault: Fault, path: Path, limit: float) -> Judged:
        """Plant a fault and run the tests of its area; what notices it must not fail without it."""
        tried, tries = self._planted(fault, path, limit), 1
        while tried.code == SOME_FAILED and self.test([tried.first]).code == SOME_FAILED:
            if tries == TRIES:
                raise Untried(f"{fault.name}: {tried.first} fails without it as well")
            tried, tries = self._planted(fault, path, limit), tries + 1
        if tried.code is None:
            by = f"a hang: the tests did not end within {limit:.0f} s"
        elif tried.code < 0:
            by = f"the end of the test process by signal {-tried.code}"
        elif tried.code == INTERRUPTED and (escaped := _ESCAPED.search(tried.said)):
            by = f"an interrupt that no test expected: {escaped[1].removeprefix(f'{ROOT}{os.sep}')}"
        elif tried.code in (ALL_PASSED, SOME_FAILED):
            by = tried.first
        else:
            raise Untried(f"{fault.name}: pytest ended with {tried.code}\n{tried.said[-2000:]}")
        caught = tried.code != ALL_PASSED
        return Judged(fault.name, fault.area, fault.breaks, str(path), caught, by, tried.why, tried.seconds)

    def _planted(self, fault: Fault, path: Path, limit: float) -> Tried:
        file = self.src / path
        before, times = file.read_text("utf-8"), file.stat()
        file.write_text(before.replace(fault.find, fault.put), "utf-8")
        try:
            return self.test(AREAS[fault.area], limit)
        finally:
            file.write_text(before, "utf-8")
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def _adapt(script: Path, copy: Path) -> None:
    """A program of our environment for the other one: what names our interpreter there names the other."""
    own = f"#!{script.parent}/python".encode()
    data = script.read_bytes() if script.is_file() else b""
    if data.startswith(own):
        copy.write_bytes(f"#!{copy.parent}/python".encode() + data[len(own) :])
        copy.chmod(0o755)
    else:
        copy.symlink_to(script)


def located(faults: Sequence[Fault]) -> dict[str, Path]:
    """The file of each fault, below the source; it must be one, and the place in it must be one."""
    source = ROOT / "src"
    files = [path for path in sorted((source / PACKAGE).rglob("*")) if path.suffix in SEARCHED]
    texts = {path.relative_to(source): path.read_text("utf-8") for path in files}
    found: dict[str, Path] = {}
    for fault in faults:
        places = [path for path, text in texts.items() for _ in range(text.count(fault.find))]
        if len(places) != 1:
            raise Untried(f"{fault.name}: its place is there {len(places)} times: {', '.join(map(str, places))}")
        found[fault.name] = places[0]
    return found


def markdown(judged: Sequence[Judged], seconds: float) -> str:
    """The table for people."""
    rows = ["| Fault | Area | What it breaks | Caught | First noticed by | Seconds |", "|---|---|---|---|---|---:|"]
    for one in judged:
        by = f"`{one.by}`" if "::" in one.by else one.by or "-"
        caught = "yes" if one.caught else "**no**"
        rows.append(f"| {one.name} | {one.area} | {one.breaks} | {caught} | {by} | {one.seconds:.0f} |")
    return "\n".join([*rows, "", _summary(judged, seconds), ""])


def _summary(judged: Sequence[Judged], seconds: float) -> str:
    missed = [one.name for one in judged if not one.caught]
    names = f"; missed: {', '.join(missed)}" if missed else ""
    return f"{len(judged) - len(missed)} of {len(judged)} faults were caught in {seconds:.0f} s{names}"


def campaign(faults: Sequence[Fault], folder: Path, *, green: bool) -> tuple[list[Judged], dict[str, Tried]]:
    """Try the tests without any fault, then each fault."""
    paths = located(faults)
    copy = Copy(folder)
    areas: dict[str, Tried] = {}
    for area in dict.fromkeys(fault.area for fault in faults) if green else ():
        areas[area] = tried = copy.test(AREAS[area])
        print(f"{area:16} {tried.passed:5} passed  {tried.seconds:6.1f} s", flush=True)
        if tried.code != ALL_PASSED:
            raise Untried(f"{area}: its tests fail without any fault ({tried.code})\n{tried.said[-4000:]}")
    judged: list[Judged] = []
    for fault in faults:
        limit = SLOWER * areas[fault.area].seconds + LATER if fault.area in areas else LIMIT
        judged.append(one := copy.judge(fault, paths[fault.name], limit))
        print(
            f"{one.name:20} {one.area:16} {'yes' if one.caught else 'NO ':3} {one.seconds:6.1f} s  {one.by}", flush=True
        )
    return judged, areas


def main() -> int:
    """Run the campaign, or see that each fault has a place."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.sabotage", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", choices=[f.name for f in FAULTS], help="this fault")
    parser.add_argument("--area", action="append", choices=[*AREAS], help="faults of this area")
    parser.add_argument("--check", action="store_true", help="only see that each fault's place is found, once")
    parser.add_argument("--no-green", action="store_true", help="leave out the runs without a fault")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the result there")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the table there")
    args = parser.parse_args()
    faults = [f for f in FAULTS if (not args.only or f.name in args.only) and (not args.area or f.area in args.area)]
    began = time.monotonic()
    try:
        if args.check:
            print(f"{len(located(faults))} faults have their places")
            return 0
        # What the tests leave behind becomes ours, and is ended.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        with tempfile.TemporaryDirectory(prefix="perdure-sabotage-") as folder:
            judged, areas = campaign(faults, Path(folder).resolve(), green=not args.no_green)
    except Untried as e:
        print(e, file=sys.stderr)
        return 2
    seconds = time.monotonic() - began
    print(_summary(judged, seconds))
    if args.json:
        shown = {area: {"passed": tried.passed, "seconds": tried.seconds} for area, tried in areas.items()}
        told = {"seconds": round(seconds), "areas": shown, "faults": [one._asdict() for one in judged]}
        args.json.write_text(json.dumps(told, indent=2) + "\n", "utf-8")
    if args.markdown:
        args.markdown.write_text(markdown(judged, seconds), "utf-8")
    return 0 if all(one.caught for one in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
