"""Deduplicating writers against a collector, real processes on a real server: nothing acknowledged is ever missing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import tests.servers
from tests.blobs.places import bucket_url, unique
from tests.blobs.race import WRITERS, race
from tests.servers.objects import objects_options

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = int(os.environ.get("PERDURE_BLOB_ROUNDS", "60"))


def test_writers_and_a_collector_at_the_same_contents(tmp_path: Path):
    config = objects_options(tests.servers.objects())
    done = race(tmp_path, bucket_url(unique(tmp_path)), config, ROUNDS, seed=11)
    assert done.problems == []
    assert done.commits == ROUNDS * WRITERS
    assert done.deleted > 0, "the collector never met an unused blob: the race was not run"
