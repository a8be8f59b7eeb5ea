"""Commits a batch to a table once: the checks before its rows are written, and the transaction after them.

Needs neither Spark nor a server: a test, or a program with data files of its own, calls `prepare` and `commit`.

Invariant: files are removed only when no transaction can name them any more, which the marks in the table decide. Files
of a commit whose outcome is unknown stay, and `services.clean_up` removes them later.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import pyarrow as pa

from jobrunner.clock import monotonic, sleep
from jobrunner.errors import BatchLost, TableError
from jobrunner.etl.table_sink import TableAddress
from jobrunner.logs import SafeLogger
from jobrunner.spark.lake.file_names import prefix_of
from jobrunner.spark.lake.files import ROWS_PER_FILE, DataFile, FileTarget, remove_others, remove_own
from jobrunner.spark.lake.identity import Standing, WriteAttempt, is_written, rows_of
from jobrunner.spark.lake.row_values import check_nulls, check_partitions_of, check_years, latest_rows
from jobrunner.spark.lake.schema_rules import SchemaPlan, check_key, check_partitions, fit
from jobrunner.spark.lake.tables import CommitConflict, LakeTable, guarded, reason, without_panic

RETRIES_S = 60.0
"""Seconds for which a commit is retried after conflicts with other writers."""
_FIRST_S, _LONGEST_S = 0.05, 3.0
_FENCES = 15
_seen: set[str] = set()
"""Addresses of tables that this process wrote to."""
_log = SafeLogger("jobrunner.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """The result of a write of a batch to a table."""

    table: str
    rows: int
    """Rows that this call committed."""
    files: int
    """Data files that this call added; 0 for a merge, whose files the library writes."""
    version: int | None
    """Version of the Delta table that has the rows, or a later one if others committed meanwhile; id of the Iceberg
    snapshot; None when nothing was committed."""
    repeated: bool = False
    """Whether the batch was in the table already, by another attempt or as a part of a larger batch: nothing was
    written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A table that is ready for the rows of a batch."""

    table: LakeTable
    attempt: WriteAttempt
    plan: SchemaPlan
    partition_by: tuple[str, ...]
    merge_on: tuple[str, ...]
    rows: pa.Schema
    """The columns of the rows, in the types of the table format."""
    unique_id: str

    def target(self, rows_per_file: int = ROWS_PER_FILE) -> FileTarget:
        """The arguments with which executors write the rows."""
        return FileTarget(
            table=str(self.table.address), storage=self.table.storage,
            prefix=prefix_of(self.table.folder, self.attempt), schema=self.plan.files, partition_by=self.partition_by,
            keeps_partitions=self.table.keeps_partitions, rows_per_file=rows_per_file,
        )  # fmt: skip


def open_table(address: TableAddress) -> LakeTable:
    """The table at an address, not loaded. Raises SparkMissing, TableError."""
    address.check_installed()
    if address.format == "delta":
        from jobrunner.spark.lake.delta import DeltaLake

        return DeltaLake(address)
    from jobrunner.spark.lake.iceberg import IcebergLake

    return guarded(address, "opening its catalog", lambda: IcebergLake(address))


def prepare(
    address: TableAddress, attempt: WriteAttempt, rows: pa.Schema, *, partition_by: Sequence[str] = (),
    merge_on: Sequence[str] = (),
) -> Prepared | TableCommit:  # fmt: skip
    """Returns the table, created when missing, ready for rows of this schema; or a TableCommit when the batch is in it.

    Raises TableError when the rows do not fit or the table cannot be reached, BatchLost for a batch that was split.
    """
    table = open_table(address)
    if not guarded(address, "opening it", table.load):
        _check_is_new(address)
        columns = table.plain(rows)
        check_partitions(str(address), tuple(partition_by), (), columns, in_files=table.keeps_partitions)
        check_key(str(address), merge_on, columns)
        fit(str(address), pa.schema([]), columns, widens_table=False)
        guarded(address, "making it", lambda: table.create(columns, partition_by))
        _log.info("table made", table=str(address), columns=columns.names, partition_by=list(partition_by))
    if guarded(address, "reading its marks", lambda: attempt.standing(table.mark_of)) is not Standing.NEW:
        return _repeated(table, attempt)
    plain_rows = table.plain(rows)
    plan = _plan(table, plain_rows, partition_by, merge_on)
    _seen.add(str(address))
    return Prepared(
        table=table, attempt=attempt, plan=plan, partition_by=table.partition_by, merge_on=tuple(merge_on),
        rows=plain_rows, unique_id=table.unique_id,
    )  # fmt: skip


def commit(ready: Prepared, files: Sequence[DataFile]) -> TableCommit:
    """Adds data files of a batch to its table, once. Without rows nothing is committed.

    Raises BatchLost when another attempt may have begun, TableError.
    """
    rows = sum(one.rows for one in files)
    if not rows:
        return TableCommit(table=str(ready.table.address), rows=0, files=0, version=None)
    ready = _of_rows(ready, rows)

    def append() -> int:
        _check_there(ready, files)
        return ready.table.append(files, ready.attempt)

    done = _transact(ready, append)
    if done is None:
        return _repeated(ready.table, ready.attempt)
    with suppress(Exception):  # the rows are committed; `clean_up` removes remaining files
        remove_others(ready.table.storage, ready.table.folder, ready.attempt, [one.name for one in files])
    return TableCommit(table=str(ready.table.address), rows=rows, files=len(files), version=done)


def commit_merge(ready: Prepared, rows: pa.Table, order: Sequence[str] = ()) -> TableCommit:
    """Merges rows by key, once. Of several rows with one key, the last by the columns of `order` is kept.

    Raises as `commit`, and PipelineError for a key that is null, or several rows with one key and no order.
    """
    unique = latest_rows(str(ready.table.address), rows, ready.merge_on, order).select(ready.plan.files.names)
    if not len(unique):
        return TableCommit(table=str(ready.table.address), rows=0, files=0, version=None)
    ready = _of_rows(ready, len(rows))
    name, unique = str(ready.table.address), unique.cast(ready.plan.files)
    check_nulls(name, ready.plan.files, unique)
    check_years(name, unique)
    check_partitions_of(name, ready.partition_by, unique, in_files=ready.table.keeps_partitions)
    done = _transact(ready, lambda: ready.table.merge(unique, ready.merge_on, ready.attempt))
    if done is None:
        return _repeated(ready.table, ready.attempt)
    return TableCommit(table=str(ready.table.address), rows=len(unique), files=0, version=done)


def rows_before(address: TableAddress, batch_id: str) -> int | None:
    """The number of rows with which a micro-batch is in its table; None if that is not known."""
    table = open_table(address)
    return table.mark_of(rows_of(batch_id)) if guarded(address, "opening it", table.load) else None


def settle(table: LakeTable, batch_id: str, *, root: str = "") -> bool:
    """Whether the rows of a batch are in the table. If not, no attempt at it that has begun will be committed.

    `root`: the root of the batch on whose behalf the call is made. Batches of that root are not fenced: their commits
    conflict by its mark, and a part comes again under its id even if the server forgot the split; a fence would then
    refuse it for ever.
    """
    address = table.address
    for tries in range(1, _FENCES + 1):
        guarded(address, "opening it", table.load)
        if guarded(address, "reading its marks", partial(is_written, batch_id, table.mark_of)):
            return True
        if table.mark_of(batch_id) is not None or f"{batch_id}.".startswith(f"{root}."):
            return False
        with suppress(CommitConflict):
            guarded(address, f"fencing batch {batch_id}", partial(table.fence, batch_id))
            return False
        sleep(random.uniform(0.5, 1.0) * min(_FIRST_S * 2**tries, _LONGEST_S))
    raise TableError(f"table {address}: {_FENCES} commits met others that were to fence batch {batch_id}, which the "
                     "server lost")  # fmt: skip


def is_settled(ready: Prepared) -> bool:
    """Whether the table has a mark of the batch by now."""
    try:
        return ready.table.load() and ready.attempt.standing(ready.table.mark_of) is not Standing.NEW
    except BatchLost:
        return True
    except Exception:  # report the first error
        return False


def discard(ready: Prepared) -> None:
    """Removes the files of an attempt that failed before its commit."""
    with suppress(Exception):  # report the first error, not one of the clean-up
        remove_own(ready.table.storage, ready.table.folder, ready.attempt)


def _of_rows(ready: Prepared, rows: int) -> Prepared:
    return replace(ready, attempt=replace(ready.attempt, rows=rows))


def _transact(ready: Prepared, write: Callable[[], int]) -> int | None:
    """Returns the version that `write` committed; None when the batch is in the table by then. Retries after
    conflicts."""
    table, address, ends = ready.table, ready.table.address, monotonic() + RETRIES_S
    for tries in count(1):
        standing = _standing_now(ready)
        if standing is not Standing.NEW:
            return _settled(ready, standing)
        try:
            plan = _plan_again(ready)
            ready.attempt.renew()
        except (BatchLost, TableError):
            discard(ready)
            raise
        try:
            if guarded(address, "adding columns", partial(table.evolve, plan)):
                continue  # with a version that may have other commits as well
            return without_panic(write)
        except CommitConflict as error:
            if monotonic() >= ends:
                raise TableError(
                    f"table {address}: {tries} commits met others in {RETRIES_S:g} s, the last one: {reason(error)}; "
                    "let fewer programs write to it at once"
                ) from error
        except TableError:
            raise
        except Exception as error:
            if is_settled(ready):  # it failed after the commit, or another attempt removed its files
                continue
            failed = TableError(f"table {address}: the commit failed: {reason(error)}")
            failed.may_be_of_rows = True
            raise failed from error
        sleep(random.uniform(0.5, 1.0) * min(_FIRST_S * 2**tries, _LONGEST_S))
    raise AssertionError


def _standing_now(ready: Prepared) -> Standing:
    """Loads the table and reads the state of the attempt. Raises BatchLost, and TableError, also when the table was
    replaced by another one."""
    table, address = ready.table, ready.table.address
    if not guarded(address, "opening it", table.load) or table.unique_id != ready.unique_id:
        discard(ready)
        raise TableError(f"table {address} was dropped or replaced meanwhile: nothing is committed")
    try:
        return guarded(address, "reading its marks", lambda: ready.attempt.standing(table.mark_of))
    except BatchLost:
        discard(ready)
        raise


def _settled(ready: Prepared, standing: Standing) -> int | None:
    if standing is Standing.OURS:  # the reply was lost, or the reported conflict was none
        return ready.table.version
    discard(ready)
    return None


def _plan_again(ready: Prepared) -> SchemaPlan:
    """The schema plan for the table as it is now. Raises TableError when the files do not fit any more."""
    plan = _plan(ready.table, ready.rows, ready.partition_by, ready.merge_on)
    if plan.files != ready.plan.files or ready.table.partition_by != ready.partition_by:
        raise TableError(f"table {ready.table.address} got other columns while rows were written for it: the batch has "
                         "to be written again")  # fmt: skip
    return plan


def _plan(table: LakeTable, rows: pa.Schema, partition_by: Sequence[str], merge_on: Sequence[str]) -> SchemaPlan:
    name, columns = str(table.address), table.columns
    check_partitions(name, table.partition_by, partition_by, rows, in_files=table.keeps_partitions)
    check_key(name, merge_on, rows)
    missing = [one for one in columns.names if one not in rows.names]
    if merge_on and missing and table.merges_whole_rows:
        raise TableError(f"table {name} has a column {missing[0]!r} and the rows have not: a merge sets whole rows "
                         "here, so name all columns")  # fmt: skip
    plan = fit(name, columns, rows, widens_table=table.widens)
    table.check_new([one.name for one in plan.new])
    return plan


def _check_is_new(address: TableAddress) -> None:
    if str(address) in _seen:
        raise TableError(
            f"table {address} is gone, and this process wrote to it before: restore it, or restart the worker to make "
            "a new one"
        )


def _check_there(ready: Prepared, files: Sequence[DataFile]) -> None:
    """Raises TableError when a file is gone, because a version that names it could not be read. When another attempt
    was committed meanwhile and removed the files, raises CommitConflict instead; so marks are read again here."""
    storage = ready.table.storage
    if gone := next((one.name for one in files if not storage.has(one.name)), None):
        if is_settled(ready):
            raise CommitConflict("another attempt was committed")
        discard(ready)
        raise TableError(f"table {ready.table.address}: {storage.path(gone)} was removed before its commit: write the "
                         "batch again")  # fmt: skip


def _repeated(table: LakeTable, attempt: WriteAttempt) -> TableCommit:
    _log.info("batch is in the table", table=str(table.address), batch=attempt.batch_id, epoch=attempt.epoch)
    return TableCommit(table=str(table.address), rows=0, files=0, version=None, repeated=True)
