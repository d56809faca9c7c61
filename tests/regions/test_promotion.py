"""A replica is promoted while a writer is at work: what it had not received is lost, and somebody says so."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import perdure
from perdure.errors import CursorExpired, LeaseLost, TailLost
from perdure.stores import open_store
from tests.servers.postgres import PASSWORD, USER, postgres_url, start_postgres, start_replica
from tests.servers.process import Running, kill, stop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WITHIN = 30.0


class Pair:
    """A primary and its replica, and one URL that finds whichever of them can be written."""

    def __init__(self) -> None:
        self.primary = start_postgres()
        try:
            self.replica = start_replica(self.primary)
        except BaseException:
            stop(self.primary)
            raise
        self.url = (
            f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.primary.port},127.0.0.1:{self.replica.port}/postgres"
            "?target_session_attrs=read-write"
        )

    def catch_up(self) -> None:
        """Wait until the replica has everything."""
        position = ask(self.primary, "select pg_current_wal_flush_lsn()::text")
        deadline = time.monotonic() + WITHIN
        while not ask(self.replica, "select pg_last_wal_replay_lsn() >= %s::pg_lsn", position):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def cut(self) -> None:
        """From now on nothing reaches the replica."""
        ask(self.replica, "alter system set primary_conninfo = ''")
        ask(self.replica, "select pg_reload_conf()")
        deadline = time.monotonic() + WITHIN
        while ask(self.replica, "select count(*) from pg_stat_wal_receiver"):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def fail_over(self) -> None:
        """The primary dies, the replica takes its place."""
        kill(self.primary)
        assert ask(self.replica, "select pg_promote(true, 30)")

    def close(self) -> None:
        for server in (self.primary, self.replica):
            stop(server)


def ask(server: Running, sql: str, *values: Any) -> Any:
    """One value from one server."""
    connection: Any = psycopg.connect(postgres_url(server), autocommit=True)
    with closing(connection):
        cursor = connection.execute(sql, values)
        return cursor.fetchone()[0] if cursor.description else None


@pytest.fixture
def pair() -> Iterator[Pair]:
    with closing(Pair()) as made:
        yield made


def say(session: perdure.Session, text: str) -> None:
    session.messages.append({"role": "user", "content": text})
    session.commit()


def test_a_promoted_replica_that_has_everything_goes_on_where_the_primary_was(pair: Pair):
    with perdure.open(pair.url) as db:
        writer = db.session("trip", owner="ana")
        for n in range(5):
            say(writer, f"before {n}")
        token = writer.fence
        pair.catch_up()
        pair.fail_over()
        with pytest.raises(LeaseLost):
            say(writer, "with the old token")
        with db.session("trip") as again:
            assert [m["content"] for m in again.messages] == [f"before {n}" for n in range(5)]
            assert again.fence is not None
            assert token is not None
            assert again.fence > token + 1_000_000
            say(again, "after")
        assert db.read("trip").step == 6
        assert db.verify().ok


def test_a_tail_that_the_replica_had_not_received_is_reported_by_the_live_writer(pair: Pair):
    with perdure.open(pair.url) as db:
        writer = db.session("trip", owner="ana")
        for n in range(5):
            say(writer, f"kept {n}")
        pair.catch_up()
        pair.cut()
        for n in range(3):
            say(writer, f"lost {n}")
        pair.fail_over()
        with pytest.raises(TailLost) as said:
            say(writer, "next")
        assert (said.value.step, said.value.left) == (8, 5)
        # Nothing of the handle gets in behind its back; what is left can be gone on with.
        with pytest.raises(TailLost):
            writer.commit()
        with db.session("trip") as again:
            assert again.step == 5
            say(again, "next")
        assert [m["content"] for m in db.read("trip").messages] == [*(f"kept {n}" for n in range(5)), "next"]


def test_a_tail_lost_while_nobody_was_writing_shows_against_the_witness_only(pair: Pair, tmp_path: Path):
    witness = tmp_path / "witness"
    with perdure.open(pair.url, witness=witness) as db:
        with db.session("trip", owner="ana") as s:
            say(s, "kept")
            pair.catch_up()
            pair.cut()
            say(s, "lost")
        pair.fail_over()
    with perdure.open(pair.url) as db:
        # Nothing in the store itself can show it.
        assert db.read("trip").step == 1
        assert db.verify().ok
        found = db.verify(witness=witness).findings
        assert [f.kind for f in found] == ["lost"]


def test_cursors_and_tokens_of_before_are_refused_by_handles_old_and_new(pair: Pair):
    with closing(open_store(pair.url)) as store:
        old_epoch = store.epoch
        with perdure.open(pair.url) as db, db.session("trip", owner="ana") as s:
            say(s, "one")
        cursor = store.changes().cursor
        lease = store.acquire("trip", "me", 60_000)
        pair.catch_up()
        pair.fail_over()
        assert store.renew([lease], 60_000) == [False]
        assert store.epoch != old_epoch
        with pytest.raises(CursorExpired):
            store.changes(cursor)
        with closing(open_store(pair.url)) as fresh:
            assert fresh.epoch == store.epoch
            with pytest.raises(CursorExpired):
                fresh.changes(cursor)
            assert fresh.acquire("trip", "you", 60_000).token > lease.token + 1_000_000
