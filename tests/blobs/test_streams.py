"""Large values as streams: into a state without passing through memory, and out of it again, on every backend."""

from __future__ import annotations

import asyncio
import hashlib
import io
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import BlobRef
from perdure.errors import Corrupted, InvalidInput, LimitExceeded, Misuse, NotFound
from perdure.state.values import MAX_VALUE
from perdure.system import faults

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from perdure.protocols import Blobs
    from perdure.testing.clock import FakeClock

HOUR = 3_600_000
FILM = random.Random(1).randbytes(3_000_000)


@pytest.fixture
def db(tmp_path: Path, make_blobs: Callable[[], Blobs], clock: FakeClock) -> Iterator[perdure.Database]:
    """A database whose blobs are of each kind in turn."""
    with perdure.open(f"sqlite:///{tmp_path}/agents.db", blobs=make_blobs(), clock=clock) as opened:
        yield opened


def pieces(data: bytes, size: int = 100_000) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def test_a_streamed_value_reads_as_bytes_and_as_a_stream(db: perdure.Database):
    for source in (io.BytesIO(FILM), pieces(FILM), [FILM], FILM):
        blob = db.put_blob(source)
        assert (blob.ref, blob.size) == (hashlib.sha256(FILM).hexdigest(), len(FILM))
    with db.session("s") as s:
        s.vars["film"] = db.put_blob(io.BytesIO(FILM))
        s.messages.append({"role": "user", "content": [{"film": db.put_blob(b"a short one")}]})
        s.commit()
        with db.open_blob(s.blob("vars", "film")) as stream:
            assert stream.read(10) == FILM[:10]
            assert stream.read() == FILM[10:]
    seen = db.read("s")
    out = io.BytesIO()
    with db.open_blob(seen.blob("vars", "film")) as stream:
        shutil.copyfileobj(stream, out)
    assert out.getvalue() == FILM
    assert seen.vars["film"] == FILM
    assert seen.blob("vars", "film") == FILM, "once looked at, it is in memory"
    assert db.open_blob(seen.blob("vars", "film")).read() == FILM
    assert seen.messages[0]["content"][0]["film"] == b"a short one"
    assert db.verify().ok


def test_an_empty_value_is_a_value(db: perdure.Database):
    with db.session("s") as s:
        s.vars["none"] = db.put_blob([])
        s.commit()
    assert db.read("s").vars["none"] == b""
    assert db.open_blob(db.read("s").blob("vars", "none")).read() == b""


def test_a_streamed_value_is_kept_while_it_is_named_and_collected_afterwards(db: perdure.Database, clock: FakeClock):
    with db.session("s", ttl=60) as s:
        s.vars["film"] = db.put_blob(pieces(FILM))
        s.commit()
    db.put_blob(b"never named")
    clock.advance(2 * HOUR)
    assert db.collect() == (1, 1, 0)
    clock.advance(60_000)
    db.sweep()
    assert db.collect() == (0, 1, 0), "it can still be brought back"
    clock.advance(7 * 24 * HOUR)
    db.sweep()
    assert db.collect() == (1, 0, 0)


def test_a_commit_long_after_puts_the_value_again(db: perdure.Database, clock: FakeClock):
    """Between putting and naming anything may happen: what the commit names is there and young when it lands."""
    blob = db.put_blob(pieces(FILM))
    clock.advance(2 * HOUR)
    with db.session("s", ttl=None) as s:
        s.vars["film"] = blob
        s.commit()
        assert [at for _, at in db.kernel.blobs.refs()] == [clock.wall()]
        s.vars["again"] = blob
        s.commit()
    assert db.read("s").vars["film"] == db.read("s").vars["again"] == FILM


def test_a_value_that_was_collected_before_it_was_named_is_missed_by_the_commit(db: perdure.Database, clock: FakeClock):
    blob = db.put_blob(pieces(FILM))
    clock.advance(2 * HOUR)
    assert db.collect().deleted == 1
    with db.session("s") as s:
        s.vars["film"] = blob
        with pytest.raises(NotFound, match="there is no blob"):
            s.commit()
        s.reload()
    with pytest.raises(NotFound, match="no checkpoint"):
        db.read("s")


def test_a_collector_between_the_renewal_and_the_commit_leaves_the_value(db: perdure.Database, clock: FakeClock):
    blob = db.put_blob(pieces(FILM))
    clock.advance(2 * HOUR)
    collected: list[Any] = []

    def collect(name: str) -> None:
        if name == "commit.before_write":
            collected.append(db.collect())

    with db.session("s", ttl=None) as s:
        s.vars["film"] = blob
        faults.hook = collect
        s.commit()
        faults.hook = None
    assert collected == [(0, 0, 1)]
    assert db.read("s").vars["film"] == FILM


