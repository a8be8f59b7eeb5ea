"""The actors: what producers, workers, drivers and leaders do in a run. They call the product, and draw what they do
from the random numbers of the world."""

from collections.abc import Callable
from functools import partial

from jobrunner.broker.keys import Keys
from jobrunner.client.batches import Batches, BatchLease
from jobrunner.client.item import Item
from jobrunner.client.lease import Lease
from jobrunner.client.operations.enqueue import QueueRef, enqueue_call, placed
from jobrunner.client.operations.flow_relay import relay
from jobrunner.client.queue import Queue
from jobrunner.coordinator.coordinator import Coordinator, LeaderTimes
from jobrunner.coordinator.cron import PeriodicTicks
from jobrunner.coordinator.maintenance import OwnQueues
from jobrunner.errors import BatchLost, LeaseError, OutcomeUnknown, QueueFull, ReportsRefused, ServerUnavailable
from jobrunner.task import Lock, Task, new_id
from tests.simulation.scheduler import Actor

KEYS = Keys("s")
IN, OUT, NEXT = "orders/in", "orders/out", "next/in"
QUEUES = tuple(map(KEYS.queue, (IN, OUT, NEXT)))
_REPEATS_S = 4.0
"""How long after its first try a producer pushes again under the same id: notes of calls outlast that."""
_CLASHES = ("ignore", "replace", "reschedule")
UNKNOWN = (OutcomeUnknown, ServerUnavailable)
LEASE_S = 3.0
_TIMES = LeaderTimes(ttl_s=6.0, sweep_s=2.0)


def queue_of(actor: Actor, name: str) -> Queue:
    """A queue through the driver of an actor."""
    return Queue(actor.broker, QueueRef(KEYS, None, name, 1 << 20))


def batches_of(actor: Actor, name: str) -> Batches:
    """Its batches. The time of a round trip, which sizes of slices are learned from, is known."""
    made = Batches(actor.broker, KEYS.queue(name))
    for slices in (made.filling, made.advancing, made.staging):
        slices._round_trip_s = 0.0
    return made


def await_items(actor: Actor, name: str) -> None:
    """Naps while a queue is empty, for some seconds at most. Looks past the network: polls would be most of a run."""
    keys, random = KEYS.queue(name), actor.world.random
    for _ in range(4):
        if actor.world.holds(keys.waiting, keys.scheduled, keys.pending):
            return
        actor.sleep(random.random() * 3)


def producer(items: list[list[Item]], acknowledged: set[str]) -> Callable[[Actor], None]:
    """Pushes each list of items, again when it does not know what became of it."""

    def job(actor: Actor) -> None:
        queue, random = queue_of(actor, IN), actor.world.random
        for some in items:
            acknowledged.update(until_known(actor, partial(queue.push_many, some)))
            actor.sleep(random.random() * 2)

    return job


def _enqueue(actor: Actor, task: Task) -> list[str]:
    return [placed(task, actor.broker.run(enqueue_call(KEYS, None, [task], 1 << 20)))[0]]


def until_known(actor: Actor, add: Callable[[], list[str]]) -> list[str]:
    """The ids that a call returns. It is repeated while its outcome is unknown; [] when the queue is full."""
    began = actor.world.now
    while actor.world.now - began < _REPEATS_S * 1000:
        try:
            return add()
        except UNKNOWN as error:
            actor.hears(error)
            actor.sleep(actor.world.random.random())
        except QueueFull:
            break
    return []


def unique_producer(count: int, acknowledged: set[str], queue: str = IN) -> Callable[[Actor], None]:
    """Enqueues unique tasks under one lock, each again when it does not know what became of it."""

    def job(actor: Actor) -> None:
        random, keys = actor.world.random, KEYS.queue(queue)
        for _ in range(count):
            lasts, on_clash = random.choice(("started", "finished", "expired")), random.choice(_CLASHES)
            lock = Lock(digest="same", lasts=lasts, ttl_ms=random.choice((1500, 100_000)), on_clash=on_clash)
            is_kept = on_clash == "ignore"  # with a type: an item of a bare queue is gone when it is committed
            task = Task(
                id=new_id(keys.tag), queue=queue, payload=b"x", lock=lock, priority=random.choice((None, 2)),
                delay_ms=random.choice((0, 0, 1500)), kept_s=60.0 if is_kept else 0.0, type="job" if is_kept else "",
            )  # fmt: skip
            acknowledged.update(until_known(actor, partial(_enqueue, actor, task)))
            actor.sleep(random.random() * 3)

    return job


