"""The files of an archive: history as Parquet, partitioned by day, queue and time window. Archives in tables of a
lakehouse are in `archive_tables`.

`PATH/date=2026-11-20/queue=mail/window=1763600000000-1763686400000/part-….parquet`; a window is [from, to) in Unix
ms by the server's clock. The rows have the columns of the data source, and the payload as it was stored.
"""

import fnmatch
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from jobrunner.clock import unix_ms
from jobrunner.errors import InvalidOption
from jobrunner.spark.failures import error_line, is_of_spark
from jobrunner.spark.history.archive_tables import NEEDED, TableArchive, place_of, read_archive_table
from jobrunner.spark.history.common_columns import days_between, ended_since, whole_queue_of
from jobrunner.spark.station.sink_folders import local_path

_STAGED, _STAGED_S = ".spark-staging-*", 86_400
_NO_FILES = {"PATH_NOT_FOUND": "it is not there", "UNABLE_TO_INFER_SCHEMA": "no task is in it"}
"""Spark's error condition → reason in a message."""
_PATTERN = re.compile(r"[*?\[\]{}\\]")
_LOCAL = re.compile(r"(?:file:(?://(?=/))?)?/+(.*)", re.DOTALL)
"""A path, `file:/data` or `file:///data`; `file://host/data` has a host."""
PARTITIONS = ("date", "queue", "window")


class FolderArchive:
    """An archive in a folder, or at a URL that Spark can write Parquet to. Each window has folders of its own."""

    is_atomic = False
    """Whether a window exists as a whole or not at all."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark, self.where = spark, path

    @property
    def identity(self) -> str:
        """A name that is the same for all spellings of a local folder. Hadoop does not decode a `%20` in a URL."""
        local = _LOCAL.fullmatch(self.where)
        return self.where.rstrip("/") if local is None else str(Path("/" + local[1]).resolve())

    def check(self, rows: DataFrame, done: Mapping[str, float]) -> None:
        """Creates the folder, by writing no rows. Raises InvalidOption for a folder that cannot be written to and, when
        no queue is archived yet (`done`), for a folder with files of another kind: the mixture could not be read."""
        if not done and (there := self._read()) is not None:
            _check_is_archive(self.where, there, (*NEEDED, *PARTITIONS))
        try:
            self._writer(rows, "append").parquet(self.where)
        except Exception as error:
            raise self._unusable(error) from error

    def write(self, rows: DataFrame, name: str, renew: Callable[[], None], *, adds: bool) -> None:  # noqa: ARG002
        """Writes the rows of a window, over the rows in its folders or, with `adds`, in addition. Only tables use
        `name` and `renew`."""
        self._writer(rows, "append" if adds else "overwrite").parquet(self.where)

    def remove_left_overs(self) -> None:
        """Removes Spark's staging folders of killed runs from a local folder, when they are a day old: until then, a
        suspended run might continue and move its staged files into place."""
        before = unix_ms() / 1000 - _STAGED_S
        folder = local_path(self.where)
        for one in [] if folder is None else folder.glob(_STAGED):
            with suppress(OSError):  # another run removed it
                if one.stat().st_mtime < before:
                    shutil.rmtree(one)

    def rows(self, window: str) -> DataFrame | None:
        """Returns the rows of a window; None when there are no files yet."""
        found = self._read()
        return None if found is None else found.where(F.col("window") == window)

    def rows_since(self, firsts: Mapping[str, float]) -> DataFrame | None:
        """Returns the rows of tasks that ended at `firsts` (Unix ms by exact name of a queue or shard) or later; None
        when there are no files yet. Reads only windows and days that may have such rows."""
        if (found := self._read()) is None:
            return None
        first = min(firsts.values())
        day, _ = days_between(datetime.fromtimestamp(first / 1000, UTC), None)
        until = F.split_part(F.col("window"), F.lit("-"), F.lit(2)).try_cast("long")
        found = found.where((F.col("date") >= F.lit(day)) & F.coalesce(until > F.lit(first), F.lit(True)))
        return found.where(ended_since(firsts))

    def _writer(self, rows: DataFrame, mode: str) -> DataFrameWriter:
        return rows.write.partitionBy(*PARTITIONS).mode(mode).option("partitionOverwriteMode", "dynamic")

    def _read(self) -> DataFrame | None:
        try:
            return self._spark.read.parquet(self.where)
        except Exception as error:
            if isinstance(error, AnalysisException) and error.getCondition() in _NO_FILES:
                return None
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> Exception:
        if not is_of_spark(error):
            return error
        return InvalidOption(
            f"the archive {self.where} cannot be used ({error_line(error)}): give a folder or URL that Spark reads "
            "and writes; nothing was deleted"
        )


def archive_at(spark: SparkSession, path: str) -> FolderArchive | TableArchive:
    """Returns the archive in a folder or table. Raises InvalidOption, also for a folder whose name Spark takes for a
    pattern: rows written there would not be found again."""
    place = place_of(path)
    if not isinstance(place, str):
        return TableArchive(spark, place)
    if found := _PATTERN.search(place):
        raise InvalidOption(
            f"the path of the archive, {place}, has the character {found[0]!r}, which Spark takes for a pattern: "
            "rename the folder"
        )
    return FolderArchive(spark, place)


def read_archive(
    spark: SparkSession,
    path: str,
    *,
    queues: Sequence[str] = (),
    jobs: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """Reads the tasks of an archive that ended in [since, until), of queues matching these patterns and of these jobs.

    `path`: a folder or URL, or the address of a table (`delta:…`, `iceberg:…`). Raises InvalidOption when there is no
    archive, TableError for a table that cannot be read.
    """
    place = place_of(path)
    if isinstance(place, str):
        found = _in_folder(spark, place)
    else:
        found = read_archive_table(spark, place, queues, since, until)
    if queues:
        likes = "|".join(fnmatch.translate(pattern) for pattern in queues)
        found = found.where(whole_queue_of("_queue").rlike(f"^({likes})"))  # anchored at its end by fnmatch
    if jobs:
        found = found.where(F.col("_type").isin(*jobs))
    first, last = days_between(since, until)
    if since is not None:
        found = found.where((F.col("_finished_at") >= F.lit(since)) & (F.col("date") >= F.lit(first)))
    if until is not None:
        found = found.where((F.col("_finished_at") < F.lit(until)) & (F.col("date") <= F.lit(last)))
    return found


def _in_folder(spark: SparkSession, path: str) -> DataFrame:
    with reading(path):
        found = spark.read.parquet(path)
    _check_is_archive(path, found, NEEDED)
    return found


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Converts an error of Spark, a page of Java, into InvalidOption: damaged files, no archive, an unusable URL."""
    try:
        yield
    except Exception as error:
        if not is_of_spark(error):
            raise
        condition = error.getCondition() if isinstance(error, AnalysisException) else None
        reason = _NO_FILES.get(condition or "")
        message = f"{reason}; make one: jobrunner history archive --to {path}" if reason else error_line(error)
        raise InvalidOption(f"{path} cannot be read as an archive: {message}") from error