def test_a_value_taken_from_one_state_into_another_lives_on_without_the_first(db: perdure.Database, clock: FakeClock):
    with db.session("one", ttl=60) as s:
        s.vars["film"] = FILM
        s.vars["text"] = "words " * 10_000
        s.commit()
    with db.session("two", ttl=None) as s:
        s.vars["film"] = db.read("one").blob("vars", "film")
        s.vars["text"] = db.read("one").blob("vars", "text")
        s.commit()
    clock.advance(2 * HOUR)
    db.sweep()
    assert db.collect() == (0, 2, 0)
    assert db.read("two").vars.plain() == {"film": FILM, "text": "words " * 10_000}


def test_a_value_that_was_moved_is_named_where_it_stands_now(db: perdure.Database):
    with db.session("s", ttl=None) as s:
        s.vars["old"] = {"film": FILM}
        s.commit()
    with db.session("s") as s:
        s.vars["new"] = s.vars["old"]
        del s.vars["old"]
        s.commit()
    ref = hashlib.sha256(FILM).hexdigest()
    assert [ref in shown["blobs"] for _, shown in db.kernel.store.dump("s").rows] == [True, True]


@pytest.mark.parametrize("source", ["text", 5, None, ["text"], io.StringIO, [b"x", 5]])
def test_what_is_not_bytes_is_refused(db: perdure.Database, source: Any):
    given: Any = io.StringIO("text") if source is io.StringIO else source
    with pytest.raises(InvalidInput, match="binary"):
        db.put_blob(given)
    assert list(db.kernel.blobs.refs()) == []


def test_a_stream_has_the_limit_of_a_value(db: perdure.Database):
    piece = bytes(16 << 20)
    with pytest.raises(LimitExceeded, match=str(MAX_VALUE)):
        db.put_blob(piece for _ in range(MAX_VALUE // len(piece) + 1))
    assert list(db.kernel.blobs.refs()) == []


def test_what_is_no_blob_cannot_be_opened_as_one(db: perdure.Database):
    with db.session("s") as s:
        s.vars["tree"] = ["word"] * 20_000
        s.vars["n"] = 1
        s.commit()
    seen = db.read("s")
    for path in (("vars", "tree"), ("vars", "n"), ("messages",)):
        with pytest.raises(Misuse, match="neither bytes nor text"):
            seen.blob(*path)
    with pytest.raises(KeyError):
        seen.blob("vars", "nothing")
    with pytest.raises(InvalidInput, match="no blob"):
        db.open_blob("abc")  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="there is no blob"):
        db.open_blob(BlobRef(1, "a" * 64, 5))


def test_text_is_read_as_its_bytes(db: perdure.Database):
    words = "grüße " * 10_000
    with db.session("s") as s:
        s.vars["long"], s.vars["short"] = words, "grüße"
        s.commit()
    seen = db.read("s")
    assert db.open_blob(seen.blob("vars", "long")).read().decode() == words
    assert db.open_blob(seen.blob("vars", "short")).read().decode() == "grüße"


def test_damage_shows_before_the_end_of_the_stream(tmp_path: Path):
    data = random.Random(2).randbytes(5_000_000)
    with perdure.open(f"sqlite:///{tmp_path}/a.db") as db:
        blob = db.put_blob(pieces(data))
        path = tmp_path / "a.db-blobs" / blob.ref[:2] / blob.ref[2:]
        raw = bytearray(data)
        raw[2_500_000] ^= 1
        path.write_bytes(raw)
        with db.open_blob(blob) as stream:
            assert stream.read(1000) == data[:1000]
            with pytest.raises(Corrupted, match="not what was written"):
                stream.read()


def test_awaited_streams_are_the_same(tmp_path: Path, make_blobs: Callable[[], Blobs], clock: FakeClock):
    async def camera() -> AsyncIterator[bytes]:
        for piece in pieces(FILM):
            await asyncio.sleep(0)
            yield piece

    async def work() -> None:
        url = f"sqlite:///{tmp_path}/agents.db"
        async with perdure.open_async(url, blobs=make_blobs(), clock=clock) as db:
            async with db.session("s") as s:
                s.vars["film"] = await db.put_blob(camera())
                s.vars["file"] = await db.put_blob(io.BytesIO(FILM))
                await s.commit()
            seen = await db.read("s")
            async with await db.open_blob(seen.blob("vars", "film")) as stream:
                assert await stream.read(10) == FILM[:10]
                assert b"".join([piece async for piece in stream]) == FILM[10:]
                assert await stream.read() == b""
            assert seen.vars["file"] == FILM

    asyncio.run(work())


def test_what_must_be_awaited_is_for_the_awaited_database(db: perdure.Database):
    async def camera() -> AsyncIterator[bytes]:
        yield b""

    with pytest.raises(Misuse, match="open_async"):
        db.put_blob(camera())


def test_a_message_to_an_inbox_carries_a_text_that_stood_as_a_blob(db: perdure.Database):
    words = "words " * 10_000
    with db.session("one") as s:
        s.vars["mail"] = {"text": words}
        s.commit()
    db.post("two", db.read("one").vars["mail"])
    with db.session("two") as s:
        (message,) = s.take()
        assert message.body == {"text": words}
