"""Types of tools: JSON is recorded, and what a function is given and gives back is what it declares."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import pytest

import perdure
from perdure import Done, Later, tool
from perdure.errors import InvalidInput, NotJson
from perdure.session.tools.declaration import call_digest
from perdure.session.tools.typed_values import TypedCall, TypedValue, as_json
from perdure.state.document import plain
from tests.typed_examples import AT, EXAMPLES, NAMES, ORDER, Address, Colour, Customer, Line, Order

if TYPE_CHECKING:
    from pathlib import Path

    from perdure import Context


def echoing(kind: Any, seen: list[Any], **declared: Any) -> Any:
    """A tool that is given a value of a type and gives it back."""

    def echo(value: Any) -> Any:
        seen.append(value)
        return value

    echo.__annotations__ = {"value": kind, "return": kind}
    return tool(echo, **declared)


def recorded(s: Any) -> list[tuple[Any, Any]]:
    return [(r["args"], r["result"]) for r in s.effects()]


@pytest.mark.parametrize(("kind", "value", "found"), EXAMPLES, ids=NAMES)
def test_a_call_records_json_and_gives_and_returns_the_declared_type(
    url: str, kind: Any, value: Any, found: Any
) -> None:
    seen: list[Any] = []
    with perdure.open(url) as db:
        with db.session("s") as s:
            assert s.call(echoing(kind, seen), value) == value
            # Its JSON is the same call: it is not made again.
            assert s.call(echoing(kind, seen), found) == value
            assert [(plain(a), plain(r)) for a, r in recorded(s)] == [({"value": found}, found)]
        with db.session("s") as s:
            assert s.call(echoing(kind, seen), value) == value
    assert seen == [value]
    assert [type(one) for one in seen] == [type(value)]


@pytest.mark.parametrize(("kind", "value", "found"), EXAMPLES, ids=NAMES)
def test_a_coroutine_function_is_given_the_same(kind: Any, value: Any, found: Any) -> None:
    seen: list[Any] = []

    async def echo(value: Any) -> Any:
        seen.append(value)
        return value

    echo.__annotations__ = {"value": kind, "return": kind}

    async def work() -> None:
        async with perdure.open_async("memory://") as db, db.session("s") as s:
            assert await s.call(tool(echo), found) == value
            assert await s.call(tool(echo, read=True), value) == value
            assert await s.call(tool(echo, name="kept", read=True, cache="1h"), value) == value
            assert await s.call(tool(echo, name="kept", read=True, cache="1h"), value) == value

    asyncio.run(work())
    assert seen == [value] * 3


def test_a_resumed_run_gets_equal_values(tmp_path: Path) -> None:
    seen: list[Any] = []
    pay = echoing(Customer, seen)
    who = Customer("Ana", Address("x"))

    def plan(s: Any, *, dies: bool) -> Any:
        got = s.call(pay, who)
        if dies:
            raise KeyboardInterrupt
        return got.home.since.isoformat()

    url = f"sqlite:///{tmp_path}/a.db"
    with (
        perdure.open(url) as db,
        db.session("s") as s,
        pytest.raises(KeyboardInterrupt),
    ):
        s.run("plan", plan, dies=True)
    with perdure.open(url) as db, db.session("s") as s:
        assert s.run("plan", plan, dies=False) == "2020-01-02"
    assert seen == [who]


def test_names_of_local_classes_and_of_type_checkers_alone() -> None:
    @dataclass
    class Local:
        at: int

    @tool
    def double(one: Local, ctx: Context) -> Local:
        assert ctx.effect_id
        return Local(one.at * 2)

    with perdure.open("memory://") as db, db.session("s") as s:
        assert s.call(double, Local(2)) == Local(4)
        assert s.call(double, {"at": 3}) == Local(6)


def test_a_set_is_refused_unless_it_is_declared(url: str) -> None:
    @tool
    def tags() -> dict[str, Any]:
        return {"tags": {"a"}}

    @tool
    def declared() -> dict[str, set[str]]:
        return {"tags": {"b", "a"}}

    with perdure.open(url) as db, db.session("s") as s:
        with pytest.raises(
            NotJson, match=r"^what tags returned, or a part of it, is a set, which is not a JSON type: tags was done"
        ):
            s.call(tags)
        assert s.call(declared) == {"tags": {"a", "b"}}
        assert [plain(r) for _, r in recorded(s)] == [None, {"tags": ["a", "b"]}]


def test_a_set_is_written_in_one_order_in_every_process() -> None:
    class Tagged(Line):
        tags: set[str]

    found = as_json(Tagged(sku="a", price=Decimal(1), tags={str(n) for n in range(50)}))
    assert found["tags"] == sorted(found["tags"])


@pytest.mark.parametrize(
    ("value", "same"),
    [({"a": 1}, 1), ({"a": 1.0}, 1.0), ({"a": True}, True), ({"a": 2**100}, 2**100), ({"a": b"x"}, b"x")],
)
def test_what_json_can_say_is_kept_exactly(url: str, value: dict[str, Any], same: Any) -> None:
    for n, kind in enumerate((dict[str, Any], dict[str, int | float | bool | bytes], Any)):
        seen: list[Any] = []
        with perdure.open(url) as db, db.session(f"s{n}") as s:
            found = s.call(echoing(kind, seen), value)
            assert (found["a"], type(found["a"])) == (same, type(same))
            assert type(seen[0]["a"]) is type(same)


def test_the_digest_of_a_call_with_plain_arguments_is_that_of_its_json() -> None:
    @tool
    def plainly(a: int, b: str = "x", c: list[dict[str, float]] | None = None) -> None: ...

    @tool
    def typed(a: int, when: Address) -> None: ...

    args = plainly.bind((1,), {"c": [{"y": 1}]})
    assert args == {"a": 1, "b": "x", "c": [{"y": 1}]}
    # As it was before there were types: this text is what stores have.
    assert call_digest("plainly", "1", args) == "e34f47b7c33b03915ab06eb40d340cca"
    one, other = typed.bind((1, Address("x")), {}), typed.bind((1, {"street": "x"}), {})
    assert call_digest("typed", "1", one) == call_digest("typed", "1", {"a": 1, "when": as_json(Address("x"))})
    assert other == {"a": 1, "when": {"street": "x"}}


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (Customer, {"name": "x"}, "value does not fit: Object missing required field `home`"),
        (Colour, "green", "value does not fit: Invalid enum value 'green': the value is one of 'blue', 'red'"),
        (list[Colour], ["green"], r"at `\$\[0\]`: item 0 of the value is one of 'blue', 'red'"),
        (Literal["fast", "slow"], "medium", "Invalid enum value 'medium': the value is one of 'fast', 'slow'"),
        (int, "seven", "value does not fit: Expected `int`, got `str`"),
        (int, True, "value does not fit: Expected `int`, got `bool`"),
        (int | None, 1.5, "value does not fit: Expected `int | null`, got `float`"),
        (list[dict[str, int]], [{"a": "b"}], "value does not fit: Expected `int`, got `str`"),
        (str, 7, "value does not fit: Expected `str`, got `int`"),
        (Annotated[int, msgspec.Meta(ge=1)], 0, "value does not fit: Expected `int` >= 1"),
        (
            Order,
            {"orderNumber": "1", "lines": [{"sku": "a", "price": -1}], "at": "2026-01-01"},
            "a price is more than 0",
        ),
        (list[Order], [{}], "lines: Field required"),
        (Decimal, math.nan, "JSON has no NaN"),
        (Address, object(), "value cannot be recorded: an object is not JSON"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(url: str, kind: Any, value: Any, said: str) -> None:
    seen: list[Any] = []
    with perdure.open(url) as db, db.session("s") as s:
        with pytest.raises(InvalidInput, match=said):
            s.call(echoing(kind, seen), value)
        assert (s.effects(), seen) == ([], [])


def test_simple_arguments_that_fit_stay_as_they_are_and_text_becomes_numbers(url: str) -> None:
    """As a model's own do. What comes from the state fits as what it holds; a default need not fit."""

    @tool
    def take(n: int = None, x: float = 0.0, rows: list[dict[str, int]] = [], any: object = None, **more: int) -> Any:  # pyright: ignore  # noqa: B006, RUF013
        return [n, x, rows, any, more]

    with perdure.open(url) as db, db.session("s") as s:
        s.state["rows"] = [{"a": 1}]
        for given, found in (
            ({"n": "7", "x": "1.5"}, [7, 1.5, [], None, {}]),
            ({"n": None, "x": 2}, [None, 2, [], None, {}]),
            ({"rows": s.state["rows"], "any": {"b": [1]}}, [None, 0.0, [{"a": 1}], {"b": [1]}, {}]),
            ({"rows": [{"a": 2}], "m": "what it likes"}, [None, 0.0, [{"a": 2}], None, {"m": "what it likes"}]),
        ):
            assert plain(s.call(take, **given)) == found
        assert [type(v) for v in plain(s.effects()[0]["args"]).values()] == [int, float, list, type(None)]
        assert type(plain(s.effects()[1]["args"])["x"]) is int


