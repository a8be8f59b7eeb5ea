"""Streams of their own processes, killed in the middle of a micro-batch and restarted: each row in its queue once.

Each start is a JVM, so these take minutes: `pytest -n 0 -m "spark and slow" tests/spark/test_stream_kills.py`.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from jobrunner.client.client import keys_of
from jobrunner.spark.session import find_java, home_of
from tests.spark.cluster import command_of, descendants
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
ROOT = Path(__file__).parents[2]
ROWS, STARTS = 400, 10

TWO_QUERIES = """
import sys
from jobrunner.spark import spark_session

PATIENT = "spark.python.authenticate.socketTimeout"  # a loaded machine starts a Python worker in more than 15 s
spark = spark_session(master="local[2,4]", **{"spark.driver.memory": "1g", PATIENT: "120s"})
rows = spark.readStream.format("jobrunner").option("history", "orders").option("columns", "_id")
rows = rows.option("maxRowsPerTrigger", sys.argv[1]).load().withColumnRenamed("_id", "order_id")

def store(frame, number):
    frame.write.format("jobrunner").options(queue="by_function", microBatch=number).mode("append").save()

queries = [
    rows.writeStream.format("jobrunner").option("queue", "by_sink").option("checkpointLocation", "by_sink"),
    rows.writeStream.foreachBatch(store).option("checkpointLocation", "by_function"),
]
for query in queries:
    query.trigger(availableNow=True).start().awaitTermination()
"""
EVERY_SINK = """
import sys
from jobrunner.spark import micro_batch, spark_session, write_batch, write_table

PATIENT = "spark.python.authenticate.socketTimeout"
spark = spark_session(master="local[2,4]", **{"spark.driver.memory": "1g", PATIENT: "120s"})
rows = spark.readStream.format("jobrunner").option("history", "orders").option("columns", "_id")
rows = rows.option("maxRowsPerTrigger", 20).load().withColumnRenamed("_id", "order_id")

def store(frame, number):
    frame.write.format("jobrunner").options(queue="by_function", microBatch=number).mode("append").save()
    write_table(frame, micro_batch("table", number), f"delta:{sys.argv[1]}/table")
    write_batch(frame, micro_batch("folder", number), f"{sys.argv[1]}/folder")

queries = [
    rows.writeStream.format("jobrunner").option("queue", "by_sink").option("checkpointLocation", "by_sink"),
    rows.writeStream.foreachBatch(store).option("checkpointLocation", "by_function"),
]
trigger = {"availableNow": True} if sys.argv[2] == "rest" else {"processingTime": "100 milliseconds"}
for query in [query.trigger(**trigger).start() for query in queries]:
    query.awaitTermination()
"""
PIPELINE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from jobrunner.spark import register

spark = SparkSession.active()
register(spark)

dp.create_sink("mails", "jobrunner", {"queue": "mails"})

@dp.append_flow(target="mails")
def to_mails():
    finished = spark.readStream.format("jobrunner").option("history", "orders").option("maxRowsPerTrigger", 150)
    return finished.load().selectExpr("_id as order_id")
"""
SPEC = """
name: orders
storage: file://FOLDER/storage
database: default
libraries:
  - glob: {include: transformations/**}
configuration:
  spark.sql.python.filterPushdown.enabled: "true"
  spark.sql.session.timeZone: UTC
"""


