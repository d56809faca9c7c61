"""Names and values that a file system could choke on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from perdure.errors import (
    InvalidInput,
)
from perdure.model import Landed
from perdure.stores.file.store import FileStore
from perdure.testing.sealed_rows import commit, write

if TYPE_CHECKING:
    from pathlib import Path


from tests.stores.file.filing import log_of, steps


@pytest.mark.parametrize("session", ["../../etc/passwd", "/", "a/b", ".", "x" * 5000, "a\0b", "größe", "\n"])
def test_no_session_id_becomes_a_path(store: FileStore, root: Path, session: str):
    write(store, session)
    assert store.sessions()[0].id == session
    assert log_of(root, session).exists()
    folders = {path.name for path in root.iterdir()}
    assert folders == {"perdure.json", "token", "lock", "clock", "sessions"}


def test_a_session_id_that_is_no_text_is_refused(store: FileStore):
    with pytest.raises(InvalidInput):
        store.look("\ud800")


@pytest.mark.parametrize(
    "wrong",
    [{"payload": "text"}, {"step": "one"}, {"owner": None}, {"at": 1 << 70}, {"tool": "\ud800"}, {"blobs": (1,)}],
)
def test_a_value_of_the_wrong_type_is_refused_and_spoils_nothing(store: FileStore, root: Path, wrong: dict[str, Any]):
    write(store)
    one, two = store.append([commit(step=1, expect=commit().id)._replace(**wrong), commit(step=1, expect=commit().id)])
    assert isinstance(one, InvalidInput)
    assert isinstance(two, Landed)
    other = FileStore(root)
    assert steps(other) == [0, 1]
    other.close()


def test_files_are_for_their_owner_only(store: FileStore, root: Path):
    write(store)
    for path in [root, *root.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path):
    (tmp_path / "store").write_text("a letter")
    with pytest.raises(InvalidInput, match="folder of its own"):
        FileStore(tmp_path / "store")