@dataclass
class Invoice:
    number: str
    paid: bool = False
    home: Address | None = None
    lines: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Bill:
    invoices: tuple[Invoice, ...]
    currency: str = "EUR"


def test_fields_that_are_as_their_defaults_are_in_what_is_recorded() -> None:
    """Also of one that was made of JSON: with other defaults, tomorrow, it would be another one."""
    bill = TypedValue(Bill).from_json({"invoices": [{"number": "I-1"}]})
    whole = {"number": "I-1", "paid": False, "home": None, "lines": []}
    assert TypedValue(Bill).as_json(bill) == as_json(bill) == {"invoices": [whole], "currency": "EUR"}
    assert bill == Bill((Invoice("I-1"),))
    model = perdure.FunctionModel(
        lambda r: perdure.calls(("same", {"bill": {"invoices": [{"number": "I-1"}]}})) if len(r.messages) == 1 else "ok"
    )

    @tool(if_unsure="report")
    def same(bill: Bill) -> Bill:
        """Give it back."""
        return bill

    url = "memory://defaults"
    with perdure.open(url) as db:
        perdure.Agent("a", model=model, tools=[same]).run_sync(url, session="s", message="go")
        with db.session("s") as s:
            (told,) = [json.loads(m["content"]) for m in plain(s.state["messages"]) if m["role"] == "tool"]
    assert told == {"invoices": [whole], "currency": "EUR"}


