"""What retention asks of a store: dropped rows take their snapshots along, and thin rows come with their anchors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure.errors import Gone
from perdure.model import ANCHOR, PACK, SNAPSHOT, Artifact, Rewrite, Span
from perdure.testing.sealed_rows import commit, land, write
from perdure.testing.store_contract.contract import Contract

if TYPE_CHECKING:
    from perdure.protocols import Store
    from perdure.testing.store_contract.contract import MakeStore


def snapshot(step: int, *refs: Span, line: int = 0) -> Artifact:
    return Artifact(SNAPSHOT, line, step, step, b"state", refs)


def pack(lo: int, hi: int) -> Artifact:
    return Artifact(PACK, 0, lo, hi, b"pack")


def anchor(lo: int, hi: int) -> Artifact:
    return Artifact(ANCHOR, 0, lo, hi, b"anchor")


def kinds(store: Store) -> list[tuple[str, int, int]]:
    return [(a.kind, a.line, a.lo) for a in store.artifacts("s")]


class RetentionContract(Contract):
    """Dropped rows take their snapshots along, and thin rows come with their anchors."""

    def test_a_dropped_row_takes_along_the_snapshots_at_it_and_those_that_refer_to_it(
        self, store: Store, make_store: MakeStore
    ):
        write(store, count=10)
        land(store, commit(step=9, branch="b", line=1, starts=True))
        put = (
            snapshot(3),
            snapshot(6, Span(0, 1, 2), Span(0, 4, 5)),
            snapshot(8, Span(0, 5, 7)),
            snapshot(9, Span(0, 2, 3), line=1),
            snapshot(9),
            pack(1, 8),
            anchor(2, 4),
        )
        store.rewrite(Rewrite("s", put=put))
        assert store.rewrite(Rewrite("s", drop=(Span(0, 2, 3),)))
        left = [(ANCHOR, 0, 2), (PACK, 0, 1), (SNAPSHOT, 0, 6), (SNAPSHOT, 0, 8), (SNAPSHOT, 0, 9)]
        # The one at step 6 refers to steps 1, 2, 4 and 5.
        left.remove((SNAPSHOT, 0, 6))
        assert kinds(store) == left
        store.close()
        assert kinds(make_store()) == left

    def test_what_needs_a_row_that_is_gone_is_not_done(self, store: Store):
        write(store, count=6)
        store.rewrite(Rewrite("s", drop=(Span(0, 2, 2),)))
        change = Rewrite("s", put=(pack(4, 5), snapshot(5, Span(0, 1, 5))), thin=(Span(0, 4, 5),))
        assert store.rewrite(change._replace(needs=(Span(0, 1, 5),))) is False
        assert store.rewrite(change._replace(needs=(Span(0, 5, 6),))) is False
        assert store.rewrite(change._replace(needs=(Span(7, 1, 1),))) is False
        assert kinds(store) == []
        assert all(row.envelope for row in store.slice("s", 0, 0, 9).rows)
        assert store.rewrite(change._replace(needs=(Span(0, 0, 1), Span(0, 3, 5))))
        assert kinds(store) == [(PACK, 0, 4), (SNAPSHOT, 0, 5)]

    def test_thin_rows_come_with_the_anchors_that_stand_for_them(self, store: Store, make_store: MakeStore):
        write(store, count=10)
        put = (anchor(2, 4), anchor(6, 8), pack(1, 1))
        thin = (Span(0, 1, 1), Span(0, 4, 4), Span(0, 8, 8))
        assert store.rewrite(Rewrite("s", put=put, thin=thin, drop=(Span(0, 2, 3), Span(0, 6, 7))))
        store.close()
        again = make_store()
        bundle = again.slice("s", 0, 0, 9)
        assert [row.step for row in bundle.rows] == [0, 1, 4, 5, 8, 9]
        assert set(bundle.packs) == set(put)
        assert set(again.slice("s", 0, 2, 5).packs) == {anchor(2, 4)}
        assert again.slice("s", 0, 5, 7).packs == ()
        assert again.load("s", 0).base == anchor(6, 8)
        assert [row.step for row in again.load("s", 0).rows] == [9]
        assert [row.step for row in again.load("s", 0, 5).rows] == [5]

    def test_rows_may_be_thinned_and_dropped_by_one_change(self, store: Store):
        write(store, count=6)
        change = Rewrite("s", put=(anchor(1, 3),), thin=(Span(0, 1, 3),), drop=(Span(0, 1, 2),))
        assert store.rewrite(change)
        assert [(row.step, bool(row.envelope)) for row in store.slice("s", 0, 0, 9).rows] == [
            (0, True), (3, False), (4, True), (5, True),
        ]  # fmt: skip
        assert store.rewrite(change) is False

    def test_the_nearest_steps_that_were_kept_are_named(self, store: Store):
        write(store, count=10)
        store.rewrite(Rewrite("s", put=(anchor(3, 7),), thin=(Span(0, 7, 7),), drop=(Span(0, 3, 6),)))
        for step in range(3, 7):
            with pytest.raises(Gone, match="2 and 7") as gone:
                store.load("s", 0, step)
            assert gone.value.reason == "retention"
