"""Damage in a log is found wherever it is."""

from __future__ import annotations

import json
import os
import random
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.doctor.machine import check_ends
from perdure.errors import (
    Corrupted,
    UnsupportedFormat,
)
from perdure.model import Landed
from perdure.protocols import Logged
from perdure.stores.file import log as frames
from perdure.stores.file.root import salt_of, session_name
from perdure.stores.file.store import FileStore, TornTail, Unreadable
from perdure.testing.sealed_rows import commit, land, write

if TYPE_CHECKING:
    from pathlib import Path


from tests.stores.file.filing import flip, log_of, make, steps


def test_a_damaged_record_that_is_not_the_last_is_never_cut(root: Path):
    lengths = make(root, 3)
    whole = log_of(root).read_bytes()
    rng = random.Random(5)
    for _ in range(60):
        bit = rng.randrange(lengths[2] * 8)
        raw = bytearray(whole)
        raw[bit // 8] ^= 1 << bit % 8
        log_of(root).write_bytes(raw)
        store = FileStore(root)
        with pytest.raises(Corrupted, match=r"log, byte \d+") as refused:
            steps(store)
        assert refused.value.where.startswith(str(log_of(root)))
        with pytest.raises(Corrupted):
            land(store, commit(step=3, expect=commit(step=2).id))
        assert log_of(root).read_bytes() == raw
        store.close()


def test_a_record_that_goes_bad_under_an_open_handle_is_noticed(store: FileStore, root: Path):
    write(store, count=3)
    with log_of(root).open("r+b") as log:
        log.seek(-10, os.SEEK_END)
        log.write(b"!")
    with pytest.raises(Corrupted):
        store.load("s", 0)


def test_what_was_durable_before_a_log_was_rewritten_is_never_taken_for_a_torn_tail(root: Path):
    store = FileStore(root)
    write(store, count=2)
    store.drop("s", None, "deleted")
    store.close()
    whole = log_of(root).read_bytes()
    damaged = [whole[:-1], whole[:-20], whole[:-5] + b"!" + whole[-4:], whole + b"garbage"]
    for raw in damaged[:3]:
        log_of(root).write_bytes(raw)
        again = FileStore(root)
        with pytest.raises(Corrupted):
            again.look("s")
        with pytest.raises(Corrupted):
            land(again, commit())
        again.close()
    log_of(root).write_bytes(damaged[3])
    again = FileStore(root)
    with pytest.warns(TornTail):
        write(again)
    again.close()


def test_a_log_that_lost_records_is_noticed_by_those_who_had_read_them(store: FileStore, root: Path):
    write(store, count=2)
    length = log_of(root).stat().st_size
    write(store)
    os.truncate(log_of(root), length)
    for _ in range(2):
        with pytest.raises(Corrupted, match="shorter"):
            store.look("s")


def test_damage_of_one_session_is_the_answer_to_its_items_only(root: Path):
    store = FileStore(root)
    write(store, "bad", count=3)
    store.close()
    raw = bytearray(log_of(root, "bad").read_bytes())
    raw[70] ^= 1
    log_of(root, "bad").write_bytes(raw)
    again = FileStore(root)
    one, two = again.append([commit("bad", 3, expect=b"x"), commit("good")])
    assert isinstance(one, Corrupted)
    assert isinstance(two, Landed)
    again.close()


@pytest.mark.parametrize("said", ["{}", "not json", '{"id": 3}', ""])
def test_a_damaged_identity_is_refused(store: FileStore, root: Path, said: str):
    (root / "perdure.json").write_text(said)
    with pytest.raises(Corrupted, match=r"perdure\.json"):
        FileStore(root)


def test_an_altered_identity_is_refused(store: FileStore, root: Path):
    said = json.loads((root / "perdure.json").read_text())
    said["id"] = said["id"][::-1]
    (root / "perdure.json").write_text(json.dumps(said))
    with pytest.raises(Corrupted):
        FileStore(root)


def test_a_missing_identity_is_not_made_anew_when_there_are_sessions(store: FileStore, root: Path):
    write(store)
    (root / "perdure.json").unlink()
    with pytest.raises(Corrupted, match="missing"):
        FileStore(root)


def test_a_newer_format_is_refused(store: FileStore, root: Path):
    said = json.loads((root / "perdure.json").read_text())
    (root / "perdure.json").write_text(json.dumps({**said, "format": 99}))
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        FileStore(root)


def test_a_record_of_a_newer_version_is_refused_not_cut(root: Path):
    make(root, 1)
    end = log_of(root).stat().st_size
    raw, _ = frames.pack([(99, b"from the future")], end, salt_of(session_name("s")))
    with log_of(root).open("ab") as log:
        log.write(raw)
    store = FileStore(root)
    for _ in range(2):
        with pytest.raises(UnsupportedFormat):
            write(store)
    assert log_of(root).stat().st_size == end + len(raw)
    store.close()


def test_damaged_logs_hide_none_of_the_others(tmp_path: Path):
    url, root = f"file://{tmp_path}/store", tmp_path / "store"
    with perdure.open(url) as db:
        for n in range(6):
            with db.session(f"s{n}") as s:
                for step in range(4):
                    s.vars["n"] = step
                    s.commit()
    for n in (1, 3, 4):
        flip(log_of(root, f"s{n}"), 60 * 8)
    with perdure.open(url, maintain=False) as db:
        with pytest.warns(Unreadable, match="cannot be read and is left out"):
            assert [row.id for row in db.sessions()] == ["s0", "s2", "s5"]
        with pytest.warns(Unreadable):
            assert db.usage().sessions == 3
        with pytest.warns(Unreadable):
            assert db.sweep().removed == 0
        with pytest.warns(Unreadable):
            report = db.verify()
        assert report.sessions == 3
        damaged = sorted(str(log_of(root, f"s{n}")) for n in (1, 3, 4))
        assert sorted(finding.where.partition(", byte")[0] for finding in report.findings) == damaged
        # Something of theirs may be set aside, and is looked for.
        with pytest.warns(Unreadable):
            assert [finding.kind for finding in db.verify("s1").findings] == ["corrupted"]
        with pytest.warns(Unreadable):
            assert db.verify("s0").ok
        # What nobody can read may still refer to any of them.
        with pytest.raises(Corrupted):
            db.collect(grace=0)
        store = db.kernel.store
        assert isinstance(store, Logged)
        assert [finding.verdict for finding in check_ends(store)] == ["fail"] * 3
