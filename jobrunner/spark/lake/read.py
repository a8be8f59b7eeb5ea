"""Reads a lakehouse table in a session without the jars of the table format.

The table's library names the data files of the loaded version, and Spark's executors read them as Parquet. So the
driver holds only file names. Tables for which a reader must know more (deleted rows, renamed columns) are refused.
"""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from jobrunner.errors import TableError
from jobrunner.spark.columns import quoted
from jobrunner.spark.lake.tables import LakeTable, LiveFile, guarded

_FILE = "_file of the table"


def read_table(
    spark: SparkSession, table: LakeTable, *, admits: Callable[[Mapping[str, str | None]], bool] = lambda _: True,
    column: str = "", value: str = "",
) -> DataFrame:  # fmt: skip
    """The rows of a table at its loaded version, from files whose partition `admits` accepts and whose bounds of a text
    column do not exclude a value. The result may have more rows than the wanted ones.

    Raises TableError.
    """
    files = guarded(table.address, "listing its files", lambda: table.live_files(column, value))
    files = [one for one in files if admits(one.partition)]
    columns = from_arrow_schema(table.columns, prefer_timestamp_ntz=True)
    if not files:
        return spark.createDataFrame([], columns)
    of_log = () if table.keeps_partitions else table.partition_by
    in_files = StructType([one for one in columns.fields if one.name not in of_log])
    rows = guarded(table.address, "reading its files", lambda: _read(spark, in_files, [one.path for one in files]))
    return _with_partitions(spark, table, rows, columns, files) if of_log else rows


def _read(spark: SparkSession, columns: StructType, paths: Sequence[str]) -> DataFrame:
    reader = spark.read.schema(columns).option("__globPaths__", "false")  # a name may have a bracket
    return reader.parquet(*(_for_hadoop(path) for path in paths))


def _for_hadoop(path: str) -> str:
    """Hadoop's name of a location: its connector for S3 is called s3a."""
    return f"s3a://{path.removeprefix('s3://')}" if path.startswith("s3://") else path


def _with_partitions(
    spark: SparkSession, table: LakeTable, rows: DataFrame, columns: StructType, files: Sequence[LiveFile]
) -> DataFrame:
    """Adds the columns that only the table's log has, not its files: they are joined by the name of the file."""
    by = table.partition_by
    known = [one.path.rpartition("/")[2] for one in files]
    if len(set(known)) < len(known):
        raise TableError(f"two data files of table {table.address} have the same name in different folders: read it "
                         "with the connector of its format")  # fmt: skip
    places = {name: f"{_FILE} {at}" for at, name in enumerate(by)}
    values = {place: [one.partition.get(name) for one in files] for name, place in places.items()}
    there = {_FILE: known, f"{_FILE} there": known, **values}
    log = spark.createDataFrame(pa.table({name: pa.array(texts, pa.string()) for name, texts in there.items()}))
    joined = rows.withColumn(_FILE, F.col("_metadata.file_name")).join(F.broadcast(log), _FILE, "left")
    unknown = F.raise_error(F.concat(F.lit("the log of the table does not name "), F.col(f"`{_FILE}`")))
    is_unknown = F.col(f"`{_FILE} there`").isNull()
    return joined.select(
        [
            F.when(is_unknown, unknown).otherwise(F.col(f"`{places[one.name]}`")).cast(one.dataType).alias(one.name)
            if one.name in places
            else F.col(quoted(one.name))
            for one in columns.fields
        ]
    )
