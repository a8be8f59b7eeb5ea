"""The outcome of an item for each return value of a station."""

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from jobrunner.errors import InvalidOption, ParameterError
from jobrunner.etl import Drop, Pipeline, To
from jobrunner.outcome import Dropped, Fail, FannedOut, Moved, Retry

FALSY = [0, "", None, False, [], {}, 0.0]
Visit = Callable[..., Any]


def station(pipeline: Pipeline, answer: Callable[[Any], Any], to: Any = "next", **options: Any) -> None:
    @pipeline.station("raw", to=to, **options)
    def work(item: Any) -> Any:
        return answer(item)


def test_a_returned_payload_goes_on_and_nothing_leaves_it_as_it_is(orders: Pipeline, visit: Visit) -> None:
    station(orders, lambda item: {**item.payload, "b": 2} if item.payload["a"] else None)

    changed, kept = visit("orders/raw", {"a": 1}), visit("orders/raw", {"a": 0})

    assert changed == Moved(queue="orders/next", payload=b'{"a":1,"b":2}', max_hops=100)
    assert kept == Moved(queue="orders/next", payload=None, max_hops=100)


@pytest.mark.parametrize("value", FALSY, ids=repr)
def test_every_falsy_payload_travels_as_given(orders: Pipeline, visit: Visit, value: Any) -> None:
    """KEU-35: also None, which To says; among the items of a fan-out it is one like any other."""
    stored = json.dumps(value).encode()
    station(orders, lambda item: To("next", value))
    assert visit("orders/raw", "old").payload == stored

    if value is not None:
        plain = Pipeline("plain")
        station(plain, lambda item: value)
        assert visit("plain/raw", "old").payload == stored

    spread = Pipeline("spread")
    station(spread, lambda item: [value, value], fan_out=True)
    assert [child.payload for child in visit("spread/raw", "old").children] == [stored] * 2


def test_bytes_travel_as_bytes(orders: Pipeline, visit: Visit) -> None:
    station(orders, lambda item: b"\x00")

    assert (visit("orders/raw").payload, visit("orders/raw").encoding) == (b"\x00", "")


def test_to_names_the_queue_by_its_short_or_full_name_and_steers(orders: Pipeline, visit: Visit) -> None:
    answers = {
        "short": To("a", headers={"by": "raw"}, delay=timedelta(seconds=2), priority=2),
        "full": To("orders/b", None),
    }
    station(orders, lambda item: answers[item.payload], to=("a", "b"))

    assert visit("orders/raw", "short", headers=b'{"trace":"1"}') == Moved(
        queue="orders/a", headers=b'{"trace":"1","by":"raw"}', delay_s=2.0, priority=2, max_hops=100
    )
    assert visit("orders/raw", "full") == Moved(queue="orders/b", payload=b"null", max_hops=100)


@pytest.mark.parametrize("options", [{"delay": -1}, {"priority": 3}, {"headers": {"n": 1}}])
def test_a_wrong_option_of_to_is_refused_where_it_is_written(options: Any) -> None:
    with pytest.raises(InvalidOption):
        To("a", **options)


@pytest.mark.parametrize("answer", [None, {"a": 1}, 0])
def test_at_a_fork_a_plain_answer_is_an_error_that_names_the_ways(orders: Pipeline, visit: Visit, answer: Any) -> None:
    station(orders, lambda item: answer, to=("home", "abroad"))

    with pytest.raises(Fail, match=r"'orders/raw' returned .* return To\(queue\)") as died:
        visit("orders/raw")

    assert (died.value.retry, "'orders/abroad'" in str(died.value)) == (False, True)


def test_to_a_queue_that_is_no_target_is_an_error_that_names_the_nearest(orders: Pipeline, visit: Visit) -> None:
    station(orders, lambda item: To(item.payload), to=("home", "abroad"))

    with pytest.raises(Fail, match="did you mean 'abroad'"):
        visit("orders/raw", "aboard")
    with pytest.raises(Fail, match="of pipeline 'other'"):
        visit("orders/raw", "other/home")


def test_dropping_is_returned_or_raised(orders: Pipeline, visit: Visit) -> None:
    def raises(item: Any) -> None:
        raise Drop("a duplicate")

    station(orders, lambda item: Drop() if item.payload else raises(item))

    assert visit("orders/raw", 1) == visit("orders/raw", 0) == Dropped()


def test_steering_and_errors_are_the_workers_business(orders: Pipeline, visit: Visit) -> None:
    station(orders, lambda item: Retry(in_=3) if item.payload else 1 / 0)

    assert isinstance(visit("orders/raw", 1), Retry)
    with pytest.raises(ZeroDivisionError):
        visit("orders/raw", 0)


def test_what_cannot_be_stored_kills_the_item_with_the_reason(orders: Pipeline, visit: Visit) -> None:
    station(orders, lambda item: object())

    with pytest.raises(Fail, match="cannot be stored as JSON"):
        visit("orders/raw")


def test_a_list_is_one_payload_unless_the_station_fans_out(orders: Pipeline, visit: Visit) -> None:
    """KEU-27: and then each of it is an item, which To may steer; a bare To keeps the payload of the parent."""
    station(orders, lambda item: [1, 2])
    fan = Pipeline("fan")
    station(fan, lambda item: [1, To("b", [2]), To("b")], to="b", fan_out=True)

    assert visit("orders/raw").payload == b"[1,2]"
    spread = visit("fan/raw", "parent")
    assert isinstance(spread, FannedOut)
    assert [(child.queue, child.payload) for child in spread.children] == [
        ("fan/b", b"1"),
        ("fan/b", b"[2]"),
        ("fan/b", b'"parent"'),
    ]


