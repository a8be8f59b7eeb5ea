"""One run: what a seed stands for, the run itself, and its judgement."""

import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jobrunner.client.item import Item
from jobrunner.errors import JobrunnerError
from tests.simulation import flow_actors, operators, shard_actors, stations, workers
from tests.simulation.audit import problems
from tests.simulation.by_hand import Bucket
from tests.simulation.checks import Observer, Violation
from tests.simulation.scheduler import World
from tests.simulation.server import SimulatedServer
from tests.simulation.shard_actors import MAIL, SHARDS
from tests.simulation.trace import Trace
from tests.simulation.virtual_time import VirtualTime
from tests.simulation.workers import IN, KEYS, NEXT, OUT, QUEUES

_CHAOS_MS = 30_000.0
_LATE_MS = 90_000.0
_MOST_EVENTS = 5000


@dataclass
class Outcome:
    """The end of one run."""

    seed: int
    problem: str = ""
    """The first violation; empty for a good run."""
    calls: int = 0
    trace: list[str] = field(default_factory=list)


def play(server: SimulatedServer, time: VirtualTime, seed: int, *, is_traced: bool = False) -> Outcome:
    """Plays one seed on a server that is used for one run after the other."""
    outcome = Outcome(seed)
    trace = outcome.trace.append if is_traced else None
    observer = Observer(ask=lambda *words: server.ask(*words, now_ms=world.now), now=lambda: world.now)
    world = World(server, seed, observe=observer, trace=trace)
    if is_traced:
        observer.describe = Trace(world)
    time.enter(world, seed)
    try:
        acknowledged = begin(world, observer)
        if not world.run(until=world.now + _CHAOS_MS, most_events=_MOST_EVENTS):
            raise Violation(f"the run did not end within {_MOST_EVENTS} events")
        drain(world)
        for task_id, seen in observer.tasks.items():
            observer.settle(task_id, seen)
        queues = (*QUEUES, *SHARDS) if seed % 32 == 9 else QUEUES
        found = problems(server.contents(world.now, is_brief=True), queues, observer.tasks, acknowledged)
        outcome.problem = next(itertools.chain(found, observer.flows.problems(observer)), "")
    except Violation as violation:
        outcome.problem = str(violation)
    except JobrunnerError as error:  # of an actor, which hears what it has to expect
        outcome.problem = f"the product raised {type(error).__name__}: {error}"
    finally:
        world.end()
        outcome.calls = observer.calls
    return outcome


def begin(world: World, observer: Observer) -> set[str]:
    """Starts the actors of a seed. Returns the set of ids that pushes return."""
    chance, choice, acknowledged = world.random.random, world.random.choice, set[str]()
    world.faults, world.kills = choice((0.0, 0.05, 0.15, 0.3)), choice((0.0, 0.5, 1.0))
    careful = choice((0.3, 0.6, 0.9))
    _configure(world, observer)
    names = itertools.count(1)
    for number in range(choice((1, 1, 1, 2))):
        items = [[_item(world, next(names)) for _ in range(choice((1, 1, 2, 3)))] for _ in range(choice((1, 1, 2)))]
        world.start(f"producer {number + 1}", workers.producer(items, acknowledged), in_s=chance())
    kind = chance()
    if kind < 0.65:
        for number in range(choice((1, 2))):
            world.start(f"worker {number + 1}", workers.worker(IN, choice((1, 2)), careful), in_s=chance() * 2)
    if kind > 0.6:
        for number in range(choice((1, 2, 2))):
            world.start(f"driver {number + 1}", workers.driver(choice((1, 2)), careful), in_s=chance() * 2)
    elif chance() < 0.5:
        world.start("worker of out", workers.worker(OUT, choice((1, 2)), careful), in_s=1 + chance() * 5)
    if chance() < 0.03:
        for name in ("a", "b"):
            world.start(f"leader {name}", workers.leader(choice((2, 4)), name), in_s=chance() * 4)
    _begin_more(world, observer, acknowledged)
    return acknowledged


def _begin_more(world: World, observer: Observer, acknowledged: set[str]) -> None:
    """Starts what a share of the seeds has besides. All other seeds stay the runs that they were without it."""
    if world.seed % 4 == 3:
        _begin_unique(world, acknowledged)
    if world.seed % 16 == 5:
        _begin_flows(world, observer)
    if world.seed % 16 == 13:
        _begin_stations(world, observer)
    if world.seed % 32 == 9:
        _begin_shards(world, observer, acknowledged)
    if world.seed % 64 == 49:
        _begin_keys(world, observer, acknowledged)
    if world.seed % 32 == 1:
        _begin_operators(world, observer, acknowledged)


