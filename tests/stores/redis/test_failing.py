"""The Redis store when things go wrong: servers that die, hang, forget, are promoted, or were never reachable."""

from __future__ import annotations

import threading
import traceback
from typing import TYPE_CHECKING, Any

import pytest
import redis as driver

from perdure.errors import (
    Corrupted,
    CursorExpired,
    InvalidInput,
    LeaseLost,
    OutcomeUnknown,
    PerdureError,
    Unavailable,
)
from perdure.model import Landed
from perdure.stores import open_store
from perdure.testing.sealed_rows import commit, entry, land, write
from perdure.testing.store_contract.changes import follow
from tests.servers.process import Running, free_port, freeze, kill, stop, thaw
from tests.servers.valkey import redis_url, start_valkey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.protocols import Store


class Site:
    """A server of the test's own that can be killed and started again where it was, and handles on it."""

    def __init__(self) -> None:
        self.servers: dict[str, Running] = {}
        self._settings: dict[str, dict[str, str]] = {}
        self._stores: list[Store] = []

    def start(self, name: str = "one", **settings: str) -> Running:
        """A new server."""
        self._settings[name] = {key.replace("_", "-"): value for key, value in settings.items()}
        self.servers[name] = start_valkey(settings=self._settings[name])
        return self.servers[name]

    def again(self, name: str = "one") -> None:
        """Start the server again that was killed."""
        old = self.servers[name]
        self.servers[name] = start_valkey(settings=self._settings[name], folder=old.folder, port=old.port)

    def open(self, name: str = "one", **options: Any) -> Store:
        """A handle on a server."""
        store = open_store(redis_url(self.servers[name]), **{"retry_for": 5.0, "socket_timeout": 1.0, **options})
        self._stores.append(store)
        return store

    def raw(self, name: str = "one") -> driver.Redis:
        """The driver itself."""
        return driver.Redis(port=self.servers[name].port)

    def close(self) -> None:
        """Close and stop everything."""
        for store in self._stores:
            store.close()
        for server in self.servers.values():
            stop(server)


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def eventually(done: Any) -> None:
    """Wait for something that comes by itself."""
    for _ in range(2000):
        if done():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came")


# -- servers that die --------------------------------------------------------------------------------


def test_a_handle_outlives_a_crash_of_the_server_and_so_do_its_lease_and_cursor(site: Site):
    site.start(appendfsync="always")
    store = site.open()
    lease = store.acquire("s", "me", 3_600_000)
    first = write(store, count=1, token=lease.token)[0]
    _, cursor = follow(store)
    epoch = store.epoch
    for step in range(1, 4):
        kill(site.servers["one"])
        again = threading.Thread(target=site.again)
        again.start()
        first = write(store, count=1, token=lease.token)[0]
        assert first.step == step
        # The store finds the server before its starter knows that it is there.
        again.join()
    assert store.epoch == epoch
    assert [change.step for change in store.changes(cursor).items] == [1, 2, 3]
    with site.raw() as raw:
        assert raw.info("persistence")["aof_enabled"] == 1


@pytest.mark.parametrize("settings", [{"appendfsync": "everysec"}, {"appendfsync": "no"}])
def test_a_restart_that_may_have_lost_commits_begins_a_new_epoch(site: Site, settings: dict[str, str]):
    site.start(**settings)
    store, other = site.open(), site.open()
    lease = store.acquire("s", "me", 3_600_000)
    write(store, count=1, token=lease.token)
    _, cursor = follow(store)
    epoch = store.epoch
    with site.raw() as raw:
        raw.execute_command("CONFIG", "SET", "appendfsync", settings["appendfsync"])
    kill(site.servers["one"])
    site.again()
    with pytest.raises(LeaseLost):
        write(store, count=1, token=lease.token)
    assert store.epoch != epoch
    with pytest.raises(CursorExpired):
        other.changes(cursor)
    assert other.epoch == store.epoch
    assert store.acquire("s", "me", 1000).token > lease.token + 1_000_000


def test_a_server_that_comes_back_empty_is_not_taken_for_the_store_that_was_opened(site: Site):
    site.start(appendonly="no", save="3600 1")
    store = site.open()
    write(store, count=2)
    kill(site.servers["one"])
    site.again()
    with pytest.raises(Corrupted, match="gone"):
        store.look("s")
    with pytest.raises(Corrupted, match="gone"):
        land(store, commit("new"))
    with site.raw() as raw:
        assert raw.dbsize() == 0


