"""What a share of the seeds has besides: the actors of one part of the product, which are drawn after all others. A new
part takes a remainder that no other has, so all other seeds stay the runs that they were."""

from collections.abc import Callable
from functools import partial
from typing import Any

from jobrunner.client.item import Item
from tests.simulation import (
    flow_actors,
    letter_actors,
    operators,
    shard_actors,
    spare_actors,
    stations,
    tick_actors,
    workers,
    write_actors,
)
from tests.simulation.by_hand import Bucket
from tests.simulation.checks import Observer
from tests.simulation.letter_actors import LETTERS, LONGEST_MS, POST
from tests.simulation.scheduler import World
from tests.simulation.shard_actors import MAIL
from tests.simulation.spare_actors import SPARE
from tests.simulation.spares import SeenHistory
from tests.simulation.workers import IN, KEYS, NEXT, OUT, QUEUES

TICKS, DELETED, WITH_HISTORY, WRITES = 25, 57, 58, 42
"""Seeds, modulo 64: of a periodic job, of a queue that is deleted and used again, of one that keeps history, and of
writes."""
LATE, RATES, STEPS_IN_SHARDS, RELEASED, CANCELLED = 2, 34, 18, 50, 26
"""Those of a queue with dead letters, of partitions with a rate, of flows in shards, of unique tasks that are released,
and of tasks that are cancelled while batches and moves go on."""
LONG = (TICKS, DELETED, WITH_HISTORY, WRITES)
"""Those in which actors may go on after the time of faults."""


def some_item(world: World, number: int) -> Item:
    choice = world.random.choice
    return Item(
        b"x", id=choice((None, f"order-{number}")), priority=choice((None, None, 0, 2)), in_=choice((0, 0, 0, 1.5))
    )


def begin_unique(world: World, observer: Observer, acknowledged: set[str]) -> None:
    chance, choice = world.random.random, world.random.choice
    for number in range(choice((1, 2))):
        job = workers.unique_producer(choice((1, 2, 3)), acknowledged)
        world.start(f"unique producer {number + 1}", job, in_s=chance() * 3)


def begin_flows(world: World, observer: Observer, acknowledged: set[str]) -> None:
    chance, choice = world.random.random, world.random.choice
    world.server.ask("HSET", KEYS.queue(NEXT).settings, "max_attempts", choice((1, 1, 2, 5)), now_ms=world.now)
    for number in range(choice((1, 1, 2))):
        job = flow_actors.flow_sender(observer.flows.add, is_large=chance() < 0.06)
        world.start(f"flow sender {number + 1}", job, in_s=chance() * 2)
    careful = choice((0.5, 0.9))
    for number in range(choice((1, 2))):
        world.start(f"step worker {number + 1}", flow_actors.step_worker(choice((2, 3)), careful), in_s=chance() * 3)
    for number in range(choice((0, 1, 2))):
        world.start(f"relay {number + 1}", flow_actors.relayer(choice((2, 4))), in_s=chance() * 3)


def begin_stations(world: World, observer: Observer, acknowledged: set[str]) -> None:
    chance, choice = world.random.random, world.random.choice
    for queue in (IN, OUT):
        if chance() < 0.5:
            size = observer.max_size[queue.encode()] = choice((1, 2))
            world.server.ask("HSET", KEYS.queue(queue).settings, "max_size", size, now_ms=world.now)
    for number in range(choice((1, 2))):
        world.start(f"station {number + 1}", stations.station(IN, choice((2, 3, 4))), in_s=chance() * 2)
    world.start("station of out", stations.station(OUT, choice((1, 2))), in_s=chance() * 5)


def begin_shards(world: World, observer: Observer, acknowledged: set[str]) -> None:
    chance, choice = world.random.random, world.random.choice
    limit = choice((1, 2, 3))
    observer.shared_limits.add(MAIL.encode())
    note_limit = partial(observer.most_inflight.__setitem__, MAIL.encode(), limit)
    producer = shard_actors.mail_producer(limit, note_limit, acknowledged)
    world.start("mail producer", producer, in_s=chance())
    for number in range(choice((1, 2, 3))):
        world.start(f"mail worker {number + 1}", shard_actors.mail_worker(choice((3, 5))), in_s=chance() * 4)


