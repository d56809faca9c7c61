"""Fixtures for tests of programs that use Perdure; pytest finds them by itself once ``perdure[testing]`` is installed.

``perdure_clock``, ``perdure_url``, ``perdure_db`` and ``perdure_recording``. Nothing of Perdure is imported before one
of them is asked for.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.errors import MissingExtra

try:
    import pytest
except ImportError as error:
    raise MissingExtra("pytest", "testing", error) from None

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from perdure.database import Database
    from perdure.testing.clock import FakeClock
    from perdure.testing.recording import Recording

FOLDER = "recordings"
_URL = "memory://{name}"
_passed = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Our options: which store, and whether to record."""
    group = parser.getgroup("perdure")
    group.addoption(
        "--perdure-record", action="store_true", help="ask the real models and tools, and write recordings anew"
    )
    group.addoption(
        "--perdure-url",
        help="where perdure_db lies, such as 'sqlite:///{folder}/agents.db' or 'postgresql://host/db?schema={name}'; "
        "{name} and {folder} are each test's own (default: memory)",
    )
    parser.addini("perdure_url", "where perdure_db lies; see --perdure-url", default=_URL)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether a test has passed: the recording of one that has not is none."""
    report = yield
    if report.when == "call":
        item.stash[_passed] = report.passed
    return report


@pytest.fixture
def perdure_clock() -> FakeClock:
    """A clock that moves only when the test says ``perdure_clock.advance(ms)``."""
    from perdure.testing.clock import FakeClock

    return FakeClock()


@pytest.fixture
def perdure_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of this test's own: in memory, unless ``--perdure-url`` says otherwise."""
    form: str = request.config.getoption("--perdure-url") or request.config.getini("perdure_url")
    # Servers share names and limit their length.
    name = "t" + hashlib.sha256(f"{tmp_path}:{request.node.nodeid}".encode()).hexdigest()[:20]
    return form.replace("{name}", name).replace("{folder}", str(tmp_path))


@pytest.fixture
def perdure_db(perdure_url: str, perdure_clock: FakeClock) -> Iterator[Database]:
    """An empty database at ``perdure_url``, whose time is ``perdure_clock``."""
    import perdure

    with perdure.open(perdure_url, clock=perdure_clock) as db:
        yield db


@pytest.fixture
def perdure_recording(request: pytest.FixtureRequest) -> Iterator[Recording]:
    """Give what models answered and tools returned again, from a file in ``recordings`` beside the test.

    With ``--perdure-record`` or ``PERDURE_RECORD=1`` the real ones are asked, and the file is written anew if the test
    passes.
    """
    from perdure.testing.recording import Recording, recording_wanted

    node: Any = request.node
    name = re.sub(r"[^\w.-]+", "_", node.nodeid.partition("::")[2])
    path = Path(node.path).parent / FOLDER / f"{Path(node.path).stem}.{name[:150]}.json"
    wanted = bool(request.config.getoption("--perdure-record")) or recording_wanted()
    again = f"pytest {shlex.quote(node.nodeid)} --perdure-record"
    recording = Recording(Path(os.path.relpath(path)), record=wanted, again=again)
    with recording.standing_in():
        yield recording
    if node.stash.get(_passed, False):
        recording.finish()
