"""The shop deduplicates by the keys it is sent and by nothing else, and remembers everything it was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure.demo.shop import Order, Shop, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(str(tmp_path / "shop.db"))
    shop.stock_up([Order("ORD-2024-1", "ana", "BOT-42", 12_990, "delivered", "Northway", "Monday")], {"BOT-43": 1})
    yield shop
    shop.close()


def test_a_repeated_request_gets_the_first_receipt(shop: Shop):
    assert shop.refund("ORD-2024-1", 129.9, "k") == shop.refund("ORD-2024-1", 129.9, "k")
    assert [(e.order, e.kind, e.cents, e.key) for e in shop.ledger()] == [("ORD-2024-1", "refund", 12_990, "k")]
    assert shop.requests() == {"refund": 2}


@pytest.mark.parametrize("key", ["another", None])
def test_a_request_with_another_key_or_none_is_carried_out_again(shop: Shop, key: str | None):
    shop.refund("ORD-2024-1", 129.9, "k")
    shop.refund("ORD-2024-1", 129.9, key)
    assert len(shop.ledger()) == 2


def test_an_exchange_takes_from_the_stock_once(shop: Shop):
    shop.exchange("ORD-2024-1", "BOT-43", "k")
    shop.exchange("ORD-2024-1", "BOT-43", "k")
    assert shop.left() == {"BOT-43": 0}
    with pytest.raises(Unknown, match="sold out"):
        shop.exchange("ORD-2024-1", "BOT-43", "another")
    assert len(shop.ledger()) == 1


def test_what_the_shop_does_not_have_is_refused_and_nothing_is_done(shop: Shop):
    with pytest.raises(Unknown, match="no order"):
        shop.refund("ORD-2024-2", 1.0, "k")
    with pytest.raises(Unknown, match="no article"):
        shop.stock("BOT-99")
    assert shop.ledger() == []


def test_two_handles_see_the_same_shop(shop: Shop, tmp_path: Path):
    other = Shop(str(tmp_path / "shop.db"))
    shop.refund("ORD-2024-1", 129.9, "k")
    assert other.ledger() == shop.ledger()
    assert other.order("ORD-2024-1")["amount"] == 129.9
    other.close()
