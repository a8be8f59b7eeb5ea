"""Writes the rows of a DataFrame to a lakehouse table: Spark's executors write the data files, the driver commits them.

Arrow writes the files within Spark tasks, not Spark's own Parquet writer: so each task reports the row count and the
column bounds of its files, the driver neither lists folders nor reads footers, timestamps have one form in any session,
and the write works under Spark Connect.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from jobrunner.errors import InvalidOption, MicroBatchChanged, StationError, TableError
from jobrunner.etl.table_sink import TableAddress, TableSink, address_of, names_of
from jobrunner.formatting import describe
from jobrunner.outcome import Steer
from jobrunner.settings import check_whole
from jobrunner.spark.columns import quoted
from jobrunner.spark.failures import error_line
from jobrunner.spark.lake.arrow_types import arrow_schema
from jobrunner.spark.lake.commit import (
    Prepared,
    TableCommit,
    commit,
    commit_merge,
    discard,
    is_settled,
    open_table,
    prepare,
    rows_before,
    settle,
)
from jobrunner.spark.lake.files import ROWS_PER_FILE, DataFile, FileTarget, write_files
from jobrunner.spark.lake.identity import BatchIdentity, attempt_of
from jobrunner.spark.lake.storage import local_path
from jobrunner.spark.lake.tables import LakeTable, guarded
from jobrunner.spark.running import names_told, same_names
from jobrunner.spark.shipping import Shipped
from jobrunner.spark.sink.micro_batch import places_of_this_run, query_of
from jobrunner.spark.station.records import NOTES, SinkRecords
from jobrunner.spark.station.sink_batch import SinkBatch
from jobrunner.spark.station.sink_folders import LocalFolders, as_name

_ID = "_id"
_ORDER = ("_enqueue_time", _ID)
"""Of two rows with one key in one batch, the row of the item that was enqueued last counts."""


def write_table(
    df: DataFrame,
    batch: BatchIdentity,
    table: str,
    *,
    partition_by: Sequence[str] = (),
    merge_on: Sequence[str] = (),
    latest_by: str | None = None,
    rows_per_file: int = ROWS_PER_FILE,
    name: str = "",
) -> TableCommit:
    """Writes the rows of a batch to a table of a lakehouse in one transaction, once, however often it is called.

    `table` is `delta:` and an absolute path or URL, or `iceberg:` and catalog.namespace.table; it is created when
    missing. `partition_by` names columns; a commit has one file for each partition, of at most `rows_per_file` rows.
    With `merge_on` a row replaces the row with the same key; `latest_by` names the column whose largest value wins
    among rows of one key. A second write of a batch to one table needs a `name`.

    Rows with errors are not written, and their items are dead with the error. Call it last in a sink of your own, or in
    `foreachBatch` with `micro_batch(…)`. Raises TableError, BatchLost,
    InvalidOption, SparkMissing, MicroBatchChanged.
    """
    address = address_of(table)
    _check_distinct(address, df)
    if isinstance(batch, SinkBatch):
        df = batch.quarantine(df)
    key = names_of(merge_on, "merge_on")
    order = [latest_by] if latest_by else [one for one in _ORDER if key and one in df.columns]
    rows = df.select([_column(one) for one in df.columns])
    return _write(
        rows, batch, address, partition_by=names_of(partition_by, "partition_by"), merge_on=key,
        order=order, rows_per_file=check_whole(rows_per_file, "rows_per_file", minimum=1), name=name,
    )  # fmt: skip


def micro_batch(query: str, number: int) -> SinkBatch:
    """The identity of a micro-batch of a stream, for `write_table`, `write_batch` and `write_sql` in `foreachBatch`.

    `query` must be of one checkpoint: with a new checkpoint Spark counts from 0 again, and rows under numbers that are
    in the table would be taken for repeated ones. Within `foreachBatch`, except under Spark Connect, the writers then
    raise MicroBatchChanged, and StationError for a second write to the same place. Raises InvalidOption.
    """
    if not isinstance(query, str) or not query or type(number) is not int or number < 0:
        raise InvalidOption(
            f"micro_batch({describe(query)}, {describe(number)}): give a text that is of one checkpoint, and the "
            "number that foreachBatch passes"
        )
    return SinkBatch(
        id=f"{query}-{number}", supersedes=(), epoch=1, size=0, may_repeat=True,
        places=places_of_this_run(query, number),
    )  # fmt: skip


def write_sink(sink: TableSink, df: DataFrame, spark: SparkSession, batch: SinkBatch) -> Steer | None:
    """Runs a sink that is declared with `table=…`."""
    made = df if sink.shape is None else sink.shape(df, spark)
    if isinstance(made, Steer):
        return made
    if not isinstance(made, DataFrame):
        raise StationError(f"the function of the sink into {sink.address} returned {type(made).__name__}: return a "
                           "DataFrame with the rows to write")  # fmt: skip
    _check_distinct(sink.address, made)
    made = batch.quarantine(made)
    columns = [_column(one) for one in made.columns if not one.startswith("_")]
    if sink.id_column is not None:
        if _ID not in made.columns:
            raise StationError(f"the rows for table {sink.address} lost the column _id, which id_column="
                               f"{sink.id_column!r} needs: keep it")  # fmt: skip
        columns.append(F.col(_ID).alias(sink.id_column))
    extra = [one for one in _ORDER if sink.merge_on and one in made.columns]
    rows = made.select(*columns, *[F.col(one).alias(f"{one} ") for one in extra])
    order = ([sink.latest_by] if sink.latest_by else []) + [f"{one} " for one in extra]
    _write(rows, batch, sink.address, partition_by=sink.partition_by, merge_on=sink.merge_on, order=order,
           hidden=[f"{one} " for one in extra])  # fmt: skip
    return None


def write_rows(
    df: DataFrame, batch: BatchIdentity, address: TableAddress, *, partition_by: Sequence[str]
) -> TableCommit:  # fmt: skip
    """Writes rows unchanged, once. Each Spark task writes its own files: no row goes through a shuffle."""
    return _write(df, batch, address, partition_by=partition_by, merge_on=(), order=(), gathers=False)


def _write(
    df: DataFrame, batch: BatchIdentity, address: TableAddress, *, partition_by: Sequence[str],
    merge_on: Sequence[str], order: Sequence[str], hidden: Sequence[str] = (), rows_per_file: int = ROWS_PER_FILE,
    name: str = "", gathers: bool = True,
) -> TableCommit:  # fmt: skip
    shown = df.drop(*hidden) if hidden else df
    schema = _schema(address, shown)
    for one in order:
        if one not in df.columns:
            raise TableError(f"latest_by={one!r} for table {address}: the rows have no such column")
    place = f"{address} {name}"
    _check_first(address, place, batch)
    is_micro_batch = isinstance(batch, SinkBatch) and batch.may_repeat
    attempt = attempt_of(batch, name, query_of(df) if is_micro_batch else "", counts_rows=is_micro_batch)
    ready = prepare(address, attempt, schema, partition_by=partition_by, merge_on=merge_on)
    if isinstance(ready, TableCommit):
        if is_micro_batch and (before := rows_before(address, attempt.batch_id)) not in (None, rows := df.count()):
            raise MicroBatchChanged.of_other_rows(attempt.batch_id, f"table {address}", before, rows)
        _compare_notes(address, batch, name)
        done = ready
    else:
        fenced = _against_failover(ready, batch, name)
        if fenced is None:
            return TableCommit(table=str(address), rows=0, files=0, version=None, repeated=True)
        if merge_on:
            done = commit_merge(fenced, df.toArrow(), order)
        else:
            done = commit(fenced, _files_of(shown, fenced, rows_per_file, gathers=gathers))
        if isinstance(batch, SinkBatch):
            batch.written.append(done.rows)
    if isinstance(batch, SinkBatch):
        batch.note_written(place)
    return done


def _against_failover(ready: Prepared, batch: BatchIdentity, name: str) -> Prepared | None:
    """Adds a check before the commit that the server did not forget the batch in a failover. None when rows of the
    batch's items are in the table, so these rows must not be written."""
    records = _records(ready.table, batch, name)
    if records is None or not isinstance(batch, SinkBatch):
        return ready
    if not batch.lacks_rows(records.root, _note(ready.table, records)):
        return None

    def renew() -> None:
        batch.renew()
        records.check()

    return replace(ready, attempt=replace(ready.attempt, renew=renew))


