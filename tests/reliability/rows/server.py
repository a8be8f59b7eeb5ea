"""The server that is killed, restored from an old file, full, unsafe, or forgets its scripts: R6, R8, R14, R15, R17."""

import threading
import time

from jobrunner import Worker
from jobrunner.errors import JobrunnerError, ServerFull, UnsafeServer
from tests.acceptance.fleet import JOBS
from tests.reliability.checker import judge
from tests.reliability.rows.workers import PREFETCH, SLOTS
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import QUEUE, Producer, Stage
from tests.support.waiting import wait_for

_AWAY_S = 1.0
_POLICIES = ("allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random",
             "volatile-ttl")  # fmt: skip


@scenario(
    "R6", short={"restarts": 1, "tasks": 3_000}, full={"restarts": 10, "tasks": 50_000},
    server={"appendonly": "yes", "appendfsync": "always"},
)  # fmt: skip
def killed(stage: Stage, findings: Findings, restarts: int, tasks: int, workers: int = 2) -> None:
    """kill -9 of the server and restart, AOF always, under load.

    No acknowledged task is lost; producer and workers go on ≤ 5 s after it is back, without help; no worker exits.
    """
    started = stage.fleet.start(workers, concurrency=SLOTS)
    pauses = []
    with stage.producing(tasks, seconds=0.01, rate=tasks / (restarts * 8)) as producer:
        for restart in range(restarts):
            stage.watch_to((restart + 0.3) / (restarts + 1), tasks)
            stage.server.kill()
            time.sleep(_AWAY_S)  # the fault: a server that is away
            stage.server.start()
            pauses.append(_until_all_go_on(stage, producer, [worker.pid for worker in started]))
            stage.say(f"restart {restart + 1} of {restarts}, {stage.ended():,} of {tasks:,} done")
    stage.drain()

    judge(stage, findings, more_starts=restarts * workers * (SLOTS + PREFETCH))
    findings.at_most("s until producer and workers went on", max(pauses), 5)
    findings.equals("workers that exited", sum(not worker.alive for worker in started), 0)
    findings.equals("errors of the producer", dict(producer.errors), {})


def _until_all_go_on(stage: Stage, producer: Producer, pids: list[int]) -> float:
    """Seconds until the server acknowledged a task of the producer again, and each worker began a task."""
    back_at = time.monotonic()
    begun = {pid: stage.ledger.count("start", pid) for pid in pids}
    acknowledged = len(producer.acknowledged_at)
    wait_for(lambda: len(producer.acknowledged_at) > acknowledged or not producer.left, timeout_s=60)
    wait_for(lambda: all(stage.ledger.count("start", pid) > begun[pid] for pid in pids), timeout_s=60)
    return round(time.monotonic() - back_at, 3)


@scenario("R8", short=None, full={"tasks": 20_000})
def restored(stage: Stage, findings: Findings, tasks: int) -> None:
    """Restart of the server with an older file (RDB).

    No worker exits; tasks that ended since that file run again; nothing is stuck in pending, and counters are right.
    """
    started = stage.fleet.start(2, concurrency=SLOTS)
    stage.enqueue(tasks, seconds=0.002)
    stage.watch_to(0.3, tasks)
    stage.raw.save()
    at_save = stage.ended()
    stage.watch_to(0.6, tasks)
    done = stage.ended() - at_save
    stage.server.kill()
    stage.server.start()
    stage.drain()

    judge(stage, findings, more_starts=tasks, again=tasks)
    findings.note("done after the file was written, and again", done)
    findings.equals("workers that exited", sum(not worker.alive for worker in started), 0)


@scenario("R14", short={"megabytes": 2}, full={"megabytes": 20})
def full(stage: Stage, findings: Findings, megabytes: int) -> None:
    """maxmemory is reached, with noeviction.

    enqueue raises ServerFull before its first write; commit, extend and rollback still work, a worker can start, and
    all acknowledged tasks are done.
    """
    stage.client.queue(QUEUE).pause()
    held = stage.client.queue("held")
    held.push_many(range(3))
    first, second, third = held.reserve(3, keepalive=120)
    stage.raw.config_set("maxmemory", stage.raw.info("memory")["used_memory"] + megabytes * 1_000_000)
    refusals = _fill(stage)
    findings.equals("refused as", {type(error).__name__ for error in refusals}, {ServerFull.__name__})
    findings.equals("tasks there", stage.client.queue(QUEUE).counts()["waiting"], len(stage.acknowledged))
    findings.equals("extend, commit, rollback", _attempted(second.extend, first.commit, third.rollback), [True] * 3)
    findings.equals("resume", _attempted(stage.client.queue(QUEUE).resume), [None])
    stage.fleet.start_one(concurrency=SLOTS)
    stage.drain()

    stage.raw.config_set("maxmemory", 0)  # finished tasks are kept for a while, so memory is still short
    stage.enqueue(SLOTS)
    stage.drain()

    judge(stage, findings, more_starts=0)


def _fill(stage: Stage) -> list[JobrunnerError]:
    """Enqueues until the server has refused a single task several times."""
    refusals: list[JobrunnerError] = []
    size = 1000
    while len(refusals) < 5:
        try:
            stage.enqueue(size)
        except JobrunnerError as error:
            if size == 1:
                refusals.append(error)
            size = max(size // 10, 1)
    return refusals


def _attempted(*operations: object) -> list[object]:
    results: list[object] = []
    for operation in operations:
        try:
            results.append(operation())  # type: ignore[operator]
        except JobrunnerError as error:
            results.append(f"{type(error).__name__}: {error}")
    return results


@scenario("R15", short={}, full={})
def unsafe(stage: Stage, findings: Findings) -> None:
    """A server that may evict keys.

    No worker starts, whatever the policy, unless that is explicitly allowed.
    """
    refused, allowed = [], []
    for policy in _POLICIES:
        stage.raw.config_set("maxmemory-policy", policy)
        refused += _attempted(lambda: Worker([JOBS], [QUEUE], client=stage.client).start())
    worker = Worker([JOBS], [QUEUE], client=stage.client, allow_eviction=True)
    allowed += _attempted(worker.start)
    worker.stop(grace=1)
    stage.raw.config_set("maxmemory-policy", "noeviction")
    worker = Worker([JOBS], [QUEUE], client=stage.client)
    allowed += _attempted(worker.start)
    worker.stop(grace=1)

    findings.equals("policies refused", sum(str(said).startswith(UnsafeServer.__name__) for said in refused), 7)
    findings.equals("told to, or with noeviction", allowed, [None, None])


@scenario("R17", short={"tasks": 3_000}, full={"tasks": 20_000})
def forgetful(stage: Stage, findings: Findings, tasks: int) -> None:
    """SCRIPT FLUSH every 100 ms.

    Loss 0, nothing doubled.
    """
    over, flushes = threading.Event(), 0
    stage.fleet.start(2, concurrency=SLOTS)

    def flush() -> None:
        nonlocal flushes
        while not over.wait(0.1):
            stage.raw.script_flush()
            flushes += 1

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        with stage.producing(tasks, seconds=0.002, rate=tasks / 5):
            pass
        stage.drain()
    finally:
        over.set()
        thread.join()

    judge(stage, findings, more_starts=0)
    findings.at_least("flushes", flushes, 10)


ROWS = (killed, restored, full, unsafe, forgetful)
