"""batch_reclaim: items of a batch that is gone, or not open, go back to their places in the queue."""

import pytest

from jobrunner.attempt import number_from
from jobrunner.broker.calls import batches, leases
from jobrunner.broker.calls.leases import Reclaimed


@pytest.fixture
def raw_orders(line):
    return line("o/a")


def strand(line, *ids, batch, is_gone=True):
    """A batch of these items, of which only the list is left."""
    line.enqueue(*ids)
    line.run(batches.fill(line.keys, batch, 1, had=0, count=len(ids), lease_ms=1000, turn=1))
    if is_gone:
        line.raw.delete(line.keys.batch + batch.encode())
        line.raw.zrem(line.keys.batches, batch)


def reclaim(line, *, count=9, **options):
    return line.run(leases.reclaim(line.keys, count=count, **options))


def number(batch):
    return str(number_from(batch))


def test_nothing_to_find_is_the_end(raw_orders):
    assert reclaim(raw_orders) == Reclaimed(items=0, after="", list_in_use=False)


def test_items_of_one_batch_go_back_to_their_places_and_a_worker_is_woken(raw_orders):
    strand(raw_orders, *"xyz", batch="b")
    raw_orders.enqueue("later")
    raw_orders.wakes()

    assert reclaim(raw_orders) == Reclaimed(items=3, after="", list_in_use=False)
    assert raw_orders.ids("waiting") == ["x", "y", "z", "later"]
    assert raw_orders.ids("pending") == raw_orders.ids("leases") == []
    assert raw_orders.wakes()
    assert [one.id for one in raw_orders.reserve(9)] == ["x", "y", "z", "later"]


def test_a_slice_ends_at_the_count_and_goes_on_where_it_was(raw_orders):
    names = sorted("abc", key=number_from)
    for name in names:
        strand(raw_orders, f"{name}1", f"{name}2", batch=name)

    first = reclaim(raw_orders, count=2)
    assert (first.items, first.list_in_use) == (2, False)
    assert raw_orders.ids("waiting") == [f"{names[0]}1", f"{names[0]}2"]
    second = reclaim(raw_orders, count=9, after=first.after)
    assert second == Reclaimed(items=4, after="", list_in_use=False)
    assert sorted(raw_orders.ids("waiting")) == ["a1", "a2", "b1", "b2", "c1", "c2"]


def test_a_slice_that_ends_within_a_batch_leaves_the_rest_of_it(raw_orders):
    first, second = sorted("ab", key=number_from)
    strand(raw_orders, "1", "2", batch=first)
    strand(raw_orders, *"345678", batch=second)

    found = reclaim(raw_orders, count=3)
    assert (found.items, raw_orders.ids("waiting")) == (3, ["1", "2", "3"])
    assert reclaim(raw_orders, after=found.after).items == 5


def test_a_call_looks_at_a_bounded_number_of_leases(raw_orders):
    raw_orders.raw.zadd(raw_orders.keys.leases, {f"s{n:03}": n + 1 for n in range(250)})
    strand(raw_orders, "x", "y", batch="b")

    assert reclaim(raw_orders) == Reclaimed(items=0, after="200", list_in_use=False)
    assert reclaim(raw_orders, after="200") == Reclaimed(items=2, after="", list_in_use=False)


@pytest.mark.parametrize("many", [(5000, 0), (2500, 2500), (5001, 0), (0, 5001), (3000, 3000)])
def test_where_batches_are_too_many_to_read_each_counts_as_open(raw_orders, many):
    strand(raw_orders, "x", "y", batch="b")
    for index, count in zip((raw_orders.keys.batches, raw_orders.keys.finishing), many, strict=True):
        raw_orders.raw.delete(index)
        if count:
            raw_orders.raw.zadd(index, {f"o{n}": n for n in range(count)})

    is_open = sum(many) > 5000
    assert reclaim(raw_orders, batch_id="b").list_in_use == is_open
    assert raw_orders.ids("waiting") == ([] if is_open else ["x", "y"])


def test_what_is_pending_no_more_does_not_come_back(raw_orders):
    strand(raw_orders, *"xyz", batch="b")
    raw_orders.raw.zrem(raw_orders.keys.pending, "y")

    reclaim(raw_orders)
    assert raw_orders.ids("waiting") == ["x", "z"]
    assert raw_orders.ids("leases") == []


def test_leases_of_programs_and_of_open_batches_stay(raw_orders):
    held = raw_orders.lease("single")
    strand(raw_orders, "x", "y", batch="open", is_gone=False)
    before = raw_orders.snapshot()

    assert reclaim(raw_orders).items == 0
    assert reclaim(raw_orders, batch_id="open") == Reclaimed(items=0, after="", list_in_use=True)
    assert raw_orders.snapshot() == before
    assert raw_orders.commit(held) == ["ok"]


def test_items_of_a_batch_that_is_named_go_back_by_the_slice(raw_orders):
    strand(raw_orders, *"uvwxy", batch="b")

    found = [reclaim(raw_orders, batch_id="b", count=2) for _ in range(3)]

    assert found == [
        Reclaimed(items=2, after=number("b"), list_in_use=False),
        Reclaimed(items=3, after=number("b"), list_in_use=False),
        Reclaimed(items=0, after="", list_in_use=False),
    ]
    assert raw_orders.ids("waiting") == list("uvwxy")


def test_a_list_whose_parts_are_open_is_in_use_and_one_of_another_batch_is_not(raw_orders):
    strand(raw_orders, *"xyz", batch="b", is_gone=False)
    raw_orders.run(batches.failed_attempt(raw_orders.keys, "b", 1, fate="blamed", reason="E: no"))
    assert reclaim(raw_orders, batch_id="b") == Reclaimed(items=0, after="", list_in_use=True)
    assert not reclaim(raw_orders, batch_id="other").list_in_use


def test_damage_of_other_batches_stops_nothing(raw_orders):
    strand(raw_orders, "x", "y", batch="b")
    raw_orders.raw.set(raw_orders.keys.batch + b"damaged", "text")
    strand(raw_orders, "z", "zz", batch="open", is_gone=False)
    raw_orders.raw.zadd(raw_orders.keys.batches, {"damaged": 1, "none": 2, "void": 3})

    assert reclaim(raw_orders).items == 2
    assert raw_orders.ids("waiting") == ["x", "y"]


def test_limits_of_keys_count_them_off(raw_orders):
    raw_orders.configure(key_inflight=2)
    raw_orders.enqueue("x", "y", key="k")
    raw_orders.run(batches.fill(raw_orders.keys, "b", 1, had=0, count=2, lease_ms=1000, turn=1))
    raw_orders.raw.delete(raw_orders.keys.batch + b"b", raw_orders.keys.batches)

    assert reclaim(raw_orders).items == 2
    assert not raw_orders.raw.exists(raw_orders.keys.waiting.removesuffix(b"waiting") + b"inflight")
    assert [one.id for one in raw_orders.reserve(9)] == ["x", "y"]


def test_it_works_on_a_server_that_is_full(raw_orders):
    strand(raw_orders, "x", "y", batch="b")
    raw_orders.raw.config_set("maxmemory", 1)
    try:
        assert reclaim(raw_orders).items == 2
    finally:
        raw_orders.raw.config_set("maxmemory", 0)
    assert raw_orders.ids("waiting") == ["x", "y"]
