"""Actors of a queue that is emptied, deleted and used again, or that keeps history: what is there goes away without a
report of a worker."""

from collections.abc import Callable
from functools import partial

from jobrunner.broker.calls import queues
from jobrunner.client.item import Item
from jobrunner.client.lease import Lease
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.routing import Routes
from jobrunner.client.queue import Queue
from jobrunner.coordinator.coordinator import LeaderTimes
from jobrunner.errors import LeaseError, QueueNotEmpty, ReportsRefused, TaskGone
from tests.simulation.scheduler import Actor
from tests.simulation.workers import KEYS, LEASE_S, UNKNOWN, coordinator_of, leader, until_known

SPARE = "spare/in"
_QUEUE = KEYS.queue(SPARE)
_LEAVING_S = 80.0
"""After so long a leader has looked again at every queue that left the registry."""


def spare_of(actor: Actor) -> Queue:
    """The queue, of a client that registers it once."""
    routes = Routes(KEYS, actor.broker.endpoint)
    return Queue(actor.broker, QueueRef(KEYS, None, SPARE, 1 << 20, routes=routes))


def spare_producer(rounds: int, acknowledged: set[str]) -> Callable[[Actor], None]:
    """Pushes some items now and then."""

    def job(actor: Actor) -> None:
        queue, random = spare_of(actor), actor.world.random
        for number in range(rounds):
            delays = [random.choice((0, 0, 2.0)) for _ in range(random.choice((1, 2, 3)))]
            items = [Item(b"%s-%d-%d" % (actor.name[-1:].encode(), number, n), in_=in_) for n, in_ in enumerate(delays)]
            acknowledged.update(until_known(actor, partial(queue.push_many, items)))
            actor.sleep(random.random() * random.choice((2, 8)))

    return job


def spare_worker(rounds: int) -> Callable[[Actor], None]:
    """Takes items, some of which fail, or stay leased until that is over; some are popped or deleted."""

    def job(actor: Actor) -> None:
        queue, random = spare_of(actor), actor.world.random
        for _ in range(rounds):
            actor.sleep(random.random() * 2)
            try:
                if random.random() < 0.1:
                    queue.pop()
                    continue
                held = queue.reserve(random.choice((1, 2, 3)), keepalive=LEASE_S)
                if random.random() < 0.3:
                    actor.sleep(LEASE_S * random.choice((0.1, 0.9, 1.1)))
                _end(actor, queue, held)
            except (*UNKNOWN, LeaseError, ReportsRefused) as error:
                actor.hears(error)

    return job


def _end(actor: Actor, queue: Queue, held: list[Lease]) -> None:
    random = actor.world.random
    end = random.random()
    if held and end < 0.1:
        queue.delete(held[0].id)
    elif held and end < 0.7:
        queue.commit_many(held)
    elif end < 0.9:
        for lease in held:
            lease.rollback(delay=random.choice((0, 0.5)), error="ValueError: no")


def deleter(rounds: int) -> Callable[[Actor], None]:
    """Deletes the queue with all that it holds, or only when it is empty."""

    def job(actor: Actor) -> None:
        queue, random = spare_of(actor), actor.world.random
        for _ in range(rounds):
            actor.sleep(random.random() * 6)
            try:
                queue.delete(force=random.random() < 0.4)
            except (*UNKNOWN, QueueNotEmpty) as error:
                actor.hears(error)

    return job


def purger(rounds: int, *, of_history: bool) -> Callable[[Actor], None]:
    """Deletes some of what is in one state."""

    def job(actor: Actor) -> None:
        random = actor.world.random
        for _ in range(rounds):
            actor.sleep(random.random() * 8)
            state = random.choice(("waiting", "scheduled", "dead", "done" if of_history else "dead"))
            try:
                actor.broker.run(queues.purge(_QUEUE, state, count=random.choice((1, 2, 1000))))
            except UNKNOWN as error:
                actor.hears(error)

    return job


def replayer(rounds: int) -> Callable[[Actor], None]:
    """Has items of the history done once more."""

    def job(actor: Actor) -> None:
        queue, random = spare_of(actor), actor.world.random
        for _ in range(rounds):
            actor.sleep(random.random() * 8)
            try:
                if ended := queue.history(3):
                    queue.replay(random.choice(ended).id)
            except (*UNKNOWN, TaskGone) as error:
                actor.hears(error)

    return job


def spare_leader(name: str, rounds: int) -> Callable[[Actor], None]:
    """A coordinator that forgets queues that are unused for some seconds."""
    return leader(rounds, name, LeaderTimes(ttl_s=6.0, sweep_s=2.0, forget_queues_s=2.0))


def last_spare_worker(actor: Actor) -> None:
    """Ends everything that is there, and leads until every queue that left the registry was looked at again."""
    queue, holds = spare_of(actor), actor.world.holds
    while holds(_QUEUE.waiting, _QUEUE.scheduled, _QUEUE.pending):
        if held := queue.reserve(10, keepalive=LEASE_S):
            queue.commit_many(held)
        else:
            actor.sleep(1.0)
    ends = actor.world.now + _LEAVING_S * 1000
    coordinator = coordinator_of(actor, "the last", LeaderTimes(ttl_s=60.0, sweep_s=20.0))
    while holds(KEYS.queues_leaving) and actor.world.now < ends:
        actor.sleep(coordinator.step())
