"""Moving many leases into another queue of a pipeline, for threads and for asyncio alike."""

from typing import Any

import pytest

from jobrunner import Item
from jobrunner.errors import (
    InvalidOption,
    LeaseLost,
    NotReserved,
    PipelineError,
    ReportsRefused,
    TargetFull,
    TooManyHops,
    UsageError,
)
from jobrunner.etl import Pipeline

RAW, CLEAN = "orders/raw", "orders/clean"


@pytest.fixture
def raw_orders(way: Any) -> Any:
    return way.queue(RAW)


@pytest.fixture
def clean(client: Any) -> Any:
    """The target, for threads."""
    return client.queue(CLEAN)


def test_each_gets_its_payload_and_keeps_its_id_and_place(raw_orders: Any, clean: Any) -> None:
    ids = raw_orders.push_many([Item({"n": n}, headers={"by": "x"}) for n in range(5)])
    leases = raw_orders.reserve(5)
    payloads = [{"n": 1}, b"raw", None, "", 0]

    assert raw_orders.move_many(leases, "clean", payloads=payloads, headers={"trace": "t"}) == [True] * 5

    found = clean.reserve(9)
    assert [(one.id, one.payload) for one in found] == list(zip(ids, payloads, strict=True))
    assert found[0].headers == {"by": "x", "trace": "t"}
    assert raw_orders.counts()["pending"] == 0
    assert (raw_orders.totals()["moved_out"], clean.totals()["moved_in"]) == (5, 5)


def test_without_payloads_they_stay_as_they_are(raw_orders: Any, clean: Any) -> None:
    raw_orders.push_many([{"n": 1}, b"raw"])
    assert raw_orders.move_many(raw_orders.reserve(2), CLEAN, priority=2, delay=60) == [True, True]
    assert clean.counts()["scheduled"] == 2
    assert {record.priority for record in clean.tasks("scheduled")} == {2}


def test_a_long_batch_is_several_scripts_in_one_round_trip(raw_orders: Any, trips: list[int]) -> None:
    raw_orders.push_many(range(700))
    leases = raw_orders.reserve(700)
    del trips[:]
    assert raw_orders.move_many(leases, "clean", payloads=range(700)) == [True] * 700
    assert trips == [2, 2, 3], "the target is looked up and registered once"
    raw_orders.push_many(["x" * 400_000] * 4)
    leases = raw_orders.reserve(4)
    del trips[:]
    assert raw_orders.move_many(leases, "clean", payloads=["y" * 400_000] * 4) == [True] * 4
    assert trips == [2]


def test_nothing_asks_nothing(raw_orders: Any, trips: list[int]) -> None:
    assert raw_orders.move_many([], "clean", payloads=[]) == []
    assert trips == []


def test_refused_moves_do_not_hide_the_others(raw_orders: Any, clean: Any, clock: Any) -> None:
    clock.set()
    clean.configure(max_size=1)
    raw_orders.push_many(list("abcde"))
    over, lost = raw_orders.reserve(2, keepalive=1)
    gone, fine, full = raw_orders.reserve(3)
    gone.commit()
    clock.advance(1000)
    raw_orders.reserve(1)

    with pytest.raises(ReportsRefused) as caught:
        raw_orders.move_many([over, gone, lost, fine, full], "clean", payloads=range(5))

    said = [verdict if isinstance(verdict, bool) else type(verdict) for verdict in caught.value.verdicts]
    assert said == [LeaseLost, False, NotReserved, True, TargetFull]
    assert [record.payload for record in clean.tasks("waiting")] == [3]
    assert caught.value.verdicts[-1].queue == "orders/clean"
    with pytest.raises(TargetFull, match="queue 'orders/clean' has reached its max_size") as alone:
        full.move("clean")
    assert alone.value.queue == "orders/clean"
    assert full.commit(), "it is still under its lease"


def test_an_item_that_went_round_too_often_stays_under_its_lease(raw_orders: Any) -> None:
    raw_orders.push_many(range(2))
    assert raw_orders.move_many(raw_orders.reserve(1), "raw", max_hops=1) == [True]
    fresh, tired = raw_orders.reserve(2)
    with pytest.raises(ReportsRefused) as caught:
        raw_orders.move_many([fresh, tired], "clean", max_hops=1)
    assert isinstance(caught.value.verdicts[1], TooManyHops)
    with pytest.raises(TooManyHops, match="made 1 hops, the most allowed"):
        tired.move("clean", max_hops=1)
    assert tired.commit()


def test_what_cannot_be_is_refused_before_anything_moves(raw_orders: Any, way: Any, client: Any) -> None:
    orders = Pipeline("orders", client)
    orders.station("raw", to="clean")(lambda item: None)
    orders.declare("clean")
    orders.push_many("raw", range(2))
    way.queue("other").push(1)
    leases, other = raw_orders.reserve(2), way.queue("other").reserve()
    refused: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (InvalidOption, "1 payloads are given for 2 leases", (leases, "clean"), {"payloads": [1]}),
        (UsageError, "7 is no lease", ([*leases, 7], "clean"), {}),
        (UsageError, "reserved from queue 'other'", (other, "clean"), {}),
        (PipelineError, "has no queue 'claen'; did you mean 'clean'", (leases, "claen"), {}),
        (UsageError, "cannot be stored as JSON", (leases, "clean"), {"payloads": [1, float("nan")]}),
        (InvalidOption, "priority", (leases, "clean"), {"priority": 9}),
    ]
    for kind, said, given, options in refused:
        with pytest.raises(kind, match=said):
            raw_orders.move_many(*given, **options)
    assert raw_orders.commit_many(leases) == [True, True], "all of them are still held"
