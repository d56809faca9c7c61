"""A PostgreSQL server that is killed, frozen, promoted, read-only or not there at all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from perdure.errors import CursorExpired, LeaseLost, OutcomeUnknown, PerdureError, Unavailable
from perdure.model import Landed
from perdure.stores import open_store
from perdure.stores.postgres.store import PostgresStore
from perdure.testing.sealed_rows import commit, entry, land, write
from perdure.testing.store_contract.changes import follow
from tests.servers import postgres
from tests.servers.postgres import PASSWORD, postgres_url, start_postgres
from tests.servers.process import Running, free_port, freeze, give_away, kill, stop, thaw
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator


class Server:
    """A server of a test's own, which may be killed and started again in its place."""

    def __init__(self) -> None:
        self.running = start_postgres()
        self.url = postgres_url(self.running)

    def restart(self) -> None:
        """Start it where it was killed."""
        self.running: Running = start_postgres(folder=self.running.folder, port=self.running.port)


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    stop(running.running)


def test_a_killed_server_that_comes_back_is_found_again(server: Server):
    store = PostgresStore(server.url, patience=30)
    lease = store.acquire("s", "me", 600_000)
    items = write(store, count=3, token=lease.token)
    kill(server.running)
    back = threading.Timer(0.5, server.restart)
    back.start()
    item = commit(step=3, expect=items[-1].id, token=lease.token)
    assert land(store, item).id == item.id  # while it is still away
    back.join()
    assert store.load("s", 0).last == 3
    assert store.renew([lease], 1000) == [True]
    store.close()


def test_a_commit_that_was_never_sent_is_unavailable_and_not_unknown(server: Server):
    store = PostgresStore(server.url, patience=0.3)
    write(store, count=1)
    kill(server.running)
    with pytest.raises(Unavailable, match="cannot connect"):
        store.append([commit("t")])
    with pytest.raises(Unavailable):
        store.load("s", 0)
    server.restart()
    assert store.look("t") is None
    write(store, "t")
    store.close()


def test_an_answer_that_never_comes_is_an_unknown_outcome_with_the_id(server: Server):
    store = PostgresStore(server.url, patience=0.5, timeout=1.0)
    (first,) = write(store, count=1)
    items = [commit(step=1, expect=first.id), commit("t")]
    freeze(server.running)
    began = time.monotonic()
    # Its processes are frozen with it one by one, so only what was sent before can still be answered.
    _freeze_backends(server.running)
    answers = store.append(items)
    waited = time.monotonic() - began
    assert [type(answer) for answer in answers] == [OutcomeUnknown, OutcomeUnknown]
    assert [answer.id for answer in answers] == [item.id for item in items]  # type: ignore[union-attr]
    assert waited < 30
    with pytest.raises((Unavailable, OutcomeUnknown)):
        store.acquire("u", "me", 1000)
    _freeze_backends(server.running, thawed=True)
    thaw(server.running)
    again = store.append(items)
    assert all(isinstance(answer, Landed) for answer in again)
    assert len(store.load("s", 0).rows) == 2
    assert len(follow(store)[0]) == 3
    store.close()


def _freeze_backends(server: Running, *, thawed: bool = False) -> None:
    import signal

    children = Path(f"/proc/{server.server}/task/{server.server}/children").read_text().split()
    for pid in children:
        os.kill(int(pid), signal.SIGCONT if thawed else signal.SIGSTOP)


def test_connections_that_the_server_ended_are_replaced_without_a_word(server: Server):
    store = PostgresStore(server.url, patience=0)
    write(store, count=1)
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'perdure'")
    deadline = time.monotonic() + 30
    (idle,) = store._link._pool._idle
    while idle.is_quiet() and time.monotonic() < deadline:
        time.sleep(0.01)
    write(store, count=1)
    store.close()


def test_calls_whose_answer_was_lost_are_not_done_twice(server: Server, monkeypatch: pytest.MonkeyPatch):
    """The connection goes right after the server has done it: the same call is sent again, and known."""
    from perdure.links.postgres import Connection

    store = PostgresStore(server.url, patience=30)
    cut: list[str] = []

    def cutting(real: Any) -> Any:
        def ask(self: Connection, sql: str, *values: Any) -> Any:
            found = real(self, sql, *values)
            if cut and cut[0] in sql:
                cut.clear()
                self.pgconn.finish()
                raise psycopg.OperationalError("the connection went")
            return found

        return ask

    for name in ("ask", "ask_raw"):
        monkeypatch.setattr(Connection, name, cutting(getattr(Connection, name)))
    cut.append("perdure_acquire")
    lease = store.acquire("s", "me", 600_000)
    assert store.look("s").lease.token == lease.token  # type: ignore[union-attr]
    cut.append("perdure_append_one")
    item = commit(token=lease.token)
    assert land(store, item) == Landed(item.id, again=True)
    cut.append("perdure_append(")
    batch = [commit(step=1, expect=item.id, token=lease.token), commit("t")]
    assert store.append(batch) == [Landed(one.id, again=True) for one in batch]
    cut.append("perdure_post")
    assert store.post([entry()]) == [False]
    assert len(store.inbox("s")) == 1
    dump = store.dump("s")
    cut.append("perdure_drop")
    store.drop("s", lease.token, "deleted")
    assert store.look("s").reason == "deleted"  # type: ignore[union-attr]
    cut.append("perdure_pass_token")
    store.restore(dump)
    assert store.load("s", 0).last == 1
    assert not cut
    store.close()


