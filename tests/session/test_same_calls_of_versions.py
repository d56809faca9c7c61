"""A call is the same one for another version of its tool while nobody knows what became of it, and a parameter that was
added, with its default, makes no other call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, FunctionModel
from perdure.agent.models.scripted import calls
from perdure.errors import ApprovalNeeded, Diverged, DoneElsewhere, EffectFailed, InDoubt, PerdureError
from perdure.session.tools import Done, Unknown, migrations
from perdure.session.tools.declaration import Tool, tool
from perdure.session.tools.migrations import tool_migration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from perdure.database import Database

UPGRADES = ("version", "added", "renamed parameter", "renamed tool")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in ("of_arguments", "of_results", "renamings"):
        monkeypatch.setattr(migrations, registry, {})


@pytest.fixture(name="db")
def _db() -> Iterator[Database]:
    with perdure.open("memory://") as db:
        yield db


def tools(upgrade: str, made: list[str], ends: Callable[[], Any], policy: Any = "ask") -> tuple[Tool, Tool]:
    """A tool as it was, of which the call ends somehow, and as it is now: it returns something else."""

    def pay(order: str, ctx: Any) -> str:
        made.append(ctx.effect_id)
        return ends()

    def now(order: str, ctx: Any) -> str:
        made.append(ctx.effect_id)
        return "by the new one"

    def added(order: str, ctx: Any, note: str = "") -> str:
        return now(order, ctx)

    def invoice(invoice: str, ctx: Any) -> str:
        return now(invoice, ctx)

    def renamed(arguments: dict[str, Any]) -> None:
        arguments["invoice"] = arguments.pop("order")

    old = tool(pay, if_unsure=policy)
    if upgrade == "added":
        return old, tool(added, name="pay", if_unsure=policy)
    if upgrade == "version":
        return old, tool(now, name="pay", version="2", if_unsure=policy)
    is_renamed = upgrade == "renamed tool"
    tool_migration("pay", "1", "2", renamed="charge" if is_renamed else None)(renamed)
    return old, tool(invoice, name="charge" if is_renamed else "pay", version="2", if_unsure=policy)


def raises() -> str:
    raise KeyError("after the charge")


def loses() -> str:
    raise TimeoutError("lost")


def broken_off(s: Any, tool: Tool) -> None:
    """A run that has made a call, and ends before it returns."""

    def breaks(r: Any) -> None:
        r.call(tool, "Y")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        s.run("r", breaks)


def tried(s: Any, tool: Tool) -> Any:
    try:
        return s.call(tool, "X")
    except PerdureError as e:
        return type(e)


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize(
    ("ends", "policy", "again"),
    [
        (raises, "ask", ApprovalNeeded),
        (raises, "report", EffectFailed),
        (raises, "retry", "by the new one"),
        (raises, lambda **_: Done("found") if asked_once.pop() else Unknown(), "found"),
        (loses, "ask", InDoubt),
        (loses, "report", Unknown),
    ],
    ids=["raised ask", "raised report", "raised retry", "raised function", "lost ask", "lost report"],
)
@pytest.mark.parametrize("key", [None, "K"])
def test_an_unknown_call_is_the_same_one_for_the_new_tool(
    db: Database, upgrade: str, ends: Any, policy: Any, again: Any, key: str | None
):
    made: list[str] = []
    asked_once[:] = [True, False]
    old, new = (one.options(key=key) for one in tools(upgrade, made, ends, policy))
    with db.session("s") as s:
        tried(s, old)
    with db.session("s") as s:
        got = tried(s, new)
        assert got == again or isinstance(got, again if isinstance(again, type) else str)
        assert len(set(made)) == 1
        if policy == "retry":
            # Once it is done it is this version's, and given again.
            assert s.call(new, "X") == "by the new one"
            assert len(made) == 2


asked_once: list[bool] = []


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("ends", [raises, loses])
@pytest.mark.parametrize("how", ["rewind", "fork"])
def test_nor_is_it_made_again_on_another_line(db: Database, upgrade: str, ends: Any, how: str):
    made: list[str] = []
    old, new = tools(upgrade, made, ends)
    with db.session("s") as s:
        s.vars["a"] = 1
        s.commit()
        s.fork("b", at=1)
        tried(s, old)
        if how == "rewind":
            s.rewind(1)
    wanted: Any = DoneElsewhere
    if ends is loses and upgrade in ("version", "added"):
        # The very call: nobody is sent other arguments under its id.
        wanted = InDoubt
    elif ends is raises and how == "rewind":
        wanted = ApprovalNeeded
    with db.session("s", branch="b" if how == "fork" else "main") as s, pytest.raises(wanted):
        s.call(new, "X")
    assert len(made) == 1


@pytest.mark.parametrize("upgrade", UPGRADES)
def test_a_run_goes_on_with_it(db: Database, upgrade: str):
    made: list[str] = []
    old, new = tools(upgrade, made, loses)
    with db.session("s") as s:
        with pytest.raises(InDoubt) as e:
            s.run("k", lambda r: r.call(old, "X"))
        with pytest.raises(InDoubt):
            s.run("k", lambda r: r.call(new, "X"))
        s.resolve(e.value.effect, done="said")
        assert s.run("k", lambda r: r.call(new, "X")) == "said"
    assert len(made) == 1


def test_a_done_call_is_given_to_its_version_alone(db: Database):
    made: list[str] = []
    old, new = tools("version", made, lambda: "by the old one")
    with db.session("s") as s:
        assert s.call(old, "X") == "by the old one"
        assert s.call(new, "X") == "by the new one"
        # Both may be at work while a program is replaced: each has its own.
        assert s.call(old, "X") == "by the old one"
        assert s.call(new, "X") == "by the new one"
        s.call(old.options(key="K"), "X")
        with pytest.raises(Diverged):
            s.call(new.options(key="K"), "X")
    assert len(made) == 3


@pytest.mark.parametrize("cached", [{}, {"cache": "7d"}, {"cache": "7d", "cache_scope": "shared"}])
def test_an_added_parameter_with_its_default_makes_no_other_call(db: Database, cached: dict[str, Any]):
    made: list[str] = []

    def pay(order: str) -> str:
        made.append("old")
        return "old"

    def added(order: str, note: str = "") -> str:
        made.append(note)
        return note

    old, new = tool(pay, **cached), tool(added, name="pay", **cached)
    with db.session("s") as s:
        assert (s.call(old, "X"), s.call(new, "X"), s.call(new, "X", note="")) == ("old", "old", "old")
        assert s.call(new, "X", note="other") == "other"
        assert s.call(old, "X") == "old"
        broken_off(s, old)
        assert s.run("r", lambda r: r.call(new, "Y")) == "old"
        s.call(new, "Z")
        # Nor one that is gone again: programs of both kinds may be at work.
        assert s.call(old, "Z") == ""
    assert made == ["old", "other", "old", ""]


@pytest.mark.parametrize("cached", [{}, {"cache": "7d"}, {"cache": "7d", "cache_scope": "shared"}])
def test_a_changed_default_makes_another_call_of_those_that_leave_it_out(db: Database, cached: dict[str, Any]):
    made: list[str] = []

    def in_euro(order: str, currency: str = "eur") -> str:
        made.append(currency)
        return currency

    def in_dollar(order: str, currency: str = "usd") -> str:
        made.append(currency)
        return currency

    old, new = tool(in_euro, name="pay", **cached), tool(in_dollar, name="pay", **cached)
    with db.session("s") as s:
        assert (s.call(old, "X"), s.call(new, "X")) == ("eur", "usd")
        assert (s.call(old, "X"), s.call(new, "X")) == ("eur", "usd")
        # What was a default and is said now, and the other way round, is the same call.
        assert (s.call(new, "X", currency="eur"), s.call(old, "X", currency="usd")) == ("eur", "usd")
        assert made == ["eur", "usd"]
        broken_off(s, old)
        with pytest.raises(Diverged):
            s.run("r", lambda r: r.call(new, "Y"))


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize(
    ("policy", "ends", "status", "times"),
    [("ask", raises, "waiting_approval", 1), ("retry", raises, "done", 2), ("report", loses, "done", 1)],
)
def test_nor_for_a_model_that_repeats_it(upgrade: str, policy: str, ends: Any, status: str, times: int, tmp_path: Path):
    made: list[str] = []
    old, new = tools(upgrade, made, ends, policy)
    result = None
    for one, message in ((old, "go"), (new, "again")):
        argument = next(name for name in one.bind(("X",), {}) if name != "note")

        def model(request: Any, name: str = one.name, argument: str = argument) -> Any:
            is_asked = request.messages[-1]["role"] == "user"
            return calls((name, {argument: "X"})) if is_asked else "well"

        agent = Agent("a", model=FunctionModel(model), tools=[one])
        result = agent.run_sync(f"sqlite:///{tmp_path}/a.db", session="s", message=message, key=message)
    assert result is not None
    assert result.status == status
    assert len(made) == times
    assert len(set(made)) == 1