def _compare_notes(address: TableAddress, batch: BatchIdentity, name: str) -> None:
    """Compares the members of a batch that is in the table with the notes of the attempt that wrote it. The server may
    have forgotten some members, and knows a finished batch by its id only, so this is the last chance to find the
    written items."""
    table = open_table(address)
    if guarded(address, "opening it", table.load) and (records := _records(table, batch, name)) is not None:
        _note(table, records)


def _records(table: LakeTable, batch: BatchIdentity, name: str) -> SinkRecords | None:
    """The notes of the batch below the table. They need a server, and a file system with atomic renames."""
    if not isinstance(batch, SinkBatch) or batch.lease is None or not table.storage.is_local:
        return None
    root = Path(local_path(table.storage.root), f"_{as_name(name)}" if name else "")
    prefix, whole = f"{name}/" if name else "", attempt_of(batch, name).root

    def is_there(batch_id: str) -> bool:
        return settle(table, f"{prefix}{batch.named(batch_id)}", root=whole)

    return SinkRecords(
        LocalFolders(root), str(root), batch.lease, is_there, sink=batch.sink, members=batch.members
    )  # fmt: skip


def _note(table: LakeTable, records: SinkRecords) -> frozenset[str]:
    try:
        return records.note()
    except OSError as error:  # a full disk, a folder without permission: no item is at fault
        raise TableError(f"table {table.address}: {records.root}/{NOTES}, where it notes its batches, cannot be "
                         f"written: {error.strerror or error}") from error  # fmt: skip


