"""Limits of a queue while the workers that use them are killed: R27."""

import threading
import time

from jobrunner import RateLimit
from jobrunner.client.client import keys_of
from tests.reliability.checker import judge
from tests.reliability.recording import judge_history
from tests.reliability.rows.workers import KEEPALIVE_S
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import QUEUE, Stage
from tests.support.waiting import wait_for

_PLACES = 5
_RATE = RateLimit(max_tokens=40, interval=1, interval_unit="SECONDS")


@scenario("R27", short={"workers": 4, "kills": 3, "tasks": 300}, full={"workers": 16, "kills": 40, "tasks": 6_000})
def limited(stage: Stage, findings: Findings, workers: int, kills: int, tasks: int) -> None:
    """max_inflight 5 and a token bucket of 40 a second; workers with leases are killed.

    Never more than 5 tasks in flight; the places of a killed worker are free after its leases; the bucket never gives
    more than its rate.
    """
    stage.record_history()
    stage.client.queue(QUEUE).configure(max_inflight=_PLACES, rate=_RATE)
    began = time.monotonic()
    running = stage.fleet.start(workers, concurrency=2)
    over, most = threading.Event(), [0]
    thread = threading.Thread(target=_sample, args=(stage, over, most))
    thread.start()
    try:
        stage.enqueue(tasks, seconds=0.1)
        killed = [_kill_a_holder(stage, running) for _ in range(kills)]
        stage.drain()
    finally:
        over.set()
        thread.join()

    judge(stage, findings, more_starts=kills * _PLACES)
    findings.equals("most in hand at once", most[0], _PLACES)
    findings.at_most("tokens given beyond the bucket", _beyond_bucket(stage, began), 0)
    findings.at_most("s until a killed worker's places were free", max(killed), KEEPALIVE_S + 1)
    judge_history(stage, findings)


def _sample(stage: Stage, over: threading.Event, most: list[int]) -> None:
    """Reads the queue as often as it can."""
    pending = keys_of(stage.client).queue(QUEUE).pending
    with stage.server.connect() as connection:
        while not over.is_set():
            most[0] = max(most[0], connection.zcard(pending))


def _kill_a_holder(stage: Stage, running: list) -> float:  # type: ignore[type-arg]
    """Kills a worker that runs a task; returns the seconds until none of its tasks is pending under its leases."""
    started = stage.ledger.count("start")
    wait_for(lambda: stage.ledger.count("start") > started, timeout_s=60)
    last = stage.ledger.entries("start")[-1]
    victim = next(worker for worker in running if worker.pid == last.pid)
    victim.kill()
    killed_at = time.monotonic()
    running.remove(victim)
    running.append(stage.fleet.launch(concurrency=2))
    wait_for(lambda: _is_over(stage, last.task, last.attempt), timeout_s=30)
    return round(time.monotonic() - killed_at, 3)


def _is_over(stage: Stage, task: str, attempt: int) -> bool:
    """Whether an attempt was reported, or its lease ended."""
    keys = keys_of(stage.client).queue(QUEUE)
    score = stage.raw.zscore(keys.pending, task)
    retries = stage.raw.hget(keys.tasks + task.encode(), "retry_count")
    return score is None or int(retries or 0) >= attempt


def _beyond_bucket(stage: Stage, began: float) -> float:
    """The number of starts, up to any moment, beyond a full bucket and the tokens that were added since."""
    starts = sorted(entry.at for entry in stage.ledger.entries("start"))
    per_second = _RATE.max_tokens / _RATE.seconds
    return max(round(n + 1 - _RATE.max_tokens - per_second * (at - began), 2) for n, at in enumerate(starts))


ROWS = (limited,)
