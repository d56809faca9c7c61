"""The commands that check a database and keep it in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import pytest

import perdure

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A database with one session of twenty steps and a blob."""
    path = tmp_path / "agents.db"
    with perdure.open(f"sqlite:///{path}", maintain=False) as db, db.session("book", ttl=None) as s:
        for n in range(19):
            s.messages.append({"role": "user", "content": f"line {n}"})
            s.commit()
        s.vars["picture"] = b"\x89PNG" * 20_000
        s.commit()
    return path


def test_verify_says_that_all_is_well(command: Command, book: Path):
    result = command("verify", "--all")
    assert (result.code, result.out) == (0, "1 session, 20 checkpoints, 1 blob: all as they were written\n")
    assert command("verify", "book", "--json").json == {
        "ok": True, "sessions": 1, "set_aside": 0, "checkpoints": 20, "blobs": 1, "findings": [], "witness": None,
    }  # fmt: skip


def test_verify_finds_damage_and_ends_with_one(command: Command, book: Path):
    with apsw.Connection(str(book)) as db:
        db.execute("update commits set payload = zeroblob(30) where step = 7")
    result = command("verify", "--all")
    assert result.code == 1
    assert "step 7" in result.out
    assert "problem" in result.out.splitlines()[-1]
    found = command("verify", "--all", "--json").json
    assert not found["ok"]
    assert list(found["findings"][0]) == ["kind", "session", "place", "detail"]


def test_verify_finds_a_missing_blob(command: Command, book: Path, tmp_path: Path):
    blobs = [path for path in (tmp_path / "agents.db-blobs").rglob("*") if len(path.name) >= 60]
    blobs[0].unlink()
    assert [f["kind"] for f in command("verify", "--all", "--json").json["findings"]] == ["blob"]


def test_a_witness_sees_that_the_newest_checkpoint_is_gone(command: Command, book: Path):
    assert command("verify", "--all", "--witness", "heads", "--update-witness").code == 0
    with apsw.Connection(str(book)) as db:
        db.execute("delete from commits where step = 20")
        db.execute("update sessions set step = 19, head = (select id from commits where step = 19)")
    assert command("verify", "--all").code == 0
    result = command("verify", "--all", "--witness", "heads", "--update-witness")
    assert result.code == 1
    assert result.out.startswith("lost: ")
    assert command("verify", "--all", "--witness", "heads").code == 1, "a witness of a damaged store is not renewed"


def test_a_loss_can_be_accepted_and_a_damaged_store_cannot(command: Command, book: Path):
    assert command("verify", "--all", "--witness", "heads", "--update-witness").code == 0
    with apsw.Connection(str(book)) as db:
        db.execute("delete from commits where step = 20")
        db.execute("update sessions set step = 19, head = (select id from commits where step = 19)")
    result = command("verify", "--all", "--witness", "heads", "--accept-loss", "--json")
    assert result.code == 0
    assert [f["kind"] for f in result.json["findings"]] == ["lost"]
    assert result.json["witness"] == {"file": "heads", "updated": 1, "accepted": True, "in_doubt": []}
    assert command("verify", "--all", "--witness", "heads").code == 0
    with apsw.Connection(str(book)) as db:
        db.execute("update commits set payload = x'00' where step = 7")
    result = command("verify", "--all", "--witness", "heads", "--accept-loss")
    assert result.code == 1
    assert "accepted" not in result.out


def test_a_restore_puts_in_doubt_what_the_witness_saw_since(command: Command, book: Path, tmp_path: Path):
    @perdure.tool
    def refund(order: str) -> str:
        return order

    url = f"sqlite:///{book}"
    with perdure.open(url, witness=tmp_path / "heads") as db:
        assert command("backup", "one.perdure").code == 0
        with db.session("book") as s:
            s.call(refund, order="7")
    assert command("restore", "one.perdure", "--store", "there.db", "--witness", "nowhere").code == 2
    result = command("restore", "one.perdure", "--store", "there.db", "--witness", "heads")
    assert result.code == 0
    assert "in doubt: book: refund (ef_" in result.out
    assert command("ls", "--store", "there.db", "--json").json["items"][0]["status"] == "in_doubt"
    assert command("verify", "--all", "--store", "there.db", "--witness", "heads").code == 0


@pytest.mark.parametrize(
    "argv",
    [
        ("verify", "--all", "--accept-loss"),
        ("verify", "book", "--witness", "heads", "--accept-loss"),
        ("verify", "--all", "--witness", "heads", "--accept-loss", "--update-witness"),
        ("verify",),
        ("verify", "book", "--all"),
        ("verify", "--all", "--update-witness"),
        ("verify", "book", "--witness", "heads", "--update-witness"),
        ("prune", "book"),
        ("prune", "--keep-last", "3"),
        ("migrate", "no_such_module_anywhere", "--schema", "2"),
    ],
)
def test_half_a_command_is_wrong_usage(command: Command, book: Path, argv: tuple[str, ...]):
    result = command(*argv)
    assert result.code == 2
    assert result.err.startswith("perdure: ")


def test_a_witness_that_is_not_there_is_a_negative_answer(command: Command, book: Path):
    assert command("verify", "--all", "--witness", "nowhere").code == 1
    assert command("verify", "nobody").code == 1


