"""`jobrunner pipeline run --burst` of a pipeline with a station in Python and one on Spark."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.client.client import broker_of, keys_of
from jobrunner.inspector.stats import by_queue
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
MIXED = """
from pyspark.sql import functions as F
from jobrunner.etl import Pipeline

SHUFFLE = "spark.sql.shuffle.partitions"
mixed = Pipeline("mixed")

@mixed.station("raw", to="rows")
def parse(item):
    return {"day": item.payload, "delay": item.payload * 10.0}

@mixed.spark_station("rows", to="late", max_wait=0.2, schema="day int, delay double")
def enrich(df, spark):
    told = [F.lit(spark.conf.get(name, "")) for name in ("spark.master", "spark.app.name", "spark.x.y", SHUFFLE)]
    return df.withColumn("late", df.delay > 15).withColumn("told", F.array(*told))

@mixed.sink("late", history=60)
def store(item):
    return [item.payload["late"], *item.payload["told"]]
"""
SETTINGS = """
[tool.jobrunner.spark]
master = "local[1]"
"spark.app.name" = "file"
"spark.sql.shuffle.partitions" = 7
"""


def test_a_burst_ends_when_python_and_spark_are_both_done_with_the_settings_of_file_and_command(
    server, client, tmp_path
):
    (tmp_path / "mixed_stations.py").write_text(MIXED)
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    client.queue("mixed/raw").push_many(range(40))
    told = {"JOBRUNNER_URL": server.url, "JOBRUNNER_PREFIX": keys_of(client).prefix, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    words = ["pipeline", "run", "mixed", "mixed_stations", "--burst"]
    words += ["--conf", "spark.app.name=line", "--conf", "spark.x.y=a=b"]

    said = subprocess.run(
        [sys.executable, "-m", "jobrunner", *words],
        cwd=tmp_path, env=os.environ | told, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip

    assert said.returncode == 0, said.stderr
    assert said.stderr.count("worker started") == 2, "one for Python, one for the session"
    done = client.queue("mixed/late").history(100)
    settings = ["local[1]", "line", "a=b", "7"]
    assert sorted(one.result for one in done) == [[False, *settings]] * 2 + [[True, *settings]] * 38
    for queue in ("raw", "rows", "late"):
        counts = client.queue(f"mixed/{queue}").counts()
        assert [counts[state] for state in ("waiting", "scheduled", "pending", "dead")] == [0, 0, 0, 0], queue


def test_a_worker_of_a_station_on_spark_is_quieted_and_stopped_and_tells_times_of_items(server, client, tmp_path):
    def tell(order):
        broker_of(client).run_many(leader_calls.order(keys_of(client), worker.id, order, "1", ttl_ms=60_000))

    (tmp_path / "mixed_stations.py").write_text(MIXED)
    rows = client.queue("mixed/rows")
    rows.push_many([{"day": day, "delay": 1.0} for day in range(5)])
    told = {"JOBRUNNER_URL": server.url, "JOBRUNNER_PREFIX": keys_of(client).prefix, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    process = subprocess.Popen(
        [sys.executable, "-m", "jobrunner", "work", "mixed_stations", "-q", "mixed/rows", "--heartbeat", "0.2"],
        cwd=tmp_path, env=os.environ | told | {"JOBRUNNER_SPARK_MASTER": "local[1]"},
    )  # fmt: skip
    try:
        wait_for(lambda: client.queue("mixed/late").counts()["waiting"] == 5, timeout_s=240)
        (worker,) = client.workers()
        tell("quiet")
        wait_for(lambda: client.workers()[0].quiet)
        rows.push_many([{"day": 9, "delay": 1.0}] * 2)
        tell("stop")
        assert process.wait(60) == 0
    finally:
        process.kill()

    assert rows.counts()["waiting"] == 2
    found = by_queue(client)["mixed/rows"]
    assert dict(found.counts) == {"moved": 5}
    assert (found.run.count, found.wait.count) == (5, 5)
    assert 0 < found.run.mean_ms < found.wait.mean_ms < 300_000


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
