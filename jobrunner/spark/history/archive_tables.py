"""Archives in a table of Delta Lake or Iceberg: a window is one commit, under the name of the archive and the window.

The table has the columns of an archive in files, is partitioned by `date` and `queue`, and has the window as a column.
So a window is in the table as a whole or not at all, which the mark of its commit shows, and the rows with its name
show also when the table has forgotten the marks after some days.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from jobrunner.broker.shards import whole_queue
from jobrunner.errors import BatchLost, InvalidOption, TableError, UsageError
from jobrunner.etl.table_sink import TableAddress, address_of, is_table
from jobrunner.spark.history.common_columns import days_between, ended_since
from jobrunner.spark.lake.arrow_types import arrow_schema
from jobrunner.spark.lake.commit import open_table, prepare
from jobrunner.spark.lake.identity import attempt_of
from jobrunner.spark.lake.read import read_table
from jobrunner.spark.lake.tables import LakeTable, guarded
from jobrunner.spark.lake.write import write_rows

PARTITIONS = ("date", "queue")
NEEDED = ("_id", "_state", "_finished_at", "payload")
_WINDOW = "window"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""Matches the beginning of a URL: `file:/data` is a URL, but `C:/data` is a Windows path."""
_FORMATS = ("delta", "iceberg")
_EXAMPLES = "delta:/lake/history, iceberg:catalog.db.history, or a folder"


@dataclass(frozen=True, kw_only=True)
class _WindowCommit:
    """The identity of a window's commit. A BatchIdentity."""

    id: str
    renew: Callable[[], None] = field(repr=False)
    supersedes: tuple[str, ...] = ()
    epoch: int = 1


class TableArchive:
    """An archive in a table; has the methods of FolderArchive."""

    is_atomic = True

    def __init__(self, spark: SparkSession, address: TableAddress) -> None:
        self._spark, self._address = spark, address
        self.where = str(address)
        self.identity = self.where.rstrip("/")

    def check(self, rows: DataFrame, done: Mapping[str, float]) -> None:
        """Creates the table when no queue is archived yet. Raises TableError for a table that was dropped, cannot be
        reached or is not an archive."""
        table = open_table(self._address)
        if guarded(self._address, "opening it", table.load):
            self._check_takes(table)
        elif done:
            raise TableError(f"table {self.where} is gone, and tasks of {len(done)} queues are archived in it: restore "
                             "it, or archive to another table; nothing was written or deleted")  # fmt: skip
        attempt = attempt_of(_WindowCommit(id="archive-check", renew=lambda: None))
        prepare(self._address, attempt, arrow_schema(self.where, rows.schema), partition_by=PARTITIONS)

    def write(self, rows: DataFrame, name: str, renew: Callable[[], None], *, adds: bool) -> None:  # noqa: ARG002
        """Commits the rows of a window, unless it is in the table. Raises BatchLost when `renew` raises UsageError."""

        def held() -> None:
            try:
                renew()
            except UsageError as error:
                raise BatchLost(str(error)) from error

        write_rows(rows, _WindowCommit(id=f"archive-{name}", renew=held), self._address, partition_by=PARTITIONS)

    def rows(self, window: str) -> DataFrame:
        """The rows of a window."""
        found = read_table(self._spark, _loaded(self._address), column=_WINDOW, value=window)
        return found.where(F.col(_WINDOW) == window)

    def rows_since(self, firsts: Mapping[str, float]) -> DataFrame:
        """The rows of queues and shards by exact name that ended at an instant of their own or later, Unix ms."""
        first = datetime.fromtimestamp(min(firsts.values()) / 1000, UTC)
        found = read_archive_table(self._spark, self._address, set(map(whole_queue, firsts)), first, None)
        return found.where(ended_since(firsts))

    def _check_takes(self, table: LakeTable) -> None:
        _check_is_archive(self._address, table.columns.names)
        if (by := table.partition_by) != PARTITIONS:
            raise TableError(f"table {self.where} is partitioned by {', '.join(by) or 'nothing'}, and an archive by "
                             f"{', '.join(PARTITIONS)}: archive to another table")  # fmt: skip


def place_of(path: str) -> str | TableAddress:
    """The location of an archive, a table or a folder; local paths become absolute. Raises InvalidOption."""
    if not path.strip():
        raise InvalidOption(f"an archive needs a place: give {_EXAMPLES}")
    if is_table(path):
        kind, _, where = path.partition(":")
        if kind == "delta" and where.strip() and "://" not in where and not where.startswith("file:"):
            try:
                path = f"{kind}:{Path(where.strip()).expanduser().absolute()}"
            except RuntimeError as error:  # ~name, or ~ of an account without a home
                raise InvalidOption(f"{path}: no such home directory is known; give an absolute path") from error
        return address_of(path)
    kind, colon, _ = path.partition(":")
    if colon and get_close_matches(kind.lower(), _FORMATS) and not Path(path).exists():
        raise InvalidOption(f"{path} is neither a table nor a folder or URL: give {_EXAMPLES}")
    return path if _URL.match(path) else str(Path(path).absolute())


def read_archive_table(
    spark: SparkSession, address: TableAddress, queues: Iterable[str], since: datetime | None, until: datetime | None
) -> DataFrame:
    """The rows of an archive in a table, from the files whose days and queues may have wanted rows.

    Raises InvalidOption when there is no archive, TableError.
    """
    likes = tuple(queues)
    first, last = (day.isoformat() for day in days_between(since, until))

    def admits(partition: Mapping[str, str | None]) -> bool:
        day, queue = partition.get("date"), partition.get("queue")
        return (day is None or first <= day <= last) and (
            queue is None or not likes or any(fnmatchcase(whole_queue(queue), like) for like in likes)
        )

    return read_table(spark, _loaded(address), admits=admits)


def _loaded(address: TableAddress) -> LakeTable:
    table = open_table(address)
    if not guarded(address, "opening it", table.load):
        raise InvalidOption(f"there is no table {address}; make one: jobrunner history archive --to {address}")
    _check_is_archive(address, table.columns.names)
    return table


def _check_is_archive(address: TableAddress, columns: list[str]) -> None:
    if lacking := [name for name in (*NEEDED, *PARTITIONS, _WINDOW) if name not in columns]:
        raise InvalidOption(f"table {address} is no archive of jobrunner: it has no column {lacking[0]}")
