"""Reading along step by step: places that are gone, pieces that are lost, void or of another branch; on every store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, ScriptedModel
from perdure.agent.live_answers import seal_pieces
from perdure.agent.session_stream import Piece, SessionReader, live_of
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from perdure.agent.session_stream import Event


@pytest.fixture
def db(tmp_path: Path) -> Iterator[perdure.Database]:
    with perdure.open(url_of("sqlite", tmp_path)) as db:
        with db.session("s") as s:
            s.commit()
        yield db


def say(
    db: perdure.Database, session: perdure.Session, step: int, offset: int, text: str, branch: str = "main"
) -> None:
    """A piece of an answer, as a worker publishes it."""
    live = live_of(db.kernel)
    assert live is not None
    live.publish("s", seal_pieces(db.kernel, "s", [Piece(session.fence or 0, step, 1, offset, text, branch)]))


def told(along: SessionReader) -> list[tuple[str, Any]]:
    """What a look tells, in short."""
    return [(e.kind, e.data.get("text", e.data.get("step"))) for e in along.read()]


def reader(
    db: perdure.Database, after: int | str | None = None, branch: str = "main"
) -> tuple[SessionReader, list[Event]]:
    """Somebody who begins somewhere."""
    along = SessionReader(db.kernel, "s", branch)
    return along, along.begin(after)


def test_a_piece_is_told_to_the_readers_of_its_branch_alone(db: perdure.Database):
    with db.session("s") as s:
        s.fork("other")
        main, other = reader(db)[0], reader(db, branch="other")[0]
        say(db, s, 3, 0, "hello", branch="other")
        assert told(main) == []
        assert told(other) == [("delta", "hello")]
        say(db, s, 2, 0, "hi")
        assert told(main) == [("delta", "hi")]
        assert told(other) == []


def test_whoever_comes_back_is_told_only_what_is_new_and_what_is_void_is_taken_back(db: perdure.Database):
    with db.session("s") as s:
        along = reader(db)[0]
        say(db, s, 2, 0, "one ")
        (first,) = along.read()
        say(db, s, 2, 4, "two ")
        again = reader(db, first.position)[0]
        assert told(again) == [("delta", "two ")]
        assert told(again) == []
        # Another attempt says something else under the same number: what was told does not fit.
        live = live_of(db.kernel)
        assert live is not None
        live.clear("s")
        say(db, s, 2, 0, "uno dos")
        assert told(reader(db, first.position)[0]) == [("retracted", 2), ("delta", "uno dos")]
        assert told(reader(db)[0]) == [("delta", "uno dos")]
    # The worker is gone, and what it said with it.
    assert told(reader(db, first.position)[0]) == [("retracted", 2)]
    assert told(reader(db)[0]) == []
    with db.session("s"):
        # Somebody else has the lease: what is still lying there is not theirs.
        assert told(reader(db)[0]) == []


def test_a_piece_that_was_lost_makes_the_rest_wait_for_the_commit(db: perdure.Database):
    with db.session("s") as s:
        along = reader(db)[0]
        say(db, s, 2, 0, "one ")
        say(db, s, 2, 8, "three ")
        assert told(along) == [("delta", "one ")]
    agent = Agent("a", model=ScriptedModel(["one two three "]))
    assert told(along) == [("retracted", 2)]
    agent.run_sync(db.url, session="s", message="go")
    assert told(along) == [("committed", "one two three ")]


def test_a_session_that_began_anew_is_said_to_be_another_one(db: perdure.Database):
    along, first = reader(db, 0)
    assert first == []
    assert told(along) == [("step", 1)]
    place = str(along.position)
    db.kernel.store.drop("s", None, "deleted")
    assert [k for k, _ in told(along)] == ["rescan"]
    with db.session("s") as s:
        s.vars["n"] = 1
        s.commit()
    assert [e.kind for e in reader(db, place)[1]] == ["rescan"]
    assert told(along) == [("step", 1)]


def test_a_commit_that_retention_has_dropped_cannot_be_gone_on_from(db: perdure.Database):
    places: list[str] = []
    along = reader(db)[0]
    with db.session("s") as s:
        for n in range(40):
            s.vars["n"] = n
            s.commit()
            list(along.read())
            places.append(str(along.position))
    db.prune("s", keep_last=3)
    assert [e.kind for e in reader(db, places[2])[1]] == ["rescan"]
    again, first = reader(db, places[-2])
    assert first == []
    assert told(again) == [("step", 41)]
    # From the beginning there is what retention has left.
    assert [step for _, step in told(reader(db, 0)[0])][-1] == 41


def test_what_retention_has_left_is_told_however_much_it_has_dropped(db: perdure.Database):
    with db.session("s") as s:
        for n in range(260):
            s.vars["n"] = n
            s.commit()
            if n == 5:
                s.tag("early")
    db.prune("s", keep_last=3)
    every = [c.step for c in db.history("s", limit=1000)][::-1]
    assert every[-3:] == [259, 260, 261]
    assert every[-4] < 100, "there is no gap"
    along = reader(db, 0)[0]
    assert [step for _, step in told(along)] == every
    assert told(along) == []


def test_a_line_that_was_left_is_told_to_its_end_over_what_retention_has_dropped(db: perdure.Database):
    with db.session("s") as s:
        for n in range(260):
            s.vars["n"] = n
            s.commit()
            if n == 5:
                s.tag("early")
        s.rewind(7)
    db.prune("s", keep_last=3)
    steps = [(e.data["line"], e.data["step"]) for e in reader(db, 0)[0].read()]
    assert steps[-2][1] == 261, "the last of the line that was left"
    assert steps[-1][1] == 8
    assert steps == sorted(set(steps))
    assert len(steps) < 100, "there is no gap"


def test_whoever_names_a_step_gets_what_came_after_it(db: perdure.Database):
    with db.session("s") as s:
        for n in range(9):
            s.vars["n"] = n
            s.commit()
        s.rewind(4)
    for after in (0, 3, 5, 1000):
        along, first = reader(db, after)
        assert first == []
        lines = [(0, n) for n in range(1, 11)] + [(1, 5)]
        # Step 5 is one of the present line; whoever names it has left the old one behind.
        gone = {0: 0, 3: 3, 5: 11, 1000: 11}[after]
        assert [(e.data["line"], e.data["step"]) for e in along.read()] == lines[gone:]
        assert list(along.read()) == []
    db.prune("s", keep_last=1)
    assert told(reader(db, 3)[0])[-1] == ("step", 5)


def test_a_store_that_cannot_be_asked_moves_nobody(db: perdure.Database, monkeypatch: pytest.MonkeyPatch):
    along = reader(db, 0)[0]
    assert told(along) == [("step", 1)]
    with db.session("s") as s:
        say(db, s, 3, 0, "hello")
        s.vars["n"] = 1
        s.commit()

        def broken(*_: Any) -> Any:
            raise perdure.Unavailable("not now")

        with monkeypatch.context() as m:
            m.setattr(db.kernel.store, "slice", broken)
            with pytest.raises(perdure.Unavailable):
                told(along)
            with pytest.raises(perdure.Unavailable):
                reader(db, str(along.position))
        assert told(along) == [("step", 2), ("delta", "hello")]


def test_a_run_has_ended_only_when_all_of_it_was_told(db: perdure.Database):
    along = reader(db, 0)[0]
    assert along.ended() is None
    assert told(along) == [("step", 1)]
    db.post("s", "hello")
    assert along.ended() is None
    with db.session("s") as s:
        s.take()
        s.commit()
    assert along.ended() is None, "somebody has answered it since"
    assert told(along) == [("step", 2)]
    end = along.ended()
    assert end is not None
    assert (end.kind, end.step, end.data) == ("ended", 2, {"status": "idle"})


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_commits_and_answers_come_once_in_order(tmp_path: Path, kind: str):
    with perdure.open(url_of(kind, tmp_path)) as db:
        along = reader(db)[0]
        with db.session("s") as s:
            for n in range(250):
                s.vars["n"] = n
                s.commit()
        assert [step for _, step in told(along)] == list(range(1, 251))
        with db.session("s") as s:
            s.rewind(100)
            s.vars["n"] = -1
            s.commit()
        assert told(along) == [("step", 101), ("step", 102)]
        db.compact("s")
        # A line that there never was.
        assert [e.kind for e in reader(db, "7.3.aabbccddeeff")[1]] == ["rescan"]
        seen = [(e.data["line"], e.data["step"]) for e in reader(db, 0)[0].read()]
        assert seen == [(0, n) for n in range(1, 251)] + [(1, 101), (1, 102)]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_cursor_of_now_gives_what_comes_and_nothing_before(tmp_path: Path, kind: str):
    with perdure.open(url_of(kind, tmp_path)) as db:
        for before in (0, 3):
            for name in ("a", "b"):
                with db.session(name) as s:
                    for n in range(before):
                        s.vars["n"] = n
                        s.commit()
            cursor = db.changes("now").cursor
            assert db.changes(cursor).items == ()
            for name in ("a", "c"):
                with db.session(name) as s:
                    s.vars["new"] = before
                    s.commit()
            assert sorted(c.session for c in db.changes(cursor).items) == ["a", "c"]
