"""A dead letter queue is known before the first task comes: a death adds it to no registry."""

from collections.abc import Iterator

import pytest

from jobrunner import Client, queue
from jobrunner.jobs.declared_queues import forget_queue
from jobrunner.worker.declarations import publish_declared


@pytest.fixture
def declared() -> Iterator[None]:
    queue("letters", dead_letter_queue="letters/dead")
    yield
    forget_queue("letters")


def test_one_that_is_configured_is_registered(client: Client) -> None:
    client.queue("p/main").configure(dead_letter_queue="p/dead")
    assert client.queues() == ["p/dead", "p/main"]


def test_one_that_is_declared_is_registered(client: Client, declared: None) -> None:
    publish_declared(client, heartbeat_s=5)
    assert client.queues() == ["letters", "letters/dead"]
