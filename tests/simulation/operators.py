"""Actors that change by hand what is in a queue, and workers that take from it in every other way: tasks are cancelled,
requeued, run now, removed, deleted and popped, the queue is paused, and keepers report crashes."""

from collections.abc import Callable, Sequence
from typing import Any

from jobrunner.broker.call import Call
from jobrunner.broker.calls import leases, queues, tasks
from jobrunner.broker.keys import QueueKeys
from jobrunner.client.item import Item
from tests.simulation.scheduler import Actor
from tests.simulation.workers import KEYS, LEASE_S, NEXT, UNKNOWN, await_items, queue_of, until_known

_QUEUE = KEYS.queue(NEXT)
_STATES = {
    "cancel": ("waiting", "scheduled", "pending", "dead"),
    "requeue": ("dead", "dead", "waiting", "pending"),
    "run_now": ("scheduled",),
    "remove": ("waiting", "scheduled", "dead", "pending"),
    "delete": ("pending",),
}


def next_producer(items: list[list[Item]], acknowledged: set[str]) -> Callable[[Actor], None]:
    """Pushes each list of items, again when it does not know what became of it."""

    def job(actor: Actor) -> None:
        queue = queue_of(actor, NEXT)
        for some in items:
            acknowledged.update(until_known(actor, lambda some=some: queue.push_many(some)))  # type: ignore[misc]
            actor.sleep(actor.world.random.random() * 2)

    return job


def operator(
    rounds: int, queue: QueueKeys = _QUEUE, does: Sequence[str] = tuple(_STATES), pauses: float = 0.2
) -> Callable[[Actor], None]:
    """Does one thing after the other to tasks that are there; what it asks for may be too late when it arrives."""

    def job(actor: Actor) -> None:
        random = actor.world.random
        for _ in range(rounds):
            actor.sleep(random.random() * 3)
            try:
                if random.random() < pauses:
                    actor.broker.run(queues.configure(queue, {"paused": random.choice((1, "+1500"))}))
                    actor.sleep(random.random() * 3)
                    actor.broker.run(queues.configure(queue, {"paused": ""}))
                elif call := _change(actor, queue, random.choice(does)):
                    actor.broker.run(call)
            except UNKNOWN as error:
                actor.hears(error)

    return job


def _change(actor: Actor, queue: QueueKeys, what: str) -> Call[Any] | None:
    """A call that changes some tasks of one state; None when there are none. Looks past the network for them."""
    world = actor.world
    state = getattr(queue, world.random.choice(_STATES["requeue" if what == "spaced" else what]))
    ids = [one.decode() for one in world.server.ask("ZRANGE", state, 0, 2, now_ms=world.now)]
    if not ids:
        return None
    if what in ("cancel", "delete"):
        one = world.random.choice(ids)
        return tasks.cancel(queue, one, keep_ms=60_000_000) if what == "cancel" else tasks.delete(queue, one)
    if what == "spaced":  # one after the other, as `requeue_dead(rate=…)` does it
        start_ms, step_ms = world.random.choice((0, 700)), world.random.choice((400, 3000))
        return tasks.requeue(queue, ids, start_ms=start_ms, step_ms=step_ms)
    return {"requeue": tasks.requeue, "run_now": tasks.run_now, "remove": tasks.remove}[what](queue, ids)


def taker(rounds: int, queue: QueueKeys = _QUEUE) -> Callable[[Actor], None]:
    """Takes tasks out of the queue with `pop`, or under leases that end with a crash, as a lease keeper reports it, or
    for good, also when that is sent again."""

    def job(actor: Actor) -> None:
        random = actor.world.random
        for _ in range(rounds):
            await_items(actor, queue.name)
            try:
                if random.random() < 0.3:
                    actor.broker.run(leases.pop(queue, random.choice((1, 2))))
                    continue
                token = random.getrandbits(50)
                reserve = leases.reserve(queue, random.choice((1, 2)), token=token, keepalive_ms=round(LEASE_S * 1000))
                held = actor.broker.run(reserve).attempts
                if random.random() < 0.3:
                    actor.sleep(LEASE_S * random.choice((0.1, 0.9, 1.0, 1.1)))
                _end(actor, queue, [(one.id, one.token) for one in held])
                if not held:
                    actor.sleep(random.random() * 3)
            except UNKNOWN as error:
                actor.hears(error)
                actor.sleep(random.random())

    return job


def _end(actor: Actor, queue: QueueKeys, held: list[tuple[str, str]]) -> None:
    random = actor.world.random
    if not held:
        return
    if random.random() < 0.5:
        reports = [(task_id, token, random.random() < 0.5) for task_id, token in held]
        actor.broker.run(leases.crash(queue, reports, reason="signal 9"))
    else:
        delays = ("", "!", "~500", 0, 500)
        actor.broker.run(leases.release(queue, [(*one, random.choice(delays)) for one in held]))


def last_operator(actor: Actor) -> None:
    """Ends a pause."""
    actor.broker.run(queues.configure(_QUEUE, {"paused": ""}))