def test_what_is_wrong_is_said_without_what_was_given() -> None:
    with pytest.raises(ValueError, match="price: ") as e:
        TypedValue(Line).from_json({"sku": "s3cret", "price": "s3cret"})
    assert "s3cret" not in str(e.value)
    assert "pydantic.dev" not in str(e.value)


def test_an_argument_that_its_json_does_not_hold_is_refused() -> None:
    from pydantic import SecretStr

    class Login(Line):
        password: SecretStr

    def log_in(login: Login) -> None: ...

    login = Login(sku="a", price=Decimal(1), password=SecretStr("x"))
    with pytest.raises(InvalidInput, match="a Login does not come back from its JSON as it was"):
        TypedCall("log_in", log_in).arguments_as_json({"login": login})


@pytest.mark.parametrize("kind", [list[Decimal], Customer, Order, dict[str, list[Colour]]])
def test_hostile_values_get_errors_of_ours(kind: Any) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    endless: Any = {}
    endless["home"] = endless
    with perdure.open("memory://") as db, db.session("s") as s:
        for bad in (deep, endless, [deep], {"lines": deep}, 10**5000, "\ud800", float("inf")):
            with pytest.raises(InvalidInput):
                s.call(echoing(kind, []), bad)
        with pytest.raises(NotJson, match="too deeply nested"):
            s.call(tool(lambda: deep, name="deep"))


def test_facts_recheck_and_approve_get_typed_values(url: str) -> None:
    seen: list[Any] = []

    @dataclass
    class Price:
        amount: Decimal

    def facts(who: Customer, amount: Decimal) -> Price:
        seen.append((type(who), amount))
        return Price(amount)

    def cheaper(before: Price, now: Price) -> bool:
        seen.append((before, now))
        return now.amount <= before.amount

    @tool(approve=lambda a: a["amount"] > 100, facts=facts, recheck=cheaper)
    def pay(who: Customer, amount: Decimal) -> Decimal:
        return amount + 1

    who = Customer("Ana", Address("x"))
    with perdure.open(url) as db:
        with db.session("s") as s:
            assert s.call(pay, who, Decimal(5)) == Decimal(6)
            with pytest.raises(perdure.ApprovalNeeded) as e:
                s.call(pay, who, Decimal("100.5"))
        assert e.value.approval.facts == {"amount": "100.5"}
        db.approve("s", e.value.approval.id, by="ana")
        with db.session("s") as s:
            assert s.call(pay, who, Decimal("100.5")) == Decimal("101.5")
    first = (Customer, Decimal("100.5"))
    assert seen == [first, first, (Price(Decimal("100.5")), Price(Decimal("100.5")))]