def test_a_server_that_is_emptied_under_a_handle_is_noticed_by_its_next_use(site: Site):
    site.start()
    store = site.open()
    write(store, count=2)
    with site.raw() as raw:
        raw.flushall()
    with pytest.raises(Corrupted, match="gone"):
        land(store, commit("new"))
    for use in (
        lambda: store.look("s"),
        lambda: store.load("s", 0),
        lambda: store.acquire("s", "me", 1000),
        store.sessions,
        store.changes,
        lambda: store.dump("s"),
        lambda: list(store.blob_refs()),
        store.usage,
    ):
        with pytest.raises(Corrupted, match="gone"):
            use()
    (answer,) = store.post([entry()])
    assert isinstance(answer, Corrupted)
    with site.raw() as raw:
        assert raw.dbsize() == 0


# -- servers that do not answer ----------------------------------------------------------------------


def test_a_commit_without_an_answer_is_unknown_by_its_id_and_lands_once_when_it_is_sent_again(site: Site):
    server = site.start()
    store = site.open(retry_for=1.0, socket_timeout=1.0)
    items = [commit("a"), commit("b")]
    write(store, "warm")
    freeze(server)
    answers = store.append(items)
    assert [type(answer) for answer in answers] == [OutcomeUnknown, OutcomeUnknown]
    assert [answer.id for answer in answers] == [item.id for item in items]  # type: ignore[union-attr]
    assert items[0].id.hex() in str(answers[0])
    assert "may or may not" in str(answers[0])
    thaw(server)
    eventually(lambda: store.look("b") is not None)
    assert [isinstance(answer, Landed) for answer in store.append(items)] == [True, True]
    assert [(row.line, row.step) for row in store.load("a", 0).rows] == [(0, 0)]
    assert len([change for change in follow(store)[0] if change.session in "ab"]) == 2


def test_a_commit_that_was_never_sent_is_unavailable(site: Site):
    server = site.start()
    store = site.open(retry_for=0.2)
    write(store, count=1)
    kill(server)
    with pytest.raises(Unavailable, match="nobody listens") as refused:
        store.append([commit("new")])
    assert not isinstance(refused.value, OutcomeUnknown)
    with pytest.raises(Unavailable):
        store.look("s")


def test_the_answer_to_an_acquisition_is_lost_and_the_same_call_gets_its_own_lease(site: Site):
    server = site.start()
    store = site.open(retry_for=20.0, socket_timeout=0.3)
    write(store, "warm")
    freeze(server)
    timer = threading.Timer(1.0, lambda: thaw(server))
    timer.start()
    lease = store.acquire("s", "me", 3_600_000)
    timer.join()
    land(store, commit(token=lease.token))
    store.drop("s", lease.token, "deleted")
    assert store.look("s").reason == "deleted"  # type: ignore[union-attr]


def test_connections_that_were_closed_are_replaced(site: Site):
    site.start()
    store = site.open()
    write(store, count=1)
    with site.raw() as raw:
        # More often than the driver's own pool would make connections.
        for _ in range(130):
            raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            write(store, count=1)
        assert len(raw.client_list()) < 10
    assert store.load("s", 0).last == 130


def test_a_script_of_somebody_else_that_never_ends_makes_us_wait_and_then_say_so(site: Site):
    site.start(busy_reply_threshold="50")
    store = site.open(retry_for=0.5, socket_timeout=5.0)
    write(store, count=1)

    def hog() -> None:
        with site.raw() as raw, pytest.raises(driver.ResponseError):
            raw.eval("while true do end", 0)

    thread = threading.Thread(target=hog)
    thread.start()
    try:
        with site.raw() as raw:

            def busy() -> bool:
                try:
                    raw.get("x")
                except driver.ResponseError:
                    return True
                return False

            eventually(busy)
            with pytest.raises(Unavailable, match="SCRIPT KILL"):
                store.append([commit("t")])
            raw.script_kill()
    finally:
        thread.join()
    write(store, count=1)


# -- replicas ----------------------------------------------------------------------------------------


def replicated(site: Site) -> None:
    """Two servers, the second a replica of the first and in step with it."""
    first = site.start(repl_diskless_sync_delay="0")
    second = site.start("two", replicaof=f"127.0.0.1 {first.port}")
    with site.raw("two") as raw:
        eventually(lambda: raw.info("replication")["master_link_status"] == "up")
    assert second.port != first.port


def test_a_replica_is_refused(site: Site):
    replicated(site)
    with pytest.raises(Unavailable, match="replica"):
        site.open("two", retry_for=0.1)


