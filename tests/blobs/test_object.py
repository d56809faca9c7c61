"""Blobs in a bucket: whose it is, and what lies in it. A real S3 server."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from perdure.blobs import object_storage as names
from perdure.blobs.object_storage import LEFTOVER, LONG, ObjectBlobs
from perdure.errors import Corrupted, HandleClosed, InvalidInput, NotFound
from perdure.system import faults
from perdure.system.clock import SystemClock
from perdure.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable


DATA = b"a photograph of the hotel" * 2000
REF = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def blobs(url: str, config: dict[str, str], clock: FakeClock) -> ObjectBlobs:
    return ObjectBlobs(url, "store-1", clock=clock, config=config)


def objects_in(blobs: ObjectBlobs) -> dict[str, int]:
    """Everything below the prefix, by what it is."""
    found: dict[str, int] = {}
    for item in blobs._client.list():
        kind = "renewal" if ".r" in item.path else "mark" if item.path.endswith(".x") else "content"
        kind = "owner" if item.path == names.OWNER else kind
        found[kind] = found.get(kind, 0) + 1
    return found


def only_content(blobs: ObjectBlobs) -> str:
    (path,) = [item.path for item in blobs._client.list("/".join([REF[:2], REF])) if "." not in item.path]
    return path


# -- whose it is -----------------------------------------------------------------------------------------


def test_a_prefix_belongs_to_one_store(url: str, config: dict[str, str], blobs: ObjectBlobs):
    blobs.put(REF, DATA)
    with pytest.raises(InvalidInput, match=r"another store \('store-1'\): give each store a prefix of its own"):
        ObjectBlobs(url, "store-2", config=config)
    other = ObjectBlobs(f"{url}/deeper", "store-2", config=config)
    other.put(REF, DATA)
    assert [ref for ref, _ in other.refs()] == [REF]
    assert ObjectBlobs(url, "store-1", config=config).get(REF) == DATA


def test_looking_claims_nothing(url: str, config: dict[str, str], blobs: ObjectBlobs):
    assert list(blobs.refs()) == []
    with pytest.raises(NotFound):
        blobs.get(REF)
    assert objects_in(blobs) == {}
    ObjectBlobs(url, "store-2", config=config).put(REF, DATA)
    with pytest.raises(InvalidInput, match="another store"):
        blobs.put(REF, DATA)


def test_of_two_stores_that_begin_together_one_gets_the_prefix(url: str, config: dict[str, str]):
    handles = [ObjectBlobs(url, f"store-{n}", config=config) for n in range(4)]
    answers: list[str] = []

    def begin(handle: ObjectBlobs) -> None:
        try:
            handle.put(REF, DATA)
            answers.append("mine")
        except InvalidInput:
            answers.append("another's")

    threads = [threading.Thread(target=begin, args=(handle,)) for handle in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["another's"] * 3 + ["mine"]


def test_a_server_that_knows_no_conditions_is_used_without_them(url: str, config: dict[str, str]):
    plain = {**config, "aws_conditional_put": "disabled"}
    blobs = ObjectBlobs(url, "store-1", config=plain)
    blobs.put(REF, DATA)
    assert blobs.get(REF) == DATA
    with pytest.raises(InvalidInput, match="another store"):
        ObjectBlobs(url, "store-2", config=plain)


# -- what lies in it -------------------------------------------------------------------------------------


def test_a_content_lies_below_its_hash_and_is_sent_once(blobs: ObjectBlobs, clock: FakeClock):
    for _ in range(5):
        blobs.put(REF, DATA)
        clock.advance(1000)
    assert objects_in(blobs) == {"owner": 1, "content": 1, "renewal": 1}
    assert only_content(blobs).startswith(f"{REF[:2]}/{REF}/")


def test_what_is_no_blob_is_neither_listed_nor_deleted(blobs: ObjectBlobs, clock: FakeClock):
    blobs.put(REF, DATA)
    strange = [
        "notes.txt",
        "zz/x",
        f"{REF[:2]}/{REF}/readme",
        f"{REF[:2]}/{REF}/0-0",
        f"00/{REF}/{'0' * 12}-{'0' * 16}",
    ]
    for path in strange:
        blobs._client.write(path, b"hello")
    clock.advance(2 * LEFTOVER)
    assert [ref for ref, _ in blobs.refs()] == [REF]
    assert blobs.delete(REF, clock.wall()) is True
    assert {item.path for item in blobs._client.list()} == {*strange, names.OWNER}


def test_every_change_of_the_bytes_is_noticed(blobs: ObjectBlobs, url: str, config: dict[str, str]):
    blobs.put(REF, DATA)
    path = only_content(blobs)
    rng = random.Random(3)
    for n in range(6):
        raw = bytearray(DATA)
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        blobs._client.write(path, bytes(raw if n else DATA[:-1]))
        for handle in (blobs, ObjectBlobs(url, "store-1", config=config)):
            with pytest.raises(Corrupted, match=f"blob {REF} in s3://"):
                handle.get(REF)


def test_a_damaged_upload_is_passed_over_when_there_is_another(blobs: ObjectBlobs, clock: FakeClock):
    blobs.put(REF, DATA)
    clock.advance(1000)
    blobs._client.write(names.new_generation(REF, clock.wall()), b"?" * len(DATA))
    blobs._places.pop(REF, None)
    assert blobs.get(REF) == DATA


def test_putting_again_heals_what_was_cut_short(blobs: ObjectBlobs):
    blobs.put(REF, DATA)
    blobs._client.write(only_content(blobs), DATA[:100])
    blobs._places.pop(REF, None)
    blobs.put(REF, DATA)
    assert blobs.get(REF) == DATA


def test_a_reader_finds_the_content_that_was_uploaded_anew(url: str, config: dict[str, str], clock: FakeClock):
    reader, writer = (ObjectBlobs(url, "store-1", clock=clock, config=config) for _ in range(2))
    writer.put(REF, DATA)
    assert reader.get(REF) == DATA
    clock.advance(1000)
    assert writer.delete(REF, clock.wall()) is True
    writer.put(REF, DATA)
    assert reader.get(REF) == DATA, "it remembered a place where nothing is any more"


def test_a_condemned_content_is_read_but_not_relied_on(blobs: ObjectBlobs, clock: FakeClock):
    blobs.put(REF, DATA)
    clock.advance(10)

    class Killed(BaseException):
        pass

    def killed(name: str) -> None:
        if name == "blobs.delete.condemned":
            raise Killed

    faults.hook = killed
    with pytest.raises(Killed):
        blobs.delete(REF, clock.wall())
    faults.hook = None
    assert objects_in(blobs) == {"owner": 1, "content": 1, "mark": 1}
    assert blobs.get(REF) == DATA
    blobs.put(REF, DATA)
    assert objects_in(blobs)["content"] == 2
    clock.advance(10)
    assert blobs.delete(REF, clock.wall()) is True
    clock.advance(2 * LEFTOVER)
    assert list(blobs.refs()) == []
    assert objects_in(blobs) == {"owner": 1}


def test_marks_of_a_killed_collector_are_cleared(blobs: ObjectBlobs, clock: FakeClock):
    blobs.put(REF, DATA)
    clock.advance(10)
    blobs.put(REF, DATA)
    clock.advance(10)

    def killed(name: str) -> None:
        if name == "blobs.delete.content_gone":
            raise KeyboardInterrupt

    faults.hook = killed
    with pytest.raises(KeyboardInterrupt):
        blobs.delete(REF, clock.wall())
    faults.hook = None
    assert objects_in(blobs) == {"owner": 1, "mark": 1, "renewal": 1}
    assert list(blobs.refs()) == []
    assert objects_in(blobs) == {"owner": 1, "mark": 1, "renewal": 1}, "too young to tell"
    clock.advance(2 * LEFTOVER)
    assert list(blobs.refs()) == []
    assert objects_in(blobs) == {"owner": 1}


class Wrong(SystemClock):
    """The clock of a machine that nobody has set."""

    def __init__(self, by: int) -> None:
        self._by = by

    def wall(self) -> int:
        return super().wall() + self._by


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("writer", "collector"), [(-2 * LEFTOVER, 0), (0, 2 * LEFTOVER), (-LEFTOVER, LEFTOVER)])
def test_clocks_that_disagree_by_hours_make_no_blob_old(
    url: str, config: dict[str, str], writer: int, collector: int, known: bool
):
    put = ObjectBlobs(url, "store-1", clock=Wrong(writer), config=config)
    collect = ObjectBlobs(url, "store-1", clock=Wrong(collector), config=config)
    put.put(REF, DATA)
    if known:
        put.put(REF, DATA)
    cutoff = Wrong(collector).wall() - LEFTOVER
    assert dict(collect.refs())[REF] < cutoff, "it looks old"
    assert collect.delete(REF, cutoff) is False
    assert collect.delete(REF, cutoff) is False
    assert ObjectBlobs(url, "store-1", config=config).get(REF) == DATA
    assert collect.delete(REF, Wrong(collector).wall()) is True, "without any grace it goes"


def test_a_slow_upload_is_young_when_it_is_done(blobs: ObjectBlobs, clock: FakeClock):
    def slow(name: str) -> None:
        if name == "blobs.put.before_upload":
            clock.advance(LONG + 1)

    faults.hook = slow
    blobs.put(REF, DATA)
    faults.hook = None
    assert list(blobs.refs()) == [(REF, clock.wall())]


def test_a_closed_handle_is_refused(blobs: ObjectBlobs):
    blobs.put(REF, DATA)
    blobs.close()
    uses: list[Callable[[], Any]] = [lambda: blobs.get(REF), lambda: blobs.put(REF, DATA), lambda: list(blobs.refs())]
    for use in [*uses, lambda: blobs.delete(REF, 0), lambda: blobs.put_stream([DATA])]:
        with pytest.raises(HandleClosed):
            use()


MEASURE = """
import hashlib, random, resource, sys
from perdure.blobs.object_storage import ObjectBlobs
from tests.servers.objects import objects_options
blobs = ObjectBlobs(sys.argv[1], "store-1")
rng = random.Random(1)
blobs.put_stream([rng.randbytes(100)])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ref = blobs.put_stream(rng.randbytes(1 << 20) for _ in range(64))
seen = hashlib.sha256()
for piece in blobs.get_stream(ref):
    seen.update(piece)
assert seen.hexdigest() == ref
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_64_mib_pass_through_without_being_held_in_memory(url: str, config: dict[str, str]):
    env = {**os.environ, **{name.upper(): value for name, value in config.items()}}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, url], env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 56 * 1024, "KiB beyond what a small blob takes"
