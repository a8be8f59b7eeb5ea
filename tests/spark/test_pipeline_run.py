"""A worker with a station on Spark: it is quieted, stopped, and ended by a signal to its process group."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jobrunner import Worker
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.client.client import broker_of, keys_of
from jobrunner.clock import monotonic
from jobrunner.inspector.stats import by_queue
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]


def test_a_worker_of_a_station_on_spark_is_quieted_and_stopped_and_tells_times_of_items(warm, client, flights):
    @flights.spark_station("rows", to="late", max_wait=0.2, schema="day int, delay double")
    def leave(df, spark):
        return df

    def tell(order):
        broker_of(client).run_many(leader_calls.order(keys_of(client), worker.id, order, "1", ttl_ms=60_000))

    flights.declare("late")
    rows = client.queue("flights/rows")
    began = monotonic()
    rows.push_many([{"day": day, "delay": 1.0} for day in range(5)])
    worker = Worker(client=client, queues=["flights/rows"], heartbeat=0.2)
    runs = threading.Thread(target=worker.run)
    runs.start()
    try:
        wait_for(lambda: client.queue("flights/late").counts()["waiting"] == 5, timeout_s=240)
        tell("quiet")
        wait_for(lambda: client.workers()[0].quiet)
        rows.push_many([{"day": 9, "delay": 1.0}] * 2)
        tell("stop")
        runs.join(60)
        assert not runs.is_alive()
    finally:
        worker.stop()
        runs.join(60)
    took_ms = (monotonic() - began) * 1000

    assert rows.counts()["waiting"] == 2
    found = by_queue(client)["flights/rows"]
    assert dict(found.counts) == {"moved": 5}
    assert (found.run.count, found.wait.count) == (5, 5)
    assert 0 < 5 * found.run.mean_ms < took_ms, "they share the time of the batch"
    assert 0 < found.wait.mean_ms < took_ms


ONLY_SPARK = """
import time
from pathlib import Path

from pyspark.sql.functions import udf
from pyspark.sql.types import IntegerType

from jobrunner.etl import Pipeline

nights = Pipeline("nights")

@udf(IntegerType())
def slow(n):
    if n >= 20:
        Path(RUNNING).touch()
        time.sleep(2)
    return n

@nights.spark_sink("rows", max_wait=0.2, schema="n int", batch=20, parallel=1)
def store(df, spark, batch):
    df.select(slow("n")).collect()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sigterm_to_the_group_while_a_batch_runs_writes_few_lines(server, client, tmp_path):
    """As `timeout 60 jobrunner …` and systemd send it: the JVM and its Pythons get it, too."""
    running = tmp_path / "running"
    (tmp_path / "night_stations.py").write_text(f"RUNNING = {str(running)!r}\n{ONLY_SPARK}")
    client.queue("nights/rows").push_many([{"n": n} for n in range(100)])
    told = {"JOBRUNNER_URL": server.url, "JOBRUNNER_PREFIX": keys_of(client).prefix, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    words = ["pipeline", "run", "nights", "night_stations", "--master", "local[1]", "--grace", "2"]
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "jobrunner", *words], cwd=tmp_path, env=os.environ | told, stdout=file, stderr=file,
            start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(running.exists, timeout_s=600)
        before = log.read_text().splitlines()
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(120)
    finally:
        process.kill()

    said = log.read_text().splitlines()[len(before) :]
    assert len(said) < 20, said
    finished = int(re.search(r"finished=(\d+)", said[-1])[1])
    left = client.queue("nights/rows").counts()
    assert finished == client.queue("nights/rows").totals()["succeeded"] == 20
    assert left["waiting"] + left["pending"] == 80
