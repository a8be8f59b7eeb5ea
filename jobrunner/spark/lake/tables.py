"""The interface of both table formats, `LakeTable`, and their errors.

Invariant: `append` and `merge` commit the rows and the marks in one transaction, and raise CommitConflict when another
commit of the same root batch happened since `load`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol, TypeVar

import pyarrow as pa

from jobrunner.errors import JobrunnerError, TableError
from jobrunner.etl.table_sink import TableAddress
from jobrunner.spark.lake.files import DataFile
from jobrunner.spark.lake.identity import WriteAttempt
from jobrunner.spark.lake.schema_rules import SchemaPlan
from jobrunner.spark.lake.storage import Storage

T = TypeVar("T")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BRANCH = "↳"
_PANIC = "PanicException"


class CommitConflict(Exception):
    """Another commit came first: load the table, check the marks again, and repeat the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """Files below a table that no retained version of it names."""

    names: Mapping[str, float]
    """The time of the last change of each file, in Unix seconds, by its name below the root."""
    storage: Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """A data file of the loaded version."""

    path: str
    """Path or URL."""
    partition: Mapping[str, str | None]
    """The text of its partition's values, by column."""


class LakeTable(Protocol):
    """A lakehouse table at the version of the last `load`."""

    address: TableAddress
    folder: str
    """The folder of data files below the root, with a trailing slash, or empty."""
    keeps_partitions: bool
    """Whether data files have the columns they are partitioned by."""
    widens: bool
    """Whether the format can widen a column."""
    merges_whole_rows: bool
    """Whether a merge sets all columns of a row, so that the rows must have all of them."""

    def load(self) -> bool:
        """Reads the newest version. Returns False when there is no such table. Raises the errors of the library."""

    def create(self, columns: pa.Schema, partition_by: Sequence[str]) -> None:
        """Creates the table, unless another process does at this moment, and loads it."""

    @property
    def unique_id(self) -> str:
        """An id that changes when the table is dropped and created again."""

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table, in the types of `schema_rules.plain`."""

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The partition columns. Raises TableError for another kind of partition."""

    @property
    def storage(self) -> Storage:
        """Its files."""

    def plain(self, schema: pa.Schema) -> pa.Schema:
        """A schema of rows in the types of the format."""

    def mark_of(self, batch_id: str) -> int | None:
        """The mark of a batch, see `identity`."""

    @property
    def version(self) -> int:
        """The version that is loaded, or the id of the snapshot; 0 for an Iceberg table without one."""

    def evolve(self, plan: SchemaPlan) -> bool:
        """Makes the next `append` or `merge` change the columns by the plan. Returns True when a transaction of its own
        changed them: load the table again then."""

    def check_new(self, names: Sequence[str]) -> None:
        """Raises TableError for a new column whose name a dropped column has in older data files."""

    def append(self, files: Sequence[DataFile], attempt: WriteAttempt) -> int:
        """Adds data files. Returns the version or the id of the snapshot."""

    def merge(self, rows: pa.Table, merge_on: Sequence[str], attempt: WriteAttempt) -> int:
        """Replaces rows by key, and adds the others. Rows have each key once and no null in it."""

    def fence(self, batch_id: str) -> None:
        """Commits the mark PARTS for a batch, without rows: an attempt at it that is under way cannot be committed."""

    def only_compaction(self) -> AbstractContextManager[None]:
        """Excludes compactions on other machines, where the library would commit both. Raises UsageError."""

    def compact(self) -> int:
        """Rewrites small files of the loaded version in one transaction. Returns the number of rewritten files."""

    def expire(self, older_than_s: float) -> None:
        """Removes older versions, with the files that only they name."""

    def live_files(self, column: str = "", value: str = "") -> list[LiveFile]:
        """The data files of the loaded version; with a column of text, without those whose bounds exclude the value.

        Raises TableError when rows in them are deleted or columns renamed, which only readers of this format can
        handle.
        """

    def orphans(self) -> Orphans:
        """Files that no version names."""


def guarded(table: TableAddress, doing: str, do: Callable[[], T]) -> T:
    """Returns the result of `do`. Errors of libraries and systems become a TableError that names the table."""
    try:
        return without_panic(do)
    except (JobrunnerError, CommitConflict):
        raise
    except Exception as error:  # of two libraries, of SQL, of HTTP, of the file system
        raise TableError(f"table {table}: {doing} failed: {reason(error)}") from error


def without_panic(do: Callable[[], T]) -> T:
    """Returns the result of `do`. A panic of deltalake, which is no Exception, becomes a RuntimeError; otherwise it
    would pass every error handler and end the thread."""
    try:
        return do()
    except BaseException as error:
        if type(error).__name__ == _PANIC:
            raise RuntimeError(f"{_PANIC}: {error}") from error
        raise


def reason(error: BaseException) -> str:
    """The kind of an error and its first line, with the lines of its causes, which deltalake draws as a tree."""
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    causes = takewhile(lambda line: line.startswith(_BRANCH), lines[1:])
    words = [*lines[:1], *(line.removeprefix(_BRANCH).strip() for line in causes)]
    return ": ".join([type(error).__name__, *words])
