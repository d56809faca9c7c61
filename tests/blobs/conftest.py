"""``make_blobs`` opens the same blobs again and again, on every backend; ``blobs`` is one handle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import tests.servers
from perdure.system import faults
from perdure.testing.clock import FakeClock
from tests.blobs.places import KINDS, blobs_of, bucket_url, unique
from tests.servers.objects import objects_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from perdure.protocols import Blobs


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    """No test leaves its hook behind."""
    yield
    faults.hook = None


@pytest.fixture
def clock() -> FakeClock:
    """Time, which passes only when a test says so."""
    return FakeClock()


@pytest.fixture(params=KINDS)
def make_blobs(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Callable[[], Blobs]]:
    """The way to open blobs, for each kind there is."""
    opened: list[Blobs] = []

    def make() -> Blobs:
        opened.append(blobs_of(request.param, tmp_path, clock))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.fixture
def blobs(make_blobs: Callable[[], Blobs]) -> Blobs:
    """A handle of new, empty blobs."""
    return make_blobs()


@pytest.fixture
def config() -> dict[str, str]:
    """What a client of the run's S3 server must know."""
    return objects_options(tests.servers.objects())


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A prefix of the test's own in a bucket that is there."""
    return bucket_url(unique(tmp_path))