def test_a_promoted_server_gives_a_new_epoch_to_handles_that_live_on(server: Server):
    store = PostgresStore(server.url, patience=30)
    lease = store.acquire("s", "me", 600_000)
    items = write(store, count=2, token=lease.token)
    epoch, (_, cursor) = store.epoch, follow(store)
    kill(server.running)
    signal = Path(server.running.folder, "data", "standby.signal")
    signal.touch()
    give_away(str(signal))
    server.restart()
    with pytest.raises(Unavailable, match="primary"):
        land(store, commit(step=2, expect=items[-1].id, token=lease.token))
    with psycopg.connect(server.url, autocommit=True) as admin:
        assert admin.execute("select pg_promote()").fetchone() == (True,)
    with pytest.raises(LeaseLost):
        land(store, commit(step=2, expect=items[-1].id, token=lease.token))
    assert store.epoch != epoch
    with pytest.raises(CursorExpired):
        store.changes(cursor)
    assert store.acquire("s", "me", 600_000).token > lease.token + 2**31
    again = PostgresStore(server.url)
    assert again.epoch == store.epoch
    again.close()
    store.close()


# -- servers that will not have us -----------------------------------------------------------------------


def refused(url: str) -> str:
    """What is said when a store cannot be opened; nothing secret is in it, nor in what led to it."""
    with pytest.raises(PerdureError) as caught:
        open_store(url, patience=0.2)
    whole = "".join(traceback.format_exception(caught.value))
    assert PASSWORD not in whole
    assert "s3cr3t" not in whole
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_wrong_password_says_so():
    url = postgres_url(postgres()).replace(PASSWORD, "s3cr3t")
    assert "check user and password" in refused(url)


def test_a_wrong_database_says_so():
    url = f"postgresql://perdure:{PASSWORD}@127.0.0.1:{postgres().port}/nowhere"
    assert "create it, or check the names" in refused(url)


def test_a_server_that_is_not_there_says_so():
    assert "is the server running" in refused(f"postgresql://ana:s3cr3t@127.0.0.1:{free_port()}/agents")


def test_a_host_that_does_not_exist_says_so():
    assert "check the host name" in refused("postgresql://ana:s3cr3t@nowhere.invalid/agents")


def test_a_missing_driver_says_what_to_install():
    for module in ("perdure.stores.postgres.store", "perdure.blobs.postgres", "perdure.links.postgres"):
        script = f"""
import sys
sys.modules["psycopg"] = None
from perdure.errors import MissingExtra
try:
    import {module}
except MissingExtra as e:
    print(e, e.__suppress_context__)
"""
        done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=120)
        assert done.stdout == 'psycopg is not installed: pip install "perdure[postgres]" True\n'


def test_a_read_only_server_says_so(tmp_path: Path):
    url = url_of("postgres", tmp_path)
    PostgresStore(url).close()
    store = PostgresStore(url.replace("?", "?options=-cdefault_transaction_read_only%3Don&"))
    with pytest.raises(Unavailable, match="read-only"):
        store.append([commit()])
    store.close()


def test_a_user_who_may_not_make_tables_is_told(tmp_path: Path):
    url = url_of("postgres", tmp_path)
    role = "r" + url[-16:]
    with psycopg.connect(postgres_url(postgres()), autocommit=True) as admin:
        admin.execute(f"create role {role} login password 's3cr3t'")  # type: ignore[arg-type]
    plain = url.replace(f"perdure:{PASSWORD}", f"{role}:s3cr3t")
    assert "permission denied" in refused(plain)
    PostgresStore(url).close()
    assert "permission denied" in refused(plain)


def test_a_connection_that_never_gets_free_is_not_waited_for_for_ever(tmp_path: Path):
    store = PostgresStore(url_of("postgres", tmp_path), pool=1)
    taken = store._link._pool.take()
    store._link._pool._wait = 0.2
    with pytest.raises(Unavailable, match=r"all 1 connections were in use for 0\.2 seconds.*larger pool="):
        store.look("s")
    store._link._pool.give_back(taken)
    assert store.look("s") is None
    store.close()


def test_more_threads_than_connections_take_turns(tmp_path: Path):
    store = PostgresStore(url_of("postgres", tmp_path), pool=2)
    threads = [threading.Thread(target=write, args=(store, f"s{n}", 5)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.usage().checkpoints == 60
    store.close()
