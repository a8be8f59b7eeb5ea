"""`jobrunner pipeline run --burst` of a pipeline with a station in Python and one on Spark."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MIXED = """
from jobrunner.etl import Pipeline

mixed = Pipeline("mixed")

@mixed.station("raw", to="rows")
def parse(item):
    return {"day": item.payload, "delay": item.payload * 10.0}

@mixed.spark_station("rows", to="late", max_wait=0.2, schema="day int, delay double")
def enrich(df, spark):
    return df.withColumn("late", df.delay > 15)

@mixed.sink("late", history=60)
def store(item):
    return item.payload["late"]
"""


@pytest.mark.timeout(300)  # a session starts in seconds, on a machine that has others to serve in minutes
def test_a_burst_ends_when_python_and_spark_are_both_done(server, client, tmp_path):
    (tmp_path / "mixed_stations.py").write_text(MIXED)
    client.queue("mixed/raw").push_many(range(40))
    told = {"JOBRUNNER_URL": server.url, "JOBRUNNER_PREFIX": client.keys.prefix, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    words = ["pipeline", "run", "mixed", "mixed_stations", "--burst", "--master", "local[1]"]

    said = subprocess.run(
        [sys.executable, "-m", "jobrunner", *words],
        cwd=tmp_path, env=os.environ | told, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip

    assert said.returncode == 0, said.stderr
    assert said.stderr.count("worker started") == 2, "one for Python, one for the session"
    done = client.queue("mixed/late").history(100)
    assert sorted(json.loads(one.result or b"") for one in done) == [False] * 2 + [True] * 38
    for queue in ("raw", "rows", "late"):
        counts = client.queue(f"mixed/{queue}").counts()
        assert [counts[state] for state in ("waiting", "scheduled", "pending", "dead")] == [0, 0, 0, 0], queue
