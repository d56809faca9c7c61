"""What only the PostgreSQL store can get wrong: transactions that overlap, many openers, numbers, promotions."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from perdure.errors import Conflict, CursorExpired, InvalidInput, LeaseLost, StoreFull, UnsupportedFormat
from perdure.links.postgres import packed, unpacked
from perdure.model import ANCHOR, Artifact, Landed, Rewrite, Span
from perdure.stores import open_store, rules
from perdure.stores.postgres import store as postgres_store
from perdure.stores.postgres.store import PostgresStore
from perdure.stores.postgres.tables import VERSION
from perdure.testing.sealed_rows import commit, entry, land, post, write
from perdure.testing.store_contract.changes import follow
from tests.servers import postgres
from tests.servers.postgres import postgres_url
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_of("postgres", tmp_path)


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    opened = PostgresStore(url)
    yield opened
    opened.close()


@pytest.fixture
def admin(store: PostgresStore) -> Iterator[Any]:
    """A connection of somebody else, whose search path leads to the store's tables."""
    with psycopg.connect(postgres_url(postgres()), autocommit=True) as connection:
        connection.execute(f"set search_path = {store.schema}")  # type: ignore[arg-type]
        yield connection


@pytest.fixture
def elsewhere(store: PostgresStore) -> Iterator[Any]:
    """A connection of the store's own kind, on which a test begins and ends transactions itself."""
    connection = store._link._pool.take()
    yield connection
    store._link._pool.give_back(connection)


# -- opening -----------------------------------------------------------------------------------------


