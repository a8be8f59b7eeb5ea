"""Workers on a pipeline with partitions: their stations serve all of them, and an item ends once in its own."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from time import sleep
from typing import Any

import pytest

from jobrunner import Client, Fail
from jobrunner.broker.keys import tag_of_id
from jobrunner.broker.shards import shard_name
from jobrunner.etl import Pipeline, To
from jobrunner.etl.pipeline import forget_pipeline
from jobrunner.etl.progress import Emptied, Progress
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(90)
N = 4
PLACES = {"line", *(f"line@{number}" for number in range(1, N))}


@pytest.fixture
def line(current: Client) -> Iterator[Pipeline]:
    """raw → clean → even, odd; clean drops what is divisible by 10."""
    made = Pipeline("line", current)
    seen: Counter[tuple[str, int]] = Counter()

    @made.station("raw", to="clean", max_attempts=2)
    def parse(item: Any) -> Any:
        seen[item.queue, item.payload] += 1
        return {"n": item.payload}

    @made.station("clean", to=("even", "odd"), fan_out=True, dead_letter_queue="failed", max_attempts=1)
    def split(item: Any) -> Any:
        seen[item.queue, item.payload["n"]] += 1
        if item.payload["n"] == 77:
            raise ValueError("unlucky")
        return [] if item.payload["n"] % 10 == 0 else [To("odd" if item.payload["n"] % 2 else "even")] * 2

    made.sink("even")(lambda item: None)
    made.declare("odd")
    made.declare("failed")
    made.seen = seen  # type: ignore[attr-defined]
    current.queue("line/raw").configure(partitions=N)
    yield made
    forget_pipeline("line")


def test_stations_serve_all_partitions_and_each_item_ends_once_in_its_own(
    current: Client, line: Pipeline, run: Callable[..., Any]
) -> None:
    ids = line.push_many("raw", range(200)) + [line.push("raw", number) for number in range(200, 210)]
    assert {tag_of_id(one) for one in ids} == PLACES
    run(queues=["line/raw", "line/clean", "line/even"])
    seen = line.seen  # type: ignore[attr-defined]
    assert seen == Counter({(queue, number): 1 for queue in ("line/raw", "line/clean") for number in range(210)})
    assert line.queue("clean").totals() | {"moved_in": 210, "dropped": 21} == line.queue("clean").totals()
    assert line.queue("even").totals()["succeeded"] == 2 * (105 - 21)
    odd = line.queue("odd").reserve(100) + line.queue("odd").reserve(1000)
    assert Counter(lease.payload["n"] for lease in odd) == Counter({n: 2 for n in range(1, 210, 2) if n != 77})
    assert all(lease.queue == shard_name("line/odd", number(lease.id)) for lease in odd)
    (failed,) = line.queue("failed").reserve(9)
    assert failed.payload == {"n": 77}
    assert failed.queue == shard_name("line/failed", number(failed.id))


@pytest.mark.parametrize("partitions", [1, N])
def test_a_queue_that_nobody_serves_or_pushes_into_is_known_with_all_that_stations_sent_there(
    current: Client, run: Callable[..., Any], partitions: int
) -> None:
    """No command of the pipeline ran: its items came by the queue alone."""
    plain = Pipeline("plain", current)
    plain.station("raw", to="out")(lambda item: item.payload)
    raw = current.queue("plain/raw")
    raw.configure(partitions=partitions)
    raw.push_many(range(80))
    try:
        run(queues=["plain/raw"])
    finally:
        forget_pipeline("plain")
    assert {"plain/out", "plain/raw"} <= set(current.queues())
    assert current.stats()["plain/out"].waiting == 80


def number(task_id: str) -> int:
    return int((tag_of_id(task_id) or "").partition("@")[2] or 0)


def test_the_whole_pipeline_is_counted_and_found_empty(
    current: Client, line: Pipeline, run: Callable[..., Any]
) -> None:
    progress = Progress(current, line.graph)
    emptied = Emptied(current, line.graph, also_scheduled=True)
    assert [emptied(), emptied()] == [False, True]
    line.push_many("raw", range(100))
    assert progress.look().stations[0].waiting == progress.look().open == 100
    assert not emptied()
    run(queues=["line/raw", "line/clean"])
    assert {one.queue: one.waiting for one in progress.look().stations} == {
        "raw": 0, "clean": 0, "even": 80, "odd": 98, "failed": 1
    }  # fmt: skip
    line.queue("even").purge("waiting")
    assert [emptied(), emptied()] == [False, True]


def test_dead_items_are_requeued_over_all_partitions(current: Client, run: Callable[..., Any]) -> None:
    strict = Pipeline("strict", current)
    mended: list[bool] = []

    @strict.sink("in")
    def check(item: Any) -> int:
        if not mended:
            raise Fail("no", retry=False)
        return int(item.payload)

    strict.queue("in").configure(partitions=N, history=60)
    ids = strict.push_many("in", range(64))
    run(queues=["strict/in"])
    assert len(strict.queue("in").tasks("dead", limit=100)) == strict.queue("in").counts()["dead"] == 64
    mended.append(True)
    assert strict.queue("in").requeue_dead() == 64
    run(queues=["strict/in"])
    assert sorted(record.id for record in strict.queue("in").history(100)) == sorted(ids)


def test_a_running_worker_serves_partitions_that_are_added(current: Client, start: Callable[..., Any]) -> None:
    grown = Pipeline("grown", current)
    grown.station("raw", to="end", max_attempts=7)(lambda item: None)
    grown.sink("end")(lambda item: None)
    start(queues=["grown/raw", "grown/end"], heartbeat=0.2, poll=60)
    grown.push_many("raw", range(50))
    current.queue("grown/end").configure(partitions=N)
    assert current.queue(f"grown@{N - 1}/raw").settings().max_attempts == 7
    ids = [grown.push("raw", number) for number in range(100)]
    assert len({tag_of_id(one) for one in ids}) == N
    wait_for(lambda: current.queue("grown/end").totals().get("succeeded") == 150, timeout_s=30)


def test_settings_of_stations_reach_all_partitions_and_limits_hold_for_them_together(
    current: Client, start: Callable[..., Any]
) -> None:
    busy = Pipeline("busy", current)
    lock, running, most = Lock(), [0], [0]

    @busy.sink("in", concurrency=3, max_attempts=7)
    def work(item: Any) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        sleep(0.005)
        with lock:
            running[0] -= 1

    current.queue("busy/in").configure(partitions=N)
    start(queues=["busy/in"], concurrency=12)
    assert [current.queue(shard_name("busy/in", place)).settings().max_attempts for place in range(N)] == [7] * N
    busy.push_many("in", range(300))
    wait_for(lambda: current.queue("busy/in").totals().get("succeeded") == 300, timeout_s=60)
    assert most == [3]


def test_a_station_waits_for_capacity_partition_by_partition(current: Client, start: Callable[..., Any]) -> None:
    full = Pipeline("full", current)
    full.station("raw", to="end")(lambda item: None)
    full.declare("end", max_size=2 * N)
    full.queue("raw").configure(partitions=N)
    full.push_many("raw", range(100))
    start(queues=["full/raw"], concurrency=4)
    end, taken, sizes = full.queue("end"), [], [0]
    wait_for(lambda: end.counts()["waiting"] == 2 * N)
    while len(taken) < 100:
        wait_for(lambda: end.counts()["waiting"] > 0)
        sizes.append(end.counts()["waiting"])
        leases = end.reserve(3)
        taken += [lease.payload for lease in leases]
        end.commit_many(leases)
    assert sorted(taken) == list(range(100))
    assert max(sizes) == 2 * N


_PROGRAM = """
import os, time
from jobrunner.etl import Pipeline
killed = Pipeline("killed")
killed.station("raw", to="mid", on_crash="retry")(lambda item: item.payload)
@killed.station("mid", to="end")
def wait(item):
    time.sleep(0.002)
