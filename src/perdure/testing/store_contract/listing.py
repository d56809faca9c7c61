"""Listings: sessions chosen by owner, status, agent, error, a part of their name or their time; and counted."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from perdure.errors import InvalidInput
from perdure.testing.sealed_rows import commit, entry, land, post, write
from perdure.testing.store_contract.contract import Contract

if TYPE_CHECKING:
    from perdure.model import SessionRow
    from perdure.protocols import Store
    from perdure.testing.clock import FakeClock


def ids(store: Store, **wanted: Any) -> list[str]:
    return [row.id for row in store.sessions(**wanted)]


class ListingContract(Contract):
    """Listings: sessions chosen by owner, status, agent, error, a part of their name or their time; and counted."""

    def test_sessions_are_chosen_by_agent_and_error(self, store: Store):
        write(store, "a", agent="support")
        write(store, "b", agent="support", error="TimeoutError", status="failed")
        write(store, "c", agent="billing", error="TimeoutError")
        write(store, "d")
        assert ids(store, agent="support") == ["a", "b"]
        assert ids(store, agent="") == ["d"]
        assert ids(store, error="TimeoutError") == ["b", "c"]
        assert ids(store, error="") == ["a", "d"]
        assert ids(store, agent="support", error="TimeoutError", status="failed", owner="ana") == ["b"]
        assert ids(store, agent="Support") == ids(store, agent="nobody") == ids(store, error="Timeout") == []

    def test_a_search_is_for_a_part_of_id_or_owner_as_it_is_written(self, store: Store):
        for id, owner in (
            ("trip-42", "ana"),
            ("50%_off", "bob"),
            ("500 off", "a%b"),
            ("x\\y", "ä ' \" z"),
            ("TRIP", ""),
        ):
            write(store, id, owner=owner)
        assert ids(store, search="rip-4") == ["trip-42"]
        assert ids(store, search="%") == ["50%_off", "500 off"]
        assert ids(store, search="_") == ["50%_off"]
        assert ids(store, search="0%_o") == ["50%_off"]
        assert ids(store, search="*") == ids(store, search="t?ip") == []
        assert ids(store, search="\\") == ["x\\y"]
        assert ids(store, search="ä '") == ["x\\y"]
        assert ids(store, search="TRIP") == ["TRIP"]
        assert ids(store, search="bob", owner="bob") == ["50%_off"]
        assert ids(store, search="bob", owner="ana") == []
        assert len(ids(store, search="")) == 5
        assert ids(store, search="off", limit=1) == ["50%_off"]
        assert ids(store, search="off", after="50%_off") == ["500 off"]

    def test_times_bound_the_last_commit(self, store: Store, clock: FakeClock):
        times: list[int] = []
        for id in ("a", "b", "c"):
            times.append(clock.wall())
            write(store, id)
            clock.advance(1000)
        assert ids(store, since=times[1]) == ["b", "c"]
        assert ids(store, before=times[1]) == ["a"]
        assert ids(store, since=times[1], before=times[2]) == ["b"]
        write(store, "a")
        assert ids(store, since=times[2]) == ["a", "c"]

    def test_the_newest_come_first_and_those_of_one_moment_by_id(self, store: Store, clock: FakeClock):
        for id in ("c", "a", "b"):
            write(store, id)
        clock.advance(5)
        write(store, "d")
        assert ids(store, newest=True) == ["d", "a", "b", "c"]
        clock.advance(5)
        write(store, "b")
        assert ids(store, newest=True) == ["b", "d", "a", "c"]
        assert ids(store, newest=True, limit=2) == ["b", "d"]
        assert ids(store, newest=True, since=clock.wall()) == ["b"]

    def test_pages_of_the_newest_follow_one_another(self, store: Store, clock: FakeClock):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        chance = random.Random(seed)
        for number in range(23):
            write(store, f"s:{number}", owner=chance.choice(("ana", "bob")), agent=chance.choice(("x", "y")))
            clock.advance(chance.choice((0, 0, 1, 1000)))
        everything = store.sessions(newest=True)
        assert everything == sorted(store.sessions(), key=lambda row: (-row.updated, row.id))
        for wanted in ({}, {"owner": "ana"}, {"agent": "x"}, {"search": "1"}):
            seen: list[SessionRow] = []
            after = None
            while page := store.sessions(newest=True, after=after, limit=4, **wanted):  # type: ignore[arg-type]
                assert len(page) <= 4
                seen += page
                after = page[-1].cursor
            assert [row.id for row in seen] == ids(store, newest=True, **wanted)

    def test_a_session_that_is_written_meanwhile_moves_to_the_front_and_no_other_is_lost(
        self, store: Store, clock: FakeClock
    ):
        for id in ("a", "b", "c", "d"):
            write(store, id)
            clock.advance(1000)
        first = store.sessions(newest=True, limit=2)
        assert [row.id for row in first] == ["d", "c"]
        write(store, "b")
        assert ids(store, newest=True, limit=2, after=first[-1].cursor) == ["a"]
        assert ids(store, newest=True, limit=1) == ["b"]

    @pytest.mark.parametrize("cursor", ["", "a", ":a", "x:a", "-1:a", "1 :a", "٣:a", f"{10**19}:a"])
    def test_a_cursor_that_is_none_is_refused(self, store: Store, cursor: str):
        write(store, "a")
        with pytest.raises(InvalidInput, match="cursor"):
            store.sessions(newest=True, after=cursor)
        assert ids(store, after=cursor) in ([], ["a"])

    def test_the_newest_that_have_expired(self, store: Store, clock: FakeClock):
        write(store, "a", ttl=60)
        clock.advance(10_000)
        write(store, "b", ttl=50)
        write(store, "c")
        clock.advance(50_000)
        assert ids(store, newest=True, expired=True) == ["b", "a"]
        (newest,) = store.sessions(newest=True, expired=True, limit=1)
        assert ids(store, newest=True, expired=True, after=newest.cursor) == ["a"]

    def test_sessions_are_counted_by_status_agent_and_error(self, store: Store):
        assert store.counts() == []
        write(store, "a", agent="support", status="running")
        write(store, "b", agent="support", status="running")
        write(store, "c", agent="support", status="failed", error="TimeoutError")
        write(store, "d", status="failed", error="TimeoutError")
        write(store, "gone", agent="support")
        store.drop("gone", None, "deleted")
        post(store, entry(session="only posted to"))
        expected = [
            ("failed", "", "TimeoutError", 1),
            ("failed", "support", "TimeoutError", 1),
            ("idle", "", "", 1),
            ("running", "support", "", 2),
        ]
        assert store.counts() == expected
        assert sum(number for *_, number in expected) == store.usage().sessions == len(store.sessions())
        write(store, "c", agent="billing")
        assert ("idle", "billing", "", 1) in store.counts()

    def test_many_sessions_are_listed_chosen_and_counted(self, store: Store, clock: FakeClock):
        # More than any store looks at in one go.
        number = 1_100
        items = [
            commit(f"s{n:05}", agent=f"a{n % 3}", owner=f"o{n % 7}", error="E" if n % 300 == 1 else "")
            for n in range(number)
        ]
        store.append(items)
        clock.advance(1)
        land(store, commit("last", agent="a0"))
        names = [item.session for item in items]
        assert ids(store, limit=10_000) == ["last", *names]
        assert ids(store, error="E") == names[1::300]
        assert ids(store, error="E", after=names[301], limit=1) == [names[601]]
        assert ids(store, newest=True, limit=3) == ["last", *names[:2]]
        assert ids(store, agent="a1", owner="o3", limit=10_000) == [
            name for n, name in enumerate(names) if n % 21 == 10
        ]
        assert sum(n for _, _, _, n in store.counts()) == number + 1