def test_ten_processes_may_open_an_empty_schema_at_once(url: str):
    script = (
        "import sys; from perdure.stores import open_store; sys.stdin.readline();"
        "store = open_store(sys.argv[1]); print(store.id, store.epoch); store.close()"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", script, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(10)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0] * 10
    assert len(set(answers)) == 1


def test_tables_of_a_newer_version_are_refused(store: PostgresStore, url: str, admin: Any):
    admin.execute("update perdure_meta set version = %s", (VERSION + 1,))
    with pytest.raises(UnsupportedFormat, match="upgrade this process"):
        PostgresStore(url)


def test_without_create_nothing_is_made(url: str):
    with pytest.raises(Exception, match="nothing was made"):
        PostgresStore(url, create=False)
    with pytest.raises(Exception, match="nothing was made"):
        PostgresStore(url, create=False)
    PostgresStore(url).close()
    PostgresStore(url, create=False).close()


def test_the_current_schema_is_used_when_none_is_named(url: str):
    plain, _, schema = url.partition("?schema=")
    named = PostgresStore(url)
    other = PostgresStore(f"{plain}?options=-csearch_path%3D{schema}")
    write(named)
    assert other.id == named.id
    assert other.look("s") is not None
    named.close()
    other.close()


def test_a_schema_may_have_a_name_that_needs_quotes(url: str):
    odd = url + "%20Ünï%3B--"
    store = PostgresStore(odd)
    write(store, count=2)
    store.close()
    again = PostgresStore(odd)
    assert again.load("s", 0).last == 1
    assert follow(again)[0]
    again.close()


@pytest.mark.parametrize(
    "query",
    ["?schema=" + "x" * 64, "?schema=a%22b", "?schema=a'b", "?schema=%2525", "?pgbouncer=perhaps", "?nonsense=1"],
)
def test_a_url_that_cannot_be_meant_is_refused_without_its_secret(query: str):
    with pytest.raises(InvalidInput) as refused:
        open_store("postgresql://ana:s3cr3t@127.0.0.1:1/agents" + query)
    assert "s3cr3t" not in str(refused.value)


def test_its_promise_depends_on_how_the_server_syncs(url: str):
    plain, _, schema = url.partition("?schema=")
    lax = PostgresStore(f"{plain}?options=-csynchronous_commit%3Doff&schema={schema}")
    assert (lax.promise.process_crash, lax.promise.power_loss) == (True, False)
    assert "synchronous_commit=off" in lax.promise.words
    lax.close()


@pytest.mark.parametrize("text", ["", "plain", "\0", "\1", "\1\1", "\1\2\0", "\0\1\0\1\2", "a\0b\1c"])
def test_any_text_comes_back_as_it_was(text: str):
    assert unpacked(packed(text)) == text
    assert "\0" not in packed(text)


# -- commits -----------------------------------------------------------------------------------------


def test_a_batch_is_one_transaction(store: PostgresStore, admin: Any):
    write(store, "old", count=1)
    items = [commit(f"s{n}") for n in range(50)] + [commit("s1", 1, commit("s1").id), commit("wrong", 3, b"x")]
    answers = store.append(items)
    assert [type(answer) for answer in answers] == [Landed] * 51 + [Conflict]
    new = "from perdure_row where pos > (select min(pos) from perdure_row)"
    assert admin.execute(f"select count(distinct xmin::text) {new}").fetchone() == (1,)


@pytest.fixture
def failing(store: PostgresStore, admin: Any) -> None:
    """The disk is full whenever something is written for the session "full"."""
    admin.execute(
        "create function fail() returns trigger language plpgsql as $$ begin"
        " if new.envelope = 'full' then raise exception using errcode = '53100', message = 'no space'; end if;"
        " return new; end $$"
    )
    admin.execute("create trigger fail before insert on perdure_row for each row execute function fail()")


@pytest.mark.usefixtures("failing")
def test_a_statement_that_fails_is_told_to_its_item_only(store: PostgresStore):
    answers = store.append([commit("a"), commit("b", envelope=b"full"), commit("c")])
    assert isinstance(answers[1], StoreFull)
    assert [type(answers[0]), type(answers[2])] == [Landed, Landed]
    assert store.load("c", 0).last == 0
    assert store.look("b") is None


@pytest.mark.parametrize("known", [True, False], ids=["known sessions", "new sessions"])
def test_batches_in_another_order_never_wait_for_each_other_in_a_circle(
    url: str, monkeypatch: pytest.MonkeyPatch, known: bool
):
    sizes: list[int] = []
    real = rules._append

    def counted(items: Any, *how: Any, first: bool) -> Any:
        sizes.append(len(items))
        return real(items, *how, first=first)

    monkeypatch.setattr(rules, "_append", counted)
    stores = [PostgresStore(url) for _ in range(4)]
    answers: list[Any] = []
    gate = threading.Barrier(4)
    before = {}
    if known:
        for turn in range(8):
            items = [commit(f"{turn}/{n}") for n in range(20)]
            stores[0].append(items)
            before |= {item.session: item.id for item in items}

    def work(number: int) -> None:
        for turn in range(8):
            sessions = [f"{turn}/{n}" for n in range(20)]
            items = [commit(s, int(known), before.get(s), id=b"%d" % number) for s in sessions]
            gate.wait(60)
            answers.extend(stores[number].append(items[:: 1 if number % 2 else -1]))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(answer, Landed) for answer in answers) == 8 * 20
    assert sum(isinstance(answer, Conflict) for answer in answers) == 8 * 20 * 3
    # None had to be taken apart.
    assert set(sizes) == {20}
    for store in stores:
        store.close()


def test_posts_in_another_order_all_arrive(url: str):
    """Here a circle can happen: the server breaks it, and what it has undone is posted one by one."""
    stores = [PostgresStore(url) for _ in range(2)]
    answers: list[Any] = []
    gate = threading.Barrier(2)

    def work(number: int) -> None:
        for turn in range(3):
            entries = [entry(f"{turn}/{n}", f"s{n}") for n in range(30)]
            gate.wait(60)
            answers.extend(stores[number].post(entries[:: 1 if number else -1]))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (answers.count(True), answers.count(False)) == (90, 90)
    for store in stores:
        store.close()


