"""Decided batches are rolled forward beside a lane of a station."""

import threading

from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import Keys
from jobrunner.client.batches import Batches
from jobrunner.client.client import Client
from jobrunner.spark.station.background import RollForward


def test_a_write_into_a_full_queue_does_not_keep_a_lane_from_making_room(
    client: Client, broker: Broker, keys: Keys
) -> None:
    """A write of more rows than the queue takes, whose writer has left the rest to the workers. A lane waited for its
    end before it rolled its own batch forward, and took no further items: both stood still."""
    queue, batches = client.queue("a/in"), Batches(broker, keys.queue("a/in"))
    queue.configure(max_size=1)
    write = batches.open(lease_s=60)
    write.stage("n", [word for one in "uvw" for word in (one, "in", b"1", '{"new":1}')], after=0)
    write.decide({"n": 3}, rest="succeeded")
    lane = RollForward(threading.Event())
    lane.hand(write, lambda: None, lambda _: None)
    lane.wait(20)
    assert lane.lease is None
    assert write.state == "committed"
    for one in "uvw":
        (lease,) = queue.reserve()
        assert lease.id == one
        lease.commit()
        write.advance()
    assert write.state == "done"
