"""A store is made where its folder is; a path with a slip of the finger in it leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.agent.agent import Agent
from perdure.agent.models.scripted import ScriptedModel
from perdure.errors import InvalidInput, Misuse, Unavailable, UnknownStore
from perdure.fleet.worker import start_worker
from perdure.testing.recording import recorded


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def agent() -> Agent:
    return Agent("a", model=ScriptedModel(["hello"]))


def left(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.mark.parametrize(
    "url", ["sqlite:///no/such/a.db", "no/such/a.db", "file://./no/such/store", "sqlite:///{}/no/such/a.db",
            "file://{}/no/such/store", "sqlite:///no/.perdure/a.db"],
)  # fmt: skip
def test_a_folder_that_is_missing_is_not_made(here: Path, url: str) -> None:
    url = url.format(here)
    said = r"there is no folder .*/no.*, and nothing was made: correct the path .*, or make its folder with `mkdir -p /"
    for opened in (perdure.open, perdure.open_async):
        with pytest.raises(InvalidInput, match=said):
            opened(url)
    with pytest.raises(InvalidInput, match=said):
        agent().run_sync(url, session="s", message="hi")
    with pytest.raises(InvalidInput, match=said):
        asyncio.run(start_worker([agent()], url))
    assert left(here) == []


def test_what_it_says_to_type_helps(here: Path) -> None:
    with pytest.raises(InvalidInput) as e:
        perdure.open("two words/a.db")
    assert os.system(str(e.value).split("`")[1]) == 0
    perdure.open("two words/a.db").close()
    assert (here / "two words" / "a.db").is_file()


def test_three_slashes_in_the_place_of_four(here: Path) -> None:
    with pytest.raises(InvalidInput, match=rf"four slashes name one in /.*: sqlite:///{here}/a\.db$"):
        perdure.open(f"sqlite://{here}/a.db")
    assert left(here) == []


def test_a_folder_of_its_own_is_made(here: Path) -> None:
    for url in (None, f"file://{here}/store", "file://./other", f"sqlite:///{here}/.perdure/b.db"):
        perdure.open(url).close()
    assert {path.name for path in here.iterdir()} == {".perdure", "store", "other"}
    assert {path.name for path in (here / ".perdure").glob("*.db")} == {"agents.db", "b.db"}


def test_a_folder_with_something_else_in_it_is_not_taken_over(here: Path) -> None:
    (here / "theirs").mkdir()
    (here / "theirs" / "letter.txt").write_text("hello")
    with pytest.raises(InvalidInput, match=r"no database, and not empty \('letter\.txt' is in it\): nothing was made"):
        perdure.open(f"file://{here}/theirs")
    assert [path.name for path in left(here)] == ["theirs", "letter.txt"]
    # One of ours stays one, whatever somebody puts there; and a file system has a name of its own in each of its roots.
    (here / "ours" / "lost+found").mkdir(parents=True)
    perdure.open(f"file://{here}/ours").close()
    (here / "ours" / "letter.txt").write_text("hello")
    perdure.open(f"file://{here}/ours").close()


def test_a_store_whose_making_was_killed_is_made_again(here: Path) -> None:
    (here / "store" / "sessions").mkdir(parents=True)
    for name in ("lock", "token", "perdure.json.new"):
        (here / "store" / name).touch()
    perdure.open(f"file://{here}/store").close()


def test_a_path_is_the_name_of_a_file(here: Path) -> None:
    with perdure.open(Path("p.db")) as db, db.session("s") as s:
        s.vars["a"] = 1
        s.commit()
    assert agent().run_sync(Path("p.db"), session="t", message="hi").text == "hello"
    with perdure.open(here / "p.db") as db:
        assert db.read("s").vars == {"a": 1}
        assert db.read("t").messages
    assert {path.name for path in here.iterdir()} == {"p.db"}
    with pytest.raises(UnknownStore, match=r"or a path that ends in \.db"):
        perdure.open(Path("agents"))
    with pytest.raises(InvalidInput, match="there is no folder"):
        perdure.open(Path("no/such.db"))


def test_what_is_no_store_is_told() -> None:
    wrong: Any
    for wrong in (5, ["sqlite:///a.db"], object()):
        with pytest.raises(InvalidInput, match=r"by its URL or path, such as sqlite:///agents\.db, not by"):
            perdure.open(wrong)
    with perdure.open("memory://") as wrong, pytest.raises(Misuse, match="is open already: use this database"):
        perdure.open(wrong)


def test_blobs_go_where_their_folder_is(here: Path) -> None:
    with pytest.raises(InvalidInput, match=r"there is no folder .*/no/such, and nothing was made"):
        perdure.open("memory://", blobs=f"file://{here}/no/such/blobs")
    with pytest.raises(InvalidInput, match="'file://' names no folder for blobs"):
        perdure.open("memory://", blobs="file://")
    (here / "letter.txt").write_text("hello")
    said = r"holds no blobs, and is not empty \('letter\.txt' is in it\)"
    with perdure.open("memory://", blobs=f"file://{here}") as db, pytest.raises(InvalidInput, match=said):
        db.put_blob(b"x")
    assert [path.name for path in left(here)] == ["letter.txt"]
    with perdure.open("memory://", blobs=f"file://{here}/blobs") as db:
        db.put_blob(b"x")
        (here / "blobs" / "letter.txt").write_text("hello")
    with perdure.open("memory://", blobs=f"file://{here}/blobs") as db:
        db.put_blob(b"y")


def test_files_go_where_their_folder_is(here: Path) -> None:
    said = "there is no folder .*/no/such, and nothing was made"
    with perdure.open("memory://") as db:
        with db.session("s") as s:
            s.commit("one")
        for write in (db.backup, db.witness, lambda path: db.export_session("s", path)):
            with pytest.raises(Unavailable, match=said):
                write("no/such/file")
        with pytest.raises(Unavailable, match=said):
            perdure.open("memory://", witness="no/such/witness")
    with pytest.raises(InvalidInput, match=said), recorded("no/such/tapes/one.json", record=True):
        pytest.fail("something was asked before")
    assert left(here) == []
    with recorded("tapes/one.json", record=True):
        pass
    assert (here / "tapes" / "one.json").is_file()
