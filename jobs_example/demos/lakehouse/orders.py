"""The orders of the demo: a program for each shop pushes its own, and the truth that the tables are compared with.

``python -m jobs_example.demos.lakehouse.orders SHOP ITEMS SEED`` is one shop. It pushes with ``durability="fsync"``, so
what was confirmed is on the server's disk. What was not is pushed again under the same ids, which doubles nothing.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Any

from jobrunner import Item, configure
from jobrunner.errors import QueueFull, ServerError
from jobrunner.log_output import log_to_stderr
from jobs_example.shop import cents_of, kind_of, order_of

SHOPS = 4
WRONG_QUANTITIES, WRONG_COUPONS = 5, 3
"""Orders that must be dead, of all shops together."""
_AT_ONCE = 2_500
"""Orders of one call: it waits up to a second for the disk, and holds the server up for about 50 ms."""
_NAME = "order-{shop}-{number:07}"


@dataclass(slots=True)
class Truth:
    """What must be in the tables, and among the dead."""

    ids: set[str] = field(default_factory=set)
    cents_by_kind: Counter[str] = field(default_factory=Counter)
    dead: dict[str, str] = field(default_factory=dict)
    """A word of the reason, by id."""

    @property
    def cents(self) -> int:
        """Of all orders in the tables."""
        return self.cents_by_kind.total()


def orders_of(shop: int, items: int, seed: int) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The orders of one shop: id, order, and why it must be dead ("" for nearly all). `items` are those of all shops.
    """
    wrong = _wrong(items, seed)
    for number in range(shop, items, SHOPS):
        order, reason = order_of(number, shop), wrong.get(number, "")
        if reason == "quantity":
            order["quantity"] = "many"
        elif reason == "coupon":
            order["coupon"] = "NO-SUCH"
        yield _NAME.format(shop=shop, number=number), order, reason


def truth_of(items: int, seed: int) -> Truth:
    """Of all shops."""
    truth = Truth()
    for shop in range(SHOPS):
        for order_id, order, reason in orders_of(shop, items, seed):
            if reason:
                truth.dead[order_id] = reason
            else:
                truth.ids.add(order_id)
                truth.cents_by_kind[kind_of(order["product"])] += cents_of(order)
    return truth


def _wrong(items: int, seed: int) -> dict[int, str]:
    places = Random(f"wrong {seed}").sample(range(items), WRONG_QUANTITIES + WRONG_COUPONS)
    return {place: "quantity" if n < WRONG_QUANTITIES else "coupon" for n, place in enumerate(places)}


def main() -> int:
    """Pushes the orders of a shop; writes how many were confirmed, a line each time."""
    shop, items, seed = map(int, sys.argv[1:])
    log_to_stderr("console", "error")
    client = configure(durability="fsync", durability_timeout=4, retry_timeout=60)
    queue = client.queue("lakehouse/orders")
    orders = (Item(order, id=order_id) for order_id, order, _ in orders_of(shop, items, seed))
    pushed = 0
    while some := list(islice(orders, _AT_ONCE)):
        while True:
            try:
                queue.push_many(some, wait=60)
                break
            except (ServerError, QueueFull) as error:
                print(f"again: {type(error).__name__}", flush=True)
        pushed += len(some)
        print(pushed, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