def _check_is_archive(path: str, found: DataFrame, needed: Sequence[str]) -> None:
    if lacking := [name for name in needed if name not in found.columns]:
        raise InvalidOption(f"{path} is no archive of jobrunner: it has no column {lacking[0]}")


_EACH_S = 0.25


@contextmanager
def telling_rows(
    spark: SparkSession, tell: Callable[[int], None] | None, *, of_table: bool = False
) -> Iterator[None]:
    """Calls `tell` from a background thread with the number of rows written since the `with` block began; for a table,
    whose files Spark's own writer does not write, with the number of rows read.

    Rows of a Spark task count when the task ends. Concurrent writes of the session count, too. With a session of Spark
    Connect, `tell` is never called.
    """
    if tell is None or not hasattr(spark, "_jsparkSession"):
        yield
        return
    over, rows = threading.Event(), _Rows(spark, "inputRecords" if of_table else "outputRecords")

    def watch() -> None:
        while not over.wait(_EACH_S):
            with suppress(Exception):  # a failing progress display must not end the write
                tell(rows.count())

    watcher = threading.Thread(target=watch, name="jobrunner-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


class _Rows:
    """Counts the rows written, or read, by all stages that were active at a call of `count`."""

    def __init__(self, spark: SparkSession, metric: str) -> None:
        self._metric = metric
        session: Any = spark
        self._tracker = session.sparkContext.statusTracker()
        self._store = session._jsparkSession.sparkContext().statusStore()  # noqa: SLF001 - there is no public way
        self._seen: set[int] = set()

    def count(self) -> int:
        self._seen.update(self._tracker.getActiveStageIds())
        return sum(getattr(self._store.lastStageAttempt(stage), self._metric)() for stage in self._seen)
