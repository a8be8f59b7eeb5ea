"""Drivers of a chain, and of a pipeline with partitions, that are killed where their sinks are (slow).

They wait there until they are dead, so nothing is left to chance.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jobrunner.broker.shards import shard_name
from jobrunner.client.client import keys_of
from tests.spark.cluster import LOOPBACK, command_of, descendants
from tests.support.queue_audit import problems
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]
STATES = ("waiting", "scheduled", "pending")
PARTITIONS = 4
QUEUES = {
    "chained": [f"chained/{name}" for name in ("raw", "rows", "files", "table")],
    "spread": [f"spread/{name}" for name in ("raw", "even", "odd")],
}


class Drivers:
    """Processes of `jobrunner work` on one pipeline; those with `hold` wait where the test says."""

    def __init__(self, url, client, folder):
        self._client, self._folder = client, folder
        self._hold = folder / "hold"
        self.started = []
        self._environment = os.environ | LOOPBACK | {
            "JOBRUNNER_URL": url, "JOBRUNNER_PREFIX": keys_of(client).prefix, "PYTHONPATH": str(ROOT),
            "KILLS_FOLDER": str(folder), "JOBRUNNER_SPARK_MASTER": "local[1,4]", "SPARK_LOCAL_DIRS": str(folder),
        }  # fmt: skip

    def start(self, pipeline, *words, hold=""):
        more = {}
        if hold:
            self._hold.write_text(hold)
            more["KILLS_HOLD"] = str(self._hold)
        served = [word for queue in QUEUES[pipeline] for word in ("-q", queue)]
        words = [*served, "--grace", "5", "--conf", "spark.driver.memory=600m", *words]
        with self.log(len(self.started)).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "jobrunner", "work", "tests.spark.killed_pipelines", *words], cwd=ROOT,
                env=self._environment | more, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def log(self, number):
        return self._folder / f"log{number}"

    def wait_held(self, process, count):
        held = lambda: len(list(self._folder.glob(f"held-{process.pid}-*"))) >= count  # noqa: E731
        wait_for(lambda: held() or process.poll() is not None, timeout_s=200)
        assert process.poll() is None, self.told(process)

    def told(self, process):
        return self.log(self.started.index(process)).read_text()[-5000:]

    def let_go(self):
        self._hold.unlink()

    def ends_well(self, process):
        assert process.wait(300) == 0, self.told(process)

    def left(self, *queues):
        counts = [self._client.queue(queue).counts() for queue in queues]
        return sum(one[state] for one in counts for state in STATES)


def kill_group(process):
    """With its JVM and the Python workers of its executor, which are in groups of their own."""
    for pid in [process.pid, *descendants(process.pid)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(20)


@pytest.fixture
def drivers(server, client, tmp_path):
    made = Drivers(server.url, client, tmp_path)
    yield made
    for process in made.started:
        kill_group(process)


def numbers_in(folder):
    return pq.read_table(folder, columns=["n"]).column("n").to_pylist()


def check_clean(raw, keys, queues, dead):
    """No item is lost or double for the server, and nothing of a batch is left but marks of those that are done."""
    for queue in queues:
        assert problems(raw, keys.queue(queue)) == []
    base = keys.prefix.encode()
    left = lambda: [  # noqa: E731
        key for key in raw.scan_iter(match=base + b":*:batch:*")
        if raw.type(key) != b"hash" or raw.hget(key, "state") not in (b"done", b"split")
    ]  # fmt: skip
    wait_for(lambda: not left(), timeout_s=60)
    assert len(list(raw.scan_iter(match=base + b":*:task:*"))) == dead


def test_two_drivers_of_one_chain_bad_records_and_a_driver_killed_between_its_sinks(
    drivers, client, raw, keys, tmp_path
):
    """Both of its batches are in the folder and not in the table; one is a part of a batch with a bad record."""
    from deltalake import DeltaTable

    queue = client.queue("chained/raw")
    queue.push_many(range(100))
    first = drivers.start("chained", hold="after")
    drivers.wait_held(first, 2)
    second = drivers.start("chained")
    wait_for(lambda: queue.totals().get("succeeded", 0) > 0, timeout_s=300)
    kill_group(first)
    wait_for(lambda: drivers.left("chained/raw") == 0, timeout_s=300)
    second.send_signal(signal.SIGTERM)
    drivers.ends_well(second)

    fine = [n for n in range(100) if n % 10 not in (1, 2, 3) and n not in (5, 85)]
    assert Counter(numbers_in(tmp_path / "files")) == Counter(n for n in fine if n % 2 == 0)
    table = DeltaTable(str(tmp_path / "table")).to_pyarrow_table(columns=["n"]).column("n").to_pylist()
    assert Counter(table) == Counter(n for n in fine if n % 2)
    said = Counter(client.task(one).record().error.splitlines()[0].partition(":")[0] for one in queue.ids("dead"))
    assert said == {"no flight": 10, "PipelineError": 10, "ValueError": 2}
    check_clean(raw, keys, QUEUES["chained"], dead=22)


def test_partitions_whose_worker_and_whose_jvm_are_killed(drivers, client, raw, keys, tmp_path):
    """First a worker with all its processes, behind writes of its sinks; then the JVM of the next one, before such."""
    client.queue("spread/raw").configure(partitions=PARTITIONS)
    client.queue("spread/raw").push_many([{"n": n} for n in range(160)])
    first = drivers.start("spread", hold="after")
    drivers.wait_held(first, 3)
    kill_group(first)
    second = drivers.start("spread", hold="before")
    drivers.wait_held(second, 2)
    (jvm,) = [pid for pid in descendants(second.pid) if "java" in command_of(pid)[:200]]
    os.kill(jvm, signal.SIGKILL)
    drivers.let_go()
    assert second.wait(120) == 1, drivers.told(second)
    assert "Traceback" not in drivers.told(second)
    drivers.ends_well(drivers.start("spread", "--burst"))

    assert drivers.left(*QUEUES["spread"]) == 0
    for name, rest in (("even", 0), ("odd", 1)):
        assert Counter(numbers_in(tmp_path / name)) == Counter(range(rest, 160, 2))
        assert client.queue(f"spread/{name}").totals()["succeeded"] == 80
    assert client.queue("spread/raw").totals()["moved_out"] == 160
    shards = [shard_name(queue, number) for queue in QUEUES["spread"] for number in range(PARTITIONS)]
    check_clean(raw, keys, shards, dead=0)
