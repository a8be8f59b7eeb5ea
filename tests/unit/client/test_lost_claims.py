"""The reply to the claim of a batch is lost: the driver gets the batch by sending the claim again, and no attempt is
counted."""

from collections.abc import Iterator
from typing import Any

import pytest

from jobrunner.broker.calls import batches as calls
from jobrunner.client.batches import Batches, BatchLease
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.errors import BatchLost
from tests.reliability.proxy import Proxy
from tests.support.server import topology_name

pytestmark = pytest.mark.skipif(topology_name() == "cluster", reason="a proxy leads to one server")
RAW = "orders/raw"


@pytest.fixture
def driver(proxy: Proxy, client: Client, clock: Any) -> Iterator[Batches]:
    """The batches of a driver whose replies get lost, on a stopped clock."""
    clock.set()
    with Client(proxy.url, client.settings.prefix, now_ms=clock, retry_timeout=30) as made:
        yield Batches(broker_of(made), keys_of(made).queue(RAW))


def taken_and_ended(driver: Batches, clock: Any) -> str:
    """The id of a batch whose driver died: its lease ended."""
    lease = driver.take(10, lease_s=30)
    assert lease is not None
    clock.advance(31_000)
    return lease.id


def claimed_again(driver: Batches, proxy: Proxy) -> BatchLease:
    proxy.lose_replies("batch_claim")
    lease = driver.take(0, lease_s=30)
    assert proxy.lost["batch_claim"] == 1
    assert lease is not None
    return lease


def test_the_claim_is_sent_again_and_returns_the_same_batch(
    driver: Batches, proxy: Proxy, client: Client, clock: Any
) -> None:
    ids = client.queue(RAW).push_many(range(4))
    taken_and_ended(driver, clock)

    lease = claimed_again(driver, proxy)

    assert (lease.epoch, lease.size, lease.state, lease.members(0, 9)) == (2, 4, "open", ids)
    lease.renew()
    lease.stage("1", [word for one in ids for word in (one, "clean", b"1", "")])
    lease.decide(["1"], rest="dropped")
    assert lease.advance().moved == 4


def test_an_item_that_may_be_tried_twice_is_not_given_up_for_a_lost_reply(
    driver: Batches, proxy: Proxy, client: Client, clock: Any
) -> None:
    client.queue(RAW).configure(max_attempts=2)
    client.queue(RAW).push("once more")
    taken_and_ended(driver, clock)

    lease = claimed_again(driver, proxy)

    assert (lease.state, lease.size) == ("open", 1)
    assert client.queue(RAW).counts()["dead"] == 0


def test_a_decided_batch_is_handed_out_to_be_rolled_forward(
    driver: Batches, proxy: Proxy, client: Client, clock: Any
) -> None:
    client.queue(RAW).push_many(range(3))
    lease = driver.take(10, lease_s=30)
    assert lease is not None
    lease.decide([], rest="dropped")
    clock.advance(31_000)

    again = claimed_again(driver, proxy)

    assert (again.id, again.state, again.advance().ended) == (lease.id, "committed", 3)


def test_the_lease_is_that_of_the_first_of_two_equal_calls(driver: Batches, client: Client, clock: Any) -> None:
    client.queue(RAW).push_many(range(3))
    batch_id = taken_and_ended(driver, clock)
    call = calls.claim(driver.keys, batch_id, lease_ms=30_000, name="a1")
    first = driver.broker.run(call)
    clock.advance(10_000)

    assert driver.broker.run(call) == first
    assert driver.broker.run(calls.claim(driver.keys, batch_id, lease_ms=30_000, name="b2")) is False


def test_a_call_that_arrives_after_its_lease_is_one_more_claim(driver: Batches, client: Client, clock: Any) -> None:
    client.queue(RAW).push_many(range(3))
    batch_id = taken_and_ended(driver, clock)
    call = calls.claim(driver.keys, batch_id, lease_ms=30_000, name="a1")
    driver.broker.run(call)
    clock.advance(31_000)

    again = driver.broker.run(call)

    assert (again.epoch, again.failures) == (3, 0)
    with pytest.raises(BatchLost):
        driver.broker.run(calls.renew(driver.keys, batch_id, 2, lease_ms=30_000, claim="a1"))
