"""One loop for the slices of all queues of a worker."""

from typing import Any

import pytest
import redis

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls.shards import ShardCounts
from jobrunner.broker.keys import Keys
from jobrunner.errors import ServerUnavailable
from jobrunner.worker.shards import ServedShards
from jobrunner.worker.slices import SliceLoop


class OneAway:
    """A broker of a cluster; the node of one queue does not answer."""

    def __init__(self, broker: Broker, key: bytes) -> None:
        self._broker, self._key = broker, key

    def is_away(self, _error: Exception) -> bool:
        return False

    def run_many(self, calls: Any) -> list[Any]:
        if any(self._key in call.words for call in calls):
            raise ServerUnavailable("no server")
        return self._broker.run_many(calls)

    def run_each(self, calls: Any) -> list[Any]:
        return self._broker.run_each(calls)


def test_a_queue_whose_node_is_away_holds_up_no_other(broker: Broker, keys: Keys, raw: redis.Redis) -> None:
    """Its error ended the turn. Where it took longer than the second until the queue was due again, slices of the
    queues behind it stayed where they were for as long as the node was away."""
    counts = [ShardCounts(partitions=2, served=2, keyed=2, is_limited=True)] * 2
    shards = ServedShards(keys, {"gone": 1, "good": 1}, counts)
    balancing = SliceLoop(OneAway(broker, keys.queue("gone").balanced), keys, [shards])  # type: ignore[arg-type]

    with pytest.raises(ServerUnavailable):
        balancing.step()

    assert raw.exists(keys.queue("good").balanced), "it was looked at"
    assert not raw.exists(keys.queue("gone").balanced)
