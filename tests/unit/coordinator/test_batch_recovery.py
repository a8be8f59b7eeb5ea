"""The leader finishes decided batches whose driver is gone. Each turn is one `step()`."""

import pytest

from jobrunner import Client
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import command
from jobrunner.broker.calls.queues import register
from jobrunner.broker.keys import Keys
from jobrunner.client.batches import ROWS_AT_ONCE, Batches, BatchLease
from jobrunner.coordinator.recovery import BatchRecovery
from jobrunner.coordinator.scan import LeaderScan, ScanBudget
from jobrunner.errors import ServerRefused
from tests.support.clock import Clock

RAW, CLEAN = "orders/raw", "orders/clean"


@pytest.fixture
def decided(broker: Broker, keys: Keys, clock: Clock) -> "Looked":
    clock.set()
    return Looked(broker, keys)


class Looked:
    """Runs the maintenance task after a scan."""

    def __init__(self, broker: Broker, keys: Keys) -> None:
        self._chore = BatchRecovery(broker, keys)
        self._look = LeaderScan(broker, keys, 0.0, [self._chore.take], ScanBudget(1000.0))

    def step(self) -> float:
        self._look.step()
        return self._chore.step()


def taken(broker: Broker, keys: Keys, client: Client, n: int) -> BatchLease:
    """A batch of n items with a row for each, not decided."""
    ids = client.queue(RAW).push_many(range(n))
    lease = Batches(broker, keys.queue(RAW)).take(n, lease_s=30)
    assert lease is not None
    for first in range(0, n, ROWS_AT_ONCE):
        lease.stage("n", [word for one in ids[first : first + ROWS_AT_ONCE] for word in (one, "clean", b"1", "")])
    return lease


def test_a_decided_batch_is_finished_when_its_driver_is_gone(
    decided: Looked, broker: Broker, keys: Keys, client: Client, clock: Clock
) -> None:
    taken(broker, keys, client, 3).decide(["n"], rest="dropped")
    decided.step()
    assert client.queue(CLEAN).counts()["waiting"] == 0
    clock.advance(30_000)

    decided.step()

    assert client.queue(CLEAN).counts()["waiting"] == 3
    assert client.queue(RAW).counts()["pending"] == 0


def test_an_open_batch_is_left_for_its_drivers(
    decided: Looked, broker: Broker, keys: Keys, client: Client, clock: Clock
) -> None:
    lease = taken(broker, keys, client, 3)
    clock.advance(30_000)

    decided.step()

    again = Batches(broker, keys.queue(RAW)).take(3, lease_s=30)
    assert again is not None
    assert (again.id, again.epoch) == (lease.id, 2)


def test_a_large_batch_takes_several_turns(
    decided: Looked, broker: Broker, keys: Keys, client: Client, clock: Clock
) -> None:
    taken(broker, keys, client, 25_000).decide(["n"], rest="dropped")
    clock.advance(30_000)

    turns = 0
    while left := client.queue(RAW).counts()["pending"]:
        decided.step()
        assert client.queue(RAW).counts()["pending"] < left
        clock.advance(1_000)
        turns += 1

    assert turns > 1
    assert client.queue(CLEAN).counts()["waiting"] == 25_000


def test_a_queue_that_is_damaged_holds_no_other_up(
    decided: Looked, broker: Broker, keys: Keys, client: Client, clock: Clock
) -> None:
    broker.run(command("ZADD", keys.queue("a/odd").finishing, 1, "b", read=int))
    broker.run(command("RPUSH", keys.queue("a/odd").batch + b"b", "no hash", read=int))
    taken(broker, keys, client, 3).decide(["n"], rest="dropped")
    broker.run_many(register(keys.queue("a/odd"), ["a/odd"]))
    clock.advance(30_000)

    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        decided.step()

    assert client.queue(CLEAN).counts()["waiting"] == 3


def test_a_full_queue_holds_nothing_else_up(
    decided: Looked, broker: Broker, keys: Keys, client: Client, clock: Clock
) -> None:
    client.queue(CLEAN).configure(max_size=2)
    taken(broker, keys, client, 3).decide(["n"], rest="dropped")
    clock.advance(30_000)
    decided.step()
    assert client.queue(RAW).counts()["pending"] == 1
    client.queue(CLEAN).pop(1)
    clock.advance(30_000)

    decided.step()

    assert client.queue(RAW).counts()["pending"] == 0
