"""A call and its like on other branches and before a rewind: when it is the same one, and then has one outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import tool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Ledger:
    """A tool that notes what it was really asked to do, and what it is to raise."""

    def __init__(self, **options: Any) -> None:
        self.made: list[str] = []
        self.ids: list[str] = []
        self.raises: list[BaseException] = []

        @tool(**options)
        def invoice(customer: str, ctx: Any) -> str:
            self.made.append(customer)
            self.ids.append(ctx.effect_id)
            if self.raises:
                raise self.raises.pop(0)
            return f"number {len(self.made)}"

        self.invoice = invoice


def told(do: Callable[[], Any]) -> Any:
    try:
        return do()
    except perdure.PerdureError as error:
        return type(error).__name__


def in_run(run: str, ledger: Ledger, **options: Any) -> Callable[[perdure.Session], Any]:
    made = ledger.invoice.options(**options) if options else ledger.invoice
    return lambda s: s.run(run, lambda r: r.call(made, "ana"))


def alone(ledger: Ledger, **options: Any) -> Callable[[perdure.Session], Any]:
    made = ledger.invoice.options(**options) if options else ledger.invoice
    return lambda s: s.call(made, "ana")


KEYS: list[tuple[str, str, Any]] = [
    ("key july", "key july", "number 1"),
    ("key july", "key august", "number 2"),
    ("run july key july", "run august key august", "number 2"),
    ("run july key july", "key july", "number 1"),
    ("run july", "run july", "number 1"),
    ("plain", "plain", "number 1"),
    ("run july", "run august", "DoneElsewhere"),
    ("key july", "plain", "DoneElsewhere"),
    ("plain", "key july", "DoneElsewhere"),
    ("plain", "run july", "DoneElsewhere"),
    ("run july", "plain", "DoneElsewhere"),
]


def way_of(words: str, ledger: Ledger) -> Callable[[perdure.Session], Any]:
    parts = words.split()
    named = dict(zip(parts[::2], parts[1::2], strict=True)) if words != "plain" else {}
    options = {"key": named["key"]} if "key" in named else {}
    return in_run(named["run"], ledger, **options) if "run" in named else alone(ledger, **options)


@pytest.mark.parametrize(("there", "here", "expected"), KEYS)
@pytest.mark.parametrize("left_by", ["rewind", "fork"])
def test_an_explicit_key_is_part_of_what_a_call_is(there: str, here: str, expected: Any, left_by: str) -> None:
    """The same one is given its outcome, another one is made, and what cannot be known is told, never guessed."""
    ledger = Ledger(if_unsure="ask")
    with perdure.open("memory://") as db, db.session("s") as s:
        s.vars["a"] = 1
        s.commit()
        if left_by == "fork":
            s.fork("b")
        assert way_of(there, ledger)(s) == "number 1"
        if left_by == "fork":
            s.switch("b")
        else:
            s.rewind(1)
        assert told(lambda: way_of(here, ledger)(s)) == expected
        assert len(ledger.made) == (2 if expected == "number 2" else 1)
    with perdure.open("memory://") as db, db.session("t", effects="live") as s:
        before = len(ledger.made)
        s.commit()
        way_of(there, ledger)(s)
        s.rewind(1)
        way_of(here, ledger)(s)
        assert len(ledger.made) == before + 2


def test_a_call_with_another_key_is_not_the_one_that_raised_or_comes_later(db: perdure.Database) -> None:
    ledger = Ledger(if_unsure="retry")
    ledger.raises = [KeyError("july"), KeyError("july")]
    july, august = (ledger.invoice.options(key=key) for key in ("july", "august"))
    july_10 = ledger.invoice.options(key="july10")
    with db.session("s") as s:
        s.commit()
        assert told(lambda: s.call(july, "ana")) == "EffectRaised"
        ledger.raises.clear()
        assert s.call(august, "ana") == "number 2"
        assert s.call(july_10, "ana") == "number 3"
        # Repeated with its own key it goes on under its id, and those whose keys begin with that one stay known.
        assert s.call(july, "ana") == "number 4"
        assert s.call(july_10, "ana") == "number 3"
        assert len(set(ledger.ids)) == 3
        assert ledger.ids[0] == ledger.ids[3]
    later: list[str] = []

    @tool
    def order(what: str, ctx: Any) -> Any:
        later.append(ctx.effect_id)
        return perdure.Later(what)

    with db.session("t") as s:
        s.commit()
        s.fork("b")
        assert told(lambda: s.call(order.options(key="july"), "ink")) == "ResultPending"
        s.switch("b")
        assert told(lambda: s.call(order.options(key="august"), "ink")) == "ResultPending"
        assert len(set(later)) == 2


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("settled", ["given up", "not done", "reported"])
@pytest.mark.parametrize("in_a_run", [False, True])
def test_a_call_in_doubt_has_one_outcome_on_all_lines(
    db: perdure.Database, settled: str, goes_on: bool, in_a_run: bool
) -> None:
    ledger = Ledger()
    ledger.raises = [TimeoutError()]
    call = in_run("r", ledger) if in_a_run else alone(ledger)
    with db.session("s") as s:
        s.commit()
        assert told(lambda: call(s)) == "InDoubt"
        effect = s.effects()[0]["id"]
        s.fork("b")
        if goes_on:
            s.vars["z"] = 1
            s.commit()
        s.switch("b")
        if settled == "given up":
            s.resolve(effect, abort=True, by="ana")
        elif settled == "reported":
            db.post_outcome("s", effect, failed="the bank says no")
        else:
            s.resolve(effect, retry=True, by="ana")
            ledger.raises = [perdure.NotDone("no money")]
        made = len(ledger.made) + (settled == "not done")
        with pytest.raises(perdure.EffectFailed) as there:
            call(s)
        if in_a_run:
            # Its record is forgotten with its run, which makes it once more: it has ended the run and not happened.
            made += settled != "given up"
            s.run("r", lambda r: told(lambda: r.call(ledger.invoice, "ana")))
        s.switch("main")
        with pytest.raises(perdure.CallError, match="not in doubt"):
            s.resolve(effect, retry=True, by="bea")
        with pytest.raises(perdure.EffectFailed) as here:
            call(s)
        assert (str(here.value), len(ledger.made)) == (str(there.value), made)


def test_a_restored_call_is_settled_on_the_handle_that_was_told(tmp_path: Path) -> None:
    """Nobody is asked to agree to what was made already, and what a person has settled is no longer in the way."""
    ledger = Ledger(approve=True)
    url, witness = f"sqlite:///{tmp_path}/a.db", tmp_path / "witness"
    with perdure.open(url, witness=witness) as db:
        with db.session("s") as s:
            assert told(lambda: s.call(ledger.invoice, "ana")) == "ApprovalNeeded"
            asked = s.approvals()[0].id
        db.backup(tmp_path / "backup")
        db.approve("s", asked, by="ana")
        with db.session("s") as s:
            assert s.call(ledger.invoice, "ana") == "number 1"
    with perdure.open(f"sqlite:///{tmp_path}/b.db") as db:
        db.restore(tmp_path / "backup", witness=witness)
        with pytest.raises(perdure.PerdureError):
            db.approve("s", asked, by="bea")
        with db.session("s") as s:
            assert ([a.status for a in s.approvals(None)], s.status) == (["stale"], "in_doubt")
            assert told(lambda: s.call(ledger.invoice, "ana")) == "InDoubt"
            assert told(lambda: s.run("r", lambda r: r.call(ledger.invoice, "ana"))) == "DoneElsewhere"
            s.resolve(s.effects()[0]["id"], retry=True, by="bea")
            assert s.call(ledger.invoice, "ana") == "number 2"
    assert ledger.ids[0] == ledger.ids[1]


@pytest.mark.parametrize("effects", ["reuse", "live"])
@pytest.mark.parametrize("way", ["fork", "fork at", "rewind"])
@pytest.mark.parametrize(
    "how",
    [alone, lambda ledger: in_run("july", ledger), lambda ledger: alone(ledger, key="july")],
    ids=["plain", "run", "key"],
)
def test_whoever_would_repeat_a_call_that_raised_is_asked_on_every_line(how: Any, way: str, effects: Any) -> None:
    ledger = Ledger()
    ledger.raises = [KeyError("a bug after the charge")]
    call = how(ledger)
    with perdure.open("memory://") as db:
        with db.session("s") as s:
            s.vars["before"] = 1
            s.commit()
            assert [told(lambda: call(s)) for _ in range(2)] == ["EffectRaised", "ApprovalNeeded"]
            assert s.head is not None
            (reason,), step = [one.because for one in s.approvals()], s.head.step
            s.vars["later"] = 1
            s.commit()
            if way == "rewind":
                s.rewind(step)
            else:
                s.fork("b", at=step if way == "fork at" else None)
        branch = "main" if way == "rewind" else "b"
        with db.session("s", branch=branch, effects=effects) as s:
            assert [told(lambda: call(s)) for _ in range(2)] == ["ApprovalNeeded", "ApprovalNeeded"]
            (approval,) = s.approvals()
            assert approval.because == reason
        assert len(ledger.made) == 1
        db.approve("s", approval.id, by="ana")
        with db.session("s", branch=branch, effects=effects) as s:
            assert call(s) == "number 2"


def test_a_question_that_a_tool_put_is_put_again_on_another_branch() -> None:
    @tool
    def book(hotel: str, ctx: Any) -> str:
        return f"{hotel}: {ctx.ask('which room?', {'type': 'string'})}"

    with perdure.open("memory://") as db:
        with db.session("s") as s:
            assert told(lambda: s.call(book, "Ritz")) == "ApprovalNeeded"
            s.fork("b")
        with db.session("s", branch="b") as s:
            assert told(lambda: s.call(book, "Ritz")) == "ApprovalNeeded"
            (question,) = s.approvals()
            assert question.question == "which room?"
        db.answer("s", question.id, "12", by="ana")
        with db.session("s", branch="b") as s:
            assert s.call(book, "Ritz") == "Ritz: 12"
        with db.session("s") as s:
            assert s.call(book, "Ritz") == "Ritz: 12", "it is one call, which was begun before they parted"
