"""When a new batch of a station on Spark begins; needs no Spark."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import batches as batch_calls
from jobrunner.broker.calls.batches import foremost
from jobrunner.broker.keys import Keys
from jobrunner.client.batches import Batches
from jobrunner.client.client import Client, keys_of
from jobrunner.errors import BatchLost, InvalidOption
from jobrunner.etl import Pipeline
from jobrunner.etl.spark_station import LARGEST_AUTO, SMALLEST_AUTO
from jobrunner.spark.station.gathering import BatchSizes, Gathering
from tests.support.registries import forget_pipelines

ABOVE = "orders/raw"
HERE = "orders/clean"


@pytest.fixture(autouse=True)
def _no_pipelines_left() -> Iterator[None]:
    """Pipelines of this module have names that others use."""
    yield
    forget_pipelines()


class Waiting:
    """Stands for the pause between two looks: runs what the test has prepared, one thing a pause."""

    def __init__(self, *happens: Callable[[], Any]) -> None:
        self.happens = list(happens)
        self.pauses = 0

    def wait(self, seconds: float) -> bool:
        self.pauses += 1
        assert self.happens, "it went on to wait"
        self.happens.pop(0)()
        return False

    def clear(self) -> None: ...


@pytest.fixture
def gather(broker: Broker, keys: Keys, client: Client) -> Callable[..., tuple[int, int]]:
    """gather(…, options of the station): (size of the batch, pauses that it waited for); one look is always made."""

    def run(*happens: Callable[[], Any], entry: bool = False, **options: Any) -> tuple[int, int]:
        orders = Pipeline("orders", client)
        orders.spark_sink("clean", **{"max_wait": 600, **options})(lambda df, spark, batch: None)
        if not entry:
            orders.station("raw", to="clean")(lambda item: None)
        station = orders.spark_stations[HERE]
        batches, sizes = Batches(broker, keys.queue(HERE)), BatchSizes(station)
        above = [keys.queue(name) for name in station.link.above()]
        gathering = Gathering(station, batches, above, sizes, lambda: False)
        gathering._pause = waiting = Waiting(*happens)  # type: ignore[assignment]
        lease = batches.take(sizes.wanted, lease_s=60)
        assert lease is not None
        gathering.fill(lease)
        assert not gathering.is_busy
        return lease.size, waiting.pauses

    return run


def test_a_batch_begins_when_the_queues_before_are_empty(gather: Any, client: Client) -> None:
    client.queue(HERE).push_many(range(5))
    assert gather(batch=50) == (5, 0)


def test_below_min_rows_it_waits_for_more(gather: Any, client: Client) -> None:
    here = client.queue(HERE)
    here.push_many(range(5))
    more = [lambda: here.push(0), lambda: here.push_many(range(2))]
    assert gather(*more, batch=500, min_rows=8) == (8, 2)


def test_a_tenth_of_a_batch_is_enough_without_min_rows(gather: Any, client: Client) -> None:
    here = client.queue(HERE)
    here.push_many(range(9))
    assert gather(lambda: here.push(0), batch=100) == (10, 1)


@pytest.mark.parametrize("state", ["waiting", "pending", "due soon"])
def test_it_waits_while_something_is_on_its_way(gather: Any, client: Client, state: str) -> None:
    here, above = client.queue(HERE), client.queue(ABOVE)
    here.push_many(range(5))
    task_id = above.push(1, **({"in_": 300} if state == "due soon" else {}))
    held = above.reserve(keepalive=60) if state == "pending" else []

    def ends() -> None:
        for lease in held:
            lease.commit()
        if not held:
            assert client.task(task_id).cancel()

    assert gather(lambda: None, ends, batch=50) == (5, 2)


def test_what_is_due_behind_max_wait_is_not_waited_for(gather: Any, client: Client) -> None:
    client.queue(HERE).push_many(range(5))
    client.queue(ABOVE).push(1, in_=3600)
    assert gather(batch=50) == (5, 0)


def test_an_entry_waits_to_be_full_as_programs_may_push_at_any_time(gather: Any, client: Client) -> None:
    here = client.queue(HERE)
    here.push_many(range(5))
    assert gather(lambda: None, lambda: here.push_many(range(9)), entry=True, batch=12) == (12, 2)


def test_a_full_batch_waits_for_nothing(gather: Any, client: Client) -> None:
    client.queue(HERE).push_many(range(9))
    assert gather(batch=7, min_rows=1) == (7, 0)


def test_a_batch_that_was_lost_while_it_was_gathered_is_not_run(gather: Any, client: Client, broker: Broker) -> None:
    client.queue(HERE).push(1)
    thief = Batches(broker, keys_of(client).queue(HERE))

    def steal() -> None:
        (batch_id,) = broker.run(foremost(thief.keys, "batches", 1))
        broker.run(batch_calls.renew(thief.keys, batch_id, 1, lease_ms=-1))
        assert thief.take(0, lease_s=60) is not None

    with pytest.raises(BatchLost):
        gather(steal, batch=50, entry=True)


def test_a_worker_that_was_quiet_for_a_moment_does_not_poll_without_a_pause(broker: Broker, client: Client) -> None:
    orders = Pipeline("orders", client)
    orders.spark_sink("clean", max_wait=0.3)(lambda df, spark, batch: None)
    station, batches = orders.spark_stations[HERE], Batches(broker, keys_of(client).queue(HERE))
    client.queue(HERE).push(1)
    gathering = Gathering(station, batches, [], BatchSizes(station), lambda: False)
    polls: list[bool] = []

    class Pause(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if not polls:
                gathering.interrupt()  # it was told to be quiet, and to go on at once
            polls.append(super().wait(timeout))
            return polls[-1]

    gathering._pause = Pause()
    gathering.fill(batches.take(10, lease_s=60))  # type: ignore[arg-type]
    assert polls.count(True) == 1
    assert len(polls) <= 12


def test_an_automatic_size_follows_the_time_that_full_batches_take(client: Client) -> None:
    orders = Pipeline("orders", client)
    orders.spark_sink("clean", batch="auto")(lambda df, spark, batch: None)
    sizes = BatchSizes(orders.spark_stations[HERE])
    assert sizes.wanted == SMALLEST_AUTO
    sizes.saw(SMALLEST_AUTO, 0.5)
    assert sizes.wanted == 2 * SMALLEST_AUTO, "at most twice as large"
    sizes.saw(SMALLEST_AUTO, 0.1)
    assert sizes.wanted == 2 * SMALLEST_AUTO, "a small one says nothing"
    sizes.saw(2 * SMALLEST_AUTO, 6.25)
    assert sizes.wanted == 1.6 * SMALLEST_AUTO
    for _ in range(9):
        sizes.saw(sizes.wanted, 0)
    assert sizes.wanted == LARGEST_AUTO
    for _ in range(9):
        sizes.saw(sizes.wanted, 3600)
    assert sizes.wanted == SMALLEST_AUTO


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": "big"}, "batch='big' of queue 'clean': give a number of items, or 'auto'"),
        ({"batch": 0}, "batch=0"),
        ({"batch": 10, "min_rows": 11}, "min_rows=11"),
        ({"min_rows": 0}, "min_rows=0"),
        ({"parallel": 0}, "parallel=0"),
        ({"parallel": 17}, "parallel=17"),
    ],
)
def test_wrong_options_are_refused_where_they_are_declared(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Pipeline("orders").spark_station("clean", to="late", **options)
    assert said in str(caught.value)
