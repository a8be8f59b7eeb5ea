"""Several servers that stand for one: a primary behind Sentinel that dies, a cluster whose slots move: R21, R22."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from jobrunner.broker.cluster import slot_of
from jobrunner.broker.keys import Keys
from tests.conftest import wait_for
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import Stage
from tests.topologies.load import Load
from tests.topologies.servers import Behind, Spread

_Servers = TypeVar("_Servers", Behind, Spread)
_AGAIN_S = 5.0
_QUEUES = [f"q{n}" for n in range(12)]
_SLOTS = [slot_of(Keys("load").queue(name).waiting) for name in _QUEUES]
_SHARED = [slot_of(key) for key in (Keys("load").leader, Keys("load").figures_total, Keys("load").queues)]


@scenario("R21", short={"failovers": 1}, full={"failovers": 10})
def failed_over(stage: Stage, findings: Findings, failovers: int) -> None:
    """The primary behind Sentinel is killed under load and comes back as a replica, again and again.

    Producers and workers go on by themselves ≤ 5 s after the failover; with durability="replicated" loss 0.
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

    Never a CROSSSLOT; loss 0; after a replica took over work goes on ≤ 5 s later.
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


ROWS = (failed_over, resharded)
