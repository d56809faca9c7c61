"""The proxy cuts exactly where it is told to, seen with the plain drivers and with the server's own eyes."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis

from tests.proxy import AFTER, BEFORE, POSTGRES, RESP, TORN, Proxy
from tests.servers import postgres, valkey
from tests.servers.postgres import PASSWORD, USER, postgres_url

if TYPE_CHECKING:
    from collections.abc import Iterator

HOWS = (AFTER, BEFORE, TORN)


# -- PostgreSQL ----------------------------------------------------------------------------------------


class Counters:
    """A table through the proxy, and the same table directly."""

    def __init__(self, proxy: Proxy, table: str) -> None:
        self.proxy = proxy
        self.table = table
        self.direct = psycopg.connect(postgres_url(postgres()), autocommit=True)
        self.direct.execute(f"CREATE TABLE {table} (n int)".encode())

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """A new connection through the proxy."""
        where = f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.proxy.port}/postgres"
        return psycopg.connect(where, autocommit=True, **options)

    def insert(self, n: int) -> bytes:
        return f"INSERT INTO {self.table} VALUES ({n})".encode()

    @property
    def there(self) -> list[int]:
        """What the server holds."""
        return [n for (n,) in self.direct.execute(f"SELECT n FROM {self.table} ORDER BY n".encode())]


@pytest.fixture
def counters() -> Iterator[Counters]:
    with Proxy(postgres().port, POSTGRES) as proxy:
        made = Counters(proxy, f"proxied_{secrets.token_hex(8)}")
        yield made
        made.direct.execute(f"DROP TABLE {made.table}".encode())
        made.direct.close()


def test_postgres_passes_through_unharmed(counters: Counters) -> None:
    with counters.connect() as link:
        link.execute(counters.insert(1))
        link.execute(f"INSERT INTO {counters.table} VALUES (%s)".encode(), (2,))
        with link.pipeline():
            for n in (3, 4):
                link.execute(f"INSERT INTO {counters.table} VALUES (%s)".encode(), (n,))
        with pytest.raises(psycopg.errors.DivisionByZero):
            link.execute("SELECT 1/%s", (0,))
        (large,) = link.execute("SELECT repeat('x', 3000000) || %s", ("y",)).fetchone() or ("",)
        assert len(large) == 3_000_001
    assert counters.there == [1, 2, 3, 4]


@pytest.mark.parametrize("how", HOWS)
def test_a_simple_query_of_postgres_is_cut_where_it_is_told(counters: Counters, how: str) -> None:
    link = counters.connect()
    counters.proxy.cut(how, at=2)
    link.execute(counters.insert(1))
    with pytest.raises(psycopg.OperationalError):
        link.execute(counters.insert(2))
    assert link.broken
    assert counters.proxy.cuts == 1
    assert counters.there == ([1] if how == BEFORE else [1, 2])
    # Only the one: what comes next goes through.
    with counters.connect() as again:
        again.execute(counters.insert(3))
    assert counters.there[-1] == 3


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("at", [1, 2])
def test_a_statement_with_parameters_is_committed_by_its_sync_only(counters: Counters, how: str, at: int) -> None:
    link = counters.connect()
    counters.proxy.cut(how, at=at)
    with pytest.raises(psycopg.OperationalError):
        link.execute(f"INSERT INTO {counters.table} VALUES (%s)".encode(), (1,))
    # Executed and not synced is not committed; the answer to the sync is lost only after it was.
    assert counters.there == ([1] if at == 2 and how != BEFORE else [])


def test_every_statement_of_a_pipeline_can_be_cut(counters: Counters) -> None:
    for at in range(1, 20):
        counters.direct.execute(f"TRUNCATE {counters.table}".encode())
        link = counters.connect()
        counters.proxy.cut(AFTER, at=at)
        try:
            with link.pipeline() as pipeline:
                for n in (1, 2):
                    link.execute(f"INSERT INTO {counters.table} VALUES (%s)".encode(), (n,))
                    pipeline.sync()
        except psycopg.OperationalError:
            assert counters.there == {1: [], 2: [1], 3: [1]}.get(at, [1, 2])
        else:
            assert counters.there == [1, 2]
            # Two executes, two syncs, and the one that ends the pipeline.
            assert (at, counters.proxy.count) == (6, 5)
            link.close()
            return
        link.close()
    pytest.fail("the pipeline never went through")


def test_an_error_in_a_pipeline_does_not_confuse_the_count(counters: Counters) -> None:
    link = counters.connect()
    counters.proxy.cut(AFTER, at=5)

    def fail_and_insert() -> None:
        with link.pipeline():
            link.execute("SELECT 1/%s", (0,))
            link.execute(f"INSERT INTO {counters.table} VALUES (%s)".encode(), (1,))

    with pytest.raises(psycopg.errors.DivisionByZero):
        fail_and_insert()
    # Two executes and a sync; so the next statement's sync is the fifth.
    with pytest.raises(psycopg.OperationalError):
        link.execute(f"INSERT INTO {counters.table} VALUES (%s)".encode(), (2,))
    assert counters.there == [2]
    link.close()


# -- Redis ---------------------------------------------------------------------------------------------


class Lists:
    """A list through the proxy, and the same list directly."""

    def __init__(self, proxy: Proxy, protocol: int) -> None:
        self.proxy = proxy
        self.protocol = protocol
        self.key = f"proxied:{secrets.token_hex(8)}"
        self.direct = redis.Redis(port=valkey().port, decode_responses=True)

    def connect(self, **options: Any) -> redis.Redis:
        """A new client through the proxy, connected, that tries everything once only."""
        settings = {"socket_timeout": 30, "retry": None, "protocol": self.protocol, **options}
        client = redis.Redis(port=self.proxy.port, **settings)
        client.ping()
        return client

    @property
    def there(self) -> list[str]:
        """What the server holds."""
        found: Any = self.direct.lrange(self.key, 0, -1)
        return found


@pytest.fixture(params=[2, 3])
def lists(request: pytest.FixtureRequest) -> Iterator[Lists]:
    with Proxy(valkey().port, RESP) as proxy:
        made = Lists(proxy, request.param)
        yield made
        made.direct.delete(made.key)
        made.direct.close()


def test_redis_passes_through_unharmed(lists: Lists) -> None:
    with lists.connect() as client:
        client.rpush(lists.key, "a", "b" * 3_000_000)
        assert client.eval("return {1, {2, 'x'}}", 0) == [1, [2, b"x"]]
        assert client.hgetall("nothing") == {}
        assert client.get("nothing") is None
        with pytest.raises(redis.ResponseError):
            client.incr(lists.key)
    assert len(lists.there[1]) == 3_000_000


@pytest.mark.parametrize("how", HOWS)
def test_a_command_of_redis_is_cut_where_it_is_told(lists: Lists, how: str) -> None:
    client = lists.connect()
    lists.proxy.cut(how, at=2)
    client.rpush(lists.key, 1)
    with pytest.raises(redis.ConnectionError):
        client.rpush(lists.key, 2)
    assert lists.proxy.cuts == 1
    assert lists.there == (["1"] if how == BEFORE else ["1", "2"])
    client.rpush(lists.key, 3)
    assert lists.there[-1] == "3"
    client.close()


def test_every_command_of_a_pipeline_can_be_cut(lists: Lists) -> None:
    for at in range(1, 5):
        lists.direct.delete(lists.key)
        client = lists.connect()
        lists.proxy.cut(AFTER, at=at)
        pipeline = client.pipeline(transaction=False)
        for n in (1, 2, 3):
            pipeline.rpush(lists.key, n)
        if at <= 3:
            with pytest.raises(redis.ConnectionError):
                pipeline.execute()
        else:
            assert pipeline.execute() == [1, 2, 3]
        # The server got what came before the cut, and nothing of what came after.
        assert lists.there == ["1", "2", "3"][:at]
        client.close()


def test_a_cut_that_lasts_meets_every_statement_until_it_is_healed(lists: Lists) -> None:
    client = lists.connect()
    lists.proxy.cut_on(BEFORE)
    for _ in range(3):
        with pytest.raises(redis.ConnectionError):
            client.rpush(lists.key, 1)
    lists.proxy.heal()
    client.rpush(lists.key, 2)
    assert lists.there == ["2"]
    client.close()


# -- slow, frozen, swallowed, refused ------------------------------------------------------------------


def test_answers_come_later_and_whole(lists: Lists) -> None:
    client = lists.connect()
    lists.proxy.delay(0.05)
    began = time.monotonic()
    assert client.rpush(lists.key, 1) == 1
    assert time.monotonic() - began >= 0.05
    client.close()


@pytest.mark.parametrize("how", ["freeze", "swallow"])
def test_nothing_comes_through_a_frozen_or_swallowing_proxy_until_it_is_healed(lists: Lists, how: str) -> None:
    client = lists.connect(socket_timeout=0.2)
    getattr(lists.proxy, how)()
    with pytest.raises(redis.TimeoutError):
        client.rpush(lists.key, 1)
    assert lists.there == []
    lists.proxy.heal()
    client.rpush(lists.key, 2)
    # What was frozen moves on; what was swallowed is gone.
    assert [n for n in lists.there if n != "1"] == ["2"]
    assert how == "freeze" or lists.there == ["2"]
    client.close()


def test_a_refusing_proxy_ends_what_there_is_and_takes_nothing_new(lists: Lists) -> None:
    client = lists.connect()
    lists.proxy.refuse()
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            client.rpush(lists.key, 1)
    lists.proxy.heal()
    client.rpush(lists.key, 2)
    assert lists.there == ["2"]
    client.close()