killed.sink("end")(lambda item: None)
"""


def test_no_item_is_lost_or_ends_twice_when_a_worker_is_killed(current: Client, tmp_path: Path) -> None:
    (tmp_path / "killed_pipeline.py").write_text(_PROGRAM)
    raw, end = current.queue("killed/raw"), current.queue("killed/end")
    raw.configure(partitions=N)
    end.configure(history=600)
    command = [sys.executable, "-m", "jobrunner", "work", "killed_pipeline", "--url", current.settings.url,
               "--prefix", current.settings.prefix, "--concurrency", "4", "--log-level", "error"]  # fmt: skip
    workers = [subprocess.Popen(command, cwd=tmp_path) for _ in range(2)]
    try:
        ids = raw.push_many(range(2000))
        wait_for(lambda: end.totals().get("succeeded", 0) > 200, timeout_s=30)
        workers[0].send_signal(signal.SIGKILL)
        wait_for(lambda: end.totals().get("succeeded", 0) == 2000, timeout_s=60)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    ended = [record.id for record in end.history(5000)]
    assert sorted(ended) == sorted(ids)
    assert end.totals()["moved_in"] == current.queue("killed/mid").totals()["moved_out"] == 2000
    for name in ("killed/raw", "killed/mid", "killed/end"):
        counted = current.queue(name).counts()
        assert not any(counted[state] for state in ("waiting", "scheduled", "pending", "dead"))
