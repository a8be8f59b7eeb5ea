"""What a client does while a node of a cluster is away that has one of the keys without a queue."""

import pytest

from jobrunner import Client
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.operations.dead_and_history import note_changes
from jobrunner.client.operations.operation import run_operation
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
