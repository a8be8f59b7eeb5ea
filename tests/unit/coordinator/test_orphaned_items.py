"""The leader returns items to waiting that are pending for a batch that no longer exists."""

import pytest

from jobrunner.broker.calls import leases
from jobrunner.client.batches import Batches
from jobrunner.coordinator import recovery
from jobrunner.coordinator.coordinator import Coordinator, LeaderTimes
from jobrunner.coordinator.cron import PeriodicTicks
from jobrunner.coordinator.recovery import OrphanedItems
from jobrunner.errors import ServerRefused

RAW = "orders/raw"


@pytest.fixture
def strand(broker, keys, client, raw):
    """strand("orders/raw", 3): leaves three items of a batch whose hash is gone; returns their ids in order."""

    def run(queue, count):
        ids = client.queue(queue).push_many(range(count))
        lease = Batches(broker, keys.queue(queue)).take(count, lease_s=30)
        assert lease is not None
        raw.delete(keys.queue(queue).batch + lease.id.encode())
        return ids

    return run


def lead(broker, keys):
    leader = Coordinator(broker, keys, "a", LeaderTimes(30, 5.0), served=[], cron=PeriodicTicks(broker, keys, None))
    for _ in range(30):
        leader.step()


def test_a_new_leader_repairs_what_it_finds(broker, keys, client, raw, strand):
    ids = {queue: strand(queue, count) for queue, count in ((RAW, 700), ("orders/clean", 1))}

    lead(broker, keys)

    for queue, there in ids.items():
        assert client.queue(queue).ids("waiting", limit=1000) == there
        assert client.queue(queue).counts()["pending"] == 0
        assert not list(raw.scan_iter(match=keys.queue(queue).batch + b"*:members"))


@pytest.mark.parametrize(("count", "steps"), [(2, [2, 0]), (3, [3, 0]), (4, [2, 2, 0]), (5, [2, 3, 0])])
def test_a_slice_leaves_no_single_item_which_would_look_like_one_of_a_program(broker, keys, strand, count, steps):
    strand(RAW, count)
    assert [broker.run(leases.reclaim(keys.queue(RAW), count=2)).items for _ in steps] == steps


def test_the_list_of_an_open_batch_is_in_use(broker, keys, client, raw):
    queue = keys.queue(RAW)
    client.queue(RAW).push_many(range(3))
    lease = Batches(broker, queue).take(3, lease_s=30)
    found = broker.run(leases.reclaim(queue, batch_id=lease.id, count=9))
    assert (found.items, found.list_in_use) == (0, True)
    raw.delete(queue.batch + lease.id.encode())
    found = broker.run(leases.reclaim(queue, batch_id=lease.id, count=9))
    assert (found.items, found.list_in_use) == (3, False)


def test_items_of_an_open_batch_stay_where_they_are(broker, keys, client, strand):
    ids = client.queue(RAW).push_many(range(3))
    lease = Batches(broker, keys.queue(RAW)).take(3, lease_s=30)
    stranded = strand(RAW, 2)

    lead(broker, keys)

    assert client.queue(RAW).ids("waiting") == stranded
    assert client.queue(RAW).ids("pending") == ids
    assert lease.members(0, 3) == ids


def test_a_queue_of_no_pipeline_is_looked_at_once_a_batch_of_it_was_decided(broker, keys, client, strand):
    client.queue("mail").push("x")
    lease = Batches(broker, keys.queue("mail")).take(1, lease_s=30)
    lease.decide([], rest="succeeded")
    ids = strand("mail", 3)

    lead(broker, keys)

    assert client.queue("mail").ids("waiting") == ids


def test_what_cannot_be_read_keeps_no_other_queue_from_it(broker, keys, client, raw, strand):
    ids = strand(RAW, 3)
    client.queue("broken/q").push(1)
    raw.delete(keys.queue("broken/q").leases)
    raw.set(keys.queue("broken/q").leases, "damage")
    task = OrphanedItems(broker, keys, lambda: {RAW, "broken/q"})

    with pytest.raises(ServerRefused):
        task.step()

    assert client.queue(RAW).ids("waiting") == ids


def test_it_looks_again_after_a_while(broker, keys, client, strand, monkeypatch):
    monkeypatch.setattr(recovery, "_EVERY_S", 0.0)
    monkeypatch.setattr(recovery, "_S_OF_A_QUEUE", 0.0)
    task = OrphanedItems(broker, keys, lambda: {RAW})
    for _ in range(3):
        task.step()
    ids = strand(RAW, 3)
    for _ in range(3):
        task.step()
    assert client.queue(RAW).ids("waiting") == ids
