"""The sinks of docs/recipes/sql-tables.md, as they stand on the page, on a PostgreSQL server."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from jobrunner.etl.pipeline import forget_pipeline
from jobrunner.spark import SinkBatch
from tests.support.postgres import binaries, postgres

PAGE = (Path(__file__).parents[2] / "docs" / "recipes" / "sql-tables.md").read_text("utf-8")
FLIGHTS = [("UA", "EWR", 31.0), ("DL", "JFK", 47.5), ("UA", "LGA", 90.0)]


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    """A connection to a server on which the tables of the page are, and which DATABASE_URL names."""
    if (found := binaries()) is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    (tables,) = re.findall(r"^```sql\n(create table late .*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    with postgres(found) as where, psycopg.connect(where, autocommit=True) as connection:
        monkeypatch.setenv("DATABASE_URL", where)
        connection.execute(tables)
        connection.execute("create table sums (carrier text, flights bigint, batch_id text not null)")
        yield connection
    forget_pipeline("flights")


@pytest.mark.parametrize("own_statements", [False, True])
def test_a_batch_that_is_run_again_is_in_the_tables_once(
    own_statements: bool, database: psycopg.Connection, spark: SparkSession
) -> None:
    first, second, *_ = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(first.partition("@flights")[0] + second if own_statements else first, names)
    flights = spark.createDataFrame(FLIGHTS, "carrier string, origin string, dep_delay double")

    for epoch in (1, 2):
        names["store"](flights, spark, SinkBatch(id="b1", epoch=epoch, supersedes=(), size=3))

    late = database.execute("select carrier, origin, dep_delay, batch_id from late order by 3").fetchall()
    assert late == [(carrier, None if own_statements else origin, delay, "b1") for carrier, origin, delay in FLIGHTS]
    sums = database.execute("select carrier, flights, batch_id from sums order by 1").fetchall()
    assert sums == ([("DL", 1, "b1"), ("UA", 2, "b1")] if own_statements else [])
