"""Orders of shops, made up by numbers, and what they cost: the data of `jobs_example.lakehouse`, without Spark."""

from datetime import UTC, datetime, timedelta
from typing import Any

PRODUCTS = 1000
COUPONS = {"TEN": 10, "HALF": 50}
"""Percent off."""
_COUPONS_BY_TURN = (None, None, None, "TEN", None, None, "HALF")
_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def order_of(number: int, shop: int) -> dict[str, Any]:
    """An order of a shop."""
    return {
        "shop": shop,
        "product": number * 7919 % PRODUCTS,
        "quantity": number % 5 + 1,
        "coupon": _COUPONS_BY_TURN[number % len(_COUPONS_BY_TURN)],
        "at": (_BEGAN + timedelta(seconds=number)).isoformat(),
    }


def price_of(product: int) -> int:
    """The same for one product, in cents."""
    return 100 + product * 37 % 900


def kind_of(product: int) -> str:
    """The same."""
    return f"kind-{product % 8}"


def cents_of(order: dict[str, Any]) -> int:
    """What `price` makes of an order that it does not refuse."""
    off = COUPONS.get(order["coupon"], 0)
    return int(price_of(order["product"]) * order["quantity"] * (100 - off)) // 100