@pytest.mark.parametrize(
    ("edited", "said"),
    [
        ({"who": {"name": "x"}, "amount": 1}, "has no home"),
        ({"who": {"name": "x", "home": {"street": "y"}}, "amount": "many"}, "amount of .* must be integer, not 'many'"),
        ({"amount": 5}, "what pay is to be called with has no who"),
        ({"amount": 5, "who": {"name": "x", "home": {"street": "y"}}, "why": 1}, "has an unknown 'why'"),
        ({"who": {"name": "x", "home": {"street": "y"}}, "amount": 5, "fee": 2}, ""),
        ({"who": {"name": "x", "home": {"street": "y"}}, "amount": 5, "fee": "2", "note": None}, ""),
    ],
)
def test_edited_arguments_are_checked_against_the_types(url: str, edited: Any, said: str) -> None:
    paid: list[Any] = []

    @tool(approve=True)
    def pay(who: Customer, amount: int, fee: Decimal = Decimal(2), note: str = None) -> None:  # pyright: ignore  # noqa: RUF013
        paid.append((who, amount, fee))

    fits = {"who": {"name": "x", "home": {"street": "y"}}, "amount": 5}
    with perdure.open(url) as db:
        with db.session("s") as s, pytest.raises(perdure.ApprovalNeeded) as e:
            s.call(pay, Customer("Ana", Address("x")), 7)
        if said:
            # At once, by who decides: he has no program to ask.
            with pytest.raises(perdure.InvalidInput, match=rf"{said}.*Nothing was decided"):
                db.approve("s", e.value.approval.id, by="ana", args=edited)
            assert db.look("s").pending == 0
            edited = fits
        db.approve("s", e.value.approval.id, by="ana", args=edited)
        with db.session("s") as s:
            s.call(pay, Customer("Ana", Address("x")), 7)
        assert paid == [(Customer("x", Address("y")), 5, Decimal(2))]


def test_a_reconciler_and_a_poll_get_typed_values(url: str) -> None:
    asked: list[Any] = []

    def find_out(order: Order) -> Any:
        asked.append(order)
        return Done(order.at)

    @tool(if_unsure=find_out)
    def ship(order: Order) -> Any:
        raise TimeoutError

    @dataclass
    class Ticket:
        colour: Colour

    def poll(ticket: Ticket) -> Any:
        asked.append(ticket)
        return Done(ticket)

    @tool(if_unsure="retry", poll=poll)
    def print_it() -> Ticket:
        return Later(Ticket(Colour.BLUE))  # pyright: ignore[reportReturnType]

    with perdure.open(url) as db, db.session("s") as s:
        assert s.call(ship, ORDER) == as_json(AT)
        assert s.call(print_it) == Ticket(Colour.BLUE)
    assert asked == [ORDER, Ticket(Colour.BLUE)]


def test_a_type_that_nobody_knows_is_left_alone(url: str) -> None:
    class Engine:
        pass

    @tool
    def drive(engine: Engine, far: int) -> Engine:
        assert isinstance(engine, str)
        return {"far": far}  # pyright: ignore[reportReturnType]

    with perdure.open(url) as db, db.session("s") as s:
        assert s.call(drive, "e", 3) == {"far": 3}


def test_a_tool_from_a_json_schema_checks_its_arguments_and_gets_them_by_name(url: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 2},
            "days": {"anyOf": [{"$ref": "#/$defs/days"}, {"type": "null"}]},
        },
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"days": {"type": "integer", "exclusiveMinimum": 0}},
    }
    look = tool(lambda **given: given, name="look", description="Look.", schema=schema)
    with perdure.open(url) as db, db.session("s") as s:
        assert s.call(look, city="Rome", days=2) == {"city": "Rome", "days": 2}
        for bad, said in (
            ({"days": 2}, "the input of look has no city"),
            ({"city": "Rome", "days": 0}, "days of the input of look fits none of what it may be"),
            ({"city": "Rome", "far": 1}, "unknown 'far'"),
        ):
            with pytest.raises(InvalidInput, match=said):
                s.call(look, **bad)
    with pytest.raises(InvalidInput, match="its schema has 'days', and its function takes city"):
        tool(lambda city: city, name="look", schema=schema)
    with pytest.raises(InvalidInput, match="is the JSON schema of an object"):
        tool(lambda city: city, name="look", schema={"type": "string"})
    assert json.dumps(look.schema) == json.dumps(schema)
