"""A program with a Spark session and pipelines of its own, as in a notebook: `… HOW FOLDER`, writes result.json there.
The second pipeline has the stations of the first one, in a chain.

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
if how.startswith("remote="):  # else the server keeps the items of each batch until the session ends
    assert int(spark.conf.get("spark.sql.session.localRelationCacheThreshold")) >= 64 << 20
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
    write_batch(df.select("n", "town"), batch, f"{folder}/shop")


shop.declare("small")

mall = Pipeline("mall")
mall.station("raw", to="rows")(parse)
mall.spark_station("rows", to=("big", "small"), schema="n int, shop string, pence int")(enrich)


@mall.spark_sink("big", schema="n int, town string")
def store_big(df, spark, batch):
    """As Parquet, once."""
    write_batch(df.select("n", "town"), batch, f"{folder}/mall/big")


@mall.spark_sink("small", schema="n int, town string")
def store_small(df, spark, batch):
    """The same."""
    write_batch(df.select("n", "town"), batch, f"{folder}/mall/small")


mall.chain("raw", batch=40, max_wait=0.1)


def rows_of(path):
    """The rows that a sink wrote there."""
    return sorted([row.n, row.town] for row in spark.read.parquet(path).collect())


def main():
    """Feeds the pipelines, works in this process until they are empty, reads and writes what came out."""
    client = configure()
    orders = [f"{n},{'ab'[n % 2]}" for n in range(ORDERS)]
    client.queue("shop/raw").push_many(orders)
    client.queue("mall/raw").push_many(["no number,a", *orders])
    Worker().run(burst=True)
    small = spark.read.format("jobrunner").options(queue="shop/small", payloadSchema="n int, town string").load()
    found = {
        "big": rows_of(f"{folder}/shop"),
        "small": sorted([row.n, row.town] for row in small.where("_state = 'waiting'").collect()),
        "mall": {name: rows_of(f"{folder}/mall/{name}") for name in ("big", "small")},
        "refused": [client.task(one).record().error for one in client.queue("mall/raw").ids("dead")],
    }
    Path(folder, "result.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