def begin_keys(world: World, observer: Observer, acknowledged: set[str]) -> None:
    """Items with keys, of which only some may be under way at once, and a unique one whose key changes."""
    choice = world.random.choice
    limit = observer.most_of_key[IN.encode()] = choice((1, 1, 2))
    words = ("key_inflight", limit, *choice(((), ("fair", 1))))
    world.server.ask("HSET", KEYS.queue(IN).settings, *words, now_ms=world.now)
    items = [[Item(b"x", partition=choice("ab")) for _ in range(choice((1, 2, 3)))] for _ in range(3)]
    world.start("producer of keys", workers.producer(items, acknowledged), in_s=world.random.random())
    world.start("replacer", workers.replacer(acknowledged), in_s=world.random.random() * 2)
    world.start("worker of keys", workers.worker(IN, choice((2, 4)), 0.5), in_s=world.random.random() * 2)


def begin_operators(world: World, observer: Observer, acknowledged: set[str]) -> None:
    """A queue whose tasks are changed by hand, some with a rate."""
    chance, choice, keys = world.random.random, world.random.choice, KEYS.queue(NEXT)
    words: list[Any] = ["max_attempts", choice((1, 2, 5))]
    if chance() < 0.4:
        tokens, interval_ms = choice((1, 2)), choice((500, 3000))
        words += ["max_tokens", tokens, "interval_us", interval_ms * 1000]
        observer.buckets[NEXT.encode()] = Bucket(tokens, interval_ms, tokens, world.now)
    if chance() < 0.3:
        observer.most_inflight[NEXT.encode()] = choice((1, 2))
        words += ["max_inflight", observer.most_inflight[NEXT.encode()]]
    world.server.ask("HSET", keys.settings, *words, now_ms=world.now)
    items = [[some_item(world, 1000 + 10 * n + m) for m in range(choice((1, 2, 3)))] for n in range(choice((1, 2, 3)))]
    world.start("producer of next", operators.next_producer(items, acknowledged), in_s=chance())
    for number in range(choice((1, 2))):
        world.start(f"operator {number + 1}", operators.operator(choice((3, 6))), in_s=1 + chance() * 4)
    for number in range(choice((0, 1, 2))):
        world.start(f"taker {number + 1}", operators.taker(choice((2, 3))), in_s=chance() * 3)
    world.start("worker of next", workers.worker(NEXT, choice((2, 3)), choice((0.3, 0.6))), in_s=chance() * 3)


def begin_ticks(world: World, observer: Observer, acknowledged: set[str]) -> None:
    """A periodic job, of which a later version may be deployed, and workers that lead in turn."""
    chance, choice = world.random.random, world.random.choice
    definition = tick_actors.drawn_job(choice)
    versions = [definition, *choice(((), (tick_actors.deployed(definition, choice),)))]
    observer.periodic.makes_up_all = definition.catch_up == 1000
    for number, one in enumerate(versions):
        observer.periodic.intervals_ms[one.schedule_digest.encode()] = 1000 * float(one.schedule["every"])
        publisher = tick_actors.publisher(one, choice((4, 8)))
        world.start(f"worker of version {number + 1}", publisher, in_s=chance() + 8 * number)
    for name in ("c", "d", "e")[: choice((1, 2, 3))]:
        leader = tick_actors.tick_leader(name, choice((1.5, 6.0)), 16.0)
        world.start(f"leader {name}", leader, in_s=chance() * 3)
    if chance() < 0.3:
        world.start("switcher", tick_actors.switcher(choice((1, 2))), in_s=chance() * 8)
    world.start("worker of ticks", workers.worker(NEXT, choice((4, 8)), choice((0.5, 0.9))), in_s=chance() * 3)


def begin_spare(world: World, observer: Observer, acknowledged: set[str]) -> None:
    """A queue that is purged, and either deleted and used again, or keeps history."""
    chance, choice = world.random.random, world.random.choice
    has_history = world.seed % 64 == WITH_HISTORY
    if has_history:
        history = observer.histories[SPARE.encode()] = SeenHistory(choice((8000, 100_000)), choice((0, 0, 2)))
        words = ("history_ms", history.age_ms, *(("history_max", history.most) if history.most else ()))
        world.server.ask("HSET", KEYS.queue(SPARE).settings, "max_attempts", 2, *words, now_ms=world.now)
        world.start("replayer", spare_actors.replayer(choice((1, 3))), in_s=chance() * 8)
    else:
        for keys in QUEUES[1:]:  # those are not to be forgotten: their totals count tasks that moved
            world.server.ask("HSET", keys.settings, "max_attempts", 5, now_ms=world.now)
        for number in range(choice((1, 2))):
            world.start(f"deleter {number + 1}", spare_actors.deleter(choice((2, 5))), in_s=chance() * 4)
        for name in ("f", "g")[: choice((0, 1, 2))]:
            world.start(f"leader {name}", spare_actors.spare_leader(name, choice((8, 16))), in_s=chance() * 4)
    for number in range(choice((1, 2))):
        producer = spare_actors.spare_producer(choice((2, 4)), acknowledged)
        world.start(f"spare producer {number + 1}", producer, in_s=chance() * 4)
    for number in range(choice((1, 2))):
        world.start(f"spare worker {number + 1}", spare_actors.spare_worker(choice((4, 8))), in_s=chance() * 4)
    if chance() < 0.5:
        world.start("purger", spare_actors.purger(choice((2, 4)), of_history=has_history), in_s=chance() * 4)


