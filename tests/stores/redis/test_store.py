"""What is particular about the Redis store: its keys, its stream of changes, what it promises, what it refuses."""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis as driver

from perdure.errors import CursorExpired, InvalidInput, PerdureError, StoreFull, UnsupportedFormat
from perdure.model import PACK, Artifact, Landed, Rewrite, Span
from perdure.stores import open_store
from perdure.testing.clock import FakeClock
from perdure.testing.sealed_rows import commit, entry, land, post, write
from perdure.testing.store_contract.changes import follow
from perdure.testing.store_contract.dump import comparable, full_session
from tests.servers import redis, valkey
from tests.servers.process import free_port, stop
from tests.servers.valkey import redis_binary, redis_url, start_valkey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perdure.protocols import Store
    from tests.servers.process import Running


@pytest.fixture(params=["valkey", "redis"] if redis_binary() else ["valkey"])
def server(request: pytest.FixtureRequest) -> Running:
    """Each of the run's servers that are there."""
    found = valkey() if request.param == "valkey" else redis()
    assert found is not None
    return found


@pytest.fixture
def url(server: Running, tmp_path: Path) -> str:
    return f"{redis_url(server)}?prefix={hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]}"


@pytest.fixture
def raw(server: Running) -> Iterator[driver.Redis]:
    """The driver itself, to look behind the store's back."""
    with driver.Redis(port=server.port) as client:
        yield client


@pytest.fixture
def opened() -> Iterator[Callable[..., Store]]:
    """Opens stores; what a test leaves open is closed after it."""
    stores: list[Store] = []

    def again(url: str, **options: Any) -> Store:
        stores.append(open_store(url, **options))
        return stores[-1]

    yield again
    for store in stores:
        store.close()


@pytest.fixture
def private() -> Iterator[Callable[..., str]]:
    """Starts servers of the test's own; gives their URL."""
    servers: list[Running] = []

    def start(**settings: str) -> str:
        servers.append(start_valkey(settings={name.replace("_", "-"): value for name, value in settings.items()}))
        return redis_url(servers[-1])

    yield start
    for server in servers:
        stop(server)


def keys_of(raw: driver.Redis, url: str) -> list[bytes]:
    return sorted(raw.scan_iter(url.partition("prefix=")[2] + ":*", count=1000))


# -- keys --------------------------------------------------------------------------------------------


DAY = 86_400
MARGIN = 8 * DAY


def test_no_key_has_a_ttl_and_every_key_begins_with_the_prefix(url: str, raw: driver.Redis, opened: Any):
    before = set(raw.scan_iter(count=1000))
    store = opened(url)
    full_session(store)
    land(store, commit(step=3, expect=store.look("s").heads[-1].id, token=store.look("s").lease.token, ttl=None))
    write(store, "other", count=3, ttl=1, blobs=("aa",))
    store.drop("other", None, "expired")
    store.acquire("leased", "me", 1)
    post(store, entry(session="posted"))
    keys = keys_of(raw, url)
    assert len(keys) > 10
    assert {raw.ttl(key) for key in keys} == {-1}
    assert not before & set(keys)


def ttls(raw: driver.Redis, url: str, session: str) -> set[int]:
    """In days, of all keys of a session."""
    return {round(raw.ttl(key) / DAY) for key in keys_of(raw, url) if key.endswith(f":{session}".encode())}


def test_the_keys_of_a_session_end_long_after_its_time_unless_an_input_waits(url: str, raw: driver.Redis, opened: Any):
    store = opened(url)
    first = write(store, "one", count=1, ttl=10 * DAY, blobs=("aa",))[0]
    assert ttls(raw, url, "one") == {18}
    store.rewrite(Rewrite("one", put=(Artifact(PACK, 0, 0, 0, b"x", (), ("bb",)),)))
    assert ttls(raw, url, "one") == {18}
    dump = store.dump("one")
    post(store, entry(session="one", key="k"))
    assert ttls(raw, url, "one") == {0}, "for ever"
    land(store, commit("one", step=1, expect=first.id, ttl=10 * DAY, takes=("k",)))
    assert ttls(raw, url, "one") == {18}
    land(store, commit("one", step=2, expect=store.look("one").heads[0].id, ttl=None))
    assert ttls(raw, url, "one") == {0}
    store.drop("one", None, "deleted")
    store.restore(dump)
    assert ttls(raw, url, "one") == {18}


