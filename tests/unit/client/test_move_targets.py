"""A published pipeline refuses moves to queues that it does not have, as no station would serve them."""

from typing import Any

import pytest
import redis

from jobrunner.client.client import Client, keys_of
from jobrunner.errors import PipelineError
from jobrunner.etl import Pipeline


@pytest.fixture
def line(client: Client) -> Pipeline:
    made = Pipeline("line", client)
    made.station("raw", to="out")(lambda item: item.payload)
    made.sink("out")(lambda item: None)
    made.declare("spare")
    return made


def test_a_target_that_a_published_pipeline_has_not_is_refused(line: Pipeline, way: Any, trips: list[int]) -> None:
    line.push_many("raw", range(4))
    queue = way.queue("line/raw")
    first, second, third, fourth = queue.reserve(4)

    with pytest.raises(PipelineError, match=r"pipeline 'line' has no queue 'otu'; did you mean 'out'\?"):
        first.move("otu")
    with pytest.raises(PipelineError, match="did you mean 'spare'"):
        first.move("line/spar")
    assert queue.counts()["pending"] == 4
    assert way.queue("line/otu").counts()["waiting"] == 0

    trips.clear()
    assert all([first.move("out"), second.move("line/out"), third.move("spare"), fourth.move("raw", delay=5)])
    assert sorted(trips) == [1, 1, 1, 1, 2, 2], "each target is looked up once, its own queue never"


def test_a_queue_beside_the_declared_ones_may_be_used_when_something_was_pushed_there(
    line: Pipeline, way: Any
) -> None:
    line.push("raw", 1)
    way.queue("line/extra").push("by hand")
    (lease,) = way.queue("line/raw").reserve()

    assert lease.move("extra")


def test_where_no_pipeline_was_published_every_queue_of_the_tag_is_allowed(way: Any) -> None:
    way.queue("bare/raw").push(1)
    (lease,) = way.queue("bare/raw").reserve()

    assert lease.move("anything")
    assert way.queue("bare/anything").counts()["waiting"] == 1


@pytest.mark.parametrize("damage", ["text", "type"])
def test_a_graph_that_cannot_be_read_refuses_nothing(line: Pipeline, way: Any, raw: redis.Redis, damage: str) -> None:
    line.push("raw", 1)
    if damage == "text":
        raw.hset(keys_of(way).pipelines, "line", b"{")
    else:
        raw.set(keys_of(way).pipelines, "x")
    (lease,) = way.queue("line/raw").reserve()

    assert lease.move("otu")
