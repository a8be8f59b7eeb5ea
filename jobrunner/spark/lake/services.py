"""Maintenance of lakehouse tables: rewrites small files, and removes files that no version names."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from jobrunner.clock import unix_ms
from jobrunner.errors import TableError
from jobrunner.etl.table_sink import address_of
from jobrunner.spark.lake.commit import open_table
from jobrunner.spark.lake.file_names import owner_of
from jobrunner.spark.lake.identity import KEPT_DAYS, is_written
from jobrunner.spark.lake.storage import local_path
from jobrunner.spark.lake.tables import CommitConflict, LakeTable, guarded, reason
from jobrunner.spark.station.sink_folders import LocalFolders

SAFE_AGE = timedelta(days=KEPT_DAYS)
_TRIES = 5
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanUp:
    """The files that `clean_up` removed, or would remove."""

    table: str
    files: tuple[str, ...]
    """Names below the root of the table."""


def compact_table(table: str) -> int:
    """Rewrites the small files of a table into large ones, in one transaction, while sinks write to it.

    Returns the number of rewritten files. They stay for readers until `clean_up_table`. Raises UsageError while another
    process compacts the table, TableError.
    """
    opened = open_table(address_of(table))
    _load(opened)
    with _alone(opened):
        return _between_commits(opened, "compacting it", opened.compact)


@contextmanager
def _alone(table: LakeTable) -> Iterator[None]:
    """Excludes other compactions: by a lock in the folder of the table, which the system releases when this process
    dies, or, on an object store, by the means of its format. `deltalake` would commit two concurrent compactions of the
    same files and so double each row; therefore the table is loaded under the lock."""
    if not table.storage.is_local:
        with table.only_compaction():
            yield
        return
    try:
        with LocalFolders(Path(local_path(table.storage.root))).compacting():
            yield
    except OSError as error:
        raise TableError(f"table {table.address}: compacting it failed: {reason(error)}") from error


def clean_up_table(table: str, *, older_than: timedelta = SAFE_AGE, dry_run: bool = False) -> CleanUp:
    """Removes data files that no version of a table names, and versions older than `older_than`.

    Files of attempts that ended are removed at once: the table knows their batch as written by another attempt, as a
    whole, or in parts. Other files are removed when they are older than `older_than`; pass less than the safe age only
    when nothing writes to the table. Raises TableError.
    """
    opened = open_table(address_of(table))
    age_s = older_than.total_seconds()
    if not dry_run:
        _between_commits(opened, "expiring old versions", lambda: opened.expire(age_s))
    _load(opened)
    found = guarded(opened.address, "listing its files", opened.orphans)
    before = unix_ms() / 1000 - age_s
    names = sorted(name for name, changed in found.names.items() if changed <= before or _is_over(opened, name))
    for name in [] if dry_run else names:
        guarded(opened.address, f"removing {name}", partial(found.storage.remove, name))
        if owner_of(name) is not None:
            found.storage.remove_empty(name.rpartition("/")[0])
    return CleanUp(table=str(opened.address), files=tuple(names))


def _between_commits(table: LakeTable, doing: str, do: Callable[[], T]) -> T:
    """Loads the table and returns the result of `do`; retries when sinks commit meanwhile."""
    for left in reversed(range(_TRIES)):
        _load(table)
        try:
            return guarded(table.address, doing, do)
        except CommitConflict as error:
            if not left:
                raise TableError(f"table {table.address}: {doing} met other commits {_TRIES} times, the last one: "
                                 f"{reason(error)}; try it when less is written") from error  # fmt: skip
    raise AssertionError


def _load(table: LakeTable) -> None:
    if not guarded(table.address, "opening it", table.load):
        raise TableError(f"there is no table {table.address}")


def _is_over(table: LakeTable, name: str) -> bool:
    """Whether the attempt that wrote this file can no longer be committed."""
    owner = owner_of(name)
    if owner is None:
        return False
    return table.mark_of(owner[0]) is not None or is_written(owner[0], table.mark_of)
