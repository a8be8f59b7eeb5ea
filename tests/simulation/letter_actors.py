"""Actors of a queue whose tasks have a time to begin, and go to a dead letter queue when they die."""

from collections.abc import Callable
from functools import partial

from jobrunner.broker.calls import leases
from jobrunner.client.item import Item
from tests.simulation.scheduler import Actor
from tests.simulation.workers import KEYS, LEASE_S, UNKNOWN, await_items, queue_of, until_known

POST, LETTERS = KEYS.queue("post/in"), KEYS.queue("post/dead")
LONGEST_MS = 4000


def post_producer(rounds: int, acknowledged: set[str]) -> Callable[[Actor], None]:
    """Pushes items, some of which are to begin soon or are due later than that."""

    def job(actor: Actor) -> None:
        queue, choice = queue_of(actor, POST.name), actor.world.random.choice
        for number in range(rounds):
            items = [
                Item(
                    b"%d" % (10 * number + n), in_=choice((0, 0, 0, 1.0, 5.0)), priority=choice((None, None, 0, 2)),
                    expires_in=choice((None, None, 0.4, 2.0)), max_attempts=choice((None, None, 1, 3)),
                ) for n in range(choice((1, 2, 3)))
            ]  # fmt: skip
            acknowledged.update(until_known(actor, partial(queue.push_many, items)))
            actor.sleep(actor.world.random.random() * 4)

    return job


def post_worker(rounds: int, name: str) -> Callable[[Actor], None]:
    """Takes items and ends them in every way: done, tried again soon or much later, dead, or abandoned."""

    def job(actor: Actor) -> None:
        random, keys = actor.world.random, KEYS.queue(name)
        for _ in range(rounds):
            await_items(actor, name)
            try:
                token, wanted = random.getrandbits(50), random.choice((1, 2, 3))
                call = leases.reserve(keys, wanted, token=token, keepalive_ms=round(LEASE_S * 1000))
                held = [(one.id, one.token) for one in actor.broker.run(call).attempts]
                if random.random() < 0.3:
                    actor.sleep(LEASE_S * random.choice((0.1, 0.9, 1.0, 1.1)))
                end = random.random()
                if not held:
                    actor.sleep(random.random() * 3)
                elif end < 0.3:
                    ended = [(*one, 0, "succeeded", b"", b"", "") for one in held]
                    actor.broker.run(leases.commit(keys, ended))
                elif end < 0.8:
                    fates = [(random.choice((0, 500, 6000)), random.choice(("retry", "retry", "dead"))) for _ in held]
                    failed = [(*one, *fate, "ValueError: no") for one, fate in zip(held, fates, strict=True)]
                    actor.broker.run(leases.fail(keys, failed, worker="w"))
            except UNKNOWN as error:
                actor.hears(error)
                actor.sleep(random.random())

    return job


def last_post_worker(actor: Actor) -> None:
    """Ends everything that is in both queues, without faults."""
    queues = [queue_of(actor, keys.name) for keys in (POST, LETTERS)]
    everything = [key for one in (POST, LETTERS) for key in (one.waiting, one.scheduled, one.pending)]
    while actor.world.holds(*everything):
        for queue in queues:
            if held := queue.reserve(10, keepalive=LEASE_S):
                queue.commit_many(held)
        actor.sleep(1.0)
