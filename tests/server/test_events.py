"""Events over HTTP: a reader that comes back with Last-Event-ID has everything once, whoever is killed meanwhile."""

from __future__ import annotations

import json
import signal
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

import perdure
from tests.server.asking import BEARER
from tests.server.listening import reading, serving
from tests.server.talker import WORDS, talking
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.listening import Reader, Server, Told
    from tests.server.talker import Talk


def text_shown(events: list[Told]) -> str:
    """What a screen shows in the end; every event must fit onto what is shown already."""
    settled, shown = "", ""
    attempt: Any = None
    for e in events:
        which = (e.data.get("worker"), e.data.get("step"), e.data.get("attempt"))
        if e.kind == "delta":
            assert attempt in (None, which), (attempt, e)
            assert e.data["offset"] == len(shown), (len(shown), e)
            shown, attempt = shown + e.data["text"], which
        elif e.kind == "retracted":
            assert attempt == which, (attempt, e)
            shown, attempt = "", None
        elif e.kind == "committed":
            assert e.data["text"].startswith(shown), (shown, e)
            settled, shown, attempt = settled + e.data["text"], "", None
    assert shown == ""
    return settled


def committed_text(url: str) -> str:
    """What the session holds."""
    with perdure.open(url) as db:
        return "".join(m["content"] for m in db.read("s").messages if m["role"] == "assistant")


def once(events: list[Told]) -> None:
    """Every commit came once, in order, and no id came twice."""
    commits = [(e.data["line"], e.data["step"]) for e in events if e.kind in ("step", "committed")]
    assert commits == sorted(set(commits))
    assert max(Counter(e.id for e in events).values(), default=0) <= 2
    assert "rescan" not in [e.kind for e in events]


@contextmanager
def scene(folder: Path, kind: str = "sqlite") -> Iterator[tuple[Server, Reader, Talk]]:
    """A session with one checkpoint, a server, somebody who reads along, and how far the worker may talk."""
    url = url_of(kind, folder)
    with perdure.open(url) as db, db.session("s") as s:
        s.commit()
    with serving(url, folder) as server, reading(server, "/sessions/s/events") as reader, talking(url, folder) as talk:
        yield server, reader, talk


def heard(reader: Reader, words: str) -> None:
    """Wait until the reader has been told so much of the answer that is on its way."""
    reader.wait(lambda r: provisional(r.events) == words)


def provisional(events: list[Told]) -> str:
    """The part of an answer that is shown and not settled."""
    shown = ""
    for e in events:
        shown = shown + e.data["text"] if e.kind == "delta" else "" if e.kind in ("retracted", "committed") else shown
    return shown


def test_the_server_is_killed_in_mid_stream_and_the_reader_misses_nothing(tmp_path: Path):
    with scene(tmp_path) as (server, reader, talk):
        worker = talk.start("first")
        for words in (3, 8):
            heard(reader, talk.allow(words))
            server.kill()
            server.start()
        talk.allow(WORDS)
        assert worker.wait(60) == 0
        reader.wait(lambda r: "committed" in r.kinds())
        assert reader.connections == 3
        once(reader.events)
        assert "retracted" not in reader.kinds()
        assert text_shown(reader.events) == committed_text(talk.url) == talk.whole("first")


def test_what_was_said_and_committed_while_nobody_served_is_told_once(tmp_path: Path):
    with scene(tmp_path) as (server, reader, talk):
        worker = talk.start("first")
        heard(reader, talk.allow(4))
        server.kill()
        talk.allow(WORDS)
        assert worker.wait(60) == 0
        server.start()
        reader.wait(lambda r: "committed" in r.kinds())
        once(reader.events)
        assert set(reader.kinds()) == {"delta", "committed"}
        assert text_shown(reader.events) == committed_text(talk.url) == talk.whole("first")


def test_the_worker_is_killed_in_mid_answer_and_what_it_said_is_taken_back(tmp_path: Path):
    with scene(tmp_path) as (server, reader, talk):
        worker = talk.start("first")
        heard(reader, talk.allow(5))
        worker.kill()
        worker.wait(60)
        reader.wait(lambda r: "retracted" in r.kinds())
        talk.allow(0)
        worker = talk.start("second")
        heard(reader, talk.allow(3))
        server.kill()
        server.start()
        talk.allow(WORDS)
        assert worker.wait(60) == 0
        reader.wait(lambda r: "committed" in r.kinds())
        once(reader.events)
        assert reader.kinds().count("retracted") == 1
        assert text_shown(reader.events) == committed_text(talk.url) == talk.whole("second")


def test_the_worker_and_the_server_are_killed_and_the_answer_is_another_one(tmp_path: Path):
    with scene(tmp_path) as (server, reader, talk):
        worker = talk.start("first")
        heard(reader, talk.allow(5))
        worker.kill()
        worker.wait(60)
        server.kill()
        # All of it happens while nobody serves: the reader has only the id of a delta that is void by now.
        talk.allow(WORDS)
        assert talk.start("second").wait(60) == 0
        server.start()
        reader.wait(lambda r: "committed" in r.kinds())
        once(reader.events)
        assert [k for k in reader.kinds() if k != "delta"] == ["retracted", "committed"]
        assert text_shown(reader.events) == committed_text(talk.url) == talk.whole("second")


