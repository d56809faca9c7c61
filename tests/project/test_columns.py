"""Every column, key and record that a store writes stands in the reference, with how far it can be believed."""

from __future__ import annotations

import dataclasses
import json
import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import psycopg
import pytest
import redis

import perdure
from perdure.fleet.board import submit
from perdure.stores.file.records import Birth, Commit, Posted, Rewritten, State
from perdure.stores.memory.store import Record, Room, Session
from tests.servers import postgres, valkey
from tests.servers.postgres import postgres_url
from tests.store_urls import url_of
from tests.upkeep.copies import write_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path(__file__).parents[2]
ENTRIES: list[Any] = runpy.run_path(str(ROOT / "docs/reference/columns.py"))["ENTRIES"]
Found = set[tuple[str, str]]


def fill(kind: str, folder: Path) -> None:
    """Write all that a store can hold."""
    with perdure.open(url_of(kind, folder), maintain=False) as db:
        store: Any = db.kernel.store
        write_everything(db, "s")
        db.compact("s")
        db.prune("s", keep_last=5)
        db.post("posted to", "hello")
        with db.session("gone", ttl=5) as s:
            s.commit()
        dump = store.dump("gone")
        store.drop("gone", None, "deleted")
        store.restore(dump)
        with db.session("deleted") as s:
            s.commit()
        store.drop("deleted", None, "deleted")
        with db.session("expiring", ttl=50) as s:
            s.commit()
        store.live().publish("s", b"piece")
        if hasattr(store, "board") and kind != "tiered":
            submit(db, "queued", agent="a")
        for _ in range(3):
            db.read("s")
            db.read("expiring")


def in_memory(folder: Path) -> Found:
    kinds = (Session, Room, Record)
    return {(kind.__name__, field.name) for kind in kinds for field in dataclasses.fields(kind)}


def in_sqlite(folder: Path) -> Found:
    fill("sqlite", folder)
    connection = apsw.Connection(url_of("sqlite", folder).removeprefix("sqlite:///"))
    ask = connection.execute
    tables = [name for (name,) in ask("select name from sqlite_master where type = 'table'") if name[:7] != "sqlite_"]
    found = {(table, row[1]) for table in tables if table != "meta" for row in ask(f"pragma table_info({table})")}
    found |= {("meta", key) for (key,) in ask("select key from meta")}
    connection.close()
    return found


def in_postgres(folder: Path) -> Found:
    fill("postgres", folder)
    sql = (
        "select c.table_name, c.column_name from information_schema.columns c join information_schema.tables t"
        " using (table_schema, table_name) where t.table_type = 'BASE TABLE' and table_schema = %s"
    )
    with psycopg.connect(postgres_url(postgres())) as connection:
        return set(connection.execute(sql, (url_of("postgres", folder).rpartition("schema=")[2],)).fetchall())


def _keys(client: Any, prefix: str) -> Iterable[tuple[str, str, str]]:
    for key in client.scan_iter(match=f"{prefix}:*", count=1000):
        yield key, key.removeprefix(f"{prefix}:"), client.type(key)


def in_redis(folder: Path) -> Found:
    fill("redis", folder)
    client: Any = redis.Redis(port=valkey().port, decode_responses=True, encoding_errors="surrogateescape")
    found: Found = set()
    for key, name, kind in _keys(client, url_of("redis", folder).rpartition("prefix=")[2]):
        place = name.partition(":")[0]
        if place in ("s", "meta"):
            found |= {(place, re.sub(r"^([ht]):.*", r"\1:*", field)) for field in client.hkeys(key)}
        elif kind == "stream":
            found |= {(place, field) for _, fields in client.xrange(key) for field in fields}
        else:
            found.add((place, "value"))
    # Also what no session above has: the scripts name it.
    for script in (ROOT / "src/perdure/stores/redis/lua").glob("*.lua"):
        for call in re.findall(r"'H(?:SET|MGET|GET|INCRBY)', S, ([^\n]*(?:\n  '[^\n]*)*)", script.read_text()):
            found |= {("s", field) for field in re.findall(r"'([a-z]+)'(?:,| or|\))", call)} - {("s", "idle")}
    return found


def in_files(folder: Path) -> Found:
    fill("file", folder)
    root = Path(url_of("file", folder).removeprefix("file://"))
    found = {
        (kind.__name__, name) for kind in (Birth, Commit, Posted, Rewritten, State) for name in kind.__struct_fields__
    }
    found |= {("perdure.json", name) for name in json.loads((root / "perdure.json").read_text())}
    apart = {"perdure.json", "log"}
    files = [path for path in root.rglob("*") if path.is_file() and {"blobs", "live"}.isdisjoint(path.parts)]
    return found | {(path.name, "file") for path in files if path.name not in apart}


def in_tiers(folder: Path) -> Found:
    fill("tiered", folder)
    client: Any = redis.Redis(port=valkey().port, decode_responses=True, encoding_errors="surrogateescape")
    names = [name for _, name, _ in _keys(client, url_of("redis", folder).rpartition("prefix=")[2])]
    assert all(name.startswith(("hot:", "live:")) for name in names)
    hot = [name for name in names if name.startswith("hot:")]
    return {(next(part for part in ("heads", "state", "rows") if f":{part}" in name), "value") for name in hot}


STORES: dict[str, Callable[[Path], Found]] = {
    "memory": in_memory, "sqlite": in_sqlite, "postgres": in_postgres, "redis": in_redis, "file": in_files,
    "tiered": in_tiers,
}  # fmt: skip


@pytest.mark.parametrize("kind", STORES)
def test_what_a_store_holds_is_what_the_reference_says(kind: str, tmp_path: Path):
    """If this fails: docs/reference/columns.py, then python docs/reference/generate.py."""
    told = {(place, field) for entry in ENTRIES for store, place, field in entry.each() if store == kind}
    found = STORES[kind](tmp_path)
    assert found - told == set(), "not in docs/reference/columns.py"
    assert told - found == set(), "in docs/reference/columns.py, and in no store"


def test_each_stands_there_once_with_a_sentence():
    every = [one for entry in ENTRIES for one in entry.each()]
    assert len(every) == len(set(every))
    assert all(entry.why.endswith(".") and entry.level in ("covered on read", "covered by verify", "a hint only")
               for entry in ENTRIES)  # fmt: skip