def _begin_unique(world: World, acknowledged: set[str]) -> None:
    chance, choice = world.random.random, world.random.choice
    for number in range(choice((1, 2))):
        job = workers.unique_producer(choice((1, 2, 3)), acknowledged)
        world.start(f"unique producer {number + 1}", job, in_s=chance() * 3)


def _begin_flows(world: World, observer: Observer) -> None:
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


def _begin_stations(world: World, observer: Observer) -> None:
    chance, choice = world.random.random, world.random.choice
    for queue in (IN, OUT):
        if chance() < 0.5:
            size = observer.max_size[queue.encode()] = choice((1, 2))
            world.server.ask("HSET", KEYS.queue(queue).settings, "max_size", size, now_ms=world.now)
    for number in range(choice((1, 2))):
        world.start(f"station {number + 1}", stations.station(IN, choice((2, 3, 4))), in_s=chance() * 2)
    world.start("station of out", stations.station(OUT, choice((1, 2))), in_s=chance() * 5)


def _begin_shards(world: World, observer: Observer, acknowledged: set[str]) -> None:
    chance, choice = world.random.random, world.random.choice
    limit = choice((1, 2, 3))
    note_limit = partial(observer.most_inflight.__setitem__, MAIL.encode(), limit)
    producer = shard_actors.mail_producer(limit, note_limit, acknowledged)
    world.start("mail producer", producer, in_s=chance())
    for number in range(choice((1, 2, 3))):
        world.start(f"mail worker {number + 1}", shard_actors.mail_worker(choice((3, 5))), in_s=chance() * 4)


def _begin_keys(world: World, observer: Observer, acknowledged: set[str]) -> None:
    """Items with keys, of which only some may be under way at once, and a unique one whose key changes."""
    choice = world.random.choice
    limit = observer.most_of_key[IN.encode()] = choice((1, 1, 2))
    words = ("key_inflight", limit, *choice(((), ("fair", 1))))
    world.server.ask("HSET", KEYS.queue(IN).settings, *words, now_ms=world.now)
    items = [[Item(b"x", partition=choice("ab")) for _ in range(choice((1, 2, 3)))] for _ in range(3)]
    world.start("producer of keys", workers.producer(items, acknowledged), in_s=world.random.random())
    world.start("replacer", workers.replacer(acknowledged), in_s=world.random.random() * 2)
    world.start("worker of keys", workers.worker(IN, choice((2, 4)), 0.5), in_s=world.random.random() * 2)


def _begin_operators(world: World, observer: Observer, acknowledged: set[str]) -> None:
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
    items = [[_item(world, 1000 + 10 * n + m) for m in range(choice((1, 2, 3)))] for n in range(choice((1, 2, 3)))]
    world.start("producer of next", operators.next_producer(items, acknowledged), in_s=chance())
    for number in range(choice((1, 2))):
        world.start(f"operator {number + 1}", operators.operator(choice((3, 6))), in_s=1 + chance() * 4)
    for number in range(choice((0, 1, 2))):
        world.start(f"taker {number + 1}", operators.taker(choice((2, 3))), in_s=chance() * 3)
    world.start("worker of next", workers.worker(NEXT, choice((2, 3)), choice((0.3, 0.6))), in_s=chance() * 3)


def _configure(world: World, observer: Observer) -> None:
    chance, choice = world.random.random, world.random.choice
    settings: dict[str, Any] = {"max_attempts": choice((1, 2, 3, 5))}
    if chance() < 0.4:
        settings["max_inflight"] = choice((1, 2))
        observer.most_inflight[IN.encode()] = settings["max_inflight"]
    if chance() < 0.2:
        settings["max_size"] = observer.max_size[IN.encode()] = choice((2, 3))
    words = [word for pair in settings.items() for word in pair]
    world.server.ask("HSET", QUEUES[0].settings, *words, now_ms=world.now)


def _item(world: World, number: int) -> Item:
    choice = world.random.choice
    return Item(
        b"x", id=choice((None, f"order-{number}")), priority=choice((None, None, 0, 2)), in_=choice((0, 0, 0, 1.5))
    )


def drain(world: World) -> None:
    """Lets everything come to its end without faults, and empties the queues. Raises Violation when they stay."""
    world.faults = 0.0
    if world.seed % 32 == 1:  # a pause or a requeue may still be on its way
        world.run(until=world.now + _LATE_MS, most_events=_MOST_EVENTS)
        world.start("the last operator", operators.last_operator)
    world.start("the last worker", workers.last_worker)
    if world.seed % 32 == 9:
        world.start("the last mail worker", shard_actors.last_mail_worker)
    if not world.run(until=world.now + 600_000, most_events=_MOST_EVENTS):
        raise Violation("a worker without faults could not empty the queues")
