"""Servers in topologies: a primary behind Sentinel that dies, a cluster whose slots move or whose master dies.

Rows R21, R22, R35.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from jobrunner import Client
from jobrunner.broker.keys import Keys
from jobrunner.broker.slots import slot_of
from jobrunner.client.current import pinned
from tests.acceptance.fleet import Fleet
from tests.acceptance.jobs_for_tests import Work
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import Stage
from tests.support.waiting import wait_for
from tests.topologies.load import Load
from tests.topologies.servers import Behind, Spread

_Servers = TypeVar("_Servers", Behind, Spread)
_AGAIN_S = 5.0
_QUEUES = [f"q{n}" for n in range(12)]
_SLOTS = [slot_of(Keys("load").queue(name).waiting) for name in _QUEUES]
_EIGHT = _QUEUES[:8]
_TWO_LEASES_S = 4.0
_SHARED = [slot_of(key) for key in (Keys("load").leader, Keys("load").stats_total, Keys("load").queues)]


@scenario("R21", short={"failovers": 1}, full={"failovers": 10})
def failed_over(stage: Stage, findings: Findings, failovers: int) -> None:
    """The primary behind Sentinel is killed under load and comes back as a replica, again and again.

    Producers and workers go on without help ≤ 5 s after the failover; with durability="replicated" loss 0.
    """
    with _ending(Behind(replicas=2)) as behind:
        load = Load(behind.url, _folder(stage, "failing-over"), ["t"], durability="replicated")
        with closing(load):
            sent_s, ran_s = [], []
            for number in range(failovers):
                load.wait_more(100)
                behind.wait_replicated()
                old = behind.primary()
                old.kill()
                behind.fail_over(old)
                there_at = time.monotonic()
                sent_s.append(load.first_after("sent", there_at) - there_at)
                ran_s.append(load.first_after("end", there_at) - there_at)
                old.start()
                behind.wait_replicated()
                stage.say(f"failover {number + 1} of {failovers}")
            load.wait_more(100)
            _judge(load, findings)
    findings.at_most("s after a failover until something was acknowledged", round(max(sent_s), 2), _AGAIN_S)
    findings.at_most("s after a failover until something was run", round(max(ran_s), 2), _AGAIN_S)


@scenario("R22", short={"rounds": 1, "kills": 1}, full={"rounds": 10, "kills": 5})
def resharded(stage: Stage, findings: Findings, rounds: int, kills: int) -> None:
    """On a cluster of three with twelve queues under load all their slots move from node to node; then primaries die.

    Never a CROSSSLOT; loss 0; tasks run again ≤ 5 s after a replica took over.
    """
    with _ending(Spread()) as spread, closing(Load(spread.url, _folder(stage, "moving"), _QUEUES)) as load:
        for number in range(rounds):
            load.wait_more(200)
            for slot in (*_SLOTS, *_SHARED):
                owner = spread.nodes.index(spread.owner(slot))
                spread.move(slot, spread.nodes[(owner + 1) % len(spread.nodes)])
            stage.say(f"round {number + 1} of {rounds}")
        load.wait_more(200)
        _judge(load, findings)
    findings.note("slots moved", rounds * len(_SLOTS + _SHARED))
    with _ending(Spread(replicas=True)) as spread:
        load = Load(spread.url, _folder(stage, "dying"), _QUEUES, durability="replicated")
        with closing(load):
            again_s = [_kill_primary(spread, load, _SLOTS[number % len(_SLOTS)]) for number in range(kills)]
            load.wait_more(200)
            _judge(load, findings)
    findings.at_most("s after a replica took over until work went on", round(max(again_s), 2), _AGAIN_S)


def _kill_primary(spread: Spread, load: Load, slot: int) -> float:
    """Kills the owner of a slot; returns how long after its replica took over something was run, or acknowledged after
    the old one was back: until then the new primary has no replica that could confirm."""
    load.wait_more(100)
    spread.wait_well()
    old = spread.owner(slot)
    others = [one for one in spread.nodes if one is not old]
    old.kill()
    wait_for(lambda: spread.owner(slot) is not old, timeout_s=60)
    spread.wait_well(others)
    there_at = time.monotonic()
    ran_s = load.first_after("end", there_at) - there_at
    old.start()
    spread.wait_well()
    back_at = time.monotonic()
    queue = _QUEUES[_SLOTS.index(slot)]
    return max(ran_s, load.first_after("sent", back_at, note=queue) - back_at)


@scenario("R35", short={"kills": 1, "each": 2}, full={"kills": 3, "each": 10})
def one_master_dead(stage: Stage, findings: Findings, kills: int, each: int) -> None:
    """kill -9 of one of three masters, with tasks longer than two leases in eight queues over all of them.

    Tasks on the healthy masters run exactly once, also tasks that are enqueued meanwhile; tasks of the dead master run
    again when it is back with its append-only file. Loss 0.
    """
    saved: dict[str, Any] = {"cluster-require-full-coverage": "no", "appendonly": "yes", "appendfsync": "always"}
    with _ending(Spread(**saved)) as spread, closing(Fleet(spread.url, "load", _folder(stage, "one-dead"))) as fleet:
        fleet.start(2, queues=_EIGHT, concurrency=2 * len(_EIGHT) * each, poll=1)
        owners = {name: spread.owner(slot) for name, slot in zip(_EIGHT, _SLOTS, strict=False)}
        findings.equals("masters with queues", len(set(owners.values())), len(spread.nodes))
        safe, others = set[str](), set[str]()
        with Client(spread.url, "load", retry_timeout=30) as client, pinned(client):
            for number in range(kills):
                dead = spread.nodes[number % len(spread.nodes)]
                healthy = [name for name, owner in owners.items() if owner is not dead]
                others |= _enqueue(owners.keys() - healthy, each)
                safe |= _enqueue(healthy, each)
                _wait_all(fleet, "start", safe | others)
                dead.kill()
                safe |= _enqueue(healthy, each)
                _wait_all(fleet, "end", safe)
                time.sleep(_TWO_LEASES_S)  # the fault: the node is away beyond its leases
                dead.start()
                spread.wait_well()
                wait_for(lambda: not any(_is_live(client, name) for name in _EIGHT), timeout_s=120)
                stage.say(f"kill {number + 1} of {kills}")
            dead_tasks = sum(client.queue(name).counts()["dead"] for name in _EIGHT)
    starts, ended = fleet.ledger.times("start"), fleet.ledger.times("end")
    findings.note("tasks on healthy masters", len(safe))
    findings.equals("of these begun more than once", sum(starts[one] > 1 for one in safe), 0)
    findings.note("tasks on the dead master", len(others))
    findings.note("of those begun more than once", sum(starts[one] > 1 for one in others))
    findings.equals("acknowledged tasks lost", len((safe | others) - ended.keys()), 0)
    findings.equals("dead", dead_tasks, 0)


def _enqueue(queues: Iterable[str], each: int) -> set[str]:
    """Tasks that run longer than two leases, so many in each queue."""
    return {Work(n=n, seconds=_TWO_LEASES_S + 1).enqueue(queue=name).id for name in queues for n in range(each)}


def _wait_all(fleet: Fleet, event: str, tasks: set[str]) -> None:
    wait_for(lambda: fleet.ledger.times(event).keys() >= tasks, timeout_s=120)


def _is_live(client: Client, queue: str) -> bool:
    counts = client.queue(queue).counts()
    return any(counts[state] for state in ("waiting", "scheduled", "pending"))


def _judge(load: Load, findings: Findings) -> None:
    load.finish()
    found = load.verdict()
    findings.equals("acknowledged tasks lost", found["lost"], 0)
    findings.equals("dead", found["dead"], 0)
    findings.note(f"of {found['acknowledged']:,} acknowledged begun again", found["doubled"])


def _folder(stage: Stage, name: str) -> Path:
    folder = stage.folder / name
    folder.mkdir()
    return folder


@contextmanager
def _ending(servers: _Servers) -> Iterator[_Servers]:
    """Ends the servers after all that uses them."""
    try:
        yield servers
    finally:
        servers.remove()


ROWS = (failed_over, resharded, one_master_dead)
