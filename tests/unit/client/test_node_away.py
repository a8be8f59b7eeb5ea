"""What a client does while a node of a cluster is away that has one of the keys without a queue."""

import pytest
import redis

from jobrunner import Client
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.operations import routing
from jobrunner.client.operations.dead_and_history import note_changes
from jobrunner.client.operations.operation import run_operation
from jobrunner.errors import ServerUnavailable
from jobrunner.etl import Pipeline
from tests.support.absent_node import take_away


def test_what_was_done_is_no_error_though_the_node_of_the_events_is_away(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead tasks were put back, and the call raised ServerUnavailable, which says that nothing was sent."""
    queue = client.queue("mail")
    queue.configure(max_attempts=1)
    ids = queue.push_many([1, 2, 3])
    for lease in queue.reserve(3):
        lease.rollback(error="broken")
    take_away(broker_of(client), monkeypatch, lambda key: key == keys_of(client).events)

    assert queue.requeue_dead(ids[:2]) == 2
    assert queue.purge("dead") == 1
    assert queue.purge("waiting") == 2
    run_operation(broker_of(client), note_changes(keys_of(client), "requeue", {"mail": 1}))
    run_operation(broker_of(client), note_changes(keys_of(client), "delete", {"mail": 1}, "dead"))
    assert queue.delete()


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_program_enqueues_into_queues_that_exist_though_the_node_of_their_list_is_away(
    client: Client, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """The first enqueue of each program failed, however long other programs had used the queue."""
    keys, late = keys_of(client), [0.0]
    monkeypatch.setattr(routing.Routes, "on_several_nodes", True)
    monkeypatch.setattr(routing, "monotonic", lambda: 1000.0 + late[0])
    client.queue("mail").push("known")  # into the first shard, which registers itself with its first task
    client.queue("mail").configure(partitions=partitions)
    with Client(client.settings.url, client.settings.prefix) as fresh:
        with monkeypatch.context() as absent:
            take_away(broker_of(fresh), absent, lambda key: key == keys.queues)
            fresh.queue("mail").push("a")
            fresh.queue("mail").push_many(["b", "c"])
            for _ in range(2):
                with pytest.raises(ServerUnavailable, match="queue 'new' is new and cannot be registered: node h:1"):
                    fresh.queue("new").push("d")
            assert not raw.keys(keys.queue("new").waiting.replace(b"waiting", b"*"))
        raw.srem(keys.queues, "mail")  # as if nobody had registered it
        fresh.queue("mail").push("e")
        assert fresh.queues() == []
        late[0] = 6.0
        fresh.queue("mail").push("f")
        assert fresh.queues() == ["mail"]
    assert client.queue("mail").counts()["waiting"] == 6


def test_a_pipeline_takes_items_though_the_node_of_the_list_of_queues_is_away(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing.Routes, "on_several_nodes", True)
    client.queue("orders/raw").push("known")
    with Client(client.settings.url, client.settings.prefix) as fresh:
        orders = Pipeline("orders", fresh)
        orders.station("raw", to="clean")(lambda item: item.payload)
        orders.sink("clean")(lambda _item: None)
        take_away(broker_of(fresh), monkeypatch, lambda key: key in (keys_of(fresh).queues, keys_of(fresh).pipelines))
        orders.push("raw", 1)
        orders.push_many("raw", [2, 3])
    assert client.queue("orders/raw").counts()["waiting"] == 4
