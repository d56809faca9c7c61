"""Disks that are full and folders that cannot be written: a clear error, nothing lost, and work goes on afterwards.

Real ones: a tiny file system in memory where this machine lets us mount one, else a limit on the size of files.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.errors import PerdureError, Poisoned, StoreFull, Unavailable
from perdure.session.handle import UncommittedEdits
from tests.session.test_bad_input import ON_DISK, in_a_child, url_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from perdure.database import Database
    from perdure.session.handle import Session


def mount(*command: str) -> bool:
    """Whether this machine lets us."""
    if shutil.which("mount") is None or os.geteuid() != 0:
        return False
    return subprocess.run(["mount", *command], capture_output=True, check=False).returncode == 0


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    place = tmp_path / "tiny"
    place.mkdir()
    if not mount("-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(place)):
        pytest.skip("no file system can be mounted here: the limit on the size of files stands in for it")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """Take up what space there is left, but for the last bytes."""
    filler = place / "filler"
    with open(filler, "ab", buffering=0) as file:
        size = 65536
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    return filler


def write_until_full(db: Database, size: int = 2000) -> int:
    """Commit until there is no space left; the step of the last commit that returned."""
    with db.session("s", lease=False) as s:
        for _ in range(100_000):
            s.messages.append("x" * size)
            try:
                s.commit()
            except StoreFull:
                step = s.step
                s.reload()
                return step
    pytest.fail("a full disk never refused anything")


@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.parametrize("size", [2000, 100_000], ids=["rows", "blobs"])
def test_a_full_disk_is_a_clear_error_and_work_goes_on_once_there_is_space(kind: str, size: int, tiny: Path):
    with perdure.open(url_of(kind, tiny)) as db:
        db.update("s", lambda s: s.messages.append("first"))
        filler = fill(tiny)
        os.truncate(filler, max(0, filler.stat().st_size - 300_000))
        last = write_until_full(db, size)
        assert last >= 1
        found = db.read("s")
        assert (found.step, len(found.messages)) == (last, last)
        # As somebody else sees it, too.
        with perdure.open(url_of(kind, tiny)) as other:
            assert other.read("s").messages == found.messages
        filler.unlink()
        db.update("s", lambda s: s.messages.append("there is space again"))
        assert db.read("s").messages[-1] == "there is space again"
        assert len(db.read("s").messages) == last + 1
        assert db.verify().findings == ()


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_store_is_not_made_on_a_full_disk_and_can_be_made_later(kind: str, tiny: Path):
    filler = fill(tiny)
    with pytest.raises((StoreFull, Unavailable, Poisoned)):
        perdure.open(url_of(kind, tiny)).session("s")
    filler.unlink()
    with perdure.open(url_of(kind, tiny)) as db:
        db.update("s", lambda s: s.messages.append("first"))
        assert db.read("s").messages == ["first"]


def write_on(s: Session) -> None:
    """Commit for as long as that works."""
    for _ in range(1000):
        s.messages.append("x" * 2000)
        s.commit()


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_limit_on_the_size_of_files_is_a_clear_error_and_nothing_is_lost(kind: str, tmp_path: Path):
    with perdure.open(url_of(kind, tmp_path)) as db:
        db.update("s", lambda s: s.messages.append("first"))

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        with perdure.open(url_of(kind, tmp_path)) as db, db.session("s", lease=False) as s:
            with pytest.raises((StoreFull, Unavailable, Poisoned)):
                write_on(s)
            (tmp_path / "step").write_text(str(s.step))
            # What was not committed is lost, and leaving says so.
            warnings.simplefilter("ignore", UncommittedEdits)

    assert in_a_child(limited) == 0
    last = int((tmp_path / "step").read_text())
    with perdure.open(url_of(kind, tmp_path)) as db:
        assert db.read("s").step in (last, last + 1)
        assert db.read("s", last).messages[0] == "first"
        db.update("s", lambda s: s.messages.append("on"))
        assert db.read("s").messages[-1] == "on"


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Path]:
    """A folder that turns read-only when ``freeze`` is made in it, for root as for anybody."""
    place = tmp_path / "frozen"
    place.mkdir()
    if not mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)):
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_read_only_folder_is_a_clear_error_and_nothing_is_lost(kind: str, frozen: Path):
    with perdure.open(url_of(kind, frozen)) as db:
        db.update("s", lambda s: s.messages.append("first"))
    assert mount("-o", "remount,ro", str(frozen))
    with pytest.raises(PerdureError) as caught:
        perdure.open(url_of(kind, frozen)).session("s")
    assert isinstance(caught.value, Unavailable)
    assert str(frozen) in str(caught.value)
    with pytest.raises(Unavailable):
        perdure.open(f"{url_of(kind, frozen)}-new.db").session("s")
    assert mount("-o", "remount,rw", str(frozen))
    with perdure.open(url_of(kind, frozen)) as db:
        db.update("s", lambda s: s.messages.append("second"))
        assert db.read("s").messages == ["first", "second"]


@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_place_where_nobody_can_write_says_so(kind: str):
    url = {"sqlite": "sqlite:////proc/perdure.db", "file": "file:///proc/perdure"}[kind]
    with pytest.raises(Unavailable, match="/proc"):
        perdure.open(url)
