"""Writes the batch of a sink so that each row is there once, also when processes die or continue after their lease.

Invariants: two attempts at one batch never write to the same folder, and only the attempt that holds the lease changes
the files that readers see. Folders of unfinished attempts have names that readers skip: Spark's readers skip names that
begin with `_`, unless they contain a `=`.
"""

import errno
import os
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.types import StringType

from jobrunner.errors import (
    FolderError,
    InvalidOption,
    JobrunnerError,
    MicroBatchChanged,
    PipelineError,
    StationError,
)
from jobrunner.etl.table_sink import names_of
from jobrunner.formatting import describe
from jobrunner.spark.columns import quoted
from jobrunner.spark.failures import error_line, is_of_python_task, is_of_value
from jobrunner.spark.running import conf_of, names_told, same_names, text_of
from jobrunner.spark.sink.micro_batch import query_of
from jobrunner.spark.station.members import THROUGH_DRIVER
from jobrunner.spark.station.merges import SWITCH_LOCK, Merges
from jobrunner.spark.station.records import SinkRecords
from jobrunner.spark.station.sink_batch import SinkBatch
from jobrunner.spark.station.sink_folders import FOLDER_COLUMN, Folders, as_name, folder_of, folders_in

_Save = Callable[[DataFrame, str], None]
_NO_FOLDER = "Mkdirs failed to create"
_FOLDER_OF_VALUE = re.compile(rf"{_NO_FOLDER} (?P<folder>.*?) \(exists=", re.DOTALL)
_LONGEST_NAME = 255
_FOLDER_OF_NULL = "__HIVE_DEFAULT_PARTITION__"
_SHOWN = 40
_QUERY = "_query"
"""A file in the folder of a micro-batch with the id of the query that wrote it; readers skip it."""
_FAULTS = re.compile(
    "|".join([*map(os.strerror, (
        errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOTCONN,
    )), _NO_FOLDER])
)  # fmt: skip
"""Texts of the operating system in errors of Python and Java: disk full, read-only file system, no permission, failing
disk, unavailable mount. For a folder that cannot be created, Hadoop's error has only the name of the folder."""


def write_batch(
    df: DataFrame,
    batch: SinkBatch,
    path: str | os.PathLike[str],
    *,
    source: str = "parquet",
    partition_by: str | Sequence[str] = (),
    files: int | None = 1,
    **options: str,
) -> None:
    """Writes the rows to the folder `path/batch=<id>`, replacing the rows of an earlier attempt.

    The rows are written to a folder of this attempt, which readers skip. A rename makes them visible if the lease is
    still held; else BatchLost is raised. Rows that the batch wrote before it was split are removed.
    `spark.read.parquet(path)` reads all batches, with a column `batch`. `partition_by` names columns whose values are
    subfolders. `files`: the most files per partition; None: one for each Spark task. `path` is local or a URL that
    Spark knows; under Spark Connect, rows are written to a URL in place.
    Call it once for a path: a second call in one attempt would replace the rows of the first, and raises StationError.
    Call it last in a sink: an error after it leaves the rows there. Rows with errors are not written, and their items
    are dead with the error. Raises PipelineError, and MicroBatchChanged for a number that another checkpoint wrote.
    """
    path, partition_by = os.fspath(path), names_of(partition_by, "partition_by")
    if twice := same_names(df.sparkSession, df.columns):
        raise StationError(f"the rows for {path} have {names_told(twice)}")
    if hidden := [one for one in df.columns if one.lower() == FOLDER_COLUMN]:
        raise StationError(
            f"the rows for {path} have a column {hidden[0]!r}: readers would see the id of the batch instead, which "
            f"its folder {FOLDER_COLUMN}=<id> has under this name; rename it"
        )
    place = path.rstrip("/")
    if batch.has_written(place):
        raise StationError(
            f"one batch was written twice to {path} in one attempt, and the second write would replace the rows of the "
            "first: unite the DataFrames, or write them to two paths"
        )
    df = _without_name_of_null(batch.quarantine(df), path, partition_by)

    def save(rows: DataFrame, name: str) -> None:
        # A session may be set to overwrite only the partitions of the new rows: those of an earlier attempt would stay.
        writer = _in_files(rows, batch, partition_by, files).write.option("partitionOverwriteMode", "static")
        writer.mode("overwrite").partitionBy(*partition_by).format(source).options(**options).save(f"{path}/{name}")

    folders = folders_in(path, df.sparkSession, options)
    if folders is None:
        _write_in_place(df, batch, save)
    else:
        query = query_of(df) if batch.may_repeat else ""
        write_folder(folders, batch, path, partial(save, df), query=query)
    batch.note_written(place)


def _without_name_of_null(df: DataFrame, path: str, partition_by: Sequence[str]) -> DataFrame:
    """The rows, with an error for a partition value that would go to the folder of null and be read as null."""
    as_spark = str if conf_of(df.sparkSession, "spark.sql.caseSensitive") == "true" else str.lower
    texts = {as_spark(one.name) for one in df.schema.fields if isinstance(one.dataType, StringType)}
    for name in [one for one in partition_by if as_spark(one) in texts]:
        problem = (f"rows for {path} are partitioned by column {name!r}, and have a value {_FOLDER_OF_NULL!r}, which "
                "readers take for null")  # fmt: skip
        fails = F.raise_error(F.lit(problem)).cast("boolean")
        df = df.where(F.when(F.col(quoted(name)) == _FOLDER_OF_NULL, fails).otherwise(True))
    return df


