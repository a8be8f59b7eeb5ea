"""A program with a Spark session and a pipeline of its own, as in a notebook: `… HOW FOLDER`, writes result.json there.

HOW: `submit` (the session of spark-submit), `remote=URL` (Spark Connect), or a master.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.types import StringType

from jobrunner import Worker, configure
from jobrunner.etl import Pipeline
from jobrunner.spark import register, write_batch

ORDERS = 60
how, folder = sys.argv[1:3]
builder = SparkSession.builder.config("spark.sql.shuffle.partitions", 2)
if how.startswith("remote="):
    builder = builder.remote(how.removeprefix("remote="))
elif how != "submit":
    builder = builder.master(how)
spark = builder.getOrCreate()
register(spark)
shop = Pipeline("shop")


@F.udf(StringType())
def grade(pence):
    """A function of this module, which executors run."""
    return "big" if pence >= 3000 else "small"


@shop.station("raw", to="rows")
def parse(item):
    """Text into a row."""
    number, shop_id = item.payload.split(",")
    return {"n": int(number), "shop": shop_id, "pence": int(number) * 100}


@shop.spark_station("rows", to=("big", "small"), schema="n int, shop string, pence int", max_wait=0.1)
def enrich(df, spark):
    """A join, a Python function, a fork."""
    names = spark.createDataFrame([("a", "Aachen"), ("b", "Bonn")], "shop string, town string")
    return df.join(names, "shop", "left").withColumn("_to", grade("pence"))


@shop.spark_sink("big", schema="n int, town string", max_wait=0.1)
def store(df, spark, batch):
    """As Parquet, once."""
    write_batch(df.select("n", "town"), batch, folder)


shop.declare("small")


def main():
    """Feeds the pipeline, works in this process until it is empty, reads and prints what came out."""
    configure().queue("shop/raw").push_many([f"{n},{'ab'[n % 2]}" for n in range(ORDERS)])
    Worker().run(burst=True)
    small = spark.read.format("jobrunner").options(queue="shop/small", payloadSchema="n int, town string").load()
    found = {
        "big": sorted([row.n, row.town] for row in spark.read.parquet(folder).collect()),
        "small": sorted([row.n, row.town] for row in small.where("_state = 'waiting'").collect()),
    }
    Path(folder, "result.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
