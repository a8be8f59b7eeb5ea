"""One program with a session of its own in each environment: as in a notebook, by spark-submit, on a standalone
cluster, through Spark Connect. The results are the same, also those of a chain.

Those that start a cluster or a server are `slow`: pytest -n 0 -m 'spark and slow' tests/spark/test_environments.py
"""

import json
import os
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from jobrunner.client.client import keys_of
from jobrunner.spark.java import find_java, home_of
from tests.spark.cluster import LOOPBACK, Cluster
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("environment_program.py")
TOWNS = ("Aachen", "Bonn")
SORTED = {
    "big": [[n, TOWNS[n % 2]] for n in range(30, 60)],
    "small": [[n, TOWNS[n % 2]] for n in range(30)],
}
REFUSED = "ValueError: invalid literal for int() with base 10: 'no number'"
EXPECTED = SORTED | {"mall": SORTED, "refused": [REFUSED]}
LONE_STATIONS = """
import os
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType
from jobrunner.etl import Pipeline
from jobrunner.spark import write_batch

numbers = Pipeline("numbers")

def doubled(n):
    return 2 * n

@F.udf(IntegerType())
def twice(n):
    return doubled(n)

@numbers.spark_station("rows", to="late", max_wait=0.1, batch=5, max_attempts=1, schema="n int")
def double(df, spark):
    return df.withColumn("n", 2 * df.n if "ONLY_COLUMNS" in os.environ else twice("n"))

numbers.declare("late")

chained = Pipeline("chained")

@chained.station("raw", to="rows")
def parse(item):
    return {"n": doubled(item.payload["n"])}

@chained.spark_station("rows", to="end", schema="n int")
def keep(df, spark):
    return df if "ONLY_COLUMNS" in os.environ else df.withColumn("n", twice("n"))

@chained.spark_sink("end", schema="n int")
def store(df, spark, batch):
    write_batch(df, batch, "chained")

chained.chain("raw", batch=5, max_wait=0.1)
"""
"""Executors get no module of the driver's folder. The decorated function is sent with its code; pickle names the one
that it calls by its module."""
WITHOUT_MSGSPEC = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "msgspec":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""
QUEUES = ("numbers/rows", "chained/raw")
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


@pytest.fixture
def run(server, client, tmp_path):
    """run(how, *words): runs the program, by these words in place of Python; returns its result and its log."""

    def ran(how, *words, **environment):
        own = {
            "JOBRUNNER_URL": server.url, "JOBRUNNER_PREFIX": keys_of(client).prefix, "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
        }  # fmt: skip
        folder = tmp_path / "out"
        folder.mkdir()
        with home_of(find_java(os.environ)) as java_home:
            own["JAVA_HOME"] = str(java_home)
            done = subprocess.run(
                [*(words or [sys.executable]), str(PROGRAM), how, str(folder)],
                env=os.environ | LOOPBACK | own | environment, cwd=tmp_path, capture_output=True, text=True,
                timeout=600, check=False,
            )  # fmt: skip
        log = done.stdout + done.stderr
        assert done.returncode == 0, log[-5000:]
        for queue in ("shop/raw", "shop/rows", "shop/big", "mall/raw", "mall/rows"):
            counts = client.queue(queue).counts()
            assert sum(counts[state] for state in ("waiting", "scheduled", "pending")) == 0, queue
            assert counts["dead"] == (queue == "mall/raw")
        return json.loads((folder / "result.json").read_text()), log

    return ran


@pytest.mark.slow  # .ci/lowest runs it, with the lowest versions
@pytest.mark.timeout(900)
def test_in_a_program_with_a_session_as_a_notebook_has_it(run):
    result, log = run("local[2]")
    assert result == EXPECTED
    assert "Traceback" not in log


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_by_spark_submit(run):
    assert run("submit", str(SUBMIT), "--master", "local[2]")[0] == EXPECTED


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_on_a_standalone_cluster_that_gets_the_package_from_the_driver(run, tmp_path):
    cluster = Cluster(tmp_path, workers=1)
    try:
        assert run(cluster.url)[0] == EXPECTED
    finally:
        cluster.stop()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_through_spark_connect(run):
    pytest.importorskip("grpc")
    assert run("remote=local[2]", SPARK_TESTING="1")[0] == EXPECTED  # PySpark's own way to a free port


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_executors_that_lack_a_module_stop_the_station_and_cost_no_item(server, client, tmp_path):
    """`jobrunner work` on a cluster, as the page of the environments has it: first with a Python that lacks msgspec,
    then with one that lacks the module of the stations, then with that module sent."""
    (tmp_path / "lone_stations.py").write_text(LONE_STATIONS)
    for queue in QUEUES:
        client.queue(queue).push_many([{"n": n} for n in range(20)])
    cluster = Cluster(tmp_path, workers=1)
    told = {
        "JOBRUNNER_URL": server.url, "JOBRUNNER_PREFIX": keys_of(client).prefix, "JOBRUNNER_SPARK_MASTER": cluster.url,
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
    }  # fmt: skip

    def work(python, *words, **more):
        """The Python is named by Spark's setting, or by the variable where the setting is not to be tried."""
        if python is None:
            more["PYSPARK_PYTHON"] = sys.executable
        else:
            words = (*words, "--conf", f"spark.pyspark.python={python}")
        path = tmp_path / "log"
        path.unlink(missing_ok=True)
        with path.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "jobrunner", "work", "lone_stations", *words], cwd=tmp_path,
                env=os.environ | LOOPBACK | told | more, stdout=log, stderr=log,
            ), path  # fmt: skip

    def lines(path):
        return [line for line in path.read_text().splitlines() if "station stops" in line]

    def stops(python, **more):
        process, path = work(python, **more)
        try:
            stopped = lambda: {queue for queue in QUEUES for line in lines(path) if f"queue={queue}" in line}  # noqa: E731
            wait_for(lambda: process.poll() is not None or len(stopped()) == 2, timeout_s=400)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0, path.read_text()
        finally:
            process.kill()
        assert len(lines(path)) == 2, path.read_text()
        assert "Traceback" not in path.read_text()
        for queue in QUEUES:
            items = [item for state in ("waiting", "pending") for item in client.queue(queue).tasks(state)]
            assert [(item.retry_count, item.failures, item.error) for item in items] == [(0, [], "")] * 20
        return [line.replace("\\'", "'") for line in lines(path)]  # the log quotes them

    try:
        for line in stops(_without_msgspec(tmp_path / "poor"), ONLY_COLUMNS="1"):  # else either of two is named
            assert "executors cannot import jobrunner: No module named 'msgspec'" in line
            assert str(tmp_path / "poor") in line
        assert all("No module named 'lone_stations'" in line for line in stops(sys.executable))
        process, path = work(None, "--burst", "--conf", f"spark.submit.pyFiles={tmp_path}/lone_stations.py")
        assert process.wait(300) == 0, path.read_text()
    finally:
        cluster.stop()
    assert sorted(item.payload["n"] for item in client.queue("numbers/late").pop(100)) == [2 * n for n in range(20)]
    assert sorted(pq.read_table(tmp_path / "chained").column("n").to_pylist()) == [4 * n for n in range(20)]


def _without_msgspec(folder):
    """A Python that has all that this one has, msgspec excepted."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    (packages / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    (packages / "sitecustomize.py").write_text(WITHOUT_MSGSPEC)
    return folder / "bin" / "python"