def test_answers_on_a_branch_are_told_to_its_readers_alone(tmp_path: Path):
    with scene(tmp_path) as (server, reader, talk):
        with perdure.open(talk.url) as db, db.session("s") as s:
            s.fork("other")
        with reading(server, "/sessions/s/events", branch="other") as other:
            worker = talk.start("first", branch="other")
            heard(other, talk.allow(3))
            talk.allow(WORDS)
            assert worker.wait(60) == 0
            other.wait(lambda r: "committed" in r.kinds())
            assert text_shown(other.events) == talk.whole("first")
        assert reader.kinds() == []


def test_all_changes_come_once_over_kills_and_restarts(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    perdure.open(url).close()
    written: list[tuple[str, int]] = []
    with serving(url, tmp_path) as server, perdure.open(url) as db, reading(server, "/events") as reader:
        for round in range(3):
            for name in ("a", "b"):
                with db.session(name) as s:
                    for _ in range(20):
                        s.vars["n"] = len(written)
                        written.append((name, s.commit().step))
            reader.wait(lambda r: len(seen(r)) >= 10)
            server.kill()
            with db.session("c") as s:
                s.vars["round"] = round
                written.append(("c", s.commit().step))
            server.start()
        reader.wait(lambda r: len(seen(r)) >= len(written))
        assert Counter(seen(reader)) == Counter(written)
        assert all(list(filter(lambda c: c[0] == n, seen(reader))) == [(n, i) for i in range(1, 61)] for n in "ab")


def seen(reader: Reader) -> list[tuple[str, int]]:
    """The changes that have arrived."""
    return [(c["session"], c["step"]) for e in reader.events if e.kind == "changes" for c in e.data["items"]]


def test_a_rewind_and_what_was_left_by_it_are_told_in_order(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, serving(url, tmp_path) as server:
        with db.session("s") as s:
            for n in range(1, 6):
                s.vars["n"] = n
                s.commit()
            s.fork("other", at=3)
        with (
            reading(server, "/sessions/s/events", after="beginning") as main,
            reading(server, "/sessions/s/events", branch="other") as other,
        ):
            main.wait(lambda r: len(r.events) == 5)
            with db.session("s") as s:
                s.rewind(2)
                s.vars["n"] = 30
                s.commit()
                s.switch("other")
                s.vars["n"] = 40
                s.commit()
            main.wait(lambda r: len(r.events) == 7)
            assert [(e.data["line"], e.data["step"], e.data["kind"]) for e in main.events[4:]] == [
                (0, 5, "commit"),
                (2, 3, "rewind"),
                (2, 4, "commit"),
            ]
            other.wait(lambda r: len(r.events) == 1)
            assert (other.events[0].data["branch"], other.events[0].data["step"]) == ("other", 5)
            # Whoever comes back from before the rewind gets the rest of the old line first.
            with reading(server, "/sessions/s/events", after=main.events[3].id) as again:
                again.wait(lambda r: len(r.events) == 3)
                assert [e.id for e in again.events] == [e.id for e in main.events[4:]]


def test_a_place_that_is_gone_is_said_so(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, serving(url, tmp_path) as server:
        with db.session("s") as s:
            s.commit()
        with reading(server, "/sessions/s/events", after="0.7.aabbccddeeff~3.8.1.5.00000000") as reader:
            reader.wait(lambda r: len(r.events) == 2)
            assert reader.kinds() == ["retracted", "rescan"]
            with db.session("s") as s:
                s.vars["n"] = 1
                s.commit()
            reader.wait(lambda r: len(r.events) == 3)
            assert reader.events[2].data["step"] == 2
        db.kernel.store.renew_epoch()
        cursor = db.changes(None).cursor
        db.kernel.store.renew_epoch()
        with reading(server, "/events", after=cursor) as reader:
            reader.wait(lambda r: r.kinds() == ["rescan"])
        for bad in ("nonsense", "0.1", "0.1.aabbccddeeff~x"):
            answer = httpx.get(f"{server.base}/api/v1/sessions/s/events", params={"after": bad}, headers=BEARER)
            assert (answer.status_code, answer.json()["type"]) == (422, "urn:perdure:error:invalid-input")
        answer = httpx.get(f"{server.base}/api/v1/events", params={"after": "nonsense"}, headers=BEARER)
        assert answer.status_code == 422


def test_browsers_are_told_that_what_they_show_has_changed_and_streams_end_with_the_server(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, serving(url, tmp_path) as server, httpx.Client(headers=BEARER, timeout=30) as client:
        with db.session("s/1") as s:
            s.commit()
        wanted = {"topic": ["session:s%2F1", "sessions"]}
        with client.stream("GET", f"{server.base}/live", params=wanted) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            told = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
            first = dict([next(told), next(told)])
            assert set(first) == set(wanted["topic"])
            with db.session("s/1") as s:
                s.vars["n"] = 1
                s.commit()
            assert all(mark != first[topic] for topic, mark in (next(told), next(told)))
            assert server.kill(signal.SIGTERM) in (0, -signal.SIGTERM)
            for _ in told:
                pass
        assert "Traceback" not in server.said()


def test_a_server_told_to_go_ends_its_streams_and_goes(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, db.session("s") as s:
        s.commit()
    with serving(url, tmp_path) as server, reading(server, "/sessions/s/events"), reading(server, "/events"):
        assert server.kill(signal.SIGTERM) in (0, -signal.SIGTERM)
        assert "Traceback" not in server.said()
