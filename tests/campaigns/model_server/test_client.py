"""The client against a server that is not ours: the short form of ``make client``."""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING

import pytest

from tests.campaigns.crash.zygote import Zygote
from tests.campaigns.model_server import killing, reading
from tests.campaigns.model_server.breaking import cut_off, parallel_calls, sent_away
from tests.campaigns.model_server.campaign import LIFE, PACE
from tests.campaigns.model_server.proxy import Proxy, Sent
from tests.campaigns.model_server.scene import APIS, settled
from tests.servers.llmock import start_llmock
from tests.servers.process import stop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.process import Running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    running = start_llmock()
    yield running
    stop(running)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    running = Zygote(LIFE)
    yield running
    running.close()


@pytest.mark.parametrize("api", APIS)
def test_streams_and_refusals(server: Running, api: str) -> None:
    for part in (
        parallel_calls(server, api, 2, random.Random(7)),
        sent_away(server, api, [0.2]),
        cut_off(server, api, [3]),
    ):
        assert part.ok, part


@pytest.mark.parametrize("api", APIS)
def test_requests_after_a_kill_are_those_of_an_undisturbed_conversation(
    server: Running, zygote: Zygote, tmp_path: Path, api: str
) -> None:
    with Proxy(server.port) as proxy:
        bench = killing.Bench(server, proxy, zygote, tmp_path, api)
        bench.undisturbed()
        assert len(bench.calm) == 5
        for kind, points in killing.KINDS.items():
            moments = [m for m in bench.moments if m[0] in points]
            killed = bench.kill(moments[len(moments) // 2])
            assert killed.ok, (kind, killed)
        again = bench.kill(("agent.before_commit", 3), ("agent.after_model", 1), ("tool.book", 1))
        assert again.ok, again
        assert (again.kills, again.again) == (3, 2)


def test_an_agent_that_is_another_one_in_every_process_is_found_out(
    server: Running, zygote: Zygote, tmp_path: Path
) -> None:
    with Proxy(server.port) as proxy:
        bench = killing.Bench(server, proxy, zygote, tmp_path, "chat", sabotage=True)
        bench.undisturbed()
        killed = bench.kill(("agent.after_commit", 1))
        assert (killed.kills, killed.ended, killed.same) == (1, True, False)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_reader_elsewhere_ends_with_what_was_committed(zygote: Zygote, tmp_path: Path, store: str) -> None:
    server, readers = start_llmock(*PACE), Zygote(LIFE)
    try:
        read = reading.Bench(server, tmp_path, store, zygote, readers).read(0, 1, random.Random(1))
    finally:
        readers.close()
        stop(server)
    assert read.ok, read


def test_what_a_reader_shows_is_judged() -> None:
    first = [{"kind": "delta", "offset": 0, "text": "I "}, {"kind": "delta", "offset": 2, "text": "thi"}]
    last = {"kind": "committed", "text": "Here"}
    assert settled([*first, {"kind": "retracted"}, last]) == ("Here", True)
    assert settled([*first, last]) == ("Here", False)
    assert settled([first[1], {"kind": "retracted"}, last]) == ("Here", False)
    assert settled([last, first[0]]) == ("Here", False)


def test_the_proxy_keeps_whole_requests_and_numbers_names_drawn_by_lot() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, Proxy(listening.getsockname()[1]) as proxy:
        port = int(proxy.base_url.split(":")[2].split("/")[0])
        body = b'{"a":"call_0123456789abcdef01234567","b":"call_0123456789abcdef01234567"}'
        whole = b"POST /v1/x HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        with socket.create_connection(("127.0.0.1", port)) as client:
            server, _ = listening.accept()
            client.sendall(whole + whole[:-1])
            heard = b""
            while len(heard) < len(whole):
                heard += server.recv(1 << 16)
            assert heard.startswith(whole)
            sent = proxy.taken()
            server.close()
    assert sent == [Sent(b"POST /v1/x HTTP/1.1", body)]
    assert sent[0].renamed().body == b'{"a":"<0>","b":"<0>"}'