def test_a_server_that_becomes_a_replica_under_a_handle_takes_no_writes(site: Site):
    first, second = site.start(), site.start("two")
    store = site.open(retry_for=0.3)
    write(store, count=1)
    with site.raw() as raw:
        raw.replicaof("127.0.0.1", second.port)
    with pytest.raises(PerdureError) as refused:
        land(store, commit("t"))
    assert isinstance(refused.value, Unavailable | Corrupted)
    assert first.port != second.port


def test_a_promotion_begins_a_new_epoch_that_refuses_old_tokens_and_cursors(site: Site):
    replicated(site)
    store = site.open(wait_replicas=1)
    assert "1 replica" in store.promise.words
    lease = store.acquire("s", "me", 3_600_000)
    item = write(store, count=1, token=lease.token)[0]
    _, cursor = follow(store)
    kill(site.servers["one"])
    with site.raw("two") as raw:
        raw.replicaof("NO", "ONE")
    promoted = site.open("two")
    assert promoted.id == store.id
    assert promoted.epoch != store.epoch
    with pytest.raises(LeaseLost):
        land(promoted, commit(step=1, expect=item.id, token=lease.token))
    with pytest.raises(CursorExpired):
        promoted.changes(cursor)
    assert promoted.acquire("s", "you", 1000).token > lease.token + 1_000_000
    assert site.open("two").epoch == promoted.epoch


def test_a_commit_that_too_few_replicas_have_is_unknown_although_the_primary_has_it(site: Site):
    site.start()
    store = site.open(wait_replicas=1, socket_timeout=0.4)
    item = commit()
    (answer,) = store.append([item])
    assert isinstance(answer, OutcomeUnknown)
    assert answer.id == item.id
    assert store.load("s", 0).last == 0


# -- never reached -----------------------------------------------------------------------------------

SECRET = "hunter2-very-secret"


def explained(url: str, **options: Any) -> str:
    """What opening says, once it was seen that nothing of it tells the password."""
    with pytest.raises((InvalidInput, Unavailable)) as refused:
        open_store(url, **{"retry_for": 0.1, **options})
    whole = "".join(traceback.format_exception(refused.value))
    assert SECRET not in whole.replace(f"{url!r}", "")
    assert SECRET not in str(refused.value)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_every_way_not_to_get_in_is_told_in_one_line_without_the_password(site: Site):
    port = site.start(requirepass="right").port
    assert "nobody listens" in explained(f"redis://ana:{SECRET}@127.0.0.1:{free_port()}/0")
    assert "no such host" in explained(f"redis://ana:{SECRET}@no-such-host.invalid/0")
    assert "user and password" in explained(f"redis://:{SECRET}@127.0.0.1:{port}/0")
    assert "user and password" in explained(f"redis://ana:{SECRET}@127.0.0.1:{port}/0")
    assert "asks for a password" in explained(f"redis://127.0.0.1:{port}/0")
    assert "TLS" in explained(f"rediss://:{SECRET}@127.0.0.1:{port}/0", socket_timeout=0.5)
    assert "no database" in explained(
        f"redis://:right@127.0.0.1:{port}/9999?note={SECRET}".replace(f"?note={SECRET}", "")
    )
    assert "cannot be used" in explained(f"redis://:{SECRET}@127.0.0.1:{port}/0?no_such_option=1")
    assert "cannot be used" in explained(f"redis://:{SECRET}@127.0.0.1:99999999/0")


def test_a_user_without_the_right_to_our_keys_is_told_so(site: Site):
    port = site.start().port
    with site.raw() as raw:
        raw.execute_command("ACL", "SETUSER", "ana", "on", f">{SECRET}", "~other:*", "+@all")
    assert "may not" in explained(f"redis://ana:{SECRET}@127.0.0.1:{port}/0")


def test_a_password_shows_nowhere_on_a_handle(site: Site):
    port = site.start(requirepass=SECRET).port
    store = open_store(f"redis://:{SECRET}@127.0.0.1:{port}/0?prefix=p")
    try:
        write(store, count=1)
        assert store.url == f"redis://127.0.0.1:{port}/0?prefix=p"
        assert SECRET not in repr(store) + repr(vars(store)) + repr(vars(store._link))  # type: ignore[attr-defined]
    finally:
        store.close()


@pytest.mark.parametrize(
    "options", [{"changes_kept": 0}, {"wait_replicas": -1}, {"socket_timeout": 0}, {"retry_for": -1}]
)
def test_options_out_of_range_are_refused(options: dict[str, Any]):
    with pytest.raises(InvalidInput):
        open_store("redis://127.0.0.1:1/0", **options)