def _in_files(df: DataFrame, batch: SinkBatch, partition_by: Sequence[str], files: int | None) -> DataFrame:
    if files is None:
        return df
    if not isinstance(files, int) or isinstance(files, bool) or files < 1:
        raise InvalidOption(f"files={describe(files)}: give the most files of one partition, 1 or more, or None")
    is_small = batch.size <= THROUGH_DRIVER and not batch.may_repeat  # the size of a micro-batch is not known
    if files == 1 and (batch.is_kept or is_small):  # no work before the write is left to share
        return df.coalesce(1)
    columns = [F.col(quoted(name)) for name in partition_by]
    if not columns:
        return df.repartition(files)
    return df.repartition(*columns, *([F.pmod(F.spark_partition_id(), F.lit(files))] if files > 1 else []))


def write_folder(
    folders: Folders, batch: SinkBatch, root: str, save: Callable[[str], None], *, query: str = ""
) -> None:  # fmt: skip
    """As `write_batch`, for rows that `save` writes to the folder of the passed name in `folders`, the folders at
    `root`. `query` is the id of the streaming query of a micro-batch, if it is known.

    Raises FolderError for a disk that takes no file, and for other errors of the file system before and after `save`:
    no item is to blame. Raises PipelineError for a value that cannot be the name of a folder: only its item is to
    blame.
    """
    is_of_rows = False

    def saved(own: str) -> None:
        nonlocal is_of_rows
        is_of_rows = True
        save(own)
        is_of_rows = False

    try:
        _write_folder(folders, batch, root, saved, query)
    except Exception as error:
        if told := _nameless_value(error):
            raise PipelineError(f"rows for {root} are partitioned by {told}") from error
        if fault := _fault_of_disk(error) or _fault_of_system(error, is_of_rows=is_of_rows):
            raise FolderError(f"{root} cannot be written: {fault}") from error
        raise


def _nameless_value(error: Exception) -> str:
    """The column and the value, if the value is why Hadoop could not create a folder ('' otherwise). Hadoop's error has
    no reason."""
    found = None if isinstance(error, JobrunnerError) else _FOLDER_OF_VALUE.search(text_of(error))
    for name in [] if found is None else found["folder"].split("/"):
        column, _, value = name.partition("=")
        is_long = len(name.encode()) > _LONGEST_NAME
        if is_long or "\0" in name:
            why = f"longer than a name of {_LONGEST_NAME} bytes" if is_long else "with a zero byte"
            return f"column {unquote(column)!r}, and have a value {why}: {unquote(value)[:_SHOWN]!r}"
    return ""


def _fault_of_disk(error: Exception) -> str:
    """The text of the operating system, without the name of a file: one error must be the same text for all batches."""
    if isinstance(error, JobrunnerError) or is_of_python_task(error) or is_of_value(error):
        return ""
    if isinstance(error, (FileExistsError, NotADirectoryError)):  # the system may name a folder below the faulty path
        at = Path(error.filename)
        there = next(one for one in (at, *at.parents) if one.is_symlink() or one.exists())
        return f"{there} is no folder, or a link to one that is away"
    found = _FAULTS.search(str(error))
    if found is None:
        return ""
    return "no folder can be made in it, which may be for lack of rights" if found[0] == _NO_FOLDER else found[0]


def _fault_of_system(error: Exception, *, is_of_rows: bool) -> str:
    """The text of a file system's error about folders and small files, before and after the rows: for example, a store
    is unavailable or refuses the login."""
    if is_of_rows or isinstance(error, JobrunnerError):
        return ""
    return (isinstance(error, OSError) and error.strerror) or error_line(error)


def _write_folder(
    folders: Folders, batch: SinkBatch, root: str, save: Callable[[str], None], query: str
) -> None:  # fmt: skip
    if batch.may_repeat:
        _check_micro_batch(folders, batch.id, root, query)
    records = _records(folders, batch, root)
    # Noted also when the rows are merged: the server may have forgotten some of their items, and it knows only the id
    # of a batch that is done.
    there = None if records is None else records.note()
    came_before = batch.epoch > 1 or bool(batch.supersedes) or batch.may_repeat
    if came_before and Merges(folders).has((batch.id, *batch.supersedes)):
        return  # the rows of this batch, or of the whole, are in a merged folder for good
    if there is not None and not batch.lacks_rows(root, there):
        return
    # A failover may forget that a batch was handed out, and the next holder gets the same epoch.
    own = f"{_attempts_at(batch.id)}{batch.epoch}.{secrets.token_hex(4)}"
    try:
        save(own)
        if query:
            folders.write(f"{own}/{_QUERY}", query.encode())
        folders.sync_all(own)
        if records is not None:
            records.sync()
        _clear(folders, batch, own)
        batch.renew()
        if records is not None:
            records.check()
        if came_before:
            with folders.locked(SWITCH_LOCK):
                _put_in_place_again(folders, batch, own)
        else:
            _put_in_place(folders, batch.id, own)
        for names in ("", ".."):  # the server knows the batch as done soon, also after a power cut here
            folders.sync(names)
    except BaseException:
        with suppress(Exception):  # report the first error, not one of the clean-up
            folders.remove(own)
        raise


