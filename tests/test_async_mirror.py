"""The awaited handles have the methods of the blocking ones, with the same names, signatures and words."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import perdure
from perdure import AsyncDatabase, AsyncSession, Database, Session

PAIRS = [(Session, AsyncSession), (Database, AsyncDatabase)]
ONLY_BLOCKING = {"__enter__", "__exit__"}
ONLY_AWAITED = {"__aenter__", "__aexit__", "bridge"}
DIFFERENT = {"watch", "watch_pages"}
"""Blocking iteration is stopped by an event; awaited iteration is simply left."""


def members(of: type) -> dict[str, Any]:
    found = {name: getattr(of, name) for name in dir(of) if not name.startswith("_")}
    return {**found, **{name: getattr(of, name) for name in ONLY_BLOCKING | ONLY_AWAITED if hasattr(of, name)}}


def shape(method: Any) -> list[tuple[str, Any, Any]]:
    parameters = inspect.signature(method).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters]


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS)
def test_both_have_the_same_members(blocking: type, awaited: type):
    # Each has the other's way to be opened, too, to say which one is meant: tests/agent/test_mistakes.py.
    opening = ONLY_BLOCKING | ONLY_AWAITED
    assert set(members(blocking)) - opening == set(members(awaited)) - opening


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS)
def test_methods_of_the_same_name_take_the_same_and_say_the_same(blocking: type, awaited: type):
    compared = 0
    for name, method in members(blocking).items():
        if name in ONLY_BLOCKING | ONLY_AWAITED | DIFFERENT or not callable(method):
            continue
        twin = getattr(awaited, name)
        assert shape(method) == shape(twin), name
        if name != "close":
            assert method.__doc__ == twin.__doc__, name
        assert method.__doc__, name
        compared += 1
    assert compared >= 10


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS)
def test_what_waits_is_awaited_and_what_does_not_is_shared(blocking: type, awaited: type):
    for name, method in members(blocking).items():
        if name in ONLY_BLOCKING | ONLY_AWAITED | DIFFERENT or not inspect.isfunction(method):
            continue
        twin = getattr(awaited, name)
        assert not inspect.iscoroutinefunction(method), name
        assert twin is method or inspect.iscoroutinefunction(twin) or name == "session", name


def test_iteration_differs_only_in_how_it_is_stopped():
    assert [name for name, _, _ in shape(AsyncDatabase.watch)] == ["self", "after", "poll"]
    for awaited, blocking in ((AsyncDatabase.watch, Database.watch), (AsyncDatabase.watch_pages, Database.watch_pages)):
        assert [*shape(awaited), shape(blocking)[-1]] == shape(blocking)
        assert shape(blocking)[-1][0] == "stop"


def test_both_are_opened_alike():
    blocking, awaited = shape(perdure.open), shape(perdure.open_async)
    assert [p for p in awaited if p[0] != "max_batch"] == blocking
