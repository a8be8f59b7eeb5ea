"""Two pipelines whose drivers wait where a test wants to kill them: a chain, and one without chains for partitions.

A driver with KILLS_HOLD waits at the place that the file of this name says, as long as it is there.
"""

import os
import threading
import time
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.types import IntegerType

from jobrunner.etl import Drop, Pipeline
from jobrunner.outcome import Fail
from jobrunner.retry import Backoff
from jobrunner.spark import write_batch

FOLDER = os.environ["KILLS_FOLDER"]
HOLD = Path(os.environ.get("KILLS_HOLD", "nowhere"))
LEASE_S = 6
chained = Pipeline("chained")
spread = Pipeline("spread")


def hold(place, batch):
    """Waits while the test holds drivers at this place; leaves a file that says so."""
    if HOLD.exists() and HOLD.read_text() == place:
        HOLD.with_name(f"held-{os.getpid()}-{threading.get_ident()}-{batch.size}").touch()
        while HOLD.exists():
            time.sleep(0.02)


def store(path):
    """The function of a sink into a folder."""

    def into(df, spark, batch):
        hold("before", batch)
        write_batch(df.select("n", "_id"), batch, f"{FOLDER}/{path}")
        hold("after", batch)

    return into


@chained.station("raw", to="rows", backoff=Backoff(base=0))
def parse(item):
    """By the last digit: 1 is refused, 2 dropped, 3 does not fit the next station."""
    digit = item.payload % 10
    if digit == 1:
        raise Fail("no flight", retry=False)
    return Drop() if digit == 2 else {"n": "three" if digit == 3 else item.payload}


@F.udf(IntegerType())
def read(n):
    """Raises for some rows."""
    if n in (5, 85):
        raise ValueError(f"cannot read {n}")
    return n


@chained.spark_station("rows", to=("files", "table"), schema="n int")
def route(df, spark):
    """Even ones into the folder, others into the table."""
    return df.withColumn("n", read("n")).withColumn("_to", F.when(F.col("n") % 2 == 0, "files").otherwise("table"))


chained.spark_sink("files", schema="n int")(store("files"))
chained.spark_sink("table", table=f"delta:{FOLDER}/table", schema="n int")
chained.chain("raw", batch=20, max_wait=0, lease=LEASE_S, quarantine=True)


@spread.spark_station("raw", to=("even", "odd"), schema="n int", batch=10, max_wait=0, lease=LEASE_S)
def split(df, spark):
    """Into a sink each."""
    return df.withColumn("_to", F.when(df.n % 2 == 0, "even").otherwise("odd"))


for name in ("even", "odd"):
    spread.spark_sink(name, schema="n int", batch=10, max_wait=0, lease=LEASE_S, parallel=1)(store(name))
