"""Opening stores by URL, and what is said when that cannot be done."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from perdure.errors import InvalidInput, UnknownStore
from perdure.stores import open_store
from perdure.testing.sealed_rows import write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("url", "file"),
    [
        (None, ".perdure/agents.db"),
        ("sqlite:///relative.db", "relative.db"),
        ("sqlite:///deep/er/x.db", "deep/er/x.db"),
        ("SQLITE:///upper.db", "upper.db"),
        ("bare.db", "bare.db"),
        ("./bare.sqlite", "bare.sqlite"),
        ("sqlite:///any name", "any name"),
    ],
)
def test_sqlite_files_are_found_by_url_or_bare_path(folder: Path, url: str | None, file: str):
    (folder / "deep" / "er").mkdir(parents=True)
    store = open_store(url)
    store.close()
    assert (folder / file).is_file()
    assert store.url == f"sqlite:///{file}" or url == "./bare.sqlite"


def test_four_slashes_make_an_absolute_path(folder: Path):
    store = open_store(f"sqlite:///{folder}/abs.db")
    store.close()
    assert (folder / "abs.db").is_file()
    assert store.url == f"sqlite:///{folder}/abs.db"


def test_a_path_object_will_do(folder: Path):
    open_store(folder / "x.db").close()
    assert (folder / "x.db").is_file()


def test_only_their_owner_may_read_what_users_said(folder: Path):
    open_store(None).close()
    assert (folder / ".perdure").stat().st_mode & 0o777 == 0o700
    assert (folder / ".perdure/agents.db").stat().st_mode & 0o777 == 0o600


def test_memory_is_private_unless_it_has_a_name():
    first, second = open_store("memory://"), open_store("memory://")
    write(first)
    assert second.look("s") is None
    assert first.id != second.id
    third, fourth = open_store("memory://shared by name"), open_store("memory://shared by name")
    write(third)
    assert fourth.look("s") is not None
    assert third.id == fourth.id


@pytest.mark.parametrize(
    "url",
    ["mysql://user:secret@host/db", "mongodb://:secret@host", "nonsense", "", "folder/", "://", "x://y"],
)
def test_an_unknown_store_is_refused_with_the_known_ones_and_no_secret(url: str):
    with pytest.raises(UnknownStore) as refused:
        open_store(url)
    for known in ("memory://", "sqlite:///", "file:///"):
        assert known in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///", "sqlite://two.db", "sqlite:///:memory:", "sqlite:///x.db?mode=ro", "file://"],
)
def test_a_url_that_names_no_place_is_refused(url: str, folder: Path):
    with pytest.raises(InvalidInput):
        open_store(url)
    assert list(folder.iterdir()) == []


def test_an_option_that_a_store_does_not_have_is_refused():
    with pytest.raises(InvalidInput, match="synchronous"):
        open_store("sqlite:///x.db", sinchronous="normal")
    with pytest.raises(InvalidInput, match="normal"):
        open_store("sqlite:///x.db", synchronous="off")
    with pytest.raises(InvalidInput):
        open_store("memory://", synchronous="full")


def test_sqlite_is_imported_only_when_it_is_opened():
    script = (
        "import sys; from perdure.stores import open_store; open_store('memory://');"
        "assert 'apsw' not in sys.modules; open_store('sqlite:///x.db'); assert 'apsw' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
