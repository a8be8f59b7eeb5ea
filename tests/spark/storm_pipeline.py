"""Bad records of every kind on their way to a folder and a table, as test_storm.py runs it by `jobrunner pipeline run`.
"""

import os

from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from jobrunner.etl import Pipeline
from jobrunner.spark import write_batch

storm = Pipeline("storm")
FOLDER = os.environ["STORM_FOLDER"]
BATCH = int(os.environ.get("STORM_BATCH", "200"))
LEASE_S = float(os.environ.get("STORM_LEASE", "10"))


def is_misfit(n: int) -> bool:
    """Whether the payload of this item does not fit the schema."""
    return n % 499 == 17


def is_bad_row(n: int) -> bool:
    """Whether the station gives the row of this item an error."""
    return n % 501 == 23


def raises(n: int) -> bool:
    """Whether the function of the station raises for this item, and with it the batch."""
    return n % 1103 == 41


def raises_late(n: int) -> bool:
    """Whether the sink raises for this item, in the middle of its write."""
    return n % 1301 == 52


def check(of, words):
    """A column function that raises for the items of one kind."""

    @F.udf("long")
    def checked(n):
        if of(n):
            raise ValueError(f"{words} {n}")
        return n

    return checked


@storm.station("raw", to="rows")
def parse(item):
    """In Python: most fit the schema of the next station."""
    n = item.payload
    return {"n": f"no number: {n}"} if is_misfit(n) else {"n": n}


@storm.spark_station(
    "rows", to=("files", "table"), schema="n long", batch=BATCH, max_wait=0.2, lease=LEASE_S, quarantine=True
)
def route(df, spark):
    """Even ones into the folder, the others into the table."""
    df = df.withColumn("n", check(raises, "cannot read")(df.n))
    df = df.withColumn("_error", F.when(df.n % 501 == 23, F.lit("bad row")))
    return df.withColumn("_to", F.when(df.n % 2 == 0, "files").otherwise("table"))


@storm.spark_sink("files", schema="n long", batch=BATCH, max_wait=0.2, lease=LEASE_S, quarantine=True)
def files(df, spark, batch):
    """As Parquet, once."""
    write_batch(df.select(check(raises_late, "cannot write")(df.n).alias("n"), "_id"), batch, f"{FOLDER}/files")


storm.spark_sink("table", table=f"delta:{FOLDER}/table", schema="n long", batch=BATCH, max_wait=0.2, lease=LEASE_S)
