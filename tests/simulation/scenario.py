"""One run: what a seed stands for, the run itself, and its judgement."""

import itertools
from dataclasses import dataclass, field
from typing import Any

from jobrunner.broker.keys import QueueKeys
from jobrunner.errors import JobrunnerError
from tests.simulation import (
    letter_actors,
    letters,
    operators,
    shard_actors,
    spare_actors,
    spares,
    tick_actors,
    ticks,
    workers,
    write_actors,
)
from tests.simulation.audit import problems
from tests.simulation.checks import Observer, Violation
from tests.simulation.letter_actors import LETTERS, POST
from tests.simulation.parts import (
    DELETED,
    LATE,
    LONG,
    RATES,
    STEPS_IN_SHARDS,
    TICKS,
    WITH_HISTORY,
    WRITES,
    parts_of,
    some_item,
)
from tests.simulation.scheduler import World
from tests.simulation.server import SimulatedServer
from tests.simulation.shard_actors import SHARDS
from tests.simulation.spare_actors import SPARE
from tests.simulation.trace import Trace
from tests.simulation.virtual_time import VirtualTime
from tests.simulation.workers import IN, KEYS, OUT, QUEUES

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
        more_queues = _more_queues(seed)
        contents = server.contents(world.now, is_brief=True)
        found = problems(contents, (*QUEUES, *more_queues), observer.tasks, acknowledged)
        more = (
            observer.flows.problems(observer), ticks.problems(observer), spares.problems(observer, more_queues),
            letters.problems(observer, (*QUEUES, *more_queues)),
        )  # fmt: skip
        outcome.problem = next(itertools.chain(found, *more), "")
    except Violation as violation:
        outcome.problem = str(violation)
    except JobrunnerError as error:  # of an actor, which hears what it has to expect
        outcome.problem = f"the product raised {type(error).__name__}: {error}"
    finally:
        world.end()
        outcome.calls = observer.calls
    return outcome


def _more_queues(seed: int) -> tuple[QueueKeys, ...]:
    if _has_shards(seed):
        return SHARDS
    if seed % 64 == LATE:
        return POST, LETTERS
    return (KEYS.queue(SPARE),) if seed % 64 in (DELETED, WITH_HISTORY) else ()


def _has_shards(seed: int) -> bool:
    return seed % 32 == 9 or seed % 64 == STEPS_IN_SHARDS


def begin(world: World, observer: Observer) -> set[str]:
    """Starts the actors of a seed. Returns the set of ids that pushes return."""
    chance, choice, acknowledged = world.random.random, world.random.choice, set[str]()
    world.faults, world.kills = choice((0.0, 0.05, 0.15, 0.3)), choice((0.0, 0.5, 1.0))
    careful = choice((0.3, 0.6, 0.9))
    _configure(world, observer)
    names = itertools.count(1)
    for number in range(choice((1, 1, 1, 2))):
        items = [[some_item(world, next(names)) for _ in range(choice((1, 1, 2, 3)))] for _ in range(choice((1, 1, 2)))]
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
    for begin_part in parts_of(world.seed):
        begin_part(world, observer, acknowledged)
    return acknowledged


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


def drain(world: World) -> None:
    """Lets everything come to its end without faults, and empties the queues. Raises Violation when they stay."""
    world.faults = 0.0
    part, has_operators = world.seed % 64, world.seed % 32 == 1 or world.seed % 64 == RATES
    if has_operators or part in LONG:  # an actor may still have to do something
        _go_on(world)
    if has_operators:
        world.start("the last operator", operators.last_operator)
    if part == TICKS:
        world.start("the last leader", tick_actors.last_leader)
        _go_on(world)
    if part == WRITES:
        world.start("the last writer", write_actors.last_writer)
        _go_on(world)
    world.start("the last worker", workers.last_worker)
    if _has_shards(world.seed):
        world.start("the last mail worker", shard_actors.last_mail_worker)
    if part == LATE:
        world.start("the last post worker", letter_actors.last_post_worker)
    if part in (DELETED, WITH_HISTORY):
        world.start("the last spare worker", spare_actors.last_spare_worker)
    if not world.run(until=world.now + 600_000, most_events=_MOST_EVENTS):
        raise Violation("a worker without faults could not empty the queues")


def _go_on(world: World) -> None:
    world.run(until=world.now + _LATE_MS, most_events=_MOST_EVENTS)