def _check_micro_batch(folders: Folders, batch_id: str, root: str, query: str) -> None:
    """Raises MicroBatchChanged unless this micro-batch is new, or the last that this query wrote: Spark begins another
    one only when its checkpoint has the last one."""
    before = folders.read(f"{folder_of(batch_id)}/{_QUERY}") if query else None
    if before not in (None, query.encode()):
        raise MicroBatchChanged.of_another_query(batch_id)
    name, _, number = batch_id.rpartition("-")
    merges = Merges(folders)
    if all(folders.exists(folder_of(one)) or merges.has([one]) for one in (f"{name}-{int(number) + 1}", batch_id)):
        raise MicroBatchChanged.of_an_old_checkpoint(batch_id, root)


def _records(folders: Folders, batch: SinkBatch, root: str) -> SinkRecords | None:
    """The sink's own record of its batches; None in a test of a sink, which has no server to compare the record with.
    """
    if batch.lease is None:
        return None

    def settle(noted_id: str) -> bool:
        batch_id = batch.named(noted_id)
        # An attempt that passed `check` has written its folder: with the folder removed, its last rename fails.
        for name in _beginning_with(folders.names(), _attempts_at(batch_id)):
            _remove_at_once(folders, name, batch_id)
        return folders.exists(folder_of(batch_id)) or Merges(folders).has([batch_id])  # in this order

    return SinkRecords(folders, root, batch.lease, settle, sink=batch.sink, members=batch.members)


def _put_in_place(folders: Folders, batch_id: str, own: str) -> None:
    """Puts the folder of an attempt in place of that of an earlier attempt. A suspended attempt finds its own folder
    gone, and the rows of the newer attempt, which removed that folder, stay."""
    place = folder_of(batch_id)
    if folders.place(own, place):
        return
    before = _hide(folders, place, batch_id)
    try:
        folders.rename(own, place)
    except BaseException:
        with suppress(Exception):  # report the first error
            folders.place(before, place)
        raise
    finally:
        folders.remove(before)


def _put_in_place_again(folders: Folders, batch: SinkBatch, own: str) -> None:
    """As `_put_in_place`, for a batch whose rows, or those of the whole batch, may be in a merge by now."""
    merges, names = Merges(folders), (batch.id, *batch.supersedes)
    merges.refuse(names)
    if merges.has(names):
        _remove_at_once(folders, own, batch.id)
        return
    _put_in_place(folders, batch.id, own)
    merges.refuse(names)
    if merges.has(names):  # decided meanwhile, on a file system without locks
        _remove_at_once(folders, folder_of(batch.id), batch.id)


def _hide(folders: Folders, name: str, batch_id: str) -> str:
    """Hides a folder by one rename, so that no process reads a part of it or puts a part in place. Returns the new
    name."""
    hidden = f"{_removed_of(batch_id)}{secrets.token_hex(8)}"
    folders.move(name, hidden)
    return hidden


def _remove_at_once(folders: Folders, name: str, batch_id: str) -> None:
    folders.remove(_hide(folders, name, batch_id))


def _clear(folders: Folders, batch: SinkBatch, own: str) -> None:
    """Removes the folders of larger batches and of earlier attempts. Needs no lease, as these can never count again."""
    names = folders.names() if batch.epoch > 1 or batch.supersedes or batch.may_repeat else []
    for larger in batch.supersedes:
        _remove_at_once(folders, folder_of(larger), larger)
        for name in _beginning_with(names, _attempts_at(larger), _removed_of(larger)):
            _remove_at_once(folders, name, larger)
    prefix = _attempts_at(batch.id)
    for name in _beginning_with(names, prefix, _removed_of(batch.id)):
        epoch = int(name.removeprefix(prefix).partition(".")[0]) if name.startswith(prefix) else 0
        if epoch < batch.epoch or (batch.may_repeat and name != own):
            _remove_at_once(folders, name, batch.id)


def _beginning_with(names: list[str], *prefixes: str) -> list[str]:
    return [name for name in names if name.startswith(prefixes)]


def _write_in_place(df: DataFrame, batch: SinkBatch, save: _Save) -> None:
    nothing = df.where(F.lit(False))
    for larger in batch.supersedes:
        save(nothing, folder_of(larger))
    batch.renew()
    save(df, folder_of(batch.id))


def _attempts_at(batch_id: str) -> str:
    return f"_attempt-{_hidden(batch_id)}@"


def _removed_of(batch_id: str) -> str:
    return f"_removed-{_hidden(batch_id)}@"


def _hidden(batch_id: str) -> str:
    """The id as part of a name that readers skip, so without a `=`."""
    return as_name(batch_id).replace("%3D", "%253D").replace("=", "%3D")
