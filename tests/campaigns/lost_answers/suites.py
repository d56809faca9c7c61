"""Which faults each store goes through, in the short form and in the long one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.campaigns.lost_answers.scene import Scene
from tests.campaigns.lost_answers.trying import CASES, HOWS, Tally, cut_everywhere, guarded
from tests.proxy import AFTER, BEFORE
from tests.servers import postgres, valkey
from tests.store_urls import SERVERS, url_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tests.proxy import Proxy

IMPATIENT: dict[str, dict[str, Any]] = {
    "redis": {"retry_for": 0.3, "socket_timeout": 0.5},
    "postgres": {"patience": 0.3, "timeout": 1.0},
}
"""Options of stores that give up soon, for faults that last longer than anybody is patient."""
WRITES = (
    "first commit", "commit", "commit without a lease", "update", "call that must not happen twice", "run", "fork",
    "tag", "rewind", "merge", "close", "post", "answer", "store: append a batch", "store: post a batch",
)  # fmt: skip
"""Cases that say what became of each write when nobody can be reached any more."""
SHORT = (
    "first commit", "commit", "commit with a large value", "update", "open and release",
    "call that must not happen twice", "fork", "rewind", "merge", "post", "answer", "approve",
    "store: append a batch", "store: acquire", "store: rewrite", "store: drop", "store: restore", "compact", "sweep",
)  # fmt: skip
STRIDES = {"sweep": 6}
"""Each attempt at a sweep waits until a session has expired, for more than a second."""
LATE = 0.03


class Place(NamedTuple):
    """A store, and the server of it that is behind the proxy."""

    name: str
    store: str
    behind: str


PLACES = {
    "postgres": Place("postgres", "postgres", "postgres"),
    "redis": Place("redis", "redis", "redis"),
    "tiered": Place("tiered", "tiered", "postgres"),
    "tiered (hot)": Place("tiered (hot)", "tiered", "redis"),
}


def places() -> list[str]:
    """What there is to be tried."""
    return [name for name, place in PLACES.items() if place.store in SERVERS]


def scene(name: str, folder: Path, what: str, *, impatient: bool = False) -> Scene:
    """A new store, seen through the proxy and directly."""
    place = PLACES[name]
    server = postgres() if place.behind == "postgres" else valkey()
    # What takes the time of a tiered store is its cold one.
    options = IMPATIENT["redis" if place.store == "redis" else "postgres"] if impatient else {}
    return Scene(url_of(place.store, folder, f"{name} {what}"), server, **options)


def cuts(
    name: str, how: str, folder: Path, names: Sequence[str] | None = None, strides: Mapping[str, int] | None = None
) -> Tally:
    """Every case cut once, at each of its statements, or at some of them."""
    tally = Tally(name, how)
    with scene(name, folder, how) as x:
        cut_everywhere(x, how, tally, names or list(CASES), strides=strides)
    return tally


def lasting(name: str, how: str, folder: Path, names: Sequence[str] = WRITES) -> Tally:
    """From some statement on nothing comes back any more, until the program is told that it is over."""
    tally = Tally(name, f"{how}, all")
    with scene(name, folder, f"lasting {how}", impatient=True) as x:
        cut_everywhere(x, how, tally, names, lasting=True)
    return tally


def once(name: str, what: str, folder: Path, names: Sequence[str], fault: Callable[[Proxy], None]) -> Tally:
    """Each case once under a fault that has no place among its statements."""
    tally = Tally(name, what)
    with scene(name, folder, what, impatient=what != "slow") as x:
        for case in names:
            guarded(CASES[case], x, fault, tally, what)
    return tally


def slow(name: str, folder: Path, names: Sequence[str] | None = None) -> Tally:
    """Every answer comes late, and comes."""
    return once(name, "slow", folder, names or list(CASES), lambda proxy: proxy.delay(LATE))


SILENCES: dict[str, Callable[[Proxy], None]] = {
    "too late": lambda proxy: proxy.delay(2.5),
    "frozen": lambda proxy: proxy.freeze(),
    "swallowed": lambda proxy: proxy.swallow(),
    "refused": lambda proxy: proxy.refuse(),
}
"""Answers that come too late, not before somebody looks, or never; and nobody who listens."""


def silent(name: str, what: str, folder: Path, names: Sequence[str] = WRITES) -> Tally:
    """Each case once while the server says nothing."""
    return once(name, what, folder, names, SILENCES[what])


def everything(name: str, folder: Path) -> list[Tally]:
    """The long form on one store."""
    tallies = [cuts(name, how, folder) for how in HOWS]
    tallies += [lasting(name, how, folder) for how in (AFTER, BEFORE)]
    return [*tallies, slow(name, folder), *(silent(name, what, folder) for what in SILENCES)]
