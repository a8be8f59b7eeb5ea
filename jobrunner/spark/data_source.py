"""The data source `jobrunner` of Spark: queues and history as tables, history as a stream, rows as tasks.

`register` makes it known to a session, and `enqueue` writes by it with the job itself instead of its name. Instances,
readers and slices are pickled for other Python processes. So their classes belong to modules, their options are plain
values, and connections are opened where they are used.
"""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from jobrunner.client.client import endpoint_of
from jobrunner.client.current import current_client
from jobrunner.errors import InvalidOption, UsageError
from jobrunner.etl.spark_station import NEEDED_CONF, silence_py4j
from jobrunner.logs import SafeLogger
from jobrunner.spark.failures import error_line
from jobrunner.spark.payloads import check_plain
from jobrunner.spark.sink.writer import BatchWriter, StreamWriter
from jobrunner.spark.source.options import batch_options, default_schema, shape_of, stream_options
from jobrunner.spark.source.readers import BatchReader, HistoryStream

_UTC = ("UTC", "Etc/UTC", "Z", "GMT", "Etc/GMT", "+00:00")
_warned_of: set[str | None] = set()
_log = SafeLogger("jobrunner.spark")


class JobrunnerSource(DataSource):
    """The format `jobrunner`. Spark makes an instance for each read."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "jobrunner"

    def schema(self) -> str:
        """The columns when the user gives no schema."""
        streams = any(name.lower().replace("_", "") in ("maxrowspertrigger", "startingoffset") for name in self.options)
        return default_schema(stream_options(self.options) if streams else batch_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        return BatchReader(batch_options(self.options), shape_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  its name in Spark
        """A streaming read of history."""
        return HistoryStream(stream_options(self.options), shape_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A write of tasks, one for each row."""
        return BatchWriter(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's name
        """The same for one micro-batch of a stream."""
        return StreamWriter(schema, self.options, overwrite)


def register(spark: SparkSession) -> None:
    """Makes the format `jobrunner` known to a session, also one that the user made, and sets what it needs unless the
    session has a value. Twice is as good as once."""
    spark.dataSource.register(JobrunnerSource)
    for name, value in NEEDED_CONF.items():
        if spark.conf.get(name, None) is None:
            spark.conf.set(name, value)
    silence_py4j()
    zone = spark.conf.get("spark.sql.session.timeZone", None)
    if zone not in _UTC and zone not in _warned_of:
        _warned_of.add(zone)
        _log.warning(
            "the session's time zone is not UTC: functions of stations see local dates and hours",
            zone=zone, remedy='spark.conf.set("spark.sql.session.timeZone", "UTC")',
        )  # fmt: skip


def enqueue(
    df: DataFrame,
    job: Any,
    *,
    queue: str | None = None,
    id: str | None = None,  # noqa: A002  its name everywhere
    id_from: Iterable[str] = (),
) -> None:
    """Adds one task of `job` (a Job class or a function) for each row: columns are parameters, all rows or none.

    Columns `_id`, `_priority`, `_delay` (s), `_at`, `_headers`, `_partition` steer single tasks. `id` names the column
    with the ids of the tasks, `id_from` columns to derive them from: then rows that were written before are left alone.
    Goes to the server of the current client. Raises ParameterError, InvalidOption and their like, which name column and
    row; nothing was added then.
    """
    definition = getattr(job, "definition", None)
    if definition is None:
        raise InvalidOption(f"{job!r} is no job; declare it with @job(...)")
    module = definition.origin.partition(":")[0]
    if module == "__main__":
        raise InvalidOption(
            f"job {definition.name!r} is declared in the program itself; move it to a module of its own"
        )
    where = current_client()
    check_plain(where.settings, "a write from Spark")
    options = {
        "type": definition.name,
        "modules": module,
        "queue": queue,
        "id": id,
        "idFrom": ",".join(id_from) or None,
        "url": endpoint_of(where).shared_url(),
        "prefix": where.settings.prefix,
    }
    register(df.sparkSession)
    given = {name: value for name, value in options.items() if value is not None}
    try:
        df.write.format("jobrunner").options(**given).mode("append").save()
    except Exception as error:
        _raise_ours(error)
        raise


def _raise_ours(error: Exception) -> None:
    """Raises the error of this package that Spark wrapped, if it is one of the caller's."""
    name, _, text = error_line(error).partition(": ")
    for kind in UsageError.__subclasses__():
        if kind.__name__ == name.rpartition(".")[2]:
            raise kind(text) from error
