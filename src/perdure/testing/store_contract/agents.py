"""Who works on a session, and what error it stands at: the newest commits of main say it, and its row tells."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from perdure.model import Dump, Rewrite, SessionRow, Span
from perdure.testing.sealed_rows import commit, land, write
from perdure.testing.store_contract.contract import Contract

if TYPE_CHECKING:
    from perdure.protocols import Store
    from perdure.testing.store_contract.contract import MakeStore


def said(store: Store, session: str = "s") -> tuple[str, str]:
    """Agent and error, as ``look`` and a listing tell alike."""
    row = store.look(session)
    assert row is not None
    assert row in store.sessions() or row.reason
    return row.agent, row.error


def labels(store: Store) -> list[str]:
    """The labels of all sessions, as ``look`` and a listing tell alike."""
    rows = store.sessions()
    assert rows == [store.look(row.id) for row in rows]
    return [row.label for row in rows]


class AgentsContract(Contract):
    """Who works on a session, and what error it stands at: the newest commits of main say it, and its row tells."""

    def test_a_session_of_nobody_says_so(self, store: Store):
        write(store)
        assert said(store) == ("", "")

    def test_an_agent_stays_until_another_one_is_named(self, store: Store, make_store: MakeStore):
        write(store, agent="support")
        write(store, count=2)
        assert said(store) == ("support", "")
        write(store, agent="billing")
        assert said(make_store()) == ("billing", "")
        write(store)
        assert said(store) == ("billing", "")

    def test_the_error_is_that_of_the_newest_commit(self, store: Store, make_store: MakeStore):
        write(store, agent="support")
        write(store, error="TimeoutError")
        assert said(make_store()) == ("support", "TimeoutError")
        write(store, error="RateLimited")
        assert said(store) == ("support", "RateLimited")
        write(store)
        assert said(make_store()) == ("support", "")

    def test_a_commit_on_another_branch_does_not_speak_for_the_session(self, store: Store):
        write(store, agent="support", error="TimeoutError")
        fork = commit(step=1, branch="b", line=1, starts=True)
        land(store, fork)
        assert said(store) == ("support", "TimeoutError")
        land(store, commit(step=2, branch="b", line=1, expect=fork.id, agent="billing", error="Refused"))
        assert said(store) == ("support", "TimeoutError")

    def test_the_label_is_that_of_the_newest_commit_of_main(self, store: Store, make_store: MakeStore):
        write(store, label="waiting for executive")
        assert labels(make_store()) == ["waiting for executive"]
        fork = commit(step=1, branch="b", line=1, starts=True, label="elsewhere")
        land(store, fork)
        assert labels(store) == ["waiting for executive"]
        nasty = "zero\x00 and\x01 one 'ä' %_"
        write(store, label=nasty)
        write(store, "other", label="waiting for executive")
        assert labels(make_store()) == ["waiting for executive", nasty]
        assert [row.id for row in store.sessions(label=nasty)] == ["s"]
        assert [row.id for row in store.sessions(label="waiting for executive")] == ["other"]
        assert store.sessions(label="waiting") == []
        write(store)
        assert [row.id for row in store.sessions(label="")] == ["s"]

    def test_a_restored_session_has_its_label_and_a_new_life_none(self, store: Store, make_store: MakeStore):
        write(store, count=2, label="waiting for executive")
        make_store("two").restore(store.dump("s"))
        assert labels(make_store("two")) == ["waiting for executive"]
        assert store.rewrite(Rewrite("s", drop=(Span(0, 0, 0),)))
        assert labels(store) == ["waiting for executive"]
        store.drop("s", None, "deleted")
        write(store)
        assert labels(store) == [""]

    def test_a_batch_and_a_lease_make_no_difference_to_agent_and_error(self, store: Store):
        lease = store.acquire("s", "me", 1000)
        first = commit(token=lease.token, agent="support")
        second = commit(step=1, expect=first.id, token=lease.token, error="TimeoutError")
        third = commit(step=2, expect=second.id, token=lease.token, agent="billing", error="Refused")
        other = commit("t", agent="writer")
        store.append([first, second, third, other])
        assert said(store) == ("billing", "Refused")
        assert said(store, "t") == ("writer", "")
        store.append([commit(step=3, expect=third.id, token=lease.token), commit("u")])
        assert (said(store), said(store, "u")) == (("billing", ""), ("", ""))

    def test_a_refused_commit_says_nothing(self, store: Store):
        write(store, agent="support", error="TimeoutError")
        late = hashlib.sha256(b"late").digest()[:16]
        store.append([commit(step=1, expect=b"elsewhere", id=late, agent="thief")])
        assert said(store) == ("support", "TimeoutError")

    def test_any_text_may_be_a_name(self, store: Store):
        names = ('it\'s "ä" 𝔷 %_', "line\nbreak\ttab", "zero\x00and\x01one")
        for number, name in enumerate(names):
            write(store, f"s{number}", agent=name, error=name)
            assert said(store, f"s{number}") == (name, name)

    def test_maintenance_changes_neither(self, store: Store):
        write(store, count=3, agent="support", error="TimeoutError")
        assert store.rewrite(Rewrite("s", drop=(Span(0, 0, 1),)))
        assert said(store) == ("support", "TimeoutError")

    def test_a_tombstone_has_none_and_a_new_life_begins_without(self, store: Store):
        write(store, agent="support", error="TimeoutError")
        store.drop("s", None, "deleted")
        assert said(store) == ("", "")
        write(store)
        assert said(store) == ("", "")
        write(store, agent="billing")
        assert said(store) == ("billing", "")

    def test_a_restored_session_has_both(self, store: Store, make_store: MakeStore):
        write(store, count=2, agent="support", error="TimeoutError")
        dump = store.dump("s")
        assert (dump.row.agent, dump.row.error) == ("support", "TimeoutError")
        make_store("two").restore(dump)
        again = make_store("two")
        assert said(again) == ("support", "TimeoutError")
        write(again)
        assert said(again) == ("support", "")

    def test_a_dump_from_before_there_were_agents_can_be_restored(self, store: Store, make_store: MakeStore):
        write(store, agent="support", error="TimeoutError")
        dump = store.dump("s")
        # As it lies in an older backup: a row that ends before agent and error.
        older = dump.row[: SessionRow._fields.index("agent")]
        old = msgspec.msgpack.decode(msgspec.msgpack.encode(older), type=SessionRow)
        other = make_store("two")
        other.restore(Dump(old, dump.rows, dump.artifacts, dump.inbox))
        # What its checkpoints say is known all the same.
        assert said(other) == ("", "TimeoutError")
        write(other, agent="billing")
        assert said(other) == ("billing", "")
