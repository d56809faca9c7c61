"""Whatever is done to stored bytes, a reader gets the original, an error that says so, or a loss the witness shows.

The short form of the campaign; ``make tamper`` runs the long one.
"""

from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from perdure.errors import BehindWitness, Corrupted
from perdure.testing.clock import FakeClock
from tests.campaigns.tamper.building import SESSIONS, Original, build, open_store
from tests.campaigns.tamper.bytes_level import ANY_FILE, Target
from tests.campaigns.tamper.campaign import REPORT, STORES, main, mutations, run, tamper
from tests.campaigns.tamper.frame_level import RECORDS
from tests.campaigns.tamper.judging import OTHER, judge
from tests.campaigns.tamper.sql_level import ROWS

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.database import Database

COUNT = 600
SHARES = 4


@pytest.mark.parametrize("store", STORES, ids="-".join)
def test_a_store_that_nobody_touched_is_the_original(store: tuple[str, str], folder: Path):
    original = build(*store, folder / "original", seed=1)
    for image in ("closed", "live"):
        shutil.copytree(original.folder / image, folder / image)
        assert judge(original, folder / image).outcome == "original"


@pytest.mark.parametrize("share", range(SHARES))
def test_no_mutation_of_stored_bytes_ends_in_another_state(share: int, folder: Path):
    seed = int(os.environ.get("PERDURE_TAMPER_SEED", "20"))
    outcomes = list(run(seed + share, COUNT // SHARES, folder))
    found = [outcome for outcome in outcomes if outcome.verdict.outcome == OTHER]
    assert not found, f"seed {seed + share}"
    assert {outcome.verdict.outcome for outcome in outcomes} >= {"original", "corrupted", "lost"}


@pytest.mark.parametrize("store", [("sqlite", "msgpack"), ("file", "msgpack")], ids=lambda store: store[0])
def test_what_is_put_back_or_comes_from_another_store_is_never_believed(store: tuple[str, str], folder: Path):
    original = build(*store, folder / "original", seed=1)
    for name in ("input replayed", "row transplanted"):
        assert set(outcomes_of(original, [name], folder, 20)) <= {"original", "corrupted", "lost"}, name
    assert set(outcomes_of(original, ["session transplanted"], folder, 10)) == {"corrupted"}
    assert set(outcomes_of(original, ["session rolled back"], folder, 10)) == {"lost"}
    assert set(outcomes_of(original, ["deletion forged"], folder, 30)) <= {"original", "corrupted", "lost"}


def post_to_all(db: Database) -> None:
    """What is missing of one session, or cannot be read, stops whoever would write to it."""
    for session in SESSIONS:
        db.post(session, "hello")


@pytest.mark.parametrize("mutation", ["old store", "session rolled back", "deletion forged"])
@pytest.mark.parametrize("store", [("sqlite", "msgpack"), ("file", "msgpack")], ids=lambda store: store[0])
def test_nobody_with_a_witness_writes_to_a_store_that_was_put_back(store: tuple[str, str], mutation: str, folder: Path):
    original = build(*store, folder / "original", seed=1)
    level = {**ANY_FILE, **(ROWS if store[0] == "sqlite" else RECORDS)}
    rng, refused = random.Random(5), 0
    for _ in range(12):
        copy = folder / "copy"
        shutil.copytree(original.folder / "closed", copy)
        what = level[mutation](Target(original, "closed", copy, rng))
        # An input is compared by verify only: nobody can do anything twice because of it.
        if what and "input" not in what:
            witness = folder / "witness"
            shutil.copy(original.witness, witness)
            with (
                open_store(*store, copy, FakeClock(original.now), witness=witness) as db,
                pytest.raises((BehindWitness, Corrupted)),
            ):
                post_to_all(db)
            refused += 1
        shutil.rmtree(copy)
    assert refused


def test_the_suite_sees_it_when_nobody_asks_what_was_taken(folder: Path):
    original = build("sqlite", "msgpack", folder / "original", seed=1)
    names = ["input replayed"]

    def believed(*_: object) -> bool:
        return False

    with (
        mock.patch("perdure.session.inbox.is_taken", believed),
        mock.patch("perdure.upkeep.verify.Inspection._inbox", return_value=None),
        mock.patch.multiple("perdure.upkeep.witness.SeenSession", compare=lambda *_: []),
    ):
        assert OTHER in outcomes_of(original, names, folder, 40)


def test_the_suite_sees_it_when_nothing_is_bound_to_its_store(folder: Path):
    with mock.patch("perdure.kernel.Kernel.store_id", "everywhere"):
        original = build("sqlite", "msgpack", folder / "original", seed=1)
        assert OTHER in outcomes_of(original, ["session transplanted"], folder, 10)


def outcomes_of(original: Original, names: list[str], folder: Path, count: int) -> list[str]:
    """What comes of some mutations."""
    rng = random.Random(3)
    done = [tamper(original, names[turn % len(names)], rng, folder / "copy") for turn in range(count)]
    return [outcome.verdict.outcome for outcome in done if outcome is not None]


@pytest.mark.parametrize("store", [("sqlite", "msgpack"), ("file", "msgpack")], ids=lambda store: store[0])
def test_the_suite_sees_it_when_digests_cover_nothing(store: tuple[str, str], folder: Path):
    names = ["commit forged", "rows swapped" if store[0] == "sqlite" else "fields swapped"]
    with mock.patch("perdure.record.codec._digest", return_value=bytes(32)):
        original = build(*store, folder / "original", seed=1)
        assert OTHER in outcomes_of(original, names, folder, 40)


def test_the_suite_sees_it_when_pointers_are_believed(folder: Path):
    original = build("sqlite", "msgpack", folder / "original", seed=1)
    assert OTHER not in outcomes_of(original, ["pointer moved"], folder, 10)

    def believed(kernel: object, row: object, branch: str) -> object:
        return next(head for head in row.heads if head.branch == branch)  # pyright: ignore[reportAttributeAccessIssue]

    with (
        mock.patch("perdure.history.hydrate.head_of", believed),
        mock.patch("perdure.upkeep.verify.Inspection._pointers", return_value=None),
    ):
        assert OTHER in outcomes_of(original, ["pointer moved"], folder, 40)


def test_the_suite_sees_it_when_a_loss_is_not_compared_with_the_witness(folder: Path):
    original = build("file", "msgpack", folder / "original", seed=1)
    assert set(outcomes_of(original, ["old store"], folder, 5)) == {"lost"}

    def unnoticed(*_: object) -> list[object]:
        return []

    with mock.patch.multiple("perdure.upkeep.witness.SeenSession", compare=unnoticed, compare_ended=unnoticed):
        assert OTHER in outcomes_of(original, ["old store"], folder, 5)


def test_every_kind_of_store_has_mutations_of_bytes_of_records_and_of_seals():
    for kind in ("sqlite", "file"):
        assert {"bit flips", "truncated", "old file", "seal forged", "commit forged", "tail cut"} <= set(
            mutations(kind)
        )


def test_the_long_run_writes_its_report(tmp_path: Path):
    report = tmp_path / "tamper.md"
    shutil.copyfile(REPORT, report)
    assert main(["--count", "4", "--jobs", "1", "--seed", "1", "--report", str(report)]) == 0
    written = report.read_text("utf-8")
    assert "   of 4\nok in " in written
    assert written.partition("```")[0] == REPORT.read_text("utf-8").partition("```")[0], "what people wrote is left"