def test_a_backup_is_restored_into_another_kind_of_store(command: Command, book: Path, tmp_path: Path):
    result = command("backup", "one.perdure")
    assert result.code == 0
    assert result.out.startswith("1 session backed up: 20 checkpoints, 1 blob, ")
    target = f"file://{tmp_path}/copy"
    done = command("restore", "one.perdure", "--store", target, "--json").json
    assert (done["copied"], done["unchanged"], done["blobs"], done["destination"]) == (1, 0, 1, target)
    assert command("restore", "one.perdure", "--store", target, "--json").json["unchanged"] == 1
    both = [command("show", "book", "--json", "--store", store).json for store in (str(book), target)]
    assert both[0] == both[1]


def test_a_backup_never_replaces_another(command: Command, book: Path, tmp_path: Path):
    (tmp_path / "old.perdure").write_text("an older backup")
    assert command("backup", "old.perdure").code == 2
    assert (tmp_path / "old.perdure").read_text() == "an older backup"


def test_a_damaged_backup_is_refused_before_anything_is_written(command: Command, book: Path, tmp_path: Path):
    command("backup", "one.perdure")
    raw = bytearray((tmp_path / "one.perdure").read_bytes())
    raw[len(raw) // 2] ^= 1
    (tmp_path / "one.perdure").write_bytes(raw)
    assert command("restore", "one.perdure", "--store", "copy.db").code == 3
    assert not (tmp_path / "copy.db").exists()


def test_sweep_removes_what_has_expired(command: Command, book: Path):
    import time

    with perdure.open(f"sqlite:///{book}") as db, db.session("short", ttl=1) as s:
        s.vars["x"] = 1
        s.commit()
        until = s.head.at + 1000 if s.head else 0
    while time.time() * 1000 <= until:
        time.sleep(0.05)
    answer = command("sweep", "--json").json
    assert (answer["removed"], answer["failed"]) == (1, [])
    assert list(answer["blobs"]) == ["deleted", "kept", "waiting"]
    assert command("sweep").out == "0 expired sessions and 0 unused blobs removed\n"
    with perdure.open(f"sqlite:///{book}") as db:
        created = db.set_aside()[0].created
    # What is stored is told with how much of it no list shows.
    stored = "2 sessions (1 of them set aside), 21 checkpoints"
    assert stored in command("stats").out
    assert command("verify", "--all").out.startswith(stored)
    assert stored in command("doctor", "--store", f"sqlite:///{book}").out.replace("\n", " ")
    assert {name: command("stats", "--json").json[name] for name in ("sessions", "set_aside")} == {
        "sessions": 2, "set_aside": 1,
    }  # fmt: skip
    table = command("revive").out.split()
    assert table[:9] == ["SESSION", "LIFE", "OWNER", "BEGAN", "UPDATED", "DELETED", "AFTER", "short", "0"]
    assert command("revive", "short").out.startswith("short is back: as it was at 2")
    with perdure.open(f"sqlite:///{book}") as db:
        assert db.look("short").created == created
        with db.session("short", ttl=60) as s:
            assert s.vars["x"] == 1
            s.vars["x"] = 2
            s.commit()
    nothing = "nothing can be brought back: no session has expired, or it was deleted for good\n"
    assert command("revive").out == nothing
    missing = command("revive", "short")
    assert (missing.code, missing.err.startswith("perdure: nothing of session 'short' is set aside")) == (1, True)
    # Kept for no time at all, one that has expired is gone for good.
    with perdure.open(f"sqlite:///{book}") as db, db.session("brief", ttl=1) as s:
        s.commit()
    while not command("sweep", "--keep-expired", "0", "--json").json["removed"]:
        time.sleep(0.2)
    assert command("revive").out == nothing


def test_prune_drops_and_says_how_many(command: Command, book: Path):
    assert command("prune", "book", "--keep-last", "5", "--json").json == {"dropped": 14, "kept": 6, "busy": []}
    result = command("show", "book@8")
    assert result.code == 1
    assert "dropped by retention" in result.err


def test_prune_all_leaves_sessions_alone_that_are_being_written(command: Command, book: Path):
    with perdure.open(f"sqlite:///{book}") as db, db.session("book"):
        assert command("prune", "--all", "--keep-last", "5", "--json").json["busy"] == ["book"]
        assert command("prune", "book", "--keep-last", "5").code == 4


def test_migrate_uses_the_migrations_of_a_module(command: Command, book: Path, tmp_path: Path):
    (tmp_path / "cli_migrations_of_a_test.py").write_text(
        "import perdure\n"
        "@perdure.migration('1.0.0', '1.0.1-cli-test')\n"
        "def add(state):\n"
        "    state['vars']['added'] = True\n"
    )
    argv = ("migrate", "cli_migrations_of_a_test", "--schema", "1.0.1-cli-test", "--json")
    assert command(*argv).json == {"migrated": 1, "current": 0, "skipped": [], "failed": []}
    assert command(*argv).json["current"] == 1
    assert command("show", "book", "--json").json["state"]["value"]["vars"]["added"] is True


def test_migrate_reports_what_it_cannot_do(command: Command, book: Path, tmp_path: Path):
    (tmp_path / "cli_no_migrations.py").write_text("")
    result = command("migrate", "cli_no_migrations", "--schema", "9.9.9", "--json")
    assert result.code == 1
    assert result.json["failed"][0]["session"] == "book"
