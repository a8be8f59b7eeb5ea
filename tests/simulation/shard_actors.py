"""The actors of a queue with partitions: its shards have slices of one limit, which follow the load."""

from collections.abc import Callable
from functools import partial

from jobrunner.broker.shards import shard_names
from jobrunner.client.item import Item
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.flow_relay import relay
from jobrunner.client.operations.routing import Routes
from jobrunner.client.queue import Queue
from jobrunner.errors import InvalidOption, LeaseError, ReportsRefused
from tests.simulation.flow_actors import commit_steps
from tests.simulation.scheduler import Actor
from tests.simulation.workers import KEYS, LEASE_S, UNKNOWN, until_known

MAIL = "mail"
MOST_SHARDS = 3
SHARDS = tuple(map(KEYS.queue, shard_names(MAIL, MOST_SHARDS)))


def mail_of(actor: Actor) -> Queue:
    """The queue through the driver of an actor, with what a client learns of its shards."""
    routes = Routes(KEYS, actor.broker.endpoint)
    return Queue(actor.broker, QueueRef(KEYS, None, MAIL, 1 << 20, routes=routes))


def mail_producer(
    limit: int, note_limit: Callable[[], None], acknowledged: set[str], **options: int
) -> Callable[[Actor], None]:
    """Configures the queue until that is known to be done, and then pushes items, some of them with a key. Later it may
    add a shard."""

    def job(actor: Actor) -> None:
        queue, random = mail_of(actor), actor.world.random
        if not _configured(actor, queue, partitions=random.choice((2, 2, 3)), max_inflight=limit, **options):
            return
        note_limit()
        for _ in range(random.choice((1, 2, 3))):
            keys = [random.choice((None, "a", "b", "c")) for _ in range(random.choice((1, 2, 3)))]
            items = [Item(b"x", partition=key) for key in keys]
            acknowledged.update(until_known(actor, partial(queue.push_many, items)))
            actor.sleep(random.random() * 2)
        if random.random() < 0.3:
            _configured(actor, queue, partitions=MOST_SHARDS)

    return job


def _configured(actor: Actor, queue: Queue, **options: int) -> bool:
    def once() -> list[str]:
        queue.configure(**options)
        return ["done"]

    try:
        return bool(until_known(actor, once))
    except InvalidOption as error:  # its first call was applied, and more leases are held by now
        actor.hears(error)
        return False


def mail_worker(rounds: int, *, has_steps: bool = False) -> Callable[[Actor], None]:
    """Reserves items of all shards, so that slices follow the load, and commits, releases or abandons them.
    `has_steps`: some are steps of flows, whose ends it relays, and some fail."""

    def job(actor: Actor) -> None:
        queue, random = mail_of(actor), actor.world.random
        for _ in range(rounds):
            actor.sleep(random.random() * 2)
            try:
                held = queue.reserve(random.choice((1, 2, 3)), keepalive=LEASE_S)
                if random.random() < 0.3:
                    actor.sleep(LEASE_S * random.choice((0.1, 0.9, 1.1)))
                if not held:
                    continue
                end = random.random()
                if has_steps and end < 0.2:
                    held[0].rollback(delay=random.choice((0, 0.5)), error="ValueError: no")
                elif has_steps and end < 0.6:
                    commit_steps(actor, queue, held)
                elif end < 0.6:
                    queue.commit_many(held)
                elif end < 0.8:
                    queue.release_many(held)
            except (*UNKNOWN, LeaseError, ReportsRefused) as error:
                actor.hears(error)

    return job


def last_mail_worker(actor: Actor) -> None:
    """Ends everything that is there, without faults, until no shard has any."""
    queue, holds = mail_of(actor), actor.world.holds
    everything = [key for shard in SHARDS for key in (shard.waiting, shard.scheduled, shard.pending)]
    outboxes = {shard.tag: shard.outbox for shard in SHARDS}
    while holds(*everything, *outboxes.values()):
        if holds(*outboxes.values()):
            relay(actor.broker, KEYS, tags=outboxes)
        if held := queue.reserve(10, keepalive=LEASE_S):
            queue.commit_many(held)
        else:
            actor.sleep(1.0)
