"""What was written for another store is not believed, whoever puts it here; and bytes are ours before they grow."""

from __future__ import annotations

import hashlib
import tracemalloc
from typing import TYPE_CHECKING, Any

import apsw
import pytest
import zstandard

import perdure
from perdure.errors import Corrupted
from perdure.record import codec
from perdure.record.keys import Keys
from tests.store_urls import STORES, url_of
from tests.upkeep.copies import write_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from perdure.testing.clock import FakeClock

KEY = "a key of sixteen bytes"


@pytest.fixture
def at(tmp_path: Path, clock: FakeClock) -> Iterator[Callable[..., perdure.Database]]:
    opened: list[perdure.Database] = []

    def open_at(kind: str, name: str, keys: Any = KEY) -> perdure.Database:
        opened.append(perdure.open(url_of(kind, tmp_path, name), keys=keys, clock=clock, maintain=False))
        return opened[-1]

    yield open_at
    for db in opened:
        db.close()


@pytest.mark.parametrize("keys", [KEY, None], ids=["keyed", "unkeyed"])
@pytest.mark.parametrize("kind", STORES)
def test_a_session_of_another_store_under_the_same_key_is_not_believed(at: Any, kind: str, keys: str | None):
    staging, production = at(kind, "staging", keys), at(kind, "production", keys)
    write_everything(staging, "s")
    staging.compact("s")
    # Row by row, as somebody would do who can write the store, and has no key to bind them to it.
    production.kernel.store.restore(staging.kernel.store.dump("s"))
    with pytest.raises(Corrupted, match="another store"):
        production.read("s")
    with pytest.raises(Corrupted, match="another store"), production.session("s"):
        pass
    assert {f.kind for f in production.verify().findings} == {"corrupted", "inbox"}
    # The honest way.
    copy = at(kind, "copy", keys)
    assert staging.copy_to(copy).ok
    assert copy.verify().findings == ()


@pytest.mark.parametrize(
    ("table", "sealed", "keys"),
    [("commits", "payload", "line, step"), ("artifacts", "body", "kind, line, lo"), ("inbox", "body", "key")],
)
def test_neither_is_one_row_of_it(at: Any, tmp_path: Path, table: str, sealed: str, keys: str):
    """A copy has the same sessions with the same digests, and another id."""
    one, two = at("sqlite", "one"), at("sqlite", "two")
    write_everything(one, "s")
    one.compact("s")
    one.copy_to(two)
    two.close()
    connection = apsw.Connection(str(tmp_path / "two.db"))
    connection.execute("attach ? as one", (str(tmp_path / "one.db"),))
    theirs = connection.execute(f"select {sealed}, {keys} from one.{table} where length({sealed}) > 0").fetchall()
    row = theirs[len(theirs) // 2]
    connection.execute(f"update {table} set {sealed} = ? where ({keys}) = ({', '.join('?' * (len(row) - 1))})", row)
    assert connection.changes() == 1
    connection.close()
    assert any("another store" in f.what for f in at("sqlite", "two").verify().findings)


def test_a_file_that_was_moved_is_the_same_store(at: Any, tmp_path: Path):
    db = at("sqlite", "one")
    write_everything(db, "s")
    db.close()
    for path in tmp_path.glob("one.db*"):
        path.rename(tmp_path / path.name.replace("one", "moved"))
    assert at("sqlite", "moved").verify().findings == ()


# -- nothing is inflated before it is known to be ours ----------------------------------------------------------------

ENVELOPE = b"an envelope"


def bomb(size: int) -> bytes:
    """A few bytes that say they inflate to many, and do."""
    head = codec.seal(codec.Body(codec.MSGPACK, b""))[:3] + bytes((codec.MSGPACK << 4 | codec.ZSTD,))
    return head + size.to_bytes(4, "little") + zstandard.ZstdCompressor().compress(bytes(size))


def test_with_a_key_not_even_the_header_of_a_forged_payload_is_looked_at():
    keys = Keys(KEY)
    # The tag of somebody without the key; and the header is none that this version knows.
    for forged in (bomb(codec.MAX_ROW), b"not sealed at all"):
        payload = hashlib.sha256(forged).digest() + bytes(codec.FENCE) + forged
        with pytest.raises(Corrupted, match="another store"):
            codec.open_payload(keys, keys.current, "store", ENVELOPE, payload, "here")


def test_without_a_key_a_forged_payload_inflates_to_the_limit_of_a_row_and_no_further():
    for forged in (bomb(codec.MAX_ROW + 1), bomb(1 << 20)[:4] + b"\xff" * 4 + bytes(50)):
        payload = codec.bind_payload(Keys(), "", "store", ENVELOPE, forged, "")
        tracemalloc.start()
        with pytest.raises(Corrupted, match="over the limit"):
            codec.open_payload(Keys(), "", "store", ENVELOPE, payload, "here")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()
