"""The orders of the shops, and what must become of them."""

from jobs_example.demos.lakehouse.orders import SHOPS, WRONG_COUPONS, WRONG_QUANTITIES, orders_of, truth_of
from jobs_example.shop import cents_of, order_of


def test_shops_share_the_orders_and_no_two_have_one_id() -> None:
    ids = [order_id for shop in range(SHOPS) for order_id, _, _ in orders_of(shop, 1002, 7)]
    assert len(ids) == len(set(ids)) == 1002


def test_the_truth_names_the_wrong_orders_and_counts_the_others() -> None:
    truth = truth_of(1000, 7)
    assert sorted(truth.dead.values()) == ["coupon"] * WRONG_COUPONS + ["quantity"] * WRONG_QUANTITIES
    assert len(truth.ids) + len(truth.dead) == 1000
    right = [order for shop in range(SHOPS) for _, order, reason in orders_of(shop, 1000, 7) if not reason]
    assert truth.cents == sum(map(cents_of, right))


def test_other_seeds_have_other_wrong_orders() -> None:
    assert truth_of(1000, 7).dead != truth_of(1000, 8).dead


def test_wrong_orders_look_wrong() -> None:
    wrong = {reason: order for shop in range(SHOPS) for _, order, reason in orders_of(shop, 1000, 7) if reason}
    assert (wrong["quantity"]["quantity"], wrong["coupon"]["coupon"]) == ("many", "NO-SUCH")


def test_what_an_order_costs() -> None:
    order = order_of(6, shop=1)
    assert (order["product"], order["quantity"], order["coupon"]) == (514, 2, "HALF")
    assert cents_of(order) == (100 + 514 * 37 % 900) * 2 * 50 // 100
