"""``--witness``: commands that write tell it of every commit, and write to no store that is behind it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

import perdure
from perdure import tool
from perdure.cli import program
from perdure.errors import BehindWitness, Corrupted, InvalidInput
from perdure.fleet.worker import after_error
from perdure.protocols import Work
from perdure.system import commands
from perdure.upkeep import live_witness
from perdure.upkeep.witness import read_witness, write_file, write_witness

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS: dict[str, Any] = get_command(program.app).commands  # type: ignore[attr-defined]
PATIENCE = 120
APP = "from perdure import Agent, ScriptedModel\nagent = Agent('desk', model=ScriptedModel(['hello']))\n"


def ran(folder: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
    return subprocess.run(
        [sys.executable, "-m", "perdure.cli", *argv],
        cwd=folder, env={**clean, **env}, capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip


def commit(url: str, witness: Path | None, session: str = "s") -> None:
    with perdure.open(url, witness=witness, maintain=False) as db, db.session(session) as s:
        s.vars["n"] = s.vars.get("n", 0) + 1
        s.commit()


@pytest.fixture
def put_back(tmp_path: Path) -> tuple[str, Path]:
    """A store that was put back to an older state, and its witness."""
    (tmp_path / "app.py").write_text(APP)
    path, witness = tmp_path / "agents.db", tmp_path / "a witness"
    commit(f"sqlite:///{path}", witness)
    shutil.copy(path, tmp_path / "older")
    commit(f"sqlite:///{path}", witness)
    shutil.copy(tmp_path / "older", path)
    return f"sqlite:///{path}", witness


def test_every_command_that_writes_takes_one():
    taking = {name for name, found in COMMANDS.items() for p in found.params if commands.WITNESS in p.opts}
    # Those two say with it what it is to be compared with, and what begins anew.
    assert taking == {*commands.WITNESSED, "verify", "restore"}


def test_a_worker_refuses_a_store_that_is_behind_and_what_it_says_to_type_helps(put_back: tuple[str, Path]):
    url, witness = put_back
    folder = witness.parent
    worker = ran(folder, "worker", "app", "--store", url, "--witness", str(witness))
    assert worker.returncode == program.STORE, worker.stderr
    *_, said = worker.stderr.splitlines()
    assert "behind its witness" in said
    with perdure.open(url) as db:
        assert db.look("s").heads[0].step == 1, "nothing was written"
        assert db.kernel.store.board().workers() == []  # pyright: ignore
    words = shlex.split(said[said.index("perdure verify --all") :])
    accepted = ran(folder, *words[1:])
    assert accepted.returncode == program.FINE, accepted.stderr
    assert "accepted: 1 loss" in accepted.stdout
    posted = ran(folder, "post", "s", "hello", "--store", url, "--witness", str(witness))
    assert posted.returncode == program.FINE, posted.stderr


@pytest.mark.parametrize("kind", ["sqlite", "file"])
@pytest.mark.parametrize(
    "name", ["itself", "itself-wal", "itself-blobs/w", "linked", "a note", "no end of line", "json", "empty"]
)
def test_a_file_that_is_the_stores_own_or_no_witness_is_not_written_to(tmp_path: Path, kind: str, name: str):
    url = f"sqlite:///{tmp_path}/itself" if kind == "sqlite" else f"file://{tmp_path}/itself"
    commit(url, None)
    own = name.startswith(("itself", "linked"))
    if kind == "file" and own:
        name = name.replace("itself-", "itself/")
        (tmp_path / "linked").symlink_to(tmp_path / "itself" / "new")
    elif own:
        os.link(tmp_path / "itself", tmp_path / "linked")
    texts = {"a note": "my notes\n", "no end of line": "my\nnotes", "json": '{"a":1}', "empty": ""}
    witness = tmp_path / name
    if name in texts:
        witness.write_text(texts[name])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    refusal = (InvalidInput, "belongs to the store") if own else (Corrupted, "no witness|not that of a witness")
    with pytest.raises(refusal[0], match=refusal[1]):
        commit(url, witness)
    with perdure.open(url) as db:
        for use in (db.witness, db.accept_loss, lambda at: db.verify(witness=at)):
            with pytest.raises(refusal[0]):
                use(witness)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before.keys()
    for path, data in before.items():
        assert path.name in ("LOCK", "owner") or path.suffix == ".lock" or path.read_bytes() == data, path
    with perdure.open(url) as db:
        assert db.verify().ok


@pytest.mark.parametrize("line", ["post s hello", "worker app", "serve --port 0"])
def test_every_command_refuses_a_witness_that_is_the_store(tmp_path: Path, line: str):
    (tmp_path / "app.py").write_text(APP)
    commit(f"sqlite:///{tmp_path}/a.db", None)
    before = (tmp_path / "a.db").read_bytes()
    ended = ran(tmp_path, *line.split(), "--store", "a.db", "--witness", "a.db")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (program.USAGE, 1), ended.stderr
    assert "belongs to the store" in ended.stderr
    assert (tmp_path / "a.db").read_bytes() == before


def test_a_variable_names_it_for_all_of_them(put_back: tuple[str, Path]):
    url, witness = put_back
    named = {"PERDURE_WITNESS": str(witness), "PERDURE_STORE": url}
    for argv in (("post", "s", "hello"), ("tag", "s@1", "t"), ("run", "app", "s", "hello"), ("worker", "app")):
        ended = ran(witness.parent, *argv, **named)
        assert ended.returncode == program.STORE, (argv, ended.stdout)
        assert "behind its witness" in ended.stderr
    assert ran(witness.parent, "show", "s", **named).returncode == program.FINE, "reading goes on"


def test_a_backup_is_restored_with_the_witness_that_a_variable_names(tmp_path: Path):
    @tool
    def pay() -> str:
        return "paid"

    url, witness = f"sqlite:///{tmp_path}/agents.db", tmp_path / "witness"
    commit(url, witness)
    with perdure.open(url, witness=witness, maintain=False) as db:
        db.backup(tmp_path / "backup")
        with db.session("s") as s:
            s.call(pay)
    argv = ("restore", "backup", "--store", "new.db")
    missing = ran(tmp_path, *argv, PERDURE_WITNESS="elsewhere")
    assert (missing.returncode, "PERDURE_WITNESS unset" in missing.stderr) == (program.USAGE, True)
    done = ran(tmp_path, *argv, PERDURE_WITNESS=str(witness))
    assert done.returncode == program.FINE, done.stderr
    assert f"the witness {witness} begins anew" in done.stdout
    with perdure.open(f"sqlite:///{tmp_path}/new.db") as db:
        assert db.look("s").status == "in_doubt"


def test_a_command_tells_it(tmp_path: Path):
    (tmp_path / "app.py").write_text(APP)
    url, witness = f"sqlite:///{tmp_path}/agents.db", tmp_path / "witness"
    ended = ran(tmp_path, "run", "app", "s", "hello", "--store", url, "--witness", str(witness))
    assert ended.returncode == program.FINE, ended.stderr
    with perdure.open(url) as db:
        steps = [one.step for one in read_witness(db.kernel, witness).by_session()["s"].heads]
        assert max(steps) == db.look("s").heads[0].step


def test_a_session_is_not_blamed_for_a_store_that_was_put_back():
    work = Work("s", "desk", tries=10)
    rest = after_error(work, BehindWitness("behind"), 0, most=10, span=1000, version="v")
    assert rest is not None
    assert (rest.uncounted, rest.failed, rest.park) == (True, False, "")


def test_two_that_make_it_at_once_write_to_the_same_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    url, witness = f"sqlite:///{tmp_path}/agents.db", tmp_path / "witness"
    commit(url, None)
    others: list[perdure.Database] = []
    see = live_witness.see_store

    def somebody_is_faster(kernel: Any) -> Any:
        if not others:
            monkeypatch.undo()
            others.append(perdure.open(url, witness=witness, maintain=False))
        return see(kernel)

    monkeypatch.setattr(live_witness, "see_store", somebody_is_faster)
    with perdure.open(url, witness=witness, maintain=False) as db:
        for one, name in ((others[0], "faster"), (db, "slower")):
            with one.session(name) as s:
                s.commit()
        others[0].close()
        assert {"s", "faster", "slower"} == read_witness(db.kernel, witness).by_session().keys()


def test_whoever_writes_one_anew_writes_over_none_that_was_just_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    url, witness = f"sqlite:///{tmp_path}/agents.db", tmp_path / "witness"
    commit(url, None)
    others: list[perdure.Database] = []

    def somebody_is_faster(kernel: Any, path: str, entries: Any, *, new: bool = False) -> None:
        if not others:
            others.append(perdure.open(url, witness=witness, maintain=False))
        write_file(kernel, path, entries, new=new)

    with perdure.open(url, maintain=False) as db:
        monkeypatch.setattr("perdure.upkeep.witness.write_file", somebody_is_faster)
        write_witness(db.kernel, witness)
        with others[0].session("later") as s:
            s.commit()
        others[0].close()
        assert "later" in read_witness(db.kernel, witness).by_session()
