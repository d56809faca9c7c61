"""Input that cannot be used and handles that may not be: accepted safely or refused clearly."""

from __future__ import annotations

import datetime
import decimal
import functools
import json
import math
import os
import traceback
from typing import TYPE_CHECKING, Any, cast

import pytest

import perdure
from perdure.errors import ForkedProcess, InvalidInput, LimitExceeded, NotFound, NotJson, PerdureError, Unavailable
from tests.campaigns.model.documents import exact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from perdure.database import Database

    Open = Callable[..., Database]

EMBEDDED = ["memory", "sqlite", "file"]
ON_DISK = ["sqlite", "file"]


def url_of(kind: str, folder: Path) -> str:
    return {
        "memory": f"memory://{folder}",
        "sqlite": f"sqlite:///{folder}/agents.db",
        "file": f"file://{folder}/agents",
    }[kind]


@pytest.fixture(params=EMBEDDED)
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of store."""
    return request.param


@pytest.fixture
def db(kind: str, tmp_path: Path) -> Iterator[Database]:
    """An open database, in a folder of its own below ``tmp_path``."""
    (tmp_path / "inside").mkdir()
    with perdure.open(url_of(kind, tmp_path / "inside")) as opened:
        yield opened


class Anything:
    """No JSON type."""


REFUSED: dict[str, Any] = {
    "an object": Anything(), "a set": {1}, "a date": datetime.date(2024, 1, 1), "a decimal": decimal.Decimal(1),
    "a function": len, "a complex number": 1j, "NaN": math.nan, "infinity": math.inf, "minus infinity": -math.inf,
    "a lone surrogate": "\ud800", "a lone surrogate in a long text": "x" * 50_000 + "\udfff",
    "a bytearray": bytearray(b"x"),
    "a key that is a number": {1: 2}, "a key that is None": {None: 2}, "a key with a surrogate": {"\ud83d": 1},
    "a key that is a bool": {True: 1}, "a very long key": {"k" * 40_000: 1}, "a range": range(3),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_json_is_refused_at_commit_with_its_path_and_nothing_is_written(db: Database, what: str):
    with db.session("s") as s:
        s.vars["fine"] = 1
        s.commit()
        s.vars["deep"] = [{"in": REFUSED[what]}]
        with pytest.raises(NotJson) as caught:
            s.commit()
        assert "state.vars.deep[0]" in str(caught.value)
        assert caught.value.path[:3] == ("vars", "deep", 0)
        assert (s.step, db.look("s").heads[0].step) == (1, 1)
        del s.vars["deep"]
        s.vars["fine"] = 2
        s.commit()
    assert db.read("s").vars == {"fine": 2}
    assert len(db.history("s")) == 2


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


ODD_KEYS = [
    "", "\0", " ", "\n", "e\u0301", "é", "\u202e", "🏳️‍🌈", "__class__", "$perdure", "$ref", "..", "/", "a.b", "0",
]  # fmt: skip

ACCEPTED: dict[str, Any] = {
    "a text of 10 MB": "ä" * 5_000_000,
    "bytes of 10 MB": os.urandom(1 << 20) * 10,
    "a list of 10 MB": ["word " * 20] * 100_000,
    "200 levels": nested(200),
    "200 levels of objects": functools.reduce(lambda v, _: {"k": v}, range(200), 1),
    "numbers": [1, 1.0, True, -0.0, 0, 2**63, 2**64, -(2**63) - 1, 2**4000, 5e-324, 1.7976931348623157e308],
    "texts": ["", "\0", "\u2028\u2029", "\ufeff", "\U0010ffff", "e\u0301", "é", "\u202etxet", "🏳️‍🌈", "\x7f\x80"],
    "keys": {k: k for k in ODD_KEYS},
    "what stands for other things in JSON": [
        {"$perdure": [1, "ab", 3]}, {"$perdure": {"$perdure": None}}, {"$perdure": 1, "a": 2},
    ],
    "a large tree of everything": {
        "n": [2**70, 1.0], "t": ["word"] * 20_000, "b": b"\0\xff", "s": "y" * 40_000, "$perdure": [1],
    },
}  # fmt: skip


@pytest.mark.parametrize("codec", ["msgpack", "json"])
@pytest.mark.parametrize("what", ACCEPTED)
def test_what_is_odd_and_legal_comes_back_exactly(kind: str, codec: str, what: str, tmp_path: Path):
    with perdure.open(url_of(kind, tmp_path), codec=codec) as db:
        with db.session("s") as s:
            s.vars["v"] = ACCEPTED[what]
            s.messages.append(ACCEPTED[what])
            s.commit()
        found = db.read("s").plain()
        assert exact(found["vars"]["v"]) == exact(ACCEPTED[what])
        assert exact(found["messages"]) == exact([ACCEPTED[what]])


def _put(value: Any, s: Any) -> None:
    s.vars["v"] = value


def test_what_is_nested_too_deep_or_contains_itself_is_refused_clearly(db: Database):
    loop: dict[str, Any] = {}
    loop["self"] = loop
    for value in (nested(300), nested(100_000), loop):
        with pytest.raises(LimitExceeded, match="deep"):
            db.update("s", functools.partial(_put, value))
    with db.session("s") as s:
        # Appending to what is there already cannot go around the limit either.
        s.vars["v"] = inner = nested(250)
        s.commit()
        inner = s.vars["v"]
        while inner:
            inner = inner[0]
        inner.append(nested(20))
        with pytest.raises(LimitExceeded, match="deep"):
            s.commit()
        s.reload()
        assert exact(s.vars.plain()) == exact({"v": nested(250)})


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize("number", [10**5000, -(10**4300), 2**14_000], ids=["large", "small", "just over"])
def test_a_number_with_more_digits_than_python_writes_or_reads_is_refused(tmp_path: Path, codec: str, number: int):
    with perdure.open(url_of("sqlite", tmp_path), codec=codec) as db, db.session("s") as s:
        s.vars["n"] = number // 10**2000
        s.commit()
        assert json.loads(json.dumps(db.read("s").plain()))["vars"]["n"] == number // 10**2000
        s.vars["n"] = number
        with pytest.raises(LimitExceeded, match=r"state\.vars\.n"):
            s.commit()
        assert s.step == 1
        s.reload()
        with pytest.raises(LimitExceeded, match="over 4,200 digits"):
            db.post("s", {"n": number})


ODD_IDS = [
    "a/b", "../../etc/passwd", "..", ".", "/etc/passwd", "a\\b", "C:\\x", "con", "nul.txt", " ", "\n", "%2e%2e%2f", "~",
    "e\u0301", "é", "\u202e", "🏳️‍🌈", "'; drop table sessions; --", "a?b#c", "sessions", "x" * 512, "$(reboot)", "-rf",
]  # fmt: skip


def test_a_session_may_have_any_name_and_none_gets_out_of_the_store(db: Database, tmp_path: Path):
    outside = {p for p in tmp_path.rglob("*") if not p.is_relative_to(tmp_path / "inside")}
    for number, id in enumerate(ODD_IDS):
        with db.session(id, owner=f"o{number}") as s:
            s.vars["n"] = number
            s.commit()
            s.fork("b/../" + id[:60].replace("@", ""))
            s.tag("t/../" + id[:60])
        db.post(id, number, key="k/../" + id[:60])
    for number, id in enumerate(ODD_IDS):
        assert db.read(id).vars == {"n": number}
        assert db.look(id).id == id
    assert {row.id for row in db.sessions(limit=100)} == set(ODD_IDS)
    assert {p for p in tmp_path.rglob("*") if not p.is_relative_to(tmp_path / "inside")} == outside


@pytest.mark.parametrize("id", ["", "x" * 513, "é" * 5000, "a\0b", "\ud800", None, 7, b"x", ["x"]], ids=repr)
def test_a_name_that_no_store_can_keep_is_refused_everywhere(db: Database, id: Any):
    calls: list[Callable[[], Any]] = [
        lambda: db.session(id), lambda: db.read(id), lambda: db.history(id), lambda: db.post(id, 1),
        lambda: db.look(id), lambda: db.session("s", owner=id or cast("str", 5)), lambda: db.session("s", branch=id),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
    assert db.sessions() == []


@pytest.mark.parametrize("name", ["tags/x", "a@b", "17", "", "x" * 300, "a\0"])
def test_a_branch_name_that_would_be_taken_for_something_else_is_refused(db: Database, name: str):
    with db.session("s") as s:
        s.commit("first")
        with pytest.raises(InvalidInput):
            s.fork(name)
    assert [head.branch for head in db.look("s").heads] == ["main"]


@pytest.mark.parametrize("at", [0, -1, 2, 10**30, True, "nothing", "\ud800", "ffffff", 1.5, b"x", [1]], ids=repr)
def test_a_place_that_is_not_there_is_not_found_or_refused(db: Database, at: Any):
    with db.session("s") as s:
        s.commit("first")
        for look in (
            lambda: db.read("s", at),
            lambda: db.diff("s", 1, at),
            lambda: s.rewind(at),
            lambda: s.fork("b", at),
        ):
            with pytest.raises((NotFound, InvalidInput)):
                look()


def test_a_message_that_is_no_json_or_too_large_is_refused(db: Database):
    for body in (Anything(), math.nan, "\ud800", b"bytes", nested(300)):
        with pytest.raises(InvalidInput):
            db.post("s", body)
    with pytest.raises(LimitExceeded, match="reference"):
        db.post("s", "x" * 2_000_000)
    assert db.sessions() == []


@pytest.mark.parametrize("options", [
    {"codec": "pickle"}, {"codec": None}, {"keys": "short"}, {"keys": 5}, {"schema": ""}, {"schema": 7}, {"sync": 1},
    {"lease_ttl": -1}, {"lease_ttl": 0}, {"lease_ttl": "x"}, {"codec": []}, {"migrations": 3}, {"state": 3},
    {"maintain": "no"}, {"blobs": 3}, {"clock": 3}, {"witness": 3}, {"keep_expired": -1}, {"keep_expired": [1]},
], ids=repr)  # fmt: skip
def test_options_that_mean_nothing_are_refused(kind: str, options: dict[str, Any], tmp_path: Path):
    with pytest.raises(InvalidInput):
        perdure.open(url_of(kind, tmp_path), **options).close()


@pytest.mark.parametrize("options", [
    {"synchronous": 3}, {"synchronous": None}, {"busy_timeout": "x"}, {"busy_timeout": None}, {"busy_timeout": -1},
], ids=repr)  # fmt: skip
def test_options_of_sqlite_that_mean_nothing_are_refused(options: dict[str, Any], tmp_path: Path):
    with pytest.raises(InvalidInput, match=next(iter(options))):
        perdure.open(f"sqlite:///{tmp_path}/a.db", **options).close()


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/x", "redis://127.0.0.1:1"])
@pytest.mark.parametrize("value", ["x", None, -1], ids=repr)
def test_options_of_servers_that_mean_nothing_are_refused_before_one_is_asked(url: str, value: Any):
    server = url.startswith("postgres")
    for name in ("pool", "patience", "timeout") if server else ("changes_kept", "retry_for", "socket_timeout"):
        with pytest.raises(InvalidInput, match=f"{name}.* (at least|more than) "):
            perdure.open(url, **{name: value})


@pytest.mark.parametrize("value", ["x", 0, None])
def test_a_batch_of_no_commits_is_refused(value: Any):
    with pytest.raises(InvalidInput, match="max_batch is a number of commits"):
        perdure.open_async("memory://", max_batch=value)


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_file_or_folder_in_the_place_of_a_store_is_refused_and_left_alone(kind: str, tmp_path: Path):
    (tmp_path / "agents.db").mkdir()
    (tmp_path / "agents").write_text("somebody's notes")
    with pytest.raises(PerdureError) as caught:
        perdure.open(url_of(kind, tmp_path))
    assert "agents" in str(caught.value)
    assert (tmp_path / "agents").read_text() == "somebody's notes"


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path):
    (tmp_path / "agents.db").write_text("somebody's notes, long enough to be taken for something" * 100)
    with pytest.raises(InvalidInput, match="not a SQLite database"):
        perdure.open(url_of("sqlite", tmp_path))
    assert (tmp_path / "agents.db").read_text().startswith("somebody's notes")


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_place_below_a_file_says_so(kind: str, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises((Unavailable, InvalidInput)) as caught:
        perdure.open(url_of(kind, tmp_path / "file" / "below"))
    assert "file" in str(caught.value)


def in_a_child(work: Callable[[], None]) -> int:
    """Do something in a forked process; its exit code, 0 when nothing went wrong."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_handle_from_before_a_fork_is_refused_in_the_child_and_goes_on_in_the_parent(db: Database, kind: str):
    with db.session("s") as s:
        s.vars["n"] = 1
        s.commit()

        def use() -> None:
            calls = [s.commit, s.take, s.reload, lambda: s.fork("b"), lambda: db.read("s"), lambda: db.session("t"),
                     lambda: db.post("s", 1), db.sessions, lambda: db.kernel.store.look("s")]  # fmt: skip
            for call in calls if kind != "memory" else calls[:-1]:
                with pytest.raises(ForkedProcess, match="open"):
                    call()
            db.close()

        assert in_a_child(use) == 0
        s.vars["n"] = 2
        s.commit()
    assert db.read("s").vars == {"n": 2}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", ON_DISK)
def test_a_child_opens_the_store_anew_and_both_write(kind: str, tmp_path: Path):
    url = url_of(kind, tmp_path)

    def write() -> None:
        with perdure.open(url) as own:
            own.update("s", lambda s: s.messages.append("child"))

    def refused() -> None:
        # SQLite in the child believes in the parent's locks, and the parent removes the log when it closes.
        for _ in range(2):
            with pytest.raises(ForkedProcess, match="and open the database in each, or close it before forking"):
                perdure.open(url)

    with perdure.open(url) as db:
        db.update("s", lambda s: s.messages.append("parent"))
        assert in_a_child(refused if kind == "sqlite" else write) == 0
        db.update("s", lambda s: s.messages.append("parent again"))
    # What the error says to do helps.
    assert in_a_child(write) == 0
    with perdure.open(url) as db:
        children = ["child"] if kind != "sqlite" else []
        assert db.read("s").messages == ["parent", *children, "parent again", "child"]