def test_redis_deletes_no_session_that_may_have_a_call_in_doubt(url: str, raw: driver.Redis, opened: Any):
    store = opened(url)
    head = write(store, "one", count=1, ttl=10 * DAY)[0].id
    for step, (status, days) in enumerate(
        [("running", 0), ("in_doubt", 0), ("idle", 18), ("cancelled", 0), ("closed", 18), ("in_doubt", 0)], 1
    ):
        item = commit("one", step=step, expect=head, ttl=10 * DAY, status=status)
        land(store, item)
        head = item.id
        assert ttls(raw, url, "one") == {days}, status
    dump = store.dump("one")
    store.drop("one", None, "deleted")
    store.restore(dump)
    assert ttls(raw, url, "one") == {0}
    # One whose main branch rests, and another one does not.
    head = write(store, "two", count=1, ttl=10 * DAY)[0].id
    begun = commit("two", branch="b", line=1, step=2, expect=None, starts=True, ttl=10 * DAY, status="running")
    land(store, begun)
    assert ttls(raw, url, "two") == {0}


def test_a_session_that_redis_has_deleted_is_as_if_it_had_never_been(url: str, raw: driver.Redis, opened: Any):
    clock = FakeClock()
    store = opened(url, clock=clock)
    write(store, "gone", count=2, ttl=60, owner="ana")
    write(store, "here", count=2, owner="ana")
    token = store.acquire("gone", "me", 1).token
    for key in keys_of(raw, url):
        if key.endswith(b":gone"):
            raw.delete(key)
    assert store.look("gone") is None
    assert sum(number for *_, number in store.counts()) == 1
    assert [row.id for row in store.sessions(owner="ana")] == ["here"]
    clock.advance(60_000)
    assert store.sessions(expired=True) == []
    assert store.usage().sessions == 1
    prefix = url.partition("prefix=")[2]
    assert raw.zrange(f"{prefix}:ids", 0, -1) == raw.zrange(f"{prefix}:owner:ana", 0, -1) == [b"here"]
    lease = store.acquire("gone", "me", 60_000)
    assert lease.token > token
    land(store, commit("gone", token=lease.token))
    assert store.look("gone").lines == 1


def test_a_dropped_session_leaves_its_tombstone_and_nothing_else(url: str, raw: driver.Redis, opened: Any):
    store = opened(url)
    full_session(store)
    store.drop("s", store.look("s").lease.token, "deleted")
    prefix = url.partition("prefix=")[2]
    assert [key for key in keys_of(raw, url) if key.endswith(b":s")] == [f"{prefix}:s:s".encode()]
    for index in ("ids", "expiry", "owner:bob", "status:idle"):
        assert raw.zcard(f"{prefix}:{index}") == 0


def test_stores_with_other_prefixes_on_one_server_do_not_meet(url: str, opened: Any):
    one, two = opened(url), opened(url + "2")
    assert one.id != two.id
    write(one)
    assert two.look("s") is None
    assert two.sessions() == []


@pytest.mark.parametrize("prefix", ["a:b", "a b", "%00", "x" * 101, "ü", "*"])
def test_a_prefix_that_could_be_mistaken_is_refused(prefix: str):
    with pytest.raises(InvalidInput, match="prefix"):
        open_store(f"redis://127.0.0.1:1/0?prefix={prefix}")


def test_a_restore_leaves_nothing_lying_ready_behind(url: str, raw: driver.Redis, opened: Any):
    store, other = opened(url), opened(url + "2")
    full_session(store)
    other.restore(store.dump("s"))
    with pytest.raises(PerdureError):
        other.restore(store.dump("s"))
    assert [key for key in keys_of(raw, url + "2") if b":stage" in key] == []
    assert comparable(other.dump("s")) == comparable(store.dump("s"))


def test_what_a_killed_restore_left_is_taken_away_by_a_later_one(url: str, raw: driver.Redis, opened: Any):
    store = opened(url)
    prefix = url.partition("prefix=")[2]
    raw.hset(f"{prefix}:stage:old:r", "0:0", "x")
    raw.zadd(f"{prefix}:stages", {f"{prefix}:stage:old:": 1})
    write(store, "a", count=2)
    dump = store.dump("a")
    store.drop("a", None, "moved")
    store.restore(dump)
    assert [key for key in keys_of(raw, url) if b":stage" in key] == []


