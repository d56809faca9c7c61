"""A writer that finds its content there, and a collector that is about to delete it: in whatever order their requests
reach the bucket, what the writer relies on is there afterwards."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

import tests.servers
from perdure.blobs import object_storage as names
from perdure.blobs.object_storage import ObjectBlobs
from perdure.errors import NotFound
from perdure.testing.clock import FakeClock
from tests.blobs.places import bucket_url, unique
from tests.blobs.stepping import Turns, orders, step
from tests.servers.objects import objects_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOUR = 3_600_000


class Naive(ObjectBlobs):
    """Looks whether the blob was renewed, then deletes it; believes whatever it found when it renews one."""

    def delete(self, ref: str, unless_renewed_since: int) -> bool:
        found = self._list(ref)
        if not found or any(each.time >= unless_renewed_since for each in found):
            return False
        for each in found:
            self._client.delete([each.path, *each.renewals])
        return True


class NoSecondLook(ObjectBlobs):
    """A collector that condemns and does not look again."""

    def delete(self, ref: str, unless_renewed_since: int) -> bool:
        found = self._list(ref)
        if not found or any(each.time >= unless_renewed_since for each in found):
            return False
        for each in found:
            self._client.write(names.mark_of(each.path), b"")
        for each in found:
            self._client.delete([each.path, *each.renewals, names.mark_of(each.path)])
        return True


class SameName(ObjectBlobs):
    """A writer that uploads again under the name that a collector is deleting."""

    def _put(self, ref: str, content: Any, size: int) -> None:
        there = next((each for each in self._list(ref) if each.usable), None)
        path = f"{names.folder_of(ref)}/000000000000-0000000000000000"
        if there is None or not self._renew(ref, path):
            self._client.write(path, content)


class Scene:
    """One bucket, one content per run; every party with a handle of its own."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.config = objects_options(tests.servers.objects())
        self.url = bucket_url(unique(folder))
        self.runs = 0
        self.orders: set[str] = set()
        # From here on the prefix is the store's, and no handle has to claim it.
        self.open().put(hashlib.sha256(b"").hexdigest(), b"")

    def open(self, kind: type[ObjectBlobs] = ObjectBlobs) -> ObjectBlobs:
        return kind(self.url, "store-1", clock=self.clock, config=self.config)

    def play(
        self, choose: Callable[[list[int]], int], writers: int, collectors: int, kind: type[ObjectBlobs], known: bool
    ) -> list[str]:
        """An old blob that nothing refers to, writers that put it again, collectors that delete it; what went wrong."""
        self.runs += 1
        data = b"content %d" % self.runs
        ref = hashlib.sha256(data).hexdigest()
        turns = Turns()
        hands = [self.open(kind) for _ in range(writers + collectors)]
        hands[-1].put(ref, data)
        if known:
            # They met this content before, and need not look where it is.
            for hand in hands:
                assert hand.get(ref) == data
        self.clock.advance(2 * HOUR)
        cutoff = self.clock.wall() - HOUR
        for me, hand in enumerate(hands):
            step(hand, turns, me)
        order: list[int] = []

        def noted(options: list[int]) -> int:
            order.append(choose(options))
            return order[-1]

        parties: list[Callable[[], Any]] = [lambda hand=hand: hand.put(ref, data) for hand in hands[:writers]]
        parties += [lambda hand=hand: hand.delete(ref, cutoff) for hand in hands[writers:]]
        wrong = [repr(each) for each in turns.run(parties, noted) if isinstance(each, BaseException)]
        self.orders.add(str(order))
        try:
            assert self.open().get(ref) == data
        except NotFound:
            wrong.append(f"lost in the order {order}")
        return wrong


@pytest.mark.parametrize("known", [False, True])
def test_every_order_of_a_writer_and_a_collector_keeps_the_blob(tmp_path: Path, known: bool):
    scene = Scene(tmp_path)
    for choose in orders(2000):
        assert scene.play(choose, 1, 1, ObjectBlobs, known) == []
    assert len(scene.orders) == scene.runs > 20


@pytest.mark.parametrize(("writers", "collectors"), [(2, 1), (1, 2), (2, 2)])
def test_random_orders_of_more_of_them_keep_the_blob(tmp_path: Path, writers: int, collectors: int):
    scene = Scene(tmp_path)
    for seed, choose in enumerate(orders(50, seed=7)):
        assert scene.play(choose, writers, collectors, ObjectBlobs, bool(seed % 2)) == []
    assert len(scene.orders) > 40


@pytest.mark.parametrize("kind", [Naive, NoSecondLook, SameName])
def test_the_search_finds_what_simpler_rules_lose(tmp_path: Path, kind: type[ObjectBlobs]):
    scene = Scene(tmp_path)
    wrong = [what for choose in orders(2000) for what in scene.play(choose, 1, 1, kind, False)]
    assert any("lost in the order" in what for what in wrong)
