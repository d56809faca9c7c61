"""``perdure export`` and ``perdure import``: one session, as one file, into any store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import perdure

if TYPE_CHECKING:
    from tests.cli.conftest import Command

FIELDS = [
    "ok", "source", "destination", "copied", "updated", "unchanged", "skipped", "failed", "missing", "in_doubt",
    "checkpoints", "blobs", "bytes", "duration_seconds", "verified", "dry_run",
]  # fmt: skip


def test_a_session_travels_with_all_that_belongs_to_it(command: Command, trip: Path, tmp_path: Path):
    with perdure.open(f"sqlite:///{trip}") as db, db.session("trip") as s:
        s.vars["photo"] = b"\0" * 100_000
        s.commit()
    whole = command("show", "trip", "--json").json
    done = command("export", "trip", "trip.perdure", "--json").json
    assert list(done) == FIELDS
    assert (done["copied"], done["blobs"], done["missing"]) == (1, 1, [])
    for url in (f"sqlite:///{tmp_path}/other/x.db", f"file://{tmp_path}/log"):
        Path("other").mkdir(exist_ok=True)
        back = command("import", "trip.perdure", "--store", url, "--json").json
        assert list(back) == FIELDS
        assert (back["copied"], back["unchanged"]) == (1, 0)
        assert command("show", "trip", "--json", "--store", url).json == whole
        assert command("show", "trip@cheaper", "--store", url).code == 0
        assert command("verify", "--all", "--store", url).code == 0
        listed = command("ls", "--json", "--store", url).json["items"]
        assert [(s["id"], s["inbox"]) for s in listed] == [("trip", 1)]
        again = command("import", "trip.perdure", "--store", url)
        assert again.out.startswith("0 sessions imported, 1 there already: 0 checkpoints, 1 blob, ")


def test_what_is_there_is_left_alone(command: Command, trip: Path):
    command("export", "trip", "trip.perdure")
    cursor = command("tail", "--all", "--once", "--json").out.splitlines()[-1].rpartition('"cursor": "')[2][:-2]
    with perdure.open(f"sqlite:///{trip}") as db, db.session("visit") as held:
        assert command("import", "trip.perdure").code == 0
        held.vars["n"] = 1
        held.commit()
    assert '"visit"' in command("tail", "--since", cursor, "--once", "--json").out, "the cursor has expired"
    with perdure.open(f"sqlite:///{trip}") as db, db.session("trip") as s:
        s.vars["n"] = 1
        s.commit()
    refused = command("import", "trip.perdure")
    assert (refused.code, "differs" in refused.err) == (4, True)


def test_bad_files_and_names(command: Command, trip: Path):
    assert command("export", "nobody", "x.perdure").code == 1
    assert not Path("x.perdure").exists()
    assert command("export", "trip", str(trip)).code == 2, "it would write over a file"
    assert command("import", "nowhere", "--store", "sqlite:///new.db").code == 2
    assert not Path("new.db").exists()
    Path("junk").write_bytes(b"\x1b]0;x\x07" * 100)
    found = command("import", "junk")
    assert (found.code, found.err.count("\n"), "\x1b" in found.err) == (3, 1, False)
    command("export", "trip", "x.perdure")
    data = bytearray(Path("x.perdure").read_bytes())
    data[len(data) // 2] ^= 1
    Path("x.perdure").write_bytes(data)
    assert command("import", "x.perdure", "--store", "sqlite:///new.db").code == 3
    assert not Path("new.db").exists(), "nothing is made of it"