def test_a_store_of_a_newer_format_is_refused(url: str, raw: driver.Redis, opened: Any):
    opened(url).close()
    raw.hset(f"{url.partition('prefix=')[2]}:meta", "format", "2")
    with pytest.raises(UnsupportedFormat):
        opened(url)


# -- scripts -----------------------------------------------------------------------------------------


def test_scripts_that_the_server_forgot_are_loaded_again(url: str, raw: driver.Redis, opened: Any):
    store = opened(url)
    first = commit()
    land(store, first)
    raw.script_flush()
    second = commit(step=1, expect=first.id)
    third = commit(step=2, expect=second.id)
    assert store.append([second, third, commit("t")]) == [Landed(second.id), Landed(third.id), Landed(commit("t").id)]
    raw.script_flush()
    assert len(store.dump("s").rows) == 3
    raw.script_flush()
    assert store.load("s", 0).last == 2


def test_a_batch_is_one_round_trip(private: Any, opened: Any):
    url = private()
    store = opened(url)
    write(store, "warm")
    with driver.Redis.from_url(url) as raw:
        before = raw.info("stats")["total_reads_processed"]
        items = [commit(f"s{n}", payload=b"x") for n in range(20)]
        assert all(isinstance(answer, Landed) for answer in store.append(items))
        # One read for the batch, one for this question.
        assert raw.info("stats")["total_reads_processed"] - before <= 2


def test_many_threads_may_share_a_handle(url: str, opened: Any):
    store = opened(url)
    failed: list[PerdureError] = []

    def work(name: str) -> None:
        expect = None
        for step in range(30):
            item = commit(name, step, expect)
            failed.extend(answer for answer in store.append([item]) if isinstance(answer, PerdureError))
            expect = item.id

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert store.usage()[:2] == (40, 1200)


def test_what_a_commit_costs_the_server_does_not_grow_with_the_history(private: Any, opened: Any):
    url = private()
    store = opened(url)
    calls: list[dict[str, int]] = []
    with driver.Redis.from_url(url) as raw:
        for _ in range(3):
            (last, *_) = reversed(write(store, count=300, payload=b"x" * 100, ttl=None))
            raw.config_resetstat()
            land(store, commit(step=last.step + 1, expect=last.id))
            stats: Any = raw.info("commandstats")
            calls.append({name: about["calls"] for name, about in stats.items() if "config" not in name})
    assert calls[0] == calls[1] == calls[2]


def test_what_a_list_of_ended_sessions_costs_the_server_does_not_grow_with_the_living(private: Any, opened: Any):
    url = private()
    store = opened(url)
    for name in ("a", "b", "c"):
        write(store, name)
        store.drop(name, None, "deleted")
    calls: list[dict[str, int]] = []
    with driver.Redis.from_url(url) as raw:
        for living in (10, 3000):
            store.append([commit(f"s{n:04}") for n in range(living)])
            raw.config_resetstat()
            assert [row.id for row in store.sessions(ended=True, limit=2)] == ["a", "b"]
            assert [row.id for row in store.sessions(ended=True, limit=2, after="b")] == ["c"]
            stats: Any = raw.info("commandstats")
            calls.append({name: about["calls"] for name, about in stats.items() if "config" not in name})
    assert calls[0] == calls[1]


def test_one_that_begins_anew_is_no_longer_listed_as_ended(url: str, opened: Any):
    store = opened(url)
    write(store, "a")
    store.drop("a", None, "deleted")
    write(store, "a")
    assert [row.id for row in store.sessions()] == ["a"]
    assert store.sessions(ended=True) == []


# -- the stream --------------------------------------------------------------------------------------


def test_every_commit_is_an_entry_that_others_can_read(url: str, raw: driver.Redis, opened: Any):
    store = opened(url)
    items = write(store, count=2, kind="started", status="running")
    entries: Any = raw.xrange(f"{url.partition('prefix=')[2]}:changes")
    assert [fields for _, fields in entries] == [
        {
            b"session": b"s", b"branch": b"main", b"line": b"0", b"step": b"%d" % item.step,
            b"id": item.id.hex().encode(), b"kind": b"started", b"status": b"running", b"at": b"%d" % item.at,
        }
        for item in items
    ]  # fmt: skip