def late_producer(count: int, acknowledged: set[str]) -> Callable[[Actor], None]:
    """Enqueues unique tasks whose lock ends soon, and sends each call again, when the task of another such producer may
    have the lock."""

    def job(actor: Actor) -> None:
        random, keys = actor.world.random, KEYS.queue(IN)
        for _ in range(count):
            lock = Lock(digest="late", lasts=random.choice(("started", "expired")), ttl_ms=1500, on_clash="ignore")
            task = Task(id=new_id(keys.tag), queue=IN, payload=b"x", lock=lock, kept_s=60.0, type="job")
            for pause_s in (random.choice((1.6, 3.2)), 0.0):
                acknowledged.update(until_known(actor, partial(_enqueue, actor, task)))
                actor.sleep(pause_s)

    return job


def replacer(acknowledged: set[str]) -> Callable[[Actor], None]:
    """Enqueues a unique task of one key and replaces it at once by one of another, both in one exchange."""

    def job(actor: Actor) -> None:
        random, keys = actor.world.random, KEYS.queue(IN)
        lock = Lock(digest="keyed", lasts="finished", ttl_ms=100_000, on_clash="replace")
        for _ in range(2):
            made = [Task(id=new_id(keys.tag), queue=IN, payload=b"x", lock=lock, key=random.choice("ab")) for _ in "12"]
            acknowledged.update(until_known(actor, partial(_enqueue_all, actor, made)))
            actor.sleep(random.random())

    return job


def _enqueue_all(actor: Actor, tasks: list[Task]) -> list[str]:
    values = actor.broker.run_many([enqueue_call(KEYS, None, [task], 1 << 20) for task in tasks])
    return [placed(task, value)[0] for task, value in zip(tasks, values, strict=True)]


def worker(name: str, rounds: int, careful: float) -> Callable[[Actor], None]:
    """Reserves items of a queue and reports on them in one way or another; `careful` is the share of good ends."""

    def job(actor: Actor) -> None:
        queue, random = queue_of(actor, name), actor.world.random
        for _ in range(rounds):
            await_items(actor, name)
            try:
                held = queue.reserve(random.choice((1, 1, 2, 3)), keepalive=LEASE_S)
                if held:
                    _end(actor, queue, held, careful)
                else:
                    actor.sleep(random.random() * 3)
            except (*UNKNOWN, LeaseError, ReportsRefused) as error:
                actor.hears(error)
                actor.sleep(random.random())

    return job


def _end(actor: Actor, queue: Queue, held: list[Lease], careful: float) -> None:
    random = actor.world.random
    if random.random() < 0.5:
        actor.sleep(random.choice((0.01, 0.5, LEASE_S * 0.9, LEASE_S, LEASE_S + 0.001, LEASE_S * 1.5)))
    if random.random() < careful:
        if queue.name == IN:
            queue.move_many(held, "out")
        else:
            queue.commit_many(held)
        return
    for lease in held:
        random.choice(_ENDS)(actor, lease)


def _extended(actor: Actor, lease: Lease) -> None:
    lease.extend()
    actor.sleep(actor.world.random.random() * LEASE_S)
    _finished(actor, lease)


def _finished(actor: Actor, lease: Lease) -> None:
    if lease.queue == IN:
        lease.move("out")
    else:
        lease.commit()


def _failed(actor: Actor, lease: Lease) -> None:
    lease.rollback(delay=actor.world.random.choice((0, 0.5)), error="ValueError: no")


def _released(actor: Actor, lease: Lease) -> None:
    lease.release()


def _committed(actor: Actor, lease: Lease) -> None:
    lease.commit()


def _forgotten(actor: Actor, lease: Lease) -> None:
    """Its lease ends without a report."""


_ENDS: tuple[Callable[[Actor, Lease], None], ...] = (
    _extended, _finished, _finished, _failed, _released, _committed, _forgotten,
)  # fmt: skip