def test_a_commit_still_in_flight_is_not_in_conflict_with_itself(store: PostgresStore, elsewhere: Any):
    """Its retry waits for it, and then knows it: what it reads is not older than what it waited for."""
    first = write(store, count=1)[0]
    item = commit(step=1, expect=first.id)
    elsewhere.ask("begin")
    assert store._append(elsewhere, [item]) == [Landed(item.id)]
    answers: list[Any] = []
    retry = threading.Thread(target=lambda: answers.extend(store.append([item])))
    other = threading.Thread(
        target=lambda: answers.extend(store.append([commit(step=1, expect=first.id, id=b"other")]))
    )
    retry.start()
    retry.join(0.3)
    assert retry.is_alive()
    other.start()
    elsewhere.ask("commit")
    retry.join()
    other.join()
    (again,) = [answer for answer in answers if isinstance(answer, Landed)]
    (lost,) = [answer for answer in answers if isinstance(answer, Conflict)]
    assert again == Landed(item.id, again=True)
    assert lost.head.id == item.id


def test_statements_that_the_server_has_forgotten_are_prepared_anew(store: PostgresStore):
    write(store, count=1)
    for connection in store._link._pool._idle:
        connection.execute("deallocate all")
    write(store, count=1)
    assert store.load("s", 0).last == 1


# -- changes -----------------------------------------------------------------------------------------


def test_a_transaction_that_commits_late_is_not_skipped(store: PostgresStore, elsewhere: Any):
    elsewhere.ask("begin")
    store._append(elsewhere, [commit("late")])
    write(store, "early", count=3)
    items, cursor = follow(store)
    assert [change.session for change in items] == ["early"] * 3
    elsewhere.ask("commit")
    write(store, "early", count=1)
    items, cursor = follow(store, cursor)
    assert sorted((change.session, change.step) for change in items) == [("early", 3), ("late", 0)]
    assert follow(store, cursor)[0] == []


@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_pages_between_transactions_that_end_meanwhile_miss_nothing(store: PostgresStore, elsewhere: Any, limit: int):
    elsewhere.ask("begin")
    store._append(elsewhere, [commit("late")])
    write(store, "a", count=3)
    page = store.changes(None, limit)
    seen = [(c.session, c.step) for c in page.items]
    elsewhere.ask("commit")
    write(store, "a", count=2)
    items, _ = follow(store, page.cursor, limit)
    seen += [(c.session, c.step) for c in items]
    assert sorted(seen) == [("a", n) for n in range(5)] + [("late", 0)]


def test_the_order_within_a_session_holds_when_the_older_transaction_writes_later(
    store: PostgresStore, elsewhere: Any, admin: Any
):
    elsewhere.ask("begin")
    store._append(elsewhere, [commit("first")])  # takes its number here
    item = write(store, "x", count=1)[0]
    store._append(elsewhere, [commit("x", 1, item.id)])
    elsewhere.ask("commit")
    ((early, late),) = admin.execute("select max(r.xmin::text::int) filter (where r.step = 0), max(r.xmin::text::int)"
                                     " filter (where r.step = 1) from perdure_row r join perdure_session s using (no)"
                                     " where s.id = 'x'").fetchall()  # fmt: skip
    assert late < early
    for limit in (1, 1000):
        items, _ = follow(store, limit=limit)
        assert [change.step for change in items if change.session == "x"] == [0, 1]
    assert [row.step for row, _ in store.dump("x").rows] == [0, 1]


def test_a_long_transaction_of_somebody_else_delays_nobody(store: PostgresStore, admin: Any):
    admin.execute("begin")
    admin.execute("create temporary table held (x int)")
    write(store, count=2)
    items, cursor = follow(store)
    assert [change.step for change in items] == [0, 1]
    write(store, count=1)
    store.drop("s", None, "deleted")
    with pytest.raises(CursorExpired):
        store.changes(cursor)
    admin.execute("rollback")


def test_many_deletions_are_remembered_well_enough(store: PostgresStore, admin: Any):
    write(store, "kept", count=1)
    _, before = follow(store)
    for n in range(3):
        write(store, f"s{n}", count=1)
    for n in range(3):
        store.drop(f"s{n}", None, "deleted")
    # Hundreds more: only the newest are listed, one number stands for the rest.
    admin.execute(
        "do $$ begin perform perdure_trim(pg_current_xact_id(), '3', n) from generate_series(1, 600) n; end $$"
    )
    write(store, "t", count=1)
    store.drop("t", None, "deleted")
    with pytest.raises(CursorExpired):
        store.changes(before)
    assert [change.session for change in follow(store)[0]] == ["kept"]


