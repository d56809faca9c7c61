"""Stores of an earlier version are brought up to date when they are opened, all at once or not at all.

There is one version so far: the next one is made up, see :mod:`tests.stores.contract.next_version`.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import apsw
import psycopg
import pytest

from perdure.errors import UnsupportedFormat
from perdure.stores import open_store
from perdure.testing.sealed_rows import entry, post, write
from tests.servers import postgres
from tests.servers.postgres import postgres_url
from tests.store_urls import url_of
from tests.stores.contract.next_version import NEXT, UPGRADES, know_the_next_version

if TYPE_CHECKING:
    from pathlib import Path

OPEN = """
import sys
from perdure.stores import open_store
from tests.stores.contract.next_version import know_the_next_version
know_the_next_version(sys.argv[1], setattr)
print("ready", flush=True)
sys.stdin.readline()
store = open_store(sys.argv[2])
print(store.id, store.load("s", 0).last)
store.close()
"""


@pytest.fixture(params=UPGRADES)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(kind: str, tmp_path: Path) -> str:
    """A store of the present version, with three checkpoints."""
    url = url_of(kind, tmp_path)
    with closing(open_store(url)) as store:
        write(store, count=3)
    return url


def version_of(kind: str, url: str) -> tuple[int, bool]:
    """The version that is written down, and whether the table of the next one is there."""
    if kind == "sqlite":
        with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as file:
            ((version,),) = file.execute("select value from meta where key = 'schema'").fetchall()
            assert isinstance(version, int)
            return version, bool(file.execute("select 1 from sqlite_schema where name = 'newer'").fetchall())
    schema = url.partition("?schema=")[2]
    with psycopg.connect(postgres_url(postgres())) as connection:
        sql = f"select version, to_regclass('{schema}.perdure_newer') is not null from {schema}.perdure_meta"
        return connection.execute(sql).fetchone()  # type: ignore[arg-type,return-value]


def test_a_store_is_brought_up_to_date_and_loses_nothing(kind: str, url: str, monkeypatch: pytest.MonkeyPatch):
    know_the_next_version(kind, monkeypatch.setattr)
    for steps in (4, 5):
        with closing(open_store(url)) as store:
            write(store, count=1)
            assert [row.step for row in store.load("s", 0).rows] == list(range(steps))
        assert version_of(kind, url) == (NEXT, True)


def test_a_process_of_the_earlier_version_that_has_it_open_goes_on(
    kind: str, url: str, monkeypatch: pytest.MonkeyPatch
):
    with closing(open_store(url)) as old:
        know_the_next_version(kind, monkeypatch.setattr)
        with closing(open_store(url)) as new:
            write(old, count=1)
            write(new, count=1)
            assert post(old, entry())
            assert len(new.inbox("s")) == 1
            assert old.load("s", 0).last == new.load("s", 0).last == 4


def test_a_version_that_is_not_known_is_refused(kind: str, url: str, monkeypatch: pytest.MonkeyPatch):
    know_the_next_version(kind, monkeypatch.setattr)
    open_store(url).close()
    monkeypatch.undo()
    with pytest.raises(UnsupportedFormat, match="upgrade this process"):
        open_store(url)


def test_an_upgrade_that_is_cut_off_changes_nothing(kind: str, url: str, monkeypatch: pytest.MonkeyPatch):
    know_the_next_version(kind, monkeypatch.setattr, "select no_such_function();")
    with pytest.raises(Exception, match="no_such_function"):
        open_store(url)
    assert version_of(kind, url) == (NEXT - 1, False)
    monkeypatch.undo()
    with closing(open_store(url)) as store:
        write(store, count=1)


def test_ten_processes_may_bring_one_store_up_to_date_at_once(kind: str, url: str):
    children = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, kind, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(10)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = {child.communicate(timeout=60)[0] for child in children}
    assert [child.returncode for child in children] == [0] * 10
    (answer,) = answers
    assert answer.split()[1] == "2"
    assert version_of(kind, url) == (NEXT, True)