def test_the_stream_is_cut_and_a_cursor_from_before_the_cut_has_expired(url: str, raw: driver.Redis, opened: Any):
    store = opened(url, changes_kept=100)
    store.append([commit("a"), commit("b")])
    early = store.changes(None, 1).cursor
    _, late = follow(store)
    scan = store.changes(None, 1).cursor
    store.append([commit(f"s{n:04}") for n in range(700)])
    length = raw.xlen(f"{url.partition('prefix=')[2]}:changes")
    assert 100 <= length < 400
    with pytest.raises(CursorExpired):
        store.changes(late)
    # A scan that had not got to its end yet goes on with what is left, and is told once it would miss something.
    assert store.changes(early, 5).items
    assert store.changes(scan, 5).items
    items, cursor = follow(store)
    assert len(items) == length
    assert items[-1].session == "s0699"
    write(store, "after")
    assert [change.session for change in follow(store, cursor)[0]] == ["after"]


def test_changes_go_on_behind_a_stream_that_was_cut_to_nothing(url: str, raw: driver.Redis, opened: Any):
    store = opened(url)
    write(store, count=3)
    _, cursor = follow(store)
    raw.xtrim(f"{url.partition('prefix=')[2]}:changes", maxlen=0, approximate=False)
    assert follow(store)[0] == []
    assert store.changes(cursor).items == ()
    write(store, count=1)
    assert [change.step for change in store.changes(cursor).items] == [3]


def test_commits_of_an_earlier_life_are_not_taken_for_those_in_their_place(url: str, opened: Any):
    store = opened(url)
    write(store, count=3)
    store.drop("s", None, "deleted")
    again = commit(id=b"a second life")
    land(store, again)
    assert [change.id for change in follow(store)[0]] == [again.id]


def test_a_page_is_not_empty_while_there_are_changes_behind_many_dropped_ones(url: str, opened: Any):
    store = opened(url)
    store.append([commit(f"gone{n:05}") for n in range(6000)])
    for n in range(6000):
        store.drop(f"gone{n:05}", None, "deleted")
    write(store, "here")
    assert [change.session for change in store.changes(None, 10).items] == ["here"]


# -- large sessions ----------------------------------------------------------------------------------


@pytest.fixture
def large(private: Any, opened: Any) -> Store:
    """A session of 3000 steps with packs over the first 2900, on a server of its own."""
    store = opened(private())
    expect = None
    for start in range(0, 3000, 500):
        batch = []
        for step in range(start, start + 500):
            batch.append(commit(step=step, expect=expect, payload=b"x" * 50))
            expect = batch[-1].id
        assert all(isinstance(answer, Landed) for answer in store.append(batch))
    for lo in range(0, 2900, 100):
        put = (Artifact(PACK, 0, lo, lo + 99, b"pack"),)
        assert store.rewrite(Rewrite("s", put=put, thin=(Span(0, lo, lo + 99),)))
    return store


def test_a_load_reads_the_rows_after_the_newest_snapshot_only(large: Store):
    base = Artifact("snapshot", 0, 2950, 2950, b"state", (Span(0, 250, 349), Span(0, 1000, 1000)))
    assert large.rewrite(Rewrite("s", put=(base,), needs=(Span(0, 250, 349), Span(0, 1000, 1000))))
    bundle = large.load("s", 0)
    assert bundle.base == base
    assert [row.step for row in bundle.rows] == list(range(2951, 3000))
    assert [pack.lo for pack in bundle.packs] == [200, 300, 1000]
    assert large.load("s", 0, refs=False).packs == ()
    assert [pack.lo for pack in large.slice("s", 0, 199, 200).packs] == [100, 200]
    assert len(large.load("s", 0, 2800).rows) == 2801


def test_what_a_snapshot_needs_is_checked_without_looking_at_every_row(large: Store):
    base = Artifact("snapshot", 0, 2999, 2999, b"state", (Span(0, 0, 2999),))
    with driver.Redis.from_url(large.url) as raw:
        raw.config_resetstat()
        assert large.rewrite(Rewrite("s", put=(base,), needs=(Span(0, 0, 2999),)))
        assert "cmdstat_hexists" not in raw.info("commandstats")
    assert large.rewrite(Rewrite("s", put=(base,), needs=(Span(0, 0, 3000),))) is False
    large.rewrite(Rewrite("s", drop=(Span(0, 7, 7),)))
    assert large.rewrite(Rewrite("s", put=(base,), needs=(Span(0, 0, 2999),))) is False
    assert large.rewrite(Rewrite("s", put=(base,), needs=(Span(0, 8, 2999),)))


