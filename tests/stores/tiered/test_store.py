"""How a tiered store is opened, what it says of itself, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from perdure.errors import InvalidInput
from perdure.protocols import Cached
from perdure.stores import open_store
from perdure.stores.tiered.store import TieredStore
from perdure.testing.sealed_rows import write
from tests.servers import valkey

if TYPE_CHECKING:
    from pathlib import Path


def url(folder: Path, hot: str = "") -> str:
    return f"tiered:{hot or f'redis://127.0.0.1:{valkey().port}/0?prefix=test_tiered'},sqlite:///{folder}/cold.db"


def test_it_says_what_the_cold_store_says(tmp_path: Path):
    store, cold = open_store(url(tmp_path)), open_store(f"sqlite:///{tmp_path}/cold.db")
    assert isinstance(store, TieredStore)
    assert isinstance(store, Cached)
    assert not isinstance(cold, Cached)
    assert (store.id, store.epoch) == (cold.id, cold.epoch)
    assert store.promise[:2] == cold.promise[:2]
    assert cold.promise.words in store.promise.words
    assert "cold store" in store.promise.words
    store.renew_epoch()
    assert store.epoch == open_store(f"sqlite:///{tmp_path}/cold.db").epoch != cold.epoch
    store.close()


def test_the_promise_is_no_greater_than_the_cold_stores(tmp_path: Path):
    store = open_store(url(tmp_path), synchronous="normal")
    assert (store.promise.process_crash, store.promise.power_loss) == (True, False)
    store.close()
    store = open_store(f"tiered:redis://127.0.0.1:{valkey().port}/0,memory://test_tiered")
    assert (store.promise.process_crash, store.promise.power_loss) == (False, False)
    store.close()


def test_secrets_of_both_tiers_are_not_shown(tmp_path: Path):
    store = open_store(url(tmp_path, "redis://ana:s3cr3t@127.0.0.1:1/0?prefix=x"))
    assert store.url == f"tiered:redis://ana@127.0.0.1:1/0?prefix=x,sqlite:///{tmp_path}/cold.db"
    store.close()


@pytest.mark.parametrize("name", ["hot_ttl", "hot_timeout", "hot_bytes"])
@pytest.mark.parametrize("value", [0, -1, True, "1", None, float("nan"), float("inf"), 1e12])
def test_an_option_that_makes_no_sense_is_refused(tmp_path: Path, name: str, value: Any):
    with pytest.raises(InvalidInput, match=name):
        open_store(url(tmp_path), **{name: value})


@pytest.mark.parametrize(
    "wrong",
    ["tiered:", "tiered:redis://a", "tiered:sqlite:///a.db,redis://b", "tiered:memory://,memory://"],
)
def test_a_hot_tier_is_a_redis_and_a_cold_store_follows_it(wrong: str):
    with pytest.raises(InvalidInput, match="tiered:redis://host,postgresql://host/database"):
        open_store(wrong)


@pytest.mark.parametrize("hot", ["redis://:s3cr3t@host:port/0", "redis://:s3cr3t@host/0?nonsense=1"])
def test_an_address_that_cannot_be_used_is_refused_and_the_cold_store_closed(tmp_path: Path, hot: str):
    with pytest.raises(InvalidInput) as refused:
        open_store(url(tmp_path, hot))
    assert "s3cr3t" not in str(refused.value)
    # Nobody holds the file: it can be opened and written by others.
    store = open_store(f"sqlite:///{tmp_path}/cold.db")
    write(store)
    store.close()


def test_options_of_both_tiers_find_their_way(tmp_path: Path):
    store = open_store(url(tmp_path), hot_ttl=5, hot_timeout=0.5, hot_bytes=1000, busy_timeout=1.0)
    store.close()
    with pytest.raises(InvalidInput, match="nonsense"):
        open_store(url(tmp_path), nonsense=1)


def test_a_forked_child_leaves_its_parents_connection_alone(tmp_path: Path):
    script = """
import os, sys
from perdure.stores import open_store
from perdure.testing.sealed_rows import write
from tests.stores.tiered.tiers import eventually
store = open_store(sys.argv[1], hot_timeout=5)
write(store, count=3)
eventually(lambda: store.load("s", 0).hot)
child = os.fork()
if not child:
    assert store._hot.line(store._key("s", 0)) is None
    store._hot.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
for _ in range(20):
    assert store.load("s", 0).hot
store.close()
"""
    subprocess.run([sys.executable, "-c", script, url(tmp_path)], check=True, timeout=120)


def test_the_driver_is_imported_only_when_it_is_needed(tmp_path: Path):
    script = (
        "import sys; import perdure.stores.tiered.store; assert 'redis' not in sys.modules;"
        "from perdure.stores import open_store; open_store(sys.argv[1]).close(); assert 'redis' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, url(tmp_path)], check=True, timeout=120)


def test_a_missing_driver_says_what_to_install(tmp_path: Path):
    script = """
import sys
sys.modules["redis"] = None
from perdure.errors import MissingExtra
from perdure.stores import open_store
try:
    open_store(sys.argv[1])
except MissingExtra as e:
    print(e)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, url(tmp_path)], check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == 'redis is not installed: pip install "perdure[redis]"\n'