def driver(rounds: int, careful: float) -> Callable[[Actor], None]:
    """Takes batches, writes a row for each member, and rolls them forward, or fails."""

    def job(actor: Actor) -> None:
        batches, random = batches_of(actor, IN), actor.world.random
        for _ in range(rounds):
            await_items(actor, IN)
            try:
                lease = batches.take(random.choice((1, 2, 4)), lease_s=LEASE_S)
                if lease is None:
                    actor.sleep(random.random() * 3)
                elif lease.state == "open" and random.random() > careful:
                    _fail(actor, lease)
                else:
                    run_batch(actor, lease)
            except (*UNKNOWN, BatchLost) as error:
                actor.hears(error)
                actor.sleep(random.random())

    return job


def _fail(actor: Actor, lease: BatchLease) -> None:
    random = actor.world.random
    fate = random.choice(("failed", "blamed", "blamed", "divided", "released", "dissolved", "abandoned"))
    if fate == "dissolved":
        lease.dissolve()
    elif fate == "released":
        lease.release(delay_s=random.choice((0.0, 0.5)))
    elif fate != "abandoned":
        lease.fail("ValueError: no", delay_s=random.choice((0.0, 0.5)), fate=fate)


def run_batch(actor: Actor, lease: BatchLease, *, is_steady: bool = False) -> None:
    """Decides an open batch, each member to the queue `out`, and rolls it forward to its end, or until that is full."""
    random = actor.world.random
    if lease.state == "open":
        if not is_steady and random.random() < 0.2:
            lease.batches.top_up(lease, 2)
        ids = lease.members(0, lease.size)
        if not is_steady and random.random() < 0.3:
            actor.sleep(LEASE_S * random.choice((0.03, 0.5, 1.1, 1.6, 2.2)))
        if not is_steady and random.random() < 0.3:
            lease.renew()
        nonce = f"n{random.randrange(1 << 30)}"
        lease.stage(nonce, [word for one in ids for word in (one, "out", b"row", "")], after=0)
        lease.decide({nonce: len(ids)}, rest="succeeded")
    while not (step := lease.advance(random.choice((1, 2, None)))).done:
        if step.full:
            return


def leader(rounds: int, name: str, times: LeaderTimes = _TIMES) -> Callable[[Actor], None]:
    """Turns of a coordinator, with its own name."""

    def job(actor: Actor) -> None:
        coordinator = coordinator_of(actor, name, times)
        for _ in range(rounds):
            coordinator_turn(actor, coordinator, after_error_s=1.0)

    return job


def coordinator_turn(actor: Actor, coordinator: Coordinator, *, after_error_s: float) -> None:
    """One turn, and the pause behind it."""
    try:
        pause = coordinator.step()
    except UNKNOWN as error:
        actor.hears(error)
        pause = after_error_s
    actor.sleep(pause)


def coordinator_of(actor: Actor, name: str, times: LeaderTimes = _TIMES) -> Coordinator:
    """The product's coordinator of a worker with that name."""
    return Coordinator(actor.broker, KEYS, name, times, OwnQueues(), cron=PeriodicTicks(actor.broker, KEYS, None))


def last_worker(actor: Actor) -> None:
    """Ends everything that is there, without faults. Looks past the network for what is left."""
    batches, holds = batches_of(actor, IN), actor.world.holds
    queues = [(queue_of(actor, keys.name), (keys.waiting, keys.scheduled, keys.pending)) for keys in QUEUES]
    of_batches = (KEYS.queue(IN).batches, KEYS.queue(IN).finishing)
    outboxes = {keys.tag: keys.outbox for keys in QUEUES}
    everything = [*of_batches, *outboxes.values(), *(key for _, own in queues for key in own)]
    while holds(*everything):
        while holds(*of_batches) and (lease := batches.take(0, lease_s=LEASE_S)):
            run_batch(actor, lease, is_steady=True)
        for queue, keys in queues:
            if holds(*keys) and (held := queue.reserve(10, keepalive=LEASE_S)):
                queue.commit_many(held)
        if holds(*outboxes.values()):
            relay(actor.broker, KEYS, tags=outboxes)
        if holds(*everything):
            actor.sleep(LEASE_S)
