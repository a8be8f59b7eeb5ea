"""Actors that write new items in batches, as the sink of Spark does: all rows of a write arrive, or none."""

import itertools
from collections.abc import Callable

from jobrunner.client.batches import BatchLease
from jobrunner.errors import BatchLost, ServerRefused
from tests.simulation.scheduler import Actor
from tests.simulation.workers import IN, LEASE_S, UNKNOWN, batches_of

WRITES = ("write-1", "write-2")


def writer(name: str, rounds: int) -> Callable[[Actor], None]:
    """Writes one batch after the other, also one that another writer has under way or has written. It may be late, or
    take back what it began."""

    def job(actor: Actor) -> None:
        random, attempts = actor.world.random, itertools.count(1)
        for _ in range(rounds):
            attempt = random.choice(("", f"{name}-{next(attempts)}"))
            try:
                _write(actor, random.choice(WRITES), attempt, f"{name}-{next(attempts)}")
            except (*UNKNOWN, BatchLost, ServerRefused) as error:
                actor.hears(error)
            actor.sleep(random.random() * 4)

    return job


def _write(actor: Actor, batch_id: str, attempt: str, prefix: str) -> None:
    random = actor.world.random
    lease = batches_of(actor, IN).open(lease_s=LEASE_S, batch_id=batch_id, attempt=attempt)
    if lease.state == "open":
        nonces = {}
        for number in range(random.choice((1, 2, 3))):
            nonce, ids = f"{prefix}-{number}", [f"{prefix}-{number}-{n}" for n in range(random.choice((1, 2, 3)))]
            _stage(actor, lease, nonce, ids)
            if not number or random.random() < 0.7:  # else a task of Spark that was run twice
                nonces[nonce] = len(ids)
            if random.random() < 0.2:
                actor.sleep(LEASE_S * random.choice((0.5, 1.1)))
        end = random.random()
        if end < 0.1:
            lease.dissolve()
        elif end < 0.2:
            lease.fail("ValueError: no", delay_s=0.0)
        if end < 0.2:
            return
        lease.decide(nonces, rest="succeeded")
    while lease.state != "done" and not lease.advance(random.choice((1, 2, None))).full:
        pass


def _stage(actor: Actor, lease: BatchLease, nonce: str, ids: list[str]) -> None:
    to = actor.world.random.choice(("out", "in"))
    for after, one in enumerate(ids):
        lease.stage(nonce, [one, to, b"row", '{"new":1}'], after=after)


def last_writer(actor: Actor) -> None:
    """Writes what is not written, without faults."""
    for name in WRITES:
        lease = batches_of(actor, IN).open(lease_s=LEASE_S, batch_id=name)
        if lease.state == "open":
            _stage(actor, lease, "last", [f"last-{name}"])
            lease.decide({"last": 1}, rest="succeeded")