@pytest.fixture
def orders(client):
    """Ids of tasks that finished in queue orders, at as many instants."""
    queue = client.queue("orders")
    queue.configure(history=3600)
    ids = queue.push_many([{"n": n} for n in range(ROWS)])
    for _ in range(ROWS // 20):
        queue.commit_many(queue.reserve(20))
    return sorted(ids)


@pytest.fixture
def start(client, server, tmp_path):
    """start(["python", ...]): a process group in tmp_path on the test's server; its output is in tmp_path/log."""
    started = []

    def run(command):
        with home_of(find_java(os.environ)) as home:
            environment = os.environ | {
                "JOBRUNNER_URL": server.url, "JOBRUNNER_PREFIX": keys_of(client).prefix, "PYTHONPATH": str(ROOT),
                "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1",
            }  # fmt: skip
            with (tmp_path / "log").open("ab") as log:
                process = subprocess.Popen(
                    command, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True
                )
        started.append(process)
        return process

    yield run
    for process in started:
        kill(process)


def kill(process):
    """Driver and JVM at once; Python workers end with the JVM."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def kill_at_staged_rows(begin, raw, prefix, queue, seen):
    """Kills in the middle of a micro-batch whose rows are staged and not decided; the names of those seen so far.

    A start that ends with an error is repeated, as by a supervisor: on a loaded machine Spark gives its Python workers
    10 seconds to begin, and ends the query.
    """
    pattern = f"{prefix}:{{{queue}}}:batch:*:rows:*"
    for _ in range(STARTS):
        process = begin()

        def found(process=process):
            return process.poll() is not None or set(raw.scan_iter(match=pattern, count=1000)) - seen

        names = wait_for(found, timeout_s=900)
        kill(process)
        if isinstance(names, set):
            return seen | names
        assert process.returncode != 0, "it was done before it could be killed"
    raise AssertionError(f"no start in {STARTS} came to stage rows")


def tail(folder):
    return (folder / "log").read_text()[-3000:]


def orders_in(client, queue):
    found = []
    while items := client.queue(queue).pop(1000):
        found += [item.payload["order_id"] for item in items]
    return sorted(found)


def leftovers(raw, prefix):
    found = set(raw.scan_iter(match=f"{prefix}:*:batch:*", count=1000))
    return {key for key in found if raw.type(key) != b"hash" or raw.hget(key, "state") != b"done"}


def test_two_sinks_of_a_killed_driver_have_each_row_once(client, orders, start, raw, keys, tmp_path):
    """It restarts with another maxRowsPerTrigger each time."""
    (tmp_path / "program.py").write_text(TWO_QUERIES)
    seen = set()
    for most, queue in ((90, "by_sink"), (60, "by_sink"), (150, "by_function")):

        def begin(most=most):
            return start([sys.executable, "program.py", str(most)])

        seen = kill_at_staged_rows(begin, raw, keys.prefix, queue, seen)
    assert any(start([sys.executable, "program.py", "200"]).wait(900) == 0 for _ in range(STARTS)), tail(tmp_path)

    assert orders_in(client, "by_sink") == orders
    assert orders_in(client, "by_function") == orders
    assert leftovers(raw, keys.prefix) == set()


@pytest.mark.parametrize("seed", range(2))
def test_queries_that_run_continuously_are_killed_at_any_moment(client, orders, start, raw, keys, tmp_path, seed):
    """The driver with its JVM, or the JVM alone, a moment behind some progress."""
    (tmp_path / "program.py").write_text(EVERY_SINK)
    command = [sys.executable, "program.py", str(tmp_path)]
    dice, kills = random.Random(seed), ["all", "jvm", "all", "jvm"]

    def added():
        return [client.queue(name).counts()["waiting"] for name in ("by_sink", "by_function")]

    while kills and min(added()) < ROWS:
        process, before = start([*command, "all"]), added()
        wait_for(lambda process=process, before=before: process.poll() is not None or added() != before, timeout_s=900)
        time.sleep(dice.uniform(0, 1.5))  # the fault is to come at any moment
        if process.poll() is None and kills.pop() == "jvm":
            for pid in descendants(process.pid):
                if "java" in command_of(pid)[:200]:
                    os.kill(pid, signal.SIGKILL)
            process.wait(120)  # it ends by itself
        kill(process)
    assert len(kills) < 3, "it was done before it could be killed twice"
    assert any(start([*command, "rest"]).wait(900) == 0 for _ in range(STARTS)), tail(tmp_path)

    assert orders_in(client, "by_sink") == orders_in(client, "by_function") == orders
    assert sorted(DeltaTable(f"{tmp_path}/table").to_pyarrow_table()["order_id"].to_pylist()) == orders
    assert sorted(pq.read_table(tmp_path / "folder")["order_id"].to_pylist()) == orders
    assert not list((tmp_path / "folder").glob("_attempt-*"))
    assert leftovers(raw, keys.prefix) == set()


def test_a_killed_declarative_pipeline_has_each_row_in_its_queue_once(client, orders, start, raw, keys, tmp_path):
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "orders.py").write_text(PIPELINE)
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.replace("FOLDER", str(tmp_path)))
    command = [shutil.which("spark-pipelines", path=str(Path(sys.executable).parent)) or "spark-pipelines", "run"]
    command += ["--conf", "spark.python.authenticate.socketTimeout=120s"]
    kill_at_staged_rows(lambda: start(command), raw, keys.prefix, "mails", set())

    def completes():
        start(command).wait(900)  # with status 1 in PySpark 4.3 after any run with Python workers
        return "Run is COMPLETED" in (tmp_path / "log").read_text()

    assert any(completes() for _ in range(STARTS)), tail(tmp_path)
    assert orders_in(client, "mails") == orders
    assert leftovers(raw, keys.prefix) == set()
