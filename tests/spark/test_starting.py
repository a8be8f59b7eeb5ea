"""The batch that is gathered while Spark starts, by processes whose Java starts, dies or waits as the test says."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jobrunner.client.client import keys_of
from jobrunner.spark.java import find_java, home_of
from tests.spark.cluster import LOOPBACK
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
STATIONS = """
import os

from jobrunner.etl import Pipeline
from jobrunner.spark import write_batch

numbers = Pipeline("numbers")

@numbers.spark_sink("rows", batch=10, max_wait=0, schema="n int", lease=float(os.environ["LEASE"]))
def store(df, spark, batch):
    write_batch(df.select("n", "_attempts"), batch, "out")
"""
JAVA = """#!/bin/sh
# The first Java of a start of Spark waits for the test; none starts when it is BROKEN.
[ "$1" = -version ] && exec {java} "$@"
echo >> {folder}/asked
[ -n "$BROKEN" ] && exit 1
[ -e {folder}/go ] || read -r _ < {folder}/gate
exec {java} "$@"
"""


class Starts:
    """Processes of `jobrunner` on one sink, with thirty items in batches of ten."""

    def __init__(self, url, client, folder, java):
        self._client, self._folder = client, folder
        self.log = folder / "log"
        self.started = []
        home = folder / "java" / "bin"
        home.mkdir(parents=True)
        (home / "java").write_text(JAVA.format(java=java, folder=folder))
        (home / "java").chmod(0o755)
        os.mkfifo(folder / "gate")
        (folder / "asked").touch()
        (folder / "number_stations.py").write_text(STATIONS)
        self._environment = os.environ | LOOPBACK | {
            "JOBRUNNER_URL": url, "JOBRUNNER_PREFIX": keys_of(client).prefix, "PYTHONPATH": f"{ROOT}:{folder}",
            "JAVA_HOME": str(home.parent),
        }  # fmt: skip
        client.queue("numbers/rows").push_many([{"n": n} for n in range(30)])

    def begin(self, *words, lease=60, **environment):
        """A process that starts Spark; its log is anew."""
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "jobrunner", "work", "number_stations", "--grace", "1", *words],
                cwd=self._folder, env=self._environment | environment | {"LEASE": str(lease)}, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    @property
    def asked(self):
        """How many times a Java was to start, but for its version."""
        return len((self._folder / "asked").read_text().splitlines())

    def wait_starting(self, before):
        """Returns when ten items are in hand and a Java waits for the test."""
        wait_for(lambda: self.counts() == (20, 10, 0) and self.asked > before, timeout_s=120)

    def let_java_start(self):
        """That, and all others from now on."""
        (self._folder / "go").touch()
        with (self._folder / "gate").open("w") as gate:  # when it reads
            gate.write("\n")

    def counts(self):
        found = self._client.queue("numbers/rows").counts()
        return found["waiting"], found["pending"], found["dead"]

    def errors(self):
        return [line for line in self.log.read_text().splitlines() if "error" in line or "Traceback" in line]

    def stop(self):
        for process in self.started:
            _kill(process)


def _kill(process):
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)


@pytest.fixture
def starts(server, client, tmp_path):
    with ExitStack() as stack:
        home = stack.enter_context(home_of(find_java(os.environ)))
        made = Starts(server.url, client, tmp_path, home / "bin" / "java")
        stack.callback(made.stop)
        yield made


def test_stops_kills_and_a_java_that_does_not_start_cost_no_item_anything(starts, client, tmp_path):
    """One after the other with the same items; at last Spark starts, and each is stored at its first attempt."""
    # A stop while Spark starts: they are back before Java does anything.
    process = starts.begin()
    starts.wait_starting(0)
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: starts.counts() == (30, 0, 0))
    assert process.wait(60) == 0, starts.log.read_text()
    _kill(process)  # what it started waits for ever

    # The same as systemd and `timeout` do it: Java is stopped, too, and that is no error.
    before = starts.asked
    process = starts.begin()
    starts.wait_starting(before)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(60) == 0, starts.log.read_text()
    assert starts.errors() == []
    assert starts.counts() == (30, 0, 0)

    # No Java starts: a supervisor tries again and again.
    before = starts.asked
    process = starts.begin("--processes", "2", BROKEN="1")
    wait_for(lambda: starts.asked >= before + 5, timeout_s=120)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    assert starts.counts() == (30, 0, 0)
    assert "Traceback" not in starts.log.read_text()

    # Killed while it starts, and the next one, too: the second finds an open batch, and takes none.
    for _ in range(2):
        before = starts.asked
        process = starts.begin("--heartbeat", "0.2", lease=5)
        starts.wait_starting(before)
        _kill(process)

    # A setting that Spark refuses, with a Java that works.
    (tmp_path / "go").touch()
    process = starts.begin("--conf", "spark.serializer=no.such.Class")
    assert process.wait(120) == 1
    assert "spark.serializer='no.such.Class'" in starts.log.read_text()
    assert starts.counts() == (20, 10, 0), "those of the killed process, for whom a driver must come"

    process = starts.begin("--burst")
    assert process.wait(300) == 0, starts.log.read_text()
    rows = pq.read_table(tmp_path / "out", columns=["n", "_attempts"]).to_pylist()
    assert sorted(row["n"] for row in rows) == list(range(30))
    assert {row["_attempts"] for row in rows} == {1}
    assert starts.counts() == (0, 0, 0)
