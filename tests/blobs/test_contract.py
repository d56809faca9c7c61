"""What every backend of blobs does, whatever it is made of."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

from perdure.errors import Corrupted, InvalidInput, NotFound
from tests.blobs.places import blobs_of
from tests.servers import postgres, valkey
from tests.servers.postgres import postgres_url
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure.protocols import Blobs
    from perdure.testing.clock import FakeClock

DATA = b"a photograph of the hotel" * 1000


def ref_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(blobs: Blobs, data: bytes = DATA) -> str:
    """Put some content; its ref."""
    ref = ref_of(data)
    blobs.put(ref, data)
    return ref


def test_what_was_put_is_given_back_by_any_handle(blobs: Blobs, make_blobs: Callable[[], Blobs]):
    for data in (b"", b"x", DATA, os.urandom(100_000)):
        ref = put(blobs, data)
        assert blobs.get(ref) == data
        assert make_blobs().get(ref) == data


def test_what_was_never_put_is_not_found(blobs: Blobs):
    with pytest.raises(NotFound, match="there is no blob"):
        blobs.get(ref_of(b"never"))
    with pytest.raises(NotFound, match="there is no blob"):
        list(blobs.get_stream(ref_of(b"never")))
    assert blobs.delete(ref_of(b"never"), 1 << 40) is False
    assert list(blobs.refs()) == []


@pytest.mark.parametrize(
    "ref", ["", "abc", "../../etc/passwd", "G" * 64, "A" * 64, "a" * 63, "a" * 65, "a" * 64 + "\n", "/" * 64]
)
def test_only_a_hash_is_a_ref(blobs: Blobs, ref: str):
    uses = [lambda: blobs.get(ref), lambda: blobs.put(ref, b""), lambda: blobs.delete(ref, 0)]
    for use in [*uses, lambda: list(blobs.get_stream(ref))]:
        with pytest.raises(InvalidInput):
            use()


def test_content_that_is_not_of_its_ref_is_refused(blobs: Blobs):
    with pytest.raises(InvalidInput, match="nothing was written"):
        blobs.put(ref_of(b"one"), b"two")
    assert list(blobs.refs()) == []


def test_putting_again_renews(blobs: Blobs, make_blobs: Callable[[], Blobs], clock: FakeClock):
    ref = put(blobs)
    made = clock.wall()
    assert list(blobs.refs()) == [(ref, made)]
    for n, handle in enumerate((blobs, make_blobs(), blobs), 1):
        clock.advance(5000)
        put(handle)
        assert list(blobs.refs()) == [(ref, made + 5000 * n)]
    assert make_blobs().get(ref) == DATA


def alter_in(kind: str, folder: Path, ref: str, data: bytes) -> None:
    """Change what is stored, from outside."""
    match kind:
        case "local":
            (folder / "blobs" / ref[:2] / ref[2:]).write_bytes(data)
        case "postgres":
            schema = url_of(kind, folder).rpartition("schema=")[2]
            with psycopg.connect(postgres_url(postgres())) as connection:
                sql = f"update {schema}.perdure_blob set body = %s where ref = %s"
                assert connection.execute(sql.encode(), (data, ref)).rowcount == 1
        case _:
            prefix = url_of(kind, folder).rpartition("prefix=")[2]
            redis.Redis(port=valkey().port).set(f"{prefix}:blob:{ref}", data)


@pytest.mark.parametrize("kind", ["local", "postgres", "redis"])
def test_putting_again_heals_what_was_altered_and_has_its_size(kind: str, tmp_path: Path, clock: FakeClock):
    """A bucket is believed: what it lists is what was uploaded. In memory the content is simply taken."""
    blobs = blobs_of(kind, tmp_path, clock)
    ref = put(blobs)
    alter_in(kind, tmp_path, ref, DATA[:-1] + b"?")
    with pytest.raises(Corrupted):
        blobs.get(ref)
    put(blobs)
    assert blobs.get(ref) == DATA
    blobs.close()


def test_a_clock_that_was_set_back_makes_no_blob_older(blobs: Blobs, clock: FakeClock):
    ref = put(blobs)
    made = clock.wall()
    clock.set_wall(made - 100_000)
    put(blobs)
    assert list(blobs.refs()) == [(ref, made)]


def test_a_blob_is_deleted_unless_it_was_renewed_since(blobs: Blobs, clock: FakeClock):
    ref = put(blobs)
    marked = clock.wall()
    assert blobs.delete(ref, marked) is False, "renewed at that very time"
    clock.advance(10)
    marked = clock.wall()
    put(blobs)
    assert blobs.delete(ref, marked) is False
    clock.advance(10)
    assert blobs.delete(ref, clock.wall()) is True
    assert blobs.delete(ref, clock.wall()) is False
    with pytest.raises(NotFound):
        blobs.get(ref)
    assert list(blobs.refs()) == []
    put(blobs)
    assert blobs.get(ref) == DATA
    assert list(blobs.refs()) == [(ref, clock.wall())]


def test_all_refs_are_listed_and_only_the_one_meant_goes(blobs: Blobs, clock: FakeClock):
    refs = {put(blobs, b"%d" % n) for n in range(30)}
    assert {ref for ref, _ in blobs.refs()} == refs
    clock.advance(1)
    gone = min(refs)
    assert blobs.delete(gone, clock.wall()) is True
    assert {ref for ref, _ in blobs.refs()} == refs - {gone}


def test_streams_carry_what_came_in_pieces(blobs: Blobs, make_blobs: Callable[[], Blobs]):
    rng = random.Random(5)
    for sizes in ([], [0], [1, 0, 2], [100_000] * 3, [(1 << 20) + 1, (9 << 20) - 5]):
        pieces = [rng.randbytes(size) for size in sizes]
        whole = b"".join(pieces)
        ref = blobs.put_stream(iter(pieces))
        assert ref == ref_of(whole)
        assert blobs.get(ref) == whole
        assert b"".join(make_blobs().get_stream(ref)) == whole


def test_a_stream_of_what_is_there_renews_it(blobs: Blobs, clock: FakeClock):
    ref = put(blobs)
    clock.advance(1000)
    assert blobs.put_stream([DATA[:10], DATA[10:]]) == ref
    assert list(blobs.refs()) == [(ref, clock.wall())]


def test_a_stream_that_breaks_off_leaves_nothing(blobs: Blobs):
    class Interrupted(OSError):
        pass

    def pieces():
        yield DATA
        raise Interrupted("the camera was unplugged")

    with pytest.raises(Interrupted, match="unplugged"):
        blobs.put_stream(pieces())
    assert list(blobs.refs()) == []


def test_many_threads_share_a_handle(blobs: Blobs):
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(20):
                data = b"%d" % rng.randrange(5)
                assert blobs.get(put(blobs, data)) == data
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(list(blobs.refs())) == 5
