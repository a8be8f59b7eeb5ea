"""Items enter the pipeline, and the rest is counted, on a real server."""

from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from jobrunner import Item
from jobrunner.broker.call import command
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.etl import Pipeline
from jobs_example import dataset
from jobs_example.demos.flights.damage import DAMAGED_ROWS, Damage
from jobs_example.demos.flights.feed import Feed
from jobs_example.demos.flights.published import Notes
from jobs_example.demos.pipelines.remains import remains

FLIGHTS = 2_500


@pytest.fixture
def pipeline(client: Client) -> Pipeline:
    """A pipeline with one station, which no worker serves."""
    made = Pipeline("fed", client)
    made.sink("raw")(lambda item: item.payload)
    return made


@pytest.fixture
def some_flights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first flights of January represent the month."""
    first = list(islice(dataset.raw_flights(month=1), FLIGHTS))
    monkeypatch.setattr(dataset, "raw_flights", lambda month: iter(first))


@pytest.mark.usefixtures("some_flights")
def test_flights_enter_under_their_own_ids_with_damaged_rows_among_them(pipeline: Pipeline) -> None:
    damage, notes = Damage(2013, among=FLIGHTS), Notes()
    with Feed(pipeline, 1, damage, notes) as feed:
        feed._thread.join()

    entered = pipeline.queue("raw").ids("waiting", limit=10_000)
    assert feed.pushed == len(entered) == FLIGHTS + DAMAGED_ROWS
    assert set(entered) == notes.expected(of_the_year=False).ids | {bad.id for bad in damage.done}


@pytest.mark.usefixtures("some_flights")
def test_a_feed_that_is_left_pushes_no_more(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed(pipeline, 1, Damage(2013, among=FLIGHTS), Notes())
    push_all = pipeline.push_all

    def leave_soon(queue: str, items: Iterator[Item], progress: Callable[[int], None]) -> int:
        def told(pushed: int) -> None:
            progress(pushed)
            feed._over.set()

        return push_all(queue, items, progress=told)

    monkeypatch.setattr(pipeline, "push_all", leave_soon)
    with feed:
        feed._thread.join()

    assert not feed.is_alive
    assert feed.pushed == pipeline.queue("raw").counts()["waiting"] == 1000


def test_what_is_left_is_counted_and_the_dead_have_their_reason(pipeline: Pipeline, client: Client) -> None:
    pipeline.push_many("raw", ["a", "b", "c"])
    queue = pipeline.queue("raw")
    queue.configure(max_attempts=1)
    (lease,) = queue.reserve(1)
    lease.rollback(error="month=13 is not between 1 and 12")
    left = remains(client, pipeline)

    assert (left.open, left.items, left.staged) == (2, 3, ())
    assert left.dead == {lease.id: "month=13 is not between 1 and 12"}


@pytest.mark.parametrize("key", ["batch:7-fed:rows:1.x", "batch:7-fed:manifest", "raw:batches", "raw:finishing"])
def test_keys_of_a_batch_that_is_not_over_are_found(pipeline: Pipeline, client: Client, key: str) -> None:
    broker_of(client).run(command("SADD", keys_of(client).tag_base("fed") + key.encode(), "word", read=int))

    assert remains(client, pipeline).staged == (key,)


def test_the_tombstone_of_a_batch_is_nothing_left(pipeline: Pipeline, client: Client) -> None:
    broker_of(client).run(command("HSET", keys_of(client).tag_base("fed") + b"batch:7-fed", "state", "done", read=int))

    assert remains(client, pipeline).staged == ()
