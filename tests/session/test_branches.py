"""Branches: the past is a place you can go to, and nothing there is ever rewritten."""

from __future__ import annotations

import pytest

import perdure


def grow(s: perdure.Session, n: int, mark: str = "") -> None:
    for _ in range(n):
        s.messages.append(f"{mark}{s.step + 1}")
        s.commit()


def test_a_fork_goes_its_own_way(db: perdure.Database) -> None:
    with db.session("s") as s:
        grow(s, 5)
        fork = s.fork("cheaper", at=3)
        assert (fork.branch, fork.step, fork.kind) == ("cheaper", 4, "fork")
        grow(s, 1)
        s.switch("cheaper")
        assert len(s.messages) == 3
        grow(s, 1, "c")
    assert db.read("s").messages == ["1", "2", "3", "4", "5", "6"]
    assert db.read("s", "cheaper").messages == ["1", "2", "3", "c5"]
    assert db.read("s", 2, branch="cheaper").messages == ["1", "2"]
    with db.session("s", branch="cheaper") as s:
        assert s.messages[-1] == "c5"


def test_a_rewind_names_the_tip_it_leaves_and_keeps_it(db: perdure.Database) -> None:
    with db.session("s") as s:
        grow(s, 5)
        tip = db.history("s")[0].id
        rewind = s.rewind(2)
        assert (rewind.kind, rewind.step, rewind.more["leaves"]) == ("rewind", 3, tip)
        grow(s, 1, "again")
    assert db.read("s").messages == ["1", "2", "again4"]
    assert db.read("s", at=tip).messages == ["1", "2", "3", "4", "5"]
    assert [c.step for c in db.history("s")] == [4, 3, 2, 1]


def test_a_tag_stays_where_it_was_put(db: perdure.Database) -> None:
    with db.session("s") as s:
        grow(s, 3)
        s.tag("good", at=2)
        grow(s, 3)
        with pytest.raises(perdure.Conflict, match="already has a tag"):
            s.tag("good")
    assert db.read("s", "good").messages == ["1", "2"]
    assert db.read("s", "good").step == 2


def test_a_place_that_was_typed_is_a_name_then_a_step_then_an_id(db: perdure.Database) -> None:
    with db.session("s") as s:
        grow(s, 5)
        assert db.read("s", "3").messages == ["1", "2", "3"]
        s.tag("half", at="2")
        s.tag("4", at="1")
    assert db.read("s", "half").messages == ["1", "2"]
    assert db.read("s", "4").messages == ["1"]
    assert db.read("s", 4).messages == ["1", "2", "3", "4"]
    for none in ("0", "9", "123456789", "9" * 40):
        with pytest.raises(perdure.NotFound):
            db.read("s", none)


def test_going_back_needs_a_clean_handle(db: perdure.Database) -> None:
    with db.session("s") as s:
        grow(s, 2)
        s.vars["x"] = 1
        with pytest.raises(perdure.Misuse, match="not committed"):
            s.rewind(1)
        s.reload()
        with pytest.raises(perdure.NotFound):
            s.rewind("nowhere")


def test_a_merge_brings_both_sides_together(db: perdure.Database) -> None:
    with db.session("s") as s:
        s.vars.update(a=1, b=1, c={"x": 1, "y": 1})
        s.commit()
        s.fork("other")
        s.vars["a"] = 2
        s.vars["c"]["x"] = 2
        s.commit()
        s.switch("other")
        s.vars["b"] = 3
        s.vars["c"]["y"] = 3
        s.commit()
        s.switch("main")
        merged = s.merge("other")
        assert merged.kind == "merge"
        assert s.vars == {"a": 2, "b": 3, "c": {"x": 2, "y": 3}}
        # There is nothing more to bring in, neither from there nor from itself, nor from a branch without changes.
        s.fork("like this")
        for nothing in ("other", "main", "like this"):
            assert s.merge(nothing).id == merged.id
        assert s.head is not None
        assert s.head.id == merged.id
        assert s.vars == {"a": 2, "b": 3, "c": {"x": 2, "y": 3}}


def test_a_merge_reports_conflicts_by_path_and_writes_nothing(db: perdure.Database) -> None:
    with db.session("s") as s:
        s.vars["price"] = 1200
        s.messages.append("m")
        s.commit()
        s.fork("other")
        s.vars["price"] = 1300
        s.messages.append("ours")
        s.commit()
        s.switch("other")
        s.vars["price"] = 1500
        s.messages.append("theirs")
        s.commit()
        s.switch("main")
        with pytest.raises(perdure.MergeConflict) as conflict:
            s.merge("other")
        assert sorted(str(c) for c in conflict.value.paths) == ["state.messages", "state.vars.price"]
        assert str(conflict.value).startswith("2 conflicting paths between ")
        assert not s.changed
        s.merge("other", prefer=lambda c: max(c.ours, c.theirs) if c.path[-1] == "price" else c.ours + c.theirs[1:])
        assert s.vars["price"] == 1500
        assert s.messages == ["m", "ours", "theirs"]


def test_one_conflicting_path_is_one(db: perdure.Database) -> None:
    with db.session("s") as s:
        s.vars["a"] = 1
        s.commit()
        s.fork("other")
        for branch, value in (("main", 2), ("other", 3)):
            s.switch(branch)
            s.vars["a"] = value
            s.commit()
        with pytest.raises(perdure.MergeConflict, match=r"^1 conflicting path between "):
            s.merge("main")


def test_after_a_merge_only_newer_changes_are_merged_again(db: perdure.Database) -> None:
    with db.session("s") as s:
        s.vars["n"] = 0
        s.commit()
        s.fork("other")
        s.switch("other")
        s.vars["n"] = 1
        s.commit()
        s.switch("main")
        s.merge("other")
        s.vars["n"] = 5
        s.commit()
        s.merge("other")
        assert s.vars["n"] == 5


def test_a_difference_is_told_by_path(db: perdure.Database) -> None:
    with db.session("s") as s:
        s.vars.update(a=1, gone=1)
        s.commit()
        s.messages.append("m")
        s.vars["a"] = 1.0
        del s.vars["gone"]
        s.commit()
    found = {str(d) for d in db.diff("s", 1, 2)}
    assert found == {"+ state.messages[0]", "~ state.vars.a", "- state.vars.gone"}


def test_the_base_of_a_merge_is_the_newest_common_checkpoint_not_an_older_merge(db: perdure.Database) -> None:
    with db.session("s") as s:
        s.vars["v"] = 1
        s.commit()
        s.fork("old")
        s.switch("old")
        s.vars["other"] = 1
        s.commit()
        s.switch("main")
        s.merge("old")
        s.vars["v"] = 2
        s.commit()
        s.fork("new")
        s.switch("new")
        s.vars["v"] = 3
        s.commit()
        s.switch("main")
        s.merge("new")
        assert s.vars == {"v": 3, "other": 1}
