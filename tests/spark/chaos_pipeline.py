"""Two Spark stations and a sink, as the chaos tests run them: by workers of their own."""

import os

from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from jobrunner.etl import Pipeline
from jobrunner.spark import write_batch

chaos = Pipeline("chaos")
BATCH = int(os.environ.get("CHAOS_BATCH", "15000"))
LEASE_S = float(os.environ.get("CHAOS_LEASE", "10"))


@chaos.spark_station("raw", to="clean", schema="n long, key string", batch=BATCH, max_wait=0.2, lease=LEASE_S)
def clean(df, spark):
    """Drops every tenth, and marks the even ones."""
    return df.where("n % 10 <> 0").withColumn("even", df.n % 2 == 0)


@chaos.spark_station(
    "clean", to=("store", "rest"), schema="n long, even boolean", batch=BATCH, max_wait=0.2, lease=LEASE_S
)
def fork(df, spark):
    """Even ones are stored; the others stay in a queue."""
    return df.withColumn("_to", F.when(df.even, "store").otherwise("rest"))


@chaos.spark_sink("store", schema="n long", batch=BATCH, max_wait=0.2, lease=LEASE_S)
def store(df, spark, batch):
    """As Parquet, once."""
    write_batch(df.select("n", "_id"), batch, os.environ["CHAOS_FOLDER"])


chaos.declare("rest")
