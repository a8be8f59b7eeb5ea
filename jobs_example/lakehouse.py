"""A data pipeline into a lakehouse: orders of four shops are checked, priced, and stored in two tables at once.

::

    orders ── check ── checked ══ price ══ store ══ Delta Lake
           (Python)            (Spark)  (Spark)  ╚═ Apache Iceberg

The stations on Spark are a chain: a batch of ``checked`` is priced and stored without a queue between.

``jobrunner demo lakehouse`` runs it with a million orders while its processes are killed. The environment variable
LAKEHOUSE_FOLDER names the folder of the tables; both are there once, whatever dies.
"""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from jobrunner import Fail
from jobrunner.etl import Pipeline, StationItem
from jobrunner.spark import SinkBatch, write_table
from jobs_example.shop import COUPONS, PRODUCTS

FOLDER_VARIABLE = "LAKEHOUSE_FOLDER"
CATALOG, ICEBERG = "lakehouse", "iceberg:lakehouse.shop.orders"
"""The catalog of the Iceberg table is a file of SQLite in that folder (see `settings_of`)."""
SOON = timedelta(seconds=10)
"""The length of a lease, which workers renew: items of a dead worker wait no longer than this."""

ORDER = "shop int, product int, quantity int, coupon string, at timestamp"
PRICED = "order string, shop int, product int, kind string, quantity int, cents long, at timestamp"

lakehouse = Pipeline("lakehouse")


@lakehouse.station("orders", to="checked", keepalive=SOON, max_size=40_000)  # shops wait for room
def check(item: StationItem) -> dict[str, Any]:
    """Passes an order on. One that cannot be true is dead at once, with the reason."""
    order: dict[str, Any] = item.payload
    quantity = order["quantity"]
    if type(quantity) is not int or quantity < 1:
        raise Fail(f"quantity={quantity!r} is no number of things", retry=False)
    return order


@lakehouse.spark_station("checked", to="priced", schema=ORDER)
def price(df: DataFrame, spark: SparkSession) -> DataFrame:
    """Adds what a product costs, less the coupon. An order with an unknown coupon is dead, and no other one."""
    off = F.coalesce(F.create_map(*_words(COUPONS))[df.coupon], F.lit(0))
    is_wrong = df.coupon.isNotNull() & ~df.coupon.isin(*COUPONS)
    cents = (F.col("price") * df.quantity * (100 - off) / 100).cast("long")
    return df.join(F.broadcast(products(spark)), "product", "left").select(
        F.col("_id").alias("order"), "shop", "product", "kind", "quantity", cents.alias("cents"), "at", "_id",
        F.when(is_wrong, F.concat(F.lit("there is no coupon "), df.coupon)).alias("_error"),
    )  # fmt: skip


@lakehouse.spark_sink("priced", schema=PRICED)
def store(df: DataFrame, _: SparkSession, batch: SinkBatch) -> None:
    """Writes a batch to both tables. A batch that comes again writes to neither of those that have it."""
    rows = df.select(*[name for name in df.columns if not name.startswith("_")]).cache()
    try:
        write_table(rows, batch, delta_table())
        write_table(rows, batch, ICEBERG)
    finally:
        rows.unpersist()


lakehouse.chain("checked", batch="auto", max_wait=2.0, lease=SOON)


def products(spark: SparkSession) -> DataFrame:
    """What each product costs, in cents, and its kind, as `jobs_example.shop` has it."""
    return spark.range(PRODUCTS).selectExpr(
        "cast(id as int) as product", "cast(100 + id * 37 % 900 as int) as price", "concat('kind-', id % 8) as kind"
    )


def folder() -> Path:
    """Where the tables are."""
    return Path(os.environ.get(FOLDER_VARIABLE, "lakehouse-tables")).absolute()


def delta_table() -> str:
    """The Delta table, as `write_table` names it."""
    return f"delta:{folder() / 'delta'}"


def settings_of(place: Path) -> dict[str, str]:
    """The environment of programs that use the tables in a folder: where they are, and the catalog of the second."""
    prefix = f"PYICEBERG_CATALOG__{CATALOG.upper()}__"
    return {FOLDER_VARIABLE: str(place)} | {prefix + name.upper(): value for name, value in catalog_of(place).items()}


def catalog_of(place: Path) -> dict[str, str]:
    """The properties of that catalog. A process that has imported pyiceberg reads no variable for it any more."""
    return {"type": "sql", "uri": f"sqlite:///{place / 'catalog.db'}", "warehouse": f"file://{place / 'iceberg'}"}


def _words(table: dict[str, int]) -> Iterator[Any]:
    for name, value in table.items():
        yield F.lit(name)
        yield F.lit(value)
