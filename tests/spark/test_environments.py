"""One program with a session of its own in each environment: as in a notebook, by spark-submit, on a standalone
cluster, through Spark Connect. The results are the same.

Those that start a cluster or a server are `slow`: pytest -n 0 -m 'spark and slow' tests/spark/test_environments.py
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from jobrunner.client.client import keys_of
from jobrunner.spark.java import find_java, home_of
from tests.spark.cluster import LOOPBACK, Cluster

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("environment_program.py")
TOWNS = ("Aachen", "Bonn")
EXPECTED = {
    "big": [[n, TOWNS[n % 2]] for n in range(30, 60)],
    "small": [[n, TOWNS[n % 2]] for n in range(30)],
}
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
        for queue in ("raw", "rows", "big"):
            counts = client.queue(f"shop/{queue}").counts()
            assert sum(counts[state] for state in ("waiting", "scheduled", "pending", "dead")) == 0, queue
        return json.loads((folder / "result.json").read_text()), log

    return ran


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
    assert run("remote=local[2]")[0] == EXPECTED