def test_a_fan_out_may_yield_make_nothing_or_leave_the_item_as_it_is(orders: Pipeline, visit: Visit) -> None:
    @orders.station("raw", to="next", fan_out=True)
    def work(item: Any) -> Iterator[int]:
        yield from range(item.payload)
        if item.payload > 5:
            raise Drop

    assert len(visit("orders/raw", 3).children) == 3
    assert visit("orders/raw", 0) == visit("orders/raw", 6) == Dropped()

    plain = Pipeline("plain")
    station(plain, lambda item: None, fan_out=True)
    assert visit("plain/raw", "kept") == Moved(queue="plain/next", payload=b'"kept"', max_hops=100)


@pytest.mark.parametrize("several", [list, tuple])
@pytest.mark.parametrize("to", ["next", ("next", "other")])
def test_several_targets_of_an_item_without_fan_out_are_an_error(
    orders: Pipeline, visit: Visit, several: Any, to: Any
) -> None:
    """They went on as one item, whose payload was made of the attributes of these objects."""
    station(orders, lambda item: several([To("next", 1), To("next", 2)]), to=to)

    with pytest.raises(Fail, match=r"returned a (list|tuple) of To\(...\), which is one payload: .* fan_out=True"):
        visit("orders/raw")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("text", "returned str; return a list"),
        ({"a": 1}, "returned dict; return a list"),
        (7, "returned int; return a list"),
        ([Drop()], "returned Drop among its items"),
        (range(1001), "made more than 1000 items of one"),
    ],
)
def test_what_is_no_fan_out_is_an_error(orders: Pipeline, visit: Visit, answer: Any, said: str) -> None:
    station(orders, lambda item: answer, fan_out=True)

    with pytest.raises(Fail, match=said):
        visit("orders/raw")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_fan_out_without_end_is_an_error_at_once(orders: Pipeline, visit: Visit, is_async: bool) -> None:
    made: list[int] = []
    ended: list[bool] = []

    @orders.station("plain", to="next", fan_out=True)
    def plain(item: Any) -> Iterator[int]:
        for n in range(10**6):
            made.append(n)
            yield n

    @orders.station("awaited", to="next", fan_out=True)
    async def awaited(item: Any) -> Any:
        try:
            for n in plain(item):
                yield n
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    with pytest.raises(Fail, match="made more than 1000 items of one"):
        asyncio.run(visit("orders/awaited")) if is_async else visit("orders/plain")
    assert len(made) == 1001
    assert ended == [True] * is_async


def test_an_error_of_a_generator_is_its_own_whatever_its_class(orders: Pipeline, visit: Visit) -> None:
    """An error of jobrunner, as of a wrong call in the function, counted as a wrong return value: the item was dead at
    once, without a traceback."""

    @orders.station("raw", to="next", fan_out=True)
    def parts(item: Any) -> Any:
        yield 1
        raise ParameterError("of the function")

    with pytest.raises(ParameterError, match="of the function"):
        visit("orders/raw")


def test_a_fan_out_with_several_ways_needs_to_for_each(orders: Pipeline, visit: Visit) -> None:
    station(orders, lambda item: [To("a", 1), 2], to=("a", "b"), fan_out=True)

    with pytest.raises(Fail, match=r"return To\(queue\)"):
        visit("orders/raw")


def test_the_result_of_a_sink_is_what_it_returns(orders: Pipeline, visit: Visit) -> None:
    @orders.sink("end")
    def store(item: Any) -> Any:
        return To("raw") if item.payload == "on" else [item.payload]

    assert visit("orders/end", 1) == [1]
    with pytest.raises(Fail, match="a sink is the end of the line"):
        visit("orders/end", "on")


def test_coroutine_functions_and_async_generators_are_stations_too(orders: Pipeline, visit: Visit) -> None:
    @orders.station("raw", to="next")
    async def one(item: Any) -> Any:
        await asyncio.sleep(0)
        if item.payload is None:
            raise Drop
        return item.payload + 1

    @orders.station("many", to="next", fan_out=True)
    async def many(item: Any) -> Any:
        yield 1
        yield 2

    assert asyncio.run(visit("orders/raw", 1)).payload == b"2"
    assert asyncio.run(visit("orders/raw", None)) == Dropped()
    assert len(asyncio.run(visit("orders/many")).children) == 2


def test_what_waits_for_room_is_never_within_a_loop(orders: Pipeline, visit: Visit) -> None:
    @orders.station("raw", to=("work", "raw"))
    def first(item: Any) -> To:
        return To(item.payload)

    @orders.station("work", to="check")
    def second(item: Any) -> None: ...

    @orders.station("check", to=("work", "end"))
    def third(item: Any) -> To:
        return To(item.payload)

    orders.declare("end")
    assert [visit("orders/raw", "raw").waits, visit("orders/raw", "work").waits] == [False, True]
    assert visit("orders/work").waits is False
    assert [visit("orders/check", "work").waits, visit("orders/check", "end").waits] == [False, True]
