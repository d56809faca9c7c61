"""Maintenance: packs, snapshots and anchors come and go, rows are thinned and dropped, all or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure.errors import Gone, LeaseLost, NotFound
from perdure.model import ANCHOR, PACK, SNAPSHOT, Artifact, Rewrite, Span
from perdure.testing.sealed_rows import commit, land, write
from perdure.testing.store_contract.contract import Contract, known

if TYPE_CHECKING:
    from perdure.protocols import Store
    from perdure.testing.clock import FakeClock
    from perdure.testing.store_contract.contract import MakeStore


def pack(lo: int, hi: int, line: int = 0, body: bytes = b"pack") -> Artifact:
    return Artifact(PACK, line, lo, hi, body)


def snapshot(step: int, *refs: Span, line: int = 0) -> Artifact:
    return Artifact(SNAPSHOT, line, step, step, b"state at %d" % step, refs)


def anchor(lo: int, hi: int) -> Artifact:
    return Artifact(ANCHOR, 0, lo, hi, b"anchor")


class RewriteContract(Contract):
    """Maintenance: packs, snapshots and anchors come and go, rows are thinned and dropped, all or nothing."""

    def test_artifacts_are_kept_whole_and_listed_by_key(self, store: Store, make_store: MakeStore):
        write(store, count=3)
        put = (
            Artifact(PACK, 0, 0, 1, b"\0bytes\xff", (), ()),
            Artifact(SNAPSHOT, 0, 2, 2, b"", (Span(0, 0, 1), Span(3, 4, 5)), ("aa", "bb")),
            Artifact("dict", 0, 0, 0, b"dictionary"),
        )
        assert store.rewrite(Rewrite("s", put=put))
        store.close()
        again = make_store()
        assert sorted(again.artifacts("s")) == sorted(put)
        assert again.artifacts("nobody") == []

    def test_an_artifact_replaces_the_one_with_its_key(self, store: Store):
        write(store, count=3)
        store.rewrite(Rewrite("s", put=(pack(0, 1), snapshot(1))))
        assert store.rewrite(Rewrite("s", put=(pack(0, 2, body=b"longer"),)))
        assert sorted(store.artifacts("s")) == [pack(0, 2, body=b"longer"), snapshot(1)]

    def test_artifacts_are_discarded_by_key(self, store: Store):
        write(store, count=3)
        store.rewrite(Rewrite("s", put=(pack(0, 1), snapshot(1), snapshot(2))))
        discard = ((SNAPSHOT, 0, 1), (SNAPSHOT, 0, 77))
        assert store.rewrite(Rewrite("s", discard=discard))
        assert sorted(store.artifacts("s")) == [pack(0, 1), snapshot(2)]

    def test_what_is_put_stays_even_when_its_key_is_discarded_by_the_same_change(self, store: Store):
        write(store, count=3)
        store.rewrite(Rewrite("s", put=(pack(0, 1),)))
        change = Rewrite("s", put=(pack(0, 2, body=b"new"),), discard=((PACK, 0, 0),))
        assert store.rewrite(change)
        assert store.artifacts("s") == [pack(0, 2, body=b"new")]

    def test_a_thin_row_keeps_its_place_id_and_digest_and_comes_with_its_pack(
        self, store: Store, make_store: MakeStore
    ):
        items = write(store, count=4)
        assert store.rewrite(Rewrite("s", put=(pack(1, 2),), thin=(Span(0, 1, 2),)))
        store.close()
        bundle = make_store().load("s", 0)
        assert [(row.step, row.id, row.digest) for row in bundle.rows] == [(i.step, i.id, i.digest) for i in items]
        assert [(row.envelope, row.payload) for row in bundle.rows[1:3]] == [(b"", b"")] * 2
        assert bundle.rows[0].payload == items[0].payload
        assert bundle.rows[3].payload == items[3].payload
        assert bundle.packs == (pack(1, 2),)

    def test_only_the_packs_that_are_needed_are_given(self, store: Store):
        write(store, count=7)
        packs = (pack(0, 1), pack(2, 3), pack(4, 5))
        thin = tuple(Span(0, p.lo, p.hi) for p in packs)
        assert store.rewrite(Rewrite("s", put=packs, thin=thin))
        assert store.slice("s", 0, 3, 4).packs == packs[1:]
        assert store.slice("s", 0, 6, 6).packs == ()
        assert store.load("s", 0, 1).packs == packs[:1]
        assert store.load("s", 0).packs == packs

    @pytest.mark.parametrize("thin", [(Span(0, 1, 3),), (Span(0, 0, 1), Span(0, 2, 3)), (Span(1, 0, 0),)])
    def test_nothing_at_all_is_done_when_a_row_to_thin_is_missing_or_thin(self, store: Store, thin: tuple[Span, ...]):
        write(store, count=5)
        assert store.rewrite(Rewrite("s", put=(pack(2, 2),), thin=(Span(0, 2, 2),)))
        before = store.dump("s")
        change = Rewrite("s", put=(pack(1, 3), snapshot(4)), thin=thin, drop=(Span(0, 0, 0),), discard=((PACK, 0, 2),))
        assert store.rewrite(change) is False
        assert store.dump("s") == before

    def test_a_session_that_is_not_there_or_gone_cannot_be_rewritten(self, store: Store):
        assert store.rewrite(Rewrite("nobody", put=(pack(0, 0),))) is False
        assert store.look("nobody") is None
        write(store, count=1)
        store.drop("s", None, "deleted")
        assert store.rewrite(Rewrite("s", put=(pack(0, 0),))) is False
        assert store.artifacts("s") == []

    def test_with_a_token_a_rewrite_is_fenced(self, store: Store, clock: FakeClock):
        write(store, count=1)
        mine = store.acquire("s", "me", 1000)
        assert store.rewrite(Rewrite("s", mine.token, put=(snapshot(0),)))
        clock.advance(1000)
        store.acquire("s", "you", 1000)
        with pytest.raises(LeaseLost):
            store.rewrite(Rewrite("s", mine.token, put=(pack(0, 0),)))
        assert store.artifacts("s") == [snapshot(0)]

    def test_without_a_token_it_needs_no_lease_since_it_says_nothing_new(self, store: Store):
        write(store, count=2)
        store.acquire("s", "me", 1000)
        assert store.rewrite(Rewrite("s", put=(pack(0, 0),), thin=(Span(0, 0, 0),)))

    def test_a_load_starts_at_the_newest_snapshot_at_or_before_the_step(self, store: Store):
        write(store, count=6)
        store.rewrite(Rewrite("s", put=(snapshot(1), snapshot(3))))
        for step, base, rows in (
            (None, 3, [4, 5]),
            (4, 3, [4]),
            (3, 3, []),
            (2, 1, [2]),
            (1, 1, []),
            (0, None, [0]),
        ):
            bundle = store.load("s", 0, step)
            assert bundle.base == (None if base is None else snapshot(base)), step
            assert [row.step for row in bundle.rows] == rows, step
            assert bundle.last == 5

    def test_a_snapshot_of_another_line_is_no_base(self, store: Store):
        write(store, count=3)
        land(store, commit(step=2, branch="b", line=1, starts=True))
        store.rewrite(Rewrite("s", put=(snapshot(2, line=1),)))
        assert store.load("s", 0).base is None
        assert store.load("s", 1).base == snapshot(2, line=1)

    def test_a_load_brings_every_pack_that_its_base_refers_to_of_any_line(self, store: Store):
        write(store, count=6)
        land(store, commit(step=6, branch="b", line=1, starts=True))
        packs = (pack(0, 1), pack(2, 3), pack(4, 5))
        base = snapshot(6, Span(0, 1, 2), line=1)
        store.rewrite(Rewrite("s", put=(*packs, base)))
        bundle = store.load("s", 1)
        assert (bundle.base, bundle.packs) == (base, packs[:2])
        assert store.slice("s", 1, 0, 9).packs == ()

    def test_dropped_rows_are_gone_and_the_anchor_stands_for_them(self, store: Store, make_store: MakeStore):
        items = write(store, count=6)
        assert store.rewrite(Rewrite("s", put=(anchor(0, 3),), drop=(Span(0, 0, 3),)))
        store.close()
        again = make_store()
        bundle = again.load("s", 0)
        assert bundle.base == anchor(0, 3)
        assert [row.id for row in bundle.rows] == [items[4].id, items[5].id]
        assert again.load("s", 0, 3).rows == ()
        assert [row.step for row in again.slice("s", 0, 0, 9).rows] == [4, 5]
        assert again.usage().checkpoints == 2

    @pytest.mark.parametrize(("step", "base"), [(5, 4), (4, 4), (3, 3), (2, 2)])
    def test_a_load_starts_at_the_newest_of_snapshots_and_anchors(self, store: Store, step: int, base: int):
        write(store, count=6)
        put = (anchor(0, 2), snapshot(1), snapshot(3), Artifact(ANCHOR, 0, 3, 4, b"second anchor"))
        assert store.rewrite(Rewrite("s", put=put))
        found = store.load("s", 0, step).base
        assert found is not None
        assert found.hi == base

    def test_a_step_before_an_anchor_is_gone_by_retention(self, store: Store):
        write(store, count=6)
        store.rewrite(Rewrite("s", put=(anchor(0, 3), snapshot(1)), drop=(Span(0, 0, 3),)))
        with pytest.raises(Gone) as refused:
            store.load("s", 0, 2)
        assert refused.value.reason == "retention"

    def test_a_line_of_which_only_the_anchor_is_left_still_has_its_last_step(self, store: Store):
        write(store, count=3)
        store.rewrite(Rewrite("s", put=(anchor(0, 2),), drop=(Span(0, 0, 2),)))
        bundle = store.load("s", 0)
        assert (bundle.base, bundle.rows, bundle.last) == (anchor(0, 2), (), 2)

    def test_the_branch_goes_on_after_its_rows_were_dropped(self, store: Store):
        items = write(store, count=3)
        store.rewrite(Rewrite("s", put=(anchor(0, 2),), drop=(Span(0, 0, 2),)))
        land(store, commit(step=3, expect=items[2].id))
        assert [row.step for row in store.load("s", 0).rows] == [3]
        assert known(store).lines == 1

    def test_a_step_before_the_first_of_a_line_is_not_found(self, store: Store):
        write(store, count=3)
        land(store, commit(step=2, branch="b", line=1, starts=True))
        with pytest.raises(NotFound):
            store.load("s", 1, 1)

    def test_blobs_of_rows_and_artifacts_are_listed_as_long_as_these_are_there(self, store: Store):
        first = commit(blobs=("aa", "bb"))
        land(store, first)
        land(store, commit(step=1, expect=first.id, blobs=("cc",)))
        land(store, commit("t", blobs=("aa", "dd")))
        store.rewrite(Rewrite("s", put=(Artifact(ANCHOR, 0, 0, 0, b"", (), ("ee", "bb")),)))
        assert set(store.blob_refs()) == {"aa", "bb", "cc", "dd", "ee"}
        store.rewrite(Rewrite("s", drop=(Span(0, 0, 0),)))
        assert set(store.blob_refs()) == {"aa", "bb", "cc", "dd", "ee"}
        store.rewrite(Rewrite("s", discard=((ANCHOR, 0, 0),)))
        assert set(store.blob_refs()) == {"aa", "cc", "dd"}
        store.drop("t", None, "deleted")
        assert set(store.blob_refs()) == {"cc"}

    def test_blobs_of_thin_rows_are_still_referred_to(self, store: Store):
        land(store, commit(blobs=("aa",)))
        store.rewrite(Rewrite("s", put=(pack(0, 0),), thin=(Span(0, 0, 0),)))
        assert set(store.blob_refs()) == {"aa"}

    def test_dropping_rows_and_sessions_gives_the_space_back(self, store: Store):
        payload = bytes(range(256)) * 256
        expect = None
        for step in range(64):
            item = commit(step=step, expect=expect, payload=payload)
            land(store, item)
            expect = item.id
        write(store, "other", count=5)
        full = store.usage().bytes
        assert full >= 64 * len(payload)
        store.rewrite(Rewrite("s", put=(anchor(0, 31),), drop=(Span(0, 0, 31),)))
        store.rewrite(Rewrite("s", put=(pack(32, 62),), thin=(Span(0, 32, 62),)))
        assert store.usage().bytes < full * 0.2
        store.drop("s", None, "deleted")
        assert store.usage().bytes < full * 0.15
        assert store.load("other", 0).last == 4