def begin_writes(world: World, observer: Observer, acknowledged: set[str]) -> None:
    """Writers of new items, as many as three of the same two batches."""
    chance, choice = world.random.random, world.random.choice
    for name in ("v", "w", "x")[: choice((1, 2, 3))]:
        world.start(f"writer {name}", write_actors.writer(name, choice((1, 2, 4))), in_s=chance() * 6)


def begin_late(world: World, observer: Observer, acknowledged: set[str]) -> None:
    """A queue whose tasks die when they do not begin in time, and go to a dead letter queue, which may be strict."""
    chance, choice = world.random.random, world.random.choice
    for keys, letters, is_strict in ((POST, LETTERS, chance() < 0.5), (LETTERS, None, chance() < 0.2)):
        queue = keys.name.encode()
        most = observer.letters.most_attempts[queue] = choice((1, 2, 3))
        words: list[Any] = ["max_attempts", most]
        if letters is not None:
            observer.letters.goes_to[queue] = letters.name.encode()
            words += ["dead_letter_queue", letters.name]
        if is_strict:
            limit = observer.letters.expires_in_ms[queue] = choice((1500, LONGEST_MS))
            words += ["expires_in_ms", limit]
        world.server.ask("HSET", keys.settings, *words, now_ms=world.now)
        world.server.ask("SADD", KEYS.queues, keys.name, now_ms=world.now)
    for number in range(choice((1, 2))):
        producer = letter_actors.post_producer(choice((1, 2, 3)), acknowledged)
        world.start(f"post producer {number + 1}", producer, in_s=chance() * 2)
    for number, name in enumerate((POST.name, POST.name, LETTERS.name)[: choice((1, 2, 3, 3))]):
        worker = letter_actors.post_worker(choice((3, 6)), name)
        world.start(f"post worker {number + 1}", worker, in_s=chance() * 3)
    if chance() < 0.5:
        job = workers.unique_producer(choice((2, 4)), acknowledged, POST.name)
        world.start("unique producer of post", job, in_s=chance() * 3)
    if chance() < 0.3:
        world.start("taker", operators.taker(choice((2, 3)), choice((POST, LETTERS))), in_s=chance() * 3)
    does = ("cancel", "spaced", "spaced", "requeue", "run_now", "remove")
    for number in range(choice((1, 2))):
        job = operators.operator(choice((2, 5)), choice((POST, LETTERS, LETTERS)), does, pauses=0.0)
        world.start(f"operator {number + 1}", job, in_s=1 + chance() * 4)


def begin_rates(world: World, observer: Observer, acknowledged: set[str]) -> None:
    """Partitions with a rate each, and perhaps with a limit of leases, whose tasks end and come back in every way."""
    chance, choice, queue = world.random.random, world.random.choice, NEXT.encode()
    tokens, interval_ms = choice((1, 2)), choice((500, 3000))
    observer.key_rates[queue] = tokens, interval_ms
    words: list[Any] = ["max_attempts", choice((1, 2, 5)), "key_tokens", tokens, "key_interval_us", interval_ms * 1000]
    if chance() < 0.4:
        observer.most_of_key[queue] = choice((1, 2))
        words += ["key_inflight", observer.most_of_key[queue]]
    if chance() < 0.3:
        words += ["fair", 1]
    if chance() < 0.3:
        observer.buckets[queue] = Bucket(2, 1000, 2, world.now)
        words += ["max_tokens", 2, "interval_us", 1_000_000]
    world.server.ask("HSET", KEYS.queue(NEXT).settings, *words, now_ms=world.now)
    for number in range(choice((1, 2))):
        drawn = [[(choice("aab ").strip(), choice((0, 0, 1.5))) for _ in "123"] for _ in range(choice((1, 2, 3)))]
        items = [[Item(b"x", partition=key or None, in_=delay) for key, delay in some] for some in drawn]
        world.start(f"producer of next {number + 1}", operators.next_producer(items, acknowledged), in_s=chance() * 2)
    for number in range(choice((1, 2, 3))):
        world.start(f"taker {number + 1}", operators.taker(choice((3, 6))), in_s=chance() * 3)
    world.start("operator", operators.operator(choice((2, 4))), in_s=1 + chance() * 4)
    world.start("worker of next", workers.worker(NEXT, choice((2, 4)), choice((0.3, 0.6))), in_s=chance() * 3)


