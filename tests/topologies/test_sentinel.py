"""Behind Sentinel: the drivers find the primary, and find the next one when it fails over."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest
from redis.exceptions import ResponseError

from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import new_tasks, queues
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.broker.notifier import WakeListener
from jobrunner.errors import OutcomeUnknown, ServerUnavailable
from jobrunner.task import Task
from tests.support.waiting import wait_for
from tests.topologies.servers import Behind

pytestmark = pytest.mark.topology
KEYS = Keys("t")
MAIL = KEYS.queue("mail")


@pytest.fixture(scope="module")
def behind() -> Iterator[Behind]:
    started = Behind()
    yield started
    started.remove()


@pytest.fixture
def broker(behind: Behind) -> Iterator[Broker]:
    made = Broker(Endpoint(behind.url), retry_timeout_s=30)
    yield made
    made.close()


def enqueue(*ids: str):
    return new_tasks.enqueue(MAIL, [Task(id=one, queue="mail", payload=b"") for one in ids])


def test_calls_go_to_the_next_primary_after_a_failover(behind: Behind, broker: Broker) -> None:
    """R21: both drivers, with connections that rested, a write that is repeated and one that may not be."""
    old = behind.primary()
    assert broker.run(enqueue("a")) == [True]
    listener = WakeListener(broker, [MAIL])
    assert listener.wait(5) == "mail"
    behind.wait_replicated()
    old.kill()

    assert broker.run(enqueue("b")) == [True]
    assert broker.run(leader_calls.metadata_increment(KEYS, "Job", "n", 1)) == 1
    assert asyncio.run(_counted(behind)) == 2
    assert behind.primary() is not old
    with pytest.raises(ServerUnavailable):
        listener.wait(5)
    assert listener.wait(5) == "mail"
    listener.close()
    old.start()
    behind.wait_replicated()


async def _counted(behind: Behind) -> int:
    broker = AsyncBroker(Endpoint(behind.url), retry_timeout_s=30)
    try:
        return (await broker.run(queues.counts(MAIL))).waiting
    finally:
        await broker.close()


def test_a_primary_that_comes_back_is_written_to_by_nobody(behind: Behind, broker: Broker) -> None:
    """It was frozen during the failover, and claims to be the primary until a sentinel corrects it."""
    broker.run(enqueue("c"))
    behind.wait_replicated()
    old = behind.primary()
    old.stop_still()
    new = behind.fail_over(old)
    brief = Broker(Endpoint(behind.url, timeout_s=0.5), retry_timeout_s=20)

    assert brief.run(enqueue("d")) == [True]
    old.go_on()
    assert broker.run(enqueue("e")) == [True]
    wait_for(lambda: old.role() == "slave", timeout_s=60)
    behind.wait_replicated()
    assert new.connect().exists(MAIL.task("d"), MAIL.task("e")) == 2
    brief.close()


def test_a_demoted_server_is_left_although_it_keeps_its_connections(behind: Behind, broker: Broker) -> None:
    """READONLY: nothing was done, so even what may not be repeated is sent to the new primary."""
    broker.run(leader_calls.metadata_increment(KEYS, "Job", "k", 1))
    behind.wait_replicated()
    old = behind.primary()
    wait_for(lambda: _begins_failover(behind))
    behind.fail_over(old)

    assert broker.run(leader_calls.metadata_increment(KEYS, "Job", "k", 1)) == 2
    behind.wait_replicated()


def _begins_failover(behind: Behind) -> bool:
    """A sentinel refuses while it has not heard from the replica again, which was away in the test before."""
    with suppress(ResponseError):
        return bool(behind.sentinels[0].ask("SENTINEL", "FAILOVER", "m"))
    return False


def test_what_is_not_on_a_replica_in_time_is_told(behind: Behind) -> None:
    from jobrunner.broker.calls.server import confirmation

    behind.wait_replicated()
    patient, broker = (Broker(Endpoint(behind.url), confirmation=confirmation("replicated", s)) for s in (20, 0.2))
    assert patient.write([enqueue("f")]) == [[True]]
    follower = next(one for one in behind.servers if one is not behind.primary())
    follower.stop_still()

    with pytest.raises(OutcomeUnknown):
        broker.write([enqueue("g")])
    follower.go_on()
    patient.close()
    broker.close()