# -- old data ----------------------------------------------------------------------------------------


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_store, "DELETED_AT_ONCE", 10)


@pytest.mark.usefixtures("small_steps")
def test_a_large_session_is_gone_at_once_and_its_rows_bit_by_bit(
    store: PostgresStore, admin: Any, monkeypatch: pytest.MonkeyPatch
):
    write(store, count=35, blobs=("aa",))
    store.rewrite(Rewrite("s", put=(Artifact("pack", 0, 0, 3, b"pack", (), ("bb",)),)))
    post(store, entry())
    with monkeypatch.context() as patch:
        patch.setattr(store, "_sweep", lambda: None)
        store.drop("s", None, "deleted")
    # Interrupted here: nobody sees what is left.
    assert admin.execute("select count(*) from perdure_row").fetchone() == (35,)
    assert store.look("s").heads == ()  # type: ignore[union-attr]
    assert (store.changes().items, store.usage().checkpoints, list(store.blob_refs())) == ((), 0, [])
    write(store, count=2)
    assert store.load("s", 0).last == 1
    write(store, "other")
    store.drop("other", None, "deleted")  # whoever drops next sweeps all of it
    for table, left in (("row", 2), ("artifact", 0), ("inbox", 0), ("garbage", 0)):
        assert admin.execute(f"select count(*) from perdure_{table}").fetchone() == (left,), table
    assert store.load("s", 0).last == 1


@pytest.mark.usefixtures("small_steps")
def test_many_rows_dropped_by_retention_go_bit_by_bit_newest_first(store: PostgresStore, admin: Any):
    write(store, count=40)
    change = Rewrite("s", put=(Artifact(ANCHOR, 0, 1, 35, b"anchor"),), drop=(Span(0, 1, 34),))
    done, later = store._write("rewrite", lambda connection: store._rewrite(connection, change, 1))
    assert (done, later) == (True, True)
    assert store.usage().checkpoints == 6
    store._write("sweep", store._sweep_some)
    # Interrupted here: what can still be read has no holes.
    steps = [row.step for row in store.slice("s", 0, 0, 99).rows]
    assert steps == [*range(25), 35, 36, 37, 38, 39]
    assert [row.step for row in store.load("s", 0).rows] == [36, 37, 38, 39]
    store._sweep()
    assert [row.step for row in store.slice("s", 0, 0, 99).rows] == [0, 35, 36, 37, 38, 39]


def test_the_sizes_of_tables_and_indexes_are_told(store: PostgresStore):
    write(store, count=20, payload=bytes(3000))
    tables = {table.name: table for table in store.bloat()}
    assert tables["perdure_row"].rows >= 0
    assert tables["perdure_row"].bytes > 0
    assert tables["perdure_row"].indexes > 0
    assert sum(table.bytes for table in tables.values()) > 20 * 3000


# -- another past ------------------------------------------------------------------------------------


def test_a_store_that_was_copied_to_another_cluster_gets_a_new_epoch_and_its_changes_are_all_there(
    store: PostgresStore, url: str, admin: Any
):
    write(store, count=3)
    lease = store.acquire("s", "me", 10**6)
    _, cursor = follow(store)
    store.close()
    # Transactions were numbered otherwise where it comes from.
    admin.execute("update perdure_meta set cluster = 'another one'")
    admin.execute("update perdure_row set pos = (pos::text::bigint + 1000000000)::text::xid8")
    admin.execute("update perdure_session set pos = (pos::text::bigint + 1000000000)::text::xid8")
    again = PostgresStore(url)
    assert again.id == store.id
    assert again.epoch != store.epoch
    assert [change.step for change in follow(again)[0]] == [0, 1, 2]
    with pytest.raises(CursorExpired):
        again.changes(cursor)
    with pytest.raises(LeaseLost):
        land(again, commit(step=3, expect=again.look("s").heads[0].id, token=lease.token))  # type: ignore[union-attr]
    write(again, count=1)
    assert [change.step for change in follow(again)[0]] == [0, 1, 2, 3]
    epoch = again.epoch
    again.close()
    third = PostgresStore(url)
    assert third.epoch == epoch
    third.close()
