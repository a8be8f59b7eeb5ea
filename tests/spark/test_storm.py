"""Two drivers of one pipeline, bad records of every kind, and all faults one after the other (slow): each item is at
its one right end, in Parquet, in a Delta table or dead, and the server is as before.

Minutes, as each driver that dies starts a JVM anew: `pytest -n 0 -m "spark and slow" -s tests/spark/test_storm.py`;
STORM_ITEMS makes it longer. Faults come when work has gone on behind the one before.
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jobrunner.client.client import Client, keys_of
from tests.spark.cluster import LOOPBACK, command_of, descendants
from tests.support.queue_audit import problems
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
ITEMS = int(os.environ.get("STORM_ITEMS", "6000"))
LEASE_S, LONG_S = 10.0, 1800
ROOT = Path(__file__).parents[2]
QUEUES = ("raw", "rows", "files", "table")
LEFT = re.compile(
    rb"c:(\{storm\}:(raw|rows|files|table):(batch_log|errors(:\w+)?|deaths|counters|arrival|wake|declared)|\{/stats\}:.+|"
    rb"\{/\}:(worker:.+|workers|leader|epoch)|events(:cursor)?|queues|pipelines|format)"
)
"""What is kept of work that is done: logs, counts, declared settings, all of bounded size. Nothing for each item."""
FAULTS = ("driver", "suspended", "python", "restart", "jvm", "forgets", "driver")


class Run:
    """`jobrunner pipeline run` of the pipeline, started again when it ends, as by a supervisor."""

    def __init__(self, server, folder, name):
        self.log = folder / f"{name}.log"
        self.starts = 0
        self._environment = os.environ | LOOPBACK | {
            "STORM_FOLDER": str(folder), "STORM_LEASE": f"{LEASE_S:g}", "PYTHONPATH": str(ROOT),
            "JOBRUNNER_URL": server.url, "JOBRUNNER_PREFIX": "c", "SPARK_LOCAL_DIRS": str(folder),
            "PYSPARK_PYTHON": sys.executable,
        }  # fmt: skip
        self.start()

    def start(self):
        words = ["pipeline", "run", "storm", "tests.spark.storm_pipeline", "--master", "local[1,4]"]
        words += ["--conf", "spark.driver.memory=1g"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jobrunner", *words], env=self._environment, cwd=ROOT, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.starts += 1

    def look_after(self):
        if self.process.poll() is not None:
            self.sweep()
            self.start()

    def pids(self, kind):
        """Process ids of the JVM, the process of Python that drives it, or the Python workers of its executor."""
        found = descendants(self.process.pid)
        jvms = [pid for pid in found if "java" in command_of(pid)[:200]]
        if kind == "jvm":
            return jvms
        if kind == "python":
            return [pid for pid in found if "daemon pyspark" in command_of(pid)]
        return [parent_of(pid) for pid in jvms]

    def sweep(self):
        for pid in [*descendants(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Storm:
    """The faults, in their order."""

    def __init__(self, server, client, runs):
        self.server, self.client, self.runs = server, client, runs
        self.dice, self.hits = random.Random(5), Counter()
        self.stopped = None

    def progress(self):
        found = 0
        for queue in QUEUES:
            with contextlib.suppress(Exception):  # the server is being restarted
                totals = self.client.queue(f"storm/{queue}").totals()
                found += sum(totals.get(name, 0) for name in ("moved_out", "succeeded", "died"))
        return found

    def is_over(self):
        counts = [self.client.queue(f"storm/{queue}").counts() for queue in QUEUES]
        return not any(one["waiting"] + one["pending"] + one["scheduled"] for one in counts)

    def play(self, faults):
        ends, waiting, seen, due = time.monotonic() + LONG_S, list(faults), 0, None
        while waiting or not self.is_over():
            assert time.monotonic() < ends, self.runs[0].log.read_text()[-3000:]
            for run in self.runs:
                run.look_after()
            done = self.progress()
            if done != seen and due is None:
                due = time.monotonic() + self.dice.uniform(0, 2)
            seen = done
            if waiting and due is not None and time.monotonic() > due and self._strike(waiting[0]):
                print(f"{waiting[0]} at {seen}", flush=True)
                self.hits[waiting.pop(0)] += 1
                due = None
            time.sleep(0.05)
        wait_for(lambda: all(one.process.poll() is None for one in self.runs), timeout_s=60)

    def _strike(self, fault):
        if fault == "restart":
            with self.server.connect() as raw, contextlib.suppress(Exception):
                raw.shutdown(save=True)
            self.server.kill()
            self.server.start()
            return True
        if fault == "forgets":
            with self.server.connect() as raw:
                raw.save()
            time.sleep(1)  # what the server loses
            self.server.kill()
            self.server.start()
            return True
        kind = "driver" if fault == "suspended" else fault
        pids = [pid for run in self.dice.sample(self.runs, len(self.runs)) for pid in run.pids(kind)]
        if not pids:
            return False
        if fault == "suspended":
            self._suspend(pids[0])
        else:
            os.kill(pids[0], signal.SIGKILL)
        return True

    def _suspend(self, pid):
        """Beyond its lease, and until the other driver has done something."""
        os.kill(pid, signal.SIGSTOP)
        try:
            before, ends = self.progress(), time.monotonic() + LEASE_S + 2
            wait_for(lambda: time.monotonic() > ends and self.progress() > before, timeout_s=300)
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def storm(start_server, tmp_path):
    server = start_server(dbfilename="dump.rdb")
    with Client(server.url, "c", retry_timeout=30) as client:
        yield server, client, tmp_path


def rows_of_delta(folder):
    from deltalake import DeltaTable

    return DeltaTable(str(folder)).to_pyarrow_table(columns=["n"]).column("n").to_pylist()


def dead_of(client, queue):
    ids = client.queue(f"storm/{queue}").ids("dead", limit=1000)
    return sorted(client.task(one).record().error for one in ids)


def left_keys(raw):
    found = []
    for key in raw.scan_iter(match="c:*:batch:*", count=5000):
        if raw.type(key) != b"hash" or raw.hget(key, "state") not in (b"done", b"split"):
            found.append(key)
    return found


def used_memory(server):
    """Of a server that starts anew: it has no scripts, and no buffers of connections."""
    with server.connect() as raw:
        raw.save()
    server.kill()
    server.start()
    with server.connect() as raw:
        return raw.info("memory")["used_memory"]


def test_two_drivers_and_every_fault(storm, monkeypatch):
    server, client, folder = storm
    monkeypatch.setenv("STORM_FOLDER", str(folder))
    from tests.spark.storm_pipeline import is_bad_row, is_misfit, raises, raises_late

    empty = used_memory(server)
    for first in range(0, ITEMS, 1000):
        client.queue("storm/raw").push_many(range(first, min(first + 1000, ITEMS)))
    full = used_memory(server)
    runs = [Run(server, folder, name) for name in ("one", "two")]
    played = Storm(server, client, runs)
    try:
        played.play(FAULTS)
    finally:
        for run in runs:
            run.sweep()

    every = range(ITEMS)
    early = {n for n in every if is_misfit(n) or is_bad_row(n) or raises(n)}
    late = {n for n in every if raises_late(n) and n % 2 == 0} - early
    files = pq.read_table(folder / "files", columns=["n"]).column("n").to_pylist()
    table = rows_of_delta(folder / "table")
    assert Counter(files) == Counter(n for n in every if n % 2 == 0 and n not in early | late)
    assert Counter(table) == Counter(n for n in every if n % 2 and n not in early)
    assert (len(dead_of(client, "rows")), len(dead_of(client, "files"))) == (len(early), len(late))
    assert dead_of(client, "raw") == dead_of(client, "table") == []
    assert played.hits == Counter(FAULTS)
    for queue in QUEUES:
        with server.connect() as raw:
            assert problems(raw, keys_of(client).queue(f"storm/{queue}")) == []
    with server.connect() as raw:
        wait_for(lambda: not left_keys(raw), timeout_s=60)
        tasks = sum(1 for _ in raw.scan_iter(match="c:{storm}:task:*", count=5000))
        assert tasks == len(early) + len(late), "a hash of an item that ended"
    kept = used_memory(server)
    with server.connect() as raw:  # marks of batches that are done, which expire after a day
        raw.delete(*raw.scan_iter(match="c:{storm}:batch:*", count=5000))
    for queue in QUEUES:
        client.queue(f"storm/{queue}").purge("dead")
    bare = used_memory(server)
    with server.connect() as raw:
        sizes = {key: raw.memory_usage(key, samples=0) for key in raw.scan_iter(match="*", count=5000)}
    assert [key for key in sizes if not LEFT.fullmatch(key)] == []
    assert bare - empty < sum(sizes.values()) + 100 * len(sizes), "memory that no key explains"
    print(f"{ITEMS} items, starts {[run.starts for run in runs]}, {dict(played.hits)}; used_memory: {empty} before, "
          f"{full} full, {kept} after, {bare} without the dead and the marks of batches")  # fmt: skip
    assert bare - empty < (full - empty) / 10
