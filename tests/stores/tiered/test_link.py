"""One connection to the hot tier against a peer that says anything: it answers in time, or is given up."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from perdure.errors import InvalidInput
from perdure.links.redis import connection_maker
from perdure.stores.tiered.hot import Broken, Link, Refused
from tests.servers import valkey
from tests.servers.valkey import redis_url

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST = 100_000


class Peer:
    """Accepts one connection and answers whatever it is asked with the same bytes, a few at a time."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.says = b""
        self.at_once = 1 << 20
        self.hangs_up = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        with connection:
            while connection.recv(65536):
                for at in range(0, len(self.says), self.at_once):
                    try:
                        connection.sendall(self.says[at : at + self.at_once])
                    except OSError:
                        return
                    if self.at_once < 100 and self._over.wait(0.02):
                        return
                if self.hangs_up:
                    return

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._listening.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    found = Peer()
    yield found
    found.close()


@pytest.fixture
def link(peer: Peer) -> Iterator[Link]:
    made = Link(connection_maker(f"redis://127.0.0.1:{peer.port}", 5.0)(), MOST)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("says", "means"),
    [
        (b"+PONG\r\n", b"PONG"),
        (b":42\r\n", 42),
        (b"$-1\r\n", None),
        (b"*-1\r\n", None),
        (b"$0\r\n\r\n", b""),
        (b"$5\r\na\r\nb!\r\n", b"a\r\nb!"),
        (b"*2\r\n$1\r\na\r\n:1\r\n", [b"a", 1]),
        (b"*0\r\n", []),
        (b"$90000\r\n" + b"x" * 90_000 + b"\r\n", b"x" * 90_000),
    ],
)
@pytest.mark.parametrize("at_once", [1 << 20, 1000])
def test_answers_are_understood_however_they_are_cut(link: Link, peer: Peer, says: bytes, means: object, at_once: int):
    peer.says, peer.at_once = says, at_once
    for _ in range(3):
        assert link.ask([(b"X",)], 30) == [means]


def test_small_pieces_and_many_answers(link: Link, peer: Peer):
    peer.says, peer.at_once = b"*2\r\n$3\r\nabc\r\n$-1\r\n:7\r\n-ERR no such thing\r\n", 3
    one, two, three = link.ask([(b"A",), (b"B", b""), (b"C",)], 30)
    assert (one, two) == ([b"abc", None], 7)
    assert isinstance(three, Refused)
    assert three.code == "ERR"


@pytest.mark.parametrize(
    "says",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"$x\r\n",
        b"*9999999999\r\n",
        b"$99999999999\r\n",
        b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
        b"$-\r\n",
        b"\r\n",
        b"x" * 200_000,
        b"*2\r\n$60000\r\n" + b"x" * 60_000 + b"\r\n$60000\r\n",
    ],
)
def test_what_is_no_answer_ends_the_connection_and_takes_no_memory(link: Link, peer: Peer, says: bytes):
    peer.says = says
    with pytest.raises(Broken):
        link.ask([(b"X",)], 30)


@pytest.mark.parametrize("says", [b"", b"$10\r\nabc", b"*2\r\n:1\r\n", b"+PON"])
def test_one_that_hangs_up_is_broken(link: Link, peer: Peer, says: bytes):
    peer.says, peer.hangs_up = says, True
    with pytest.raises((Broken, OSError)):
        link.ask([(b"X",)], 30)


def test_one_that_sends_byte_by_byte_is_not_waited_for(link: Link, peer: Peer):
    # Each byte comes soon enough; all of them would take half an hour.
    peer.says, peer.at_once = b"$90000\r\n" + b"x" * 90_000 + b"\r\n", 1
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        link.ask([(b"X",)], 0.2)
    assert time.monotonic() - begun < 600


def test_a_real_server_is_understood():
    link = Link(connection_maker(redis_url(valkey()), 5.0)(), 1 << 24)
    try:
        key = b"test_link"
        big = bytes(range(256)) * 20_000
        said = link.ask(
            [(b"HSET", key, b"a", big), (b"HGETALL", key), (b"HLEN", key), (b"GET", key), (b"DEL", key)], 30
        )
        assert said[:3] == [1, [b"a", big], 1]
        assert isinstance(said[3], Refused)
        assert (said[3].code, said[4]) == ("WRONGTYPE", 1)
    finally:
        link.close()


def test_connections_may_be_made_again_as_often_as_they_are_lost():
    # More often than the driver's own pool would make them.
    make = connection_maker(redis_url(valkey()), 5.0)
    for _ in range(130):
        link = Link(make(), MOST)
        assert link.ask([(b"PING",)], 30) == [b"PONG"]
        link.close()


@pytest.mark.parametrize(
    "url", ["redis://:s3cr3t@host:port/0", "redis://:s3cr3t@host/0?nonsense=1", "redis://:s3cr3t@host?db=x"]
)
def test_an_address_that_cannot_be_used_is_refused_without_its_secret(url: str):
    with pytest.raises(InvalidInput) as refused:
        connection_maker(url, 1.0)
    assert "s3cr3t" not in str(refused.value)
    assert refused.value.__suppress_context__
