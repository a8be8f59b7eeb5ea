"""A data pipeline: every flight that was to leave New York in 2013 is cleaned, joined with other tables, and stored.

::

    raw ── clean ──┬── departed ══ enrich ══┬══ on_time ══ Parquet
       (Python)    │            (Spark)     └══ late ═════ Parquet
                   └── cancelled ═════════════════════════ Parquet

Run it with ``jobrunner pipeline run flights jobs_example.flights`` and feed it with `push`; ``jobrunner demo flights``
does both, and more. The Parquet goes to the folder that the environment variable FLIGHTS_FOLDER names.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from jobrunner import Fail, Item
from jobrunner.etl import Pipeline, StationItem, To
from jobrunner.spark import SinkBatch, write_batch
from jobs_example import cleaning, dataset
from jobs_example.punctuality import ON_TIME_MINUTES

FOLDER_VARIABLE = "FLIGHTS_FOLDER"
SOON = timedelta(seconds=10)
"""The length of a lease, which workers renew: items of a dead worker wait no longer than this."""

FLIGHT = """
    year int, month int, day int, hour int, minute int, time_hour timestamp,
    carrier string, flight int, tailnum string, origin string, dest string, distance int, air_time int,
    sched_dep_time int, dep_time int, dep_delay int, sched_arr_time int, arr_time int, arr_delay int"""
WEATHER = "temp double, wind_speed double, precip double, visib double"
PLANE = "manufacturer string, model string, seats int, built int"
ENRICHED = f"{FLIGHT}, airline string, {WEATHER}, {PLANE}"

flights = Pipeline("flights")


@flights.station("raw", to=("departed", "cancelled"), keepalive=SOON)
def clean(item: StationItem) -> To:
    """Gives the cells their types. A row that cannot be true is dead at once, with the reason."""
    try:
        flight = cleaning.typed(item.payload)
    except cleaning.BadRow as error:
        raise Fail(str(error), retry=False) from error
    return To("cancelled" if flight["dep_time"] is None else "departed", flight)


@flights.spark_station("departed", to=("on_time", "late"), batch=40_000, max_wait=2.0, lease=SOON, schema=FLIGHT)
def enrich(df: DataFrame, spark: SparkSession) -> DataFrame:
    """Adds the weather at departure, the plane and the name of the airline; late flights go to a queue of their own."""
    on_time = F.coalesce(df.arr_delay < ON_TIME_MINUTES, F.lit(False))  # one that never arrived is not on time
    return (
        df.join(weather(spark), ["origin", "time_hour"], "left")
        .join(planes(spark), "tailnum", "left")
        .join(airlines(spark), "carrier", "left")
        .withColumn("_to", F.when(on_time, "on_time").otherwise("late"))
    )


@flights.spark_sink("on_time", batch=50_000, min_rows=1, max_wait=20.0, lease=SOON, schema=ENRICHED)
def store_on_time(df: DataFrame, _: SparkSession, batch: SinkBatch) -> None:
    """Keeps flights that were on time."""
    store(df, "on_time", batch)


@flights.spark_sink("late", batch=50_000, min_rows=1, max_wait=20.0, lease=SOON, schema=ENRICHED)
def store_late(df: DataFrame, _: SparkSession, batch: SinkBatch) -> None:
    """Keeps flights that were late."""
    store(df, "late", batch)


@flights.spark_sink("cancelled", batch=50_000, min_rows=1, max_wait=20.0, lease=SOON, schema=FLIGHT)
def store_cancelled(df: DataFrame, _: SparkSession, batch: SinkBatch) -> None:
    """Keeps flights that never departed."""
    store(df, "cancelled", batch)


def store(df: DataFrame, table: str, batch: SinkBatch) -> None:
    """Writes a batch as a partition of its own. A repeated batch overwrites itself, so no row is there twice."""
    rows = df.select(df._id.alias("id"), *[name for name in df.columns if not name.startswith("_")])  # noqa: SLF001
    write_batch(rows, batch, str(folder() / table))


def folder() -> Path:
    """Where the tables are written to."""
    return Path(os.environ.get(FOLDER_VARIABLE, "flights-tables")).absolute()


@cache
def weather(spark: SparkSession) -> DataFrame:
    """The weather by airport and hour; small enough for a copy on each executor."""
    table = _read(spark, "weather").select(
        "origin", F.col("time_hour").cast("timestamp"), *[F.col(name).cast("double") for name in _names(WEATHER)]
    )
    return F.broadcast(table.cache())


@cache
def planes(spark: SparkSession) -> DataFrame:
    """Aircraft by tail number."""
    table = _read(spark, "planes").select(
        "tailnum", "manufacturer", "model", F.col("seats").cast("int"), F.col("year").cast("int").alias("built")
    )
    return F.broadcast(table.cache())


@cache
def airlines(spark: SparkSession) -> DataFrame:
    """Names of carriers."""
    return F.broadcast(_read(spark, "airlines").select("carrier", F.col("name").alias("airline")).cache())


def push(rows: Iterable[Mapping[str, str]], progress: Callable[[int], None] | None = None) -> int:
    """Pushes rows of the flights' table, a thousand at a time, and returns how many. `progress` is called with how many
    are in the queue by then.

    The id says which flight it is: pushed twice, it is the same item.
    """
    items = (Item(row, id=dataset.flight_id(row)) for row in rows)
    return flights.push_all("raw", items, progress=progress)


def _read(spark: SparkSession, table: str) -> DataFrame:
    return spark.read.csv(str(dataset.table_file(table)), header=True, nullValue="NA")


def _names(columns: str) -> list[str]:
    return [column.split()[0] for column in columns.split(",")]
