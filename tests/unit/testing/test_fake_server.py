"""The fake server: fakeredis behind a socket."""

from collections.abc import Iterator

import pytest

from jobrunner.broker.call import command
from jobrunner.client.client import Client, broker_of
from jobrunner.errors import ServerRefused, ServerUnavailable
from jobrunner.testing import open_server
from tests.support.waiting import wait_for


@pytest.fixture
def fake() -> Iterator[Client]:
    with open_server("fake") as url, Client(url, "fake", retry_timeout=0) as client:
        yield client


def test_a_payload_of_the_largest_size_goes_there_and_back(fake: Client) -> None:
    queue, payload = fake.queue("large"), bytes(range(256)) * 4096
    for _ in range(8):
        queue.push(payload)
    assert [lease.payload == payload for lease in queue.reserve(8)] == [True] * 8


def test_a_connection_lives_on_after_an_error_reply(fake: Client) -> None:
    first = broker_of(fake).run(command("CLIENT", "ID", read=int))
    with pytest.raises(ServerRefused, match="unknown command"):
        broker_of(fake).run(command("NO-SUCH-COMMAND", read=int))
    assert broker_of(fake).run(command("CLIENT", "ID", read=int)) == first


def test_a_lease_that_ends_is_noted_in_a_group_of_errors(fake: Client) -> None:
    """Its script calls redis.sha1hex, which fakeredis itself does not have."""
    queue = fake.queue("q")
    queue.push("x", keepalive=0.05)
    queue.reserve(1)
    wait_for(lambda: queue.counts()["waiting"] == 1)
    (again,) = queue.reserve(1)
    assert (again.attempts, fake.task(again.id, queue="q").record().failures[0].what) == (2, "expired")


def test_nothing_answers_after_its_end() -> None:
    with open_server("fake") as url:
        pass
    with Client(url, retry_timeout=0) as client, pytest.raises(ServerUnavailable):
        client.queues()
