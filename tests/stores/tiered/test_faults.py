"""The hot tier is emptied, killed, frozen, cut off, slowed down, filled and poisoned in mid-run; work goes on."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import redis

import perdure
from tests.proxy import RESP, Proxy
from tests.servers import redis as debian_redis
from tests.servers.process import freeze, kill, stop, thaw
from tests.servers.valkey import redis_binary, start_valkey, valkey_binary
from tests.stores.tiered.tiers import Tiers, eventually, is_hot, said, say, tiered
from tests.stores.tiered.working import Work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.process import Running

ROOT = Path(__file__).resolve().parents[3]
COLD = ["sqlite", "postgres"]
SERVERS = ["valkey", *(["redis"] if debian_redis() else [])]


def heals(work: Work) -> None:
    """The hot tier helps again, by itself."""
    eventually(lambda: tiered(work.reader).hot == "answers", "it answers again")
    work.go_on()
    eventually(lambda: any(is_hot(work.reader, name) for name in work.acknowledged), "something is hot again")


@pytest.fixture(params=COLD)
def tiers_of_own(request: pytest.FixtureRequest, tmp_path: Path, server: Running) -> Iterator[Tiers]:
    with Tiers(server.port, tmp_path, request.param) as found:
        yield found


def test_flushed_again_and_again(tiers_of_own: Tiers):
    with Work(tiers_of_own) as work:
        for _ in range(5):
            tiers_of_own.client.flushall()
            work.go_on()
        heals(work)
    assert work.check() > 100


@pytest.mark.parametrize("kind", SERVERS)
def test_killed_and_started_again_empty_or_with_old_data(tmp_path: Path, kind: str):
    binary = redis_binary() if kind == "redis" else valkey_binary()
    server = start_valkey(binary=binary)
    try:
        with Tiers(server.port, tmp_path) as tiers, Work(tiers) as work:
            for keep in (True, False, True):
                kill(server)
                work.go_on()
                stop(server, keep=keep)
                # With its folder it comes back with what it had when it was killed, which is old by now.
                server = start_valkey(binary=binary, port=server.port, folder=server.folder if keep else None)
                heals(work)
            work.__exit__(None, None, None)
            assert work.check() > 50
    finally:
        stop(server)


def test_frozen_and_thawed(own: Tiers, server: Running):
    with Work(own) as work:
        for _ in range(2):
            freeze(server)
            work.go_on()
            assert tiered(work.reader).hot.startswith("does not answer")
            thaw(server)
            heals(work)
    assert work.check() > 50


@pytest.mark.parametrize("way", ["freeze", "swallow", "refuse", "slow", "cut"])
@pytest.mark.parametrize("cold", COLD)
def test_behind_a_bad_network(tmp_path: Path, server: Running, way: str, cold: str):
    with Proxy(server.port, RESP) as proxy, Tiers(proxy.port, tmp_path, cold) as tiers:
        with Work(tiers) as work:
            heals(work)
            match way:
                case "slow":
                    proxy.delay(3.0)
                case "cut":
                    proxy.cut_on("after", 2)
                case _:
                    getattr(proxy, way)()
            work.go_on(30)
            proxy.heal()
            heals(work)
        assert work.check() > 50


def test_poisoned_all_the_time(own: Tiers):
    random = Random(4711)
    with Work(own) as work:
        for _ in range(150):
            for key in own.held():
                if key.endswith(b":state") and (value := own.client.get(key)):
                    at = random.randrange(len(value))
                    own.client.set(key, value[:at] + random.randbytes(1) + value[at + 1 :], keepttl=True)
                elif not key.endswith(b":state") and (fields := own.client.hgetall(key)):
                    field = random.choice(list(fields))
                    own.client.hset(key, field, random.randbytes(random.randrange(200)))
        work.go_on()
    assert work.check() > 50


def test_one_that_is_full_takes_nothing_and_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    server = start_valkey(settings={"appendonly": "no", "maxmemory": "1", "maxmemory-policy": "noeviction"})
    try:
        with Tiers(server.port, tmp_path) as tiers:
            with Work(tiers) as work:
                work.go_on()
                eventually(lambda: "takes nothing (OOM)" in tiered(work.reader).hot, "it says that it is full")
            assert work.check() > 30
            assert tiers.held() == []
    finally:
        stop(server)
    assert "takes nothing (OOM)" in caplog.text


def test_one_that_evicts_is_fine(tmp_path: Path):
    server = start_valkey(settings={"appendonly": "no", "maxmemory": "3mb", "maxmemory-policy": "allkeys-lru"})
    try:
        with Tiers(server.port, tmp_path) as tiers:
            with Work(tiers) as work:
                for n in range(20):
                    tiers.client.set(f"ballast {n}", b"x" * 100_000)
                    work.go_on(2, 1)
            assert work.check() > 40
    finally:
        stop(server)


def test_once_it_is_known_to_be_dead_nobody_asks_it(tmp_path: Path, server: Running):
    # No way back within this test: a second try would come after the first backoff only.
    with Proxy(server.port, RESP) as proxy, Tiers(proxy.port, tmp_path) as tiers:
        db = tiers.db()
        say(db, "one")
        db.read("s")
        eventually(lambda: is_hot(db), "it is hot")
        hot = tiered(db)._hot
        proxy.swallow()
        db.read("s")
        assert tiered(db).hot.startswith("does not answer")
        asked: list[Any] = []
        link = hot._reader
        assert link is None
        for n in range(20):
            say(db, f"more {n}")
            db.read("s")
            asked.append(hot._reader)
            assert not hot._told
        assert asked == [None] * 20
        assert len(said(db)) == 21


@pytest.mark.parametrize(
    "address",
    [
        "redis://:s3cr3t@127.0.0.1:1/0",
        "redis://ana:s3cr3t@no-such-host.invalid:6379/0",
        "rediss://:s3cr3t@127.0.0.1:{port}/0",
        "redis://ana:s3cr3t@127.0.0.1:{port}/0",
        "redis://:s3cr3t@127.0.0.1:{port}/0",
        "redis://127.0.0.1:{port}/999",
    ],
)
def test_a_hot_tier_that_cannot_be_reached_is_no_reason_not_to_open(
    address: str, tmp_path: Path, server: Running, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    url = f"tiered:{address.format(port=server.port)},sqlite:///{tmp_path}/cold.db"
    with perdure.open(url) as db:
        say(db, "one")
        assert said(db) == ["one"]
        eventually(lambda: tiered(db).hot.startswith("does not answer"), "it says so")
        assert "s3cr3t" not in db.url + tiered(db).hot + repr(vars(db.kernel.store)) + caplog.text
    with perdure.open(f"sqlite:///{tmp_path}/cold.db") as db:
        assert said(db) == ["one"]
    assert "the hot tier does not answer" in caplog.text


def test_a_password_and_a_database_of_its_own(tmp_path: Path):
    server = start_valkey(settings={"appendonly": "no", "requirepass": "s3cr3t"})
    try:
        url = f"tiered:redis://:s3cr3t@127.0.0.1:{server.port}/3,sqlite:///{tmp_path}/cold.db"
        with perdure.open(url) as db:
            say(db, "one")
            db.read("s")
            eventually(lambda: is_hot(db), "it is hot")
            assert "s3cr3t" not in db.url
        with redis.Redis(port=server.port, db=3, password="s3cr3t", protocol=2) as client:
            found: Any = client.keys("*")
            assert {key.split(b":")[0] for key in found} == {b"perdure"}
    finally:
        stop(server)


def test_the_documented_user_may_do_all_that_is_needed(tmp_path: Path, server: Running, own: Tiers):
    words = (ROOT / "docs/howto/tiered.md").read_text("utf-8")
    line = re.search(r"^ACL SETUSER .*$", words, re.MULTILINE)
    assert line is not None
    own.client.execute_command(*line[0].split())
    url = f"tiered:redis://hot:password@127.0.0.1:{server.port}/2,sqlite:///{tmp_path}/cold.db"
    with perdure.open(url, hot_timeout=1.0) as db:
        with db.session("s") as s:
            for n in range(80):
                s.messages.append({"role": "user", "content": f"message {n}"})
                s.commit()
        eventually(lambda: said(db) and is_hot(db), "it is hot")
        tiered(db).drop("s", None, "deleted")
        with redis.Redis(port=server.port, db=2, protocol=2) as client:
            eventually(lambda: not client.dbsize(), "it is forgotten")
        assert tiered(db).hot == "answers"
