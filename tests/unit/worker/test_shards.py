"""What a worker knows of the shards of its queues."""

import structlog

from jobrunner.broker.calls.shards import UNKNOWN, WITHOUT, ShardCounts
from jobrunner.broker.keys import Keys
from jobrunner.worker.shards import ServedShards


def test_a_worker_of_many_queues_learns_of_the_partitions_of_each() -> None:
    """The first hundred were asked for with each heartbeat, and the others never."""
    keys = Keys("p")
    queues = {f"q{n}": 1 for n in range(102)}
    served = ServedShards(keys, queues, [WITHOUT] * len(queues))
    more = ShardCounts(partitions=4, served=4, keyed=4, is_limited=True)
    partitioned = {keys.queue(queue).settings: more for queue in ("q0", "q101")}
    for _ in range(2):
        asked = served.asking()
        assert len(asked) == 100
        served.take([partitioned.get(call.keys[0], WITHOUT) for call in asked])

    assert served.limited == {"q0": 4, "q101": 4}
    assert {"q0@3", "q101@3"} <= served.weights.keys()
    assert len(served.weights) == 102 + 3 + 3


def test_a_worker_warns_once_when_the_server_has_lost_the_partitions_of_a_queue() -> None:
    """It went on serving them without a word, and no worker that started later did."""
    four = ShardCounts(partitions=4, served=4, keyed=4)
    served = ServedShards(Keys("p"), {"mail": 1}, [four])
    with structlog.testing.capture_logs() as logged:
        for found in (four, UNKNOWN, WITHOUT, WITHOUT, four, WITHOUT):
            served.asking()
            served.take([found])
    lost = [(line["queue"], line["partitions"]) for line in logged if "lost the partitions" in line["event"]]
    assert lost == [("mail", 4)] * 2
    assert len(served.weights) == 4
