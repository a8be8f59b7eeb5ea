"""Very many drained queues, partitions at their limit, and members of one group: R40."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.processes import cpu_seconds
from benchmarks.scale import block_keys, drain_queues, run_group
from jobrunner.client.client import keys_of
from tests.acceptance.fleet import JOBS
from tests.reliability.jobs import Tenant
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import QUEUE, Stage
from tests.reliability.stalls import right_of_way, stalls
from tests.support.waiting import wait_for

_FREE = 200
"""The number of tasks with a free partition, one after the other."""


@scenario(
    "R40",
    short={"count": 10_000, "settled_s": 2, "watched_s": 3, "starts_ms": 1_500, "longest_ms": 1_000, "percent": 10.0},
    full={"count": 100_000, "settled_s": 100, "watched_s": 60, "starts_ms": 50, "longest_ms": 20, "percent": 2.0},
)  # fmt: skip
def many_of_each(
    stage: Stage, findings: Findings, count: int, settled_s: int, watched_s: int, starts_ms: int, longest_ms: int,
    percent: float,
) -> None:  # fmt: skip
    """An idle leader of very many drained queues, as many partitions at their limit, and a group of as many tasks.

    The leader takes ≤ 2 % of a core. A task with a free partition starts ≤ 50 ms after its enqueue call began. No
    command stalls the server for longer than 20 ms plus the stall of a bare loop at the same time. (The short run
    shares the machine with other tests and checks orders of magnitude: 10 %, 1.5 s, 1 s.)
    """
    drain_queues(stage.client, count)
    worker = stage.fleet.start_one(queues=["idle"])
    wait_for(lambda: stage.raw.exists(keys_of(stage.client).leader), timeout_s=60)
    with _watched(stage, findings, "idle leader", longest_ms):
        time.sleep(settled_s)  # the reading of all drained queues is over
        before = cpu_seconds([worker.pid]) or 0.0
        time.sleep(watched_s)  # the span that is measured
        used = 100 * ((cpu_seconds([worker.pid]) or 0.0) - before) / watched_s
    findings.at_most("idle leader: % of a core, with its lease keeper", round(used, 2), percent)
    stage.stop_workers()
    stage.raw.flushall()

    block_keys(stage.client.queue(QUEUE), count)
    stage.fleet.start_one(modules=[JOBS, Tenant.__module__])
    with _watched(stage, findings, "keys", longest_ms):
        waits = sorted(_free_key_ms(stage, n) for n in range(_FREE))
    findings.note("keys: ms until a free key's task starts, p50, p99", f"{waits[_FREE // 2]:.1f}, {waits[-2]:.1f}")
    findings.at_most("keys: ms until a free key's task starts, longest", round(waits[-1], 1), starts_ms)
    blocked = stage.client.queue(QUEUE).counts()["waiting"]
    findings.equals("keys: tasks whose key is at its limit, and wait", blocked, count)
    stage.stop_workers()
    stage.raw.flushall()

    with _watched(stage, findings, "group", longest_ms):
        done = run_group(stage.client, count)
    findings.equals("group: members and callbacks that succeeded", done, (count, 1))


def _free_key_ms(stage: Stage, number: int) -> float:
    """Seconds from the call that enqueues a task with a partition of its own to the first statement of the task."""
    began = time.monotonic()
    task = Tenant(tenant=f"free{number}").enqueue()
    wait_for(lambda: stage.ledger.count("end") > number, timeout_s=60)
    (start,) = [entry for entry in stage.ledger.entries("start") if entry.task == task.id]
    return (start.at - began) * 1000


@contextmanager
def _watched(stage: Stage, findings: Findings, part: str, longest_ms: float) -> Iterator[None]:
    with stalls(stage.server, stage.raw) as found, right_of_way(stage.server.pid):
        yield
    findings.note(f"{part}: ms of the server's longest command", found.command_ms)
    findings.note(f"{part}: ms the machine held a bare loop up", found.machine_ms)
    findings.at_most(f"{part}: ms of it beyond what the machine held a bare loop up", found.beyond_ms, longest_ms)


ROWS = (many_of_each,)
