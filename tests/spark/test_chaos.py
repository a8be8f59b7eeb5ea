"""Spark stations under kill -9 (slow): every item moves on once, no staged key is left, the sink holds each row once.

All of it: `pytest -m slow -p no:xdist -s tests/spark/test_chaos.py`; CHAOS_ITEMS and CHAOS_KILLS make it longer.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jobrunner.client.client import Client, keys_of
from jobrunner.client.item import Item
from tests.spark.cluster import LOOPBACK, Cluster, command_of, descendants
from tests.support.server import Server
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
ITEMS = int(os.environ.get("CHAOS_ITEMS", "240000"))
KILLS = int(os.environ.get("CHAOS_KILLS", "5"))
ROOT = Path(__file__).parents[2]
LONG_S = 3600


class Fleet:
    """One worker process with all stations of the pipeline, started again when it ends."""

    def __init__(self, server: Server, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.starts = 0
        self._url = server.url
        self._environment = os.environ | {
            "CHAOS_FOLDER": str(folder / "out"),
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_DIRS": str(folder),
            **LOOPBACK,
            **environment,
        }
        self.start()

    def start(self) -> None:
        """A new process."""
        settings = {"url": self._url, "prefix": "c", "modules": ["tests.spark.chaos_pipeline"], "grace": 30.0}
        command = [sys.executable, "-m", "tests.acceptance.worker_process", json.dumps(settings)]
        log = (self.folder / "worker.log").open("ab")
        self.process = subprocess.Popen(
            command, env=self._environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
        self.starts += 1

    def look_after(self) -> None:
        """Starts it again when it has ended."""
        if self.process.poll() is not None:
            self._sweep()
            self.start()

    def processes(self) -> dict[str, list[int]]:
        """Process ids by kind: the driver, its JVMs, the Python workers of executors."""
        found: dict[str, list[int]] = {"driver": [self.process.pid], "jvm": [], "python": []}
        for pid in descendants(self.process.pid):
            words = command_of(pid)
            if "java" in words[:200]:
                found["jvm"].append(pid)
            elif "daemon pyspark" in words:
                found["python"].append(pid)
        return found

    def kill(self, kind: str) -> bool:
        """SIGKILL to one process of that kind, or to all of it; whether there was one."""
        found = self.processes()
        pids = [pid for group in found.values() for pid in group] if kind == "all" else found[kind][-1:]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(pids)

    def stop(self) -> None:
        """Ends it and all it started."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(40)
        self._sweep()

    def _sweep(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


@pytest.fixture
def chaos(start_server, tmp_path) -> Iterator[tuple[Server, Client]]:
    """A server of its own, and a client."""
    server = start_server()
    with Client(server.url, "c") as client:
        yield server, client


def push(client: Client, items: int) -> None:
    """Items whose id contains their number."""
    raw = client.queue("chaos/raw")
    for start in range(0, items, 1000):
        raw.push_many([Item({"n": n, "key": f"k{n % 7}"}, id=f"i{n}") for n in range(start, min(start + 1000, items))])


def is_over(client: Client) -> bool:
    """Whether nothing is left to do."""
    stats = client.stats()
    return not any(
        stats[name].waiting + stats[name].pending + stats[name].scheduled
        for name in ("chaos/raw", "chaos/clean", "chaos/store")
        if name in stats
    )


def verify(server: Server, client: Client, folder: Path, items: int) -> None:
    """Every item at its one right end, no staged key left."""
    stats = client.stats()
    dropped = len(range(0, items, 10))
    even = {n for n in range(items) if n % 10 and n % 2 == 0}
    odd = {n for n in range(items) if n % 10 and n % 2}
    assert stats["chaos/raw"].totals["dropped"] == dropped
    assert {name: one.dead for name, one in stats.items() if one.dead} == {}
    with server.connect() as raw:
        rest = [int(task_id[1:]) for task_id in raw.zrange(keys_of(client).queue("chaos/rest").waiting, 0, -1)]
        assert (len(rest), set(rest)) == (len(odd), odd)
        assert stats["chaos/store"].totals["succeeded"] == len(even)
        base = keys_of(client).queue("chaos/raw")
        wait_for(lambda: not _left_of_batches(raw, base.batch), timeout_s=60)
        tasks = sum(1 for _ in raw.scan_iter(match=base.tasks + b"*", count=5000))
        assert tasks == len(odd), "an orphan"
    stored = pq.read_table(folder / "out", columns=["n"]).column("n").to_pylist()
    assert (len(stored), set(stored)) == (len(even), even)


def _left_of_batches(raw, base: bytes) -> list[bytes]:
    keys = list(raw.scan_iter(match=base + b"*", count=5000))
    return [key for key in keys if raw.type(key) != b"hash" or raw.hget(key, "state") not in (b"done", b"split")]


def run_with_kills(fleet: Fleet, client: Client, kinds: list[str]) -> int:
    """Kills in that order, each some seconds after work went on behind the one before; returns how many hit."""
    dice, ends, waiting = random.Random(7), time.monotonic() + LONG_S, list(kinds)
    seen, due = 0, float("inf")
    while not is_over(client):
        assert time.monotonic() < ends, (fleet.folder / "worker.log").read_text()[-3000:]
        fleet.look_after()
        done = sum(one.totals.get(name, 0) for one in client.stats().values() for name in ("moved_out", "succeeded"))
        if done > seen and due == float("inf"):
            due = time.monotonic() + dice.uniform(0, 2)
        seen = done
        if waiting and time.monotonic() > due and fleet.kill(waiting[0]):
            waiting.pop(0)
            due = float("inf")
        time.sleep(0.05)
    return len(kinds) - len(waiting)


def mixed(kinds: tuple[str, ...]) -> list[str]:
    """As many kills of each kind, in an order by chance."""
    waiting = [kind for kind in kinds for _ in range(KILLS)]
    random.Random(11).shuffle(waiting)
    return waiting


KINDS = {
    "driver": ("driver",),
    "jvm": ("jvm",),
    "python": ("python",),
    "all": ("all",),
    "mixed": ("driver", "jvm", "python", "all"),
}


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_kills(chaos, tmp_path, kinds):
    server, client = chaos
    items = ITEMS * min(2, len(kinds))
    push(client, items)
    fleet = Fleet(server, tmp_path)
    waiting = mixed(kinds)
    try:
        hits = run_with_kills(fleet, client, waiting)
        print(f"{'/'.join(kinds)}: {hits} kills, {fleet.starts} starts")
        assert hits == len(waiting), "it was over too soon: CHAOS_ITEMS makes it longer"
        verify(server, client, tmp_path, items)
    finally:
        fleet.stop()


@pytest.mark.parametrize(("station", "count"), [("raw", "moved_out"), ("store", "succeeded")])
def test_a_driver_that_is_paused_beyond_its_lease(chaos, tmp_path, station, count):
    server, client = chaos
    push(client, ITEMS)
    first = Fleet(server, tmp_path, CHAOS_LEASE="8")
    second = None
    queue = f"chaos/{station}"
    try:
        wait_for(lambda: queue in client.stats() and client.stats()[queue].pending, timeout_s=120)
        os.kill(first.process.pid, signal.SIGSTOP)
        done = client.stats()[queue].totals.get(count, 0)
        second = Fleet(server, tmp_path, CHAOS_LEASE="8")
        wait_for(lambda: client.stats()[queue].totals.get(count, 0) > done, timeout_s=300)
        os.kill(first.process.pid, signal.SIGCONT)
        wait_for(lambda: is_over(client), timeout_s=LONG_S)
        verify(server, client, tmp_path, ITEMS)
    finally:
        os.kill(first.process.pid, signal.SIGCONT)
        first.stop()
        if second is not None:
            second.stop()


def test_on_a_standalone_cluster_whose_executor_is_killed(chaos, tmp_path):
    server, client = chaos
    push(client, ITEMS)
    cluster = Cluster(tmp_path)
    fleet = Fleet(server, tmp_path, JOBRUNNER_SPARK_MASTER=cluster.url, PYSPARK_PYTHON=sys.executable)
    try:
        wait_for(lambda: client.stats()["chaos/raw"].totals.get("moved_out", 0) > 0, timeout_s=300)
        os.kill(cluster.executors()[0], signal.SIGKILL)
        wait_for(lambda: is_over(client), timeout_s=LONG_S)
        assert fleet.starts == 1
        verify(server, client, tmp_path, ITEMS)
    finally:
        fleet.stop()
        cluster.stop()


def test_through_spark_connect(chaos, tmp_path):
    pytest.importorskip("grpc")
    server, client = chaos
    push(client, 20_000)
    fleet = Fleet(server, tmp_path, JOBRUNNER_SPARK_REMOTE="local[2]", CHAOS_BATCH="12000")
    try:
        wait_for(lambda: is_over(client), timeout_s=300)
        verify(server, client, tmp_path, 20_000)
    finally:
        fleet.stop()
