"""One value of each type that a tool may declare, with the JSON that is recorded of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
from pydantic import BaseModel, Field, field_validator


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Address:
    street: str
    since: date = date(2020, 1, 2)


@dataclass
class Customer:
    name: str
    home: Address
    likes: list[Colour] = field(default_factory=list[Colour])
    before: Customer | None = None


class Place(NamedTuple):
    row: int
    seat: str


class Note(TypedDict):
    text: str
    at: datetime


class Parcel(msgspec.Struct):
    weight: Decimal
    colour: Colour = Colour.RED


class Line(BaseModel):
    sku: str
    price: Decimal

    @field_validator("price")
    @classmethod
    def _positive(cls, value: Decimal) -> Decimal:
        if value <= 0:
            raise ValueError("a price is more than 0")
        return value


class Order(BaseModel):
    number: str = Field(alias="orderNumber")
    lines: list[Line]
    at: datetime


AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ORDER = Order(orderNumber="o-1", lines=[Line(sku="a", price=Decimal("1.50"))], at=AT)
ORDER_JSON = {
    "orderNumber": "o-1",
    "lines": [{"sku": "a", "price": "1.50"}],
    "at": "2026-01-02T03:04:05Z",
}
WHO = Customer("Ana", Address("Main St"), [Colour.BLUE], before=Customer("Bo", Address("Side St")))
WHO_JSON = {
    "name": "Ana",
    "home": {"street": "Main St", "since": "2020-01-02"},
    "likes": ["blue"],
    "before": {"name": "Bo", "home": {"street": "Side St", "since": "2020-01-02"}, "likes": [], "before": None},
}
EXAMPLES: list[Any] = [
    (Customer, WHO, WHO_JSON),
    (Colour, Colour.BLUE, "blue"),
    (Literal["a", 1], 1, 1),
    (Address | None, None, None),
    (Address | None, Address("x"), {"street": "x", "since": "2020-01-02"}),
    (datetime | int, AT, "2026-01-02T03:04:05Z"),
    (date, date(2026, 1, 2), "2026-01-02"),
    (timedelta, timedelta(minutes=5, microseconds=1), "PT300.000001S"),
    (Decimal, Decimal("10.50"), "10.50"),
    (UUID, UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (Note, {"text": "hi", "at": AT}, {"text": "hi", "at": "2026-01-02T03:04:05Z"}),
    (Place, Place(3, "b"), [3, "b"]),
    (Parcel, Parcel(Decimal("0.1")), {"weight": "0.1", "colour": "red"}),
    (Order, ORDER, ORDER_JSON),
    (list[Order], [ORDER], [ORDER_JSON]),
    (dict[str, Order | None], {"x": ORDER, "y": None}, {"x": ORDER_JSON, "y": None}),
    (tuple[int, str], (1, "x"), [1, "x"]),
    (set[str], {"c", "a", "b"}, ["a", "b", "c"]),
    (dict[int, str], {1: "x"}, {"1": "x"}),
    (dict[Colour, int], {Colour.RED: 1}, {"red": 1}),
    (list[Decimal], [Decimal(1)], ["1"]),
]
"""Declared type, a value of it, and its JSON."""
NAMES = [f"{n}-{getattr(kind, '__name__', kind)}" for n, (kind, _, _) in enumerate(EXAMPLES)]