def begin_steps_in_shards(world: World, observer: Observer, acknowledged: set[str]) -> None:
    """Flows whose steps are in a queue with partitions; some are cancelled."""
    chance, choice = world.random.random, world.random.choice
    limit = choice((1, 2, 3))
    observer.shared_limits.add(MAIL.encode())
    note_limit = partial(observer.most_inflight.__setitem__, MAIL.encode(), limit)
    producer = shard_actors.mail_producer(limit, note_limit, acknowledged, max_attempts=choice((1, 2, 5)))
    world.start("mail producer", producer, in_s=chance())
    for number in range(choice((1, 1, 2))):
        job = flow_actors.flow_sender(observer.flows.add, is_large=False, queues=(MAIL,), cancels=0.4)
        world.start(f"flow sender {number + 1}", job, in_s=chance() * 3)
    for number in range(choice((1, 2, 3))):
        job = shard_actors.mail_worker(choice((3, 6)), has_steps=True)
        world.start(f"mail worker {number + 1}", job, in_s=chance() * 4)


def begin_released(world: World, observer: Observer, acknowledged: set[str]) -> None:
    """Unique tasks whose workers give them back in every way, and that are changed by hand."""
    chance, choice = world.random.random, world.random.choice
    words = ("max_attempts", choice((1, 2, 5)))
    world.server.ask("HSET", KEYS.queue(NEXT).settings, *words, now_ms=world.now)
    for number in range(choice((1, 2))):
        job = workers.unique_producer(choice((2, 4)), acknowledged, NEXT)
        world.start(f"unique producer {number + 1}", job, in_s=chance() * 3)
    for number in range(choice((1, 2))):
        world.start(f"taker {number + 1}", operators.taker(choice((3, 6))), in_s=chance() * 3)
    world.start("operator", operators.operator(choice((2, 5)), pauses=0.0), in_s=1 + chance() * 4)
    world.start("worker of next", workers.worker(NEXT, choice((2, 4)), choice((0.3, 0.6))), in_s=chance() * 3)
    for number in range(choice((0, 2, 3))):
        job = workers.late_producer(choice((1, 2)), acknowledged)
        world.start(f"late producer {number + 1}", job, in_s=chance() * 3)


def begin_cancelled(world: World, observer: Observer, acknowledged: set[str]) -> None:
    """Items that are cancelled, requeued, run now and removed while batches and moves go on with them."""
    chance, choice = world.random.random, world.random.choice
    does = ("cancel", "cancel", "cancel", "requeue", "run_now", "remove")
    for number, queue in enumerate(QUEUES[: choice((1, 2))]):
        job = operators.operator(choice((3, 6)), queue, does, pauses=0.0)
        world.start(f"operator {number + 1}", job, in_s=chance() * 3)
    world.start("another driver", workers.driver(choice((2, 3)), choice((0.3, 0.6))), in_s=chance() * 2)
    world.start("another worker", workers.worker(IN, choice((2, 3)), choice((0.3, 0.6))), in_s=chance() * 2)


_Begin = Callable[[World, Observer, set[str]], None]
_PARTS: tuple[tuple[int, int, _Begin], ...] = (
    (4, 3, begin_unique), (16, 5, begin_flows), (16, 13, begin_stations), (32, 9, begin_shards), (64, 49, begin_keys),
    (32, 1, begin_operators), (64, TICKS, begin_ticks), (64, DELETED, begin_spare), (64, WITH_HISTORY, begin_spare),
    (64, WRITES, begin_writes), (64, LATE, begin_late), (64, RATES, begin_rates),
    (64, STEPS_IN_SHARDS, begin_steps_in_shards), (64, RELEASED, begin_released), (64, CANCELLED, begin_cancelled),
)  # fmt: skip
"""A modulus, the remainder of the seeds that have the part, and what starts its actors."""


def parts_of(seed: int) -> list[_Begin]:
    """What starts the actors of the parts that a seed has."""
    return [begin for modulus, remainder, begin in _PARTS if seed % modulus == remainder]