def _files_of(df: DataFrame, ready: Prepared, rows_per_file: int, *, gathers: bool) -> list[DataFile]:
    """Has Spark write the rows and returns the data files: one for each partition, or several of `rows_per_file` rows,
    from each Spark task; with `gathers` the rows of a partition are first brought into one task."""
    by = [_column(one) for one in ready.partition_by]
    spread = df
    if gathers:
        spread = df.repartition(*by) if by else df.repartition(1)
    if by:
        spread = spread.sortWithinPartitions(*by)
    target = ready.target(rows_per_file)
    numbered = spread.toDF(*[f"c{place}" for place in range(len(df.columns))])  # PySpark takes a dot for a field here
    try:
        made = numbered.mapInArrow(Shipped(partial(_write_task, target, df.columns)), "file string").collect()
        files = [DataFile.of_json(row["file"]) for row in made]
        _check_visible(ready, files)
    except BaseException as error:
        discard(ready)
        line = error_line(error)
        kind, _, words = line.partition(": ")
        if kind == TableError.__name__ and not isinstance(error, TableError):
            raise TableError(words) from error
        raise
    return files


def _write_task(
    target: FileTarget, names: Sequence[str], rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    for made in write_files(target, (one.rename_columns(list(names)) for one in rows)):
        yield pa.record_batch([pa.array([made.as_json()], pa.string())], names=["file"])


def _check_visible(ready: Prepared, files: Sequence[DataFile]) -> None:
    """Raises TableError when executors on other machines wrote to their own folders. Does not raise when another
    attempt was committed meanwhile and removed the files: the commit reports that."""
    storage = ready.table.storage
    if storage.is_local and files and not storage.has(files[0].name) and not is_settled(ready):
        raise TableError(
            f"table {ready.table.address}: executors wrote {storage.path(files[0].name)}, which is not on this machine:"
            " put the table where both reach it, in a shared folder or at a URL (s3://…)"
        )


def _check_first(address: TableAddress, place: str, batch: BatchIdentity) -> None:
    """Raises StationError for a second write of one attempt. The message does not advise to unite the DataFrames, or to
    name both writes: with the first rows in the table, the second rows would be lost, or the first ones doubled."""
    if isinstance(batch, SinkBatch) and batch.has_written(place):
        raise StationError(
            f"one batch was written twice to table {address} in one attempt, and the second write would pass for a "
            "repeated one: give it a name=…, and the first none, whose rows may be in the table"
        )


def _check_distinct(address: TableAddress, df: DataFrame) -> None:
    if twice := same_names(df.sparkSession, df.columns):
        raise TableError(f"the rows for table {address} have {names_told(twice)}")


def _schema(address: TableAddress, df: DataFrame) -> pa.Schema:
    if df.isStreaming:
        raise StationError(f"a streaming DataFrame for table {address}: write its micro-batches, in foreachBatch")
    return arrow_schema(str(address), df.schema)


def _column(name: str) -> Column:
    return F.col(quoted(name))