def test_a_large_session_is_copied_whole(large: Store, url: str, opened: Any):
    other = opened(url + "2")
    write(other, "before", count=5)
    dump = large.dump("s")
    other.restore(dump)
    assert comparable(other.dump("s")) == comparable(dump)
    assert [change.step for change in follow(other)[0] if change.session == "s"] == list(range(3000))
    _, cursor = follow(other)
    assert other.rewrite(Rewrite("s", drop=(Span(0, 0, 2998),)))
    assert follow(other, cursor)[0] == []
    assert len(follow(other)[0]) == 6


# -- promises and refusals ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "power_loss", "words"),
    [
        ({"appendfsync": "always"}, True, "appendfsync always"),
        ({"appendfsync": "everysec"}, False, "appendfsync everysec"),
        ({"appendfsync": "no"}, False, "appendfsync no"),
        ({"appendonly": "no", "save": "3600 1"}, False, "snapshots"),
    ],
)
def test_the_promise_is_what_the_server_is_set_up_for(
    private: Any, opened: Any, settings: dict[str, str], power_loss: bool, words: str
):
    promise = opened(private(**settings)).promise
    assert promise.power_loss is power_loss
    assert promise.process_crash is (settings.get("appendonly") != "no")
    assert words in promise.words
    assert "promoted" in promise.words


def test_a_server_that_persists_nothing_is_warned_about(private: Any, opened: Any):
    with pytest.warns(UserWarning, match="persists nothing"):
        store = opened(private(appendonly="no", save=""))
    assert not store.promise.process_crash
    assert "persists nothing" in store.promise.words


def test_a_server_that_does_not_say_is_promised_nothing_of(private: Any, opened: Any):
    url = private()
    with driver.Redis.from_url(url) as raw:
        raw.execute_command("ACL", "SETUSER", "ana", "on", ">pw", "~perdure:*", "+@all", "-config", "-info")
    store = opened(url.replace("//", "//ana:pw@"))
    assert store.promise[:2] == (False, False)
    assert "does not say" in store.promise.words
    write(store, count=3)


def test_the_documented_rights_are_enough(private: Any, opened: Any):
    document = Path(__file__).resolve().parents[3] / "docs/howto/redis.md"
    (rights,) = re.findall(r"^ACL SETUSER perdure (.*)$", document.read_text("utf-8"), re.MULTILINE)
    url = private()
    with driver.Redis.from_url(url) as raw:
        raw.execute_command("ACL", "SETUSER", "perdure", *rights.split())
    store = opened(url.replace("//", "//perdure:password@"))
    full_session(store)
    dump = store.dump("s")
    store.drop("s", dump.row.lease.token, "deleted")
    store.restore(dump)
    assert store.promise.power_loss
    assert store.sessions(expired=True) == []
    assert list(store.blob_refs())
    store.renew_epoch()


def test_a_server_that_would_delete_keys_is_refused_with_what_to_type(private: Any, opened: Any):
    url = private(maxmemory_policy="allkeys-lru")
    with pytest.raises(InvalidInput, match="CONFIG SET maxmemory-policy noeviction"):
        opened(url)


def test_a_cluster_is_refused(private: Any, opened: Any):
    with pytest.raises(InvalidInput, match="Cluster"):
        opened(private(cluster_enabled="yes", cluster_port=str(free_port())))


def test_a_full_server_keeps_what_it_has(private: Any, opened: Any):
    store = opened(private(maxmemory="6mb"))
    expect, step, answer = None, 0, None
    while not isinstance(answer, PerdureError):
        item = commit(step=step, expect=expect, payload=b"x" * 100_000)
        (answer,) = store.append([item])
        if isinstance(answer, Landed):
            expect, step = item.id, step + 1
        assert step < 200
    assert isinstance(answer, StoreFull)
    assert store.load("s", 0).last == step - 1
    assert len(store.load("s", 0).rows) == step
    # What makes room again works all the same.
    lease = store.acquire("s", "me", 60_000)
    assert store.rewrite(Rewrite("s", lease.token, put=(Artifact(PACK, 0, 0, 1, b"x"),), thin=(Span(0, 0, 1),)))
    store.drop("s", lease.token, "deleted")
    write(store, "t", count=2)
