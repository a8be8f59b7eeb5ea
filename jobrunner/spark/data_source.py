"""The Spark data source `jobrunner`: queues and history as tables, history as a stream, rows as tasks.

`register` adds the format to a session. `enqueue` writes with it and takes the job itself instead of its name.
Invariant: instances, readers and slices are pickled for other Python processes, so their classes belong to modules,
their options are plain values, and connections are opened where they are used.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any
from weakref import ref

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from jobrunner.broker.calls.queues import counts
from jobrunner.broker.calls.shards import shard_counts
from jobrunner.client.client import Client, broker_of, endpoint_of, keys_of
from jobrunner.client.current import configured_client, current_client, on_use
from jobrunner.errors import InvalidOption, JobrunnerError, SparkMissing, UsageError
from jobrunner.etl.spark_conf import NEEDED_CONF, silence_py4j
from jobrunner.etl.table_sink import names_of
from jobrunner.formatting import install_command
from jobrunner.logs import SafeLogger
from jobrunner.option_names import folded
from jobrunner.spark.brief_errors import brief
from jobrunner.spark.failures import error_line
from jobrunner.spark.payloads import check_plain
from jobrunner.spark.running import (
    TIME_POLICY,
    activate,
    check_runs,
    conf_of,
    first_line,
    has_conf,
    is_over,
    keep_tables_in_requests,
    parses_as_spark_2,
    remember,
    session_id,
    set_conf,
)
from jobrunner.spark.shipping import ship_package
from jobrunner.spark.sink.micro_batch import OncePerRun, as_options, warn_of_plain_append
from jobrunner.spark.sink.writer import StreamWriter, batch_writer
from jobrunner.spark.source.batch_reader import BatchReader, FilteringReader
from jobrunner.spark.source.history_stream import HistoryStream, RefusedStream
from jobrunner.spark.source.options import batch_options, default_schema, shape_of, stream_options
from jobrunner.spark.source.table import options_of_table, stored_options, storing_options

_UTC = ("UTC", "Etc/UTC", "Z", "GMT", "Etc/GMT", "+00:00")
_registered: dict[str, tuple[ref[SparkSession], type[DataSource], dict[str, str]]] = {}
"""What was registered, by the id of the session: Python has a new object of the same session for each micro-batch."""
_warned_of: set[str | None] = set()
_log = SafeLogger("jobrunner.spark")


class JobrunnerSource(DataSource):
    """The format `jobrunner`. Spark creates an instance for each read, and for each use of a table `USING
    jobrunner`."""

    server: Mapping[str, str] = MappingProxyType({})
    """URL and prefix of the client in the process that registered the format: instances run in other processes, which
    did not call `configure(...)`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "jobrunner"

    @brief
    def schema(self) -> str:
        """The columns when the user gives no schema."""
        of_table = options_of_table(self.options)
        given = self.options if of_table is None else of_table
        streams = any(folded(name) in ("maxrowspertrigger", "startingoffset") for name in given)
        ddl = default_schema(stream_options(given) if streams else batch_options(given))
        return ddl if of_table is None else storing_options(ddl, of_table)

    @brief
    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        options = batch_options(self._all(stored_options(schema)))
        shape = shape_of(schema, options.payload_schema)
        return (FilteringReader if options.asks_server else BatchReader)(options, shape)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  its name in Spark
        """A streaming read of history."""
        try:
            options = stream_options(self._all(stored_options(schema)))
            return HistoryStream(options, shape_of(schema, options.payload_schema))
        except JobrunnerError as error:
            return RefusedStream(error)

    @brief
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A write of tasks, one for each row."""
        return batch_writer(schema, self._all(stored_options(schema, writes=True)), overwrite)

    @brief
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's name
        """A write of one micro-batch of a stream."""
        return StreamWriter(schema, self._all({}), overwrite)

    def _all(self, stored: dict[str, str]) -> dict[str, str]:
        """The options of a table and of the caller; where neither names a server, that of `register`."""
        given = stored | dict(self.options)
        names = {folded(name) for name in given}
        if "url" in names:
            return given
        return {name: value for name, value in self.server.items() if name not in names} | given


class UnfilteredSource(JobrunnerSource):
    """The format `jobrunner` for a session that passes no filters to a source in Python: Spark filters all rows
    itself."""

    @brief
    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        options = batch_options(self._all(stored_options(schema)))
        return BatchReader(options, shape_of(schema, options.payload_schema))


def register(spark: SparkSession) -> None:
    """Prepares a session that the user created, in a notebook, by `spark-submit`, on a cluster or with Spark Connect.

    The session then has the format `jobrunner`, on the server of `configure(...)`, also when `configure` is called
    later; has the settings that the format needs, unless they have a value; and sends this package to its executors.
    `spark_session()` and stations in this process use the session, in all threads. A setting that Spark refuses, and a
    time zone that is not UTC, are logged as warnings. Repeated calls change nothing. Raises SparkMissing for a version
    of Spark without data sources in Python, StationError for a session that was stopped, or whose Java has ended.
    """
    prepare(spark)
    remember(spark)


def prepare(spark: SparkSession) -> None:
    """Prepares a session as `register` does, but does not make it the session of this process.

    In a function of `foreachBatch` a frame belongs to a copy of the session, which ends with the stream. The session
    becomes the active one of this thread.
    """
    if getattr(spark, "dataSource", None) is None:
        raise SparkMissing(f"PySpark {spark.version} has no data sources in Python; {install_command('spark')}")
    check_runs(spark)
    for name, value in NEEDED_CONF.items():
        if not has_conf(spark, name):
            set_conf(spark, name, value)
    keep_tables_in_requests(spark)
    activate(spark)
    _make_known(spark)
    on_use(_follow)
    ship_package(spark)
    silence_py4j()
    zone = conf_of(spark, "spark.sql.session.timeZone")
    if zone not in _UTC and zone not in _warned_of:
        _warned_of.add(zone)
        _log.warning(
            "the session's time zone is not UTC: functions of stations see local dates and hours",
            zone=zone, remedy='spark.conf.set("spark.sql.session.timeZone", "UTC")',
        )  # fmt: skip
    if parses_as_spark_2(spark) and TIME_POLICY not in _warned_of:
        _warned_of.add(TIME_POLICY)
        _log.warning(
            "the session parses times as Spark 2 did: stations whose schema Spark parses do not start",
            setting=f"{TIME_POLICY}=LEGACY", remedy=f'spark.conf.set("{TIME_POLICY}", "CORRECTED")',
        )  # fmt: skip


def _make_known(spark: SparkSession) -> None:
    """Registers the format, on the server of the client of this process."""
    takes_filters = all(conf_of(spark, name) == value for name, value in NEEDED_CONF.items())
    source = JobrunnerSource if takes_filters else UnfilteredSource
    client = configured_client()
    server = {} if client is None else {"url": endpoint_of(client).shared_url(), "prefix": client.settings.prefix}
    session = session_id(spark)
    if session not in _registered or _registered[session][1:] != (source, server):  # Spark warns of each repetition
        spark.dataSource.register(_at(source, server))
    _registered[session] = ref(spark), source, server


def _follow() -> None:
    """Registers the format again with the current client of this process, in all sessions that have the format."""
    for session, (alive, *_) in list(_registered.items()):
        try:
            if (spark := alive()) is None or is_over(spark):
                del _registered[session]  # of a query, the next micro-batch registers it again
            else:
                _make_known(spark)
        except Exception as error:  # of a JVM or a Connect server that is gone; configure() cannot repair it
            _log.warning(
                "a Spark session still reads and writes the server that was configured before",
                error=first_line(error), remedy="register(spark)",
            )  # fmt: skip


def _at(source: type[JobrunnerSource], server: dict[str, str]) -> type[JobrunnerSource]:
    """A subclass with the server of this process. Spark pickles a class that belongs to no module by value."""
    return type(source.__name__, (source,), {"server": server, "__module__": __name__}) if server else source


def enqueue(
    df: DataFrame,
    job: Any,
    *,
    queue: str | None = None,
    id: str | None = None,  # noqa: A002  its name everywhere
    id_from: str | Iterable[str] = (),
    micro_batch: int | tuple[str, int] | None = None,
) -> None:
    """Adds one task of `job` (a Job class or a function) for each row: columns are parameters, all rows or none.

    Columns `_id`, `_priority`, `_delay` (s), `_at`, `_headers`, `_partition` steer single tasks. `id` names the column
    with the ids of the tasks, `id_from` columns to derive them from: then rows that were written before are left alone.
    In a function of `foreachBatch`, `micro_batch` is the number that Spark passes, or (query id, number) where Spark
    does not expose the query, as under Spark Connect: the server then knows the write for 30 days, and a repeated
    micro-batch adds nothing.
    Goes to the server of the current client. Raises ParameterError, InvalidOption and their like, which name column and
    row; nothing was added then. With a `durability` of that client, raises OutcomeUnknown when all was added and is not
    confirmed in time.
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
        "idFrom": ",".join(names_of(id_from if isinstance(id_from, str) else tuple(id_from), "id_from")) or None,
        "url": endpoint_of(where).shared_url(),
        "prefix": where.settings.prefix,
        **(named := as_options(df, micro_batch)),
    }
    once = OncePerRun(df, named, queue or definition.options.queue, definition.name)
    if micro_batch is None and not options["id"] and not options["idFrom"] and "_id" not in df.columns:
        warn_of_plain_append(df)
    prepare(df.sparkSession)
    given = {name: value for name, value in options.items() if value is not None}
    try:
        df.write.format("jobrunner").options(**given).mode("append").save()
    except Exception as error:
        _raise_ours(error)
        raise
    once.note()
    _confirm(where, queue or definition.options.queue)


def _confirm(client: Client, queue: str) -> None:
    """Waits until rows that Spark's processes wrote into a queue are as durable as the client's `durability` asks for.
    The write made here comes after those rows, so its confirmation covers them. Raises OutcomeUnknown."""
    if client.settings.durability == "none":
        return
    broker, keys = broker_of(client), keys_of(client)
    shards = broker.run(shard_counts(keys.queue(queue))).names(queue)
    broker.write([counts(keys.queue(shard)) for shard in shards])


def _raise_ours(error: Exception) -> None:
    """Raises the error of this package that Spark wrapped, if the caller caused it."""
    name, _, text = error_line(error).partition(": ")
    for kind in UsageError.__subclasses__():
        if kind.__name__ == name.rpartition(".")[2]:
            raise kind(text) from error
